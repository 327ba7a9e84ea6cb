"""A fuzzer that finds nothing must be able to find something: servers with one fault each, and the finding it makes."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from fuzz.aftermath import gaps, stray_files
from fuzz.campaign import alarms_in
from fuzz.mutate import Mutator
from fuzz.pools import ESCAPE_MARK, Places
from fuzz.session import Session
from fuzz.tally import Tally

from gantry_wire import Command, RequestCode
from gantry_wire.command import decode_command
from gantry_wire.errors import RemoteProtocolError
from gantry_wire.frame import FrameReader
from gantry_wire.message import StoredMessage, encode_record

Answer = Callable[[Command], bytes]


def honest(command: Command) -> bytes:
    return b"" if command.is_oneway or command.is_reply else command.reply().encode()


def answers_twice(command: Command) -> bytes:
    return honest(command) * (2 if command.opaque == 7 else 1)


def forgets(command: Command) -> bytes:
    return b"" if command.opaque == 7 else honest(command)


def answers_one_way_requests(command: Command) -> bytes:
    return command.reply().encode()


def talks_nonsense(command: Command) -> bytes:
    return b"\x00\x00\x00\x08\x00\x00\x00\x04oops" if command.opaque == 7 else honest(command)


@asynccontextmanager
async def server(answer: Answer, *, stays_open: bool = False, hangs_up: bool = False) -> AsyncIterator[int]:
    """A server that answers by `answer`; the port it listens on."""

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


async def findings_of(port: int, sessions: int = 12) -> list[str]:
    """What a few sessions of simple requests find at a server."""
    tally = Tally("stub")
    for number in range(sessions):
        rng = random.Random(f"findings/{number}")
        session = Session(number, rng, Mutator(rng, Places(), {}), tally)
        await session.run(port, [int(RequestCode.GET_MAX_OFFSET), int(RequestCode.HEART_BEAT)], [1.0, 1.0])
    return [str(finding) for finding in tally.findings]


async def test_an_honest_server_has_no_findings() -> None:
    """Everything owed was given, and bad frames ended their connections: nothing to report."""
    async with server(honest) as port:
        assert await findings_of(port) == []


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (answers_twice, "nobody asked for"),
        (answers_one_way_requests, "nobody asked for"),
        (talks_nonsense, "no reply"),
    ],
)
async def test_a_server_that_says_too_much_is_found(answer: Answer, text: str) -> None:
    """A second answer, an answer to a one-way request, bytes that are no reply."""
    async with server(answer) as port:
        found = await findings_of(port, sessions=40)

    assert any(text in finding for finding in found)


async def test_a_server_that_forgets_an_answer_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The missing answer's frame is named."""
    monkeypatch.setattr("fuzz.session.ANSWER_TIMEOUT_S", 0.2)
    async with server(forgets) as port:
        found = await findings_of(port)

    assert any("missing" in finding and "opaque 7" in finding for finding in found)


async def test_a_server_that_hangs_up_on_good_frames_is_found() -> None:
    """A closed connection without a broken protocol is a finding."""
    async with server(honest, hangs_up=True) as port:
        found = await findings_of(port)

    assert any("closed a connection that kept the protocol" in finding for finding in found)


async def test_a_server_that_lives_with_bad_frames_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a frame that breaks the protocol nothing may be believed, so the connection must end."""
    monkeypatch.setattr("fuzz.session.CLOSE_TIMEOUT_S", 0.2)
    async with server(honest, stays_open=True) as port:
        found = await findings_of(port)

    assert any("stays open" in finding for finding in found)


def test_tracebacks_in_a_log_are_alarms_and_everyday_lines_are_not() -> None:
    """A closed connection is news; a handler that failed, a traceback, a lost exception are findings, each once."""
    quiet = ["2026 INFO connection closed peer='x' reason='broke the protocol'"] * 3
    failed = ["2026 ERROR a handler failed code=11", "Traceback (most recent call last):", "  File x", "KeyError: 1"]

    assert alarms_in(quiet) == []
    assert len(alarms_in([*quiet, *failed, *quiet, *failed])) == 1
    assert "KeyError: 1" in alarms_in([*quiet, *failed, *quiet])[0]


def test_files_out_of_place_are_found(tmp_path: Path) -> None:
    """Beside the store, or in a queue folder that no legal name could have made."""
    (tmp_path / "store" / "consumequeue" / "Fine" / "0").mkdir(parents=True)
    assert stray_files(tmp_path, []) == []

    (tmp_path / ESCAPE_MARK).mkdir()
    (tmp_path / "store" / "consumequeue" / "not.legal").mkdir()

    found = stray_files(tmp_path, [])
    assert any(path.endswith(ESCAPE_MARK) for path in found)
    assert any(path.endswith("not.legal") for path in found)


def test_a_gap_in_a_queue_is_found(tmp_path: Path) -> None:
    """Offsets 0 and 2 without 1; the same in a deleted topic is no fault."""
    folder = tmp_path / "commitlog"
    folder.mkdir()
    data = b""
    for offset in (0, 2):
        message = StoredMessage(topic="Topic", queue_id=0, body=b"x", queue_offset=offset, physical_offset=len(data))
        data += encode_record(message)
    (folder / f"{0:020d}").write_bytes(data + bytes(4096 - len(data)))

    assert len(gaps(tmp_path, set())[1]) == 1
    assert gaps(tmp_path, {"Topic"}) == ({}, [])
