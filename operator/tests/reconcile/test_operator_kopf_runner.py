"""The operator in Kopf's own runner (`kopf run`), at a real API server: the life of a group, and of two operators.

A stand-in creates the pods, as in the operator's benchmark; the rights are those of the chart.

A twin repeats a test without the rule that it checks, and finds the fault: so the test can fail.
"""

from __future__ import annotations

import asyncio
import base64
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from api_server import ApiServer
from gantry_bench.operator_cluster import GROUPS, LEASES, STATEFUL_SETS, StandInCluster
from gantry_bench.operator_run import group_spec
from gantry_bench.operator_sidecars import StandInSidecars
from operator_world.kopf_hosted import KopfRun, run_in_kopf
from test_operator_rights import SYSTEM, holder, server, wait_for

from gantry_operator.objects import group_token
from gantry_operator.settings import OperatorSettings
from gantry_operator.tokens import parse_key
from gantry_spec.lease_annotations import record_of
from gantry_spec.manifest.group import BrokerGroup, Metadata, Spec

pytestmark = pytest.mark.needs_api_server

__all__ = ["server"]
MERGE = "application/merge-patch+json"
EVENTS = "/api/v1/namespaces/shop/events"
ORDERS = f"{GROUPS}/orders"
KEY = f"/api/v1/namespaces/{SYSTEM}/secrets/gantry-operator-key"
GROUP_SECRET = "/api/v1/namespaces/shop/secrets/keyed-sidecar"
RESERVED = "fileReservedTime=12"
EXEMPT = f"system:serviceaccount:{SYSTEM}:gantry-operator"
"""The user whom the admission policies exempt."""
SOME_ROUNDS_S = 1.5
GOING = "namespace of group is terminating; nothing more is changed"
TOO_LITTLE = {"resources": {"limits": {"memory": "64Mi"}}}


def settings_in(server: ApiServer, folder: Path, space: str = "shop") -> OperatorSettings:
    """Return the settings of the chart, for one namespace."""
    kubeconfig = server.kubeconfig(folder, SYSTEM, "gantry-operator")
    return OperatorSettings(
        image="gantry:test", namespaces=(space,), namespace=SYSTEM, kubeconfig=str(kubeconfig), listen="127.0.0.1:0"
    )


@contextmanager
def nodes(server: ApiServer) -> Iterator[None]:
    """Run the stand-ins of pods in a thread of their own, so that a waiting test does not delay sidecars."""

    async def run() -> None:
        async with StandInSidecars(group_spec()) as sidecars, StandInCluster(server.url, sidecars) as cluster:
            standing_in = asyncio.create_task(cluster.run())
            ended = asyncio.create_task(end.wait())
            began.set()
            await asyncio.wait([standing_in, ended], return_when=asyncio.FIRST_COMPLETED)
            assert not standing_in.done(), standing_in.exception()
            standing_in.cancel()
            await cluster.close()
            await asyncio.gather(standing_in, return_exceptions=True)

    end, began, loop = asyncio.Event(), threading.Event(), asyncio.new_event_loop()
    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(loop.run_until_complete, run())
        try:
            assert began.wait(180), "the stand-ins did not start"
            yield
        finally:
            loop.call_soon_threadsafe(end.set)
            running.result()
            loop.close()


def create(server: ApiServer, name: str, spec: dict[str, Any], path: str = GROUPS) -> None:
    """Create a group, as a user does."""
    head = {"apiVersion": "gantry.dev/v1alpha1", "kind": "BrokerGroup", "metadata": {"name": name}}
    assert server.ask("POST", path, head | {"spec": spec})[0] == 201


def items(server: ApiServer, path: str) -> dict[str, Any]:
    """Return the objects of a collection by name."""
    return {one["metadata"]["name"]: one for one in server.ask("GET", path)[1]["items"]}


def reasons(server: ApiServer, group: str) -> set[str]:
    """Return the reasons of the events of a group."""
    events = items(server, EVENTS).values()
    return {one["reason"] for one in events if one["involvedObject"]["name"] == group}


def conditions(server: ApiServer, group: str) -> dict[str, str]:
    """Return the conditions for the newest spec; none while it has not been observed."""
    found = server.ask("GET", f"{GROUPS}/{group}")[1]
    status = found.get("status") or {}
    is_current = status.get("observedGeneration") == found["metadata"]["generation"]
    return {one["type"]: one["status"] for one in status.get("conditions", []) if is_current}


def kept_settings(server: ApiServer) -> str:
    """Return the settings of the brokers of the shard."""
    return str(items(server, "/api/v1/namespaces/shop/configmaps")["orders-0"]["data"])


def is_well(server: ApiServer, slaves: int) -> bool:
    """Return whether the status reports a ready group with its first member as master, and so many electable slaves."""
    found_conditions, lease = conditions(server, "orders"), items(server, LEASES).get("orders-0")
    record = None if lease is None else record_of(lease["metadata"]["annotations"])
    if record is None or record.newest is None or len(record.newest.electable) != slaves:
        return False
    is_mastered = server.ask("GET", ORDERS)[1]["status"]["master"] == "orders-0-master-0"
    return is_mastered and (found_conditions.get("Ready"), found_conditions.get("Progressing")) == ("True", "False")


def change(server: ApiServer, **fields: Any) -> None:
    """Edit the group as a user does."""
    status, answer = server.ask("PATCH", ORDERS, fields, MERGE)
    assert status == 200, answer


def has_event(server: ApiServer, group: str, reason: str) -> Callable[[], bool]:
    """Return a condition: whether the group has an event with this reason."""
    return lambda: reason in reasons(server, group)


@pytest.mark.verify
def test_kopf_runner_runs_the_whole_operator(server: ApiServer, tmp_path: Path) -> None:
    """A group is created, edited and refused with events; a second run continues, and both end in order."""
    settings = settings_in(server, tmp_path)
    with nodes(server):
        with run_in_kopf(settings) as first:
            create(server, "orders", {})
            create(server, "little", TOO_LITTLE)
            wait_for("the group is ready", lambda: is_well(server, 1))
            wait_for("events are recorded", lambda: {"MasterNamed", "MasterPromoted"} <= reasons(server, "orders"))
            wait_for("the reason is recorded", has_event(server, "little", "NotApplied"))
            assert conditions(server, "little")["Applied"] == "False"
            assert not any(name.startswith("little") for name in items(server, STATEFUL_SETS))
            invalid = {"metadata": {"annotations": {"gantry.dev/fence": "x"}}}
            assert server.ask("PATCH", ORDERS, invalid, MERGE)[0] == 422, "the chart's policies refuse invalid requests"
            assert server.ask("PATCH", ORDERS, invalid, MERGE, user=EXEMPT)[0] == 200
            wait_for("an invalid request is recorded", has_event(server, "orders", "InvalidRequest"))
            change(server, metadata={"annotations": {"gantry.dev/fence": None}}, spec={"slaves": 2})
            wait_for("the edit has its effect", lambda: is_well(server, 2))
        first.check_orderly_end()
        assert holder(server) == ""
        before = server.ask("GET", ORDERS)[1]["status"]
        change(server, spec={"storage": {"reservedTime": "12h"}})

        with run_in_kopf(settings) as second:
            wait_for("what was edited meanwhile has its effect", lambda: RESERVED in kept_settings(server))
            wait_for("the group is ready", lambda: is_well(server, 2))
            after = server.ask("GET", ORDERS)[1]["status"]
            assert (after["master"], after["epoch"]) == (before["master"], before["epoch"])
            assert server.ask("DELETE", ORDERS)[0] == 200
            second.wait_for_log("stopped reconciling group")
        second.check_orderly_end()
    assert server.ask("GET", ORDERS)[0] == 404, "the deleted group still exists"


@pytest.mark.verify
def test_run_with_an_unexpected_error_is_reported(
    server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The twin: a round that raises ends nothing, and the error is found in the output of the run."""

    def decide(*_: object) -> None:
        raise ValueError("a bug")

    monkeypatch.setattr("gantry_operator.group_reconciler.decide", decide)
    create(server, "spoilt", {})
    with run_in_kopf(settings_in(server, tmp_path)) as run:
        run.wait_for_log("unexpected error while reconciling group")
    assert server.ask("DELETE", f"{GROUPS}/spoilt")[0] == 200

    assert run.runner.exit_code == 0
    with pytest.raises(AssertionError, match="Traceback"):
        run.check_orderly_end()


# -- the operator's key ------------------------------------------------------------------------------------------------


def is_from(server: ApiServer, key: bytes) -> bool:
    """Return whether the token in the Secret of the group is derived from this key."""
    head = server.ask("GET", f"{GROUPS}/keyed")[1]["metadata"]
    group = BrokerGroup(metadata=Metadata(name="keyed", namespace="shop", uid=head["uid"]), spec=Spec())
    data = server.ask("GET", GROUP_SECRET)[1]["data"]
    return base64.b64decode(data["token"]).decode() == group_token(key, group)


def exists(server: ApiServer, path: str) -> Callable[[], bool]:
    """Return a condition: whether the object at a path exists."""
    return lambda: server.ask("GET", path)[0] == 200


@pytest.mark.verify
def test_key_is_replaced_while_no_operator_runs(server: ApiServer, tmp_path: Path) -> None:
    """The next leader creates another key and Secrets from it; the present one continues with a key that is deleted."""
    settings = settings_in(server, tmp_path)
    with run_in_kopf(settings):
        create(server, "keyed", {})
        wait_for("the Secret is created", exists(server, GROUP_SECRET))
        old = parse_key(server.ask("GET", KEY)[1])
        for path in (KEY, GROUP_SECRET, f"{GROUPS}/keyed"):
            assert server.ask("DELETE", path)[0] == 200
        create(server, "keyed", {})
        wait_for("the Secret is created again", exists(server, GROUP_SECRET))
        assert is_from(server, old)
        assert server.ask("GET", KEY)[0] == 404
    assert server.ask("DELETE", GROUP_SECRET)[0] == 200

    with run_in_kopf(settings):
        wait_for("the Secret is created", exists(server, GROUP_SECRET))
        new = parse_key(server.ask("GET", KEY)[1])
        assert is_from(server, new) and not is_from(server, old)
    assert server.ask("DELETE", f"{GROUPS}/keyed")[0] == server.ask("DELETE", GROUP_SECRET)[0] == 200


# -- the end of a namespace --------------------------------------------------------------------------------------------


def run_with_deleted_namespace(server: ApiServer, folder: Path, space: str, message: str) -> KopfRun:
    """Create a group, and delete its namespace, whose objects are deleted one after the other.

    The group itself is deleted when the operator has logged ``message``.
    """
    core, apps = f"/api/v1/namespaces/{space}", f"/apis/apps/v1/namespaces/{space}"
    groups = f"/apis/gantry.dev/v1alpha1/namespaces/{space}/brokergroups"
    assert server.ask("POST", "/api/v1/namespaces", {"metadata": {"name": space}})[0] == 201
    with run_in_kopf(settings_in(server, folder, space)) as run:
        create(server, "orders", {}, groups)
        wait_for("it is made", lambda: len(items(server, f"{apps}/statefulsets")) == 3)
        wait_for("it has a status", lambda: "status" in server.ask("GET", f"{groups}/orders")[1])
        assert server.ask("DELETE", core)[0] in (200, 202)
        for path in (f"{core}/services", f"{apps}/statefulsets", f"{core}/services"):
            for name in items(server, path):
                server.ask("DELETE", f"{path}/{name}")
            wait_for("the operator runs some rounds", has_passed(SOME_ROUNDS_S))
            assert items(server, path) == {}, "objects were created again in a terminating namespace"
        run.wait_for_log(message)
        assert server.ask("DELETE", f"{groups}/orders")[0] == 200
        run.wait_for_log("stopped reconciling group")
    return run


def has_passed(seconds: float) -> Callable[[], bool]:
    """Return a condition that holds after so many seconds."""
    deadline = time.monotonic() + seconds
    return lambda: time.monotonic() >= deadline


def of_refusals(run: KopfRun) -> list[str]:
    """Return the messages of the log lines about the terminating namespace."""
    return [line["message"] for line in run.lines if "being terminated" in str(line)]


@pytest.mark.verify
def test_terminating_namespace_is_logged_once(server: ApiServer, tmp_path: Path) -> None:
    """Its objects are not created again; the group ends like any other, and the run has no error."""
    run = run_with_deleted_namespace(server, tmp_path, "going", GOING)

    assert of_refusals(run) == [GOING]
    run.check_orderly_end()


@pytest.mark.slow
def test_without_detection_every_object_is_refused(
    server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The twin: taken for missing rights, the namespace causes a refusal for every object."""
    monkeypatch.setattr("gantry_operator.kubernetes_api.TERMINATING", "NobodySaysThis")

    run = run_with_deleted_namespace(server, tmp_path, "unseen", "failed to apply object; retrying")

    assert of_refusals(run).count("failed to apply object; retrying") > 3
