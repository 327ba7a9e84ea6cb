"""The orderly stop of a gRPC port: unfinished handshakes, calls without an end, and requests that still arrive."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
import trustme
from rpc_world import LIMITS, client, raw_client, serving, status_of

from gantry_proxy.http2 import frames
from gantry_proxy.rpc.health import SERVICE, SERVING, Health
from gantry_proxy.rpc.limits import RpcTimes
from gantry_proxy.rpc.protocol import StatusCode, with_prefix
from gantry_proxy.rpc.server import RpcServer
from gantry_remoting.certificates import CertificateSource
from gantry_remoting.tls_contexts import server_context
from gantry_testing.certificates import Party
from gantry_testing.local import wait_until

GRACE_S = 60.0
"""Longer than a test may take, so that a stop that waits for its whole grace fails."""


SHORT_NOTICE = replace(LIMITS, times=RpcTimes(drain_notice_s=0.05))


@pytest.mark.parametrize("grace_s", [0.0, GRACE_S])
async def test_stop_does_not_wait_for_a_handshake(tmp_path: Path, grace_s: float) -> None:
    """Nothing can be sent to a client whose handshake is incomplete; other clients get their notice."""
    party = Party(tmp_path, trustme.CA())
    context = server_context(str(party.chain), str(party.key))
    source = CertificateSource("test", [], lambda: context, certificate=None)
    source.load()
    server = RpcServer({}, SHORT_NOTICE, source)
    port = await server.start("127.0.0.1", 0)
    async with raw_client(port, begins=False) as silent, raw_client(port, begins=False) as half:
        half.writer.write(b"\x16\x03\x01\x02\x00")
        await wait_until(lambda: len(server.handshakes) == 2)
        async with asyncio.timeout(20):
            await server.stop(grace_s)
        for one in (silent, half):
            with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                await one.reader.readexactly(1)

    assert (server.connections, server.handshakes, server.use.connections) == (set(), {}, 0)


async def test_stop_ends_calls_that_have_no_end() -> None:
    """A watch of the health would otherwise keep every stop for its whole grace."""
    health = Health(frozenset())
    health.set_state(SERVING)
    server = RpcServer(health.methods(), SHORT_NOTICE, None)
    port = await server.start("127.0.0.1", 0)
    async with client(port) as channel:
        watch = channel.unary_stream(f"/{SERVICE}/Watch")(b"")
        await anext(aiter(watch))
        async with asyncio.timeout(20):
            await server.stop(GRACE_S)
        code, text = await status_of(anext(aiter(watch)))

    assert (code.value[0], text) == (int(StatusCode.UNAVAILABLE), "the proxy stops: connect to another one")


async def test_stop_waits_for_a_request_that_still_arrives() -> None:
    """Its client has begun it before the notice, and may not be able to repeat it."""
    async with serving(SHORT_NOTICE) as (_, server, port), raw_client(port) as raw:
        message = with_prefix(b"hello")
        raw.begin(1)
        raw.data(1, message[:4])
        await wait_until(lambda: server.use.held_bytes == 4)
        stopping = asyncio.ensure_future(server.stop(GRACE_S))
        for _ in range(2):  # the notice, and the refusal of further streams
            await raw.frames_until(frames.GOAWAY)
        raw.data(1, message[4:], is_last=True)
        found = await raw.frames_until(frames.DATA)
        async with asyncio.timeout(20):
            await stopping

    assert found[-1].payload == message
