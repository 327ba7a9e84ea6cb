"""A disk in memory with repeatable faults: lost and torn writes, bit rot, a full disk and I/O errors.

The effect of a power loss is modelled by two copies of all data: the one that programs see (the page
cache) and the durable one. ``sync`` copies a file's bytes from one to the other, ``sync_directory`` the names.
A crash is one of

    lose_unsynced()     all unsynced bytes and names are lost
    tear(seed)          a random subset of the unsynced sectors and names is left
    tear_hole(...)      everything but some sectors of one file is left: written back in the worst order

after which every open file is invalid (using it raises ``EBADF``, as after the end of the process) and locks are free.
``kill()`` ends only the process: the page cache stays. Single faults: ``fail_next``, ``short_write``, ``flip``,
``capacity``; while ``sync_gate`` is cleared, every ``sync`` of an open file waits. A failed sync leaves pages that are
clean but not on the disk; see ``faulty_pages``. ``on_operation`` is called before every operation of the kinds that
``fail_next`` lists, and may raise: an OSError is an error of the disk, any other exception the end of the process.

It also checks its users: ``sync`` fails for bytes that were written where no blocks were reserved, which on
a real disk could cause a SIGBUS.
"""

from __future__ import annotations

import errno
import os
import posixpath
import random
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from typing import Final, final

from gantry_broker.ports.disk import DiskFile, DiskLock, DiskSpace
from gantry_testing.faulty_pages import Node, Survives, by_chance, everything, nothing, outside

DEFAULT_CAPACITY: Final = 1 << 30


def children(names: Iterable[str], directory: str) -> list[str]:
    """Return the paths directly in ``directory``."""
    prefix = directory.rstrip("/") + "/"
    length = len(prefix)
    return [
        path for path in tuple(names) if path.startswith(prefix) and path.find("/", length) < 0 and len(path) > length
    ]


@final
class FaultyFile:
    """One open file of a ``FaultyDisk``."""

    def __init__(self, disk: FaultyDisk, path: str, node: Node) -> None:
        self._disk = disk
        self._path = path
        self._node = node
        self._process_number = disk.process_number
        self._is_open = True
        self._reserved = 0
        self.is_read_ahead_useful = True
        """The last call of ``set_read_ahead``. Reading has no cost here."""

    def __repr__(self) -> str:
        return f"<FaultyFile {self._path} size={self.size} reserved={self._reserved}>"

    def _check(self, operation: str) -> None:
        if not self._is_open or self._process_number != self._disk.process_number:
            raise OSError(errno.EBADF, "the file was closed, or the disk crashed", self._path)
        self._disk.meet_fault(operation, self._path)

    @property
    def path(self) -> str:
        return self._path

    @property
    def size(self) -> int:
        return len(self._node.cache)

    @property
    def reserved(self) -> int:
        return self._reserved

    @property
    def view(self) -> memoryview:
        self._check("map")
        return memoryview(self._node.cache)

    def reserve(self, end: int) -> None:
        self._check("reserve")
        end = min(end, self.size)
        if end > self._reserved:
            self._disk.charge(self._node, end, self._path)
            self._reserved = end

    def advise(self, start: int, end: int) -> None:
        """Do nothing, because advice has no effect in memory."""

    def map_ahead(self, start: int, end: int) -> None:
        """Do nothing, because all bytes are in memory."""

    def set_read_ahead(self, is_useful: bool) -> None:
        self.is_read_ahead_useful = is_useful

    def regrow(self) -> int | None:
        """Do nothing, because no other process shortens a file: the bytes are in memory, and have views."""
        return None

    def pread(self, length: int, position: int) -> bytes:
        self._check("read")
        return bytes(self._node.cache[position : position + length])

    def next_data(self, position: int) -> int:
        self._check("read")
        rest = self._node.cache[position:]
        return position + len(rest) - len(rest.lstrip(b"\0"))

    def next_hole(self, position: int) -> int:
        """Return the end of the last byte that is not zero: all before it may be data."""
        self._check("read")
        return max(position, len(self._node.cache.rstrip(b"\0")))

    def pwrite(self, data: bytes | bytearray | memoryview, position: int) -> int:
        self._check("write")
        length = self._disk.shorten(len(data))
        self._disk.charge(self._node, min(position + length, self.size), self._path)
        with memoryview(self._node.cache) as cache, memoryview(data) as source:
            cache[position : position + length] = source[:length]
        self._node.mark_dirty(position, position + length)
        return length

    def start_writeback(self) -> None:
        """Do nothing: ``write_back`` of the disk models what the kernel writes by itself."""

    def sync(self) -> None:
        try:
            self._check("sync")
        except OSError as exc:
            if exc.errno != errno.EBADF:
                self._node.fail_sync()
            raise
        disk = self._disk
        # While the sync waits, more bytes may be written, which it does not cover.
        content = None if disk.sync_gate.is_set() and disk.while_syncing is None else bytes(self._node.cache)
        disk.sync_gate.wait()
        if disk.while_syncing is not None:
            disk.while_syncing()
        beyond = self._node.cache[self._node.reserved :]
        assert beyond.count(0) == len(beyond), f"{self._path} was written where no blocks were reserved"
        self._node.sync(content)

    def zero(self, start: int, end: int) -> None:
        self._check("zero")
        with memoryview(self._node.cache) as cache:
            cache[start:end] = bytes(end - start)
        self._node.mark_dirty(start, end)

    def close(self) -> None:
        self._is_open = False


@final
class FaultyLock:
    """A lock on a path of a ``FaultyDisk``."""

    def __init__(self, disk: FaultyDisk, path: str) -> None:
        self._disk = disk
        self._path = path
        self._process_number = disk.process_number

    def release(self) -> None:
        if self._process_number == self._disk.process_number:
            self._disk.locked.discard(self._path)


@final
class FaultyDisk:
    """The disk of one machine, over all processes that use it."""

    def __init__(self, *, capacity: int = DEFAULT_CAPACITY) -> None:
        self.capacity = capacity
        """The size of the disk in bytes, which a test may change at any time."""
        self.process_number = 0
        """The number of crashes and kills so far; files that were opened before the last one are invalid."""
        self.locked: set[str] = set()
        """The paths of files that are locked."""
        self.sync_gate: Final = threading.Event()
        """While it is cleared, every sync of an open file waits."""
        self.sync_gate.set()
        self.while_syncing: Callable[[], None] | None = None
        """Called in each sync of an open file: its content is fixed, and not durable yet. It may let others write."""
        self.operations: dict[str, int] = defaultdict(int)
        """The number of operations so far, by kind (see ``fail_next``)."""
        self.on_operation: Callable[[str, str], None] = lambda operation, path: None
        """Called with the kind of each operation (see ``fail_next``) and its path before it happens. An exception
        replaces the operation."""
        self._names: dict[str, Node | None] = {"/": None}
        self._durable_names: dict[str, Node | None] = {"/": None}
        self._faults: dict[str, deque[int]] = defaultdict(deque)
        self._short_writes: deque[int] = deque()

    # -- faults that a test injects ------------------------------------------------------------------------------------

    def fail_next(self, operation: str, code: int, *, count: int = 1) -> None:
        """Let the next ``count`` operations of a kind fail with the errno ``code``.

        Kinds: create, open, reserve, read, write, sync, sync_directory, zero, map, rename, remove, remove_tree,
        make_directory.
        """
        self._faults[operation].extend([code] * count)

    def short_write(self, length: int) -> None:
        """Let the next write take only ``length`` bytes."""
        self._short_writes.append(length)

    def flip(self, path: str, offset: int, mask: int = 0x01) -> None:
        """Flip bits of one byte, in the page cache and on the disk."""
        node = self._file(path)
        node.cache[offset] ^= mask
        if offset < len(node.durable):
            node.durable[offset] ^= mask

    def kill(self) -> None:
        """End the process: open files, locks, and faults that have not occurred yet are gone; all bytes stay."""
        self.process_number += 1
        self.locked.clear()
        self._faults.clear()
        self._short_writes.clear()
        for node in self._nodes():
            node.kill()

    def lose_unsynced(self) -> None:
        """Lose power so that exactly the synced bytes and names are left."""
        self._crash(None)

    def tear(self, seed: int) -> None:
        """Lose power so that a random part of the unsynced bytes and names is left too."""
        self._crash(random.Random(seed))

    def tear_hole(self, path: str, start: int, end: int) -> None:
        """Lose power so that everything is left but the unsynced sectors of one file in ``[start, end)``."""
        hole = self._file(path)
        for node in self._nodes():
            node.durable_size = max(node.durable_size, 0)
            node.write_back(everything if node is not hole else outside(start, end))
        for name, node_or_directory in self._names.items():
            self._durable_names.setdefault(name, node_or_directory)
        self._crash(None)

    def write_back(self, seed: int) -> None:
        """Write a random part of the unsynced bytes of files that were synced before, as the kernel does by itself."""
        chance = random.Random(seed)
        for node in self._nodes():
            node.write_back(by_chance(chance))

    def drop_caches(self) -> None:
        """Drop clean pages: where a sync has failed, reads return the content of the disk."""
        for node in self._nodes():
            node.drop_lost()

    def copy(self) -> FaultyDisk:
        """Return an independent disk with the same bytes and names, unlocked and without faults."""
        other = FaultyDisk(capacity=self.capacity)
        names, durable_names = self._names.copy(), self._durable_names.copy()  # worker threads may add some meanwhile
        both = (*names.values(), *durable_names.values())
        nodes = {id(node): node.copy() for node in both if node is not None}
        other._names = {path: None if node is None else nodes[id(node)] for path, node in names.items()}
        other._durable_names = {path: None if node is None else nodes[id(node)] for path, node in durable_names.items()}
        return other

    def _nodes(self) -> list[Node]:
        """Return every file that has a name, once, in the order of the names."""
        return list({id(node): node for _, node in sorted(self._names.items()) if node is not None}.values())

    def _crash(self, chance: random.Random | None) -> None:
        self.kill()
        names: dict[str, Node | None] = {}
        for path in sorted(self._names.keys() | self._durable_names.keys()):
            durable, cached = self._durable_names.get(path, ...), self._names.get(path, ...)
            kept = cached if durable != cached and chance is not None and chance.random() < 0.5 else durable
            if not isinstance(kept, type(...)) and posixpath.dirname(path) in names | {"/": None}:
                names[path] = kept
        names["/"] = None
        for node in {id(node): node for node in names.values() if node is not None}.values():
            survives: Survives = nothing if chance is None else by_chance(chance)
            node.crash(survives, is_sized=chance is not None and chance.random() < 0.5)
        self._names = names
        self._durable_names = dict(names)

    # -- calls from files ----------------------------------------------------------------------------------------------

    def meet_fault(self, operation: str, path: str) -> None:
        """Count an operation, and raise the error that a test has ordered for it."""
        self.operations[operation] += 1
        self.on_operation(operation, path)
        if self._faults[operation]:
            code = self._faults[operation].popleft()
            raise OSError(code, os.strerror(code), path)

    def shorten(self, length: int) -> int:
        """Return how many bytes the next write takes: ``length``, unless a test has ordered a short write."""
        return min(length, self._short_writes.popleft()) if self._short_writes else length

    def charge(self, node: Node, end: int, path: str) -> None:
        """Allocate blocks to ``node`` up to ``end``. Raises ENOSPC if there is no space."""
        more = end - node.reserved
        if more > 0:
            if more > self.space("/").free:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
            node.reserved = end

    def _file(self, path: str) -> Node:
        node = self._names.get(posixpath.normpath(path))
        if node is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return node

    # -- the port ``Disk`` ---------------------------------------------------------------------------------------------

    def create(self, path: str, size: int, *, reserve: int = 0) -> DiskFile:
        self.meet_fault("create", path)
        path = posixpath.normpath(path)
        if path in self._names:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        if posixpath.dirname(path) not in self._names:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        node = Node(size)
        self._names[path] = node
        file = FaultyFile(self, path, node)
        try:
            file.reserve(reserve)
        except OSError:
            del self._names[path]
            raise
        return file

    def open(self, path: str) -> DiskFile:
        self.meet_fault("open", path)
        return FaultyFile(self, posixpath.normpath(path), self._file(path))

    def exists(self, path: str) -> bool:
        return posixpath.normpath(path) in self._names

    def file_size(self, path: str) -> int:
        if self.is_directory(path):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        return len(self._file(path).cache)

    def list(self, directory: str) -> list[str]:
        return sorted(posixpath.basename(path) for path in children(self._names, posixpath.normpath(directory)))

    def is_directory(self, path: str) -> bool:
        path = posixpath.normpath(path)
        return path in self._names and self._names[path] is None

    def make_directory(self, path: str) -> None:
        path = posixpath.normpath(path)
        if path in self._names:
            return
        self.meet_fault("make_directory", path)
        self.make_directory(posixpath.dirname(path))
        self._names[path] = None

    def remove(self, path: str) -> None:
        self.meet_fault("remove", path)
        self._file(path)
        del self._names[posixpath.normpath(path)]

    def remove_tree(self, path: str) -> None:
        self.meet_fault("remove_tree", path)
        path = posixpath.normpath(path)
        for name in [name for name in self._names if name == path or name.startswith(f"{path}/")]:
            del self._names[name]

    def rename(self, source: str, target: str) -> None:
        self.meet_fault("rename", source)
        node = self._file(source)
        del self._names[posixpath.normpath(source)]
        self._names[posixpath.normpath(target)] = node

    def sync_directory(self, path: str) -> None:
        self.meet_fault("sync_directory", path)
        path = posixpath.normpath(path)
        if path not in self._names:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        for name in children(self._durable_names, path):
            del self._durable_names[name]
        for name in children(self._names, path):
            self._durable_names[name] = self._names[name]

    def read_uncached(self, path: str, position: int, length: int) -> bytes:
        return self.read_file(path)[position : position + length]

    def read_file(self, path: str) -> bytes:
        self.meet_fault("read", path)
        return bytes(self._file(path).cache)

    def write_file(self, path: str, data: bytes, *, is_private: bool = False) -> None:
        temporary = f"{posixpath.normpath(path)}.tmp"
        self.meet_fault("write", temporary)
        node = Node(0)
        self._names[temporary] = node
        self.charge(node, len(data), temporary)
        node.cache = bytearray(data[: self.shorten(len(data))])
        self.meet_fault("sync", temporary)
        node.cache = bytearray(data)
        node.sync()
        self.rename(temporary, path)
        self.sync_directory(posixpath.dirname(posixpath.normpath(path)))

    def append_file(self, path: str, data: bytes, *, end: int | None = None) -> None:
        path = posixpath.normpath(path)
        self.meet_fault("write", path)
        if posixpath.dirname(path) not in self._names:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        node = self._names.get(path) or Node(0)
        self._names[path] = node
        if end is not None:
            node.cache = node.cache[:end]
        taken = data[: self.shorten(len(data))]
        self.charge(node, len(node.cache) + len(taken), path)
        node.cache = node.cache + taken
        if len(taken) < len(data):
            self.charge(node, len(node.cache) + len(data) - len(taken), path)
            node.cache = node.cache + data[len(taken) :]
        self.meet_fault("sync", path)
        node.sync()

    def space(self, path: str) -> DiskSpace:
        nodes = list(self._names.values())  # a copy, because other threads create and remove files meanwhile
        used = sum(node.reserved for node in {id(n): n for n in nodes if n is not None}.values())
        return DiskSpace(total=self.capacity, free=max(0, self.capacity - used))

    def lock(self, path: str) -> DiskLock:
        path = posixpath.normpath(path)
        if path in self.locked:
            raise BlockingIOError(errno.EAGAIN, "locked by another process", path)
        if path not in self._names:
            self._names[path] = Node(0)
        self._file(path).cache = bytearray(b"lock")
        self.locked.add(path)
        return FaultyLock(self, path)
