"""Messages that gRPC compresses: which are accepted, and what hostile ones may cost."""

from __future__ import annotations

import asyncio
import gzip
import os
from dataclasses import replace
from typing import Any

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rpc_world import LIMITS, client, raw_client, serving, status_of

from gantry_proxy.rpc.compression import SLICE_BYTES, Decompressor
from gantry_proxy.rpc.protocol import CallFailed, StatusCode, with_prefix
from gantry_testing.local import wait_until

GZIP = grpc.Compression.Gzip
BOMB = gzip.compress(bytes(16 << 20))
"""Content of 16 MiB in 16 KiB."""
TEXT = b"The quick brown fox jumps over the lazy dog. " * 100


def compressed(content: bytes) -> bytes:
    """Return a compressed message with its prefix."""
    return b"\1" + with_prefix(gzip.compress(content))[1:]


class Held:
    """Counts what a decompressor holds."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def __call__(self, size: int) -> None:
        self.sizes.append(size)


async def decompress(data: bytes, bytes_max: int = 64 << 20) -> bytes:
    return await Decompressor(bytes_max).decompress(data, Held())


# ------- what is accepted


async def test_compressed_messages_of_every_kind_of_method_are_served() -> None:
    """Clients of gRPC's own library compress; replies are as they are."""
    large = os.urandom(300_000) + bytes(600_000)
    async with serving() as (echo, server, port), client(port) as channel:
        replies = [await channel.unary_unary("/t/echo")(one, compression=GZIP) for one in (b"", b"x", large)]
        encoding = echo.headers["grpc-encoding"]
        repeated = [message async for message in channel.unary_stream("/t/repeat")(large, compression=GZIP)]
        chat = channel.stream_stream("/t/chat")(compression=GZIP)
        answers = []
        for message in (b"one", large, b""):
            await chat.write(message)
            answers.append(await chat.read())
        held = server.use.held_bytes
        await chat.done_writing()
        await chat.read()
        await wait_until(lambda: not server.calls)

    assert (replies, encoding) == ([b"", b"x", large], "gzip")
    assert repeated == [large] * 5
    assert answers == [b"one", large, b""]
    assert (held, server.use.held_bytes) == (0, 0), "what was read is not held, though the stream is open"


async def test_every_reply_names_the_encodings() -> None:
    """Also a refusal, from which a client learns what it may use."""
    async with serving() as (_, _, port), raw_client(port) as raw:
        raw.begin(1)
        raw.data(1, with_prefix(b"x"), is_last=True)
        good = await raw.reply_headers()
        await raw.reply_headers()
        raw.begin(3, encoding="deflate")
        raw.data(3, compressed(b"x"), is_last=True)
        refused = await raw.reply_headers()

    assert (good["grpc-accept-encoding"], refused["grpc-accept-encoding"]) == ("identity,gzip", "identity,gzip")
    assert refused["grpc-status"] == str(int(StatusCode.UNIMPLEMENTED))


@given(st.binary(max_size=2_000), st.integers(0, 2_000), st.sampled_from([0, 1, 9]))
async def test_content_is_that_which_was_compressed(noise: bytes, zeros: int, level: int) -> None:
    """Any content, of which some hardly needs any input and some needs more than its own size."""
    content = noise + bytes(zeros * 700)
    assert await decompress(gzip.compress(content, level)) == content


@pytest.mark.parametrize("size", [SLICE_BYTES - 1, SLICE_BYTES, SLICE_BYTES + 1, 3 * SLICE_BYTES])
@pytest.mark.parametrize("is_noise", [True, False])
async def test_content_of_whole_slices_is_complete(size: int, *, is_noise: bool) -> None:
    """The last slice may be full, and zlib may hold content for which it needs no more input."""
    content = os.urandom(size) if is_noise else bytes(size)
    assert await decompress(gzip.compress(content)) == content


# ------- what is refused


@pytest.mark.parametrize(
    ("flag", "encoding", "status"),
    [(1, "", StatusCode.INTERNAL), (1, "identity", StatusCode.INTERNAL), (1, "deflate", StatusCode.UNIMPLEMENTED),
     (2, "gzip", StatusCode.INTERNAL), (255, "", StatusCode.INTERNAL), (1, "gzip", StatusCode.OK),
     (0, "deflate", StatusCode.OK)],
)  # fmt: skip
@pytest.mark.parametrize("path", ["/t/echo", "/t/chat"])
async def test_message_with_a_wrong_flag_is_refused(path: str, flag: int, encoding: str, status: StatusCode) -> None:
    """A flag without an encoding breaks the protocol; an unknown encoding matters only if a message uses it."""
    content = gzip.compress(b"x") if flag == 1 else b"x"
    async with serving() as (_, server, port), raw_client(port) as raw:
        raw.begin(1, path, encoding=encoding)
        raw.data(1, bytes((flag,)) + with_prefix(content)[1:], is_last=True)
        headers = await raw.reply_headers()
        if "grpc-status" not in headers:
            headers = await raw.reply_headers()

    assert (headers["grpc-status"], server.use.held_bytes) == (str(int(status)), 0)


@pytest.mark.parametrize("limit", [len(TEXT) - 1, len(TEXT)])
async def test_content_beyond_the_limit_is_refused(limit: int) -> None:
    """The limit is that of messages that are not compressed; content of exactly this size is accepted."""
    if limit == len(TEXT):
        assert await decompress(gzip.compress(TEXT), limit) == TEXT
        return
    with pytest.raises(CallFailed, match=f"more than {limit} bytes") as caught:
        await decompress(gzip.compress(TEXT), limit)
    assert caught.value.code is StatusCode.RESOURCE_EXHAUSTED


@pytest.mark.parametrize("limit", [LIMITS.message_bytes_max, 1 << 30])
async def test_bomb_is_refused_before_it_is_decompressed(limit: int) -> None:
    """What is made of it is at most one slice beyond the limit. The twin, without the limit, makes all of it."""
    held = Held()
    try:
        size = len(await Decompressor(limit).decompress(BOMB, held))
    except CallFailed:
        size = 0

    if limit == LIMITS.message_bytes_max:
        assert (size, sum(held.sizes) <= limit) == (0, True)
    else:
        assert size == sum(held.sizes) == 16 << 20


async def test_bomb_over_a_connection_harms_no_other_call() -> None:
    """The client learns the limit, and its connection can be used for later calls."""
    async with serving() as (_, server, port), client(port) as channel:
        echo = channel.unary_unary("/t/echo")
        code, text = await status_of(echo(bytes(16 << 20), compression=GZIP))
        assert await echo(bytes(1 << 20), compression=GZIP) == bytes(1 << 20)
        await wait_until(lambda: not server.calls)

    assert (code, "more than 1048576 bytes" in str(text)) == (grpc.StatusCode.RESOURCE_EXHAUSTED, True)
    assert server.use.held_bytes == 0


async def test_truncated_stream_is_refused() -> None:
    """At every byte, the checksum at the end included; the whole stream is accepted."""
    whole = gzip.compress(TEXT)
    for end in range(len(whole)):
        with pytest.raises(CallFailed, match="cut short") as caught:
            await decompress(whole[:end])
        assert caught.value.code is StatusCode.INTERNAL
    assert await decompress(whole) == TEXT


@pytest.mark.parametrize("large", [False, True])
async def test_bytes_after_the_stream_are_refused(*, large: bool) -> None:
    """A second stream, too: a message is one stream."""
    whole = gzip.compress(os.urandom(SLICE_BYTES) if large else TEXT)
    for more in (b"x", whole):
        with pytest.raises(CallFailed, match="followed by other bytes"):
            await decompress(whole + more)


async def test_damaged_stream_is_refused() -> None:
    """Every flipped bit in the checksum, the length and the magic number is found."""
    whole = gzip.compress(TEXT)
    for position in (0, 1, 2, *range(len(whole) - 8, len(whole))):
        damaged = bytearray(whole)
        damaged[position] ^= 0x40
        with pytest.raises(CallFailed, match="damaged"):
            await decompress(bytes(damaged))


@pytest.mark.parametrize("budget", [450_000, 1 << 30])
async def test_decompressed_messages_share_the_budget_of_the_port(budget: int) -> None:
    """Many small requests cannot become more than the port may hold. The twin, without the budget, serves both."""
    async with serving(replace(LIMITS, held_bytes_max=budget)) as (echo, server, port), client(port) as channel:
        hold = channel.unary_unary("/t/hold")
        first = asyncio.ensure_future(_wait(hold(bytes(200_000), compression=GZIP)))
        await wait_until(lambda: server.use.held_bytes == 200_000)
        second = asyncio.ensure_future(_wait(hold(bytes(200_000), compression=GZIP)))
        await wait_until(lambda: second.done() or server.use.held_bytes == 400_000)
        echo.go_on.set()
        assert await first == bytes(200_000)
        if budget < 1 << 20:
            code, _ = await status_of(second)
            assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
        else:
            assert await second == bytes(200_000)
        await wait_until(lambda: server.use.held_bytes == 0)


async def _wait(call: Any) -> Any:
    return await call


# ------- the event loop


async def test_loop_turns_between_slices() -> None:
    """A large message costs one slice in a turn of the loop, so that others are served meanwhile."""
    turns = 0
    is_done = False

    async def count_turns() -> None:
        nonlocal turns
        while not is_done:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.ensure_future(count_turns())
    held = Held()
    await Decompressor(64 << 20).decompress(BOMB, held)
    is_done = True
    await counting

    assert max(held.sizes) <= SLICE_BYTES
    assert turns >= len(held.sizes) - 3


async def test_one_large_message_is_decompressed_at_a_time_and_small_ones_do_not_wait() -> None:
    """Of many large messages, only one has its slice in a turn of the loop."""
    one = Decompressor(64 << 20)
    order: list[str] = []

    async def run(name: str, data: bytes) -> None:
        await one.decompress(data, lambda _: order.append(name))
        order.append(f"end of {name}")

    small = gzip.compress(TEXT)
    await asyncio.gather(run("first", BOMB), run("second", BOMB), run("small", small))

    assert order.index("end of small") < order.index("end of first")
    begun = order.index("second") + 2
    assert "second" not in order[begun : order.index("end of first")]
    assert order[-1] == "end of second"


async def test_cancelled_message_gives_its_turn_to_the_next() -> None:
    """A client that goes away while its message is decompressed stops no other one."""
    one = Decompressor(64 << 20)
    first = asyncio.ensure_future(one.decompress(BOMB, Held()))
    second = asyncio.ensure_future(one.decompress(BOMB, Held()))
    await asyncio.sleep(0)
    first.cancel()

    assert len(await second) == 16 << 20
    with pytest.raises(asyncio.CancelledError):
        await first
