"""Recovery without a broker: open the store as a start would, and close it cleanly.

This is what makes a store fit for RocketMQ again after a crash with the write buffer on: what only the buffers hold is
put into the log, the buffers are given back, and ``abort`` is gone. Nothing is decided here that a start does not
decide; only the sizes of files are taken from the files, since there are no settings to ask.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import final

import msgspec

from gantry_broker.errors import StoreError
from gantry_broker.ports.clock import SystemClock
from gantry_broker.ports.real_buffers import open_volume
from gantry_broker.ports.real_disk import RealDisk
from gantry_broker.ports.real_reading import RealReadingDisk
from gantry_broker.store.existing import settings_of_store
from gantry_broker.store.inspect.index_reader import IndexReader
from gantry_broker.store.loss import LossRecord
from gantry_broker.store.message_store import MessageStore, RecoveryReport
from gantry_broker.store.record_taker import Progress
from gantry_broker.store.settings import StoreSettings
from gantry_store_files.segments import index_names
from gantry_wire.message import encode_host

log = logging.getLogger(__name__)


@final
class CannotRecover(Exception):
    """The store could not be opened, or not be closed cleanly. The text says why; it can be tried again."""


def recover(root: str, buffers_path: str | None = None, progress: Progress | None = None) -> RecoveryReport:
    """Recover the store in ``root`` and leave it cleanly stopped. Raises ``CannotRecover``.

    ``buffers_path`` is where its write buffers are, if not where the store itself says.
    """
    return _open_and_close(root, buffers_path, progress, lambda store: None)


def accept_loss(root: str, by: str, buffers_path: str | None = None, progress: Progress | None = None) -> LossRecord:
    """Recover the store in ``root``, accept that what is missing in its log is lost, and leave it cleanly stopped.

    What was missing, and is accepted now, is in what this answers. Raises ``CannotRecover``.
    """
    found: list[LossRecord] = []

    def accept(store: MessageStore) -> None:
        missing = store.losses.record.missing
        store.accept_loss(by)
        found.append(msgspec.structs.replace(store.losses.record, missing=missing))

    _open_and_close(root, buffers_path, progress, accept)
    return found[0]


def _open_and_close(
    root: str, buffers_path: str | None, progress: Progress | None, change: Callable[[MessageStore], None]
) -> RecoveryReport:
    disk = RealDisk()
    failures: list[Exception] = []
    store = MessageStore(
        root,
        settings_of_files(root, disk),
        disk=disk,
        clock=SystemClock(),
        store_host=encode_host("127.0.0.1", 0),
        on_fatal=failures.append,
        open_volume=lambda path: open_volume(buffers_path or path),
    )
    try:
        report = store.open(progress, is_flushing=False)
        try:
            change(store)
        finally:
            store.close()
    except (StoreError, OSError) as exc:
        raise CannotRecover(str(exc)) from exc
    if failures:
        raise CannotRecover(str(failures[0])) from failures[0]
    if disk.exists(f"{root}/abort"):
        raise CannotRecover("the store was recovered, but could not be closed cleanly; see the log")
    return report


def settings_of_files(root: str, disk: RealDisk) -> StoreSettings:
    """The sizes that the files themselves have, RocketMQ's defaults where there are none."""
    settings = settings_of_store(root, StoreSettings(is_preallocating=False), (), disk)
    reading = RealReadingDisk()
    for name in index_names(reading, f"{root}/index"):
        reader = IndexReader(reading, f"{root}/index/{name}")
        reader.close()
        if reader.shape is not None:
            slots, entries = reader.shape
            return replace(settings, max_hash_slot_num=slots, max_index_num=entries)
    return settings
