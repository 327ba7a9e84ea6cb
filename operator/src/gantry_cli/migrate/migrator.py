"""One run of `gantry migrate`: gather facts, check them, ask for confirmation, start the new broker, and migrate."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field, replace
from typing import Final, final

import click

from gantry_cli.account import credentials, credentials_path
from gantry_cli.migrate.checks import ACCESS_CONTROL_KEYS, Finding, MigrationFacts, Severity, check_migration
from gantry_cli.migrate.procedure import Migration, SwitchResult
from gantry_cli.migrate.record import (
    CHANGED_BY_SWITCH,
    MigrationDirectory,
    MigrationRecord,
    Phase,
    replication_address,
    slave_conf,
)
from gantry_cli.migrate.source import (
    ApacheBroker,
    BrokerRegistration,
    MigrationError,
    Offsets,
    RemotingNameServers,
    RemotingPeer,
    SourceBroker,
    offsets_of,
)
from gantry_cli.migrate.target import (
    TargetAddress,
    TargetBroker,
    configured_ports,
    connection_failure,
    free_bytes,
    log_files,
    ports_in_use,
)
from gantry_cli.migrate.text import (
    ProgressLine,
    blocking_findings,
    finding_text,
    plan_text,
    result_text,
    unfinished_promotion_text,
)
from gantry_client.session import local_address
from gantry_status.broker_ports import BROKER_PORT
from gantry_wire import RequestCode, ResponseCode
from gantry_wire.commands.admin import SubscriptionGroupConfig
from gantry_wire.commands.documents import write_document

COPY_INTERVAL_S: Final = 5.0
"""The time between two copies of late commits, in seconds."""


async def copy_late_commits(old: SourceBroker, target_address: str, linger_s: float) -> int:
    """Copy offsets that consumers still commit at the old broker, for ``linger_s`` seconds. Return their number.

    Until its next route update, half a minute by default, a consumer reads from the old broker and commits there. Most
    consumers commit at the new broker afterwards. One that stops in between would start too early: no message would be
    lost, but some would be consumed twice. So offsets that are larger at the old broker are copied; none is ever
    decreased. If the old broker stops, copying ends.
    """
    target = RemotingPeer(target_address)
    moved, deadline = 0, time.monotonic() + linger_s
    try:
        with suppress(MigrationError):
            while True:
                moved += await copy_offsets(await old.offsets(), target)
                if time.monotonic() + COPY_INTERVAL_S > deadline:
                    break
                await asyncio.sleep(COPY_INTERVAL_S)
    finally:
        await target.close()
    return moved


async def copy_offsets(old_offsets: Offsets, target: RemotingPeer) -> int:
    """Set the new broker's offsets to those of the old broker that are larger. Return their number."""
    late = offsets_ahead(old_offsets, await offsets_of(target))
    for (group, topic, queue), offset in late.items():
        fields = {"consumerGroup": group, "topic": topic, "queueId": str(queue), "commitOffset": str(offset)}
        reply = await target.request(RequestCode.UPDATE_CONSUMER_OFFSET, fields)
        if (
            reply.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
        ):  # the group was created at the old broker after the switch
            config = write_document(SubscriptionGroupConfig(group_name=group))
            await target.request_success(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=config)
        if reply.code != ResponseCode.SUCCESS:
            await target.request_success(RequestCode.UPDATE_CONSUMER_OFFSET, fields)
    return len(late)


def offsets_ahead(old: Offsets, new: Offsets) -> Offsets:
    """Return the offsets of ``old`` that are larger than in ``new``, or that ``new`` does not have."""
    return {key: offset for key, offset in old.items() if offset > new.get(key, -1)}


async def only_broker_name(name_servers: RemotingNameServers) -> str:
    """Return the only registered broker name. Raises MigrationError if there is none or several."""
    found = await name_servers.broker_names()
    if len(found) != 1:
        known = ", ".join(found[:20]) or "none"
        raise MigrationError(
            f"expected one broker at the name servers, found: {known}",
            "select one with --broker, or set other name servers with -n",
        )
    return found[0]


def registered_master(registrations: Sequence[BrokerRegistration], name: str) -> str:
    """Return the address of the old broker, which is the master. Raises MigrationError if it is not registered."""
    for one in registrations:
        if 0 in one.brokers:
            return one.brokers[0]
    raise MigrationError(f"no master of {name} is registered at the name servers", "set its name servers with -n")


def unused_broker_id(registrations: Sequence[BrokerRegistration]) -> int:
    """Return the smallest positive brokerId that is not registered."""
    known = {number for one in registrations for number in one.brokers}
    return next(number for number in range(1, len(known) + 2) if number not in known)


async def gather_facts(
    old: ApacheBroker,
    registrations: Sequence[BrokerRegistration],
    directory: MigrationDirectory,
    conf: Mapping[str, str],
    *,
    original: Mapping[str, str],
    is_running: bool,
) -> MigrationFacts:
    """Gather the facts for the checks. ``original`` are the values of settings that an earlier run has changed."""
    config, runtime, log = await old.config(), await old.runtime(), await old.log()
    address = conf.get("haMasterAddress") or replication_address(config, old.address)
    copied, file_bytes = log_files(directory)
    return MigrationFacts(
        version=runtime.get("brokerVersionDesc", ""),
        config={**config, **original},
        log=log,
        replication_address=address,
        replication_failure=await connection_failure(address),
        half_messages_open_max=await old.open_half_messages_max(),
        timer_messages=await old.timer_messages(),
        pop_groups=await old.pop_groups(),
        batch_topics=await old.batch_topics(),
        registrations=registrations,
        old_address=old.address,
        ports_taken=[] if is_running else ports_in_use(conf.get("bindAddress", ""), configured_ports(conf)),
        free_bytes=free_bytes(directory.path),
        copied_bytes=min(copied, log.end - log.begin),
        copied_file_bytes=file_bytes,
        target_broker_id=int(conf.get("brokerId", "1")),
        has_credentials=credentials() is not None,
        target_conf=conf,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MigrationOptions:
    """The options of one call of the command."""

    name_server: str
    directory: MigrationDirectory
    settings: Mapping[str, str]
    """Settings of the user for the new broker's broker.conf."""

    broker_name: str | None = None
    """The broker name to migrate; None for the only registered one."""

    host: str | None = None
    """The address that the new broker advertises; None to determine it."""

    port: int | None = None
    """The port of the new broker; None for RocketMQ's default, or that of an earlier run."""

    no_start: bool = False
    """Whether the user starts the new broker, and the command waits for it."""

    dry_run: bool = False
    yes: bool = False
    timeout_s: float = 30.0
    """The limit of the time to stop writes and to copy the rest of the log."""

    linger_s: float = 35.0
    """How long late commits at the old broker are copied after the switch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MigrationResult:
    """`gantry migrate`: the result of a run."""

    phase: str
    """The phase of the migration at the end of this run."""
    old_address: str
    broker_name: str
    findings: list[Finding] = field(default_factory=list)
    is_blocked: bool = False
    """Whether a finding blocks the migration; always false without --dry-run, since the command then fails."""
    address: str = ""
    """The address of the new broker; empty if this run did not make it the master."""
    epoch: int = 0
    """The epoch of the new broker as the master; 0 before."""
    end: int = -1
    """The end of the old broker's log, at which the new broker continues to write it; -1 before the switch."""
    pause_ms: float = -1.0
    """The duration of the write pause; -1 before its end, and if the run that would have measured it was killed."""
    is_old_closed: bool = False
    """Whether the old broker has confirmed that it is closed to consumers, and that it accepted no messages after the
    switch."""
    late_commits: int = 0
    """How many offsets were copied to the new broker because consumers had committed them at the old one after the
    switch."""


@final
class Migrator:
    """One run of the command. Owned by one event loop; use it inside `async with`."""

    def __init__(self, options: MigrationOptions, *, quiet: bool) -> None:
        """Prepare a run. With ``quiet``, text is printed to standard error: standard output is for one document."""
        self.line: Final = ProgressLine()
        self._options: Final = options
        self._directory: Final = options.directory
        self._quiet: Final = quiet
        self._target: Final = TargetBroker(options.directory)
        self._name_servers: Final = RemotingNameServers(options.name_server)
        self._stack: Final = AsyncExitStack()

    async def __aenter__(self) -> Migrator:
        await self._stack.enter_async_context(self._target.orders)
        self._stack.push_async_callback(self._name_servers.close)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.line.close()
        await self._stack.aclose()

    async def run(self) -> MigrationResult:
        """Run the migration, or only its checks with --dry-run. Raises ``MigrationError``."""
        record = self._directory.load_record()
        self._require_same_settings(record)
        if record is not None and record.phase is Phase.DONE:
            return self._result(record, None, 0)
        if record is not None and record.phase is Phase.PROMOTING and self._options.dry_run:
            for text in unfinished_promotion_text(record):
                self._print(text)
            return self._make_result(record, None, 0)
        name = (
            record.broker_name
            if record is not None
            else self._options.broker_name or await only_broker_name(self._name_servers)
        )
        registrations = await self._name_servers.registrations(name)
        address = record.old_address if record is not None else registered_master(registrations, name)
        old = self._open_source(address)
        migration = self._make_migration(old, record or MigrationRecord(old_address=address, broker_name=name))
        if migration.record.phase is Phase.PROMOTING:
            await self._attach(self._directory.read_conf(), migration)
            return await self._finish(migration, old, await migration.promote())
        if not self._options.dry_run:
            await migration.resume()  # first, so that no check and no answer ends this run with the old broker stopped
        conf = await self._target_settings(old, registrations)
        found = await self._check_preconditions(old, registrations, conf, migration.record)
        if self._options.dry_run:
            for text in plan_text(address, name, self._directory, conf, is_conf_new=not self._directory.conf.exists()):
                self._print(text)
            is_blocked = bool(blocking_findings(found))
            return MigrationResult(
                phase="CHECKED", old_address=address, broker_name=name, findings=found, is_blocked=is_blocked
            )
        if bad := blocking_findings(found):
            raise MigrationError("; ".join(one.what for one in bad), bad[0].remedy or None)
        if any(one.kind is Severity.WARNING for one in found):
            self._confirm("Continue despite the warnings?")
        await self._attach(conf, migration)
        await migration.catch_up()
        self.line.close()
        self._print("The new broker has caught up with the old one")
        self._confirm(f"Stop writes at {address} and switch over now?")
        return replace(await self._finish(migration, old, await migration.switch()), findings=found)

    async def abort(self) -> MigrationResult:
        """Restore the old broker, if a run that was killed has stopped its writes."""
        record = self._directory.load_record()
        if record is None:
            raise MigrationError(f"no migration found in {self._directory.path}")
        if record.phase in (Phase.PROMOTING, Phase.DONE):
            reason = "the new broker is the master or is being promoted: the migration can no longer be aborted"
            raise MigrationError(reason, "run the command without --abort, or see docs/migration.md")
        migration = self._make_migration(self._open_source(record.old_address), record)
        await migration.resume()
        self._print(
            f"The old broker at {record.old_address} accepts messages; if the new broker runs, it continues to follow"
        )
        return MigrationResult(
            phase=migration.record.phase, old_address=record.old_address, broker_name=record.broker_name
        )

    # -- steps of a run ------------------------------------------------------------------------------------------------

    def _open_source(self, address: str) -> ApacheBroker:
        old = ApacheBroker(address)
        self._stack.push_async_callback(old.close)
        return old

    def _make_migration(self, old: ApacheBroker, record: MigrationRecord) -> Migration:
        return Migration(
            old, self._target.orders, self._name_servers, self._directory, record,
            report_step=self._print, report_progress=self.line, timeout_s=self._options.timeout_s,
        )  # fmt: skip

    def _require_same_settings(self, record: MigrationRecord | None) -> None:
        """Raise ``MigrationError`` if an option differs from broker.conf, which an earlier run has written.

        The same command can be run again: the switch itself changes some settings.
        """
        options, directory = self._options, self._directory
        if not directory.conf.exists():
            return
        conf = directory.read_conf()
        own = {"--host": ("brokerIP1", options.host), "--port": ("listenPort", options.port)}
        wanted = {
            f"{option} {value}": (key, str(value))
            for option, (key, value) in own.items()
            if value is not None and key not in options.settings
        }
        wanted |= {f"-o {key}={value}": (key, value) for key, value in options.settings.items()}
        is_switched = record is not None and record.phase in (Phase.PROMOTING, Phase.DONE)
        for option, (key, value) in wanted.items():
            if conf.get(key) == value or (is_switched and key in CHANGED_BY_SWITCH):
                continue
            present = f"{key}={conf[key]}" if key in conf else f"no {key}"
            raise MigrationError(
                f"{option} has no effect: {directory.conf} was written by an earlier run, and has {present}",
                "remove the option; to change the setting, stop the new broker and edit this file",
            )

    async def _target_settings(self, old: ApacheBroker, registrations: Sequence[BrokerRegistration]) -> dict[str, str]:
        """Return the settings of the new broker: from its broker.conf, or derived from the old broker."""
        if self._directory.conf.exists():
            return self._directory.read_conf()
        options = self._options
        target = TargetAddress(
            host=options.host or local_address(options.name_server.split(";")[0]),
            port=BROKER_PORT if options.port is None else options.port,
            name_server=options.name_server,
            broker_id=unused_broker_id(registrations),
        )
        config, own = await old.config(), target.conf()
        path = credentials_path()
        if path is not None and any(config.get(key, "").lower() == "true" for key in ACCESS_CONTROL_KEYS):
            own["aclCredentialsPath"] = path
        return slave_conf(config, old.address, self._directory, own, options.settings)

    async def _check_preconditions(
        self,
        old: ApacheBroker,
        registrations: Sequence[BrokerRegistration],
        conf: Mapping[str, str],
        record: MigrationRecord,
    ) -> list[Finding]:
        is_running = await self._target.is_running()
        facts = await gather_facts(
            old, registrations, self._directory, conf, original=record.original, is_running=is_running
        )
        found = check_migration(facts)
        for one in found:
            self._print(finding_text(one))
        return found

    async def _attach(self, conf: Mapping[str, str], migration: Migration) -> None:
        """Write the settings and the record, and start the new broker or wait until it is started."""
        if not self._directory.conf.exists():
            self._directory.write_conf(conf, "the new broker follows the old one; the switch makes it a master")
        self._directory.save_record(migration.record)
        if await self._target.is_running():
            self._print(f"The new broker is already running: {self._directory.control}")
        elif self._options.no_start:
            self._print(f"Waiting for the new broker; start it with: gantry broker -c {self._directory.conf}")
            await self._target.wait_until_running()
        else:
            pid = await self._target.start()
            self._print(f"The new broker started (pid {pid}, log {self._directory.log})")

    async def _finish(self, migration: Migration, old: ApacheBroker, switched: SwitchResult) -> MigrationResult:
        if self._options.linger_s > 0:
            self._print(f"Copying late commits from the old broker for {self._options.linger_s:g} s")
        late = (
            await copy_late_commits(old, switched.address, self._options.linger_s) if self._options.linger_s > 0 else 0
        )
        await migration.finish()
        return self._result(migration.record, switched, late)

    def _result(self, record: MigrationRecord, switched: SwitchResult | None, late: int) -> MigrationResult:
        for text in result_text(record, switched, late):
            self._print(text)
        return self._make_result(record, switched, late)

    @staticmethod
    def _make_result(record: MigrationRecord, switched: SwitchResult | None, late: int) -> MigrationResult:
        return MigrationResult(
            phase=record.phase,
            old_address=record.old_address,
            broker_name=record.broker_name,
            address=switched.address if switched is not None else "",
            epoch=record.epoch,
            end=record.end,
            pause_ms=record.pause_ms,
            is_old_closed=record.is_old_closed,
            late_commits=late,
        )

    def _print(self, text: str) -> None:
        self.line.close()
        click.echo(text, err=self._quiet)

    def _confirm(self, question: str) -> None:
        if self._options.yes:
            return
        # The question blocks the event loop, so the loop's handler of SIGINT would run only after the answer.
        handler = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            is_wanted = click.confirm(question, err=True)
        finally:
            signal.signal(signal.SIGINT, handler)
        if not is_wanted:
            raise MigrationError(
                "canceled; the old broker is unchanged", "if the new broker runs, it continues to follow the old one"
            )
