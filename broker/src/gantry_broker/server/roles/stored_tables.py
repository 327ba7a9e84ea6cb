"""The broker's tables and their files: read at the start, written after changes (queue locks only at a clean stop).

    config/topics.json  subscriptionGroup.json  consumerOffset.json  delayOffset.json  timerProgress.json
    config/queueLocks.json  accounts.json  messageRequestMode.json  consumerOrderInfo.json

The effects of a crash are repaired before the first request: a topic that has queues and no entry gets one, and no
consumer offset points beyond its queue. A file that cannot be read, together with its copy, stops the start: offsets
that silently began at zero would be worse than a broker that does not run. Queue locks are an exception: without them
no queue can be locked for a minute.
"""

import logging
from collections.abc import Callable
from functools import partial
from typing import Any, Final, TypeVar, final

import msgspec

from gantry_access import AccountStore
from gantry_access.account_document import AccountDocument, read_tables
from gantry_broker.errors import ConfigCorrupt
from gantry_broker.server.core.account_records import last_recorded_change
from gantry_broker.server.core.broker_core import BrokerCore
from gantry_broker.server.core.groups import GroupDocument
from gantry_broker.server.core.offsets import DelayOffsetDocument, OffsetDocument
from gantry_broker.server.core.persist import TableFile
from gantry_broker.server.core.queue_locks import LockDocument
from gantry_broker.server.core.request_modes import MODE_TABLE
from gantry_broker.server.core.topics import system_topics
from gantry_broker.server.delay.service import DelayService
from gantry_broker.server.pop.order import ORDER_TABLE, OrderDocument, OrderedQueues
from gantry_broker.server.timers.progress import TimerDocument
from gantry_broker.server.timers.service import TimerService
from gantry_broker.store.config_file import ConfigFile
from gantry_wire.commands.admin import TopicConfigTable
from gantry_wire.commands.pop import MessageRequestModes

log = logging.getLogger(__name__)

ACCOUNTS: Final = "accounts"
"""The table of users and policies, which only a broker that stores them has."""

FIRST_EPOCH = 1
"""Epoch of a new log."""

NEWER_TABLES = (MODE_TABLE, ORDER_TABLE)
"""Tables that stores of earlier releases do not have."""

D = TypeVar("D", bound=msgspec.Struct)


@final
class StoredTables:
    """The tables in their files. Owned by the event loop."""

    def __init__(self, core: BrokerCore, delay: DelayService, timers: TimerService, ordered: OrderedQueues) -> None:
        self._core = core
        self._delay = delay
        self._timers = timers
        self._ordered = ordered
        self._epoch = 0
        """Epoch to which the consumer offsets are known to belong."""

        self._files: dict[str, ConfigFile] = {}
        tables: tuple[tuple[str, Callable[[], msgspec.Struct]], ...] = (
            ("topics", core.topics.document),
            ("subscriptionGroup", core.groups.document),
            ("consumerOffset", core.offsets.document),
            ("delayOffset", delay.progress.document),
            ("timerProgress", timers.progress.document),
            ("queueLocks", core.locks.document),
            (MODE_TABLE, core.request_modes.document),
            (ORDER_TABLE, lambda: ordered.document(core.clock.wall_ms())),
        )
        for name, document in tables:
            file = self._files[name] = ConfigFile(core.disk, core.settings.store_path, name)
            save = partial(timers.save_progress, file.save) if name == "timerProgress" else file.save
            core.persistence.add(TableFile(name, document, save))
        if core.accounts is not None:
            self._accounts_file = ConfigFile(core.disk, core.settings.store_path, ACCOUNTS, is_private=True)
            core.persistence.add(TableFile(ACCOUNTS, core.accounts.document, self._accounts_file.save))

    def load(self, *, is_clean: bool = False) -> None:
        """Read all tables. After a clean stop a missing file is reported. Raises ``ConfigCorrupt``."""
        missing = [name for name, file in self._files.items() if not file.exists()]
        if is_clean and "topics" not in missing:
            for name in (name for name in missing if name not in NEWER_TABLES):
                # A clean stop writes all files, so a missing one was removed.
                _report_missing(self._files[name])
        core, settings = self._core, self._core.settings
        core.topics.load(self._load("topics", TopicConfigTable))
        core.groups.load(self._load("subscriptionGroup", GroupDocument))
        core.offsets.resets.set_enabled(settings.is_reset_kept)
        core.offsets.load(self._load("consumerOffset", OffsetDocument))
        self._delay.progress.load(self._load("delayOffset", DelayOffsetDocument))
        core.request_modes.load(self._load(MODE_TABLE, MessageRequestModes))
        now_ms = core.clock.wall_ms()
        lead_ms = now_ms - core.clock.monotonic_ms()
        self._ordered.load(self._load(ORDER_TABLE, OrderDocument), now_ms, wall_lead_ms=lead_ms)
        self._timers.progress.load(self._load("timerProgress", TimerDocument))
        if core.accounts is not None:
            self._load_accounts(core.accounts)
        self._load_locks(is_lost=is_clean and "topics" not in missing and "queueLocks" in missing)
        core.topics.seed(
            system_topics(
                settings.cluster_name,
                settings.broker_name,
                auto_create=settings.auto_create_topics,
                default_queues=settings.default_topic_queues,
                trace_topic=settings.trace_topic if settings.is_trace_topic_made else None,
            )
        )
        adopted = core.topics.adopt_queues(core.store.queues.topics())
        if adopted:
            log.warning("added topics that have queues but no entry in topics.json", extra={"topics": adopted})
        self.clamp_offsets()
        self._epoch = core.store.identity.epoch
        for name in ("topics", "subscriptionGroup"):
            core.persistence.mark(name, now=True)

    def clamp_offsets(self) -> None:
        """Reset offsets that point beyond their queue after a crash, so that no consumer skips new messages."""
        for topic, queue_id in self._core.offsets.known_queues():
            for group, old in self._core.offsets.clamp(topic, queue_id, self._end_of(topic, queue_id)):
                log.warning(
                    "consumer offset was beyond the end of its queue and was reset",
                    extra={"group": group, "topic": topic, "queue": queue_id, "old": old},
                )

    def begin_epoch(self) -> None:
        """Clamp offsets of consumers that were further on the last master, and forget queue locks.

        A start that lost nothing continues in its old epoch, and keeps the offsets; the locks only after a clean stop.
        """
        self.clamp_offsets()
        epoch = self._core.store.identity.epoch
        if epoch != self._epoch:
            if self._epoch > FIRST_EPOCH or self._core.store.log.wrote:
                self._core.locks.forget_holders()
            self._epoch = epoch
            self._core.offsets.begin_epoch(self._end_of)

    def _end_of(self, topic: str, queue_id: int) -> int:
        queue = self._core.store.queues.get(topic, queue_id)
        return 0 if queue is None else queue.end

    def _load_accounts(self, accounts: AccountStore) -> None:
        """Load users and policies, and create the first user if there is no Super user. Raises ``ConfigCorrupt``."""
        data = self._accounts_file.load(lambda document: read_tables(_convert(document, AccountDocument)))
        if data is not None:
            accounts.load(_convert(data, AccountDocument))
        self._compare_accounts_with_log(accounts, is_missing=data is None)
        accounts.add_initial_user()
        self._core.persistence.mark(ACCOUNTS, now=True)

    def _compare_accounts_with_log(self, accounts: AccountStore, *, is_missing: bool) -> None:
        """Report users and policies that are missing, or older than the last change that the log has a record of."""
        recorded, change = last_recorded_change(self._core.store), accounts.tables.change_count
        if recorded is None or (change >= recorded and not is_missing):
            return
        if is_missing:
            _report_missing(self._accounts_file)
        else:
            log.error(
                "users and policies are older than the last change in the log; check them",
                extra={"path": self._accounts_file.path, "change": change, "last_change": recorded},
            )
        accounts.set_change_count(max(change, recorded))  # Reported once: the next start finds the numbers equal.

    def _load_locks(self, *, is_lost: bool) -> None:
        """Load queue locks; if they are unknown, no queue is locked for ``LOCK_LEASE_MS``, as after a crash.

        No lock lives longer than that without a renewal, so an unreadable file does not stop the start.
        """
        locks = self._core.locks
        try:
            locks.load(self._load("queueLocks", LockDocument))
        except ConfigCorrupt as error:
            path = self._files["queueLocks"].path
            log.warning(
                "queue lock file is not usable; no queue can be locked for a minute",
                extra={"path": path, "reason": str(error)},
            )
            is_lost = True
        if is_lost:
            locks.forget_holders()

    def _load(self, name: str, kind: type[D]) -> D:
        """Read a table from its file, or from the copy if the file has another shape. Raises ConfigCorrupt."""
        data = self._files[name].load(lambda document: _convert(document, kind))
        return kind() if data is None else _convert(data, kind)


def _report_missing(file: ConfigFile) -> None:
    """Report a table that a former start had. An administrator may have a copy of its file."""
    log.error(
        "table file is missing; the table starts empty; stop the broker and restore a copy", extra={"path": file.path}
    )


def _convert(document: dict[str, Any], kind: type[D]) -> D:
    """Return a document in its typed form. Raises ValueError for another shape."""
    try:
        return msgspec.convert(document, kind, strict=False)
    except msgspec.ValidationError as error:
        raise ValueError(f"invalid {kind.__name__}: {error}") from error
