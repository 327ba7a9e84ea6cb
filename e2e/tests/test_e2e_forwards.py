"""Requests to sidecars from outside of a cluster reach the pod that has the address now.

`kubectl` is a small program here that prints and forwards as kubectl does.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from aiohttp import web
from gantry_cluster import forwards
from gantry_cluster.cluster import Cluster
from gantry_cluster.forwards import ForwardedSidecars
from gantry_cluster.pods import Namespace

from gantry_operator.errors import SidecarUnavailable
from gantry_operator.sidecars import Peer
from gantry_status.orders import PromiseRequest
from gantry_testing.http_server import application, http_server
from gantry_testing.programs import write_program

KUBECTL = """\
import asyncio, pathlib, sys

pod = next(word for word in sys.argv if word.startswith("pod/"))
ports = pathlib.Path(__file__).parent / pod.replace("/", "-")
if not ports.exists():
    sys.exit("error: unable to forward port because pod is not running")

async def carry(reader, writer):
    while data := await reader.read(65536):
        writer.write(data)
    writer.close()

async def met(reader, writer):
    try:
        other = await asyncio.open_connection("127.0.0.1", int(ports.read_text()))
    except OSError:
        sys.exit("error: lost connection to pod")
    print("Handling connection for", sys.argv[-1][1:], flush=True)
    await asyncio.gather(carry(reader, other[1]), carry(other[0], writer), return_exceptions=True)

async def main():
    server = await asyncio.start_server(met, "127.0.0.1", 0)
    print(f"Forwarding from 127.0.0.1:{server.sockets[0].getsockname()[1]} -> {sys.argv[-1][1:]}", flush=True)
    await server.serve_forever()

asyncio.run(main())
"""
ADDRESS = "10.244.1.7"
PEER = Peer(ADDRESS, 8080, "a-token-of-the-group")


class Scene:
    """A namespace whose pods are web servers of this test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.pods: list[dict[str, Any]] = []
        self.requests: list[tuple[str, str, str]] = []
        """Pod, path and token of each request."""

        kubectl = folder / "kubectl"
        write_program(kubectl, KUBECTL)
        api = SimpleNamespace(items=lambda path: self.pods)
        known = SimpleNamespace(api=api, programs={"kubectl": kubectl}, folder=SimpleNamespace(kubeconfig=folder / "k"))
        self.namespace = Namespace(cast(Cluster, known), "runner")

    @asynccontextmanager
    async def pod(self, name: str, phase: str = "Running") -> AsyncIterator[None]:
        """Run a pod at the address for the duration of the context."""

        async def answer(request: web.Request) -> web.Response:
            self.requests.append((name, request.path, request.headers["Authorization"]))
            return web.json_response({"role": "MASTER", "epoch": 1, "pod": name})

        async with http_server(application(answer)) as port:
            (self.folder / f"pod-{name}").write_text(str(port))
            self.pods.append({"metadata": {"name": name}, "status": {"phase": phase, "podIP": ADDRESS}})
            try:
                yield
            finally:
                self.pods = [pod for pod in self.pods if pod["metadata"]["name"] != name]


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    monkeypatch.setattr(forwards, "STATUS_TIMEOUT_S", 60.0)  # the machine may be busy
    return Scene(tmp_path)


async def test_request_reaches_the_pod_with_the_address(scene: Scene) -> None:
    """Status requests and orders carry the group's token; a pod that has ended at the address is ignored."""
    scene.pods.append({"metadata": {"name": "ended"}, "status": {"phase": "Succeeded", "podIP": ADDRESS}})
    async with scene.pod("orders-0-master-0"), ForwardedSidecars(scene.namespace) as sidecars:
        found_status = await sidecars.status(PEER)
        await sidecars.order(PEER, PromiseRequest(epoch=2))

    assert found_status["pod"] == "orders-0-master-0"
    assert [path for _, path, _ in scene.requests] == ["/v1/role/now", "/v1/role/promise"]
    assert {token for _, _, token in scene.requests} == {f"Bearer {PEER.token}"}


async def test_next_pod_with_the_address_is_found(scene: Scene) -> None:
    """The forward to a pod that is gone is ended after the first request without an answer."""
    async with ForwardedSidecars(scene.namespace) as sidecars:
        async with scene.pod("first"):
            assert (await sidecars.status(PEER))["pod"] == "first"
        with pytest.raises(SidecarUnavailable):
            await sidecars.status(PEER)
        async with scene.pod("second"):
            assert (await sidecars.status(PEER))["pod"] == "second"
        (scene.folder / "pod-first").unlink()


async def test_address_without_a_pod_is_unavailable(scene: Scene) -> None:
    """An unknown address, and a pod to which kubectl cannot forward, raise an error and leave no forward."""
    async with ForwardedSidecars(scene.namespace) as sidecars:
        with pytest.raises(SidecarUnavailable, match=r"10\.244\.1\.7 is the address of \[\]"):
            await sidecars.status(PEER)
        scene.pods.append({"metadata": {"name": "unborn"}, "status": {"phase": "Running", "podIP": ADDRESS}})
        with pytest.raises(SidecarUnavailable, match="pod is not running"):
            await sidecars.status(PEER)
        assert sidecars._forwards == {}
