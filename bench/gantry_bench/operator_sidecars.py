"""Stand-ins for sidecars: model brokers behind real HTTP, each on a loopback address of its own.

The brokers are the models of the operator's own tests, with their rules for promises, promotions and copies, and with
the checker of invariants, which fails the run if one is violated, such as by two masters in one epoch. The operator
finds them like real ones: at the address of a pod, port 8080. The destination address of a connection identifies the
sidecar.
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
from spec_world.invariant_checker import InvariantViolation

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
"""The maximum number of records in one exchange between a master and a slave."""

ShardKey = tuple[str, int]
"""A group and a shard."""


class MemberKey(NamedTuple):
    """The group and the member to which an address belongs."""

    shard: ShardKey
    member: int


@final
class StandInSidecars:
    """The sidecars of all groups. Owned by the event loop; an asynchronous context manager."""

    def __init__(self, spec: Spec) -> None:
        self.shards: Final[dict[ShardKey, PodShard]] = {}
        self.leases: Final[dict[ShardKey, LeaseRecord | None]] = {}
        """The record in the Lease of a shard, updated by a watch."""

        self.violation = ""
        """The violated invariant that the checker found; empty if there is none."""

        self._spec: Final = spec
        self._members_by_address: Final[dict[str, MemberKey]] = {}
        self._network: Final = FIRST_NETWORK + os.getpid() % NETWORKS_COUNT
        self._tried = 0
        self._stack: Final = AsyncExitStack()
        self._runner: web.AppRunner | None = None

    async def __aenter__(self) -> StandInSidecars:
        app = web.Application()
        app.router.add_get("/v1/role/now", self._get_status)
        app.router.add_get("/v1/topics", self._get_topics)
        app.router.add_post("/v1/role/{name}", self._post_order)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        self._stack.push_async_callback(self._runner.cleanup)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    # -- pods and time -------------------------------------------------------------------------------------------------

    async def begin(self, group: str, place: names.PodPlace, claim: str, now_ms: int) -> str:
        """Start a broker with its sidecar; return its address."""
        key = group, place.shard
        shard = self.shards.get(key)
        if shard is None:
            shard = PodShard(group, place.shard, self._spec, lambda: self.leases.get(key))
            shard.now_ms = now_ms
            self.shards[key] = shard
        shard.start_broker(place.member, claim)
        address = await self._listen()
        self._members_by_address[address] = MemberKey(key, place.member)
        return address

    async def _listen(self) -> str:
        """Listen at the next free loopback address."""
        assert self._runner is not None, "expected to be entered before it is used"
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
        """Let the brokers store and copy messages. Raises BenchmarkFailed once an invariant was violated."""
        for shard in self.shards.values():
            with self._record_violation():
                shard.advance(now_ms - shard.now_ms, load)
                for number, broker in list(shard.brokers.items()):
                    if broker.role is Role.SLAVE:
                        shard.replicate(number, COPIED_MAX)
                    shard.flush(number)
        if self.violation:
            raise BenchmarkFailed(f"an invariant was violated: {self.violation}")

    @contextmanager
    def _record_violation(self) -> Iterator[None]:
        """Record a violated invariant, because the sender of an order would only send it again."""
        try:
            yield
        except InvariantViolation as error:
            self.violation = str(error)

    def on_renewal(self, key: ShardKey) -> None:
        """Handle an accepted renewal of this shard's Lease."""
        self.shards[key].renew_lease()

    def holder(self, key: ShardKey) -> str:
        """Return the pod whose sidecar renews the shard's Lease now; empty if there is none."""
        shard, record = self.shards[key], self.leases.get(key)
        term = None if record is None or not record.is_settled else record.newest
        if term is None:
            return ""
        is_named = any((one.number, one.store.epoch) == (term.master, term.epoch) for one in shard.masters())
        return names.member_pod(*key, term.master) if is_named else ""

    # -- requests of the operator ------------------------------------------------------------------------------------

    def _find_member(self, request: web.Request) -> MemberKey:
        if not request.headers.get("Authorization", "").startswith("Bearer "):
            raise web.HTTPUnauthorized
        assert request.transport is not None, "expected a request with a connection"
        return self._members_by_address[request.transport.get_extra_info("sockname")[0]]

    async def _get_status(self, request: web.Request) -> web.Response:
        key, member = self._find_member(request)
        return web.json_response(self.shards[key].status(member))

    async def _get_topics(self, request: web.Request) -> web.Response:
        self._find_member(request)
        return web.json_response({"source": "broker", "left_out": 0, "topics": []})

    async def _post_order(self, request: web.Request) -> web.Response:
        key, member = self._find_member(request)
        order, expected = order_from(request.match_info["name"], await request.json())
        try:
            with self._record_violation():
                self.shards[key].execute_order(member, order, expected)
        except Refused as error:
            return web.json_response({"reason": str(error)}, status=409)
        return web.json_response(self.shards[key].status(member))


def order_from(name: str, body: dict[str, Any]) -> tuple[AnyOrder, Expected | None]:
    """Return the order in a request of the operator. An unknown order is answered with 404."""
    tag = "follow" if name == "demote" else name
    expected = body.pop("expected", None)
    try:
        order: AnyOrder = msgspec.convert({**body, "order": tag}, AnyOrder)
    except msgspec.ValidationError as error:
        raise web.HTTPNotFound(text=str(error)) from error
    return order, None if expected is None else msgspec.convert(expected, Expected)
