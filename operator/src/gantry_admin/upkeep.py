"""Topics and groups of consumers that shall exist: kept on the broker beside us, for as long as it is the master.

They stand in a file, as JSON: ``{"topics": [{"name": "orders", "queues": 8}], "groups": [{"name": "billing",
"retryMax": 16}]}``, by the names of the manifest. A mounted ConfigMap changes under us, so it is read again and again.

What is changed of a topic or group is `gantry_client.wanted`'s rule. What is not in the file is left alone: nothing is
ever deleted.

Fields that this version does not know are left out, and named: the operator that wrote the file may be newer.

A slave has what its master has. A master that is new to its role looks at once, since its table may be an old one.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection
from pathlib import Path
from typing import Any, Final, final

import msgspec

from gantry_access import AccessFileError
from gantry_admin.errors import Problem
from gantry_client import Admin, ClientError
from gantry_client.wanted import group_change, topic_change
from gantry_spec.manifest.parts import ConsumerGroup, Topic
from gantry_status.orders import HaRole, HaStatus

log = logging.getLogger(__name__)

INTERVAL_S: Final = 1.0
AGAIN_S: Final = 30.0
"""Between two comparisons where nothing has changed: somebody may have deleted a topic."""
RETRY_S: Final = 5.0
FILE_BYTES_MAX: Final = 1 << 20

Connected = Callable[[], Awaitable[tuple[Admin, str]]]
"""A client, and where the broker is. Raises ``Problem``, ``AccessFileError``."""


@final
class WantedThings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of the file."""

    topics: tuple[Topic, ...] = ()
    groups: tuple[ConsumerGroup, ...] = ()


KINDS: Final = {"topics": Topic, "groups": ConsumerGroup}


def understood(content: bytes) -> tuple[WantedThings, list[str]]:
    """What the file says, and which fields of it only a newer version knows. Raises ``ValueError``."""
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
    return msgspec.convert(document, WantedThings), sorted(left_out)


@final
class Upkeep:
    """Owned by the event loop."""

    def __init__(self, path: Path, word: Callable[[], HaStatus | None], connected: Connected) -> None:
        """``word`` is what the broker said lately of its role; None if it said nothing, or stands still."""
        self._path: Final = path
        self._word: Final = word
        self._connected: Final = connected
        self._done: tuple[bytes, int, str] | None = None
        """What was in the file, and in which reign, when everything was as it should be last."""
        self._next_s = 0.0
        self._said = ""
        self._left_out: list[str] = []

    def __repr__(self) -> str:
        return f"<Upkeep {self._path} {self._said}>"

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            wait_s = await self.step()
            await asyncio.sleep(wait_s)

    async def step(self) -> float:
        """Look once, and mend. In how many seconds again."""
        word = self._word()
        if word is None or word.role is not HaRole.MASTER:
            self._done = None
            return INTERVAL_S
        try:
            content = await asyncio.to_thread(self._read)
            mark = content, word.epoch, word.identity
            if mark == self._done and time.monotonic() < self._next_s:
                return INTERVAL_S
            await self._keep(self._understood(content))
        except (OSError, ValueError, ClientError, AccessFileError, Problem) as error:
            self._complain(str(error)[:300])
            self._done = None
            return RETRY_S
        self._done, self._next_s, self._said = mark, time.monotonic() + AGAIN_S, ""
        return INTERVAL_S

    def _understood(self, content: bytes) -> WantedThings:
        wanted, left_out = understood(content)
        if left_out != self._left_out:
            self._left_out = left_out
            log.warning("fields are left out that this version does not know: %s", ", ".join(left_out) or "none now")
        return wanted

    def _read(self) -> bytes:
        """In a thread."""
        with self._path.open("rb") as file:
            return file.read(FILE_BYTES_MAX)

    async def _keep(self, wanted: WantedThings) -> None:
        if not wanted.topics and not wanted.groups:
            return
        admin, address = await self._connected()
        topics = await admin.brokers.topic_table(address)
        for topic in wanted.topics:
            change = topic_change(topic.name, topic.queues, topics.get(topic.name))
            if change is not None:
                await admin.brokers.put_topic(address, change)
                log.info("a topic is as it should be", extra={"topic": topic.name, "queues": topic.queues})
        groups = await admin.brokers.group_table(address)
        for group in wanted.groups:
            config = group_change(group.name, group.retry_max, groups.get(group.name))
            if config is not None:
                await admin.brokers.put_group(address, config)
                log.info("a group is as it should be", extra={"consumers": group.name, "retries": group.retry_max})

    def _complain(self, text: str) -> None:
        if text != self._said:
            log.warning("topics and groups are not as they should be", extra={"reason": text})
        self._said = text
