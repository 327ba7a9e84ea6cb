"""A changed manifest of a group that runs: handed over by `gantry apply`, taken up by the supervisor at its next look.

Whoever hands it over compares it with what is there and refuses what must not change; the supervisor compares again,
since it is the one who would have to keep what was promised.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Final, final

import msgspec

from gantry_cli.errors import CliError
from gantry_cli.local.plan import settings_of
from gantry_cli.local.supervisor import Supervisor
from gantry_spec.manifest import BrokerGroup, ManifestError, changes, read_group


def read_manifest(path: Path) -> tuple[BrokerGroup, bytes]:
    """A manifest and its text. Raises CliError."""
    try:
        text = path.read_bytes()
        return read_group(text), text
    except OSError as error:
        raise CliError(f"{path} cannot be read: {error.strerror}") from error
    except ManifestError as error:
        raise CliError(f"{path}: {'; '.join(map(str, error.problems))}", "see docs/groups.md") from error


@final
class Edits:
    """Of one supervisor."""

    def __init__(self, supervisor: Supervisor, group: BrokerGroup, *, has_sidecars: bool) -> None:
        self._supervisor: Final = supervisor
        self._has_sidecars: Final = has_sidecars
        self._group = group
        self._stamp = self._stamp_now()

    def _stamp_now(self) -> tuple[int, int]:
        try:
            found = self._supervisor.state.manifest_file.stat()
        except OSError:
            return 0, 0
        return found.st_mtime_ns, found.st_ino

    def look(self) -> None:
        """Take up a manifest that was handed over since; and tell all sidecars of each other."""
        stamp = self._stamp_now()
        if stamp != self._stamp:
            self._stamp = stamp
            self._take()
        urls = tuple(one.sidecar_url for one in self._supervisor.record.members) if self._has_sidecars else ()
        if self._supervisor.settings.sidecars != urls:
            self._supervisor.replace_settings(replace(self._supervisor.settings, sidecars=urls))

    def _take(self) -> None:
        supervisor = self._supervisor
        try:
            group = supervisor.state.read_manifest()
            if group is None:
                return
            problems = changes(self._group, group) + immovable(self._group, group)
            if problems:
                raise CliError("; ".join(map(str, problems)))
        except CliError as error:
            supervisor.tell(f"the manifest that was handed over is left alone: {error}")
            return
        self._group = group
        old, has_sidecars = supervisor.settings, self._has_sidecars
        supervisor.replace_settings(
            settings_of(group, supervisor.record, old.buffers_root, old.access, has_sidecars=has_sidecars)
        )
        supervisor.tell("a new manifest was handed over")
        supervisor.wake()


def immovable(old: BrokerGroup, new: BrokerGroup) -> list[str]:
    """What a running local group cannot change, and a start can."""
    fields = {"name_servers": "nameServers", "write_buffer": "writeBuffer", "access": "access"}
    return [
        f"spec.{written}: it changes with the next start: gantry down, then gantry up -f FILE"
        for name, written in fields.items()
        if msgspec.structs.asdict(old.spec)[name] != msgspec.structs.asdict(new.spec)[name]
    ]
