"""The journal of changes to this machine, from which the machine is restored.

Invariant: a change is recorded before it is made, in a form whose undoing is harmless if the change was never made or
is gone already. So `undo` may run after a crash, and twice. Undoing goes backwards. The exception is a process, which
is recorded as soon as it has started: a crash between the two leaves it behind.

The journal is valid only for the boot that it belongs to: a restart of the machine undoes everything, and then a
process id or an old setting has no meaning.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from pathlib import Path
from typing import Literal

from gantry_cluster.commands import POLL_SECONDS, run, wait_until
from gantry_cluster.errors import ClusterError, CommandFailed
from gantry_cluster.processes import Process

BOOT = Path("/proc/sys/kernel/random/boot_id")
"""The id of the present boot."""

SETTINGS = Path("/proc/sys")
END_SECONDS_MAX = 30.0
"""The limit for one undone change."""

Kind = Literal["setting", "folder", "mount", "group", "link", "route", "process"]
"""The kind of a change; a group is a control group, and a link is a network device."""


class Journal:
    """The changes of one cluster, in the order in which they were made."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "journal.json"
        self._boot = BOOT.read_text().strip()

    def _entries(self) -> list[tuple[Kind, str, str]]:
        """Read the entries from the file every time: two programs may work on one cluster."""
        if not self._path.exists():
            return []
        kept = json.loads(self._path.read_text())
        return [(kind, name, value) for kind, name, value in kept["entries"]] if kept["boot"] == self._boot else []

    def _record(self, kind: Kind, name: str, value: str = "") -> None:
        entries = [*self._entries(), (kind, name, value)]
        draft = self._path.with_suffix(".draft")
        draft.write_text(json.dumps({"boot": self._boot, "entries": entries}, indent=1))
        draft.replace(self._path)

    def set(self, name: str, value: str | None) -> None:
        """Change a kernel setting. With None, only record its value because another program is about to change it."""
        file = SETTINGS / name
        self._record("setting", name, file.read_text().strip())
        if value is not None:
            file.write_text(value)

    def folder(self, path: Path) -> None:
        """Record and make a folder, which `undo` removes."""
        self._record("folder", str(path))
        path.mkdir()

    def mount(self, path: Path, kind: str, options: str) -> None:
        """Record and mount a file system of the kernel, such as `cgroup`."""
        self._record("mount", str(path))
        run("mount", "-t", kind, "-o", options, kind, path)

    def group(self, path: Path) -> None:
        """Record and make a control group. Groups that other programs make below it are removed with it."""
        self._record("group", str(path))
        path.mkdir(exist_ok=True)

    def link(self, name: str) -> None:
        """Record a network device that is about to be made."""
        self._record("link", name)

    def unreachable(self, addresses: str) -> None:
        """Reject packets to a range, before they are sent to the default gateway."""
        self._record("route", addresses)
        run("ip", "route", "add", "unreachable", addresses)

    def process(self, process: Process) -> None:
        """Record a process that was started."""
        self._record("process", str(process.pid), str(process.started))

    def undo(self) -> list[str]:
        """Restore the machine; return a description of everything that could not be undone."""
        failures: list[str] = []
        for kind, name, value in reversed(self._entries()):
            try:
                _UNDO[kind](name, value)
            except (ClusterError, OSError) as error:
                failures.append(f"{kind} {name}: {error}")
        if not failures:
            self._path.unlink(missing_ok=True)
        return failures


def _undo_setting(name: str, value: str) -> None:
    file = SETTINGS / name
    if file.read_text().strip() != value:
        file.write_text(value)


def _undo_folder(name: str, value: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        Path(name).rmdir()


def _undo_mount(name: str, value: str) -> None:
    while Path(name).is_mount():
        run("umount", name)


def _undo_group(name: str, value: str) -> None:
    """Remove control groups from the leaves. A group becomes removable a moment after its last process has ended."""
    deadline = time.monotonic() + END_SECONDS_MAX
    while Path(name).is_dir():
        for folder, _, _ in os.walk(name, topdown=False):
            with contextlib.suppress(OSError):
                os.rmdir(folder)
        if time.monotonic() > deadline:
            raise ClusterError("still holds processes")
        if Path(name).is_dir():
            time.sleep(POLL_SECONDS)


def _undo_link(name: str, value: str) -> None:
    """Delete the device. It ends with the namespace of its other end, which the kernel removes asynchronously."""
    device = Path("/sys/class/net") / name
    with contextlib.suppress(CommandFailed):
        if device.exists():
            run("ip", "link", "delete", name)
    wait_until(f"the end of {name}", lambda: not device.exists(), END_SECONDS_MAX)


def _undo_route(name: str, value: str) -> None:
    family = "-6" if ":" in name else "-4"
    if name in run("ip", family, "route", "show", "type", "unreachable").split():
        run("ip", "route", "delete", "unreachable", name)


def _undo_process(name: str, value: str) -> None:
    process = Process(int(name), int(value))
    process.send(signal.SIGKILL)
    wait_until(f"the end of process {name}", lambda: not process.is_alive(), END_SECONDS_MAX)


_UNDO = {
    "setting": _undo_setting,
    "folder": _undo_folder,
    "mount": _undo_mount,
    "group": _undo_group,
    "link": _undo_link,
    "route": _undo_route,
    "process": _undo_process,
}
"""The functions that undo a change of each kind."""
