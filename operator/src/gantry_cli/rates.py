"""The runtime info of a broker (request code 28) as numbers, and message rates between two samples of it.

Every value on the wire is a string, and older brokers and other implementations leave some out. A missing value is
zero, or None where zero would be wrong.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from gantry_cli.text import count_text, duration_text, rate_text
from gantry_status import LogRange
from gantry_status.text import bytes_text
from gantry_wire.runtime_table import log_range


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerRuntimeInfo:
    """The runtime info of one broker at one moment."""

    at_s: float
    """When the broker answered, on the monotonic clock of this process."""
    version: str
    puts: int
    """Messages stored since the broker started."""
    gets: int
    """Messages delivered to consumers since the broker started."""
    puts_per_s: float
    """The broker's own average over ten seconds."""
    gets_per_s: float
    log_begin: int
    log_end: int
    dispatch_behind_bytes: int
    """How many bytes of the log are not in queues yet."""
    flush_behind_bytes: int
    """How many bytes of the log are not flushed yet."""
    disk_used_ratio: float | None
    started_at_ms: int | None
    connections: int | None
    producer_groups: int | None
    consumer_groups: int | None
    held_pulls: int | None
    """How many pulls wait for messages; null if the broker does not report it."""
    changed_settings: str
    """The settings that were changed at run time and override broker.conf, as key=value;key=value."""

    certificate_ends_at_ms: int | None = None
    """When the first of its TLS certificates expires."""

    missing_bytes: int = 0
    """Bytes of its log that were on its disk and are missing; while there are any, it refuses sends."""
    missing: tuple[LogRange, ...] = ()
    """The first of the missing ranges."""
    damaged_records: int = 0
    """The number of stored messages that are known to be damaged."""
    damaged_bytes: int = 0
    damaged: tuple[LogRange, ...] = ()
    """The first of the damaged ranges."""

    pop_inflight: int = 0
    """The number of messages that are popped and not acked."""
    pop_checkpoints: int = 0
    """The number of pops that these messages are from."""
    pop_revive_lag_ms: int = 0
    """How long messages whose invisible time is over have been waiting to be delivered again."""

    @property
    def stored_bytes(self) -> int:
        return max(0, self.log_end - self.log_begin)


@dataclass(frozen=True, slots=True)
class MessageRates:
    """Messages per second between two samples."""

    puts_per_s: float
    gets_per_s: float


def parse_runtime_info(table: Mapping[str, str], at_s: float) -> BrokerRuntimeInfo:
    """Return the runtime info from the table of a broker's answer."""
    try:
        begin, end = log_range(table)
    except ValueError:
        begin, end = 0, 0
    return BrokerRuntimeInfo(
        at_s=at_s,
        version=table.get("brokerVersionDesc", "unknown"),
        puts=_parse_int(table, "msgPutTotalTodayNow", "putMessageTimesTotal") or 0,
        gets=_parse_int(table, "msgGetTotalTodayNow") or 0,
        puts_per_s=_parse_first_number(table.get("putTps")),
        gets_per_s=_parse_first_number(table.get("getTransferredTps") or table.get("getTransferedTps")),
        log_begin=begin,
        log_end=end,
        dispatch_behind_bytes=_parse_int(table, "dispatchBehindBytes") or 0,
        flush_behind_bytes=_parse_int(table, "flushBehindBytes", "remainHowManyDataToFlush") or 0,
        disk_used_ratio=_parse_ratio(table.get("commitLogDiskRatio")),
        started_at_ms=_parse_int(table, "bootTimestamp"),
        connections=_parse_int(table, "connections"),
        producer_groups=_parse_int(table, "producerGroups"),
        consumer_groups=_parse_int(table, "consumerGroups"),
        held_pulls=_parse_int(table, "heldPulls"),
        changed_settings=table.get("settingsChangedAtRunTime", ""),
        certificate_ends_at_ms=_parse_int(table, "tlsCertificateEndsTimestamp"),
        missing_bytes=_parse_int(table, "commitLogMissingBytes") or 0,
        missing=_parse_ranges(table.get("commitLogMissingRanges", "")),
        damaged_records=_parse_int(table, "commitLogDamagedRecords") or 0,
        damaged_bytes=_parse_int(table, "commitLogDamagedBytes") or 0,
        damaged=_parse_ranges(table.get("commitLogDamagedRanges", "")),
        pop_inflight=_parse_int(table, "popInflightMessages") or 0,
        pop_checkpoints=_parse_int(table, "popOpenCheckpoints") or 0,
        pop_revive_lag_ms=_parse_int(table, "popReviveLagMillis") or 0,
    )


def message_rates(earlier: BrokerRuntimeInfo, later: BrokerRuntimeInfo) -> MessageRates:
    """Return the message rates between two samples; zero if the broker was restarted and its counters were reset."""
    elapsed_s = later.at_s - earlier.at_s
    if elapsed_s <= 0 or later.started_at_ms != earlier.started_at_ms:
        return MessageRates(0.0, 0.0)
    return MessageRates(
        max(0, later.puts - earlier.puts) / elapsed_s,
        max(0, later.gets - earlier.gets) / elapsed_s,
    )


def status_line(facts: BrokerRuntimeInfo, rates: MessageRates, up_s: float) -> str:
    """Return the state of one broker as one line of text."""
    parts = [
        f"up {duration_text(up_s)}",
        f"in {rate_text(rates.puts_per_s)}/s ({count_text(facts.puts)} so far)",
        f"out {rate_text(rates.gets_per_s)}/s ({count_text(facts.gets)} so far)",
        f"stored {bytes_text(facts.stored_bytes)}",
    ]
    if facts.connections is not None:
        parts.append(f"{facts.connections} connections")
    if facts.producer_groups is not None and facts.consumer_groups is not None:
        parts.append(f"groups {facts.producer_groups} producers, {facts.consumer_groups} consumers")
    if facts.held_pulls:
        parts.append(f"{facts.held_pulls} held pulls")
    if facts.disk_used_ratio is not None:
        parts.append(f"disk {facts.disk_used_ratio:.0%}")
    return "  ".join(parts)


def _parse_int(table: Mapping[str, str], *names: str) -> int | None:
    for name in names:
        try:
            return int(float(table[name]))
        except (KeyError, ValueError, OverflowError):
            continue
    return None


def _parse_ranges(text: str) -> tuple[LogRange, ...]:
    """Return the ranges of `0-4096;8192-12288`; empty if the text is not a list of ranges."""
    try:
        pairs = [one.split("-") for one in text.split(";") if one]
        return tuple(LogRange(int(start), int(end)) for start, end in pairs)
    except ValueError:
        return ()


def _parse_first_number(text: str | None) -> float:
    """Return the first number of a text such as `12.5 3.2 1.0`, the averages over 10, 60 and 600 s."""
    try:
        return float((text or "0").split()[0])
    except (ValueError, IndexError):
        return 0.0


def _parse_ratio(text: str | None) -> float | None:
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if 0.0 <= value <= 1.0 else None
