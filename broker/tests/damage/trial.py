"""One trial: a copy of a world is damaged, served, killed or stopped, and served again; then it is judged.

    stopped   copy -> damage -> start -> read, send, read -> stop or kill -> start -> read, send, read -> judge
    running   copy -> start -> damage -> read, send, read -> stop or kill -> start -> read, send, read -> judge

Each of the two lives is a separate process, and a kill is a SIGKILL. The results of each life are kept in a file, so
that a life that a signal has ended is judged by its answers to clients until then.
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
from damage.harms import NotPossible, Source, copy_member, damage
from damage.judge import ACCEPTANCE, Case, Followed, Judge, MemberState, Phase, QueueRead, Reading, Sent, Verdict
from damage.kinds import LOG, STORE, Kind, StoreFile, survey
from damage.kinds import QUEUES as QUEUE_KINDS
from damage.ledger import Ledger, load_ledger
from damage.plan import Stop, Trial, When
from damage.remedies import Remedy, apply_remedy, remedies_of
from damage.reports import ReportLog
from damage.sabotage_of_trials import Lie, tell_lie
from damage.shard import FILES, Setup, Shard, ShiftedClock, wait_until_met
from damage.talk import (
    COMMIT,
    NOTHING_YET,
    asked_about,
    committed_offset,
    end_transaction,
    groups_of,
    query,
    read_queue,
    send,
    setting_of,
    topics_of,
    view,
)
from damage.world import BUSY, HOURS_MS, LATE_TOPIC, OLDER, QUEUES, RETRIED, TAGS

from gantry_broker.app import Broker
from gantry_broker.store.checkpoint import BEGIN_SEAL_POSITION, SEAL
from gantry_remoting import RemotingError
from gantry_testing.local import Dialogue, dialogue
from gantry_testing.slowness import patience

LOG_BYTES: Final = int(FILES["mappedFileSizeCommitLog"])
UNIT_BYTES: Final = 20
CHECKPOINT_USED: Final = BEGIN_SEAL_POSITION + SEAL.size
"""The used bytes of a checkpoint: damage is at random, and most of its file is empty."""

READ_AGAIN_S: Final = {Setup.ALONE: 0.5, Setup.SYNC: 4.0, Setup.ASYNC: 4.0}
"""How long a reader that misses something asks again: what heals while it runs has this time. In groups longer than
brokers let readers wait before a damaged message (``healWait``); a broker alone lets none wait."""
STALL_S: Final = 15.0
"""How long a queue may give nothing before its end: while it is rebuilt, or its message may come from a replica."""

SAMPLE: Final = 12
REMEDIES_MAX: Final = 3
CASE, VERDICT, DONE = "case.json", "verdict.json", "damage.txt"


def prepare_trial(trial: Trial, worlds: Path, folder: Path) -> Case:
    """Copy the world into ``folder``, choose the file, and damage it if no broker runs. Raises ``NotPossible``."""
    cell = trial.cell
    world = worlds / world_name(cell.setup, is_pooled=trial.is_pooled)
    ledger = load_ledger(world)
    origin = world / (Stop.CLEAN if cell.when is When.RUNNING else cell.stop)
    for member in sorted(origin.iterdir()):
        copy_member(member, folder / member.name)
    ledger.save(folder)
    dice = trial.dice
    member = folder / str(trial.member)
    files = survey(member, end=ledger.wrote)
    if cell.kind is Kind.ABORT:
        chosen = StoreFile(Kind.ABORT, f"{STORE}/abort")
    else:
        candidates = [one for one in files if one.kind is cell.kind]
        if not candidates:
            raise NotPossible(f"this store has no file of the kind {cell.kind}")
        chosen = dice.choice(candidates)
    case = Case(
        cell.kind,
        chosen.name,
        trial.member,
        cell.setup,
        cell.setup is not Setup.ALONE,
        LOG_BYTES,
        words_of(chosen),
        [BUSY, LATE_TOPIC],
    )
    (folder / CASE).write_bytes(msgspec.json.encode(case))
    if cell.when is When.STOPPED:
        harm(trial, worlds, folder, case, in_place=False)
    return case


def world_name(setup: Setup, *, is_pooled: bool, is_foreign: bool = False) -> str:
    """Return the name of a world's folder."""
    return f"{setup.split()[0]}{'-pooled' if is_pooled else ''}{'-foreign' if is_foreign else ''}"


def harm(trial: Trial, worlds: Path, folder: Path, case: Case, *, in_place: bool) -> str:
    """Damage the chosen file, and write down what was done."""
    cell = trial.cell
    world = worlds / world_name(cell.setup, is_pooled=trial.is_pooled)
    foreign = worlds / world_name(cell.setup, is_pooled=trial.is_pooled, is_foreign=True)
    member = folder / str(trial.member)
    ledger = load_ledger(folder)
    same = [one.name for one in survey(member, end=ledger.wrote) if one.kind is cell.kind and one.name != case.file]
    if cell.kind in LOG:
        same = [one.name for one in survey(member, end=ledger.wrote) if one.kind in LOG and one.name != case.file]
    stop = Stop.CLEAN if cell.when is When.RUNNING else cell.stop
    older = [world / one / str(trial.member) for one in OLDER]
    if cell.kind is Kind.ABORT:
        older = [world / "unclean" / str(trial.member)]
    source = Source(older, foreign / stop / str(trial.member), same)
    dice = trial.dice
    dice.random()
    text = damage(member, case.file, cell.harm, dice, source, written=_written(member, case, ledger), in_place=in_place)
    line = f"member {trial.member}: {case.file}: {text}"
    (folder / DONE).write_text(line)
    return line


def _written(member: Path, case: Case, ledger: Ledger) -> int:
    parts = case.file.split("/")
    size = (member / case.file).stat().st_size if (member / case.file).exists() else 0
    if case.kind in LOG:
        return min(size, max(1, ledger.wrote - int(parts[-1])))
    if case.kind in QUEUE_KINDS:
        end = ledger.ends.get((parts[2], int(parts[3])), 0) * UNIT_BYTES
        return min(size, max(1, end - int(parts[-1])))
    return CHECKPOINT_USED if case.kind is Kind.CHECKPOINT else size


def words_of(file: StoreFile) -> list[str]:
    """Return the words by which a report may name a file."""
    parts = file.name.split("/")
    match file.kind:
        case kind if kind in LOG or kind is Kind.LOG_AHEAD:
            return [f"commitlog/{parts[-1]}", parts[-1]]
        case kind if kind in QUEUE_KINDS:
            return [f"consumequeue/{parts[2]}/{parts[3]}", f"'topic': '{parts[2]}'", f"{parts[2]}/{parts[3]}"]
        case Kind.INDEX:
            return ["index/", parts[-1], "key index"]
        case Kind.POINT:
            return ["recovery-point.json", "recovery point"]
        case Kind.STORE | Kind.STORE_BAK:
            return ["store.json", "store's identity"]
        case Kind.BUFFER | Kind.BUFFER_LOCK:
            return [parts[-1], "write buffer"]
        case _:
            return [parts[-1].removesuffix(".bak")]


# -- a life ------------------------------------------------------------------------------------------------------------


@final
class Life:
    """One life of the shard, in this process, whose current directory is the trial's. Owned by one loop."""

    def __init__(self, trial: Trial, worlds: Path, folder: Path, number: int) -> None:
        self._trial: Final = trial
        self._worlds: Final = worlds
        self._folder: Final = folder
        self._number: Final = number
        self._case: Final = msgspec.json.decode((folder / CASE).read_bytes(), type=Case)
        self._ledger: Final = load_ledger(folder)
        self._dice: Final = trial.dice
        self._expected = len(self._ledger.known)
        self.phase: Final = Phase()
        self._followed: Final[dict[tuple[int, str, int], Followed]] = {}
        self._log: Final = ReportLog()
        logging.getLogger().addHandler(self._log)
        self.shard: Final = Shard(
            trial.cell.setup, ShiftedClock(HOURS_MS), is_pooled=trial.is_pooled, epoch=self._ledger.epoch
        )
        self.shard.set(slaveTimeout="1500", syncFlushTimeout="3000")
        self.shard.on_failed = self._failed

    async def run(self) -> None:
        """Run the whole life. Its results are in ``phase`` and on the disk."""
        is_first = self._number == 1
        cell = self._trial.cell
        is_damaged_now = is_first and cell.when is When.RUNNING
        await self._start(is_failover=is_first and self._trial.is_failover and not is_damaged_now)
        try:
            if is_damaged_now:
                await self.shard.level()
                self._save()
                harm(self._trial, self._worlds, self._folder, self._case, in_place=True)
            await self._serve()
        finally:
            self._save()
        if cell.stop is Stop.UNCLEAN or not is_first:
            self._end()
        await self.shard.close()
        self._save()

    def _failed(self, number: int, error: BaseException) -> None:
        """End this process with all members, as a broker that cannot continue ends its own."""
        self.phase.ended_by = f"member {number} itself: {error}"
        self._save()
        self._end()

    def _end(self) -> None:
        logging.shutdown()
        os.kill(os.getpid(), signal.SIGKILL)

    def _save(self) -> None:
        self.phase.reports = list(self._log.reports)
        self.phase.tracebacks = list(self._log.tracebacks)
        path = phase_path(self._folder, self._number)
        temporary = path.with_suffix(".tmp")
        temporary.write_bytes(msgspec.msgpack.encode(self.phase))
        temporary.replace(path)

    # -- starting ------------------------------------------------------------------------------------------------------

    async def _start(self, *, is_failover: bool) -> None:
        shard = self.shard
        if is_failover:
            other = next(number for number in shard.numbers if number != self._trial.member)
            await shard.start(other)
            await shard.lead(regains=False)
        for number in shard.numbers:
            if number not in shard.brokers:
                await self._start_member(number)
        if is_failover and shard.master is not None:
            await shard.gather()
            self.phase.leading = "failover"
        else:
            self.phase.leading = await shard.lead(regains=True)
        await shard.level(2.0)

    async def _start_member(self, number: int) -> None:
        for _ in range(REMEDIES_MAX + 1):
            if await self.shard.start(number) is not None:
                return
            reason = self.shard.refusals[number]
            self.phase.refusals.append((number, reason))
            self._save()
            done = apply_remedy(self._remedies(reason, number), self._dice)
            if done is None:
                break
            self.phase.remedies.append(done)
        self.phase.refused_for_good.append(number)

    def _remedies(self, reason: str, number: int) -> list[Remedy]:
        cell, backup = self._trial.cell, None
        if cell.when is When.STOPPED:  # A copy from before the damage; for a store that continued it would be outdated.
            world = self._worlds / world_name(cell.setup, is_pooled=self._trial.is_pooled)
            backup = world / cell.stop / str(number)
        return remedies_of(
            reason, self._folder, number, file=self._case.file, backup=backup, is_grouped=self._case.is_grouped
        )

    # -- serving -------------------------------------------------------------------------------------------------------

    async def _serve(self) -> None:
        shard = self.shard
        master = shard.master
        if master is None:
            return
        async with dialogue(master) as peer:
            await peer.heartbeat("judge", group="Judges", topic=BUSY)
            await self._read(peer, shard.master_number, is_master=True, is_last=False)
            self._save()
        await self._accept_loss(master)
        await shard.level(0.5)
        await shard.renew()
        async with dialogue(master) as peer:
            await peer.heartbeat("judge", group="Judges", topic=BUSY)
            await self._end_transactions(peer)
            self.phase.sends += await sends_everywhere(peer, f"F{self._number:X}{self._trial.number:010X}")
            self._save()
        await shard.level(1.5)
        for number, broker in shard.brokers.items():
            await self._read_patiently(number, broker, is_master=number == shard.master_number)
        for number, broker in shard.brokers.items():
            status = await broker.orders.status()
            epochs = [(one.epoch, one.start) for one in broker.store.identity.epochs]
            self.phase.states.append(MemberState(number, status.is_complete, epochs, status.promised_epoch))

    async def _accept_loss(self, master: Broker) -> None:
        """Accept the loss as the status says, in the last life at the latest."""
        if not master.roles.is_awaiting_acceptance:
            return
        self.phase.waits_for = (await master.orders.status()).problem
        is_now = self._number > 1 or random.Random(f"{self._trial.seed}/{self._trial.number}/accept").random() < 0.5
        if is_now and ACCEPTANCE in self.phase.waits_for:
            await master.orders.accept_loss("the damage run")
            self.phase.is_accepted = True

    async def _end_transactions(self, peer: Dialogue) -> None:
        halves = [one for one in self._ledger.owed if one.is_half]
        first = load_phase(self._folder, 1)
        is_ended = self._number > 1 and bool(first.sends) and not _waited(first)
        if is_ended:  # Ended by the first life; an end that was lost, which must be reported, is requested again.
            served = {
                message.unique for one in self.phase.readings for queue in one.queues for message in queue.messages
            }
            halves = [one for one in halves if one.unique not in served]
        if not halves:
            return
        names = {one.unique for one in halves}
        await wait_until_met(lambda: names <= set(asked_about(peer)), 1.5)
        self.phase.asked = asked_about(peer)
        for half in halves:
            if is_ended and half.unique not in self.phase.asked:
                continue
            with suppress(RemotingError):
                await end_transaction(peer, half, COMMIT)

    # -- reading -------------------------------------------------------------------------------------------------------

    async def _read_patiently(self, number: int, broker: Broker, *, is_master: bool) -> None:
        """Read until nothing is missing, or the time to heal or rebuild is over."""
        loop = asyncio.get_running_loop()
        end = loop.time() + patience(READ_AGAIN_S[self._trial.cell.setup])
        stall_end = loop.time() + patience(STALL_S)
        wanted = {message.place for message in self._ledger.known}
        owed = {one.unique for one in self._ledger.owed}
        while True:
            async with dialogue(broker) as peer:
                reading = await self._read(peer, number, is_master=is_master, is_last=True)
            places = {message.place for queue in reading.queues for message in queue.messages}
            uniques = {message.unique for queue in reading.queues for message in queue.messages}
            is_stalled = any(queue.problem.endswith(NOTHING_YET) for queue in reading.queues)
            if (wanted <= places and owed <= uniques) or loop.time() > (stall_end if is_stalled else end):
                return
            reading.is_last = False
            await asyncio.sleep(0.2)

    async def _read(self, peer: Dialogue, number: int, *, is_master: bool, is_last: bool) -> Reading:
        reading = Reading(number, is_master, is_last, is_cut_off=True, sends_before=self._sends_before())
        self.phase.readings.append(reading)
        for topic, queues in {**QUEUES, RETRIED: 1}.items():
            for queue_id in range(queues):
                await self._read_one(peer, reading, topic, queue_id, "*")
        tags = TAGS if self._case.kind in QUEUE_KINDS else TAGS[:1]
        for queue_id in range(QUEUES[BUSY]):
            for tag in tags:
                await self._read_one(peer, reading, BUSY, queue_id, tag)
        known = self._ledger.known
        sample = known if self._case.kind is Kind.INDEX and is_last else self._dice.sample(known, SAMPLE)
        for message in sample:
            with suppress(RemotingError):
                reading.by_key.append((message.topic, message.unique, await query(peer, message.topic, message.unique)))
        for message in known if self._case.kind in LOG and is_last else sample[:SAMPLE]:
            with suppress(RemotingError):
                reading.by_id.append((message.physical, await view(peer, message.physical)))
        if is_master:
            await self._read_tables(peer, reading)
        reading.is_cut_off = False
        return reading

    def _sends_before(self) -> int:
        before = 0
        if self._number > 1:
            before = len(load_phase(self._folder, 1).sends)
        return before + len(self.phase.sends)

    async def _read_one(self, peer: Dialogue, reading: Reading, topic: str, queue_id: int, tag: str) -> None:
        if tag == "*":
            await self._follow(peer, reading.member, topic, queue_id)
        served = await read_queue(peer, topic, queue_id, tag=tag)
        reading.queues.append(QueueRead(topic, queue_id, served.messages, served.problem, tag, list(served.rotten)))

    async def _follow(self, peer: Dialogue, member: int, topic: str, queue_id: int) -> None:
        """Read a queue from where the previous call stopped."""
        place = member, topic, queue_id
        one = self._followed.get(place)
        if one is None:
            one = self._followed[place] = Followed(*place)
            self.phase.followed.append(one)
        served = await read_queue(peer, topic, queue_id, offset=one.end)
        one.numbers += [message.queue_offset for message in served.messages]
        one.end = served.end

    async def _read_tables(self, peer: Dialogue, reading: Reading) -> None:
        for group, topic, queue_id, _ in self._ledger.offsets:
            reading.offsets.append((group, topic, queue_id, await committed_offset(peer, group, topic, queue_id)))
        reading.topics = await topics_of(peer)
        reading.groups = await groups_of(peer)
        if self.shard.master_number == 1:
            reading.setting = await setting_of(peer, self._ledger.setting[0])


def _waited(phase: Phase) -> bool:
    """Return whether the whole life passed before a loss was accepted, so that no transaction could be ended."""
    return bool(phase.waits_for) and not phase.is_accepted


async def sends_everywhere(peer: Dialogue, mark: str) -> list[Sent]:
    """Send one message to each queue and return the answers. ``mark`` is the prefix of their unique keys."""
    sends: list[Sent] = []
    for topic, queues in QUEUES.items():
        for queue_id in range(queues):
            unique = f"{mark}{topic[:4].encode().hex()}{queue_id:012X}"
            body = f"{unique} sent after".encode() * 4
            sent = Sent(topic, queue_id, unique, body, -1, "no answer")
            with suppress(RemotingError):
                answer = await send(peer, topic, queue_id, body, UNIQ_KEY=unique)
                sent = Sent(
                    topic, queue_id, unique, body, answer.code, answer.remark, answer.queue_offset, answer.physical
                )
            sends.append(sent)
    return sends


def phase_path(folder: Path, number: int) -> Path:
    return folder / f"phase-{number}.msgpack"


def load_phase(folder: Path, number: int) -> Phase:
    """Load the recorded results of a life."""
    path = phase_path(folder, number)
    return msgspec.msgpack.decode(path.read_bytes(), type=Phase) if path.exists() else Phase()


def live(trial: Trial, worlds: Path, folder: Path, number: int) -> None:
    """Run one life; the entry point of the child process. Does not return after a kill."""
    os.chdir(folder)
    asyncio.run(Life(trial, worlds, folder, number).run())


def judged(folder: Path, lie: Lie = Lie.NONE) -> Verdict:
    """Return the verdict over the results of both lives."""
    case = msgspec.json.decode((folder / CASE).read_bytes(), type=Case)
    phases = [load_phase(folder, 1), load_phase(folder, 2)]
    ledger = load_ledger(folder)
    tell_lie(lie, phases, ledger)
    return Judge(case, ledger, phases).verdict()
