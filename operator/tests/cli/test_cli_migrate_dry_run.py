"""`gantry migrate` at a model of RocketMQ's broker: a dry run prints the plan and changes nothing; a run asks first."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from click.testing import CliRunner

from gantry_cli.main import cli
from gantry_cli.migrate.migrator import MigrationOptions, Migrator
from gantry_cli.migrate.record import MigrationDirectory, MigrationRecord, Phase, master_conf
from gantry_cli.migrate.source import STOP_WRITES_SETTINGS, MigrationError
from gantry_cli.migrate.target import TargetBroker
from gantry_testing.java_broker import JavaBroker
from gantry_testing.ports import free_broker_port
from gantry_wire import RequestCode, fastjson
from gantry_wire.signatures import is_signed_v1


class Completed(NamedTuple):
    """The exit code and the output of a command."""

    code: int | None
    out: str
    err: str


def make_single_broker(broker: JavaBroker) -> None:
    """Make the broker its own name server, with a log of 1 MiB and its only port as the replication port."""
    table = {"brokerVersionDesc": "V5_3_3", "commitLogMinOffset": "0", "commitLogMaxOffset": str(1 << 20)}
    data = {"cluster": "c", "brokerName": "broker-a", "brokerAddrs": {"0": broker.address}}
    broker.bodies[RequestCode.GET_BROKER_CLUSTER_INFO] = fastjson.dumps({"brokerAddrTable": {"broker-a": data}})
    broker.bodies[RequestCode.GET_BROKER_RUNTIME_INFO] = fastjson.dumps({"table": table})
    broker.settings |= {"brokerIP2": "127.0.0.1", "haListenPort": broker.address.rpartition(":")[2]}


async def migrate(broker: JavaBroker, data: Path, *words: str, **environment: str) -> Completed:
    """Run `gantry migrate` and return its result."""
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
    return Completed(process.returncode, out.decode(), err.decode())


def files(path: Path) -> list[Path]:
    return list(path.iterdir())


async def test_dry_run_prints_plan_and_changes_nothing(tmp_path: Path) -> None:
    """The plan has the settings of the new broker; nothing is written, and the old broker is not changed."""
    async with JavaBroker() as broker:
        make_single_broker(broker)
        result = await migrate(broker, tmp_path / "new", "--dry-run", "-o", "flushDiskType=SYNC_FLUSH")

        assert result.code == 0, result
        assert f"The new broker follows broker-a at {broker.address} as slave 1" in result.out
    assert "haMasterIsClassic=true" in result.out and "flushDiskType=SYNC_FLUSH" in result.out
    assert files(tmp_path) == []
    assert RequestCode.UPDATE_BROKER_CONFIG not in {command.code for command in broker.asked}


async def test_dry_run_does_not_continue_a_promotion(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """If an earlier run has ended during the promotion, a dry run reports that, and does not continue it."""
    directory = MigrationDirectory(tmp_path)
    async with JavaBroker() as broker:
        make_single_broker(broker)
        record = MigrationRecord(
            old_address=broker.address, broker_name="broker-a", phase=Phase.PROMOTING, epoch=3, end=1 << 20
        )
        directory.write_conf({"brokerRole": "SLAVE"}, "a test")
        directory.save_record(record)
        before = {path.name: path.read_bytes() for path in files(tmp_path)}

        async def start(_: TargetBroker) -> int:
            raise AssertionError("a dry run starts the new broker")

        monkeypatch.setattr(TargetBroker, "start", start)
        options = MigrationOptions(name_server=broker.address, directory=directory, settings={}, dry_run=True)

        async with Migrator(options, quiet=False) as migrator:
            result = await migrator.run()

    assert (result.phase, result.epoch, result.end) == ("PROMOTING", 3, 1 << 20)
    assert {path.name: path.read_bytes() for path in files(tmp_path)} == before
    assert RequestCode.UPDATE_BROKER_CONFIG not in {command.code for command in broker.asked}
    assert "a run without --dry-run promotes the new broker" in capsys.readouterr().out


CONF = {"brokerRole": "SLAVE", "brokerId": "1", "brokerIP1": "192.0.2.7", "listenPort": "20911", "haListenPort": "-1"}
"""The settings that an earlier run has written."""


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (
            {"host": "192.0.2.8"},
            "--host 192.0.2.8 has no effect: {conf} was written by an earlier run, and has ",
        ),
        ({"port": 20921}, "--port 20921 has no effect: {conf} was written by an earlier run, and has listenPort=20911"),
        ({"settings": {"haListenPort": "1"}}, "-o haListenPort=1 has no effect: {conf} was"),
        ({"settings": {"haListenPort": "-1", "aclEnable": "true"}}, "-o aclEnable=true has no effect: {conf} was"),
    ],
    ids=["host", "port", "option", "new option"],
)
@pytest.mark.parametrize("phase", [None, Phase.ATTACHED, Phase.DONE])
async def test_option_that_differs_from_the_settings_of_an_earlier_run_is_refused(
    tmp_path: Path, options: dict[str, Any], error: str, phase: Phase | None
) -> None:
    """It would be ignored, as the new broker has its own file of settings already; the error names that file."""
    directory = MigrationDirectory(tmp_path)
    directory.write_conf(CONF, "a test")
    if phase is not None:
        directory.save_record(MigrationRecord(old_address="127.0.0.1:1", broker_name="broker-a", phase=phase))
    values: dict[str, Any] = {"name_server": "127.0.0.1:1", "directory": directory, "settings": {}} | options
    given = MigrationOptions(**values)

    async with Migrator(given, quiet=False) as migrator:
        with pytest.raises(MigrationError, match=re.escape(error.format(conf=directory.conf))):
            await migrator.run()


async def test_same_options_as_in_an_earlier_run_are_accepted(tmp_path: Path) -> None:
    """The same command continues the migration, also after the switch, which changes some of these settings."""
    directory = MigrationDirectory(tmp_path)
    settings = {"haListenPort": "-1", "brokerIP1": "192.0.2.7", "haMasterAddress": "192.0.2.9:10912"}
    options = MigrationOptions(
        name_server="127.0.0.1:1", directory=directory, settings=settings, host="ignored", port=20911
    )
    directory.write_conf(master_conf(CONF | settings), "a test")
    directory.save_record(MigrationRecord(old_address="127.0.0.1:1", broker_name="broker-a", phase=Phase.DONE))

    async with Migrator(options, quiet=False) as migrator:
        assert (await migrator.run()).phase == Phase.DONE


def test_default_port_does_not_conflict_with_an_earlier_run(tmp_path: Path) -> None:
    """Only a port on the command line is compared; what blocks the run here is that no old broker answers."""
    directory = MigrationDirectory(tmp_path)
    directory.write_conf(CONF, "a test")
    directory.save_record(MigrationRecord(old_address="127.0.0.1:1", broker_name="broker-a"))

    command = ["migrate", "-n", "127.0.0.1:1", "--data", str(tmp_path), "--dry-run"]

    result = CliRunner().invoke(cli, command)

    assert (result.exit_code, "127.0.0.1:1" in result.output) == (1, True)
    assert "has no effect" not in result.output
    assert "--port 10911 has no effect" in CliRunner().invoke(cli, [*command, "--port", "10911"]).output


@pytest.mark.verify
async def test_blocking_finding_stops_dry_run_and_migration(tmp_path: Path) -> None:
    """The finding is in the document, too. The old broker is not changed."""
    async with JavaBroker() as broker:
        make_single_broker(broker)
        broker.settings["duplicationEnable"] = "true"
        dry = await migrate(broker, tmp_path, "--dry-run", "--json")
        real = await migrate(broker, tmp_path, "--yes")

    document = json.loads(dry.out)
    assert (dry.code, document["is_blocked"], document["findings"][0]["kind"]) == (1, True, "blocked")
    assert (real.code, "its writes cannot be stopped" in real.err) == (1, True)
    assert broker.settings["brokerRole"] == "ASYNC_MASTER" and files(tmp_path) == []


@pytest.mark.parametrize("is_old_closed", [True, False])
async def test_document_of_a_migration_that_is_done_says_whether_the_old_broker_is_closed(
    tmp_path: Path, is_old_closed: bool
) -> None:
    """Programs read from the document what the text warns of."""
    record = MigrationRecord(
        old_address="192.0.2.1:10911", broker_name="broker-a", phase=Phase.DONE, is_old_closed=is_old_closed
    )
    MigrationDirectory(tmp_path).save_record(record)
    async with JavaBroker() as broker:
        result = await migrate(broker, tmp_path, "--json")

    document = json.loads(result.out)
    assert (document["phase"], document["is_old_closed"]) == ("DONE", is_old_closed)
    assert "-1 ms" not in result.err


async def test_certificate_without_its_key_is_one_error(tmp_path: Path) -> None:
    """TLS options that cannot be used end the command with an error that names the remedy, and with a document."""
    certificate = tmp_path / "client.pem"
    certificate.write_text("a certificate")
    async with JavaBroker() as broker:
        make_single_broker(broker)
        result = await migrate(broker, tmp_path / "new", "--dry-run", "--json", "--tls-cert", str(certificate))

    assert result.code == 1 and "Traceback" not in result.err, result
    assert "go together" in json.loads(result.out)["error"] and "check the --tls options" in result.err


async def test_missing_confirmation_means_no(tmp_path: Path) -> None:
    """Without a terminal, a warning that needs confirmation stops the migration."""
    async with JavaBroker() as broker:
        make_single_broker(broker)
        broker.settings["messageStorePlugIn"] = "tiered"
        result = await migrate(broker, tmp_path)

    assert result.code == 1
    assert "despite the warnings" in result.err
    assert broker.settings["brokerRole"] == "ASYNC_MASTER" and files(tmp_path) == []


@pytest.mark.parametrize(
    ("setting", "text"),
    [(("messageStorePlugIn", "tiered"), "despite the warnings"), (("duplicationEnable", "true"), "cannot be stopped")],
    ids=["canceled", "blocked"],
)
async def test_run_after_a_kill_restores_old_broker_first(tmp_path: Path, setting: tuple[str, str], text: str) -> None:
    """A run that was killed has left the old broker stopped; the next run restores it, also if it ends early."""
    directory = MigrationDirectory(tmp_path)
    async with JavaBroker() as broker:
        make_single_broker(broker)
        original = {key: broker.settings[key] for key in STOP_WRITES_SETTINGS}
        broker.settings |= {**STOP_WRITES_SETTINGS, setting[0]: setting[1]}
        directory.save_record(
            MigrationRecord(old_address=broker.address, broker_name="broker-a", phase=Phase.STOPPING, original=original)
        )
        result = await migrate(broker, tmp_path)
        record = directory.load_record()

    assert result.code == 1 and text in result.err
    assert {key: broker.settings[key] for key in STOP_WRITES_SETTINGS} == original
    assert record is not None and record.phase is Phase.ATTACHED
    assert "accepts messages again" in result.out


@pytest.mark.parametrize("is_signed", [True, False], ids=["with an account", "without"])
async def test_requests_to_broker_with_access_control_are_signed(tmp_path: Path, is_signed: bool) -> None:
    """Requests are signed as by RocketMQ's clients, and the new broker gets the account. Without one it is blocked."""
    account = tmp_path / "admin.yml"
    account.write_text("accessKey: admin-key\nsecretKey: admin-secret\n")
    async with JavaBroker() as broker:
        make_single_broker(broker)
        broker.settings["aclEnable"] = "true"
        environment = {"GANTRY_CREDENTIALS": str(account)} if is_signed else {}
        ours = ("-o", "aclEnable=true", "-o", "aclFile=/etc/gantry/plain_acl.yml", "-o", "haListenPort=-1")
        result = await migrate(broker, tmp_path / "new", "--dry-run", *ours, **environment)

        signed = [is_signed_v1(command.ext, command.body, b"admin-secret") for command in broker.asked]
    assert (result.code, all(signed), any(signed)) == ((0, True, True) if is_signed else (1, False, False)), result
    assert (f"aclCredentialsPath={account}" in result.out) == is_signed
    assert ("has no account" in result.out) != is_signed
