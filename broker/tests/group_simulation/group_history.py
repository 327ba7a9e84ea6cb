"""One history of a simulated group, from the start of its machines to the results of both judges.

    three machines, a name server, clients, an operator        all in one process, in virtual time
    start -> a master -> load, and faults that overlap -> repair -> everything caught up -> read, compare, judge

All code of brokers, name server, operator and clients is the real one; disks, clocks, threads, sockets and the loop are
simulated. A seed determines the whole history.
"""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import logging
import time
import traceback
from collections import Counter
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar, final
from unittest.mock import patch
from zlib import crc32

from gantry_histories.consumer import queue_end, read_queue
from gantry_histories.events import Journal, Outcome, Queue
from gantry_histories.final import EpochStart, LogSums, Piece
from gantry_histories.final import Final as End
from gantry_histories.findings import Finding
from gantry_histories.judges import Judgement, end_and_judge, judge
from gantry_histories.load import Load
from gantry_histories.recording import Recording, write_recording
from gantry_histories.voids import find_void_offsets, without_void_offsets
from group_simulation.fault_driver import FaultDriver
from group_simulation.mixed_faults import MEMBERS, Fault, Guarantee, Plan
from group_simulation.simulated_clock import MachineClock, virtual_time
from group_simulation.simulated_machine import HA_PORT, PORT, STORE, Machine
from group_simulation.simulated_network import SimulatedNetwork
from group_simulation.simulated_operator import HOST as OPERATOR_HOST
from group_simulation.simulated_operator import LeaseStore, SimulatedOperator
from group_simulation.simulated_threads import simulated_threads
from group_simulation.simulated_world import SimulatedProcess, TimeIsOver, World

from gantry_broker.server.admin import scrubber
from gantry_broker.store.void_records import is_void
from gantry_nameserver.server import NameServer
from gantry_nameserver.settings import NameServerSettings
from gantry_remoting import Channel, RemotingError
from gantry_spec.broker_conf import BrokerPlacement, broker_conf
from gantry_spec.observed import PromotionRequest
from gantry_status.orders import HaRole
from gantry_wire import Command, RequestCode, ResponseCode
from gantry_wire.commands.admin import CreateTopic
from gantry_wire.message import check_record

T = TypeVar("T")

CLIENTS_HOST: Final = "10.0.0.100"
NAME_SERVER_HOST: Final = "10.0.0.101"
NAME_SERVER: Final = f"{NAME_SERVER_HOST}:9876"
TOPIC: Final = "Histories"
QUEUES: Final = tuple(Queue(TOPIC, number) for number in range(3))
BODY_BYTES: Final = (0, 10, 100, 100, 1_000, 3_000)
START_LIMIT_S: Final = 120.0
SETTLE_LIMIT_S: Final = 180.0
"""How long the group may take to repair everything after the last fault, in virtual time."""
PERSON_S: Final = 20.0
"""How long a person watches a group that waits for a decision about lost messages."""
SCRUB_DELAY_S: Final = 2.0
SCRUB_INTERVAL_S: Final = 5.0
"""Scrubbing begins soon after a start and is repeated often, as histories are short."""
CARE_INTERVAL_S: Final = 0.3
PIECE_BYTES: Final = 16 << 10
SENDS_PER_S: Final = 8.0
CONSUMER_PAUSE_S: Final = 0.5


@final
@dataclass
class HistoryResult:
    """The result of one history."""

    plan: Plan
    judgement: Judgement | None = None
    problem: str = ""
    """Why the history did not come to its end; empty if it did."""
    occurred: Counter[Fault] = field(default_factory=Counter)
    answers: Counter[str] = field(default_factory=Counter)
    promotions: int = 0
    virtual_s: float = 0.0
    seconds: float = 0.0
    """The CPU time of the history, without Porcupine's."""
    events: int = 0
    digest: str = ""
    """The digest of everything that was recorded: the same seed gives the same one."""
    notes: list[str] = field(default_factory=list)

    @property
    def findings(self) -> Sequence[Finding]:
        return () if self.judgement is None else self.judgement.findings

    @property
    def is_good(self) -> bool:
        return not self.problem and not self.findings


@final
class GroupHistory:
    """One history while it runs."""

    def __init__(self, plan: Plan, directory: Path, journal: Journal, world: World) -> None:
        self.plan: Final = plan
        self.world: Final = world
        self.journal: Final = journal
        self.network: Final = SimulatedNetwork(world)
        self.lease: Final = LeaseStore()
        self.machines: Final = [
            Machine(world, self.network, number, self._settings(number)) for number in range(1, MEMBERS + 1)
        ]
        self.operators: Final[list[SimulatedOperator]] = []
        self.driver: Final = FaultDriver(world, self.network, self.machines, plan, CLIENTS_HOST, self._restart_operator)
        self.network.is_running = self._has_power
        self.load: Load | None = None
        self.voids: list[int] = []
        """Where damaged messages were removed from the log; see ``gantry_histories.voids``."""

        self._directory: Final = directory
        self._server: NameServer | None = None
        self._clients: Final = self._process("clients", CLIENTS_HOST)
        self._name_server: Final = self._process("name server", NAME_SERVER_HOST)

    def _process(self, name: str, host: str) -> SimulatedProcess:
        process = SimulatedProcess(self.world, name, host, MachineClock(self.world, name))
        process.loop.network = self.network
        return process

    def _has_power(self, host: str) -> bool:
        return all(machine.has_power for machine in self.machines if machine.host == host)

    def _settings(self, number: int) -> dict[str, str]:
        host = f"10.0.0.{number}"
        place = BrokerPlacement(
            group="group", shard=0, number=number, address=host, listen=host, port=PORT, ha_port=HA_PORT,
            name_servers=(NAME_SERVER,), store=STORE,
        )  # fmt: skip
        return broker_conf(self.plan.spec, place)

    # -- the parts -----------------------------------------------------------------------------------------------------

    def _start_operator(self) -> None:
        process = self._process(f"operator {len(self.operators) + 1}", OPERATOR_HOST)
        operator = SimulatedOperator(process, self.network, self.machines, self.plan.spec, self.lease, self.journal)
        self.operators.append(operator)
        self._spawn(process, operator.run())

    def _restart_operator(self, after_s: float) -> None:
        if self.operators[-1].process.is_alive:
            self.operators[-1].process.end()
            self.world.after(after_s, self._start_operator)

    def _spawn(self, process: SimulatedProcess, coroutine: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = process.loop.create_task(coroutine)
        process.wake()
        return task

    def _call(self, coroutine: Coroutine[Any, Any, T], limit_s: float) -> T:
        """Run a coroutine of the clients to its end, and return its result. Raises ``TimeIsOver``, and its error."""
        task = self._spawn(self._clients, coroutine)
        self.world.run(task.done, limit_s)
        return task.result()

    def _care(self) -> None:
        """Restart what has ended, now and regularly."""
        for machine in self.machines:
            self.driver.keep_running(machine)
        self.world.after(CARE_INTERVAL_S, self._care)

    # -- the course of a history ---------------------------------------------------------------------------------------

    def run(self) -> End:
        """Run the history, and return the state of the group at its end."""
        settings = dataclasses.replace(NameServerSettings(), bind_address=NAME_SERVER_HOST, listen_port=9876)
        server = self._server = NameServer(settings, self._directory / "nameserver")
        self._spawn(self._name_server, server.start())
        for machine in self.machines:
            machine.start()
        self._start_operator()
        self._care()
        self._call(self._create_topic(), START_LIMIT_S)
        self.load = self._call(self._start_load(), 10.0)
        self.driver.begin()
        begin = self.world.now
        self.world.run(lambda: self.world.now >= begin + self.plan.load_s, self.plan.load_s + 10)
        self.driver.repair()
        self._call(self.load.stop(), 120.0)
        if self.plan.guarantee is Guarantee.ASYNC:
            self.world.after(PERSON_S, self._accept_loss)
        self.world.run(self.is_settled, SETTLE_LIMIT_S)
        if self.plan.is_log_rotting and self.driver.occurred[Fault.BIT_ROT]:
            passes = [self._scrub_passes(machine) + 2 for machine in self.machines]  # the present one may be past it
            self.world.run(lambda: self._are_scrubbed(passes), SETTLE_LIMIT_S)
        return self._call(self._read_end(), 120.0)

    def _accept_loss(self) -> None:
        """Request a promotion that may lose any amount, as a person must if nothing is known of the last master's end.

        Only a group with asynchronous replication may come to that.
        """
        operator = self.operators[-1]
        if "the possible loss is unknown" in operator.decision_text:
            self.lease.request = PromotionRequest(id="the only one", loss_accepted=None)
            operator.notes.append(f"{self.world.now:.3f} a person accepts any loss")

    def end(self) -> None:
        """End all processes, and close the only real file."""
        if self._server is not None:
            self._server._unlock()
        processes = [self._clients, self._name_server, *(operator.process for operator in self.operators)]
        for machine in self.machines:
            machine.end(is_silent=True)
            processes += machine.ended
        for process in processes:
            process.dispose()

    async def _create_topic(self) -> None:
        """Create the topic at the first master, as soon as there is one."""
        while True:
            master = self.master
            if master is not None:
                try:
                    channel = await Channel.connect(master.address)
                    fields = CreateTopic(
                        topic=TOPIC, default_topic="TBW102", read_queue_nums=len(QUEUES), write_queue_nums=len(QUEUES),
                        perm=6, topic_filter_type="SINGLE_TAG", order=False,
                    )  # fmt: skip
                    command = Command(code=RequestCode.UPDATE_AND_CREATE_TOPIC, ext=fields.write())
                    reply = await channel.request(command, 5_000)
                    await channel.close()
                    if reply.code == ResponseCode.SUCCESS:
                        return
                except RemotingError:
                    pass
            await asyncio.sleep(0.2)

    async def _start_load(self) -> Load:
        load = Load(
            NAME_SERVER, QUEUES, self.journal, self.plan.seed, producers=3, body_bytes=BODY_BYTES,
            sends_per_s=SENDS_PER_S, consumer_pause_s=CONSUMER_PAUSE_S,
        )  # fmt: skip
        return await load.__aenter__()

    @property
    def master(self) -> Machine | None:
        """The machine whose broker is the master of the newest recorded term; None if it is not, or not yet."""
        record = self.lease.record
        if record is None or not record.is_settled or record.newest is None:
            return None
        machine = self.machines[record.newest.master - 1]
        broker = machine.broker
        if broker is None or not machine.is_serving:
            return None
        is_master = broker.roles.role is HaRole.MASTER and broker.roles.epoch == record.epoch
        return machine if is_master else None

    def why_unsettled(self) -> str:
        """Return why the group is not complete and healthy; empty if it is."""
        master = self.master
        if master is None or master.broker is None:
            return "no master"
        wrote = master.broker.store.log.wrote
        for machine in self.machines:
            broker = machine.broker
            if broker is None or not machine.is_serving:
                return f"member {machine.number} does not serve"
            if machine is not master and broker.roles.role is not HaRole.SLAVE:
                return f"member {machine.number} is {broker.roles.role}: {broker.roles.problem}"
            if broker.store.log.wrote != wrote:
                return f"member {machine.number} ends at {broker.store.log.wrote}, the master at {wrote}"
            if broker.replication.confirmed != wrote:
                return f"member {machine.number} has confirmed {broker.replication.confirmed} of {wrote}"
            if broker.store.guard.damage.damaged:
                return f"member {machine.number} has damage at {broker.store.guard.damage.damaged[0].start}"
        return ""

    def is_settled(self) -> bool:
        return not self.why_unsettled()

    @staticmethod
    def _scrub_passes(machine: Machine) -> int:
        assert machine.broker is not None, "a settled group has all brokers"
        return machine.broker.scrubber.passes

    def _are_scrubbed(self, passes: Sequence[int]) -> bool:
        """Return whether the whole log of every member was read since ``passes`` were to come, so that rot is found."""
        return self.is_settled() and all(
            self._scrub_passes(machine) >= number for machine, number in zip(self.machines, passes, strict=True)
        )

    async def _read_end(self) -> End:
        """Read the queues at the master, and the logs of all members."""
        master, load = self.master, self.load
        assert master is not None and load is not None and master.broker is not None
        committed = await load.finish(master.address)
        channel = await Channel.connect(master.address)
        queues = {queue: await read_queue(channel, queue) for queue in QUEUES}
        ends = {queue: await queue_end(channel, queue) for queue in QUEUES}
        await channel.close()
        confirmed = min(machine.broker.replication.confirmed for machine in self.machines if machine.broker)
        logs = [LogSums(f"member {one.number}", list(sums(one, confirmed))) for one in self.machines]
        self.voids = [*find_voids(master), *(start for one in self.machines for start in find_removed(one))]
        epochs = tuple(EpochStart(one.epoch, one.start) for one in master.broker.store.identity.epochs)
        return End(queues, epochs, logs, committed, 0, ends)


def sums(machine: Machine, end: int) -> Iterator[Piece]:
    """Return the checksums of the pieces of a machine's log up to ``end``."""
    disk, directory = machine.disk, f"{STORE}/commitlog"
    for name in disk.list(directory):
        base, data = int(name), disk.read_file(f"{directory}/{name}")
        for start in range(base, min(base + len(data), end), PIECE_BYTES):
            stop = min(start + PIECE_BYTES, end, base + len(data))
            yield Piece(start, stop, crc32(data[start - base : stop - base]))


def find_voids(machine: Machine) -> Iterator[int]:
    """Yield the offsets of the void records in a machine's log."""
    disk, directory = machine.disk, f"{STORE}/commitlog"
    for name in disk.list(directory):
        data, position = memoryview(disk.read_file(f"{directory}/{name}")), 0
        while (check := check_record(data, position)).is_good:
            if is_void(data[position:], int(name) + position):
                yield int(name) + position
            position += check.size


def find_removed(machine: Machine) -> Iterator[int]:
    """Yield where a machine, as a master, has removed damaged messages. No void record ends a file."""
    disk, directory = machine.disk, f"{STORE}/set-aside"
    if not disk.is_directory(directory):
        return
    for name in disk.list(directory):
        if name.startswith("damaged-") and not name.endswith(".json"):
            yield int(name.removeprefix("damaged-"))


def run_history(
    plan: Plan, directory: Path, porcupine: Path | None, *, keeps_logs: bool = False
) -> HistoryResult:  # fmt: skip
    """Run and judge the history of a plan. Its file ``history.jsonl`` is in the directory afterwards.

    With ``keeps_logs`` the logs of all processes are there, too, in ``processes.log``.
    """
    result, began = HistoryResult(plan), time.process_time()
    world = World(plan.seed)
    path = directory / "history.jsonl"
    end: End | None = None
    with ExitStack() as stack, path.open("wb") as file:
        journal = Journal(file)
        stack.enter_context(virtual_time(world))
        stack.enter_context(simulated_threads(world))
        stack.enter_context(patch.multiple(scrubber, START_DELAY_S=SCRUB_DELAY_S, PASS_INTERVAL_S=SCRUB_INTERVAL_S))
        if keeps_logs:
            stack.enter_context(logs_of(world, directory / "processes.log"))
        history = GroupHistory(plan, directory, journal, world)
        try:
            end = history.run()
        except TimeIsOver as error:
            result.problem = f"{error}: {history.why_unsettled()}; operator: {history.operators[-1].decision_text}"
        except Exception as error:  # noqa: BLE001 - any exception is reported as a failure
            result.problem = f"{type(error).__name__}: {error}"
            result.notes.append(format_error(error))
        journal.flush()
        _collect(result, history)
        history.end()
    result.digest = hashlib.sha256(path.read_bytes()).hexdigest()[:16]
    if end is not None:
        recording = Recording(journal.history, end, plan.mode)
        if lost := find_void_offsets(end, history.voids):
            recording = without_void_offsets(recording, lost)
            result.notes.append(f"judged without the offsets {lost}, whose messages were replaced by void records")
            with path.open("wb") as file:
                write_recording(file, recording)
            result.judgement = judge(path, recording, porcupine)
        else:
            result.judgement = end_and_judge(path, recording, porcupine)
    result.seconds = time.process_time() - began
    return result


@contextmanager
def logs_of(world: World, path: Path) -> Iterator[None]:
    """Write the logs of all processes to a file, with the time of the world and the name of the process."""

    class Handler(logging.FileHandler):
        def format(self, record: logging.LogRecord) -> str:
            known = logging.LogRecord("", 0, "", 0, "", (), None).__dict__.keys()
            extra = {name: value for name, value in record.__dict__.items() if name not in known}
            name = "-" if world.process is None else world.process.name
            text = f"{world.now:.6f} {name}: {record.levelname} {record.getMessage()} {extra or ''}"
            return text if record.exc_info is None else f"{text}\n{format_error(record.exc_info[1])}"

    handler, root = Handler(path), logging.getLogger()
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    try:
        yield
    finally:
        root.removeHandler(handler)
        root.setLevel(level)
        handler.close()


def format_error(error: BaseException | None) -> str:
    return "" if error is None else "".join(traceback.format_exception(error))


def _collect(result: HistoryResult, history: GroupHistory) -> None:
    """Add the counts and notes of a history to its result."""
    world, recorded = history.world, history.journal.history
    result.occurred = history.driver.occurred
    result.answers = Counter(str(answer.outcome) for answer in recorded.answered.values())
    result.answers[str(Outcome.UNKNOWN)] += len(recorded.sent) - len(recorded.answered)
    result.promotions = len(recorded.terms) - 1
    result.virtual_s, result.events = world.now - 10_000.0, world.events_run
    notes = list(history.driver.notes)
    for operator in history.operators:
        notes += operator.notes
    result.notes += sorted(notes, key=lambda note: float(note.split(" ", 1)[0]))
    for machine in history.machines:
        result.notes += [f"member {machine.number} exited: {text}" for text in machine.exits]
        for error in machine.errors:
            result.problem = result.problem or f"member {machine.number} ended by {error!r}"
            result.notes.append(format_error(error))
        for process in [*machine.ended, *([machine.process] if machine.process else [])]:
            for context in process.loop.failures:
                cause = context.get("exception")
                result.problem = result.problem or f"{process.name}: {context.get('message')}: {cause!r}"
                result.notes.append(format_error(cause))
