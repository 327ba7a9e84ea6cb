"""Runs the curves on brokers, a new one for each step and code path.

Each step uses a folder that is removed afterwards, so no step finds the files of another. A step that this machine
cannot run, for want of disk space or descriptors, is recorded as skipped, with what it needs.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Final, final

import msgspec

from gantry_bench.curve_broker import CurveBroker, kill, mebibytes, missing_space, serve
from gantry_bench.curve_clients import Consumers, IdleClients, create_topics
from gantry_bench.curve_definitions import CURVES
from gantry_bench.curve_points import PATH_TEXTS, CurveName, Point, Skipped, size_text
from gantry_bench.curve_scale import CurveScale
from gantry_bench.errors import BenchmarkFailed
from gantry_bench.loadgen import LoadGenerator, Run, Timing, build
from gantry_bench.machine import Cores, OtherWork, pinned
from gantry_bench.measurement import MODES, Mode, Report
from gantry_bench.memory import ResidentMemory
from gantry_bench.processes import start_echo_server, start_name_server
from gantry_bench.recovery import FillPlan, FillReport, Way
from gantry_bench.recovery_run import RECOVERY_POINT, bytes_needed, prepare_store, run_process
from gantry_bench.resident import MemorySampler
from gantry_bench.runtime_info import read_progress
from gantry_bench.scale import BODY_BYTES, MEBIBYTE
from gantry_bench.send_figures import GantryPath
from gantry_bench.usage import (
    Usage,
    count_files,
    count_sockets,
    measure_rest,
    raise_file_limit,
    read_usage,
    wait_for_closed_sockets,
)

TOPIC: Final = "GantryBench"
SHARED_TOPIC: Final = "BenchShared"
OWN_TOPIC: Final = "BenchOwn"
FIRST_LOADS_MAX: Final = 20
TOPIC_CHANGES: Final = 10
LOG_BYTES_PER_SECOND: Final = 400_000_000
"""No broker has written faster; for the estimate of the disk space."""
SHARD_SEGMENT_BYTES: Final = 128 * MEBIBYTE
"""Two files of each shard are allocated at once."""
TOPIC_DISK_BYTES: Final = 80 * 1024
BEFORE_KILL: Final = Timing(warm_up_ms=0, duration_ms=500)
"""The sends between the recovery point and the kill."""
QUEUE_FILES: Final = 1
"""The descriptors of a queue with messages: that of its file."""
MANY_IN_FLIGHT: Final = 1000
WIDE_TURN_BYTES: Final = 64 * MEBIBYTE
SPARE_CONNECTIONS: Final = 100
UNFLUSHED_BYTES_MAX: Final = 512 * MEBIBYTE
SLOW_DISK_BYTES_PER_SECOND: Final = 20_000_000
"""A start that reads less than this is taken for one that hangs."""
KIBIBYTES: Final = 1024.0


class Step(msgspec.Struct, frozen=True):
    """One step of a curve on one code path."""

    curve: CurveName
    path: GantryPath
    size: int


def steps_of(scale: CurveScale, curve: CurveName, paths: Sequence[GantryPath]) -> list[Step]:
    """Return the steps in the order of running: both code paths in turn at each size."""
    sizes: dict[CurveName, tuple[int, ...]] = {
        "topics": scale.topics, "connections": scale.connections, "consumers": scale.consumers,
        "shards": scale.shards, "restart": scale.log_bytes,
    }  # fmt: skip
    return [Step(curve, path, size) for size in sizes[curve] for path in paths]


def shown_size(step: Step) -> float:
    """Return the size on the axis: GB of a log, or the number of things."""
    return step.size / 1e9 if step.curve == "restart" else float(step.size)


@final
class CurveRun:
    """Runs steps, one at a time. ``report_progress`` receives a line about the next one."""

    def __init__(
        self, scale: CurveScale, cores: Cores, folder: Path, report_progress: Callable[[str], None] = lambda text: None
    ) -> None:
        self._scale = scale
        self._cores = cores
        self._folder = folder
        self._report_progress = report_progress
        self._load = LoadGenerator(build(), core=cores.load)
        self._free_load = LoadGenerator(build(), core=None)
        self._measures: dict[CurveName, Callable[[Step, str], tuple[dict[str, float], float]]] = {
            "topics": self._topics, "connections": self._connections, "consumers": self._consumers,
            "shards": self._shards, "restart": self._restart,
        }  # fmt: skip

    def measure(self, step: Step) -> Point | Skipped:
        """Measure one step. Raises BenchmarkFailed."""
        self._report_progress(f"{size_text(shown_size(step))} {CURVES[step.curve].axis}, {PATH_TEXTS[step.path]}")
        if reason := self._missing(step):
            return Skipped(curve=step.curve, size=shown_size(step), reason=reason)
        own = self._folder / "step"
        own.mkdir()
        try:
            with start_name_server(own) as name_server:
                values, others = self._measures[step.curve](step, name_server)
        except OSError as error:
            raise BenchmarkFailed(f"{step.curve}, {step.size:,}: {error}") from error
        finally:
            shutil.rmtree(own, ignore_errors=True)
        return Point(curve=step.curve, path=step.path, size=shown_size(step), values=values, other_cores=others)

    def _missing(self, step: Step) -> str:
        """Return what this machine lacks for a step, or an empty text."""
        scale = self._scale
        files: dict[CurveName, int] = {
            "topics": QUEUE_FILES * step.size, "connections": step.size, "consumers": (1 + QUEUE_FILES) * step.size,
        }  # fmt: skip
        if reason := raise_file_limit(files.get(step.curve, 0)):
            return reason
        if step.curve == "restart":
            return missing_space(self._folder, bytes_needed(self._fill_plan(step)))
        seconds = (scale.timing.warm_up_ms + scale.timing.duration_ms) / 1000 * scale.repetitions * 2
        needed = int(seconds * LOG_BYTES_PER_SECOND) + 3 * scale.segment_bytes
        if step.curve == "topics":
            needed += step.size * TOPIC_DISK_BYTES
        if step.curve == "shards":
            needed += 2 * step.size * SHARD_SEGMENT_BYTES
        return missing_space(self._folder, needed)

    @contextmanager
    def _broker(
        self, step: Step, name_server: str, *, connections: int = 0, turn_bytes: int = 0
    ) -> Iterator[CurveBroker]:
        extra = {"mappedFileSizeCommitLog": str(self._scale.segment_bytes)}
        if turn_bytes:
            extra["maxReadBytesPerTurn"] = str(turn_bytes)
        if connections:
            most = str(connections + SPARE_CONNECTIONS)
            extra |= {"serverMaxConnections": most, "serverMaxConnectionsPerAddress": most}
        folder = self._folder / "step" / "broker"
        with serve(folder, path=step.path, name_server=name_server, core=self._cores.server, extra=extra) as broker:
            yield broker

    def _topics(self, step: Step, name_server: str) -> tuple[dict[str, float], float]:
        scale = self._scale
        mode = Mode("topics", 1, 64, 64, None, topics=step.size)
        with self._broker(step, name_server) as broker:
            create_topics(broker.address, [f"{TOPIC}{number:06d}" for number in range(step.size)], 1)
            changes = self._change_topic(broker)
            self._send_first(broker, mode, 2 * step.size)
            sends, others = self._send_repeatedly(broker, mode)
            memory, files = broker.read_memory(), count_files(broker.process_id)
            rest = measure_rest(broker.process_id, scale.rest_seconds)
            began = time.monotonic()
        stop_seconds = time.monotonic() - began
        starts = []
        for _ in range(scale.repetitions):
            os.sync()  # a start syncs small files, which must not wait for what the last step has written
            with self._broker(step, name_server) as broker:
                starts.append(broker.clean_start_seconds())
        with self._broker(step, name_server) as broker:
            self._load.run(mode, BODY_BYTES, target=broker.target, timing=BEFORE_KILL)
            kill(broker)
        with self._broker(step, name_server) as broker:
            kill_seconds = broker.start_seconds
        values = {
            **mebibytes(memory), **sends, **changes, "rest_percent": rest.percent, "start_s": median(starts),
            "stop_s": stop_seconds, "kill_s": kill_seconds, "files": files,
        }  # fmt: skip
        return values, max(others, rest.other_cores)

    def _change_topic(self, broker: CurveBroker) -> dict[str, float]:
        """Return what one change of one topic costs, which has the same steps as its creation."""
        before, began = read_usage(broker.process_id), time.monotonic()
        for queues in (2, 1) * (TOPIC_CHANGES // 2):
            create_topics(broker.address, [f"{TOPIC}000000"], queues)
        elapsed, used = time.monotonic() - began, read_usage(broker.process_id).since(before)
        return {"change_ms": used.cpu_seconds * 1e3 / TOPIC_CHANGES, "change_wall_ms": elapsed * 1e3 / TOPIC_CHANGES}

    def _connections(self, step: Step, name_server: str) -> tuple[dict[str, float], float]:
        with self._broker(step, name_server, connections=step.size) as broker:
            self._send_first(broker, MODES["a"], 1)
            empty = broker.read_memory()
            with self._idle_clients(broker, step.size):
                memory = broker.read_memory()
                rest = measure_rest(broker.process_id, self._scale.rest_seconds)
                beside, others = self._send_repeatedly(broker, MODES["a"])
            closed = broker.read_memory()
            with self._idle_clients(broker, step.size):
                pass
            closed_again = broker.read_memory()
            mode = Mode("connections", step.size, 1, 1, None)
            sampler = MemorySampler(broker.process_id, broker.store)
            with sampler.sample_meanwhile():
                together, others_together = self._send_repeatedly(broker, mode)
        shutil.rmtree(broker.store)
        with self._broker(step, name_server, connections=step.size, turn_bytes=WIDE_TURN_BYTES) as broker:
            self._send_first(broker, MODES["a"], 1)
            wide, others_wide = self._send_repeatedly(broker, mode)
        with start_echo_server(self._folder / "step", core=self._cores.server) as echo:
            runs = [
                self._load.run(mode, BODY_BYTES, target=echo, timing=load_timing(self._scale, mode))
                for _ in range(self._scale.repetitions)
            ]
        most = max(sampler.samples, key=lambda sample: sample.anonymous_bytes)
        values = {
            **mebibytes(memory), **beside, "rest_percent": rest.percent,
            "each_kib": _each_kib(memory, empty, step.size), "all_each_kib": _each_kib(most, empty, step.size),
            "kept_kib": _each_kib(closed, empty, step.size), "leaked_kib": _each_kib(closed_again, closed, step.size),
            **{f"all_{key.removeprefix('cpu_')}": value for key, value in together.items()},
            "wide_us": wide["cpu_us"],
            "echo_us": median(run.report.server.cpu_us_per_message for run in runs),
        }  # fmt: skip
        return values, max(others, others_together, others_wide, rest.other_cores)

    @contextmanager
    def _idle_clients(self, broker: CurveBroker, count: int) -> Iterator[None]:
        """Keep connections open, until the broker has closed them, too: it has a limit."""
        before = count_sockets(broker.process_id)
        with IdleClients(broker.address, count).running():
            yield
        wait_for_closed_sockets(broker.process_id, before + SPARE_CONNECTIONS // 2)

    def _consumers(self, step: Step, name_server: str) -> tuple[dict[str, float], float]:
        with self._broker(step, name_server, connections=step.size) as broker, pinned(self._cores.load):
            create_topics(broker.address, [SHARED_TOPIC], 1)
            create_topics(broker.address, [OWN_TOPIC], step.size)
            empty = broker.read_memory()
            own = Consumers(broker.address, OWN_TOPIC, step.size, has_own_queues=True)
            try:
                own.deliver(step.size, bytes(BODY_BYTES))  # creates the files of all queues
                memory = broker.read_memory()
                rest = measure_rest(broker.process_id, self._scale.rest_seconds)
                own.keep_held(0.1)
                own_costs, others = self._deliver(broker, own, max(self._scale.deliveries, step.size), "own")
            finally:
                own.close()
            shared = Consumers(broker.address, SHARED_TOPIC, step.size, has_own_queues=False)
            try:
                shared.deliver(1, bytes(BODY_BYTES))
                rounds = max(self._scale.deliveries // step.size, self._scale.rounds_min)
                shared_costs, others_shared = self._deliver(broker, shared, rounds, "shared")
            finally:
                shared.close()
        values = {
            **mebibytes(memory), "rest_percent": rest.percent, "each_kib": _each_kib(memory, empty, step.size),
            **own_costs, **shared_costs,
        }  # fmt: skip
        return values, max(others, others_shared, rest.other_cores)

    def _deliver(
        self, broker: CurveBroker, consumers: Consumers, rounds: int, prefix: str
    ) -> tuple[dict[str, float], float]:
        with OtherWork(broker.process_id) as others:
            before = read_usage(broker.process_id)
            deliveries = consumers.deliver(rounds, bytes(BODY_BYTES))
            used = read_usage(broker.process_id).since(before)
        costs = {f"{prefix}_{key.removeprefix('cpu_')}": value for key, value in used.each_us(deliveries).items()}
        return costs, others.cores

    def _shards(self, step: Step, name_server: str) -> tuple[dict[str, float], float]:
        scale = self._scale
        segment_bytes = min(scale.segment_bytes, SHARD_SEGMENT_BYTES)
        with ExitStack() as stack:
            brokers = []
            for number in range(step.size):
                extra = {"brokerName": f"shard-{number}", "mappedFileSizeCommitLog": str(segment_bytes)}
                folder = self._folder / "step" / f"shard-{number}"
                broker = serve(folder, path=step.path, name_server=name_server, core=None, extra=extra)
                brokers.append(stack.enter_context(broker))
            targets = [broker.target for broker in brokers]
            turns: list[list[Run]] = [
                self._free_load.run_together(MODES["a"], BODY_BYTES, targets=targets, timing=scale.timing)
                for _ in range(scale.repetitions)
            ]
            memories = [mebibytes(broker.read_memory()) for broker in brokers]
        turn_values = [shard_values([run.report for run in turn]) for turn in turns]
        values = {key: median(turn[key] for turn in turn_values) for key in turn_values[0]}
        for key in memories[0]:
            values[key] = sum(memory[key] for memory in memories)
        values["each_mib"] = values["anonymous_mib"] / step.size
        return values, max(run.other_cores for turn in turns for run in turn)

    def _restart(self, step: Step, name_server: str) -> tuple[dict[str, float], float]:
        plan = self._fill_plan(step)
        store = Path(plan.store_path)
        store.parent.mkdir()
        seconds_max = 60 + step.size / SLOW_DISK_BYTES_PER_SECOND
        extra = {"mappedFileSizeCommitLog": str(plan.segment_bytes)}

        @contextmanager
        def started(way: Way = "as the kill left it") -> Iterator[CurveBroker]:
            prepare_store(store, way)
            with serve(
                store.parent, path=step.path, name_server=name_server, core=self._cores.server, extra=extra,
                seconds_max=seconds_max,
            ) as broker:  # fmt: skip
                yield broker

        with OtherWork() as others:
            run_process("fill", plan, FillReport)
            with started("all of it, cached") as broker:
                cached_seconds, cached_bytes = broker.start_seconds, broker.read_opening().read_bytes
            clean = []
            for _ in range(self._scale.repetitions):
                os.sync()  # a start syncs small files, which must not wait for what the last step has written
                with started() as broker:
                    clean.append(broker.clean_start_seconds())
            with started() as broker:
                if not (store / RECOVERY_POINT).exists():
                    raise BenchmarkFailed(f"a broker has started and there is no {RECOVERY_POINT}")
                self._load.run(MODES["a"], BODY_BYTES, target=broker.target, timing=BEFORE_KILL)
                kill(broker)
            with started() as broker:
                point_seconds, point_bytes = broker.start_seconds, broker.read_opening().read_bytes
                kill(broker)
            with started("all of it, from the disk") as broker:
                disk_seconds, disk_bytes = broker.start_seconds, broker.read_opening().read_bytes
        if min(cached_bytes, disk_bytes) < step.size:
            raise BenchmarkFailed(f"a start without a recovery point has read {disk_bytes:,} bytes of {step.size:,}")
        return {
            "clean_s": median(clean), "point_s": point_seconds, "point_gb": point_bytes / 1e9,
            "cached_s": cached_seconds, "cached_gbs": cached_bytes / cached_seconds / 1e9,
            "disk_s": disk_seconds, "disk_gbs": disk_bytes / disk_seconds / 1e9,
        }, others.cores  # fmt: skip

    def _fill_plan(self, step: Step) -> FillPlan:
        return FillPlan(
            store_path=str(self._folder / "step" / "broker" / "store"), log_bytes=step.size, body_bytes=BODY_BYTES,
            segment_bytes=self._scale.restart_segment_bytes, unflushed_bytes_max=UNFLUSHED_BYTES_MAX,
        )  # fmt: skip

    def _send_first(self, broker: CurveBroker, mode: Mode, messages: int) -> None:
        """Send until each topic has messages: the first one of a queue also creates its file."""
        stored = 0
        for _ in range(FIRST_LOADS_MAX):
            timing = Timing(warm_up_ms=0, duration_ms=max(self._scale.timing.duration_ms // 4, 100))
            report = self._load.run(mode, BODY_BYTES, target=broker.target, timing=timing).report
            stored += report.messages
            if report.errors:
                raise BenchmarkFailed(f"the broker refused {report.errors:,} first sends: {report.first_refusal}")
            if stored >= messages:
                return
        raise BenchmarkFailed(f"the broker stored only {stored:,} messages of {messages:,}")

    def _send_repeatedly(self, broker: CurveBroker, mode: Mode) -> tuple[dict[str, float], float]:
        """Return medians of the repetitions of a load, and the largest use of cores by other programs."""
        turns, others = [], 0.0
        sockets = count_sockets(broker.process_id)
        for _ in range(self._scale.repetitions):
            wait_for_closed_sockets(broker.process_id, sockets + SPARE_CONNECTIONS // 2)
            before, stored = read_usage(broker.process_id), read_progress(broker.address).messages
            run = self._load.run(mode, BODY_BYTES, target=broker.target, timing=load_timing(self._scale, mode))
            used = read_usage(broker.process_id).since(before)
            turns.append(send_values(run.report, used, read_progress(broker.address).messages - stored))
            others = max(others, run.other_cores)
        return {key: median(turn[key] for turn in turns) for key in turns[0]}, others


def load_timing(scale: CurveScale, mode: Mode) -> Timing:
    """Return the duration of a load. With thousands of sends in flight it is longer.

    Their answers come in bursts of all of them, so a short window could have the work of a burst without its answers.
    """
    if mode.connections * mode.outstanding < MANY_IN_FLIGHT:
        return scale.timing
    return Timing(warm_up_ms=2 * scale.timing.warm_up_ms, duration_ms=3 * scale.timing.duration_ms)


def send_values(report: Report, used: Usage, messages: int) -> dict[str, float]:
    """Return the figures of one load. The split by thread and mode is that of the whole load, its warm-up included.

    Raises BenchmarkFailed if a send was refused, because a refused send costs less.
    """
    if report.errors:
        raise BenchmarkFailed(f"{report.errors:,} sends were refused or answered wrongly: {report.first_refusal}")
    costs = used.each_us(messages)
    factor = report.server.cpu_us_per_message / costs["cpu_us"] if costs["cpu_us"] else 0.0
    split = {key: costs[key] * factor for key in ("loop_us", "threads_us", "kernel_us")}
    return {
        "cpu_us": report.server.cpu_us_per_message, **split, "faults": costs["faults"],
        "rate": report.messages_per_second, "p99_ms": report.latency_us.p99 / 1e3,
        "replies_per_read": report.replies_per_read_mean,
    }  # fmt: skip


def shard_values(reports: Sequence[Report]) -> dict[str, float]:
    """Return the figures of all shards together, under loads at the same time."""
    if errors := sum(report.errors for report in reports):
        raise BenchmarkFailed(f"{errors:,} sends were refused or answered wrongly")
    messages = sum(report.messages for report in reports)
    cpu_seconds = sum(report.server.cpu_seconds for report in reports)
    kernel_share = sum(report.server.system_seconds for report in reports) / max(
        sum(report.server.user_seconds + report.server.system_seconds for report in reports), 1e-9
    )
    return {
        "rate": sum(report.messages_per_second for report in reports),
        "cpu_us": cpu_seconds * 1e6 / messages,
        "kernel_us": cpu_seconds * kernel_share * 1e6 / messages,
        "broker_cores": sum(report.server.utilisation for report in reports),
        "load_cores": sum(report.own_utilisation for report in reports),
    }


def _each_kib(memory: ResidentMemory, empty: ResidentMemory, count: int) -> float:
    return (memory.anonymous_bytes - empty.anonymous_bytes) / KIBIBYTES / count
