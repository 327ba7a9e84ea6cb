"""`gantry migrate --dry-run`, as a process: it says everything, and leaves no trace."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from gantry_testing.java_broker import JavaBroker
from gantry_testing.ports import free_broker_port
from gantry_wire import RequestCode, fastjson
from gantry_wire.signatures import is_signed_v1


class Said(NamedTuple):
    """What a command has printed."""

    code: int | None
    out: str
    err: str


def alone(broker: JavaBroker) -> None:
    """The broker is its own name server, and has a log of a mebibyte; its replication port is its only one."""
    table = {"brokerVersionDesc": "V5_3_3", "commitLogMinOffset": "0", "commitLogMaxOffset": str(1 << 20)}
    data = {"cluster": "c", "brokerName": "broker-a", "brokerAddrs": {"0": broker.address}}
    broker.bodies[RequestCode.GET_BROKER_CLUSTER_INFO] = fastjson.dumps({"brokerAddrTable": {"broker-a": data}})
    broker.bodies[RequestCode.GET_BROKER_RUNTIME_INFO] = fastjson.dumps({"table": table})
    broker.settings |= {"brokerIP2": "127.0.0.1", "haListenPort": broker.address.rpartition(":")[2]}


async def migrate(broker: JavaBroker, data: Path, *words: str, **environment: str) -> Said:
    """Run the command."""
    port = str(free_broker_port())
    options = ["-n", broker.address, "--data", str(data), "--port", port, *words]
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "gantry_cli",
        "migrate",
        *options,
        stdout=pipe,
        stderr=pipe,
        stdin=asyncio.subprocess.DEVNULL,
        env={**os.environ, **environment},
    )
    out, err = await process.communicate()
    return Said(process.returncode, out.decode(), err.decode())


def files(path: Path) -> list[Path]:
    return list(path.iterdir())


async def test_a_dry_run_says_all_and_changes_nothing(tmp_path: Path) -> None:
    """What would be done, with the settings of the broker to come; nothing is written, nothing is set there."""
    async with JavaBroker() as broker:
        alone(broker)
        said = await migrate(broker, tmp_path / "new", "--dry-run", "-o", "flushDiskType=SYNC_FLUSH")

        assert said.code == 0, said
        assert f"it follows broker-a at {broker.address} as slave 1" in said.out
    assert "haMasterIsClassic=true" in said.out and "flushDiskType=SYNC_FLUSH" in said.out
    assert files(tmp_path) == []
    assert RequestCode.UPDATE_BROKER_CONFIG not in {command.code for command in broker.asked}


@pytest.mark.verify
async def test_what_is_in_the_way_stops_a_dry_run_and_a_real_one(tmp_path: Path) -> None:
    """For programs, too: with the finding in the document. The broker goes on as it was."""
    async with JavaBroker() as broker:
        alone(broker)
        broker.settings["duplicationEnable"] = "true"
        dry = await migrate(broker, tmp_path, "--dry-run", "--json")
        real = await migrate(broker, tmp_path, "--yes")

    document = json.loads(dry.out)
    assert (dry.code, document["is_blocked"], document["findings"][0]["kind"]) == (1, True, "blocked")
    assert (real.code, "it cannot be stopped" in real.err) == (1, True)
    assert broker.settings["brokerRole"] == "ASYNC_MASTER" and files(tmp_path) == []


async def test_nobody_who_can_be_asked_means_no(tmp_path: Path) -> None:
    """A warning is a question, and so is the switch."""
    async with JavaBroker() as broker:
        alone(broker)
        broker.settings["messageStorePlugIn"] = "tiered"
        said = await migrate(broker, tmp_path)

    assert said.code == 1
    assert "in spite of the warnings" in said.err
    assert broker.settings["brokerRole"] == "ASYNC_MASTER" and files(tmp_path) == []


@pytest.mark.parametrize("is_signed", [True, False], ids=["with an account", "without"])
async def test_a_broker_with_access_control_is_looked_at_by_whoever_has_an_account(
    tmp_path: Path, is_signed: bool
) -> None:
    """Every question is signed as RocketMQ's clients sign; ours takes the account along. Without one it is blocked."""
    account = tmp_path / "admin.yml"
    account.write_text("accessKey: admin-key\nsecretKey: admin-secret\n")
    async with JavaBroker() as broker:
        alone(broker)
        broker.settings["aclEnable"] = "true"
        environment = {"GANTRY_CREDENTIALS": str(account)} if is_signed else {}
        ours = ("-o", "aclEnable=true", "-o", "aclFile=/etc/gantry/plain_acl.yml", "-o", "haListenPort=-1")
        said = await migrate(broker, tmp_path / "new", "--dry-run", *ours, **environment)

        signed = [is_signed_v1(command.ext, command.body, b"admin-secret") for command in broker.asked]
    assert (said.code, all(signed), any(signed)) == ((0, True, True) if is_signed else (1, False, False)), said
    assert (f"aclCredentialsPath={account}" in said.out) == is_signed
    assert ("has no account" in said.out) != is_signed
