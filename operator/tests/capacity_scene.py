"""Nodes and pods of a cluster as plain objects of its API, for tests of capacity."""

from __future__ import annotations

from typing import Any, Final

Object = dict[str, Any]

GIB: Final = 1 << 30
HOST: Final = "kubernetes.io/hostname"
ZONE: Final = "topology.kubernetes.io/zone"


def node(name: str, *, cpu: str = "4", memory: str = "16Gi", pages: str = "0", zone: str = "a", **spec: Any) -> Object:
    """Return a node with allocatable resources; ``spec`` has its taints."""
    room = {"cpu": cpu, "memory": memory, "hugepages-2Mi": pages, "hugepages-1Gi": "0", "pods": "110"}
    return {
        "apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": {HOST: name, ZONE: zone}},
        "spec": spec, "status": {"allocatable": room},
    }  # fmt: skip


def pod(
    name: str, on: str = "", *, namespace: str = "shop", labels: Object | None = None, phase: str = "Running",
    requests: Object | None = None, **spec: Any,
) -> Object:  # fmt: skip
    """Return a pod with one container, on a node unless ``on`` is empty."""
    container = {"name": "broker", "resources": {"requests": requests or {}}}
    place = {"nodeName": on} if on else {}
    return {
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": namespace, "labels": labels or {}},
        "spec": {"containers": [container]} | place | spec, "status": {"phase": phase},
    }  # fmt: skip


def anti_affinity(labels: Object, key: str = HOST, **more: Any) -> Object:
    """Return a required anti-affinity to pods with these labels."""
    term = {"labelSelector": {"matchLabels": labels}, "topologyKey": key} | more
    return {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}


def storage_class(name: str, *, is_default: bool = False, **more: Any) -> Object:
    annotations = {"storageclass.kubernetes.io/is-default-class": "true"} if is_default else {}
    return {
        "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass",
        "metadata": {"name": name, "annotations": annotations}, "provisioner": "csi.example.com",
        "volumeBindingMode": "WaitForFirstConsumer", "allowVolumeExpansion": True,
    } | more  # fmt: skip
