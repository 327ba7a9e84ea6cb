"""What a store that is already there decides: the size of its files.

Sizes are part of the file format and differ between RocketMQ installations. A setting that somebody wrote down must
agree with the files (`StoreMismatch` names both numbers); one that nobody wrote down is taken from them.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Final

from gantry_broker.ports.disk import Disk
from gantry_broker.store.mapped_file import parse_file_name
from gantry_broker.store.settings import StoreSettings

LOG_SIZE_KEY: Final = "mappedFileSizeCommitLog"
QUEUE_SIZE_KEY: Final = "mappedFileSizeConsumeQueue"


def settings_of_store(root: str, settings: StoreSettings, given: Collection[str], disk: Disk) -> StoreSettings:
    """``settings`` with the file sizes of the store under ``root`` wherever ``given`` does not name the key."""
    if LOG_SIZE_KEY not in given:
        size = _file_size(disk, f"{root}/commitlog")
        if size is not None:
            settings = replace(settings, mapped_file_size_commit_log=size)
    if QUEUE_SIZE_KEY not in given:
        size = _queue_file_size(disk, f"{root}/consumequeue")
        if size is not None:
            settings = replace(settings, mapped_file_size_consume_queue=size)
    return settings


def _file_size(disk: Disk, directory: str) -> int | None:
    """The size of the first whole file of a log or queue; an empty one was being created when its process died."""
    for name in disk.list(directory):
        if parse_file_name(name) is not None:
            size = disk.file_size(f"{directory}/{name}")
            if size:
                return size
    return None


def _queue_file_size(disk: Disk, directory: str) -> int | None:
    for topic in disk.list(directory):
        for queue in disk.list(f"{directory}/{topic}"):
            size = _file_size(disk, f"{directory}/{topic}/{queue}")
            if size is not None:
                return size
    return None
