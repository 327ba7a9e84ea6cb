"""The file of topics and consumer groups that the sidecar creates on its broker while the broker is the master.

The file is JSON: ``{"topics": [{"name": "orders", "queues": 8}], "groups": [{"name": "billing", "retryMax": 16}]}``,
with the field names of the manifest. A mounted ConfigMap changes at any time, so the file is read again and again.

`gantry_client.topic_reconciler` decides what is changed. Topics and groups that are not in the file are left unchanged:
nothing is ever deleted. Unknown fields are ignored and logged, because the operator that wrote the file may be newer.

A slave has the tables of its master. A new master is reconciled at once, because its tables may be old.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, Final, final

import msgspec

from gantry_access import AccessFileError
from gantry_admin.broker_client import Connect
from gantry_admin.errors import Problem
from gantry_client import ClientError
from gantry_client.topic_reconciler import DeclaredTables, MasterTerm, TopicReconciler
from gantry_spec.manifest.parts import ConsumerGroup, Topic
from gantry_status.orders import HaRole, HaStatus

log = logging.getLogger(__name__)

INTERVAL_S: Final = 1.0
"""The interval between two reads of the file, in seconds."""

RETRY_S: Final = 5.0
"""The time after a failure before the next attempt."""

FILE_BYTES_MAX: Final = 1 << 20


@final
class TopicsFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of the file."""

    topics: tuple[Topic, ...] = ()
    groups: tuple[ConsumerGroup, ...] = ()


KINDS: Final = {"topics": Topic, "groups": ConsumerGroup}
"""The type of the entries of each list in the file."""


def parse_topics_file(content: bytes) -> tuple[TopicsFile, list[str]]:
    """Return the content of the file, and the names of unknown fields, which are ignored. Raises ``ValueError``."""
    left_out: set[str] = set()

    def cut(value: Any, known: Collection[str], place: str) -> Any:
        if not isinstance(value, dict):
            return value
        left_out.update(place + name for name in value if name not in known)
        return {name: inner for name, inner in value.items() if name in known}

    document = cut(msgspec.json.decode(content), KINDS, "")
    for name, kind in KINDS.items():
        listed = document.get(name) if isinstance(document, dict) else None
        if isinstance(listed, list):
            document[name] = [cut(one, kind.__struct_encode_fields__, f"{name}.") for one in listed]
    return msgspec.convert(document, TopicsFile), sorted(left_out)


@final
class TopicsFileReconciler:
    """Runs the `TopicReconciler` for the broker beside the sidecar. Owned by the event loop."""

    def __init__(self, path: Path, state: Callable[[], HaStatus | None], connect: Connect) -> None:
        """``state`` returns the broker's recent report about its role; None without one."""
        self._path: Final = path
        self._fresh_state: Final = state
        self._connect: Final = connect
        self._reconciler: Final = TopicReconciler()
        self._logged_failure = ""
        self._left_out: list[str] = []

    def __repr__(self) -> str:
        return f"<TopicsFileReconciler {self._path} {self._logged_failure}>"

    async def run(self) -> None:
        """Reconcile again and again, until cancelled."""
        while True:
            wait_s = await self.step()
            await asyncio.sleep(wait_s)

    async def step(self) -> float:
        """Reconcile once. Returns the seconds until the next time."""
        state = self._fresh_state()
        if state is None or state.role is not HaRole.MASTER:
            self._reconciler.reset()
            return INTERVAL_S
        try:
            content = await asyncio.to_thread(self._read)
            await self._reconcile(self._parse(content), state)
        except (OSError, ValueError, ClientError, AccessFileError, Problem) as error:
            self._log_failure(str(error)[:300])
            self._reconciler.reset()
            return RETRY_S
        self._logged_failure = ""
        return INTERVAL_S

    def _parse(self, content: bytes) -> TopicsFile:
        declared, left_out = parse_topics_file(content)
        if left_out != self._left_out:
            self._left_out = left_out
            if left_out:
                names = ", ".join(left_out)
                log.warning(
                    "ignored fields that this version does not know: %s", names, extra={"file": str(self._path)}
                )
        return declared

    def _read(self) -> bytes:
        """Read the file; blocks, so it is called in a thread."""
        with self._path.open("rb") as file:
            return file.read(FILE_BYTES_MAX)

    async def _reconcile(self, declared: TopicsFile, status: HaStatus) -> None:
        tables = DeclaredTables(
            {topic.name: topic.queues for topic in declared.topics},
            {group.name: group.retry_max for group in declared.groups},
        )
        if not self._reconciler.is_due(tables, [MasterTerm("", status.identity, status.epoch)]):
            return
        admin, address = await self._connect()
        term = MasterTerm(address, status.identity, status.epoch)
        changed = await self._reconciler.reconcile(admin, tables, [term])
        for topic, queues in changed.topics.items():
            log.info("topic reconciled", extra={"topic": topic, "queues": queues})
        for group, retries in changed.groups.items():
            log.info("subscription group reconciled", extra={"consumers": group, "retries": retries})

    def _log_failure(self, text: str) -> None:
        if text != self._logged_failure:
            log.warning("failed to reconcile topics and subscription groups; retrying", extra={"reason": text})
        self._logged_failure = text
