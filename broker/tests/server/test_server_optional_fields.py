"""Fields that any request of a 5.x client may carry: they change the answer of no request.

Each request that the wire knows is sent to two brokers, or two name servers, in the same state: to one as it is, to the
other with the fields before its own, after them, or in the binary header. Both must answer the same. The requests are
the seeds of the fuzzer, so a code that is handled one day is in here from its first day on.
"""

from __future__ import annotations

import random
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
from fuzz.pools import GROUPS, TOPICS, KnownMessages
from fuzz.seeds import SEED_MAKERS

from gantry_nameserver.server import NameServer
from gantry_nameserver.settings import NameServerSettings
from gantry_testing.fake_clock import FakeClock
from gantry_testing.local import RawPeer, running_broker, send_ext
from gantry_testing.ports import free_port
from gantry_wire import Command, RequestCode, decode_command
from gantry_wire.commands import fields as wire_fields
from gantry_wire.commands.pull import PULL_SUSPEND
from gantry_wire.frame import Serialization

USUAL_FIELDS: Final = {"ns": "tenant", "nsd": "true", "bname": "test-broker", "oway": "false", "lo": "false"}
"""What `RpcRequestHeader` and `TopicRequestHeader` of RocketMQ 5.3.3 add, and its hook for namespaces."""
UNUSUAL_FIELDS: Final = {"ns": "", "nsd": "false", "bname": "", "lo": "true", "srcNs": "x", "aFieldOfTomorrow": "[1]"}
CODE_BINARY_MAX: Final = 32_767
"""The binary header has two bytes for a code."""
COMMON: Final = {
    "topic": TOPICS[0], "group": GROUPS[0], "consumerGroup": GROUPS[0], "producerGroup": GROUPS[0], "queueId": "0",
    "srcGroup": GROUPS[0], "destGroup": GROUPS[1], "offline": "true", "clientId": "unknown", "offset": "0",
    "index": "0",
    "count": "1", "timestamp": "0", "isForce": "true", "isOrder": "false", "jstackEnable": "false", "user": "x",
    "statsName": "TOPIC_PUT_NUMS", "statsKey": TOPICS[0], "msgId": KnownMessages().message_ids[0],
    "clientAddr": "unknown",
}  # fmt: skip
"""Fields that some requests of administrators need; other requests ignore them."""
REQUEST_FORMS: Final[dict[str, tuple[Mapping[str, str], bool, Serialization]]] = {
    "usual, before": (USUAL_FIELDS, True, Serialization.JSON),
    "usual, binary": (USUAL_FIELDS, False, Serialization.ROCKETMQ),
    "others, after": (UNUSUAL_FIELDS, False, Serialization.JSON),
}


@dataclass(frozen=True)
class ComparableAnswer:
    """The part of an answer that two servers in the same state share: numbers in texts are masked."""

    code: int
    remark: str
    fields: frozenset[str]
    has_body: bool


def request_of(code: RequestCode, number: int) -> Command:
    """A good request with a code; the same every time. Nothing in it is held for later."""
    seed = SEED_MAKERS[code](random.Random(f"{int(code)}-{number}"), KnownMessages())
    # A binary header cannot tell "" from nothing.
    ext = COMMON | {name: str(value) or "empty" for name, value in seed.ext.items()}
    if code in (RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE):
        ext["sysFlag"] = str(int(ext["sysFlag"]) & ~PULL_SUSPEND)
    return Command(code=code, ext=ext, body=seed.body)


@asynccontextmanager
async def peer_of(port: int) -> AsyncIterator[RawPeer]:
    peer = await RawPeer.open(port)
    try:
        yield peer
    finally:
        await peer.close()


async def answer_of(
    peer: RawPeer, command: Command, serialization: Serialization = Serialization.JSON
) -> ComparableAnswer:
    await peer.send(command.encode(serialization))
    reply = decode_command(await peer.frame())
    while not reply.is_reply:  # a broker may ask its clients, too
        reply = decode_command(await peer.frame())
    remark = re.sub(r"\d+", "0", reply.remark or "")
    return ComparableAnswer(reply.code, remark, frozenset(reply.ext), bool(reply.body))


async def differences(plain: int, optional: int, way: str, codes: list[RequestCode]) -> list[str]:
    """Send every request to both ports; return the answers that differ."""
    added, is_first, serialization = REQUEST_FORMS[way]
    found = []
    for code in codes:
        kind = serialization if code <= CODE_BINARY_MAX else Serialization.JSON
        async with peer_of(plain) as one, peer_of(optional) as other:
            for number in range(2):
                command = request_of(code, number)
                given = {name: value for name, value in added.items() if name not in command.ext}
                ext = given | command.ext if is_first else command.ext | given
                expected = await answer_of(one, command)
                answered = await answer_of(other, msgspec.structs.replace(command, ext=ext), kind)
                if answered != expected:
                    found.append(f"{code.name}: {answered} instead of {expected}")
    return found


@asynccontextmanager
async def broker_ports(path: Path, stack: AsyncExitStack) -> AsyncIterator[tuple[int, int]]:
    """Two brokers with the same topics, groups and messages, at the same moment."""
    ports = []
    for name in ("plain", "optional"):
        clock = FakeClock()
        broker = await stack.enter_async_context(
            running_broker(path / name, clock=clock, enablePropertyFilter="true", haListenPort="-1")
        )
        ports.append(broker.port)
        async with peer_of(broker.port) as peer:
            for topic in TOPICS:
                ext = send_ext(RequestCode.SEND_MESSAGE_V2, topic=topic)
                assert (await answer_of(peer, Command(code=RequestCode.SEND_MESSAGE_V2, ext=ext, body=b"x"))).code == 0
            for group in GROUPS:
                body = b'{"groupName":"%s"}' % group.encode()
                await answer_of(peer, Command(code=RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body))
    yield ports[0], ports[1]


async def name_server(path: Path, stack: AsyncExitStack) -> int:
    server = NameServer(NameServerSettings(bind_address="127.0.0.1", listen_port=free_port()), path)
    await server.start()
    stack.push_async_callback(server.close)
    return server.port


@pytest.mark.parametrize("way", REQUEST_FORMS)
async def test_broker_ignores_fields_of_newer_clients(tmp_path: Path, way: str) -> None:
    """All requests, with optional fields added in each way of `REQUEST_FORMS`, are answered as they are without."""
    async with AsyncExitStack() as stack, broker_ports(tmp_path, stack) as (plain, optional):
        assert await differences(plain, optional, way, list(RequestCode)) == []


@pytest.mark.parametrize("way", REQUEST_FORMS)
async def test_name_server_ignores_fields_of_newer_clients(tmp_path: Path, way: str) -> None:
    """The same for a name server."""
    async with AsyncExitStack() as stack:
        plain, optional = await name_server(tmp_path / "a", stack), await name_server(tmp_path / "b", stack)
        assert await differences(plain, optional, way, list(RequestCode)) == []


@pytest.mark.verify
async def test_many_of_these_requests_succeed(tmp_path: Path) -> None:
    """A request that is refused for its own fields shows nothing: more than thirty succeed, and few lack a field."""
    async with AsyncExitStack() as stack, broker_ports(tmp_path, stack) as (plain, _), peer_of(plain) as peer:
        answered = {code: await answer_of(peer, request_of(code, 0)) for code in RequestCode}
    unread = [code.name for code, one in answered.items() if "custom field" in one.remark]

    assert sum(one.code == 0 for one in answered.values()) > 30
    assert len(unread) < 5, unread


async def test_server_that_refuses_unknown_fields_is_detected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin: where reading fields forbids those that it does not know, more than forty are reported."""
    real = wire_fields.Fields.read.__func__  # type: ignore[attr-defined]

    def strict(kind: type[wire_fields.Fields], ext: dict[str, str]) -> Any:
        known = {info.encode_name for info in msgspec.structs.fields(kind)}
        if "lo" in ext and not ext.keys() <= known:
            raise wire_fields.FieldError("an unknown field")
        return real(kind, ext)

    monkeypatch.setattr(wire_fields.Fields, "read", classmethod(strict))
    async with AsyncExitStack() as stack, broker_ports(tmp_path, stack) as (plain, optional):
        found = await differences(plain, optional, "usual, before", list(RequestCode))

    assert len(found) > 40, found
