"""Bundles go to other people: what looks like a secret is taken out of every text, whatever wrote it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gantry_access.redaction import TAKEN_OUT, names_secret, read_redacted_tail, redacted

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
def test_what_looks_like_a_secret_is_taken_out(text: str) -> None:
    """Whatever form it has in a log; the text says that something was there."""
    assert SECRET not in redacted(text)
    assert TAKEN_OUT in redacted(text)


def test_a_token_of_a_service_account_is_known_by_its_form() -> None:
    """Whatever stands before it."""
    token = "eyJhbGciOiJSUzI1NiJ9.eyJpc3MiOiJrdWJlcm5ldGVzIn0.c2lnbmF0dXJlLW9mLXNvbWVib2R5"

    assert redacted(f"GET / {token} 200") == f"GET / {TAKEN_OUT} 200"


def test_a_name_shows_that_its_value_is_a_secret() -> None:
    """In any case; other names keep their values."""
    assert all(map(names_secret, ("aclSecretKey", "DB_PASSWORD", "tls.private", "api_key")))
    assert not any(map(names_secret, ("brokerName", "POD_NAME", "listenPort")))


@pytest.mark.parametrize(
    "before",
    ["password=", "-----BEGIN PRIVATE KEY-----\nMIIE", "-----BEGIN PRIVATE KEY-----\nMIIE\n"],
    ids=["a value", "a line of a key", "a key between its lines"],
)
def test_tail_that_begins_inside_a_secret_does_not_show_it(tmp_path: Path, before: str) -> None:
    """What is before the tail would have told that it is a secret; what follows the secret is shown."""
    path = tmp_path / "broker.log"
    rest = f"{SECRET}\n-----END PRIVATE KEY-----\nstarted\n" if "KEY" in before else f"{SECRET}\nstarted\n"
    path.write_text(before + rest)

    for bytes_max in range(1, os.path.getsize(path) + 1):
        shown = read_redacted_tail(path, bytes_max)
        assert not any(part in shown for part in (SECRET, SECRET[-8:]))
    assert shown.endswith("started\n")
