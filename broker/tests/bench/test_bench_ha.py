"""The calculations of the replication benchmark: setups, medians, goals, tables, parsed output, control groups.

Pure parts only; the runs themselves are in test_bench_ha_run.py.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

import ha
import msgspec
import pytest
from gantry_bench import (
    errors,
    figures,
    ha_cells,
    ha_groups,
    ha_memory,
    ha_parts,
    ha_producer,
    ha_scale,
    ha_slow,
    ha_table,
    loadgen,
    machine,
    measurement,
    speedups,
)
from gantry_bench.ha_cells import PLAIN, SYNC_BUFFERED, SYNC_PLAIN, Setup, System
from rich.console import Console

REFUSED = {"2": 3, "12": 1}


def load_run(rate: float, p50: float = 10.0, *, refused: dict[str, int] | None = None, wrong: int = 0) -> loadgen.Run:
    """Return a run of a load generator with this rate."""
    fields: dict[str, Any] = {
        "load": {
            "connections": 1, "outstanding": 1, "frames_per_write": 1, "body_bytes": 1024, "frame_bytes": 1300,
            "header": "json", "is_echo": False,
        },
        "messages": int(rate), "seconds": 1.0, "messages_per_second": rate, "frames_per_write_mean": 1.0,
        "replies_per_read_mean": 1.0,
        "latency_us": {"mean": p50, "p50": p50, "p99": 2 * p50, "p99_9": 3 * p50, "max": 4 * p50},
        "errors": sum((refused or {}).values()) + wrong, "refused_by_code": refused or {}, "wrong_opaque": wrong,
        "wrong_reply": 0, "first_refusal": "", "own_cpu_seconds": 0.5, "own_utilisation": 0.5,
        "server": {
            "user_seconds": 0.1, "system_seconds": 0.1, "cpu_seconds": 0.2, "is_precise": True,
            "cpu_us_per_message": 4.0, "utilisation": 0.2,
        },
    }  # fmt: skip
    return loadgen.Run(report=measurement.read_report(msgspec.json.encode(fields)), other_cores=0.0)


def cells(*rates: tuple[System, Setup, int, float]) -> list[ha_cells.HaCell]:
    """Return a cell of each rate; latencies fall as rates rise."""
    runs = [
        ha_cells.HaRun(system=system, setup=setup, level=level, run=load_run(rate, 1e6 / max(rate, 1.0)))
        for system, setup, level, rate in rates
    ]
    return ha_cells.summarise_cells(runs)


def measured(goals: list[measurement.Goal]) -> dict[str, tuple[float, bool]]:
    """Return the measured value of each goal, by its text."""
    return {goal.text: (round(goal.measured, 3), goal.is_met) for goal in goals}


# -- setups and cells --------------------------------------------------------------------------------------------------


def test_eight_setups_are_all_run_in_full() -> None:
    """Flush, replication and buffer are independent, and no combination is left out."""
    assert len({setup.text for setup in ha_cells.SETUPS}) == 8
    assert ha_scale.FULL.setups == ha_cells.SETUPS
    assert ha_scale.FULL.producer_setups == ha_cells.SETUPS
    assert ha_scale.FULL.levels == ha_scale.FULL.producer_levels == (1, 16, 64, 256)


def test_setup_has_the_same_settings_for_both_brokers() -> None:
    """A synchronous master without `inSyncReplicas=2` would wait for no slave in RocketMQ 5."""
    keys = ha_cells.broker_keys(SYNC_BUFFERED, segment_bytes=1 << 20, buffers_count=3)

    assert keys == {
        "brokerRole": "SYNC_MASTER", "inSyncReplicas": "2", "flushDiskType": "ASYNC_FLUSH",
        "mappedFileSizeCommitLog": "1048576", "transientStorePoolEnable": "true", "transientStorePoolSize": "3",
    }  # fmt: skip
    assert "transientStorePoolEnable" not in ha_cells.broker_keys(PLAIN, segment_bytes=1, buffers_count=3)
    slave = ha_cells.slave_keys(SYNC_BUFFERED, segment_bytes=1 << 20)
    assert slave["brokerRole"] == "SLAVE"
    assert slave["mappedFileSizeCommitLog"] == keys["mappedFileSizeCommitLog"]


def test_failures_are_summed_by_code_and_rates_are_medians() -> None:
    """One bad repetition does not decide a rate, but is counted."""
    runs = [
        ha_cells.HaRun(system="Gantry", setup=PLAIN, level=1, run=run)
        for run in (load_run(100), load_run(900, refused=REFUSED), load_run(300, refused={"2": 1}, wrong=2))
    ]

    [cell] = ha_cells.summarise_cells(runs)

    assert cell.messages_per_second == 300
    assert cell.failures == {"2": 4, "12": 1, "wrong": 2}
    assert cell.busy_answers == 4
    assert cell.failures_text == "12: 1, wrong: 2"


def test_failed_run_is_a_cell_with_its_reason() -> None:
    """Apache's broker may stop answering; the table shows that, and the benchmark continues."""
    runs = [ha_cells.HaRun(system="Apache", setup=SYNC_BUFFERED, level=1, run=None, problem="no answer for 5s")]
    ours = cells(("Gantry", SYNC_BUFFERED, 1, 10_000))

    table = ha_table.table_figures([*ours, *ha_cells.summarise_cells(runs)], [])

    assert table.rows[0][-4:] == ["none", "no answer for 5s", "0", "0"]
    assert ha_table.slower_notes([*ours, *ha_cells.summarise_cells(runs)]) == []


# -- the goals of the table --------------------------------------------------------------------------------------------


def test_sync_replication_is_compared_with_async() -> None:
    """The goals apply from 64 outstanding sends on."""
    rates = [(level, plain, synced) for level, plain, synced in ((16, 90, 1), (64, 100, 70), (256, 100, 69))]
    found = cells(
        *(("Gantry", PLAIN, level, plain) for level, plain, _ in rates),
        *(("Gantry", SYNC_BUFFERED, level, synced) for level, _, synced in rates),
    )

    goals = measured(ha_table.table_goals(found, []))

    assert goals == {
        "sync replication, buffer on, 64 outstanding": (0.7, True),
        "sync replication, buffer on, 256 outstanding": (0.69, False),
        "answers with code 2, all cells": (0, True),
    }


@pytest.mark.parametrize(("p50", "is_met"), [(30.0, True), (31.0, False)], ids=["three times", "more"])
def test_single_send_is_compared_with_a_relayed_echo(p50: float, is_met: bool) -> None:
    """The limit is three times the median of an echo over the same path."""
    run = ha_cells.HaRun(system="Gantry", setup=SYNC_BUFFERED, level=1, run=load_run(100, p50))
    relay = ha_cells.HaRun(system="Gantry", setup=SYNC_BUFFERED, level=1, run=load_run(100, 10.0))

    goals = ha_table.table_goals(ha_cells.summarise_cells([run]), ha_cells.summarise_cells([relay]))

    assert goals[0].text == "sync replication, buffer on, 1 outstanding: p50"
    assert goals[0].is_met == is_met


def test_any_answer_with_code_2_misses_a_goal() -> None:
    """The answer may be in any of our cells; Apache's do not count."""
    run = ha_cells.HaRun(system="Gantry", setup=PLAIN, level=1, run=load_run(100, refused={"2": 1}))
    theirs = ha_cells.HaRun(system="Apache", setup=PLAIN, level=1, run=load_run(100, refused={"2": 900}))

    [goal] = ha_table.table_goals(ha_cells.summarise_cells([run, theirs]), [])

    assert goal.measured == 1
    assert not goal.is_met


def test_cells_in_which_we_are_slower_are_named() -> None:
    """Rate and p99 are listed separately, each with its ratio."""
    found = cells(
        ("Gantry", PLAIN, 1, 1000), ("Apache", PLAIN, 1, 500), ("Gantry", PLAIN, 64, 500), ("Apache", PLAIN, 64, 1000)
    )  # fmt: skip

    slower, later = ha_table.slower_notes(found)

    assert slower == (
        "Fewer messages a second than Apache RocketMQ in 1 of 2 cells: "
        "async flush, async replication, buffer off, 64 outstanding (0.50x)."
    )
    assert "in 1 of 2 cells" in later
    assert "(2.0x)" in later


# -- Apache's producer -------------------------------------------------------------------------------------------------

PRINTED = (
    "topic: BenchmarkTest, threadCount: 1\n"
    "Current Time: 2026-01-01 00:00:00,000 | Send TPS: 5 | Max RT(ms): 900 | Average RT(ms): 200.000 "
    "| Send Failed: 0 | Response Failed: 0\n"
    "Current Time: 2026-01-01 00:00:01,000 | Send TPS: 7 | Max RT(ms): 900 | Average RT(ms): 150.500 "
    "| Send Failed: 1 | Response Failed: 2\n"
)


LOGGED = (
    "2026-01-01 00:00:00 WARN pool-2-thread-1 - sendKernelImpl exception, resend at once, InvokeID: 1\n"
    "org.apache.rocketmq.client.exception.MQBrokerException: CODE: 2  DESC: [TIMEOUT_CLEAN_QUEUE]broker busy\n"
    "\tat org.apache.rocketmq.client.impl.MQClientAPIImpl.processSendResponse(MQClientAPIImpl.java:744)\n"
    "org.apache.rocketmq.client.exception.MQBrokerException: CODE: 2  DESC: [TIMEOUT_CLEAN_QUEUE]broker busy\n"
    "org.apache.rocketmq.remoting.exception.RemotingTimeoutException: wait response on the channel timeout\n"
)


def produced(system: System, setup: Setup, threads: int, rate: float) -> ha_producer.ProducerRun:
    """Return a run of Apache's producer with this rate."""
    return ha_producer.ProducerRun(
        system=system, setup=setup, threads=threads, messages_per_second=rate, mean_ms=1, failed=0
    )


def test_last_report_of_the_producer_counts() -> None:
    """Earlier reports include its start."""
    run = ha_producer.read_producer(PRINTED, "", system="Apache", setup=SYNC_BUFFERED, threads=1)

    assert (run.messages_per_second, run.mean_ms, run.failed, run.problem) == (7, 150.5, 3, "")


def test_producer_without_a_report_has_no_rate_but_a_reason() -> None:
    """A rate of 0 must not look like a measurement."""
    run = ha_producer.read_producer("java.lang.Error: no\n", LOGGED, system="Apache", setup=PLAIN, threads=1)

    assert run.messages_per_second == 0
    assert "java.lang.Error" in run.problem


def test_resent_answers_of_the_producer_are_counted() -> None:
    """Its own count includes only sends that finally failed, but code 2 must be visible in all cases."""
    assert ha_producer.read_refusals(LOGGED) == {"2": 2, "RemotingTimeoutException": 1}


def test_producers_goals_compare_our_buffer_with_apaches_pool_off_and_on() -> None:
    """The goal is equality with its pool off at every level, and ten times the rate with its pool on at one thread."""
    runs = [
        produced("Gantry", SYNC_BUFFERED, 1, 95), produced("Apache", SYNC_PLAIN, 1, 95),
        produced("Apache", SYNC_BUFFERED, 1, 10), produced("Gantry", SYNC_BUFFERED, 64, 1),
        produced("Apache", SYNC_PLAIN, 64, 2),
    ]  # fmt: skip

    goals = [(goal.unit, goal.measured, goal.is_met) for goal in ha_producer.producer_goals(runs)]

    assert goals == [
        ("x Apache's with its pool off", 1.0, True),
        ("x Apache's with its pool off", 0.5, False),
        ("x Apache's with its pool on", 9.5, False),
        ("answers", 0, True),
    ]
    assert "in 0 of 1 cells" in ha_producer.producer_figures(runs, []).notes[-1]


# -- little memory -----------------------------------------------------------------------------------------------------


def memory_run(group: ha_memory.GroupName, level: int, rate: float) -> ha_memory.MemoryRun:
    run = ha_cells.HaRun(system="Gantry", setup=SYNC_BUFFERED, level=level, run=load_run(rate))
    return ha_memory.MemoryRun(group=group, run=run, own_bytes=60 << 20, limit_hits=1)


def test_worst_cell_decides_about_little_memory() -> None:
    """The goal is at most five per cent less in every cell."""
    runs = [
        memory_run("256 MiB", 1, 100), memory_run("4 GiB", 1, 100),
        memory_run("256 MiB", 64, 94), memory_run("4 GiB", 64, 100),
        memory_run("256 MiB with its page cache", 64, 1),
    ]  # fmt: skip

    [goal] = ha_memory.memory_goals(runs)

    assert goal.text.endswith("worst at 64 outstanding")
    assert goal.measured == 0.94
    assert not goal.is_met


def test_compared_groups_have_the_same_room_for_mapped_pages() -> None:
    """They differ only in the broker's own memory."""
    limits = {
        group: ha_memory.limit_bytes(group, segment_bytes=512 << 20, tmpfs_bytes=0) >> 20
        for group in ha_memory.OWN_BYTES
    }

    assert limits == {"256 MiB": 256 + 1024, "4 GiB": 4096 + 1024, "256 MiB with its page cache": 256}


@pytest.mark.parametrize("text", ["cache 5\nrss 6\ntotal_rss 7\n", "anon 7\nfile 8\n"], ids=["version 1", "version 2"])
def test_own_memory_is_read_of_both_versions_of_control_groups(text: str) -> None:
    """Own memory is the memory that belongs to no file."""
    assert ha_groups.own_bytes(text) == 7


def test_control_group_without_the_value_is_an_error() -> None:
    """A figure of 0 would look like a small broker."""
    with pytest.raises(errors.BenchmarkFailed, match="anonymous"):
        ha_groups.own_bytes("cache 5\n")


# -- the slow slave ----------------------------------------------------------------------------------------------------


def slow_run(level: int, delay_ms: float, rate: float, mean_us: float, pull_p99_us: float) -> ha_slow.SlowRun:
    pulls = ha_slow.PullReport(pulls=100, p50_us=1, p99_us=pull_p99_us, refused=0)
    return ha_slow.SlowRun(kind="ack", level=level, delay_ms=delay_ms, run=load_run(rate, mean_us), pulls=pulls)


def test_late_acks_may_cost_their_delay_once_and_nothing_at_saturation() -> None:
    """256 sends that take L0 = 3 ms and 5 ms more each are 32,000 a second."""
    runs = [
        slow_run(256, 0, 85_000, 3000, 100), slow_run(256, 5, 28_800, 8900, 151),
        slow_run(4096, 0, 90_000, 45_000, 100), slow_run(4096, 5, 80_000, 51_000, 150),
    ]  # fmt: skip

    goals = measured(ha_slow.slow_goals(ha_slow.summarise_slow(runs)))

    assert goals == {
        "acks 5 ms later, 256 outstanding": (0.9, True),
        "acks 5 ms later, 256 outstanding: p99 of pulls": (1.51, False),
        "acks 5 ms later, 4096 outstanding": (0.889, False),
        "acks 5 ms later, 4096 outstanding: p99 of pulls": (1.5, True),
    }


def test_slow_disk_and_slow_slave_are_awaited_at_once() -> None:
    """Two waits of 5 ms take 5 ms, not 10."""
    run = ha_slow.SlowRun(kind="both", level=1, delay_ms=5, run=load_run(100, 10_300))

    [goal] = ha_slow.slow_goals(ha_slow.summarise_slow([run]))

    assert goal.measured == 10.3
    assert not goal.is_met


def test_percentiles_of_pulls_are_rounded_up() -> None:
    """They are measured times; without a pull they are 0."""
    assert ha_slow.pull_report([4.0, 1.0, 3.0, 2.0], 0).p99_us == 4.0
    assert ha_slow.pull_report([], 7) == ha_slow.PullReport(pulls=0, p50_us=0, p99_us=0, refused=7)


# -- the page ----------------------------------------------------------------------------------------------------------


def test_page_has_markers_for_every_table() -> None:
    """`--publish` must not detect a missing marker only after an hour."""
    tables = [
        ha_table.table_figures([], []), ha_table.relay_figures([], [], []), ha_producer.producer_figures([], []),
        ha_memory.memory_figures([], []), ha_slow.slow_figures([], []),
        *(figures.Figures(name=name, headings=["x"], rows=[], notes=[]) for name in ("measured on", "goals")),
    ]  # fmt: skip

    assert figures.publish(ha.PAGE.read_text(), tables, benchmark=ha.BENCHMARK)


def test_reason_cannot_break_a_table() -> None:
    """The output of a Java program may have newlines and vertical bars."""
    error = errors.BenchmarkFailed("no answer | for 5 s; see the log:\nat java.lang.Thread" + "x" * 1000)

    assert ha_cells.reason_line(error) == "no answer / for 5 s; see the log:"
    assert len(ha_cells.reason_line(errors.BenchmarkFailed("x" * 1000))) == ha_cells.PROBLEM_MAX


def test_published_run_replaces_the_tables_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A table goes between its own markers, and the rest of the page stays."""
    page = tmp_path / "benchmarks.md"
    page.write_text(ha.PAGE.read_text())
    monkeypatch.setattr(ha, "PAGE", page)
    monkeypatch.setattr(ha, "ROOT", tmp_path)
    monkeypatch.setattr(ha, "RESULTS", tmp_path)
    found = cells(("Gantry", PLAIN, 64, 4321), ("Gantry", SYNC_BUFFERED, 64, 3456))
    outcome = ha_parts.HaOutcome(
        [ha_table.table_figures(found, ["Conditions."])], ha_table.table_goals(found, []), list[ha_cells.HaRun]()
    )
    results = ha.Results(
        started_at="2026-01-01T00:00:00Z", machine=machine.describe_machine(), scale=ha_scale.QUICK, without_apache="",
        path=speedups.CodePath("", False, "no compiler"), outcomes={"table": outcome},
    )  # fmt: skip

    ha.report(Console(quiet=True), results, json_path=None, is_publishing=True)

    text = page.read_text()
    between = text.partition("<!-- bench-ha: replication -->")[2].partition("<!-- end: replication -->")[0]
    assert "| async | sync | on | 64 | 3,456 |" in between
    assert "Conditions." in between
    assert "## Replication (`make bench-ha`)" in text
    assert json.loads((tmp_path / "ha-20260101T000000Z.json").read_text())["scale"]["name"] == "quick"


def test_every_part_can_be_run_alone() -> None:
    """The option `--only` accepts every part."""
    by_name = ha_parts.HaParts(ha_scale.QUICK, msgspec.UNSET, without="").by_name  # type: ignore[arg-type]
    assert set(by_name) == set(get_args(ha_parts.PartName)) == {"table", "producer", "memory", "slow"}
