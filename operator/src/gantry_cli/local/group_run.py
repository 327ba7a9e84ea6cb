"""`gantry up` for a group: claim the folder, plan, start, prove that it works, supervise, and stop in order."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

from gantry_cli.account import client_settings
from gantry_cli.errors import CliError, explain
from gantry_cli.local.access import access_of, console_address, make_replication_secret
from gantry_cli.local.editing import Edits, read_manifest
from gantry_cli.local.member import local_restart_policy
from gantry_cli.local.plan import (
    DEFAULT_MANIFEST,
    SIDECAR_HOST,
    Planner,
    Wanted,
    choose_buffers,
    default_group,
    notes_of,
    require_room,
    settings_of,
    single_group,
)
from gantry_cli.local.publishing import Publisher
from gantry_cli.local.running import Face, claim, first_error, is_listening, own_name, run_until_stopped
from gantry_cli.local.state import GroupRecord, GroupState, MemberRecord, NameServerRecord, now_ms
from gantry_cli.local.supervisor import Supervisor
from gantry_cli.local.topics import LocalTopicReconciler
from gantry_cli.options import DEFAULT_NAME_SERVER
from gantry_cli.processes import ServerProcess, boot_id_of
from gantry_cli.rates import rates_between, read_facts, state_line
from gantry_cli.round_trip import RoundTrip, round_trip
from gantry_cli.stack import DEFAULT_DIRECTORY, StackDirectory, StackRecord
from gantry_client import Admin, ClientError
from gantry_remoting.addresses import join_address
from gantry_remoting.durable_files import replace_file
from gantry_spec.broker_conf import broker_name
from gantry_spec.manifest import BrokerGroup, changes

READY_TIMEOUT_S: Final = 120.0
READY_POLL_S: Final = 0.05
STARTS_MAX: Final = 3
"""Of one that ends by itself before anything is ready."""
UPKEEP_S: Final = 2.0
WITHOUT_ADMIN: Final = "no sidecars and no console: their packages are not installed (pip install 'gantry-mq[admin]')"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class GroupOptions:
    """What was typed."""

    data: Path
    manifest: Path | None
    typed: Wanted


async def run_group(options: GroupOptions, face: Face) -> None:
    """Everything between the lock and its release. Raises CliError."""
    directory = claim(options.data)
    try:
        group = choose_group(options)
        run = await asyncio.to_thread(GroupRun, directory, group, options, face)
        await run.until_stopped()
    finally:
        directory.release()


def choose_group(options: GroupOptions) -> BrokerGroup:
    """The manifest that was handed over, else the one that is here, else the default. Raises CliError."""
    state = GroupState(options.data)
    if options.typed.single is not None:
        if state.manifest_file.exists() and not state.is_single():
            store = state.path / "broker"
            remedy = "gantry up without --single, or another --data"
            remedy += f" with -o storePathRootDir={store} for what the broker alone has there" if store.is_dir() else ""
            raise CliError(f"{options.data} holds a group", remedy)
        state.make_folders()
        return single_group(options.typed.single)
    if state.is_single():
        raise CliError(f"{options.data} holds a broker that has no group", "gantry up --single, or another --data")
    known = state.read_manifest()
    if options.manifest is None:
        group = default_group() if known is None else known
        text = DEFAULT_MANIFEST
    else:
        group, text = read_manifest(options.manifest)
    problems = [] if known is None else changes(known, group)
    if problems:
        raise CliError("; ".join(map(str, problems)), f"{options.data} holds the group {known and known.metadata.name}")
    access_of(group.spec, state)
    state.make_folders()
    if known is None or options.manifest is not None:
        state.write_manifest(text)
    return group


@final
class GroupRun:
    """One run of a group, from its plan to its stop."""

    def __init__(self, directory: StackDirectory, group: BrokerGroup, options: GroupOptions, face: Face) -> None:
        """Plans everything; starts nothing. Raises CliError."""
        self._face: Final = face
        self._directory: Final = directory
        self.state: Final = GroupState(options.data)
        before = self.state.read_group()
        if before is not None:
            wait_for_end(before, face.report)
        self._is_single: Final = options.typed.single is not None
        has_admin = importlib.util.find_spec("fastapi") is not None
        has_sidecars = has_admin and not self._is_single
        planner = Planner(self.state, group, options.typed, before, has_sidecars=has_sidecars)
        self.record: Final = planner.record
        choice = choose_buffers(self.state, group.spec, self.record)
        self.record.begin(notes_of(group.spec, choice) + ([] if has_admin or self._is_single else [WITHOUT_ADMIN]))
        self._access: Final = access_of(group.spec, self.state)
        make_replication_secret(self._access)
        settings = settings_of(group, self.record, choice.root, self._access, has_sidecars=has_sidecars)
        self._token: Final = self.state.token()
        self._planner: Final = planner
        self.supervisor: Final = Supervisor(
            self.state, self.record, settings, self._tell, has_sidecars=has_sidecars, is_single=self._is_single,
            make_record=self._make_record, on_look=self._looked,
        )  # fmt: skip
        self._has_sidecars: Final = has_sidecars
        self._name_servers: Final = [self._name_server(one) for one in self.record.name_servers]
        self._publisher: Final = Publisher(self.supervisor, self._name_servers)
        self._edits: Final = Edits(self.supervisor, group, has_sidecars=has_sidecars)
        self._topics: Final = LocalTopicReconciler(";".join(self.record.addresses), self._access)
        self._is_ready = asyncio.Event()
        self._is_quiet = True

    def _make_record(self, shard: int, number: int) -> MemberRecord:
        """Of a member that has come by an edit. Raises CliError when there is no room for it."""
        settings = self.supervisor.settings
        require_room(settings.spec, settings.buffers_root)
        return self._planner.member(shard, number)

    def _tell(self, text: str) -> None:
        if not self._is_quiet:
            self._face.report(text)

    def _name_server(self, record: NameServerRecord) -> ServerProcess:
        conf = self.state.conf(record.name)
        replace_file(conf, self._access.name_server_conf.encode(), mode=0o644, is_durable=False)
        arguments = ("--listen", record.address, "--data", record.data, "-c", str(conf))
        return ServerProcess(
            record.name, "gantry_nameserver", lambda: arguments, Path(record.log), policy=local_restart_policy(),
            now_ms=now_ms, report=self._tell,
        )  # fmt: skip

    # -- running -------------------------------------------------------------------------------------------------------

    async def until_stopped(self) -> None:
        """Until a signal comes. Raises CliError."""
        for note in self.record.notes:
            self._face.report(note)
        await run_until_stopped(self._work, self._stop, self._face)

    async def _work(self) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self.supervisor.run(self._name_servers), name="supervise")
                group.create_task(self._keep_topics(), name="keep topics")
                await self._start()
                if not self._face.is_detached:
                    group.create_task(self._stream(), name="stream state")
        except* CliError as errors:
            raise first_error(errors) from None

    async def _start(self) -> None:
        """Until a message has come back. Raises CliError with the reason for which none does."""
        deadline = time.monotonic() + READY_TIMEOUT_S
        while not self._is_ready.is_set():
            self._give_up_on_failures()
            if time.monotonic() > deadline:
                waits = "; ".join(one.why for one in self.supervisor.decision.waits) or "see the logs"
                raise CliError(f"the group was not ready after {READY_TIMEOUT_S:.0f} s: {waits}")
            await asyncio.sleep(READY_POLL_S)
        name_server = ";".join(self.record.addresses)
        try:
            trip = await round_trip(name_server, self._access.client_settings())
        except ClientError as error:
            raise explain(error, name_server) from error
        await self._wait_for_sidecars(deadline)
        self._is_quiet = False
        self._directory.write(self._stack_record())
        self._face.ready(await asyncio.to_thread(self._summary, trip))

    async def _wait_for_sidecars(self, deadline: float) -> None:
        """So that every address that is printed answers. One that cannot start is told of, and costs no group."""
        for member in self.supervisor.members.values():
            sidecar = member.sidecar
            while sidecar is not None and not await is_listening(SIDECAR_HOST, member.record.sidecar_port):
                if sidecar.starts >= STARTS_MAX or time.monotonic() > deadline:
                    self._face.report(f"{sidecar.name} does not answer: {sidecar.failure or f'see {sidecar.log}'}")
                    break
                await asyncio.sleep(READY_POLL_S)

    def _give_up_on_failures(self) -> None:
        """Somebody who cannot start now will not start later, while nobody is ready yet."""
        brokers = [member.broker for member in self.supervisor.members.values()]
        for child in (*brokers, *self._name_servers):
            if child.failure and child.starts >= STARTS_MAX:
                raise CliError(child.failure, f"see {child.log}")

    def _stack_record(self) -> StackRecord:
        first = self.record.members[0]
        return StackRecord(
            pid=os.getpid(),
            name_server=";".join(self.record.addresses),
            broker=join_address(self.record.host, first.port),
            broker_name=self.supervisor.spec.broker.get("brokerName", broker_name(self.record.name, 0)),
            started_at_ms=self.record.started_at_ms,
            is_detached=self._face.is_detached,
        )

    def _looked(self) -> None:
        self._edits.look()
        self._publisher.publish()
        if not self.supervisor.decision.conditions:
            return
        if self.supervisor.decision.condition("Available").is_so:
            self._is_ready.set()

    async def _keep_topics(self) -> None:
        """The clients of this group are ordinary ones, so they wait for its masters as others do."""
        while True:
            await asyncio.sleep(UPKEEP_S)
            masters = self.supervisor.masters()
            ends = {shard: (master.term.address, master.wrote) for shard, master in masters.items()}
            await self.supervisor.emptying.keep(self.supervisor.spec.shards, ends)
            spec, masters = self.supervisor.spec, self.supervisor.masters()
            terms = [master.term for shard, master in masters.items() if shard < spec.shards]
            for line in await self._topics.reconcile(spec, terms):
                self.supervisor.tell(line)

    async def _stream(self) -> None:
        if self._is_single:
            broker = join_address(self.record.host, self.record.members[0].port)
            await stream_state(";".join(self.record.addresses), broker, self._face)
        while True:
            self._face.show(self._publisher.line())
            await asyncio.sleep(self._face.interval_s)

    async def _stop(self) -> list[str]:
        # The tasks that kept processes are gone by now, and the processes are not: each is asked to stop here.
        killed = await self.supervisor.stop()
        results = [(child.name, await child.stop()) for child in self._name_servers]
        self._publisher.publish_end()
        return killed + [name for name, is_polite in results if not is_polite]

    # -- what is printed -----------------------------------------------------------------------------------------------

    def _console_address(self) -> str:
        """With a code that works once. The token is never printed: what is printed may end in a log."""
        try:
            return f"{console_address(self.record, self._token)}   (once; again: {own_name()} console)"
        except OSError:
            return f"{self.record.console_url}   (address to open it: {own_name()} console)"

    def _summary(self, trip: RoundTrip) -> str:
        """Addresses, the proof, and next steps."""
        record, gantry, name_server = self.record, own_name(), ";".join(self.record.addresses)
        is_default = self._directory.path == StackDirectory(DEFAULT_DIRECTORY).path
        data = "" if is_default else f" --data {self._directory.path}"
        address = f"'{name_server}'" if ";" in name_server else name_server
        namesrv = "" if name_server == DEFAULT_NAME_SERVER else f" -n {address}"
        stop = f"{gantry} down{data}" if self._face.is_detached else "Ctrl-C"
        lines = ["Gantry is up.", f"  name server   {name_server}"]
        for member in record.members:
            sidecar = f"   sidecar {member.sidecar_url}" if self._has_sidecars else ""
            lines.append(f"  {member.name:<13} {join_address(record.host, member.port)}{sidecar}")
        if self._has_sidecars:
            lines.append(f"  console       {self._console_address()}")
        lines.append(f"  data, logs    {self._directory.path}")
        lines.append(
            f"  checked       1 message sent and read back in {trip.elapsed_ms:.1f} ms "
            f"({trip.queue.topic}, queue {trip.queue.queue_id}, offset {trip.queue_offset})"
        )
        steps = [
            f'From Java:   producer.setNamesrvAddr("{name_server}");   (consumers the same)',
            f'From here:   {gantry} produce{namesrv} hello "first message" && {gantry} consume{namesrv} hello',
            f"Look at it:  {gantry} status{data} --watch   (stop with {stop})",
        ]
        if self.supervisor.spec.slaves:
            steps.append(f"Break it:    {gantry} kill{data} master-0, and watch a slave take over")
        numbered = [f"  {number}. {step}" for number, step in enumerate(steps, 1)]
        return "\n".join([*lines, "", "Next steps", *numbered, ""])


async def stream_state(name_server: str, broker: str, face: Face) -> None:
    """Show the state of a broker alone until cancelled. A broker that does not answer is a line, too."""
    started, previous = time.monotonic(), None
    async with Admin(name_server, client_settings=client_settings()) as admin:
        while True:
            try:
                facts = read_facts(await admin.brokers.runtime(broker), time.monotonic())
            except ClientError as error:
                face.show(f"the broker does not answer: {error}")
                previous = None
            else:
                face.show(state_line(facts, rates_between(previous or facts, facts), facts.at_s - started))
                previous = facts
            await asyncio.sleep(face.interval_s)


# -- processes that a killed supervisor left ---------------------------------------------------------------------------
# Processes of a group whose supervisor was killed: they end with it, and whoever comes next waits for that.
#
# The kernel sends each of them SIGTERM when the supervisor dies, so a broker stops as cleanly as ever. One that stands
# still (SIGSTOP) cannot, and is woken up; one that does not end in time is killed, which loses nothing that was
# promised.


PATIENCE_S: Final = 70.0
POLL_S: Final = 0.05


def _left(record: GroupRecord) -> Iterator[tuple[str, int]]:
    processes: list[tuple[str, int | None, str]] = [(one.name, one.pid, one.boot_id) for one in record.name_servers]
    for member in record.members:
        processes.append((member.name, member.pid, member.boot_id))
        processes.append((f"sidecar of {member.name}", member.sidecar_pid, member.sidecar_boot_id))
    for name, pid, boot_id in processes:
        if pid is not None and boot_id and boot_id_of(pid) == boot_id:
            yield name, pid


def wait_for_end(record: GroupRecord, tell: Callable[[str], None]) -> None:
    """Until none of them is there."""
    names = [name for name, _ in _left(record)]
    if not names:
        return
    tell(f"the last supervisor was killed; waiting for {', '.join(names)} to stop")
    for number in (signal.SIGTERM, signal.SIGCONT):
        _send(record, number)
    deadline = time.monotonic() + PATIENCE_S
    while any(True for _ in _left(record)):
        if time.monotonic() > deadline:
            _send(record, signal.SIGKILL)
            deadline += PATIENCE_S
        time.sleep(POLL_S)


def _send(record: GroupRecord, number: signal.Signals) -> None:
    for _, pid in _left(record):
        with suppress(ProcessLookupError):
            os.kill(pid, number)
