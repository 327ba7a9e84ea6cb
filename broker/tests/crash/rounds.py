"""A job of the crash run: rounds of load, kill, check of the files, restarts, and check through the broker.

    start -> producers send -> it ends itself at a crash point, or SIGKILL -> read the log's files
      -> [remove queues, index, ...] -> [start, end at a crash point] ... -> [start, SIGKILL] ...
      -> start -> pull every queue, ask for messages by key -> compare everything with the history
      -> record in the history which sends of unknown outcome are stored, and which are lost for good

The check between kill and restart separates what the kill destroyed from what the recovery destroyed. The plan of every
round follows from the cell and the seed; the exact moment of a kill in the program's work does not, and cannot.
"""

import asyncio
import random
import re
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, final

from crash.broker_runs import BrokerRuns
from crash.cells import COMMIT_WINDOW_S, Cell
from crash.checker import check, lost_messages, stored_marks
from crash.history import History, Outcome, Sent
from crash.load_consumer import LoadConsumer
from crash.log_walk import Queue, log_files, messages_by_queue, walk_log
from crash.media import SEGMENT_BYTES
from crash.plans import Plan, plan
from crash.processes import ServerFailed
from crash.producer import Producer
from crash.readback import UnexpectedReply, create_topics, not_found_by_key, pull_everything
from crash.sabotage import Sabotage, damage_log
from crash.second_judge import JobRecording
from crash.verdict import Verdict
from gantry_histories.judges import PorcupineFailed

from gantry_remoting import Channel, RemotingError
from gantry_wire.message import StoredMessage

KEYS_ASKED_PER_ROUND: Final = 50
"""How many acknowledged messages are queried by key after each restart."""
ACKED_MIN: Final = 50
"""How many messages are acknowledged in a round before its broker is ended; after `BEGIN_S_MAX` it is ended anyway."""
BEGIN_S_MAX: Final = 60.0
POLL_S: Final = 0.005
"""Seconds between two looks at the number of acknowledgements."""
REPLAYED: Final = re.compile(r"store recovered.* replayed_records=(\d+)")
"""The line of the broker's log that reports how many records a start has replayed from write buffers."""
SETTINGS: Final = {
    "mappedFileSizeCommitLog": str(SEGMENT_BYTES),
    "mappedFileSizeConsumeQueue": str(20 * 500),
    "maxMessageSize": str(256 * 1024),
    "maxHashSlotNum": "500",
    "maxIndexNum": "2000",
    "flushConsumerOffsetInterval": "500",
}
"""Settings with files so small that a kill often comes during a roll."""

Queues = dict[Queue, list[StoredMessage]]
"""The messages of each queue, in order."""


@final
class CrashRun:
    """One name server, one store, one history, and many starts of a broker. Owned by one event loop."""

    def __init__(
        self,
        directory: Path,
        cell: Cell,
        seed: int,
        *,
        pool_path: Path | None = None,
        producers: int = 4,
        sabotage: Sabotage = Sabotage.NONE,
        report_progress: Callable[[str], None],
    ) -> None:
        """Create the run. `pool_path` is a folder for write buffers that survive their process, if the cell has any."""
        self._directory = directory
        self._store = directory / "store"
        self._cell = cell
        self._seed = seed
        self._sabotage = sabotage
        self._report_progress = report_progress
        self._pool_path = pool_path
        self._rng = random.Random(f"{seed}/{cell}/checks")
        self._file = (directory / "history.jsonl").open("w")
        self._history = History(random.Random(f"{seed}/{cell}/run").randbytes(8), self._file)
        self._producers = [Producer(number, seed, self._history) for number in range(producers)]
        self.verdict = Verdict()
        settings = SETTINGS | cell.settings(pool_path, seed) | sabotage.settings
        self._broker_runs = BrokerRuns(directory, settings, self.verdict, without=sabotage.guard)
        self._recording = JobRecording(self._history, self._broker_runs.address)
        self._readback_faults: list[str] = []
        """What was found in the last readback, compared with the history and with what a consumer has read."""

        self._settled_end = -1
        """The physical offset of the last message that was stored when the history was settled last."""

        self._walked: Queues = {}
        """The messages in the log's files after the last start."""

    def __repr__(self) -> str:
        return f"<CrashRun {self._cell} seed={self._seed} rounds={self.verdict.rounds} {self._history}>"

    async def run(self, rounds: int) -> Verdict:
        """Run all rounds, or those up to the first fault. No process is left behind."""
        began_at = time.monotonic()
        plans = [plan(self._cell, self._seed, number) for number in range(rounds)]
        try:
            await self._broker_runs.begin(plans[0])
            await self._setup()
            for number, (chosen, following) in enumerate(zip(plans, [*plans[1:], None], strict=True)):
                await self._round(number, chosen, following)
                if self.verdict.faults:
                    break
            else:
                await self._last_stop()
            await asyncio.to_thread(self._ask_second_judge)
        except (ServerFailed, UnexpectedReply, RemotingError, PorcupineFailed) as error:
            self.verdict.faults.append(f"{type(error).__name__}: {error}")
        finally:
            await self._broker_runs.end()
            self._file.close()
        self.verdict.seconds = time.monotonic() - began_at
        return self.verdict

    async def _setup(self) -> None:
        channel = await Channel.connect(self._broker_runs.address)
        await create_topics(channel)
        await channel.close()

    # -- a round -------------------------------------------------------------------------------------------------------

    async def _round(self, number: int, chosen: Plan, following: Plan | None) -> None:
        """Run one round: load, end of the broker, check of the files, restarts, check through the broker."""
        before = self._history.acked_count
        consumer = LoadConsumer(self._walked)
        how = await self._load(chosen, consumer)
        self._recording.record_reads(consumer.reads)
        self._recording.record_end()
        self._count()
        in_files = self._in_files()
        self._judge("files after the kill", in_files, may_lose_tail=self._cell.may_lack_tail)
        self._keep_buffers()
        for name in chosen.removed.value:
            self._remove(self._store / name)
        if following is None:
            damage_log(self._store, self._sabotage)
        for crash_at in chosen.start_crashes:
            how += ", restart " + await self._broker_runs.crash_at_start(crash_at)
        for part in chosen.recovery_kills:
            await self._broker_runs.kill_while_recovering(part)
        await self._broker_runs.start(following)
        walked = await self._read_back()
        is_undisturbed = not chosen.start_crashes and not chosen.recovery_kills
        replayed = self._compare_restart(in_files, walked, may_count=is_undisturbed)
        self.verdict.consumed += sum(len(messages) for messages in consumer.consumed.values())
        missing = [f"SHOWN, and gone: {text}" for text in consumer.missing(walked)]
        self.verdict.faults += missing
        self._readback_faults += missing
        lost = self._settle(walked)
        self._walked = walked
        self.verdict.rounds += 1
        self._report_progress(
            f"round {number + 1}: {self._history.acked_count - before:,} acknowledged, {how}; {replayed:,} replayed, "
            f"{lost:,} lost, {self.verdict.stored:,} stored in {self.verdict.log_files} log files; "
            f"removed {chosen.removed.name.lower()}, killed {len(chosen.recovery_kills)} times while recovering"
            + (f"; {len(self.verdict.faults)} FAULTS" if self.verdict.faults else "")
        )

    async def _load(self, chosen: Plan, consumer: LoadConsumer) -> str:
        """Let all producers send until the broker has ended under the load. Return how it ended."""
        clients = [producer.run(self._broker_runs.address) for producer in self._producers]
        shows_too_early = self._sabotage is Sabotage.NO_HOLD and self._cell.may_lose_tail
        if chosen.has_consumer or shows_too_early:
            clients.append(consumer.run(self._broker_runs.address))
        before = self._history.acked_count
        work = asyncio.gather(*clients)
        await self._wait_for_acknowledgements(before + ACKED_MIN)
        if shows_too_early:
            # A kill at a random moment would often destroy nothing that was visible: the run would pass by chance.
            how = await self._broker_runs.kill_when(lambda: bool(consumer.missing(self._in_files())))
        else:
            how = await self._broker_runs.end_under_load(chosen)
        await work
        self._history.flush()
        return how

    async def _wait_for_acknowledgements(self, acked: int) -> None:
        """Wait until messages are acknowledged: a kill on a busy machine could come before anything can be lost."""
        with suppress(TimeoutError):
            async with asyncio.timeout(BEGIN_S_MAX):
                while self._history.acked_count < acked:  # noqa: ASYNC110
                    await asyncio.sleep(POLL_S)

    def _in_files(self) -> Queues:
        """Return the messages in the log's files, read without the broker."""
        return messages_by_queue(walk_log(self._store, is_sealed=True))

    def _keep_buffers(self) -> None:
        """Copy the write buffers after the kill, for the examination of a failed run."""
        if self._pool_path is not None:
            shutil.copytree(self._pool_path, self._directory / "buffers", dirs_exist_ok=True)

    def _remove(self, path: Path) -> None:
        self.verdict.removals += path.exists()
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)

    # -- judgement -----------------------------------------------------------------------------------------------------

    async def _read_back(self) -> Queues:
        """Read all queues through the broker and from its files: both must be equal, and agree with the history."""
        channel = await Channel.connect(self._broker_runs.address)
        connected_ns = time.monotonic_ns()
        pulled = await pull_everything(channel)
        self._recording.record_readback(pulled, connected_ns)
        stored = stored_marks(self._history.run, pulled)
        known = [sent for sent in self._history.sent.values() if _is_acked(sent) and sent.mark in stored]
        sample = self._rng.sample(known, min(KEYS_ASKED_PER_ROUND, len(known)))
        missing = await not_found_by_key(channel, sample)
        await channel.close()
        self.verdict.faults += [f"NOT FOUND BY KEY: {text}" for text in missing]
        self._readback_faults = self._judge("pulled", pulled, may_lose_tail=self._cell.may_lose_tail)
        walked = self._in_files()
        if pulled != walked:
            self._judge("files after the restart", walked, may_lose_tail=self._cell.may_lose_tail)
            self.verdict.faults.append(f"DIFFERENT: {_first_difference(pulled, walked)}")
        self.verdict.stored = len(stored)
        self.verdict.log_files = len(log_files(self._store))
        return walked

    def _judge(self, where: str, queues: Queues, *, may_lose_tail: bool) -> list[str]:
        """Check these queues against the history, and add what is wrong to the faults, with where it was found."""
        found = check(self._history, queues, may_lose_tail=may_lose_tail)
        faults = [f"{where}: {fault}" for fault in found]
        self.verdict.faults += faults
        return faults

    def _ask_second_judge(self) -> None:
        """Let Porcupine judge the history of the whole job, and add its findings to the faults."""
        judgement = self._recording.judge(
            self._directory / "judged.jsonl", self._readback_faults,
            may_lose_tail=self._cell.may_lose_tail, shows_acknowledged=self._cell.shows_acknowledged,
        )  # fmt: skip
        self.verdict.faults += [f"judges: {finding}" for finding in judgement.findings]
        if judgement.second is not None:
            self.verdict.second[judgement.second.verdict] += 1
        self._report_progress(str(judgement))

    def _compare_restart(self, in_files: Queues, walked: Queues, *, may_count: bool) -> int:
        """Check that a restart kept what the files held and added exactly the messages that it reports as replayed.

        Return how many of those were acknowledged. `may_count`: no other start between has replayed some of them.
        """
        for queue, messages in in_files.items():
            if walked.get(queue, [])[: len(messages)] != messages:
                self.verdict.faults.append(f"CUT: the restart has changed what the files held of {queue[0]}/{queue[1]}")
        before, after = stored_marks(self._history.run, in_files), stored_marks(self._history.run, walked)
        promised = [sent for sent in lost_messages(self._history, before) if sent.mark in after]
        self.verdict.replayed += len(promised)
        added = len(after) - len(before)
        if added and not self._cell.is_replayed:
            self.verdict.faults.append(f"ADDED: {added} messages that no file and no buffer held")
        if may_count:
            found = REPLAYED.search(self._broker_runs.log)
            reported = int(found[1]) if found else 0
            self.verdict.replayed_reported += reported
            if reported != added:
                self.verdict.faults.append(f"COUNT: the restart added {added} messages, and reports {reported}")
        return len(promised)

    def _settle(self, walked: Queues) -> int:
        """Settle the history with the stored messages. Return how many acknowledged messages are gone."""
        stored = stored_marks(self._history.run, walked)
        lost = lost_messages(self._history, stored)
        if lost and self._cell.may_lose_tail:
            self._check_window(lost)
        self.verdict.lost += len(lost)
        self._history.settle(stored)
        self._recording.record_settled()
        self._history.flush()
        self._settled_end = max((message.physical_offset for message in stored.values()), default=-1)
        return len(lost)

    def _check_window(self, lost: list[Sent]) -> None:
        """Check that lost messages were written since the last start, and acknowledged within the commit window."""
        first = min(lost, key=lambda sent: sent.physical_offset)
        if first.physical_offset <= self._settled_end:
            self.verdict.faults.append(f"WINDOW: {first} was stored after an earlier restart")
        window_s = (max(sent.answered_ns for sent in lost) - first.answered_ns) / 1e9
        if window_s > COMMIT_WINDOW_S:
            self.verdict.faults.append(f"WINDOW: messages of {window_s:.2f} s of acknowledgements are gone")

    def _count(self) -> None:
        self.verdict.sent = len(self._history.sent)
        self.verdict.acked = self._history.acked_count
        self.verdict.refused = self._history.count(Outcome.REFUSED)

    async def _last_stop(self) -> None:
        """Stop cleanly at the end, and check that the files alone hold everything."""
        await self._broker_runs.stop()
        self._judge("files after a clean stop", messages_by_queue(walk_log(self._store)), may_lose_tail=False)
        await self._broker_runs.start(None)
        await self._read_back()


def _is_acked(sent: Sent) -> bool:
    return sent.outcome is Outcome.ACKED


def _first_difference(pulled: Queues, walked: Queues) -> str:
    for queue in sorted(pulled.keys() | walked.keys()):
        ours, theirs = pulled.get(queue, []), walked.get(queue, [])
        if ours != theirs:
            first = next((at for at, pair in enumerate(zip(ours, theirs, strict=False)) if pair[0] != pair[1]), None)
            return f"{queue[0]}/{queue[1]}: {len(ours)} pulled, {len(theirs)} in the log, first other one at {first}"
    return "nothing"
