"""A changed manifest of a running group: `gantry apply` writes it, and the supervisor adopts it in its next round.

`gantry apply` compares it with the present manifest and refuses changes that are not allowed. The supervisor compares
again, since another process may have replaced the file.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final, final

import msgspec

from gantry_cli.errors import CliError
from gantry_cli.local.access import read_access
from gantry_cli.local.plan import settings_of
from gantry_cli.local.supervisor import Supervisor
from gantry_spec.manifest import BrokerGroup, ManifestError, check_changes, read_group


def read_manifest(path: Path) -> tuple[BrokerGroup, bytes]:
    """Read a manifest file. Return the group and the file's text. Raises CliError."""
    try:
        text = path.read_bytes()
        return read_group(text), text
    except OSError as error:
        raise CliError(f"cannot read {path}: {error.strerror}") from error
    except ManifestError as error:
        raise CliError(f"{path}: {'; '.join(map(str, error.problems))}", "see docs/groups.md") from error


@final
class ManifestWatcher:
    """Adopts changed manifests for one supervisor, and keeps the sidecars' lists of peers and proxies up to date."""

    def __init__(
        self, supervisor: Supervisor, group: BrokerGroup, *, has_sidecars: bool, on_adopted: Callable[[], None]
    ) -> None:
        """``on_adopted`` is called after the supervisor has the settings of a changed manifest."""
        self._supervisor: Final = supervisor
        self._on_adopted: Final = on_adopted
        self._has_sidecars: Final = has_sidecars
        self._group = group
        self._file_version = self._read_file_version()

    def _read_file_version(self) -> tuple[int, int]:
        try:
            found = self._supervisor.state.manifest_file.stat()
        except OSError:
            return 0, 0
        return found.st_mtime_ns, found.st_ino

    def refresh(self) -> None:
        """Adopt the manifest if its file has changed, and give every sidecar the addresses of the others and of the
        proxies."""
        version = self._read_file_version()
        if version != self._file_version:
            self._file_version = version
            self._adopt_manifest()
        urls = tuple(one.sidecar_url for one in self._supervisor.record.members) if self._has_sidecars else ()
        proxies = tuple(one.http_address for one in self._supervisor.record.proxies)
        settings = self._supervisor.settings
        if (settings.sidecars, settings.proxies) != (urls, proxies):
            self._supervisor.replace_settings(replace(settings, sidecars=urls, proxies=proxies))

    def _adopt_manifest(self) -> None:
        """Read the changed manifest, and give the supervisor its settings, if the changes are allowed."""
        supervisor = self._supervisor
        try:
            group = supervisor.state.read_manifest()
            if group is None:
                return
            problems = check_changes(self._group, group) + changes_needing_restart(self._group, group)
            if problems:
                raise CliError("; ".join(map(str, problems)))
            read_access(group.spec, supervisor.state)
        except CliError as error:
            supervisor.report_event(f"new manifest rejected: {error}")
            return
        self._group = group
        old, has_sidecars = supervisor.settings, self._has_sidecars
        supervisor.replace_settings(
            settings_of(group, supervisor.record, old.buffers_root, old.access, has_sidecars=has_sidecars)
        )
        supervisor.report_event("new manifest adopted")
        self._on_adopted()
        supervisor.wake()


def changes_needing_restart(old: BrokerGroup, new: BrokerGroup) -> list[str]:
    """Return a problem for each changed field that a local group reads only at its start."""
    fields = {"name_servers": "nameServers", "write_buffer": "writeBuffer", "access": "access"}
    return [
        f"spec.{written}: cannot change while the group runs: gantry down, then gantry up -f FILE"
        for name, written in fields.items()
        if msgspec.structs.asdict(old.spec)[name] != msgspec.structs.asdict(new.spec)[name]
    ]
