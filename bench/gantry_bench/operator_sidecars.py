"""Sidecars that are none: model brokers behind real HTTP, each on a loopback address of its own.

The brokers are those of the operator's own tests, with their rules for promises, promotions and copies, and with the
judge who fails the run if two of them ever master one epoch. The operator finds them as it finds real ones: at the
address of a pod, port 8080. Which of them is asked is seen from the address that a connection came to.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from typing import Any, Final, NamedTuple, final

import msgspec
from aiohttp import web
from operator_world.pod_shard import PodShard
from spec_world.brokers import Refused
from spec_world.judge import Wrong

from gantry_bench.errors import BenchmarkFailed
from gantry_operator.objects import names
from gantry_spec.executor import Expected
from gantry_spec.lease import LeaseRecord
from gantry_spec.manifest.group import Spec
from gantry_spec.observed import Role
from gantry_status.orders import AnyOrder

FIRST_NETWORK: Final = 64
NETWORKS_COUNT: Final = 128
TRIES_MAX: Final = 500
COPIED_MAX: Final = 100
"""Records in one exchange between a master and a slave."""

ShardKey = tuple[str, int]
"""Group and shard."""


class Home(NamedTuple):
    """Whose address it is."""

    shard: ShardKey
    member: int


@final
class StandInSidecars:
    """Owned by the event loop; entered and left."""

    def __init__(self, spec: Spec) -> None:
        self.shards: Final[dict[ShardKey, PodShard]] = {}
        self.leases: Final[dict[ShardKey, LeaseRecord | None]] = {}
        """What stands in the Lease of a shard, by a watch."""

        self.wrong = ""
        """The judge's word, once a promise was broken."""

        self._spec: Final = spec
        self._homes: Final[dict[str, Home]] = {}
        self._network: Final = FIRST_NETWORK + os.getpid() % NETWORKS_COUNT
        self._tried = 0
        self._stack: Final = AsyncExitStack()
        self._runner: web.AppRunner | None = None

    async def __aenter__(self) -> StandInSidecars:
        app = web.Application()
        app.router.add_get("/v1/role/now", self._now)
        app.router.add_get("/v1/topics", self._topics)
        app.router.add_post("/v1/role/{name}", self._order)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        self._stack.push_async_callback(self._runner.cleanup)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    # -- pods come, time passes ----------------------------------------------------------------------------------------

    async def begin(self, group: str, place: names.PodPlace, claim: str, now_ms: int) -> str:
        """A broker starts, and its sidecar listens; at which address."""
        key = group, place.shard
        shard = self.shards.get(key)
        if shard is None:
            shard = PodShard(group, place.shard, self._spec, lambda: self.leases.get(key))
            shard.now_ms = now_ms
            self.shards[key] = shard
        shard.begin(place.member, claim)
        address = await self._listen()
        self._homes[address] = Home(key, place.member)
        return address

    async def _listen(self) -> str:
        """At the next loopback address that is free."""
        assert self._runner is not None, "entered before it is used"
        for _ in range(TRIES_MAX):
            self._tried += 1
            address = f"127.{self._network}.{self._tried // 250}.{self._tried % 250 + 1}"
            try:
                await web.TCPSite(self._runner, address, names.SIDECAR_PORT).start()
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
                continue
            return address
        raise BenchmarkFailed(f"port {names.SIDECAR_PORT} is taken on {TRIES_MAX} loopback addresses: free it")

    def advance(self, now_ms: int, load: float) -> None:
        """Brokers take messages and copy them. Raises BenchmarkFailed once a promise was broken."""
        for shard in self.shards.values():
            with self._judged():
                shard.advance(now_ms - shard.now_ms, load)
                for number, broker in list(shard.brokers.items()):
                    if broker.role is Role.SLAVE:
                        shard.copy(number, COPIED_MAX)
                    shard.flush(number)
        if self.wrong:
            raise BenchmarkFailed(f"a promise was broken: {self.wrong}")

    @contextmanager
    def _judged(self) -> Iterator[None]:
        """What is wrong is kept: whoever gave an order would only give it again."""
        try:
            yield
        except Wrong as error:
            self.wrong = str(error)

    def renewed(self, key: ShardKey) -> None:
        """The API server has taken a renewal of this shard's Lease."""
        self.shards[key].renew()

    def holder(self, key: ShardKey) -> str:
        """Whose sidecar renews the shard's Lease now; empty if nobody's."""
        shard, record = self.shards[key], self.leases.get(key)
        reign = None if record is None or not record.is_settled else record.newest
        if reign is None:
            return ""
        is_named = any((one.number, one.store.epoch) == (reign.master, reign.epoch) for one in shard.masters())
        return names.member_pod(*key, reign.master) if is_named else ""

    # -- asked ---------------------------------------------------------------------------------------------------------

    def _home(self, request: web.Request) -> Home:
        if not request.headers.get("Authorization", "").startswith("Bearer "):
            raise web.HTTPUnauthorized
        assert request.transport is not None, "it is connected"
        return self._homes[request.transport.get_extra_info("sockname")[0]]

    async def _now(self, request: web.Request) -> web.Response:
        key, member = self._home(request)
        return web.json_response(self.shards[key].said(member))

    async def _topics(self, request: web.Request) -> web.Response:
        self._home(request)
        return web.json_response({"source": "broker", "left_out": 0, "topics": []})

    async def _order(self, request: web.Request) -> web.Response:
        key, member = self._home(request)
        order, expected = order_from(request.match_info["name"], await request.json())
        try:
            with self._judged():
                self.shards[key].obey(member, order, expected)
        except Refused as error:
            return web.json_response({"reason": str(error)}, status=409)
        return web.json_response(self.shards[key].said(member))


def order_from(name: str, body: dict[str, Any]) -> tuple[AnyOrder, Expected | None]:
    """The order in a request of the operator; one that no sidecar knows is not found."""
    tag = "follow" if name == "demote" else name
    expected = body.pop("expected", None)
    try:
        order: AnyOrder = msgspec.convert({**body, "order": tag}, AnyOrder)
    except msgspec.ValidationError as error:
        raise web.HTTPNotFound(text=str(error)) from error
    return order, None if expected is None else msgspec.convert(expected, Expected)
