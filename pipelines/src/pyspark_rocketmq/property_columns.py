"""Properties of many messages at once: single values as columns, and all of them as a column of maps.

    name 0x01 value 0x02 name 0x01 value 0x02      of one message, directly followed by those of the next

Nearly all properties are well-formed: 0x01 and 0x02 alternate, no name is empty or occurs twice, everything is UTF-8.
Then names and values are cut out by the positions of these two bytes, without a loop. If a single message of the batch
is not well-formed, the whole batch goes through `gantry_wire.properties`, which defines what such properties mean; both
ways give the same result.

A record's own checksum (`__CRC32#`) is a property for RocketMQ, but no sender wrote it: it is left out of the maps.
"""

from __future__ import annotations

from typing import Any, Final, final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gantry_wire.properties import RECORD_CRC, parse_properties
from pyspark_rocketmq.replica_view import Bytes, Numbers

_BITS_MAX: Final = 40
"""Up to this many distinct names have a bit each; sums of such bits cannot overflow."""
_MAP: Final = pa.map_(pa.string(), pa.string())


def indices(values: npt.NDArray[Any], missing: npt.NDArray[np.bool_] | None = None) -> Any:
    """Return positions in another column, for `take`; null where `missing`."""
    return pa.array(values, pa.int64(), mask=missing)


def cut_out(data: Bytes, starts: Numbers, ends: Numbers) -> Any:
    """Return the bytes `[start, end)` of each row as a column of large binaries; `starts` must be ascending."""
    if not len(starts):
        return pa.array([], pa.large_binary())
    # The layout is [gap, value, gap, value, ...]: Arrow's compiled `take` copies every second entry.
    offsets = np.empty(2 * len(starts) + 1, dtype=np.int64)
    offsets[0] = 0
    offsets[1::2], offsets[2::2] = starts, ends
    buffers = [None, pa.py_buffer(offsets.data), pa.py_buffer(data.data)]
    whole = pa.LargeBinaryArray.from_buffers(pa.large_binary(), 2 * len(starts), buffers)
    return whole.take(indices(np.arange(1, 2 * len(starts), 2)))


@final
class PropertyColumns:
    """The properties of some messages; those of each message lie at `[start, end)` of the data."""

    def __init__(self, data: Bytes, starts: Numbers, ends: Numbers) -> None:
        self._count = len(starts)
        packed = cut_out(data, starts, ends)
        self._offsets = (
            np.frombuffer(packed.buffers()[1], np.int64, self._count + 1) if self._count else np.zeros(1, int)
        )
        size = int(self._offsets[-1])
        self._bytes: Bytes = np.frombuffer(packed.buffers()[2], np.uint8, size) if size else np.empty(0, np.uint8)
        self._packed = packed
        self._parsed: list[dict[str, str]] | None = None
        if not self._parse_fast():
            self._parsed = [parse_properties(one.decode("utf-8", "replace")) for one in packed.to_pylist()]

    def __repr__(self) -> str:
        return f"<PropertyColumns {self._count} {'cut' if self._parsed is None else 'parsed'}>"

    @property
    def is_fast(self) -> bool:
        """Whether all properties were well-formed and cut out without a loop."""
        return self._parsed is None

    def values(self, name: str) -> Any:
        """Return one property as a column of strings; null where a message does not have it."""
        if self._parsed is not None:
            return pa.array([one.get(name) for one in self._parsed], pa.string())
        found = np.full(self._count, -1, dtype=np.int64)
        code = self._names.index(name) if name in self._names else -1
        if code >= 0:
            pairs = np.flatnonzero(self._codes == code)
            found[self._rows[pairs]] = pairs
        return self._texts.take(indices(found, found < 0)) if self._pairs else pa.nulls(self._count, pa.string())

    def maps(self) -> Any:
        """Return all properties except the record's checksum, as a column of maps."""
        if self._parsed is not None:
            rows = [[pair for pair in one.items() if pair[0] != RECORD_CRC] for one in self._parsed]
            return pa.array(rows, _MAP)
        code = self._names.index(RECORD_CRC) if RECORD_CRC in self._names else -1
        kept = self._codes != code
        offsets = np.concatenate(([0], np.cumsum(kept)))[self._pair_offsets].astype(np.int32)
        keys = self._names_column.take(indices(self._codes[kept]))
        ends: Any = pa.array(offsets, pa.int32())
        return pa.MapArray.from_arrays(ends, keys, self._texts.take(indices(np.flatnonzero(kept))))

    def _parse_fast(self) -> bool:
        """Find all pairs without a loop; return False if a message is not well-formed."""
        data, offsets = self._bytes, self._offsets
        filled = offsets[1:] > offsets[:-1]
        unterminated = filled.copy()
        unterminated[filled] = data[offsets[1:][filled] - 1] != 2
        if unterminated.any():  # RocketMQ's own producers leave out the last 0x02
            data = np.insert(data, offsets[1:][unterminated], 2)
            offsets = offsets + np.concatenate(([0], np.cumsum(unterminated)))
        marks = np.flatnonzero((data - np.uint8(1)) < 2)
        kinds = data[marks]
        if len(marks) % 2 or (kinds[0::2] != 1).any() or (kinds[1::2] != 2).any():
            return False
        name_ends, value_ends = marks[0::2], marks[1::2]
        name_starts = np.concatenate(([0], value_ends[:-1] + 1)) if len(marks) else marks
        if (name_ends == name_starts).any():
            return False
        self._pairs = len(name_ends)
        self._pair_offsets = np.searchsorted(name_starts, offsets)
        counts = np.diff(self._pair_offsets)
        self._rows = np.repeat(np.arange(self._count), counts)
        names = cut_out(data, name_starts, name_ends).dictionary_encode()
        self._codes: npt.NDArray[Any] = names.indices.to_numpy()
        try:
            self._names_column = names.dictionary.cast(pa.string())
            self._texts = cut_out(data, name_ends + 1, value_ends).cast(pa.string())
        except pa.ArrowInvalid:
            return False
        self._names: list[str] = self._names_column.to_pylist()
        return not self._has_duplicates(counts)

    def _has_duplicates(self, counts: Numbers) -> bool:
        """Return whether any message has two properties of the same name."""
        if len(self._names) > _BITS_MAX:
            return len(np.unique(self._rows * len(self._names) + self._codes)) != self._pairs
        firsts = self._pair_offsets[:-1][counts > 0]
        if not len(firsts):
            return False
        bits = np.left_shift(np.uint64(1), self._codes.astype(np.uint64))
        return bool((np.add.reduceat(bits, firsts) != np.bitwise_or.reduceat(bits, firsts)).any())
