"""Directories for write buffers: on tmpfs, and on hugetlbfs where root can mount it. Everything is undone at the end.

A medium that this machine does not have is left out, with the reason in the report: figures without it are still
useful. Huge pages are reserved in addition to the existing ones, and released; other processes may do so meanwhile.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final

import msgspec

from gantry_bench.errors import BenchmarkFailed
from gantry_bench.machine import read_available_bytes
from gantry_bench.tail import Medium

HUGE_PAGES_WANTED: Final = Path("/proc/sys/vm/nr_hugepages")
HUGE_PAGE_BYTES: Final = 2 << 20
SHARED_MEMORY: Final = Path("/dev/shm")
BUFFER_MEDIA: Final[tuple[Medium, ...]] = ("hugetlbfs", "tmpfs")
"""The media that survive their process, as a write buffer must, with the preferred one first."""


class PoolMedia(msgspec.Struct, frozen=True):
    """The places for buffers by medium, and the reasons for missing media. Anonymous memory needs no place."""

    paths: dict[Medium, str]
    missing: dict[Medium, str]


@contextmanager
def pool_media(bytes_needed: int) -> Iterator[PoolMedia]:
    """Yield places with room for so many bytes each, for the duration of the context."""
    paths: dict[Medium, str] = {"anonymous": ""}
    missing: dict[Medium, str] = {}
    makers: tuple[tuple[Medium, Callable[[int], AbstractContextManager[Path]]], ...]
    makers = (("tmpfs", _tmpfs), ("hugetlbfs", _hugetlbfs))
    with ExitStack() as stack:
        for medium, make in makers:
            try:
                paths[medium] = str(stack.enter_context(make(bytes_needed)))
            except OSError as error:
                missing[medium] = error.strerror or str(error)
        yield PoolMedia(paths=paths, missing=missing)


class BufferPlace(msgspec.Struct, frozen=True):
    """The place of the write buffers of a run."""

    medium: Medium
    path: str


@contextmanager
def buffer_place(bytes_needed: int) -> Iterator[BufferPlace]:
    """Yield the best place for write buffers that this machine has, for the duration of the context."""
    with pool_media(bytes_needed) as media:
        for medium in BUFFER_MEDIA:
            if medium in media.paths:
                yield BufferPlace(medium=medium, path=media.paths[medium])
                return
        reasons = "; ".join(f"{medium}: {reason}" for medium, reason in media.missing.items())
        raise BenchmarkFailed(f"no place for write buffers: {reasons}")


@contextmanager
def _tmpfs(bytes_needed: int) -> Iterator[Path]:
    free = shutil.disk_usage(SHARED_MEMORY).free if SHARED_MEMORY.is_dir() else 0
    if free < bytes_needed:
        raise OSError(0, f"{SHARED_MEMORY} has {free >> 20} MiB free of the {bytes_needed >> 20} needed")
    with tempfile.TemporaryDirectory(prefix="gantry-bench-", dir=SHARED_MEMORY) as folder:
        yield Path(folder)


@contextmanager
def _hugetlbfs(bytes_needed: int) -> Iterator[Path]:
    if os.geteuid() != 0:
        raise OSError(0, "mounting it needs root")
    available = read_available_bytes()
    if available < 2 * bytes_needed:
        # The available memory is checked first, because the kernel would reclaim memory from all processes before it
        # fails.
        raise OSError(0, f"{available >> 20} MiB of memory are available for huge pages of {bytes_needed >> 20}")
    pages_before = int(HUGE_PAGES_WANTED.read_text())
    pages = -(-bytes_needed // HUGE_PAGE_BYTES)
    HUGE_PAGES_WANTED.write_text(str(pages_before + pages))
    given = max(0, int(HUGE_PAGES_WANTED.read_text()) - pages_before)
    try:
        if given < pages:
            raise OSError(0, f"the kernel gave {given} huge pages of the {pages} needed")
        with tempfile.TemporaryDirectory(prefix="gantry-bench-") as folder:
            _run("mount", "-t", "hugetlbfs", "-o", f"pagesize={HUGE_PAGE_BYTES}", "none", folder)
            try:
                yield Path(folder)
            finally:
                _run("umount", folder)
    finally:
        with suppress(OSError):
            HUGE_PAGES_WANTED.write_text(str(max(0, int(HUGE_PAGES_WANTED.read_text()) - given)))


def _run(*command: str) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise OSError(0, f"{command[0]} does not work: {error}") from error
    if done.returncode != 0:
        raise OSError(0, done.stderr.strip() or f"{command[0]} ended with code {done.returncode}")
