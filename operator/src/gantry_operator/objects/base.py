"""What all objects have alike: labels, an owner, and a form in which equal things are equal.

Everything but volumes is owned by its group or pipeline, so that Kubernetes deletes it with its owner, without a
finalizer. ``blockOwnerDeletion`` is false, since it would need a right on the group's finalizers.
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
    """What pods are told apart by; never changes for a pod, so it may stand in a StatefulSet."""
    chosen = {names.GROUP_LABEL: group.metadata.name, names.COMPONENT_LABEL: component}
    return chosen if shard is None else chosen | {names.SHARD_LABEL: str(shard)}


def labels(group: BrokerGroup, component: str, shard: int | None = None) -> dict[str, str]:
    """Of an object or pod."""
    return common_labels("gantry", group.metadata) | selector(group, component, shard)


def made(
    group: BrokerGroup, kind: tuple[str, str], name: str, labelled: dict[str, str], body: Object, **metadata: Any
) -> Object:
    """An object of the group; ``kind`` is its apiVersion and kind."""
    return owned_by(KIND, group.metadata, kind, name, {"labels": labelled} | metadata, body)


def common_labels(application: str, owner: Metadata) -> dict[str, str]:
    """Those that all objects of groups and pipelines have."""
    return {
        "app.kubernetes.io/name": application,
        "app.kubernetes.io/instance": owner.name,
        "app.kubernetes.io/managed-by": "gantry-operator",
        "app.kubernetes.io/part-of": "gantry",
    }


def owned_by(
    owner_kind: str, owner: Metadata, kind: tuple[str, str], name: str, metadata: Object, body: Object
) -> Object:
    """An object that Kubernetes deletes with its owner, so that no finalizer is needed."""
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
    """A value as a file that people read, too."""
    return msgspec.json.format(msgspec.json.encode(value), indent=1).decode() + "\n"


def hash_of(value: object) -> str:
    """A name for what a value says, whatever the order of its keys."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]
