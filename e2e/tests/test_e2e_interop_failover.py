"""A master is killed under Java clients, and `gantry ha promote` promotes a slave, or the old master again.

The producer and the consumer are unmodified, and never restarted or notified. Their interruption is printed by
`make interop`, but not tested, because it depends on their route poll.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from gantry_interop import failover
from gantry_interop.failover_plans import PLANS, Plan
from gantry_interop.history import ClientHistory, judge
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
def test_java_clients_continue_after_a_promotion(plan: Plan, tmp_path: Path) -> None:
    """No acknowledged message that a slave had is lost, all are consumed, and all logs are the same."""
    with Nursery(tmp_path / "logs") as nursery:
        report = failover.run_failover(plan, nursery, tmp_path / "play")

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
"""Message 2 was only on the old master, killed at 200; 4 has its place on the new one, ordered at 300."""

OLD_TAIL = {(0, 1): 2}
NEW = {(0, 0): 1, (0, 1): 4}


def history_of(path: Path, lines: str) -> ClientHistory:
    (path / "history.txt").write_text(lines)
    return ClientHistory(path / "history.txt").read()


def test_only_an_asynchronous_group_may_lose_a_tail_that_no_slave_had(tmp_path: Path) -> None:
    """It is counted as lost and as vanished; in a synchronous group it breaks the rules."""
    history = history_of(tmp_path, LINES)

    judgement = judge(history, NEW, OLD_TAIL, killed_us=200, ordered_us=300)

    assert (judgement.lost, judgement.vanished, judgement.unseen) == ([2], [2], [])
    assert judgement.broken(may_lose_tail=True) == []
    assert judgement.broken(may_lose_tail=False) == [
        "1 acknowledged messages are lost, first 2",
        "1 consumed messages have vanished, first 2",
    ]
    assert (history.first_answer(300), history.first_delivery(300), history.attempts) == (410, 420, 5)


@pytest.mark.parametrize(
    ("lines", "new", "claim"),
    [
        (LINES, {(0, 1): 4}, "1 acknowledged messages that a slave had are lost, first 1"),
        (LINES, {(0, 1): 4}, "1 consumed messages that a slave had have vanished, first 1"),
        (LINES.replace("seen 4 0 1 420\n", ""), NEW, "1 acknowledged messages are never consumed, first 4"),
        (LINES.replace("400 410", "210 220"), NEW, "1 messages are acknowledged while there is no master, first 4"),
        (LINES + "seen -1 0 7 500\n", NEW, "1 deliveries are of no message that was sent"),
        (
            LINES + "rolled_back 9 0 3 130 140\nseen 9 0 1 420\n",
            NEW,
            "1 messages of transactions that were rolled back are delivered, first 9",
        ),
        (
            LINES + "rolled_back_unknown 9 MQClientException 130 140\nseen 9 0 1 420\n",
            NEW,
            "1 messages of transactions that were rolled back are delivered, first 9",
        ),
    ],
    ids=["lost", "vanished", "skipped", "no-master", "never-sent", "rolled-back", "rolled-back-unanswered"],
)
def test_every_fault_is_found(lines: str, new: dict[tuple[int, int], int], claim: str, tmp_path: Path) -> None:
    """The checker of failovers finds each fault, also in the asynchronous mode."""
    judgement = judge(history_of(tmp_path, lines), new, OLD_TAIL, killed_us=200, ordered_us=300)

    assert claim in judgement.broken(may_lose_tail=True)


@pytest.mark.parametrize(
    ("lines", "claim"),
    [
        (
            "deferred 9 0 3 130 140\n",
            "1 messages that are delayed, committed or failed once are never consumed, first 9",
        ),
        ("failed 9 420\n", "1 messages that are delayed, committed or failed once are never consumed, first 9"),
    ],
    ids=["committed", "failed-once"],
)
def test_delayed_or_failed_message_must_be_consumed(lines: str, claim: str, tmp_path: Path) -> None:
    """A committed or delayed message is missing, or a failed one was not redelivered."""
    kept = LINES.replace("ok 2 0 1 100 120\n", "").replace("seen 2 0 1 125\n", "")

    def broken(text: str) -> list[str]:
        history = history_of(tmp_path, text)
        return judge(history, NEW, OLD_TAIL, killed_us=200, ordered_us=300).broken(may_lose_tail=False)

    assert broken(kept) == []
    assert broken(kept + lines) == [claim]


def test_copy_of_a_popped_message_counts_as_its_delivery(tmp_path: Path) -> None:
    """It has a place of its own, which is not compared; one of a message that was never sent is a fault."""
    kept = LINES.replace("ok 2 0 1 100 120\n", "").replace("seen 2 0 1 125\n", "")

    def broken(text: str) -> list[str]:
        history = history_of(tmp_path, text)
        return judge(history, NEW, OLD_TAIL, killed_us=200, ordered_us=300).broken(may_lose_tail=False)

    assert broken(kept.replace("seen 4 0 1 420", "again 4 420")) == []
    assert broken(kept + "failed 4 430\nagain 4 440\n") == []
    assert broken(kept + "again -1 440\n") == ["1 deliveries are of no message that was sent"]
