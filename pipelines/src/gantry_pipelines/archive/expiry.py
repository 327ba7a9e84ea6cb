"""Deleting what has been kept for long enough.

A day goes as a whole: when all its files are older than the retention, of every topic by itself. One record takes the
place of theirs and says that these ranges expired; so ranges go on to tile, and a run whose checkpoint is lost still
knows where the archive ends. Then the files are deleted; after a kill the next start does it."""

import secrets
from collections.abc import Iterator
from typing import Final

from gantry_pipelines.archive import points
from gantry_pipelines.archive.layout import day_end_ms, quoted
from gantry_pipelines.archive.manifest import ArchivedFile, Kind, Record, joined
from gantry_pipelines.archive.writer import ArchiveWriter

DAY_MS: Final = 24 * 3600 * 1000


def expire(writer: ArchiveWriter, days: int, now_ms: int) -> Iterator[tuple[str, str, int]]:
    """Delete days that ended more than so many days ago; topic, day and number of files of each."""
    found: dict[tuple[str, str], list[ArchivedFile]] = {}
    for file in writer.manifest.data():
        if now_ms >= day_end_ms(file.place.day, writer.format.time_zone) + days * DAY_MS:
            found.setdefault((file.range.queue.topic, file.place.day), []).append(file)
    for (topic, day), files in sorted(found.items()):
        _expire_day(writer, topic, day, files)
        yield topic, day, len(files)


def _expire_day(writer: ArchiveWriter, topic: str, day: str, files: list[ArchivedFile]) -> None:
    """What expired before is in the new record as well, so there is one such record of a topic."""
    places = {file.place for file in files}
    name = f"{quoted(topic)}/expired~{day}~{secrets.token_hex(4)}.json"  # a day that comes late expires once more
    replaced, gone = [], list(files)
    for record in writer.manifest.live():
        of_topic = bool(record.files) and record.files[0].range.queue.topic == topic
        if of_topic and all(file.kind is Kind.EXPIRED for file in record.files):
            replaced.append(record.name)
            gone += record.files
        elif any(file.place in places for file in record.files):
            assert all(file.place in places for file in record.files), "records of data have files of one day"
            replaced.append(record.name)
    writer.enter(Record(name, tuple(joined(gone, Kind.EXPIRED)), tuple(replaced)))
    points.reached(points.MID_EXPIRY)
    for file in files:
        writer.storage.remove(file.place.path)
    writer.forget_replaced()
