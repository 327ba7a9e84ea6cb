"""Diagnostic bundles go to other people: secrets are removed from their texts, in the formats of settings and keys."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gantry_access.redaction import REDACTED, is_secret_name, read_redacted_tail, redact

SECRET = "correct-horse-battery"


@pytest.mark.parametrize(
    "text",
    [
        f"secretKey={SECRET}", f'"secretKey": "{SECRET}"', f"secretKey: {SECRET}", f"password: {SECRET}",
        f"password={SECRET}", f"my.api_key={SECRET},", f"TOKEN='{SECRET}'", f'{{"accessKey": "{SECRET}"}}',
        f'env "API_KEY"="{SECRET}"', f'\\"token\\": \\"{SECRET}\\"', f"password=one\\{SECRET}",
        f"Authorization: Bearer {SECRET}",
        f"-----BEGIN PRIVATE KEY-----\n{SECRET}\n-----END PRIVATE KEY-----",
        f"-----BEGIN RSA PRIVATE KEY-----\n{SECRET}\n-----END RSA PRIVATE KEY-----",
        f"-----BEGIN RSA PRIVATE KEY-----\n{SECRET}", f"-----BEGIN PRIVATE KEY-----\n{SECRET}",
    ],
)  # fmt: skip
def test_secrets_in_logs_are_redacted(text: str) -> None:
    """A secret is removed in each of these formats, and the text shows that something was removed."""
    assert SECRET not in redact(text)
    assert REDACTED in redact(text)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ('"secretKey": "one, two; three}" "b": 1', f'"secretKey": "{REDACTED}" "b": 1'),
        ("password: 'one two' next", f"password: '{REDACTED}' next"),
        ('{"secretKey": "one\\" two", "a": 1}', f'{{"secretKey": "{REDACTED}", "a": 1}}'),
        ('"{\\"token\\": \\"one, two\\", \\"a\\": 1}"', f'"{{\\"token\\": \\"{REDACTED}\\", \\"a\\": 1}}"'),
        ('token="one two\nnext', f'token="{REDACTED}\nnext'),
        ("tls.private=one, two", f"tls.private={REDACTED}, two"),
        ('"password": "", "a": 1', '"password": "", "a": 1'),
    ],
    ids=["separators", "single quotes", "escaped quote", "quoted JSON", "cut off", "private", "empty"],
)
def test_secret_in_quotes_is_redacted_up_to_the_closing_one(text: str, shown: str) -> None:
    """Secrets may contain spaces, separators and quotes; what follows is kept."""
    assert redact(text) == shown


def test_service_account_token_is_redacted_by_its_format() -> None:
    """A token is recognized without a name before it."""
    token = "eyJhbGciOiJSUzI1NiJ9.eyJpc3MiOiJrdWJlcm5ldGVzIn0.c2lnbmF0dXJlLW9mLXNvbWVib2R5"

    assert redact(f"GET / {token} 200") == f"GET / {REDACTED} 200"


def test_secret_names_are_recognized() -> None:
    """Case does not matter; values of other names are kept."""
    assert all(map(is_secret_name, ("aclSecretKey", "DB_PASSWORD", "tls.private", "api_key")))
    assert not any(map(is_secret_name, ("brokerName", "POD_NAME", "listenPort")))


@pytest.mark.parametrize(
    "before",
    ["password=", "-----BEGIN PRIVATE KEY-----\nMIIE", "-----BEGIN PRIVATE KEY-----\nMIIE\n"],
    ids=["a value", "a line of a key", "a key between its lines"],
)
def test_tail_that_begins_inside_a_secret_is_redacted(tmp_path: Path, before: str) -> None:
    """The name of the secret is before the tail; the text after the secret is shown."""
    path = tmp_path / "broker.log"
    rest = f"{SECRET}\n-----END PRIVATE KEY-----\nstarted\n" if "KEY" in before else f"{SECRET}\nstarted\n"
    path.write_text(before + rest)

    for bytes_max in range(1, os.path.getsize(path) + 1):
        shown = read_redacted_tail(path, bytes_max)
        assert not any(part in shown for part in (SECRET, SECRET[-8:]))
    assert shown.endswith("started\n")
