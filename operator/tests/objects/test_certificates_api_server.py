"""The Certificate of a group at a real API server, with the CRD that cert-manager publishes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from api_server import ApiServer, api_server, path_of
from charts_scene import ROOT
from objects_scene import facts, group, of_kind, rendered
from published_definitions import cert_manager_definitions
from test_operator_rights import ACCOUNT, OTHER_USER

from gantry_operator.objects.base import Object

pytestmark = [pytest.mark.slow, pytest.mark.needs_go, pytest.mark.needs_api_server]

PATH = "/apis/cert-manager.io/v1/namespaces/shop/certificates"
SERVED_S_MAX = 60.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """An API server with cert-manager's kind, the rights of our operator, and a namespace."""
    with api_server(tmp_path_factory.mktemp("api")) as made:
        found = cert_manager_definitions()
        found += [one for one in yaml.safe_load_all((ROOT / "manifests/operator.yaml").read_text()) if one]
        found.append({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop"}})
        for document in found:
            status, answer = made.apply(path_of(document), document)
            assert status in (200, 201), answer
        ends_s = time.monotonic() + SERVED_S_MAX
        while made.ask("GET", PATH)[0] != 200:
            assert time.monotonic() < ends_s, "the kind is not served"
            time.sleep(0.1)
        yield made


def certificate(**more: Any) -> Object:
    """Return the Certificate of a group, as it is rendered."""
    access = {"certificates": {"issuer": "CertManager", "issuerRef": {"name": "ca"}, "names": ["203.0.113.10"]}}
    objects = rendered(group(access=access, proxy={"replicas": 1}, **more), facts())
    return of_kind(objects, "Certificate")["orders-certificates"]


def apply_strictly(server: ApiServer, document: Object, user: str) -> tuple[int, Any]:
    """Apply an object strictly: an unknown field is refused, and not dropped."""
    path = f"{path_of(document)}?fieldManager=test&force=true&dryRun=All&fieldValidation=Strict"
    return server.ask("PATCH", path, document, "application/apply-patch+yaml", user=user)


def test_crd_accepts_the_certificate_of_a_group(server: ApiServer) -> None:
    """Each field exists and has an allowed value; the operator may write it, and another account may not."""
    document = certificate(shards=3, slaves=2)

    status, answer = apply_strictly(server, document, ACCOUNT)

    assert status == 201, answer
    assert answer["spec"] == document["spec"]
    assert apply_strictly(server, document, OTHER_USER)[0] == 403


def test_crd_refuses_a_field_that_it_does_not_have(server: ApiServer) -> None:
    """The twin: the check is by cert-manager's schema."""
    document = certificate()
    document["spec"]["privateKey"]["algorithm"] = "P-256"

    assert apply_strictly(server, document, ACCOUNT)[0] == 422
