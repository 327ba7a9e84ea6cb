"""Who may do what: the table of `guard`, cell by cell, and what is read from files of tokens."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from admin_scene import READ_TOKEN, TOKEN, write_token_files

from gantry_admin.__main__ import parser, settings_of
from gantry_admin.credentials import TokenFile
from gantry_admin.errors import Problem, SettingsError
from gantry_admin.guard import Guard, Scope, is_own_name
from gantry_admin.settings import SidecarSettings

BROKER = ["--page", "p", "--control", "c", "--store", "s"]
HOST = "127.0.0.1:8080"


def settings(*arguments: str) -> SidecarSettings:
    return settings_of(parser().parse_args([*BROKER, *arguments]))


def outcome(
    guard: Guard, scope: Scope, *, token: str | None = None, subject: str | None = None, host: str = HOST
) -> int:
    """The status that a caller gets; 200 when let through."""
    try:
        caller = guard.caller(None if token is None else f"Bearer {token}", subject)
        guard.check(scope, caller, host)
    except Problem as problem:
        return problem.status
    return 200


@pytest.mark.parametrize(
    ("with_tokens", "options", "token", "expected"),
    [
        (False, [], None, (200, 200, 401, 403)),
        (False, ["--open-reads"], None, (200, 200, 200, 403)),
        (True, [], None, (200, 401, 401, 401)),
        (True, ["--open-reads"], None, (200, 200, 200, 401)),
        (True, [], READ_TOKEN, (200, 200, 200, 403)),
        (True, [], TOKEN, (200, 200, 200, 200)),
        (True, [], "wrong-" + TOKEN, (401, 401, 401, 401)),
        (False, [], TOKEN, (401, 401, 401, 401)),
        (True, ["--listen", "0.0.0.0:8080"], None, (200, 401, 401, 401)),
        (True, ["--listen", "0.0.0.0:8080"], READ_TOKEN, (200, 200, 200, 403)),
    ],
)
def test_permissions_of_each_caller(
    tmp_path: Path, with_tokens: bool, options: list[str], token: str | None, expected: tuple[int, ...]
) -> None:
    """Probes, view, reading messages and changes, for each kind of caller."""
    guard = Guard(settings(*options, *(write_token_files(tmp_path) if with_tokens else [])))

    assert tuple(outcome(guard, scope, token=token) for scope in Scope) == expected


def test_client_certificate_has_all_permissions(tmp_path: Path) -> None:
    """The audit line has the name of the certificate that TLS has verified."""
    guard = Guard(settings(*write_token_files(tmp_path), "--listen", "0.0.0.0:8080"))

    assert outcome(guard, Scope.CHANGE, subject="operator") == 200
    assert guard.caller(None, "operator").name == "certificate:operator"


@pytest.mark.parametrize("name", ["evil.example", "evil.example:8080", "10.0.0.1:8080", "", "127.0.0.1.evil.example"])
def test_dns_rebinding_is_refused(tmp_path: Path, name: str) -> None:
    """Without a token the Host header must name the loopback; with one it does not matter."""
    guard = Guard(settings())

    assert outcome(guard, Scope.VIEW, host=name) == 403
    assert outcome(guard, Scope.VIEW, host=HOST) == 200
    assert outcome(Guard(settings(*write_token_files(tmp_path))), Scope.VIEW, token=READ_TOKEN, host=name) == 200


@pytest.mark.parametrize("name", ["localhost", "LOCALHOST:1", "127.0.0.1", "127.9.9.9:80", "[::1]:8080", "[::1]"])
def test_loopback_host_names_are_accepted(name: str) -> None:
    """They are accepted with and without a port."""
    assert is_own_name(name)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--listen", "0.0.0.0:8080"], "--token-file"),
        (["--listen", "127.0.0.1:8080", "--log-listen", "192.0.2.1:1"], "--log-listen"),
        (["--tls-cert", "x"], "--tls-key"),
        (["--tls-client-ca", "x"], "--tls-cert"),
        (["--listen", "nonsense"], "host:port"),
        (["--peer", "ftp://x"], "--peer"),
        (["--log-readers", "0"], "--log-readers"),
    ],
)
def test_unsafe_settings_stop_the_start(arguments: list[str], text: str) -> None:
    """Each error names its option; without credentials the sidecar never listens beyond loopback."""
    with pytest.raises(SettingsError, match=text):
        settings(*arguments)


def test_open_reads_require_loopback(tmp_path: Path) -> None:
    """Even with tokens configured, other machines never read without one."""
    with pytest.raises(SettingsError, match="--open-reads"):
        settings(*write_token_files(tmp_path), "--open-reads", "--listen", "0.0.0.0:8080")


def test_token_is_replaced_without_a_restart(tmp_path: Path) -> None:
    """A changed file is reloaded; for an invalid or missing file the previous tokens stay valid."""
    path = tmp_path / "tokens"
    path.write_text("a:0123456789abcdef-old\n")
    tokens = TokenFile(path)

    path.write_text("a:0123456789abcdef-old\nb:0123456789abcdef-new\n")
    tokens.refresh()
    assert (tokens.name_of("0123456789abcdef-old"), tokens.name_of("0123456789abcdef-new")) == ("a", "b")

    path.write_bytes(b"\xff\xfe short")
    tokens.refresh()
    os.unlink(path)
    tokens.refresh()
    assert tokens.name_of("0123456789abcdef-new") == "b"
    assert "0123456789abcdef" not in repr(tokens)


@pytest.mark.parametrize(
    "text", ["", "# nothing\n", "a:short\n", "a:with a blank in the middle\n", "ü:üüüüüüüüüüüüüüüüüüüü\n"]
)
def test_invalid_token_file_stops_the_start(tmp_path: Path, text: str) -> None:
    """The error names the file, and never has the content of a line."""
    path = tmp_path / "tokens"
    path.write_text(text)

    with pytest.raises(SettingsError) as raised:
        TokenFile(path)

    assert str(path) in str(raised.value)
    assert "blank in" not in str(raised.value)


def test_token_file_that_is_not_utf8_stops_the_start(tmp_path: Path) -> None:
    """The error names the file; it has nothing of its content, which a decoding error quotes."""
    path = tmp_path / "tokens"
    path.write_bytes("a:0123456789abcdef-öld\n".encode("latin-1"))

    with pytest.raises(SettingsError) as raised:
        TokenFile(path)

    assert str(raised.value).startswith(f"{path} is not UTF-8 text")
    assert raised.value.__cause__ is None


def test_token_file_that_cannot_be_reloaded_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The file is read again every few seconds; each new reason is logged, and the same one again after a success."""
    path = tmp_path / "tokens"
    valid = b"a:0123456789abcdef-old\n"
    path.write_bytes(valid)
    tokens = TokenFile(path)

    for content in (b"\xff\xfe", b"\xff\xfe", b"short\n", valid + b"\n", b"\xff\xfe"):
        path.write_bytes(content)
        tokens.refresh()
        tokens.refresh()

    reasons = [str(record.__dict__["reason"]) for record in caplog.records]
    assert ["UTF-8" in reason for reason in reasons] == [True, False, True]
    assert tokens.name_of("0123456789abcdef-old") == "a"
