"""The sidecar beside a real broker: its answers while the broker is stalled, is gone, or dies during a write.

A twin repeats a test without the rule that it checks, and finds the fault: so the test can fail.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from admin_scene import BrokerChild, SidecarChild, broker_process, read_page_without_checksum, sidecar_process, wait_for

import gantry_speedups
from gantry_status import PageReader
from gantry_status.layout import COPY_BYTES, HEADER_BYTES, decode_copy, sequence_of

ANSWER_S = 0.1
"""The promised limit. The fastest of several tries is compared, because a busy machine delays any answer."""
TRIES = 15
TRIES_MAX = 150
"""The most tries, if none is fast. If an answer waits for the broker, none of them is."""
PATHS = (
    "/livez", "/readyz", "/startupz", "/v1/status", "/v1/group", "/v1/role", "/v1/topics", "/v1/groups", "/v1/lag",
    "/v1/log", "/v1/queues/TopicTest/0/messages", "/v1/dead-letters/unknown",
    "/metrics", "/v1/durability/wait?offset=0", "/v1/events?limit=1",
)  # fmt: skip


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[BrokerChild, SidecarChild]]:
    """One broker with messages, and its sidecar."""
    store = tmp_path_factory.mktemp("store")
    with broker_process(store) as broker, sidecar_process(store, "--open-reads") as sidecar:
        broker.send(20)
        sidecar.wait_ready()
        wait_for(lambda: sidecar.get("/v1/status").json()["confirmed"] == broker.log_end, "all of it is published")
        yield broker, sidecar


@pytest.mark.verify(quick=5)
@pytest.mark.parametrize("path", PATHS)
def test_every_request_is_answered_at_once_while_the_broker_is_stopped(
    pair: tuple[BrokerChild, SidecarChild], path: str
) -> None:
    """SIGSTOP of the broker: each of these endpoints answers within a tenth of a second."""
    broker, sidecar = pair
    with httpx.Client(base_url=sidecar.url, timeout=60) as client:
        client.get(path)
        broker.child.send(signal.SIGSTOP)
        try:
            took: list[float] = []
            answers: list[int] = []
            while len(took) < TRIES or (min(took) >= ANSWER_S and len(took) < TRIES_MAX):
                began = time.perf_counter()
                answers.append(client.get(path).status_code)
                took.append(time.perf_counter() - began)
        finally:
            broker.child.send(signal.SIGCONT)

    assert set(answers) <= {200, 503}, answers
    assert min(took) < ANSWER_S, took
    wait_for(lambda: sidecar.get("/readyz").status_code == 200, "it is ready again")


@pytest.mark.verify
def test_stopped_broker_is_reported_with_its_last_heartbeat(pair: tuple[BrokerChild, SidecarChild]) -> None:
    """`/livez` and `/v1/status` have the time since the event loop stopped, on the boot-time clock, and it grows."""
    broker, sidecar = pair
    broker.child.send(signal.SIGSTOP)
    try:
        wait_for(lambda: sidecar.get("/livez").json()["broker"]["state"] == "stalled", "it is noticed")
        first = sidecar.get("/livez")
        status = sidecar.get("/v1/status").json()
        heartbeat = status["loop_state"]["last_heartbeat_wall_ms"]
    finally:
        broker.child.send(signal.SIGCONT)

    assert first.status_code == 200, "expected 200: only the broker is stopped, and the sidecar runs"
    assert first.json()["broker"]["since_ms"] >= 2000
    assert status["loop_state"]["since_ms"] >= first.json()["broker"]["since_ms"]
    assert abs(time.time() * 1000 - status["loop_state"]["since_ms"] - heartbeat) < 60_000
    wait_for(lambda: sidecar.get("/livez").json()["broker"]["state"] == "running", "it runs again")


@pytest.mark.verify
def test_stopped_broker_becomes_unready_and_its_tables_come_from_disk(pair: tuple[BrokerChild, SidecarChild]) -> None:
    """After the hysteresis `/readyz` is 503 with the reason; topics are answered from disk, with the reason."""
    broker, sidecar = pair
    table = broker.store / "config/topics.json"
    wait_for(lambda: table.exists() and b"TopicTest" in table.read_bytes(), "the table is saved")
    broker.child.send(signal.SIGSTOP)
    try:
        wait_for(lambda: sidecar.get("/readyz").status_code == 503, "it is not ready")
        reason = sidecar.get("/readyz").json()["reason"]
        wait_for(lambda: sidecar.get("/v1/topics").json().get("source") == "disk", "the disk is read")
        topics = sidecar.get("/v1/topics").json()
    finally:
        broker.child.send(signal.SIGCONT)

    assert "is stalled" in reason
    assert "is stalled" in topics["reason"]
    [topic] = [one for one in topics["topics"] if one["name"] == "TopicTest"]
    assert topic["messages"] == 20
    wait_for(lambda: sidecar.get("/v1/topics").json().get("source") == "broker", "the broker is asked again")
    assert [one for one in sidecar.get("/v1/topics").json()["topics"] if one["name"] == "TopicTest"] == [topic]
    sidecar.wait_ready()


@pytest.mark.verify
def test_order_to_a_stopped_broker_is_refused_at_once(tmp_path: Path) -> None:
    """Orders to a stopped broker are answered 503 and are not executed later."""
    tokens = tmp_path / "tokens"
    tokens.write_text("operator:0123456789-0123456789\n")
    with broker_process(tmp_path / "store") as broker, sidecar_process(
        tmp_path / "store", "--token-file", str(tokens)
    ) as sidecar:  # fmt: skip
        sidecar.wait_ready()
        broker.child.send(signal.SIGSTOP)
        try:
            wait_for(lambda: sidecar.get("/livez").json()["broker"]["state"] == "stalled", "it is noticed")
            refused = sidecar.post("/v1/role/fence", {"epoch": 9}, token="0123456789-0123456789")
        finally:
            broker.child.send(signal.SIGCONT)

        assert refused.status_code == 503
        sidecar.wait_ready()
        assert sidecar.get("/v1/role", token="0123456789-0123456789").json()["promised_epoch"] == 0


@pytest.mark.verify(quick=1)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
def test_signal_stops_the_sidecar_cleanly(tmp_path: Path, number: signal.Signals) -> None:
    """Exit code 0, without a traceback, also with an open event stream; no broker is needed for that."""
    with sidecar_process(tmp_path) as sidecar, httpx.stream("GET", f"{sidecar.url}/v1/events", timeout=60) as stream:
        next(stream.iter_lines())
        sidecar.child.send(number)
        sidecar.child.process.wait(120)

        assert sidecar.child.process.returncode == 0
        wait_for(lambda: "stopped" in sidecar.child.log, "the stop is logged")
        assert "Traceback" not in sidecar.child.log


@pytest.mark.verify
def test_killing_the_sidecar_does_not_affect_the_broker(tmp_path: Path) -> None:
    """kill -9 of the sidecar between sends: every send is acknowledged, and a new sidecar takes over."""
    with broker_process(tmp_path) as broker:
        with sidecar_process(tmp_path, "--open-reads") as sidecar:
            sidecar.wait_ready()
            broker.send(50)
            sidecar.child.send(signal.SIGKILL)
            sidecar.child.process.wait(30)

            broker.send(50)

        assert broker.child.process.poll() is None
        assert "WARNING" not in broker.child.log and "ERROR" not in broker.child.log, broker.child.log
        with sidecar_process(tmp_path, "--open-reads") as another:
            another.wait_ready()
            assert another.get("/v1/status").json()["wrote"] > 0


def test_status_names_the_hot_path(pair: tuple[BrokerChild, SidecarChild]) -> None:
    """The sidecar reports which path its broker runs, and the reason for the Python path."""
    _, sidecar = pair

    status = sidecar.get("/v1/status").json()

    assert status["hot_path"] == gantry_speedups.hot_path
    assert status["hot_path_reason"] == (gantry_speedups.reason or None)


def test_killed_broker_is_not_ready_and_its_last_report_remains(tmp_path: Path) -> None:
    """kill -9 of the broker: it is not ready, `crashed`, and its last published offsets are still shown."""
    with broker_process(tmp_path) as broker, sidecar_process(tmp_path, "--open-reads") as sidecar:
        sidecar.wait_ready()
        broker.send(20)
        wait_for(lambda: sidecar.get("/v1/status").json()["confirmed"] == broker.log_end, "all of it is published")
        before = sidecar.get("/v1/status").json()

        broker.child.send(signal.SIGKILL)
        broker.child.process.wait(30)
        wait_for(lambda: sidecar.get("/readyz").status_code == 503, "it is not ready")
        after = sidecar.get("/v1/status").json()

        assert after["loop_state"]["state"] == "crashed"
        assert after["wrote"] == before["wrote"]
        assert sidecar.get("/livez").status_code == 200


@pytest.mark.verify
def test_torn_publication_is_never_shown(tmp_path: Path) -> None:
    """After a kill during a publication the complete one before it is shown, and never a mixture of the two."""
    with broker_process(tmp_path) as broker:
        broker.send(30)
        wait_for(lambda: _confirmed_on(broker.status_page) > 30_000, "it is published")
        broker.child.send(signal.SIGKILL)
        broker.child.process.wait(30)

    whole = broker.status_page.read_bytes()
    for cut in (8, 9, 64, 200, 1000, 1792):
        torn, before = _torn(whole, cut)
        broker.status_page.write_bytes(torn)
        with sidecar_process(tmp_path) as sidecar:
            status = sidecar.get("/v1/status").json()
        assert {name: status[name] for name in ("wrote", "committed", "flushed", "confirmed")} == before


def test_without_checksum_a_torn_publication_would_be_read(tmp_path: Path) -> None:
    """The twin: without sequence and checksum the torn publication yields offsets that never existed."""
    with broker_process(tmp_path) as broker:
        broker.send(30)
        wait_for(lambda: _confirmed_on(broker.status_page) > 30_000, "it is published")
    torn, before = _torn(broker.status_page.read_bytes(), 200)

    assert read_page_without_checksum(torn)["wrote"] != before["wrote"], (
        "an unguarded reader takes the newest copy as it is"
    )


def _confirmed_on(page: Path) -> int:
    with PageReader(str(page)) as reader:
        return reader.read().status.confirmed or 0


def _torn(whole: bytes, cut: int) -> tuple[bytes, dict[str, int | None]]:
    """Return the page as a kill in the middle leaves it, and the offsets of the publication before.

    The copy that was written has an odd sequence, new bytes up to `cut`, and old ones after them.
    """
    copies = [whole[HEADER_BYTES : HEADER_BYTES + COPY_BYTES], whole[HEADER_BYTES + COPY_BYTES :]]
    sequences = [sequence_of(copy) for copy in copies]
    written = sequences.index(min(sequences))
    status = decode_copy(copies[1 - written])
    assert status is not None, "expected the other copy to be valid"
    copies[written] = (max(sequences) + 1).to_bytes(8, "big") + b"\x7f" * (cut - 8) + copies[written][cut:]
    before = {name: getattr(status, name) for name in ("wrote", "committed", "flushed", "confirmed")}
    return whole[:HEADER_BYTES] + copies[0] + copies[1], before
