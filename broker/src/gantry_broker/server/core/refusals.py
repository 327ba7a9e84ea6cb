"""Answers, counts and logs requests that the broker refuses for a reason of its own.

A request that is invalid in itself (no such topic, too large, no permission) is not among them, nor is a `Refused` that
a handler raises without counting it. Every refusal has a reason; one counter for each reason goes to the status page
and from there to `/metrics`. An episode of refusals leaves one line in the log when it begins, and a summary with count
and duration when no request has been refused for that reason for EPISODE_GAP_S. A single line would either come when
the overload is over or lack the numbers; there are never more than these two, however many requests are refused.
Requests with an unsupported code or filter are no episode, since a client may repeat them as long as it runs: they
leave one line for each code and address, or for each group and topic.
"""

import logging
from typing import Final, NamedTuple, final

from gantry_broker.errors import (
    DiskTooSlow,
    IndexRebuilding,
    LogReadOnly,
    MessageTooLarge,
    OutOfDescriptors,
    PoolExhausted,
    QueueRebuilding,
    StoreFull,
)
from gantry_remoting import Connection
from gantry_remoting.log_deduplicator import LogDeduplicator
from gantry_status import RefusalReason
from gantry_wire import Command, RequestCode, ResponseCode, names

log = logging.getLogger(__name__)

EPISODE_GAP_S: Final = 5.0
"""Refusals that are closer together belong to one episode: a refused client retries within seconds."""

ROLE_REASONS: Final = frozenset(
    {RefusalReason.NOT_MASTER, RefusalReason.DRAINING, RefusalReason.NOT_SERVING}
)  # fmt: skip
"""Reasons that are part of every change of masters: their episodes are logged as information, not as warnings."""

WAITING_SEND_REASONS: Final = frozenset(
    {RefusalReason.QUEUE_TIMEOUT, RefusalReason.PAGE_CACHE_BUSY, RefusalReason.WAITING_FULL}
)
"""Reasons for which only sends that wait for an answer are refused. Their producer can retry; a one-way send would be
lost, so it is stored late instead. It adds nothing to the answers that wait."""


class Refusal(NamedTuple):
    """The answer to a request that is refused."""

    code: ResponseCode
    remark: str
    """The text for the client."""

    reason: RefusalReason | None
    """None for a request that is invalid in itself, which is not counted."""

    @property
    def accepts_oneway(self) -> bool:
        """Whether one-way sends are stored nevertheless."""
        return self.reason in WAITING_SEND_REASONS


class Refused(Exception):
    """The request is to be answered with this code and text; nothing was stored."""

    def __init__(self, code: ResponseCode, remark: str) -> None:
        super().__init__(remark)
        self.code = code
        self.remark = remark


def check_topic_name(topic: str) -> None:
    """Raise Refused if the name is not valid for a topic."""
    fault = names.topic_fault(topic)
    if fault is not None:
        raise Refused(ResponseCode.INVALID_PARAMETER, f"the topic[{topic[:300]}] is illegal: {fault.value}")


def check_group_name(group: str) -> None:
    """Raise Refused if the name is not valid for a group."""
    fault = names.group_fault(group)
    if fault is not None:
        raise Refused(ResponseCode.INVALID_PARAMETER, f"the group[{group[:300]}] is illegal: {fault.value}")


def store_refusal(error: Exception) -> Refusal:
    """Return the refusal of a request that failed with an error of the store, also one that only reads."""
    unavailable = ResponseCode.SERVICE_NOT_AVAILABLE
    if isinstance(error, MessageTooLarge):
        return Refusal(ResponseCode.MESSAGE_ILLEGAL, str(error), None)
    if isinstance(error, DiskTooSlow):
        text = f"service not available now, the disk is too slow: {error}"
        return Refusal(unavailable, text, RefusalReason.DISK_TOO_SLOW)
    if isinstance(error, OutOfDescriptors):
        return Refusal(unavailable, f"service not available now, {error}", RefusalReason.OUT_OF_DESCRIPTORS)
    if isinstance(error, StoreFull):
        return Refusal(unavailable, f"service not available now, the disk is full: {error}", RefusalReason.DISK_FULL)
    if isinstance(error, PoolExhausted):
        text = "[REJECTREQUEST]system busy, start flow control for a while"
        return Refusal(ResponseCode.SYSTEM_BUSY, text, RefusalReason.NO_WRITE_BUFFER)
    if isinstance(error, LogReadOnly):
        text = f"service not available now, the log is read-only: {error}"
        return Refusal(unavailable, text, RefusalReason.LOG_READ_ONLY)
    if isinstance(error, (QueueRebuilding, IndexRebuilding)):
        return Refusal(ResponseCode.SYSTEM_BUSY, f"system busy, try again: {error}", RefusalReason.REBUILDING)
    log.error("unexpected error in store; request refused", exc_info=error)
    text = f"the store failed: {type(error).__name__}"
    return Refusal(ResponseCode.SYSTEM_ERROR, text, RefusalReason.STORE_FAILED)


@final
class RefusalEpisode:
    """A series of refusals for one reason."""

    def __init__(self, began_at: float) -> None:
        self.began_at: Final = began_at
        self.last_at = began_at
        """The loop time of the last refusal."""
        self.count = 0


@final
class Refusals:
    """The refusals of one broker, counted by reason. Owned by the event loop; `end_old_episodes` runs once a second."""

    def __init__(self) -> None:
        self.counts: Final = dict.fromkeys(RefusalReason, 0)
        self._episodes: Final[dict[RefusalReason, RefusalEpisode]] = {}
        self._log_deduplicator: Final = LogDeduplicator()
        self._now = 0.0

    def __repr__(self) -> str:
        return f"<Refusals {sum(self.counts.values())}, under way={[reason.label for reason in self._episodes]}>"

    def reply(self, command: Command, refusal: Refusal) -> Command:
        """Count a refused request and return its answer."""
        self.count(refusal)
        return command.reply(refusal.code, refusal.remark)

    def count(self, refusal: Refusal, requests: int = 1) -> None:
        """Count refused requests, and log the start of an episode."""
        reason = refusal.reason
        if reason is None or not requests:
            return
        self.counts[reason] += requests
        episode = self._episodes.get(reason)
        if episode is None:
            episode = self._episodes[reason] = RefusalEpisode(self._now)
            level = logging.INFO if reason in ROLE_REASONS else logging.WARNING
            log.log(level, "started refusing requests", extra={"reason": reason.label, "remark": refusal.remark})
        episode.last_at = self._now
        episode.count += requests

    def reply_not_supported(self, command: Command, connection: Connection, remark: str) -> Command:
        """Return the answer to a request with an unsupported code; logged once for each code and address."""
        self.counts[RefusalReason.UNKNOWN_REQUEST] += 1
        address = connection.peer[0]
        if self._log_deduplicator.is_new((RefusalReason.UNKNOWN_REQUEST, command.code, address)):
            facts = {"code": command.code, "request": _request_name(command.code), "client": address, "remark": remark}
            log.warning("refused request code that is not supported", extra=facts)
        return command.reply(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark)

    def count_property_filter(self, group: str, topic: str, expression_type: str) -> None:
        """Count a refused filter over properties; logged once for each group and topic.

        Some clients, Go's among them, do not show the refusal to their application: it just gets no messages.
        """
        self.counts[RefusalReason.PROPERTY_FILTER] += 1
        if self._log_deduplicator.is_new((RefusalReason.PROPERTY_FILTER, group, topic)):
            facts = {"consumers": group, "topic": topic, "expression_type": expression_type[:64]}
            log.warning(
                "refused property filter; the group gets no messages until enablePropertyFilter=true", extra=facts
            )

    def end_old_episodes(self, now: float) -> None:
        """Set the present time, and end the episodes that are over."""
        self._now = now
        for reason, episode in list(self._episodes.items()):
            if now - episode.last_at >= EPISODE_GAP_S:
                self._end(reason, episode)

    def close(self) -> None:
        """End every episode when the broker stops."""
        for reason, episode in list(self._episodes.items()):
            self._end(reason, episode)

    def _end(self, reason: RefusalReason, episode: RefusalEpisode) -> None:
        del self._episodes[reason]
        duration_s = round(episode.last_at - episode.began_at, 1)
        facts = {"reason": reason.label, "refused": episode.count, "duration_s": duration_s}
        log.info("stopped refusing requests", extra=facts)


def _request_name(code: int) -> str:
    try:
        return RequestCode(code).name
    except ValueError:
        return "unknown"
