"""One trial: a copy of a template is damaged, served, killed or stopped, and served again; then it is judged.

    stopped   copy -> damage -> start -> read, send, read -> stop or kill -> start -> read, send, read -> judge
    running   copy -> start -> damage -> read, send, read -> stop or kill -> start -> read, send, read -> judge

Each of the two runs is a separate process, and a kill is a SIGKILL. The results of each run are kept in a file, so
that a run that a signal has ended is judged by its answers to clients until then.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import signal
from contextlib import suppress
from pathlib import Path
from typing import Final, final

import msgspec
from damage.client_requests import (
    COMMIT,
    NOTHING_YET,
    checked_transactions,
    committed_offset,
    end_transaction,
    groups_of,
    query_by_key,
    read_queue,
    send_to_every_queue,
    setting_of,
    topics_of,
    view_by_id,
)
from damage.damage_kinds import NotPossible, Source, copy_member, damage_file
from damage.expectations import Expectations, load_expectations
from damage.file_kinds import LOG_KINDS, QUEUE_KINDS, STORE, FileKind, StoreFile, classify_files, report_words_of
from damage.judge import ACCEPTANCE, Judge
from damage.observed_run import (
    ContinuingConsumer,
    MemberState,
    ObservedRun,
    QueueRead,
    Reading,
    load_observed_run,
    observed_run_path,
)
from damage.plan import BrokerState, Stop, Trial
from damage.remedies import Remedy, apply_remedy, remedies_of
from damage.reports import ReportLog
from damage.sabotage_of_trials import Sabotage, falsify
from damage.shard import FILES, Setup, Shard, ShiftedClock, wait_until_met
from damage.template import BUSY, HOURS_MS, LATE_TOPIC, OLDER, QUEUES, RETRIED, TAGS
from damage.trial_accounts import account_settings, is_granted, super_dialogue, users_of
from damage.verdict import Case, Verdict

from gantry_broker.app import Broker
from gantry_broker.store.checkpoint import BEGIN_SEAL_POSITION, SEAL
from gantry_remoting import RemotingError
from gantry_testing.local import Dialogue
from gantry_testing.slowness import patience

LOG_BYTES: Final = int(FILES["mappedFileSizeCommitLog"])
UNIT_BYTES: Final = 20
"""The size of a queue unit."""
USED_BYTES: Final = {FileKind.CHECKPOINT: BEGIN_SEAL_POSITION + SEAL.size, FileKind.TIMER_CHECK: 66}
"""The ends of the fields and seals in files whose rest is empty, and in which most damage is done before that."""
READ_AGAIN_S: Final = {Setup.ALONE: 0.5, Setup.SYNC: 4.0, Setup.ASYNC: 4.0}
"""How long a reader that misses something asks again: what heals while it runs has this time. In groups longer than
brokers let readers wait before a damaged message (``healWait``); a broker alone lets none wait."""
STALL_S: Final = 15.0
"""How long a queue may give nothing before its end: while it is rebuilt, or its message may come from a replica."""

SAMPLE: Final = 12
"""How many messages are queried by key and by id in each reading."""
REMEDIES_MAX: Final = 3
"""How many remedies are executed at most until a member starts."""
CASE, VERDICT, DAMAGE_TEXT = "case.json", "verdict.json", "damage.txt"
"""Files of a trial: the facts for the judge, its verdict, and what was damaged and how."""


def prepare_trial(trial: Trial, templates: Path, folder: Path) -> Case:
    """Copy the template into ``folder``, choose the file, and damage it if no broker runs. Raises ``NotPossible``."""
    combination = trial.combination
    template = templates / trial.template.folder_name()
    expectations = load_expectations(template)
    foreign = load_expectations(templates / trial.template.folder_name(is_foreign=True))
    expectations.logins += [
        msgspec.structs.replace(login, denied="it is an account of another store")
        for login in foreign.logins
        if not login.denied and login not in expectations.logins
    ]
    origin = template / (Stop.CLEAN if combination.broker is BrokerState.RUNNING else combination.stop)
    for member in sorted(origin.iterdir()):
        copy_member(member, folder / member.name)
    expectations.save(folder)
    rng = trial.make_rng()
    member = folder / str(trial.member)
    files = classify_files(member, end=expectations.wrote)
    if combination.file_kind is FileKind.ABORT:
        chosen = StoreFile(FileKind.ABORT, f"{STORE}/abort")
    else:
        candidates = [one for one in files if one.kind is combination.file_kind]
        if not candidates:
            raise NotPossible(f"this store has no file of the kind {combination.file_kind}")
        chosen = rng.choice(candidates)
    case = Case(
        combination.file_kind, chosen.name, trial.member, combination.setup, combination.setup is not Setup.ALONE,
        LOG_BYTES, report_words_of(chosen), combination.stop is Stop.UNCLEAN, [BUSY, LATE_TOPIC],
    )  # fmt: skip
    (folder / CASE).write_bytes(msgspec.json.encode(case))
    if combination.broker is BrokerState.STOPPED:
        damage_chosen_file(trial, templates, folder, case, in_place=False)
    return case


def damage_chosen_file(trial: Trial, templates: Path, folder: Path, case: Case, *, in_place: bool) -> str:
    """Damage the chosen file, and write down what was done."""
    combination = trial.combination
    template = templates / trial.template.folder_name()
    foreign = templates / trial.template.folder_name(is_foreign=True)
    member = folder / str(trial.member)
    expectations = load_expectations(folder)
    same = [
        one.name
        for one in classify_files(member, end=expectations.wrote)
        if one.kind is combination.file_kind and one.name != case.file
    ]
    if combination.file_kind in LOG_KINDS:
        same = [
            one.name
            for one in classify_files(member, end=expectations.wrote)
            if one.kind in LOG_KINDS and one.name != case.file
        ]
    stop = Stop.CLEAN if combination.broker is BrokerState.RUNNING else combination.stop
    older = [template / one / str(trial.member) for one in OLDER]
    if combination.file_kind is FileKind.ABORT:
        older = [template / "unclean" / str(trial.member)]
    source = Source(older, foreign / stop / str(trial.member), same)
    rng = trial.make_rng()
    rng.random()
    text = damage_file(
        member,
        case.file,
        combination.damage,
        rng,
        source,
        written=_written(member, case, expectations),
        in_place=in_place,
    )
    line = f"member {trial.member}: {case.file}: {text}"
    (folder / DAMAGE_TEXT).write_text(line)
    return line


def _written(member: Path, case: Case, expectations: Expectations) -> int:
    """Return the end of the used part of the file, in bytes."""
    parts = case.file.split("/")
    size = (member / case.file).stat().st_size if (member / case.file).exists() else 0
    if case.file_kind in LOG_KINDS:
        return min(size, max(1, expectations.wrote - int(parts[-1])))
    if case.file_kind in QUEUE_KINDS:
        end = expectations.ends.get((parts[2], int(parts[3])), 0) * UNIT_BYTES
        return min(size, max(1, end - int(parts[-1])))
    return min(size, USED_BYTES.get(case.file_kind, size))


# -- a run of the broker -----------------------------------------------------------------------------------------------


@final
class BrokerRun:
    """One run of the shard's brokers, in this process, in the directory of the trial. Owned by one loop."""

    def __init__(self, trial: Trial, templates: Path, folder: Path, number: int) -> None:
        self._trial: Final = trial
        self._templates: Final = templates
        self._folder: Final = folder
        self._number: Final = number
        self._case: Final = msgspec.json.decode((folder / CASE).read_bytes(), type=Case)
        self._expectations: Final = load_expectations(folder)
        self._rng: Final = trial.make_rng()
        self._expected = len(self._expectations.messages)
        self.observed: Final = ObservedRun()
        self._consumers: Final[dict[tuple[int, str, int], ContinuingConsumer]] = {}
        self._log: Final = ReportLog()
        logging.getLogger().addHandler(self._log)
        self.shard: Final = Shard(
            trial.combination.setup, ShiftedClock(HOURS_MS), has_write_buffers=trial.has_write_buffers,
            epoch=self._expectations.epoch,
        )  # fmt: skip
        self.shard.change_settings(slaveTimeout="1500", syncFlushTimeout="3000")
        if trial.template.has_users:
            self.shard.change_settings(**account_settings())
        self.shard.on_failed = self._failed

    async def run(self) -> None:
        """Start, use and end the brokers. The results are in ``observed`` and on the disk."""
        is_first = self._number == 1
        combination = self._trial.combination
        is_damaged_now = is_first and combination.broker is BrokerState.RUNNING
        await self._start(is_failover=is_first and self._trial.is_failover and not is_damaged_now)
        try:
            if is_damaged_now:
                await self.shard.wait_until_caught_up()
                self._save()
                damage_chosen_file(self._trial, self._templates, self._folder, self._case, in_place=True)
            await self._serve()
        finally:
            self._save()
        if combination.stop is Stop.UNCLEAN or not is_first:
            self._end()
        await self.shard.close()
        self._save()

    def _failed(self, number: int, error: BaseException) -> None:
        """End this process with all members, as a broker that cannot continue ends its own."""
        self.observed.ended_by = f"member {number} itself: {error}"
        self._save()
        self._end()

    def _end(self) -> None:
        """Kill this process, with the brokers in it."""
        logging.shutdown()
        os.kill(os.getpid(), signal.SIGKILL)

    def _save(self) -> None:
        self.observed.reports = list(self._log.reports)
        self.observed.tracebacks = list(self._log.tracebacks)
        path = observed_run_path(self._folder, self._number)
        temporary = path.with_suffix(".tmp")
        temporary.write_bytes(msgspec.msgpack.encode(self.observed))
        temporary.replace(path)

    # -- starting ------------------------------------------------------------------------------------------------------

    async def _start(self, *, is_failover: bool) -> None:
        shard = self.shard
        if is_failover:
            other = next(number for number in shard.numbers if number != self._trial.member)
            await shard.start(other)
            await shard.promote_master(can_regain=False)
        for number in shard.numbers:
            if number not in shard.brokers:
                await self._start_member(number)
        if is_failover and shard.master is not None:
            await shard.order_to_follow()
            self.observed.promotion = "failover"
        else:
            self.observed.promotion = await shard.promote_master(can_regain=True)
        await shard.wait_until_caught_up(2.0)

    async def _start_member(self, number: int) -> None:
        """Start a member, and execute remedies that its refusals name until it starts."""
        for _ in range(REMEDIES_MAX + 1):
            if await self.shard.start(number) is not None:
                return
            reason = self.shard.refusals[number]
            self.observed.refusals.append((number, reason))
            self._save()
            done = apply_remedy(self._remedies(reason, number), self._rng)
            if done is None:
                break
            self.observed.remedies.append(done)
        self.observed.refused_for_good.append(number)

    def _remedies(self, reason: str, number: int) -> list[Remedy]:
        combination, backup = self._trial.combination, None
        # A copy from before the damage; for a store that continued it would be outdated.
        if combination.broker is BrokerState.STOPPED:
            backup = self._templates / self._trial.template.folder_name() / combination.stop / str(number)
        return remedies_of(
            reason, self._folder, number, file=self._case.file, backup=backup, is_grouped=self._case.is_grouped
        )

    # -- serving -------------------------------------------------------------------------------------------------------

    async def _serve(self) -> None:
        """Read, accept a loss if one is reported, end transactions, send and read again, as clients do."""
        shard = self.shard
        master = shard.master
        if master is None:
            return
        async with super_dialogue(master) as peer:
            await peer.heartbeat("judge", group="Judges", topic=BUSY)
            await self._read(peer, shard.master_number, is_master=True, is_last=False)
            self._save()
        await self._accept_loss(master)
        await shard.wait_until_caught_up(0.5)
        await shard.promote_again()
        async with super_dialogue(master) as peer:
            await peer.heartbeat("judge", group="Judges", topic=BUSY)
            await self._end_transactions(peer)
            self.observed.sends += await send_to_every_queue(
                peer, QUEUES, f"F{self._number:X}{self._trial.number:010X}"
            )
            self._save()
        await shard.wait_until_caught_up(1.5)
        for number, broker in shard.brokers.items():
            await self._read_patiently(number, broker, is_master=number == shard.master_number)
        for number, broker in shard.brokers.items():
            status = await broker.orders.status()
            epochs = [(one.epoch, one.start) for one in broker.store.identity.epochs]
            self.observed.states.append(MemberState(number, status.is_complete, epochs, status.promised_epoch))

    async def _accept_loss(self, master: Broker) -> None:
        """Accept the loss as the status says, in the last run at the latest."""
        if not master.roles.is_awaiting_acceptance:
            return
        self.observed.waiting_problem = (await master.orders.status()).problem
        is_now = self._number > 1 or random.Random(f"{self._trial.seed}/{self._trial.number}/accept").random() < 0.5
        if is_now and ACCEPTANCE in self.observed.waiting_problem:
            await master.orders.accept_loss("the damage run")
            self.observed.is_accepted = True

    async def _end_transactions(self, peer: Dialogue) -> None:
        """Commit the open transactions, after the broker had time to check their state with this client."""
        halves = [one for one in self._expectations.pending if one.is_half]
        first = load_observed_run(self._folder, 1)
        is_ended = self._number > 1 and bool(first.sends) and not _waited(first)
        if is_ended:  # Ended by the first run; an end that was lost, which must be reported, is requested again.
            served = {
                message.unique for one in self.observed.readings for queue in one.queues for message in queue.messages
            }
            halves = [one for one in halves if one.unique not in served]
        if not halves:
            return
        names = {one.unique for one in halves}
        await wait_until_met(lambda: names <= set(checked_transactions(peer)), 1.5)
        self.observed.checked_transactions = checked_transactions(peer)
        for half in halves:
            if is_ended and half.unique not in self.observed.checked_transactions:
                continue
            with suppress(RemotingError):
                await end_transaction(peer, half, COMMIT)

    # -- reading -------------------------------------------------------------------------------------------------------

    async def _read_patiently(self, number: int, broker: Broker, *, is_master: bool) -> None:
        """Read until nothing is missing, or the time to heal or rebuild is over."""
        loop = asyncio.get_running_loop()
        end = loop.time() + patience(READ_AGAIN_S[self._trial.combination.setup])
        stall_end = loop.time() + patience(STALL_S)
        wanted = {message.place for message in self._expectations.messages}
        pending = {one.unique for one in self._expectations.pending}
        while True:
            async with super_dialogue(broker) as peer:
                reading = await self._read(peer, number, is_master=is_master, is_last=True)
            places = {message.place for queue in reading.queues for message in queue.messages}
            uniques = {message.unique for queue in reading.queues for message in queue.messages}
            is_stalled = any(queue.problem.endswith(NOTHING_YET) for queue in reading.queues)
            if (wanted <= places and pending <= uniques) or loop.time() > (stall_end if is_stalled else end):
                return
            reading.is_last = False
            await asyncio.sleep(0.2)

    async def _read(self, peer: Dialogue, number: int, *, is_master: bool, is_last: bool) -> Reading:
        """Read all queues of a member once, and query some messages by key and by id."""
        reading = Reading(number, is_master, is_last, is_cut_off=True, sends_before=self._sends_before())
        self.observed.readings.append(reading)
        for topic, queues in {**QUEUES, RETRIED: 1}.items():
            for queue_id in range(queues):
                await self._read_one(peer, reading, topic, queue_id, "*")
        tags = TAGS if self._case.file_kind in QUEUE_KINDS else TAGS[:1]
        for queue_id in range(QUEUES[BUSY]):
            for tag in tags:
                await self._read_one(peer, reading, BUSY, queue_id, tag)
        known = self._expectations.messages
        sample = known if self._case.file_kind is FileKind.INDEX and is_last else self._rng.sample(known, SAMPLE)
        for message in sample:
            with suppress(RemotingError):
                reading.by_key.append(
                    (message.topic, message.unique, await query_by_key(peer, message.topic, message.unique))
                )
        for message in known if self._case.file_kind in LOG_KINDS and is_last else sample[:SAMPLE]:
            with suppress(RemotingError):
                reading.by_id.append((message.physical_offset, await view_by_id(peer, message.physical_offset)))
        if is_master:
            await self._read_tables(peer, reading)
        if self._trial.template.has_users:
            await self._read_accounts(reading)
        reading.is_cut_off = False
        return reading

    def _sends_before(self) -> int:
        before = 0
        if self._number > 1:
            before = len(load_observed_run(self._folder, 1).sends)
        return before + len(self.observed.sends)

    async def _read_one(self, peer: Dialogue, reading: Reading, topic: str, queue_id: int, tag: str) -> None:
        if tag == "*":
            await self._continue_consumer(peer, reading.member, topic, queue_id)
        served = await read_queue(peer, topic, queue_id, tag=tag)
        reading.queues.append(
            QueueRead(topic, queue_id, served.messages, served.problem, tag, list(served.damaged_records))
        )

    async def _continue_consumer(self, peer: Dialogue, member: int, topic: str, queue_id: int) -> None:
        """Read a queue from where the previous call stopped."""
        place = member, topic, queue_id
        one = self._consumers.get(place)
        if one is None:
            one = self._consumers[place] = ContinuingConsumer(*place)
            self.observed.consumers.append(one)
        served = await read_queue(peer, topic, queue_id, offset=one.next_offset)
        one.queue_offsets += [message.queue_offset for message in served.messages]
        one.next_offset = served.next_offset

    async def _read_tables(self, peer: Dialogue, reading: Reading) -> None:
        for group, topic, queue_id, _ in self._expectations.offsets:
            reading.offsets.append((group, topic, queue_id, await committed_offset(peer, group, topic, queue_id)))
        reading.topics = await topics_of(peer)
        reading.groups = await groups_of(peer)
        if self.shard.master_number == 1:
            reading.setting = await setting_of(peer, self._expectations.setting[0])

    async def _read_accounts(self, reading: Reading) -> None:
        """Pull with each account, and list the users, over new connections: a change of roles closes the old ones."""
        broker = self.shard.brokers[reading.member]
        for login in self._expectations.logins:
            with suppress(RemotingError):
                reading.logins.append((login, await is_granted(broker, login)))
        with suppress(RemotingError):
            async with super_dialogue(broker) as peer:
                reading.users = await users_of(peer)


def _waited(run: ObservedRun) -> bool:
    """Return whether the run ended before the loss was accepted, so that no transaction could be ended."""
    return bool(run.waiting_problem) and not run.is_accepted


def run_broker(trial: Trial, templates: Path, folder: Path, number: int) -> None:
    """Run the brokers once; the entry point of the child process. Does not return after a kill."""
    os.chdir(folder)
    asyncio.run(BrokerRun(trial, templates, folder, number).run())


def judged(folder: Path, sabotage: Sabotage = Sabotage.NONE) -> Verdict:
    """Return the verdict over the results of both runs."""
    case = msgspec.json.decode((folder / CASE).read_bytes(), type=Case)
    runs = [load_observed_run(folder, 1), load_observed_run(folder, 2)]
    expectations = load_expectations(folder)
    falsify(sabotage, runs, expectations)
    return Judge(case, expectations, runs).verdict()
