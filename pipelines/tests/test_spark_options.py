"""The options of a query, and how invalid ones are refused."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from pyspark_rocketmq.errors import InvalidOption
from pyspark_rocketmq.model import QueueId, ReadFrom, TransportKind
from pyspark_rocketmq.options import CONNECTION_OPTIONS, READ_OPTIONS, ReadOptions, read_options
from pyspark_rocketmq.schema import COLUMNS
from pyspark_rocketmq.selection import PositionKind

BASE = {"nameServers": "127.0.0.1:9876", "subscribe": "orders"}


def options(*, is_stream: bool = False, **more: str) -> ReadOptions:
    return read_options({**BASE, **more}, is_stream=is_stream)


def test_name_server_and_topic_are_enough() -> None:
    """A batch reads everything stored, a stream only new messages."""
    batch, stream = options(), options(is_stream=True)

    assert (batch.start.kind, batch.end.kind) == (PositionKind.EARLIEST, PositionKind.LATEST)
    assert stream.start.kind is PositionKind.LATEST
    assert batch.columns == COLUMNS and batch.is_loss_fatal and not batch.commit_group
    assert batch.settings.transport is TransportKind.AUTO


def test_option_names_are_case_insensitive() -> None:
    """Spark hands over names in lower case, however the user wrote them."""
    read = read_options({"nameservers": "a:1", "SUBSCRIBE": "a, b,a", "readfrom": "slavefirst"}, is_stream=False)

    assert read.subscription.topics == ("a", "b")
    assert read.settings.read_from is ReadFrom.SLAVE_FIRST


@pytest.mark.parametrize(
    ("more", "is_stream", "problem"),
    [
        ({"startingOffset": "earliest"}, False, "unknown option startingOffset; did you mean startingOffsets?"),
        ({"zebra": "1"}, False, "unknown option zebra$"),
        ({"subscribePattern": "o.*"}, False, "subscribe and subscribePattern contradict each other"),
        ({"subscribe": ""}, False, "one of the options subscribe"),
        ({"startingOffsets": "first"}, False, "startingOffsets is 'first'; it must be earliest or latest"),
        ({"startingOffsets": '{"orders": {"b": {"x": 1}}}'}, False, "a queue's number"),
        ({"startingOffsets": '{"orders": {"b": {"0": -3}}}'}, False, "orders/b/0 has -3"),
        ({"startingOffsets": '{"orders": {"b": {"007": 1}}}'}, False, "'007'; it must be a queue's number"),
        ({"startingOffsets": '{"orders": {"b": {"²": 1}}}'}, False, "'²'; it must be a queue's number"),
        ({"startingOffsets": '{"orders"'}, False, "it must be JSON"),
        ({"startingTimestamp": "yesterday"}, False, "milliseconds since 1970"),
        ({"startingTimestamp": "2026-11-01T00:00:00"}, False, "a time with a zone"),
        ({"startingTimestamp": "1", "startingOffsets": "latest"}, False, "contradict each other"),
        ({"endingOffsets": "latest"}, True, "endingOffsets belongs to spark.read$"),
        ({"maxRowsPerTrigger": "5"}, False, "maxRowsPerTrigger belongs to spark.readStream"),
        ({"maxRowsPerTrigger": "0"}, True, "a whole number, 1 or more"),
        ({"maxBytesPerTrigger": "64x"}, True, "bytes, like 64m"),
        ({"maxTriggerDelay": "soon"}, True, "a duration like"),
        ({"failOnDataLoss": "no"}, False, "true or false"),
        ({"columns": "body,bodi"}, False, "unknown column bodi"),
        ({"columns": "body,body"}, False, "twice"),
        ({"transport": "carrier"}, False, "auto or file or http or pull"),
        ({"accessKey": "me"}, False, "go together"),
        ({"credentialsFile": "/nonexistent"}, False, "credentialsFile: cannot read /nonexistent"),
        ({"directories": "[]"}, False, "directories must be JSON"),
        ({"assign": '{"orders": {"b": ["0"]}}', "subscribe": ""}, False, "contradict|JSON like"),
    ],
)
def test_invalid_options_are_refused_by_name(more: dict[str, str], is_stream: bool, problem: str) -> None:
    """A misspelled option is not ignored."""
    with pytest.raises(InvalidOption, match=problem.replace("?", r"\?")):
        options(is_stream=is_stream, **more)


def test_values_are_parsed() -> None:
    """Sizes, durations, times and lists are parsed."""
    read = options(
        is_stream=True,
        maxBytesPerTrigger="64MiB",
        maxTriggerDelay="90s",
        startingTimestamp="2026-11-01T00:00:00Z",
        columns="offset, Body",
        tags="paid,sent",
        sidecars="http://a:1, http://b:1",
        transport="HTTP",
        patience="2m",
    )
    assert (read.limits.bytes_max, read.limits.delay_max_ms) == (64 << 20, 90_000)
    assert read.start.time_ms == 1793491200000
    assert (read.columns, read.tags) == (("offset", "body"), frozenset({"paid", "sent"}))
    assert (read.settings.sidecars, read.settings.patience_ms) == (("http://a:1", "http://b:1"), 120_000)


def test_single_queues_may_be_assigned() -> None:
    """Queues are assigned by topic, broker and number."""
    read = read_options({"nameServers": "a:1", "assign": '{"orders": {"b": [1, 0]}}'}, is_stream=False)

    assert read.subscription.queues == (QueueId("orders", "b", 0), QueueId("orders", "b", 1))


def test_secrets_are_pickled_but_never_shown(tmp_path: Path) -> None:
    """Workers need them; no log, error or plan of a query shows them."""
    file = tmp_path / "account.yaml"
    file.write_text("accessKey: reader\nsecretKey: hush12345\n")
    (tmp_path / "token").write_text("hush67890-hush67890\n")
    read = options(credentialsFile=str(file), tokenFile=str(tmp_path / "token"))
    arrived = pickle.loads(pickle.dumps(read))

    assert (arrived.settings.secret_key, arrived.settings.token) == ("hush12345", "hush67890-hush67890")
    assert "hush" not in repr(arrived)


@pytest.mark.parametrize("names", [CONNECTION_OPTIONS + READ_OPTIONS, COLUMNS], ids=["options", "columns"])
def test_every_option_and_column_is_documented(names: tuple[str, ...]) -> None:
    """Every option and every column is in docs/spark.md."""
    page = (Path(__file__).parents[2] / "docs" / "spark.md").read_text()

    assert [name for name in names if f"`{name}`" not in page] == []
