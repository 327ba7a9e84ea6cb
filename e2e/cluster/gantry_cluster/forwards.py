"""Access to sidecars for an operator that runs outside of the cluster, through `kubectl port-forward`, on any cluster.

    Peer(pod's address, 8080)  -->  Peer(127.0.0.1, a port of this machine)  ==kubectl, API server, kubelet==>  the pod

Requests and replies pass unchanged. A forward whose status request fails is ended, so that the next request starts one
to the pod that has the address then.
"""

from __future__ import annotations

import asyncio
import re
import subprocess
import tempfile
import time
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final, final

from gantry_cluster.api import Object
from gantry_cluster.errors import ApiRefused
from gantry_cluster.pods import Namespace
from gantry_operator.errors import SidecarUnavailable
from gantry_operator.sidecars import HttpSidecars, Peer
from gantry_spec.executor import Expected
from gantry_status.orders import AnyOrder

STATUS_TIMEOUT_S: Final = 3.0
"""The timeout of a status request. Through kubectl, API server and kubelet an answer takes longer than in a cluster."""
START_SECONDS_MAX: Final = 60.0
"""The limit for a forward to start."""

POLL_SECONDS: Final = 0.02
HOST: Final = "127.0.0.1"
FORWARDING_LINE: Final = re.compile(rb"Forwarding from 127\.0\.0\.1:(\d+) ->")
"""The line with the local port that kubectl prints."""


@final
class Forward:
    """One running `kubectl port-forward` to a sidecar."""

    def __init__(self, words: tuple[str | Path, ...], log: Path) -> None:
        """Start the program. Raises ``SidecarUnavailable`` if it does not start."""
        # The output goes to a file, because kubectl prints a line for each connection and a pipe would fill up.
        with log.open("wb") as output:
            self._process: Final = subprocess.Popen([str(word) for word in words], stdout=output, stderr=output)
        try:
            self.port: Final = self._wait_for_port(log)
        except BaseException:
            self.end()
            raise

    @property
    def is_alive(self) -> bool:
        """Whether the program still forwards."""
        return self._process.poll() is None

    def end(self) -> None:
        """Kill the program and wait for its end."""
        self._process.kill()
        self._process.wait()

    def _wait_for_port(self, log: Path) -> int:
        deadline = time.monotonic() + START_SECONDS_MAX
        while time.monotonic() < deadline:
            is_over = not self.is_alive
            if match := FORWARDING_LINE.search(log.read_bytes()):
                return int(match[1])
            if is_over:
                break
            time.sleep(POLL_SECONDS)
        raise SidecarUnavailable(f"kubectl port-forward failed: {log.read_text(errors='replace')[-300:]}")


@final
class ForwardedSidecars:
    """The sidecars of one namespace. An asynchronous context manager, owned by the loop of the operator."""

    def __init__(self, namespace: Namespace) -> None:
        self._space: Final = namespace
        self._http: Final = HttpSidecars(status_timeout_s=STATUS_TIMEOUT_S)
        self._stack: Final = AsyncExitStack()
        self._forwards: Final[dict[str, Forward]] = {}
        self._locks: Final[dict[str, asyncio.Lock]] = {}
        self._logs = Path()
        self._started_count = 0

    async def __aenter__(self) -> ForwardedSidecars:
        self._logs = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="forwards-")))
        self._stack.callback(self._end_all)
        await self._stack.enter_async_context(self._http)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def status(self, peer: Peer) -> Mapping[str, Any]:
        """Return the status of a sidecar, with the interface of the operator's client."""
        local_peer = await self._local_peer(peer)
        try:
            return await self._http.status(local_peer)
        except SidecarUnavailable:
            self._drop_forward(peer)
            raise

    async def topics(self, peer: Peer) -> Mapping[str, Any]:
        """Return the topics of a sidecar's broker."""
        return await self._http.topics(await self._local_peer(peer))

    async def order(self, peer: Peer, order: AnyOrder, expected: Expected | None = None) -> Mapping[str, Any]:
        """Send an order to a sidecar. An order without an answer may have been executed, as always."""
        return await self._http.order(await self._local_peer(peer), order, expected)

    # -- forwards ------------------------------------------------------------------------------------------------------

    async def _local_peer(self, peer: Peer) -> Peer:
        """Return the local peer that forwards to this peer."""
        async with self._locks.setdefault(peer.host, asyncio.Lock()):
            known = self._forwards.get(peer.host)
            if known is None or not known.is_alive:
                self._drop_forward(peer)
                known = self._forwards[peer.host] = await asyncio.to_thread(self._start_forward, peer)
        return peer._replace(host=HOST, port=known.port)

    def _start_forward(self, peer: Peer) -> Forward:
        """Start a forward to the pod with the peer's address. Blocks. Raises ``SidecarUnavailable``."""
        cluster = self._space.cluster
        try:
            pods = cluster.api.items(self._space.path("pods"))
        except (OSError, ApiRefused) as error:
            raise SidecarUnavailable(f"the pod with address {peer.host} is unknown: {error}") from error
        names = [pod["metadata"]["name"] for pod in pods if _is_at(pod, peer.host)]
        if len(names) != 1:
            raise SidecarUnavailable(f"{peer.host} is the address of {names}; expected one running pod")
        self._started_count += 1
        kubectl = (cluster.programs["kubectl"], f"--kubeconfig={cluster.folder.kubeconfig}")
        place = (f"--namespace={self._space.name}", f"--address={HOST}", f"pod/{names[0]}", f":{peer.port}")
        return Forward((*kubectl, "port-forward", *place), self._logs / f"{self._started_count}.log")

    def _drop_forward(self, peer: Peer) -> None:
        forward = self._forwards.pop(peer.host, None)
        if forward is not None:
            forward.end()

    def _end_all(self) -> None:
        while self._forwards:
            self._forwards.popitem()[1].end()


def _is_at(pod: Object, address: str) -> bool:
    """Return whether the pod runs at the address. The status of a pod that has ended still has one."""
    status = pod.get("status", {})
    return (status.get("phase"), status.get("podIP")) == ("Running", address)
