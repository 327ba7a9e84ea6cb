"""How much of what is there one batch takes: each queue its share, by how much waits in it.

Pure, and a function of its arguments alone: the same backlog gives the same batch. Every queue that has something
gets at least one message, as long as there are as many messages to give, so a quiet queue beside a busy one never
starves; with fewer messages than queues those with the longest backlog come first, and the others' turn comes as
theirs grow shorter.
"""

from collections.abc import Mapping, Sequence

from pyspark_rocketmq.model import QueueId, QueueRange


def share(volumes: Sequence[int], total: int) -> list[int]:
    """`total` given out over `volumes`: never more than there is, at least one to each that has something."""
    assert total >= 0 and all(volume >= 0 for volume in volumes), (volumes, total)
    if sum(volumes) <= total:
        return list(volumes)
    wanting = [number for number, volume in enumerate(volumes) if volume]
    parts = [0] * len(volumes)
    if total <= len(wanting):
        for number in sorted(wanting, key=lambda one: (-volumes[one], one))[:total]:
            parts[number] = 1
        return parts
    rest, left = total - len(wanting), sum(volumes) - len(wanting)
    remainders: list[tuple[int, int]] = []
    for number in wanting:
        whole, remainder = divmod(rest * (volumes[number] - 1), left)
        parts[number] = 1 + whole
        remainders.append((-remainder, number))
    for _, number in sorted(remainders)[: total - sum(parts)]:
        parts[number] += 1
    return parts


def limited_rows(ranges: Sequence[QueueRange], rows_max: int) -> list[QueueRange]:
    """The beginnings of these ranges with `rows_max` messages in all."""
    parts = share([one.count for one in ranges], rows_max)
    return [QueueRange(one.queue, one.begin, one.begin + part) for one, part in zip(ranges, parts, strict=True)]


def limited_bytes(ranges: Sequence[QueueRange], sizes: Mapping[QueueId, int], bytes_max: int) -> list[QueueRange]:
    """The beginnings of these ranges with about `bytes_max` in all; `sizes` are those of a queue's usual message.

    A message is never cut, and each queue gives at least one, so the sum may be larger by a message for each queue.
    """
    usual = [max(1, sizes.get(one.queue, 1)) for one in ranges]
    parts = share([one.count * size for one, size in zip(ranges, usual, strict=True)], bytes_max)
    limited: list[QueueRange] = []
    for one, size, part in zip(ranges, usual, parts, strict=True):
        count = min(one.count, max(1, part // size) if part else 0)
        limited.append(QueueRange(one.queue, one.begin, one.begin + count))
    return limited
