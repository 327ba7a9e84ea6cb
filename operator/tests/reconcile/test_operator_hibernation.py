"""Hibernation at a real API server, with the rights of the chart: the changes of StatefulSets are accepted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from api_server import ApiServer
from test_operator_rights import GROUP, SETS, Started, server, started, wait_for

from gantry_spec.manifest.annotations import ALLOW_DELETION

pytestmark = pytest.mark.needs_api_server

__all__ = ["server", "started"]
MERGE = "application/merge-patch+json"
SPEC = {"slaves": 2, "storage": {"retain": "Never"}}


@pytest.fixture
def group(server: ApiServer) -> Iterator[None]:
    """Create a group that is deleted after the test."""
    head = {"apiVersion": "gantry.dev/v1alpha1", "kind": "BrokerGroup", "metadata": {"name": "orders"}}
    assert server.apply(GROUP, head | {"spec": SPEC})[0] == 201
    yield
    consent = {"metadata": {"annotations": {ALLOW_DELETION: "true"}}}
    assert server.ask("PATCH", GROUP, consent, MERGE)[0] == 200
    assert server.ask("DELETE", GROUP)[0] == 200


def stateful_sets(server: ApiServer) -> dict[str, Any]:
    """Return the StatefulSets of the group by name."""
    return {one["metadata"]["name"]: one for one in server.ask("GET", SETS)[1]["items"]}


def replicas(server: ApiServer) -> dict[str, int]:
    return {name: one["spec"]["replicas"] for name, one in stateful_sets(server).items()}


def annotate_hibernate(server: ApiServer, value: str | None) -> None:
    """Set the annotation `gantry.dev/hibernate`; None removes it."""
    change = {"metadata": {"annotations": {"gantry.dev/hibernate": value}}}
    assert server.ask("PATCH", GROUP, change, MERGE)[0] == 200


def hibernated_status(server: ApiServer) -> str:
    conditions = server.ask("GET", GROUP)[1].get("status", {}).get("conditions", [])
    return next((one["status"] for one in conditions if one["type"] == "Hibernated"), "")


@pytest.mark.verify
@pytest.mark.usefixtures("group")
def test_hibernated_group_has_no_pods_and_gets_all_back(
    server: ApiServer,
    started: Started,
) -> None:
    """StatefulSets retain volumes meanwhile, also those that are deleted with a removed slave; no right is missing."""
    awake = {"orders-0-master": 1, "orders-0-slave": 2, "orders-nameserver": 2}
    operator = started("sleeper")
    wait_for("its StatefulSets are there", lambda: replicas(server) == awake)

    annotate_hibernate(server, "true")
    wait_for("none makes pods", lambda: set(replicas(server).values()) == {0})
    wait_for("the status reports it", lambda: hibernated_status(server) == "True")
    for name in ("orders-0-master", "orders-0-slave"):
        home = stateful_sets(server)[name]
        assert home["spec"]["persistentVolumeClaimRetentionPolicy"]["whenScaled"] == "Retain"
        assert home["metadata"]["annotations"]["gantry.dev/hibernated-replicas"] == str(awake[name])

    annotate_hibernate(server, None)
    wait_for("all make pods again", lambda: replicas(server) == awake)
    wait_for(
        "no StatefulSet is marked as hibernated",
        lambda: not any("hibernated" in str(one["metadata"]) for one in stateful_sets(server).values()),
    )
    assert (
        stateful_sets(server)["orders-0-slave"]["spec"]["persistentVolumeClaimRetentionPolicy"]["whenScaled"]
        == "Delete"
    )
    log_text = operator.log.read_text()
    assert "(403)" not in log_text and "(422)" not in log_text, log_text[-3000:]
