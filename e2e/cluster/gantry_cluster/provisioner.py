"""The volume provisioner: makes a folder on the node's disk for every claim that a pod waits for.

It is a minimal storage driver. A claim of class `disk` whose pod has been scheduled to a node
(`volume.kubernetes.io/selected-node`) gets a `local` volume there, bound to that node for ever. A volume that was
released with `Delete` is deleted with its folder. The provisioner does not expand volumes: a test that needs expansion
updates the volume itself, or reports a refusal, as a driver would. `snapshotter` runs it, and fills volumes from
snapshots.

The volume is `local` and not `hostPath`, because only the former gets the pod's `fsGroup`.
"""

from __future__ import annotations

import http.client
import shutil
from collections.abc import Callable
from pathlib import Path

from gantry_cluster.api import Api, Object
from gantry_cluster.errors import ApiRefused

PROVISIONER = "gantry.dev/disk"
CLASS = "disk"
"""The name of the storage class in `addons.yaml`."""

POLL_SECONDS = 0.5
SELECTED_NODE = "volume.kubernetes.io/selected-node"
"""The annotation of a claim with the node of its pod."""

MADE_BY = "pv.kubernetes.io/provisioned-by"
VOLUMES = "/api/v1/persistentvolumes"
CLAIMS = "/api/v1/persistentvolumeclaims"


def is_wanted(claim: Object) -> bool:
    """Return whether a claim waits for this provisioner: it has its class and no volume, and its pod has a node."""
    annotations = claim["metadata"].get("annotations", {})
    spec = claim["spec"]
    is_pending = claim.get("status", {}).get("phase") == "Pending" and not spec.get("volumeName")
    return bool(is_pending and spec.get("storageClassName") == CLASS and SELECTED_NODE in annotations)


def is_spent(volume: Object) -> bool:
    """Return whether a volume of this provisioner has lost its claim and may be deleted."""
    metadata = volume["metadata"]
    is_ours = metadata.get("annotations", {}).get(MADE_BY) == PROVISIONER
    is_released = volume.get("status", {}).get("phase") == "Released"
    return bool(is_ours and is_released and volume["spec"]["persistentVolumeReclaimPolicy"] == "Delete")


def volume_for(claim: Object, path: Path) -> Object:
    """Return the volume for a claim."""
    metadata, spec = claim["metadata"], claim["spec"]
    node = metadata["annotations"][SELECTED_NODE]
    here = {"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": path.name, "annotations": {MADE_BY: PROVISIONER}},
        "spec": {
            "capacity": {"storage": spec["resources"]["requests"]["storage"]},
            "accessModes": spec["accessModes"],
            "persistentVolumeReclaimPolicy": "Delete",
            "storageClassName": CLASS,
            "volumeMode": spec.get("volumeMode", "Filesystem"),
            "local": {"path": str(path)},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [here]}]}},
            "claimRef": {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "namespace": metadata["namespace"],
                "name": metadata["name"],
                "uid": metadata["uid"],
            },
        },
    }


def node_of(volume: Object) -> str:
    """Return the node of a volume of this provisioner."""
    [term] = volume["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"]
    return str(term["matchExpressions"][0]["values"][0])


def provision(
    api: Api, disk_of: Callable[[str], Path | None], fill: Callable[[Object, Path], bool] = lambda claim, path: True
) -> None:
    """Create a volume for every waiting claim, and delete released volumes, on nodes that have a disk here.

    ``fill`` fills the folder of a new volume, and returns False to try again later.
    """
    made = {volume["metadata"]["name"] for volume in api.items(VOLUMES)}
    for claim in filter(is_wanted, api.items(CLAIMS)):
        metadata = claim["metadata"]
        disk = disk_of(metadata["annotations"][SELECTED_NODE])
        if disk is None:
            continue
        path = disk / f"pvc-{metadata['uid']}"
        path.mkdir(parents=True, exist_ok=True)
        if path.name in made or not fill(claim, path):
            continue  # it exists, but Kubernetes has not bound it yet, or it cannot be filled yet
        try:
            api.create(VOLUMES, volume_for(claim, path))
        except ApiRefused as refusal:
            if refusal.status != http.client.CONFLICT:  # the volume exists, but Kubernetes has not bound it yet
                raise
    for volume in filter(is_spent, api.items(VOLUMES)):
        disk, path = disk_of(node_of(volume)), Path(volume["spec"]["local"]["path"])
        if disk is None:
            continue
        api.delete(f"{VOLUMES}/{volume['metadata']['name']}")
        if path.is_relative_to(disk):
            shutil.rmtree(path, ignore_errors=True)
