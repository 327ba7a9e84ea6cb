"""Delays, timers, recalls, transactions, tags and dead letters over stops, kills, promotions and power failures."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from replication.service_load import Copy, Intent, Sent, ServiceHistory, judge
from replication.service_runs import Interruption, run_services, service_plan


def history_of(*sent: Sent, copies: tuple[Copy, ...] = (), **more: object) -> ServiceHistory:
    """Return a history in which a reader of two tags got every copy of these tags."""
    wanted = {one.body for one in sent if one.tag != "blue"}
    history = ServiceHistory(
        sent={one.body: one for one in sent}, copies=list(copies),
        of_wanted_tags=Counter(copy.body for copy in copies if copy.body in wanted),
    )  # fmt: skip
    for name, value in more.items():
        setattr(history, name, value)
    return history


def sent(intent: Intent, body: bytes = b"1", tag: str = "red", *, due_ms: int = 0, is_certain: bool = True) -> Sent:
    return Sent(body, intent, tag, due_ms, is_certain)


DELAYED = sent(Intent.LEVEL, due_ms=1_000)
LATER = sent(Intent.TIMER, b"2", due_ms=5_000)
ON_TIME = Copy(b"1", 1_010)


@pytest.mark.parametrize(
    ("history", "kinds"),
    [
        (history_of(DELAYED, copies=(ON_TIME,)), []),
        (history_of(DELAYED), ["lost"]),
        (history_of(sent(Intent.TIMER, is_certain=False)), []),
        (history_of(DELAYED, copies=(Copy(b"1", 900),)), ["early"]),
        (history_of(DELAYED, copies=(ON_TIME, ON_TIME)), ["twice"]),
        (history_of(DELAYED, copies=(ON_TIME, ON_TIME), crashes=1), []),
        (history_of(sent(Intent.COMMITTED), copies=(ON_TIME, ON_TIME), crashes=1), ["twice"]),
        (history_of(sent(Intent.RECALLED), copies=(ON_TIME,)), ["delivered"]),
        (history_of(sent(Intent.RECALLED, is_certain=False), copies=(ON_TIME,)), []),
        (history_of(sent(Intent.ROLLED_BACK), copies=(ON_TIME,)), ["delivered"]),
        (history_of(sent(Intent.OPEN, is_certain=False), copies=(ON_TIME,)), ["delivered"]),
        (history_of(copies=(ON_TIME,)), ["invented"]),
        (history_of(sent(Intent.FAILING), copies=(ON_TIME,)), ["not a dead letter"]),
        (history_of(sent(Intent.FAILING), copies=(ON_TIME,), dead=Counter([b"1"])), []),
        (history_of(sent(Intent.HELD), copies=(ON_TIME,)), ["not a dead letter"]),
        (history_of(DELAYED, copies=(ON_TIME,), of_wanted_tags=Counter()), ["filtered out"]),
        (history_of(sent(Intent.PLAIN, tag="blue"), copies=(ON_TIME,), of_wanted_tags=Counter([b"1"])), ["not wanted"]),
        (history_of(DELAYED, LATER, copies=(Copy(b"1", 5_500), Copy(b"2", 5_001))), ["late"]),
        (history_of(DELAYED, LATER, copies=(Copy(b"1", 5_500), Copy(b"2", 5_001)), interrupted_ms=3_000), []),
        (history_of(DELAYED, LATER, copies=(Copy(b"1", 9_500), Copy(b"2", 9_001))), []),
        (history_of(sent(Intent.COMMITTED), copies=(ON_TIME,), refused=["b'1': no such transaction"]), ["refused"]),
    ],
    ids=["good", "lost", "unknown and lost", "early", "twice", "twice after a crash", "committed twice", "recalled",
         "perhaps recalled", "rolled back", "open", "invented", "not dead", "dead", "not taken back", "filtered out",
         "not wanted", "late", "late because of a kill", "all late", "refused"],
)  # fmt: skip
def test_judge_of_services_finds_violations(history: ServiceHistory, kinds: list[str]) -> None:
    """The judge finds each kind of violation, and nothing in a history without one."""
    assert [text.partition(":")[0] for text in judge(history)] == kinds


def test_four_seeds_in_turn_have_every_interruption() -> None:
    """Runs of four seeds stop, kill and replace a master, and cut its power; a seed always has the same plan."""
    assert {service_plan(seed).interruption for seed in range(7, 11)} == set(Interruption)
    assert service_plan(7) == service_plan(7)


@pytest.mark.verify
@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(4, id="stop"),
        pytest.param(5, id="kill"),
        pytest.param(6, id="promote"),
        pytest.param(7, id="power", marks=[pytest.mark.needs_root, pytest.mark.needs_loop]),
    ],
)
async def test_services_keep_their_promises_over_interruptions(seed: int, tmp_path: Path) -> None:
    """Messages that are delivered later arrive once and on time, or not at all, as their sender wants."""
    assert await run_services(service_plan(seed), tmp_path) == []
