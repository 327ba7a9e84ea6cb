"""The objects for the Prometheus operator, checked with its own CRDs at a real API server.

A twin repeats a test without the rule that it checks, and finds the fault: so the test can fail.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from api_server import ApiServer, api_server, path_of
from charts_scene import MONITORING, OPERATOR, ROOT, documents
from objects_scene import EVERYTHING, group, rendered
from operator_world.kopf_hosted import run_in_kopf
from prometheus_definitions import definitions
from test_operator_rights import SYSTEM, wait_for

from gantry_operator.objects.base import Object
from gantry_operator.settings import OperatorSettings

pytestmark = [pytest.mark.slow, pytest.mark.needs_go, pytest.mark.needs_api_server]

KINDS = ("PodMonitor", "PrometheusRule")
MADE = "/apis/monitoring.coreos.com/v1/namespaces/shop"
GROUPS = "/apis/gantry.dev/v1alpha1/namespaces/shop/brokergroups"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """An API server with both projects' CRDs, the rights of our operator, and a namespace."""
    with api_server(tmp_path_factory.mktemp("api")) as made:
        found = [*definitions(), yaml.safe_load((ROOT / "manifests/crd.yaml").read_text())]
        found += [one for one in yaml.safe_load_all((ROOT / "manifests/operator.yaml").read_text()) if one]
        found.append({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop"}})
        for document in found:
            status, answer = made.apply(path_of(document), document)
            assert status in (200, 201), answer
        for path in (f"{MADE}/podmonitors", f"{MADE}/prometheusrules", GROUPS):
            wait_for(path, lambda path=path: made.ask("GET", path)[0] == 200)  # type: ignore[misc]
        yield made


def apply_strictly(server: ApiServer, document: Object) -> tuple[int, Any]:
    """Apply an object strictly: an unknown field is refused, and not dropped."""
    path = f"{path_of(document)}?fieldManager=test&force=true&dryRun=All&fieldValidation=Strict"
    return server.ask("PATCH", path, document, "application/apply-patch+yaml")


def rendered_monitoring(spec: dict[str, Any]) -> list[Object]:
    """Return the rendered objects for Prometheus' operator."""
    return [one for one in rendered(group(**spec)) if one["kind"] in KINDS]


@pytest.mark.parametrize("spec", [{}, EVERYTHING], ids=["defaults", "everything"])
def test_crds_accept_the_objects_of_a_group(server: ApiServer, spec: dict[str, Any]) -> None:
    """Each field exists, and has an allowed value."""
    made = rendered_monitoring(spec)

    assert [one["kind"] for one in made] == list(KINDS)
    for document in made:
        status, answer = apply_strictly(server, document)
        assert status in (200, 201), answer


@pytest.mark.needs_helm
def test_crds_accept_the_objects_of_the_operators_chart(server: ApiServer) -> None:
    """These are its own monitor and alerts."""
    made = [one for one in documents(OPERATOR, *MONITORING) if one["kind"] in KINDS]

    assert [one["kind"] for one in made] == list(KINDS)
    for document in made:
        status, answer = apply_strictly(server, document)
        assert status in (200, 201), answer


def test_crds_refuse_invalid_objects(server: ApiServer) -> None:
    """The twin: a misspelled field, an invalid duration, and a rule without an expression are refused."""
    monitor, rules = rendered_monitoring({})
    monitor["spec"]["podMetricsEndpoint"] = monitor["spec"].pop("podMetricsEndpoints")
    status, answer = apply_strictly(server, monitor)
    assert status >= 400 and "podMetricsEndpoint" in answer["message"], answer

    monitor, _ = rendered_monitoring({})
    monitor["spec"]["podMetricsEndpoints"][0]["interval"] = "soon"
    assert apply_strictly(server, monitor)[0] == 422

    del rules["spec"]["groups"][0]["rules"][0]["expr"]
    assert apply_strictly(server, rules)[0] == 422


def test_operator_creates_them_where_the_crds_exist(server: ApiServer, tmp_path: Path) -> None:
    """It uses the rights of its chart, and the group owns the objects."""
    kubeconfig = server.kubeconfig(tmp_path, SYSTEM, "gantry-operator")
    settings = OperatorSettings(
        image="gantry:test", namespaces=("shop",), namespace=SYSTEM, kubeconfig=str(kubeconfig), listen="127.0.0.1:0"
    )
    head = {"apiVersion": "gantry.dev/v1alpha1", "kind": "BrokerGroup", "metadata": {"name": "orders"}}
    with run_in_kopf(settings) as run:
        assert server.ask("POST", GROUPS, head | {"spec": {}})[0] == 201
        for plural in ("podmonitors", "prometheusrules"):
            wait_for(plural, lambda plural=plural: server.ask("GET", f"{MADE}/{plural}/orders")[0] == 200)  # type: ignore[misc]
            owners = server.ask("GET", f"{MADE}/{plural}/orders")[1]["metadata"]["ownerReferences"]
            assert [one["kind"] for one in owners] == ["BrokerGroup"]
    run.check_orderly_end()
    assert not run.logged("failed to apply object; retrying"), run.logged("failed to apply object; retrying")
