"""`gantry up --single`: a group of one broker, in the folder of earlier versions."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest
from click.testing import CliRunner
from local_group_kit import TIMEOUT_S, gantry

from gantry_broker.setting_keys import broker_settings
from gantry_cli.errors import CliError
from gantry_cli.local.group_run import UpOptions, choose_group
from gantry_cli.local.group_status import LocalGroupStatus, read_running_status
from gantry_cli.local.plan import LaunchOptions, Planner, single_group
from gantry_cli.local.ports import BROKER, NAME_SERVER
from gantry_cli.local.records import GroupRecord
from gantry_cli.local.state import GroupState
from gantry_cli.local.up import up as up_command
from gantry_cli.stack import StackDirectory
from gantry_spec.broker_conf import BrokerPlacement, broker_conf
from gantry_testing.local import PATIENT, ROOMY
from gantry_testing.ports import free_broker_port, free_port

SMALL: Final = {"mappedFileSizeCommitLog": str(16 << 20), "messageIndexEnable": "false", **PATIENT, **ROOMY}
OPTIONS: Final = tuple(word for pair in SMALL.items() for word in ("-o", "=".join(pair)))
UNSIZED: Final = OPTIONS[2:]
"""The same without the size of the log's files."""
FREE: Final = ("--namesrv-port", "0", "--broker-port", "0")


def planned(state: Path, before: GroupRecord | None = None, **options: str) -> GroupRecord:
    """Plan the broker on free ports, or on those that it had before."""
    ports = tuple((kind, 0) for kind in (NAME_SERVER, BROKER) if before is None)
    launch = LaunchOptions(ports=ports, single=options)
    return Planner(GroupState(state), single_group(options), launch, before, has_sidecars=False).record


def test_command_line_settings_override_all_others() -> None:
    """RocketMQ's names are the defaults; a setting with -o replaces the group's line."""
    place = BrokerPlacement(
        group="single", shard=0, number=1, address="127.0.0.1", store="/store", name_servers=("ns:1",)
    )
    plain = broker_conf(single_group({}).spec, place, is_single=True)
    launch = {"brokerName": "mine", "flushDiskType": "SYNC_FLUSH", "mappedFileSizeCommitLog": "9"}
    conf = broker_conf(single_group(launch).spec, place, is_single=True)

    assert (plain["brokerClusterName"], plain["brokerName"]) == ("DefaultCluster", "broker-a")
    assert conf.items() >= launch.items() and conf["namesrvAddr"] == "ns:1"


def test_settings_not_given_are_left_to_the_broker() -> None:
    """A file size in broker.conf must be that of the store; without one it is taken from the store.

    The same holds for the replication port: one that was not given may be taken by another program.
    """
    place = BrokerPlacement(
        group="single", shard=0, number=1, address="127.0.0.1", store="/store", name_servers=("ns:1",)
    )
    conf = broker_conf(single_group({}).spec, place, is_single=True)
    settings = broker_settings(conf)

    assert conf.keys() == {
        *("brokerClusterName", "brokerName", "brokerId", "brokerIP1", "bindAddress", "listenPort"),
        *("storePathRootDir", "namesrvAddr", "roleAtStart"),
    }
    assert (settings.ha.role_at_start, settings.ha.acks_needed) == ("UNASSIGNED", 0)


@pytest.mark.parametrize("key", ["brokerId", "brokerRole", "controlSocketPath", "roleAtStart"])
def test_settings_of_the_role_are_refused(tmp_path: Path, key: str) -> None:
    """The supervisor assigns the role over the control socket, so it must control these settings."""
    result = CliRunner().invoke(up_command, ["--single", "--data", str(tmp_path), "-o", f"{key}=1"])

    assert result.exit_code == 2 and f"{key} is set by the supervisor" in result.output


def test_data_stays_in_the_folders_of_earlier_versions(tmp_path: Path) -> None:
    """The folders are DIR/broker and DIR/nameserver; there is no sidecar port; ports are kept; a store may be moved."""
    first = planned(tmp_path)
    first.members[0].identity = "of the store then"
    second = planned(tmp_path, first)
    moved = planned(tmp_path, first, storePathRootDir=str(tmp_path / "elsewhere"))

    (server,), (member,) = second.name_servers, second.members
    assert (server.data, member.store) == (str(tmp_path / "nameserver"), str(tmp_path / "broker"))
    assert (server.port, member.port) == (first.name_servers[0].port, first.members[0].port)
    assert (member.name, member.sidecar_port, member.identity) == ("master-0", 0, "")
    assert moved.members[0].store == str(tmp_path / "elsewhere")


def test_folder_of_a_group_is_refused_for_single_and_vice_versa(tmp_path: Path) -> None:
    """Otherwise each would start with an empty store."""
    single, group = tmp_path / "single", tmp_path / "group"
    (single / "broker").mkdir(parents=True)
    group.mkdir()
    (group / "manifest.yaml").write_text("{}")

    assert "holds a single broker without a group -- run gantry up --single" in gantry(
        "up", "--data", str(single), code=1
    )
    assert "holds a group -- run gantry up without --single" in gantry("up", "--single", "--data", str(group), code=1)


def options_of(folder: Path, single: dict[str, str] | None = None) -> UpOptions:
    return UpOptions(data=folder, manifest=None, launch=LaunchOptions(single=single))


def test_group_starts_beside_a_single_broker_of_its_folder(tmp_path: Path) -> None:
    """Earlier versions ran both in one folder with separate stores. The manifest marks the folder as the group's."""
    choose_group(options_of(tmp_path))
    (tmp_path / "broker").mkdir()

    assert choose_group(options_of(tmp_path)).metadata.name == "local"
    with pytest.raises(CliError, match=rf"holds a group -- .*-o storePathRootDir={tmp_path}/broker"):
        choose_group(options_of(tmp_path, {}))


def test_single_broker_is_recognised_by_its_record(tmp_path: Path) -> None:
    """Its store may be elsewhere. A group is refused before anything is written, and the broker still starts."""
    folder, store = tmp_path / "single", tmp_path / "elsewhere"
    launch = {"storePathRootDir": str(store)}
    assert choose_group(options_of(folder, launch)).metadata.name == "single"
    GroupState(folder).write_group(planned(folder, storePathRootDir=str(store)))
    before = sorted(folder.rglob("*"))

    with pytest.raises(CliError, match=r"holds a single broker without a group -- run gantry up --single"):
        choose_group(options_of(folder))
    assert sorted(folder.rglob("*")) == before
    assert choose_group(options_of(folder, launch)).metadata.name == "single"


def test_record_of_an_earlier_version_is_a_groups(tmp_path: Path) -> None:
    """Such a record does not have the field that distinguishes them."""
    state = GroupState(tmp_path)
    state.group_file.write_text('{"name": "local", "host": "127.0.0.1"}')
    record = state.read_group()

    assert record is not None and not record.is_single


def test_single_broker_needs_no_replication_port(tmp_path: Path) -> None:
    """It has no slaves, so it serves while another program has that port, or if there is no such port."""
    port = free_broker_port()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port + 1))
        taken.listen()
        given, last = (
            Planner(
                GroupState(tmp_path), single_group({}),
                LaunchOptions(ports=((NAME_SERVER, 0), (BROKER, each)), single={}),
                None, has_sidecars=False,
            ).record.members[0]
            for each in (port, 65535)
        )  # fmt: skip

    assert given.port == port and (last.port, last.ha_port) == (65535, -1)
    place = BrokerPlacement(
        group="single", shard=0, number=1, address="127.0.0.1", store="/store", ha_port=last.ha_port
    )
    assert broker_conf(single_group({}).spec, place, is_single=True)["haListenPort"] == "-1"


# -- with servers ------------------------------------------------------------------------------------------------------


@contextmanager
def earlier_version(folder: Path, name_server_port: int, broker_port: int) -> Iterator[None]:
    """Run both servers as `gantry up --single` did before there was a group, with the files that it wrote."""
    folder.mkdir()
    conf = {
        "brokerClusterName": "DefaultCluster", "brokerName": "broker-a", "brokerId": "0", "brokerIP1": "127.0.0.1",
        "bindAddress": "127.0.0.1", "listenPort": str(broker_port), "namesrvAddr": f"127.0.0.1:{name_server_port}",
        "storePathRootDir": str(folder / "broker"),
    }  # fmt: skip
    head = "# Written by `gantry up` at every start; change settings with `gantry up -o key=value`."
    lines = [head, *(f"{key}={value}" for key, value in (conf | SMALL).items()), ""]
    (folder / "broker.conf").write_text("\n".join(lines))
    (folder / "lock").touch()
    listen = ("--listen", f"127.0.0.1:{name_server_port}", "--data", str(folder / "nameserver"))
    commands = {"nameserver": listen, "broker": ("-c", str(folder / "broker.conf"))}
    processes = []
    try:
        for name, words in commands.items():
            with (folder / f"{name}.log").open("wb") as log:
                command = [sys.executable, "-m", f"gantry_{name}", *words]
                processes.append(subprocess.Popen(command, stdout=log, stderr=log))
            deadline = time.monotonic() + TIMEOUT_S
            while "listening on" not in (folder / f"{name}.log").read_text():
                assert time.monotonic() < deadline, (folder / f"{name}.log").read_text()
                time.sleep(0.02)
        yield
    finally:
        for process in reversed(processes):
            process.terminate()
            process.wait(TIMEOUT_S)


def status_of(folder: Path) -> LocalGroupStatus:
    status = read_running_status(folder)
    assert status is not None, (folder / "up.log").read_text()
    return status


@pytest.mark.verify(quick=1)
@pytest.mark.parametrize("is_doubtful", [False, True], ids=["stopped cleanly", "may lack something"])
def test_folder_of_an_earlier_version_keeps_its_messages(tmp_path: Path, *, is_doubtful: bool) -> None:
    """Without a Lease, one is created from the records of the store.

    That is safe also if the store may have lost data, since no other broker could have more.
    """
    folder, name_server_port, broker_port = tmp_path / "old", free_port(), free_broker_port()
    name_server = f"127.0.0.1:{name_server_port}"
    with earlier_version(folder, name_server_port, broker_port):
        gantry("topic", "create", "-n", name_server, "orders", "--queues", "1")
        gantry("produce", "-n", name_server, "orders", "one", "two")
    if is_doubtful:
        (folder / "broker" / "completeness.json").unlink()

    ports = ("--namesrv-port", str(name_server_port), "--broker-port", str(broker_port))
    gantry("up", "--single", "--data", str(folder), "--detach", *ports, *UNSIZED)
    try:
        record = StackDirectory(folder).running()
        assert record is not None
        gantry("produce", "-n", name_server, "orders", "three")
        found = gantry("consume", "-n", name_server, "orders").split()
        lease = json.loads((folder / "lease-0.json").read_text())
    finally:
        gantry("down", "--data", str(folder))

    assert found == ["one", "two", "three"]
    assert (record.name_server, record.broker) == (name_server, f"127.0.0.1:{broker_port}")
    assert record.broker_name == "broker-a" and lease["epoch"] > 0
    assert not (folder / "broker" / "abort").exists() and not list((folder / "stores").iterdir())


@pytest.mark.verify
def test_group_commands_work_on_a_single_broker(tmp_path: Path) -> None:
    """It is shown, killed, restarted, explained and bundled like a member of a group, and has no manifest."""
    folder = tmp_path / "alone"
    data = ("--data", str(folder))
    gantry("up", "--single", *data, "--detach", *FREE, *OPTIONS)
    try:
        first = status_of(folder)
        name_server = first.name_servers[0]
        gantry("produce", "-n", name_server, "orders", "one")
        status = json.loads(gantry("status", *data, "--output", "json"))
        killed = gantry("kill", *data, "master-0", "--down", "0s")
        deadline = time.monotonic() + TIMEOUT_S
        while (member := status_of(folder).members[0]).role != "MASTER" or member.epoch == first.members[0].epoch:
            assert time.monotonic() < deadline, (folder / "up.log").read_text()
            time.sleep(0.05)
        found = gantry("consume", "-n", name_server, "orders").split()
        promoted = gantry("promote", *data, "0")
        explanation = gantry("explain", *data)
        bundle = gantry("bundle", *data, "--to", str(tmp_path / "bundle.tar.gz"))
        (tmp_path / "group.yaml").write_text(
            "apiVersion: gantry.dev/v1alpha1\nkind: BrokerGroup\nmetadata: {name: x}\n"
        )
        applied = gantry("apply", *data, "-f", str(tmp_path / "group.yaml"), code=None)
    finally:
        gantry("down", *data)

    assert status["local_group"]["members"][0]["name"] == "master-0"
    assert status["brokers"][0]["address"]["name"] == "broker-a" and status["brokers"][0]["address"]["broker_id"] == 0
    assert "restarts at once" in killed and found == ["one"]
    assert "master-0 is the master already" in promoted and "shard 0" in explanation
    assert "bundle.tar.gz" in bundle and "has no manifest" in applied


@pytest.mark.verify
def test_single_broker_restarts_after_a_loss_without_an_order(tmp_path: Path) -> None:
    """After a power cut the store may lack acknowledged messages, and the single broker becomes the master anyway.

    So it does with a deleted store, since no other broker could have more.
    """
    data = ("--data", str(tmp_path))
    gantry("up", "--single", *data, "--detach", *FREE, *OPTIONS)
    name_server = status_of(tmp_path).name_servers[0]
    gantry("produce", "-n", name_server, "orders", "one")
    supervisor = status_of(tmp_path)
    os.kill(supervisor.pid, signal.SIGKILL)
    (tmp_path / "last-reports.json").unlink()
    broker = supervisor.members[0].pid
    deadline = time.monotonic() + TIMEOUT_S
    while broker is not None and Path(f"/proc/{broker}").exists():
        assert time.monotonic() < deadline, "the broker does not end with its supervisor"
        time.sleep(0.05)
    (tmp_path / "broker" / "completeness.json").unlink()
    gantry("up", "--single", *data, "--detach", *OPTIONS)
    found = gantry("consume", "-n", name_server, "orders").split()
    gantry("down", *data)
    (tmp_path / "broker").rename(tmp_path / "thrown-away")
    gantry("up", "--single", *data, "--detach", *OPTIONS)
    topics = gantry("topic", "list", "-n", name_server)
    gantry("down", *data)

    assert found == ["one"] and "orders" not in topics
