"""`gantry produce`: messages from arguments or from standard input, many under way at once."""

import asyncio
import collections
import os
import sys
import threading
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Final, final

import click

from gantry_cli.account import client_settings
from gantry_cli.completing import complete_topic
from gantry_cli.errors import CliError, explain
from gantry_cli.examples import examples
from gantry_cli.messages.documents import ReceiptDocument
from gantry_cli.options import name_server_option, read_pairs, run
from gantry_cli.output import Form, output_option, record_text
from gantry_cli.progress import Tell, count_progress
from gantry_cli.text import count_text, rate_text
from gantry_client import ClientError, Codec, Message, Producer, ProducerSettings, SendReceipt

CHUNK_BYTES: Final = 64 * 1024
CHUNKS_AHEAD_MAX: Final = 4
LINE_BYTES_MAX: Final = 16 * 1024 * 1024


async def standard_input_lines(descriptor: int = 0) -> AsyncIterator[bytes]:
    """Every line, without its end. Raises ValueError for one longer than any message, OSError as reading does.

    A daemon thread reads the descriptor itself, without a lock of Python's, and hands over whole lines. The event loop
    never waits for it, and a finished program does not wait for a person to press Return. The thread stays at most a
    few chunks ahead.
    """
    loop = asyncio.get_running_loop()
    chunks: asyncio.Queue[bytes | OSError] = asyncio.Queue()
    room = threading.Semaphore(CHUNKS_AHEAD_MAX)

    def read() -> None:
        while True:
            room.acquire()
            try:
                chunk: bytes | OSError = os.read(descriptor, CHUNK_BYTES)
            except OSError as error:
                chunk = error
            if loop.is_closed():
                return
            loop.call_soon_threadsafe(chunks.put_nowait, chunk)
            if not chunk or isinstance(chunk, OSError):
                return

    threading.Thread(target=read, name="gantry-stdin", daemon=True).start()
    rest = b""
    while chunk := await chunks.get():
        if isinstance(chunk, OSError):
            raise chunk
        room.release()
        *lines, rest = (rest + chunk).split(b"\n")
        if len(rest) > LINE_BYTES_MAX:
            raise ValueError(f"a line of standard input passes {LINE_BYTES_MAX} bytes")
        for line in lines:
            yield line.removesuffix(b"\r")
    if rest:
        yield rest


OUTSTANDING_MAX: Final = 256
SHOWN_MAX: Final = 20
"""Receipts printed one by one; beyond it the sum is enough."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What all messages of one call have in common."""

    topic: str
    tag: str | None
    keys: tuple[str, ...]
    properties: dict[str, str]
    sharding_key: str | None
    delay_level: int

    def message(self, body: bytes) -> Message:
        return Message(
            self.topic,
            body,
            tags=self.tag,
            keys=self.keys,
            properties=dict(self.properties),
            sharding_key=self.sharding_key,
            delay_level=self.delay_level,
        )


@click.command(
    epilog=examples(
        ('gantry produce hello "first message"', "one message"),
        ("gantry produce hello one two three", "three messages"),
        ("cat orders.jsonl | gantry produce orders", "one message a line"),
        ("gantry produce orders '{\"id\":7}' --tag paid --key 7", "with a tag and a key"),
        ("gantry produce reminders call-back --delay-level 5", "delivered after a minute"),
        ("gantry produce load x --count 10000", "the same message many times"),
    )
)
@click.argument("topic", shell_complete=complete_topic)
@click.argument("bodies", nargs=-1, metavar="[BODY]...")
@name_server_option
@click.option("--tag", help="What subscriptions filter by.")
@click.option("--key", "keys", multiple=True, help="What the message can be found by; repeatable.")
@click.option("--property", "properties", multiple=True, metavar="NAME=VALUE", callback=read_pairs,
              help="A property; repeatable.")  # fmt: skip
@click.option("--sharding-key", help="Messages with equal sharding keys keep their order.")
@click.option("--delay-level", type=click.IntRange(0, 18), default=0,
              help="Deliver later: 1 = 1 s, 2 = 5 s, 3 = 10 s, 4 = 30 s, 5 = 1 min ... 18 = 2 h.")  # fmt: skip
@click.option(
    "--compress",
    "codec",
    type=click.Choice([one.value for one in Codec]),
    default=Codec.ZLIB.value,
    show_default=True,
    help="How bodies above 4 KiB travel; lz4 and zstd are read by clients from 4.9.4 on.",
)
@click.option("--count", type=click.IntRange(1), default=1, show_default=True, help="Send everything so many times.")
@output_option
def produce(
    topic: str, bodies: tuple[str, ...], name_server: str, tag: str | None, keys: tuple[str, ...],
    properties: dict[str, str], sharding_key: str | None, delay_level: int, codec: str, count: int, form: Form,
) -> None:  # fmt: skip
    """Send messages.

    Each BODY is one message to TOPIC; without any BODY each line of standard input is one. The exit code is 0 only
    when every message is acknowledged, which means: stored as safely as the broker's mode promises.
    """
    if not bodies and count > 1:
        raise click.UsageError("--count repeats BODY arguments; lines of standard input are sent once")
    shape = Shape(
        topic=topic,
        tag=tag,
        keys=keys,
        properties=properties,
        sharding_key=sharding_key,
        delay_level=delay_level,
    )
    if not bodies and sys.stdin.isatty():
        click.echo("one message a line; Ctrl-D ends", err=True)
    source = _repeated(bodies, count) if bodies else standard_input_lines()
    outcome = Outcome(form=form, total=len(bodies) * count or None)
    started = time.perf_counter()
    try:
        with count_progress("sending") as tell:
            outcome.tell = tell if not form.is_document else None
            run(
                _send_all(name_server, shape, source, outcome, ProducerSettings(compress_codec=Codec(codec))),
                name_server,
            )
    finally:
        outcome.finish(topic, time.perf_counter() - started)
    if outcome.unsafe:
        raise CliError(
            f"{count_text(outcome.unsafe)} messages are stored, but not as safely as the broker's mode promises "
            f"({', '.join(f'{status}: {number}' for status, number in outcome.statuses.items())})",
            "look at the broker's slaves and disks: gantry status",
        )


@final
@dataclass(slots=True)
class Outcome:
    """What became of the messages so far."""

    form: Form
    acknowledged: int = 0
    unsafe: int = 0
    statuses: collections.Counter[str] = field(default_factory=collections.Counter)
    total: int | None = None
    """How many there will be, if that is known."""
    tell: Tell | None = None
    """Who hears how far it is; nobody where each message is a line anyway."""

    def add(self, receipt: SendReceipt) -> None:
        if receipt.is_acknowledged:
            self.acknowledged += 1
        else:
            self.unsafe += 1
            self.statuses[receipt.status.name] += 1
        if self.form.is_document:
            click.echo(record_text(self.form, _document(receipt)))
        elif self.acknowledged + self.unsafe <= SHOWN_MAX:
            queue = receipt.queue
            place = f"{queue.broker_name} queue {queue.queue_id} offset {receipt.queue_offset}"
            click.echo(f"{receipt.status.name}  {receipt.message_id}  {place}")
        if self.tell is not None:
            self.tell(self.acknowledged + self.unsafe, self.total)

    def finish(self, topic: str, elapsed_s: float) -> None:
        total = self.acknowledged + self.unsafe
        if total > SHOWN_MAX and not self.form.is_document:
            rate = rate_text(total / elapsed_s if elapsed_s > 0 else 0.0)
            click.echo(f"{count_text(self.acknowledged)} messages acknowledged by {topic} ({rate}/s)")


async def _send_all(
    name_server: str, shape: Shape, bodies: AsyncIterator[bytes], outcome: Outcome, settings: ProducerSettings
) -> None:
    """Send in order, at most OUTSTANDING_MAX under way. Stops at the first failure. Raises CliError."""
    under_way: asyncio.Queue[asyncio.Task[SendReceipt] | None] = asyncio.Queue(OUTSTANDING_MAX)

    async def collect() -> None:
        while (task := await under_way.get()) is not None:
            outcome.add(await task)

    async with Producer(name_server, settings=settings, client_settings=client_settings()) as producer:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(collect(), name="collect receipts")
                async for body in bodies:
                    await under_way.put(asyncio.create_task(producer.send(shape.message(body))))
                await under_way.put(None)
        except* ClientError as errors:
            await _collect_rest(under_way, outcome)
            raise _stopped(errors.exceptions[0], outcome, name_server) from errors


async def _collect_rest(under_way: asyncio.Queue[asyncio.Task[SendReceipt] | None], outcome: Outcome) -> None:
    """After a failure, what was under way may still have been stored, and counts."""
    tasks: list[asyncio.Task[SendReceipt]] = []
    while not under_way.empty():
        task = under_way.get_nowait()
        if task is not None:
            tasks.append(task)
    for result in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(result, SendReceipt):
            outcome.add(result)


def _stopped(error: BaseException, outcome: Outcome, name_server: str) -> CliError:
    assert isinstance(error, ClientError), "only these are caught"
    failure = explain(error, name_server)
    if not outcome.acknowledged:
        return failure
    return type(failure)(f"after {count_text(outcome.acknowledged)} acknowledged messages: {failure.message}")


async def _repeated(bodies: Sequence[str], count: int) -> AsyncIterator[bytes]:
    for _ in range(count):
        for body in bodies:
            yield body.encode()


def _document(receipt: SendReceipt) -> ReceiptDocument:
    return ReceiptDocument(
        status=receipt.status.name,
        message_id=receipt.message_id,
        offset_message_id=receipt.offset_message_id,
        topic=receipt.queue.topic,
        broker=receipt.queue.broker_name,
        queue_id=receipt.queue.queue_id,
        queue_offset=receipt.queue_offset,
    )
