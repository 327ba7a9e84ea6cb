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

from collections.abc import Iterator, Sequence
from typing import Final

from pyspark_rocketmq.model import QueueRange

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


def laid(limited: Sequence[QueueRange], whole: Sequence[QueueRange], grid_rows: int) -> list[QueueRange]:
    """What a batch takes: the ends that a limit gave it, laid on lines, where the log goes on behind them.

    `limited` are beginnings of `whole`, in the same order. An end that has no line before it is moved to the one behind
    it; where that would make the batch larger than the limit, queues wait for a later one. Those with the least to take
    come first, so none waits for good, then those with the most behind them. At least one queue takes something.
    """
    ends = {one.queue: _laid_end(part, one, grid_rows) for part, one in zip(limited, whole, strict=True)}
    rows_max = sum(part.count for part in limited)
    order = sorted(whole, key=lambda one: (ends[one.queue] - one.begin, -one.count, one.queue))
    rows = 0
    for one in order:
        need = ends[one.queue] - one.begin
        if rows and rows + need > rows_max:
            ends[one.queue] = one.begin
        else:
            rows += need
    return [QueueRange(one.queue, one.begin, ends[one.queue]) for one in whole]


def _laid_end(limited: QueueRange, whole: QueueRange, grid_rows: int) -> int:
    if limited.count == 0 or limited.end == whole.end:
        return limited.end
    line = limited.end // grid_rows * grid_rows
    return line if line > limited.begin else min(whole.end, line_after(limited.begin, grid_rows))
