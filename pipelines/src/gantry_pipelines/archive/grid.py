"""The grid that cuts ranges of offsets into files: they end on its lines, where a batch ends, or where the day changes.

    offsets    0 ......... 100,000 ......... 200,000 .. 237,000
    files      [  one file  )[   one file     )[ piece )            a run that ended at 237,000
                                               [ piece )[   rest   )  the next run

The grid depends on offsets only, so that runs with different cores, limits and sizes produce the same file names. The
ends of batches are aligned to grid lines as well, except in a queue that a batch reads to its end: the next batch
begins there. Spark's checkpoint has the ranges of a batch before anything is written, so a repeated batch has the same
ranges. Compaction merges the pieces of a closed day.

The functions are pure: they use no file and no clock.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from pyspark_rocketmq.model import QueueRange

GRID_ROWS: Final = 100_000
"""Messages per file. With messages of 1 KiB this makes files of about 40 MB, and tasks of some seconds."""


def split_on_grid(queue_range: QueueRange, grid_rows: int) -> Iterator[QueueRange]:
    """Split a range at the grid lines, so that no piece crosses a line."""
    begin = queue_range.begin
    while begin < queue_range.end:
        end = min(queue_range.end, line_after(begin, grid_rows))
        yield QueueRange(queue_range.queue, begin, end)
        begin = end


def line_after(offset: int, grid_rows: int) -> int:
    """Return the first grid line after an offset."""
    return (offset // grid_rows + 1) * grid_rows


def align_to_grid(limited: Sequence[QueueRange], whole: Sequence[QueueRange], grid_rows: int) -> list[QueueRange]:
    """Align the ends of a limited batch to grid lines, unless the log ends there.

    The ranges `limited` are prefixes of those of `whole`, in the same order. An end without a line before it is moved
    to the next line; if that would make the batch exceed its limit, the queue waits for a later batch. Queues with the
    fewest rows in the batch come first, so that none starves, then those with the most rows left. At least one queue
    makes progress.
    """
    ends = {one.queue: _aligned_end(part, one, grid_rows) for part, one in zip(limited, whole, strict=True)}
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


def _aligned_end(limited: QueueRange, whole: QueueRange, grid_rows: int) -> int:
    if limited.count == 0 or limited.end == whole.end:
        return limited.end
    line = limited.end // grid_rows * grid_rows
    return line if line > limited.begin else min(whole.end, line_after(limited.begin, grid_rows))
