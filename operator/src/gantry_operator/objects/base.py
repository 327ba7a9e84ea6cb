"""The common parts of all objects: labels, an owner, and a canonical form for comparison.

All objects except volumes are owned by their group or pipeline, so that Kubernetes deletes them with their owner,
without a finalizer. ``blockOwnerDeletion`` is false, because it would need a right on the group's finalizers.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

import msgspec

from gantry_operator.objects import names
from gantry_spec.manifest.group import API_VERSION, KIND, BrokerGroup, Metadata

Object = dict[str, Any]


def selector(group: BrokerGroup, component: str, shard: int | None = None) -> dict[str, str]:
    """Return labels that select pods. They never change for a pod, so a StatefulSet may use them."""
    chosen = {names.GROUP_LABEL: group.metadata.name, names.COMPONENT_LABEL: component}
    return chosen if shard is None else chosen | {names.SHARD_LABEL: str(shard)}


def labels(group: BrokerGroup, component: str, shard: int | None = None) -> dict[str, str]:
    """Return the labels of an object or pod of the group."""
    return common_labels("gantry", group.metadata) | selector(group, component, shard)


def make_object(
    group: BrokerGroup, kind: tuple[str, str], name: str, own_labels: dict[str, str], body: Object, **metadata: Any
) -> Object:
    """Return an object of the group; ``kind`` is its apiVersion and kind."""
    return owned_by(KIND, group.metadata, kind, name, {"labels": own_labels} | metadata, body)


def common_labels(application: str, owner: Metadata) -> dict[str, str]:
    """Return the labels that all objects of groups and pipelines have."""
    return {
        "app.kubernetes.io/name": application,
        "app.kubernetes.io/instance": owner.name,
        "app.kubernetes.io/managed-by": "gantry-operator",
        "app.kubernetes.io/part-of": "gantry",
    }


def owned_by(
    owner_kind: str, owner: Metadata, kind: tuple[str, str], name: str, metadata: Object, body: Object
) -> Object:
    """Return an object that Kubernetes deletes with its owner, so that no finalizer is needed."""
    reference = {
        "apiVersion": API_VERSION,
        "kind": owner_kind,
        "name": owner.name,
        "uid": owner.uid,
        "controller": True,
        "blockOwnerDeletion": False,
    }
    head = {"name": name, "namespace": owner.namespace, "ownerReferences": [reference]} | metadata
    return {"apiVersion": kind[0], "kind": kind[1], "metadata": head} | body


def json_text(value: object) -> str:
    """Return a value as JSON text in a form that is easy to read."""
    return msgspec.json.format(msgspec.json.encode(value), indent=1).decode() + "\n"


def hash_of(value: object) -> str:
    """Return a hash of a value that does not depend on the order of its keys."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]
