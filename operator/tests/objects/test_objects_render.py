"""All objects of a group: complete, owned, labelled, and the same for each rendering."""

from __future__ import annotations

import base64
import json
from collections import Counter

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from objects_scene import (
    EVERYTHING,
    broker_sets,
    containers,
    facts,
    group,
    is_selected,
    of_kind,
    pods_of,
    rendered,
)

from gantry_admin.topics_file import TopicsFile
from gantry_cli.pod.member import parse_pod_name
from gantry_operator.objects import ShardFacts, group_token, names, render, secret
from gantry_operator.objects.base import Object

KEY = bytes(range(32))


def test_every_object_has_a_unique_name_an_owner_and_labels() -> None:
    """Deleting the group deletes all of them, without a finalizer; no two objects overwrite each other."""
    objects = rendered(group(**EVERYTHING))

    assert max(Counter((one["kind"], one["metadata"]["name"]) for one in objects).values()) == 1
    for one in objects:
        [owner] = one["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["uid"], owner["controller"]) == ("BrokerGroup", "uid-of-orders", True)
        assert owner["blockOwnerDeletion"] is False
        assert "finalizers" not in one["metadata"]
        assert one["metadata"]["namespace"] == "shop"
        assert one["metadata"]["labels"]["gantry.dev/group"] == "orders"


def test_rendering_is_deterministic() -> None:
    """So a repeated apply changes nothing; objects do not depend on the time or place of rendering."""
    first, second = rendered(group(**EVERYTHING)), rendered(group(**EVERYTHING))

    assert json.dumps(first) == json.dumps(second)


@pytest.mark.parametrize("policy", ["Always", "Never"])
def test_volumes_have_no_owner(policy: str) -> None:
    """Only the StatefulSet's own policy deletes them, and only if the group's spec says so."""
    for one in broker_sets(rendered(group(storage={"retain": policy}))).values():
        [claim] = one["spec"]["volumeClaimTemplates"]
        assert "ownerReferences" not in claim["metadata"]
        kept = "Retain" if policy == "Always" else "Delete"
        assert one["spec"]["persistentVolumeClaimRetentionPolicy"] == {"whenDeleted": kept, "whenScaled": kept}


def test_stateful_sets_do_not_contain_roles() -> None:
    """The role is in no selector and no template, so a switchover replaces no pod; only the operator restarts pods."""
    for one in broker_sets(rendered(group(**EVERYTHING))).values():
        spec = one["spec"]
        assert names.ROLE_LABEL not in json.dumps(spec)
        assert (spec["podManagementPolicy"], spec["updateStrategy"]) == ("Parallel", {"type": "OnDelete"})


def test_each_pod_is_selected_only_by_its_own_stateful_set() -> None:
    """The other StatefulSet of the shard, and another group with a similar name, do not select it."""
    objects = [*rendered(group("orders", **EVERYTHING)), *rendered(group("orders-0", **EVERYTHING))]
    sets = of_kind(objects, "StatefulSet")
    for pod, labels, home in pods_of(objects):
        assert [name for name, one in sets.items() if is_selected(labels, one["spec"]["selector"])] == [home], pod


def test_pod_and_operator_agree_on_the_member() -> None:
    """A pod parses its name as the operator does, without the name of the group; members are numbered without gaps."""
    one = group(**EVERYTHING)
    found = []
    for pod, _, home in pods_of(rendered(one)):
        place, own = names.member_of("orders", pod), parse_pod_name(pod)
        if home == "orders-nameserver":
            assert place is None and own is None
            continue
        assert place is not None and own is not None
        assert (place.member, own.role_service) == (own.number, f"orders-{place.shard}")
        assert names.member_pod("orders", *place) == pod == own.own_service
        found.append(place)
    assert sorted(found) == [(shard, member) for shard in (0, 1) for member in (1, 2, 3)]


@given(st.text(alphabet="abcd0123-mastervl", max_size=30))
def test_no_other_name_is_a_member(pod: str) -> None:
    """A name that is parsed as a member is the name of that member."""
    place = names.member_of("a-1", pod)

    assert place is None or names.member_pod("a-1", *place) == pod


def test_every_service_selects_its_pods() -> None:
    """A member's Service selects its pod in any role; the shard's the master, by name or, if unknown, by its label."""
    objects = rendered(group(shards=2, slaves=1))
    services, pods = of_kind(objects, "Service"), {pod: labels for pod, labels, _ in pods_of(objects)}

    def taken(service: str) -> list[str]:
        selector = {"matchLabels": services[service]["spec"]["selector"]}
        return sorted(pod for pod, labels in pods.items() if is_selected(labels, selector))

    assert all(one["spec"]["publishNotReadyAddresses"] for one in services.values())
    assert taken("orders-0") == taken("orders-1") == []
    pods["orders-0-slave-0"] = pods["orders-0-slave-0"] | {names.ROLE_LABEL: "master"}
    assert (taken("orders-0"), taken("orders-1")) == (["orders-0-slave-0"], [])
    for pod in ("orders-0-master-0", "orders-0-slave-0", "orders-1-master-0", "orders-1-slave-0"):
        assert taken(pod) == taken(pod.rpartition("-")[0]) == [pod]
    assert taken("orders-nameserver") == ["orders-nameserver-0", "orders-nameserver-1"]

    known = facts(shards=(ShardFacts(number=1, slaves=1, master_pod="orders-1-slave-0"),))
    services = of_kind(render(group(shards=2, slaves=1, access={"external": {"type": "NodePort"}}), known), "Service")
    pods["orders-1-master-0"] = pods["orders-1-master-0"] | {names.ROLE_LABEL: "master"}
    assert taken("orders-1") == taken("orders-1-external") == ["orders-1-slave-0"], "expected the known master"


def test_host_names_in_the_configuration_exist() -> None:
    """Name servers and peers have names that headless Services give to pods."""
    one = group(shards=2, slaves=1)
    objects = rendered(one)
    services, pods = of_kind(objects, "Service"), {pod: home for pod, _, home in pods_of(objects)}
    conf = environment(broker_sets(objects)["orders-0-master"])["GANTRY_BROKER_CONF"]
    [servers] = [line.partition("=")[2] for line in conf.splitlines() if line.startswith("namesrvAddr=")]
    peers = of_kind(objects, "ConfigMap")["orders-0"]["data"]["peers"].split()

    for host in [*servers.split(";"), *(url.removeprefix("http://") for url in peers)]:
        pod, service, namespace, *_ = host.split(".")
        assert pods[pod] == service and namespace == "shop"
        assert services[service]["spec"]["clusterIP"] == "None"
    assert len(peers) == 4


def test_topics_and_groups_of_the_spec_are_in_the_config_map() -> None:
    """They have the names of the manifest, and the sidecar finds and reads them there."""
    one = group(topics=[{"name": "orders", "queues": 16}], groups=[{"name": "billing", "retryMax": 3}])
    objects = rendered(one)
    text = of_kind(objects, "ConfigMap")["orders-0"]["data"]["topics.json"]
    sidecar = containers(broker_sets(objects)["orders-0-master"]["spec"]["template"])["sidecar"]

    declared = msgspec.json.decode(text, type=TopicsFile)

    assert (list(declared.topics), list(declared.groups)) == (one.spec.topics, one.spec.groups)
    assert sidecar["args"][sidecar["args"].index("--topics-file") + 1] == "/etc/gantry/group/topics.json"
    assert "--regain" in sidecar["args"], "without it a shard would stop while the API server is unavailable"


def environment(stateful_set: Object) -> dict[str, str]:
    """Return the environment variables of a broker's container that have a plain value."""
    container = containers(stateful_set["spec"]["template"])["broker"]
    return {one["name"]: one["value"] for one in container["env"] if "value" in one}


def test_secrets_of_a_group_are_derived_and_only_in_its_secret() -> None:
    """The token for orders cannot be computed from another one; two groups, even of one name, share no secret."""
    one = group(**EVERYTHING)
    token = group_token(KEY, one)
    made = secret(one, token)

    values = {name: base64.b64decode(value).decode() for name, value in made["data"].items()}
    assert values["tokens"] == f"operator:{token}\n" and values["token"] == token
    assert values["read-tokens"] == f"reader:{values['read-token']}\n"
    assert len({token, values["read-token"], values["replication"]}) == 3
    assert token not in json.dumps(rendered(one))
    assert "Secret" not in {document["kind"] for document in rendered(one)}, (
        "the Secret is rendered, and would be applied"
    )
    assert group_token(KEY, one) == token
    others = {group_token(KEY, group("orders", "other")), group_token(bytes(reversed(KEY)), one)}
    assert token not in others and len(others) == 2


def test_account_of_a_shard_may_only_renew_its_own_lease() -> None:
    """The Lease is given by name, with the verbs of a renewal: no list, no watch, no wildcard, no other shard."""
    objects = rendered(group(shards=2))
    for number in (0, 1):
        role = of_kind(objects, "Role")[f"orders-{number}"]
        binding = of_kind(objects, "RoleBinding")[f"orders-{number}"]
        home = broker_sets(objects)[f"orders-{number}-slave"]

        [rule] = role["rules"]
        assert rule == {
            "apiGroups": ["coordination.k8s.io"],
            "resources": ["leases"],
            "resourceNames": [f"orders-{number}"],
            "verbs": ["get", "update"],
        }
        [subject] = binding["subjects"]
        assert subject["name"] == home["spec"]["template"]["spec"]["serviceAccountName"] == f"orders-{number}"
    assert not {"ClusterRole", "ClusterRoleBinding"} & {one["kind"] for one in objects}


def test_optional_kinds_are_rendered_only_where_they_exist() -> None:
    """A cluster without the Prometheus operator accepts all rendered objects."""
    kinds = {one["kind"] for one in rendered(group(), facts())}

    assert not {"PodMonitor", "PrometheusRule"} & kinds
    assert {"PodMonitor", "PrometheusRule"} <= {one["kind"] for one in rendered(group())}


def test_slaves_and_shards_stay_while_they_are_needed() -> None:
    """The spec requests the removal, and the operator executes it when no data can be lost."""
    known = facts(shards=(ShardFacts(number=0, slaves=2), ShardFacts(number=1)))
    sets = broker_sets(rendered(group(shards=1, slaves=1), known))

    assert {name: one["spec"]["replicas"] for name, one in sets.items()} == {
        "orders-0-master": 1,
        "orders-0-slave": 2,
        "orders-1-master": 1,
        "orders-1-slave": 1,
    }


def test_hibernated_group_keeps_all_but_its_pods() -> None:
    """Volumes, addresses and records stay: the same objects with other replica counts."""
    awake, hibernated = rendered(group(), facts()), rendered(group(), facts(is_hibernated=True))

    assert pods_of(hibernated) == []
    assert [one["metadata"]["name"] for one in awake] == [one["metadata"]["name"] for one in hibernated]


def test_external_name_servers_are_not_rendered() -> None:
    """With addresses there is no name server, no Service and no policy for one, and brokers get the addresses."""
    objects = rendered(group(nameServers={"addresses": ["ns.example:9876", "ns2.example:9876"]}))

    assert not [one for one in objects if one["metadata"]["name"].endswith("nameserver")]
    conf = environment(broker_sets(objects)["orders-0-master"])["GANTRY_BROKER_CONF"]
    assert "namesrvAddr=ns.example:9876;ns2.example:9876\n" in conf
