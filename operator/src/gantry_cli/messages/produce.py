"""The command `gantry produce`: send messages from arguments or from standard input, with concurrent requests."""

import asyncio
import collections
import os
import sys
import threading
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, final

import click

from gantry_cli.account import client_settings
from gantry_cli.completers import complete_topic
from gantry_cli.errors import CliError, error_for_client
from gantry_cli.examples import examples
from gantry_cli.messages.documents import ReceiptDocument
from gantry_cli.options import name_server_option, read_pairs, run
from gantry_cli.output import OutputFormat, output_option, record_text
from gantry_cli.progress import ReportProgress, count_progress
from gantry_cli.text import count_text, plural, rate_text
from gantry_client import ClientError, Codec, Message, Producer, ProducerSettings, SendReceipt
from gantry_spec.manifest.quantities import parse_duration

CHUNK_BYTES: Final = 64 * 1024
CHUNKS_AHEAD_MAX: Final = 4
"""How many chunks of standard input are read ahead of the sends."""

LINE_BYTES_MAX: Final = 16 * 1024 * 1024
"""The longest line of standard input."""


async def standard_input_lines(descriptor: int = 0) -> AsyncIterator[bytes]:
    """Yield every line without its line end. Raises ValueError for a line that is too long, and OSError.

    A daemon thread reads the descriptor directly, without the locks of `sys.stdin`, at most CHUNKS_AHEAD_MAX ahead. The
    event loop never blocks on it, and the process can exit while the thread waits for input.
    """
    loop = asyncio.get_running_loop()
    chunks: asyncio.Queue[bytes | OSError] = asyncio.Queue()
    free_chunks = threading.Semaphore(CHUNKS_AHEAD_MAX)

    def read() -> None:
        while True:
            free_chunks.acquire()
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
        free_chunks.release()
        *lines, rest = (rest + chunk).split(b"\n")
        if len(rest) > LINE_BYTES_MAX:
            raise ValueError(f"a line of standard input is longer than {LINE_BYTES_MAX} bytes")
        for line in lines:
            yield line.removesuffix(b"\r")
    if rest:
        yield rest


OUTSTANDING_MAX: Final = 256
"""The most sends without an answer at a time."""

RECEIPTS_SHOWN_MAX: Final = 20
"""The number of receipts that are printed; further messages are only counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageTemplate:
    """The properties that all messages of one call share."""

    topic: str
    tag: str | None
    keys: tuple[str, ...]
    properties: dict[str, str]
    sharding_key: str | None
    delay_level: int
    delay_ms: int = 0
    deliver_at_ms: int = 0

    def make_message(self, body: bytes) -> Message:
        """Return a message with this body."""
        return Message(
            self.topic,
            body,
            tags=self.tag,
            keys=self.keys,
            properties=dict(self.properties),
            sharding_key=self.sharding_key,
            delay_level=self.delay_level,
            delay_ms=self.delay_ms,
            deliver_at_ms=self.deliver_at_ms,
        )


def read_delay(_context: click.Context, _parameter: click.Parameter, value: str | None) -> int:
    """Return a delay in milliseconds; 0 for none."""
    try:
        return 0 if value is None else int(parse_duration(value))
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


def read_time(_context: click.Context, _parameter: click.Parameter, value: str | None) -> int:
    """Return a time in milliseconds since 1970; 0 for none."""
    try:
        return 0 if value is None else int(datetime.fromisoformat(value).timestamp() * 1000)
    except ValueError as error:
        raise click.BadParameter(f"{value!r} is no time: expected one such as 2030-01-31T08:00+01:00") from error


@click.command(
    epilog=examples(
        ('gantry produce hello "first message"', "send one message"),
        ("gantry produce hello one two three", "send three messages"),
        ("cat orders.jsonl | gantry produce orders", "send each line as a message"),
        ("gantry produce orders '{\"id\":7}' --tag paid --key 7", "set a tag and a key"),
        ("gantry produce reminders call-back --delay-level 5", "deliver after a minute"),
        ("gantry produce reminders call-back --delay 90m", "deliver after 90 minutes"),
        ("gantry produce load x --count 10000", "send the same message many times"),
    )
)
@click.argument("topic", shell_complete=complete_topic)
@click.argument("bodies", nargs=-1, metavar="[BODY]...")
@name_server_option
@click.option("--tag", help="Tag of the messages; consumers can subscribe to tags.")
@click.option("--key", "keys", multiple=True, help="Key, by which the messages can be queried; repeatable.")
@click.option("--property", "properties", multiple=True, metavar="NAME=VALUE", callback=read_pairs,
              help="User property of the messages; repeatable.")  # fmt: skip
@click.option(
    "--sharding-key",
    help="Sharding key; messages with the same key go to the same queue and keep their order, while the topic's write "
    "queues stay the same.",
)
@click.option("--delay-level", type=click.IntRange(0, 18), default=0,
              help="Delay level: 1 = 1 s, 2 = 5 s, 3 = 10 s, 4 = 30 s, 5 = 1 min ... 18 = 2 h.")  # fmt: skip
@click.option("--delay", "delay_ms", metavar="DURATION", callback=read_delay,
              help="Deliver the messages after this time, such as 90m or 36h.")  # fmt: skip
@click.option("--deliver-at", "deliver_at_ms", metavar="TIME", callback=read_time,
              help="Deliver the messages at this time, such as 2030-01-31T08:00+01:00; without an offset it is local "
              "time.")  # fmt: skip
@click.option(
    "--compress",
    "codec",
    type=click.Choice([one.value for one in Codec]),
    default=Codec.ZLIB.value,
    show_default=True,
    help="Compression of bodies above 4 KiB; lz4 and zstd require clients from 4.9.4 on.",
)
@click.option(
    "--count", type=click.IntRange(1), default=1, show_default=True, help="Send all bodies this number of times."
)
@output_option
def produce(
    topic: str, bodies: tuple[str, ...], name_server: str, tag: str | None, keys: tuple[str, ...],
    properties: dict[str, str], sharding_key: str | None, delay_level: int, delay_ms: int, deliver_at_ms: int,
    codec: str, count: int, form: OutputFormat,
) -> None:  # fmt: skip
    """Send messages.

    Sends each BODY as a message to TOPIC; without any BODY, each line of standard input. The exit code is 0 only if
    every message is acknowledged, that is, stored as durably as the flush and replication mode of the broker
    guarantees.
    """
    if sum(map(bool, (delay_level, delay_ms, deliver_at_ms))) > 1:
        raise click.UsageError("--delay-level, --delay and --deliver-at exclude each other")
    if not bodies and count > 1:
        raise click.UsageError("--count requires BODY arguments; lines of standard input are sent once")
    template = MessageTemplate(
        topic=topic,
        tag=tag,
        keys=keys,
        properties=properties,
        sharding_key=sharding_key,
        delay_level=delay_level,
        delay_ms=delay_ms,
        deliver_at_ms=deliver_at_ms,
    )
    if not bodies and sys.stdin.isatty():
        click.echo("Reading messages from standard input, one per line; end with Ctrl-D", err=True)
    source = _repeat_bodies(bodies, count) if bodies else standard_input_lines()
    summary = SendSummary(form=form, total=len(bodies) * count or None)
    started = time.perf_counter()
    try:
        with count_progress("sending") as report_progress:
            summary.report_progress = report_progress if not form.is_document else None
            run(
                _send_all(name_server, template, source, summary, ProducerSettings(compress_codec=Codec(codec))),
                name_server,
            )
    finally:
        summary.print_total(topic, time.perf_counter() - started)
    if summary.not_durable:
        raise CliError(
            f"{plural(summary.not_durable, 'message')} stored, but not as durably as the broker's mode guarantees "
            f"({', '.join(f'{status}: {number}' for status, number in summary.statuses.items())})",
            "check the broker's slaves and disks: gantry status",
        )


@final
@dataclass(slots=True)
class SendSummary:
    """Prints receipts, and counts the messages that were acknowledged so far."""

    form: OutputFormat
    acknowledged: int = 0
    not_durable: int = 0
    """Messages that are stored but were not flushed or replicated in time."""
    statuses: collections.Counter[str] = field(default_factory=collections.Counter)
    total: int | None = None
    """The total number of messages, or None if it is not known."""
    report_progress: ReportProgress | None = None
    """Updates the progress bar; None if each receipt is printed."""

    def add(self, receipt: SendReceipt) -> None:
        """Count a receipt, and print it: each one as a document, but only the first ones as text."""
        if receipt.is_acknowledged:
            self.acknowledged += 1
        else:
            self.not_durable += 1
            self.statuses[receipt.status.name] += 1
        if self.form.is_document:
            click.echo(record_text(self.form, _document(receipt)))
        elif self.acknowledged + self.not_durable <= RECEIPTS_SHOWN_MAX:
            queue = receipt.queue
            place = f"{queue.broker_name} queue {queue.queue_id} offset {receipt.queue_offset}"
            click.echo(f"{receipt.status.name}  {receipt.message_id}  {place}")
        if self.report_progress is not None:
            self.report_progress(self.acknowledged + self.not_durable, self.total)

    def print_total(self, topic: str, elapsed_s: float) -> None:
        """Print the number of acknowledged messages, if not every receipt was printed."""
        total = self.acknowledged + self.not_durable
        if total > RECEIPTS_SHOWN_MAX and not self.form.is_document:
            rate = rate_text(total / elapsed_s if elapsed_s > 0 else 0.0)
            click.echo(f'Topic "{topic}": {count_text(self.acknowledged)} messages acknowledged ({rate}/s)')


async def _send_all(
    name_server: str,
    template: MessageTemplate,
    bodies: AsyncIterator[bytes],
    summary: SendSummary,
    settings: ProducerSettings,
) -> None:
    """Send in order, about OUTSTANDING_MAX concurrently at most. Stops at the first failure. Raises CliError."""
    in_flight: asyncio.Queue[asyncio.Task[SendReceipt] | None] = asyncio.Queue(OUTSTANDING_MAX)

    async def collect() -> None:
        while (task := await in_flight.get()) is not None:
            summary.add(await task)

    async with Producer(name_server, settings=settings, client_settings=client_settings()) as producer:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(collect(), name="collect receipts")
                is_ready = template.sharding_key is None
                async for body in bodies:
                    task = asyncio.create_task(producer.send(template.make_message(body)))
                    await in_flight.put(task)
                    if not is_ready:
                        # Later messages could overtake those that wait for the route or the first connection.
                        await asyncio.wait([task])
                        is_ready = True
                await in_flight.put(None)
        except* (ClientError, OSError, ValueError) as errors:  # the latter two from the bodies
            await _collect_remaining(in_flight, summary)
            raise _partial_failure(errors.exceptions[0], summary, name_server) from errors


async def _collect_remaining(in_flight: asyncio.Queue[asyncio.Task[SendReceipt] | None], summary: SendSummary) -> None:
    """Count the messages that were in flight when a send failed and are stored nevertheless."""
    tasks: list[asyncio.Task[SendReceipt]] = []
    while not in_flight.empty():
        task = in_flight.get_nowait()
        if task is not None:
            tasks.append(task)
    for result in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(result, SendReceipt):
            summary.add(result)


def _partial_failure(error: BaseException, summary: SendSummary, name_server: str) -> CliError:
    failure = error_for_client(error, name_server) if isinstance(error, ClientError) else CliError(str(error))
    if not summary.acknowledged:
        return failure
    return type(failure)(f"after {count_text(summary.acknowledged)} acknowledged messages: {failure.message}")


async def _repeat_bodies(bodies: Sequence[str], count: int) -> AsyncIterator[bytes]:
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
        recall_handle=receipt.recall_handle,
    )
