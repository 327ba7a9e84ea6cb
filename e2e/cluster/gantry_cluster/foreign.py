"""A foreign cluster, which is known only by its kubeconfig.

Only `kubectl` supports every way to authenticate (tokens, certificates, helper programs of clouds), so the API is
used through `kubectl proxy`, at a socket in a private folder. The tests remove everything that they create, and a
cluster that has Gantry installed already is refused, because removing it would destroy the data of others. With
`GANTRY_KEEP_CLUSTER` set, an installed operator is used, and the operator stays.
"""

from __future__ import annotations

import http.client
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Never, final

from gantry_cluster.api import REQUEST_SECONDS_MAX, Api, Object
from gantry_cluster.capabilities import Capability, find_missing, usable_names
from gantry_cluster.choice import Choice, Kind
from gantry_cluster.cluster import Cluster, Plan
from gantry_cluster.commands import run, tail, wait_until
from gantry_cluster.errors import ApiRefused, ClusterError, DeadlineExceeded, MissingTool
from gantry_cluster.image_names import IMAGE, Images
from gantry_cluster.kind import tag_image
from gantry_cluster.machine import Machine
from gantry_cluster.paths import Folder, cache_folder
from gantry_cluster.programs import Programs

ANSWER_SECONDS_MAX: Final = 120.0
"""The limit for a first answer of the cluster."""

REACH_SECONDS_MAX: Final = 3.0
"""The limit for a connection to a node's kubelet."""

KUBELET_PORT: Final = 10250
SOCKET_BYTES_MAX: Final = 107
"""The longest path of a Unix socket on Linux."""

GANTRY_OBJECTS: Final = (
    "/api/v1/namespaces/gantry-system",
    "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/brokergroups.gantry.dev",
)
"""The objects whose existence shows that Gantry is installed."""

CLIENTS: Final = {
    "kubectl": "on PATH, or: scripts/kubernetes kubectl",
    "helm": "on PATH, as GANTRY_HELM, or: scripts/kubernetes helm",
}
"""The programs that a foreign cluster needs here, with the remedy if one is missing."""


class ClusterNotOwned(ClusterError):
    """The cluster belongs to others, or contains objects that do; the message names the remedy."""


@final
class SocketConnection(http.client.HTTPConnection):
    """An HTTP connection over a Unix socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=REQUEST_SECONDS_MAX)
        self._path = path

    def connect(self) -> None:
        """Connect to the Unix socket."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


@final
@dataclass(frozen=True)
class SocketApi(Api):
    """A client of the API with the identity of the kubeconfig."""

    path: Path = Path()

    def connection(self) -> http.client.HTTPConnection:
        """Return a new connection to the proxy."""
        return SocketConnection(self.path)


class NoMachines(dict[str, Machine]):
    """An empty set of machines: a test that asks for a machine has not declared what it needs."""

    def __missing__(self, name: str) -> Never:
        raise ClusterNotOwned(
            f"{name} is not a machine of this host; the test needs the marker pytest.mark.cluster_can(...)"
        )


@final
@dataclass
class ForeignCluster(Cluster):
    """A foreign cluster with the interface of `Cluster`."""

    images: Images
    kind: Kind
    proxy_api: SocketApi
    """The client of `kubectl proxy`."""

    @property
    def nodes(self) -> list[str]:
        """The names of the nodes that accept any pod."""
        return usable_names(self.api.items("/api/v1/nodes"))

    @property
    def api(self) -> Api:
        """The API server, through the proxy."""
        return self.proxy_api

    def load_image(self, archive: Path) -> list[str]:
        """Refuse: the nodes of a foreign cluster pull their images."""
        raise ClusterNotOwned(f"{archive.name} cannot be loaded into the nodes of a foreign cluster")

    def tag_image(self, known: str, name: str) -> None:
        """Give an image another name; only possible if the nodes are containers of this machine."""
        if self.kind is not Kind.IN_CONTAINERS:
            raise ClusterNotOwned(f"{known} cannot be named {name} on the nodes of a foreign cluster")
        tag_image(self.nodes, self.images.broker if known == IMAGE else known, name)

    def provide_images(self, archive: Path | None) -> Images:
        """Return the images, which the nodes have or pull."""
        return self.images

    def localize_pod_spec(self, spec: Object) -> Object:
        """Return the specification with the name that Gantry's image has on this cluster."""
        return self.images.with_broker_image(spec)

    def find_missing(self) -> dict[Capability, str]:
        """Return which of `PROBED` the cluster lacks, and why."""
        nodes = self.api.items("/api/v1/nodes")
        classes = self.api.items("/apis/storage.k8s.io/v1/storageclasses")
        minor = str(self.api.get("/version").get("minor", ""))
        return find_missing(nodes, classes, minor=minor, is_reached=_is_reached(nodes))

    def refuse_if_used(self) -> None:
        """Refuse a cluster in which Gantry is installed already."""
        for path in GANTRY_OBJECTS:
            try:
                self.api.get(path)
            except ApiRefused as refusal:
                if refusal.status != http.client.NOT_FOUND:
                    raise
            else:
                raise ClusterNotOwned(
                    f"{path.rpartition('/')[2]} exists already; these tests install the operator and remove it"
                    " with all groups: use a cluster without Gantry"
                )


def _is_reached(nodes: list[Object]) -> bool:
    """Return whether the kubelet port of a node is reachable from here."""
    addresses = [one for node in nodes for one in node.get("status", {}).get("addresses", ())]
    internal = [str(one["address"]) for one in addresses if one["type"] == "InternalIP"]
    try:
        with closing(socket.create_connection((internal[0], KUBELET_PORT), REACH_SECONDS_MAX)):
            return True
    except (OSError, IndexError):
        return False


def link_clients(folder: Path) -> Programs:
    """Link kubectl and helm into a folder: GANTRY_KUBECTL and GANTRY_HELM, else the newest built, else from PATH."""
    folder.mkdir()
    for name, remedy in CLIENTS.items():
        built = sorted(cache_folder().glob(f"v*/{name}"), key=lambda path: path.stat().st_mtime, reverse=True)
        found = os.environ.get(f"GANTRY_{name.upper()}") or next(map(str, built), None) or shutil.which(name)
        if found is None:
            raise MissingTool(f"{name} is missing; {remedy}")
        (folder / name).symlink_to(found)
    return Programs(folder)


@contextmanager
def open_cluster(choice: Choice) -> Iterator[ForeignCluster]:
    """Open the chosen cluster for the duration of the context. Raises ``ClusterError``."""
    assert choice.images is not None, "an existing cluster needs the names of its images"
    with tempfile.TemporaryDirectory(prefix="e2e-") as name:
        folder = Folder(Path(name))
        programs = link_clients(folder.root / "bin")
        _write_kubeconfig(choice, programs, folder)
        path = folder.root / "api"
        if len(os.fsencode(path)) > SOCKET_BYTES_MAX:
            raise ClusterError(f"{path} is too long for a socket; move the clone to a shorter path")
        with _proxy(programs, folder, path) as api:
            plan = Plan(nodes=len(api.items("/api/v1/nodes")))
            yield ForeignCluster(
                folder, programs, plan, NoMachines(), images=choice.images, kind=choice.kind, proxy_api=api
            )


def _write_kubeconfig(choice: Choice, programs: Programs, folder: Folder) -> None:
    """Write a kubeconfig with the chosen context, readable only by its owner."""
    context = (f"--context={choice.context}",) if choice.context else ()
    words = ("config", "view", "--raw", "--flatten", "--minify", *context)
    text = run(programs["kubectl"], f"--kubeconfig={choice.kubeconfig}", *words)
    folder.kubeconfig.touch(mode=0o600)
    folder.kubeconfig.write_text(text)


@contextmanager
def _proxy(programs: Programs, folder: Folder, path: Path) -> Iterator[SocketApi]:
    """Run `kubectl proxy` at a socket for the duration of the context."""
    log = folder.root / "proxy.log"
    words = (programs["kubectl"], f"--kubeconfig={folder.kubeconfig}", "proxy", f"--unix-socket={path}")
    with log.open("wb") as output, subprocess.Popen(words, stdout=output, stderr=output) as process:
        try:
            api = SocketApi(path=path)
            _wait_for_answer(api, process, log)
            yield api
        finally:
            process.terminate()


def _wait_for_answer(api: SocketApi, process: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until the API server is ready. Raise if the proxy has ended."""

    def is_answered_or_ended() -> bool:
        return process.poll() is not None or api.is_ready()

    try:
        wait_until("an answer of the API server", is_answered_or_ended, ANSWER_SECONDS_MAX, log)
    except DeadlineExceeded as error:
        raise ClusterError(f"the cluster cannot be reached: {error}") from None
    if process.poll() is not None:
        raise ClusterError(f"the cluster cannot be reached: {tail(log)}")
