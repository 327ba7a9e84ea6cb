"""Kubernetes events: each has a stable reason, and the same event is recorded at most once every ``REPEAT_MS``."""

from __future__ import annotations

import hashlib
import logging
from typing import Any, Final, NamedTuple, final

from gantry_operator.api import EVENTS, Kubernetes, Object, uid_of
from gantry_operator.clock import Clock, format_time
from gantry_operator.errors import ApiError, NamespaceTerminating
from gantry_spec import actions as act
from gantry_spec.decide.decision import line_of

log = logging.getLogger(__name__)

REPEAT_MS: Final = 10 * 60_000
RETRY_MS: Final = 30_000
"""The time after a failure before the same event is tried again: the resource's loop may report it every second."""

REMEMBERED_MAX: Final = 256
"""How many events of a resource are remembered, so that they are not repeated too soon."""

MESSAGE_MAX: Final = 1_000
"""The most characters of an event's message; Kubernetes allows 1,024."""

COMPONENT: Final = "gantry-operator"
"""The name of the operator as the source of an event."""

REASONS: Final[dict[type[act.Action], str]] = {
    act.TakeEpoch: "ElectionStarted",
    act.RecordMaster: "MasterNamed",
    act.SetElectable: "ElectableChanged",
    act.Promote: "MasterPromoted",
    act.Drain: "MasterDraining",
    act.Withdraw: "ShardWithdrawn",
    act.Resume: "SendsResumed",
    act.Fence: "BrokerFenced",
    act.Restart: "BrokerRestarted",
    act.Hibernate: "ShardHibernated",
    act.Remove: "BrokerRemoved",
    act.ReplaceDisk: "DiskReplaced",
    act.ClearRequest: "RequestDone",
}
"""The event reasons of actions. Frequent actions (Promise, Follow, UpdateTerms, Start) have none."""

REQUEST_DROPPED: Final = "RequestDropped"
"""The event reason where a request is removed that can never be done."""

RESIZED: Final = "BrokerResized"
"""The event reason where CPU or memory of a running broker is changed."""


BACKED_UP: Final = "BackupCompleted"
"""The event reason where the snapshots of a backup are ready."""

BACKUP_FAILED: Final = "BackupFailed"
"""The event reason where a backup cannot be made now."""


class Event(NamedTuple):
    """An event of a resource that is not recorded yet."""

    reason: str
    """The reason as one stable word in CamelCase."""

    text: str
    """The message of the event, for people."""

    is_warning: bool = False


def event_of(action: act.Action) -> Event | None:
    """Return the event of an executed action; None for an action without an event."""
    reason = REASONS.get(type(action))
    if isinstance(action, act.ClearRequest) and action.is_dropped:
        reason = REQUEST_DROPPED
    newest = action.record.newest if isinstance(action, act.RecordMaster) else None
    is_warning = newest is not None and newest.is_loss_unknown
    return None if reason is None else Event(reason, line_of(action), is_warning=is_warning)


@final
class EventRecorder:
    """Records the events of one resource. Owned by its task."""

    def __init__(self, api: Kubernetes, clock: Clock) -> None:
        self._api: Final = api
        self._clock: Final = clock
        self._due_ms: Final[dict[Event, int]] = {}
        """When an event may be created again."""

    async def record(self, resource: Object, event: Event) -> None:
        """Create the event, unless the same one was recorded or has failed recently.

        Raises only ``NamespaceTerminating``.
        """
        now_ms = self._clock.now_ms()
        if now_ms < self._due_ms.get(event, now_ms):
            return
        while len(self._due_ms) >= REMEMBERED_MAX:
            del self._due_ms[min(self._due_ms, key=lambda one: self._due_ms[one])]
        self._due_ms[event] = now_ms + RETRY_MS
        try:
            await self._api.create(self._document(resource, event))
        except NamespaceTerminating:
            raise
        except ApiError as error:
            log.warning("failed to record event", extra={"reason": event.reason, "error": str(error)})
        else:
            self._due_ms[event] = now_ms + REPEAT_MS

    def _document(self, resource: Object, event: Event) -> dict[str, Any]:
        """Return the event as an object of Kubernetes."""
        metadata, moment = resource["metadata"], self._clock.wall()
        mark = hashlib.sha256(f"{event.reason} {event.text} {moment.isoformat()}".encode()).hexdigest()[:16]
        about = {
            "apiVersion": resource["apiVersion"],
            "kind": resource["kind"],
            "name": metadata["name"],
            "namespace": metadata["namespace"],
            "uid": uid_of(resource),
            "resourceVersion": metadata.get("resourceVersion", ""),
        }
        return {
            "apiVersion": EVENTS.api_version,
            "kind": EVENTS.name,
            "metadata": {"name": f"{metadata['name']}.{mark}", "namespace": metadata["namespace"]},
            "involvedObject": about,
            "reason": event.reason,
            "message": event.text[:MESSAGE_MAX],
            "type": "Warning" if event.is_warning else "Normal",
            "source": {"component": COMPONENT},
            "reportingComponent": COMPONENT,
            "reportingInstance": COMPONENT,
            "firstTimestamp": format_time(moment),
            "lastTimestamp": format_time(moment),
            "count": 1,
        }
