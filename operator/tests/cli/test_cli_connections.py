"""Every command that talks to a cluster does it as it was told to: over TLS, and as the account that was given."""

import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import trustme
from click.testing import CliRunner

from gantry_cli.main import cli
from gantry_remoting import CannotConnect, Channel
from gantry_testing.certificates import Party

COMMANDS: dict[str, tuple[str, ...]] = {
    "status": (),
    "topic create": ("orders",),
    "topic delete": ("orders", "--yes"),
    "topic describe": ("orders",),
    "topic list": (),
    "topic stats": ("orders",),
    "produce": ("orders", "hello"),
    "consume": ("orders", "--count", "1"),
    "topic order": ("orders",),
    "group list": (),
    "group describe": ("billing",),
    "group stats": ("billing",),
    "group members": ("billing",),
    "group connections": ("billing",),
    "group running": ("billing",),
    "group reset": ("billing", "orders", "--to", "earliest", "--yes"),
    "group clone": ("billing", "billing-2", "--yes"),
    "group consume": ("billing", "7F00000100002A9F0000000000000C80"),
    "group resend": ("billing", "--from-dead-letters"),
    "migrate": ("--data", "new", "--dry-run"),
}
"""What each command that has TLS options needs beside them."""

READING_AS_A_GROUP = ("consume", ("orders", "--group", "billing", "--count", "1"))


def with_tls(command: click.Command, context: click.Context, words: tuple[str, ...] = ()) -> Iterator[str]:
    """Every command at a leaf of the tree that has TLS options."""
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            yield from with_tls(inner, click.Context(inner, info_name=name, parent=context), (*words, name))
    elif any("--tls-ca" in parameter.opts for parameter in command.params):
        yield " ".join(words)


@pytest.fixture
def connected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """How every connection was asked for; none is made."""
    monkeypatch.chdir(tmp_path)
    asked: list[dict[str, Any]] = []

    async def connect(address: str, **how: Any) -> Channel:
        asked.append(how)
        raise CannotConnect(f"{address}: the test makes no connections")

    monkeypatch.setattr(Channel, "connect", connect)
    return asked


@pytest.fixture
def account(tmp_path: Path) -> list[str]:
    path = tmp_path / "account.yml"
    path.write_text("accessKey: somebody\nsecretKey: a-secret\n")
    return ["--credentials", str(path), "--signature", "strict"]


def test_every_command_with_tls_is_in_this_test() -> None:
    """Whoever adds a command has to say here how it is called."""
    assert set(with_tls(cli, click.Context(cli))) == COMMANDS.keys()


@pytest.mark.parametrize(
    ("command", "more"), [*COMMANDS.items(), READING_AS_A_GROUP], ids=[*COMMANDS, "consume as a group"]
)
def test_a_command_connects_as_it_was_told(
    tmp_path: Path, connected: list[dict[str, Any]], account: list[str], command: str, more: tuple[str, ...]
) -> None:
    """Each of its connections has the TLS context and the strict signature that were asked for; without, neither."""
    party = Party(tmp_path / "party", trustme.CA())
    tls = ["--tls-ca", str(party.authority), "--tls-cert", str(party.chain), "--tls-key", str(party.key)]
    words = [*command.split(), *more, "-n", "127.0.0.1:1"]

    told = CliRunner().invoke(cli, [*account, *words, *tls])
    guarded = connected.copy()
    connected.clear()
    untold = CliRunner().invoke(cli, words)

    assert (told.exit_code, untold.exit_code) == (1, 1), (told.output, untold.output)
    assert guarded and connected
    for how in guarded:
        assert isinstance(how["tls"], ssl.SSLContext) and how["tls"].verify_mode is ssl.CERT_REQUIRED
        assert len(how["tls"].get_ca_certs()) == 1
        assert type(how["sign"]).__name__ == "StrictSigner"
    for how in connected:
        assert how["tls"] is None and how["sign"] is None


@pytest.mark.parametrize("option", ["--tls-ca", "--tls-cert", "--tls-key"])
@pytest.mark.parametrize("command", ["topic list", "migrate"])
def test_a_file_that_is_none_is_named_by_its_option(
    tmp_path: Path, connected: list[dict[str, Any]], command: str, option: str
) -> None:
    """One line and exit code 1, and nobody was connected to in plain text instead."""
    party = Party(tmp_path / "party", trustme.CA())
    files = {"--tls-ca": party.authority, "--tls-cert": party.chain, "--tls-key": party.key}
    files[option].write_bytes(b"nonsense")
    options = [word for name, path in files.items() for word in (name, str(path))]

    result = CliRunner().invoke(cli, [*command.split(), *COMMANDS[command], "-n", "127.0.0.1:1", *options])

    assert result.exit_code == 1 and not connected
    assert f"{option}={files[option]}" in result.output and len(result.output.splitlines()) <= 2, result.output
