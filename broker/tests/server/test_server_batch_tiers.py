"""Batches of the usual form are stored and answered as the slow path does it, byte for byte, for any input.

`SendHandlers._make_drafts` is the oracle: it parses each message of a batch into a dictionary. `Batch.take_entries`,
of both classes of batches, takes a batch whole or leaves it whole to the oracle.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import pytest
from test_server_send_tiers import COMPILED, Peer, fields_of, log_and_replies, property_text, random_requests

from gantry_broker.app import Broker
from gantry_broker.ports import RealDisk
from gantry_broker.server.send.handlers import SendHandlers
from gantry_broker.store.draft import Draft
from gantry_testing.fake_clock import FakeClock
from gantry_testing.local import TOPIC, dialogue, make_predictable, properties_text, running_broker, send_ext
from gantry_testing.ports import free_ports
from gantry_wire import Command
from gantry_wire.batch import BatchEntry, encode_batch

CASES_COUNT: Final = 2_000
MUTATED_COUNT: Final = 2_000
UNIQUE: Final = "7F0000010000000000000000000000AB"
USUAL: Final = properties_text(UNIQ_KEY=UNIQUE, WAIT="true", TAGS="t")
LENGTHS: Final = (0, 1, 20, 21, 22, 23, 0x7FFF_FFFF, 0x8000_0000, 0xFFFF_FFFF, 0xFFFF_FFEA, 0x7FFF_FFEB)
"""Lengths at which an addition overflows, and near the size of an empty message."""
SHARED: Final = (
    "", "WAIT\x01true\x02", "WAIT\x01false\x02", "TAGS\x01t\x02WAIT\x01true\x02", "KEYS\x01a b\x02", "größe\x011\x02",
    "DELAY\x011\x02", "TRACE_ON\x01false\x02", "color\x01x", "\x01\x02", "WAIT", "x\x01" * 3,
)  # fmt: skip


def usual_text(rng: random.Random) -> str:
    """Properties as Java, Go and others write them into a batch."""
    pairs = {"UNIQ_KEY": f"7F000001000000000000{rng.randrange(1 << 48):012X}", "WAIT": "true"}
    if rng.random() < 0.3:
        pairs = {"KEYS": rng.choice(("a", "a b", "größe  x ", "")), **pairs}
    if rng.random() < 0.5:
        pairs["TAGS"] = rng.choice(("t", "größe", "漢字", ""))
    if rng.random() < 0.1:
        pairs["any"] = rng.choice(("\u0000", "\x7f", "😀", "x" * 300, 'a "quoted" \\ one'))
    if rng.random() < 0.1:
        del pairs[rng.choice(("UNIQ_KEY", "WAIT"))]
    text = properties_text(**pairs)
    return text.removesuffix("\x02") if rng.random() < 0.1 else text


def random_entry(rng: random.Random, is_usual: bool) -> BatchEntry:
    text = usual_text(rng) if is_usual else property_text(rng)
    data = text.encode()[:32_767]
    if not is_usual and rng.random() < 0.05:
        data += rng.choice((b"\xff", b"a\x01\xc3\x28\x02", b"a\x01\xed\xa0\x80\x02", b"\x00"))
    if not is_usual and rng.random() < 0.02:
        data = USUAL.encode() + b"p\x01" + bytes([rng.choice(b"xyz")]) * rng.randint(32_500, 32_680)
    flag = rng.choice((0, 0, 7, -1, -(1 << 31)))
    return BatchEntry(flag, rng.randbytes(rng.choice((1, 20, 300))), data[:32_767])


def random_batch(rng: random.Random) -> Command:
    """One batch; most are usual, and of the others most have one unusual message."""
    count = rng.choice((1, 2, 3, 16, 40))
    odd = rng.randrange(count * 2)
    body = encode_batch(random_entry(rng, number != odd) for number in range(count))
    code = rng.choice((310, 320, 320))
    fields = {**fields_of(rng), "topic": TOPIC, "reconsumeTimes": "0", "batch": "true"}
    shared = rng.choice((properties_text(UNIQ_KEY=UNIQUE), properties_text(UNIQ_KEY=UNIQUE, KEYS="a b"), ""))
    fields["properties"] = shared + (rng.choice(SHARED) if rng.random() < 0.2 else "WAIT\x01true\x02")
    return Command(
        code=code, ext=send_ext(code, **fields), body=body, opaque=rng.randrange(1 << 31), flag=rng.choice((0, 0, 2))
    )


def random_batches(seed: int, count: int = CASES_COUNT) -> Iterator[Command]:
    rng = random.Random(seed)
    return (random_batch(rng) for _ in range(count))


def mutated_batches(seed: int, count: int) -> Iterator[Command]:
    """Batches of which lengths, and a few bytes, are changed, or whose end is missing."""
    rng = random.Random(seed)
    for command in random_batches(seed, count):
        body = bytearray(command.body)
        for _ in range(rng.randint(1, 2)):
            at, kind = rng.randrange(len(body)), rng.random()
            if kind < 0.2:
                del body[at:]
                break
            if kind < 0.5:
                place = rng.choice(entry_places(command.body)) + rng.choice((0, 16))
                length = rng.choice((*LENGTHS, rng.randrange(len(body) + 40)))
                body[place : place + 4] = length.to_bytes(4, "big")
            elif kind < 0.8:
                body[at] = rng.choice((0, 1, 2, 0x7F, 0x80, 0xC3, 0xFF, rng.randrange(256)))
            else:
                body[at:at] = body[at : at + rng.randint(1, 30)]
            if not body:
                break
        command.body = bytes(body)
        yield command


def entry_places(body: bytes) -> list[int]:
    """Return where the messages of a valid batch begin."""
    places = [0]
    while (place := places[-1] + struct.unpack_from(">i", body, places[-1])[0]) < len(body):
        places.append(place)
    return places


def stored_and_answered(broker: Broker, command: Command) -> tuple[list[Any], bytes]:
    """Return the drafts that the store gets of a batch, and the answer, without storing any of them."""
    drafts: list[Any] = []

    def append(given: Any) -> tuple[Sequence[int], Sequence[int]]:
        found = given if isinstance(given, list) else given.to_drafts()
        drafts.extend(tuple(draft) for draft in found)
        return [1_000 * (number + 1) for number in range(len(found))], list(range(len(found)))

    peer: Any = Peer()
    store: Any = broker.core.store
    keep = store.append_contiguous
    store.append_contiguous = append
    try:
        _, replies = broker.listeners.services[0].handle(command.encode(), peer)
    finally:
        store.append_contiguous = keep
    return drafts, replies + b"".join(peer.sent)


@pytest.fixture
def broker(tiers_broker: Broker) -> Broker:
    return tiers_broker


@pytest.fixture
def slow_batches(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The bodies of batches that came to the slow path."""
    bodies: list[bytes] = []
    make_drafts = SendHandlers._make_drafts

    def count(self: SendHandlers, send: Any, body: bytes, *others: Any) -> list[Draft]:
        bodies.append(body)
        return make_drafts(self, send, body, *others)

    monkeypatch.setattr(SendHandlers, "_make_drafts", count)
    return bodies


def differences(broker: Broker, commands: Iterator[Command], monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Return the batches that end differently by the fast and by the slow path."""
    found = []
    for command in commands:
        fast = stored_and_answered(broker, command)
        with monkeypatch.context() as context:
            context.setattr(broker.sends, "_take_entries", lambda *_: None)
            slow = stored_and_answered(broker, command)
        if fast != slow:
            found.append(command.encode())
    return found


@pytest.mark.verify(quick=2)
@pytest.mark.parametrize("kind_of_batch", ["python", COMPILED], indirect=True)
@pytest.mark.parametrize("seed", range(3))
async def test_fast_batches_equal_the_slow_path(
    broker: Broker, seed: int, slow_batches: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Drafts and answer are equal for any messages and shared properties; many batches avoid the slow path."""
    assert differences(broker, random_batches(seed), monkeypatch) == []

    assert CASES_COUNT / 2 < len(slow_batches) < CASES_COUNT * 1.7, "too many cases took the slow path"


@pytest.mark.verify(quick=2)
@pytest.mark.parametrize("kind_of_batch", ["python", COMPILED], indirect=True)
@pytest.mark.parametrize("seed", range(3))
async def test_damaged_batches_end_alike(broker: Broker, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wrong lengths, truncated bodies, odd bytes: a batch is refused whole, or stored as the slow path stores it."""
    assert differences(broker, mutated_batches(seed, MUTATED_COUNT), monkeypatch) == []


async def test_a_lost_property_of_the_request_is_detected(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin: a fast path that takes messages without the properties that they get from the request."""
    take: Any = broker.sends._take_entries
    monkeypatch.setattr(broker.sends, "_take_entries", lambda *given: take(*given[:-1], {}))

    assert differences(broker, random_batches(0, 200), monkeypatch) != []


async def test_every_truncated_batch_is_refused(broker: Broker) -> None:
    """A batch that ends anywhere but after a message is stored in no part."""
    body = encode_batch([BatchEntry(0, b"body", USUAL.encode()), BatchEntry(0, b"more", b"")])
    first = entry_places(body)[1]

    for end in range(1, len(body) + 1):
        command = Command(code=320, ext=send_ext(320), body=body[:end])
        drafts, reply = stored_and_answered(broker, command)
        assert len(drafts) == {first: 1, len(body): 2}.get(end, 0), end
        assert (b'"code":13' in reply) == (not drafts)


@pytest.mark.parametrize("place", [0, 16], ids=["message", "body"])
@pytest.mark.parametrize("length", LENGTHS)
async def test_wrong_length_in_a_batch_is_refused(broker: Broker, place: int, length: int) -> None:
    """A length that is too small, too large, negative or near an overflow."""
    body = bytearray(encode_batch([BatchEntry(0, b"body", USUAL.encode())] * 2))
    at = entry_places(bytes(body))[1] + place
    body[at : at + 4] = length.to_bytes(4, "big")

    drafts, reply = stored_and_answered(broker, Command(code=320, ext=send_ext(320), body=bytes(body)))

    assert drafts == []
    assert b'"code":13' in reply


async def test_batch_with_too_many_messages_is_refused(broker: Broker) -> None:
    """The limit counts, however small the messages are."""
    limit = broker.core.settings.batch_messages_max

    for count, stored in ((limit, limit), (limit + 1, 0)):
        body = encode_batch([BatchEntry(0, b"x", USUAL.encode())] * count)
        assert len(stored_and_answered(broker, Command(code=320, ext=send_ext(320), body=body))[0]) == stored


async def test_usual_batches_avoid_the_slow_path(broker: Broker, slow_batches: list[bytes]) -> None:
    """Java's batches, also automatic ones with keys and tags, Go's, and messages without an id."""
    texts = [
        USUAL,
        properties_text(KEYS="a b", UNIQ_KEY=UNIQUE, WAIT="true", TAGS="t"),
        "WAIT\x01true\x02TAGS\x01größe",
    ]
    body = encode_batch(BatchEntry(0, b"x", text.encode()) for text in texts)
    for shared in (
        properties_text(UNIQ_KEY=UNIQUE, WAIT="true"),
        properties_text(UNIQ_KEY=UNIQUE, WAIT="true", KEYS="a b", TAGS="t"),
        properties_text(UNIQ_KEY=UNIQUE),
        "",
    ):
        drafts, _ = stored_and_answered(broker, Command(code=320, ext=send_ext(320, properties=shared), body=body))
        assert len(drafts) == 3

    assert slow_batches == []


async def test_fast_and_slow_batches_write_the_same_log(
    kind_of_batch: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two brokers at the same address and time, batches and single sends over several log files.

    The same log, queues, index and replies, though the file ends before some batch.
    """
    frames = [command.encode() for command in random_batches(20, 1_000)]
    frames += list(random_requests(21, 300))
    random.Random(1).shuffle(frames)
    port, found = str(free_ports(1)[0]), []
    for name in ("fast", "slow"):
        conf = {"mappedFileSizeCommitLog": "300000", "maxMessageSize": "200000", "listenPort": port}
        async with running_broker(tmp_path / name, clock=FakeClock(), disk=RealDisk(), **conf) as broker:
            async with dialogue(broker) as client:
                await client.send_ok(queueId="3", bornTimestamp="1")
            make_predictable(broker, monkeypatch)
            start = broker.store.log.wrote  # the first message has the port of its sender
            if name == "slow":
                monkeypatch.setattr(broker.sends, "_take_entries", lambda *_: None)
            _, replies = log_and_replies(broker, frames, start)
        found.append((files_of(tmp_path / name, start), replies))

    assert len(list((tmp_path / "fast" / "commitlog").iterdir())) > 5
    assert found[0] == found[1]


def files_of(store: Path, start: int) -> list[bytes]:
    """Return the log from ``start`` on, the consume queues and the key index of a small store."""
    log, *others = [
        path.read_bytes()
        for folder in ("commitlog", "consumequeue", "index")
        for path in sorted((store / folder).rglob("*"))
        if path.is_file()
    ]
    return [log[start:], *others]
