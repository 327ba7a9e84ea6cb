"""Taking out what looks like a secret, from objects and from logs, before somebody else is shown them.

Secrets are never asked for, so what is left are mistakes: a password in a variable of a template, a token in a log.
What calls itself a secret goes without its value; names of Secrets stay, since whoever looks for a fault needs them.
"""

from __future__ import annotations

import re
from typing import Any, Final

TAKEN_OUT: Final = "[taken out]"
LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"

_NAME: Final = re.compile(r"secret|passw|token|credential|access_?key|private|signature|api_?key", re.IGNORECASE)
_IN_TEXT: Final = re.compile(
    r"""(?ix) ( [\w.-]* (?:secret|passw|token|credential|access_?key|signature|api_?key) [\w.-]*
        \\?["']? \s* [=:] \s* \\?["']? ) [^\s"',;}\\]+"""
)
_BEARER: Final = re.compile(r"(?i)(bearer\s+)[^\s\"',;]+")
_KEY: Final = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL)
_JWT: Final = re.compile(r"\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*")
_HARMLESS: Final = frozenset(
    {"secretname", "automountserviceaccounttoken", "imagepullsecrets", "serviceaccounttoken", "tokenexpirationseconds"}
)
"""Keys of Kubernetes' own that name a secret and hold none."""


def scrubbed_text(text: str) -> str:
    """``text`` without what looks like a secret."""
    text = _JWT.sub(TAKEN_OUT, _KEY.sub(TAKEN_OUT, text))
    return _BEARER.sub(rf"\1{TAKEN_OUT}", _IN_TEXT.sub(rf"\1{TAKEN_OUT}", text))


def scrubbed(value: Any) -> Any:
    """The same of an object as the API server answers it, without what only Kubernetes itself needs."""
    if isinstance(value, list):
        return [scrubbed(one) for one in value]
    if isinstance(value, str):
        return scrubbed_text(value)
    if not isinstance(value, dict):
        return value
    if isinstance(value.get("name"), str) and isinstance(value.get("value"), str) and _NAME.search(value["name"]):
        return value | {"value": TAKEN_OUT}  # a variable of a container
    return {key: _of_key(str(key), inner) for key, inner in value.items() if key not in ("managedFields", LAST_APPLIED)}


def _of_key(key: str, value: Any) -> Any:
    is_secret = isinstance(value, str) and value and _NAME.search(key) and key.lower() not in _HARMLESS
    return TAKEN_OUT if is_secret else scrubbed(value)
