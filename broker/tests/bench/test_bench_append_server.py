"""The C server of the benchmarks: what it stores is read by Gantry's own readers, and what it answers by its client.

A server that stores less than a broker must would be no lower limit, so records, checksums and queue units are checked
byte by byte; its speed is not.
"""

from __future__ import annotations

import random
import socket
import struct
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from gantry_bench import append_server, errors, loadgen, machine, measurement

from gantry_testing.local import properties_text, send_ext
from gantry_wire.batch import BatchEntry, encode_batch
from gantry_wire.command import Command, decode_command
from gantry_wire.frame import Frame, FrameReader, encode_frame
from gantry_wire.header import Header, encode_binary_header
from gantry_wire.message import StoredMessage, decode_record

pytestmark = pytest.mark.needs_cc
UNIQUE = "7F00000100002A139A554C0F0000000A"
UNIT = struct.Struct(">qiq")
LOG_FILE_BYTES = 16 << 20


@pytest.fixture
def server(tmp_path: Path) -> Iterator[loadgen.Target]:
    """A running server with its log in `store`."""
    with append_server.start_append_server(tmp_path / "store", core=None, log_file_bytes=LOG_FILE_BYTES) as target:
        yield target


def exchange(target: loadgen.Target, frames: Sequence[bytes]) -> list[Command]:
    """Send all frames in one write, and return as many answers as there are frames."""
    host, _, port = target.address.rpartition(":")
    reader, answers = FrameReader(), list[Frame]()
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        connection.sendall(b"".join(frames))
        while len(answers) < len(frames):
            data = connection.recv(1 << 16)
            assert data, "the server closed the connection"
            answers += reader.feed(data)
    return [decode_command(answer) for answer in answers]


def records(folder: Path) -> list[StoredMessage]:
    """Return the records of the first log file; every checksum is verified."""
    data = (folder / f"{0:020}").read_bytes()
    found: list[StoredMessage] = []
    position = 0
    while data[position : position + 4] != bytes(4):
        found.append(decode_record(data, position))
        position += found[-1].size
    return found


def units(folder: Path, queue_id: int, count: int) -> list[tuple[int, int, int]]:
    """Return the first units of a queue."""
    data = (folder / f"queue-{queue_id:020}").read_bytes()
    return [UNIT.unpack_from(data, number * UNIT.size) for number in range(count)]


def request(code: int, body: bytes, *, opaque: int, is_binary: bool = False, **ext: str) -> bytes:
    """Return the frame of a send with these fields."""
    fields = {**send_ext(code, properties=properties_text(UNIQ_KEY=UNIQUE, TAGS="grün", WAIT="true")), **ext}
    if is_binary:
        header = Header(code=code, opaque=opaque, language="JAVA", version=479, ext=fields)
        return encode_frame(encode_binary_header(header), body, 1)
    return Command(code=code, opaque=opaque, ext=fields, body=body).encode()


@pytest.mark.parametrize("is_binary", [False, True], ids=["JSON", "binary"])
@pytest.mark.parametrize("code", [310, 10])
def test_stored_send_is_a_record_and_a_unit(server: loadgen.Target, tmp_path: Path, code: int, is_binary: bool) -> None:
    """Gantry's reader accepts the record, with the properties as they were sent, and the answer names its place."""
    bodies = [random.Random(size).randbytes(size) for size in (1, 63, 64, 80, 1024, 1027)]

    answers = exchange(
        server, [request(code, body, opaque=100 + i, is_binary=is_binary) for i, body in enumerate(bodies)]
    )

    stored = records(tmp_path / "store")
    assert [message.body for message in stored] == bodies
    assert [message.body_crc for message in stored] == [zlib.crc32(body) & 0x7FFFFFFF for body in bodies]
    assert stored[0].properties == {"UNIQ_KEY": UNIQUE, "TAGS": "grün", "WAIT": "true"}
    assert [message.queue_offset for message in stored] == list(range(len(bodies)))
    queue_id = stored[0].queue_id
    assert units(tmp_path / "store", queue_id, len(bodies)) == [(m.physical_offset, m.size, 0) for m in stored]
    assert [(answer.code, answer.opaque, answer.flag) for answer in answers] == [(0, 100 + i, 1) for i in range(6)]
    for message, answer in zip(stored, answers, strict=True):
        assert answer.ext["msgId"] == message.offset_message_id
        assert answer.ext["queueOffset"] == str(message.queue_offset)
        assert answer.ext["queueId"] == str(queue_id)
        assert answer.ext["transactionId"] == UNIQUE


def test_batch_is_stored_message_by_message(server: loadgen.Target, tmp_path: Path) -> None:
    """Each message of a batch has its own record, and the answer names all of them."""
    entries = [BatchEntry(flag, bytes([flag]) * 300, f"UNIQ_KEY\x01{flag:032}\x02".encode()) for flag in (1, 2, 3)]

    [answer] = exchange(server, [request(320, encode_batch(entries), opaque=7, m="true")])

    stored = records(tmp_path / "store")
    assert [(m.flag, m.body, m.properties_bytes) for m in stored] == [tuple(entry) for entry in entries]
    assert answer.ext["msgId"] == ",".join(message.offset_message_id for message in stored)
    assert answer.ext["queueOffset"] == "0"


def test_log_continues_in_the_next_file(server: loadgen.Target, tmp_path: Path) -> None:
    """A record that does not fit is the first of the next file, after a blank record."""
    body = bytes(1 << 20)

    answers = exchange(server, [request(310, body, opaque=i) for i in range(17)])

    assert {answer.code for answer in answers} == {0}
    first = decode_record((tmp_path / "store" / f"{LOG_FILE_BYTES:020}").read_bytes())
    assert first.physical_offset == LOG_FILE_BYTES
    assert first.body == body
    assert int(answers[first.queue_offset].ext["msgId"][16:], 16) == LOG_FILE_BYTES


def test_one_way_send_has_no_answer(server: loadgen.Target, tmp_path: Path) -> None:
    """The next send is answered first, with the offset after that of the one-way send."""
    silent = Command(code=310, opaque=1, flag=2, ext=send_ext(310), body=b"silent").encode()

    [answer] = exchange(server, [silent + request(310, b"loud", opaque=2)])

    assert (answer.opaque, answer.ext["queueOffset"]) == (2, "1")
    assert [message.body for message in records(tmp_path / "store")] == [b"silent", b"loud"]


@pytest.mark.parametrize(
    "data",
    [
        Command(code=34, opaque=1).encode(),
        b"\x00\x00\x00\x08\x00\x00\x00\x05abcdefgh",
        b"\x7f\xff\xff\xff\x00\x00\x00\x00",
        request(310, b"x", opaque=1, e="-1"),
        request(310, b"x", opaque=1, e="99999"),
        request(320, b"\x00\x00\x00\xff" + bytes(30), opaque=1),
        encode_frame(b'{"code":310,"extFields":{"b":"topic', b"x"),
    ],
    ids=["another request", "header too long", "frame too long", "queue -1", "queue 99999", "batch", "cut header"],
)
def test_other_frames_close_their_connection(server: loadgen.Target, data: bytes) -> None:
    """A frame that is no send ends its own connection, and the server continues with others."""
    with pytest.raises(AssertionError, match="closed the connection"):
        exchange(server, [data])

    [answer] = exchange(server, [request(310, b"next", opaque=5)])
    assert answer.code == 0


@pytest.mark.verify(quick=2)
@pytest.mark.needs_go
@pytest.mark.parametrize("name", list(measurement.SENDERS))
def test_load_generator_finds_no_wrong_answer(
    server: loadgen.Target, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Every sender of the benchmark is served, in batches and one by one."""
    monkeypatch.setattr(machine, "WARM_BYTES_MAX", machine.WARM_STEP_BYTES)
    load = loadgen.LoadGenerator(loadgen.build(), core=None)
    timing = loadgen.Timing(warm_up_ms=10, duration_ms=50)
    account = ("key", "secret") if measurement.SENDERS[name].is_signed else None
    target = loadgen.Target(server.address, server.process_id, is_echo=False, account=account)

    for mode in (measurement.MODES["a"], measurement.MODES["b"]):
        report = load.run(mode, 200, sender=measurement.SENDERS[name], target=target, timing=timing).report
        assert report.errors == 0
        assert report.messages > 0
        assert report.load.code == measurement.SENDERS[name].code


def test_missing_compiler_gives_one_line_with_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the packages, and the benchmark continues with it as the reason."""
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(errors.BenchmarkFailed, match="apt-get install gcc libc6-dev"):
        append_server.build()
    assert append_server.missing_reason().startswith("a C compiler (cc, gcc or clang) is missing")


def test_warning_of_the_compiler_is_an_error(tmp_path: Path) -> None:
    """The message of the compiler is shown."""
    (tmp_path / append_server.PROGRAM).write_text("int main(void) { int unused; return 0; }\n")

    with pytest.raises(errors.BenchmarkFailed, match="unused"):
        append_server.build(tmp_path)
