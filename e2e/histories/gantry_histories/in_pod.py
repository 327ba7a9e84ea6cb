"""A load (`load`) and the checker (`check`) as one program, for a client's pod in the cluster.

    python -m gantry_histories.in_pod --name-server HOST:PORT --topic T --queues N     the topic must exist

It writes to its output, and reads from its input, one JSON document per line:

    writes  {"acknowledged": N}                when the first messages are acknowledged
    reads   {"mark": "NAME"}                  a fault is about to be injected
    writes  {"marked": "NAME", "acknowledged": N}
    reads   {"report": MORE}                  wait for MORE further acknowledgements
    writes  {"mark": "NAME", "seconds": S, "pause": P, "acknowledged": N}
    reads   {"finish": [[EPOCH, START], ...]}  stop, read everything, check; the starts of newer terms in the log
    writes  {"sent": N, "acknowledged": N, "shown": N, "findings": [...], "failed": {"CODE": N},
            "lost": MESSAGES, "lost_bytes": N, "recording": "..."}

``seconds`` is the time from the mark to the end of the longest pause between two acknowledgements, ``pause`` the length
of that pause, which is the interruption that clients saw. All times are of this process's clock.

``recording`` is the packed file of the run (`recording`), so that the test process can ask the second judge, whose
program the pod does not have.

With ``--loss suffix`` a new term may cut the end of the log before it, and ``lost_bytes`` is how much of that had
been acknowledged: from the start of the term to the last message that is lost.
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
from gantry_histories.connector import ClientConnector
from gantry_histories.consumer import UnexpectedReply, read_queue
from gantry_histories.events import Answered, History, Journal, Outcome, Queue, Term
from gantry_histories.final import EpochStart
from gantry_histories.final import Final as End
from gantry_histories.findings import Loss, Mode
from gantry_histories.load import Load
from gantry_histories.recording import Recording, pack_recording
from gantry_remoting import RemotingError

FIRST_ACKNOWLEDGEMENTS: Final = 20
"""The number of acknowledged messages after which the load counts as running."""

TIMEOUT_S: Final = 120.0
POLL_INTERVAL_S: Final = 0.05
FINDINGS_MAX: Final = 20
"""The most findings that are written."""

NANO: Final = 1e9


class Pause(NamedTuple):
    """The longest interval without an acknowledgement."""

    seconds: float
    """The time from the mark to the end of the pause."""

    pause: float
    """The length of the pause in seconds."""


def longest_pause(history: History, mark: int, now: int) -> Pause:
    """Return the longest pause between the mark and now.

    A pause that has not ended counts until now. It may have begun before the mark.
    """
    times = sorted(answer.at for answer in history.answered.values() if answer.outcome is Outcome.OK)
    before = [at for at in times if at <= mark]
    after = [at for at in times if at > mark] + [now]
    starts = [before[-1] if before else mark, *after[:-1]]
    start, end = max(zip(starts, after, strict=True), key=lambda pair: pair[1] - pair[0])
    return Pause((end - mark) / NANO, (end - start) / NANO)


def count_failures(history: History) -> dict[str, int]:
    """Count the failed sends by the code of their answer; ``none`` counts sends without an answer."""
    answers = [history.answered.get(key) for key in history.sent]
    bad: list[Answered | None] = [one for one in answers if one is None or one.outcome is not Outcome.OK]
    return dict(Counter("none" if one is None else str(one.code) for one in bad))


def terms_of(history: History, end: End) -> list[Term]:
    """Estimate when terms began: with the first acknowledgement of a message in the term's part of the log.

    All masters of a shard share one address, so every later acknowledgement counts for the new master.
    """
    places = {message.physical_offset for messages in end.queues.values() for message in messages}
    kept = [
        (answer.physical_offset, answer)
        for _, answer in history.acknowledged_sends()
        if answer.physical_offset in places
    ]
    brokers = {answer.broker for answer in history.answered.values()} | {shown.broker for shown in history.shown}
    found = [Term(epoch=0, broker=broker, at=0) for broker in sorted(brokers)]
    for epoch, start in sorted(end.epochs):
        first = min((answer.at for offset, answer in kept if offset >= start), default=None)
        if first is not None:
            found += [Term(epoch=epoch, broker=broker, at=first, is_estimated=True) for broker in sorted(brokers)]
    return found


def lost_places(history: History, end: End) -> list[int]:
    """Return the physical offsets of the acknowledged messages that are lost."""
    keys = {message.key for messages in end.queues.values() for message in messages}
    return sorted(answer.physical_offset for sent, answer in history.acknowledged_sends() if sent.key not in keys)


def lost_bytes(lost: Sequence[int], epochs: Sequence[EpochStart]) -> int:
    """Return a lower bound of the lost bytes: from the start of a newer term to the last lost message."""
    start = min((start for _, start in epochs), default=0)
    return max(lost) - start + 1 if lost else 0


@final
class LoadSession:
    """The dialogue with the test process while the load runs."""

    def __init__(
        self, load: Load, connector: ClientConnector, queues: Sequence[Queue], mode: Mode, out: IO[str]
    ) -> None:
        self._load: Final = load
        self._connector: Final = connector
        self._queues: Final = queues
        self._mode: Final = mode
        self._out: Final = out
        self._mark: tuple[str, int] = ("", time.monotonic_ns())

    def __repr__(self) -> str:
        return f"<LoadSession {self._load!r}>"

    async def run(self, lines: asyncio.StreamReader) -> None:
        """Serve requests until ``finish`` or the end of the input."""
        await self._load.wait_acknowledged(FIRST_ACKNOWLEDGEMENTS, TIMEOUT_S)
        self._send_document(acknowledged=self._load.acknowledged)
        while line := await lines.readline():
            match json.loads(line):
                case {"mark": str(name)}:
                    self._mark = name, time.monotonic_ns()
                    self._send_document(marked=name, acknowledged=self._load.acknowledged)
                case {"report": int(more)}:
                    await self._load.wait_acknowledged(more, TIMEOUT_S)
                    await self._report()
                case {"finish": list(epochs)}:
                    await self._finish([EpochStart(epoch, start) for epoch, start in epochs])
                    return
                case other:
                    raise SystemExit(f"unknown request {other}; expected mark, report or finish")

    async def _report(self) -> None:
        name, at = self._mark
        pause = longest_pause(self._load.journal.history, at, time.monotonic_ns())
        figures = {"seconds": round(pause.seconds, 2), "pause": round(pause.pause, 2)}
        self._send_document(mark=name, acknowledged=self._load.acknowledged, **figures)

    async def _finish(self, epochs: Sequence[EpochStart]) -> None:
        await self._load.stop()
        end = await self._read_all(epochs)
        history = self._load.journal.history
        for term in terms_of(history, end):
            history.add(term)
        findings = [str(one) for one in check(history, end, self._mode)]
        lost = lost_places(history, end)
        self._send_document(
            sent=len(history.sent), acknowledged=self._load.acknowledged, shown=len(history.shown),
            findings=findings[:FINDINGS_MAX], failed=count_failures(history), lost=len(lost),
            lost_bytes=lost_bytes(lost, epochs), recording=pack_recording(Recording(history, end, self._mode)),
        )  # fmt: skip

    async def _read_all(self, epochs: Sequence[EpochStart]) -> End:
        """Let the consumers read to the end, and read every queue, from one master.

        If that master ends meanwhile, everything is read again from the next one. The process of a deleted pod, for
        example, may still answer for a moment.
        """
        async with asyncio.timeout(TIMEOUT_S):
            while True:
                try:
                    return await self._read_all_from(await self._master(), epochs)
                except (RemotingError, UnexpectedReply) as error:
                    print(f"reading everything again: {error}", file=sys.stderr)
                    await asyncio.sleep(POLL_INTERVAL_S)

    async def _read_all_from(self, address: str, epochs: Sequence[EpochStart]) -> End:
        committed_offsets = await self._load.finish(address)
        channel = await self._connector.connect(address)
        try:
            stored = {queue: await read_queue(channel, queue) for queue in self._queues}
        finally:
            await channel.close()
        return End(stored, epochs, committed=committed_offsets)

    async def _master(self) -> str:
        """Return the master's address. A new topic appears at the name server with a short delay."""
        try:
            async with asyncio.timeout(TIMEOUT_S):
                while True:
                    address = await self._load.master()
                    if address is not None:
                        return address
                    await asyncio.sleep(POLL_INTERVAL_S)
        except TimeoutError:
            raise SystemExit(f"no master in the name server's route within {TIMEOUT_S:g} s") from None

    def _send_document(self, **document: Any) -> None:
        print(json.dumps(document), file=self._out, flush=True)


async def open_line_reader(file: IO[str]) -> asyncio.StreamReader:
    """Return a reader for the lines of a pipe."""
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), file)
    return reader


async def run_load(arguments: argparse.Namespace) -> None:
    """Run the load until it gets the request to finish, and print the result."""
    queues = [Queue(arguments.topic, number) for number in range(arguments.queues)]
    connector = ClientConnector(arguments.tls_ca, arguments.account)
    load = Load(
        arguments.name_server, queues, Journal(), arguments.seed,
        producers=2, consumers=1, broker_name=arguments.broker_name, connector=connector,
    )  # fmt: skip
    # All masters share one address, so it is not known which of them has acknowledged what a reply does not show.
    mode = Mode(loss=Loss(arguments.loss), shows_acknowledged=False)
    session = LoadSession(load, connector, queues, mode, sys.stdout)
    async with load:
        await session.run(await open_line_reader(sys.stdin))


def main() -> None:
    """Parse the arguments and run the load. A timeout or a failed connection is one line on standard error."""
    parser = argparse.ArgumentParser(prog="gantry_histories.in_pod")
    parser.add_argument("--name-server", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--queues", type=int, required=True)
    parser.add_argument("--broker-name", default="", help="the name of the shard; needed if the topic has several")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--tls-ca", type=Path, help="speak TLS with servers whose certificates this authority signed")
    parser.add_argument("--account", type=Path, help="a file with accessKey and secretKey")
    parser.add_argument("--loss", choices=[str(one) for one in Loss], default=str(Loss.NOTHING))
    try:
        asyncio.run(run_load(parser.parse_args()))
    except (TimeoutError, RemotingError) as error:
        raise SystemExit(f"{type(error).__name__}: {error}") from error


if __name__ == "__main__":
    main()
