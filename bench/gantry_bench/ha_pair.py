"""Gantry's master with an attached slave: starting them, and waiting until they can be measured.

    load -> master:port            slave -> [delayed acks ->] master:replication port

Both are processes of their own and are not pinned, because a multi-threaded broker that is compared must not be limited
to one core. A pair can be measured when the slave has every byte of the master's log, which both report, and when a
send is answered with code 0: only then is the answer of a synchronous master meaningful. Before every run the slave
must have caught up again, so that the replication backlog of one run does not disturb the next.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import msgspec

from gantry_bench.errors import BenchmarkFailed
from gantry_bench.ha_acks import AckProxy, start_ack_proxy
from gantry_bench.ha_cells import Setup, System, broker_keys, slave_keys
from gantry_bench.loadgen import LoadGenerator, Target, Timing
from gantry_bench.measurement import Mode
from gantry_bench.processes import (
    BROKER_PROGRAM,
    ROOT,
    start_broker,
    start_name_server,
)
from gantry_bench.runtime_info import read_log_end
from gantry_testing.ports import free_broker_port

ATTACH_SECONDS_MAX: Final = 90.0
"""The limit of the attach: Apache's slave may need 5 s for its first request, and broker and virtual machine must
start."""
SETTLE_SECONDS_MAX: Final = 120.0
POLL_SECONDS: Final = 0.1
FIRST_SENDS: Final = Timing(warm_up_ms=0, duration_ms=1)
BODY_BYTES: Final = 1024
CONNECTIONS_MAX: Final = 16


class Pair(msgspec.Struct, frozen=True):
    """A running master and its slave."""

    system: System
    setup: Setup
    master: Target
    slave_address: str
    name_server: str
    acks: AckProxy | None = None
    """The proxy between the slave and the master, if one is used."""


class PairPlan(msgspec.Struct, frozen=True):
    """The parameters of a pair."""

    setup: Setup
    segment_bytes: int
    buffers_count: int
    pool_path: str
    """The folder for write buffers; the buffers of each master get a folder of their own in it."""

    master_program: tuple[str, ...] = BROKER_PROGRAM
    slave_program: tuple[str, ...] = BROKER_PROGRAM
    has_ack_proxy: bool = False
    master_prefix: tuple[str, ...] = ()
    """The words before the master's command line, for a program that becomes the broker; the same for the slave."""
    slave_prefix: tuple[str, ...] = ()


def load_of(level: int) -> Mode:
    """Return a load with so many sends in flight: up to 16 connections, each answer followed by one send in its own
    write.
    """
    connections = min(level, CONNECTIONS_MAX)
    return Mode(
        name=f"level{level}", connections=connections, outstanding=level // connections, frames_per_write=1,
        cpu_ratio_max=None,
    )  # fmt: skip


def pool_keys(pool: Path | None) -> dict[str, str]:
    """Return the `broker.conf` lines for the place of the buffers of Gantry's master."""
    return {} if pool is None else {"transientStorePoolPath": str(pool)}


@contextmanager
def pool_folder(plan: PairPlan, name: str) -> Iterator[Path | None]:
    """Make a folder for the buffers of one master and remove it at the end; None for a setup without a buffer."""
    if not plan.setup.has_buffer:
        yield None
        return
    pool = Path(plan.pool_path) / name
    pool.mkdir()
    try:
        yield pool
    finally:
        shutil.rmtree(pool, ignore_errors=True)


@contextmanager
def start_pair(plan: PairPlan, folder: Path) -> Iterator[Pair]:
    """Start Gantry's master and slave with empty stores below ``folder``, which is created and removed."""
    folder.mkdir()
    name = f"ours-{folder.name}"
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        name_server = stack.enter_context(start_name_server(folder))
        pool = stack.enter_context(pool_folder(plan, name))
        ports = free_broker_port()
        keys = broker_keys(plan.setup, segment_bytes=plan.segment_bytes, buffers_count=plan.buffers_count)
        keys |= {"brokerName": name, "haListenPort": str(ports + 1), **pool_keys(pool)}
        master = stack.enter_context(
            start_broker(
                folder / "master", name_server=name_server, core=None, extra=keys, program=plan.master_program,
                port=ports, prefix=plan.master_prefix,
            )
        )  # fmt: skip
        acks = stack.enter_context(start_ack_proxy(folder, ports + 1)) if plan.has_ack_proxy else None
        follow = f"127.0.0.1:{ports + 1 if acks is None else acks.port}"
        keys = slave_keys(plan.setup, segment_bytes=plan.segment_bytes)
        keys |= {"brokerName": name, "haMasterAddress": follow}
        slave = stack.enter_context(
            start_broker(
                folder / "slave", name_server=name_server, core=None, extra=keys, program=plan.slave_program,
                prefix=plan.slave_prefix,
            )
        )  # fmt: skip
        yield Pair(
            system="Gantry", setup=plan.setup, master=master.target, slave_address=slave.target.address,
            name_server=name_server, acks=acks,
        )  # fmt: skip


def wait_until_attached(pair: Pair, load: LoadGenerator) -> None:
    """Wait until a send to the master is answered with code 0 and the slave has it."""
    deadline = time.monotonic() + ATTACH_SECONDS_MAX
    problem = ""
    while time.monotonic() < deadline:
        try:
            report = load.run(load_of(1), BODY_BYTES, target=pair.master, timing=FIRST_SENDS).report
            if report.errors == 0 and _is_caught_up(pair):
                return
            problem = report.first_refusal or "the slave has not caught up with its master"
        except BenchmarkFailed as error:
            problem = str(error)
        time.sleep(POLL_SECONDS)
    raise BenchmarkFailed(
        f"no slave of {pair.system}'s, {pair.setup.text}, within {ATTACH_SECONDS_MAX:.0f} s: {problem}"
    )


def wait_until_caught_up(pair: Pair) -> None:
    """Wait until the slave has every byte of the master's log."""
    deadline = time.monotonic() + SETTLE_SECONDS_MAX
    while not _is_caught_up(pair):
        if time.monotonic() > deadline:
            raise BenchmarkFailed(
                f"the slave of {pair.system}'s master, {pair.setup.text}, had not caught up after "
                f"{SETTLE_SECONDS_MAX:.0f} s"
            )
        time.sleep(POLL_SECONDS)


def _is_caught_up(pair: Pair) -> bool:
    return 0 < read_log_end(pair.master.address) == read_log_end(pair.slave_address)


def relative(path: Path) -> str:
    """Return a path for a message, relative to the repository."""
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else str(path)


def room_needed(plans: Sequence[PairPlan], header_bytes: int) -> int:
    """Return the bytes that the buffers of these pairs need together."""
    with_buffers = [plan for plan in plans if plan.setup.has_buffer]
    return sum(plan.buffers_count * plan.segment_bytes + header_bytes for plan in with_buffers)
