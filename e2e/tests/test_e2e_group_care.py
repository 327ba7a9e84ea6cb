"""Orders of people that stand: nothing is done, nothing is taken, or nothing runs, and nothing is lost by it."""

from __future__ import annotations

import time

import pytest
from gantry_cluster.api import Object
from gantry_cluster.capabilities import Capability
from gantry_cluster.commands import wait_until
from gantry_cluster.group_faults import NOTICED_SECONDS_MAX, kill_broker
from gantry_cluster.group_life import claim_ids, said, wait_said
from gantry_cluster.groups import Group
from gantry_cluster.spaces import Spaces
from gantry_cluster.specs import SMALL, TOPIC
from gantry_cluster.trial import under_load

pytestmark = [pytest.mark.slow, pytest.mark.cluster_can(Capability.RUN_GROUPS)]

WATCHED_S = 15.0
PAUSED_SECONDS_MAX = 25.0
"""Of a broker that is killed while nobody may name another."""
FENCED_SECONDS_MAX = 60.0
"""Of a fence that stands for `WATCHED_S`, and a broker behind it that has lost its role."""
HIBERNATED_SECONDS_MAX = 150.0
"""From the order to sleep, until a group that was told to wake once it slept acknowledges again."""

PAUSED, FENCE, HIBERNATE, PROMOTE = (f"gantry.dev/{name}" for name in ("paused", "fence", "hibernate", "promote"))
UNSTORED = "14"
"""The code of a refusal that has clients go elsewhere."""

LATER = "later"
EDITED: Object = SMALL | {"topics": [*SMALL["topics"], {"name": LATER, "queues": 1}]}
UNKEPT: Object = SMALL | {"storage": {**SMALL["storage"], "retain": "Never"}}
"""Volumes that go with the pods that are scaled away, and with the group."""


def is_asked_for(group: Group, topic: str) -> bool:
    """Whether sidecars are told to keep a topic."""
    found = group.space.cluster.api.get(f"{group.space.path('configmaps')}/{group.name}-0")
    return f'"{topic}"' in found["data"]["wanted"]


def test_a_paused_group_is_left_alone_and_looked_after_again(spaces: Spaces) -> None:
    """An order, an edit and a broker that is killed: nobody is named and nothing applied before the pause is over.

    The broker has its role again from its sidecar, in the same epoch; an operator would have begun another one.
    """
    group = spaces.group("paused", SMALL)
    [master] = group.masters()
    [slave] = [pod for pod in group.brokers() if pod != master]

    def pause() -> None:
        group.annotate(PAUSED, "true")
        print(f"paused after {wait_said(group, 'Paused', 'True', 'ByAnnotation'):.1f} s")
        before = group.record()["epoch"]
        group.annotate(PROMOTE, "0=2@paused")
        group.apply(EDITED)
        kill_broker(group, master)
        time.sleep(WATCHED_S)
        wait_until("its role again", lambda: group.masters() == [master], NOTICED_SECONDS_MAX)
        assert group.record()["epoch"] == before, "somebody was named"
        assert not is_asked_for(group, LATER)
        group.annotate(PAUSED, None)
        wait_until("the order obeyed", lambda: group.masters() == [slave], NOTICED_SECONDS_MAX)
        wait_until("the edit", lambda: is_asked_for(group, LATER), NOTICED_SECONDS_MAX)
        assert group.record()["epoch"] > before

    under_load(group, "paused", pause).demand(PAUSED_SECONDS_MAX)


def test_a_fenced_shard_takes_nothing_though_its_master_dies(spaces: Spaces) -> None:
    """Sends are refused unstored and reads go on; who is killed behind the fence has no role until it falls."""
    group = spaces.group("fenced", SMALL)
    group.gantry("produce", TOPIC, "before")
    [master] = group.masters()

    def fence() -> None:
        before = group.record()["epoch"]
        group.annotate(FENCE, "0")
        print(f"fenced after {wait_said(group, 'Fenced', 'True', 'ByAnnotation'):.1f} s")
        assert "before" in group.gantry("consume", TOPIC).splitlines()
        kill_broker(group, master)
        time.sleep(WATCHED_S)
        assert group.record()["epoch"] == before, "nobody was named"
        wait_said(group, "Fenced", "True", "ByAnnotation")
        assert said(group, "Available")[0] == "False"
        group.annotate(FENCE, None)

    outcome = under_load(group, "fenced", fence)

    outcome.demand(FENCED_SECONDS_MAX)
    assert outcome.seconds >= WATCHED_S, "something was acknowledged behind the fence"
    assert outcome.verdict["failed"].get(UNSTORED, 0) > 0


def test_a_group_hibernates_and_wakes_with_all_it_had(spaces: Spaces) -> None:
    """No pod runs; volumes stay, whatever `retain` says; the same master goes on in the epoch that was taken."""
    group = spaces.group("hibernated", UNKEPT)
    masters, claims = group.masters(), claim_ids(group)
    asleep: list[Object] = []

    def sleep() -> None:
        started, before = time.monotonic(), group.record()["epoch"]
        group.annotate(HIBERNATE, "true")
        wait_said(group, "Hibernated", "True", "ByAnnotation")
        wait_until("no pods", lambda: not group.brokers() and not group.name_servers(), NOTICED_SECONDS_MAX)
        print(f"asleep after {time.monotonic() - started:.1f} s")
        assert said(group, "Ready") == ("False", "Hibernated")
        assert claim_ids(group) == claims
        asleep.append(group.record())
        assert asleep[0]["epoch"] > before and asleep[0]["reigns"][-1]["epoch"] == before, "taken, and nobody's yet"
        group.annotate(HIBERNATE, None)
        started = time.monotonic()
        wait_said(group, "Hibernated", "False", "NotHibernated")
        wait_until("a master", lambda: group.masters() == masters, NOTICED_SECONDS_MAX)
        print(f"the same master {time.monotonic() - started:.1f} s after it was woken")

    outcome = under_load(group, "hibernated", sleep)

    outcome.demand(HIBERNATED_SECONDS_MAX)
    assert group.masters() == masters
    assert group.record()["epoch"] == asleep[0]["epoch"]
    assert claim_ids(group) == claims
