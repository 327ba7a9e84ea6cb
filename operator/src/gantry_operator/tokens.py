"""The operator's key, and the Secret of each group with the tokens that are derived from that key.

The key is created once, by the first operator. The Secret of a group is created, and never read or changed, so that no
right to do so is needed.
"""

from __future__ import annotations

import base64
import secrets
from binascii import Error as BadBase64
from contextlib import suppress
from typing import Final, final

from gantry_operator.api import SECRETS, Kubernetes, Object, Place
from gantry_operator.clock import Clock
from gantry_operator.errors import Conflict, Gone, SettingsError
from gantry_operator.execute.applier import AGAIN_MS
from gantry_operator.objects import secret
from gantry_operator.observe.group_objects import GroupObjects
from gantry_spec.manifest.group import BrokerGroup

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


LACKING_MS: Final = 10_000
"""Between two tries where it may lack."""


@final
class GroupSecret:
    """The Secret of one group. Owned by the task of its loop.

    Whether it exists can only be found out by creating it again. That is done at the beginning, now and then, and soon
    again where it may be missing:

        a sidecar does not know our token                    it has the Secret of an operator before us
        a pod has a machine, and its broker does not start   kubelet may wait for the Secret, which no status says

    The second happens in practice. A group that is deleted and applied again at once has the name of the first one's
    Secret, which still exists when the second one's is created, and is deleted a moment later.
    """

    def __init__(self, objects: GroupObjects, api: Kubernetes, clock: Clock) -> None:
        self._objects: Final = objects
        self._api: Final = api
        self._clock: Final = clock
        self._tried_ms: int | None = None

    def __repr__(self) -> str:
        return f"<GroupSecret {'/'.join(self._objects.key)}>"

    async def keep(self, group: BrokerGroup, token: str, *, is_denied: bool) -> None:
        """Make it if it may not be there. Raises leaves of ``ApiError``."""
        now_ms = self._clock.now_ms()
        again_ms = LACKING_MS if is_denied or self._objects.held_up() else AGAIN_MS
        if self._tried_ms is not None and now_ms - self._tried_ms < again_ms:
            return
        self._tried_ms = now_ms
        with suppress(Conflict):
            await self._api.create(secret(group, token))
