"""The live tail of a topic: positions, the rate, what is left out or skipped, and the stream over HTTP.

A twin repeats a test without the rule that it checks, and finds the fault: so the test can fail.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from admin_scene import NO_TLS, SidecarChild, broker_process, sidecar_process, wait_for

from gantry_admin import tail
from gantry_admin.errors import Problem
from gantry_admin.ranges import OFFSET_MAX, Span
from gantry_admin.relay import validated_event
from gantry_admin.routes.search import TAIL_EVENTS
from gantry_admin.store_files import StoreFiles
from gantry_admin.tail import TopicTail, format_positions, parse_positions
from gantry_testing.store_world import StoreWorld, make_world
from gantry_wire.search import MessageMatcher, SearchCriteria

WHOLE = Span(0, OFFSET_MAX)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[StoreWorld]:
    """An open store with one message."""
    world = make_world("real", tmp_path / "store")
    world.open()
    append(world, 1)
    yield world
    world.close()


def append(world: StoreWorld, count: int, *, queue_id: int = 0, body: bytes = b"x", tag: str | None = None) -> None:
    """Append messages that are visible at once."""
    for _ in range(count):
        world.append([world.draft("orders", queue_id, body=body, tag=tag)])
    world.store.flush()


def follow(world: StoreWorld, rate: int = 1000, **criteria: Any) -> TopicTail:
    matcher = MessageMatcher(SearchCriteria(**criteria))
    return TopicTail(StoreFiles(Path(world.root)), "orders", matcher, rate, clock=lambda: 0.0)


def offsets(made: TopicTail, span: Span = WHOLE) -> list[tuple[int, int]]:
    """Poll, and return queue and offset of each message."""
    return [(one.message.queue_id, one.message.queue_offset) for one in made.poll(span).messages]


def test_tail_begins_at_the_end_and_misses_nothing(world: StoreWorld) -> None:
    """The first poll shows nothing; later ones show each new message once, also of a new queue, in the log's order."""
    made = follow(world)

    assert offsets(made) == []
    append(world, 2)
    append(world, 1, queue_id=3)
    append(world, 1)
    assert offsets(made) == [(0, 1), (0, 2), (3, 0), (0, 3)]
    assert offsets(made) == []
    assert (made.examined, made.sent, made.left_out, made.skipped) == (4, 4, 0, 0)


def test_tail_shows_nothing_beyond_the_readable_end(world: StoreWorld) -> None:
    """The guard: a message that consumers cannot read yet appears only when the readable end has passed it."""
    made = follow(world)
    made.poll(WHOLE)
    append(world, 1)
    end = world.store.log.wrote
    append(world, 1)

    assert offsets(made, Span(0, end)) == [(0, 1)]
    assert offsets(made, Span(0, end)) == []
    assert offsets(made) == [(0, 2)], "twin: without that end the next message is there"


def test_conditions_filter_and_move_the_positions(world: StoreWorld) -> None:
    """What does not match is examined once, and not shown."""
    made = follow(world, text="needle", tag="paid")
    made.poll(WHOLE)
    append(world, 1, body=b"a needle", tag="paid")
    append(world, 1, body=b"a needle", tag="sent")
    append(world, 1, body=b"hay", tag="paid")

    assert offsets(made) == [(0, 1)]
    assert made.examined == 3 and offsets(made) == []


@pytest.mark.parametrize("criteria", [{}, {"text": "x"}], ids=["all", "filtered"])
def test_messages_beyond_the_rate_are_left_out_and_counted(world: StoreWorld, criteria: dict[str, str]) -> None:
    """The newest are shown; each message is sent, left out, or skipped."""
    made = follow(world, rate=10, **criteria)
    made.poll(WHOLE)
    append(world, 25)

    assert offsets(made) == [(0, number) for number in range(16, 26)]
    assert (made.sent, made.left_out, made.skipped) == (10, 15, 0)


def test_messages_that_a_poll_cannot_examine_are_skipped(world: StoreWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tail never falls behind: the newest are examined, and the number of the others is known."""
    monkeypatch.setattr(tail, "EXAMINED_MAX", 4)
    monkeypatch.setattr(tail, "UNITS_MAX", 8)
    made = follow(world, text="x")
    made.poll(WHOLE)
    append(world, 10)

    assert offsets(made) == [(0, number) for number in range(7, 11)]
    assert (made.examined, made.sent, made.skipped) == (4, 4, 6)


def test_tail_continues_after_each_event(world: StoreWorld) -> None:
    """With the id of any event, a new tail shows exactly what was shown after it."""
    made = follow(world)
    made.poll(WHOLE)
    append(world, 3)
    append(world, 3, queue_id=1)
    shown = made.poll(WHOLE).messages

    for index, one in enumerate(shown):
        again = TopicTail(
            StoreFiles(Path(world.root)), "orders", MessageMatcher(SearchCriteria()), 1000,
            positions=parse_positions(format_positions(one.positions)), clock=lambda: 0.0,
        )  # fmt: skip
        assert [one.message for one in again.poll(WHOLE).messages] == [one.message for one in shown[index + 1 :]]


@pytest.mark.parametrize("text", ["", "x", "0", "0:x", "0:-1", "99999999:0", "0:99999999999999999", "٣:1", "0:1;1:1"])
def test_invalid_positions_are_refused(text: str) -> None:
    """An id that no event has is answered 400."""
    with pytest.raises(Problem) as refused:
        parse_positions(text)
    assert refused.value.status == 400


@pytest.mark.parametrize(
    "block",
    [
        b"event: status\ndata: {}",
        b"event: unknown\ndata: {}",
        b"id: <script>\nevent: status\ndata: " + json.dumps(dict.fromkeys(("examined", "sent"), 1)).encode(),
        b"data: x",
        b"",
    ],
)
def test_invalid_event_of_a_peer_is_dropped(block: bytes) -> None:
    """Only events with a valid document and id are relayed."""
    assert validated_event(block, TAIL_EVENTS) is None


def test_valid_event_of_a_peer_is_made_again() -> None:
    """Unknown fields are dropped; a heartbeat is passed on."""
    status = {"examined": 1, "sent": 1, "left_out": 0, "skipped": 0, "messages_per_second": 1.0}
    block = b"id: 0:1,2:3\nevent: status\ndata: " + json.dumps({**status, "extra": 1}).encode()
    event = validated_event(block, TAIL_EVENTS)

    assert event is not None and event.startswith(b"id: 0:1,2:3\nevent: status\n") and b"extra" not in event
    assert validated_event(b": still here", TAIL_EVENTS) == b": still here\n\n"


# -- over HTTP ---------------------------------------------------------------------------------------------------------


def open_events(sidecar: SidecarChild, query: str, **headers: str) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield id, kind and data of the events of a tail."""
    with httpx.stream("GET", f"{sidecar.url}/v1/tail?{query}", headers=headers, timeout=60, verify=NO_TLS) as answer:
        assert answer.status_code == 200, answer.read()
        fields: dict[str, str] = {}
        for line in answer.iter_lines():
            name, _, value = line.partition(": ")
            fields[name] = value
            if name == "data":
                yield fields.get("id", ""), fields["event"], json.loads(value)


def test_tail_streams_and_continues_over_http(tmp_path: Path) -> None:
    """New messages come as events; a client that was away gets what it missed; limits and faults are answered."""
    with broker_process(tmp_path) as broker, sidecar_process(tmp_path, "--open-reads") as sidecar:
        assert sidecar.get("/v1/tail?topic=orders").status_code == 404
        broker.send(1, topic="orders")
        wait_for(lambda: sidecar.get("/v1/log").json().get("end") == broker.log_end, "it is readable")
        events = open_events(sidecar, "topic=orders&text=new")
        assert next(events)[1] == "status"
        broker.send(2, topic="orders", body=b"new 1")
        broker.send(1, topic="orders", body=b"other")
        first = next(event for event in events if event[1] == "message")
        assert first[2]["queue_offset"] == 1
        events.close()  # type: ignore[attr-defined]

        broker.send(1, topic="orders", body=b"new 2")
        wait_for(lambda: sidecar.get("/v1/log").json().get("end") == broker.log_end, "it is readable")
        again = open_events(sidecar, "topic=orders&text=new", **{"Last-Event-ID": first[0]})
        found = [data["queue_offset"] for _, kind, data in (next(again), next(again)) if kind == "message"]
        assert found == [2, 4]
        assert len(list(open_events(sidecar, "topic=orders&limit=1"))) == 1
        assert sidecar.get("/v1/tail?topic=orders&rate=0").status_code == 422
        refused = httpx.get(f"{sidecar.url}/v1/tail?topic=orders", headers={"Last-Event-ID": "x"}, verify=NO_TLS)
        assert refused.status_code == 400


def test_more_tails_than_the_limit_are_refused(tmp_path: Path) -> None:
    """The ninth tail is answered 429; when one ends, another is accepted."""
    with broker_process(tmp_path) as broker, sidecar_process(tmp_path, "--open-reads") as sidecar:
        broker.send(1, topic="orders")
        wait_for(lambda: sidecar.get("/v1/log").json().get("end") == broker.log_end, "it is readable")
        tails = [open_events(sidecar, "topic=orders") for _ in range(8)]
        for one in tails:
            next(one)
        assert sidecar.get("/v1/tail?topic=orders").status_code == 429
        tails.pop().close()  # type: ignore[attr-defined]

        def is_accepted() -> bool:
            with httpx.stream("GET", f"{sidecar.url}/v1/tail?topic=orders", verify=NO_TLS) as answer:
                return answer.status_code == 200

        wait_for(is_accepted, "another tail is accepted")
