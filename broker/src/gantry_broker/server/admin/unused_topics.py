"""Queues of topics that do not exist: code 316."""

import logging
from collections.abc import Callable
from typing import final

from gantry_broker.server.core.broker_core import BrokerCore, HandlerTable
from gantry_remoting import Connection
from gantry_wire import Command, RequestCode

log = logging.getLogger(__name__)


@final
class UnusedTopicHandlers:
    """Code 316. Owned by the event loop.

    A deleted topic takes its queues along, so there is nothing to find but what other brokers, or people, left in the
    store. A slave leaves its queues alone: a topic's messages may be here a moment before its name, and what the master
    deletes goes here, too.
    """

    def __init__(self, core: BrokerCore, is_copy: Callable[[], bool]) -> None:
        self._core = core
        self._is_copy = is_copy

    def table(self) -> HandlerTable:
        return {RequestCode.CLEAN_UNUSED_TOPIC: self.clean}

    def clean(self, command: Command, connection: Connection) -> Command:
        core = self._core
        if self._is_copy():
            return command.reply()
        topics = core.topics
        unused = [topic for topic in core.store.topics() if topic not in topics and not topics.is_system(topic)]
        for topic in unused:
            core.routes.forget(topic)
            core.store.delete_topic(topic)
            core.statistics.forget_topic(topic)
            log.info("queues of a topic that does not exist are deleted", extra={"topic": topic})
        return command.reply()
