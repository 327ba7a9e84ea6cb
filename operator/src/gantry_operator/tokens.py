"""The operator's key, and the Secrets of each group with the tokens and the authority that are derived from that key.

The key is created once, by the first operator. A process reads it only once, when it becomes the leader: the key must
be replaced while no operator runs, or the leader continues to create Secrets from the old one. The Secrets of a group
are only created, never read or changed, so that the operator needs no right to do so.
"""

from __future__ import annotations

import base64
import secrets
from binascii import Error as BadBase64
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, final

from gantry_operator.api import SECRETS, Kubernetes, Object, ObjectRef
from gantry_operator.clock import Clock
from gantry_operator.errors import Conflict, NotFound, SettingsError
from gantry_operator.execute.applier import REAPPLY_MS
from gantry_operator.observe.group_objects import GroupObjects

KEY_BYTES: Final = 32
FIELD: Final = "key"
"""The key in the Secret under which the operator's key is stored."""


async def operator_key(api: Kubernetes, namespace: str, name: str) -> bytes:
    """Read the operator's key, or create it. Raises ``SettingsError`` for a Secret without a valid key."""
    ref = ObjectRef(SECRETS, namespace, f"{name}-key")
    try:
        return parse_key(await api.get(ref))
    except NotFound:
        pass
    text = base64.b64encode(secrets.token_bytes(KEY_BYTES)).decode()
    document: Object = {
        "apiVersion": SECRETS.api_version,
        "kind": SECRETS.name,
        "metadata": {"name": ref.name, "namespace": namespace},
        "type": "Opaque",
        "data": {FIELD: text},
    }
    try:
        return parse_key(await api.create(document))
    except Conflict:
        return parse_key(await api.get(ref))


def parse_key(document: Object) -> bytes:
    """Return the key in a Secret. No error text contains it. Raises ``SettingsError``."""
    try:
        key = base64.b64decode((document.get("data") or {}).get(FIELD, ""), validate=True)
    except BadBase64:
        key = b""
    if len(key) < KEY_BYTES:
        name = document["metadata"]["name"]
        raise SettingsError(
            f"Secret {name} has no {FIELD} of at least {KEY_BYTES} bytes; delete the Secret, and it is created anew"
        )
    return key


RETRY_MISSING_MS: Final = 10_000
"""The time between two attempts to create Secrets that may be missing."""


@final
class GroupSecrets:
    """The Secrets of one group. Owned by the task of its loop.

    The operator may not read them, so only an attempt to create one shows whether it exists. This is done at the start,
    every ``REAPPLY_MS``, when the group begins to name an archive, and every ``RETRY_MISSING_MS`` where a Secret may be
    missing:

        the last attempt failed                          the API server has not answered that the Secrets exist
        a sidecar rejects the token                      it uses the Secret of an earlier operator
        a pod is scheduled, and never starts             kubelet may wait for a Secret, which no status shows

    The last happens in practice. A group that is deleted and created again at once uses the same Secret name. The
    first Secret still exists when the second one is to be created, and is deleted a moment later.
    """

    def __init__(self, objects: GroupObjects, api: Kubernetes, clock: Clock) -> None:
        self._objects: Final = objects
        self._api: Final = api
        self._clock: Final = clock
        self._tried_ms: int | None = None
        self._is_created = False
        self._had_archive = False

    def __repr__(self) -> str:
        return f"<GroupSecrets {'/'.join(self._objects.key)}>"

    async def ensure(
        self, wanted: Callable[[], Sequence[Object]], *, is_denied: bool, has_archive: bool = False
    ) -> None:
        """Create the Secrets ``wanted`` if one may be missing. Raises leaves of ``ApiError``.

        ``has_archive`` is whether that of the archive server is among them: no pod is rolled before it exists.
        """
        now_ms = self._clock.now_ms()
        if has_archive and not self._had_archive:
            self._tried_ms = None
        may_be_missing = not self._is_created or is_denied or self._objects.pods_not_started()
        again_ms = RETRY_MISSING_MS if may_be_missing else REAPPLY_MS
        if self._tried_ms is not None and now_ms - self._tried_ms < again_ms:
            return
        self._tried_ms, self._is_created = now_ms, False
        for document in wanted():
            with suppress(Conflict):
                await self._api.create(document)
        self._is_created, self._had_archive = True, has_archive
