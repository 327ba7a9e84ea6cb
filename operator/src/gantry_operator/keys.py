"""The operator's key, from which every group's token is derived: made once, by whichever operator comes first."""

from __future__ import annotations

import base64
import secrets
from binascii import Error as BadBase64
from typing import Final

from gantry_operator.api import SECRETS, Kubernetes, Object, Place
from gantry_operator.errors import Conflict, Gone, SettingsError

KEY_BYTES: Final = 32
FIELD: Final = "key"


async def operator_key(api: Kubernetes, namespace: str, name: str) -> bytes:
    """Raises ``SettingsError`` for a Secret that holds none."""
    place = Place(SECRETS, namespace, f"{name}-key")
    try:
        return key_in(await api.get(place))
    except Gone:
        pass
    text = base64.b64encode(secrets.token_bytes(KEY_BYTES)).decode()
    document: Object = {
        "apiVersion": SECRETS.api_version,
        "kind": SECRETS.name,
        "metadata": {"name": place.name, "namespace": namespace},
        "type": "Opaque",
        "data": {FIELD: text},
    }
    try:
        return key_in(await api.create(document))
    except Conflict:
        return key_in(await api.get(place))


def key_in(document: Object) -> bytes:
    """What is in it, and never in a message."""
    try:
        key = base64.b64decode((document.get("data") or {}).get(FIELD, ""), validate=True)
    except BadBase64:
        key = b""
    if len(key) < KEY_BYTES:
        name = document["metadata"]["name"]
        raise SettingsError(f"the Secret {name} holds no {FIELD} of {KEY_BYTES} bytes: delete it, and it is made anew")
    return key
