"""The Lease with a real broker, a real sidecar and an API server: without it this master acknowledges nothing."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
from admin_scene import BrokerChild, SidecarChild, broker_process, bundle_entries, sidecar_process, wait_for
from fake_api_server import NAME, TOKEN, FakeApiServer, api_server, record_with

from gantry_spec.lease_annotations import record_of
from gantry_status.order_client import order_once
from gantry_status.orders import HaStatus, Promote, StatusRequest
from gantry_testing.local import Dialogue

EPOCH = 3_000
DURATION_MS = 1_500
MARGIN_S = 180.0
"""The time that a busy machine gets. What must never happen is compared with the duration itself. The Lease may expire
between two checks on such a machine, so a send that must be acknowledged is tried again."""


def report_of(broker: BrokerChild) -> HaStatus:
    answer = order_once(str(broker.control_socket), StatusRequest())
    assert isinstance(answer, HaStatus), "expected a status"
    return answer


@contextmanager
def master_without_slaves(store: Path) -> Iterator[BrokerChild]:
    """The master of an asynchronous group whose only slave does not exist: only the Lease lets it acknowledge."""
    conf = {"brokerRole": "ASYNC_MASTER", "brokerId": "1", "slaveTimeout": "2000"}  # the wait of a send without an ack
    with broker_process(store, roleAtStart="UNASSIGNED", **conf) as broker:
        order_once(str(broker.control_socket), Promote(epoch=EPOCH, electable=[9], force=True))
        yield broker


def lease_options(server: FakeApiServer, folder: Path) -> list[str]:
    token = folder / "token"
    token.write_text(TOKEN)
    return ["--lease", NAME, "--lease-server", server.url, "--lease-token-file", str(token)]


def put_record(server: FakeApiServer, broker: BrokerChild) -> None:
    """The Lease names this broker."""
    report = report_of(broker)
    assert report.broker_id is not None
    server.put(record_with(EPOCH, report.broker_id, report.identity, duration_ms=DURATION_MS))


def code_of_send(broker: BrokerChild) -> int:
    """Send one message, and return the code of the reply."""

    async def send() -> int:
        dialogue = await Dialogue.open(broker.address)
        try:
            return (await dialogue.send(b"x")).code
        finally:
            await dialogue.close()

    return asyncio.run(send())


def may_acknowledge(broker: BrokerChild) -> bool:
    return report_of(broker).may_acknowledge


def reason_without_lease(sidecar: SidecarChild) -> object:
    """Return why the sidecar gives its broker no lease, as its status reports it."""
    return sidecar.get("/v1/status").json()["lease"]["reason"]


@pytest.mark.verify
def test_master_acknowledges_while_its_sidecar_renews_the_lease(tmp_path: Path) -> None:
    """Without a lease it acknowledges nothing; cut off from the API server it stops until reconnected."""
    with api_server() as server, master_without_slaves(tmp_path / "store") as broker:
        assert not may_acknowledge(broker)
        assert code_of_send(broker) != 0
        put_record(server, broker)
        with sidecar_process(tmp_path / "store", "--open-reads", *lease_options(server, tmp_path)) as sidecar:
            wait_for(lambda: code_of_send(broker) == 0, "the sidecar has renewed it")
            metrics = sidecar.get("/metrics").text
            assert 'gantry_lease_renewals_total{outcome="done"}' in metrics

            server.is_silent = True
            wait_for(lambda: not may_acknowledge(broker), "the Lease has expired", MARGIN_S)
            assert code_of_send(broker) != 0
            wait_for(lambda: "did not answer" in str(reason_without_lease(sidecar)), "the sidecar reports the reason")

            server.is_silent = False
            wait_for(lambda: code_of_send(broker) == 0, "it is renewed again, and sends are acknowledged")
            wait_for(lambda: reason_without_lease(sidecar) is None, "nothing is in the way")
            shown = [sidecar.get(path).text for path in ("/v1/status", "/metrics", "/v1/group")]
            assert TOKEN not in f"{shown} {sidecar.child.log} {bundle_of(sidecar)}"


def bundle_of(sidecar: SidecarChild) -> str:
    """Every text in the bundle."""
    entries = bundle_entries(sidecar.get("/v1/bundle").content)
    return "".join(entry.decode("utf-8", "replace") for entry in entries.values())


@pytest.mark.verify
def test_new_epoch_ends_the_old_masters_lease_within_its_duration(tmp_path: Path) -> None:
    """After a new epoch and a wait of the whole duration, the old master acknowledges nothing."""
    with api_server() as server, master_without_slaves(tmp_path / "store") as broker:
        put_record(server, broker)
        with sidecar_process(tmp_path / "store", *lease_options(server, tmp_path)) as sidecar:
            wait_for(lambda: may_acknowledge(broker), "the sidecar has renewed it")

            standing = record_of(server.annotations)
            assert standing is not None
            server.put(msgspec.structs.replace(standing, epoch=EPOCH + 1_000))
            time.sleep(DURATION_MS / 1000)

            assert not may_acknowledge(broker)
            wait_for(
                lambda: "has no master yet" in str(reason_without_lease(sidecar)), "the sidecar reports the reason"
            )
            after = record_of(server.annotations)
            assert after is not None and after.epoch == EPOCH + 1_000


@pytest.mark.verify
def test_lease_expires_without_a_sidecar_and_the_next_one_renews_it(tmp_path: Path) -> None:
    """After kill -9 of the sidecar nothing renews the lease of the running broker, until another sidecar starts."""
    with api_server() as server, master_without_slaves(tmp_path / "store") as broker:
        put_record(server, broker)
        options = lease_options(server, tmp_path)
        with sidecar_process(tmp_path / "store", *options) as sidecar:
            wait_for(lambda: may_acknowledge(broker), "the sidecar has renewed it")
            sidecar.child.send(signal.SIGKILL)
            sidecar.child.process.wait(60)
            wait_for(lambda: not may_acknowledge(broker), "it is not renewed", MARGIN_S)

        with sidecar_process(tmp_path / "store", *options):
            wait_for(lambda: code_of_send(broker) == 0, "another sidecar renews it")
