"""The scene of a fault test: one store, one broker process, producers that record all answers, and the final check.

    async with Scene(directory) as scene:
        await scene.start()
        async with scene.load(): await scene.wait_acked(200); ...a fault...
        await scene.broker.kill(); await scene.start(); lost = await scene.lost_messages()

`lost_messages` reads every queue through the broker and the log's files without it; both must hold the same, and agree
with the history of sends. What a mode may lose is not decided here: it returns the acknowledged messages that are lost,
and has already checked that they are a suffix of the log. It also makes this result final: a lost message may never
come back, and a stored one must stay, so that a second fault is checked as strictly as the first.
"""

import asyncio
import random
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import Final, final

from crash.checker import FaultKind, check
from crash.history import History, Outcome, Sent
from crash.log_walk import Queue, log_files, messages_by_queue, walk_log
from crash.payload import Mark, read_body
from crash.processes import HOST, ServerFailed, ServerProcess, broker
from crash.producer import Producer
from crash.readback import create_topics, pull_everything

from gantry_broker.store.checkpoint import decode_checkpoint
from gantry_remoting import Channel, RemotingError
from gantry_testing.ports import free_broker_port, free_port
from gantry_wire.message import StoredMessage

ALTERED_BROKER: Final = Path(__file__).resolve().parent / "altered_broker.py"
EVENT_TIMEOUT_S: Final = 180.0
POLL_S: Final = 0.002
SMALL_FILES: Final = {
    "mappedFileSizeCommitLog": str(1024 * 1024),
    "mappedFileSizeConsumeQueue": str(20 * 500),
    "maxMessageSize": str(256 * 1024),
    "maxHashSlotNum": "500",
    "maxIndexNum": "2000",
    "flushConsumerOffsetInterval": "500",
}
"""Files so small that a short load rolls them."""
PATIENT: Final = {"waitTimeMillsInSendQueue": "60000"}
"""A long queue timeout, so that a busy test machine does not make the broker answer "busy"."""
QUICK_FLUSH: Final = {"flushIntervalCommitLog": "20", "flushCommitLogLeastPages": "0"}
"""Asynchronous flushes during a short load."""
NO_FLUSH: Final = {"flushIntervalCommitLog": "3600000", "flushCommitLogThoroughInterval": "3600000"}
"""No asynchronous flush ever, so that data reaches the disk in other ways only."""

Queues = dict[Queue, list[StoredMessage]]


@final
class Scene:
    """A broker process on a store, with producers, for one test. Owned by one event loop."""

    def __init__(
        self,
        directory: Path,
        *,
        store: Path | None = None,
        settings: Mapping[str, str] | None = None,
        producers: int = 2,
        seed: int = 1,
    ) -> None:
        self.directory: Final = directory
        self.store: Final = store or directory / "store"
        self.history: Final = History(random.Random(f"{seed}/run").randbytes(8))
        self._producers = [Producer(number, seed, self.history) for number in range(producers)]
        self.port: Final = free_broker_port()
        self.address: Final = f"{HOST}:{self.port}"
        self._conf = SMALL_FILES | PATIENT | {"storePathRootDir": str(self.store)} | dict(settings or {})
        self.broker: ServerProcess = broker(directory, self.port, free_port(), self._conf)
        self._has_topics = False
        self.log_start = 0
        """The size of the broker's log file at its last start: what follows was logged since then."""

    def __repr__(self) -> str:
        return f"<Scene {self.store} {self.broker!r} {self.history!r}>"

    async def __aenter__(self) -> "Scene":
        return self

    async def __aexit__(self, *error: object) -> None:
        """Kill the broker of the scene."""
        await self.broker.kill()

    # -- the broker ------------------------------------------------------------------------------------------------

    def change_settings(self, **settings: str) -> None:
        """Change settings for the next start."""
        assert not self.broker.is_running
        self._conf |= settings
        self.broker = broker(self.directory, self.port, free_port(), self._conf)

    def set_broker_options(self, *options: str) -> None:
        """Set limits and missing guards of the next starts, as options of `altered_broker`; without options, none."""
        self.set_broker_program(*((str(ALTERED_BROKER), *options) if options else ()), "-m", "gantry_broker")

    def set_broker_program(self, *words: str) -> None:
        """Set the Python program of the next starts; the broker's arguments follow these words."""
        assert not self.broker.is_running
        arguments = [*words, "-c", str(self.directory / "broker.conf")]
        self.broker = ServerProcess("broker", arguments, "broker listening on", self.directory)

    def set_broker_command(self, command: Sequence[str]) -> None:
        """Set a command that starts the broker next, such as strace: it must become the broker or stay beside it."""
        assert not self.broker.is_running
        broker = [sys.executable, "-m", "gantry_broker", "-c", str(self.directory / "broker.conf")]
        become = "import os, sys; os.execvp(sys.argv[1], sys.argv[1:])"
        self.broker = ServerProcess("broker", ["-c", become, *command, *broker], "broker listening on", self.directory)

    async def launch(self) -> None:
        """Start the broker without waiting for it."""
        self.log_start = self.broker.log_bytes
        await self.broker.launch()

    async def start(self) -> None:
        """Start the broker and wait until it serves; the run's topics exist then."""
        await self.launch()
        await self.broker.wait_ready()
        if not self._has_topics:
            channel = await Channel.connect(self.address)
            await create_topics(channel)
            await channel.close()
            self._has_topics = True

    async def start_is_refused(self) -> str:
        """Start the broker, which must refuse: end by itself with code 1 and no traceback. Return its log."""
        await self.launch()
        code = await self.wait_ended()
        assert code == 1, f"exit code {code}, expected a refusal\n{self.log}"
        assert "Traceback" not in self.log, self.log
        return self.log

    async def wait_ended(self) -> int:
        """Wait until the broker has ended by itself, and return its exit code, negative for a signal."""
        process = self.broker._process
        assert process is not None
        async with asyncio.timeout(EVENT_TIMEOUT_S):
            return await process.wait()

    async def run_until_ended(self, work: Coroutine[object, object, None]) -> int:
        """Do `work` if the broker becomes ready, stop it if it has not ended by itself, and return its exit code."""
        with suppress(ServerFailed, RemotingError, OSError):
            await self.broker.wait_ready()
        if self.broker.is_running:
            with suppress(RemotingError, OSError):
                await work
        work.close()
        return await self.broker.stop()

    @property
    def log(self) -> str:
        """Return the log of the broker since its last start."""
        return self.broker.logged_since(self.log_start)

    # -- load ------------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def load(self) -> AsyncIterator[None]:
        """Let all producers send until the end of the block or of their connection, and record every answer."""
        work = [asyncio.ensure_future(producer.run(self.address)) for producer in self._producers]
        try:
            yield
        finally:
            for task in work:
                task.cancel()
            for result in await asyncio.gather(*work, return_exceptions=True):
                if isinstance(result, Exception) and not isinstance(result, RemotingError):
                    raise result

    async def wait_acked(self, count: int) -> None:
        """Wait until `count` more messages are acknowledged."""
        target = self.history.count(Outcome.ACKED) + count
        await self.wait_until(lambda: self.history.count(Outcome.ACKED) >= target, f"{count} acknowledgements")

    async def wait_answered(self, count: int) -> None:
        """Wait until `count` more sends are answered, with success or not."""
        target = self._answers + count
        await self.wait_until(lambda: self._answers >= target, f"{count} answers")

    @property
    def _answers(self) -> int:
        return self.history.count(Outcome.ACKED) + self.history.count(Outcome.REFUSED)

    async def wait_until_refused(self) -> None:
        """Wait until a send is answered with a new refusal."""
        before = self.history.count(Outcome.REFUSED)
        await self.wait_until(lambda: self.history.count(Outcome.REFUSED) > before, "refusal")

    async def wait_until_refused_or_ended(self) -> None:
        """Wait until a send is answered with a new refusal, or the broker has ended."""
        before = self.history.count(Outcome.REFUSED)
        async with asyncio.timeout(EVENT_TIMEOUT_S):
            while self.broker.is_running and self.history.count(Outcome.REFUSED) == before:  # noqa: ASYNC110
                await asyncio.sleep(POLL_S)

    async def wait_until(self, predicate: Callable[[], bool], what: str) -> None:
        """Wait for a condition, as long as the broker runs."""
        deadline = time.monotonic() + EVENT_TIMEOUT_S
        while not predicate():
            assert self.broker.is_running, f"the broker ended before {what}\n{self.log}"
            assert time.monotonic() < deadline, f"no {what} in {EVENT_TIMEOUT_S:.0f} s\n{self.log}"
            await asyncio.sleep(POLL_S)

    @property
    def has_ended(self) -> bool:
        """Return whether the broker process does not run, because it has ended or was not started."""
        return not self.broker.is_running

    @property
    def checkpoint_flushed(self) -> int:
        """Return the flushed offset that the checkpoint on the disk records; 0 without a checkpoint."""
        path = self.store / "checkpoint"
        return decode_checkpoint(path.read_bytes()).flushed if path.exists() else 0

    def log_digests(self) -> dict[str, str]:
        """Return a digest of each log file that has records; the next file is preallocated."""
        contents = {path.name: path.read_bytes() for path in log_files(self.store)}
        return {name: sha256(data).hexdigest() for name, data in contents.items() if data.strip(b"\0")}

    async def send_once(self, count: int) -> None:
        """Send some messages until they are acknowledged, then stop the load."""
        async with self.load():
            await self.wait_acked(count)

    # -- checks ----------------------------------------------------------------------------------------------------

    async def lost_messages(self) -> list[Sent]:
        """Return the acknowledged messages that are lost; anything else that is wrong fails the test here.

        The result is final: from now on what is stored must stay, and what is lost must not return.
        """
        channel = await Channel.connect(self.address)
        pulled = await pull_everything(channel)
        await channel.close()
        walked = messages_by_queue(walk_log(self.store))
        assert pulled == walked, "the queues and the log hold different messages"
        lost = self._lost(pulled)
        self._settle(pulled)
        return lost

    def lost_in_files(self) -> list[Sent]:
        """Return the acknowledged messages that the log's files lack, without a broker. The result is not final."""
        return self._lost(messages_by_queue(walk_log(self.store)))

    async def unserved_messages(self) -> list[Mark]:
        """Return the acknowledged messages that a broker with a damaged log does not serve.

        All others must be undamaged, and at the physical offsets of their replies.
        """
        channel = await Channel.connect(self.address)
        stored = self._stored(await pull_everything(channel))
        await channel.close()
        for mark, message in stored.items():
            sent = self.history.sent[mark]
            assert sent.physical_offset in (message.physical_offset, -1), f"{mark} is elsewhere"
        return [sent.mark for sent in self.history.sent.values() if _is_acked(sent) and sent.mark not in stored]

    def _lost(self, queues: Queues) -> list[Sent]:
        """Return the acknowledged messages that these queues lack; any other fault fails the test."""
        faults = check(self.history, queues)
        others = [str(fault) for fault in faults if fault.kind is not FaultKind.LOST]
        assert others == [], others[:10]
        stored = self._stored(queues)
        lost = [sent for sent in self.history.sent.values() if _is_acked(sent) and sent.mark not in stored]
        assert len(lost) == len(faults)
        if lost:
            first = min(sent.physical_offset for sent in lost)
            later = [message.physical_offset for message in stored.values() if message.physical_offset > first]
            assert later == [], f"lost at {first}, and {len(later)} messages after it are stored: no suffix"
        return lost

    def _stored(self, queues: Queues) -> dict[Mark, StoredMessage]:
        stored: dict[Mark, StoredMessage] = {}
        for messages in queues.values():
            for message in messages:
                mark = read_body(self.history.run, message.body)
                assert mark is not None
                stored[mark] = message
        return stored

    def _settle(self, queues: Queues) -> None:
        """Make all outcomes final: a message that is not stored counts as refused, so that it must not return."""
        stored = self._stored(queues)
        for mark, sent in self.history.sent.items():
            message = stored.get(mark)
            if message is None:
                sent.outcome = Outcome.REFUSED
            else:
                self.history.record_acked(mark, message.queue_offset, message.physical_offset)


def _is_acked(sent: Sent) -> bool:
    return sent.outcome is Outcome.ACKED


def lowest(lost: Sequence[Sent]) -> int:
    """Return the physical offset of the first lost message."""
    return min(sent.physical_offset for sent in lost)
