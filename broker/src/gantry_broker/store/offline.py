"""Recovery without a broker: open the store as a broker's start would, and close it cleanly.

This makes a store usable by RocketMQ again after a crash with write buffers: what only the buffers hold is written to
the log, the buffers are released, and ``abort`` is removed. The decisions are those of a start without settings: the
sizes of files are those of the store, and all else has its default, such as the delay levels. The ``memoryScope`` is
the one of the last start, also in another pod: what that start had written and the log lacks is lost, and this is the
last recovery that can detect it, since the store is stopped cleanly afterwards. So it also records whether data may be
lost (``data_completeness``): the store would vote in elections otherwise, as if it had everything.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import final

import msgspec

from gantry_broker.errors import StoreError
from gantry_broker.ports.clock import SystemClock
from gantry_broker.ports.real_buffers import open_volume
from gantry_broker.ports.real_disk import RealDisk
from gantry_broker.ports.real_reading import RealReadingDisk
from gantry_broker.store.data_completeness import DataCompleteness
from gantry_broker.store.existing_sizes import with_existing_file_sizes
from gantry_broker.store.inspect.index_reader import IndexReader
from gantry_broker.store.log_end import read_memory_scope
from gantry_broker.store.loss import LossRecord, LostRange, describe_missing
from gantry_broker.store.message_store import MessageStore, RecoveryReport
from gantry_broker.store.scan_dispatcher import Progress
from gantry_broker.store.settings import StoreSettings
from gantry_store_files.segments import index_names
from gantry_wire.message import encode_host

log = logging.getLogger(__name__)


@final
class RecoveryFailed(Exception):
    """The store could not be opened or not closed cleanly, as the text explains. Recovery can be tried again."""


def recover(root: str, buffers_path: str | None = None, progress: Progress | None = None) -> RecoveryReport:
    """Recover the store in ``root`` and leave it cleanly stopped. Raises ``RecoveryFailed``.

    ``buffers_path`` is the directory of its write buffers, by default the one that the store has recorded.
    """
    return _open_and_close(root, buffers_path, progress, lambda store: None)


def accept_loss(
    root: str,
    by: str,
    buffers_path: str | None = None,
    progress: Progress | None = None,
    *,
    shown: Sequence[LostRange] | None = None,
) -> LossRecord:
    """Recover the store in ``root``, accept that the missing data of its log is lost, and leave it cleanly stopped.

    If the recovery finds a missing range that is not among the ranges ``shown`` to the administrator, nothing is
    accepted; None stands for any ranges. Return the loss record with the ranges that were missing and are accepted now.
    Raises ``RecoveryFailed``.
    """
    found: list[LossRecord] = []

    def accept(store: MessageStore) -> None:
        missing = store.losses.record.missing
        if shown is not None and not set(missing) <= set(shown):
            raise RecoveryFailed(
                f"the recovery found more than was shown: {describe_missing(missing)}; nothing was accepted; run the "
                "command again, which shows these ranges"
            )
        store.accept_loss(by)
        found.append(msgspec.structs.replace(store.losses.record, missing=missing))

    _open_and_close(root, buffers_path, progress, accept)
    return found[0]


def _open_and_close(
    root: str, buffers_path: str | None, progress: Progress | None, change: Callable[[MessageStore], None]
) -> RecoveryReport:
    disk, clock = RealDisk(), SystemClock()
    failures: list[Exception] = []
    scope = read_memory_scope(disk, root)
    completeness = DataCompleteness(disk, root, clock.boot_id(), scope=scope)
    store = MessageStore(
        root,
        detect_settings(root, disk),
        disk=disk,
        clock=clock,
        store_host=encode_host("127.0.0.1", 0),
        on_fatal=failures.append,
        open_volume=lambda path: open_volume(buffers_path or path),
        memory_scope=scope,
    )
    try:
        report = store.open(progress, is_flushing=False, on_locked=completeness.load)
        try:
            if completeness.has_record:
                completeness.record_start(report, store.pools.status)
            change(store)
        finally:
            store.close()
    except (StoreError, OSError) as exc:
        raise RecoveryFailed(str(exc)) from exc
    if failures:
        raise RecoveryFailed(str(failures[0])) from failures[0]
    if disk.exists(f"{root}/abort"):
        raise RecoveryFailed("the store was recovered, but could not be closed cleanly; see the log")
    return report


def detect_settings(root: str, disk: RealDisk) -> StoreSettings:
    """Return settings with the sizes of the existing files, and RocketMQ's defaults where there are none."""
    settings = with_existing_file_sizes(root, StoreSettings(is_preallocating=False), (), disk)
    reading = RealReadingDisk()
    for name in index_names(reading, f"{root}/index"):
        reader = IndexReader(reading, f"{root}/index/{name}")
        reader.close()
        if reader.shape is not None:
            slots, entries = reader.shape
            return replace(settings, max_hash_slot_num=slots, max_index_num=entries)
    return settings
