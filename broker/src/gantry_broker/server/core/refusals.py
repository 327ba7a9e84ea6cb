"""Requests that the broker refuses for a reason of its own: how they are answered, counted and logged.

A request that is wrong in itself (no such topic, too large, no permission) is not among them. Every refusal has a
reason, one counter for each reason goes to the status page and from there to `/metrics`, and an episode of refusals
leaves one line in the log when it begins, and a summary with count and duration when no request has been refused for
that reason for EPISODE_GAP_S. A single line would either come when the overload is over or lack the numbers; however
many requests are refused, there are no more than these two. What a client asks in vain for as long as it runs, a
request code or a filter, is no episode: it leaves one line for the client or the group.
"""

import logging
from typing import Final, NamedTuple, final

from gantry_broker.errors import (
    DiskTooSlow,
    IndexRebuilding,
    LogReadOnly,
    MessageTooLarge,
    PoolExhausted,
    QueueRebuilding,
    StoreFull,
)
from gantry_remoting import Connection
from gantry_remoting.first_time import FirstTime
from gantry_status import RefusalReason
from gantry_wire import Command, RequestCode, ResponseCode, names

log = logging.getLogger(__name__)

EPISODE_GAP_S: Final = 5.0
"""Refusals that are closer together are one episode: a client that is refused tries again within seconds."""

ROLE_REASONS: Final = frozenset(
    {RefusalReason.NOT_MASTER, RefusalReason.DRAINING, RefusalReason.NOT_SERVING}
)  # fmt: skip
"""They are part of every change of masters, so that their episodes are no warnings."""

ANSWERABLE_REASONS: Final = frozenset(
    {RefusalReason.QUEUE_TIMEOUT, RefusalReason.PAGE_CACHE_BUSY, RefusalReason.WAITING_FULL}
)
"""Only a request that waits for its answer is refused for them: a one-way send would vanish. It is stored late instead,
and takes no place among the answers that wait."""


class Refusal(NamedTuple):
    """The answer to a request that is refused."""

    code: ResponseCode
    remark: str
    reason: RefusalReason | None
    """None: the request is wrong in itself, which is not counted."""

    @property
    def spares_oneway(self) -> bool:
        """Whether one-way sends are stored all the same."""
        return self.reason in ANSWERABLE_REASONS


class Refused(Exception):
    """A request is answered with a code and a text, and nothing was stored."""

    def __init__(self, code: ResponseCode, remark: str) -> None:
        super().__init__(remark)
        self.code = code
        self.remark = remark


def check_topic_name(topic: str) -> None:
    """Raises Refused for a name that no topic can have."""
    fault = names.topic_fault(topic)
    if fault is not None:
        raise Refused(ResponseCode.INVALID_PARAMETER, f"the topic[{topic[:300]}] is illegal: {fault.value}")


def check_group_name(group: str) -> None:
    """Raises Refused for a name that no group can have."""
    fault = names.group_fault(group)
    if fault is not None:
        raise Refused(ResponseCode.INVALID_PARAMETER, f"the group[{group[:300]}] is illegal: {fault.value}")


def store_refusal(error: Exception) -> Refusal:
    """The answer to a request whose message the store did not take."""
    unavailable = ResponseCode.SERVICE_NOT_AVAILABLE
    if isinstance(error, MessageTooLarge):
        return Refusal(ResponseCode.MESSAGE_ILLEGAL, str(error), None)
    if isinstance(error, DiskTooSlow):
        text = f"service not available now, the disk is too slow: {error}"
        return Refusal(unavailable, text, RefusalReason.DISK_TOO_SLOW)
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
    log.error("the store failed", exc_info=error)
    text = f"the store failed: {type(error).__name__}"
    return Refusal(ResponseCode.SYSTEM_ERROR, text, RefusalReason.STORE_FAILED)


@final
class Episode:
    """Refusals for one reason, one after another."""

    def __init__(self, began_at: float) -> None:
        self.began_at: Final = began_at
        self.last_at = began_at
        self.count = 0


@final
class Refusals:
    """The counters of one broker. Owned by the event loop; `sample` is called once a second."""

    def __init__(self) -> None:
        self.counts: Final = dict.fromkeys(RefusalReason, 0)
        self._episodes: Final[dict[RefusalReason, Episode]] = {}
        self._first_time: Final = FirstTime()
        self._now = 0.0

    def __repr__(self) -> str:
        return f"<Refusals {sum(self.counts.values())}, under way={[reason.label for reason in self._episodes]}>"

    def reply(self, command: Command, refusal: Refusal) -> Command:
        """The answer to a request that is refused; counted here."""
        self.count(refusal)
        return command.reply(refusal.code, refusal.remark)

    def count(self, refusal: Refusal, requests: int = 1) -> None:
        """So many requests were refused."""
        reason = refusal.reason
        if reason is None or not requests:
            return
        self.counts[reason] += requests
        episode = self._episodes.get(reason)
        if episode is None:
            episode = self._episodes[reason] = Episode(self._now)
            level = logging.INFO if reason in ROLE_REASONS else logging.WARNING
            log.log(level, "started refusing requests", extra={"reason": reason.label, "remark": refusal.remark})
        episode.last_at = self._now
        episode.count += requests

    def not_supported(self, command: Command, connection: Connection, remark: str) -> Command:
        """The answer to a request whose code is not served; logged once for each code and address."""
        self.counts[RefusalReason.UNKNOWN_REQUEST] += 1
        address = connection.peer[0]
        if self._first_time.is_new((RefusalReason.UNKNOWN_REQUEST, command.code, address)):
            facts = {"code": command.code, "request": _request_name(command.code), "client": address, "remark": remark}
            log.warning("refused request code that is not supported", extra=facts)
        return command.reply(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark)

    def property_filter(self, group: str, topic: str, expression_type: str) -> None:
        """A group filters over properties, which is switched off; logged once for each group and topic.

        Some clients, Go's among them, do not show the refusal to their application: it just gets no messages.
        """
        self.counts[RefusalReason.PROPERTY_FILTER] += 1
        if self._first_time.is_new((RefusalReason.PROPERTY_FILTER, group, topic)):
            facts = {"consumers": group, "topic": topic, "expression_type": expression_type[:64]}
            log.warning(
                "refused property filter; the group gets no messages until enablePropertyFilter=true", extra=facts
            )

    def sample(self, now: float) -> None:
        """Note the time, and end the episodes that are over."""
        self._now = now
        for reason, episode in list(self._episodes.items()):
            if now - episode.last_at >= EPISODE_GAP_S:
                self._end(reason, episode)

    def close(self) -> None:
        """End every episode: the broker stops."""
        for reason, episode in list(self._episodes.items()):
            self._end(reason, episode)

    def _end(self, reason: RefusalReason, episode: Episode) -> None:
        del self._episodes[reason]
        duration_s = round(episode.last_at - episode.began_at, 1)
        facts = {"reason": reason.label, "refused": episode.count, "duration_s": duration_s}
        log.info("stopped refusing requests", extra=facts)


def _request_name(code: int) -> str:
    try:
        return RequestCode(code).name
    except ValueError:
        return "unknown"
