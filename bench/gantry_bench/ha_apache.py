"""Apache RocketMQ, master and slave, set up like Gantry's pair, and its own benchmark producer.

`e2e/interop` builds and starts both, because it contains Apache's artifacts; the settings of a pair are here. Each
broker gets 1 GiB of heap, and direct memory for its buffers. If Java or Maven is
missing, or the build fails, the benchmark continues without Apache and reports the reason.
"""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

from gantry_interop import benchmark, java, peers, probe
from gantry_interop.errors import InteropError
from gantry_interop.processes import Child, Nursery, wait_until

from gantry_bench.errors import BenchmarkFailed
from gantry_bench.ha_cells import broker_keys, slave_keys
from gantry_bench.ha_pair import Pair, PairPlan
from gantry_bench.ha_producer import ProducerPlan, ProducerRun, read_producer
from gantry_bench.loadgen import Target
from gantry_testing.ports import free_broker_port, free_port

HEAP_MIB: Final = 1024
DIRECT_MIB: Final = 1024
READY_SECONDS_MAX: Final = 240.0
PRODUCER_SECONDS_MAX: Final = 120.0


def apache_missing_reason() -> str:
    """Return why Apache is unavailable; empty if it is available. Builds it if needed, which may take minutes."""
    try:
        java.build()
    except (InteropError, OSError, subprocess.TimeoutExpired) as error:
        return str(error).partition("\n")[0]
    return ""


@contextmanager
def start_apache_pair(plan: PairPlan, folder: Path) -> Iterator[Pair]:
    """Start Apache's master and slave with empty stores below ``folder``, which is created and removed."""
    folder.mkdir()
    try:
        with Nursery(folder / "logs") as nursery:
            yield _start(plan, folder, nursery)
    except (InteropError, OSError) as error:
        raise BenchmarkFailed(f"Apache's pair, {plan.setup.text}: {error}") from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def start_apache_broker(folder: Path) -> Iterator[Target]:
    """Start one master of Apache's with an empty store below ``folder``, which is removed at the end."""
    with start_apache_cluster(folder) as (broker, _):
        yield broker


@contextmanager
def start_apache_cluster(folder: Path, *, has_timers: bool = False) -> Iterator[tuple[Target, str]]:
    """Start a broker as ``start_apache_broker``; yield it and the address of its name server.

    Without timers the broker refuses pops.
    """
    folder.mkdir()
    port = free_broker_port()
    try:
        with Nursery(folder / "logs") as nursery:
            name_server = _start_name_server(folder, nursery)
            keys = {
                "brokerClusterName": "bench", "brokerName": "theirs", "brokerIP1": "127.0.0.1", "brokerId": "0",
                "listenPort": str(port), "haListenPort": str(port + 1), "namesrvAddr": name_server,
                "autoCreateTopicEnable": "true", "timerWheelEnable": str(has_timers).lower(),
            }  # fmt: skip
            broker = _start_broker("broker", keys, folder, nursery, DIRECT_MIB)
            wait_until(
                "the broker's registration", lambda: probe.has_route(name_server, peers.AUTO_CREATE_TOPIC),
                READY_SECONDS_MAX, broker,
            )  # fmt: skip
            pid = broker.process.pid
            yield (
                Target(address=f"127.0.0.1:{port}", process_id=pid, is_echo=False, broker_name="theirs"),
                name_server,
            )
    except (InteropError, OSError) as error:
        raise BenchmarkFailed(f"Apache's broker: {error}") from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _start(plan: PairPlan, folder: Path, nursery: Nursery) -> Pair:
    name_server = _start_name_server(folder, nursery)
    name, master_port, slave_port = f"theirs-{folder.name}", free_broker_port(), free_broker_port()
    common = {
        "brokerClusterName": "bench", "brokerName": name, "brokerIP1": "127.0.0.1", "brokerIP2": "127.0.0.1",
        "namesrvAddr": name_server, "autoCreateTopicEnable": "true", "timerWheelEnable": "false",
    }  # fmt: skip
    keys = broker_keys(plan.setup, segment_bytes=plan.segment_bytes, buffers_count=plan.buffers_count)
    keys |= {"brokerId": "0", "listenPort": str(master_port), "haListenPort": str(master_port + 1)}
    direct_mib = plan.buffers_count * plan.segment_bytes // (1 << 20) + DIRECT_MIB
    master = _start_broker("master", {**common, **keys}, folder, nursery, direct_mib)
    wait_until(
        "the master's registration", lambda: probe.has_route(name_server, peers.AUTO_CREATE_TOPIC), READY_SECONDS_MAX,
        master,
    )  # fmt: skip
    # The slave gets its master's address at its registration: with `haMasterAddress`, 5.3.3 was observed to follow no
    # master.
    keys = slave_keys(plan.setup, segment_bytes=plan.segment_bytes)
    keys |= {"listenPort": str(slave_port), "haListenPort": str(slave_port + 1)}
    slave = _start_broker("slave", {**common, **keys}, folder, nursery, DIRECT_MIB)
    wait_until("the slave's answer", lambda: _is_answering(slave_port), READY_SECONDS_MAX, slave)
    return Pair(
        system="Apache",
        setup=plan.setup,
        master=Target(
            address=f"127.0.0.1:{master_port}", process_id=master.process.pid, is_echo=False, broker_name=name
        ),
        slave_address=f"127.0.0.1:{slave_port}",
        name_server=name_server,
    )


def _start_name_server(folder: Path, nursery: Nursery) -> str:
    port, home = free_port(), folder / "name-server-home"
    settings = folder / "namesrv.conf"
    settings.write_text(f"listenPort={port}\nbindAddress=127.0.0.1\n")
    command = replace(peers.NAME_SERVER, is_measured=True).command(home, ["-c", str(settings)])
    child = nursery.start("name-server", command, java.environment(home))
    wait_until("the name server's answer", lambda: _is_answering(port), READY_SECONDS_MAX, child)
    return f"127.0.0.1:{port}"


def _start_broker(role: str, settings: dict[str, str], folder: Path, nursery: Nursery, direct_mib: int) -> Child:
    home, store = folder / f"{role}-home", folder / role
    paths = {"storePathRootDir": str(store), "storePathCommitLog": str(store / "commitlog")}
    path = folder / f"{role}.conf"
    path.write_text("".join(f"{key}={value}\n" for key, value in {**settings, **paths}.items()))
    options = (*peers.BROKER.options, f"-Xms{HEAP_MIB}m", f"-XX:MaxDirectMemorySize={direct_mib}m")
    program = replace(peers.BROKER, heap_mib=HEAP_MIB, options=options, is_measured=True)
    return nursery.start(role, program.command(home, ["-c", str(path)]), java.environment(home))


def _is_answering(port: int) -> bool:
    try:
        probe.send_request(f"127.0.0.1:{port}", probe.GET_ROUTE_BY_TOPIC, {"topic": peers.AUTO_CREATE_TOPIC})
    except OSError:
        return False
    return True


def run_producer(pair: Pair, plan: ProducerPlan, folder: Path) -> ProducerRun:
    """Run Apache's benchmark producer against a pair of either kind, until it has printed enough reports."""
    folder.mkdir()
    arguments = ["-n", pair.name_server, "-w", str(plan.threads), "-s", str(plan.body_bytes), "-ri", "1000"]
    home = folder / "home"
    try:
        with Nursery(folder / "logs") as nursery:
            command = benchmark.PRODUCER.command(home, arguments)
            producer = nursery.start("producer", command, java.environment(home))
            text = _read_reports(producer, plan)
        logs = sorted((home / "logs").rglob("*.log"))
        log_text = "\n".join(path.read_text(errors="replace") for path in logs)
    except (InteropError, OSError) as error:
        raise BenchmarkFailed(f"Apache's producer against {pair.system}, {pair.setup.text}: {error}") from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return read_producer(text, log_text, system=pair.system, setup=pair.setup, threads=plan.threads)


def _read_reports(producer: Child, plan: ProducerPlan) -> str:
    """Return the producer's output, once it has printed the planned reports, has ended, or its time is over."""
    end = time.monotonic() + PRODUCER_SECONDS_MAX
    while True:
        text = producer.log.read_text(errors="replace")
        if text.count("Send TPS") >= plan.reports or time.monotonic() > end or not producer.is_running():
            return text
        time.sleep(0.2)
