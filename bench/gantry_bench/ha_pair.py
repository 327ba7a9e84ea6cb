"""A master with a slave attached, ours: how the two are started, and when they may be measured.

    load -> master:port            slave -> [delayed acks ->] master:replication port

Both are processes of their own and are tied to no core: a broker of several threads beside ours must not be held to
one. A pair may be measured when the slave has every byte of the master's log, which both say themselves, and when a
send is answered with code 0: only then does an answer of a synchronous master say anything. It is *settled* again
before every run, so that what one run left for the slave to do is not done in the next.
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
"""A slave of Apache's may take 5 s to its first word, and both its broker and its virtual machine have to start."""
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
    """Between the slave and the master, if asked for."""


class PairPlan(msgspec.Struct, frozen=True):
    """What a pair needs to be started."""

    setup: Setup
    segment_bytes: int
    buffers_count: int
    pool_path: str
    """Where a master's buffers are; each pair makes a folder of its own there."""

    master_program: tuple[str, ...] = BROKER_PROGRAM
    has_ack_proxy: bool = False
    master_prefix: tuple[str, ...] = ()
    slave_prefix: tuple[str, ...] = ()


def load_of(level: int) -> Mode:
    """So many sends under way: up to 16 connections, each answer followed by one send in a write of its own."""
    connections = min(level, CONNECTIONS_MAX)
    return Mode(
        name=f"level{level}", connections=connections, outstanding=level // connections, frames_per_write=1,
        cpu_ratio_max=None,
    )  # fmt: skip


def pool_keys(pool: Path | None) -> dict[str, str]:
    """Where our master's buffers are."""
    return {} if pool is None else {"transientStorePoolPath": str(pool)}


@contextmanager
def own_pool(plan: PairPlan, name: str) -> Iterator[Path | None]:
    """A folder for the buffers of one master, which goes with them; None for a setup without a buffer."""
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
    """Our master and slave with empty stores below ``folder``, which must not exist and does not afterwards."""
    folder.mkdir()
    name = f"ours-{folder.name}"
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        name_server = stack.enter_context(start_name_server(folder))
        pool = stack.enter_context(own_pool(plan, name))
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
                folder / "slave", name_server=name_server, core=None, extra=keys, prefix=plan.slave_prefix
            )
        )  # fmt: skip
        yield Pair(
            system="Gantry", setup=plan.setup, master=master.target, slave_address=slave.target.address,
            name_server=name_server, acks=acks,
        )  # fmt: skip


def attach(pair: Pair, load: LoadGenerator) -> None:
    """Come back when a send to the master is answered with code 0 and the slave has it."""
    deadline = time.monotonic() + ATTACH_SECONDS_MAX
    trouble = ""
    while time.monotonic() < deadline:
        try:
            report = load.run(load_of(1), BODY_BYTES, header="json", target=pair.master, timing=FIRST_SENDS).report
            if report.errors == 0 and _is_level(pair):
                return
            trouble = report.first_refusal or "the slave does not have what its master has"
        except BenchmarkFailed as error:
            trouble = str(error)
        time.sleep(POLL_SECONDS)
    raise BenchmarkFailed(
        f"no slave of {pair.system}'s, {pair.setup.text}, within {ATTACH_SECONDS_MAX:.0f} s: {trouble}"
    )


def settle(pair: Pair) -> None:
    """Come back when the slave has every byte of the master's log."""
    deadline = time.monotonic() + SETTLE_SECONDS_MAX
    while not _is_level(pair):
        if time.monotonic() > deadline:
            raise BenchmarkFailed(
                f"the slave of {pair.system}'s master, {pair.setup.text}, was not level with it after "
                f"{SETTLE_SECONDS_MAX:.0f} s"
            )
        time.sleep(POLL_SECONDS)


def _is_level(pair: Pair) -> bool:
    return 0 < read_log_end(pair.master.address) == read_log_end(pair.slave_address)


def relative(path: Path) -> str:
    """For a message."""
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else str(path)


def room_needed(plans: Sequence[PairPlan], header_bytes: int) -> int:
    """Bytes that the buffers of these pairs take together."""
    with_buffers = [plan for plan in plans if plan.setup.has_buffer]
    return sum(plan.buffers_count * plan.segment_bytes + header_bytes for plan in with_buffers)
