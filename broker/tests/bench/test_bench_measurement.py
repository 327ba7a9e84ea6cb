"""The calculations of the send benchmark: medians, ratios, goals, and the figures of the machine.

Pure parts only; the runs themselves are in test_bench_send.py.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from gantry_bench import errors, machine, measurement, memory

MEBIBYTE = 1024 * 1024


def report(**changes: Any) -> measurement.Report:
    """Return a report as the load generator prints it, with some fields changed."""
    fields: dict[str, Any] = {
        "load": {
            "connections": 1,
            "outstanding": 64,
            "frames_per_write": 64,
            "body_bytes": 128,
            "frame_bytes": 483,
            "header": "json",
            "is_echo": False,
        },
        "messages": 1000,
        "seconds": 1.0,
        "messages_per_second": 1000.0,
        "frames_per_write_mean": 64.0,
        "replies_per_read_mean": 60.0,
        "latency_us": {"mean": 1.0, "p50": 1.0, "p99": 2.0, "p99_9": 3.0, "max": 4.0},
        "errors": 0,
        "refused_by_code": {},
        "wrong_opaque": 0,
        "wrong_reply": 0,
        "first_refusal": "",
        "own_cpu_seconds": 0.5,
        "own_utilisation": 0.5,
        "server": {
            "user_seconds": 0.1,
            "system_seconds": 0.1,
            "cpu_seconds": 0.2,
            "is_precise": True,
            "cpu_us_per_message": 4.0,
            "utilisation": 0.2,
        },
    }
    return measurement.read_report(msgspec.json.encode({**fields, **changes}))


def with_cpu(microseconds: float) -> measurement.Report:
    """Return a report of a server that used this much CPU time per message."""
    return report(
        server={
            "user_seconds": 0.1,
            "system_seconds": 0.1,
            "cpu_seconds": 0.2,
            "is_precise": True,
            "cpu_us_per_message": microseconds,
            "utilisation": 0.2,
        }
    )


def test_one_disturbed_run_does_not_decide() -> None:
    """Figures are medians of the repetitions, and their spread is reported too."""
    summary = measurement.summarise([with_cpu(4.0), with_cpu(400.0), with_cpu(5.0)])

    assert summary.cpu_us_per_message == 5.0
    assert (summary.cpu_us_per_message_least, summary.cpu_us_per_message_most) == (4.0, 400.0)
    assert summary.repetitions == 3


def test_errors_are_summed_and_not_averaged() -> None:
    """A single wrong answer in one run is an error of the whole."""
    assert measurement.summarise([report(), report(errors=1), report()]).errors == 1


def test_run_without_messages_is_refused_with_the_servers_remark() -> None:
    """A rate of 0 is not reported; the first refusal is shown instead."""
    silent = report(messages=0, errors=9, refused_by_code={"14": 9}, first_refusal="service not available")

    with pytest.raises(errors.BenchmarkFailed, match="service not available"):
        measurement.summarise([report(), silent])


@pytest.mark.parametrize("text", [b"", b"{}", b'{"messages": "many"}', b"panic: oh"], ids=lambda text: repr(text))
def test_unreadable_report_is_shown(text: bytes) -> None:
    """A load generator with invalid output ends the run with that output."""
    with pytest.raises(errors.BenchmarkFailed, match="cannot read") as caught:
        measurement.read_report(text)

    assert repr(text) in str(caught.value)


@pytest.mark.parametrize(
    ("mode", "broker_us", "is_met"),
    [("a", 10.0, True), ("a", 10.1, False), ("b", 3.0, True), ("b", 3.1, False)],
    ids=["a at the limit", "a over it", "b at the limit", "b over it"],
)
def test_cpu_goal_is_a_ratio_to_the_echo_server(mode: measurement.ModeName, broker_us: float, is_met: bool) -> None:
    """The limit is ten times the CPU time of the same run's echo server in mode a, and three times in mode b."""
    echo = measurement.summarise([with_cpu(1.0)])
    broker = measurement.summarise([with_cpu(broker_us)])

    goal = measurement.cpu_goal(measurement.MODES[mode], 128, broker, echo)

    assert goal is not None
    assert goal.is_met is is_met
    assert goal.measured == pytest.approx(broker_us)


def test_one_frame_per_write_has_no_goal() -> None:
    """Mode a1 is only for comparison with mode a."""
    summary = measurement.summarise([report()])

    assert measurement.cpu_goal(measurement.MODES["a1"], 128, summary, summary) is None


def test_memory_goal_is_120_mebibytes() -> None:
    """A value at the limit meets it, a mebibyte more does not."""
    assert measurement.memory_goal(120 * MEBIBYTE).is_met
    assert not measurement.memory_goal(121 * MEBIBYTE).is_met


SMAPS = """\
55d0c0000000-55d0c0001000 r--p 00000000 fe:01 1234                       /usr/bin/python3.11
Size:                  4 kB
Rss:                   4 kB
Pss:                   4 kB
Anonymous:             0 kB
Private_Hugetlb:       0 kB
7f0000000000-7f0040000000 rw-s 00000000 fe:01 99                         /data/store/commitlog/00000000000000000000
Rss:                2048 kB
Anonymous:             0 kB
7f1000000000-7f1000100000 rw-s 00000000 fe:01 98                         /data/store-of-others/file
Rss:                  16 kB
Anonymous:             0 kB
7f2000000000-7f2000200000 rw-p 00000000 00:00 0 
Rss:                 512 kB
Anonymous:           512 kB
7f3000000000-7f3000400000 rw-s 00000000 00:0f 77                         /anon_hugepage (deleted)
Rss:                   0 kB
Anonymous:             0 kB
Private_Hugetlb:    4096 kB
"""  # noqa: W291  the kernel ends the line of a nameless mapping with a space


def test_only_the_stores_mapped_files_are_left_out() -> None:
    """A file whose path only begins alike is counted, and so are huge pages, which Rss leaves out."""
    resident = memory.parse_smaps(SMAPS, store=Path("/data/store"))

    assert resident.store_files_bytes == 2048 * 1024
    assert resident.counted_bytes == (4 + 16 + 512 + 4096) * 1024
    assert resident.anonymous_bytes == 512 * 1024


def test_memory_of_a_live_process_is_read() -> None:
    """The interpreter of this test uses some megabytes, all counted if the store is elsewhere."""
    resident = memory.read_resident_memory(os.getpid(), store=Path("/nowhere"))

    assert resident.store_files_bytes == 0
    assert MEBIBYTE < resident.anonymous_bytes <= resident.counted_bytes


def test_memory_of_an_ended_process_is_an_error() -> None:
    """An ended process has no figure."""
    with pytest.raises(errors.BenchmarkFailed, match="cannot read the memory"):
        memory.read_resident_memory(2**30, store=Path("/nowhere"))


def test_other_work_counts_programs_that_the_benchmark_did_not_start() -> None:
    """Kernel threads are not programs; children of servers belong to the benchmark, as their parents do."""
    program, kernel = 4194560, 2129984
    texts = {
        1: f"1 (init) S 0 1 1 0 -1 {program} 0 0 0 0 100 10 2000 200 20 0 1 0 5 1 1",
        2: f"2 (kthreadd) S 0 0 0 0 -1 {kernel} 0 0 0 0 0 5 0 0 20 0 1 0 5 1 1",
        3: f"3 (kworker/0:1) S 2 0 0 0 -1 {kernel} 0 0 0 0 0 7000 0 0 20 0 1 0 5 1 1",
        4: f"4 (bench (1) S 3) S 1 4 4 0 -1 {program} 0 0 0 0 9000 0 900 0 20 0 1 0 5 1 1",
        5: f"5 (load) S 4 4 4 0 -1 {program} 0 0 0 0 9000 0 0 0 20 0 1 0 5 1 1",
        6: f"6 (server) S 1 6 6 0 -1 {program} 0 0 0 0 9000 0 0 0 20 0 1 0 5 1 1",
        7: f"7 (worker) S 6 6 6 0 -1 {program} 0 0 0 0 9000 0 0 0 20 0 1 0 5 1 1",
        8: f"8 (shell) S 1 8 8 0 -1 {program} 0 0 0 0 3 4 5 6 20 0 1 0 5 1 1",
    }
    processes = {number: machine.parse_process(text) for number, text in texts.items()}

    assert machine.others_cpu_seconds(processes, {4, 6}) == (2310 + 18) / machine.CLOCK_TICKS_PER_SECOND


def test_other_work_sees_a_program_with_another_parent() -> None:
    """The program was started by a shell that has ended, so it does not descend from this process."""
    with machine.OtherWork() as others:
        began = time.monotonic()
        shell = ["sh", "-c", '"$0" -c "while True: pass" > /dev/null 2>&1 & echo $!', sys.executable]
        program = int(subprocess.check_output(shell))
        try:
            while machine.read_process_cpu_seconds(program) < 0.2:
                time.sleep(0.01)
            elapsed = time.monotonic() - began
        finally:
            os.kill(program, signal.SIGKILL)
    assert others.cores >= 0.1 / elapsed


def test_process_name_with_brackets_is_parsed() -> None:
    """The CPU fields are counted from the last closing bracket."""
    text = "7 (a (b) c) S 1 7 7 0 -1 4194560 100 0 0 0 250 13 0 0 20 0 3 0 5 1 1"

    assert machine.process_cpu_seconds(text) == 263 / machine.CLOCK_TICKS_PER_SECOND


def test_server_and_load_never_share_one_of_two_cores() -> None:
    """With one core nothing is pinned; with more, the two lowest allowed ones are used."""
    assert machine.assign_cores({3}) == machine.Cores(server=None, load=None)
    assert machine.assign_cores({7, 2, 5}) == machine.Cores(server=2, load=5)


def test_memory_is_touched_within_bounds() -> None:
    """At most a quarter of the available memory and at most a gibibyte is touched, and all of it is freed."""
    before = memory.read_resident_memory(os.getpid(), store=Path("/nowhere"))

    assert machine.touch_memory(40 * MEBIBYTE) == 10 * MEBIBYTE

    after = memory.read_resident_memory(os.getpid(), store=Path("/nowhere"))
    assert after.anonymous_bytes - before.anonymous_bytes < 5 * MEBIBYTE
    assert machine.WARM_BYTES_MAX == 1024 * MEBIBYTE


def test_available_memory_is_read_or_taken_as_none() -> None:
    """Without the line no memory is touched."""
    assert machine.available_bytes("MemTotal:  100 kB\nMemAvailable:   64 kB\n") == 64 * 1024
    assert machine.available_bytes("MemTotal:  100 kB\n") == 0
