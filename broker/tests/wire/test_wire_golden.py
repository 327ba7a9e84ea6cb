"""Captured frames of Java clients and Apache's servers, decoded and encoded again by gantry_wire.

The frames were captured by `make interop`'s recorder (`e2e/interop/run.py record`): those in `golden/` with servers of
RocketMQ 5.3.3, those in its folders with servers of the version in the folder's name. A `frames.json` describes how.
They check the wire package with bytes that it has not written itself.
"""

import hashlib
import struct
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gantry_wire import (
    Command,
    Frame,
    FrameReader,
    LocalProtocolError,
    Serialization,
    decode_command,
    decode_records,
    encode_record,
)
from gantry_wire.batch import decode_batch, encode_batch
from gantry_wire.commands import admin, clients, nameserver, offsets, pop, pull, send
from gantry_wire.commands.documents import read_document, write_document
from gantry_wire.commands.fields import Fields
from gantry_wire.fastjson import loads
from gantry_wire.message import check_record

GOLDEN = Path(__file__).parents[1] / "golden"
SUCCESS = 0


@dataclass(frozen=True)
class Golden:
    """One captured frame and its line in the index."""

    name: str
    code: int
    request_code: int
    response_code: int | None
    direction: str
    client: str
    serialization: str
    oneway: bool
    variant: str
    sha256: str
    captured: str
    folder: Path = GOLDEN

    @property
    def raw(self) -> bytes:
        return (self.folder / f"{self.name}.bin").read_bytes()

    @property
    def id(self) -> str:
        return (self.folder / self.name).relative_to(GOLDEN).as_posix()

    def command(self) -> Command:
        return decode_command(only_frame(self.raw))


def only_frame(raw: bytes) -> Frame:
    reader = FrameReader()
    (frame,) = reader.feed(raw)
    assert reader.buffered_bytes == 0
    return frame


def read_indexes() -> list[Golden]:
    """Return the frames of every recording."""
    return [
        replace(golden, folder=path.parent)
        for path in sorted(GOLDEN.glob("**/frames.json"))
        for golden in msgspec.json.decode(path.read_bytes(), type=list[Golden])
    ]


INDEX = read_indexes()
CLIENTS = sorted({(golden.folder, golden.client) for golden in INDEX if golden.client.startswith("client-")})


def frames(*request_codes: int, reply: bool, codes: set[int] | None = None, with_body: bool = False) -> list[Any]:
    """Return the frames of some request codes as pytest parameters; an empty selection is an error of this file."""
    chosen = [
        golden
        for golden in INDEX
        if golden.request_code in request_codes
        and (golden.response_code is not None) == reply
        and (codes is None or golden.code in codes)
        and (not with_body or golden.command().body)
    ]
    if not chosen:
        raise LookupError(f"no golden frame for {request_codes}, reply={reply}")
    return [pytest.param(golden, id=golden.id) for golden in chosen]


EACH_FRAME = pytest.mark.parametrize("golden", [pytest.param(golden, id=golden.id) for golden in INDEX])

MINIMAL_CLIENT_CODES = {11, 12, 14, 15, 17, 29, 30, 31, 32, 33, 34, 35, 36, 37, 38, 41, 42, 46, 105, 310, 320, 325}
SERVER_CODES = {39, 40, 326}
"""Requests that a broker sends to its clients."""

EMPTY_ATTRIBUTES = b"\0\x0aattributes" + bytes(4)
"""A field with an empty value: Java writes one when it creates a topic, and reads it as no field at all."""

REQUEST_FIELDS: dict[int, type[Fields]] = {
    10: send.SendMessage,
    310: send.SendMessageV2,
    320: send.SendMessageV2,
    36: send.SendBack,
    11: pull.PullMessage,
    361: pull.PullMessage,
    12: pull.QueryMessage,
    200050: pop.PopMessage,
    200051: pop.AckMessage,
    200053: pop.ChangeInvisibleTime,
    200054: pop.Notification,
    33: pull.ViewMessage,
    14: offsets.QueryConsumerOffset,
    15: offsets.UpdateConsumerOffset,
    29: offsets.SearchOffset,
    30: offsets.QueueAddress,
    31: offsets.QueueAddress,
    32: offsets.QueueAddress,
    35: clients.UnregisterClient,
    38: clients.ConsumerGroup,
    40: clients.ConsumerGroup,
    17: admin.CreateTopic,
    103: nameserver.RegisterBroker,
    104: nameserver.UnregisterBroker,
    105: nameserver.QueryRoute,
    322: nameserver.QueryDataVersion,
}

REPLY_FIELDS: dict[int, type[Fields]] = {
    10: send.SendResult,
    310: send.SendResult,
    320: send.SendResult,
    11: pull.PullResult,
    361: pull.PullResult,
    12: pull.QueryMessageResult,
    200050: pop.PopResult,
    200053: pop.ChangeInvisibleTimeResult,
    200054: pop.NotificationResult,
    14: offsets.OffsetResult,
    29: offsets.OffsetResult,
    30: offsets.OffsetResult,
    31: offsets.OffsetResult,
    32: offsets.TimestampResult,
    322: nameserver.QueryDataVersionResult,
}

REQUEST_DOCUMENTS: dict[int, type[msgspec.Struct]] = {
    34: clients.HeartbeatData,
    41: clients.LockBatch,
    42: clients.LockBatch,
    46: clients.CheckClientConfig,
    103: nameserver.RegisterBrokerBody,
    322: admin.DataVersion,
    400: pop.QueryAssignment,
    401: pop.MessageRequestMode,
    200151: pop.BatchAckMessages,
}

REPLY_DOCUMENTS: dict[int, type[msgspec.Struct]] = {
    41: clients.LockBatchResult,
    105: nameserver.TopicRoute,
    106: nameserver.ClusterInfo,
    322: admin.DataVersion,
    400: pop.QueryAssignmentResult,
    402: pop.MessageRequestModes,
}

RECORD_REPLIES = (11, 361, 12, 33, 200050)


def test_index_lists_every_file_with_its_digest() -> None:
    """An edited, missing or manually added frame is detected."""
    on_disk = {path.relative_to(GOLDEN).with_suffix("").as_posix() for path in GOLDEN.glob("**/*.bin")}

    assert on_disk == {golden.id for golden in INDEX}
    for golden in INDEX:
        assert hashlib.sha256(golden.raw).hexdigest() == golden.sha256, golden.id
        assert golden.captured.endswith("."), golden.id


@pytest.mark.parametrize(("folder", "client"), [pytest.param(*one, id=f"{one[0].name}-{one[1]}") for one in CLIENTS])
@pytest.mark.parametrize("serialization", ["json", "binary"])
def test_recording_is_complete(folder: Path, client: str, serialization: str) -> None:
    """A recording without a request code of the ordinary clients is not accepted."""
    recorded = [
        golden
        for golden in INDEX
        if (golden.folder, golden.client, golden.serialization) == (folder, client, serialization)
    ]
    captured = {golden.request_code for golden in recorded if golden.response_code is None}

    old_send_codes = {10} if serialization == "json" else set()
    assert captured >= MINIMAL_CLIENT_CODES | SERVER_CODES | old_send_codes
    assert any(golden.request_code == 361 or golden.variant.startswith("lite") for golden in recorded), (
        "expected a lite pull: code 361 of the 5.x client, or code 11 with a flag of the 4.9 client"
    )


@EACH_FRAME
def test_a_captured_frame_decodes(golden: Golden) -> None:
    """Every frame is one command, with the code and the role that the recorder noted."""
    frame = only_frame(golden.raw)
    command = decode_command(frame)

    assert command.code == golden.code
    assert command.is_reply == (golden.response_code is not None)
    assert (command.is_oneway and not command.is_reply) == golden.oneway
    assert (
        Serialization(frame.serialization)
        is Serialization.__members__[{"json": "JSON", "binary": "ROCKETMQ"}[golden.serialization]]
    )
    assert command.language == "JAVA"


@EACH_FRAME
def test_a_captured_frame_decodes_in_pieces(golden: Golden) -> None:
    """The decoded command does not depend on how the bytes arrive."""
    raw = golden.raw
    reader = FrameReader()
    step = max(1, len(raw) // 97)

    found = [frame for start in range(0, len(raw), step) for frame in reader.feed(raw[start : start + step])]

    assert found == [only_frame(raw)]
    assert reader.buffered_bytes == 0


@EACH_FRAME
def test_captured_commands_round_trip(golden: Golden) -> None:
    """A captured command encoded again in either form is equivalent; only the binary form has no empty texts."""
    command = golden.command()

    assert decode_command(only_frame(command.encode(Serialization.JSON))) == command
    if command.code <= 32767:
        assert decode_command(only_frame(command.encode(Serialization.ROCKETMQ))) == without_empty_texts(command)
    else:
        with pytest.raises(LocalProtocolError):
            command.encode(Serialization.ROCKETMQ)


def without_empty_texts(command: Command) -> Command:
    ext = {name: value for name, value in command.ext.items() if value}
    return msgspec.structs.replace(command, ext=ext, remark=command.remark or None)


@pytest.mark.parametrize(
    "golden", [pytest.param(golden, id=golden.id) for golden in INDEX if golden.serialization == "binary"]
)
def test_a_binary_frame_is_written_as_java_writes_it(golden: Golden) -> None:
    """The binary form is unique: encoded again it has the same bytes, apart from an empty field."""
    raw = golden.raw
    if EMPTY_ATTRIBUTES in raw:
        raw = without_empty_attributes(raw)

    assert golden.command().encode(Serialization.ROCKETMQ) == raw


def without_empty_attributes(raw: bytes) -> bytes:
    """Return the frame without the field; its three lengths (frame, header, map after an empty remark) shrink."""
    less = len(EMPTY_ATTRIBUTES)
    shorter = bytearray(raw.replace(EMPTY_ATTRIBUTES, b"", 1))
    for position in (0, 4, 25):
        (length,) = struct.unpack_from(">I", raw, position)
        struct.pack_into(">I", shorter, position, length - less)
    return bytes(shorter)


@pytest.mark.parametrize("golden", frames(*REQUEST_FIELDS, reply=False))
def test_captured_request_fields_round_trip(golden: Golden) -> None:
    """A request's map becomes the typed request and back, without a changed value."""
    command = golden.command()

    written = REQUEST_FIELDS[golden.request_code].read(command.ext).write()

    assert written.items() <= command.ext.items()


@pytest.mark.parametrize("golden", frames(*REPLY_FIELDS, reply=True, codes={SUCCESS}))
def test_captured_reply_fields_round_trip(golden: Golden) -> None:
    """A reply's map becomes the typed reply and back, without a changed value."""
    command = golden.command()

    written = REPLY_FIELDS[golden.request_code].read(command.ext).write()

    assert written
    assert written.items() <= command.ext.items()


@pytest.mark.parametrize("golden", frames(*REQUEST_DOCUMENTS, reply=False, with_body=True))
def test_captured_request_body_round_trips(golden: Golden) -> None:
    """A request's JSON body becomes the typed document, and its encoding reads the same."""
    kind = REQUEST_DOCUMENTS[golden.request_code]

    body = golden.command().body

    document = read_document(body, kind)

    written = write_document(document)
    assert read_document(written, kind) == document
    assert disagreements(loads(written), loads(body)) == []


@pytest.mark.parametrize("golden", frames(*REPLY_DOCUMENTS, reply=True, codes={SUCCESS}, with_body=True))
def test_captured_reply_body_round_trips(golden: Golden) -> None:
    """A reply's JSON body becomes the typed document, and its encoding reads the same."""
    kind = REPLY_DOCUMENTS[golden.request_code]
    body = golden.command().body

    document = read_document(body, kind)

    written = write_document(document)
    assert read_document(written, kind) == document
    assert disagreements(loads(written), loads(body)) == []


def disagreements(written: Any, captured: Any, place: str = "") -> list[str]:
    """Return where two JSON values differ. A value on one side only counts as a default, if they share any."""
    if isinstance(written, dict) and isinstance(captured, dict):
        ours = {str(key): value for key, value in written.items()}
        theirs = {str(key): value for key, value in captured.items()}
        shared = ours.keys() & theirs.keys()
        if ours and theirs and not shared:
            return [f"{place}: no key in common"]
        return [found for key in sorted(shared) for found in disagreements(ours[key], theirs[key], f"{place}.{key}")]
    if isinstance(written, list) and isinstance(captured, list):
        if len(written) != len(captured):
            return [f"{place}: {len(written)} items, not {len(captured)}"]
        pairs = enumerate(zip(written, captured, strict=True))
        return [found for index, (a, b) in pairs for found in disagreements(a, b, f"{place}[{index}]")]
    return [] if written == captured else [f"{place}: {written!r}, not {captured!r}"]


@pytest.mark.parametrize("golden", frames(*RECORD_REPLIES, reply=True, codes={SUCCESS}))
def test_records_in_a_captured_reply_round_trip(golden: Golden) -> None:
    """Messages in a reply of Apache's broker decode, their CRC is correct, and encoding gives the same record."""
    body = golden.command().body

    messages = decode_records(body)

    assert messages
    position = 0
    for message in messages:
        assert check_record(body, position, verify_crc=True).fault is None
        assert encode_record(message) == body[position : position + message.size]
        position += message.size
    assert position == len(body)


@pytest.mark.parametrize("golden", frames(320, reply=False))
def test_captured_batch_round_trips(golden: Golden) -> None:
    """The body of a captured batch has the recorded messages, and encoding gives the same batch."""
    body = golden.command().body

    entries = decode_batch(body)

    assert [bytes(entry.body) for entry in entries] == [f"message {n} of a batch".encode() for n in range(3)]
    assert encode_batch(entries) == body


@pytest.mark.parametrize(
    "golden",
    [
        pytest.param(golden, id=golden.id)
        for golden in INDEX
        if golden.request_code not in RECORD_REPLIES and golden.serialization == "json"
    ],
)
def test_json_dialect_in_captured_bodies_is_read(golden: Golden) -> None:
    """Java's dialect of JSON (bare numbers and objects as keys) is read wherever Java writes it."""
    body = golden.command().body
    if body[:1] not in (b"{", b"["):
        return

    assert isinstance(loads(body), dict | list)
