"""An application that sends steadily with the ordinary client, its own retries included, and counts what it is told.

    python -m gantry_histories.steady --name-server HOST:PORT --topic T

It speaks and hears lines as `in_pod` does: ``{"acknowledged": N}`` after the first sends; ``{"finish": []}`` ends it,
and it says ``{"sent": N, "failures": N, "failed": ["..."], "pause": SECONDS}``. A send has failed when the application
is told so after all retries, and when it is told 10, 11 or 12: stored, but the promise does not hold.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import sys
import time
from typing import Final, final

from gantry_client import ClientError, Message, Producer
from gantry_histories.in_pod import FINDINGS_MAX, FIRST, PATIENCE_S, lines_of

SENDS_PER_S: Final = 50


@final
class Application:
    """Owned by one loop."""

    def __init__(self, producer: Producer, topic: str) -> None:
        self._producer: Final = producer
        self._topic: Final = topic
        self._number = 0
        self.times: Final[list[float]] = []
        self.failed: Final[list[str]] = []
        self.sent = 0
        self._more: Final = asyncio.Condition()

    async def acknowledged(self, count: int) -> None:
        """Wait until so many sends were."""
        async with self._more:
            await self._more.wait_for(lambda: len(self.times) >= count)

    async def run(self, stop: asyncio.Event) -> None:
        """Send until told to stop, each message when its time has come, whatever became of those before."""
        async with asyncio.TaskGroup() as sends:
            while not stop.is_set():
                sends.create_task(self._send(self._number))
                self._number += 1
                await asyncio.sleep(1 / SENDS_PER_S)

    async def _send(self, number: int) -> None:
        self.sent += 1
        try:
            receipt = await self._producer.send(Message(topic=self._topic, body=f"order {number}".encode()))
        except ClientError as error:
            self.failed.append(f"{type(error).__name__}: {error}")
            return
        if receipt.is_acknowledged:
            self.times.append(time.monotonic())
            async with self._more:
                self._more.notify_all()
        else:
            self.failed.append(f"{receipt.status.name} by {receipt.queue.broker_name}")

    @property
    def pause(self) -> float:
        """The longest time without an acknowledgement."""
        times = sorted(self.times)
        return max((after - before for before, after in itertools.pairwise(times)), default=0.0)


async def play(arguments: argparse.Namespace) -> None:
    """The whole run."""
    lines, stop = await lines_of(sys.stdin), asyncio.Event()
    async with Producer(arguments.name_server, "SteadyProducers") as producer:
        application = Application(producer, arguments.topic)
        running = asyncio.create_task(application.run(stop))
        async with asyncio.timeout(PATIENCE_S):
            await application.acknowledged(arguments.first)
        say(acknowledged=len(application.times))
        await lines.readline()
        stop.set()
        await running
    say(
        sent=application.sent, acknowledged=len(application.times), failures=len(application.failed),
        failed=application.failed[:FINDINGS_MAX], pause=round(application.pause, 2),
    )  # fmt: skip


def say(**document: object) -> None:
    """One line."""
    print(json.dumps(document), flush=True)


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(prog="gantry_histories.steady")
    parser.add_argument("--name-server", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--first", type=int, default=FIRST, help="acknowledgements before it says that it runs")
    asyncio.run(play(parser.parse_args()))


if __name__ == "__main__":
    main()
