"""The Secret with a group's tokens: created, and never read or changed, so that no right to do so is needed.

Whether it is there can only be found out by creating it once more. That is done when this begins, now and then, and
soon again where it may lack:

    a sidecar does not know our token                    it has the Secret of somebody before us
    a pod has a machine, and its broker does not begin   kubelet may wait for the Secret, and says so to nobody here

The second is no matter of chance. A group that is deleted and applied again at once has the name of the first one's
Secret, which is still there when the second one's is created, and goes a moment later.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Final, final

from gantry_operator.acting.applying import AGAIN_MS
from gantry_operator.api import Kubernetes
from gantry_operator.clock import Clock
from gantry_operator.errors import Conflict
from gantry_operator.objects import secret
from gantry_operator.observing.group_objects import GroupObjects
from gantry_spec.manifest.group import BrokerGroup

LACKING_MS: Final = 10_000
"""Between two tries where it may lack."""


@final
class GroupSecret:
    """Of one group; owned by its task."""

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
