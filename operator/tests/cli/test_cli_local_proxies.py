"""The gRPC proxies of a local group: as many as `spec.proxy` has, with its settings, also after a changed manifest."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path

import pytest
from local_group_kit import FREE_PORTS, Group, group_of

from gantry_cli.local.access import Access
from gantry_cli.local.member import MemberSettings
from gantry_cli.local.proxy import settings_text
from gantry_cli.local.records import ProxyRecord
from gantry_cli.local.state import GroupState
from gantry_proxy.settings import ProxySettings, parse_settings

RECORD = ProxyRecord(
    name="proxy-0", address="127.0.0.1:8081", port=8081, http_address="127.0.0.1:9081", log="proxy-0.log"
)


def parsed(spec: str, state: Path) -> ProxySettings:
    """Return the settings of a proxy of this spec, as the proxy reads them."""
    settings = MemberSettings(
        group="crew", spec=group_of(spec).spec, host="127.0.0.1", name_servers=("127.0.0.1:9876",), buffers_root=None,
        access=Access(), sidecars=(), proxies=(), is_single=False,
    )  # fmt: skip
    return parse_settings(json.loads(settings_text(RECORD, settings, GroupState(state))))


def test_proxy_has_the_settings_of_the_spec(tmp_path: Path) -> None:
    """Limits, certificates and accounts are those of the manifest; Secrets are folders of the group's directory."""
    secrets = tmp_path / "secrets"

    plain = parsed("{proxy: {replicas: 1, limits: {clients: 7, longPoll: 10s}}}", tmp_path)
    secure = parsed(
        "{access: {aclSecret: keys, tlsSecret: certificates},"
        " proxy: {replicas: 1, credentialsSecret: own, tls: {secret: grpc, requiresClientCertificate: true}}}",
        tmp_path,
    )

    assert (plain.listen.address, plain.listen.http_address) == ("127.0.0.1:8081", "127.0.0.1:9081")
    assert (plain.limits.clients_max, plain.limits.poll_ms_max) == (7, 10_000)
    assert (plain.tls.certificate, plain.access.accounts_file) == ("", "")
    assert secure.tls.certificate == f"{secrets}/grpc/tls.crt"
    assert secure.tls.client_authority == f"{secrets}/grpc/ca.crt"
    assert secure.tls.broker_authority == f"{secrets}/certificates/ca.crt"
    assert secure.access.accounts_file == f"{secrets}/keys/plain_acl.yml"
    assert secure.access.credentials_file == f"{secrets}/own/credentials"


def test_proxy_without_certificates_has_no_folder_of_them(tmp_path: Path) -> None:
    """The twin: without Secrets in the spec no setting names a file."""
    settings = parsed("{proxy: {replicas: 1}}", tmp_path)

    assert settings.tls == ProxySettings().tls and settings.access == ProxySettings().access


@pytest.mark.verify
def test_proxies_follow_the_manifest(tmp_path: Path) -> None:
    """Two run at first; an edit stops one and restarts the other with its limit; a later one starts it again on its
    port. The console's sidecar shows each of them, and a killed one is restarted."""
    few = {"slaves": "0", "replication": "{mode: Async}"}
    group = Group(tmp_path / "state", **few, proxy="{replicas: 2}")
    output = group.up(*FREE_PORTS)
    try:
        first, second = group.record.proxies
        assert f"{first.address};{second.address}" in output
        for proxy in (first, second):
            with urllib.request.urlopen(f"http://{proxy.http_address}/readyz", timeout=60) as answer:
                assert answer.status == 200
        group.wait_until(lambda: ready_proxies(group) == {first.http_address, second.http_address})

        group.run_command("kill", "proxy-1")
        group.wait_until(lambda: starts(group) == {"proxy-0": 1, "proxy-1": 2})

        group.apply(**few, proxy="{replicas: 1, limits: {clients: 7}}")
        group.wait_until(lambda: starts(group) == {"proxy-0": 2})
        conf = json.loads(group.state.conf("proxy-0").read_text())
        group.wait_until(lambda: ready_proxies(group) == {first.http_address})

        group.apply(**few, proxy="{replicas: 2, limits: {clients: 7}}")
        group.wait_until(lambda: starts(group) == {"proxy-0": 2, "proxy-1": 1})
        group.wait_until(lambda: ready_proxies(group) == {first.http_address, second.http_address})
    finally:
        group.down()

    assert conf["limits"]["clientsMax"] == 7


def ready_proxies(group: Group) -> set[str]:
    """Return the proxies that the first sidecar shows as ready; none while the sidecar restarts."""
    try:
        with urllib.request.urlopen(f"{group.record.members[0].sidecar_url}/v1/group", timeout=60) as answer:
            view = json.load(answer)
    except OSError:
        return set()
    return {one["address"] for one in view["proxies"] if one["is_reachable"] and one["is_ready"]}


def starts(group: Group) -> dict[str, int]:
    """Return how often each proxy was started."""
    return {one.name: one.starts for one in group.status().proxies}
