"""The group of a soak: a master, a slave, their sidecars, a name server and a proxy, as `gantry up` runs them.

Files are small, so that retention, rolls of files and full indexes occur many times in an hour. The log is deleted by
size of the disk: the limits are below what the file system uses already, so a file is deleted as soon as every group
has consumed it. So the use of the disk is bounded by what is not consumed yet, and a message that retention deleted too
early is missing in the ledger.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, final

from gantry_bench.errors import BenchmarkFailed

from gantry_access import Credentials
from gantry_cli.local.group_status import LocalGroupStatus, LocalMemberStatus, read_running_status
from gantry_cli.local.records import GroupRecord
from gantry_cli.local.state import GroupState
from gantry_remoting.durable_files import replace_file
from gantry_soak.names import GROUPS, QUEUES, TOPICS, group_of, topic_of

SECRET: Final = "soak"
ADMINISTRATOR: Final = Credentials("soak-administrator", "the-secret-of-the-administrator")
APPLICATION: Final = Credentials("soak-application", "the-secret-of-the-application")
GUEST: Final = Credentials("soak-guest", "the-secret-of-the-guest")
USED_PERCENT_MIN: Final = 12
"""How much of the file system must be used: brokers accept no limits below 10 %."""

FREE_BYTES_MIN: Final = 2 << 30
BEHIND_BYTES_MAX: Final = 1 << 20
"""A slave that lags at most this much counts as caught up; the load never stops."""

COMMAND_TIMEOUT_S: Final = 300.0
STATUS_FRESH_MS: Final = 5_000

BROKER_SETTINGS: Final[Mapping[str, str]] = {
    "mappedFileSizeConsumeQueue": "40000",
    "maxHashSlotNum": "5000",
    "maxIndexNum": "20000",
    "diskMaxUsedSpaceRatio": "10",
    "diskSpaceCleanForciblyRatio": "11",
    "diskSpaceWarningLevelRatio": "98",
    "cleanResourceInterval": "5000",
    "autoCreateTopicEnable": "false",
    "enablePropertyFilter": "true",
    "transactionTimeOut": "3000",
    "transactionCheckInterval": "5000",
}


def manifest_of() -> dict[str, object]:
    """Return the manifest of the group, which is JSON and so YAML, too."""
    spec = {
        "shards": 1,
        "slaves": 1,
        "nameServers": {"replicas": 1},
        "replication": {"mode": "Sync"},
        "writeBuffer": {"medium": "Memory", "buffers": 3, "segmentSize": "8Mi"},
        "storage": {"replaceAfter": "2s"},
        "access": {"aclSecret": SECRET},
        "proxy": {"replicas": 1},
        "topics": [{"name": topic_of(name), "queues": QUEUES} for name in TOPICS],
        "groups": [{"name": group_of(name)} for name in GROUPS],
        "broker": dict(BROKER_SETTINGS),
    }
    return {
        "apiVersion": "gantry.dev/v1alpha1", "kind": "BrokerGroup", "metadata": {"name": "soak"}, "spec": spec,
    }  # fmt: skip


def accounts_text(*, has_guest: bool) -> str:
    """Return the accounts: the administrator, the application, and the guest, who comes and goes."""
    accounts: list[dict[str, object]] = [
        {"accessKey": ADMINISTRATOR.access_key, "secretKey": ADMINISTRATOR.secret_key, "admin": True},
        {
            "accessKey": APPLICATION.access_key, "secretKey": APPLICATION.secret_key,
            "defaultTopicPerm": "PUB|SUB", "defaultGroupPerm": "SUB",
        },
    ]  # fmt: skip
    if has_guest:
        permissions = [f"{topic_of('guest')}=PUB|SUB"]
        accounts.append(
            {"accessKey": GUEST.access_key, "secretKey": GUEST.secret_key, "topicPerms": permissions}
        )  # fmt: skip
    return json.dumps({"accounts": accounts})


def check_disk(folder: Path) -> None:
    """Raise BenchmarkFailed for a file system on which retention would not delete files, or that has no space."""
    usage = shutil.disk_usage(folder)
    percent = 100 * (usage.total - usage.free) / usage.total
    if percent < USED_PERCENT_MIN:
        raise BenchmarkFailed(
            f"{folder} is on a file system that is {percent:.0f} % used, but retention needs {USED_PERCENT_MIN} %; "
            "choose another folder with --data"
        )
    if usage.free < FREE_BYTES_MIN:
        raise BenchmarkFailed(f"{folder} has {usage.free >> 20} MiB free, but a soak needs {FREE_BYTES_MIN >> 20} MiB")


@final
class SoakGroup:
    """A running group. Owned by one loop."""

    def __init__(self, folder: Path, environment: Mapping[str, str] | None = None) -> None:
        """``environment`` has variables for all processes of the group, such as those of a planted leak."""
        self.folder: Final = folder
        self.state: Final = GroupState(folder)
        self.administrator: Final = ADMINISTRATOR
        self.application: Final = APPLICATION
        self.guest: Final = GUEST
        self._environment: Final = dict(os.environ) | dict(environment or {})

    def __repr__(self) -> str:
        return f"<SoakGroup {self.folder}>"

    # -- start and stop ------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start the group in an empty folder. Raises BenchmarkFailed."""
        self.folder.mkdir(parents=True, exist_ok=True)
        check_disk(self.folder)
        secret = self.folder / "secrets" / SECRET
        secret.mkdir(parents=True)
        (secret / "credentials").write_text(
            f"accessKey: {ADMINISTRATOR.access_key}\nsecretKey: {ADMINISTRATOR.secret_key}\n"
        )
        self.write_accounts(has_guest=False)
        manifest = self.folder / "soak.yaml"
        manifest.write_text(json.dumps(manifest_of(), indent=1))
        ports = [f"--{name}-port=0" for name in ("namesrv", "broker", "console", "proxy")]
        await self.gantry("up", "--detach", "-f", str(manifest), *ports)

    def write_accounts(self, *, has_guest: bool) -> None:
        """Replace the accounts; brokers, name server and proxy read them within some seconds."""
        path = self.folder / "secrets" / SECRET / "plain_acl.yml"
        replace_file(path, accounts_text(has_guest=has_guest).encode(), mode=0o600, is_durable=False)

    async def stop(self) -> None:
        """Stop the group as a user does; its files stay."""
        await self.gantry("down")

    async def gantry(self, *words: str) -> str:
        """Run a command of `gantry` for this group; return what it prints. Raises BenchmarkFailed."""
        command = [sys.executable, "-m", "gantry_cli", *words, "--data", str(self.folder)]
        process = await asyncio.create_subprocess_exec(
            *command, env=self._environment, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip
        try:
            async with asyncio.timeout(COMMAND_TIMEOUT_S):
                output, _ = await process.communicate()
        except TimeoutError as error:
            process.kill()
            await process.wait()
            raise BenchmarkFailed(f"gantry {words[0]} did not end within {COMMAND_TIMEOUT_S:.0f} s") from error
        if process.returncode:
            raise BenchmarkFailed(f"gantry {' '.join(words)} failed: {output.decode(errors='replace').strip()}")
        return output.decode(errors="replace")

    # -- addresses -----------------------------------------------------------------------------------------------------

    @property
    def record(self) -> GroupRecord:
        """The members and processes as they are now."""
        record = self.state.read_group()
        if record is None:
            raise BenchmarkFailed(f"no group runs in {self.folder}")
        return record

    @property
    def name_server(self) -> str:
        """The address of the name server."""
        return ";".join(self.record.addresses)

    @property
    def proxy(self) -> str:
        """The address of the gRPC proxy."""
        return self.record.proxies[0].address

    def processes(self) -> dict[str, int]:
        """Return the process ids of all servers that run, by name."""
        record = self.record
        found = {member.name: member.pid for member in record.members}
        found |= {f"sidecar-{member.name}": member.sidecar_pid for member in record.members}
        found |= {server.name: server.pid for server in (*record.name_servers, *record.proxies)}
        found["supervisor"] = record.pid
        return {name: pid for name, pid in found.items() if pid is not None}

    # -- state ---------------------------------------------------------------------------------------------------------

    def status(self) -> LocalGroupStatus | None:
        """Return what the supervisor has written within the last seconds; None if it has not."""
        status = read_running_status(self.folder)
        if status is None or time.time_ns() // 1_000_000 - status.at_ms > STATUS_FRESH_MS:
            return None
        return status

    def members(self) -> Sequence[LocalMemberStatus]:
        """Return the members as the supervisor observed them last; none if that is unknown."""
        status = self.status()
        return () if status is None else status.members

    def find_member(self, *, is_master: bool) -> LocalMemberStatus | None:
        """Return the master, or the slave; None if no member reports that role."""
        return next((one for one in self.members() if (one.role == "MASTER") == is_master and one.role), None)

    def why_not_whole(self, since_ms: int = 0) -> str:
        """Return why the group is not whole; empty if there is one master and its slave has caught up.

        Reports from before ``since_ms`` on the wall clock do not count.
        """
        status = self.status()
        if status is None or status.at_ms < since_ms:
            return "the supervisor reports nothing"
        roles = sorted(one.role for one in status.members)
        if roles != ["MASTER", "SLAVE"]:
            return f"the roles are {', '.join(roles)}"
        states = {one.name: one.process for one in status.members} | {one.name: one.process for one in status.proxies}
        for name, process in states.items():
            if process != "running":
                return f"{name} is {process}"
        for member in status.members:
            if member.report_age_ms is None or status.at_ms - member.report_age_ms < since_ms:
                return f"{member.name} has not reported since the fault"
            if member.problem:
                return f"{member.name}: {member.problem}"
            if member.role == "SLAVE" and (member.behind_bytes is None or member.behind_bytes > BEHIND_BYTES_MAX):
                return f"{member.name} is {member.behind_bytes} bytes behind"
        return ""
