"""Where files begin and end: on the lines of a grid over each queue's offsets, and where a batch ended.

    offsets    0 ......... 100,000 ......... 200,000 .. 237,000
    files      [  one file  )[   one file     )[ piece )            a run that ended at 237,000
                                               [ piece )[   rest   )  and its successor

The grid depends on nothing but offsets, so whatever cores, limits and sizes a run has, it makes the same names. The
ends of batches are laid on lines as well, but for the last one, which goes as far as the log: its successor begins
there and ends on the next line. Which ranges a batch has is in Spark's own record of it before anything is written,
so a batch that is done again has them again. Compaction joins the pieces of a day that is over.

Pure: no file, no clock.
"""

from collections.abc import Iterator, Mapping
from typing import Final

from pyspark_rocketmq.model import QueueId, QueueRange

GRID_ROWS: Final = 100_000
"""Of messages of 1 KiB a file of some 40 MB, and a task of some seconds."""


def pieces(a_range: QueueRange, grid_rows: int) -> Iterator[QueueRange]:
    """What a range is cut into: nothing lies on both sides of a line."""
    begin = a_range.begin
    while begin < a_range.end:
        end = min(a_range.end, line_after(begin, grid_rows))
        yield QueueRange(a_range.queue, begin, end)
        begin = end


def line_after(offset: int, grid_rows: int) -> int:
    """The first line beyond an offset."""
    return (offset // grid_rows + 1) * grid_rows


def admit(
    starts: Mapping[QueueId, int], ends: Mapping[QueueId, int], rows_max: int | None, grid_rows: int
) -> dict[QueueId, int]:
    """How far a batch goes that begins at `starts`, where the log goes to `ends`.

    Cells are admitted whole, one of each queue in turn, until there are `rows_max` rows; at least one. Whose turn is
    first moves with what was read so far, so that a short queue beside a long one is never left behind for good.
    """
    reached = {queue: starts.get(queue, end) for queue, end in ends.items()}
    order = sorted(ends)
    first = sum(reached.values()) // grid_rows % len(order) if order else 0
    order = order[first:] + order[:first]
    rows = 0
    while order:
        for queue in tuple(order):
            if reached[queue] >= ends[queue]:
                order.remove(queue)
                continue
            if rows_max is not None and rows >= rows_max:
                return reached
            end = min(ends[queue], line_after(reached[queue], grid_rows))
            rows += end - reached[queue]
            reached[queue] = end
    return reached
