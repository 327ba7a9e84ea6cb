"""The snapshot driver: copies the folder of a volume for every VolumeSnapshot, and fills claims from such copies.

It stands in for a CSI driver and the snapshot controller, of which it honours the API of users: `spec.source`,
`status.readyToUse`, `restoreSize` and `creationTime`, and a claim's `dataSource`. It makes no VolumeSnapshotContent.

A copy is that of one moment: the processes of the pods that use the claim are stopped meanwhile. It has what is in the
page cache, too, which a snapshot of a disk would not have; what is to survive a power loss is tested elsewhere.
"""

from __future__ import annotations

import http.client
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from gantry_cluster.api import Api, Object
from gantry_cluster.errors import ApiRefused
from gantry_cluster.paths import Folder
from gantry_cluster.provisioner import CLAIMS, POLL_SECONDS, VOLUMES, provision

SNAPSHOTS = "/apis/snapshot.storage.k8s.io/v1/volumesnapshots"
PODS = "/api/v1/pods"
NODES = "/api/v1/nodes"
FOLDER = "snapshots"
"""The folder with the copies, on the disk of the node of their volume."""

STOP_SECONDS_MAX = 10.0
"""How long the processes of a pod may take until each of their threads is stopped."""

DiskOf = Callable[[str], Path | None]
"""Returns the folder of a node's disk on this machine; None for a node of another one."""


def make_snapshots(api: Api, claims: list[Object], volumes: list[Object], disk_of: DiskOf, disks: list[Path]) -> None:
    """Copy the volumes of new snapshots, and delete the copies of snapshots that are gone."""
    try:
        found = api.items(SNAPSHOTS)
    except ApiRefused as refusal:
        if refusal.status != http.client.NOT_FOUND:
            raise
        return  # the kind does not exist yet
    for snapshot in found:
        if not snapshot.get("status", {}).get("readyToUse"):
            make_snapshot(api, snapshot, claims, volumes, disk_of)
    known = {snapshot["metadata"]["uid"] for snapshot in found}
    for disk in disks:
        for copy in (disk / FOLDER).glob("*"):
            if copy.name not in known:
                shutil.rmtree(copy, ignore_errors=True)


def make_snapshot(api: Api, snapshot: Object, claims: list[Object], volumes: list[Object], disk_of: DiskOf) -> None:
    """Copy the volume of one snapshot, or report why that is not possible."""
    metadata, source = snapshot["metadata"], snapshot["spec"]["source"]["persistentVolumeClaimName"]
    path = f"/apis/snapshot.storage.k8s.io/v1/namespaces/{metadata['namespace']}/volumesnapshots/{metadata['name']}"
    own = [one for one in claims if one["metadata"]["namespace"] == metadata["namespace"]]
    claim = next((one for one in own if one["metadata"]["name"] == source), None)
    name = None if claim is None else claim["spec"].get("volumeName")
    volume = next((one for one in volumes if one["metadata"]["name"] == name), None)
    disk = None if volume is None else disk_of(node_name(volume))
    if claim is None or volume is None or disk is None:
        api.merge(f"{path}/status", {"status": {"error": {"message": f"claim {source} has no volume here"}}})
        return
    copy = disk / FOLDER / metadata["uid"]
    with stopped_pods(api, claim):
        created_at = datetime.now(UTC)
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(volume["spec"]["local"]["path"], copy, symlinks=True)
    status = {
        "readyToUse": True,
        "restoreSize": claim["spec"]["resources"]["requests"]["storage"],
        "creationTime": created_at.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "error": None,
    }
    api.merge(f"{path}/status", {"status": status})


def fill_volume(api: Api, disks: list[Path], claim: Object, path: Path) -> bool:
    """Fill the empty folder of a new volume from the snapshot that its claim names; return whether that is done."""
    source = claim["spec"].get("dataSource")
    if source is None or source.get("kind") != "VolumeSnapshot":
        return True
    namespace = claim["metadata"]["namespace"]
    snapshot = next(
        (one for one in api.items(SNAPSHOTS)
         if (one["metadata"]["namespace"], one["metadata"]["name"]) == (namespace, source["name"])), None,
    )  # fmt: skip
    uid = "" if snapshot is None or not snapshot.get("status", {}).get("readyToUse") else snapshot["metadata"]["uid"]
    copy = next((disk / FOLDER / uid for disk in disks if uid and (disk / FOLDER / uid).is_dir()), None)
    if copy is None:
        return False
    shutil.rmtree(path, ignore_errors=True)
    shutil.copytree(copy, path, symlinks=True)
    for folder, _, files in os.walk(copy):
        for name in [".", *files]:
            owner = os.lstat(Path(folder) / name)
            os.lchown(path / Path(folder).relative_to(copy) / name, owner.st_uid, owner.st_gid)
    return True


@contextmanager
def stopped_pods(api: Api, claim: Object) -> Iterator[None]:
    """Stop all processes of the pods that use a claim, and let them continue afterwards."""
    stopped: list[int] = []
    try:
        for pod in api.items(PODS):
            if pod["metadata"]["namespace"] == claim["metadata"]["namespace"] and _uses(pod, claim):
                stop_processes(pod["metadata"]["uid"], stopped)
        yield
    finally:
        for pid in stopped:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


def stop_processes(pod_uid: str, stopped: list[int]) -> None:
    """Stop the processes of a pod, by their control group, and wait until all of their threads are stopped.

    Their ids are added to ``stopped`` before.
    """
    found = [int(path.parent.name) for path in Path("/proc").glob("[0-9]*/cgroup") if _is_in_pod(path, pod_uid)]
    stopped += found
    for pid in found:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
    ends = time.monotonic() + STOP_SECONDS_MAX
    while not all(_is_stopped(pid) for pid in found):
        if time.monotonic() > ends:
            raise TimeoutError(f"the processes of pod {pod_uid} do not stop")
        time.sleep(0.001)


def _uses(pod: Object, claim: Object) -> bool:
    name = claim["metadata"]["name"]
    volumes = pod["spec"].get("volumes") or []
    return any((one.get("persistentVolumeClaim") or {}).get("claimName") == name for one in volumes)


def _is_in_pod(path: Path, pod_uid: str) -> bool:
    try:
        text = path.read_text()
    except OSError:
        return False
    return pod_uid in text or pod_uid.replace("-", "_") in text


def _is_stopped(pid: int) -> bool:
    try:
        states = [path.read_text().rpartition(") ")[2][0] for path in Path(f"/proc/{pid}/task").glob("*/stat")]
    except OSError:
        return True  # it has ended
    return all(state in "TZX" for state in states)


def node_name(volume: Object) -> str:
    """Return the node of a local volume; empty for any other volume."""
    terms = ((volume["spec"].get("nodeAffinity") or {}).get("required") or {}).get("nodeSelectorTerms") or []
    return str(terms[0]["matchExpressions"][0]["values"][0]) if terms else ""


def main() -> None:
    """Make volumes and snapshots in an endless loop. An API server that is down is no reason to stop: tests stop it."""
    folder = Folder(Path(sys.argv[1]))
    api = Api.of(folder)
    while True:
        try:
            disks = [folder.disk(node["metadata"]["name"]) for node in api.items(NODES)]
            make_snapshots(api, api.items(CLAIMS), api.items(VOLUMES), folder.disk, disks)
            provision(api, folder.disk, partial(fill_volume, api, disks))
        except (OSError, http.client.HTTPException, ApiRefused) as error:
            print(f"failed to make volumes or snapshots, will retry: {error}", flush=True)
        time.sleep(POLL_SECONDS)


if __name__ == "__main__":
    main()
