"""Events for people: each with a reason that never changes, told once, and not again before a while has passed."""

from __future__ import annotations

import hashlib
import logging
from typing import Any, Final, final

from gantry_operator.api import EVENTS, Kubernetes, Object, uid_of
from gantry_operator.clock import Clock, moment_text
from gantry_operator.errors import ApiError, Terminating
from gantry_spec import actions as act
from gantry_spec.decide.decision import line_of

log = logging.getLogger(__name__)

AGAIN_MS: Final = 10 * 60_000
KEPT_MAX: Final = 256
MESSAGE_MAX: Final = 1_000
COMPONENT: Final = "gantry-operator"
REASONS: Final[dict[type[act.Action], str]] = {
    act.TakeLease: "ElectionStarted",
    act.Crown: "MasterNamed",
    act.SetElectable: "ElectableChanged",
    act.Promote: "MasterPromoted",
    act.Drain: "MasterDraining",
    act.Withdraw: "ShardWithdrawn",
    act.Resume: "SendsResumed",
    act.Fence: "BrokerFenced",
    act.Restart: "BrokerRestarted",
    act.Sleep: "ShardAsleep",
    act.Remove: "BrokerRemoved",
    act.ReplaceDisk: "DiskReplaced",
    act.ClearWish: "OrderDone",
}
"""What is done so often that nobody wants to hear of it (follow, promise, keep) has none."""


@final
class Teller:
    """Of one group; owned by its task."""

    def __init__(self, api: Kubernetes, clock: Clock) -> None:
        self._api: Final = api
        self._clock: Final = clock
        self._told: Final[dict[tuple[str, str], int]] = {}

    async def done(self, group: Object, action: act.Action) -> None:
        """Something was done."""
        reason = REASONS.get(type(action))
        if reason is not None:
            await self.tell(group, reason, line_of(action))

    async def tell(self, group: Object, reason: str, message: str, *, is_warning: bool = False) -> None:
        """Once. What cannot be told is logged; only ``Terminating`` is raised."""
        now_ms, key = self._clock.now_ms(), (reason, message)
        if now_ms - self._told.get(key, -AGAIN_MS) < AGAIN_MS:
            return
        while len(self._told) >= KEPT_MAX:
            del self._told[min(self._told, key=lambda one: self._told[one])]
        self._told[key] = now_ms
        try:
            await self._api.create(self._document(group, reason, message, is_warning=is_warning))
        except Terminating:
            raise
        except ApiError as error:
            log.warning("an event was not told", extra={"reason": reason, "error": str(error)})

    def _document(self, group: Object, reason: str, message: str, *, is_warning: bool) -> dict[str, Any]:
        metadata, moment = group["metadata"], self._clock.wall()
        mark = hashlib.sha256(f"{reason} {message} {moment.isoformat()}".encode()).hexdigest()[:16]
        about = {
            "apiVersion": group["apiVersion"],
            "kind": group["kind"],
            "name": metadata["name"],
            "namespace": metadata["namespace"],
            "uid": uid_of(group),
            "resourceVersion": metadata.get("resourceVersion", ""),
        }
        return {
            "apiVersion": EVENTS.api_version,
            "kind": EVENTS.name,
            "metadata": {"name": f"{metadata['name']}.{mark}", "namespace": metadata["namespace"]},
            "involvedObject": about,
            "reason": reason,
            "message": message[:MESSAGE_MAX],
            "type": "Warning" if is_warning else "Normal",
            "source": {"component": COMPONENT},
            "reportingComponent": COMPONENT,
            "reportingInstance": COMPONENT,
            "firstTimestamp": moment_text(moment),
            "lastTimestamp": moment_text(moment),
            "count": 1,
        }
