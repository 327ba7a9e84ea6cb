"""`make bench-sidecar`: the cost of reading the log through the sidecar, compared with `cp`, and of scraping.

In one run, on one log in the page cache:

- `cp` of the log's files to tmpfs, the limit of this machine;
- the same bytes as ranges of 8 MiB over one connection each, from the `sendfile` port, and from the main one;
- sends' p99 while a range read runs at full speed (no rate), at the default rate, and without any reader;
- how long `/livez`, `/v1/status` and `/v1/group` take while the broker is stopped and a range read runs;
- CPU of sidecar and broker while the sidecar is scraped every 5 s, compared with the same time without scrapes.

The goals: ranges at 60% of `cp`, p99 of sends within 1.2x, answers within 100 ms, scrapes below 1% of a core. Compared
measurements take turns, so that other work of the machine affects all of them; only the CPU is measured once without
scrapes and then once with them. Rates are medians of the repetitions;
quantiles of sends are of all sends of all turns, since only a handful of sends in one short turn are slower than its
p99.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import click
import httpx

ROOT: Final = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "operator/tests")]

from admin_scene import BrokerChild, SidecarChild, broker_process, sidecar_process, wait_for  # noqa: E402

from gantry_testing.local import Dialogue  # noqa: E402

RANGE_BYTES: Final = 8 << 20
SENDFILE_SHARE_GOAL: Final = 0.6
P99_GOAL: Final = 1.2
SCRAPE_GOAL: Final = 0.01
SCRAPE_INTERVAL_S: Final = 5.0
ANSWER_GOAL_MS: Final = 100.0
ANSWERS_COUNT: Final = 300
RECEIVE_BYTES = 1 << 20
SHORT_RECEIVE_BYTES: Final = 256 << 10
"""The receive size of the reader beside sends: a non-preemptive kernel keeps the core while it copies."""
UNLIMITED: Final = ("--log-rate", "0", "--log-nice", "0")
"""The options of a sidecar that reads the log without a rate limit and at normal priority."""
UNLIMITED_LOW_PRIORITY: Final = ("--log-rate", "0")
"""The options of a sidecar that reads the log without a rate limit, at the default lower priority."""
TICKS: Final = os.sysconf("SC_CLK_TCK")


def fill(broker: BrokerChild, size: int) -> int:
    """Send messages until the log has ``size`` bytes; return its end."""

    async def send() -> None:
        dialogue = await Dialogue.open(broker.address)
        body = os.urandom(1 << 20)
        for _ in range(size // len(body) + 1):
            await dialogue.send_ok(body)
        await dialogue.close()

    asyncio.run(send())
    return broker.log_end


def measure_copy_rate(store: Path, size: int) -> float:
    """Return the bytes per second of `cp` of the files with the first ``size`` bytes to tmpfs."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as target:
        began = time.perf_counter()
        done = 0
        for path in sorted((store / "commitlog").iterdir()):
            if done >= size:
                break
            subprocess.run(["cp", str(path), target], check=True)
            done += path.stat().st_size
        return done / (time.perf_counter() - began)


def measure_range_rate(address: str, size: int) -> float:
    """Return the bytes per second of ranges of 8 MiB into one buffer, by a client without other work."""
    host, _, port = address.rpartition(":")
    buffer = bytearray(RANGE_BYTES + (1 << 16))
    with socket.create_connection((host, int(port))) as connection:
        began = time.perf_counter()
        for start in range(0, size - RANGE_BYTES + 1, RANGE_BYTES):
            wanted = f"Range: bytes={start}-{start + RANGE_BYTES - 1}"
            connection.sendall(f"GET /v1/log/bytes HTTP/1.1\r\nHost: localhost\r\n{wanted}\r\n\r\n".encode())
            receive(connection, buffer)
        return (size // RANGE_BYTES * RANGE_BYTES) / (time.perf_counter() - began)


def receive(connection: socket.socket, buffer: bytearray) -> None:
    """Receive one answer of 8 MiB. The head arrives first, alone or with the beginning of the body."""
    view, got = memoryview(buffer), 0
    end = -1
    while end < 0:
        got += connection.recv_into(view[got : got + RECEIVE_BYTES])
        end = buffer.find(b"\r\n\r\n", 0, got)
    if not buffer.startswith(b"HTTP/1.1 206"):
        raise SystemExit(f"refused: {bytes(buffer[:200])!r}")
    left = RANGE_BYTES - (got - end - 4)
    while left:
        left -= connection.recv_into(view[: min(left, RECEIVE_BYTES)])


def measure_latencies_ms(broker: BrokerChild, count: int) -> list[float]:
    """Return the durations of sequential sends."""

    async def send() -> list[float]:
        dialogue = await Dialogue.open(broker.address)
        took = []
        for _ in range(count):
            began = time.perf_counter()
            await dialogue.send_ok(b"x" * 1024)
            took.append((time.perf_counter() - began) * 1000)
        await dialogue.close()
        return took

    return asyncio.run(send())


@contextmanager
def run_reader(address: str | None, size: int) -> Iterator[None]:
    """Read range after range in another process for the duration of the context; read nothing without an address.

    The process stands for another machine, so it uses only idle time: SCHED_IDLE, and short system calls.
    """
    if address is None:
        yield
        return

    def run() -> None:
        global RECEIVE_BYTES
        RECEIVE_BYTES = SHORT_RECEIVE_BYTES  # changes only this process
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        while True:
            measure_range_rate(address, size)

    process = multiprocessing.get_context("fork").Process(target=run, daemon=True)
    process.start()
    try:
        yield
    finally:
        process.kill()
        process.join()


def read_cpu_s(pid: int) -> float:
    """Return the CPU time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def measure_scrape_shares(pids: list[int], sidecar: SidecarChild, seconds: float) -> tuple[list[float], list[float]]:
    """Return the shares of a core that each process uses: idle, and while the sidecar is scraped every 5 s."""
    found = []
    for is_scraped in (False, True):
        used, began = [read_cpu_s(pid) for pid in pids], time.monotonic()
        while time.monotonic() - began < seconds:
            if is_scraped:
                sidecar.get("/metrics", Accept="application/openmetrics-text;version=1.0.0")
            time.sleep(SCRAPE_INTERVAL_S)
        elapsed_s = time.monotonic() - began
        found.append([(read_cpu_s(pid) - before) / elapsed_s for pid, before in zip(pids, used, strict=True)])
    return found[0], found[1]


def measure_medians(works: dict[str, Callable[[], float]], repetitions: int) -> dict[str, float]:
    """Run all measurements in turns, and return the median of each."""
    found: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(repetitions):
        for name, work in works.items():
            found[name].append(work())
    return {name: statistics.median(values) for name, values in found.items()}


@click.command()
@click.option("--log-mib", default=512, show_default=True, help="Size of the log in MiB.")
@click.option(
    "--repetitions", default=5, show_default=True, help="Number of repetitions of each measurement, in turns."
)
@click.option(
    "--sends", default=500, show_default=True, help="Number of sends in each turn of the latency measurement."
)
@click.option("--turns", default=30, show_default=True, help="Number of turns of the latency measurement.")
@click.option(
    "--scrape-s", default=60.0, show_default=True, help="Duration of each of two measurements of the sidecar's CPU."
)
def main(log_mib: int, repetitions: int, sends: int, turns: int, scrape_s: float) -> None:
    """Measure the sidecar. The output has the goals beside the figures; the exit code does not depend on them."""
    folder = Path(tempfile.mkdtemp(prefix="gantry-bench-"))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    try:
        store = folder / "store"
        conf = {"mappedFileSizeCommitLog": str(64 << 20)}
        with broker_process(store, **conf) as broker, sidecar_process(store, "--open-reads", *UNLIMITED) as unlimited:
            size = fill(broker, log_mib << 20)
            wait_for(lambda: unlimited.get("/v1/log").json()["end"] >= size, "all of it is published")
            size = size // RANGE_BYTES * RANGE_BYTES
            report_rates(store, unlimited, size, repetitions)
            with (
                sidecar_process(store, "--open-reads") as limited,
                sidecar_process(store, "--open-reads", *UNLIMITED_LOW_PRIORITY) as low_priority,
            ):
                report_latencies(broker, limited.log_address, low_priority.log_address, size, turns, sends)
                report_answers(broker, low_priority, size)
            report_scrapes(broker, unlimited, scrape_s)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def report_rates(store: Path, unlimited: SidecarChild, size: int, repetitions: int) -> None:
    """Print the rates of `cp` and of both ports."""
    measure_copy_rate(store, size)  # fills the page cache
    rates = measure_medians(
        {
            "cp": lambda: measure_copy_rate(store, size),
            "sendfile": lambda: measure_range_rate(unlimited.log_address, size),
            "main": lambda: measure_range_rate(unlimited.address, size),
        },
        repetitions,
    )
    print(f"cp of the log to tmpfs, warm           {rates['cp'] / 2**20:8.0f} MiB/s")
    for name in ("sendfile", "main"):
        goal = f", goal {SENDFILE_SHARE_GOAL:.0%}" if name == "sendfile" else ""
        text = f"ranges of 8 MiB, {name} port"
        print(f"{text:38} {rates[name] / 2**20:8.0f} MiB/s, {rates[name] / rates['cp']:.0%} of cp{goal}")


def report_latencies(broker: BrokerChild, limited: str, low_priority: str, size: int, turns: int, sends: int) -> None:
    """Print latencies of sends, beside readers of the `sendfile` ports at the two addresses."""
    readers = {"none": None, "default rate": limited, "full speed": low_priority}
    took: dict[str, list[float]] = {name: [] for name in readers}
    for turn in range(turns):
        names = list(readers)
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            with run_reader(readers[name], size):
                took[name] += measure_latencies_ms(broker, sends)
    alone = statistics.quantiles(took["none"], n=1000)
    for name, values in took.items():
        found = statistics.quantiles(values, n=1000)
        text = ", ".join(f"p{at / 10:g} {found[at - 1]:6.3f} ms {found[at - 1] / alone[at - 1]:.2f}x"
                         for at in (500, 900, 990, 999))  # fmt: skip
        print(f"sends, reader: {name:13} {text}{'' if name == 'none' else f', goal of p99 {P99_GOAL}x'}")


def report_answers(broker: BrokerChild, sidecar: SidecarChild, size: int) -> None:
    """Print response times of a sidecar whose broker is stopped with SIGSTOP, and whose log is read at full speed."""
    broker.child.send(signal.SIGSTOP)
    try:
        with run_reader(sidecar.log_address, size), httpx.Client(base_url=sidecar.url, timeout=30) as client:
            for path in ("/livez", "/v1/status", "/v1/group"):
                took = []
                for _ in range(ANSWERS_COUNT):
                    began = time.perf_counter()
                    client.get(path)
                    took.append((time.perf_counter() - began) * 1000)
                found = statistics.quantiles(took, n=100)
                text = f"p50 {found[49]:6.1f} ms, p99 {found[98]:6.1f} ms, longest {max(took):6.1f} ms"
                print(f"{path:10} while the broker is stopped  {text}, goal {ANSWER_GOAL_MS:g} ms")
    finally:
        broker.child.send(signal.SIGCONT)


def report_scrapes(broker: BrokerChild, sidecar: SidecarChild, seconds: float) -> None:
    """Print the CPU use of sidecar and broker."""
    pids = [sidecar.child.process.pid, broker.child.process.pid]
    idle, scraped = measure_scrape_shares(pids, sidecar, seconds)
    for name, before, after in zip(("sidecar", "broker"), idle, scraped, strict=True):
        print(f"CPU of the {name:8} idle, scraped        {before:8.2%} {after:8.2%} of a core")
    print(f"CPU of being scraped every 5 s         {sum(scraped) - sum(idle):8.2%} of a core, goal {SCRAPE_GOAL:.0%}")


if __name__ == "__main__":
    main()
