"""The command line over TLS: options, environment variables and errors."""

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
    """A name server that requires TLS and client certificates."""
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


def test_command_connects_with_tls(address: str, party: Party) -> None:
    """A command with CA and certificate succeeds; without one of them it fails with exit code 1."""
    command = ("topic", "list", "--all", "-n", address)
    authority, pair = ("--tls-ca", str(party.authority)), ("--tls-cert", str(party.chain), "--tls-key", str(party.key))

    served = gantry(*command, *authority, *pair)
    assert served.returncode == 0, served.stderr
    for options in ((), ("--tls", *pair), authority):
        refused = gantry(*command, *options)
        assert refused.returncode == 1 and "Traceback" not in refused.stderr, options
    assert "certificate verify failed" in gantry(*command, "--tls", *pair).stderr
    half = gantry(*command, *authority, *pair[:2])
    assert half.returncode == 1 and "go together" in half.stderr


@pytest.mark.verify
def test_tls_options_are_read_from_environment(address: str, party: Party) -> None:
    """All TLS options can be set in the environment."""
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
def test_tls_options_are_converted_to_settings(arguments: tuple[str, ...], settings: ClientTlsSettings | None) -> None:
    """TLS is used only if requested, with full verification by default."""
    found: list[ClientTlsSettings | None] = []

    @click.command()
    @name_server_option
    def command(name_server: str) -> None:
        found.append(client_tls())

    result = CliRunner().invoke(command, ["-n", "127.0.0.1:9876", *arguments])

    assert result.exit_code == 0, result.output
    assert found == [settings]


def test_tls_verify_without_tls_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """--tls-verify would have no effect without TLS. Its variable is permitted, since other commands use TLS."""

    @click.command()
    @name_server_option
    def command(name_server: str) -> None:
        assert client_tls() is None

    monkeypatch.setenv("GANTRY_TLS_VERIFY", "none")
    assert CliRunner().invoke(command, []).exit_code == 0
    refused = CliRunner().invoke(command, ["--tls-verify", "authority"])
    assert refused.exit_code == 2 and "--tls-verify has no effect without --tls" in refused.stderr


def test_no_tls_outside_of_a_command() -> None:
    """Without a click context, plain text is used."""
    assert client_tls() is None
