"""Handles requests about the broker itself: its status, its settings, and how it reads its log."""

import logging
import os
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final, Protocol, final

from gantry_broker.server.core.broker_core import BrokerCore
from gantry_broker.server.core.handlers import handles
from gantry_broker.server.core.live_settings import NotChangeable
from gantry_broker.server.core.refusals import Refused
from gantry_broker.server.delay.service import DelayService
from gantry_broker.server.pop.service import Pops
from gantry_broker.server.pull.pull_hold import PullHold
from gantry_broker.server.timers.service import TimerService
from gantry_broker.setting_keys import effective_settings, parse_properties_file
from gantry_broker.settings import BrokerSettings
from gantry_remoting import Connection, Listener
from gantry_remoting.close_log import CloseReason
from gantry_remoting.setting_kinds import SettingsError
from gantry_status.text import bytes_text
from gantry_wire import Command, RequestCode, ResponseCode
from gantry_wire.codes import PROTOCOL_VERSION, PROTOCOL_VERSION_NAME
from gantry_wire.commands.admin import StatisticsKey
from gantry_wire.commands.documents import write_document
from gantry_wire.fastjson import dumps
from gantry_wire.message import record_store_timestamp
from gantry_wire.version import VERSION

log = logging.getLogger(__name__)

WINDOWS: Final = ("statsMinute", "statsHour", "statsDay")
"""The fields of the answer to code 315, one for each window of a counter."""

READ_MODE_FIELD: Final = "READ_AHEAD_MODE"
"""The field of the request with code 316 that holds the mode."""
READ_MODES: Final = {"0": True, "1": False}
"""Whether the log is read ahead, by RocketMQ's number, which is that of madvise."""

NO_BUFFERS: Final = (1 << 31) - 1
"""The number of free write buffers that RocketMQ reports without a pool."""

RANGES_MAX: Final = 8
"""The limit of missing or damaged ranges of the log that are listed; the sums include all of them."""

ALWAYS_ZERO: Final = ("EndTransactionQueueSize", "EndTransactionThreadPoolQueueCapacity")
"""RocketMQ's counters of things that do not exist here: a queue of ends of transactions."""


@final
class BrokerHandlers:
    """The handlers of requests about the broker itself. Owned by the event loop."""

    def __init__(
        self,
        core: BrokerCore,
        delay: DelayService,
        timers: TimerService,
        pops: Pops,
        hold: PullHold,
        connections: Callable[[], int],
        *,
        ports: Sequence[Listener] = (),
        certificate_ends_at: Callable[[], float | None] = lambda: None,
    ) -> None:
        self._core = core
        self._delay = delay
        self._timers = timers
        self._pops = pops
        self._hold = hold
        self._connections = connections
        self._ports = ports
        self._certificate_ends_at = certificate_ends_at
        self._booted_at_ms = core.clock.wall_ms()

    @handles(RequestCode.GET_BROKER_CONFIG)
    def get_config(self, command: Command, connection: Connection) -> Command:
        """Answer with the present settings as in broker.conf, with the keys changed at run time, and with the
        version of Gantry, which the runtime table cannot have: tools take its version for that of RocketMQ.
        """
        live = self._core.live
        listed = {**effective_settings(live.current), **_resolve_settings(live.current)}
        lines = [f"{name}={value}" for name, value in sorted(listed.items())]
        ext = {"version": write_document(live.version).decode(), "changedAtRunTime": ";".join(live.changed)}
        ext["gantryVersion"] = VERSION
        return command.reply(ext=ext, body="\n".join(lines).encode())

    @handles(RequestCode.UPDATE_BROKER_CONFIG)
    async def update_config(self, command: Command, connection: Connection) -> Command:
        """Change settings at run time; answered when the change is on disk and in effect."""
        try:
            await self._core.live.update(parse_properties_file(command.body.decode()))
        except NotChangeable as error:
            return command.reply(ResponseCode.NO_PERMISSION, str(error))
        except (SettingsError, UnicodeDecodeError) as error:
            return command.reply(ResponseCode.INVALID_PARAMETER, str(error))
        except OSError as error:
            return command.reply(ResponseCode.SYSTEM_ERROR, f"failed to write the changed settings: {error}")
        return command.reply()

    @handles(RequestCode.GET_ALL_DELAY_OFFSET)
    def list_delay_offsets(self, command: Command, connection: Connection) -> Command:
        return command.reply(body=write_document(self._delay.progress.delivered_document()))

    @handles(RequestCode.POP_ROLLBACK)
    def roll_back_pop(self, command: Command, connection: Connection) -> Command:
        """Answer with success: records of pop consumption are in the log, and nowhere else."""
        return command.reply()

    @handles(RequestCode.VIEW_BROKER_STATS_DATA)
    def get_statistics(self, command: Command, connection: Connection) -> Command:
        """Answer with a counter over the last minute, hour and day; an unused counter is not found, as in RocketMQ."""
        request = StatisticsKey.read(command.ext)
        found = self._core.topic_statistics.find(request.stats_name, request.stats_key)
        if found is None:
            name, key = request.stats_name[:64], request.stats_key[:600]
            raise Refused(ResponseCode.SYSTEM_ERROR, f"The stats <{name}> <{key}> not exist")
        return command.reply(body=dumps({name: one._asdict() for name, one in zip(WINDOWS, found, strict=True)}))

    @handles(RequestCode.SET_COMMITLOG_READ_MODE)
    def set_read_mode(self, command: Command, connection: Connection) -> Command:
        """Set whether the log is read ahead until the broker stops, as in RocketMQ; other members keep their mode."""
        mode = command.ext.get(READ_MODE_FIELD, "")
        if mode not in READ_MODES:
            expected = "expected 0 (read ahead) or 1 (no read-ahead)"
            raise Refused(ResponseCode.INVALID_PARAMETER, f"{READ_MODE_FIELD}: {mode[:64]!r}, {expected}")
        self._core.store.log.files.set_read_ahead(READ_MODES[mode])
        log.info("commit log read mode changed", extra={"is_read_ahead": READ_MODES[mode]})
        return command.reply(remark=f"set commitlog readahead mode success, mode: {mode}")

    @handles(RequestCode.GET_BROKER_RUNTIME_INFO)
    def get_runtime_info(self, command: Command, connection: Connection) -> Command:
        return command.reply(body=dumps({"table": self.build_runtime_table()}))

    def build_runtime_table(self) -> dict[str, str]:
        """Return the runtime table with RocketMQ's names; values that do not exist here (thread pools) are zero."""
        core = self._core
        store, stats, settings = core.store, core.stats, core.settings
        now_ms = core.clock.wall_ms()
        totals, days = core.topic_statistics.totals(), stats.days
        missing, damaged = store.losses.record.missing, store.guard.damage.damaged
        table: dict[str, object] = {
            "brokerActive": "true" if core.gate.write_refusal is None else "false",
            "brokerVersion": PROTOCOL_VERSION,
            "brokerVersionDesc": PROTOCOL_VERSION_NAME,
            "bootTimestamp": self._booted_at_ms,
            "runtime": format_uptime(now_ms - self._booted_at_ms),
            "putTps": stats.rates(0),
            "getTransferredTps": stats.rates(1),
            "getTransferedTps": stats.rates(1),
            "getFoundTps": stats.rates(2),
            "getMissTps": stats.rates(3),
            "getTotalTps": stats.pull_rates(),
            "msgPutTotalTodayNow": totals.put,
            "msgGetTotalTodayNow": totals.get,
            "msgPutTotalTodayMorning": days.today_morning.put,
            "msgGetTotalTodayMorning": days.today_morning.get,
            "msgPutTotalYesterdayMorning": days.yesterday_morning.put,
            "msgGetTotalYesterdayMorning": days.yesterday_morning.get,
            "putMessageTimesTotal": stats.put_count,
            "putMessageFailedTimes": stats.put_failures,
            "putMessageSizeTotal": stats.put_bytes,
            "putMessageAverageSize": stats.put_bytes / stats.put_count if stats.put_count else 0.0,
            "putMessageEntireTimeMax": stats.times.max_ms,
            "getMessageEntireTimeMax": stats.get_ms_max,
            "getMessageSizeTotal": stats.get_bytes,
            "ackWaitsMicros": ",".join(map(str, stats.ack_waits)),
            "putMessageDistributeTime": stats.times.format_distribution(),
            "putLatency99": f"{stats.times.percentile_ms(0.99):.2f}",
            "putLatency999": f"{stats.times.percentile_ms(0.999):.2f}",
            "commitLogMinOffset": store.log.min_physical,
            "commitLogMaxOffset": store.log.wrote,
            "dispatchBehindBytes": store.log.wrote - store.dispatcher.dispatched,
            "dispatchMaxBuffer": 0,
            "remainHowManyDataToCommit": bytes_text(store.log.wrote - store.log.committed),
            "remainHowManyDataToFlush": bytes_text(store.log.wrote - store.log.flushed),
            "commitLogDirCapacity": self._capacity(),
            "flushBehindBytes": store.log.wrote - store.log.flushed,
            "commitLogSyncs": store.log.sync_count,
            "remainTransientStoreBufferNumbs": store.pools.status.free if store.pools.status.total else NO_BUFFERS,
            "earliestMessageTimeStamp": self._earliest_ms(),
            "startAcceptSendRequestTimeStamp": 0,
            "pageCacheLockTimeMills": 0,
            "commitLogDiskRatio": self._disk_ratio(),
            f"commitLogDiskRatio_{store.root}/commitlog": self._disk_ratio(),
            "consumeQueueDiskRatio": self._disk_ratio(),
            "consumeQueuesRebuilding": store.repair.queues.queues_waiting,
            "consumeQueueUnitsRebuilt": store.repair.queues.units_rebuilt,
            "keyIndexRebuilds": store.repair.index_rebuilds,
            "commitLogMissingBytes": sum(lost.end - lost.start for lost in missing),
            "commitLogMissingRanges": _format_ranges(missing),
            "commitLogDamagedRecords": len(damaged),
            "commitLogDamagedBytes": sum(one.end - one.start for one in damaged),
            "commitLogDamagedRanges": _format_ranges(damaged),
            "connections": self._connections(),
            "heldPulls": self._hold.count,
            "unfinishedFrameBytes": sum(port.frame_budget.held_bytes for port in self._ports),
            "unreadReplyBytes": sum(port.reply_budget.held_bytes for port in self._ports),
            "connectionsClosed": format_close_counts(self._ports),
            "producerGroups": len(core.clients.producers),
            "consumerGroups": len(core.clients.consumers),
            "settingsChangedAtRunTime": ";".join(f"{key}={value}" for key, value in core.live.changed.items()),
            "sendThreadPoolQueueCapacity": settings.send_queue_capacity,
            "pullThreadPoolQueueCapacity": settings.held_pulls_max,
        }
        if core.archive is not None:
            table |= core.archive.describe()
        ends_at = self._certificate_ends_at()
        if ends_at is not None:
            table["tlsCertificateEndsTimestamp"] = int(ends_at * 1000)
        for pool in ("send", "pull", "query", "ack", "endTransaction", "litePull", "clientManager", "heartbeat"):
            table.setdefault(f"{pool}ThreadPoolQueueSize", 0)
            table.setdefault(f"{pool}ThreadPoolQueueCapacity", 0)
            table.setdefault(f"{pool}ThreadPoolQueueHeadWaitTimeMills", 0)
        table |= {**dict.fromkeys(ALWAYS_ZERO, 0), **self._timers.runtime_info(), **self._pops.runtime_info()}
        for level, (delivered, end) in self._delay.positions().items():
            table[f"scheduleMessageOffset_{level}"] = f"{delivered},{end}"
        return {name: str(value) for name, value in table.items()}

    def _earliest_ms(self) -> int:
        record = self._core.store.guard.message_at(self._core.store.log.min_physical)
        return -1 if record is None else record_store_timestamp(record)

    def _capacity(self) -> str:
        space = self._core.disk.space(self._core.store.root)
        return f"Total : {bytes_text(space.total)}, Free : {bytes_text(space.free)}."

    def _disk_ratio(self) -> str:
        """Return the used share of the disk in whole hundredths, rounded up, as in RocketMQ."""
        space = self._core.disk.space(self._core.store.root)
        return str(-(-space.used * 100 // space.total) / 100) if space.total else "0"


class _Range(Protocol):
    @property
    def start(self) -> int: ...
    @property
    def end(self) -> int: ...


def _format_ranges(ranges: Sequence[_Range]) -> str:
    """Return the first ranges as `start-end;start-end`, with exclusive ends."""
    return ";".join(f"{one.start}-{one.end}" for one in ranges[:RANGES_MAX])


def _resolve_settings(settings: BrokerSettings) -> dict[str, str]:
    """Return the effective values of empty settings, hours in two digits, and settings that RocketMQ's tools need.

    Every stored message is marked as traceable; `exportMetrics` takes the number of processors from the size of a pool.
    """
    hours = settings.store.retention.delete_hours
    return {
        "brokerIP2": settings.ha_ip or settings.broker_ip,
        "inSyncReplicas": str(settings.ha.replicas),
        "deleteWhen": ";".join(f"{hour:02}" for hour in hours),
        "traceOn": "true",
        "useTLS": str(settings.is_tls_enabled).lower(),
        "clientCallbackExecutorThreads": str(os.cpu_count() or 1),
    }


def format_close_counts(ports: Sequence[Listener]) -> str:
    """Return how many connections this broker has closed since the start, as `reason=count` for each reason."""
    counts = Counter[CloseReason]()
    for port in ports:
        counts.update(port.close_log.counts)
    return " ".join(f"{reason}={counts[reason]}" for reason in CloseReason)


def format_uptime(milliseconds: int) -> str:
    """Return the uptime in RocketMQ's format."""
    minutes, seconds = divmod(milliseconds // 1000, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    return f"[ {days} days, {hours} hours, {minutes} minutes, {seconds} seconds ]"
