"""Pop consumption over kills and promotions: nothing is lost, and what was acked is never delivered again."""

from __future__ import annotations

from pathlib import Path

import pytest
from replication.pop_load import Ack, Delivery, PopHistory, judge
from replication.service_runs import run_pops

FIRST = Delivery(b"1", ("0", 0, 7), 0, asked_s=1.0, received_s=1.1)
ACKED = Ack(b"1", ("0", 0, 7), 0, answered_s=2.0, is_binding=True)
COPY = Delivery(b"1", ("1", 0, 3), 1, asked_s=3.0, received_s=3.1)


@pytest.mark.parametrize(
    ("history", "violation"),
    [
        (PopHistory({b"1"}, [FIRST], [ACKED]), None),
        (PopHistory({b"1", b"2"}, [FIRST], [ACKED]), "lost"),
        (PopHistory({b"1"}, [FIRST, FIRST._replace(asked_s=2.5)], [ACKED]), "delivered again"),
        (PopHistory({b"1"}, [FIRST, FIRST._replace(asked_s=1.5)], [ACKED]), None),
        (PopHistory({b"1"}, [FIRST, FIRST._replace(asked_s=2.5)], [ACKED._replace(is_binding=False)]), None),
        (PopHistory({b"1"}, [FIRST, COPY], [ACKED]), "copied"),
        (PopHistory({b"1"}, [FIRST, COPY, COPY._replace(place=("1", 0, 4))], [ACKED]), None),
        (PopHistory({b"1"}, [FIRST, COPY._replace(received_s=2.8)], []), "early"),
        (PopHistory({b"1"}, [FIRST, COPY], []), None),
    ],
    ids=[
        "good",
        "lost",
        "again",
        "asked before the ack",
        "late ack",
        "copied",
        "copied twice by a crash",
        "early",
        "on time",
    ],
)
def test_judge_finds_violations(history: PopHistory, violation: str | None) -> None:
    """The judge finds lost, repeated and early messages, and nothing else."""
    found = judge(history)
    assert [text.partition(":")[0] for text in found] == ([] if violation is None else [violation])


@pytest.mark.verify
@pytest.mark.parametrize("has_buffers", [False, True], ids=["no-buffers", "buffers"])
async def test_killed_broker_loses_no_popped_message_and_repeats_no_acked_one(
    has_buffers: bool, tmp_path: Path
) -> None:
    """A broker that is killed and started again, under load, knows every checkpoint and ack that it has answered."""
    settings = {"brokerRole": "ASYNC_MASTER", "transientStorePoolEnable": str(has_buffers).lower()}
    history = await run_pops(tmp_path, members=1, rounds=5, settings=settings, has_buffers=has_buffers)
    assert judge(history) == []
    assert len(history.deliveries) > len(history.sent), "expected messages to be delivered again"


@pytest.mark.verify
async def test_promoted_slave_loses_no_popped_message_and_repeats_no_acked_one(tmp_path: Path) -> None:
    """A slave that becomes the master knows every checkpoint and ack that its master has answered."""
    history = await run_pops(tmp_path, members=2, rounds=3, settings={"brokerRole": "SYNC_MASTER"})
    assert judge(history) == []
    assert len(history.deliveries) > len(history.sent), "expected messages to be delivered again"
