"""The tiers of plain sends and the slow path store and answer the same, byte for byte, for any input.

The slow path is the oracle: it decodes every request into a `Command`. A case is one frame; its draft is
everything that the store gets of a message, and its answer everything that the reply is made of.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from gantry_access import Credentials, signer
from gantry_broker.app import Broker
from gantry_broker.ports import RealDisk
from gantry_broker.server.core import send_routes
from gantry_broker.server.core.refusals import Refusal
from gantry_broker.server.send import send_batch
from gantry_broker.server.send.handlers import SendHandlers
from gantry_broker.server.send.headers import SEND_V2_PREFIX
from gantry_testing.accounts import ADMIN, BILLING, ORDERS, guarded_broker, signed_dialogue
from gantry_testing.fake_clock import FakeClock
from gantry_testing.local import TOPIC, dialogue, make_predictable, properties_text, running_broker, send_ext
from gantry_testing.ports import free_ports
from gantry_wire import Command, ResponseCode
from gantry_wire.errors import RemoteProtocolError
from gantry_wire.frame import FRAME_HEAD, encode_frame
from gantry_wire.header import Header, encode_binary_header
from gantry_wire.limits import HEADER_BYTES_MAX

CASES_COUNT: Final = 6_000
MUTATED_COUNT: Final = 3_000
UNIQUE: Final = "7F0000010000000000000000000000AB"
UNIQUES: Final = (UNIQUE, UNIQUE * 2, "0123456789abcdef01234567", "id-1", "ä" * 32, 'quo"te\\d', "x", "", "a b")
NAMES: Final = (
    "color", "größe", "TAGS", "KEYS", "WAIT", "a", "UNIQ_KEY2", "MSG_REGION", "TRACE_ON", "CLUSTER", "__CRC32#",
    "POP_CK", "DELAY", "TRAN_MSG", "TIMER_DELAY_SEC", "TIMER_DELIVER_MS", "_SYS_MSG_PRIORITY_",
    "PGROUP", "INSTANCE_ID", "", "TIMER_COPY_OF", "TIMER_ROLL_TIMES", "TIMER_OUT_MS", "TRAN_PREPARED_QUEUE_OFFSET",
    "TRANSACTION_CHECK_TIMES", "GANTRY_OPEN_SINCE", "GANTRY_OUTCOME", "INNER_NUM", "INNER_BASE",
)  # fmt: skip
PLAIN_NAMES: Final = ("color", "größe", "TAGS", "KEYS", "a", "UNIQ_KEY2", "PGROUP")
VALUES: Final = (
    "blue",
    "",
    "ü 漢字",
    "one two",
    " a  b ",
    "true",
    "false",
    "FALSE",
    "1",
    "3",
    "x" * 300,
    "\u0000",
    "😀",
)


COMPILED: Final = pytest.param("compiled", marks=pytest.mark.needs_speedups)
"""The compiled class of batches, as a parameter of ``kind_of_batch``."""

pytestmark = pytest.mark.usefixtures("kind_of_batch")


@pytest.fixture
def broker(tiers_broker: Broker) -> Broker:
    return tiers_broker


class Peer:
    """A connection of which the send path sees its address and what it is sent."""

    def __init__(self) -> None:
        self.peer = ("127.0.0.1", 40_000)
        self.account = None
        self.is_backlogged = False
        self.is_authenticated = False
        self.sent: list[bytes] = []
        self.requests = self

    def resolve(self, command: Command) -> None:
        """Take the reply to a request that was never sent."""
        self.sent.append(command.encode())

    def send(self, data: bytes) -> None:
        self.sent.append(data)


def property_text(rng: random.Random) -> str:
    """Properties as some sender may write them: most are plain, some odd, some broken."""
    names = PLAIN_NAMES if rng.random() < 0.7 else NAMES
    pairs = [(rng.choice(names), rng.choice(VALUES)) for _ in range(rng.randrange(6))]
    if rng.random() < 0.9:
        unique = UNIQUE if rng.random() < 0.5 else rng.choice(UNIQUES)
        pairs.insert(rng.choice((0, rng.randint(0, len(pairs)))), ("UNIQ_KEY", unique))
    if rng.random() < 0.6:
        pairs.append(("WAIT", rng.choice(("true", "true", "true", "false", "FALSE", "no"))))
    if rng.random() < 0.8:  # most senders keep a map
        pairs = list(dict(pairs).items())
    text = "".join(f"{name}\x01{value}\x02" for name, value in pairs)
    odd = rng.random()
    if odd < 0.1:
        text = text.removesuffix("\x02")
    elif odd < 0.14:
        at = rng.randint(0, len(text))
        text = text[:at] + rng.choice(("\x01", "\x02", "\x02\x02", "\x01\x01", "\x01v\x02")) + text[at:]
    elif odd < 0.15:
        text += f"long\x01{'y' * (32_767 - len(text.encode()) - rng.randrange(120))}\x02"
    return text


def fields_of(rng: random.Random) -> dict[str, str]:
    """The other fields of a send; nearly all are usual."""
    fields = {
        "queueId": str(rng.randrange(4)),
        "sysFlag": str(rng.choice((0, 0, 1, 4, 8, 12, 16, 32, 63, -1))),
        "bornTimestamp": str(rng.choice((1_700_000_000_000, 0, -5))),
        "flag": str(rng.choice((0, 0, 7, -1))),
        "properties": property_text(rng),
    }
    for name, usual, unusual in (
        ("reconsumeTimes", "0", "2"), ("batch", "false", "true"), ("unitMode", "false", "true"),
        ("queueId", "0", "4"), ("queueId", "0", "-1"), ("queueId", "0", "no number"),
        ("topic", TOPIC, "%RETRY%unknown"), ("flag", "0", "2147483648"),
    ):  # fmt: skip
        odd = rng.random()
        if odd < 0.01:
            fields[name] = unusual
        elif odd < 0.3 and name not in ("topic", "queueId", "flag"):
            fields[name] = usual
    if rng.random() < 0.02:
        del fields["properties"]
    return fields


def frame(rng: random.Random) -> bytes:
    """One request as Java's, Go's or some other client would write it."""
    code = rng.choice((10, 310))
    fields = fields_of(rng)
    ext = send_ext(code, **fields)
    if "properties" not in fields:
        del ext["properties" if code == 10 else "i"]
    flag, opaque = rng.choice((0, 0, 2)), rng.randrange(1 << 31)
    body = b"" if rng.random() < 0.01 else rng.randbytes(rng.choice((1, 20, 3_000)))
    if rng.random() < 0.3:
        header = Header(code=code, opaque=opaque, flag=flag, language="GO", version=317, ext=ext)
        return encode_frame(encode_binary_header(header), body, 1)
    document: dict[str, Any] = {"code": code}
    if rng.random() < 0.5:  # Go's order; numbers as numbers, as some write them
        document |= {"language": "GO", "version": 317, "opaque": opaque, "flag": flag, "remark": "", "extFields": ext}
    else:
        document |= {"extFields": ext, "flag": flag, "language": "JAVA", "opaque": opaque, "version": 479}
    text = json.dumps(document, ensure_ascii=rng.random() < 0.5, separators=(",", ":"))
    return encode_frame(text.encode(), body)


def random_requests(seed: int, count: int = CASES_COUNT) -> Iterator[bytes]:
    rng = random.Random(seed)
    return (frame(rng) for _ in range(count))


@pytest.fixture
def slow_sends(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The codes of sends that came to the slow path."""
    codes: list[int] = []
    handle = SendHandlers.handle

    def count(self: SendHandlers, command: Command, connection: Any) -> bytes | None:
        codes.append(command.code)
        return handle(self, command, connection)

    monkeypatch.setattr(SendHandlers, "handle", count)
    return codes


Outcome = tuple[list[Any], list[Any], set[int], bytes]


def outcome(broker: Broker, data: bytes, handle: Callable[[bytes, Any], tuple[int, bytes]]) -> Outcome:
    """Return the drafts that a frame put into the pass, and its immediate answer; the pass is emptied."""
    path, peer = broker.send_path, Peer()
    consumed, replies = handle(data, peer)
    assert consumed == len(data)
    batch = path.batch
    found = (
        [tuple(draft) for draft in batch.to_drafts()],
        list(batch.answers),
        set(batch.impatient),
        replies + b"".join(peer.sent),
    )
    path.batch = send_batch.new_batch()
    path._runs.clear()
    path._hosts.clear()
    return found


def run_by_tiers(broker: Broker, data: bytes) -> Outcome:
    return outcome(broker, data, broker.listeners.services[0].handle)


def run_by_slow_path(broker: Broker, data: bytes, monkeypatch: pytest.MonkeyPatch) -> Outcome:
    """The same frame by the slow path alone."""
    with monkeypatch.context() as patch:
        patch.setattr(broker.send_path, "_prefix", b"\0")
        patch.setattr(broker.send_path, "_signed", None)
        patch.setattr(broker.send_path, "_permit", None)
        return outcome(broker, data, broker.listeners.services[0].handle)


def differences(broker: Broker, frames: Iterator[bytes], monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The frames that end differently by tiers and by the slow path."""
    return [data for data in frames if run_by_tiers(broker, data) != run_by_slow_path(broker, data, monkeypatch)]


@pytest.mark.verify(quick=1)
@pytest.mark.parametrize("seed", range(3))
async def test_every_tier_equals_the_slow_path(
    broker: Broker, seed: int, slow_sends: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Draft, answer and immediate reply are equal for any properties and fields; many cases avoid the slow path."""
    assert differences(broker, random_requests(seed), monkeypatch) == []

    assert CASES_COUNT < len(slow_sends) < CASES_COUNT * 1.6, "too many cases took the slow path"


def mutated_requests(seed: int, count: int) -> Iterator[bytes]:
    """Requests of which a few bytes of the header are changed, removed, repeated or inserted."""
    rng = random.Random(seed)
    for data in random_requests(seed, count):
        (_, type_and_header) = FRAME_HEAD.unpack_from(data)
        header, body = bytearray(data[8 : 8 + (type_and_header & 0xFFFFFF)]), data[8 + (type_and_header & 0xFFFFFF) :]
        for _ in range(rng.randint(1, 3)):
            # The code stays: other requests may answer differently each time.
            at, kind = rng.randrange(2 if type_and_header >> 24 else 12, len(header)), rng.random()
            if kind < 0.4:
                header[at] = rng.choice(
                    b'"\\\\{}[]:,-0129 eE.+tfn\x00\x01\x02\x1f\x7f\x80\xc3\xff' + bytes((rng.randrange(256),))
                )
            elif kind < 0.6:
                del header[at : at + rng.randint(1, 4)]
            elif kind < 0.8:
                header[at:at] = header[at : at + rng.randint(1, 12)]
            else:
                piece = (
                    b'"opaque":7,',
                    b'"flag":2,',
                    b'"e":"1",',
                    b"\\u0041",
                    b"\\n",
                    b"null",
                    b"1.0",
                    b"{}",
                    b"\xc3\xbc",
                )
                header[at:at] = rng.choice(piece)
        yield encode_frame(bytes(header), body, type_and_header >> 24)


@pytest.mark.verify(quick=1)
@pytest.mark.parametrize("kind_of_batch", [COMPILED], indirect=True)
@pytest.mark.parametrize("seed", range(3))
async def test_damaged_headers_end_alike_in_both_batches(
    broker: Broker, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The compiled batch takes nothing that Python refuses or reads in another way, whichever bytes are wrong."""
    for data in mutated_requests(seed, MUTATED_COUNT):
        compiled = run_or_fail(broker, data)
        with monkeypatch.context() as context:
            context.setattr(send_batch, "CompiledSendBatch", None)
            broker.send_path.batch = send_batch.new_batch()
            expected = run_or_fail(broker, data)
        broker.send_path.batch = send_batch.new_batch()
        assert compiled == expected, data


def run_or_fail(broker: Broker, data: bytes) -> Outcome | str:
    """Return the outcome of a frame, or the error that closes its connection."""
    try:
        return run_by_tiers(broker, data)
    except RemoteProtocolError as error:
        return str(error)


@pytest.mark.verify(quick=1)
@pytest.mark.parametrize(
    ("name", "value"),
    [("OWNED_PROPERTIES", frozenset()), ("SPECIAL_PROPERTIES", frozenset({""})), ("PROPERTIES_BYTES_MAX", 1 << 20)],
)
async def test_tier_without_a_rule_is_detected(
    broker: Broker, name: str, value: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The twin: without the rule the same cases end differently."""
    monkeypatch.setattr(send_routes, name, value)
    monkeypatch.setattr(
        send_routes, "_CHECKED_PROPERTIES", send_routes.SPECIAL_PROPERTIES | vars(send_routes)["OWNED_PROPERTIES"]
    )

    assert differences(broker, random_requests(0), monkeypatch) != []


def plain_frame(code: int, serialization: int, text: str) -> bytes:
    ext = send_ext(code, properties=text)
    if serialization:
        return encode_frame(encode_binary_header(Header(code=code, opaque=1, version=317, ext=ext)), b"x", 1)
    document = {"code": code, "language": "GO", "opaque": 1, "flag": 0, "extFields": ext}
    return encode_frame(json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode(), b"x")


@pytest.mark.parametrize("serialization", [0, 1], ids=["json", "binary"])
@pytest.mark.parametrize("code", [10, 310])
@pytest.mark.parametrize(
    "text",
    [
        properties_text(TAGS="t", UNIQ_KEY=UNIQUE, WAIT="true"),
        properties_text(colour="grün", KEYS="key-1 key-2", UNIQ_KEY=UNIQUE, WAIT="true", TAGS="red"),
        properties_text(UNIQ_KEY="not-32-letters", WAIT="true"),
        properties_text(UNIQ_KEY=UNIQUE, KEYS="k"),
        properties_text(TAGS="t"),
        properties_text(UNIQ_KEY=UNIQUE, CLUSTER="other", TRACE_ON="false", **{"__CRC32#": "123"}),
        properties_text(UNIQ_KEY=UNIQUE, WAIT="false", TAGS="t"),
        "",
    ],
    ids=["id not first", "java with keys", "short id", "keys", "no id", "forwarded", "does not wait", "nothing"],
)
async def test_senders_unlike_java_avoid_the_slow_path(
    broker: Broker, code: int, serialization: int, text: str, slow_sends: list[int]
) -> None:
    """Go, C++, Rust, Node and raw senders, and Java's with keys: a message is put into the pass without a
    `Command`."""
    drafts, answers, _, reply = run_by_tiers(broker, plain_frame(code, serialization, text))

    assert (len(drafts), len(answers), reply) == (1, 1, b"")
    assert slow_sends == []


@pytest.mark.parametrize("kind_of_batch", ["python"], indirect=True)
async def test_shape_is_cached_by_the_second_tier_for_the_first(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Properties are parsed for the first message of a shape only. The compiled batch has no shapes."""
    monkeypatch.setattr(broker.send_path, "put_send", count_calls(broker.send_path.put_send))
    text = properties_text(UNIQ_KEY=UNIQUE, WAIT="true", TAGS="new")

    first = run_by_tiers(broker, plain_frame(310, 0, text))
    second = run_by_tiers(broker, plain_frame(310, 0, text))

    assert first == second
    assert broker.send_path.put_send.calls == 1  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "text_keys",
    ["a", "key-1 key-2", "", " a  b ", "größe 漢字 😀", "a\x01b", "x" * 30_000, "x" * 32_600, UNIQUE, f"k {UNIQUE}"],
)
@pytest.mark.parametrize("more", ["TAGS\x01t\x02", "", "KEYS\x01again\x02", "KEYS\x01\x02", "WAIT\x01false\x02"])
async def test_keys_before_the_id_are_no_part_of_a_shape(
    broker: Broker, text_keys: str, more: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Java writes keys first: messages that differ by keys and id share a shape, and other keys never get one."""
    rest = f"UNIQ_KEY\x01{UNIQUE}\x02{more}"
    for text in (f"KEYS\x01k\x02{rest}", f"KEYS\x01{text_keys}\x02{rest}", rest, f"KEYS\x01{text_keys}\x02{rest}"):
        data = plain_frame(310, 0, text)
        assert run_by_tiers(broker, data) == run_by_slow_path(broker, data, monkeypatch)
    tails = set(broker.core.send_routes.by_topic[TOPIC].shapes)
    assert not any("KEYS" in tail for tail in tails)


@pytest.mark.parametrize("kind_of_batch", [COMPILED], indirect=True)
@pytest.mark.parametrize("serialization", [0, 1], ids=["json", "binary"])
@pytest.mark.parametrize("code", [10, 310])
async def test_usual_forms_never_leave_the_compiled_path(
    broker: Broker, code: int, serialization: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keys, names of one's own, wide characters, any order, no id: no frame comes to the Python path."""
    monkeypatch.setattr(broker.send_path, "put_send", count_calls(broker.send_path.put_send))
    texts = (
        properties_text(UNIQ_KEY=UNIQUE, WAIT="true", TAGS="t"),
        properties_text(colour="grün", KEYS="key-1 key-2", UNIQ_KEY=UNIQUE, WAIT="false", TAGS="größe"),
        properties_text(UNIQ_KEY="not-32-letters", PGROUP="g"),
        properties_text(TAGS="t"),
        "",
    )
    data = b"".join(plain_frame(code, serialization, text) for text in texts)
    # Escapes of characters outside of ASCII are not usual: Java, Go, C++ and Rust write these as they are.
    assert b"\\u00fc" not in data

    drafts, _, impatient, _ = run_by_tiers(broker, data)

    assert (len(drafts), impatient) == (5, {1})
    assert broker.send_path.put_send.calls == 0  # type: ignore[attr-defined]


def count_calls(call: Callable[..., Any]) -> Any:
    def wrapper(*given: Any) -> Any:
        wrapper.calls += 1  # type: ignore[attr-defined]
        return call(*given)

    wrapper.calls = 0  # type: ignore[attr-defined]
    return wrapper


async def test_refused_sends_are_refused_in_every_tier(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a broker takes no sends, a message by the second tier is answered as every other is."""
    monkeypatch.setattr(broker.core.gate, "write_refusal", Refusal(ResponseCode.SERVICE_NOT_AVAILABLE, "no", None))

    for code, serialization in ((10, 0), (10, 1), (310, 0), (310, 1)):
        drafts, answers, _, reply = run_by_tiers(broker, plain_frame(code, serialization, properties_text(TAGS="t")))
        assert (drafts, answers) == ([], [])
        assert b'"code":14' in reply


@pytest.mark.parametrize("serialization", [0, 1, 2, 255])
async def test_header_over_the_limit_is_an_error(broker: Broker, serialization: int) -> None:
    """In both encodings, and although the whole frame has arrived; so is a header of an unknown encoding."""
    size = HEADER_BYTES_MAX + 1 if serialization < 2 else 21
    peer: Any = Peer()

    with pytest.raises(RemoteProtocolError, match="exceeds the limit" if serialization < 2 else "unknown header"):
        broker.listeners.services[0].handle(encode_frame(bytes(size), b"", serialization), peer)


# ------- the log itself


async def test_tiers_and_slow_path_write_the_same_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two brokers at the same address and time, the same frames, several to a pass: one log, one stream of replies."""
    frames = list(random_requests(20, 1_500))
    port = str(free_ports(1)[0])
    found = []
    for name in ("tiers", "slow path"):
        async with running_broker(tmp_path / name, clock=FakeClock(), disk=RealDisk(), listenPort=port) as broker:
            async with dialogue(broker) as client:
                await client.send_ok(queueId="3", bornTimestamp="1")
            make_predictable(broker, monkeypatch)
            start = broker.store.log.wrote
            if name == "slow path":
                monkeypatch.setattr(broker.send_path, "_prefix", b"\0")
            found.append(log_and_replies(broker, frames, start))

    (tiers, replies), (slow, expected) = found
    assert len(tiers) > 500_000
    assert tiers == slow
    assert replies == expected


def log_and_replies(broker: Broker, frames: list[bytes], start: int) -> tuple[bytes, list[bytes]]:
    peer: Any = Peer()
    rng = random.Random(1)
    waiting = frames[:]
    while waiting:
        count = rng.randint(1, 20)
        data, waiting = b"".join(waiting[:count]), waiting[count:]
        _, replies = broker.listeners.services[0].handle(data, peer)
        peer.sent.append(replies)
        broker.send_path.flush()
    return b"".join(records_from(broker, start)), peer.sent


def records_from(broker: Broker, start: int) -> Iterator[bytes]:
    while start < broker.store.log.wrote:
        record = broker.store.guard.message_at(start)
        if record is None:
            return
        yield bytes(record)
        start += len(record)


# ------- with access control


def signed_frame(data: bytes, credentials: Credentials = ORDERS) -> bytes | None:
    """The same request, signed as RocketMQ's clients sign; None when it cannot be."""
    total, type_and_header = FRAME_HEAD.unpack_from(data)
    assert total + 4 == len(data)
    if type_and_header >> 24:
        return None
    header, body = data[8 : 8 + type_and_header], data[8 + type_and_header :]
    document = json.loads(header)
    command = Command(code=document["code"], ext=document["extFields"], body=body)
    sign = signer(credentials)
    assert sign is not None
    sign(command)
    document["extFields"] = command.ext
    return encode_frame(json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode(), body)


async def test_signed_sends_equal_the_slow_path(
    tmp_path: Path, slow_sends: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With access control on the same holds, and signed sends with code 310 can avoid the slow path."""
    async with guarded_broker(tmp_path) as broker:
        async with signed_dialogue(broker, ADMIN) as admin:
            await admin.send_ok(queueId="3")
        make_predictable(broker, monkeypatch)
        slow_sends.clear()
        frames = [signed for signed in map(signed_frame, random_requests(7, 2_500)) if signed is not None]

        assert differences(broker, iter(frames), monkeypatch) == []
        slow_count = sum(code == 310 for code in slow_sends)
        assert slow_count < 1.9 * sum(SEND_V2_PREFIX in data for data in frames), "too many took the slow path"


async def test_sends_in_one_read_are_permitted_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several accounts, topics and wrong secrets in the bytes of one read: none gets the permission of another."""
    wrong, unknown = Credentials(ORDERS.access_key, "wrong"), Credentials("unknown-key", ORDERS.secret_key)
    rng = random.Random(5)
    async with guarded_broker(tmp_path) as broker:
        async with signed_dialogue(broker, ADMIN) as admin:
            for topic in (TOPIC, "Billing"):
                await admin.send_ok(topic=topic, queueId="3")
        make_predictable(broker, monkeypatch)
        counts = set()
        for _ in range(300):
            frames = []
            for number in range(6):
                topic, credentials = (
                    rng.choice((TOPIC, "Billing")),
                    rng.choice((ORDERS, ADMIN, BILLING, wrong, unknown)),
                )
                ext = send_ext(310, topic=topic, properties=properties_text(UNIQ_KEY=UNIQUE, WAIT="true"))
                document = {"code": 310, "extFields": ext, "flag": 0, "language": "JAVA", "opaque": number}
                header = json.dumps(document, separators=(",", ":")).encode()
                frames.append(signed_frame(encode_frame(header, b"%d" % number), credentials) or b"")

            found = run_by_tiers(broker, b"".join(frames))

            assert found == run_by_slow_path(broker, b"".join(frames), monkeypatch)
            counts.add(len(found[0]))
        assert len(counts) > 4
