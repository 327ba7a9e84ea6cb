"""Lasting orders of administrators (pause, fence, hibernate) are obeyed, and no message is lost by them."""

from __future__ import annotations

import time

import pytest
from gantry_cluster.api import Object
from gantry_cluster.capabilities import Capability
from gantry_cluster.commands import wait_until
from gantry_cluster.group_faults import NOTICED_SECONDS_MAX, kill_broker
from gantry_cluster.group_life import claim_ids, condition_of, wait_for_condition
from gantry_cluster.groups import Group
from gantry_cluster.namespaces import NamespaceFactory
from gantry_cluster.specs import SMALL, TOPIC
from gantry_cluster.trial import run_fault_under_load

pytestmark = [pytest.mark.slow, pytest.mark.cluster_can(Capability.RUN_GROUPS)]

WATCHED_S = 15.0
"""How long the order is obeyed before it is withdrawn."""

PAUSED_SECONDS_MAX = 25.0
"""The limit for a broker that is killed while no other may be elected."""
FENCED_SECONDS_MAX = 60.0
"""The limit for a fence of `WATCHED_S` during which the broker loses its role."""
HIBERNATED_SECONDS_MAX = 150.0
"""The limit from the order to hibernate until the group acknowledges again after waking up."""

PAUSED, FENCE, HIBERNATE, PROMOTE = (f"gantry.dev/{name}" for name in ("paused", "fence", "hibernate", "promote"))
UNSTORED = "14"
"""The code of a refusal after which clients send elsewhere."""

LATER = "later"
"""The topic that an edit adds."""

EDITED: Object = SMALL | {"topics": [*SMALL["topics"], {"name": LATER, "queues": 1}]}
UNKEPT: Object = SMALL | {"storage": {**SMALL["storage"], "retain": "Never"}}
"""Volumes that are deleted with scaled-down pods and with the group."""


def is_asked_for(group: Group, topic: str) -> bool:
    """Return whether sidecars are configured to keep a topic."""
    found = group.namespace.cluster.api.get(f"{group.namespace.path('configmaps')}/{group.name}-0")
    return f'"{topic}"' in found["data"]["topics.json"]


def test_paused_group_is_unchanged_until_the_pause_ends(namespaces: NamespaceFactory) -> None:
    """During a pause, an order, an edit and a killed broker lead to no promotion and no change.

    The broker regains its role from its sidecar in the same epoch; an operator would have begun another one.
    """
    group = namespaces.create_group("paused", SMALL)
    [master] = group.masters()
    [slave] = [pod for pod in group.brokers() if pod != master]

    def pause() -> None:
        group.annotate(PAUSED, "true")
        print(f"paused after {wait_for_condition(group, 'Paused', 'True', 'ByAnnotation'):.1f} s")
        before = group.lease_record()["epoch"]
        group.annotate(PROMOTE, "0=2@paused")
        group.apply(EDITED)
        kill_broker(group, master)
        time.sleep(WATCHED_S)
        wait_until("its role again", lambda: group.masters() == [master], NOTICED_SECONDS_MAX)
        assert group.lease_record()["epoch"] == before, "a master was promoted"
        assert not is_asked_for(group, LATER)
        group.annotate(PAUSED, None)
        wait_until("the order executed", lambda: group.masters() == [slave], NOTICED_SECONDS_MAX)
        wait_until("the edit", lambda: is_asked_for(group, LATER), NOTICED_SECONDS_MAX)
        assert group.lease_record()["epoch"] > before

    run_fault_under_load(group, "paused", pause).check_limits(PAUSED_SECONDS_MAX)


def test_fenced_shard_accepts_nothing_though_its_master_is_killed(namespaces: NamespaceFactory) -> None:
    """Sends are refused unstored and reads continue; a broker that is killed while the shard is fenced has no role
    until the fence is lifted.
    """
    group = namespaces.create_group("fenced", SMALL)
    group.gantry("produce", TOPIC, "before")
    [master] = group.masters()

    def fence() -> None:
        before = group.lease_record()["epoch"]
        group.annotate(FENCE, "0")
        print(f"fenced after {wait_for_condition(group, 'Fenced', 'True', 'ByAnnotation'):.1f} s")
        assert "before" in group.gantry("consume", TOPIC).splitlines()
        kill_broker(group, master)
        time.sleep(WATCHED_S)
        assert group.lease_record()["epoch"] == before, "a master was promoted while the shard was fenced"
        wait_for_condition(group, "Fenced", "True", "ByAnnotation")
        assert condition_of(group, "Available")[0] == "False"
        group.annotate(FENCE, None)

    outcome = run_fault_under_load(group, "fenced", fence)

    outcome.check_limits(FENCED_SECONDS_MAX)
    assert outcome.seconds >= WATCHED_S, "something was acknowledged while the shard was fenced"
    assert outcome.verdict["failed"].get(UNSTORED, 0) > 0


def test_hibernated_group_wakes_up_with_all_messages(namespaces: NamespaceFactory) -> None:
    """No pod runs; volumes stay regardless of `retain`; the same master continues in the reserved epoch."""
    group = namespaces.create_group("hibernated", UNKEPT)
    masters, claims = group.masters(), claim_ids(group)
    hibernated: list[Object] = []

    def sleep() -> None:
        started, before = time.monotonic(), group.lease_record()["epoch"]
        group.annotate(HIBERNATE, "true")
        wait_for_condition(group, "Hibernated", "True", "ByAnnotation")
        wait_until("no pods", lambda: not group.brokers() and not group.name_servers(), NOTICED_SECONDS_MAX)
        print(f"hibernated after {time.monotonic() - started:.1f} s")
        assert condition_of(group, "Ready") == ("False", "Hibernated")
        assert claim_ids(group) == claims
        hibernated.append(group.lease_record())
        assert hibernated[0]["epoch"] > before and hibernated[0]["terms"][-1]["epoch"] == before, (
            "expected an epoch that is reserved, and has no master yet"
        )
        group.annotate(HIBERNATE, None)
        started = time.monotonic()
        wait_for_condition(group, "Hibernated", "False", "NotHibernated")
        wait_until("a master", lambda: group.masters() == masters, NOTICED_SECONDS_MAX)
        print(f"the same master {time.monotonic() - started:.1f} s after it was woken")

    outcome = run_fault_under_load(group, "hibernated", sleep)

    outcome.check_limits(HIBERNATED_SECONDS_MAX)
    assert group.masters() == masters
    assert group.lease_record()["epoch"] == hibernated[0]["epoch"]
    assert claim_ids(group) == claims
