"""Where the brokers are, and who we are: the options that a write shares with a read."""

from __future__ import annotations

from typing import Final

from gantry_client import AccessFileError, Credentials, SignatureKind, read_credentials
from pyspark_rocketmq.errors import InvalidOption
from pyspark_rocketmq.option_words import OptionWords
from pyspark_rocketmq.settings import ReadSettings, TlsFiles

CONNECTION_OPTIONS: Final = (
    "nameServers", "accessKey", "secretKey", "credentialsFile", "signature", "tls", "tlsCa", "tlsCertificate",
    "tlsKey", "tlsVerify", "tlsCheckHost", "requestTimeout", "patience",
)  # fmt: skip


def connection(words: OptionWords) -> ReadSettings:
    """How to reach the cluster. Raises InvalidOption."""
    words.refuse_together("credentialsFile", "accessKey")
    access_key, secret_key = words.text("accessKey") or None, words.text("secretKey") or None
    if words.text("credentialsFile"):
        account = _account(words.text("credentialsFile"))
        access_key, secret_key = account.access_key, account.secret_key
    tls = TlsFiles(
        ca=words.text("tlsCa") or None, certificate=words.text("tlsCertificate") or None,
        key=words.text("tlsKey") or None, is_verified=words.switch("tlsVerify", True),
        is_host_checked=words.switch("tlsCheckHost", True),
    )  # fmt: skip
    has_tls = words.switch("tls", any((tls.ca, tls.certificate, tls.key)))
    return ReadSettings(
        name_servers=words.text("nameServers").replace(",", ";"), access_key=access_key, secret_key=secret_key,
        signature=words.choice("signature", SignatureKind.V1), tls=tls if has_tls else None,
        request_timeout_ms=words.duration_ms("requestTimeout", 10_000, minimum=1),
        patience_ms=words.duration_ms("patience", 120_000),
    )  # fmt: skip


def _account(path: str) -> Credentials:
    try:
        return read_credentials(path)
    except AccessFileError as error:
        raise InvalidOption(f"option credentialsFile: {error}") from error
