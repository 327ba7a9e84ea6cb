"""A cluster of somebody else: what is known of it is a kubeconfig.

`kubectl` alone knows every way to be somebody (tokens, certificates, helpers of clouds), so the API is asked through
`kubectl proxy`, at a socket in a folder that nobody else can enter. What these tests make in the cluster they take away
again; a cluster where anything of ours is already is refused, because taking that away would hurt somebody.
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
from gantry_cluster.capabilities import Capability, lacks, usable_names
from gantry_cluster.choice import Choice, Kind
from gantry_cluster.cluster import Cluster, Plan
from gantry_cluster.commands import run, tail, wait_until
from gantry_cluster.errors import ApiRefused, ClusterError, DeadlineExceeded, MissingTool
from gantry_cluster.image_names import IMAGE, Images
from gantry_cluster.kind import name_image
from gantry_cluster.machine import Machine
from gantry_cluster.places import Folder, cache_folder
from gantry_cluster.programs import Programs

ANSWER_SECONDS_MAX: Final = 120.0
REACH_SECONDS_MAX: Final = 3.0
KUBELET_PORT: Final = 10250
SOCKET_BYTES_MAX: Final = 107
OURS: Final = (
    "/api/v1/namespaces/gantry-system",
    "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/brokergroups.gantry.dev",
)
CLIENTS: Final = {
    "kubectl": "on PATH, or: scripts/kubernetes kubectl",
    "helm": "on PATH, as GANTRY_HELM, or: scripts/kubernetes helm",
}


class NotOurs(ClusterError):
    """The cluster belongs to somebody else, or has something that does; the message says what to do."""


@final
class SocketConnection(http.client.HTTPConnection):
    """HTTP over a socket in the file system."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=REQUEST_SECONDS_MAX)
        self._path = path

    def connect(self) -> None:
        """As the base class does it, elsewhere."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


@final
@dataclass(frozen=True)
class SocketApi(Api):
    """The API as whoever the kubeconfig says."""

    path: Path = Path()

    def connection(self) -> http.client.HTTPConnection:
        """One to the proxy."""
        return SocketConnection(self.path)


class NoMachines(dict[str, Machine]):
    """None that anybody here has a hand on: a test that asks for one has not said what it needs."""

    def __missing__(self, name: str) -> Never:
        raise NotOurs(f"{name} is no machine of ours; the test needs a mark: pytest.mark.cluster_can(...)")


@final
@dataclass
class ForeignCluster(Cluster):
    """It, as tests know a cluster."""

    images: Images
    kind: Kind
    way_in: SocketApi

    @property
    def nodes(self) -> list[str]:
        """Those that any pod may come to."""
        return usable_names(self.api.items("/api/v1/nodes"))

    @property
    def api(self) -> Api:
        """The API server, through the proxy."""
        return self.way_in

    def load_image(self, archive: Path) -> list[str]:
        """Nobody can: nodes fetch images."""
        raise NotOurs(f"{archive.name} cannot be given to nodes of somebody else")

    def name_image(self, known: str, name: str) -> None:
        """Only where nodes are containers of this machine."""
        if self.kind is not Kind.IN_CONTAINERS:
            raise NotOurs(f"{known} cannot get the name {name} on nodes of somebody else")
        name_image(self.nodes, self.images.broker if known == IMAGE else known, name)

    def give_operator(self, archive: Path | None) -> Images:
        """Its nodes have or fetch them."""
        return self.images

    def pod_spec_here(self, spec: Object) -> Object:
        """With the image by its name here."""
        return self.images.placed(spec)

    def lacks(self) -> dict[Capability, str]:
        """What it cannot do, and why."""
        nodes = self.api.items("/api/v1/nodes")
        classes = self.api.items("/apis/storage.k8s.io/v1/storageclasses")
        minor = str(self.api.get("/version").get("minor", ""))
        return lacks(nodes, classes, minor=minor, is_reached=_is_reached(nodes))

    def refuse_if_used(self) -> None:
        """Refuse where anything of ours is already."""
        for path in OURS:
            try:
                self.api.get(path)
            except ApiRefused as refusal:
                if refusal.status != http.client.NOT_FOUND:
                    raise
            else:
                raise NotOurs(
                    f"{path.rpartition('/')[2]} is there already; these tests install the operator and take it away"
                    " with all groups: use a cluster without it"
                )


def _is_reached(nodes: list[Object]) -> bool:
    """Whether the address of a node answers here; every kubelet listens."""
    addresses = [one for node in nodes for one in node.get("status", {}).get("addresses", ())]
    internal = [str(one["address"]) for one in addresses if one["type"] == "InternalIP"]
    try:
        with closing(socket.create_connection((internal[0], KUBELET_PORT), REACH_SECONDS_MAX)):
            return True
    except (OSError, IndexError):
        return False


def clients(folder: Path) -> Programs:
    """A folder with kubectl and helm, wherever they are: those that were built here, the newest, go first."""
    folder.mkdir()
    for name, remedy in CLIENTS.items():
        built = sorted(cache_folder().glob(f"v*/{name}"), key=lambda path: path.stat().st_mtime, reverse=True)
        found = os.environ.get(f"GANTRY_{name.upper()}") or next(map(str, built), None) or shutil.which(name)
        if found is None:
            raise MissingTool(f"{name} is missing; {remedy}")
        (folder / name).symlink_to(found)
    return Programs(folder)


@contextmanager
def opened(choice: Choice) -> Iterator[ForeignCluster]:
    """The cluster that was chosen, while this is entered. Raises ``ClusterError``."""
    assert choice.images is not None, "a cluster that is there has them from somewhere"
    with tempfile.TemporaryDirectory(prefix="e2e-") as name:
        folder = Folder(Path(name))
        programs = clients(folder.root / "bin")
        _write_kubeconfig(choice, programs, folder)
        path = folder.root / "api"
        if len(os.fsencode(path)) > SOCKET_BYTES_MAX:
            raise ClusterError(f"{path} is too long for a socket; move the clone to a shorter path")
        with _proxy(programs, folder, path) as api:
            plan = Plan(nodes=len(api.items("/api/v1/nodes")))
            yield ForeignCluster(
                folder, programs, plan, NoMachines(), images=choice.images, kind=choice.kind, way_in=api
            )


def _write_kubeconfig(choice: Choice, programs: Programs, folder: Folder) -> None:
    """One context with all that belongs to it, readable for us alone."""
    context = (f"--context={choice.context}",) if choice.context else ()
    words = ("config", "view", "--raw", "--flatten", "--minify", *context)
    text = run(programs["kubectl"], f"--kubeconfig={choice.kubeconfig}", *words)
    folder.kubeconfig.touch(mode=0o600)
    folder.kubeconfig.write_text(text)


@contextmanager
def _proxy(programs: Programs, folder: Folder, path: Path) -> Iterator[SocketApi]:
    """The API at a socket."""
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
    """Until the API server is ready, or the proxy has said why it never will be."""

    def is_settled() -> bool:
        return process.poll() is not None or api.is_ready()

    try:
        wait_until("an answer of the API server", is_settled, ANSWER_SECONDS_MAX, log)
    except DeadlineExceeded as error:
        raise ClusterError(f"the cluster cannot be reached: {error}") from None
    if process.poll() is not None:
        raise ClusterError(f"the cluster cannot be reached: {tail(log)}")
