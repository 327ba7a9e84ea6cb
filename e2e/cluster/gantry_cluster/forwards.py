"""Sidecars of pods, for an operator that runs outside of the cluster: through `kubectl port-forward`, on any cluster.

    Peer(pod's address, 8080)  -->  Peer(127.0.0.1, a port of this machine)  ==kubectl, API server, kubelet==>  the pod

What is asked and answered is the operator's own business; only the way is another one. A way on which nobody answers is
given up, so that the next question finds the pod that has the address then.
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
from gantry_operator.errors import SidecarSilent
from gantry_operator.sidecars import HttpSidecars, Peer
from gantry_spec.executor import Expected
from gantry_status.orders import AnyOrder

LOOK_SECONDS: Final = 3.0
"""For an answer. Through so many hands it comes later than in a cluster."""
BEGIN_SECONDS_MAX: Final = 60.0
POLL_SECONDS: Final = 0.02
HOST: Final = "127.0.0.1"
SAID: Final = re.compile(rb"Forwarding from 127\.0\.0\.1:(\d+) ->")


@final
class Forward:
    """One `kubectl port-forward`."""

    def __init__(self, words: tuple[str | Path, ...], log: Path) -> None:
        """Raises ``SidecarSilent`` if it does not begin."""
        # A file, since kubectl says something of each connection, and nobody reads that.
        with log.open("wb") as output:
            self._process: Final = subprocess.Popen([str(word) for word in words], stdout=output, stderr=output)
        try:
            self.port: Final = self._wait_begun(log)
        except BaseException:
            self.end()
            raise

    @property
    def is_alive(self) -> bool:
        """Whether it still forwards."""
        return self._process.poll() is None

    def end(self) -> None:
        """It forwards no more."""
        self._process.kill()
        self._process.wait()

    def _wait_begun(self, log: Path) -> int:
        deadline = time.monotonic() + BEGIN_SECONDS_MAX
        while time.monotonic() < deadline:
            is_over = not self.is_alive
            if match := SAID.search(log.read_bytes()):
                return int(match[1])
            if is_over:
                break
            time.sleep(POLL_SECONDS)
        raise SidecarSilent(f"kubectl forwards nothing: {log.read_text(errors='replace')[-300:]}")


@final
class ForwardedSidecars:
    """Those of one namespace. Owned by the loop of the operator that asks; entered and left."""

    def __init__(self, space: Namespace) -> None:
        self._space: Final = space
        self._http: Final = HttpSidecars(look_timeout_s=LOOK_SECONDS)
        self._stack: Final = AsyncExitStack()
        self._forwards: Final[dict[str, Forward]] = {}
        self._locks: Final[dict[str, asyncio.Lock]] = {}
        self._logs = Path()
        self._begun = 0

    async def __aenter__(self) -> ForwardedSidecars:
        self._logs = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="forwards-")))
        self._stack.callback(self._end_all)
        await self._stack.enter_async_context(self._http)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def status(self, peer: Peer) -> Mapping[str, Any]:
        """As the operator asks for it."""
        near = await self._near(peer)
        try:
            return await self._http.status(near)
        except SidecarSilent:
            self._give_up(peer)
            raise

    async def topics(self, peer: Peer) -> Mapping[str, Any]:
        """The same."""
        return await self._http.topics(await self._near(peer))

    async def order(self, peer: Peer, order: AnyOrder, expected: Expected | None = None) -> None:
        """The same. One that nobody has answered may have been obeyed, as always."""
        await self._http.order(await self._near(peer), order, expected)

    # -- the way -------------------------------------------------------------------------------------------------------

    async def _near(self, peer: Peer) -> Peer:
        """Whom to ask here for what is there."""
        async with self._locks.setdefault(peer.host, asyncio.Lock()):
            known = self._forwards.get(peer.host)
            if known is None or not known.is_alive:
                self._give_up(peer)
                known = self._forwards[peer.host] = await asyncio.to_thread(self._begin, peer)
        return peer._replace(host=HOST, port=known.port)

    def _begin(self, peer: Peer) -> Forward:
        """Blocks. Raises ``SidecarSilent``."""
        cluster = self._space.cluster
        try:
            pods = cluster.api.items(self._space.path("pods"))
        except (OSError, ApiRefused) as error:
            raise SidecarSilent(f"nobody says whose address {peer.host} is: {error}") from error
        names = [pod["metadata"]["name"] for pod in pods if _is_at(pod, peer.host)]
        if len(names) != 1:
            raise SidecarSilent(f"{peer.host} is the address of {names}")
        self._begun += 1
        kubectl = (cluster.programs["kubectl"], f"--kubeconfig={cluster.folder.kubeconfig}")
        place = (f"--namespace={self._space.name}", f"--address={HOST}", f"pod/{names[0]}", f":{peer.port}")
        return Forward((*kubectl, "port-forward", *place), self._logs / f"{self._begun}.log")

    def _give_up(self, peer: Peer) -> None:
        forward = self._forwards.pop(peer.host, None)
        if forward is not None:
            forward.end()

    def _end_all(self) -> None:
        while self._forwards:
            self._forwards.popitem()[1].end()


def _is_at(pod: Object, address: str) -> bool:
    """Whether it runs there; one that has ended still says where it was."""
    status = pod.get("status", {})
    return (status.get("phase"), status.get("podIP")) == ("Running", address)
