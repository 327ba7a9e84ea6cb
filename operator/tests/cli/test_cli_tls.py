"""The command line over TLS: options and environment, and one line for what does not work."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
import trustme
from click.testing import CliRunner

from gantry_cli.options import name_server_option
from gantry_cli.tls_options import client_tls
from gantry_client import ClientTlsSettings
from gantry_testing.certificates import Party
from gantry_testing.tree import PYTHON_PATH

ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("GANTRY_")} | {
    "PYTHONPATH": PYTHON_PATH
}


@pytest.fixture
def party(tmp_path: Path) -> Party:
    return Party(tmp_path / "party", trustme.CA())


@pytest.fixture
def address(tmp_path: Path, party: Party) -> Iterator[str]:
    """A name server process that takes nothing but TLS, and only from clients with a certificate."""
    arguments = ["--listen", "127.0.0.1:0", "--data", str(tmp_path / "data"), "--tls", "enforcing"]
    files = ["--tls-cert", str(party.chain), "--tls-key", str(party.key), "--tls-ca", str(party.authority)]
    with subprocess.Popen(
        [sys.executable, "-m", "gantry_nameserver", *arguments, *files],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=ENVIRONMENT,
    ) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line.startswith("name server listening on "), line
            yield f"127.0.0.1:{line.rpartition(':')[2].strip()}"
        finally:
            process.terminate()


def gantry(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "gantry_cli", *arguments], capture_output=True, text=True, timeout=180, check=False,
        env=ENVIRONMENT | environment,
    )  # fmt: skip


def test_a_command_speaks_tls(address: str, party: Party) -> None:
    """With the authority and a certificate a command gets its answer; each missing part is one line and exit code 1."""
    asked = ("topic", "list", "--all", "-n", address)
    authority, pair = ("--tls-ca", str(party.authority)), ("--tls-cert", str(party.chain), "--tls-key", str(party.key))

    served = gantry(*asked, *authority, *pair)
    assert served.returncode == 0, served.stderr
    for options in ((), ("--tls", *pair), authority):
        refused = gantry(*asked, *options)
        assert refused.returncode == 1 and "Traceback" not in refused.stderr, options
    assert "certificate verify failed" in gantry(*asked, "--tls", *pair).stderr, "the reason is said"
    half = gantry(*asked, *authority, *pair[:2])
    assert half.returncode == 1 and "go together" in half.stderr


@pytest.mark.verify
def test_a_shell_may_always_speak_tls(address: str, party: Party) -> None:
    """Everything may stand in the environment."""
    served = gantry(
        "topic", "list", "--all",
        GANTRY_NAMESRV=address, GANTRY_TLS_CA=str(party.authority), GANTRY_TLS_CERT=str(party.chain),
        GANTRY_TLS_KEY=str(party.key),
    )  # fmt: skip

    assert served.returncode == 0, served.stderr


@pytest.mark.parametrize(
    ("arguments", "settings"),
    [
        ((), None),
        (("--tls",), ClientTlsSettings()),
        (("--tls", "--tls-verify", "authority"), ClientTlsSettings(is_host_name_checked=False)),
        (
            ("--tls", "--tls-verify", "none"),
            ClientTlsSettings(is_server_verified=False, is_host_name_checked=False),
        ),
    ],
    ids=["plain", "full", "authority", "none"],
)
def test_options_become_settings(arguments: tuple[str, ...], settings: ClientTlsSettings | None) -> None:
    """Verification is complete unless less is asked for, and TLS is only spoken when it is asked for."""
    found: list[ClientTlsSettings | None] = []

    @click.command()
    @name_server_option
    def command(name_server: str) -> None:
        found.append(client_tls())

    result = CliRunner().invoke(command, ["-n", "127.0.0.1:9876", *arguments])

    assert result.exit_code == 0, result.output
    assert found == [settings]


def test_a_verification_without_tls_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plain text verifies nothing, and who asks for less believes that something is; the environment may hold it."""

    @click.command()
    @name_server_option
    def command(name_server: str) -> None:
        assert client_tls() is None

    monkeypatch.setenv("GANTRY_TLS_VERIFY", "none")
    assert CliRunner().invoke(command, []).exit_code == 0
    refused = CliRunner().invoke(command, ["--tls-verify", "authority"])
    assert refused.exit_code == 2 and "--tls-verify has no effect without --tls" in refused.stderr


def test_outside_of_a_command_nothing_is_asked_for() -> None:
    """Code that a command shares with others speaks plain text there."""
    assert client_tls() is None
