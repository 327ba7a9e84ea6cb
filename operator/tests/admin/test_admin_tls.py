"""TLS of the sidecar, with real processes: towards its broker, on both of its own ports, and towards its peers."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import httpx
import pytest
import trustme
from admin_scene import READ_TOKEN, TOKEN, SidecarChild, broker_process, sidecar_process, wait_for, write_token_files

from gantry_admin.broker_client import BrokerClient
from gantry_admin.link import BrokerLink
from gantry_admin.settings import BrokerPaths
from gantry_testing.certificates import Party, served_serial


def options(party: Party, *, is_mutual: bool = False) -> list[str]:
    """As a sidecar is given them."""
    found = ["--tls-cert", str(party.chain), "--tls-key", str(party.key)]
    return [*found, "--tls-client-ca", str(party.authority)] if is_mutual else found


def context(authority: trustme.CA, shown: Party | None = None) -> ssl.SSLContext:
    """A client that believes this authority, and shows its own certificate."""
    made = ssl.create_default_context(cadata=authority.cert_pem.bytes().decode())
    if shown is not None:
        made.load_cert_chain(shown.chain, shown.key)
    return made


def get(sidecar: SidecarChild, path: str, tls: ssl.SSLContext, token: str | None = None) -> httpx.Response:
    """One question on a connection of its own."""
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    return httpx.get(f"https://{sidecar.address}{path}", headers=headers, verify=tls, timeout=60)


def may_change(sidecar: SidecarChild, tls: ssl.SSLContext) -> bool:
    """Whether this client may order anything; one whose certificate is refused may not."""
    try:
        answer = httpx.post(f"https://{sidecar.address}/v1/role/flush", verify=tls, timeout=60)
    except (httpx.TransportError, OSError):
        return False
    return answer.status_code == 200


@pytest.mark.verify
@pytest.mark.parametrize("needs_client", [False, True], ids=["server", "both"])
def test_broker_that_requires_tls_is_asked_over_tls(tmp_path: Path, needs_client: bool) -> None:
    """Its tables come from the broker; without the options they come from disk, with the reason."""
    authority = trustme.CA()
    broker_party, own = Party(tmp_path / "broker", authority), Party(tmp_path / "own", authority)
    conf = {
        "tlsMode": "enforcing",
        "tlsServerCertPath": str(broker_party.chain),
        "tlsServerKeyPath": str(broker_party.key),
    }
    tls = ["--broker-tls-ca", str(own.authority)]
    if needs_client:
        conf |= {"tlsServerNeedClientAuth": "true", "tlsServerTrustCertPath": str(broker_party.authority)}
        tls += ["--broker-tls-cert", str(own.chain), "--broker-tls-key", str(own.key)]
    store = tmp_path / "store"
    with broker_process(store, **conf), sidecar_process(store, *tls) as sidecar, sidecar_process(store) as plain:
        wait_for(lambda: topics_source(sidecar) == "broker", "the broker itself answers")
        sidecar.wait_ready()
        wait_for(lambda: plain.get("/readyz").status_code == 200, "the other one knows who it is")
        wait_for(
            lambda: str(plain.get("/v1/topics").json().get("reason")).startswith("the broker has not answered"),
            "without TLS the broker does not answer",
        )
        assert topics_source(plain) != "broker"


def topics_source(sidecar: SidecarChild) -> object:
    """Return where the sidecar got its list of topics from: the broker or the disk."""
    return sidecar.get("/v1/topics").json().get("source")


@pytest.mark.verify
def test_broker_certificate_of_another_name_or_authority_is_refused(tmp_path: Path) -> None:
    """By default another name is refused; if names are not compared, the authority is still verified."""
    good, other = trustme.CA(), trustme.CA()
    party, own = Party(tmp_path / "broker", good, "broker.example"), Party(tmp_path / "own", good, trusts=other)
    named = Party(tmp_path / "named", good)
    conf = {"tlsMode": "enforcing", "tlsServerCertPath": str(party.chain), "tlsServerKeyPath": str(party.key)}
    store = tmp_path / "store"
    loose = ["--broker-tls-verify", "authority"]
    with (
        broker_process(store, **conf),
        sidecar_process(store, "--broker-tls-ca", str(named.authority), *loose) as right,
        sidecar_process(store, "--broker-tls-ca", str(named.authority)) as strict,
        sidecar_process(store, "--broker-tls-ca", str(own.authority), *loose) as wrong,
    ):
        wait_for(lambda: topics_source(right) == "broker", "the authority is the right one")
        for one in (strict, wrong):
            one.wait_ready()
            wait_for(lambda one=one: "certificate" in str(one.get("/v1/topics").json().get("reason")), "it is refused")  # type: ignore[misc]
            assert topics_source(one) != "broker"


@pytest.mark.verify
def test_certificate_and_client_authority_are_replaced_without_a_restart(tmp_path: Path) -> None:
    """New connections to both ports get the new one; clients of the old authority may change nothing any more."""
    first, second = trustme.CA(), trustme.CA()
    own, old_admin = Party(tmp_path / "own", first), Party(tmp_path / "old", first, "admin")
    new_admin = Party(tmp_path / "new", second, "admin")
    with broker_process(tmp_path / "store"), sidecar_process(
        tmp_path / "store", *options(own, is_mutual=True)
    ) as sidecar:  # fmt: skip
        wait_for(lambda: get(sidecar, "/readyz", context(first)).status_code == 200, "it is ready")
        assert may_change(sidecar, context(first, old_admin))
        assert not may_change(sidecar, context(first, new_admin))
        serials = [serial_at(sidecar, at_log_port=at_log_port, authority=first) for at_log_port in (False, True)]

        own.replace(first)
        own.trust(second)
        wait_for(lambda: may_change(sidecar, context(first, new_admin)), "the new authority counts")

        assert not may_change(sidecar, context(first, old_admin))
        assert get(sidecar, "/readyz", context(first)).status_code == 200, "probes need no certificate"
        now = [serial_at(sidecar, at_log_port=at_log_port, authority=first) for at_log_port in (False, True)]
        assert now[0] == now[1] != serials[0] == serials[1]
        assert may_read(sidecar, context(first, new_admin)) and not may_read(sidecar, context(first, old_admin))


def serial_at(sidecar: SidecarChild, *, at_log_port: bool, authority: trustme.CA) -> str:
    port = int((sidecar.log_address if at_log_port else sidecar.address).rpartition(":")[2])
    return asyncio.run(served_serial(port, context(authority)))


def may_read(sidecar: SidecarChild, tls: ssl.SSLContext) -> bool:
    """At the port of the ranges; the log is empty, so there is nothing there yet."""
    try:
        url = f"https://{sidecar.log_address}/v1/log/bytes"
        return httpx.get(url, headers={"Range": "bytes=0-9"}, verify=tls, timeout=60).status_code in (206, 416)
    except (httpx.TransportError, OSError):
        return False


@pytest.mark.verify
def test_mismatched_key_keeps_the_previous_certificate(tmp_path: Path) -> None:
    """A key that does not match is logged, and connections still work."""
    authority = trustme.CA()
    own, other = Party(tmp_path / "own", authority), Party(tmp_path / "other", authority)
    with sidecar_process(tmp_path / "store", *write_token_files(tmp_path / "tokens"), *options(own)) as sidecar:
        own.key.write_bytes(other.key.read_bytes())
        wait_for(lambda: "certificate not replaced" in sidecar.child.log, "it is complained about")

        assert get(sidecar, "/v1/status", context(authority), TOKEN).status_code == 200


@pytest.mark.verify
def test_unusable_certificate_stops_the_start(tmp_path: Path) -> None:
    """One line that names the option."""
    authority = trustme.CA()
    own, other = Party(tmp_path / "own", authority), Party(tmp_path / "other", authority)
    own.key.write_bytes(other.key.read_bytes())

    with pytest.raises(AssertionError, match=r"gantry sidecar: .*--tls-cert=.*key does not belong to the certificate"):
        SidecarChild(tmp_path, *options(own))


@pytest.mark.verify
def test_peers_are_asked_with_the_current_token_and_authority(tmp_path: Path) -> None:
    """A peer whose certificate and tokens are replaced is reachable again without any restart."""
    first, second = trustme.CA(), trustme.CA()
    own = Party(tmp_path / "own", first)
    tokens, shown = write_token_files(tmp_path / "tokens"), tmp_path / "shown"
    shown.write_text(f"peer:{READ_TOKEN}\n")
    with sidecar_process(tmp_path / "a", *tokens, *options(own)) as peer:
        url = f"https://{peer.address}"
        about = ["--peer", url, "--peer-ca", str(own.authority), "--peer-token-file", str(shown)]
        with sidecar_process(tmp_path / "b", *about) as sidecar:
            wait_for(lambda: fault_of_member(sidecar, url) is None, "the peer answers")
            own.replace(second)
            (tmp_path / "tokens/read-tokens").write_text("peer:another-token-0123456789\n")
            wait_for(lambda: "certificate" in str(fault_of_member(sidecar, url)), "its new certificate is not believed")
            own.trust(second)
            wait_for(lambda: "401" in str(fault_of_member(sidecar, url)), "the token is not known")
            shown.write_text("peer:another-token-0123456789\n")
            wait_for(lambda: fault_of_member(sidecar, url) is None, "the peer answers again")


def fault_of_member(sidecar: SidecarChild, url: str) -> object:
    """Return why the sidecar does not reach a member, by its URL."""
    return next(one["fault"] for one in sidecar.get("/v1/group").json()["members"] if one["url"] == url)


async def test_new_account_is_used_from_the_next_request_on(tmp_path: Path) -> None:
    """While the file is unchanged there is one client; then a new one."""
    path = tmp_path / "account.yml"
    path.write_text("accessKey: sidecar\nsecretKey: first-secret-0123\n")
    paths = BrokerPaths(page=path, control=path, store=tmp_path, credentials=path, address="127.0.0.1:1")
    client = BrokerClient(paths, BrokerLink(str(path)))
    try:
        first, _ = await client.connect()
        assert (await client.connect())[0] is first
        path.write_text("accessKey: sidecar\nsecretKey: second-secret-0123\n")

        assert (await client.connect())[0] is not first
        assert "secret" not in repr(client)
    finally:
        await client.close()
