"""Requests about the state of the timers: checkpoint (60), metrics (61), and the switch of the engine (5001).

A slave of RocketMQ copies the first two from its master. Gantry has one engine, files of entries by due hour, which
counts as RocketMQ's default, the file engine; so a switch to that changes nothing, and one to RocksDB is refused with
the answer of a RocketMQ broker that was started without it.
"""

from __future__ import annotations

from typing import final

from gantry_broker.server.core.broker_core import BrokerCore
from gantry_broker.server.core.handlers import handles
from gantry_broker.server.core.refusals import Refused
from gantry_broker.server.timers.service import TimerService
from gantry_remoting import Connection
from gantry_wire import Command, RequestCode, ResponseCode
from gantry_wire.commands.documents import write_document
from gantry_wire.commands.timers import (
    ENGINE_FILES,
    ENGINE_ROCKSDB,
    ENGINE_TYPE,
    TimerCheckpoint,
    TimerMetric,
    TimerMetrics,
)


@final
class TimerStateHandlers:
    """The handlers of requests about the timers. Owned by the event loop."""

    def __init__(self, core: BrokerCore, timers: TimerService) -> None:
        self._core = core
        self._timers = timers

    @handles(RequestCode.GET_TIMER_CHECK_POINT)
    def checkpoint(self, command: Command, connection: Connection) -> Command:
        """Return the progress in RocketMQ's format. Its slave reads the timer topic up to the master's offset."""
        if not self._core.settings.is_timer_enabled:
            raise Refused(ResponseCode.SYSTEM_ERROR, "The checkpoint is null")
        document = self._timers.progress.delivered_document()
        version = document.data_version
        assert version is not None, "a document of this broker has a version"
        read = self._timers.reader.settled_position
        checkpoint = TimerCheckpoint(
            last_read_ms=self._timers.progress.state.last.due_ms, log_flushed=0, queue_offset=read,
            master_queue_offset=read, state_version=version.state_version, timestamp=version.timestamp,
            counter=version.counter,
        )  # fmt: skip
        return command.reply(body=checkpoint.encode())

    @handles(RequestCode.GET_TIMER_METRICS)
    def metrics(self, command: Command, connection: Connection) -> Command:
        """Return the numbers of pending messages by topic."""
        if not self._core.settings.is_timer_enabled:
            raise Refused(ResponseCode.SYSTEM_ERROR, "The timer message store is null")
        now_ms = self._core.clock.wall_ms()
        counts = self._timers.progress.pending.by_topic()
        metrics = TimerMetrics(
            data_version=self._timers.progress.delivered_document().data_version,
            timing_count={topic: TimerMetric(count=count, time_stamp=now_ms) for topic, count in counts.items()},
        )
        return command.reply(body=write_document(metrics))

    @handles(RequestCode.SWITCH_TIMER_ENGINE)
    def switch_engine(self, command: Command, connection: Connection) -> Command:
        """Answer as a RocketMQ broker without RocksDB does."""
        invalid = ResponseCode.INVALID_PARAMETER
        if not self._core.settings.is_timer_enabled:
            raise Refused(invalid, "broker timerWheelEnable is false")
        if not command.ext:
            raise Refused(invalid, "param error, extFields is null")
        engine = command.ext.get(ENGINE_TYPE, "")
        if engine == ENGINE_ROCKSDB:
            raise Refused(invalid, "timerRocksDBEnable must be configured true when broker start")
        if engine != ENGINE_FILES:
            raise Refused(invalid, "param error")
        return command.reply(ResponseCode.SUCCESS, "switch timer engine success")
