"""The command line with servers that have only IPv6 addresses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from local_group_kit import FREE_PORTS, Group, Load, gantry, manifest

from gantry_cli.local import up as up_module
from gantry_cli.local.group_run import UpOptions
from gantry_cli.local.plan import LaunchOptions, Planner
from gantry_cli.local.ports import BROKER, NAME_SERVER, SIDECAR
from gantry_cli.local.state import GroupState
from gantry_cli.stack import StackDirectory
from gantry_spec.manifest import read_group

SMALL = {
    "mappedFileSizeCommitLog": "16777216", "maxHashSlotNum": "1000", "maxIndexNum": "4000",
    "diskMaxUsedSpaceRatio": "95", "diskSpaceCleanForciblyRatio": "99", "diskSpaceWarningLevelRatio": "99",
    "waitTimeMillsInSendQueue": "60000",
}  # fmt: skip


def test_plan_writes_ipv6_addresses_with_brackets(tmp_path: Path) -> None:
    """An address with a port has brackets; a host alone has none."""
    ports = tuple((kind, 0) for kind in (NAME_SERVER, BROKER, SIDECAR))
    planner = Planner(
        GroupState(tmp_path), read_group(manifest().encode()), LaunchOptions(host="::1", ports=ports), None
    )

    (server,) = planner.record.name_servers
    assert planner.record.addresses == [server.address] == [f"[::1]:{server.port}"]
    assert planner.record.host == "::1"


@pytest.mark.parametrize("host", ["::1", "[::1]"])
def test_host_option_accepts_brackets(tmp_path: Path, host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A host that is copied from an address has brackets."""
    hosts: list[str] = []

    async def start(options: UpOptions, face: object) -> None:
        hosts.append(options.launch.host)

    monkeypatch.setattr(up_module, "run_group", start)
    result = CliRunner().invoke(up_module.up, ["--single", "--data", str(tmp_path), "--host", host])

    assert (result.exit_code, hosts) == (0, ["::1"]), result.output


@pytest.mark.verify
def test_commands_accept_ipv6_addresses_printed_by_up(tmp_path: Path) -> None:
    """Commands work with a single broker on ::1: produce, consume, status and store dump."""
    options = [word for pair in SMALL.items() for word in ("-o", "=".join(pair))]
    up = ("up", "--single", "--data", str(tmp_path), "--host", "::1", "--detach")
    printed = gantry(*up, "--namesrv-port", "0", "--broker-port", "0", *options)
    directory = StackDirectory(tmp_path)
    try:
        record = directory.running()
        assert record is not None and record.name_server.startswith("[::1]:") and record.broker.startswith("[::1]:")
        assert f'setNamesrvAddr("{record.name_server}")' in printed
        at = ("-n", record.name_server)
        receipt = json.loads(gantry("produce", *at, "orders", "one", "--key", "k", "--output", "json"))
        (message,) = map(json.loads, gantry("consume", *at, "orders", "--output", "json").splitlines())
        status = gantry("status", *at)
    finally:
        gantry("down", "--data", str(tmp_path))
    dumped = [json.loads(line) for line in gantry("store", "dump", str(tmp_path / "broker"), "--json").splitlines()]

    assert len(receipt["offset_message_id"]) == len(receipt["message_id"]) == 56
    assert message["body"] == "one" and message["born_host"].startswith("[::1]:")
    assert message["offset_message_id"] == receipt["offset_message_id"]
    assert record.broker in status and record.name_server in status
    assert "[::1]" in json.dumps(next(one for one in dumped if one.get("body") == "one"))


@pytest.mark.slow
def test_slave_takes_over_on_ipv6(tmp_path: Path) -> None:
    """A group on ::1 fails over after a kill, and no acknowledged message is lost."""
    group = Group(tmp_path / "crew")
    group.up("--host", "::1", *FREE_PORTS)
    try:
        group.wait_until(group.is_healthy)
        assert group.name_server.startswith("[::1]:")
        with Load(group, "orders") as load:
            group.wait_until(load.has_more(50))
            name, epoch = group.masters()[0]
            group.run_command("kill", name)
            group.wait_until(lambda: group.masters().get(0, (name, epoch))[1] > epoch)
            group.wait_until(load.has_more(50))
        group.wait_until(group.is_healthy)
        assert set(load.acknowledged) <= set(group.read("orders"))
    finally:
        group.down()
