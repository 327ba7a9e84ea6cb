"""Renewing the Lease at an API server over real HTTP: which master gets a lease, and what happens without an answer.

A twin repeats a test without the rule that it checks, and finds the fault: so the test can fail.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
import trustme
from fake_api_server import NAME, TOKEN, FakeApiServer, api_server, record_with

from gantry_admin.errors import Problem, SettingsError
from gantry_admin.kubernetes_lease import KubernetesLeaseClient
from gantry_admin.lease_client import LeaseConflict, LeaseSnapshot, LeaseUnavailable
from gantry_admin.lease_renewal import READABLE_S_MIN, LeaseRenewal, has_lost_lease
from gantry_admin.settings import LeaseSettings
from gantry_spec.lease import LeaseRecord
from gantry_spec.lease_annotations import RECORD, VERSION, record_of
from gantry_status.clocks import Moment, now
from gantry_status.orders import HaRole, HaStatus, Lease
from gantry_testing.certificates import Party
from gantry_testing.local import wait_until

STATE = HaStatus(role=HaRole.MASTER, epoch=3_000, broker_id=1, identity="store-1", broker_name="orders-0")
NAMED = record_with(3_000, 1, "store-1")


def lease_client_of(server: FakeApiServer, folder: Path, *, ca: Path | None = None) -> KubernetesLeaseClient:
    """Return a real client of this server."""
    path = folder / "token"
    path.write_text(TOKEN + "\n")
    return KubernetesLeaseClient(LeaseSettings(name=NAME, server=server.url, token_file=path, ca=ca or folder / "none"))


class Scene:
    """A renewal for a broker with a scripted report."""

    def __init__(self, server: FakeApiServer, folder: Path, state: HaStatus | None = STATE) -> None:
        self.state = state
        self.given: list[Lease] = []
        """The leases that were given to the broker."""

        self.refusal: Problem | None = None
        """The error with which the broker refuses leases; None if it accepts them."""

        self.later_s = 0.0
        """How far the clock is advanced."""

        self.process = 1
        self.renewal = LeaseRenewal(
            lease_client_of(server, folder), lambda: self.state, lambda: self.process, self.give, clock=self.clock
        )

    def clock(self) -> Moment:
        """Return the present moment, advanced by ``later_s``."""
        real = now()
        return real._replace(boottime_ns=real.boottime_ns + int(self.later_s * 1e9))

    async def read_for(self, seconds: float) -> None:
        """Step again and again for this time."""
        while seconds > 0:
            self.later_s += min(seconds, 5.0)
            seconds -= 5.0
            await self.renewal.step()

    async def give(self, order: Lease) -> None:
        """Record a lease that is given to the broker, or refuse it."""
        if self.refusal is not None:
            raise self.refusal
        self.given.append(order)


def boottime_ms() -> int:
    return now().boottime_ns // 1_000_000


async def test_renewal_changes_only_the_time(tmp_path: Path) -> None:
    """The record keeps its version; the broker gets the time at which the request was sent."""
    with api_server() as server:
        server.put(NAMED)
        annotations, came = dict(server.annotations), []
        server.on_put.append(lambda: came.append(boottime_ms()))
        scene, before_ms = Scene(server, tmp_path), boottime_ms()

        wait_s = await scene.renewal.step()
        await scene.renewal.step()

    [first, second] = scene.given
    assert before_ms <= first.renewed_ms <= came[0]
    assert first.duration_ms == 15_000 and wait_s == 5.0
    assert second.renewed_ms >= first.renewed_ms
    assert [write["metadata"]["annotations"] for write in server.writes] == [annotations, annotations]
    assert server.writes[0]["metadata"]["labels"] == {"of": "another-tool"}
    assert server.spec["holderIdentity"] == "orders-0/1/store-1"
    assert (server.spec["leaseDurationSeconds"], server.spec["leaseTransitions"]) == (15, 1)
    assert server.requests == ["GET", "PUT", "PUT"], "the answer is used without another read"
    assert scene.renewal.status.reason == ""


@pytest.mark.parametrize(
    ("record", "state"),
    [
        (None, {}),
        (record_with(3_000, 2, "store-2"), {}),
        (record_with(3_000, 1, "a-replaced-disk"), {}),
        (record_with(2_000, 1, "store-1"), {}),
        (record_with(4_000, 1, "store-1"), {}),
        (msgspec.structs.replace(NAMED, epoch=4_000), {}),
        (NAMED, {"role": HaRole.SLAVE}),
        (NAMED, {"role": HaRole.COMPARING}),
        (NAMED, None),
    ],
    ids=["empty", "another", "another disk", "older", "younger", "taken", "slave", "comparing", "silent"],
)
async def test_only_the_named_master_gets_a_lease(
    tmp_path: Path, record: LeaseRecord | None, state: dict[str, HaRole] | None
) -> None:
    """The newest term must name the master, with its epoch and its store; else nothing is written or ordered."""
    with api_server() as server:
        if record is not None:
            server.put(record)
        scene = Scene(server, tmp_path, None if state is None else msgspec.structs.replace(STATE, **state))

        await scene.renewal.step()

    assert (server.writes, scene.given) == ([], [])
    assert scene.renewal.status.reason
    if state != {}:
        assert server.requests == [], "no request is sent for a broker that is not a master"


async def fail(scene: Scene, server: FakeApiServer) -> None:
    """Step once while the API server answers nothing but errors."""
    server.status_of_all = 503
    await scene.renewal.step()
    server.status_of_all = None


@pytest.mark.parametrize("is_regained", [True, False], ids=["regained", "elected"])
async def test_regained_role_waits_for_its_lease(tmp_path: Path, is_regained: bool) -> None:
    """An election may rest on an old report that the process ended: first the Lease must be readable for a while.

    A failed request during that time begins it anew. One after it takes nothing back: the report has been replaced.
    """
    with api_server() as server:
        server.put(NAMED)
        scene = Scene(server, tmp_path, msgspec.structs.replace(STATE, is_regained=is_regained))
        await scene.renewal.step()
        given, reason = len(scene.given), scene.renewal.status.reason
        await scene.read_for(READABLE_S_MIN - 5)
        await fail(scene, server)
        await scene.read_for(5)
        given_early = len(scene.given)

        scene.given.clear()
        await scene.read_for(READABLE_S_MIN)
        after = len(scene.given)
        await fail(scene, server)
        await scene.renewal.step()

    if is_regained:
        assert (given, given_early, after, len(scene.given)) == (0, 0, 1, 2)
        assert "by itself" in reason
    else:
        assert (given, given_early, after, len(scene.given)) == (1, 7, 6, 7)


REGAINED = msgspec.structs.replace(STATE, is_regained=True)
UNASSIGNED = msgspec.structs.replace(STATE, role=HaRole.UNASSIGNED, may_regain=True)


@pytest.mark.parametrize("between", [None, UNASSIGNED, "unseen"], ids=["silent", "roleless", "unseen"])
@pytest.mark.parametrize("before", [STATE, REGAINED], ids=["elected", "regained"])
async def test_time_before_the_role_was_regained_is_no_wait(
    tmp_path: Path, before: HaStatus, between: HaStatus | str | None
) -> None:
    """A sidecar that has renewed the Lease for long waits, too, when the next process of its broker regains the role.

    That holds also if no step has observed the broker without a role.
    """
    with api_server() as server:
        server.put(NAMED)
        scene = Scene(server, tmp_path, before)
        await scene.renewal.step()
        scene.later_s += 1_000 * READABLE_S_MIN
        await scene.renewal.step()
        scene.given.clear()

        if not isinstance(between, str):
            scene.state = between
            await scene.renewal.step()
            scene.later_s += 1_000 * READABLE_S_MIN
        scene.state, scene.process = REGAINED, 2
        await scene.renewal.step()
        await scene.read_for(READABLE_S_MIN - 1)
        assert scene.given == []
        assert "without interruption for 30 s since then" in scene.renewal.status.reason

        scene.later_s += 2
        await scene.renewal.step()
        assert len(scene.given) == 1


async def test_wait_of_a_regained_role_counts_only_while_the_lease_is_read(tmp_path: Path) -> None:
    """Without requests during the wait, it begins anew. After the wait, a pause of the same process causes no other."""
    with api_server() as server:
        server.put(NAMED)
        scene = Scene(server, tmp_path)
        for state, seconds, given in (
            (REGAINED, 29, 0), (None, 1, 0), (REGAINED, 31, 0), (REGAINED, 4, 1), (None, 60, 1), (REGAINED, 1, 2),
        ):  # fmt: skip
            scene.state = state
            await scene.read_for(seconds)
            assert len(scene.given) == given


async def test_wait_of_a_regained_role_begins_anew_after_a_pause(tmp_path: Path) -> None:
    """A machine that was suspended read nothing meanwhile, and its kubelet reported nothing."""
    with api_server() as server:
        server.put(NAMED)
        scene = Scene(server, tmp_path, REGAINED)
        await scene.read_for(20)
        scene.later_s += READABLE_S_MIN
        await scene.read_for(READABLE_S_MIN)
        assert scene.given == []

        await scene.read_for(5)
        assert len(scene.given) == 1
        scene.later_s += READABLE_S_MIN
        await scene.renewal.step()
        assert len(scene.given) == 2, "the pause was after the wait"


async def test_renewal_from_before_the_role_was_regained_gives_no_lease(tmp_path: Path) -> None:
    """The process ends while the API server executes the renewal, and the next one has the role when it is answered."""
    with api_server() as server:
        server.put(NAMED)
        scene = Scene(server, tmp_path)

        def regain() -> None:
            scene.state, scene.process = REGAINED, 2

        server.on_put.append(regain)
        await scene.renewal.step()

        assert (len(server.writes), scene.given) == (1, [])
        assert "by itself" in scene.renewal.status.reason


async def take_epoch_while_renewing(server: FakeApiServer, folder: Path) -> Scene:
    """A new epoch is written after the renewal was sent, and before it is executed."""
    server.put(NAMED)
    scene = Scene(server, folder)
    standing = record_of(server.annotations)
    assert standing is not None
    server.on_put.append(lambda: server.put(msgspec.structs.replace(standing, epoch=4_000)))
    await scene.renewal.step()
    return scene


async def test_renewal_concurrent_with_a_new_epoch_gives_no_lease(tmp_path: Path) -> None:
    """The compare-and-swap fails, the record is read again, and it does not name this broker any more."""
    with api_server() as server:
        scene = await take_epoch_while_renewing(server, tmp_path)
        moved, requests = scene.renewal.conflicts, list(server.requests)
        await scene.renewal.step()

    assert (moved, requests, scene.given, server.writes) == (1, ["GET", "PUT"], [], [])
    assert "4000 has no master yet" in scene.renewal.status.reason
    standing = record_of(server.annotations)
    assert standing is not None and (standing.epoch, standing.version) == (4_000, "2")


async def test_without_compare_and_swap_the_old_master_gets_a_lease(tmp_path: Path) -> None:
    """The twin: a client that does not compare restores the old record, and the old master gets its lease."""
    with api_server() as server:
        server.is_revision_checked = False
        scene = await take_epoch_while_renewing(server, tmp_path)

    standing = record_of(server.annotations)
    assert standing is not None and standing.epoch == 3_000
    assert len(scene.given) == 1


async def test_unrelated_change_of_the_lease_is_retried(tmp_path: Path) -> None:
    """A label set by someone else causes one conflict, then the Lease is renewed."""
    with api_server() as server:
        server.put(NAMED)
        server.on_put.append(lambda: setattr(server, "revision", server.revision + 1))
        scene = Scene(server, tmp_path)

        waits = [await scene.renewal.step(), await scene.renewal.step()]

    assert waits[0] == 0.0
    assert (scene.renewal.conflicts, scene.renewal.renewed, len(scene.given)) == (1, 1, 1)


@pytest.mark.parametrize(
    ("status", "body", "text"),
    [
        (401, b"{}", "does not accept the sidecar's token"),
        (403, b"{}", "needs get and update"),
        (404, b"{}", f"Lease {NAME} not found"),
        (302, b"{}", "refused the request (302)"),
        (429, b"{}", "(429)"),
        (500, b"oh no", "(500)"),
        (200, b"[]", "not a Lease"),
        (200, b"{" * 5_000, "not a Lease"),
        (200, b'{"kind":"Secret","metadata":{"resourceVersion":"1"}}', "not a Lease"),
        (200, b"x" * (2 << 20), "longer than"),
        (
            200,
            b'{"kind":"Lease","metadata":{"resourceVersion":"1","annotations":{"gantry.dev/record":"{}"}}}',
            "no valid record",
        ),
    ],
)
async def test_failing_api_server_is_reported_and_retried(tmp_path: Path, status: int, body: bytes, text: str) -> None:
    """The reason is shown, without the token; nothing is ordered; after recovery the Lease is renewed."""
    with api_server() as server:
        server.put(NAMED)
        scene = Scene(server, tmp_path)
        server.status_of_all, server.body_of_all = status, body

        wait_s = await scene.renewal.step()
        reason, given = scene.renewal.status.reason, list(scene.given)
        server.status_of_all = None
        await scene.renewal.step()

    assert text in reason and TOKEN not in reason
    assert (given, scene.renewal.failed) == ([], 1)
    assert 0 < wait_s <= 1.0
    assert len(scene.given) == 1 and scene.renewal.status.reason == ""


@pytest.mark.parametrize("silence", ["is_silent", "applies_and_is_silent"])
async def test_unanswered_renewal_is_not_passed_to_the_broker(tmp_path: Path, silence: str) -> None:
    """Not even if it succeeded; and the event loop keeps running meanwhile."""
    with api_server() as server:
        server.put(record_with(3_000, 1, "store-1", duration_ms=1_500))
        scene = Scene(server, tmp_path)
        while not scene.given:  # a machine that pauses for half a second has renewed nothing
            await scene.renewal.step()
        writes = len(server.writes)
        setattr(server, silence, True)
        longest = 0.0

        async def tick() -> None:
            nonlocal longest
            while True:
                began = time.monotonic()
                await asyncio.sleep(0.01)
                longest = max(longest, time.monotonic() - began)

        ticking = asyncio.create_task(tick())
        began = time.monotonic()
        wait_s = await scene.renewal.step()
        took = time.monotonic() - began
        ticking.cancel()

    assert len(scene.given) == 1
    assert "did not answer within 0.5 s" in scene.renewal.status.reason
    assert took >= 0.5 and longest < took, "the event loop ran other tasks in between"
    assert wait_s <= 0.2, "it is tried again while there is time"
    assert (len(server.writes) == writes + 1) == (silence == "applies_and_is_silent")


@pytest.mark.verify
async def test_new_term_of_the_same_master_is_renewed_at_once(tmp_path: Path) -> None:
    """A lease belongs to one term: the renewal does not wait for its interval, which would be minutes."""
    with api_server() as server:
        server.put(record_with(3_000, 1, "store-1", duration_ms=900_000))
        scene = Scene(server, tmp_path, msgspec.structs.replace(STATE, may_acknowledge=True))
        running = asyncio.create_task(scene.renewal.run())
        try:
            await wait_until(lambda: len(scene.given) == 1)
            server.put(record_with(4_000, 1, "store-1", duration_ms=900_000, version="1"))
            scene.state = msgspec.structs.replace(STATE, epoch=4_000)
            await wait_until(lambda: len(scene.given) == 2)
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    assert server.writes[-1]["metadata"]["annotations"][VERSION] == "2"


@pytest.mark.parametrize(
    ("before", "state", "is_lost"),
    [
        ({}, {}, False),
        ({}, {"epoch": 4_000}, True),
        ({}, {"may_acknowledge": False}, True),
        ({"role": HaRole.SLAVE}, {}, True),
        ({}, {"role": HaRole.SLAVE, "may_acknowledge": False}, False),
        (None, {}, False),
        ({}, None, False),
    ],
)
def test_lease_is_lost_with_its_term(
    before: dict[str, object] | None, state: dict[str, object] | None, is_lost: bool
) -> None:
    """By another epoch, another role before, or a master that reports to have none; a slave has none to lose."""
    base = msgspec.structs.replace(STATE, may_acknowledge=True)
    values = [None if one is None else msgspec.structs.replace(base, **one) for one in (before, state)]

    assert has_lost_lease(*values) is is_lost


async def test_refusal_of_the_broker_is_reported(tmp_path: Path) -> None:
    """The reason is shown, and the renewal is not counted."""
    with api_server() as server:
        server.put(NAMED)
        scene = Scene(server, tmp_path)
        scene.refusal = Problem(503, "connection refused")
        await scene.renewal.step()

    assert "connection refused" in scene.renewal.status.reason
    assert scene.renewal.status.renewed_ms is None


async def test_api_server_certificate_is_verified(tmp_path: Path) -> None:
    """HTTPS with its authority works; a server with another certificate never gets the token."""
    good, other = trustme.CA(), trustme.CA()
    party, stranger = Party(tmp_path / "api", good), Party(tmp_path / "stranger", other)

    def tls(of: Party) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(of.chain, of.key)
        return context

    with api_server(tls(party)) as server:
        server.put(NAMED)
        snapshot = await lease_client_of(server, tmp_path, ca=party.authority).read(timeout_s=10)
    with api_server(tls(stranger)) as server:
        with pytest.raises(LeaseUnavailable, match="certificate"):
            await lease_client_of(server, tmp_path, ca=party.authority).read(timeout_s=10)

        assert server.requests == []
    assert snapshot.record == msgspec.structs.replace(NAMED, version="1")


async def test_token_replaced_by_kubelet_is_used(tmp_path: Path) -> None:
    """It is read for each request; it is in no repr and in no error."""
    with api_server() as server:
        server.put(NAMED)
        lease_client = lease_client_of(server, tmp_path)
        (tmp_path / "token").write_text("an-older-token")
        with pytest.raises(LeaseUnavailable, match="401") as raised:
            await lease_client.read(timeout_s=10)
        (tmp_path / "token").write_bytes(b"\xff\xfe")
        with pytest.raises(LeaseUnavailable, match="no token"):
            await lease_client.read(timeout_s=10)
        (tmp_path / "token").write_text(TOKEN)

        assert (await lease_client.read(timeout_s=10)).revision == "101"
    assert "an-older-token" not in f"{raised.value}{raised.value.__cause__!r}" and TOKEN not in repr(lease_client)


async def test_answer_with_another_record_renews_nothing(tmp_path: Path) -> None:
    """If a proxy rewrites requests, the record in the answer counts, not the one that was sent."""
    with api_server() as server:
        server.put(NAMED)
        lease_client = lease_client_of(server, tmp_path)
        snapshot = await lease_client.read(timeout_s=10)
        document = snapshot.document | {
            "metadata": snapshot.document["metadata"] | {"annotations": {RECORD: "{}", VERSION: "1"}}
        }
        with pytest.raises(LeaseUnavailable):
            await lease_client.renew(
                LeaseSnapshot(record=snapshot.record, revision="1", document=document), "x", timeout_s=10
            )
        document = server.document()
        document["metadata"]["annotations"] = {}
        with pytest.raises(LeaseConflict):
            await lease_client.renew(LeaseSnapshot(record=NAMED, revision="1", document=document), "x", timeout_s=10)


def settings_error(make: Callable[[], object]) -> str:
    """Return the message of the settings error that the call raises."""
    with pytest.raises(SettingsError) as raised:
        make()
    return str(raised.value)


def test_missing_token_or_authority_stops_the_start(tmp_path: Path) -> None:
    """The error names the option."""
    missing = LeaseSettings(name=NAME, server="http://127.0.0.1:1", token_file=tmp_path / "none", ca=tmp_path / "none")
    (tmp_path / "token").write_text(TOKEN)
    no_authority = LeaseSettings(
        name=NAME, server="https://127.0.0.1:1", token_file=tmp_path / "token", ca=tmp_path / "none"
    )

    assert "--lease-token-file" in settings_error(lambda: KubernetesLeaseClient(missing))
    assert "--lease-ca" in settings_error(lambda: KubernetesLeaseClient(no_authority))
