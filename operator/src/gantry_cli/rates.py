"""What a broker says of itself (code 28), as numbers, and rates from two of them.

Every value on the wire is a string, and older or other brokers leave some out; what is missing is zero here, or None
where zero would be a lie.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from gantry_cli.text import bytes_text, count_text, duration_text, rate_text
from gantry_status import LogRange
from gantry_wire.runtime_table import log_range


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerFacts:
    """One broker at one moment."""

    at_s: float
    """When it was asked, on the asker's monotonic clock."""
    version: str
    puts: int
    """Messages stored since the broker started."""
    gets: int
    """Messages given out since the broker started."""
    puts_per_s: float
    """The broker's own average over ten seconds."""
    gets_per_s: float
    log_begin: int
    log_end: int
    dispatch_behind_bytes: int
    flush_behind_bytes: int
    disk_used_ratio: float | None
    started_at_ms: int | None
    connections: int | None
    producer_groups: int | None
    consumer_groups: int | None
    held_pulls: int | None
    changed_settings: str
    """key=value;key=value of what was changed at run time, over what its broker.conf says."""

    certificate_ends_at_ms: int | None = None
    """The end of the first of its TLS certificates."""

    missing_bytes: int = 0
    """Of its log, that were on its disk and are gone; it takes no sends."""
    missing: tuple[LogRange, ...] = ()
    """The first of the ranges that are missing."""
    damaged_records: int = 0
    """Stored messages that are known to be damaged now."""
    damaged_bytes: int = 0
    damaged: tuple[LogRange, ...] = ()
    """The first of the ranges that are damaged."""

    @property
    def stored_bytes(self) -> int:
        return max(0, self.log_end - self.log_begin)


@dataclass(frozen=True, slots=True)
class Rates:
    """Messages a second between two moments."""

    puts_per_s: float
    gets_per_s: float


def read_facts(table: Mapping[str, str], at_s: float) -> BrokerFacts:
    """The facts in a runtime table."""
    try:
        begin, end = log_range(table)
    except ValueError:
        begin, end = 0, 0
    return BrokerFacts(
        at_s=at_s,
        version=table.get("brokerVersionDesc", "unknown"),
        puts=_whole(table, "msgPutTotalTodayNow", "putMessageTimesTotal") or 0,
        gets=_whole(table, "msgGetTotalTodayNow") or 0,
        puts_per_s=_first_number(table.get("putTps")),
        gets_per_s=_first_number(table.get("getTransferredTps") or table.get("getTransferedTps")),
        log_begin=begin,
        log_end=end,
        dispatch_behind_bytes=_whole(table, "dispatchBehindBytes") or 0,
        flush_behind_bytes=_whole(table, "flushBehindBytes", "remainHowManyDataToFlush") or 0,
        disk_used_ratio=_ratio(table.get("commitLogDiskRatio")),
        started_at_ms=_whole(table, "bootTimestamp"),
        connections=_whole(table, "connections"),
        producer_groups=_whole(table, "producerGroups"),
        consumer_groups=_whole(table, "consumerGroups"),
        held_pulls=_whole(table, "heldPulls"),
        changed_settings=table.get("settingsChangedAtRunTime", ""),
        certificate_ends_at_ms=_whole(table, "tlsCertificateEndsTimestamp"),
        missing_bytes=_whole(table, "commitLogMissingBytes") or 0,
        missing=_ranges(table.get("commitLogMissingRanges", "")),
        damaged_records=_whole(table, "commitLogDamagedRecords") or 0,
        damaged_bytes=_whole(table, "commitLogDamagedBytes") or 0,
        damaged=_ranges(table.get("commitLogDamagedRanges", "")),
    )


def rates_between(earlier: BrokerFacts, later: BrokerFacts) -> Rates:
    """How busy the broker was in between; zero after a restart, when its counters began again."""
    elapsed_s = later.at_s - earlier.at_s
    if elapsed_s <= 0 or later.started_at_ms != earlier.started_at_ms:
        return Rates(0.0, 0.0)
    return Rates(
        max(0, later.puts - earlier.puts) / elapsed_s,
        max(0, later.gets - earlier.gets) / elapsed_s,
    )


def state_line(facts: BrokerFacts, rates: Rates, up_s: float) -> str:
    """One broker's state as one line."""
    parts = [
        f"up {duration_text(up_s)}",
        f"in {rate_text(rates.puts_per_s)}/s ({count_text(facts.puts)} so far)",
        f"out {rate_text(rates.gets_per_s)}/s ({count_text(facts.gets)} so far)",
        f"stored {bytes_text(facts.stored_bytes)}",
    ]
    if facts.connections is not None:
        parts.append(f"{facts.connections} connections")
    if facts.producer_groups is not None and facts.consumer_groups is not None:
        parts.append(f"groups {facts.producer_groups} sending, {facts.consumer_groups} reading")
    if facts.held_pulls:
        parts.append(f"{facts.held_pulls} waiting pulls")
    if facts.disk_used_ratio is not None:
        parts.append(f"disk {facts.disk_used_ratio:.0%}")
    return "  ".join(parts)


def _whole(table: Mapping[str, str], *names: str) -> int | None:
    for name in names:
        try:
            return int(float(table[name]))
        except (KeyError, ValueError, OverflowError):
            continue
    return None


def _ranges(text: str) -> tuple[LogRange, ...]:
    """The ranges of `0-4096;8192-12288`; none where that is no list of ranges."""
    try:
        pairs = [one.split("-") for one in text.split(";") if one]
        return tuple(LogRange(int(start), int(end)) for start, end in pairs)
    except ValueError:
        return ()


def _first_number(text: str | None) -> float:
    """The first of `10s 60s 600s`."""
    try:
        return float((text or "0").split()[0])
    except (ValueError, IndexError):
        return 0.0


def _ratio(text: str | None) -> float | None:
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if 0.0 <= value <= 1.0 else None
