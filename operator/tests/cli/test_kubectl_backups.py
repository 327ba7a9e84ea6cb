"""`kubectl gantry backup` and `restore --from` against a real API server with the kind VolumeSnapshot.

A twin repeats a test without the rule that it checks, and finds the fault: so the test can fail.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
import yaml
from api_server import api_server
from charts_scene import ROOT
from kubectl_scene import Scene, groups_path
from scripted_kubelet import scripted_kubelet

from gantry_cli.kube.backups import BackupDocument
from gantry_spec.backups import POINT_ANNOTATION, Point, Source, snapshot_document

pytestmark = pytest.mark.needs_api_server

PATIENCE_S = 200.0
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
SNAPSHOTS = "/apis/snapshot.storage.k8s.io/v1/namespaces/shop/volumesnapshots"
CLAIMS = "/api/v1/namespaces/shop/persistentvolumeclaims"
POINT = Point(member=2, last_epoch=3_000, flushed=4_096, marked_at="2026-11-29T03:00:00Z")
SPEC: dict[str, Any] = {"shards": 2, "slaves": 1, "storage": {"size": "1Gi", "storageClassName": "disk"},
                        "writeBuffer": {"segmentSize": "8Mi"}}  # fmt: skip


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    folder = tmp_path_factory.mktemp("cluster")
    with scripted_kubelet() as kubelet, api_server(folder) as server:
        scene = Scene(server, kubelet, folder)
        scene.prepare()
        yield scene


@pytest.fixture
def scene(cluster: Scene) -> Iterator[Scene]:
    """The group, and the kind VolumeSnapshot."""
    if cluster.server.ask("GET", SNAPSHOTS)[0] != 200:
        text = (ROOT / "e2e/cluster/volume-snapshots.yaml").read_text()
        cluster.request("POST", DEFINITIONS, yaml.safe_load(text))
        wait_for(lambda: cluster.server.ask("GET", SNAPSHOTS)[0] == 200)
    cluster.make_group()
    yield cluster
    cluster.drop_group()
    for name in ("again", "once"):
        cluster.server.ask("DELETE", f"{groups_path()}/{name}")
    for claim in cluster.request("GET", CLAIMS)["items"]:  # no controller removes their finalizer here
        cluster.merge(f"{CLAIMS}/{claim['metadata']['name']}", {"metadata": {"finalizers": None}})
    for path in (SNAPSHOTS, CLAIMS):
        cluster.server.ask("DELETE", path)


def wait_for(is_true: Any) -> None:
    ends = time.monotonic() + PATIENCE_S
    while not is_true():
        assert time.monotonic() < ends
        time.sleep(0.05)


def make_snapshot(
    scene: Scene, backup: str, shard: int, *, is_ready: bool = True, size: str = "1Gi", uid: str = ""
) -> None:
    """Create the snapshot of a shard, as the operator and a driver do."""
    manifest = msgspec.json.encode(SPEC).decode() if shard == 0 else ""
    source = Source("shop", "orders", uid or scene.group()["metadata"]["uid"], f"data-orders-{shard}-slave-0", "c")
    document = snapshot_document(
        source, backup, shard, snapshot_class="", point=POINT, shards=2, is_scheduled=False, manifest=manifest
    )
    made = scene.request("POST", SNAPSHOTS, document)
    if is_ready:
        ready = {"status": {"readyToUse": True, "restoreSize": size}}
        scene.merge(f"{SNAPSHOTS}/{made['metadata']['name']}/status", ready)


def make_backup(scene: Scene, backup: str, **more: Any) -> None:
    for shard in range(2):
        make_snapshot(scene, backup, shard, **more)


def document_of(text: str) -> BackupDocument:
    return msgspec.json.decode(text, type=BackupDocument, strict=True)


# -- making one --------------------------------------------------------------------------------------------------------


def test_backup_is_ordered_and_waited_for(scene: Scene) -> None:
    """The order is an annotation; the command ends when each shard has a ready snapshot, and prints their points."""

    def operate() -> None:
        wait_for(lambda: scene.annotations().get("gantry.dev/backup") == "before-upgrade")
        make_snapshot(scene, "before-upgrade", 0)
        time.sleep(1.5)
        make_snapshot(scene, "before-upgrade", 1)

    with scene.meanwhile(operate):
        result = scene.kubectl("backup", "orders", "--name", "before-upgrade", "-O", "json")
    assert result.exit_code == 0, result.output
    document = document_of(result.stdout)
    assert (document.group, document.backup, document.is_done) == ("orders", "before-upgrade", True)
    assert [(one.shard, one.flushed, one.epoch) for one in document.points] == [(0, 4_096, 3_000), (1, 4_096, 3_000)]


def test_backup_that_is_not_made_times_out_and_stays_ordered(scene: Scene) -> None:
    """The error has the operator's reason, and what happens next."""
    condition = {"type": "BackedUp", "status": "False", "reason": "Failed", "message": "the driver is away",
                 "observedGeneration": 1, "lastTransitionTime": "2026-01-01T00:00:00Z"}  # fmt: skip
    scene.merge(f"{groups_path()}/orders/status", {"status": {"conditions": [condition]}})
    result = scene.gantry("backup", "bg/orders", "--name", "one", "--timeout", "1")
    assert result.exit_code == 1
    assert "timed out after 1 s: the driver is away" in result.stderr
    assert scene.annotations()["gantry.dev/backup"] == "one"
    second = scene.gantry("backup", "bg/orders", "--name", "two", "--timeout", "1")
    assert second.exit_code == 1 and "backup one is requested already" in second.stderr


@pytest.mark.parametrize(
    ("name", "reason"), [("Nightly", "is not a name"), ("old", "exists already")], ids=["invalid name", "old name"]
)
def test_backup_with_an_impossible_name_is_refused(scene: Scene, name: str, reason: str) -> None:
    """The command fails before it orders anything."""
    make_backup(scene, "old")
    result = scene.kubectl("backup", "orders", "--name", name)
    assert result.exit_code != 0 and reason in result.stderr
    assert "gantry.dev/backup" not in scene.annotations()


# -- restoring one -----------------------------------------------------------------------------------------------------


def test_restore_creates_claims_from_snapshots_and_the_group(scene: Scene) -> None:
    """Without a name the last complete backup counts; claims are as large as the snapshot needs."""
    make_backup(scene, "first")
    time.sleep(1.1)  # the times of the API server are whole seconds
    make_backup(scene, "second", size="3Gi")
    make_snapshot(scene, "third", 0)

    result = scene.kubectl("restore", "again", "--from", "orders", "--timeout", "0", "-O", "json")
    assert result.exit_code == 0, result.output
    assert document_of(result.stdout).backup == "second"
    made = scene.request("GET", f"{groups_path()}/again")
    assert made["spec"]["storage"]["size"] == "1Gi"
    assert made["metadata"]["annotations"] == {
        "gantry.dev/restore": "0,1", "gantry.dev/restored-from": "orders/second",
    }  # fmt: skip
    assert made["spec"]["replication"]["mode"] == "Sync"  # a default of the API server
    for shard in range(2):
        claim = scene.request("GET", f"{CLAIMS}/data-again-{shard}-master-0")
        assert claim["spec"]["dataSource"]["name"] == f"orders-{shard}-second"
        assert claim["spec"]["resources"]["requests"]["storage"] == "3Gi"
        assert claim["spec"]["storageClassName"] == "disk"
        assert msgspec.json.decode(claim["metadata"]["annotations"][POINT_ANNOTATION], type=Point) == POINT


def test_interrupted_restore_is_continued(scene: Scene) -> None:
    """A claim that the first attempt has made is used, and so is its group. The twins are those of another backup."""
    make_backup(scene, "first")
    make_backup(scene, "other")
    words = ("restore", "again", "--timeout", "0", "--from")
    assert scene.kubectl(*words, "orders/first").exit_code == 0
    assert scene.kubectl(*words, "bg/orders/first").exit_code == 0
    other = scene.kubectl(*words, "orders/other")
    assert other.exit_code == 1 and "was not made from backup orders/other" in other.stderr

    scene.request("DELETE", f"{groups_path()}/again")
    again = scene.kubectl(*words, "orders/first")
    assert again.exit_code == 0, again.output
    scene.request("DELETE", f"{groups_path()}/again")
    other = scene.kubectl(*words, "orders/other")
    assert other.exit_code == 1 and "delete them, which deletes their data: data-again-0-master-0" in other.stderr


@pytest.mark.parametrize("is_group_created", [True, False], ids=["group created", "only claims"])
def test_restore_without_a_name_continues_from_the_backup_that_it_began_with(
    scene: Scene, is_group_created: bool
) -> None:
    """A newer backup was made meanwhile. A restore into another group takes the newer one."""
    make_backup(scene, "first")
    words = ("restore", "again", "--timeout", "0", "--from", "orders")
    assert scene.kubectl(*words).exit_code == 0
    if not is_group_created:
        scene.request("DELETE", f"{groups_path()}/again")
    make_backup(scene, "second")

    result = scene.kubectl(*words)
    other = scene.kubectl("restore", "once", "--timeout", "0", "--from", "orders")

    assert result.exit_code == 0, result.output
    assert "continuing the restore from backup orders/first" in result.stderr
    assert other.exit_code == 0 and "continuing" not in other.stderr
    found = scene.request("GET", f"{groups_path()}/once")["metadata"]["annotations"]
    assert found["gantry.dev/restored-from"] == "orders/second"


def test_complete_restore_is_not_continued(scene: Scene) -> None:
    """A group that was restored long ago exists: the command says so, and does not report a success."""
    make_backup(scene, "first")
    words = ("restore", "again", "--timeout", "0", "--from", "orders")
    assert scene.kubectl(*words).exit_code == 0
    done = {"status": {"conditions": [{"type": "Restored", "status": "True", "reason": "Done", "message": "",
                                       "lastTransitionTime": "2026-01-01T00:00:00Z"}]}}  # fmt: skip
    scene.merge(f"{groups_path()}/again/status", done)
    for one in scene.request("GET", CLAIMS)["items"]:
        scene.merge(f"{CLAIMS}/{one['metadata']['name']}", {"metadata": {"labels": {"gantry.dev/group": "again"}}})
    make_backup(scene, "second")

    result = scene.kubectl(*words)

    assert result.exit_code == 1
    assert "exists already, and was not made from backup orders/second" in result.stderr


def claim(scene: Scene, name: str, **metadata: Any) -> None:
    """Create a claim, as an earlier group has left it."""
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    scene.request("POST", CLAIMS, {"metadata": {"name": name} | metadata, "spec": spec})


@pytest.mark.parametrize(
    ("name", "metadata"),
    [
        ("data-again-0-slave-0", {}),
        ("data-again-3-master-0", {}),
        ("data-again-0-master-0", {"annotations": {"gantry.dev/restored-from": "orders/first"},
                                   "labels": {"gantry.dev/group": "again"}}),
    ],
    ids=["slave", "shard of before", "used since an earlier restore"],
)  # fmt: skip
def test_restore_refuses_volumes_of_an_earlier_group(scene: Scene, name: str, metadata: dict[str, Any]) -> None:
    """They may have other messages than the backup, and the longest log would win."""
    make_backup(scene, "first")
    claim(scene, name, **metadata)
    claim(scene, "data-again-x-0-slave-0")  # of group again-x
    result = scene.kubectl("restore", "again", "--from", "orders/first", "--timeout", "0")
    assert result.exit_code == 1
    assert "there are volumes of an earlier group again" in result.stderr
    assert result.stderr.rstrip().endswith(name)
    assert scene.server.ask("GET", f"{groups_path()}/again")[0] == 404


def test_restore_asks_which_of_two_groups_of_one_name(scene: Scene) -> None:
    """The last backup may be that of an empty group that took the name."""
    for shard in range(2):
        make_snapshot(scene, "lost", shard, uid="the-lost-one")
    make_backup(scene, "new")
    result = scene.kubectl("restore", "again", "--from", "orders", "--timeout", "0")
    assert result.exit_code == 1 and "backups of several groups that were named orders" in result.stderr
    assert scene.kubectl("restore", "again", "--from", "orders/lost", "--timeout", "0").exit_code == 0


def test_restore_waits_for_masters(scene: Scene) -> None:
    """It shows what each shard waits for, and ends when all have a master."""
    make_backup(scene, "first")

    def operate() -> None:
        wait_for(lambda: scene.server.ask("GET", f"{groups_path()}/again")[0] == 200)
        part = {"epoch": 4_000, "inSync": 0, "lag": "unknown"}
        shards = [part | {"number": number, "master": f"again-{number}-master-0"} for number in range(2)]
        time.sleep(1.5)
        scene.merge(f"{groups_path()}/again/status", {"status": {"eachShard": shards}})

    with scene.meanwhile(operate):
        result = scene.gantry("restore", "bg/again", "--from", "orders/first")
    assert result.exit_code == 0, result.output
    assert "group again is restored from backup orders/first" in result.stdout
    assert "everything up to offset 4096 of epoch 3000" in result.stdout


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("again", "--from", "orders/firts"), "backup firts not found"),
        (("again", "--from", "orders/partial"), "backup partial is not complete"),
        (("again", "--from", "bills"), "group bills has no backup"),
        (("orders", "--from", "orders/first"), "group orders exists already"),
        (("again", "0", "--from", "orders/first"), "leave out SHARD"),
        (("again",), "name a SHARD to start, or a backup"),
    ],
    ids=["typo", "partial", "another group", "existing group", "shard", "neither"],
)
def test_impossible_restore_is_refused_and_creates_nothing(scene: Scene, words: tuple[str, ...], reason: str) -> None:
    """The message names what is wrong."""
    make_backup(scene, "first")
    make_snapshot(scene, "partial", 0)
    result = scene.kubectl("restore", *words, "--timeout", "0")
    assert result.exit_code != 0 and reason in result.stderr, result.output
    assert scene.request("GET", CLAIMS)["items"] == []


def test_cluster_without_the_kind_is_named(scene: Scene) -> None:
    """The error names what to install."""
    scene.request("DELETE", f"{DEFINITIONS}/volumesnapshots.snapshot.storage.k8s.io")
    wait_for(lambda: scene.server.ask("GET", SNAPSHOTS)[0] == 404)
    result = scene.kubectl("backup", "orders")
    assert result.exit_code != 0
    assert "the cluster has no VolumeSnapshots -- install their CRDs and a snapshot controller" in result.stderr
