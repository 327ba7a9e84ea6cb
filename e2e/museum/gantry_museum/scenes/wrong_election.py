"""A wrong election: the slave is suspended while the master serves, and then the master while only the slave answers.

both in sync -> SIGSTOP slave, sends -> has the master or its epoch changed?
             -> SIGSTOP master, SIGCONT slave -> is the slave the master, which lacks the sends?
             -> SIGCONT master -> all acknowledged messages are read
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from local_group_kit import Group

from gantry_client import ClientError, Producer
from gantry_museum import clients, replicas
from gantry_museum.clients import Sent
from gantry_museum.exhibit import Exhibit, Outcome, Stage, System, Thread

AWAY_S: Final = 45.0
"""How long each broker is suspended: RocketMQ's controller takes a broker for inactive after 10 s."""
INACTIVE_SECONDS_MAX: Final = 120.0
SENDS: Final = 50
READ_SECONDS_MAX: Final = 180.0
POLL_S: Final = 0.5
LOSSY: Final = "{after: 3s, maxDataLossBytes: 1Gi}"
SAFE: Final = "{after: 3s}"


@dataclass(frozen=True)
class Pair:
    """A master and a slave of either system."""

    name_server: str
    pids: tuple[int, int]
    """The processes of the master and the slave at the begin."""

    term: Callable[[], tuple[str, int]]
    """Returns the present master and its epoch; an empty name without one."""


Script = Callable[[Pair, str], Coroutine[object, object, Outcome]]
"""What is done to a pair; the text begins each of its facts."""


def run(stage: Stage) -> Outcome:
    """Suspend the slave, and then the master, while the other one answers."""
    return _run_script(stage, _suspend_both, replication="{mode: Async}", failover=LOSSY if stage.is_twin else SAFE)


def run_inactive(stage: Stage) -> Outcome:
    """Suspend the master of a pair in which the slave has everything."""
    return _run_script(stage, _suspend_master, failover="{mode: Manual}" if stage.is_twin else SAFE)


def _run_script(stage: Stage, script: Script, **spec: str) -> Outcome:
    """Run a script with a group of this spec; with RocketMQ, with both kinds of its controller."""
    if stage.is_apache:
        outcomes = [_run_controlled(stage, kind, script) for kind in ("jRaft", "DLedger")]
        return Outcome(any(one.has_failed for one in outcomes), tuple(fact for one in outcomes for fact in one.facts))
    stage.directory.mkdir(parents=True, exist_ok=True)
    group = Group(stage.directory / "group", slaves="1", **spec)
    group.up()
    try:
        group.wait_until(group.is_healthy)
        pids = {one.role: one.pid for one in group.status().members}
        asyncio.run(clients.create_topic(group.name_server))
        pair = Pair(group.name_server, (pids["MASTER"] or 0, pids["SLAVE"] or 0), lambda: _term_of(group))
        return asyncio.run(script(pair, ""))
    finally:
        group.down()


def _term_of(group: Group) -> tuple[str, int]:
    return group.masters().get(0, ("", -1))


def _run_controlled(stage: Stage, kind: str, script: Script) -> Outcome:
    place = Stage(stage.system, stage.directory / kind, stage.nursery)
    pair = replicas.start_controlled_pair(place, is_jraft=kind == "jRaft")
    master = pair.master
    children = (pair.brokers[master], pair.brokers[pair.slave(master)])

    def term() -> tuple[str, int]:
        info = pair.controller.replica_info()
        return info.master, info.epoch

    both = Pair(pair.name_server, (children[0].process.pid, children[1].process.pid), term)
    try:
        return asyncio.run(script(both, f"With {kind}'s controller, "))
    finally:
        for child in (*children, pair.controller.child):
            child.kill()


async def _suspend_master(pair: Pair, prefix: str) -> Outcome:
    before = pair.term()
    os.kill(pair.pids[0], signal.SIGSTOP)
    after = await _wait_for_another(pair, before, INACTIVE_SECONDS_MAX)
    os.kill(pair.pids[0], signal.SIGCONT)
    elected = f"the slave was elected after {after:.0f} s" if after is not None else "no broker was elected"
    fact = f"{elected}, while the master was suspended for up to {INACTIVE_SECONDS_MAX:.0f} s."
    return Outcome(after is None, (_sentence(prefix, fact),))


def _sentence(prefix: str, text: str) -> str:
    """Return a sentence with a prefix, or without one."""
    whole = f"{prefix}{text}"
    return whole[0].upper() + whole[1:]


async def _suspend_both(pair: Pair, prefix: str) -> Outcome:
    master, slave = pair.pids
    before = pair.term()
    async with clients.producer(pair.name_server) as sender:
        os.kill(slave, signal.SIGSTOP)
        first, changes = await _send_slowly(pair, sender, before)
        os.kill(master, signal.SIGSTOP)
        os.kill(slave, signal.SIGCONT)
        after = await _wait_for_another(pair, before)
        os.kill(master, signal.SIGCONT)
    acknowledged = {one.number for one in first if one.is_acknowledged}
    assert acknowledged, clients.count_answers(first)
    found = await _read_all(pair, acknowledged)
    lost = len(acknowledged - found)
    change = f"the master changed {changes} times" if changes else "the master did not change"
    elected = f"the slave became the master after {after:.0f} s" if after is not None else "no broker was elected"
    facts = (
        _sentence(
            prefix, f"while only the slave was suspended, {change}, and {len(acknowledged)} sends were acknowledged."
        ),
        f"While only the master was suspended, {elected}. At the end {lost} acknowledged messages are lost.",
    )
    return Outcome(changes > 0 or lost > 0, facts)


async def _send_slowly(pair: Pair, sender: Producer, before: tuple[str, int]) -> tuple[list[Sent], int]:
    """Send during the time without the slave; return the sends, and how often the master or its epoch was another."""
    sent: list[Sent] = []
    changes, known = 0, before
    for number in range(SENDS):
        sent.append(await clients.send_one(sender, 1_000 + number))
        await asyncio.sleep(AWAY_S / SENDS)
        now = pair.term()
        changes, known = changes + (now not in (known, ("", -1))), now
    return sent, changes


async def _wait_for_another(pair: Pair, before: tuple[str, int], seconds_max: float = AWAY_S) -> float | None:
    """Return the seconds until another master has a later epoch; None if there is none in time."""
    began = time.monotonic()
    while (seconds := time.monotonic() - began) < seconds_max:
        name, epoch = await asyncio.to_thread(pair.term)
        if name not in ("", before[0]) and epoch > before[1]:
            return seconds
        await asyncio.sleep(POLL_S)
    return None


async def _read_all(pair: Pair, wanted: set[int]) -> set[int]:
    """Return the numbers of all messages, once a master serves and the numbers do not become more."""
    deadline = time.monotonic() + READ_SECONDS_MAX
    found: set[int] = set()
    while time.monotonic() < deadline and not wanted <= found:
        with suppress(ClientError):
            found = clients.numbers_of(await clients.read_topic(pair.name_server))
        await asyncio.sleep(POLL_S)
    return found


EXHIBIT: Final = Exhibit(
    name="wrong-election",
    title="A wrong election",
    threads=(Thread("apache/rocketmq", (8380,)), Thread("apache/rocketmq", (6586,), was_read=False)),
    reported="""\
With the controller on JRaft, the test whether a broker set needs an election was the wrong way round: an inactive slave
led to an election although the master was active (8380).""",
    scenario=f"""\
The slave is suspended for {AWAY_S:.0f} s while messages are sent, and the master acknowledges them alone. Then the
master is suspended for as long, and only the slave answers, which lacks these messages. The failure occurs if the
master changes while it serves, or if acknowledged messages are lost at the end. Gantry's group replicates
asynchronously here, since RocketMQ's master acknowledges without slaves by default.""",
    run=run,
    systems=(System.APACHE, System.GANTRY, System.TWIN),
    twin="may lose 1 GiB in a failover",
)

INACTIVE: Final = Exhibit(
    name="inactive-master",
    title="An inactive master that is not replaced",
    threads=(Thread("apache/rocketmq", (10416, 10875)),),
    reported="""\
The controller on JRaft searches for inactive brokers. A test of times is the wrong way round there, so that the
search ends before it begins: a broker that keeps its connection and does nothing stays the master (10416). A second
test counts an inactive master as valid, so that the search would not find it either (10875).""",
    scenario=f"""\
The master of a pair whose slave has everything is suspended, so that its connections stay. The failure occurs if the
slave is not elected within {INACTIVE_SECONDS_MAX:.0f} s, with one of RocketMQ's two kinds of controller.""",
    run=run_inactive,
    systems=(System.APACHE, System.GANTRY, System.TWIN),
    twin="leaves failovers to a person (`failover.mode: Manual`)",
    remark="""\
Both kinds of controller elected the slave within seconds, so this scenario does not show what 10416 describes.""",
)
