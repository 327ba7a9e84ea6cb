"""An application that sends steadily with the ordinary client, including its retries, and counts the outcomes.

    python -m gantry_histories.steady --name-server HOST:PORT --topic T

It writes and reads JSON lines like `in_pod`, but only these: it writes ``{"acknowledged": N}`` after the first sends;
``{"finish": []}``, or any other line, ends it, and it writes ``{"sent": N, "acknowledged": N, "failures": N,
"failed": ["..."], "pause": SECONDS}``. A send counts as failed if the client raises after all retries, and if it
returns code 10, 11 or 12: stored, but without the guaranteed durability.
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
from gantry_histories.in_pod import FINDINGS_MAX, FIRST_ACKNOWLEDGEMENTS, TIMEOUT_S, open_line_reader

SENDS_PER_S: Final = 50


@final
class SteadyApplication:
    """Sends messages at a fixed rate. Owned by one loop."""

    def __init__(self, producer: Producer, topic: str) -> None:
        self._producer: Final = producer
        self._topic: Final = topic
        self._number = 0
        self.times: Final[list[float]] = []
        """When each acknowledgement arrived, in seconds of the monotonic clock."""

        self.failed: Final[list[str]] = []
        """What went wrong with each failed send."""

        self.sent = 0
        self._acknowledgement: Final = asyncio.Condition()

    async def wait_acknowledged(self, count: int) -> None:
        """Wait until ``count`` sends are acknowledged."""
        async with self._acknowledgement:
            await self._acknowledgement.wait_for(lambda: len(self.times) >= count)

    async def run(self, stop: asyncio.Event) -> None:
        """Send at a fixed rate until ``stop`` is set, regardless of the outcome of earlier sends."""
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
            async with self._acknowledgement:
                self._acknowledgement.notify_all()
        else:
            self.failed.append(f"{receipt.status.name} by {receipt.queue.broker_name}")

    @property
    def pause(self) -> float:
        """The longest interval between two acknowledgements, in seconds."""
        times = sorted(self.times)
        return max((after - before for before, after in itertools.pairwise(times)), default=0.0)


async def run_application(arguments: argparse.Namespace) -> None:
    """Run the application until its input has the request to finish."""
    lines, stop = await open_line_reader(sys.stdin), asyncio.Event()
    async with Producer(arguments.name_server, "SteadyProducers") as producer:
        application = SteadyApplication(producer, arguments.topic)
        running = asyncio.create_task(application.run(stop))
        async with asyncio.timeout(TIMEOUT_S):
            await application.wait_acknowledged(arguments.first)
        print_document(acknowledged=len(application.times))
        await lines.readline()
        stop.set()
        await running
    print_document(
        sent=application.sent, acknowledged=len(application.times), failures=len(application.failed),
        failed=application.failed[:FINDINGS_MAX], pause=round(application.pause, 2),
    )  # fmt: skip


def print_document(**document: object) -> None:
    """Print a document as one JSON line."""
    print(json.dumps(document), flush=True)


def main() -> None:
    """Parse the arguments and run the application."""
    parser = argparse.ArgumentParser(prog="gantry_histories.steady")
    parser.add_argument("--name-server", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument(
        "--first", type=int, default=FIRST_ACKNOWLEDGEMENTS, help="acknowledgements before it reports that it runs"
    )
    asyncio.run(run_application(parser.parse_args()))


if __name__ == "__main__":
    main()
