"""Observes the group of `gantry up` in a folder: its members, sidecars and write buffers, from files and over loopback.

A client sees the rest through the name servers, as for any cluster.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, NamedTuple

from gantry_cli.doctor.facts import HugePagesFacts, LocalFacts, LocalMemberFacts
from gantry_cli.doctor.gathering import BrokerPlace
from gantry_cli.local.access import ask_sidecar, read_access
from gantry_cli.local.buffers import buffer_folder, buffers_size, huge_mounts
from gantry_cli.local.group_status import LocalMemberStatus, read_running_status
from gantry_cli.local.records import GroupRecord, MemberRecord
from gantry_cli.local.state import GroupState
from gantry_cli.stack import StackDirectory
from gantry_client import ClientSettings
from gantry_remoting import join_address
from gantry_spec.broker_conf import broker_name
from gantry_spec.manifest import BrokerGroup
from gantry_spec.manifest.parts import Medium

SIDECAR_TIMEOUT_S: Final = 3.0
PARALLEL_REQUESTS: Final = 8


class LocalGroup(NamedTuple):
    """The group that runs in a folder."""

    data: Path
    record: GroupRecord
    manifest: BrokerGroup | None
    """None for `gantry up --single`, which has none."""

    @property
    def name_servers(self) -> str:
        """The addresses of its name servers, as for the option -n."""
        return ";".join(self.record.addresses)

    @property
    def places(self) -> list[BrokerPlace]:
        """The addresses of its brokers. Their roles are those at the start, and used only without a name server."""
        stack = StackDirectory(self.data).running()
        single = "" if stack is None else stack.broker_name
        return [
            BrokerPlace(
                single if self.record.is_single else broker_name(self.record.name, one.shard),
                one.number - 1,
                self.address(one),
            )
            for one in self.record.members
        ]

    def address(self, member: MemberRecord) -> str:
        return join_address(self.record.host, member.port)

    def client_settings(self) -> ClientSettings:
        """Return the settings of the group's own clients. Raises CliError."""
        if self.manifest is None:
            return ClientSettings()
        return read_access(self.manifest.spec, GroupState(self.data)).client_settings()


def find_local_group(data: Path) -> LocalGroup | None:
    """Return the group that runs in a folder; None if none runs. Raises CliError for damaged files."""
    state = GroupState(data)
    if read_running_status(data) is None:
        return None
    record = state.read_group()
    return None if record is None else LocalGroup(data, record, state.read_manifest())


def observe_local_group(group: LocalGroup) -> LocalFacts:
    """Observe members, sidecars and buffers. Blocks. Raises CliError for damaged files."""
    status = read_running_status(group.data)
    statuses = {} if status is None else {one.name: one for one in status.members}
    token = GroupState(group.data).token()
    with ThreadPoolExecutor(PARALLEL_REQUESTS, thread_name_prefix="gantry-doctor") as threads:
        answers = list(threads.map(lambda one: _ask_version(one, token), group.record.members))
    members = tuple(
        _member(group.address(record), record, statuses.get(record.name), answer)
        for record, answer in zip(group.record.members, answers, strict=True)
    )
    return LocalFacts(folder=str(group.data), members=members, huge_pages=_huge_pages(group))


class _SidecarAnswer(NamedTuple):
    version: str | None = None
    problem: str = ""


def _ask_version(member: MemberRecord, token: str) -> _SidecarAnswer:
    """Return the version of a member's sidecar, or why there is none."""
    if member.sidecar_pid is None:
        return _SidecarAnswer()  # the group runs without sidecars
    try:
        document = json.loads(ask_sidecar(member, "/v1/status?rates=false", token, timeout_s=SIDECAR_TIMEOUT_S))
        return _SidecarAnswer(str(document["sidecar"]["version"]))
    except OSError as error:
        return _SidecarAnswer(problem=f"its sidecar does not answer: {error}")
    except (ValueError, KeyError, TypeError):
        return _SidecarAnswer(problem="its sidecar's answer is not valid")


def _member(
    address: str, record: MemberRecord, status: LocalMemberStatus | None, answer: _SidecarAnswer
) -> LocalMemberFacts:
    return LocalMemberFacts(
        name=record.name,
        address=address,
        process="" if status is None else status.process,
        problem="" if status is None else status.problem,
        sidecar_version=answer.version,
        sidecar_problem=answer.problem,
    )


def _huge_pages(group: LocalGroup) -> HugePagesFacts | None:
    spec = None if group.manifest is None else group.manifest.spec
    if spec is None or spec.write_buffer.medium is not Medium.HUGE_PAGES:
        return None
    mounts, names = list(huge_mounts()), [one.name for one in group.record.members]
    folders = [buffer_folder(mount.path, group.data.absolute(), name) for mount in mounts for name in names]
    return HugePagesFacts(
        needed_bytes=buffers_size(spec) * len(names),
        mounts=tuple((str(mount.path), mount.free_bytes) for mount in mounts),
        is_used=_any_exists(folders),
    )


def _any_exists(folders: Sequence[Path]) -> bool:
    return any(folder.is_dir() for folder in folders)
