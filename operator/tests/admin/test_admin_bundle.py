"""The contents of the diagnostics bundle, which has no message and no secret."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from admin_scene import READ_TOKEN, TOKEN, broker_process, bundle_entries, sidecar_process, wait_for, write_token_files

from gantry_access.redaction import REDACTED
from gantry_admin.bundle import redacted_settings

BODY = b"the-body-of-a-message-that-must-stay-secret"
SECRET = "s3cr3t-of-an-account"


@pytest.mark.verify
def test_bundle_has_diagnostics_and_no_secrets(tmp_path: Path) -> None:
    """It has page, settings, tables, file names and last log lines, and no message bodies, tokens or keys."""
    log = tmp_path / "broker.log"
    log.write_text(f"INFO starting secretKey={SECRET} listenPort=10911\nAuthorization: Bearer {SECRET}\n")
    tokens = write_token_files(tmp_path / "tokens")
    with broker_process(tmp_path / "store") as broker:
        broker.send(5, body=BODY)
        with sidecar_process(tmp_path / "store", *tokens, "--broker-log", str(log)) as sidecar:
            wait_for(lambda: sidecar.get("/v1/role", token=TOKEN).status_code == 200, "the broker has answered")
            assert sidecar.get("/v1/bundle").status_code == 401
            data = sidecar.get("/v1/bundle", token=READ_TOKEN).content

    found = bundle_entries(data)
    assert {
        "page.bin", "status.json", "group.json", "settings.json", "broker-settings.json", "files.json",
        "tables/topics.json", "logs/broker.log", "logs/sidecar.log", "left-out.json",
    } <= found.keys()  # fmt: skip
    assert json.loads(found["broker-settings.json"])["brokerName"] == "test-broker"
    assert b"listenPort=10911" in found["logs/broker.log"]
    everything = b"\0".join(found.values())
    for secret in (BODY, SECRET.encode(), TOKEN.encode(), READ_TOKEN.encode()):
        assert secret not in everything


def test_values_of_secret_settings_are_removed() -> None:
    """A setting whose name says that it is a secret is listed without its value; others are unchanged."""
    found = redacted_settings({"brokerName": "b", "aclSecretKey": SECRET, "tlsPassword": ""})

    assert found == {"brokerName": "b", "aclSecretKey": REDACTED, "tlsPassword": ""}
