"""A master is killed under an unmodified Java producer and consumer, and a slave promoted by `gantry ha promote`.

The clients are never restarted and told nothing. How long they take to come back is printed by `make interop`, not
tested: it is their route poll.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from gantry_interop import failover
from gantry_interop.failover_plans import PLANS, Plan
from gantry_interop.ledger import Ledger, judge
from gantry_interop.processes import Nursery

SHORT = Plan(is_sync=True, poll_ms=1_000, load_seconds=2.0)


@pytest.mark.verify
@pytest.mark.needs_java
@pytest.mark.parametrize(
    "plan",
    [
        pytest.param(SHORT, id="short"),
        *(
            pytest.param(plan, id=f"{plan.client}-{plan.name}-{plan.poll_text}", marks=pytest.mark.slow)
            for plan in PLANS
        ),
    ],
)
def test_java_clients_go_on_with_the_promoted_slave(plan: Plan, tmp_path: Path) -> None:
    """Nothing that was acknowledged and that a slave had is lost, all of it is consumed, and every log is the same."""
    with Nursery(tmp_path / "logs") as nursery:
        report = failover.play(plan, nursery, tmp_path / "play")

    print(f"{plan.name}: first new acknowledgement {report.first_answer_seconds:.2f} s after the order")
    assert report.broken == []
    if not plan.may_lose_tail:
        assert (report.lost, report.vanished) == (0, 0)
    assert report.answered > 0


LINES = """\
ok 1 0 0 100 110
ok 2 0 1 100 120
seen 1 0 0 115
seen 2 0 1 125
unknown 3 MQClientException 130 140
ok 4 0 1 400 410
seen 4 0 1 420
sent 5
"""
"""Message 2 was only on the old master, killed at 200; 4 is in its place on the new one, ordered at 300."""

OLD_TAIL = {(0, 1): 2}
NEW = {(0, 0): 1, (0, 1): 4}


def ledger_of(path: Path, lines: str) -> Ledger:
    (path / "ledger.txt").write_text(lines)
    return Ledger(path / "ledger.txt").read()


def test_a_tail_that_no_slave_had_is_lost_by_the_asynchronous_group_alone(tmp_path: Path) -> None:
    """It is counted, as lost and as vanished; for a group that waits it is a broken promise."""
    ledger = ledger_of(tmp_path, LINES)

    judgement = judge(ledger, NEW, OLD_TAIL, killed_us=200, ordered_us=300)

    assert (judgement.lost, judgement.vanished, judgement.unseen) == ([2], [2], [])
    assert judgement.broken(may_lose_tail=True) == []
    assert judgement.broken(may_lose_tail=False) == [
        "1 acknowledged messages are lost, first 2",
        "1 consumed messages have vanished, first 2",
    ]
    assert (ledger.first_answer(300), ledger.first_delivery(300), ledger.attempts) == (410, 420, 5)


@pytest.mark.parametrize(
    ("lines", "new", "claim"),
    [
        (LINES, {(0, 1): 4}, "1 acknowledged messages that a slave had are lost, first 1"),
        (LINES, {(0, 1): 4}, "1 consumed messages that a slave had have vanished, first 1"),
        (LINES.replace("seen 4 0 1 420\n", ""), NEW, "1 acknowledged messages are never consumed, first 4"),
        (LINES.replace("400 410", "210 220"), NEW, "1 messages are acknowledged while there is no master, first 4"),
        (LINES + "seen -1 0 7 500\n", NEW, "1 deliveries are of no message that was sent"),
        (
            LINES + "forgotten 9 0 3 130 140\nseen 9 0 1 420\n",
            NEW,
            "1 messages of transactions that were rolled back are delivered, first 9",
        ),
        (
            LINES + "unwanted 9 MQClientException 130 140\nseen 9 0 1 420\n",
            NEW,
            "1 messages of transactions that were rolled back are delivered, first 9",
        ),
    ],
    ids=["lost", "vanished", "skipped", "headless", "strange", "rolled-back", "rolled-back-unanswered"],
)
def test_every_lie_is_seen(lines: str, new: dict[tuple[int, int], int], claim: str, tmp_path: Path) -> None:
    """The judge of failovers finds what it is there for, in the mode that forgives most."""
    judgement = judge(ledger_of(tmp_path, lines), new, OLD_TAIL, killed_us=200, ordered_us=300)

    assert claim in judgement.broken(may_lose_tail=True)


@pytest.mark.parametrize(
    ("lines", "claim"),
    [
        ("pledged 9 0 3 130 140\n", "1 messages that were pledged or put off never come, first 9"),
        ("failed 9 420\n", "1 messages that were pledged or put off never come, first 9"),
    ],
    ids=["committed", "put-off"],
)
def test_what_was_pledged_must_come(lines: str, claim: str, tmp_path: Path) -> None:
    """A committed or delayed message is nowhere; the listener has refused one, and it never came again."""
    kept = LINES.replace("ok 2 0 1 100 120\n", "").replace("seen 2 0 1 125\n", "")

    def broken(text: str) -> list[str]:
        ledger = ledger_of(tmp_path, text)
        return judge(ledger, NEW, OLD_TAIL, killed_us=200, ordered_us=300).broken(may_lose_tail=False)

    assert broken(kept) == []
    assert broken(kept + lines) == [claim]
