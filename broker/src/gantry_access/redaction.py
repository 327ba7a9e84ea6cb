"""Removes secrets from text, and packs it into diagnostics bundles, which are passed to other people.

A secret is recognized by its name (`password=...`, `"secretKey": "..."`, also inside quoted JSON), by the scheme of a
header (`Bearer ...`) or by its format: a private key, a token of a Kubernetes service account. Redacting too much is
better than missing a secret.
"""

from __future__ import annotations

import io
import re
import tarfile
import time
from pathlib import Path
from typing import Final

REDACTED: Final = "[redacted]"
"""What a secret is replaced by."""

_NAME: Final = re.compile(r"secret|passw|token|credential|access_?key|private|signature|api_?key", re.IGNORECASE)
"""The names of fields whose values are secret."""
_NAMED: Final = re.compile(
    r"""(?ix) ( [\w.-]* (?:secret|passw|token|credential|access_?key|private|signature|api_?key) [\w.-]*
        \\?["']? \s* [=:] \s* )
        (?: (?P<escaped> \\["'] ) (?: (?! \\["'] ) [^\n] )+     # in quoted JSON
        |   (?P<quote> ["'] ) (?: \\. | (?! (?P=quote) ) [^\\\n] )+
        |   [^\s"',;}]+ )"""
)
"""A name and its value: up to the closing quote, or else up to a space or separator."""
_BEARER: Final = re.compile(r"(?i)(bearer\s+)[^\s\"',;]+")
_PRIVATE_KEY: Final = re.compile(
    r"""(?sx) -----BEGIN\ [A-Z ]*PRIVATE\ KEY----- .*? (?: -----END\ [A-Z ]*PRIVATE\ KEY----- | \Z )
        | \A (?: (?!-----BEGIN) . )*? -----END\ [A-Z ]*PRIVATE\ KEY-----"""
)
"""A private key; the second alternative is a key whose beginning was cut off."""
_JWT: Final = re.compile(r"\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*")


def is_secret_name(name: str) -> bool:
    """Return whether a field or variable of this name contains a secret."""
    return _NAME.search(name) is not None


def read_redacted_tail(path: Path, bytes_max: int) -> str:
    """Read the last lines of a file that may be growing, and redact secrets. Raises OSError."""
    with path.open("rb") as file:
        begin = max(0, file.seek(0, io.SEEK_END) - bytes_max)
        file.seek(begin)
        data = file.read(bytes_max)
    if begin:
        data = data.partition(b"\n")[2]  # the first line may begin inside a secret, which has no name then
    return redact(data.decode("utf-8", "replace"))


def redact(text: str) -> str:
    """Return ``text`` with every recognized secret replaced."""
    text = _JWT.sub(REDACTED, _PRIVATE_KEY.sub(REDACTED, text))
    return _BEARER.sub(rf"\1{REDACTED}", _NAMED.sub(_redact_value, text))


def _redact_value(found: re.Match[str]) -> str:
    return f"{found[1]}{found['escaped'] or found['quote'] or ''}{REDACTED}"


def add_bundle_entry(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    """Add a file to a diagnostics bundle, readable by its owner only. The caller has redacted it."""
    entry = tarfile.TarInfo(f"gantry-bundle/{name}")
    entry.size, entry.mtime, entry.mode = len(data), int(time.time()), 0o600
    archive.addfile(entry, io.BytesIO(data))
