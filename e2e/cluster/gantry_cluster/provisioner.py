"""The maker of volumes: a folder on the node's disk for every claim that a pod waits for.

It is what a cloud's storage driver is to an ordinary cluster, in its smallest form. A claim of class `disk` whose pod
has been given a node (`volume.kubernetes.io/selected-node`) gets a `local` volume there, bound to that node for ever; a
volume that was released with `Delete` goes away with its folder. It does not grow volumes: a test that asks for growth
plays that part itself, or plays one that refuses.

A `local` volume and no `hostPath`, because only the former is given to the pod's `fsGroup`.
"""

from __future__ import annotations

import http.client
import shutil
import sys
import time
from pathlib import Path

from gantry_cluster.api import Api, Object
from gantry_cluster.errors import ApiRefused
from gantry_cluster.places import Folder

PROVISIONER = "gantry.dev/disk"
CLASS = "disk"
LOOK_SECONDS = 0.5
SELECTED_NODE = "volume.kubernetes.io/selected-node"
MADE_BY = "pv.kubernetes.io/provisioned-by"
VOLUMES = "/api/v1/persistentvolumes"
CLAIMS = "/api/v1/persistentvolumeclaims"


def is_wanted(claim: Object) -> bool:
    """Whether a claim waits for us: of our class, without a volume, and its pod has a node."""
    annotations = claim["metadata"].get("annotations", {})
    spec = claim["spec"]
    is_pending = claim.get("status", {}).get("phase") == "Pending" and not spec.get("volumeName")
    return bool(is_pending and spec.get("storageClassName") == CLASS and SELECTED_NODE in annotations)


def is_spent(volume: Object) -> bool:
    """Whether a volume of ours has lost its claim and may go."""
    metadata = volume["metadata"]
    is_ours = metadata.get("annotations", {}).get(MADE_BY) == PROVISIONER
    is_released = volume.get("status", {}).get("phase") == "Released"
    return bool(is_ours and is_released and volume["spec"]["persistentVolumeReclaimPolicy"] == "Delete")


def volume_for(claim: Object, path: Path) -> Object:
    """The volume that answers a claim."""
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


def look(api: Api, folder: Folder) -> None:
    """Answer every claim that waits, and clear away what is spent."""
    for claim in filter(is_wanted, api.items(CLAIMS)):
        metadata = claim["metadata"]
        path = folder.disk(metadata["annotations"][SELECTED_NODE]) / f"pvc-{metadata['uid']}"
        path.mkdir(parents=True, exist_ok=True)
        try:
            api.create(VOLUMES, volume_for(claim, path))
        except ApiRefused as refusal:
            if refusal.status != http.client.CONFLICT:  # it is there: we looked before Kubernetes had bound it
                raise
    for volume in filter(is_spent, api.items(VOLUMES)):
        api.delete(f"{VOLUMES}/{volume['metadata']['name']}")
        path = Path(volume["spec"]["local"]["path"])
        if path.is_relative_to(folder.root / "disks"):
            shutil.rmtree(path, ignore_errors=True)


def main() -> None:
    """Look for ever; an API server that is away is one more thing a test may do."""
    folder = Folder(Path(sys.argv[1]))
    api = Api.of(folder)
    while True:
        try:
            look(api, folder)
        except (OSError, http.client.HTTPException, ApiRefused) as error:
            print(f"cannot look at volumes: {error}", flush=True)
        time.sleep(LOOK_SECONDS)


if __name__ == "__main__":
    main()
