"""The cost of a send in each tier of the send path: `python bench/send_tiers.py`.

One process, one store, no sockets: the bytes of many frames are passed to the send path as from a busy socket, 192
messages at a time, and appended; every kind runs in each round, and the figures are medians over the rounds. So the
ratios are valid also on a busy machine. The goal: the second tier costs at most twice as much as the first.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import tempfile
import time
from typing import Any, Final

import click

from gantry_broker.app import Broker
from gantry_testing.local import dialogue, properties_text, running_broker, send_ext
from gantry_wire import RequestCode
from gantry_wire.batch import BatchEntry, encode_batch
from gantry_wire.frame import encode_frame
from gantry_wire.header import Header, encode_binary_header

PASS_MESSAGES: Final = 192
KINDS: Final[dict[str, tuple[int, str, str]]] = {
    "first tier: code 310, JSON, Java's order": (310, "json", "UNIQ_KEY TAGS WAIT"),
    "second tier: code 310, JSON, keys, id after them": (310, "json", "colour KEYS UNIQ_KEY WAIT TAGS"),
    "second tier: code 310, JSON, short id": (310, "json", "SHORT TAGS WAIT"),
    "second tier: code 310, JSON, no properties": (310, "json", ""),
    "second tier: code 10, JSON (Go)": (10, "json", "TAGS UNIQ_KEY KEYS"),
    "second tier: code 310, binary (Java)": (310, "binary", "UNIQ_KEY TAGS WAIT"),
    "second tier: code 10, binary": (10, "binary", "UNIQ_KEY TAGS WAIT"),
    "batches of 16: code 320, JSON (Java)": (320, "json", "UNIQ_KEY WAIT TAGS"),
    "slow path: code 310, JSON, keys": (310, "json", "colour KEYS UNIQ_KEY WAIT TAGS"),
}
SECOND: Final = "second tier"
SLOW: Final = "slow path"
BATCH_MESSAGES: Final = 16
"""The number of messages in a request of code 320, whose cost is divided by it."""
FIRST: Final = next(iter(KINDS))


def build_properties(names: str, number: int) -> str:
    """Return the properties of one message."""
    values = {
        "UNIQ_KEY": f"7F00000100002A139A55{number:012X}",
        "SHORT": f"{number:024x}",
        "KEYS": f"order-{number} customer-{number % 100}",
        "TAGS": f"tag{number % 8}",
        "WAIT": "true",
        "colour": "green",
    }
    return properties_text(**{"UNIQ_KEY" if name == "SHORT" else name: values[name] for name in names.split()})


def build_frame(code: int, form: str, names: str, number: int, body: bytes) -> bytes:
    """Return the frame of one send, or of a batch of sends."""
    text = build_properties(names, number)
    if code == RequestCode.SEND_BATCH_MESSAGE:
        text = build_properties("UNIQ_KEY WAIT", number)
        entries = (build_properties(names, number + n).encode() for n in range(BATCH_MESSAGES))
        body = encode_batch(BatchEntry(0, body, properties) for properties in entries)
    extra = {"reconsumeTimes": "0", "unitMode": "false", "batch": "false"}
    ext = send_ext(code, properties=text, **extra)
    if form == "binary":
        header = Header(code=code, opaque=number, language="JAVA", version=479, ext=ext)
        return encode_frame(encode_binary_header(header), body, 1)
    document = {"code": code, "extFields": ext, "flag": 0, "language": "JAVA", "opaque": number, "version": 479}
    return encode_frame(json.dumps(document, separators=(",", ":")).encode(), body)


class Peer:
    """A connection that discards replies."""

    peer = ("127.0.0.1", 40_000)
    account = None
    is_backlogged = False
    is_authenticated = True

    def send(self, data: bytes) -> None:
        """Accept the replies of a pass, which arrive in one write."""


async def measure(rounds: int, passes: int, body_bytes: int) -> dict[str, float]:
    """Return microseconds per message, by kind."""
    body = b"x" * body_bytes
    with tempfile.TemporaryDirectory() as folder:
        segment, queue_file = str(64 << 20), "6000000"
        async with (
            running_broker(folder, mappedFileSizeCommitLog=segment, mappedFileSizeConsumeQueue=queue_file) as broker,
            dialogue(broker) as client,
        ):
            await client.send_ok(queueId="3")
            took: dict[str, list[float]] = {kind: [] for kind in KINDS}
            number = 0
            for _ in range(rounds):
                for kind, (code, form, names) in KINDS.items():
                    data = []
                    step = BATCH_MESSAGES if code == RequestCode.SEND_BATCH_MESSAGE else 1
                    for _ in range(passes):
                        numbers = range(number, number + PASS_MESSAGES, step)
                        data.append(b"".join(build_frame(code, form, names, one, body) for one in numbers))
                        number += PASS_MESSAGES
                    took[kind].append(run(broker, data, is_slow=kind.startswith(SLOW)))
                    await asyncio.sleep(0)
    return {kind: statistics.median(times) for kind, times in took.items()}


def run(broker: Broker, data: list[bytes], *, is_slow: bool) -> float:
    """Handle and append every pass; return microseconds per message."""
    path, peer = broker.send_path, Peer()
    other: Any = broker.listeners.services[0]._handle_frame
    prefix = path._prefix
    if is_slow:
        path._prefix = b"\0"  # type: ignore[misc]
    try:
        began = time.process_time_ns()
        for one in data:
            path.handle(one, peer, other)  # type: ignore[arg-type]
            path.flush()
        elapsed_ns = time.process_time_ns() - began
    finally:
        path._prefix = prefix  # type: ignore[misc]
    return elapsed_ns / 1_000 / len(data) / PASS_MESSAGES


@click.command()
@click.option(
    "--rounds", default=15, show_default=True, help="Number of rounds, in each of which every kind runs once."
)
@click.option("--passes", default=10, show_default=True, help="Number of passes of 192 messages in a round.")
@click.option("--body-bytes", default=128, show_default=True)
@click.option("--assert-goals", is_flag=True, help="Exit with 1 when the second tier costs more than twice the first.")
def main(rounds: int, passes: int, body_bytes: int, *, assert_goals: bool) -> None:
    """Print the cost of a send in each tier."""
    costs = asyncio.run(measure(rounds, passes, body_bytes))
    first = costs[FIRST]
    for kind, cost_us in costs.items():
        click.echo(f"{kind:<48}{cost_us:8.1f} us{cost_us / first:8.2f} x")
    worst = max(cost_us for kind, cost_us in costs.items() if kind.startswith(SECOND)) / first
    click.echo(f"goal: second tier at most 2.00 x the first: {'met' if worst <= 2 else 'not met'} ({worst:.2f} x)")
    sys.exit(1 if assert_goals and worst > 2 else 0)


if __name__ == "__main__":
    main()
