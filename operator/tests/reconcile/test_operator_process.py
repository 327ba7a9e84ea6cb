"""The operator's process: options, key, probes and log lines; and sidecars that are called over real HTTP."""

from __future__ import annotations

import asyncio
import getpass
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp
import kopf
import pytest
from admin_scene import (
    TOKEN,
    BrokerChild,
    SidecarChild,
    broker_process,
    sidecar_process,
    sidecars_with_long_timeouts,
    write_token_files,
)
from aiohttp import web
from click.testing import CliRunner
from operator_world.cluster import ModelClock
from operator_world.fake_kubernetes import FakeKubernetes
from operator_world.waiting import until

from gantry_operator import process
from gantry_operator.api import (
    CRON_JOBS,
    GATEWAYS,
    GROUPS,
    POD_MONITORS,
    ROUTE_KINDS,
    SECRETS,
    STATEFUL_SETS,
    TCP_ROUTES,
    TCP_ROUTES_V1ALPHA2,
    Kind,
    Object,
    ObjectRef,
)
from gantry_operator.cache import Cache
from gantry_operator.errors import (
    ApiError,
    NotFound,
    SettingsError,
    SidecarRefused,
    SidecarUnauthorized,
    SidecarUnavailable,
    Unavailable,
)
from gantry_operator.group_reconciler import GroupContext
from gantry_operator.handlers import kopf_registry, kopf_settings
from gantry_operator.main import JsonFormatter, main
from gantry_operator.main import settings_of as options_of
from gantry_operator.metrics import Metrics
from gantry_operator.objects import Facts, render
from gantry_operator.observe.unschedulable import ClusterPods
from gantry_operator.probes import probes
from gantry_operator.process import KindDiscovery, Operator
from gantry_operator.resource_loop import LoopManager
from gantry_operator.settings import OperatorSettings, parse_address, parse_pairs
from gantry_operator.sidecars import HttpSidecars, Peer
from gantry_operator.tokens import operator_key
from gantry_operator.watched_resources import OPTIONAL_KINDS, WATCHED_KINDS, WatchedResources
from gantry_spec.executor import Expected
from gantry_spec.observed import report_of
from gantry_status import orders
from gantry_testing.http_server import application, http_server

KUBECONFIG = """\
apiVersion: v1
kind: Config
current-context: here
contexts: [{name: here, context: {cluster: here, user: here}}]
clusters: [{name: here, cluster: {server: "http://127.0.0.1:9"}}]
users: [{name: here, user: {}}]
"""
"""A kubeconfig for a cluster that does not answer."""

# -- options -----------------------------------------------------------------------------------------------------------


def test_options_read_every_variable_of_the_chart() -> None:
    """Each environment variable that the chart sets belongs to an option, except POD_NAME, which names the process."""
    chart = (Path(__file__).resolve().parents[3] / "charts/gantry-operator/templates/deployment.yaml").read_text()
    known = {parameter.envvar for parameter in main.params}

    used = {
        word.split()[-1] for word in chart.splitlines() if "- name: GANTRY_" in word or "- name: POD_NAMESPACE" in word
    }

    assert used and used <= known
    assert CliRunner().invoke(main, ["--help"]).exit_code == 0


def test_options_become_settings() -> None:
    """Lists are separated by commas, labels are pairs."""
    found = main.make_context(
        "gantry-operator",
        ["--image", "gantry:1", "--namespaces", "a, b", "--labels", "x=1,y=2", "--no-machines", "--port", "0"],
    ).params
    settings = options_of(found)

    assert settings.namespaces == ("a", "b")
    assert settings.operator_labels == (("x", "1"), ("y", "2"))
    assert (settings.can_read_nodes, settings.listen) == (False, "[::]:0")


@pytest.mark.parametrize("text", ["8080", "host:", ":1", "host:http", "host:99999", "host:\u00b2", "[::1:80"])
def test_invalid_address_is_refused(text: str) -> None:
    """The error names the option."""
    with pytest.raises(SettingsError, match="--listen"):
        parse_address(text, "--listen")
    with pytest.raises(SettingsError, match="--labels"):
        parse_pairs("novalue", "--labels")


@pytest.mark.verify
async def test_process_does_not_need_a_user_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The user of a pod is a number without an entry in passwd, so Kopf must not look up its name either."""

    def refuse() -> str:
        raise KeyError("getpwuid(): uid not found: 65532")

    monkeypatch.setattr(getpass, "getuser", refuse)
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(KUBECONFIG)
    operator = Operator(OperatorSettings(image="gantry:test", kubeconfig=str(kubeconfig)))
    resources = WatchedResources(LoopManager(context_of(FakeKubernetes()), ("a",)))

    operator.stop()
    async with asyncio.timeout(120):
        await operator.watch(resources)


# -- what the cluster knows --------------------------------------------------------------------------------------------


async def test_kind_that_is_installed_later_is_discovered() -> None:
    """A kind that the API server does not serve yet is checked again; one that it serves is not."""
    api = FakeKubernetes()
    unknown = {CRON_JOBS, POD_MONITORS}
    api.fault_of = lambda verb, ref: NotFound("list", "no such resource", 404) if ref.kind in unknown else None
    known = KindDiscovery(api, period_min_s=0.001, period_max_s=0.002)
    assert [await known.is_available(kind, ("a", "b")) for kind in (GROUPS, CRON_JOBS, POD_MONITORS)] == [
        True,
        False,
        False,
    ]
    asked = len(api.calls)

    waiting = asyncio.create_task(known.wait_for_missing())
    await asyncio.sleep(0.02)
    assert not waiting.done()
    unknown.remove(POD_MONITORS)
    async with asyncio.timeout(60):
        assert await waiting is POD_MONITORS
    assert {ref.kind for _, ref in api.calls[asked:]} == {POD_MONITORS}


@pytest.mark.verify
async def test_kind_of_the_operators_chart_is_waited_for() -> None:
    """The wait is short, and comes before the first decision; it ends if the kind is never served."""
    api = FakeKubernetes()
    refusals = iter([True, True, False])
    api.fault_of = lambda verb, ref: NotFound("list", "no such resource", 404) if next(refusals, True) else None
    known = KindDiscovery(api)

    assert await known.is_available(CRON_JOBS, timeout_s=5.0)
    assert not await known.is_available(CRON_JOBS, timeout_s=0.5)


async def test_missing_kind_that_nothing_needs_is_not_listed_again() -> None:
    """A cluster without the Gateway API is asked for it again only while a group connects through a Gateway."""
    api, needed = FakeKubernetes(), [False]
    unknown = {GATEWAYS}
    api.fault_of = lambda verb, ref: NotFound("list", "no such resource", 404) if ref.kind in unknown else None
    known = KindDiscovery(api, period_min_s=0.001, period_max_s=0.002)
    assert not await known.is_served(GATEWAYS, (), lambda: needed[0])

    waiting = asyncio.create_task(known.wait_for_missing())
    unknown.clear()
    await asyncio.sleep(0.02)
    assert api.calls == [] and not waiting.done()
    needed[0] = True
    async with asyncio.timeout(60):
        assert await waiting is GATEWAYS


@pytest.mark.parametrize(
    ("unserved", "found"),
    [
        ((), (GATEWAYS, TCP_ROUTES)),
        ((TCP_ROUTES,), (GATEWAYS, TCP_ROUTES_V1ALPHA2)),
        (ROUTE_KINDS, ()),
        ((GATEWAYS,), ()),
    ],
    ids=["v1", "v1alpha2", "only HTTP routes", "no Gateway API"],
)
async def test_served_version_of_routes_is_used(
    unserved: tuple[Kind, ...], found: tuple[Kind, ...], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Version v1 is preferred. An API server that does not answer is asked again: no answer does not mean no kind."""
    monkeypatch.setattr(process, "RETRY_S", 0.0)
    api, failures = FakeKubernetes(), iter([True, False, True])

    def fault_of(verb: str, ref: ObjectRef) -> ApiError | None:
        if next(failures, False):
            return Unavailable("list", "no answer")
        if ref.kind == TCP_ROUTES and ref.kind in unserved:  # the answer to an unknown version is no JSON
            return Unavailable("list", "the answer (404) is not JSON", 404)
        return NotFound("list", "no such resource", 404) if ref.kind in unserved else None

    api.fault_of = fault_of
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(KUBECONFIG)
    operator = Operator(OperatorSettings(image="gantry:test", kubeconfig=str(kubeconfig)))
    kinds = KindDiscovery(api)

    made = await operator._gateway_kinds(kinds)

    assert made == found
    assert (await operator._base_facts(kinds, made)).route_api == (found[-1].api_version if found else "")


# -- the key -----------------------------------------------------------------------------------------------------------


async def test_operator_key_is_created_once() -> None:
    """Three operators at once, and all later ones, get the same key; it is long, and in no error text."""
    api = FakeKubernetes()

    keys = await asyncio.gather(*(operator_key(api, "gantry-system", "op") for _ in range(3)))
    again = await operator_key(api, "gantry-system", "op")

    assert {again, *keys} == {again}
    assert len(again) == 32
    found = api.found(SECRETS, "gantry-system", "op-key")
    assert found is not None
    found["data"]["key"] = "c2hvcnQ="
    api.put(found)
    with pytest.raises(SettingsError) as caught:
        await operator_key(api, "gantry-system", "op")
    assert "c2hvcnQ" not in str(caught.value)


# -- probes, metrics, lines --------------------------------------------------------------------------------------------


async def test_process_with_stale_groups_is_not_live() -> None:
    """The probe answers 200 without a problem, else 503 with the reason; metrics are served as well."""
    complaints = [""]
    metrics = Metrics()
    metrics.record_action("Promote", is_done=True)
    async with probes(("127.0.0.1", 0), metrics, lambda: complaints[0]) as port, aiohttp.ClientSession() as session:
        async with session.get(f"http://127.0.0.1:{port}/livez") as answer:
            assert answer.status == 200
        complaints[0] = "a/b has not come round"
        async with session.get(f"http://127.0.0.1:{port}/livez") as answer:
            assert (answer.status, (await answer.json())["reason"]) == (503, "a/b has not come round")
        async with session.get(f"http://127.0.0.1:{port}/metrics") as answer:
            text = await answer.text()
    assert 'gantry_operator_actions_total{outcome="done",type="Promote"} 1.0' in text


async def test_probes_are_answered_on_both_families() -> None:
    """The operator's pod may have an address of IPv4 or of IPv6, and kubelet probes that."""
    listen = parse_address(OperatorSettings(image="x").listen, "--listen")
    async with probes((listen[0], 0), Metrics(), lambda: "") as port, aiohttp.ClientSession() as session:
        for host in ("127.0.0.1", "[::1]"):
            async with session.get(f"http://{host}:{port}/livez") as answer:
                assert answer.status == 200


@pytest.mark.parametrize("callback", ["connection_made", "data_received", "connection_lost"])
async def test_an_exception_in_a_probe_connection_closes_that_connection(
    callback: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One log line names the callback, the event loop gets no exception, and the next probe is answered."""
    uncaught: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: uncaught.append(context))
    real, left = getattr(web.RequestHandler, callback), [1]

    def broken(self: web.RequestHandler, argument: Any) -> None:
        if left and left.pop():
            raise KeyError("a bug")
        real(self, argument)

    monkeypatch.setattr(web.RequestHandler, callback, broken)
    async with probes(("127.0.0.1", 0), Metrics(), lambda: "") as port:
        for is_answered in (callback == "connection_lost", True):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
            async with asyncio.timeout(60):
                with suppress(ConnectionResetError):
                    assert (await reader.read()).startswith(b"HTTP/1.1 200 ") == is_answered
            writer.transport.abort()
            await asyncio.gather(writer.wait_closed(), return_exceptions=True)
    assert uncaught == []
    [line] = [one for one in caplog.records if one.getMessage() == "connection closed: a callback failed"]
    assert line.__dict__["callback"] == callback


async def test_incomplete_requests_do_not_block_probes() -> None:
    """With 300 incomplete requests of one address, probes are answered, and displaced requests are counted."""
    metrics = Metrics()
    async with probes(("127.0.0.1", 0), metrics, lambda: "") as port:
        halves = []
        for _ in range(300):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET /livez HTTP/1.1\r\nHost: x\r\n")
            halves.append((reader, writer))
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await reader.read()).startswith(b"HTTP/1.1 200 "), (
            "expected an answer, and then the end of the connection"
        )
        halves.append((reader, writer))
        assert sum(one.at_eof() or one.exception() is not None for one, _ in halves) >= 300 - 32
        for _, writer in halves:
            writer.transport.abort()
        await asyncio.gather(*(writer.wait_closed() for _, writer in halves), return_exceptions=True)
    assert b'gantry_operator_http_closed_total{reason="address_limit"} 269.0' in metrics.text()


def test_log_line_is_json_with_its_fields() -> None:
    """An exception is included as text."""
    try:
        raise ValueError("bad\nthing")
    except ValueError as error:
        record = logging.getLogger("x").makeRecord(
            "x", logging.WARNING, "f", 1, "not done", (), (type(error), error, error.__traceback__), extra={"shard": 2}
        )
    line = JsonFormatter().format(record)

    assert "\n" not in line
    found = json.loads(line)
    assert (found["message"], found["shard"], found["level"]) == ("not done", 2, "warning")
    assert "bad" in found["error"]


# -- groups and watches ------------------------------------------------------------------------------------------------


def context_of(api: FakeKubernetes) -> GroupContext:
    return GroupContext(
        cache=Cache(), api=api, sidecars=HttpSidecars(), clock=ModelClock(), metrics=Metrics(),
        base=Facts(image="gantry:test"), render=render, key=b"k" * 32,
        cluster_pods=ClusterPods(api, ModelClock()),
    )  # fmt: skip


def group_object(name: str, namespace: str = "shop") -> Object:
    head = {"name": name, "namespace": namespace}
    spec = {"shards": 1, "slaves": 1}
    return {"apiVersion": GROUPS.api_version, "kind": GROUPS.name, "metadata": head, "spec": spec}


async def test_every_group_has_its_own_loop_until_it_is_deleted() -> None:
    """The loop is started by a watch event or a list, and ends with the group; a failing one does not affect others."""
    api = FakeKubernetes()
    for name in ("a", "b"):
        api.put(group_object(name))
    bad = group_object("bad")
    bad["spec"] = {"shard": 1}
    api.put(bad)
    resources = WatchedResources(LoopManager(context_of(api)))
    async with HttpSidecars() as sidecars:
        object.__setattr__(resources.groups.context, "sidecars", sidecars)
        await resources.list_all()
        api.watchers.append(resources.apply_event)
        resources.start_missing()
        await until(lambda: len(api.of_kind(STATEFUL_SETS)) == 6, "two groups have what they need")
        assert set(resources.groups.loops) == {("shop", "a"), ("shop", "b"), ("shop", "bad")}
        api.remove(next(ref for ref in api.objects if ref.kind == GROUPS and ref.name == "b"))
        await until(lambda: ("shop", "b") not in resources.groups.loops, "its task has ended")
        await resources.close()

    assert resources.groups.loops == {}
    assert "bad" not in {one["metadata"]["labels"]["gantry.dev/group"] for one in api.of_kind(STATEFUL_SETS)}


async def test_only_groups_of_the_given_namespaces_are_reconciled() -> None:
    """Watch events of other namespaces start no loop."""
    resources = WatchedResources(LoopManager(context_of(FakeKubernetes()), ["ours"]))
    await resources.list_all()
    resources.start_missing()
    resources.apply_event(
        None, group_object("a", "theirs") | {"metadata": {"name": "a", "namespace": "theirs", "uid": "1"}}
    )

    assert resources.groups.loops == {}


async def test_stale_group_is_named() -> None:
    """The liveness probe reports this text."""
    context = context_of(FakeKubernetes())
    resources = WatchedResources(LoopManager(context))
    await resources.list_all()
    resources.start_missing()
    resources.apply_event(None, group_object("a") | {"metadata": {"name": "a", "namespace": "shop", "uid": "1"}})
    assert resources.describe_stale(60) == ""
    assert isinstance(context.clock, ModelClock)
    context.clock.ms += 61_000

    assert "shop/a" in resources.describe_stale(60)
    await resources.close()


async def test_optional_kinds_are_watched_only_where_the_cluster_has_them() -> None:
    """One version of routes is watched, with the label of groups. A CRD that is deleted later breaks no list."""
    api = FakeKubernetes()
    api.put(group_object("a"))
    resources = WatchedResources(LoopManager(context_of(api)), None, (GATEWAYS, TCP_ROUTES))
    await resources.list_all()
    assert {ref.kind for verb, ref in api.calls} == {*WATCHED_KINDS, GATEWAYS, TCP_ROUTES}
    registry = kopf_registry(resources, lambda: kopf.ConnectionInfo(server="https://nowhere"))
    assert len(registry._watching.get_all_handlers()) == len(WATCHED_KINDS) + 2
    selectors = kopf_settings().watching.label_selectors
    assert selectors["gateway.networking.k8s.io", "v1", "tcproutes"] == "gantry.dev/group"

    api.fault_of = lambda verb, ref: NotFound("list", "no such kind", 404) if ref.kind in OPTIONAL_KINDS else None
    await resources.list_all()
    with pytest.raises(NotFound):
        api.fault_of = lambda verb, ref: NotFound("list", "no such kind", 404)
        await resources.list_all()


def test_kopf_has_only_event_handlers() -> None:
    """There is one for every kind, and no handler that needs a finalizer or keeps state on objects."""
    resources = WatchedResources(LoopManager(context_of(FakeKubernetes())))
    registry = kopf_registry(resources, lambda: kopf.ConnectionInfo(server="https://nowhere"))

    assert len(registry._watching.get_all_handlers()) == len(WATCHED_KINDS)
    assert registry._changing.get_all_handlers() == []
    assert registry._spawning.get_all_handlers() == []
    settings = kopf_settings()
    assert settings.peering.standalone and not settings.posting.enabled


# -- sidecars over HTTP ------------------------------------------------------------------------------------------------


@pytest.fixture
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[BrokerChild, SidecarChild]]:
    store = tmp_path_factory.mktemp("store")
    with broker_process(store) as broker:
        broker.send(3)
        with sidecar_process(store, *write_token_files(tmp_path_factory.mktemp("tokens"))) as sidecar:
            sidecar.wait_ready()
            yield broker, sidecar


def peer_of(sidecar: SidecarChild, token: str = TOKEN) -> Peer:
    host, _, port = sidecar.address.rpartition(":")
    return Peer(host, int(port), token)


async def test_real_sidecar_reports_executes_and_refuses(
    pair: tuple[BrokerChild, SidecarChild],
) -> None:
    """Its answer is a complete and present report, and each order is accepted with its fields.

    A promotion for a longer log is refused, and a wrong token is rejected.
    """
    broker, sidecar = pair
    peer = peer_of(sidecar)
    async with sidecars_with_long_timeouts() as sidecars:
        present = await sidecars.status(peer)
        report = report_of(present, asked_ms=1, answered_ms=2)
        assert (report.role, report.wrote) == ("MASTER", await asyncio.to_thread(lambda: broker.log_end))
        assert report.identity and report.is_complete is True and report.ha_address

        epoch, end = int(present["epoch"]), int(present["wrote"])
        await sidecars.order(peer, orders.Drain(timeout_ms=5_000))
        assert (await sidecars.status(peer))["is_draining"] is True
        await sidecars.order(peer, orders.Promote(epoch=epoch))
        longer = Expected(last_epoch=int(present["last_epoch"]), end=end + 1)
        with pytest.raises(SidecarRefused, match="expected a log that ends"):
            await sidecars.order(peer, orders.Promote(epoch=epoch + 1000, electable=[2]), longer)
        await sidecars.order(peer, orders.PromiseRequest(epoch=epoch + 1000))
        await sidecars.order(peer, orders.Fence(epoch=epoch + 2000))
        with pytest.raises(SidecarRefused):
            await sidecars.order(peer, orders.Follow(epoch=epoch, master="127.0.0.1:1"))
        with pytest.raises(SidecarUnauthorized):
            await sidecars.status(peer_of(sidecar, "x" * 40))
        after = await sidecars.status(peer)

    assert (after["role"], after["promised_epoch"]) == ("UNASSIGNED", epoch + 2000)


async def test_an_order_for_another_broker_is_refused(pair: tuple[BrokerChild, SidecarChild]) -> None:
    """The address of a deleted pod may belong to another pod of the group, which must not obey in its place."""
    _, sidecar = pair
    async with sidecars_with_long_timeouts() as sidecars:
        present = await sidecars.status(peer_of(sidecar))
        own = peer_of(sidecar)._replace(broker_name=present["broker_name"], member=present["broker_id"])
        fence = orders.Fence(epoch=int(present["epoch"]) + 1_000)
        for other in (own._replace(broker_name="orders-7"), own._replace(member=present["broker_id"] + 1)):
            for order in (fence, orders.Drain(timeout_ms=100), orders.PromiseRequest(epoch=fence.epoch)):
                with pytest.raises(SidecarRefused, match=r"the order is for broker .*, but this one is"):
                    await sidecars.order(other, order)
        assert (await sidecars.status(own))["role"] == "MASTER"

        await sidecars.order(own, fence)

        assert (await sidecars.status(own))["role"] == "UNASSIGNED"


@asynccontextmanager
async def answering(handler: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> AsyncIterator[Peer]:
    """Serve the answers of a handler in place of a sidecar."""
    async with http_server(application(handler)) as port:
        yield Peer("127.0.0.1", port, TOKEN)


async def test_unusable_answers_of_a_sidecar_are_errors() -> None:
    """Late, not JSON, too long, or a redirection: an error comes in time, and the token is not disclosed."""
    stolen: list[str] = []

    async def thief(request: web.Request) -> web.Response:
        stolen.append(request.headers.get("Authorization", ""))
        return web.json_response({})

    async with answering(thief) as away, HttpSidecars(status_timeout_s=0.3) as sidecars:
        kind = ""

        async def handler(request: web.Request) -> web.StreamResponse:
            if kind == "late":
                await asyncio.sleep(2)
            if kind == "redirection":
                return web.Response(status=307, headers={"Location": f"{away.base}/v1/role/now"})
            if kind == "long":
                return web.Response(body=b"[" + b"1," * (3 << 20))
            return web.Response(body=b"<html>")

        async with answering(handler) as peer:
            for one in ("late", "redirection", "long", "nonsense"):
                kind = one
                with pytest.raises(SidecarUnavailable) as caught:
                    await sidecars.status(peer)
                assert TOKEN not in str(caught.value)
        with pytest.raises(SidecarUnavailable):
            await sidecars.status(peer)
    assert stolen == []
    assert TOKEN not in repr(peer)
