"""The process: its options, its key, its probes and lines; and sidecars asked and ordered over real HTTP."""

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
from admin_scene import TOKEN, BrokerChild, SidecarChild, broker_beside, patient_sidecars, sidecar_beside, token_files
from aiohttp import web
from click.testing import CliRunner
from operator_world.cluster import ModelClock
from operator_world.fake_kubernetes import FakeKubernetes
from operator_world.waiting import until

from gantry_operator.api import CRON_JOBS, GROUPS, POD_MONITORS, SECRETS, STATEFUL_SETS, Object
from gantry_operator.cache import Cache
from gantry_operator.errors import Gone, SettingsError, SidecarDenied, SidecarRefused, SidecarSilent
from gantry_operator.group_reconciler import GroupContext
from gantry_operator.handlers import registry_of, settings_of
from gantry_operator.main import JsonFormatter, main
from gantry_operator.main import settings_of as options_of
from gantry_operator.metrics import Metrics
from gantry_operator.objects import Facts, render
from gantry_operator.probes import probes
from gantry_operator.process import KnownKinds, Operator
from gantry_operator.resource_loop import LoopKeeper
from gantry_operator.settings import OperatorSettings, address_of, pairs_of
from gantry_operator.sidecars import HttpSidecars, Peer
from gantry_operator.tokens import operator_key
from gantry_operator.watched_resources import LISTED, WatchedResources
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
"""Of a cluster where nobody answers."""

# -- options -----------------------------------------------------------------------------------------------------------


def test_help_names_every_option_of_the_chart(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the chart sets is an environment variable of an option."""
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
    assert (settings.looks_at_machines, settings.listen) == (False, "0.0.0.0:0")


@pytest.mark.parametrize("text", ["8080", "host:", ":1", "host:http", "host:99999", "host:\u00b2", "[::1:80"])
def test_an_address_that_is_none_is_refused(text: str) -> None:
    """With the option's name."""
    with pytest.raises(SettingsError, match="--listen"):
        address_of(text, "--listen")
    with pytest.raises(SettingsError, match="--labels"):
        pairs_of("novalue", "--labels")


@pytest.mark.verify
async def test_the_process_needs_no_name_of_its_user(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A pod's user is a number without an entry in passwd: nobody may ask what it is called, Kopf included."""

    def refuse() -> str:
        raise KeyError("getpwuid(): uid not found: 65532")

    monkeypatch.setattr(getpass, "getuser", refuse)
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(KUBECONFIG)
    operator = Operator(OperatorSettings(image="gantry:test", kubeconfig=str(kubeconfig)))
    resources = WatchedResources(LoopKeeper(context_of(FakeKubernetes()), ("a",)))

    operator.stop()
    async with asyncio.timeout(120):
        await operator.watch(resources)


# -- what the cluster knows --------------------------------------------------------------------------------------------


async def test_a_definition_that_comes_later_is_seen() -> None:
    """One that the API server does not serve yet is asked for again; where all are there, nobody asks anything."""
    api = FakeKubernetes()
    unknown = {CRON_JOBS, POD_MONITORS}
    api.refuse = lambda verb, place: Gone("list", "no such resource", 404) if place.kind in unknown else None
    known = KnownKinds(api, first_s=0.001, last_s=0.002)
    assert [await known.has(kind, ("a", "b")) for kind in (GROUPS, CRON_JOBS, POD_MONITORS)] == [True, False, False]
    asked = len(api.calls)

    waiting = asyncio.create_task(known.until_more())
    await asyncio.sleep(0.02)
    assert not waiting.done()
    unknown.remove(POD_MONITORS)
    async with asyncio.timeout(60):
        assert await waiting is POD_MONITORS
    assert {place.kind for _, place in api.calls[asked:]} == {POD_MONITORS}


@pytest.mark.verify
async def test_a_definition_that_came_with_the_operator_is_waited_for() -> None:
    """A moment, before anything is decided without it; one that is never served costs that moment."""
    api = FakeKubernetes()
    refusals = iter([True, True, False])
    api.refuse = lambda verb, place: Gone("list", "no such resource", 404) if next(refusals, True) else None
    known = KnownKinds(api)

    assert await known.has(CRON_JOBS, patience_s=5.0)
    assert not await known.has(CRON_JOBS, patience_s=0.5)


# -- the key -----------------------------------------------------------------------------------------------------------


async def test_the_key_is_made_once_by_whoever_comes_first() -> None:
    """Two at once, and everybody after them, have the same; it is long, and in no message."""
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


async def test_a_process_whose_groups_stand_still_is_not_live() -> None:
    """200 while nothing is wrong, 503 with the reason else; metrics beside it."""
    complaints = [""]
    metrics = Metrics()
    metrics.acted("Promote", is_done=True)
    async with probes(("127.0.0.1", 0), metrics, lambda: complaints[0]) as port, aiohttp.ClientSession() as session:
        async with session.get(f"http://127.0.0.1:{port}/livez") as answer:
            assert answer.status == 200
        complaints[0] = "a/b has not come round"
        async with session.get(f"http://127.0.0.1:{port}/livez") as answer:
            assert (answer.status, (await answer.json())["reason"]) == (503, "a/b has not come round")
        async with session.get(f"http://127.0.0.1:{port}/metrics") as answer:
            text = await answer.text()
    assert 'gantry_operator_actions_total{outcome="done",type="Promote"} 1.0' in text


@pytest.mark.parametrize("callback", ["connection_made", "data_received", "connection_lost"])
async def test_an_exception_in_a_probe_connection_closes_that_connection(
    callback: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line names the callback, the event loop sees nothing, and the next probe is answered."""
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


async def test_half_requests_do_not_take_the_operators_probes_away() -> None:
    """300 half requests of one address: each probe is answered, and the displaced ones are counted by reason."""
    metrics = Metrics()
    async with probes(("127.0.0.1", 0), metrics, lambda: "") as port:
        halves = []
        for _ in range(300):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET /livez HTTP/1.1\r\nHost: x\r\n")
            halves.append((reader, writer))
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await reader.read()).startswith(b"HTTP/1.1 200 "), "and the connection ends"
        halves.append((reader, writer))
        assert sum(one.at_eof() or one.exception() is not None for one, _ in halves) >= 300 - 32
        for _, writer in halves:
            writer.transport.abort()
        await asyncio.gather(*(writer.wait_closed() for _, writer in halves), return_exceptions=True)
    assert b'gantry_operator_http_closed_total{reason="address_limit"} 269.0' in metrics.text()


def test_a_line_is_one_fact_as_json() -> None:
    """With its keys, and an error as text."""
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
    )  # fmt: skip


def group_object(name: str, namespace: str = "shop") -> Object:
    head = {"name": name, "namespace": namespace}
    spec = {"shards": 1, "slaves": 1}
    return {"apiVersion": GROUPS.api_version, "kind": GROUPS.name, "metadata": head, "spec": spec}


async def test_every_group_has_a_task_of_its_own_and_one_that_is_gone_none() -> None:
    """Begun by a watch or by a list; ended with the group; a bad one does not touch the others."""
    api = FakeKubernetes()
    for name in ("a", "b"):
        api.put(group_object(name))
    bad = group_object("bad")
    bad["spec"] = {"shard": 1}
    api.put(bad)
    resources = WatchedResources(LoopKeeper(context_of(api)))
    async with HttpSidecars() as sidecars:
        object.__setattr__(resources.groups.context, "sidecars", sidecars)
        await resources.list_all()
        api.watchers.append(resources.take)
        resources.start_missing()
        await until(lambda: len(api.of_kind(STATEFUL_SETS)) == 6, "two groups have what they need")
        assert set(resources.groups.loops) == {("shop", "a"), ("shop", "b"), ("shop", "bad")}
        api.remove(next(place for place in api.objects if place.kind == GROUPS and place.name == "b"))
        await until(lambda: ("shop", "b") not in resources.groups.loops, "its task has ended")
        await resources.close()

    assert resources.groups.loops == {}
    assert "bad" not in {one["metadata"]["labels"]["gantry.dev/group"] for one in api.of_kind(STATEFUL_SETS)}


async def test_only_groups_of_the_listed_namespaces_are_looked_after() -> None:
    """Others are not touched, whatever is told of them."""
    resources = WatchedResources(LoopKeeper(context_of(FakeKubernetes()), ["ours"]))
    resources.take(None, group_object("a", "theirs") | {"metadata": {"name": "a", "namespace": "theirs", "uid": "1"}})

    assert resources.groups.loops == {}


async def test_a_group_that_does_not_come_round_is_named() -> None:
    """What the liveness probe says."""
    context = context_of(FakeKubernetes())
    resources = WatchedResources(LoopKeeper(context))
    resources.take(None, group_object("a") | {"metadata": {"name": "a", "namespace": "shop", "uid": "1"}})
    assert resources.stale(60) == ""
    assert isinstance(context.clock, ModelClock)
    context.clock.ms += 61_000

    assert "shop/a" in resources.stale(60)
    await resources.close()


def test_kopf_only_watches_and_so_adds_no_finalizer() -> None:
    """Event handlers of every kind, and nothing of the sort that needs a finalizer or keeps state on objects."""
    resources = WatchedResources(LoopKeeper(context_of(FakeKubernetes())))
    registry = registry_of(resources, lambda: kopf.ConnectionInfo(server="https://nowhere"))

    assert len(registry._watching.get_all_handlers()) == len(LISTED)
    assert registry._changing.get_all_handlers() == []
    assert registry._spawning.get_all_handlers() == []
    settings = settings_of()
    assert settings.peering.standalone and not settings.posting.enabled


# -- sidecars over HTTP ------------------------------------------------------------------------------------------------


@pytest.fixture
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[BrokerChild, SidecarChild]]:
    store = tmp_path_factory.mktemp("store")
    with broker_beside(store) as broker:
        broker.send(3)
        with sidecar_beside(store, *token_files(tmp_path_factory.mktemp("tokens"))) as sidecar:
            sidecar.wait_ready()
            yield broker, sidecar


def peer_of(sidecar: SidecarChild, token: str = TOKEN) -> Peer:
    host, _, port = sidecar.address.rpartition(":")
    return Peer(host, int(port), token)


async def test_a_real_sidecar_says_what_a_decision_needs_obeys_and_refuses(
    pair: tuple[BrokerChild, SidecarChild],
) -> None:
    """Its answer is a report, whole and of this moment; each order in its words.

    A promotion for a longer log is refused, and a wrong token denied.
    """
    broker, sidecar = pair
    peer = peer_of(sidecar)
    async with patient_sidecars() as sidecars:
        said = await sidecars.status(peer)
        report = report_of(said, asked_ms=1, answered_ms=2)
        assert (report.role, report.wrote) == ("MASTER", await asyncio.to_thread(lambda: broker.end))
        assert report.identity and report.is_whole is True and report.ha_address

        epoch, end = int(said["epoch"]), int(said["wrote"])
        await sidecars.order(peer, orders.Drain(timeout_ms=5_000))
        assert (await sidecars.status(peer))["is_draining"] is True
        await sidecars.order(peer, orders.Promote(epoch=epoch))
        longer = Expected(last_epoch=int(said["last_epoch"]), end=end + 1)
        with pytest.raises(SidecarRefused, match="named for a log"):
            await sidecars.order(peer, orders.Promote(epoch=epoch + 1000, electable=[2]), longer)
        await sidecars.order(peer, orders.AskPromise(epoch=epoch + 1000))
        await sidecars.order(peer, orders.Fence(epoch=epoch + 2000))
        with pytest.raises(SidecarRefused):
            await sidecars.order(peer, orders.Follow(epoch=epoch, master="127.0.0.1:1"))
        with pytest.raises(SidecarDenied):
            await sidecars.status(peer_of(sidecar, "x" * 40))
        after = await sidecars.status(peer)

    assert (after["role"], after["promised_epoch"]) == ("UNASSIGNED", epoch + 2000)


@asynccontextmanager
async def answering(handler: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> AsyncIterator[Peer]:
    """A sidecar that is none."""
    async with http_server(application(handler)) as port:
        yield Peer("127.0.0.1", port, TOKEN)


async def test_a_sidecar_that_hangs_lies_or_sends_us_away_is_silent() -> None:
    """Late, no JSON, too long, a redirection: no report, within the deadline, and the token goes to nobody else."""
    stolen: list[str] = []

    async def thief(request: web.Request) -> web.Response:
        stolen.append(request.headers.get("Authorization", ""))
        return web.json_response({})

    async with answering(thief) as away, HttpSidecars(look_timeout_s=0.3) as sidecars:
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
                with pytest.raises(SidecarSilent) as caught:
                    await sidecars.status(peer)
                assert TOKEN not in str(caught.value)
        with pytest.raises(SidecarSilent):
            await sidecars.status(peer)
    assert stolen == []
    assert TOKEN not in repr(peer)
