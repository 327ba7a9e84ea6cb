"""Views of several sidecars, waits for durability, and event streams, mostly with real brokers."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import threading
import time
from pathlib import Path

import httpx
import pytest
from admin_scene import BrokerChild, SidecarChild, broker_process, sidecar_process, wait_for

from gantry_admin.documents import StatusDocument
from gantry_admin.group_view import MemberDocument, ShardLedgers, shards_of
from gantry_admin.relay import _reason


def members_by_url(sidecar: SidecarChild) -> dict[str, dict[str, object]]:
    """Return the members of the group as the sidecar reports them."""
    return {member["url"]: member for member in sidecar.get("/v1/group").json()["members"]}


@pytest.mark.verify
def test_group_view_keeps_an_unreachable_peer(tmp_path: Path) -> None:
    """Two brokers, two sidecars, one view. A peer that dies is unreachable, with its last status and its age."""
    with (
        broker_process(tmp_path / "a", brokerName="a"),
        broker_process(tmp_path / "b", brokerName="b") as other,
        sidecar_process(tmp_path / "b") as peer,
        sidecar_process(tmp_path / "a", "--peer", peer.url) as sidecar,
    ):
        wait_for(lambda: members_by_url(sidecar)[peer.url]["is_reachable"] is True, "the peer has answered")
        wait_for(lambda: members_by_url(sidecar)[peer.url]["status"]["ready"]["ready"] is True, "both are ready")  # type: ignore[index]
        shards = {shard["broker_name"]: shard for shard in sidecar.get("/v1/group").json()["shards"]}
        assert {name: shard["masters"] for name, shard in shards.items()} == {"a": ["self"], "b": [peer.url]}

        other.child.send(signal.SIGSTOP)
        wait_for(
            lambda: members_by_url(sidecar)[peer.url]["status"]["loop_state"]["state"] == "stalled",  # type: ignore[index]
            "the peer's broker is stalled",
        )
        peer.child.send(signal.SIGKILL)
        wait_for(lambda: members_by_url(sidecar)[peer.url]["is_reachable"] is False, "the peer is gone")
        gone = members_by_url(sidecar)[peer.url]

    assert gone["fault"]
    assert int(str(gone["age_ms"])) >= 0
    assert gone["status"]["broker_name"] == "b"  # type: ignore[index]


@pytest.mark.verify
def test_invalid_or_silent_peers_do_not_delay_the_group_view(tmp_path: Path) -> None:
    """A peer is silent, one answers too much, one sends an endless head: the view is answered at once and shows it."""
    listening = [socket.create_server(("127.0.0.1", 0)) for _ in range(3)]
    with contextlib.ExitStack() as stack:
        _, liar, talker = map(stack.enter_context, listening)
        threading.Thread(target=answer_with_endless_json, args=(liar,), daemon=True).start()
        threading.Thread(target=answer_with_endless_json, args=(talker, b"HTTP/1.0 200 OK "), daemon=True).start()
        urls = [f"http://127.0.0.1:{one.getsockname()[1]}" for one in listening]
        with sidecar_process(tmp_path, *(word for url in urls for word in ("--peer", url))) as sidecar:
            took: list[float] = []
            for _ in range(5):
                began = time.perf_counter()
                assert sidecar.get("/v1/group").status_code == 200
                took.append(time.perf_counter() - began)
            wait_for(lambda: "no answer" in str(members_by_url(sidecar)[urls[0]]["fault"]), "the silent one is named")
            wait_for(lambda: "bytes" in str(members_by_url(sidecar)[urls[1]]["fault"]), "the liar is named")
            wait_for(
                lambda: "head" in str(members_by_url(sidecar)[urls[2]]["fault"]), "one whose head never ends is named"
            )

    assert min(took) < 2.0, "less than one timeout of a peer; a busy machine may delay some of them"


def test_deeply_nested_refusal_has_no_reason() -> None:
    """The answer of a peer is untrusted, regardless of its nesting."""
    assert _reason(b"[" * (1 << 20)) == ""
    assert _reason(b'{"reason": "it is gone"}') == "it is gone"


def answer_with_endless_json(listener: socket.socket, head: bytes = b"HTTP/1.0 200 OK\r\n\r\n") -> None:
    """Answer every request with a JSON text that is too long."""
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        with connection:
            try:
                connection.recv(65536)
                connection.sendall(head + b"[" * (3 << 20))
            except OSError:
                continue


def member(url: str, name: str, role: str, epoch: int, *, is_reachable: bool = True) -> MemberDocument:
    """Return a member with a minimal status."""
    fields: dict[str, object] = dict.fromkeys(StatusDocument.model_fields)
    loop_state = {"state": "running", "reason": "", "since_ms": 0, "last_heartbeat_wall_ms": 0}
    fields |= {
        "broker_name": name, "role": role, "epoch": epoch, "wrote": 100 * epoch, "at_risk": [], "slaves": [],
        "loop_state": loop_state, "sidecar": {}, "reported_role_fresh": {"age_ms": 0, "fault": None},
        "ready": {"ready": True, "reason": "", "now": "", "broker": loop_state},
    }  # fmt: skip
    status = StatusDocument.model_validate(fields)
    return MemberDocument(url=url, is_self=False, is_reachable=is_reachable, age_ms=0, fault=None, status=status)


def test_two_masters_are_both_shown() -> None:
    """In one epoch both are shown, in an older one as stale; an unreachable one is ignored."""
    [shard] = shards_of(
        [
            member("m1", "a", "master", 7), member("m2", "a", "master", 7), member("old", "a", "master", 6),
            member("gone", "a", "master", 7, is_reachable=False), member("s", "a", "slave", 7),
        ],
        ShardLedgers(1 << 20),
        0,
    )  # fmt: skip

    assert (shard.epoch, shard.masters, shard.stale_masters) == (7, ["m1", "m2"], ["old"])
    assert shard.wrote is None, "it is ambiguous which master it belongs to"
    assert shard.ledger is None


def path_of_wait(offset: int, level: str, timeout_ms: int) -> str:
    """Return the path of a request that waits until an offset is durable at a level."""
    return f"/v1/durability/wait?offset={offset}&level={level}&timeout_ms={timeout_ms}"


@pytest.mark.verify
def test_durability_wait_is_answered_when_the_level_is_reached(tmp_path: Path) -> None:
    """At the deadline the answer is `reached: false`; acked is never reached without slaves."""
    with broker_process(tmp_path) as broker, sidecar_process(tmp_path) as sidecar:
        sidecar.wait_ready()
        broker.send(5)
        end = broker.log_end
        flushed = sidecar.get(path_of_wait(end, "flushed", 30_000)).json()
        confirmed = sidecar.get(path_of_wait(end, "confirmed", 30_000)).json()
        beyond = sidecar.get(path_of_wait(end + 1, "confirmed", 300)).json()
        acked = sidecar.get(path_of_wait(end, "acked", 300)).json()
        later = wait_while_sending(broker, sidecar, end + 1)

    assert (flushed["reached"], flushed["position"]) == (True, end)
    assert confirmed["reached"] is True
    assert (beyond["reached"], beyond["position"]) == (False, end)
    assert beyond["waited_ms"] >= 299  # of clocks in whole milliseconds
    assert (acked["reached"], acked["position"]) == (False, None)
    assert later["reached"] is True


def wait_while_sending(broker: BrokerChild, sidecar: SidecarChild, offset: int) -> dict[str, object]:
    """Wait for an offset while a message is sent, and return the answer."""
    found: list[dict[str, object]] = []
    waiting = threading.Thread(target=lambda: found.append(sidecar.get(path_of_wait(offset, "flushed", 60_000)).json()))
    waiting.start()
    broker.send(1)
    waiting.join(60)
    return found[0]


@pytest.mark.verify
def test_durability_wait_ends_when_the_broker_is_killed(tmp_path: Path) -> None:
    """kill -9 ends a wait before its deadline, because this broker will not reach the offset."""
    with broker_process(tmp_path) as broker, sidecar_process(tmp_path) as sidecar:
        sidecar.wait_ready()
        found: list[dict[str, object]] = []
        waiting = threading.Thread(
            target=lambda: found.append(sidecar.get(path_of_wait(1 << 40, "flushed", 50_000)).json())
        )
        waiting.start()
        broker.child.send(signal.SIGKILL)
        waiting.join(60)

    assert found[0]["reached"] is False
    assert found[0]["broker"]["state"] == "crashed"  # type: ignore[index]
    assert int(str(found[0]["waited_ms"])) < 50_000, "the wait lasted until its deadline"


def test_events_report_changes(tmp_path: Path) -> None:
    """First the current state, then offsets as they move, then that the broker has crashed."""
    with broker_process(tmp_path) as broker, sidecar_process(tmp_path) as sidecar:
        sidecar.wait_ready()
        seen: list[tuple[str, dict[str, object]]] = []
        thread = threading.Thread(target=record_events, args=(sidecar.url, seen), daemon=True)
        thread.start()
        wait_for(lambda: len(seen) >= 2, "the first two events")
        broker.send(5)
        wait_for(lambda: any(kind == "status" and facts["wrote"] == broker.log_end for kind, facts in seen), "it moved")
        broker.child.send(signal.SIGKILL)
        wait_for(lambda: any(kind == "change" and facts["broker"] == "crashed" for kind, facts in seen), "it is gone")

    assert [kind for kind, _ in seen[:2]] == ["change", "status"]
    assert seen[0][1]["role"] == "master"


def record_events(url: str, seen: list[tuple[str, dict[str, object]]]) -> None:
    """Append the events of a sidecar to a list, until the connection ends."""
    kind = ""
    try:
        with httpx.stream("GET", f"{url}/v1/events", timeout=60) as stream:
            for line in stream.iter_lines():
                if line.startswith("event: "):
                    kind = line.removeprefix("event: ")
                elif line.startswith("data: "):
                    seen.append((kind, json.loads(line.removeprefix("data: "))))
    except httpx.TransportError:
        return
