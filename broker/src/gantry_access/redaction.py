"""What looks like a secret in a text, and the text without it: for bundles that people hand to others.

A secret is known by its name (`password=...`, `"secretKey": "..."`, also inside of quoted JSON), by the scheme of a
header (`Bearer ...`) or by its own form: a private key, a token of a Kubernetes service account. It is better to take
out too much than to leave one in.
"""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Final

TAKEN_OUT: Final = "[taken out]"

_NAME: Final = re.compile(r"secret|passw|token|credential|access_?key|private|signature|api_?key", re.IGNORECASE)
_NAMED: Final = re.compile(
    r"""(?ix) ( [\w.-]* (?:secret|passw|token|credential|access_?key|signature|api_?key) [\w.-]*
        \\?["']? \s* [=:] \s* \\?["']? ) [^\s"',;}]+"""
)
_BEARER: Final = re.compile(r"(?i)(bearer\s+)[^\s\"',;]+")
_PRIVATE_KEY: Final = re.compile(
    r"""(?sx) -----BEGIN\ [A-Z ]*PRIVATE\ KEY----- .*? (?: -----END\ [A-Z ]*PRIVATE\ KEY----- | \Z )
        | \A (?: (?!-----BEGIN) . )*? -----END\ [A-Z ]*PRIVATE\ KEY-----"""
)
"""The second form is a key whose beginning was cut off."""
_JWT: Final = re.compile(r"\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*")


def names_secret(name: str) -> bool:
    """Whether a field or variable of this name holds a secret."""
    return _NAME.search(name) is not None


def read_redacted_tail(path: Path, bytes_max: int) -> str:
    """Read the last lines of a file that may grow meanwhile, without what looks like a secret. Raises OSError."""
    with path.open("rb") as file:
        begin = max(0, file.seek(0, io.SEEK_END) - bytes_max)
        file.seek(begin)
        data = file.read(bytes_max)
    if begin:
        data = data.partition(b"\n")[2]  # the first line may begin inside a secret, which has no name then
    return redacted(data.decode("utf-8", "replace"))


def redacted(text: str) -> str:
    """``text`` without what looks like a secret."""
    text = _JWT.sub(TAKEN_OUT, _PRIVATE_KEY.sub(TAKEN_OUT, text))
    return _BEARER.sub(rf"\1{TAKEN_OUT}", _NAMED.sub(rf"\1{TAKEN_OUT}", text))
