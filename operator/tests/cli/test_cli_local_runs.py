"""`gantry up -f` with real processes, a group for each test: loss bounds, a clean stop, accounts, certificates."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import tarfile
import urllib.error
import urllib.request
from pathlib import Path

import pytest
import trustme
from local_group_kit import FREE_PORTS, TIMEOUT_S, Group, Load, gantry

from gantry_testing.accounts import ACCOUNTS
from gantry_testing.certificates import Party


@pytest.mark.verify
def test_asynchronous_group_fails_over_only_within_its_loss_bound(tmp_path: Path) -> None:
    """The last second's messages may be lost, so no slave takes over until a person accepts that loss."""
    group = Group(tmp_path / "state", replication="{mode: Async}", failover="{after: 3s, maxDataLossBytes: 0}")
    group.up(*FREE_PORTS)
    try:
        with Load(group, "bounds") as load:
            group.wait_until(load.has_more(100))
            group.wait_until(lambda: group.is_healthy() and group.explain()[0]["winner"] == 2)
            [outlook] = group.explain()
            group.run_command("kill", "master-0", "--down", "240s")
        group.wait_until(lambda: any("maxDataLossBytes allows 0 B" in line for line in group.status().decision))
        still = group.masters()
        output = group.run_command("promote", "0", "--accept-loss", "64Mi")
        group.wait_until(lambda: group.masters().get(0, ("", 0))[0] == "slave-0-1")
        lease = json.loads((group.folder / "lease-0.json").read_text())
        kept = set(group.read("bounds"))
    finally:
        group.down()

    assert still == {}
    assert outlook["winner"] == 2
    assert "slave-0-1 is the master in epoch" in output
    announced = lease["terms"][-1]["loss"]
    gone = [body for body in load.acknowledged if body not in kept]
    assert 0 <= announced <= 64 << 20
    assert len(gone) * 200 <= announced, "more messages were lost than the Lease reports"


@pytest.mark.verify
def test_ctrl_c_is_clean_and_next_run_keeps_data_and_ports(tmp_path: Path) -> None:
    """After SIGINT the command exits with code 0, and no store has the mark of an unclean stop.

    The next run keeps the ports, and names a busy one before anything starts.
    """
    group = Group(tmp_path / "state")
    words = [sys.executable, "-m", "gantry_cli", "up", "--data", str(group.folder), "-f", str(group.manifest)]
    process = subprocess.Popen([*words, *FREE_PORTS], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout is not None
    head = ""
    while not head.endswith("watch a slave take over\n"):
        line = process.stdout.readline()
        assert line, head
        head += line
    group.send("runs", "first")

    process.send_signal(signal.SIGINT)
    rest = process.communicate(timeout=TIMEOUT_S)[0]
    ports = {one.name: one.port for one in group.record.members}
    with socket.socket() as busy:
        busy.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections of before may not be forgotten yet
        busy.bind(("127.0.0.1", ports["slave-0-1"]))
        busy.listen()
        refused = gantry("up", "--data", str(group.folder), code=1)
    group.up()
    try:
        found = group.read("runs")
    finally:
        group.down()

    assert process.returncode == 0 and rest.endswith("stopping\nstopped\n"), rest
    assert not list(group.folder.glob("stores/*/abort"))
    assert f"port {ports['slave-0-1']} (broker of slave-0-1) is in use by another program" in refused
    assert "--broker-port" in refused and len(refused.splitlines()) == 1
    assert found == ["first"]


@pytest.mark.verify
def test_group_with_secrets_refuses_unknown_clients(tmp_path: Path) -> None:
    """A client without account or certificate gets nothing from brokers and sidecars."""
    group = Group(tmp_path / "state", access="{aclSecret: keys, tlsSecret: certificates}")
    refused = gantry("up", "--data", str(group.folder), "-f", str(group.manifest), *FREE_PORTS, code=1)
    party = Party(tmp_path / "party", trustme.CA())
    for name, text in (
        ("keys/plain_acl.yml", ACCOUNTS),
        ("keys/credentials", "accessKey: admin-key\nsecretKey: admin-secret\n"),
        ("certificates/tls.crt", party.chain.read_text()),
        ("certificates/tls.key", party.key.read_text()),
        ("certificates/ca.crt", party.authority.read_text()),
    ):
        path = group.folder / "secrets" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    group.up(*FREE_PORTS)
    try:
        secrets, server = group.folder / "secrets", ("-n", group.name_server)
        account = ("--credentials", str(secrets / "keys/credentials"))
        authority = ("--tls-ca", str(secrets / "certificates/ca.crt"))
        in_plain_text = gantry(*account, "produce", *server, "hello", "a", code=1)
        without_account = gantry("produce", *authority, *server, "hello", "a", code=1)
        known = gantry(*account, "produce", *authority, *server, "hello", "a")
        with pytest.raises(urllib.error.HTTPError) as denied:
            urllib.request.urlopen(f"{group.record.members[0].sidecar_url}/v1/topics", timeout=60)
        group.run_command("bundle", "--to", str(tmp_path / "b.tar.gz"))
    finally:
        group.down()

    denied.value.close()
    assert "spec.access.aclSecret: " in refused
    assert "it may require TLS" in in_plain_text
    assert "16 NO_PERMISSION" in without_account
    assert "SEND_OK" in known and denied.value.code == 401
    with tarfile.open(tmp_path / "b.tar.gz") as archive:
        packed = [archive.extractfile(one) for one in archive.getmembers()]
        assert not [file.name for file in packed if file is not None and b"admin-secret" in file.read()]
        assert not [name for name in archive.getnames() if "missing" in name or "secret" in name]
