#!/usr/bin/env python3
"""Every module of ours loads on pretended cards: SPIR-V on all, native code on the Battlemage ones.

    modules.py RUN LOADER KERNELS...     RUN = tests/nocard/run, LOADER = the program of load.cpp, KERNELS = folders of modules

Each kernel of a module's description must be there, with the declared sub-group size and without spills. Kernels of one engine
(folders below that of a kind) are tuned for Battlemage: on an Alchemist card, whose registers are half as wide, theirs are told of
and not counted as wrong.
"""
# SPDX-License-Identifier: MIT

import json
import pathlib
import subprocess
import sys

CARDS = [("b580", "bmg-g21"), ("b70", "bmg-g31"), ("a770", None)]


def main():
    run, loader, *folders = sys.argv[1:]
    descriptions = [(path, json.loads(path.read_text())) for folder in folders for path in sorted(pathlib.Path(folder).rglob("*.gpu.json"))]
    tuned = {str(path.parent) for folder in folders for path in pathlib.Path(folder).rglob("*.gpu.json") if len(path.relative_to(folder).parts) > 2}
    if not descriptions:
        sys.exit(f"no module in {' '.join(folders)}")
    passed = failed = skipped = 0
    native_missing = False
    for card, architecture in CARDS:
        for form in ["spirv", "native"] if architecture else ["spirv"]:
            files = {}
            for path, description in descriptions:
                if architecture is None and "silo" in path.parts:
                    continue  # tuned for Battlemage
                entry = description["spirv"] if form == "spirv" else description.get("native", {}).get(architecture)
                if entry:
                    files[str(path.parent / entry["file"])] = description
            if form == "native" and len(files) < len(descriptions):
                native_missing = True
                skipped += len(descriptions) - len(files)
            if not files:
                continue
            arguments = [word for file, d in files.items() for word in ["-o", d.get("build_options", ""), file]]
            result = subprocess.run([run, card, loader, *arguments], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=900)
            seen = {}
            for line in result.stdout.splitlines():
                file, kernel, width, _private, spill = line.rsplit(" ", 4)
                seen.setdefault(file, {})[kernel] = (int(width), int(spill))
            for file, description in files.items():
                spills = []
                wrong = faults(description, seen.get(file, {}), spills)
                if spills and architecture is None and str(pathlib.Path(file).parent) in tuned:
                    print(f"{card} {form} {description['module']}, tuned for other cards: {'; '.join(spills)}")
                else:
                    wrong += spills
                name = f"{card} {form} {description['module']}"
                if wrong:
                    failed += 1
                    print(f"FAILED: {name}: {'; '.join(wrong[:5])}")
                else:
                    passed += 1
                    print(f"ok: {name}: {len(description['kernels'])} kernels")
            if result.returncode:
                print(result.stderr[-2000:])
                if result.returncode == 77:
                    sys.exit(77)
                if not any(faults(d, seen.get(f, {}), []) for f, d in files.items()):
                    failed += 1
                    print(f"FAILED: {card} {form}: the loader ended with {result.returncode}")
    if native_missing:
        print("not run: native code was not built here (no ocloc)")
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    sys.exit(1 if failed else 0)


def faults(description, seen, spills):
    """What is wrong with a module's kernels as the driver has made them; spills go to a list of their own."""
    wrong = []
    for kernel in description["kernels"]:
        width, spill = seen.get(kernel["entry"], (0, 0))
        if width == 0:
            wrong.append(f"{kernel['name']} is missing")
        elif width != kernel["sub_group_size"]:
            wrong.append(f"{kernel['name']} has sub-groups of {width}, declared are {kernel['sub_group_size']}")
        elif spill:
            spills.append(f"{kernel['name']} spills {spill} bytes")
    return wrong


main()
