"""An operator that is newer than a pod's image: unknown settings are ignored and named, and the pod runs.

Each server by itself still refuses unknown settings, since a typing error must not become a default.
"""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from gantry_admin.__main__ import parse_arguments
from gantry_admin.topics_file import parse_topics_file
from gantry_broker.errors import ConfigCorrupt
from gantry_broker.setting_keys import broker_settings, effective_settings, unknown_keys
from gantry_cli.main import cli
from gantry_nameserver.settings import NameServerSettings, with_entries
from gantry_remoting.setting_kinds import SettingsError
from gantry_testing.local import running_broker
from gantry_testing.ports import free_ports

TOMORROW = {"settingOfTomorrow": "1"}
TOLERANT = {"ignoreUnknownSettings": "true"}
SIDECAR = ["--page", "p", "--control", "c", "--store", "s"]
NEWER_OPTIONS = ["--option-of-tomorrow", "value", "--other=secret", "--pag", "z"]
Started = Callable[..., "Container"]


# -- what each server reads --------------------------------------------------------------------------------------------


def test_broker_ignores_unknown_settings_only_when_enabled() -> None:
    """All other settings of the file apply, and an invalid value is refused nevertheless."""
    tolerant = broker_settings({**TOMORROW, **TOLERANT, "brokerName": "orders-0"})

    assert (tolerant.broker_name, unknown_keys(tolerant.given)) == ("orders-0", ["settingOfTomorrow"])
    with pytest.raises(SettingsError, match="settingOfTomorrow is not a setting"):
        broker_settings(TOMORROW)
    with pytest.raises(SettingsError, match="settingOfTomorrow is not a setting"):
        broker_settings({**TOMORROW, "ignoreUnknownSettings": "false"})
    with pytest.raises(SettingsError, match="listenPort=soon"):
        broker_settings({**TOLERANT, "listenPort": "soon"})


def test_name_server_ignores_unknown_settings_only_when_enabled(caplog: pytest.LogCaptureFixture) -> None:
    """The ignored settings are named in the log."""
    entries = {**TOMORROW, "listenPort": "19876"}

    settings = with_entries(NameServerSettings(), {**entries, **TOLERANT})

    assert settings.listen_port == 19876
    assert [vars(record)["key"] for record in caplog.records] == ["settingOfTomorrow"]
    assert with_entries(settings, {**TOMORROW, "listenPort": "29876"}).listen_port == 29876, (
        "expected the setting to change at run time"
    )
    with pytest.raises(SettingsError, match="settingOfTomorrow"):
        with_entries(NameServerSettings(), entries)


def test_sidecar_ignores_unknown_options_only_when_enabled(capsys: pytest.CaptureFixture[str]) -> None:
    """Their values are not named; a prefix of an option's name is not the option."""
    options, left_out = parse_arguments(["--ignore-unknown", *NEWER_OPTIONS, *SIDECAR])

    assert (str(options.page), str(options.store)) == ("p", "s")
    assert left_out == ["--option-of-tomorrow", "--other", "--pag"]
    with pytest.raises(SystemExit):
        parse_arguments([*NEWER_OPTIONS, *SIDECAR])
    assert "unrecognized arguments: --option-of-tomorrow" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        parse_arguments(["--ignore-unknown", *SIDECAR, "--max-lag", "much"])


def test_topics_with_unknown_fields_are_kept() -> None:
    """Unknown fields are ignored at every level; an invalid known one is refused."""
    text = b'{"topics": [{"name": "a", "queues": 3, "order": true}], "groups": [{"name": "g"}], "users": []}'

    wanted, left_out = parse_topics_file(text)

    assert [(topic.name, topic.queues) for topic in wanted.topics] == [("a", 3)]
    assert [group.name for group in wanted.groups] == ["g"]
    assert left_out == ["topics.order", "users"]
    for wrong in (b'{"topics": [{"name": "a", "queues": "3"}]}', b'{"topics": [1]}', b"[]", b"{"):
        with pytest.raises(ValueError, match=r".+"):
            parse_topics_file(wrong)


@pytest.mark.parametrize(("is_tolerant", "batch"), [("true", "64"), ("false", "32")], ids=["pod", "alone"])
async def test_live_settings_of_a_newer_operator_apply_in_part(is_tolerant: str, batch: str, tmp_path: Path) -> None:
    """The keys that this broker takes from the file apply; without the option, a file with others has no effect."""
    path = tmp_path / "live.conf"
    path.write_text("maxPullBatchSize=64\nsettingOfTomorrow=1\nflushDiskType=SYNC_FLUSH\n")
    async with running_broker(
        tmp_path / "store", liveSettingsPath=str(path), ignoreUnknownSettings=is_tolerant, maxPullBatchSize="32"
    ) as broker:
        now = effective_settings(broker.core.live.current)

    assert (now["maxPullBatchSize"], now["flushDiskType"]) == (batch, "ASYNC_FLUSH")


@pytest.mark.parametrize("is_tolerant", [True, False], ids=["pod", "alone"])
async def test_older_broker_starts_with_newer_run_time_settings(is_tolerant: bool, tmp_path: Path) -> None:
    """After a downgrade, an administrator's changes apply as far as they are known."""
    path = tmp_path / "store" / "config" / "liveSettings.json"
    path.parent.mkdir(parents=True)
    settings = {"maxPullBatchSize": "64", "settingOfTomorrow": "1"}
    path.write_text(
        json.dumps({"settings": settings, "dataVersion": {"counter": 2, "stateVersion": 0, "timestamp": 1}})
    )

    if is_tolerant:
        async with running_broker(tmp_path / "store", ignoreUnknownSettings="true") as broker:
            assert broker.core.live.changed == {"maxPullBatchSize": "64"}
    else:
        with pytest.raises(ConfigCorrupt, match="settingOfTomorrow"):
            async with running_broker(tmp_path / "store"):
                pass


# -- the first process of a container ----------------------------------------------------------------------------------


class Container:
    """A `gantry pod ...` process, and its output."""

    def __init__(self, words: list[str], variables: dict[str, str]) -> None:
        self.output = ""
        self.process = subprocess.Popen(
            [sys.executable, "-m", "gantry_cli", "pod", *words],
            env={**os.environ, **variables},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )

    def wait_for_output(self, *texts: str) -> None:
        """Wait until the output has all of these texts."""
        assert self.process.stdout is not None
        deadline = time.monotonic() + 180
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            while not all(text in self.output for text in texts):
                assert selector.select(deadline - time.monotonic()), self.output
                data = os.read(self.process.stdout.fileno(), 65536)
                assert data, self.output
                self.output += data.decode()

    def end(self) -> int:
        """Stop it with SIGTERM, and return its exit code."""
        self.process.terminate()
        rest, _ = self.process.communicate(timeout=180)
        self.output += rest.decode()
        return self.process.returncode


@pytest.fixture
def started() -> Iterator[Started]:
    """Start a container that is stopped after the test."""
    made: list[Container] = []

    def start(*words: str, **variables: str) -> Container:
        made.append(Container(list(words), variables))
        return made[-1]

    yield start
    for one in made:
        one.process.kill()
        one.process.communicate()


def test_name_server_of_a_newer_operator_runs(started: Started, tmp_path: Path) -> None:
    """It gets an unknown option and an unknown setting."""
    port, alive = free_ports(2)
    container = started(
        *("nameserver", "--option-of-tomorrow", "value", "--data", f"{tmp_path}/data", "--run", str(tmp_path)),
        *("--alive", str(alive), "--other=secret"),
        GANTRY_NAMESERVER_CONF=f"listenPort={port}\nsettingOfTomorrow=1\n",
    )

    container.wait_for_output("name server listening on", "settingOfTomorrow", "--option-of-tomorrow, --other")

    assert container.end() == 0
    assert "secret" not in container.output


@pytest.mark.verify
def test_sidecar_of_a_newer_operator_runs(started: Started, tmp_path: Path) -> None:
    """It gets an unknown option with a value."""
    port, log_port = free_ports(2)
    (tmp_path / "store").mkdir()
    container = started(
        *("sidecar", "--group", str(tmp_path), "--", "--page", f"{tmp_path}/status", "--option-of-tomorrow", "secret"),
        *("--control", f"{tmp_path}/socket", "--store", f"{tmp_path}/store"),
        *("--listen", f"127.0.0.1:{port}", "--log-listen", f"127.0.0.1:{log_port}"),
    )

    container.wait_for_output("ignored options that this version does not know: --option-of-tomorrow", "listening")

    assert container.end() == 0
    assert "secret" not in container.output


def test_broker_of_a_newer_operator_runs(started: Started, tmp_path: Path) -> None:
    """With an unknown option and setting it runs; a known option with a wrong value is refused."""
    port, ha, alive = free_ports(3)
    (tmp_path / "addresses.json").write_text('{"orders-0-master-0": "127.0.0.1", "orders-0": "127.0.0.1"}')
    conf = (
        f"brokerName=orders-0\nbindAddress=127.0.0.1\nlistenPort={port}\nfastListenPort=-1\nhaListenPort={ha}\n"
        f"storePathRootDir={tmp_path}/store\nmappedFileSizeCommitLog=8388608\nroleAtStart=UNASSIGNED\n"
        "brokerRole=SYNC_MASTER\nsettingOfTomorrow=1\n"
    )
    container = started(
        *("broker", "--run", str(tmp_path), "--alive", str(alive), "--option-of-tomorrow"),
        POD_NAME="orders-0-master-0", POD_NAMESPACE="shop", GANTRY_BROKER_CONF=conf,
    )  # fmt: skip

    container.wait_for_output("broker listening on", "settingOfTomorrow", "--option-of-tomorrow")

    assert container.end() == 0
    refused = CliRunner().invoke(cli, ["pod", "broker", "--stall-timeout", "soon", "--option-of-tomorrow"])
    assert refused.exit_code == 2, "a known option with a wrong value was not refused"
