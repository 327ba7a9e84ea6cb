"""The fast path of signed sends: it stores the same as the other paths, admits no one else, and falls back in doubt."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gantry_access import signer
from gantry_broker.app import Broker
from gantry_broker.server.send.handlers import SendHandlers
from gantry_broker.server.send.headers import SEND_V2_PREFIX
from gantry_testing.accounts import ADMIN, ORDERS, guarded_broker, raw_dialogue, signed_dialogue
from gantry_testing.local import UNIQUE_ID, Dialogue, dialogue, properties_text, send_ext
from gantry_wire import Command, ResponseCode
from gantry_wire.message import StoredMessage, decode_record

PLAIN = properties_text(UNIQ_KEY=UNIQUE_ID, WAIT="true", TAGS="red", color="blue")


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    """A guarded broker with the topic of the tests."""
    async with guarded_broker(tmp_path) as one:
        async with signed_dialogue(one, ADMIN) as admin:
            await admin.send_ok()
        yield one


@pytest.fixture
def general_path_codes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Collect the codes of sends on the general path."""
    codes: list[int] = []
    handle = SendHandlers.handle

    def count(self: SendHandlers, command: Command, connection: Any) -> bytes | None:
        codes.append(command.code)
        return handle(self, command, connection)

    monkeypatch.setattr(SendHandlers, "handle", count)
    return codes


async def test_plain_signed_sends_use_the_fast_path(broker: Broker, general_path_codes: list[int]) -> None:
    """They skip the full decoding and the checks of the handlers."""
    async with signed_dialogue(broker, ORDERS) as client:
        for number in range(3):
            reply = await client.send_ok(b"x", properties=PLAIN)
            assert reply["queueOffset"] == str(number + 1)

    assert general_path_codes == []


@pytest.mark.parametrize(
    "text",
    [
        properties_text(UNIQ_KEY=UNIQUE_ID, KEYS="k"),
        properties_text(color="blue"),
        properties_text(UNIQ_KEY="ä" * 32),
        properties_text(TAGS="t", UNIQ_KEY=UNIQUE_ID),
    ],
    ids=["keys", "no unique id", "a unique id of another form", "a unique id that is not first"],
)
async def test_signed_sends_with_any_properties_use_the_fast_path(
    broker: Broker, general_path_codes: list[int], text: str
) -> None:
    """Senders whose requests are not formed like Java's use it, too."""
    async with signed_dialogue(broker, ORDERS) as client:
        await client.send_ok(b"x", properties=text)

    assert general_path_codes == []


async def test_oneway_send_uses_the_fast_path(broker: Broker, general_path_codes: list[int]) -> None:
    """A oneway send is stored and not answered."""
    async with signed_dialogue(broker, ORDERS) as client:
        client.send_oneway(310, send_ext(310), b"oneway")
        await client.send_ok(b"asked")
        assert [message.body for message in await client.read()] == [b"hello", b"oneway", b"asked"]

    assert general_path_codes == []


UNUSUAL_SENDS: list[tuple[str, dict[str, str], bytes, int]] = [
    ("a delay", {"properties": properties_text(UNIQ_KEY=UNIQUE_ID, DELAY="1")}, b"x", 0),
    ("any queue", {"queueId": "-1"}, b"x", 0),
    ("a queue that is not there", {"queueId": "999"}, b"x", ResponseCode.INVALID_PARAMETER),
    ("no body", {}, b"", ResponseCode.MESSAGE_ILLEGAL),
    ("a batch", {"batch": "true"}, b"x", ResponseCode.MESSAGE_ILLEGAL),
    ("reconsumed", {"reconsumeTimes": "3"}, b"x", 0),
    ("a flag out of range", {"flag": str(1 << 31)}, b"x", ResponseCode.SYSTEM_ERROR),
    ("a system flag out of range", {"sysFlag": str(1 << 31)}, b"x", ResponseCode.SYSTEM_ERROR),
    ("a time out of range", {"bornTimestamp": str(1 << 63)}, b"x", ResponseCode.SYSTEM_ERROR),
    ("a number with many digits", {"bornTimestamp": "1" * 5000}, b"x", ResponseCode.SYSTEM_ERROR),
    ("a number that is none", {"queueId": "x"}, b"x", ResponseCode.SYSTEM_ERROR),
]


@pytest.mark.parametrize(
    ("fields", "body", "code"), [row[1:] for row in UNUSUAL_SENDS], ids=[row[0] for row in UNUSUAL_SENDS]
)
async def test_unusual_send_falls_back_to_the_general_path(
    broker: Broker, general_path_codes: list[int], fields: dict[str, str], body: bytes, code: int
) -> None:
    """It gets the reply of the general path, and the next send of the connection is not affected."""
    async with signed_dialogue(broker, ORDERS) as client:
        reply = await client.send(body, code=310, **fields)
        assert reply.code == code, reply.remark
        assert (await client.send()).code == 0

    assert general_path_codes == [310]


async def test_unknown_field_is_signed_and_falls_back(broker: Broker, general_path_codes: list[int]) -> None:
    """A new field of a newer client is signed; if another party adds it, the signature is invalid."""
    ask = signer(ORDERS)
    assert ask is not None

    def sign_with(command: Command) -> None:
        command.ext["newer"] = "1"
        ask(command)

    def sign_without(command: Command) -> None:
        ask(command)
        command.ext["newer"] = "1"

    async with raw_dialogue(broker, sign_with) as client:
        assert (await client.send()).code == 0
    async with raw_dialogue(broker, sign_without) as client:
        assert (await client.send()).code == ResponseCode.NO_PERMISSION

    assert general_path_codes == [310]


async def test_lowered_message_limit_applies_to_the_fast_path(broker: Broker) -> None:
    """After an administrator lowers maxMessageSize, the next larger signed send is refused."""
    async with signed_dialogue(broker, ADMIN) as admin, signed_dialogue(broker, ORDERS) as client:
        assert (await client.send(b"x" * 2_000, properties=PLAIN)).code == 0
        assert (await admin.ask(25, body=b"maxMessageSize=1024\n")).code == 0
        assert (await client.send(b"x" * 2_000, properties=PLAIN)).code == ResponseCode.MESSAGE_ILLEGAL
        assert (await client.send(b"x" * 1_000, properties=PLAIN)).code == 0


async def test_all_paths_store_the_same_message(broker: Broker, tmp_path: Path) -> None:
    """The fast path, the general path, and a broker without access control store the same fields of the sender."""
    (tmp_path / "open").mkdir()
    fields = {"properties": PLAIN, "flag": "7", "sysFlag": "1", "bornTimestamp": "1700000000123", "queueId": "0"}
    async with signed_dialogue(broker, ORDERS) as client:
        short = await stored(broker, client, 310, **fields)
        readable = await stored(broker, client, 10, **fields)
    async with guarded_broker(tmp_path / "open", aclEnable="false") as other, dialogue(other) as client:
        await client.send_ok()
        unguarded = await stored(other, client, 310, **fields)

    assert facts(short) == facts(readable) == facts(unguarded)


async def stored(broker: Broker, client: Dialogue, code: int, **fields: str) -> StoredMessage:
    """Send a message with these fields, and return its stored record."""
    offset = broker.core.store.log.wrote
    assert (await client.send(b"body", code=code, **fields)).code == 0
    record = broker.core.store.guard.message_at(offset)
    assert record is not None
    return decode_record(record)


def facts(message: StoredMessage) -> tuple[object, ...]:
    """Return the fields of a message that its sender determines."""
    return (
        message.topic,
        message.queue_id,
        message.body,
        {name: value for name, value in message.properties.items() if name != "__CRC32#"},
        message.flag,
        message.sys_flag,
        message.born_timestamp_ms,
        message.reconsume_times,
    )


async def test_fast_path_is_unused_without_access_control(tmp_path: Path) -> None:
    """Without access control plain sends keep their usual path at no cost."""
    async with guarded_broker(tmp_path, aclEnable="false") as open_broker:
        assert open_broker.guard is None
        assert open_broker.send_path._prefix == SEND_V2_PREFIX
