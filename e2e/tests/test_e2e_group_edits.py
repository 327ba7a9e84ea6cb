"""Every field of a group is edited on a real cluster, and what runs there says that the edit is in force.

The rows are those of ``operator/tests/edit_world``, some of them edited together, where they do not hide each other. An
edit that brokers take must be said by the same pods; where they are started again, by other ones, in a healthy group.
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
from edit_world.row import ABSENT, GROUP, Effect, Row, Shown, Source, merged
from edit_world.rows_of_groups import CERTIFICATES
from edit_world.table import ROWS
from gantry_cluster.api import Object
from gantry_cluster.capabilities import Capability
from gantry_cluster.cluster import Cluster
from gantry_cluster.commands import wait_until
from gantry_cluster.errors import CommandFailed
from gantry_cluster.groups import Group
from gantry_cluster.pods import container, pod_spec
from gantry_cluster.reports import Way, agreed, brokers_say, is_known_outside, object_of, sidecar_says
from gantry_cluster.spaces import Spaces

from gantry_spec.manifest.quantities import parse_size, size_text

pytestmark = [pytest.mark.slow, pytest.mark.cluster_can(Capability.RUN_GROUPS)]

SPACE = "shop"
"""What addresses in the table have."""

TAKEN_SECONDS_MAX = 150.0
"""Kubelet brings a ConfigMap into a pod when it gets to it, once in about a minute."""

ROLLED_SECONDS_MAX = 420.0
BEFORE_SECONDS_MAX = 90.0
STORAGE = ".requests.storage"
ROOT_KEY, ROOT_SECRET = "root-key", "root-secret"
ACCOUNTS = f"""\
accounts:
  - accessKey: {ROOT_KEY}
    secretKey: {ROOT_SECRET}
    admin: true
"""
ELSEWHERE = "elsewhere"
ELSEWHERE_CONF = """\
listenPort=9876
tlsMode=permissive
tlsServerCertPath=/certificates/tls.crt
tlsServerKeyPath=/certificates/tls.key
"""

KEPT = {"topics": [{"name": "always", "queues": 4}]}
"""Beside what rows edit: a topic by which brokers are found."""

Said = dict[str, dict[str, str]]
"""Values by row and by what shows them."""


def rows(*effects: Effect) -> list[Row]:
    """Those that show something here."""
    return [row for row in ROWS if row.effect in effects and shown_here(row)]


def shown_here(row: Row) -> list[Shown]:
    """What of a row is seen in a cluster: all but what takes a broken one."""
    return [shown for shown in row.shown if shown.source is not Source.MODEL]


def name(batch: Batch) -> str:
    """Of a test."""
    return batch.name


TAKEN = batches(rows(Effect.HOT, Effect.OBJECTS, Effect.DECIDED))
ROLLED = batches(rows(Effect.ROLL))


@pytest.fixture
def prepared(operated: Cluster) -> Iterator[Cluster]:
    """Nodes, a class of priority and names of an image that rows ask for; gone after the test."""
    for tag in ("e2e", "next"):
        operated.name_image("localhost/gantry:latest", f"localhost/gantry:{tag}")
    operated.kubectl("label", "nodes", "--all", "disk=fast", "--overwrite")
    operated.kubectl("delete", "priorityclass", "orders-first", "--ignore-not-found")
    operated.kubectl("create", "priorityclass", "orders-first", "--value=1000")
    try:
        yield operated
    finally:
        operated.kubectl("delete", "priorityclass", "orders-first")
        operated.kubectl("label", "nodes", "--all", "disk-")


class Scene:
    """A group in its namespace, with the Secrets and the name server that edits refer to."""

    def __init__(self, spaces: Spaces, batch: Batch) -> None:
        self.batch = batch
        self.group = Group(spaces.make(SPACE), GROUP)
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
        self._name_server()
        self.apply(batch.before)
        print(f"{batch.name}: healthy in {self.group.wait_healthy():.1f} s")
        self.group.start_client()

    def apply(self, spec: Mapping[str, Any]) -> None:
        """Edit the group."""
        self.group.apply(merged(spec, KEPT))

    def _secret(self, name: str, data: Mapping[str, bytes]) -> None:
        encoded = {key: base64.b64encode(value).decode() for key, value in data.items()}
        api, space = self.group.space.cluster.api, self.group.space
        api.create(space.path("secrets"), {"metadata": {"name": name}, "data": encoded})

    def _name_server(self) -> None:
        """Of somebody else, who takes both plain text and TLS."""
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
        space = self.group.space
        space.pod(ELSEWHERE, pod_spec(main, volumes=volumes))
        body = {"selector": {"app": ELSEWHERE}, "ports": [{"port": 9876}]}
        space.cluster.api.create(space.path("services"), {"metadata": {"name": ELSEWHERE}, "spec": body})

    # -- what is said --------------------------------------------------------------------------------------------------

    def said(self, spec: Mapping[str, Any]) -> Said:
        """Now, by everybody."""
        reports = self._reports(spec)
        return {
            str(row): {f"{one.source} {one.key}": self._value(one, reports) for one in shown_here(row)}
            for row in self.batch.rows
        }

    def _reports(self, spec: Mapping[str, Any]) -> dict[Source, Any]:
        group, access = self.group, spec.get("access", {})
        account = (ROOT_KEY, ROOT_SECRET) if access.get("aclSecret") else None
        authority = self.authority.cert_pem.bytes().decode() if access.get("tlsSecret") else ""
        said = brokers_say(group, Way(account, authority))
        status, arguments = sidecar_says(group, group.masters()[0])
        return {
            Source.CONFIG: said["config"].values(),
            Source.DOOR: [{"plain": one} for one in said["doors"].values()],
            Source.TABLES: [said["tables"]],
            Source.STATUS: [status],
            Source.ARGUMENTS: [arguments],
            Source.POD: [group.space.read_pod(pod) for pod in group.brokers()],
            Source.STATUS_OF_GROUP: [group.read().get("status", {})],
        }

    def _value(self, shown: Shown, reports: Mapping[Source, Any]) -> str:
        if shown.source is Source.ROUTES:
            return "yes" if is_known_outside(self.group, "always") else "no"
        if shown.source is Source.OBJECT:
            kind, _, rest = shown.key.partition("/")
            value = object_value(object_of(self.group, kind, rest.partition(":")[0]), shown.key)
            return size_text(parse_size(value)) if shown.key.endswith(STORAGE) and value != ABSENT else value
        if shown.source in (Source.CONFIG, Source.ARGUMENTS):
            return agreed(str(one.get(shown.key, "absent")) for one in reports[shown.source])
        return agreed(value_in(one, shown.key) for one in reports[shown.source])

    def said_in_time(self, spec: Mapping[str, Any], seconds_max: float, *, is_after: bool) -> Said:
        """What is said once it is what is wanted, or when the time is over."""
        deadline, now = time.monotonic() + seconds_max, Said()
        while now != wanted(self.batch, is_after=is_after) and time.monotonic() < deadline:
            time.sleep(1.0)
            try:
                now = self.said(spec)
            except CommandFailed as error:  # somebody is being started again
                now = {"nobody": {"answers": str(error)[-2000:]}}
        return now


def wanted(batch: Batch, *, is_after: bool) -> Said:
    """What the rows promise."""
    return {
        str(row): {f"{one.source} {one.key}": one.after if is_after else one.before for one in shown_here(row)}
        for row in batch.rows
    }


def uids(group: Group) -> dict[str, str]:
    """Of the pods of the first shard."""
    return {pod: group.uid_of(pod) for pod in group.brokers() if pod.startswith(f"{group.name}-0-")}


def test_every_row_is_edited_here_or_by_what_breaks_a_group() -> None:
    """None is left out: what is not in a batch here is decided by the operator, with brokers that are models."""
    tried = {str(row) for batch in (*TAKEN, *ROLLED) for row in batch.rows}
    modelled = {str(row) for row in ROWS if any(one.source is Source.MODEL for one in row.shown)}
    refused = {str(row) for row in ROWS if row.effect is Effect.REFUSED}

    assert tried | modelled | refused == {str(row) for row in ROWS}


@pytest.mark.cluster_can(Capability.GIVE_IMAGES, Capability.HUGE_PAGES, Capability.REACH_NODES)
@pytest.mark.parametrize("batch", TAKEN, ids=name)
def test_a_running_group_takes_it(spaces: Spaces, prepared: Cluster, batch: Batch) -> None:
    """No pod of the first shard is made anew, and everybody says the new."""
    scene = Scene(spaces, batch)
    assert scene.said_in_time(batch.before, BEFORE_SECONDS_MAX, is_after=False) == wanted(batch, is_after=False)
    before = uids(scene.group)

    started = time.monotonic()
    scene.apply(batch.after)
    after = scene.said_in_time(batch.after, TAKEN_SECONDS_MAX, is_after=True)

    assert after == wanted(batch, is_after=True)
    print(f"RESULT {len(batch.rows)} edits taken in {time.monotonic() - started:.0f} s")
    assert before.items() <= uids(scene.group).items()
    scene.group.wait_healthy()


@pytest.mark.cluster_can(Capability.GIVE_IMAGES, Capability.HUGE_PAGES, Capability.REACH_NODES)
@pytest.mark.parametrize("batch", ROLLED, ids=name)
def test_a_group_is_rolled_for_it(spaces: Spaces, prepared: Cluster, batch: Batch) -> None:
    """Every pod is made anew, on its volume, and everybody says the new; the group is healthy."""
    scene = Scene(spaces, batch)
    assert scene.said_in_time(batch.before, BEFORE_SECONDS_MAX, is_after=False) == wanted(batch, is_after=False)
    before = uids(scene.group)

    started = time.monotonic()
    scene.apply(batch.after)
    wait_until("new pods", lambda: not set(before.values()) & set(uids(scene.group).values()), ROLLED_SECONDS_MAX)
    after = scene.said_in_time(batch.after, TAKEN_SECONDS_MAX, is_after=True)

    assert after == wanted(batch, is_after=True)
    print(f"RESULT {len(batch.rows)} edits rolled out in {time.monotonic() - started:.0f} s")
    scene.group.wait_healthy()
    assert uids(scene.group).keys() == before.keys()


@pytest.mark.parametrize("row", [row for row in ROWS if row.effect is Effect.REFUSED], ids=str)
def test_an_edit_that_cannot_be_is_refused(spaces: Spaces, row: Row) -> None:
    """By `kubectl apply`, which says why; what stands there is what stood there."""
    group = Group(spaces.make(SPACE), GROUP)
    group.apply(row.spec(row.before))
    before: Object = group.read()["spec"]

    with pytest.raises(CommandFailed, match=row.refusal):
        group.apply(row.spec(row.after))

    assert group.read()["spec"] == before
