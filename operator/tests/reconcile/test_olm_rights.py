"""The operator with the permissions that OLM gives it, at a real API server, in two of the modes of an OperatorGroup.

The test takes OLM's place: it creates Roles as OLM does for `permissions` and `clusterPermissions` of the bundle. With
chosen namespaces these are a Role in each of them and in the operator's own; with all namespaces a ClusterRole.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from api_server import ApiServer, api_server, path_of
from charts_scene import ROOT
from objects_scene import EVERYTHING, facts, group
from olm_bundle import Release, bundle_files

from gantry_operator.objects import render

pytestmark = pytest.mark.needs_api_server

SYSTEM = "gantry-system"
RBAC = "rbac.authorization.k8s.io"
ACCOUNTS = {"SingleNamespace": "single", "AllNamespaces": "all"}
"""The service account by the mode whose permissions it gets; one server tests both."""

Document = dict[str, Any]


def account(mode: str) -> str:
    """Return the user name of the service account of a mode."""
    return f"system:serviceaccount:{SYSTEM}:{ACCOUNTS[mode]}"


def grant(name: str, rules: list[Document], service_account: str, namespace: str) -> list[Document]:
    """Return a role with its binding, in a namespace or, if that is empty, in the whole cluster."""
    kind = "Role" if namespace else "ClusterRole"
    metadata = {"name": name} | ({"namespace": namespace} if namespace else {})
    subject = {"kind": "ServiceAccount", "name": service_account, "namespace": SYSTEM}
    role = {"apiVersion": f"{RBAC}/v1", "kind": kind, "metadata": metadata, "rules": rules}
    reference = {"apiGroup": RBAC, "kind": kind, "name": name}
    binding = {"apiVersion": f"{RBAC}/v1", "kind": f"{kind}Binding", "metadata": metadata}
    return [role, binding | {"roleRef": reference, "subjects": [subject]}]


def grants(install: Document) -> Iterator[Document]:
    """Yield what OLM creates for both modes, of which the first one has the namespace `shop`."""
    [namespaced], [cluster] = install["permissions"], install["clusterPermissions"]
    for mode, name in ACCOUNTS.items():
        for namespace in (SYSTEM, "shop") if mode == "SingleNamespace" else ("",):
            yield from grant(f"olm-{name}", namespaced["rules"], name, namespace)
        yield from grant(f"olm-{name}-cluster", cluster["rules"], name, "")


@pytest.fixture(scope="module")
def bundle() -> list[Document]:
    """Return the documents in the bundle's folder `manifests`."""
    files = bundle_files(ROOT, Release(version="0.1.0", images={}))
    return [yaml.safe_load(text) for path, text in files.items() if path.startswith("manifests/")]


@pytest.fixture(scope="module")
def install(bundle: list[Document]) -> Document:
    """Return the part of the bundle that OLM installs."""
    [found] = [one for one in bundle if one["kind"] == "ClusterServiceVersion"]
    return dict(found["spec"]["install"]["spec"])


@pytest.fixture(scope="module")
def server(bundle: list[Document], install: Document, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """Start an API server, and install the bundle as OLM does, except the Deployment."""
    with api_server(tmp_path_factory.mktemp("api")) as made:
        labels = {"pod-security.kubernetes.io/enforce": "restricted"}
        found: list[Document] = [
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}
            for name in (SYSTEM, "shop", "bank")
        ]
        found += [one for one in bundle if one["kind"] in ("CustomResourceDefinition", "ClusterRole")]
        for document in [*found, *grants(install)]:
            status, answer = made.apply(path_of(document), document)
            assert status in (200, 201), answer
        while made.ask("GET", "/apis/gantry.dev/v1alpha1/brokergroups")[0] != 200:
            time.sleep(0.05)
        yield made


def test_every_object_of_the_bundle_is_accepted(server: ApiServer, bundle: list[Document], install: Document) -> None:
    """The API server's own schemas accept every field, and a restricted namespace accepts the operator's pods."""
    objects = [one for one in bundle if one["kind"] in ("NetworkPolicy", "PodDisruptionBudget", "Service")]
    [deployment] = install["deployments"]
    spec = deployment["spec"]
    objects.append(
        {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": deployment["name"]}, "spec": spec}
    )
    objects.append({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "one"}, "spec": spec["template"]["spec"]})

    assert len(objects) == 5
    for one in objects:
        placed = one | {"metadata": one["metadata"] | {"namespace": SYSTEM}}
        status, answer = server.apply(path_of(placed), placed, is_dry=True)
        assert status == 201, (one["kind"], answer)


@pytest.mark.parametrize(
    ("mode", "namespace", "is_allowed"),
    [
        ("SingleNamespace", "shop", True),
        ("SingleNamespace", "bank", False),
        ("AllNamespaces", "shop", True),
        ("AllNamespaces", "bank", True),
    ],
)
def test_operator_may_create_groups_in_its_namespaces_only(
    server: ApiServer, mode: str, namespace: str, is_allowed: bool
) -> None:
    """Each object of a group with every feature is created, including Roles, which need the same rights."""
    made = render(group(f"made-{ACCOUNTS[mode]}", **EVERYTHING), facts())
    assert {"Role", "RoleBinding", "StatefulSet", "NetworkPolicy", "Deployment"} <= {one["kind"] for one in made}

    for document in made:
        placed = document | {"metadata": document["metadata"] | {"namespace": namespace}}
        status, answer = server.apply(path_of(placed), placed, user=account(mode))
        assert status == (201 if is_allowed else 403), (document["kind"], answer)


@pytest.mark.parametrize(
    ("mode", "namespace", "role", "expected"),
    [
        ("SingleNamespace", "shop", "gantry-operator-executors", 201),
        ("SingleNamespace", "bank", "gantry-operator-executors", 403),
        ("SingleNamespace", "shop", "cluster-admin", 403),
        ("AllNamespaces", "bank", "gantry-operator-executors", 201),
        ("AllNamespaces", "bank", "cluster-admin", 403),
    ],
)
def test_operator_may_bind_drivers_to_one_cluster_role(
    server: ApiServer, mode: str, namespace: str, role: str, expected: int
) -> None:
    """The right to `bind` a ClusterRole works where it is granted by a Role, and for this ClusterRole alone."""
    name = f"driver-{ACCOUNTS[mode]}-{role}"
    binding = {
        "apiVersion": f"{RBAC}/v1",
        "kind": "RoleBinding",
        "metadata": {"name": name, "namespace": namespace},
        "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": role},
        "subjects": [{"kind": "ServiceAccount", "name": "driver", "namespace": namespace}],
    }

    status, answer = server.apply(path_of(binding), binding, user=account(mode))

    assert status == expected, answer


@pytest.mark.parametrize("mode", ACCOUNTS)
def test_operator_reads_machines_its_key_and_no_other_secret(server: ApiServer, mode: str) -> None:
    """A missing object that may be read is not found; one that may not is forbidden."""
    paths = {
        "/api/v1/nodes": 200,
        "/api/v1/persistentvolumes": 200,
        f"/api/v1/namespaces/{SYSTEM}/secrets/gantry-operator-key": 404,
        f"/api/v1/namespaces/{SYSTEM}/secrets/other": 403,
        "/api/v1/namespaces/shop/secrets": 403,
        f"/apis/coordination.k8s.io/v1/namespaces/{SYSTEM}/leases/gantry-operator": 404,
    }

    assert {path: server.ask("GET", path, user=account(mode))[0] for path in paths} == paths
