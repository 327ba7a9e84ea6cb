"""The fields of a group are edited on a real cluster, and the running processes report that the edit is effective.

The rows are those of ``operator/tests/edit_world``, some of them edited together, where they are independent. Rows
whose effect needs a broken group (`Source.MODEL`) are left out. An edit at run time must be reported by the same pods;
an edit with a rolling restart by new pods, in a healthy group.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import trustme
from edit_world.batches import Batch, batches
from edit_world.reports import object_value, value_in
from edit_world.row import ABSENT, GROUP, Effect, Row, Shown, Source, has_tls, merged
from edit_world.rows_of_archives import ARCHIVE
from edit_world.rows_of_groups import CERT_MANAGER_SECRET, CERTIFICATES
from edit_world.table import ROWS
from gantry_cluster.api import Object
from gantry_cluster.capabilities import Capability
from gantry_cluster.cert_manager import certificate_kind
from gantry_cluster.cluster import Cluster
from gantry_cluster.commands import wait_until
from gantry_cluster.errors import CommandFailed
from gantry_cluster.groups import Group
from gantry_cluster.namespaces import NamespaceFactory
from gantry_cluster.pipelines import Pipeline
from gantry_cluster.pods import container, pod_spec
from gantry_cluster.reports import (
    ClientAccess,
    find_object,
    is_routed_outside,
    join_distinct,
    read_broker_reports,
    read_sidecar_report,
)

from gantry_spec.manifest.quantities import parse_size, size_text

pytestmark = [pytest.mark.slow, pytest.mark.cluster_can(Capability.RUN_GROUPS)]

NAMESPACE = "shop"
"""The namespace in the addresses of the table."""

TAKEN_SECONDS_MAX = 150.0
"""The limit includes the delay of about a minute with which kubelet updates a ConfigMap in a pod."""

ROLLED_SECONDS_MAX = 420.0
"""The limit for a rolling restart."""

BEFORE_SECONDS_MAX = 90.0
"""The limit for the values before the edit, in a group that is healthy already."""

STORAGE = ".requests.storage"
"""The end of the keys of sizes, which Kubernetes may write in another unit."""

ROOT_KEY, ROOT_SECRET = "root-key", "root-secret"
ACCOUNTS = f"""\
accounts:
  - accessKey: {ROOT_KEY}
    secretKey: {ROOT_SECRET}
    admin: true
"""
ELSEWHERE = "elsewhere"
"""The name of a name server that is not of the group, for the row of `nameServers.addresses`."""

ELSEWHERE_CONF = """\
bindAddress=::
listenPort=9876
tlsMode=permissive
tlsServerCertPath=/certificates/tls.crt
tlsServerKeyPath=/certificates/tls.key
"""

RUNTIME_CLASS = "sandboxed"
"""The runtime class of the rows. Here it is the ordinary runtime."""

RUNTIME_CLASSES = "/apis/node.k8s.io/v1/runtimeclasses"

KEPT = {"topics": [{"name": "always", "queues": 4}]}
"""A topic that rows do not edit, by which brokers are found."""

ValuesByRow = dict[str, dict[str, str]]
"""Values by row and by their source."""


def rows(*effects: Effect) -> list[Row]:
    """Return the rows that show an effect in a cluster."""
    return [row for row in ROWS if row.effect in effects and values_shown_here(row)]


def values_shown_here(row: Row) -> list[Shown]:
    """Return the parts of a row that are visible in a cluster: all but those that need a broken cluster."""
    return [shown for shown in row.shown if shown.source is not Source.MODEL]


def name(batch: Batch) -> str:
    """Return the name of a test."""
    return batch.name


LIVE_BATCHES = batches(rows(Effect.HOT, Effect.OBJECTS, Effect.DECIDED, Effect.RESIZE))
ROLLED_BATCHES = batches(rows(Effect.ROLL))


@pytest.fixture
def prepared(operator_cluster: Cluster) -> Iterator[Cluster]:
    """Labels of nodes, classes of priority and runtime, image names and the kind of cert-manager, which rows need. All
    but the images are removed after the test."""
    for tag in ("e2e", "next"):
        operator_cluster.tag_image("localhost/gantry:latest", f"localhost/gantry:{tag}")
    operator_cluster.kubectl("label", "nodes", "--all", "disk=fast", "--overwrite")
    operator_cluster.kubectl("delete", "priorityclass", "orders-first", "--ignore-not-found")
    operator_cluster.kubectl("create", "priorityclass", "orders-first", "--value=1000")
    operator_cluster.kubectl("delete", "runtimeclass", RUNTIME_CLASS, "--ignore-not-found")
    operator_cluster.api.create(RUNTIME_CLASSES, {"metadata": {"name": RUNTIME_CLASS}, "handler": "runc"})
    try:
        with certificate_kind(operator_cluster):
            yield operator_cluster
    finally:
        operator_cluster.kubectl("delete", "priorityclass", "orders-first")
        operator_cluster.kubectl("delete", "runtimeclass", RUNTIME_CLASS)
        operator_cluster.kubectl("label", "nodes", "--all", "disk-")


class Scene:
    """A group in its namespace, with the Secrets and the name server that edits refer to."""

    def __init__(self, namespaces: NamespaceFactory, batch: Batch) -> None:
        self.batch = batch
        self.group = Group(namespaces.create(NAMESPACE), GROUP)
        self.authority = trustme.CA()
        self._secret("accounts", {
            "plain_acl.yml": ACCOUNTS.encode(),
            "credentials": f"accessKey: {ROOT_KEY}\nsecretKey: {ROOT_SECRET}\n".encode(),
        })  # fmt: skip
        for name, ends in CERTIFICATES.items():
            issued = self.authority.issue_cert("gantry", not_after=ends)
            chain = b"".join(blob.bytes() for blob in issued.cert_chain_pems)
            key, authority = issued.private_key_pem.bytes(), self.authority.cert_pem.bytes()
            self._secret(name, {"tls.crt": chain, "tls.key": key, "ca.crt": authority})
            if name == "certificates":
                self._secret(CERT_MANAGER_SECRET, {"tls.crt": chain, "tls.key": key, "ca.crt": authority})
        self._name_server()
        self._archive()
        self.apply(batch.before)
        print(f"{batch.name}: healthy in {self.group.wait_healthy():.1f} s")
        self.group.start_client()

    def apply(self, spec: Mapping[str, Any]) -> None:
        """Apply an edited spec to the group."""
        self.group.apply(merged(spec, KEPT))

    def _secret(self, name: str, data: Mapping[str, bytes]) -> None:
        encoded = {key: base64.b64encode(value).decode() for key, value in data.items()}
        api, namespace = self.group.namespace.cluster.api, self.group.namespace
        api.create(namespace.path("secrets"), {"metadata": {"name": name}, "data": encoded})

    def _archive(self) -> None:
        """Create the archive that rows name. It has no run, and no image: only the objects of its server are needed."""
        archive = Pipeline(self.group.namespace, "TopicArchive", ARCHIVE, "localhost/no-image:here")
        archive.claim(ARCHIVE)
        archive.apply({
            "brokerGroups": [GROUP], "suspend": True, "schedule": "0 0 1 1 *",
            "destination": {"pvc": {"claimName": ARCHIVE}},
        })  # fmt: skip

    def _name_server(self) -> None:
        """Run a foreign name server that accepts both plain text and TLS."""
        main = container(
            "main",
            "",
            command=["gantry", "pod", "nameserver", "--data", "/data", "--run", "/data"],
            env=[{"name": "GANTRY_NAMESERVER_CONF", "value": ELSEWHERE_CONF}],
            volumeMounts=[
                {"name": "data", "mountPath": "/data"},
                {"name": "certificates", "mountPath": "/certificates", "readOnly": True},
            ],
        )
        volumes = [
            {"name": "data", "emptyDir": {}},
            {"name": "certificates", "secret": {"secretName": "certificates", "defaultMode": 0o440}},
        ]
        namespace = self.group.namespace
        namespace.create_pod(ELSEWHERE, pod_spec(main, volumes=volumes))
        body = {"selector": {"app": ELSEWHERE}, "ports": [{"port": 9876}]}
        namespace.cluster.api.create(namespace.path("services"), {"metadata": {"name": ELSEWHERE}, "spec": body})

    # -- reported values -----------------------------------------------------------------------------------------------

    def reported_values(self, spec: Mapping[str, Any]) -> ValuesByRow:
        """Return the values that all sources report now."""
        reports = self._reports(spec)
        return {
            str(row): {f"{one.source} {one.key}": self._value(one, reports) for one in values_shown_here(row)}
            for row in self.batch.rows
        }

    def _reports(self, spec: Mapping[str, Any]) -> dict[Source, Any]:
        group, access = self.group, spec.get("access", {})
        account = (ROOT_KEY, ROOT_SECRET) if access.get("aclSecret") else None
        authority = self.authority.cert_pem.bytes().decode() if has_tls(spec) else ""
        reports_of_brokers = read_broker_reports(group, ClientAccess(account, authority))
        status, arguments = read_sidecar_report(group, group.masters()[0])
        return {
            Source.CONFIG: reports_of_brokers["config"].values(),
            Source.CLIENT_ACCESS: [{"plain": one} for one in reports_of_brokers["anonymous"].values()],
            Source.TABLES: [reports_of_brokers["tables"]],
            Source.STATUS: [status],
            Source.ARGUMENTS: [arguments],
            Source.POD: [group.namespace.read_pod(pod) for pod in group.brokers()],
            Source.STATUS_OF_GROUP: [group.read().get("status", {})],
        }

    def _value(self, shown: Shown, reports: Mapping[Source, Any]) -> str:
        if shown.source is Source.ROUTES:
            return "yes" if is_routed_outside(self.group, "always") else "no"
        if shown.source is Source.OBJECT:
            kind, _, rest = shown.key.partition("/")
            value = object_value(find_object(self.group, kind, rest.partition(":")[0]), shown.key)
            return size_text(parse_size(value)) if shown.key.endswith(STORAGE) and value != ABSENT else value
        if shown.source in (Source.CONFIG, Source.ARGUMENTS):
            return join_distinct(str(one.get(shown.key, "absent")) for one in reports[shown.source])
        return join_distinct(value_in(one, shown.key) for one in reports[shown.source])

    def values_in_time(self, spec: Mapping[str, Any], seconds_max: float, *, is_after: bool) -> ValuesByRow:
        """Return the reported values once they are the wanted ones, or at the deadline."""
        deadline, now = time.monotonic() + seconds_max, ValuesByRow()
        while now != wanted(self.batch, is_after=is_after) and time.monotonic() < deadline:
            time.sleep(1.0)
            try:
                now = self.reported_values(spec)
            except CommandFailed as error:  # a process is being restarted
                now = {"no report": {"error": str(error)[-2000:]}}
        return now


def wanted(batch: Batch, *, is_after: bool) -> ValuesByRow:
    """Return the values that the rows expect."""
    return {
        str(row): {f"{one.source} {one.key}": one.after if is_after else one.before for one in values_shown_here(row)}
        for row in batch.rows
    }


def uids(group: Group) -> dict[str, str]:
    """Return the uids of the pods of the first shard."""
    return {pod: group.uid_of(pod) for pod in group.brokers() if pod.startswith(f"{group.name}-0-")}


def test_every_row_is_edited_here_or_needs_a_broken_group() -> None:
    """Other rows are refused, which is tested below, or are tested elsewhere with the operator and model brokers."""
    tried = {str(row) for batch in (*LIVE_BATCHES, *ROLLED_BATCHES) for row in batch.rows}
    modelled = {str(row) for row in ROWS if any(one.source is Source.MODEL for one in row.shown)}
    refused = {str(row) for row in ROWS if row.effect is Effect.REFUSED}

    assert tried | modelled | refused == {str(row) for row in ROWS}


@pytest.mark.release
@pytest.mark.cluster_can(Capability.TAG_IMAGES, Capability.HUGE_PAGES, Capability.REACH_NODES)
@pytest.mark.parametrize("batch", LIVE_BATCHES, ids=name)
def test_running_group_applies_the_edit(namespaces: NamespaceFactory, prepared: Cluster, batch: Batch) -> None:
    """No pod of the first shard is replaced, and all of them report the new value."""
    scene = Scene(namespaces, batch)
    assert scene.values_in_time(batch.before, BEFORE_SECONDS_MAX, is_after=False) == wanted(batch, is_after=False)
    before = uids(scene.group)

    started = time.monotonic()
    scene.apply(batch.after)
    after = scene.values_in_time(batch.after, TAKEN_SECONDS_MAX, is_after=True)

    assert after == wanted(batch, is_after=True)
    print(f"RESULT {len(batch.rows)} edits taken in {time.monotonic() - started:.0f} s")
    assert before.items() <= uids(scene.group).items()
    scene.group.wait_healthy()


@pytest.mark.cluster_can(Capability.TAG_IMAGES, Capability.HUGE_PAGES, Capability.REACH_NODES)
@pytest.mark.parametrize("batch", ROLLED_BATCHES, ids=name)
def test_group_is_rolled_for_the_edit(namespaces: NamespaceFactory, prepared: Cluster, batch: Batch) -> None:
    """Every pod of the first shard is replaced, and all of them report the new value; the group is healthy."""
    scene = Scene(namespaces, batch)
    assert scene.values_in_time(batch.before, BEFORE_SECONDS_MAX, is_after=False) == wanted(batch, is_after=False)
    before = uids(scene.group)

    started = time.monotonic()
    scene.apply(batch.after)
    wait_until("new pods", lambda: not set(before.values()) & set(uids(scene.group).values()), ROLLED_SECONDS_MAX)
    after = scene.values_in_time(batch.after, TAKEN_SECONDS_MAX, is_after=True)

    assert after == wanted(batch, is_after=True)
    print(f"RESULT {len(batch.rows)} edits rolled out in {time.monotonic() - started:.0f} s")
    scene.group.wait_healthy()
    assert uids(scene.group).keys() == before.keys()


@pytest.mark.parametrize("row", [row for row in ROWS if row.effect is Effect.REFUSED], ids=str)
def test_invalid_edit_is_refused(namespaces: NamespaceFactory, row: Row) -> None:
    """`kubectl apply` reports the reason, and the object stays unchanged."""
    group = Group(namespaces.create(NAMESPACE), GROUP)
    group.apply(row.spec(row.before))
    before: Object = group.read()["spec"]

    with pytest.raises(CommandFailed, match=row.refusal):
        group.apply(row.spec(row.after))

    assert group.read()["spec"] == before
