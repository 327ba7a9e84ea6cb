"""Every command that connects to a cluster uses the TLS options and the account that were set."""

import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import trustme
from click.testing import CliRunner

from gantry_cli.doctor import dialogue
from gantry_cli.main import cli
from gantry_remoting import CannotConnect, Channel
from gantry_testing.certificates import Party

COMMANDS: dict[str, tuple[str, ...]] = {
    "status": (),
    "doctor": (),
    "topic create": ("orders",),
    "topic delete": ("orders", "--yes"),
    "topic describe": ("orders",),
    "topic list": (),
    "topic stats": ("orders",),
    "produce": ("orders", "hello"),
    "consume": ("orders", "--count", "1"),
    "topic order": ("orders",),
    "search": ("orders", "--key", "order-17"),
    "message describe": ("orders/broker-a/0@0",),
    "message resend": ("orders/broker-a/0@0",),
    "group list": (),
    "group describe": ("billing",),
    "group stats": ("billing",),
    "group members": ("billing",),
    "group connections": ("billing",),
    "group running": ("billing",),
    "group reset": ("billing", "orders", "--to", "earliest", "--yes"),
    "group clone": ("billing", "billing-2", "--yes"),
    "group consume": ("billing", "7F00000100002A9F0000000000000C80"),
    "group delete": ("billing", "--yes"),
    "group resend": ("billing", "--from-dead-letters"),
    "migrate": ("--data", "new", "--dry-run"),
}
"""The arguments that each command with TLS options needs in addition."""

READING_AS_A_GROUP = ("consume", ("orders", "--group", "billing", "--count", "1"))


def with_tls(command: click.Command, context: click.Context, words: tuple[str, ...] = ()) -> Iterator[str]:
    """Yield every command without subcommands that has TLS options."""
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            yield from with_tls(inner, click.Context(inner, info_name=name, parent=context), (*words, name))
    elif any("--tls-ca" in parameter.opts for parameter in command.params):
        yield " ".join(words)


@pytest.fixture
def connected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Record the arguments of every connection; none is opened."""
    monkeypatch.chdir(tmp_path)
    asked: list[dict[str, Any]] = []

    async def connect(address: str, **how: Any) -> Channel:
        asked.append(how)
        raise CannotConnect(f"{address}: the test makes no connections")

    async def reach(address: str, timeout_ms: int) -> bool:
        return True

    monkeypatch.setattr(Channel, "connect", connect)
    monkeypatch.setattr(dialogue, "_connect_plain", reach)  # `gantry doctor` connects to a server before it uses TLS
    return asked


@pytest.fixture
def account(tmp_path: Path) -> list[str]:
    path = tmp_path / "account.yml"
    path.write_text("accessKey: an-account\nsecretKey: a-secret\n")
    return ["--credentials", str(path), "--signature", "strict"]


def test_all_commands_with_tls_options_are_listed() -> None:
    """A new command must be added to the table above."""
    assert set(with_tls(cli, click.Context(cli))) == COMMANDS.keys()


@pytest.mark.parametrize(
    ("command", "more"), [*COMMANDS.items(), READING_AS_A_GROUP], ids=[*COMMANDS, "consume as a group"]
)
def test_command_connects_with_requested_tls_and_signature(
    tmp_path: Path, connected: list[dict[str, Any]], account: list[str], command: str, more: tuple[str, ...]
) -> None:
    """Every connection has the TLS context and the strict signature if they are set, and neither otherwise."""
    party = Party(tmp_path / "party", trustme.CA())
    tls = ["--tls-ca", str(party.authority), "--tls-cert", str(party.chain), "--tls-key", str(party.key)]
    words = [*command.split(), *more, "-n", "127.0.0.1:1"]

    with_options = CliRunner().invoke(cli, [*account, *words, *tls])
    guarded = connected.copy()
    connected.clear()
    without_options = CliRunner().invoke(cli, words)

    assert (with_options.exit_code, without_options.exit_code) == (1, 1), (with_options.output, without_options.output)
    assert guarded and connected
    for how in guarded:
        assert isinstance(how["tls"], ssl.SSLContext) and how["tls"].verify_mode is ssl.CERT_REQUIRED
        assert len(how["tls"].get_ca_certs()) == 1
        assert type(how["sign"]).__name__ == "StrictSigner"
    for how in connected:
        assert how["tls"] is None and how["sign"] is None


@pytest.mark.parametrize("option", ["--tls-ca", "--tls-cert", "--tls-key"])
@pytest.mark.parametrize("command", ["topic list", "migrate", "doctor"])
def test_invalid_tls_file_is_reported_with_its_option(
    tmp_path: Path, connected: list[dict[str, Any]], command: str, option: str
) -> None:
    """The error is short, the exit code is 1, and no connection in plain text is opened instead."""
    party = Party(tmp_path / "party", trustme.CA())
    files = {"--tls-ca": party.authority, "--tls-cert": party.chain, "--tls-key": party.key}
    files[option].write_bytes(b"nonsense")
    options = [word for name, path in files.items() for word in (name, str(path))]

    result = CliRunner().invoke(cli, [*command.split(), *COMMANDS[command], "-n", "127.0.0.1:1", *options])

    assert result.exit_code == 1 and not connected
    assert f"{option}={files[option]}" in result.output and len(result.output.splitlines()) <= 2, result.output
