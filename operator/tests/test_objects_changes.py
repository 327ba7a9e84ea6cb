"""Which edits start pods again: a table with every field of a spec, so that a new field has to be thought about."""

from __future__ import annotations

from typing import Any

import pytest
from objects_scene import facts, group, of_kind, rendered, template_hash

from gantry_operator.objects import ShardFacts
from gantry_spec.manifest.group import Spec
from gantry_spec.manifest.shapes import is_part, walk

RESTART, STAYS = True, False
BUFFER = {"medium": "Memory", "segmentSize": "64Mi"}
EDITS: dict[str, tuple[Any, Any, bool]] = {
    "shards": (1, 2, STAYS),
    "slaves": (1, 2, STAYS),
    "image": ("a:1", "a:2", RESTART),
    "nameServers.replicas": (1, 2, RESTART),
    "nameServers.addresses": (["a.example:9876"], ["b.example:9876"], RESTART),
    "replication.mode": ("Sync", "Async", RESTART),
    "replication.inSyncReplicas": (2, 3, RESTART),
    "replication.ackTimeout": ("3s", "4s", RESTART),
    "replication.ack": ("Received", "Flushed", RESTART),
    "replication.maxLag": ("256Mi", "128Mi", RESTART),
    "flush.mode": ("Async", "Sync", RESTART),
    "flush.interval": ("500ms", "200ms", RESTART),
    "writeBuffer.medium": ("Off", "Memory", RESTART),
    "writeBuffer.buffers": (3, 4, RESTART),
    "writeBuffer.segmentSize": ("64Mi", "128Mi", RESTART),
    "storage.size": ("20Gi", "30Gi", STAYS),
    "storage.storageClassName": ("a", "b", STAYS),
    "storage.retain": ("Always", "Never", STAYS),
    "storage.reservedTime": ("72h", "48h", STAYS),
    "storage.replaceAfter": ("0s", "1h", STAYS),
    "durability.maxAtRiskBytes": ("64Mi", "32Mi", STAYS),
    "durability.maxAtRisk": ("1s", "2s", STAYS),
    "failover.mode": ("Automatic", "Manual", STAYS),
    "failover.maxDataLossBytes": ("0", "1Mi", STAYS),
    "failover.after": ("5s", "6s", STAYS),
    "failover.switchback": (False, True, STAYS),
    "access.aclSecret": ("", "accounts", RESTART),
    "access.tlsSecret": ("", "certificates", RESTART),
    "access.external.type": ("None", "NodePort", STAYS),
    "access.external.annotations": ({}, {"a": "b"}, STAYS),
    "topics": ([], [{"name": "t"}], STAYS),
    "groups": ([], [{"name": "g"}], STAYS),
    "broker": ({}, {"messageDelayLevel": "1s 5s"}, RESTART),
    "resources": ({}, {"limits": {"memory": "2Gi"}}, RESTART),
    "template.annotations": ({}, {"a": "b"}, RESTART),
    "template.labels": ({}, {"a": "b"}, RESTART),
    "template.nodeSelector": ({}, {"a": "b"}, RESTART),
    "template.tolerations": ([], [{"operator": "Exists"}], RESTART),
    "template.affinity": ({}, {"podAffinity": {}}, RESTART),
    "template.topologySpreadConstraints": ([], [{"maxSkew": 1}], RESTART),
    "template.priorityClassName": ("", "high", RESTART),
    "template.terminationGracePeriod": ("2m", "3m", RESTART),
}
"""Before, after, and whether a running broker has to be started again for it."""


def spec_with(path: str, value: Any) -> dict[str, Any]:
    """A spec in which one field has a value, and whatever that needs to be allowed."""
    spec: dict[str, Any] = {"slaves": 2, "writeBuffer": dict(BUFFER), "storage": {"size": "20Gi"}}
    if path == "writeBuffer.medium":
        spec["broker"] = {}
    inner = spec
    *folders, name = path.split(".")
    for folder in folders:
        inner = inner.setdefault(folder, {})
    inner[name] = value
    return spec


def test_every_field_is_in_the_table() -> None:
    """A field that is added to the spec says here whether its edit starts brokers again."""
    leaves = {
        path.removeprefix("spec.") for path, field in walk(Spec, "spec") if not is_part(field.kind) and "[]" not in path
    }

    assert leaves == set(EDITS)


@pytest.mark.parametrize(("path", "before", "after", "restarts"), [(p, *row) for p, row in EDITS.items()], ids=EDITS)
def test_an_edit_starts_pods_again_only_if_it_must(path: str, before: Any, after: Any, restarts: bool) -> None:
    """The hash of the pods' template changes exactly with what a broker reads at its start."""
    old, new = group(**spec_with(path, before)), group(**spec_with(path, after))

    assert (template_hash(old) != template_hash(new)) is restarts
    assert old.spec != new.spec


APPEARS = {"shards", "slaves", "access.external.type", "nameServers.replicas"}
"""Edits by which something is made that was not there."""


@pytest.mark.parametrize(("path", "before", "after"), [(p, *row[:2]) for p, row in EDITS.items()], ids=EDITS)
def test_no_edit_renames_anything(path: str, before: Any, after: Any) -> None:
    """What a StatefulSet is found by, and so its pods' volumes and addresses, is the same for ever."""
    old, new = (rendered(group(**spec_with(path, value))) for value in (before, after))
    names = [{(one["kind"], one["metadata"]["name"]) for one in objects} for objects in (old, new)]

    assert names[0] == names[1] if path not in APPEARS else names[0] <= names[1]
    for name, one in of_kind(old, "StatefulSet").items():
        twin = of_kind(new, "StatefulSet")[name]["spec"]
        for fixed in ("selector", "serviceName", "podManagementPolicy"):
            assert one["spec"][fixed] == twin[fixed], (name, fixed)
        labels = [[claim["metadata"] for claim in each.get("volumeClaimTemplates", [])] for each in (one["spec"], twin)]
        assert labels[0] == labels[1]


@pytest.mark.parametrize("key", ["autoCreateTopicEnable", "fileReservedTime"])
def test_what_a_running_broker_takes_is_not_in_the_template(key: str) -> None:
    """It is in the ConfigMap, which is mounted, and changes under the pod."""
    old = group(broker={"autoCreateTopicEnable": "true"}, storage={"reservedTime": "72h"})
    new = group(broker={"autoCreateTopicEnable": "false"}, storage={"reservedTime": "24h"})

    live = [of_kind(rendered(one), "ConfigMap")["orders-0"]["data"]["live.conf"] for one in (old, new)]
    lines = [next(line for line in text.splitlines() if line.startswith(f"{key}=")) for text in live]

    assert lines[0] != lines[1]
    assert template_hash(old) == template_hash(new)


def test_what_is_seen_of_a_group_changes_no_template() -> None:
    """Roles, counts and machines come and go; pods are made of the spec and the operator's own settings."""
    one = group()
    plain = template_hash(one, facts())

    seen = facts(shards=(ShardFacts(number=0, slaves=3, slaves_in_sync=0), ShardFacts(number=5)), is_hibernated=True)
    assert template_hash(one, seen) == plain
    assert template_hash(one, facts(image="example.com/gantry@sha256:5678")) != plain


def test_both_homes_of_a_shard_are_made_of_one_template() -> None:
    """So a hash says what a member was started with, whichever StatefulSet it is from."""
    sets = of_kind(rendered(group()), "StatefulSet")
    hashes = {
        sets[name]["spec"]["template"]["metadata"]["annotations"]["gantry.dev/template"]
        for name in ("orders-0-master", "orders-0-slave")
    }

    assert len(hashes) == 1
