"""External access through a Gateway, with the CRDs of the Gateway API at a real API server.

A twin repeats a test without the rule that it checks, and finds the fault: so the test can fail.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from api_server import ApiServer, api_server, path_of
from charts_scene import ROOT
from gateway_definitions import FORMER, PRESENT, Release, definitions
from objects_scene import facts, group, of_kind, rendered
from operator_world.gateways import gateway
from operator_world.kopf_hosted import run_in_kopf
from test_operator_rights import ACCOUNT, OTHER_USER, SYSTEM, wait_for

from gantry_broker.external_addresses import parse_external_addresses
from gantry_operator.objects.base import Object
from gantry_operator.settings import OperatorSettings

pytestmark = [pytest.mark.slow, pytest.mark.needs_go, pytest.mark.needs_api_server]

API = "/apis/gateway.networking.k8s.io"
GROUPS = "/apis/gantry.dev/v1alpha1/namespaces/shop/brokergroups"
GATEWAY = f"{API}/v1/namespaces/shop/gateways/edge"
CONFIG_MAP = "/api/v1/namespaces/shop/configmaps/orders-0"
EXTERNAL: Object = {"type": "Gateway", "gateway": {"name": "edge"}}
PORTS = {9876: "names", 9886: "master", 9887: "first", 9888: "second"}
MERGE = "application/merge-patch+json"
RELEASES = {"v1": PRESENT, "v1alpha2": FORMER}


@pytest.fixture(scope="module", params=RELEASES)
def release(request: pytest.FixtureRequest) -> Release:
    """One release of the Gateway API after the other."""
    return RELEASES[request.param]


@pytest.fixture(scope="module")
def server(release: Release, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """An API server with both projects' CRDs, the rights of our operator, and a namespace."""
    with api_server(tmp_path_factory.mktemp("api")) as made:
        found = [*definitions(release), yaml.safe_load((ROOT / "manifests/crd.yaml").read_text())]
        found += [one for one in yaml.safe_load_all((ROOT / "manifests/operator.yaml").read_text()) if one]
        found.append({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop"}})
        for document in found:
            status, answer = made.apply(path_of(document), document)
            assert status in (200, 201), answer
        for path in (f"{API}/v1/gateways", f"{API}/{release.version}/tcproutes", GROUPS):
            wait_for(path, lambda path=path: made.ask("GET", path)[0] == 200)  # type: ignore[misc]
        yield made


def routes(release: Release) -> list[Object]:
    """Return the routes of a group, as they are rendered for this release."""
    known = facts(route_api=f"gateway.networking.k8s.io/{release.version}", gateway_listeners=PORTS)
    return list(of_kind(rendered(group(access={"external": EXTERNAL}), known), "TCPRoute").values())


def apply_strictly(server: ApiServer, document: Object, user: str = "") -> tuple[int, Any]:
    """Apply an object strictly: an unknown field is refused, and not dropped."""
    path = f"{path_of(document)}?fieldManager=test&force=true&dryRun=All&fieldValidation=Strict"
    return server.ask("PATCH", path, document, "application/apply-patch+yaml", user=user)


def test_crds_accept_the_routes_of_a_group(server: ApiServer, release: Release) -> None:
    """Each field exists, and has an allowed value; the operator may write them, and another account may not."""
    made = routes(release)

    assert len(made) == len(PORTS)
    for document in made:
        status, answer = apply_strictly(server, document, ACCOUNT)
        assert status == 201, answer
        assert apply_strictly(server, document, OTHER_USER)[0] == 403
        assert answer["spec"] == document["spec"], "the API server adds defaults, so the cache would differ"


def test_crds_refuse_invalid_routes(server: ApiServer, release: Release) -> None:
    """The twin: a misspelled field, and a port that does not exist, are refused."""
    document = routes(release)[0]
    [parent] = document["spec"]["parentRefs"]
    parent["section"] = parent.pop("sectionName")
    status, answer = apply_strictly(server, document)
    assert status >= 400 and "section" in answer["message"], answer

    document = routes(release)[0]
    document["spec"]["parentRefs"][0]["port"] = 65_536
    assert apply_strictly(server, document)[0] == 422


@pytest.mark.parametrize(
    ("method", "path"),
    [("PATCH", GATEWAY), ("DELETE", GATEWAY), ("PATCH", f"{GATEWAY}/status"), ("GET", GATEWAY),
     ("GET", f"{API}/v1/namespaces/shop/httproutes")],
)  # fmt: skip
def test_operator_only_lists_gateways(server: ApiServer, method: str, path: str) -> None:
    """They belong to the administrators of the cluster."""
    status, answer = server.ask(method, path, {} if method == "PATCH" else None, MERGE, user=ACCOUNT)

    assert status == 403, answer


def outside(server: ApiServer) -> dict[str, str]:
    """Return the external addresses of the shard, as its brokers read them."""
    status, answer = server.ask("GET", CONFIG_MAP)
    return dict(parse_external_addresses(answer["data"]["outside"])) if status == 200 else {}


def condition(server: ApiServer) -> tuple[str, str]:
    """Return reason and message of the group's condition."""
    found = (server.ask("GET", f"{GROUPS}/orders")[1].get("status") or {}).get("conditions") or []
    one: Object = next((one for one in found if one["type"] == "GatewayReady"), {})
    return one.get("reason", ""), one.get("message", "")


def report_routes(server: ApiServer, version: str) -> None:
    """Let a controller accept all routes of the group."""
    path = f"{API}/{version}/namespaces/shop/tcproutes"
    for route in server.ask("GET", path)[1]["items"]:
        accepted = {"type": "Accepted", "status": "True", "reason": "Accepted", "message": "",
                    "observedGeneration": route["metadata"]["generation"],
                    "lastTransitionTime": "2026-01-01T00:00:00Z"}  # fmt: skip
        [parent] = route["spec"]["parentRefs"]
        status = {"parents": [{"parentRef": parent, "controllerName": "example.com/c", "conditions": [accepted]}]}
        answer = server.ask("PATCH", f"{path}/{route['metadata']['name']}/status", {"status": status}, MERGE)
        assert answer[0] == 200, answer


def test_operator_connects_a_group_to_a_gateway(server: ApiServer, release: Release, tmp_path: Path) -> None:
    """With the rights of its chart: it waits, creates routes, registers addresses, follows changes, and prunes."""
    kubeconfig = server.kubeconfig(tmp_path, SYSTEM, "gantry-operator")
    settings = OperatorSettings(
        image="gantry:test", namespaces=("shop",), namespace=SYSTEM, kubeconfig=str(kubeconfig), listen="127.0.0.1:0"
    )
    listed = f"{API}/{release.version}/namespaces/shop/tcproutes"
    head = {"apiVersion": "gantry.dev/v1alpha1", "kind": "BrokerGroup", "metadata": {"name": "orders"}}
    with run_in_kopf(settings) as run:
        assert server.ask("POST", GROUPS, head | {"spec": {"access": {"external": EXTERNAL}}})[0] == 201
        wait_for("the group waits", lambda: condition(server)[0] == "GatewayNotFound")
        made = gateway(ports=PORTS)
        assert server.ask("POST", GATEWAY.rpartition("/")[0], made)[0] == 201
        wait_for("there are routes", lambda: len(server.ask("GET", listed)[1]["items"]) == len(PORTS))
        wait_for("there is no address", lambda: condition(server)[0] == "NoAddress")
        for address in ("198.51.100.1", "198.51.100.2"):
            status = {"status": {"addresses": [{"type": "IPAddress", "value": address}]}}
            assert server.ask("PATCH", f"{GATEWAY}/status", status, MERGE)[0] == 200
            report_routes(server, release.version)
            wait_for(address, lambda: outside(server).get("master") == f"{address}:9886")  # noqa: B023
        wait_for("the group is reachable", lambda: condition(server)[0] == "AllRoutesAccepted")
        change = {"spec": {"access": {"external": {"type": "NodePort"}}}}
        assert server.ask("PATCH", f"{GROUPS}/orders", change, MERGE)[0] == 200
        wait_for("the routes are deleted", lambda: not server.ask("GET", listed)[1]["items"])
        wait_for("no address is left", lambda: not outside(server))
    run.check_orderly_end()
    assert not run.logged("failed to apply object; retrying"), run.logged("failed to apply object; retrying")
