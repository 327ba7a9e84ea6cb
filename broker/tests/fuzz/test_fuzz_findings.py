"""The fuzzer finds faults: servers and files with one fault each, and the findings that they cause."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from fuzz.campaign import alarms_in
from fuzz.checks_after_run import gaps, stray_files
from fuzz.mutate import Mutator
from fuzz.pools import ESCAPE_MARK, KnownMessages
from fuzz.session import Session
from fuzz.tally import Tally

from gantry_wire import Command, RequestCode
from gantry_wire.command import decode_command
from gantry_wire.errors import RemoteProtocolError
from gantry_wire.frame import FrameReader
from gantry_wire.message import StoredMessage, encode_record

Answer = Callable[[Command], bytes]


def correct(command: Command) -> bytes:
    return b"" if command.is_oneway or command.is_reply else command.reply().encode()


def answers_twice(command: Command) -> bytes:
    return correct(command) * (2 if command.opaque == 7 else 1)


def forgets(command: Command) -> bytes:
    return b"" if command.opaque == 7 else correct(command)


def answers_one_way_requests(command: Command) -> bytes:
    return command.reply().encode()


def talks_nonsense(command: Command) -> bytes:
    return b"\x00\x00\x00\x08\x00\x00\x00\x04oops" if command.opaque == 7 else correct(command)


@asynccontextmanager
async def server(answer: Answer, *, stays_open: bool = False, hangs_up: bool = False) -> AsyncIterator[int]:
    """Run a server that replies by `answer`, and yield its port."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        frames = FrameReader()
        try:
            while data := await reader.read(65536):
                for frame in frames.feed(data):
                    command = decode_command(frame)
                    if hangs_up and command.opaque == 7:
                        return
                    writer.write(answer(command))
        except RemoteProtocolError:
            while stays_open and await reader.read(65536):
                pass
        except ConnectionResetError:
            pass
        finally:
            writer.close()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with listening:
        yield listening.sockets[0].getsockname()[1]


async def session_findings(port: int, sessions: int = 12) -> list[str]:
    """Return the findings of a few sessions of simple requests at a server."""
    tally = Tally("stub")
    for number in range(sessions):
        rng = random.Random(f"findings/{number}")
        session = Session(number, rng, Mutator(rng, KnownMessages(), {}), tally)
        await session.run(port, [int(RequestCode.GET_MAX_OFFSET), int(RequestCode.HEART_BEAT)], [1.0, 1.0])
    return [str(finding) for finding in tally.findings]


async def test_correct_server_has_no_findings() -> None:
    """A server that sends all due replies and closes on bad frames causes no finding."""
    async with server(correct) as port:
        assert await session_findings(port) == []


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (answers_twice, "without a request"),
        (answers_one_way_requests, "without a request"),
        (talks_nonsense, "an invalid reply"),
    ],
)
async def test_superfluous_reply_is_found(answer: Answer, text: str) -> None:
    """A second reply, a reply to a one-way request, and bytes that are no reply are findings."""
    async with server(answer) as port:
        found = await session_findings(port, sessions=40)

    assert any(text in finding for finding in found)


async def test_missing_reply_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The finding names the frame without a reply."""
    monkeypatch.setattr("fuzz.session.ANSWER_TIMEOUT_S", 0.2)
    async with server(forgets) as port:
        found = await session_findings(port)

    assert any("missing" in finding and "opaque 7" in finding for finding in found)


async def test_close_after_valid_frames_is_found() -> None:
    """A closed connection without a broken protocol is a finding."""
    async with server(correct, hangs_up=True) as port:
        found = await session_findings(port)

    assert any("closed a connection that kept the protocol" in finding for finding in found)


async def test_open_connection_after_a_bad_frame_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a frame that breaks the protocol the rest cannot be trusted, so the connection must end."""
    monkeypatch.setattr("fuzz.session.CLOSE_TIMEOUT_S", 0.2)
    async with server(correct, stays_open=True) as port:
        found = await session_findings(port)

    assert any("stays open" in finding for finding in found)


def test_tracebacks_in_a_log_are_alarms_and_ordinary_lines_are_not() -> None:
    """A closed connection is ordinary; a failed handler, a traceback and a lost exception are findings, each once."""
    quiet = ["2026 INFO connection closed peer='x' reason='broke the protocol'"] * 3
    failed = [
        "2026 ERROR unexpected error while handling request code=11",
        "Traceback (most recent call last):",
        "  File x",
        "KeyError: 1",
    ]

    assert alarms_in(quiet) == []
    assert len(alarms_in([*quiet, *failed, *quiet, *failed])) == 1
    assert "KeyError: 1" in alarms_in([*quiet, *failed, *quiet])[0]


def test_stray_files_are_found(tmp_path: Path) -> None:
    """Files beside the store, or in a queue folder of an illegal name, are findings."""
    (tmp_path / "store" / "consumequeue" / "Fine" / "0").mkdir(parents=True)
    assert stray_files(tmp_path, []) == []

    (tmp_path / ESCAPE_MARK).mkdir()
    (tmp_path / "store" / "consumequeue" / "not.legal").mkdir()

    found = stray_files(tmp_path, [])
    assert any(path.endswith(ESCAPE_MARK) for path in found)
    assert any(path.endswith("not.legal") for path in found)


def test_a_gap_in_a_queue_is_found(tmp_path: Path) -> None:
    """Offsets 0 and 2 without 1 are a finding; the same in a deleted topic is not."""
    folder = tmp_path / "commitlog"
    folder.mkdir()
    data = b""
    for offset in (0, 2):
        message = StoredMessage(topic="Topic", queue_id=0, body=b"x", queue_offset=offset, physical_offset=len(data))
        data += encode_record(message)
    (folder / f"{0:020d}").write_bytes(data + bytes(4096 - len(data)))

    assert len(gaps(tmp_path, set())[1]) == 1
    assert gaps(tmp_path, {"Topic"}) == ({}, [])
