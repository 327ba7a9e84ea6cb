"""One run of `gantry migrate`, from what was typed to what is said: it looks, asks, attaches, and has it done."""

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
from gantry_cli.migrate.checks import SIGNED_FOR, Finding, Kind, Seen, findings
from gantry_cli.migrate.record import Home, Phase, Record, slave_conf, stream_address
from gantry_cli.migrate.run import Migration, Switched
from gantry_cli.migrate.source import (
    ApacheBroker,
    CannotMigrate,
    Listing,
    Names,
    Offsets,
    OldBroker,
    RemotingPeer,
    offsets_of,
)
from gantry_cli.migrate.target import OurBroker, Place, free_bytes, log_files, ports_of, reach, taken
from gantry_cli.migrate.text import ProgressLine, blocked, done_text, finding_text, plan_text
from gantry_client.session import local_address
from gantry_wire import RequestCode, ResponseCode
from gantry_wire.commands.admin import SubscriptionGroupConfig
from gantry_wire.commands.documents import write_document

ROUND_S: Final = 5.0


async def follow_up(old: OldBroker, our_address: str, linger_s: float) -> int:
    """Bring commits over for so long. How many offsets were moved; an old broker that has gone ends it.

    Until its next look at the routes, half a minute by default, a consumer reads on at the old broker and commits
    there. Most commit again at ours as soon as they have found it. One that stops in between would begin too early:
    nothing lost, but read twice. So whatever is further at the old broker is set at ours; nothing is ever set back.
    """
    ours = RemotingPeer(our_address)
    moved, deadline = 0, time.monotonic() + linger_s
    try:
        with suppress(CannotMigrate):
            while True:
                moved += await bring(await old.offsets(), ours)
                if time.monotonic() + ROUND_S > deadline:
                    break
                await asyncio.sleep(ROUND_S)
    finally:
        await ours.close()
    return moved


async def bring(theirs: Offsets, ours: RemotingPeer) -> int:
    """Set here what is further there."""
    late = behind(theirs, await offsets_of(ours))
    for (group, topic, queue), offset in late.items():
        fields = {"consumerGroup": group, "topic": topic, "queueId": str(queue), "commitOffset": str(offset)}
        said = await ours.ask(RequestCode.UPDATE_CONSUMER_OFFSET, fields)
        if said.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST:  # it has begun over there since the switch
            config = write_document(SubscriptionGroupConfig(group_name=group))
            await ours.demand(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=config)
        if said.code != ResponseCode.SUCCESS:
            await ours.demand(RequestCode.UPDATE_CONSUMER_OFFSET, fields)
    return len(late)


def behind(theirs: Offsets, ours: Offsets) -> Offsets:
    """What is further there than here."""
    return {key: offset for key, offset in theirs.items() if offset > ours.get(key, -1)}


async def only_name(names: Names) -> str:
    """The broker that is meant when none is named."""
    found = await names.names()
    if len(found) != 1:
        known = ", ".join(found[:20]) or "none"
        raise CannotMigrate(
            f"the name servers know these brokers: {known}", "name one with --broker, or others with -n"
        )
    return found[0]


def master_of(listings: Sequence[Listing], name: str) -> str:
    """Where the old master is."""
    for one in listings:
        if 0 in one.brokers:
            return one.brokers[0]
    raise CannotMigrate(f"no name server knows a master of {name}", "name its name servers with -n")


def free_number(listings: Sequence[Listing]) -> int:
    """A brokerId that nobody of the group has."""
    known = {number for one in listings for number in one.brokers}
    return next(number for number in range(1, len(known) + 2) if number not in known)


async def look(
    old: ApacheBroker,
    listings: Sequence[Listing],
    home: Home,
    conf: Mapping[str, str],
    *,
    original: Mapping[str, str],
    is_running: bool,
) -> Seen:
    """Ask. ``original`` are settings that an earlier run has changed, as they were before."""
    config, runtime, log = await old.config(), await old.runtime(), await old.log()
    halves, halves_open = await old.transactions()
    stream = conf.get("haMasterAddress") or stream_address(config, old.address)
    copied, file_bytes = log_files(home)
    return Seen(
        version=runtime.get("brokerVersionDesc", ""),
        config={**config, **original},
        log=log,
        stream=stream,
        stream_failure=await reach(stream),
        halves=halves,
        halves_open=halves_open,
        timers=await old.timers(),
        popping=await old.popping(),
        listings=listings,
        old_address=old.address,
        ports_taken=[] if is_running else taken(conf.get("bindAddress", ""), ports_of(conf)),
        free_bytes=free_bytes(home.path),
        copied_bytes=min(copied, log.end - log.begin),
        own_file_bytes=file_bytes,
        own_id=int(conf.get("brokerId", "1")),
        is_signing=credentials() is not None,
        own_conf=conf,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Typed:
    """What was typed."""

    name_server: str
    home: Home
    options: Mapping[str, str]
    broker_name: str | None = None
    host: str | None = None
    port: int = 10911
    no_start: bool = False
    dry_run: bool = False
    yes: bool = False
    timeout_s: float = 30.0
    linger_s: float = 35.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of it, for programs."""

    phase: str
    old_address: str
    broker_name: str
    findings: list[Finding] = field(default_factory=list)
    is_blocked: bool = False
    address: str = ""
    epoch: int = 0
    end: int = -1
    pause_ms: float = -1.0
    late_commits: int = 0


@final
class Migrating:
    """One run. Owned by one event loop; use it inside `async with`."""

    def __init__(self, typed: Typed, *, quiet: bool) -> None:
        """``quiet`` keeps standard output for one document."""
        self.line: Final = ProgressLine()
        self._typed: Final = typed
        self._home: Final = typed.home
        self._quiet: Final = quiet
        self._ours: Final = OurBroker(typed.home)
        self._names: Final = Names(typed.name_server)
        self._stack: Final = AsyncExitStack()

    async def __aenter__(self) -> Migrating:
        await self._stack.enter_async_context(self._ours.orders)
        self._stack.push_async_callback(self._names.close)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.line.close()
        await self._stack.aclose()

    async def run(self) -> Outcome:
        """All of it, or only a look. Raises ``CannotMigrate``."""
        record = self._home.record()
        if record is not None and record.phase is Phase.DONE:
            return self._done(record, None, 0)
        name = record.broker_name if record is not None else self._typed.broker_name or await only_name(self._names)
        listings = await self._names.listings(name)
        address = record.old_address if record is not None else master_of(listings, name)
        old = self._old(address)
        migration = self._migration(old, record or Record(old_address=address, broker_name=name))
        if migration.record.phase is Phase.PROMOTING:
            await self._attach(self._home.read_conf(), migration)
            return await self._finish(migration, old, await migration.promote())
        conf = await self._conf(old, listings)
        found = await self._check(old, listings, conf, migration.record)
        if self._typed.dry_run:
            for text in plan_text(address, name, self._home, conf, is_conf_new=not self._home.conf.exists()):
                self._say(text)
            is_blocked = bool(blocked(found))
            return Outcome(
                phase="CHECKED", old_address=address, broker_name=name, findings=found, is_blocked=is_blocked
            )
        if bad := blocked(found):
            raise CannotMigrate("; ".join(one.what for one in bad), bad[0].remedy or None)
        if any(one.kind is Kind.WARNING for one in found):
            self._ask("Go on in spite of the warnings?")
        await migration.resume()
        await self._attach(conf, migration)
        await migration.catch_up()
        self.line.close()
        self._say("our broker is level with the old one")
        self._ask(f"Stop writes at {address} and switch over now?")
        return replace(await self._finish(migration, old, await migration.switch()), findings=found)

    async def abort(self) -> Outcome:
        """Put the old broker back, if a run that was killed has left it stopped."""
        record = self._home.record()
        if record is None:
            raise CannotMigrate(f"no migration was begun in {self._home.path}")
        if record.phase in (Phase.PROMOTING, Phase.DONE):
            reason = "our broker is the master, or about to be: this cannot be taken back any more"
            raise CannotMigrate(reason, "run the command without --abort, or see docs/migration.md")
        migration = self._migration(self._old(record.old_address), record)
        await migration.resume()
        self._say(f"the old broker at {record.old_address} takes messages; if our broker runs it goes on following it")
        return Outcome(phase=migration.record.phase, old_address=record.old_address, broker_name=record.broker_name)

    # -- the parts -----------------------------------------------------------------------------------------------------

    def _old(self, address: str) -> ApacheBroker:
        old = ApacheBroker(address)
        self._stack.push_async_callback(old.close)
        return old

    def _migration(self, old: ApacheBroker, record: Record) -> Migration:
        return Migration(
            old, self._ours.orders, self._names, self._home, record,
            tell=self._say, show=self.line, timeout_s=self._typed.timeout_s,
        )  # fmt: skip

    async def _conf(self, old: ApacheBroker, listings: Sequence[Listing]) -> dict[str, str]:
        """Our broker's settings: as they are there already, or made of the old broker's."""
        if self._home.conf.exists():
            return self._home.read_conf()
        typed = self._typed
        place = Place(
            host=typed.host or local_address(typed.name_server.split(";")[0]),
            port=typed.port,
            name_server=typed.name_server,
            broker_id=free_number(listings),
        )
        config, own = await old.config(), place.conf()
        path = credentials_path()
        if path is not None and any(config.get(key, "").lower() == "true" for key in SIGNED_FOR):
            own["aclCredentialsPath"] = path
        return slave_conf(config, old.address, self._home, own, typed.options)

    async def _check(
        self, old: ApacheBroker, listings: Sequence[Listing], conf: Mapping[str, str], record: Record
    ) -> list[Finding]:
        is_running = await self._ours.is_running()
        seen = await look(old, listings, self._home, conf, original=record.original, is_running=is_running)
        found = findings(seen)
        for one in found:
            self._say(finding_text(one))
        return found

    async def _attach(self, conf: Mapping[str, str], migration: Migration) -> None:
        """Our broker runs, and the record says whom it follows."""
        if not self._home.conf.exists():
            self._home.write_conf(conf, "our broker follows the old one; it becomes a master's at the switch")
        self._home.keep(migration.record)
        if await self._ours.is_running():
            self._say(f"our broker runs already: {self._home.control}")
        elif self._typed.no_start:
            self._say(f"waiting for our broker; start it with: gantry broker -c {self._home.conf}")
            await self._ours.appears()
        else:
            pid = await self._ours.start()
            self._say(f"our broker is started: process {pid}, {self._home.log}")

    async def _finish(self, migration: Migration, old: ApacheBroker, switched: Switched) -> Outcome:
        if self._typed.linger_s > 0:
            self._say(f"late commits at the old broker are brought over for {self._typed.linger_s:g} s")
        late = await follow_up(old, switched.address, self._typed.linger_s) if self._typed.linger_s > 0 else 0
        await migration.finish()
        return self._done(migration.record, switched, late)

    def _done(self, record: Record, switched: Switched | None, late: int) -> Outcome:
        for text in done_text(record, switched, late):
            self._say(text)
        return Outcome(
            phase=record.phase,
            old_address=record.old_address,
            broker_name=record.broker_name,
            address=switched.address if switched is not None else "",
            epoch=record.epoch,
            end=record.end,
            pause_ms=record.pause_ms,
            late_commits=late,
        )

    def _say(self, text: str) -> None:
        self.line.close()
        click.echo(text, err=self._quiet)

    def _ask(self, question: str) -> None:
        if self._typed.yes:
            return
        # The loop takes Ctrl-C for itself and stands still here: nobody would hear it.
        handler = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            is_wanted = click.confirm(question, err=True)
        finally:
            signal.signal(signal.SIGINT, handler)
        if not is_wanted:
            raise CannotMigrate(
                "not confirmed: the old broker is as it was", "our broker goes on following, if it runs"
            )
