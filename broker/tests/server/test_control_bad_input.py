"""Arbitrary input over the control socket: the broker survives, executes only valid orders, and leaks nothing."""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gantry_broker.control.server import ControlServer
from gantry_status.order_client import OrderClient
from gantry_status.orders import (
    LINE_BYTES_MAX,
    BadLine,
    Drain,
    Failed,
    Fence,
    Flush,
    Follow,
    HaRole,
    HaStatus,
    Lease,
    OrderUnanswered,
    Promised,
    PromiseRequest,
    Promote,
    Refused,
    SlaveState,
    StatusRequest,
    decode_answer,
    decode_order,
    encode,
)
from gantry_testing.fake_group import FakeGroup, FakeMember
from gantry_testing.slowness import patience

EPOCHS = st.integers(1, (1 << 62) - 1)
NUMBERS = st.integers(0, (1 << 31) - 1)
MILLISECONDS = st.integers(0, 24 * 3_600_000)
NAMES = st.text(max_size=300)
ORDERS = st.one_of(
    st.builds(StatusRequest),
    st.builds(PromiseRequest, epoch=EPOCHS, to=NAMES),
    st.builds(Promote, epoch=EPOCHS, electable=st.lists(NUMBERS, max_size=64), force=st.booleans()),
    st.builds(Follow, epoch=EPOCHS, master=st.text(min_size=1, max_size=300)),
    st.builds(Fence, epoch=EPOCHS),
    st.builds(Drain, timeout_ms=MILLISECONDS),
    st.builds(Lease, renewed_ms=EPOCHS, duration_ms=MILLISECONDS),
    st.builds(Flush),
)
OFFSETS = st.integers(-1, (1 << 63) - 1)
ANSWERS = st.one_of(
    st.builds(
        HaStatus,
        role=st.sampled_from(HaRole),
        epoch=EPOCHS,
        identity=NAMES,
        wrote=OFFSETS,
        electable=st.lists(NUMBERS, max_size=5).map(tuple),
        problem=NAMES,
        slaves=st.lists(st.builds(SlaveState, identity=NAMES, number=NUMBERS, received=OFFSETS), max_size=3).map(tuple),
    ),
    st.builds(Promised, epoch=EPOCHS, identity=NAMES, end=OFFSETS),
    st.builds(Refused, reason=NAMES),
    st.builds(Failed, reason=NAMES),
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda some: st.lists(some, max_size=4) | st.dictionaries(st.text(max_size=10), some, max_size=4),
    max_leaves=10,
)
FIELDS = st.sampled_from(["order", "epoch", "to", "electable", "force", "master", "timeout_ms", "duration_ms"])
TAGS = st.sampled_from(["status", "promise", "promote", "follow", "fence", "drain", "lease", "flush", "", "stop"])


def line_of(value: object) -> bytes:
    return json.dumps(value).encode() + b"\n"


def change_byte(line: bytes, position: int, byte: int) -> bytes:
    """Return a line with one byte changed, so that it mostly still resembles an order."""
    place = position % len(line)
    return line[:place] + bytes([byte]) + line[place + 1 :]


LINES = st.one_of(
    st.binary(max_size=200),
    JSON.map(line_of),
    st.dictionaries(FIELDS, JSON | TAGS, max_size=5).map(line_of),
    ORDERS.map(encode),
    st.builds(change_byte, ORDERS.map(encode), st.integers(0, 1000), st.integers(0, 255)),
)


@given(ORDERS)
def test_order_encoding_round_trip(order: PromiseRequest) -> None:
    """An encoded order decodes to the same order, on one line."""
    line = encode(order)

    assert decode_order(line) == order
    assert line.count(b"\n") == 1 and line.endswith(b"\n")


@given(ANSWERS)
def test_answer_encoding_round_trip(answer: HaStatus) -> None:
    """An encoded answer decodes to the same answer, on one line."""
    line = encode(answer)

    assert decode_answer(line) == answer
    assert line.count(b"\n") == 1 and line.endswith(b"\n")


@settings(max_examples=500)
@given(LINES)
def test_any_line_is_an_order_or_a_bad_line(line: bytes) -> None:
    """No other result is possible, and a decoded order is within its limits."""
    try:
        order = decode_order(line)
    except BadLine as error:
        assert str(error).startswith("invalid order: ")
    else:
        assert decode_order(encode(order)) == order


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"", "truncated"),
        (b"[]", "Expected `object`"),
        (b"{}", "missing required field `order`"),
        (b'{"order":"stop"}', "Invalid value 'stop'"),
        (b'{"order":"promise"}', "missing required field `epoch`"),
        (b'{"order":"promise","epoch":0}', ">= 1"),
        (b'{"order":"promise","epoch":-7}', ">= 1"),
        (b'{"order":"promise","epoch":1e400}', "out of range"),
        (b'{"order":"promise","epoch":4611686018427387904}', "<= 4611686018427387903"),
        (b'{"order":"promise","epoch":"7"}', "Expected `int`"),
        (b'{"order":"promise","epoch":7,"to":"' + b"x" * 301 + b'"}', "length <= 300"),
        (b'{"order":"promote","epoch":7,"electable":[-1]}', ">= 0"),
        (b'{"order":"promote","epoch":7,"electable":[' + b"1," * 64 + b"1]}", "length <= 64"),
        (b'{"order":"follow","epoch":7,"master":""}', "length >= 1"),
        (b'{"order":"drain","timeout_ms":-1}', ">= 0"),
        (b'{"order":"fence","epoch":7,"hard":true}', "unknown field `hard`"),
        (b'{"order":"status"} {"order":"status"}', "malformed"),
        (b'{"order":"status\xff"}', "utf-8"),
        (b"[" * 100_000, "invalid order"),
    ],
    ids=range(19),
)
def test_error_describes_what_is_wrong_with_a_line(line: bytes, reason: str) -> None:
    """The author of the tool that sent it has to find the mistake."""
    with pytest.raises(BadLine, match=reason):
        decode_order(line)


def test_answer_of_newer_broker_is_understood() -> None:
    """It only has additional fields, so an older tool still works."""
    line = encode(HaStatus(role=HaRole.SLAVE, wrote=7))
    newer = line.replace(b'"wrote":7', b'"wrote":7,"moon":"full"')

    assert newer != line
    assert decode_answer(newer) == HaStatus(role=HaRole.SLAVE, wrote=7)


def run_with_server(talk: Callable[[ControlServer, FakeMember], object]) -> None:
    """Run a conversation with a separate server, and check that nothing of it is left."""

    async def run() -> None:
        with tempfile.TemporaryDirectory() as directory:
            member = FakeGroup([1, 2], acks_needed=1).members[2]
            server = ControlServer(f"{directory}/control.sock", member, transfer_s=5.0)
            await server.start()
            try:
                coroutine = talk(server, member)
                assert asyncio.iscoroutine(coroutine)
                await coroutine
                async with OrderClient(server.path, answer_timeout_s=60) as client:
                    assert (await client.call(StatusRequest())).broker_id == 2, "the server has ended"
                deadline = asyncio.get_running_loop().time() + 60
                while server.connections:
                    assert asyncio.get_running_loop().time() < deadline, "a connection is left"
                    await asyncio.sleep(0.001)
            finally:
                await server.close()
            assert os.listdir(directory) == []

    asyncio.run(run())


async def send_all(server: ControlServer, data: bytes) -> bytes:
    """Send all data, close the sending side, and return what is received."""
    reader, writer = await asyncio.open_unix_connection(server.path, limit=4 * LINE_BYTES_MAX)
    try:
        writer.write(data)
        writer.write_eof()
        return await asyncio.wait_for(reader.read(), 60)
    except (BrokenPipeError, ConnectionResetError):
        return b""  # it has closed before it was sent everything
    finally:
        writer.transport.abort()


@settings(max_examples=150)
@given(st.lists(LINES, max_size=8))
def test_no_conversation_ends_the_server(lines: list[bytes]) -> None:
    """Valid lines are answered in turn; the first invalid line is answered, and is the last."""

    async def talk(server: ControlServer, member: FakeMember) -> None:
        sent = b"".join(lines).split(b"\n")
        answers = (await send_all(server, b"".join(lines))).splitlines(keepends=True)

        whole = sent[:-1]
        good = 0
        for line in whole:
            try:
                decode_order(line + b"\n")
            except BadLine:
                break
            good += 1
        decoded = [decode_answer(answer) for answer in answers]
        if good == len(whole):
            assert len(decoded) == good
        elif decoded:  # unless it was disconnected for sending too much
            assert len(decoded) == good + 1
            assert isinstance(decoded[-1], Failed)

    run_with_server(talk)


def test_too_long_line_is_refused() -> None:
    """The limit is one MiB, and the error names it."""

    async def talk(server: ControlServer, member: FakeMember) -> None:
        reader, writer = await asyncio.open_unix_connection(server.path)
        writer.write(b" " * (LINE_BYTES_MAX + 70_000))
        answer = decode_answer(await asyncio.wait_for(reader.readline(), patience(20.0)))
        writer.transport.abort()

        assert answer == Failed(reason=f"a line is longer than {LINE_BYTES_MAX} bytes")

    run_with_server(talk)


def test_long_line_within_the_limit_is_read() -> None:
    """White space is valid JSON, too."""

    async def talk(server: ControlServer, member: FakeMember) -> None:
        line = b'{"order":"fence","epoch":7}'
        answer = decode_answer(await send_all(server, line + b" " * (LINE_BYTES_MAX - len(line) - 1) + b"\n"))

        assert isinstance(answer, HaStatus)
        assert member.promised == 7

    run_with_server(talk)


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (b"", "closed the connection without an answer"),
        (b"nonsense\n", "invalid answer: "),
        (b'{"answer":"promised","epoch":3}\n', "belongs to another order"),
        (b'{"answer":"status","role":"KING"}\n', "invalid answer: "),
        (b"x" * (LINE_BYTES_MAX + 1), "longer than"),
        (b'{"answer":"sta', "closed the connection without an answer"),
    ],
    ids=["nothing", "no-json", "wrong-kind", "unknown-role", "too-long", "half"],
)
async def test_client_rejects_invalid_answers(tmp_path: Path, answer: bytes, text: str) -> None:
    """The error contains the path, and an invalid answer is not taken for that of the next order."""
    path = str(tmp_path / "control.sock")

    async def answers(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.write(answer)
        writer.close()

    server = await asyncio.start_unix_server(answers, path)
    client = OrderClient(path, answer_timeout_s=60)
    with pytest.raises(OrderUnanswered, match=text) as caught:
        await client.call(StatusRequest())
    server.close()

    assert path in str(caught.value)
    assert repr(client).endswith("idle>")
