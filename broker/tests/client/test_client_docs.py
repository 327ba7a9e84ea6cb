"""docs/client.md: its programs run and print the documented output, and it names the exported errors and clients."""

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import gantry_client
from gantry_client import Message, settings
from gantry_client.producer import Producer
from gantry_testing.client import FakeCluster, ThreadedCluster
from gantry_testing.tree import PYTHON_PATH, ROOT

PAGE = ROOT / "docs" / "client.md"
EXAMPLE = re.compile(r"^```python\n(?P<code>.*?)^```\n(?:```text\n(?P<output>.*?)^```\n)?", re.MULTILINE | re.DOTALL)
ADDRESS = "127.0.0.1:9876"
DEADLINE_S = 180.0


@dataclass(frozen=True)
class Example:
    """One program of the page and the lines that it must print."""

    line: int
    code: str
    expected: tuple[str, ...]


def examples() -> list[Example]:
    text = PAGE.read_text()
    return [
        Example(text.count("\n", 0, match.start()) + 1, match["code"], tuple((match["output"] or "").splitlines()))
        for match in EXAMPLE.finditer(text)
    ]


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    """Run a cluster as the page expects it: three messages in `orders`."""
    fake = FakeCluster()
    fake.add_topic("orders", queues=1)
    with ThreadedCluster(fake) as threaded:
        threaded.run(_fill(fake))
        yield fake


async def _fill(fake: FakeCluster) -> None:
    async with Producer(fake.name_server) as producer:
        for body, tag in ((b"4 apples", "new"), (b"not yet", "paid"), (b"2 pears", "old")):
            await producer.send(Message("orders", body, tags=tag))


def run_until_printed(program: Path, expected: tuple[str, ...]) -> tuple[list[str], int]:
    """Return the output and exit code of a program.

    A program that handles signals gets SIGTERM when it has printed all expected lines; the others end by themselves.
    """
    environment = os.environ | {"PYTHONPATH": PYTHON_PATH, "PYTHONWARNINGS": "error"}
    is_asked_to_stop = "add_signal_handler" not in program.read_text()
    with subprocess.Popen(
        [sys.executable, str(program)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        watchdog = threading.Timer(DEADLINE_S, process.kill)
        watchdog.start()
        printed: list[str] = []
        try:
            for line in process.stdout:
                printed.append(line.rstrip("\n"))
                if not is_asked_to_stop and set(expected) <= set(printed):
                    is_asked_to_stop = True
                    process.send_signal(signal.SIGTERM)
            return printed, process.wait()
        finally:
            watchdog.cancel()
            process.kill()


@pytest.mark.parametrize("example", examples(), ids=lambda example: f"line-{example.line}")
def test_every_example_prints_the_documented_output(example: Example, cluster: FakeCluster, tmp_path: Path) -> None:
    """Each program of the page, unchanged except for the address, succeeds and prints the lines below it."""
    program = tmp_path / "example.py"
    program.write_text(example.code.replace(ADDRESS, cluster.name_server))

    printed, exit_code = run_until_printed(program, example.expected)

    assert exit_code == 0, "\n".join(printed)
    assert [line for line in example.expected if line not in printed] == [], "\n".join(printed)


def test_page_has_examples_with_output() -> None:
    """A page without programs would otherwise pass the test above."""
    found = examples()

    assert len(found) >= 8 and all(example.expected for example in found)


def test_every_exported_error_and_client_is_documented() -> None:
    """A new exported error, client or class of settings must be named on the page; three defaults are checked."""
    text = PAGE.read_text()
    exported = [
        name
        for name in gantry_client.__all__
        if isinstance(kind := getattr(gantry_client, name), type)
        and (issubclass(kind, Exception) or name.endswith(("Consumer", "Producer", "Admin", "Settings")))
    ]

    roots = {"ClientError", "RequestFailed"}
    assert [name for name in exported if f"`{name}" not in text and f" {name}" not in text and name not in roots] == []
    assert settings.ConsumerSettings().cached_messages_max == 1000 and "1000 messages" in text
    assert settings.ConsumerSettings().cached_span_max == 2000 and "2000 messages" in text
    assert settings.ProducerSettings().outstanding_max == 1000 and "`outstanding_max` (1000)" in text


def test_exports_exist_and_are_sorted() -> None:
    """`__all__` is sorted, and each name in it exists."""
    assert sorted(gantry_client.__all__) == gantry_client.__all__
    assert all(hasattr(gantry_client, name) for name in gantry_client.__all__)
