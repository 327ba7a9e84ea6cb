"""The log over HTTP, from both listeners: the bytes of the files, never beyond what is safe, and 410 if deleted."""

from __future__ import annotations

import hashlib
import os
import signal
import socket
import struct
import threading
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from admin_scene import (
    READ_TOKEN,
    BrokerChild,
    SidecarChild,
    broker_process,
    sidecar_process,
    wait_for,
    write_token_files,
)

from gantry_wire.message import decode_records

SEGMENT = 1 << 20
MESSAGES = 1_500
SMALL = {"mappedFileSizeCommitLog": str(SEGMENT), "maxMessageSize": "65536"}


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[BrokerChild, SidecarChild]]:
    """A log of two files of 1 MiB, and its sidecar with tokens."""
    store = tmp_path_factory.mktemp("store")
    tokens = write_token_files(tmp_path_factory.mktemp("tokens"))
    with broker_process(store, **SMALL) as broker:
        broker.send(MESSAGES)
        with sidecar_process(store, *tokens) as sidecar:
            wait_for(lambda: log_of(sidecar)["end"] == broker.log_end > SEGMENT, "all of it is published")
            yield broker, sidecar


def log_of(sidecar: SidecarChild) -> dict[str, Any]:
    found = sidecar.get("/v1/log", token=READ_TOKEN)
    return found.json() if found.status_code == 200 else {"end": 0}


def file_bytes(store: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted((store / "commitlog").iterdir()))


both = pytest.mark.parametrize("at_log_port", [False, True], ids=["main", "sendfile"])


@pytest.mark.verify(quick=4)
@both
@pytest.mark.parametrize(
    ("first", "last"),
    [(0, 0), (0, 99), (SEGMENT - 10, SEGMENT + 9), (SEGMENT, SEGMENT + 1), (17, SEGMENT + 20_000)],
    ids=["one", "head", "across", "second", "long"],
)
def test_range_has_the_bytes_of_the_files(
    pair: tuple[BrokerChild, SidecarChild], at_log_port: bool, first: int, last: int
) -> None:
    """206 with exactly the requested bytes, also across the end of a file."""
    broker, sidecar = pair
    end = log_of(sidecar)["end"]

    answer = sidecar.get("/v1/log/bytes", token=READ_TOKEN, at_log_port=at_log_port, Range=f"bytes={first}-{last}")

    assert answer.status_code == 206
    assert answer.content == file_bytes(broker.store)[first : last + 1]
    assert answer.headers["content-range"] == f"bytes {first}-{last}/{end}"
    assert answer.headers["etag"] == log_of(sidecar)["etag"]


def test_log_reports_epochs_and_bounds_of_queues(pair: tuple[BrokerChild, SidecarChild]) -> None:
    """Epochs with their begins, as the store has them; bounds of all queues of some topics in one answer."""
    _, sidecar = pair
    one = sidecar.get("/v1/log/queues/TopicTest/0", token=READ_TOKEN).json()

    answer = sidecar.get("/v1/log/queues?topic=TopicTest&topic=nothing", token=READ_TOKEN)

    assert log_of(sidecar)["epochs"] == [{"epoch": 1, "begin": 0}]
    assert answer.json() == {"queues": [one]}
    assert one["end"] == MESSAGES
    assert sidecar.get("/v1/log/queues?topic=TopicTest").status_code == 401
    assert sidecar.get("/v1/log/queues?topic=../x", token=READ_TOKEN).status_code == 422
    many = "&".join(f"topic=t{number}" for number in range(65))
    assert sidecar.get(f"/v1/log/queues?{many}", token=READ_TOKEN).status_code == 422


@both
def test_reader_gets_every_message_and_nothing_else(pair: tuple[BrokerChild, SidecarChild], at_log_port: bool) -> None:
    """Reading range by range up to the end yields as many whole records as were acknowledged."""
    _, sidecar = pair
    end, data = log_of(sidecar)["end"], b""
    while len(data) < end:
        answer = sidecar.get(
            "/v1/log/bytes", token=READ_TOKEN, at_log_port=at_log_port, Range=f"bytes={len(data)}-{len(data) + 299_999}"
        )
        assert answer.status_code == 206
        data += answer.content

    assert len(data) == end
    second = data.index(struct.pack(">i", -875286124)) - 4
    records = [*decode_records(data[:second]), *decode_records(data[SEGMENT:])]
    assert len(records) == MESSAGES


@both
def test_nothing_beyond_the_readable_end_is_read(pair: tuple[BrokerChild, SidecarChild], at_log_port: bool) -> None:
    """The file is longer than the log: a range that crosses the end is cut there, one from it on is 416."""
    broker, sidecar = pair
    end = log_of(sidecar)["end"]
    assert len(file_bytes(broker.store)) > end + 1000

    cut = sidecar.get("/v1/log/bytes", token=READ_TOKEN, at_log_port=at_log_port, Range=f"bytes={end - 5}-{end + 500}")
    behind = sidecar.get("/v1/log/bytes", token=READ_TOKEN, at_log_port=at_log_port, Range=f"bytes={end}-")

    assert (cut.status_code, len(cut.content)) == (206, 5)
    assert (behind.status_code, behind.headers["content-range"]) == (416, f"bytes */{end}")
    assert behind.json()["end"] == end


@both
@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("", 400), ("bytes=5-2", 400), ("bytes=0-1,5-6", 400), ("lines=0-1", 400), ("bytes=--1", 400),
        ("bytes=-0", 416), ("bytes=99999999999999999999-", 400), ("bytes=-7", 206),
    ],
)  # fmt: skip
def test_invalid_range_is_refused(
    pair: tuple[BrokerChild, SidecarChild], at_log_port: bool, text: str, status: int
) -> None:
    """Anything but one valid range is 400 (422 on the main port); the last 0 bytes are 416, the last 7 are served."""
    _, sidecar = pair

    found = sidecar.get("/v1/log/bytes", token=READ_TOKEN, at_log_port=at_log_port, Range=text).status_code

    assert found == status or (not at_log_port and status == 400 and found == 422)


@both
def test_if_match_detects_another_log(pair: tuple[BrokerChild, SidecarChild], at_log_port: bool) -> None:
    """If-Match with the tag of another store or epoch is answered 412, with the current tag."""
    _, sidecar = pair
    etag = str(log_of(sidecar)["etag"])
    other = sidecar.get(
        "/v1/log/bytes", token=READ_TOKEN, at_log_port=at_log_port, Range="bytes=0-9", If_Match='"another-1"'
    )
    same = sidecar.get("/v1/log/bytes", token=READ_TOKEN, at_log_port=at_log_port, Range="bytes=0-9", If_Match=etag)

    assert (other.status_code, other.json()["etag"]) == (412, etag)
    assert same.status_code == 206


@pytest.mark.verify
@both
def test_deleted_range_is_answered_with_the_oldest_offset(tmp_path: Path, at_log_port: bool) -> None:
    """A file deleted while it is read is read to its end; afterwards its range is 410, with the oldest offset."""
    with broker_process(tmp_path / "store", **SMALL) as broker:
        broker.send(MESSAGES)
        with sidecar_process(
            tmp_path / "store", "--open-reads", "--log-rate", "400000", "--log-burst", "100000"
        ) as sidecar:
            wait_for(lambda: sidecar.get("/v1/log").json()["end"] > SEGMENT, "the second file is begun")
            first = (broker.store / "commitlog/00000000000000000000").read_bytes()
            base = f"http://{sidecar.log_address}" if at_log_port else sidecar.url
            with httpx.stream("GET", f"{base}/v1/log/bytes", headers={"Range": "bytes=0-799999"}, timeout=60) as answer:
                pieces = answer.iter_raw(1000)
                data = next(pieces)
                (broker.store / "commitlog/00000000000000000000").unlink()
                data += b"".join(pieces)
            gone = sidecar.get("/v1/log/bytes", at_log_port=at_log_port, Range="bytes=0-9")
            there = sidecar.get("/v1/log/bytes", at_log_port=at_log_port, Range=f"bytes={SEGMENT}-{SEGMENT + 9}")

    assert data == first[:800_000]
    assert (gone.status_code, gone.json()["oldest"]) == (410, SEGMENT)
    assert there.status_code == 206


@pytest.mark.verify
@both
def test_reader_beyond_the_limit_gets_retry_after(tmp_path: Path, at_log_port: bool) -> None:
    """One range more than allowed is 429 with Retry-After, and is served when another has ended."""
    with broker_process(tmp_path / "store") as broker:
        broker.send(MESSAGES)
        limits = ["--log-readers", "1", "--log-rate", "200000", "--log-burst", "1000"]
        with sidecar_process(tmp_path / "store", "--open-reads", *limits) as sidecar:
            wait_for(lambda: sidecar.get("/v1/log").json()["end"] > 1_000_000, "it is published")
            base = f"http://{sidecar.log_address}" if at_log_port else sidecar.url
            whole = {"Range": "bytes=0-999999"}
            for _ in range(5):  # it takes five seconds to read, and on a busy machine the next question may come later
                with httpx.stream("GET", f"{base}/v1/log/bytes", headers=whole, timeout=60) as slow:
                    assert slow.status_code == 206
                    refused = sidecar.get("/v1/log/bytes", at_log_port=at_log_port, Range="bytes=0-9")
                if refused.status_code == 429:
                    break
            wait_for(
                lambda: sidecar.get("/v1/log/bytes", at_log_port=at_log_port, Range="bytes=0-9").status_code == 206,
                "a place is free",
            )

    assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")


def test_connection_of_the_log_listener_serves_many_ranges(pair: tuple[BrokerChild, SidecarChild]) -> None:
    """Keep-alive: ranges, refusals and HEAD on one connection, each with its own length."""
    broker, sidecar = pair
    data = file_bytes(broker.store)
    headers = {"Authorization": f"Bearer {READ_TOKEN}"}
    with httpx.Client(base_url=f"http://{sidecar.log_address}", headers=headers, timeout=30) as client:
        for start in range(0, 50_000, 5_000):
            assert (
                client.get("/v1/log/bytes", headers={"Range": f"bytes={start}-{start + 99}"}).content
                == data[start : start + 100]
            )
            assert client.get("/v1/log/bytes").status_code == 400
            head = client.head("/v1/log/bytes", headers={"Range": "bytes=0-99"})
            assert (head.status_code, head.headers["content-length"], head.content) == (206, "100", b"")
        assert client.get("/v1/status").status_code == 404
        assert client.put("/v1/log/bytes").status_code == 405


def test_log_listener_closes_the_connection_on_invalid_requests(pair: tuple[BrokerChild, SidecarChild]) -> None:
    """Garbage, an endless head, and a body end the connection, and nothing else."""
    _, sidecar = pair
    host, _, port = sidecar.log_address.rpartition(":")
    for data in (
        b"\x00\xff" * 100,
        b"GET /" + b"a" * 40_000,
        b"GET /v1/log/bytes HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello",
    ):
        with socket.create_connection((host, int(port)), timeout=30) as connection:
            connection.sendall(data)
            while connection.recv(65536):
                pass

    assert sidecar.get("/v1/log/bytes", token=READ_TOKEN, at_log_port=True, Range="bytes=0-9").status_code == 206


def test_checksums_match_the_bytes(pair: tuple[BrokerChild, SidecarChild]) -> None:
    """crc32 and sha256 of a range, across files, cut at the end of the log."""
    broker, sidecar = pair
    data, end = file_bytes(broker.store), log_of(sidecar)["end"]
    wanted = data[SEGMENT - 100 : SEGMENT + 100]

    crc = sidecar.get(f"/v1/log/checksum?offset={SEGMENT - 100}&length=200", token=READ_TOKEN).json()
    sha = sidecar.get(f"/v1/log/checksum?offset={SEGMENT - 100}&length=200&algorithm=sha256", token=READ_TOKEN).json()
    cut = sidecar.get(f"/v1/log/checksum?offset={end - 10}&length=200", token=READ_TOKEN).json()

    assert crc["checksum"] == f"{zlib.crc32(wanted):08x}"
    assert sha["checksum"] == hashlib.sha256(wanted).hexdigest()
    assert (cut["length"], cut["checksum"]) == (10, f"{zlib.crc32(data[end - 10 : end]):08x}")


def test_units_of_a_queue_point_to_its_messages(pair: tuple[BrokerChild, SidecarChild]) -> None:
    """Each unit of a slice points to a whole record of that queue; offsets by time agree with it."""
    broker, sidecar = pair
    bounds = sidecar.get("/v1/log/queues/TopicTest/0", token=READ_TOKEN).json()
    assert (bounds["begin"], bounds["end"]) == (0, MESSAGES)

    answer = sidecar.get("/v1/log/queues/TopicTest/0/units?from=700&count=900", token=READ_TOKEN)
    data, log = answer.content, file_bytes(broker.store)

    assert (answer.headers["x-gantry-first"], answer.headers["x-gantry-end"]) == ("700", str(MESSAGES))
    units = list(struct.iter_unpack(">qiq", data))
    assert len(units) == MESSAGES - 700
    times = []
    for number, (physical, size, _) in enumerate(units, 700):
        [record] = decode_records(log[physical : physical + size])
        assert record.queue_offset == number
        times.append(record.store_timestamp_ms)
    path = f"/v1/log/queues/TopicTest/0/offset?timestamp_ms={times[400]}"
    found = sidecar.get(path, token=READ_TOKEN).json()["offset"]
    assert found == 700 + times.index(times[400]) or found < 700
    late = sidecar.get("/v1/log/queues/TopicTest/0/offset?timestamp_ms=9999999999999", token=READ_TOKEN).json()
    assert (late["offset"], late["end"]) == (MESSAGES, MESSAGES)
    assert sidecar.get("/v1/log/queues/TopicTest/0/units?from=99999", token=READ_TOKEN).status_code == 416
    assert sidecar.get("/v1/log/queues/Unknown/0", token=READ_TOKEN).status_code == 404


@pytest.mark.verify
def test_log_is_readable_while_the_broker_is_stopped_or_gone(tmp_path: Path) -> None:
    """SIGSTOP and kill -9 remove nothing that was confirmed and committed."""
    with broker_process(tmp_path) as broker, sidecar_process(tmp_path, "--open-reads") as sidecar:
        broker.send(100)
        wait_for(lambda: sidecar.get("/v1/log").json()["end"] > 100_000, "it is published")
        wanted = file_bytes(tmp_path)[:100_000]
        for number in (signal.SIGSTOP, signal.SIGKILL):
            broker.child.send(number)
            for at_log_port in (False, True):
                assert sidecar.get("/v1/log/bytes", at_log_port=at_log_port, Range="bytes=0-99999").content == wanted


def test_stalled_readers_do_not_delay_other_endpoints(pair: tuple[BrokerChild, SidecarChild]) -> None:
    """Clients that request much and read nothing keep their places, and `/livez` still answers."""
    _, sidecar = pair
    host, _, port = sidecar.log_address.rpartition(":")
    request = f"GET /v1/log/bytes HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {READ_TOKEN}\r\nRange: bytes=0-\r\n\r\n"
    lazy = [socket.create_connection((host, int(port)), timeout=30) for _ in range(3)]
    try:
        for connection in lazy:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.sendall(request.encode())
        results: list[int] = []
        threads = [threading.Thread(target=lambda: results.append(sidecar.get("/livez").status_code)) for _ in range(5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(90)
    finally:
        for connection in lazy:
            connection.close()

    assert results == [200] * 5


def test_file_descriptors_of_ranges_are_closed(pair: tuple[BrokerChild, SidecarChild]) -> None:
    """After ranges and refusals the sidecar has no file of the log open."""
    _, sidecar = pair
    folder = Path(f"/proc/{sidecar.child.process.pid}/fd")

    def open_files() -> int:
        found = 0
        for path in folder.iterdir():
            with suppress(FileNotFoundError):  # closed at this moment
                found += "commitlog" in os.readlink(path)
        return found

    for at_log_port in (False, True):
        for _ in range(10):
            sidecar.get("/v1/log/bytes", token=READ_TOKEN, at_log_port=at_log_port, Range="bytes=0-9")
            sidecar.get("/v1/log/bytes", token=READ_TOKEN, at_log_port=at_log_port, Range="bytes=77777777-")

    wait_for(lambda: open_files() == 0, "every file is closed")
