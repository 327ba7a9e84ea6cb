"""The four parts of `make bench-ha`: the summary of each part's runs, and the notes below its tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, final

import msgspec
from gantry_interop import versions

from gantry_bench.figures import Figures
from gantry_bench.ha_cells import HaCell, HaRun, summarise_cells
from gantry_bench.ha_groups import cgroups_missing_reason
from gantry_bench.ha_memory import MEBIBYTE, MemoryRun, memory_figures, memory_goals
from gantry_bench.ha_pair import BODY_BYTES, CONNECTIONS_MAX
from gantry_bench.ha_producer import ProducerRun, producer_figures, producer_goals
from gantry_bench.ha_run import Runner
from gantry_bench.ha_scale import HaScale
from gantry_bench.ha_slow import SlowRun, slow_figures, slow_goals, summarise_slow
from gantry_bench.ha_table import relay_figures, table_figures, table_goals
from gantry_bench.measurement import Goal

PartName = Literal["table", "producer", "memory", "slow"]
UNPINNED = "Processes are not pinned to cores, so that brokers can use several threads."


class HaOutcome(msgspec.Struct, frozen=True):
    """The results of a part and its runs."""

    figures: list[Figures]
    goals: list[Goal]
    runs: list[HaRun] | list[ProducerRun] | list[MemoryRun] | list[SlowRun]
    relay: list[HaRun] = []
    errors: int = 0
    """The number of Gantry's answers that were wrong or refusals."""


@final
class HaParts:
    """Runs parts, one at a time. ``without`` is the reason for leaving out Apache; empty if it takes part."""

    def __init__(self, scale: HaScale, runner: Runner, *, without: str) -> None:
        self._scale = scale
        self._runner = runner
        self._without = without
        self.by_name: dict[PartName, Callable[[], HaOutcome]] = {
            "table": self.measure_table,
            "producer": self.measure_producer,
            "memory": self.measure_memory,
            "slow": self.measure_slow,
        }

    def _load_note(self, repetitions: int, what: str) -> str:
        seconds, segment = self._scale.timing.duration_ms / 1000, self._scale.segment_bytes // MEBIBYTE
        return (
            f"Messages of {BODY_BYTES} bytes over loopback on up to {CONNECTIONS_MAX} connections, each answer "
            f"followed by the next send; {repetitions} runs of {seconds:g} s for each cell, {what} in turn; medians, "
            f"failures are sums. Log files of {segment} MiB. {UNPINNED}"
        )

    def _buffers_note(self) -> str:
        medium = self._runner.medium
        return f"With the buffer on, {self._scale.buffers_count} buffers of a log file each: Gantry's on {medium}"

    def _missing_notes(self) -> list[str]:
        return [f"Without Apache RocketMQ: {self._without}."] if self._without else []

    def measure_table(self) -> HaOutcome:
        """Measure every setup, and its baseline: an echo server behind a relay."""
        runs, relay = self._runner.measure_table()
        cells, relayed = summarise_cells(runs), summarise_cells(relay)
        apache = "."
        if not self._without:
            apache = f", Apache RocketMQ {versions.PEER}'s in direct memory; its brokers have -Xmx1g."
        conditions = [
            f"{self._load_note(self._scale.repetitions, 'both systems')} A slave is connected in every cell. "
            f"Before the first run each master gets {self._scale.first_load_ms / 1000:g} s of load. "
            f"{self._buffers_note()}{apache} Synchronous replication is `inSyncReplicas=2`. {_other_load_note(cells)}",
            *self._missing_notes(),
        ]
        relay_text = "The echo passes client, first server, second server, first server, client: two uvloop processes."
        figures = [table_figures(cells, conditions), relay_figures(cells, relayed, [relay_text])]
        return HaOutcome(figures, table_goals(cells, relayed), runs, relay, _errors(cells) + _errors(relayed))

    def measure_producer(self) -> HaOutcome:
        """Measure with Apache's own producer."""
        if self._without:
            return HaOutcome([producer_figures([], self._missing_notes())], [], list[ProducerRun]())
        runs = self._runner.measure_producer()
        conditions = [
            f"The benchmark producer of RocketMQ's examples, messages of {BODY_BYTES} bytes, each thread one send at a "
            "time; one run for each cell, both systems in turn; the rate of the ten seconds before the last report. It "
            "counts answers 10, 11 and 12 as sent; refused are the errors in its client's log, also of retries. "
            f"{self._buffers_note()}, Apache's in direct memory; its brokers have -Xmx1g. {UNPINNED}"
        ]
        errors = sum(run.failed for run in runs if run.system == "Gantry")
        return HaOutcome([producer_figures(runs, conditions)], producer_goals(runs), runs, [], errors)

    def measure_memory(self) -> HaOutcome:
        """Measure in two sizes of control group, and in one that includes the page cache."""
        if reason := cgroups_missing_reason():
            return HaOutcome([memory_figures([], [f"Not measured: {reason}."])], [], list[MemoryRun]())
        runs = self._runner.measure_memory()
        room = 2 * self._scale.segment_bytes // MEBIBYTE
        conditions = [
            f"{self._load_note(self._scale.memory_repetitions, 'the groups')} Master and slave have one control "
            f"group each. A group cannot exclude page cache, so the limits of 256 MiB and 4 GiB are increased by "
            f"{room} MiB for mapped log files and queues. A broker's own memory is sampled after each run. "
            f"{self._buffers_note()}; huge pages are not counted, and the limit includes room for tmpfs. Limit met: "
            "how often the kernel dropped page cache to stay within the limit."
        ]
        errors = sum(
            _errors(summarise_cells([one.run for one in runs if one.group == group])) for group in _groups(runs)
        )
        return HaOutcome([memory_figures(runs, conditions)], memory_goals(runs), runs, [], errors)

    def measure_slow(self) -> HaOutcome:
        """Measure with a slave whose acks are delayed."""
        runs = self._runner.measure_slow()
        cells = summarise_slow(runs)
        conditions = [
            f"{self._load_note(self._scale.slow_repetitions, 'with and without the delay')} SYNC_MASTER with one "
            "slave behind a proxy that delays every ack by this time, in order and without a limit of bandwidth; runs "
            "without a delay use the proxy, too. Pulls of 32 stored messages, one at a time, 4 ms after the previous "
            f"answer. {self._buffers_note()}; with the slow disk none."
        ]
        errors = sum(cell.errors + cell.pulls_refused for cell in cells)
        return HaOutcome([slow_figures(cells, conditions)], slow_goals(cells), runs, [], errors)


def _groups(runs: Sequence[MemoryRun]) -> list[str]:
    return list(dict.fromkeys(one.group for one in runs))


def _errors(cells: Sequence[HaCell]) -> int:
    return sum(sum(cell.failures.values()) for cell in cells if cell.system == "Gantry")


def _other_load_note(cells: Sequence[HaCell]) -> str:
    """Return a note on other load. The slaves' CPU time is not known separately, so this is an upper bound."""
    most = max((cell.other_cores for cell in cells), default=0.0)
    return f"Slaves and other programs together used up to {most:.1f} cores."
