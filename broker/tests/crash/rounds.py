"""A run of rounds: load, kill, look at the files, maybe spoil what is derived, restart, look through the broker.

    start -> producers send -> SIGKILL -> read the log's files -> [remove queues, index, ...] -> [start, SIGKILL] ...
      -> start -> pull every queue, ask for messages by key -> compare everything with the history

What is checked after a kill and before the restart separates what the kill took from what the recovery took. The plan
of every round follows from the seed; the moment of a kill inside the program's work does not, and cannot.
"""

import asyncio
import random
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Final, final

from crash.checker import Fault, check
from crash.history import History, Outcome
from crash.log_walk import Queue, log_files, messages_by_queue, walk_log
from crash.processes import HOST, broker, free_port, name_server
from crash.producer import Producer
from crash.readback import create_topics, not_found_by_key, pull_everything
from crash.sabotage import Sabotage, spoil_log

from gantry_remoting import Channel
from gantry_wire.message import StoredMessage

KEYS_ASKED_PER_ROUND: Final = 50
LOAD_S: Final = (0.1, 1.0)
RECOVERY_KILL: Final = (0.0, 1.0)
"""When a recovering broker is killed, as parts of the time that its last recovery took."""
RECOVERY_BEGINS, RECOVERY_ENDED = " starting ", "store recovered"
"""What the broker's log says before and after it."""
SETTINGS: Final = {
    "mappedFileSizeCommitLog": str(1024 * 1024),
    "mappedFileSizeConsumeQueue": str(20 * 500),
    "maxMessageSize": str(256 * 1024),
    "maxHashSlotNum": "500",
    "maxIndexNum": "2000",
    "flushConsumerOffsetInterval": "500",
}
"""Files so small that a kill often falls into a roll."""


class Derived(Enum):
    """What may be removed between a kill and a restart without losing a message."""

    NOTHING = ()
    QUEUES = ("consumequeue",)
    INDEX = ("index",)
    CHECKPOINT = ("checkpoint",)
    EVERYTHING = ("consumequeue", "index", "checkpoint")


@dataclass(frozen=True, slots=True)
class Plan:
    """What one round does."""

    load_s: float
    removed: Derived
    recovery_kills: tuple[float, ...]
    """When the recovering broker is killed again, each time, as parts of its last recovery."""


def plan(seed: int, number: int) -> Plan:
    """Round `number` of the run with this seed."""
    rng = random.Random(f"{seed}/round/{number}")
    removed = rng.choice((Derived.NOTHING, Derived.NOTHING, *Derived))
    kills = rng.choice((0, 0, 1, 1, 3))
    return Plan(rng.uniform(*LOAD_S), removed, tuple(rng.uniform(*RECOVERY_KILL) for _ in range(kills)))


@dataclass(slots=True)
class Verdict:
    """What a run found."""

    faults: list[str] = field(default_factory=list)
    rounds: int = 0
    sent: int = 0
    acked: int = 0
    refused: int = 0
    stored: int = 0
    log_files: int = 0
    recovery_kills: int = 0
    """Kills of a broker that had begun to open its store, or was about to."""
    recovery_hits: int = 0
    """Of these, kills before it had recovered."""
    removals: int = 0


@final
class CrashRun:
    """One name server, one store, one history, many lives of a broker. Owned by one event loop."""

    def __init__(self, directory: Path, seed: int, *, producers: int, say: Callable[[str], None]) -> None:
        self._directory = directory
        self._store = directory / "store"
        self._seed = seed
        self._say = say
        self._rng = random.Random(f"{seed}/checks")
        self._file = (directory / "history.jsonl").open("w")
        self._history = History(random.Random(f"{seed}/run").randbytes(8), self._file)
        self._producers = [Producer(number, seed, self._history) for number in range(producers)]
        name_server_port, port = free_port(), free_port()
        self._address = f"{HOST}:{port}"
        self._name_server = name_server(directory, name_server_port)
        self._broker = broker(directory, port, name_server_port, SETTINGS)
        self._recovery_s = 0.0
        self.verdict = Verdict()

    def __repr__(self) -> str:
        return f"<CrashRun seed={self._seed} rounds={self.verdict.rounds} {self._history}>"

    async def run(self, rounds: int, sabotage: Sabotage = Sabotage.NONE) -> Verdict:
        """All rounds, or those up to the first fault; no process is left behind."""
        try:
            await self._name_server.start()
            await self._start()
            await self._setup()
            for number in range(rounds):
                await self._round(number, sabotage if number == rounds - 1 else Sabotage.NONE)
                if self.verdict.faults:
                    break
            else:
                await self._last_stop()
        finally:
            await self._broker.kill()
            await self._name_server.kill()
            self._file.close()
        return self.verdict

    async def _setup(self) -> None:
        channel = await Channel.connect(self._address)
        await create_topics(channel)
        await channel.close()

    async def _round(self, number: int, sabotage: Sabotage) -> None:
        chosen = plan(self._seed, number)
        acked_before = self.verdict.acked
        await self._load(chosen.load_s)
        self._count()
        self._judge("files after the kill", messages_by_queue(walk_log(self._store)))
        for name in chosen.removed.value:
            self._remove(self._store / name)
        spoil_log(self._store, sabotage)
        for part in chosen.recovery_kills:
            await self._kill_while_recovering(part)
        await self._start()
        await self._read_back()
        self.verdict.rounds += 1
        self._say(
            f"round {number + 1}: {self.verdict.acked - acked_before:,} acknowledged in {chosen.load_s:.2f} s, "
            f"{self.verdict.stored:,} stored in {self.verdict.log_files} log files; "
            f"removed {chosen.removed.name.lower()}, killed {len(chosen.recovery_kills)} times while recovering; "
            + (f"{len(self.verdict.faults)} FAULTS" if self.verdict.faults else "nothing lost")
        )

    async def _start(self) -> None:
        """Start it, and measure how long it recovers."""
        log_start = await self._launch_until_recovery()
        began_at = time.monotonic()
        await self._broker.wait_logged(RECOVERY_ENDED, log_start)
        self._recovery_s = time.monotonic() - began_at
        await self._broker.wait_ready()

    async def _kill_while_recovering(self, part: float) -> None:
        """Start it, kill it after `part` of the time that its last recovery took, and see whether that hit."""
        log_start = await self._launch_until_recovery()
        await asyncio.sleep(part * self._recovery_s)
        await self._broker.kill()
        self.verdict.recovery_kills += 1
        self.verdict.recovery_hits += RECOVERY_ENDED not in self._broker.logged_since(log_start)

    async def _launch_until_recovery(self) -> int:
        """Start it up to the last line before it opens its store; where its log began."""
        log_start = self._broker.log_bytes
        await self._broker.launch()
        await self._broker.wait_logged(RECOVERY_BEGINS, log_start)
        return log_start

    async def _load(self, seconds: float) -> None:
        """All producers send; the broker dies in the middle of it; their connections end."""
        work = asyncio.gather(*(producer.run(self._address) for producer in self._producers))
        await asyncio.sleep(seconds)
        await self._broker.kill()
        await work
        self._history.flush()

    def _remove(self, path: Path) -> None:
        self.verdict.removals += path.exists()
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)

    async def _read_back(self) -> None:
        """Through the broker, and once more through its files: both must hold the same, and keep the history."""
        channel = await Channel.connect(self._address)
        pulled = await pull_everything(channel)
        acked = [sent for sent in self._history.sent.values() if sent.outcome is Outcome.ACKED]
        sample = self._rng.sample(acked, min(KEYS_ASKED_PER_ROUND, len(acked)))
        missing = await not_found_by_key(channel, sample)
        await channel.close()
        self.verdict.faults += [f"NOT FOUND BY KEY: {text}" for text in missing]
        self._judge("pulled", pulled)
        walked = messages_by_queue(walk_log(self._store))
        self._judge("files after the restart", walked)
        if pulled != walked:
            self.verdict.faults.append(f"DIFFERENT: {_first_difference(pulled, walked)}")
        self.verdict.stored = sum(len(messages) for messages in pulled.values())
        self.verdict.log_files = len(log_files(self._store))

    def _judge(self, where: str, queues: dict[Queue, list[StoredMessage]]) -> None:
        found: list[Fault] = check(self._history, queues)
        self.verdict.faults += [f"{where}: {fault}" for fault in found]

    def _count(self) -> None:
        self.verdict.sent = len(self._history.sent)
        self.verdict.acked = self._history.count(Outcome.ACKED)
        self.verdict.refused = self._history.count(Outcome.REFUSED)

    async def _last_stop(self) -> None:
        """A clean stop at the end must keep everything, too."""
        code = await self._broker.stop()
        if code != 0:
            self.verdict.faults.append(f"a clean stop ended with code {code}\n{self._broker.tail()}")
        await self._broker.start()
        await self._read_back()


def _first_difference(pulled: dict[Queue, list[StoredMessage]], walked: dict[Queue, list[StoredMessage]]) -> str:
    for queue in sorted(pulled.keys() | walked.keys()):
        ours, theirs = pulled.get(queue, []), walked.get(queue, [])
        if ours != theirs:
            same = next((at for at, pair in enumerate(zip(ours, theirs, strict=False)) if pair[0] != pair[1]), None)
            return f"{queue[0]}/{queue[1]}: {len(ours)} pulled, {len(theirs)} in the log, first other one at {same}"
    return "nothing"
