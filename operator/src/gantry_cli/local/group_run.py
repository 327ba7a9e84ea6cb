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
from gantry_cli.errors import CliError, error_for_client
from gantry_cli.local.access import console_address, make_replication_secret, read_access
from gantry_cli.local.manifest_changes import ManifestWatcher, read_manifest
from gantry_cli.local.member import local_restart_policy
from gantry_cli.local.plan import (
    DEFAULT_MANIFEST,
    SIDECAR_HOST,
    LaunchOptions,
    Planner,
    default_group,
    notes_of,
    place_buffers,
    require_room,
    settings_of,
    single_group,
)
from gantry_cli.local.proxy import WITHOUT_PROXY, LocalProxies, is_proxy_installed
from gantry_cli.local.publishing import Publisher
from gantry_cli.local.records import GroupRecord, MemberRecord, NameServerRecord
from gantry_cli.local.running import RunOutput, claim, first_error, is_listening, program_name, run_until_stopped
from gantry_cli.local.state import GroupState, now_ms
from gantry_cli.local.supervisor import Supervisor
from gantry_cli.local.topics import LocalTopicReconciler
from gantry_cli.options import DEFAULT_NAME_SERVER
from gantry_cli.processes import STOP_TIMEOUT_S, ServerProcess, boot_id_of
from gantry_cli.rates import message_rates, parse_runtime_info, status_line
from gantry_cli.round_trip import RoundTrip, round_trip
from gantry_cli.stack import DEFAULT_DIRECTORY, StackDirectory, StackRecord
from gantry_client import Admin, ClientError
from gantry_remoting.addresses import join_address
from gantry_remoting.durable_files import replace_file
from gantry_spec.broker_conf import broker_name
from gantry_spec.manifest import BrokerGroup, check_changes

READY_TIMEOUT_S: Final = 120.0
READY_POLL_S: Final = 0.05
STARTS_MAX: Final = 3
"""Before the group is ready, a broker or name server that has failed and was started this often makes the start fail.
A sidecar that was started this often is not waited for any longer."""
TOPIC_INTERVAL_S: Final = 2.0
"""The time between two reconciliations of topics and surplus shards, in seconds."""
WITHOUT_ADMIN: Final = "no sidecars, no console: their packages are not installed (pip install 'gantry-mq[admin]')"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class UpOptions:
    """The options of one `gantry up`."""

    data: Path
    manifest: Path | None
    """The file of the manifest; None for that in the folder, or the default."""

    launch: LaunchOptions


async def run_group(options: UpOptions, output: RunOutput) -> None:
    """Lock the folder, run its group until a signal comes, and release the lock. Raises CliError."""
    directory = claim(options.data)
    try:
        # A supervisor that was killed has left its last status, which readers would take for that of this one.
        GroupState(options.data).decision_file.unlink(missing_ok=True)
        group = choose_group(options)
        run = await asyncio.to_thread(GroupRun, directory, group, options, output)
        await run.run_until_signal()
    finally:
        directory.release()


def choose_group(options: UpOptions) -> BrokerGroup:
    """Return the group of the given manifest, else that of the folder's manifest, else the default. Raises CliError.

    With --single it is the group of one broker. Creates the folders, and writes the manifest into the folder unless it
    came from there or there is none, as with --single.
    """
    state = GroupState(options.data)
    if options.launch.single is not None:
        if state.manifest_file.exists() and not state.is_single():
            store = state.path / "broker"
            remedy = "run gantry up without --single, or choose another --data"
            remedy += f" with -o storePathRootDir={store} for the store of the single broker" if store.is_dir() else ""
            raise CliError(f"{options.data} holds a group", remedy)
        state.make_folders()
        return single_group(options.launch.single)
    if state.is_single():
        remedy = "run gantry up --single, or choose another --data"
        raise CliError(f"{options.data} holds a single broker without a group", remedy)
    known = state.read_manifest()
    if options.manifest is None:
        group = default_group() if known is None else known
        text = DEFAULT_MANIFEST
    else:
        group, text = read_manifest(options.manifest)
    problems = [] if known is None else check_changes(known, group)
    if problems:
        raise CliError("; ".join(map(str, problems)), f"{options.data} holds the group {known and known.metadata.name}")
    read_access(group.spec, state)
    state.make_folders()
    if known is None or options.manifest is not None:
        state.write_manifest(text)
    return group


@final
class GroupRun:
    """One run of a group, from its plan to its stop."""

    def __init__(self, directory: StackDirectory, group: BrokerGroup, options: UpOptions, output: RunOutput) -> None:
        """Plan all processes, and start none. Raises CliError."""
        self._output: Final = output
        self._directory: Final = directory
        self.state: Final = GroupState(options.data)
        before = self.state.read_group()
        if before is not None:
            wait_for_leftover_processes(before, output.report)
        self._is_single: Final = options.launch.single is not None
        has_admin = importlib.util.find_spec("fastapi") is not None
        has_sidecars = has_admin and not self._is_single
        has_proxies = options.launch.has_proxies and is_proxy_installed()
        planner = Planner(self.state, group, options.launch, before, has_sidecars=has_sidecars, has_proxies=has_proxies)
        self.record: Final = planner.record
        choice = place_buffers(self.state, group.spec, self.record)
        notes = notes_of(group.spec, choice) + ([] if has_admin or self._is_single else [WITHOUT_ADMIN])
        lacks_proxy = group.spec.proxy.replicas and options.launch.has_proxies and not has_proxies
        self.record.begin(notes + ([WITHOUT_PROXY] if lacks_proxy else []))
        self._access: Final = read_access(group.spec, self.state)
        make_replication_secret(self._access)
        settings = settings_of(group, self.record, choice.root, self._access, has_sidecars=has_sidecars)
        self._token: Final = self.state.token()
        self._planner: Final = planner
        self.supervisor: Final = Supervisor(
            self.state, self.record, settings, self._report_event, has_sidecars=has_sidecars, is_single=self._is_single,
            make_record=self._make_record, on_observed=self._on_observed,
        )  # fmt: skip
        self._has_sidecars: Final = has_sidecars
        self._name_servers: Final = [self._name_server(one) for one in self.record.name_servers]
        self._proxies: Final = LocalProxies(
            self.state, self.record, lambda: self.supervisor.settings, make_record=planner.proxy,
            report_event=self.supervisor.report_event, is_enabled=has_proxies,
        )  # fmt: skip
        self._publisher: Final = Publisher(self.supervisor, self._name_servers, self._proxies)
        self._manifest_watcher: Final = ManifestWatcher(
            self.supervisor, group, has_sidecars=has_sidecars, on_adopted=self._proxies.adopt
        )
        self._topics: Final = LocalTopicReconciler(";".join(self.record.addresses), self._access)
        self._is_ready = asyncio.Event()
        self._is_quiet = True

    def _make_record(self, shard: int, number: int) -> MemberRecord:
        """Return the record of a member that a changed manifest adds. Raises CliError without room for its buffers."""
        settings = self.supervisor.settings
        require_room(settings.spec, settings.buffers_root)
        return self._planner.member(shard, number)

    def _report_event(self, text: str) -> None:
        if not self._is_quiet:
            self._output.report(text)

    def _name_server(self, record: NameServerRecord) -> ServerProcess:
        conf = self.state.conf(record.name)
        replace_file(conf, self._access.name_server_conf.encode(), mode=0o644, is_durable=False)
        arguments = ("--listen", record.address, "--data", record.data, "-c", str(conf))
        return ServerProcess(
            record.name, "gantry_nameserver", lambda: arguments, Path(record.log), policy=local_restart_policy(),
            now_ms=now_ms, report=self._report_event,
        )  # fmt: skip

    # -- running -------------------------------------------------------------------------------------------------------

    async def run_until_signal(self) -> None:
        """Run the group until a signal comes, then stop it. Raises CliError."""
        for note in self.record.notes:
            self._output.report(note)
        await run_until_stopped(self._work, self._stop, self._output)

    async def _work(self) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self.supervisor.run(self._name_servers), name="supervise")
                group.create_task(self._proxies.run(), name="run proxies")
                group.create_task(self._reconcile_topics(), name="reconcile topics")
                await self._start()
                if not self._output.is_detached:
                    group.create_task(self._stream(), name="stream state")
        except* CliError as errors:
            raise first_error(errors) from None

    async def _start(self) -> None:
        """Wait until the group is ready and has returned a test message. Raises CliError with the reason otherwise."""
        deadline = time.monotonic() + READY_TIMEOUT_S
        while not self._is_ready.is_set():
            self._check_failures()
            if time.monotonic() > deadline:
                waits = "; ".join(one.why for one in self.supervisor.decision.waits) or "see the logs"
                raise CliError(f"timed out: the group was not ready after {READY_TIMEOUT_S:.0f} s: {waits}")
            await asyncio.sleep(READY_POLL_S)
        name_server = ";".join(self.record.addresses)
        try:
            trip = await round_trip(name_server, self._access.client_settings())
        except ClientError as error:
            raise error_for_client(error, name_server) from error
        await self._wait_for_sidecars(deadline)
        await self._wait_for_proxies(deadline)
        self._is_quiet = False
        self._directory.write(self._stack_record())
        self._output.ready(await asyncio.to_thread(self._summary, trip))

    async def _wait_for_sidecars(self, deadline: float) -> None:
        """Wait until the sidecars answer, whose addresses are printed. One that cannot start is only reported."""
        for member in self.supervisor.members.values():
            sidecar = member.sidecar
            while sidecar is not None and not await is_listening(SIDECAR_HOST, member.record.sidecar_port):
                if sidecar.starts >= STARTS_MAX or time.monotonic() > deadline:
                    self._output.report(f"{sidecar.name} does not answer: {sidecar.failure or f'see {sidecar.log}'}")
                    break
                await asyncio.sleep(READY_POLL_S)

    async def _wait_for_proxies(self, deadline: float) -> None:
        """Wait until all proxies listen. One that cannot start is only reported: brokers work without it."""
        for record in self.record.proxies:
            while not await is_listening(self.record.host, record.port):
                child = self._proxies.child(record.name)
                if time.monotonic() > deadline or (child is not None and child.starts >= STARTS_MAX):
                    reason = f"see {record.log}" if child is None or not child.failure else child.failure
                    self._output.report(f"{record.name} does not answer: {reason}")
                    break
                await asyncio.sleep(READY_POLL_S)

    def _check_failures(self) -> None:
        """Raise CliError for a broker or name server that has failed and has been started STARTS_MAX times."""
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
            is_detached=self._output.is_detached,
        )

    def _on_observed(self) -> None:
        self._manifest_watcher.refresh()
        self._publisher.publish()
        if not self.supervisor.decision.conditions:
            return
        if self.supervisor.decision.condition("Available").is_true:
            self._is_ready.set()

    async def _reconcile_topics(self) -> None:
        """Reconcile topics and surplus shards with the masters that answer, through ordinary clients."""
        while True:
            await asyncio.sleep(TOPIC_INTERVAL_S)
            masters = self.supervisor.masters()
            ends = {shard: (master.term.address, master.wrote) for shard, master in masters.items()}
            await self.supervisor.decommissioner.reconcile(self.supervisor.spec.shards, ends)
            spec, masters = self.supervisor.spec, self.supervisor.masters()
            terms = [master.term for shard, master in masters.items() if shard < spec.shards]
            for line in await self._topics.reconcile(spec, terms):
                self.supervisor.report_event(line)

    async def _stream(self) -> None:
        if self._is_single:
            broker = join_address(self.record.host, self.record.members[0].port)
            await stream_state(";".join(self.record.addresses), broker, self._output)
        while True:
            self._output.show(self._publisher.line())
            await asyncio.sleep(self._output.interval_s)

    async def _stop(self) -> list[str]:
        # The tasks that watched the processes have ended by now, and the processes have not: each is stopped here.
        killed = await self._proxies.stop() + await self.supervisor.stop()
        results = [(child.name, await child.stop()) for child in self._name_servers]
        self._publisher.publish_end()
        return killed + [name for name, is_graceful in results if not is_graceful]

    # -- output --------------------------------------------------------------------------------------------------------

    def _console_address(self) -> str:
        """Return the console's address with a one-time code. The token is never printed: output may end in a log."""
        try:
            return f"{console_address(self.record, self._token)}   (works once; for another: {program_name()} console)"
        except OSError:
            return f"{self.record.console_url}   (for an address with a code: {program_name()} console)"

    def _summary(self, trip: RoundTrip) -> str:
        """Return the text of a successful start: addresses, the result of the check, and next steps."""
        record, gantry, name_server = self.record, program_name(), ";".join(self.record.addresses)
        is_default = self._directory.path == StackDirectory(DEFAULT_DIRECTORY).path
        data = "" if is_default else f" --data {self._directory.path}"
        address = f"'{name_server}'" if ";" in name_server else name_server
        namesrv = "" if name_server == DEFAULT_NAME_SERVER else f" -n {address}"
        stop = f"{gantry} down{data}" if self._output.is_detached else "Ctrl-C"
        lines = ["Gantry is up.", f"  name server   {name_server}"]
        for member in record.members:
            sidecar = f"   sidecar {member.sidecar_url}" if self._has_sidecars else ""
            lines.append(f"  {member.name:<13} {join_address(record.host, member.port)}{sidecar}")
        if record.proxies:
            lines.append(f"  gRPC proxy    {';'.join(one.address for one in record.proxies)}")
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
            f"Watch it:    {gantry} status{data} --watch   (stop with {stop})",
        ]
        if self.supervisor.spec.slaves:
            steps.append(f"Fail over:   {gantry} kill{data} master-0, and watch a slave take over")
        numbered = [f"  {number}. {step}" for number, step in enumerate(steps, 1)]
        return "\n".join([*lines, "", "Next steps", *numbered, ""])


async def stream_state(name_server: str, broker: str, output: RunOutput) -> None:
    """Show the state of a single broker until cancelled, also while it does not answer."""
    started, previous = time.monotonic(), None
    async with Admin(name_server, client_settings=client_settings()) as admin:
        while True:
            try:
                facts = parse_runtime_info(await admin.brokers.runtime(broker), time.monotonic())
            except ClientError as error:
                output.show(f"broker does not answer: {error}")
                previous = None
            else:
                output.show(status_line(facts, message_rates(previous or facts, facts), facts.at_s - started))
                previous = facts
            await asyncio.sleep(output.interval_s)


# -- leftover processes of a killed supervisor -------------------------------------------------------------------------
# The processes of a group end with its supervisor, even if it is killed. The next supervisor waits for that.
#
# The kernel sends each of them SIGTERM when the supervisor dies, so a broker stops cleanly. A suspended process
# (SIGSTOP) cannot react, so it gets SIGCONT; a process that does not end in time is killed, which loses no acknowledged
# message.


POLL_S: Final = 0.05


def _leftover_processes(record: GroupRecord) -> Iterator[tuple[str, int]]:
    processes: list[tuple[str, int | None, str]] = [(one.name, one.pid, one.boot_id) for one in record.name_servers]
    processes += [(one.name, one.pid, one.boot_id) for one in record.proxies]
    for member in record.members:
        processes.append((member.name, member.pid, member.boot_id))
        processes.append((f"sidecar of {member.name}", member.sidecar_pid, member.sidecar_boot_id))
    for name, pid, boot_id in processes:
        if pid is not None and boot_id and boot_id_of(pid) == boot_id:
            yield name, pid


def wait_for_leftover_processes(record: GroupRecord, report_event: Callable[[str], None]) -> None:
    """Wait until all processes of the last supervisor have ended, and kill those that do not end in time."""
    names = [name for name, _ in _leftover_processes(record)]
    if not names:
        return
    report_event(f"the previous supervisor was killed; waiting for {', '.join(names)} to stop")
    for number in (signal.SIGTERM, signal.SIGCONT):
        _signal_leftovers(record, number)
    deadline = time.monotonic() + STOP_TIMEOUT_S
    while any(True for _ in _leftover_processes(record)):
        if time.monotonic() > deadline:
            _signal_leftovers(record, signal.SIGKILL)
            deadline += STOP_TIMEOUT_S
        time.sleep(POLL_S)


def _signal_leftovers(record: GroupRecord, number: signal.Signals) -> None:
    for _, pid in _leftover_processes(record):
        with suppress(ProcessLookupError):
            os.kill(pid, number)
