"""A producer that records which of its messages were acknowledged; a program that runs beside the archive job.

    python -m exactly_once.load --name-server A --topic T --acknowledged FILE

It reads totals from standard input, one a line, and answers each with a line when so many sends were acknowledged.
Every body is unique, and each is sent once: an unanswered message is not sent again, so that it is in the log at most
once, and another number takes its place. The file has the numbers of acknowledged messages; it is synced before they
are reported."""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import itertools
import os
import sys
from pathlib import Path
from typing import BinaryIO, Final, final

from gantry_client import ClientError, ClientSettings, Message, Producer, ProducerSettings

BATCH: Final = 200
SENDERS: Final = 4
PAUSE_S: Final = 0.2
"""The pause after a failed send."""


def body_of(number: int) -> bytes:
    """Return the body of a message: unique for each number, with different sizes."""
    seed = hashlib.blake2b(number.to_bytes(8, "big"), digest_size=32).hexdigest()
    return f"{number:010d} {seed * (1 + number % 3)}".encode()


def number_of(body: bytes) -> int:
    """Return the number of a message from its body. Raises ValueError for an altered body."""
    number = int(body[:10])
    if body != body_of(number):
        raise ValueError(f"body {body[:40]!r} is not that of message {number}")
    return number


@final
class Load:
    """Sends messages and counts acknowledgements. Used by one event loop."""

    def __init__(self, producer: Producer, topic: str, file: BinaryIO) -> None:
        self._producer: Final = producer
        self._topic: Final = topic
        self._file: Final = file
        self._numbers: Final = itertools.count()
        self.acknowledged = 0

    async def send_until(self, total: int) -> None:
        """Send until `total` messages are acknowledged, and the file is synced."""
        await asyncio.gather(*(self._send(total) for _ in range(SENDERS)))
        self._file.flush()
        os.fsync(self._file.fileno())

    async def _send(self, total: int) -> None:
        while self.acknowledged < total:
            mine = list(itertools.islice(self._numbers, BATCH))
            messages = [
                Message(self._topic, body_of(number), keys=(f"k{number}",), tags=f"t{number % 5}") for number in mine
            ]
            try:
                receipts = await self._producer.send_batch(messages)
            except ClientError:
                await asyncio.sleep(PAUSE_S)
                continue
            known = [number for number, one in zip(mine, receipts, strict=True) if one.is_acknowledged]
            self._file.write(b"".join(b"%d\n" % number for number in known))
            self.acknowledged += len(known)


async def serve_requests(name_server: str, topic: str, path: Path) -> None:
    """Read totals from standard input, one a line, and answer when each is acknowledged, until the end of input."""
    settings = ProducerSettings(retries=0, send_timeout_ms=10_000)
    client = ClientSettings(route_poll_interval_ms=500)
    loop = asyncio.get_running_loop()
    with path.open("ab") as file:
        async with Producer(name_server, "ExactlyOnce", settings=settings, client_settings=client) as producer:
            load = Load(producer, topic, file)
            while line := await loop.run_in_executor(None, sys.stdin.readline):
                await load.send_until(int(line))
                print(load.acknowledged, flush=True)


def main() -> None:
    """Parse the arguments and run the producer."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--name-server", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--acknowledged", type=Path, required=True)
    given = parser.parse_args()
    asyncio.run(serve_requests(given.name_server, given.topic, given.acknowledged))


if __name__ == "__main__":
    main()
