"""Runs the test script of a NixOS test: driver.py MACHINES.json SCRIPT machine.sh

Each machine is a real systemd in namespaces (machine.sh); the names a script may use are those of nixpkgs' own driver. What a
machine in namespaces cannot do (screens, keys, kernels, a network between machines) is an error, never ignored.

MACHINES.json: {"timeout": seconds, "machines": {NAME: {"units": {FILE: text}, "wants": {FILE: [TARGET]}, "etc": {PATH: {"text": text}
or {"source": file}}, "tmpfiles": [line], "users": {NAME: {...}}, "groups": {NAME: {...}}, "path": [folder]}}, "reason": why none can
run here, or ""}
SPDX-License-Identifier: MIT
"""

import contextlib
import ctypes
import hashlib
import json
import os
import pathlib
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import unittest

# What a machine runs besides the units under test.
SYSTEM_UNITS = {
    "sysinit.target.wants": [
        "systemd-journald.service",
        "systemd-journald.socket",
        "systemd-journald-dev-log.socket",
        "systemd-tmpfiles-setup.service",
    ],
}


class RequestedAssertionFailed(Exception):
    """A command or a unit did not do what the script asked for."""


class NotHere(Exception):
    """The script needs something that only a virtual machine has."""


def log(text):
    print(text, file=sys.stderr, flush=True)


def retry(fn, timeout=900, timeout_seconds=None):
    """Calls fn(last_try) once a second until it is true."""
    end = time.monotonic() + (timeout_seconds or timeout)
    while time.monotonic() < end:
        if fn(False):
            return
        time.sleep(0.3)
    if not fn(True):
        raise RequestedAssertionFailed(f"action timed out after {timeout_seconds or timeout} seconds")


@contextlib.contextmanager
def subtest(name):
    log(f"subtest: {name}")
    began = time.monotonic()
    try:
        yield
    except BaseException as error:
        log(f"!!! subtest {name!r} failed: {error}")
        raise
    log(f"(finished: subtest: {name}, in {time.monotonic() - began:.2f} seconds)")


def die_with_parent():
    """In a child before its program: nothing stays when this driver is killed."""
    if ctypes.CDLL(None, use_errno=True).prctl(1, signal.SIGKILL) != 0:  # PR_SET_PDEATHSIG
        raise OSError(ctypes.get_errno(), "prctl")


def own_cgroup():
    """The folder of this process's control group, version 2."""
    for line in pathlib.Path("/proc/mounts").read_text().splitlines():
        _, folder, kind = line.split()[:3]
        if kind == "cgroup2":
            for group in pathlib.Path("/proc/self/cgroup").read_text().splitlines():
                if group.startswith("0::"):
                    return pathlib.Path(folder + group[3:].rstrip("/"))
    raise NotHere("no control groups of version 2 on this machine")


class Machine:
    """One machine: started at the first use, as in nixpkgs' driver."""

    def __init__(self, name, spec, folder, starter):
        self.starter = starter
        self.name = name
        self.spec = spec
        self.folder = folder / name
        self.process = None
        self.init = None
        self.journal = None
        self.group = None
        self.root = self.folder / "root"
        self.users = {}

    def __getattr__(self, name):
        raise NotHere(f"machine.{name}: the stand-in's machines have no such thing; a virtual machine of nixpkgs may")

    def log(self, text):
        log(f"{self.name}: {text}")

    @contextlib.contextmanager
    def nested(self, text):
        self.log(text)
        began = time.monotonic()
        yield
        took = time.monotonic() - began
        if took >= 0.5:
            self.log(f"(finished: {text}, in {took:.2f} seconds)")

    # Its files.

    def _write(self, path, text, mode=0o644):
        file = self.folder / "etc" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        file.chmod(mode)

    def _accounts(self):
        groups = {"root": 0, "tty": 5, "video": 26, "users": 100, "render": 303, "nogroup": 65534}
        users = {"root": (0, "root", "/root", "/bin/sh"), "nobody": (65534, "nogroup", "/", "/bin/false")}
        members = {}
        system, normal = 999, 1000
        for name, group in sorted(self.spec["groups"].items()):
            if name not in groups:
                groups[name] = group.get("gid") or system
                system -= 1
            members.setdefault(name, set()).update(group.get("members") or [])
        for name, user in sorted(self.spec["users"].items()):
            if name in users:
                continue
            system_user = not user.get("isNormalUser")
            if bool(user.get("isSystemUser")) == bool(user.get("isNormalUser")):
                raise RequestedAssertionFailed(f"users.users.{name}: exactly one of isSystemUser and isNormalUser must be set")
            group = user.get("group") or ("users" if not system_user else "")
            if group not in groups:
                raise RequestedAssertionFailed(f"users.users.{name}.group: there is no group {group!r}")
            uid = user.get("uid")
            if not uid:
                uid, system, normal = (system, system - 1, normal) if system_user else (normal, system, normal + 1)
            home = user.get("home") or "/var/empty"
            if not system_user and home == "/var/empty":  # what NixOS sets with isNormalUser
                home = f"/home/{name}"
            users[name] = (uid, group, home, "/bin/sh" if user.get("isNormalUser") else "/usr/sbin/nologin")
            for extra in user.get("extraGroups") or []:
                if extra not in groups:
                    raise RequestedAssertionFailed(f"users.users.{name}.extraGroups: there is no group {extra!r}")
                members.setdefault(extra, set()).add(name)
        self.users = users
        self._write("passwd", "".join(f"{n}:x:{u}:{groups[g]}::{h}:{s}\n" for n, (u, g, h, s) in users.items()))
        self._write("group", "".join(f"{n}:x:{i}:{','.join(sorted(members.get(n, [])))}\n" for n, i in groups.items()))
        self._write("nsswitch.conf", "passwd: files\ngroup: files\nhosts: files dns\n")

    def _write_etc(self):
        spec = self.spec
        if self.folder.exists():
            shutil.rmtree(self.folder)
        self.root.mkdir(parents=True)
        (self.folder / "console").touch()
        self._accounts()
        self._write("machine-for-a-test", "")
        self._write("machine-id", hashlib.sha256(self.name.encode()).hexdigest()[:32] + "\n")
        self._write("hostname", self.name + "\n")
        self._write("hosts", f"127.0.0.1 localhost\n::1 localhost\n127.0.0.2 {self.name}\n")
        self._write("systemd/journald.conf", "[Journal]\nStorage=volatile\nRateLimitIntervalSec=0\nReadKMsg=no\nAudit=no\n")
        for service in ["other", "su", "su-l", "runuser", "runuser-l", "systemd-user"]:
            self._write(f"pam.d/{service}", "".join(f"{kind} required pam_permit.so\n" for kind in ["auth", "account", "password", "session"]))
        tmpfiles = [f"d {home} 0700 {name} {group} -" for name, (_, group, home, _) in self.users.items() if home.startswith("/home/")]
        tmpfiles += ["d /var/empty 0555 root root -", "d /run/user 0755 root root -"]
        units = pathlib.Path("systemd/system")
        for name, user in self.spec["users"].items():
            if user.get("linger"):
                uid = self.users[name][0]
                # Without logind: the folder it would make, and the user's own systemd.
                tmpfiles.append(f"d /run/user/{uid} 0700 {name} {self.users[name][1]} -")
                self._write(
                    units / f"user@{uid}.service.d/no-logind.conf",
                    f"[Unit]\nRequires=\nAfter=systemd-tmpfiles-setup.service\n[Service]\nPAMName=\nEnvironment=XDG_RUNTIME_DIR=/run/user/{uid}\n",
                )
                self._want(f"user@{uid}.service", "multi-user.target", "/units/user@.service")
                self._write(units / f"user-runtime-dir@{uid}.service", "[Service]\nType=oneshot\nRemainAfterExit=yes\nExecStart=/bin/true\n")
        self._write("tmpfiles.d/00-machine.conf", "\n".join(tmpfiles) + "\n")
        self._write("tmpfiles.d/nixos.conf", "\n".join(spec["tmpfiles"]) + "\n")
        for path, file in spec["etc"].items():
            self._write(path, file["text"] if "text" in file else pathlib.Path(file["source"]).read_text())
        for folder, names in SYSTEM_UNITS.items():
            for name in names:
                self._want(name, folder.removesuffix(".wants"), f"/units/{name}")
        link = self.folder / "etc" / units / "default.target"
        link.symlink_to("/units/multi-user.target")
        for name, text in spec["units"].items():
            self._write(units / name, text)
        for name, targets in spec["wants"].items():
            for target in targets:
                self._want(name, target, f"../{name}")

    def _want(self, unit, target, to):
        link = self.folder / "etc/systemd/system" / f"{target}.wants" / unit
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(to)

    def lint(self):
        """What can be said of its units without starting it."""
        self._write_etc()
        if not self.spec["units"]:
            return
        folder = self.folder / "etc/systemd/system"
        done = subprocess.run(
            ["systemd-analyze", "verify", "--man=no", "--generators=no", "--recursive-errors=no", *(folder / name for name in self.spec["units"])],
            env={**os.environ, "SYSTEMD_UNIT_PATH": f"{folder}:/usr/lib/systemd/system"},
            capture_output=True,
            text=True,
        )
        # It ends with 0 even for unknown keys.
        said = [line for line in done.stderr.splitlines() if str(folder) in line]
        if done.returncode != 0 or said:
            raise RequestedAssertionFailed("units that systemd does not take as they are:\n" + ("\n".join(said) or done.stderr))

    def _check_units(self):
        for name in self.spec["units"]:
            info = self.get_unit_info(name)
            if info["LoadState"] != "loaded":
                raise RequestedAssertionFailed(f"unit {name!r} is {info['LoadState']}: {info.get('LoadError', '')}")

    # Its life.

    def start(self, allow_reboot=False):
        if self.process is not None:
            return
        with self.nested("starting"):
            self.lint()
            group = own_cgroup()
            # Those of a driver that was killed.
            for old in group.glob("machine-*-*"):
                if not pathlib.Path("/proc", old.name.split("-")[1]).exists():
                    self._remove_group(old)
            self.group = group / f"machine-{os.getpid()}-{self.name}"
            self.group.mkdir()
            self.process = subprocess.Popen(["bash", self.starter, self.folder, self.group], stdin=subprocess.DEVNULL, start_new_session=True, preexec_fn=die_with_parent)
            self.init = self._find_init()

            def ready(_):
                self._alive()
                return self._inside(["sh", "-c", "systemctl is-system-running 2> /dev/null"])[1].strip() in ("running", "degraded")

            retry(ready, timeout=300)
            self.journal = subprocess.Popen(
                # From outside: a shutdown waits for everything that runs inside.
                ["journalctl", f"--directory=/proc/{self.init}/root/run/log/journal", "--follow", "--lines=all",
                 "--output=short-monotonic", "--no-hostname"],  # fmt: skip
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                errors="replace",
            )
            threading.Thread(target=self._follow, args=(self.journal.stdout,), daemon=True).start()
            self._check_units()

    def _follow(self, lines):
        for line in lines:
            log(f"{self.name} # {line.rstrip()}")

    def _alive(self):
        if self.process is None:
            raise RequestedAssertionFailed(f"{self.name} is not running")
        if self.process.poll() is not None:
            raise RequestedAssertionFailed(f"{self.name} has ended by itself, with code {self.process.returncode}")

    def _find_init(self):
        """The process outside that is number 1 inside."""
        children = pathlib.Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        end = time.monotonic() + 60
        while time.monotonic() < end:
            self._alive()
            ids = children.read_text().split()
            # It is the machine's from the moment it is systemd; before that its root is not its own.
            if ids and pathlib.Path(f"/proc/{ids[0]}/comm").read_text().strip() == "systemd":
                return int(ids[0])
            time.sleep(0.02)
        raise RequestedAssertionFailed(f"{self.name} did not start")

    def _enter(self):
        path = ":".join([*(f"{folder}/bin" for folder in self.spec["path"]), "/usr/bin", "/usr/sbin"])
        return ["nsenter", f"--target={self.init}", "--all", f"--root=/proc/{self.init}/root", f"--wd=/proc/{self.init}/root",
                "env", "-i", f"PATH={path}", "HOME=/root", "USER=root", "LC_ALL=C.UTF-8"]  # fmt: skip

    def _inside(self, command, timeout=900):
        done = subprocess.run([*self._enter(), *command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, timeout=timeout, text=True, errors="replace")
        return done.returncode, done.stdout

    def shutdown(self):
        if self.process is None:
            return
        with self.nested("waiting for the machine to power off"):
            os.kill(self.init, signal.SIGRTMIN + 4)
            try:
                self.process.wait(timeout=120)
            except subprocess.TimeoutExpired:
                self._end()
                raise RequestedAssertionFailed(f"{self.name} did not power off in 120 seconds") from None
            self._end()

    def crash(self):
        self.log("forced crash")
        self._end()

    @staticmethod
    def _remove_group(group):
        for folder, _, _ in os.walk(group, topdown=False):
            with contextlib.suppress(OSError):
                os.rmdir(folder)

    def _end(self):
        """Leaves nothing of the machine: its processes, its control groups."""
        if self.process is None:
            return
        if self.process.poll() is None:
            self.process.kill()  # unshare takes process 1 with it, and that all others
            self.process.wait()
        if self.journal is not None:
            self.journal.kill()
            self.journal.wait()
        end = time.monotonic() + 30
        while self.group.exists():
            self._remove_group(self.group)
            if time.monotonic() > end:
                raise RequestedAssertionFailed(f"{self.group} has still processes")
            time.sleep(0.05)
        self.process = self.journal = self.init = self.group = None

    # Commands.

    def execute(self, command, check_return=True, check_output=True, timeout=900):
        self.start()
        self._alive()
        try:
            code, out = self._inside(["bash", "-c", f"set -euo pipefail\n{command}"], timeout=timeout or 3600)
        except subprocess.TimeoutExpired as error:
            code, out = 124, (error.stdout or b"").decode(errors="replace") if isinstance(error.stdout, bytes) else error.stdout or ""
        return (code if check_return else -1), (out if check_output else "")

    def succeed(self, *commands, timeout=None):
        output = ""
        for command in commands:
            with self.nested(f"must succeed: {command}"):
                code, out = self.execute(command, timeout=timeout)
                if code != 0:
                    self.log(f"output: {out}")
                    raise RequestedAssertionFailed(f"command `{command}` failed (exit code {code})")
                output += out
        return output

    def fail(self, *commands, timeout=None):
        output = ""
        for command in commands:
            with self.nested(f"must fail: {command}"):
                code, out = self.execute(command, timeout=timeout)
                if code == 0:
                    raise RequestedAssertionFailed(f"command `{command}` unexpectedly succeeded")
                output += out
        return output

    def wait_until_succeeds(self, command, timeout=900):
        last = ""

        def check(_):
            nonlocal last
            code, last = self.execute(command, timeout=timeout)
            return code == 0

        with self.nested(f"waiting for success: {command}"):
            retry(check, timeout)
            return last

    def wait_until_fails(self, command, timeout=900):
        last = ""

        def check(_):
            nonlocal last
            code, last = self.execute(command, timeout=timeout)
            return code != 0

        with self.nested(f"waiting for failure: {command}"):
            retry(check, timeout)
            return last

    # Units.

    def _user(self, user):
        if user is None:
            return ""
        if user not in self.users:
            raise RequestedAssertionFailed(f"{self.name} has no user {user!r}")
        uid, _, home, _ = self.users[user]
        return f"setpriv --reuid={user} --regid=$(id -g {user}) --init-groups env HOME={home} USER={user} XDG_RUNTIME_DIR=/run/user/{uid} "

    def systemctl(self, query, user=None):
        self.start()  # names of users are known from then on
        return self.execute(f"{self._user(user)}systemctl {'--user ' if user else ''}{query}")

    def get_unit_info(self, unit, user=None):
        code, out = self.systemctl(f'--no-pager show "{unit}"', user)
        if code != 0:
            raise RequestedAssertionFailed(f"retrieving info of unit {unit!r} failed with exit code {code}")
        return dict(line.split("=", 1) for line in out.splitlines() if "=" in line)

    def get_unit_property(self, unit, property, user=None):
        info = self.get_unit_info(unit, user)
        if property not in info:
            raise RequestedAssertionFailed(f"unit {unit!r} has no property {property!r}")
        return info[property]

    def require_unit_state(self, unit, require_state="active"):
        state = self.get_unit_info(unit)["ActiveState"]
        if state != require_state:
            raise RequestedAssertionFailed(f"expected unit {unit!r} to be in state {require_state!r} but it is {state!r}")

    def wait_for_unit(self, unit, user=None, timeout=900):
        def check(_):
            info = self.get_unit_info(unit, user)
            state = info["ActiveState"]
            if state == "failed":
                raise RequestedAssertionFailed(f"unit {unit!r} reached state {state!r}")
            if state == "inactive":
                code, jobs = self.systemctl("list-jobs --full --no-legend 2>&1", user)
                if code == 0 and not jobs.strip() or "No jobs" in jobs:
                    if self.get_unit_info(unit, user)["ActiveState"] == state:
                        raise RequestedAssertionFailed(f"unit {unit!r} is inactive and there are no pending jobs")
            return state == "active"

        with self.nested(f"waiting for unit {unit}" + (f" with user {user}" if user else "")):
            retry(check, timeout)

    def start_job(self, jobname, user=None):
        return self.systemctl(f"start {jobname}", user)

    def stop_job(self, jobname, user=None):
        return self.systemctl(f"stop {jobname}", user)

    # Waiting for things.

    def _connects(self, address):
        """Whether something accepts a connection inside: a file name is a Unix socket."""
        self.start()
        code = (
            "import socket, sys\n"
            "where = sys.argv[1:]\n"
            "try:\n"
            "    if len(where) == 1:\n"
            "        s = socket.socket(socket.AF_UNIX); s.connect(where[0])\n"
            "    else:\n"
            "        socket.create_connection((where[0], int(where[1])), timeout=5)\n"
            "except OSError:\n"
            "    sys.exit(1)\n"
        )
        return self._inside(["python3", "-c", code, *address], timeout=60)[0] == 0

    def wait_for_open_port(self, port, addr="localhost", timeout=900):
        with self.nested(f"waiting for TCP port {port} on {addr}"):
            retry(lambda _: self._connects([addr, str(port)]), timeout)

    def wait_for_closed_port(self, port, addr="localhost", timeout=900):
        with self.nested(f"waiting for TCP port {port} on {addr} to be closed"):
            retry(lambda _: not self._connects([addr, str(port)]), timeout)

    def wait_for_open_unix_socket(self, addr, is_datagram=False, timeout=900):
        if is_datagram:
            raise NotHere("wait_for_open_unix_socket(is_datagram=True)")
        with self.nested(f"waiting for Unix socket {addr}"):
            retry(lambda _: self._connects([addr]), timeout)

    def wait_for_file(self, filename, timeout=900):
        with self.nested(f"waiting for file {filename}"):
            retry(lambda _: self.execute(f"test -e {shlex.quote(filename)}")[0] == 0, timeout)

    def copy_from_host(self, source, target):
        self.start()
        inside = pathlib.Path(f"/proc/{self.init}/root") / target.lstrip("/")
        inside.parent.mkdir(parents=True, exist_ok=True)
        if pathlib.Path(source).is_dir():
            shutil.copytree(source, inside)
        else:
            shutil.copy(source, inside)

    def sleep(self, secs):
        time.sleep(secs)


def main():
    spec = json.loads(pathlib.Path(sys.argv[1]).read_text())
    script = pathlib.Path(sys.argv[2]).read_text()
    work = pathlib.Path(os.environ.get("NIX_BUILD_TOP") or os.environ.get("TMPDIR") or "/tmp").resolve() / f"machines-{os.getpid()}"
    machines = [Machine(name, each, work, sys.argv[3]) for name, each in spec["machines"].items()]
    program = compile(script, "testScript", "exec")
    if spec["reason"]:
        for machine in machines:
            machine.lint()
        shutil.rmtree(work, ignore_errors=True)
        log(spec["reason"] + ": the machines' files are checked, the test script is not run")
        return
    began = time.monotonic()
    if len(machines) != 1:
        raise NotHere("a test with more than one machine: the stand-in's machines have no network between them")

    def expired(*_):
        raise RequestedAssertionFailed(f"the test took longer than its globalTimeout of {spec['timeout']} seconds")

    def start_all():
        for machine in machines:
            machine.start()

    signal.signal(signal.SIGALRM, expired)
    signal.alarm(spec["timeout"])
    names = {
        **{machine.name: machine for machine in machines},
        "machine": machines[0],
        "machines": machines,
        "start_all": start_all,
        "subtest": subtest,
        "retry": retry,
        "log": log,
        "t": unittest.TestCase(),
    }
    try:
        exec(program, names)
    finally:
        signal.alarm(0)
        for machine in machines:
            machine._end()
        shutil.rmtree(work, ignore_errors=True)
    log(f"test script finished in {time.monotonic() - began:.2f}s")


if __name__ == "__main__":
    main()
