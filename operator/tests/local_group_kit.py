"""A local group for tests: `gantry up --detach` with small files, and the commands of a user.

Everything goes through the command line and the files in the group's folder; only `Load` sends as a client.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, final

import msgspec

from gantry_cli.local.group_status import LocalGroupStatus, read_running_status
from gantry_cli.local.plan import LaunchOptions, Planner
from gantry_cli.local.ports import BROKER, NAME_SERVER, SIDECAR
from gantry_cli.local.records import GroupRecord
from gantry_cli.local.state import GroupState
from gantry_client import ClientError, ClientSettings, Message, Producer
from gantry_spec.manifest import BrokerGroup, read_group

TIMEOUT_S: Final = 300.0
"""The limit for a command, and for a condition of the group."""

FREE_PORTS: Final = ("--namesrv-port", "0", "--broker-port", "0", "--console-port", "0")
"""Options with which `gantry up` uses free ports."""

BROKER_SETTINGS: Final = (
    '{diskMaxUsedSpaceRatio: "95", diskSpaceCleanForciblyRatio: "99", diskSpaceWarningLevelRatio: "99",'
    ' waitTimeMillsInSendQueue: "60000", maxHashSlotNum: "1000", maxIndexNum: "4000"}'
)
"""The spec's `broker`: small indexes, sends that may wait for long, and disks that may be nearly full."""


def manifest(**spec: str) -> str:
    """Return the manifest of a small group; ``spec`` are fields as YAML text."""
    fields = {
        "nameServers": "{replicas: 1}",
        "failover": "{after: 3s}",
        "writeBuffer": "{segmentSize: 8Mi}",
        "broker": BROKER_SETTINGS,
    } | spec
    lines = [f"  {name}: {value}" for name, value in fields.items()]
    head = ["apiVersion: gantry.dev/v1alpha1", "kind: BrokerGroup", "metadata: {name: crew}", "spec:"]
    return "\n".join([*head, *lines, ""])


def group_of(spec: str) -> BrokerGroup:
    """Return a group with this spec, as read from its manifest."""
    return read_group(f"apiVersion: gantry.dev/v1alpha1\nkind: BrokerGroup\nmetadata: {{name: crew}}\nspec: {spec}")


def planned(state: Path, spec: str, before: GroupRecord | None = None) -> GroupRecord:
    """Return the record of a planned group: on free ports, or on those of ``before``."""
    kinds = (NAME_SERVER, BROKER, SIDECAR) if before is None else ()
    launch = LaunchOptions(ports=tuple((kind, 0) for kind in kinds))
    return Planner(GroupState(state), group_of(spec), launch, before).record


def gantry(*words: str, code: int | None = 0) -> str:
    """Run one command to its end; return its standard output and standard error."""
    variables = {key: value for key, value in os.environ.items() if key != "GANTRY_NAMESRV"}
    result = subprocess.run(
        [sys.executable, "-m", "gantry_cli", *words],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
        env=variables,
    )
    assert code is None or result.returncode == code, f"{words}\n{result.stdout}\n{result.stderr}"
    return result.stdout + result.stderr


@final
class Group:
    """One group and its folder."""

    def __init__(self, folder: Path, **spec: str) -> None:
        self.folder: Final = folder
        self.state: Final = GroupState(folder)
        self.manifest: Final = folder.parent / f"{folder.name}.yaml"
        self.manifest.write_text(manifest(**spec))

    def up(self, *words: str) -> str:
        """Start it in the background; later runs keep the ports of the first one."""
        return gantry("up", "--data", str(self.folder), "--detach", "-f", str(self.manifest), *words)

    def down(self) -> str:
        return gantry("down", "--data", str(self.folder))

    def run_command(self, *words: str, code: int | None = 0) -> str:
        """Run a command for this group."""
        return gantry(words[0], "--data", str(self.folder), *words[1:], code=code)

    def apply(self, **spec: str) -> None:
        """Apply a manifest with this spec."""
        self.manifest.write_text(manifest(**spec))
        self.run_command("apply", "-f", str(self.manifest))

    # -- its state -----------------------------------------------------------------------------------------------------

    @property
    def record(self) -> GroupRecord:
        record = self.state.read_group()
        assert record is not None, "the group was never started"
        return record

    @property
    def name_server(self) -> str:
        return ";".join(self.record.addresses)

    def status(self) -> LocalGroupStatus:
        status = read_running_status(self.folder)
        assert status is not None, (self.folder / "up.log").read_text()
        return status

    def masters(self) -> dict[int, tuple[str, int]]:
        """Name and epoch of the master of each shard.

        A stopped (SIGSTOP) master still reports MASTER, with an older epoch.
        """
        masters = [one for one in self.status().members if one.role == "MASTER" and one.process == "running"]
        return {one.shard: (one.name, one.epoch) for one in sorted(masters, key=lambda one: one.epoch or 0)}

    def is_healthy(self) -> bool:
        """Return whether the group is ready and available, and its supervisor has no action."""
        status = self.status()
        conditions = {one.type: one.is_true for one in status.conditions}
        return bool(conditions.get("Ready") and conditions["Available"]) and not status.decision

    def wait_until(self, predicate: Callable[[], bool], seconds: float = TIMEOUT_S) -> None:
        """Wait until the condition holds; a failure has the decisions and the status of the group."""
        deadline = time.monotonic() + seconds
        decisions: list[str] = []
        while not predicate():
            status = self.status()
            decisions += [one for one in ["; ".join(status.decision)] if decisions[-1:] != [one]]
            if time.monotonic() > deadline:
                age_ms = time.time_ns() // 1_000_000 - status.at_ms
                report = "\n".join(
                    ["the condition was not met in time; decided meanwhile:", *decisions[-20:], f"{age_ms} ms ago:"]
                )
                events = "\n".join(one.text for one in status.events)
                raise AssertionError(f"{report}\n{events}\n{msgspec.json.encode(status).decode()}")
            time.sleep(0.1)

    def explain(self) -> list[dict[str, Any]]:
        """Return what would happen if the master of each shard failed now."""
        outlook: list[dict[str, Any]] = json.loads(self.run_command("explain", "--output", "json"))["outlook"]
        return outlook

    # -- messages ------------------------------------------------------------------------------------------------------

    def read(self, topic: str) -> list[str]:
        """Return the bodies of all messages of a topic."""
        return gantry("consume", "-n", self.name_server, topic).split()

    def send(self, topic: str, *bodies: str) -> None:
        gantry("produce", "-n", self.name_server, topic, *bodies)


@final
class Load:
    """A producer that sends during the context, and records the bodies of acknowledged messages."""

    def __init__(self, group: Group, topic: str) -> None:
        self.acknowledged: Final[list[str]] = []
        """The bodies of acknowledged messages."""

        self._name_server: Final = group.name_server
        self._topic: Final = topic
        self._is_over = threading.Event()
        self._thread: Final = threading.Thread(target=lambda: asyncio.run(self._send()))

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join(TIMEOUT_S)
        assert not self._thread.is_alive(), "a send did not end"

    def has_more(self, count: int) -> Callable[[], bool]:
        """Return a condition: whether so many more messages are acknowledged after this call."""
        goal = len(self.acknowledged) + count
        return lambda: len(self.acknowledged) >= goal

    async def _send(self) -> None:
        number = 0
        settings = ClientSettings(route_poll_interval_ms=500)
        async with Producer(self._name_server, client_settings=settings) as producer:
            while not self._is_over.is_set():
                number += 1
                body = f"{self._topic}-{number:06d}"
                try:
                    await producer.send(Message(self._topic, body.encode()))
                except ClientError:
                    await asyncio.sleep(0.1)  # the message may be stored or not; it was not acknowledged
                else:
                    self.acknowledged.append(body)
                await asyncio.sleep(0.005)
