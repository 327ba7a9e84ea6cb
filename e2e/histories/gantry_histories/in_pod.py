"""A load and its judge as one program, for where clients must run: in a pod of the cluster, beside nobody's brokers.

    python -m gantry_histories.in_pod --name-server HOST:PORT --topic T --queues N     the topic is there already

It says on its output, and hears on its input, one JSON document a line:

    says   {"acknowledged": N}                when the first messages are acknowledged
    hears  {"mark": "NAME"}                   something is about to be done to the group
    says   {"marked": "NAME", "acknowledged": N}
    hears  {"report": MORE}                   wait for MORE further acknowledgements
    says   {"mark": "NAME", "seconds": S, "pause": P, "acknowledged": N}
    hears  {"finish": [[EPOCH, START], ...]}  stop, read everything, judge; where newer masters' reigns begin in the log
    says   {"sent": N, "acknowledged": N, "shown": N, "findings": [...], "failed": {"CODE": N},
            "lost": MESSAGES, "lost_bytes": N}

``seconds`` is how long after the mark the longest pause between two acknowledgements was over, ``pause`` how long that
pause was: what clients of the group have noticed. All times are of this process's clock.

With ``--loss suffix`` a new reign may take the end of the log before it, and ``lost_bytes`` is how much of that had
been acknowledged: from where the reign begins to the last message that is gone.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any, Final, NamedTuple, final

from gantry_histories.check import check
from gantry_histories.consumer import read_queue
from gantry_histories.door import Door
from gantry_histories.events import Answered, History, Journal, Outcome, Queue, Reign
from gantry_histories.final import EpochStart
from gantry_histories.final import Final as End
from gantry_histories.findings import Loss, Mode
from gantry_histories.load import Load
from gantry_remoting import RemotingError

FIRST: Final = 20
PATIENCE_S: Final = 120.0
ASK_AGAIN_S: Final = 0.05
FINDINGS_MAX: Final = 20
NANO: Final = 1e9


class Pause(NamedTuple):
    """The longest time without an acknowledgement."""

    seconds: float
    """From the mark to its end."""

    pause: float
    """Itself."""


def longest_pause(history: History, mark: int, now: int) -> Pause:
    """After a mark, until now; a pause that is not over ends now. It may have begun before the mark."""
    times = sorted(answer.at for answer in history.answered.values() if answer.outcome is Outcome.OK)
    before = [at for at in times if at <= mark]
    after = [at for at in times if at > mark] + [now]
    starts = [before[-1] if before else mark, *after[:-1]]
    start, end = max(zip(starts, after, strict=True), key=lambda pair: pair[1] - pair[0])
    return Pause((end - mark) / NANO, (end - start) / NANO)


def failures(history: History) -> dict[str, int]:
    """How many sends were answered with which code but 0; ``none`` for those that were not answered at all."""
    answers = [history.answered.get(key) for key in history.sent]
    bad: list[Answered | None] = [one for one in answers if one is None or one.outcome is not Outcome.OK]
    return dict(Counter("none" if one is None else str(one.code) for one in bad))


def reigns_of(history: History, end: End) -> list[Reign]:
    """When reigns began, as far as clients can know it: with the first acknowledgement that lies in the reign's log.

    All masters of a shard have one address, so all that was acknowledged later counts as the new master's.
    """
    places = {message.physical_offset for messages in end.queues.values() for message in messages}
    kept = [
        (answer.physical_offset, answer) for _, answer in history.acknowledged() if answer.physical_offset in places
    ]
    brokers = {answer.broker for answer in history.answered.values()} | {shown.broker for shown in history.shown}
    found = [Reign(epoch=0, broker=broker, at=0) for broker in sorted(brokers)]
    for epoch, start in sorted(end.epochs):
        first = min((answer.at for offset, answer in kept if offset >= start), default=None)
        if first is not None:
            found += [Reign(epoch=epoch, broker=broker, at=first) for broker in sorted(brokers)]
    return found


def lost_places(history: History, end: End) -> list[int]:
    """Where in the log the acknowledged messages were that are gone."""
    keys = {message.key for messages in end.queues.values() for message in messages}
    return sorted(answer.physical_offset for sent, answer in history.acknowledged() if sent.key not in keys)


def lost_bytes(lost: Sequence[int], epochs: Sequence[EpochStart]) -> int:
    """At least so many bytes of the log are gone: from where a newer reign begins to the last message that is gone."""
    start = min((start for _, start in epochs), default=0)
    return max(lost) - start + 1 if lost else 0


@final
class Script:
    """What is heard and said while the load runs."""

    def __init__(self, load: Load, door: Door, queues: Sequence[Queue], mode: Mode, out: IO[str]) -> None:
        self._load: Final = load
        self._door: Final = door
        self._queues: Final = queues
        self._mode: Final = mode
        self._out: Final = out
        self._mark: tuple[str, int] = ("", time.monotonic_ns())

    def __repr__(self) -> str:
        return f"<Script {self._load!r}>"

    async def run(self, lines: asyncio.StreamReader) -> None:
        """Until it is told to finish, or nobody is there any more."""
        await self._load.wait_acknowledged(FIRST, PATIENCE_S)
        self._say(acknowledged=self._load.acknowledged)
        while line := await lines.readline():
            match json.loads(line):
                case {"mark": str(name)}:
                    self._mark = name, time.monotonic_ns()
                    self._say(marked=name, acknowledged=self._load.acknowledged)
                case {"report": int(more)}:
                    await self._load.wait_acknowledged(more, PATIENCE_S)
                    await self._report()
                case {"finish": list(epochs)}:
                    await self._finish([EpochStart(epoch, start) for epoch, start in epochs])
                    return
                case other:
                    raise SystemExit(f"nobody knows what {other} means")

    async def _report(self) -> None:
        name, at = self._mark
        pause = longest_pause(self._load.journal.history, at, time.monotonic_ns())
        figures = {"seconds": round(pause.seconds, 2), "pause": round(pause.pause, 2)}
        self._say(mark=name, acknowledged=self._load.acknowledged, **figures)

    async def _finish(self, epochs: Sequence[EpochStart]) -> None:
        address = await self._master()
        await self._load.stop()
        standing = await self._load.finish(address)
        channel = await self._door.connect(address)
        stored = {queue: await read_queue(channel, queue) for queue in self._queues}
        await channel.close()
        history, end = self._load.journal.history, End(stored, epochs, committed=standing)
        for reign in reigns_of(history, end):
            history.add(reign)
        findings = [str(one) for one in check(history, end, self._mode)]
        lost = lost_places(history, end)
        self._say(
            sent=len(history.sent), acknowledged=self._load.acknowledged, shown=len(history.shown),
            findings=findings[:FINDINGS_MAX], failed=failures(history), lost=len(lost),
            lost_bytes=lost_bytes(lost, epochs),
        )  # fmt: skip

    async def _master(self) -> str:
        """Return the master's address; a new topic is registered at the name server a moment later."""
        try:
            async with asyncio.timeout(PATIENCE_S):
                while True:
                    address = await self._load.master()
                    if address is not None:
                        return address
                    await asyncio.sleep(ASK_AGAIN_S)
        except TimeoutError:
            raise SystemExit(f"the name server knows no master, asked for {PATIENCE_S:g} s") from None

    def _say(self, **document: Any) -> None:
        print(json.dumps(document), file=self._out, flush=True)


async def lines_of(file: IO[str]) -> asyncio.StreamReader:
    """What comes on a pipe."""
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), file)
    return reader


async def play(arguments: argparse.Namespace) -> None:
    """The whole run."""
    queues = [Queue(arguments.topic, number) for number in range(arguments.queues)]
    door = Door(arguments.tls_ca, arguments.account)
    load = Load(
        arguments.name_server, queues, Journal(), arguments.seed,
        producers=2, consumers=1, broker_name=arguments.broker_name, door=door,
    )  # fmt: skip
    script = Script(load, door, queues, Mode(loss=Loss(arguments.loss)), sys.stdout)
    async with load:
        await script.run(await lines_of(sys.stdin))


def main() -> None:
    """Run it; a failure is a line on standard error."""
    parser = argparse.ArgumentParser(prog="gantry_histories.in_pod")
    parser.add_argument("--name-server", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--queues", type=int, required=True)
    parser.add_argument("--broker-name", default="", help="of the shard that is meant, where there are several")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--tls-ca", type=Path, help="speak TLS with servers whose certificates this authority signed")
    parser.add_argument("--account", type=Path, help="a file with accessKey and secretKey")
    parser.add_argument("--loss", choices=[str(one) for one in Loss], default=str(Loss.NOTHING))
    try:
        asyncio.run(play(parser.parse_args()))
    except (TimeoutError, RemotingError) as error:
        raise SystemExit(f"{type(error).__name__}: {error}") from error


if __name__ == "__main__":
    main()
