"""Groups are edited while clients use them: every edit takes effect, and nobody loses anything by it."""

from __future__ import annotations

import time

import pytest
from gantry_cluster.api import Object
from gantry_cluster.capabilities import Capability
from gantry_cluster.cluster import Cluster
from gantry_cluster.commands import wait_until
from gantry_cluster.errors import CommandFailed
from gantry_cluster.group_faults import NOTICED_SECONDS_MAX
from gantry_cluster.groups import Group
from gantry_cluster.spaces import Spaces
from gantry_cluster.specs import SMALL, TOPIC
from gantry_cluster.trial import under_load

pytestmark = [pytest.mark.slow, pytest.mark.cluster_can(Capability.RUN_GROUPS)]

ROLL_SECONDS_MAX = 60.0
"""Of the only shard of a sync group with one slave: it refuses sends while either of its brokers starts again."""
EDIT_SECONDS_MAX = 10.0
SCALE_SECONDS_MAX = 240.0
NEW_IMAGE = "localhost/gantry:next"


def images(group: Group) -> set[str]:
    """What the brokers of a group run."""
    pods = [group.space.read_pod(pod) for pod in group.brokers()]
    return {container["image"] for pod in pods if pod is not None for container in pod["spec"]["containers"]}


@pytest.mark.cluster_can(Capability.GIVE_IMAGES)
def test_a_new_image_is_rolled_out_without_loss(spaces: Spaces, operated: Cluster) -> None:
    """Slaves first, the master last, after its role has moved."""
    operated.name_image("localhost/gantry:latest", NEW_IMAGE)
    group = spaces.group("rolled", SMALL)

    def roll() -> None:
        started = time.monotonic()
        group.apply(SMALL | {"image": NEW_IMAGE})
        wait_until("the new image everywhere", lambda: images(group) == {NEW_IMAGE}, NOTICED_SECONDS_MAX)
        print(f"rolled in {time.monotonic() - started:.1f} s")

    under_load(group, "rolled", roll).demand(ROLL_SECONDS_MAX)


@pytest.mark.cluster_can(Capability.RESIZE_VOLUMES)
def test_volumes_grow_while_clients_go_on(spaces: Spaces) -> None:
    """The claims ask for more, and new ones will; the test is the storage that grows them."""
    group = spaces.group("grown", SMALL)
    before = {pod: group.space.read_pod(pod)["metadata"]["uid"] for pod in group.brokers()}  # type: ignore[index]

    def grow() -> None:
        group.apply(SMALL | {"storage": {"size": "2Gi"}})
        wait_until(
            "claims that ask for 2Gi",
            lambda: all(asked(claim) == 2 << 30 for claim in group.claims().values()),
            NOTICED_SECONDS_MAX,
        )
        for name in group.claims():
            path = f"{group.space.path('persistentvolumeclaims')}/{name}/status"
            group.space.cluster.api.merge(path, {"status": {"capacity": {"storage": "2Gi"}}})

    under_load(group, "volumes grown", grow).demand(EDIT_SECONDS_MAX)
    after = {pod: group.space.read_pod(pod)["metadata"]["uid"] for pod in group.brokers()}  # type: ignore[index]
    assert after == before, "nobody was restarted for it"


def asked(claim: Object) -> int:
    """How many bytes a claim asks for."""
    text = str(claim["spec"]["resources"]["requests"]["storage"])
    return int(text[:-2]) << 30 if text.endswith("Gi") else int(text)


def test_a_volume_that_is_to_shrink_is_refused(spaces: Spaces) -> None:
    """The API server refuses it, and says which field."""
    group = Group(spaces.make("shrunk"), "orders")
    group.apply(SMALL)

    with pytest.raises(CommandFailed, match="size"):
        group.apply(SMALL | {"storage": {"size": "512Mi"}})

    assert group.read()["spec"]["storage"]["size"] == "1Gi"


def test_shards_come_and_go_with_nothing_lost(spaces: Spaces) -> None:
    """A second shard takes part; it goes only when its messages are gone, and its master is then withdrawn."""
    group = spaces.group("scaled", SMALL)

    def out() -> None:
        group.apply(SMALL | {"shards": 2})
        wait_until("a second master", lambda: len(group.masters()) == 2 and "-" not in group.masters(), 120)

    under_load(group, "scaled out", out).demand(EDIT_SECONDS_MAX)
    wait_until("queues of the second shard", lambda: "orders-1" in group.gantry("topic", "describe", TOPIC), 90)
    started = time.monotonic()
    group.apply(SMALL)
    wait_until("the end of the second shard", lambda: len(group.brokers()) == 2, SCALE_SECONDS_MAX)
    print(f"RESULT an empty shard is gone {time.monotonic() - started:.1f} s after the edit")
    assert group.wait_healthy() < NOTICED_SECONDS_MAX


def test_a_shard_that_holds_messages_stays(spaces: Spaces) -> None:
    """The twin: what is not consumed is not thrown away, and the status says what is waited for."""
    group = spaces.group("held", SMALL | {"shards": 2})
    group.gantry("produce", TOPIC, *(f"order {number}" for number in range(20)))

    group.apply(SMALL | {"shards": 1})
    wait_until("a look at the edit", lambda: bool(group.conditions()), NOTICED_SECONDS_MAX)
    time.sleep(60)

    assert len(group.brokers()) == 4


def test_two_groups_in_two_namespaces_do_not_notice_each_other(spaces: Spaces) -> None:
    """Same name, same operator: one loses its master, the other goes on."""
    first, second = spaces.group("left-one", SMALL), spaces.group("right-one", SMALL)
    [master] = first.masters()
    second_before = second.record()["epoch"]

    def lose() -> None:
        print(f"back in {first.replace_pod(master):.1f} s")
        first.wait_healthy()

    under_load(second, "neighbour lost", lose).demand(EDIT_SECONDS_MAX)
    assert second.record()["epoch"] == second_before
