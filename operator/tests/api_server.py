"""A real API server of Kubernetes with an empty store, on loopback: no node, no controller, and up in seconds."""

from __future__ import annotations

import json
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import yaml

from gantry_testing.ports import free_ports
from gantry_testing.programs import kubernetes_program

ROOT = Path(__file__).resolve().parents[2]
TOKEN = "a-token-of-an-administrator"
PERSON = "jane"
"""The name of a user without permissions of its own."""

PERSON_TOKEN = "a-token-of-a-person"
"""The token of a user who has only the permissions that a test grants."""
START_S = 300.0
"""The limit for a start of the API server."""

DEFINITION = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/brokergroups.gantry.dev"
GROUPS = "/apis/gantry.dev/v1alpha1/namespaces/shop/brokergroups"
"""The API paths of the CRD of groups, and of the groups in `shop`."""

_PLURALS = {
    "NetworkPolicy": "networkpolicies",
    "ValidatingAdmissionPolicy": "validatingadmissionpolicies",
}


class ApiServer:
    """A client of the API server, with the administrator's token."""

    def __init__(self, port: int, authority: Path) -> None:
        self._authority = authority
        self.url = f"https://127.0.0.1:{port}"
        self.token = TOKEN
        self._tls = ssl.create_default_context()
        self._tls.check_hostname, self._tls.verify_mode = False, ssl.CERT_NONE  # it made its certificate just now

    def ask(
        self, method: str, path: str, body: Any = None, kind: str = "application/json", *, user: str = ""
    ) -> tuple[int, Any]:
        """Send a request as the administrator, or as a user; return the status and the answer."""
        headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": kind}
        headers |= {"Impersonate-User": user} if user else {}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, headers, method=method)
        try:
            with urllib.request.urlopen(request, context=self._tls, timeout=90) as answer:
                return answer.status, _value(answer.read())
        except urllib.error.HTTPError as error:
            return error.code, _value(error.read())

    def apply(self, path: str, document: dict[str, Any], *, is_dry: bool = False, user: str = "") -> tuple[int, Any]:
        """Apply an object on the server side, as the operator does. With ``is_dry`` nothing is stored."""
        flags = "?fieldManager=test&force=true" + ("&dryRun=All" if is_dry else "")
        return self.ask("PATCH", path + flags, document, "application/apply-patch+yaml", user=user)

    def kubeconfig(self, folder: Path, namespace: str, account: str) -> Path:
        """Write a kubeconfig for a service account, with a token that the API server has issued."""
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
        status, answer = self.ask("POST", path, {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest"})
        assert status == 201, answer
        cluster = {"server": self.url, "certificate-authority": str(self._authority)}
        document = {
            "apiVersion": "v1", "kind": "Config", "current-context": "here",
            "contexts": [{"name": "here", "context": {"cluster": "here", "user": account}}],
            "clusters": [{"name": "here", "cluster": cluster}],
            "users": [{"name": account, "user": {"token": answer["status"]["token"]}}],
        }  # fmt: skip
        target = folder / f"{account}.kubeconfig"
        target.write_text(json.dumps(document))
        return target

    def is_ready(self) -> bool:
        """Return whether the API server is ready."""
        try:
            return self.ask("GET", "/readyz")[0] == 200
        except (OSError, urllib.error.URLError):
            return False


def path_of(one: dict[str, Any]) -> str:
    """Return the API path of an object."""
    version, plural = one["apiVersion"], _PLURALS.get(one["kind"], f"{one['kind'].lower()}s")
    root = f"/api/{version}" if "/" not in version else f"/apis/{version}"
    namespace = one["metadata"].get("namespace")
    return f"{root}/{f'namespaces/{namespace}/' if namespace else ''}{plural}/{one['metadata']['name']}"


@contextmanager
def groups_server(folder: Path) -> Iterator[ApiServer]:
    """Run an API server with the definitions of groups and pipelines, and two namespaces for restricted pods."""
    with api_server(folder) as made:
        status, answer = made.apply(DEFINITION, yaml.safe_load((ROOT / "manifests/crd.yaml").read_text()))
        assert status == 201, answer
        for definition in yaml.safe_load_all((ROOT / "manifests/crd-pipelines.yaml").read_text()):
            path = f"{DEFINITION.rpartition('/')[0]}/{definition['metadata']['name']}"
            status, answer = made.apply(path, definition)
            assert status == 201, answer
        labels = {"pod-security.kubernetes.io/enforce": "restricted"}
        for name in ("shop", "gantry-system"):
            document = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}
            assert made.apply(f"/api/v1/namespaces/{name}", document)[0] == 201
        folder_of = GROUPS.rpartition("/")[0]
        for plural in ("brokergroups", "topicarchives", "logaudits", "topicanalytics"):
            while made.ask("GET", f"{folder_of}/{plural}")[0] != 200:
                time.sleep(0.05)
        yield made


@contextmanager
def api_server(folder: Path, *options: str) -> Iterator[ApiServer]:
    """Run an API server for a test or a module of tests, with more options for the program."""
    store, peers, port = free_ports(3)
    (folder / "tokens.csv").write_text(f"{TOKEN},admin,1,system:masters\n{PERSON_TOKEN},{PERSON},2\n")
    _make_keys(folder)
    url = f"http://127.0.0.1:{store}"
    with ExitStack() as stack:
        _run(stack, folder, "etcd", f"--data-dir={folder}/etcd", "--unsafe-no-fsync", f"--listen-client-urls={url}",
             f"--advertise-client-urls={url}", f"--listen-peer-urls=http://127.0.0.1:{peers}")  # fmt: skip
        _run(stack, folder, "kube-apiserver", f"--etcd-servers={url}", "--bind-address=127.0.0.1",
             f"--secure-port={port}", f"--cert-dir={folder}/certs", f"--token-auth-file={folder}/tokens.csv",
             "--service-account-issuer=https://example.com", f"--service-account-key-file={folder}/accounts.pub",
             f"--service-account-signing-key-file={folder}/accounts.key", "--authorization-mode=RBAC",
             "--service-cluster-ip-range=10.96.0.0/16", "--disable-admission-plugins=ServiceAccount",
             *options)  # fmt: skip
        server = ApiServer(port, folder / "certs" / "apiserver.crt")
        deadline = time.monotonic() + START_S
        while not server.is_ready():
            assert time.monotonic() < deadline, (folder / "kube-apiserver.log").read_text()[-2000:]
            time.sleep(0.2)
        yield server


def _run(stack: ExitStack, folder: Path, name: str, *arguments: str) -> None:
    program = kubernetes_program(name)
    assert program is not None, "expected the marker needs_api_server, because etcd and kube-apiserver are not built"
    log = stack.enter_context((folder / f"{name}.log").open("wb"))
    process = subprocess.Popen([program, *arguments], stdout=log, stderr=log, cwd=folder)

    def end() -> None:
        process.kill()
        process.wait()

    stack.callback(end)


def _make_keys(folder: Path) -> None:
    """Write the keys for service account tokens, which the API server requires."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import rsa

    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    (folder / "accounts.key").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
        )
    )
    (folder / "accounts.pub").write_bytes(
        key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    )


def _value(body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError:
        return body.decode("utf-8", "replace")
