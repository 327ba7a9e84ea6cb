"""Groups of this machine for `gantry console`: their status, and their sidecars, with the token of a group's folder."""

from __future__ import annotations

import json
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Final, final

from gantry_cli.console.backend import SidecarAccess
from gantry_cli.console.documents import ConditionSummary, GroupSummary, ShardSummary
from gantry_cli.console.http import SidecarUnavailable
from gantry_cli.errors import CliError
from gantry_cli.local.access import CODE_TIMEOUT_S, CODES_PATH, ask_sidecar, require_sidecar
from gantry_cli.local.group_status import (
    STALE_MS,
    LocalGroupStatus,
    require_status,
    size_text,
    status_age_ms,
)
from gantry_cli.local.records import MemberRecord, member_name
from gantry_cli.local.state import GroupState
from gantry_cli.text import duration_text
from gantry_spec.decide.conditions import is_shown_in_status
from gantry_spec.ledger import Fault, Ledger

CONNECT_TIMEOUT_S: Final = 5.0
STATUS_TEXTS: Final = {True: "True", False: "False", None: "Unknown"}


@final
class LocalSidecars:
    """The sidecars of a local group, as a ``SidecarSource``. Their connections do not leave this machine."""

    def __init__(self, data: Path) -> None:
        self.name: Final = str(data)
        self._data: Final = data

    def __repr__(self) -> str:
        return f"<LocalSidecars {self._data}>"

    def names(self) -> list[str]:
        """Return the members whose sidecars run."""
        return [one.name for one in self._members() if one.sidecar_pid is not None]

    def new_access(self, name: str) -> SidecarAccess:
        """Request a one-time code with the group's token."""
        try:
            token = GroupState(self._data).token()
            answer = ask_sidecar(self._member(name), CODES_PATH, token, timeout_s=CODE_TIMEOUT_S, data=b"")
            return SidecarAccess(str(json.loads(answer)["code"]), b"")
        except (OSError, CliError, ValueError, RecursionError, KeyError, TypeError) as error:
            raise SidecarUnavailable(f"the sidecar gave no code: {error}") from error

    def connect(self, name: str) -> socket.socket:
        """Return a socket that is connected to a sidecar."""
        member = self._member(name)
        try:
            require_sidecar(member)
            return socket.create_connection(("127.0.0.1", member.sidecar_port), CONNECT_TIMEOUT_S)
        except OSError as error:
            raise SidecarUnavailable(error.strerror or str(error)) from error

    def _member(self, name: str) -> MemberRecord:
        found = next((one for one in self._members() if one.name == name), None)
        if found is None:
            raise SidecarUnavailable("it is not a member of the group any more")
        return found

    def _members(self) -> list[MemberRecord]:
        try:
            record = GroupState(self._data).read_group()
        except CliError as error:
            raise SidecarUnavailable(error.message) from error
        return [] if record is None else record.members


@final
class LocalDirectory:
    """Groups of folders of this machine, as a ``GroupDirectory``."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self.title: Final = "groups of this machine"
        self._folders: Final = [folder.absolute() for folder in folders]

    def __repr__(self) -> str:
        return f"<LocalDirectory {len(self._folders)} folders>"

    def read(self) -> list[GroupSummary]:
        """Return the groups of all folders, those that do not run with the reason."""
        return [_summary_in(folder) for folder in self._folders]

    def sidecars(self, group: GroupSummary) -> LocalSidecars:
        """Return the sidecars of a group of the list."""
        return LocalSidecars(Path(group.id))


def _summary_in(folder: Path) -> GroupSummary:
    try:
        return summary_of(folder, require_status(folder))
    except CliError as error:
        return GroupSummary(id=str(folder), name=folder.name, place=str(folder), fault=error.message, can_open=False)


def summary_of(folder: Path, status: LocalGroupStatus) -> GroupSummary:
    """Return the status of a group that runs as the list shows it."""
    shards = [_shard(ledger, status) for ledger in status.ledgers]
    is_ready = any(one.type == "Ready" and one.is_true for one in status.conditions)
    age_ms = status_age_ms(status)
    fault = f"its supervisor has not updated its status for {duration_text(age_ms / 1000)}" if age_ms > STALE_MS else ""
    return GroupSummary(
        id=str(folder),
        name=status.group,
        place=str(folder),
        phase="Ready" if is_ready else "Degraded",
        ready=f"{sum(bool(one.master) for one in shards)}/{len(shards)}",
        shards=shards,
        conditions=[
            ConditionSummary(
                type=one.type, status=STATUS_TEXTS[one.is_true], reason=one.reason, message=one.message
            )
            for one in status.conditions
            if is_shown_in_status(one.type, one.is_true, one.message)
        ],
        observed_ms=status.at_ms,
        fault=fault,
    )  # fmt: skip


def _shard(ledger: Ledger, status: LocalGroupStatus) -> ShardSummary:
    """Return a shard. Its master is unknown while it does not answer."""
    master = ledger.master if ledger.is_fresh else None
    risk = None if master is None else ledger.risk(Fault.MACHINE).bytes
    return ShardSummary(
        number=ledger.shard,
        master="" if master is None else member_name(ledger.shard, master),
        epoch=ledger.epoch,
        in_sync=None if master is None else len(ledger.in_sync),
        at_risk="unknown" if risk is None else size_text(risk),
        is_durability_met=any(one.type == "DurabilityMet" and one.is_true for one in status.conditions),
    )
