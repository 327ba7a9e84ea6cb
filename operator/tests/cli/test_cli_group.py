"""`gantry group`: progress, members, resets, clones and deletions of groups, against a real broker on a thread."""

from __future__ import annotations

import json
import re
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from click.testing import CliRunner, Result
from named_cluster import QUEUE, TOPIC, ThreadedNamedCluster

from gantry_cli.document_types import DOCUMENTS
from gantry_cli.main import cli
from gantry_client import (
    ConsumerSettings,
    Message,
    Producer,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    RetryLater,
    StartFrom,
)
from gantry_testing.client import wait_until

GROUP = "billing"
FIRST = ConsumerSettings(start_from=StartFrom.FIRST)


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ThreadedNamedCluster]:
    folder: Path = tmp_path_factory.mktemp("group")
    with ThreadedNamedCluster(folder) as one:
        one.run(send_numbers(one.address, 5))
        yield one


async def send_numbers(address: str, count: int) -> None:
    """Send so many messages, whose bodies are their numbers."""
    async with Producer(address) as producer:
        for number in range(count):
            await producer.send(Message(TOPIC, b"%d" % number))


async def message_ids(address: str) -> list[str]:
    """Return the ids of the messages of the queue."""
    async with PullConsumer(address, "looking") as consumer:
        return [message.offset_message_id for message in (await consumer.fetch(QUEUE, 0)).messages]


async def commit_offset(address: str, group: str, offset: int) -> None:
    """Create a consumer group, and commit an offset of it."""
    async with PullConsumer(address, group) as consumer:
        await consumer.fetch(QUEUE, 0)  # which makes the group
        await consumer.commit(QUEUE, offset)


def committed(servers: ThreadedNamedCluster, group: str) -> int | None:
    async def look() -> int | None:
        return servers.broker.core.offsets.find(group, TOPIC, 0)

    return servers.run(look())


@pytest.fixture
def group(servers: ThreadedNamedCluster, request: pytest.FixtureRequest) -> str:
    """A group of its own for each test, with a lag of two messages."""
    name = re.sub("[^a-z_]+", "-", request.node.name)[:100]
    servers.run(commit_offset(servers.address, name, 3))
    return str(name)


@asynccontextmanager
async def running_consumer(address: str, group: str) -> AsyncIterator[PushConsumer]:
    """Run a consumer of the group that always fails for the body `1`."""

    async def handle(message: ReceivedMessage) -> None:
        if message.body == b"1":
            raise RetryLater

    async with PushConsumer(address, group, topics=TOPIC, handler=handle, settings=FIRST) as consumer:
        await wait_until(lambda: QUEUE in consumer.queues, timeout_s=120)
        yield consumer


@pytest.fixture
def consumer(servers: ThreadedNamedCluster, group: str) -> Iterator[PushConsumer]:
    """A member of the group, to which the queue is assigned."""
    stack = AsyncExitStack()
    one = servers.run(stack.enter_async_context(running_consumer(servers.address, group)))
    yield one
    servers.run(stack.aclose())


def gantry(servers: ThreadedNamedCluster, *words: str, keys: str | None = None) -> Result:
    return CliRunner().invoke(cli, ["group", *words, "-n", servers.address], input=keys, catch_exceptions=False)


def run(servers: ThreadedNamedCluster, *words: str, keys: str | None = None) -> str:
    """Return the output of a command that must succeed."""
    result = gantry(servers, *words, keys=keys)
    assert result.exit_code == 0, result.output
    return result.stdout


def json_document(servers: ThreadedNamedCluster, *words: str) -> Any:
    """Return the JSON document, which must have exactly the fields of the documented type."""
    plain = json.loads(run(servers, *words, "-O", "json"))
    typed = msgspec.convert(plain, DOCUMENTS[f"gantry group {words[0]}"], strict=True)
    assert json.loads(msgspec.json.encode(typed)) == plain
    return plain


# ------- listing and describing


def test_list_shows_groups_without_system_groups(servers: ThreadedNamedCluster, group: str) -> None:
    """One name per line; the system's groups only with --all."""
    assert group in run(servers, "list").splitlines()
    assert "TOOLS_CONSUMER" not in json_document(servers, "list")
    assert "TOOLS_CONSUMER" in json_document(servers, "list", "--all")


def test_list_shows_the_lag_of_each_group(servers: ThreadedNamedCluster, group: str) -> None:
    """In messages and in seconds, the longest wait first; a group that consumed nothing has no lag to show."""
    servers.run(commit_offset(servers.address, f"{group}-done", 5))
    plain = json.loads(run(servers, "list", "--lag", "-O", "json"))
    rows = {row.group: row for row in msgspec.convert(plain, DOCUMENTS["gantry group list --lag"], strict=True)}

    assert (rows[group].lag, rows[group].topics) == (2, 1)
    assert rows[group].lag_s > 0
    assert (rows[f"{group}-done"].lag, rows[f"{group}-done"].lag_s) == (0, 0)
    assert [row["lag_s"] or 0 for row in plain] == sorted((row["lag_s"] or 0 for row in plain), reverse=True)
    table = run(servers, "list", "--lag")
    assert "waiting" in table and group in table


@pytest.mark.parametrize("word", ["describe", "stats"])
def test_describe_shows_every_queue(servers: ThreadedNamedCluster, group: str, word: str) -> None:
    """It shows consumed, in-flight and remaining messages, by both names of the command."""
    document = json_document(servers, word, group)

    assert (document["members"], document["lag"]) == (0, 2)
    (queue,) = document["queues"]
    assert (queue["consumed_offset"], queue["fetched_offset"], queue["end_offset"]) == (3, 5, 5)
    text = run(servers, word, group, "--topic", TOPIC)
    assert f"group {group}: 0 members, lag of 2 messages, the oldest waiting for " in text
    assert 0 < queue["lag_s"] == document["lag_s"] < time.time() - queue["last_consumed_ms"] / 1000 + 1
    again = yaml.safe_load(run(servers, word, group, "-O", "yaml"))
    assert again["lag_s"] > document["lag_s"], "it grows"
    assert again | {"lag_s": 0, "queues": [again["queues"][0] | {"lag_s": 0}]} == document | {
        "lag_s": 0, "queues": [queue | {"lag_s": 0}],
    }  # fmt: skip


def test_missing_group_is_exit_code_3(servers: ThreadedNamedCluster) -> None:
    """Each command that needs an existing group names the missing one and a remedy."""
    for words in (
        ("describe", "missing"), ("members", "missing"), ("running", "missing"), ("running", "missing", "client"),
        ("reset", "missing", TOPIC, "--to", "now"), ("clone", "missing", "x"),
    ):  # fmt: skip
        result = gantry(servers, *words)
        assert result.exit_code == 3
        assert "group missing not found -- see `gantry group list -n 127.0.0.1:" in result.stderr


def test_wide_output_shows_lag_and_settings(servers: ThreadedNamedCluster, group: str) -> None:
    """The list has members and lag beside each name; the description has the settings and one more column."""
    listed = {
        line.split()[0]: line.split()[1:] for line in run(servers, "list", "-o", "wide").splitlines() if line.strip()
    }
    plain, wide = (run(servers, "describe", group, "-o", form) for form in ("table", "wide"))

    assert listed[group][:3] == ["0", "1", "2"], "expected members, topics and lag"
    assert group in run(servers, "list", "-o", "table").splitlines()
    assert "fetched" in wide and "at most 16 retries" in wide
    assert "fetched" not in plain and "retries" not in plain


def test_group_without_members_is_reported(servers: ThreadedNamedCluster, group: str) -> None:
    """An empty result is a success, except for a request about one member."""
    assert run(servers, "members", group) == f"No members in group {group}\n"
    assert run(servers, "running", group) == f"No members in group {group}\n"
    assert json_document(servers, "members", group)["members"] == []
    assert json_document(servers, "running", group) == []
    assert gantry(servers, "running", group, "stranger").exit_code == 3
    assert gantry(servers, "consume", group, "00" * 16).exit_code == 3


def test_members_and_their_state_are_shown(servers: ThreadedNamedCluster, group: str, consumer: PushConsumer) -> None:
    """It shows clients, subscriptions, messages in flight, and stack traces."""
    document = json_document(servers, "members", group)
    assert [one["client_id"] for one in document["members"]] == [consumer.client_id]
    assert document["subscriptions"] == {TOPIC: "*", f"%RETRY%{group}": "*"}
    assert json_document(servers, "connections", group) == document
    assert consumer.client_id in run(servers, "members", group)

    (running,) = json_document(servers, "running", group)
    assert running["failure"] is None
    assert {queue["topic"] for queue in running["queues"]} >= {TOPIC}
    text = run(servers, "running", group, consumer.client_id, "--stacks")
    assert "thread MainThread" in text
    assert "fetched/s" in text
    result = gantry(servers, "running", group, "stranger")
    assert result.exit_code == 3
    assert "stranger is not a member" in result.stderr


# ------- resetting


def test_dry_run_changes_no_offset(servers: ThreadedNamedCluster, group: str) -> None:
    """It shows each queue before and after, and the number of messages."""
    document = json_document(servers, "reset", group, TOPIC, "--to", "earliest", "--dry-run")

    assert document["is_dry_run"]
    assert document["queues"] == [
        {"topic": TOPIC, "broker": "test-broker", "queue_id": 0, "before": 3, "after": 0}
    ]  # fmt: skip
    text = run(servers, "reset", group, TOPIC, "--to", "now", "--dry-run")
    assert "consumed again: 0 messages; skipped: 2" in text
    assert committed(servers, group) == 3


@pytest.mark.parametrize(
    ("words", "place"),
    [
        (("--to", "earliest"), 0),
        (("--to", "now"), 5),
        (("--to", "latest"), 5),
        (("--to", "1h"), 0),
        (("--to", "2100-01-01T00:00"), 5),
        (("--to", "earliest", "--queue", "test-broker:0"), 0),
        (("--to-offset", "4", "--queue", "test-broker:0"), 4),
        (("--by", "-2"), 1),
        (("--by", "100"), 5),
    ],
    ids=["earliest", "now", "latest", "age", "future", "one queue", "offset", "back", "beyond the end"],
)
def test_reset_sets_the_requested_offsets(
    servers: ThreadedNamedCluster, group: str, words: tuple[str, ...], place: int
) -> None:
    """The target is an end, a time, or an offset, for all queues or one."""
    document = json_document(servers, "reset", group, TOPIC, *words, "--yes")

    assert (document["is_dry_run"], document["queues"][0]["after"]) == (False, place)
    assert committed(servers, group) == place


def test_reset_can_be_declined(servers: ThreadedNamedCluster, group: str) -> None:
    """Nothing changes, and the question names the number of messages."""
    result = gantry(servers, "reset", group, TOPIC, "--to", "earliest", keys="n\n")

    assert result.exit_code == 1
    assert "consumed again: 3 messages; skipped: 0" in result.output
    assert committed(servers, group) == 3
    run(servers, "reset", group, TOPIC, "--to", "earliest", keys="y\n")
    assert committed(servers, group) == 0


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        ((), "give one of --to WHEN, --to-offset OFFSET and --by COUNT"),
        (("--to", "now", "--to-offset", "1"), "give one of --to WHEN, --to-offset OFFSET and --by COUNT"),
        (("--to-offset", "1"), "name it with --queue"),
        (("--to", "yesterday"), "invalid start position"),
        (("--to", "now", "--queue", "broker"), "is not a queue"),
        (("--to-offset", "6", "--queue", "test-broker:0"), "--to-offset: 6 is outside the queue; expected 0 to 5"),
    ],
    ids=["nowhere", "twice", "no queue", "no time", "half a queue", "beyond the end"],
)
def test_invalid_reset_is_refused(
    servers: ThreadedNamedCluster, group: str, words: tuple[str, ...], fault: str
) -> None:
    """The exit code is 2 before any change, and in a dry run, too."""
    result = gantry(servers, "reset", group, TOPIC, *words, "--dry-run")

    assert result.exit_code == 2
    assert fault in result.stderr


def test_reset_of_a_missing_queue_is_exit_code_3(servers: ThreadedNamedCluster, group: str) -> None:
    """A wrong number changes no other queue."""
    result = gantry(servers, "reset", group, TOPIC, "--to", "now", "--queue", "test-broker:7", "--yes")

    assert result.exit_code == 3
    assert committed(servers, group) == 3


# ------- cloning


def test_clone_is_created_with_the_settings_of_the_source(servers: ThreadedNamedCluster, group: str) -> None:
    """It starts at the same offsets in all topics; a dry run creates nothing."""
    copy = f"{group}-copy"
    assert json_document(servers, "clone", group, copy, "--dry-run")["is_new_group"]
    assert copy not in json_document(servers, "list")

    document = json_document(servers, "clone", group, copy, "--yes")

    assert [(queue["before"], queue["after"]) for queue in document["queues"]] == [(None, 3)]
    assert committed(servers, copy) == 3
    assert json_document(servers, "describe", copy)["settings"]["groupName"] == copy
    assert not json_document(servers, "clone", group, copy, "--topic", TOPIC, "--dry-run")["is_new_group"]


def test_clone_onto_a_running_group_needs_force(
    servers: ThreadedNamedCluster, group: str, consumer: PushConsumer
) -> None:
    """Its members would keep their offsets, so --force resets them, too."""
    servers.run(commit_offset(servers.address, f"{group}-source", 4))
    result = gantry(servers, "clone", f"{group}-source", group, "--yes")
    assert result.exit_code == 1
    assert "stop them, or use --force" in result.stderr

    run(servers, "clone", f"{group}-source", group, "--yes", "--force")

    async def is_moved() -> bool:
        await consumer.commit()
        return servers.broker.core.offsets.find(group, TOPIC, 0) == 5

    servers.run(wait_until(is_moved, timeout_s=100))


def test_group_cannot_be_cloned_onto_itself(servers: ThreadedNamedCluster, group: str) -> None:
    """Neither can a group without committed offsets be cloned."""
    assert gantry(servers, "clone", group, group).exit_code == 2
    result = gantry(servers, "clone", "TOOLS_CONSUMER", group)
    assert result.exit_code == 3
    assert "TOOLS_CONSUMER has no committed offsets" in result.stderr


# ------- consuming directly


def test_one_message_is_consumed_on_request(servers: ThreadedNamedCluster, group: str, consumer: PushConsumer) -> None:
    """The exit code shows whether the handler consumed it; without --topic only ids of brokers are accepted."""
    good, later, *_ = servers.run(message_ids(servers.address))

    document = json_document(servers, "consume", group, good)
    assert (document["client_id"], document["result"]) == (consumer.client_id, "CR_SUCCESS")
    result = gantry(servers, "consume", group, later, "--client", consumer.client_id)
    assert result.exit_code == 1
    assert f"{consumer.client_id}: CR_LATER in " in result.stdout

    assert gantry(servers, "consume", group, good, "--client", "stranger").exit_code == 3
    assert gantry(servers, "consume", group, "order-17").exit_code == 2


# ------- deleting


def test_group_is_deleted_after_a_summary_and_a_confirmation(servers: ThreadedNamedCluster, group: str) -> None:
    """A dry run and a refused question delete nothing; after the deletion the group is unknown."""
    assert "lag 2" in run(servers, "delete", group, "--dry-run")
    assert json_document(servers, "delete", group, "--dry-run")["members"] == 0
    refused = gantry(servers, "delete", group, keys="n\n")
    assert refused.exit_code != 0 and "lag 2" in refused.stderr
    assert committed(servers, group) == 3
    assert run(servers, "delete", group, keys="y\n") == f'Group "{group}" deleted\n'
    assert committed(servers, group) is None
    again = gantry(servers, "delete", group, "--yes")
    assert again.exit_code == 3 and "gantry group list -n" in again.stderr


def test_group_with_connected_consumers_is_not_deleted(
    servers: ThreadedNamedCluster, group: str, consumer: PushConsumer
) -> None:
    """They would create it again, so the command names them and changes nothing."""
    result = gantry(servers, "delete", group, "--yes")

    assert result.exit_code == 1 and "has connected consumers (1)" in result.stderr
    assert f"gantry group members {group} -n" in result.stderr
    assert group in run(servers, "list").split()


def test_group_of_the_system_is_not_deleted(servers: ThreadedNamedCluster) -> None:
    """Brokers need these groups, so the command refuses their names at once."""
    result = gantry(servers, "delete", "CID_RMQ_SYS_TRANS", "--yes")

    assert result.exit_code == 2 and "group of the system" in result.stderr
