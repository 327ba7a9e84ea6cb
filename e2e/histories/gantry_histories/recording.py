"""The file of a run: its events, and the end with which they are compared. Both judges read it.

    {"event":"sent",...}                            the events of `events`, in the order in which they were recorded
    ...
    {"event":"contents","queue":["T",0],...}        one line for each queue that the last master has
    {"event":"ended","loss":"nothing",...}          the last line: the mode of the group, and what its members have

A file without the line ``ended`` is that of a run that did not complete. Its events can be read, and not be judged.
"""

from __future__ import annotations

import zlib
from base64 import b64decode, b64encode
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import IO, NamedTuple

import msgspec

from gantry_histories.events import Event, History, Queue
from gantry_histories.final import EpochStart, Final, LogSums, Piece, Stored
from gantry_histories.findings import Loss, Mode


class Contents(msgspec.Struct, frozen=True, kw_only=True, tag="contents", tag_field="event"):
    """The contents of a queue at the end of the run, as the last master serves them."""

    queue: Queue
    messages: Sequence[Stored]
    end: int
    """The offset of the next message."""


class CommittedOffset(NamedTuple):
    """The offset of a group in a queue, as the last master had stored it before the end."""

    client: str
    queue: Queue
    offset: int


class Ended(msgspec.Struct, frozen=True, kw_only=True, tag="ended", tag_field="event"):
    """The end of a run."""

    loss: Loss
    """What the mode may lose."""

    shows_acknowledged: bool
    """See ``Mode``, also for the next."""

    keeps_shown: bool
    epochs: Sequence[EpochStart]
    begin: int
    """The first offset of the log."""

    committed: Sequence[CommittedOffset]
    logs: Sequence[tuple[str, Sequence[Piece]]]
    """The checksums of each member's log."""


class Recording(NamedTuple):
    """The content of the file of a run that completed."""

    history: History
    final: Final
    mode: Mode


class IncompleteRecording(Exception):
    """The file has no end, because its run did not complete."""


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Event | Contents | Ended).decode


def write_recording(file: IO[bytes], recording: Recording) -> None:
    """Write a complete file, from a history that was not recorded in one."""
    history = recording.history
    events: list[Event] = [
        *history.sent.values(), *history.answered.values(), *history.shown, *history.reads, *history.offsets,
        *history.terms,
    ]  # fmt: skip
    for event in sorted(events, key=lambda one: one.at):  # stable: messages stay before the reply that had them
        file.write(_encode(event) + b"\n")
    write_end(file, recording.final, recording.mode)


def write_end(file: IO[bytes], final: Final, mode: Mode) -> None:
    """Write the end of a run after its events."""
    for queue in sorted({*final.queues, *final.ends}):
        messages = final.queues.get(queue, ())
        file.write(_encode(Contents(queue=queue, messages=messages, end=final.end(queue))) + b"\n")
    ended = Ended(
        loss=mode.loss, shows_acknowledged=mode.shows_acknowledged, keeps_shown=mode.keeps_shown,
        epochs=final.epochs, begin=final.begin,
        committed=[CommittedOffset(client, queue, offset) for (client, queue), offset in final.committed.items()],
        logs=[(log.member, log.pieces) for log in final.logs],
    )  # fmt: skip
    file.write(_encode(ended) + b"\n")
    file.flush()


def pack_recording(recording: Recording) -> str:
    """Return a complete file as a short text, for the output of a program."""
    file = BytesIO()
    write_recording(file, recording)
    return b64encode(zlib.compress(file.getvalue())).decode()


def unpack_recording(text: str, path: Path) -> Recording:
    """Write the file that was packed into a text, and read it."""
    path.write_bytes(zlib.decompress(b64decode(text)))
    return load_recording(path)


def load_history(path: Path) -> History:
    """Read the events of a run, complete or not. An incomplete last line is ignored."""
    return _load(path)[0]


def load_recording(path: Path) -> Recording:
    """Read the file of a complete run. Raises ``IncompleteRecording``."""
    history, contents, ended = _load(path)
    if ended is None:
        raise IncompleteRecording(f"{path} ends without the line 'ended': its run did not complete, run it again")
    final = Final(
        queues={one.queue: one.messages for one in contents},
        epochs=tuple(ended.epochs),
        logs=[LogSums(member, pieces) for member, pieces in ended.logs],
        committed={(one.client, one.queue): one.offset for one in ended.committed},
        begin=ended.begin,
        ends={one.queue: one.end for one in contents},
    )
    return Recording(history, final, Mode(ended.loss, ended.shows_acknowledged, ended.keeps_shown))


def _load(path: Path) -> tuple[History, list[Contents], Ended | None]:
    history, contents, ended = History(), list[Contents](), None
    for line in path.read_bytes().splitlines(keepends=True):
        if not line.endswith(b"\n"):
            continue
        match _decode(line):
            case Contents() as one:
                contents.append(one)
            case Ended() as one:
                ended = one
            case event:
                history.add(event)
    return history, contents, ended
