"""Topics lost after a switch: topics are created at the master, the master is killed, and the slave takes over.

    topic "early" at the master -> wait until the slave has it -> topic "late" -> kill -9 -> the slave is the master

RocketMQ's controller elects the slave; Gantry's is promoted by `gantry ha promote`.
"""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Final

from gantry_interop.broker_group import BrokerGroup
from gantry_interop.errors import DeadlineExceeded
from gantry_interop.processes import wait_until

from gantry_museum import replicas
from gantry_museum.exhibit import Exhibit, Outcome, Stage, System, Thread
from gantry_museum.unguarded_broker import __file__ as unguarded_broker

EARLY, LATE = "museum-early", "museum-late"
COPY_SECONDS_MAX: Final = 150.0
"""RocketMQ's slaves copy topics about every minute."""
COPY_SECONDS_MAX_OF_TWIN: Final = 10.0
SWITCH_SECONDS_MAX: Final = 120.0


def run(stage: Stage) -> Outcome:
    """Create both topics, switch, and ask the new master for them."""
    if stage.is_apache:
        pair = replicas.start_controlled_pair(stage, is_jraft=False)
        master = pair.master
        copied = _create_topics(master, pair.slave(master))
        pair.brokers[master].kill()
        wait_until("another master", lambda: pair.master not in ("", master), SWITCH_SECONDS_MAX)
        return _judge(pair.master, copied)
    program = (unguarded_broker, "tables") if stage.is_twin else ("-m", "gantry_broker")
    group = BrokerGroup(stage.nursery, stage.directory, 2, {}, program)
    group.start()
    group.begin(1)
    master, slave = (group.status(group[number])["address"] for number in (1, 2))
    copied = _create_topics(master, slave, COPY_SECONDS_MAX_OF_TWIN if stage.is_twin else COPY_SECONDS_MAX)
    group.kill(group[1])
    group.promote("--to", "2")
    new = group.master_status()["address"]
    return _judge(new, copied)


def _create_topics(master: str, slave: str, seconds_max: float = COPY_SECONDS_MAX) -> str:
    """Create the topics; return when the slave had the early one, as a sentence."""
    replicas.create_topic(master, EARLY)
    began = time.monotonic()
    with suppress(DeadlineExceeded):
        wait_until("the slave has the topic", lambda: replicas.has_topic(slave, EARLY), seconds_max)
    seconds = time.monotonic() - began
    has_copied = replicas.has_topic(slave, EARLY)
    replicas.create_topic(master, LATE)
    what = f"had the first topic after {seconds:.0f} s" if has_copied else f"did not get it in {seconds:.0f} s"
    return f"The slave {what}."


def _judge(new: str, copied: str) -> Outcome:
    early, late = (replicas.has_topic(new, topic) for topic in (EARLY, LATE))
    second = "has" if late else "has lost"
    return Outcome(
        not early or not late,
        (
            copied,
            f"The new master {'has' if early else 'has lost'} this topic, and {second} the one that was created right"
            " before the kill.",
        ),
    )


EXHIBIT: Final = Exhibit(
    name="lost-topics",
    title="Topics lost after a switch",
    threads=(Thread("itboon/rocketmq-helm", (33,)), Thread("apache/rocketmq", (9804,))),
    reported="""\
With RocketMQ 5.3.3 in controller mode, a topic that was created with `mqadmin` was only in the master's `topics.json`.
After a switch the former slave was the master, and the topic was gone; two users gave up controller mode. Another user
could not reproduce it.""",
    scenario=f"""\
A topic is created at the master; when the slave has it, or after {COPY_SECONDS_MAX:.0f} s, a second one. Then the
master is killed and the slave becomes the master: RocketMQ's by its controller, Gantry's by `gantry ha promote`. The
failure occurs if one of the topics, whose creation was confirmed, is gone.""",
    run=run,
    systems=(System.APACHE, System.PREVIOUS, System.GANTRY, System.TWIN),
    twin="sends no tables to its slaves",
)
