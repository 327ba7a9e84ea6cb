"""`gantry search`, and the filters and formats of `gantry consume`: what is found, printed and scanned."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from admin_scene import ENVIRONMENT, Child, broker_process
from click.testing import CliRunner, Result

from gantry_cli.errors import InvalidInput
from gantry_cli.main import cli
from gantry_cli.messages.content import make_matcher
from gantry_cli.messages.formatting import parse_format
from gantry_cli.messages.topic_search import TopicSearch
from gantry_cli.text import StartPosition
from gantry_client import Message, MessageQueue, NoRoute, Producer, PullConsumer, ReceivedMessage
from gantry_testing.client import FakeCluster
from gantry_testing.ports import free_ports
from gantry_wire.message import StoredMessage
from gantry_wire.search import SearchCriteria

COUNT = 300
QUEUE = MessageQueue(topic="orders", broker_name="orders-0", queue_id=2)
RECEIVED = ReceivedMessage(
    topic="orders", queue=QUEUE, queue_offset=7, stored_body=b'{"order": {"id": 17}, "n": "x"}',
    properties={"KEYS": "a b", "TAGS": "paid", "region": "eu", "UNIQ_KEY": "AB"}, store_timestamp_ms=5,
)  # fmt: skip


@pytest.mark.parametrize(
    ("template", "printed"),
    [
        ("{offset} {queue} {key} {keys} {tag} {id}", "7 2 a a,b paid AB"),
        ("{json.order.id}|{json.n}|{json.order}|{json.nope}", '17|x|{"id":17}|'),
        ("{property.region}{property.nope} {{{topic}}}\\t{time_ms}\\n\\\\", "eu {orders}\t5\n\\"),
        ("hex", RECEIVED.body.hex()),
        ("raw", RECEIVED.body),
    ],
)
def test_formats_print_parts_of_a_message(template: str, printed: str | bytes) -> None:
    """Fields that a message does not have are empty."""
    assert parse_format(template)(RECEIVED) == printed


@pytest.mark.parametrize(
    ("template", "part"),
    [
        ("nothing", "expected raw, line, json, hex"),
        ("{offset} {nope}", "position 10: unknown field 'nope'"),
        ("{body", "position 1: a single {"),
        ("{json.a..b}", "position 1: JSON path"),
    ],
)
def test_invalid_format_is_refused(template: str, part: str) -> None:
    """The text names the position, and what is possible."""
    with pytest.raises(InvalidInput, match=part.replace("{", r"\{")):
        parse_format(template)


async def test_share_is_exact_after_an_interruption() -> None:
    """Newest messages first; after each round, exactly the scanned messages count."""
    async with FakeCluster() as cluster, PullConsumer(cluster.name_server, "group") as consumer:
        cluster.add_topic("orders", queues=1)
        for number in range(COUNT):
            cluster.broker().state.log.append(StoredMessage(topic="orders", queue_id=0, body=b"%d" % number))
        search = TopicSearch(consumer, "orders", make_matcher(SearchCriteria(text="9")))
        await search.open(StartPosition(), StartPosition())
        hits = search.hits()
        first = await anext(hits)

        assert first.body == b"299" and search.total == COUNT
        assert search.scanned == 64
        rest = [message.body async for message in hits]
        assert [first.body, *rest] == [b"%d" % one for one in reversed(range(COUNT)) if "9" in str(one)]
        assert search.scanned == COUNT and search.share == 1.0


@pytest.fixture(scope="module")
def name_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a name server with a broker that has some hundred messages."""
    folder = tmp_path_factory.mktemp("search")
    address = f"127.0.0.1:{free_ports(1)[0]}"
    server = Child("gantry_nameserver", ["--listen", address, "--data", str(folder / "ns")], "name server listening")
    try:
        with broker_process(folder / "store", namesrvAddr=address, brokerName="orders-0", enablePropertyFilter="true"):
            asyncio.run(send_orders(address))
            yield address
    finally:
        server.end()


async def send_orders(address: str) -> None:
    async with Producer(address, "test") as producer:
        async with asyncio.timeout(60):
            while True:  # until the broker has registered
                with suppress(NoRoute):
                    await producer.send(Message("warm-up", b"x"))
                    break
                await asyncio.sleep(0.02)
        for number in range(COUNT):
            body = json.dumps({"order": {"id": number}}).encode()
            properties = {"region": "us" if number == 17 else "eu"}
            await producer.send(Message("orders", body, keys=[f"order-{number}"], properties=properties))


def gantry(name_server: str, *words: str) -> Result:
    return CliRunner().invoke(cli, [*words, "-n", name_server])


@pytest.mark.parametrize(
    "condition",
    [["--key", "order-17"], ["--key", "order-17", "--scan"], ["--sql", "region = 'us'"], ["--text", '"id": 17}'],
     ["--json-path", "$.order.id = 17"]],
    ids=" ".join,
)  # fmt: skip
def test_search_finds_a_lost_order(name_server: str, condition: list[str]) -> None:
    """By key, property, text or JSON: one hit, and the last line has the share."""
    done = gantry(name_server, "search", "orders", *condition, "--format", "{key}")

    assert done.exit_code == 0 and done.stdout == "order-17\n"
    assert done.stderr.startswith("1 message found") and "(complete)" in done.stderr
    if condition[0] != "--key" or "--scan" in condition:
        assert "scanned 300 of 300 messages (100.0%)" in done.stderr


def test_search_stops_at_its_limit(name_server: str) -> None:
    """The newest messages are printed."""
    done = gantry(name_server, "search", "orders", "--text", "order", "--limit", "3", "--format", "{json.order.id}")

    assert done.stdout.split() == ["299", "298", "297"] and "limit of 3 reached" in done.stderr


@pytest.mark.parametrize(
    ("words", "code", "part"),
    [
        (["orders", "--json-path", "$.a ~ 1"], 2, "position 4"),
        (["orders", "--tag", "a", "--sql", "b = 1"], 2, "mutually exclusive"),
        (["orders", "--from", "soon"], 2, "invalid start position"),
        (["nowhere", "--text", "x"], 3, "no route to topic"),
    ],
)
def test_invalid_search_is_refused(name_server: str, words: list[str], code: int, part: str) -> None:
    """The exit code says whether the words or the topic are wrong."""
    done = subprocess.run(
        [sys.executable, "-m", "gantry_cli", "search", *words, "-n", name_server], capture_output=True, text=True,
        env=ENVIRONMENT, check=False,
    )  # fmt: skip
    assert done.returncode == code and part in done.stderr


def test_consume_filters_by_content_only_without_a_group(name_server: str) -> None:
    """--json-path filters what is printed; with --group it would commit messages unseen, so it is refused."""
    done = gantry(name_server, "consume", "orders", "--json-path", "$.order.id = 17", "--format", "{key}")
    refused = gantry(name_server, "consume", "orders", "--text", "x", "--group", "g")

    assert done.stdout == "order-17\n"
    assert isinstance(refused.exception, SystemExit) and refused.exit_code == 2


def test_interrupted_search_says_what_was_scanned(name_server: str, tmp_path: Path) -> None:
    """After Ctrl-C the last line has the share, and the exit code is 130."""
    program = (
        "import asyncio, sys\nfrom gantry_cli.messages import topic_search\nfrom gantry_cli.main import main\n"
        "async def wait_for_ever(self, part, count):\n    print('waiting', file=sys.stderr, flush=True)\n"
        "    await asyncio.Event().wait()\n"
        "topic_search.TopicSearch._scan = wait_for_ever\nmain()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program, "search", "orders", "--text", "x", "-n", name_server],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT,
    )  # fmt: skip
    assert process.stderr is not None
    assert process.stderr.readline() == "waiting\n"
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)

    assert process.returncode == 130
    assert "No messages found; scanned 0 of 300 messages (0.0%)" in errors and "(interrupted)" in errors
