"""`gantry group resend`: dead letters are sent to their original topics; a failure omits none, a kill repeats few."""

import asyncio
import datetime
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from crash.processes import HOST, broker, name_server

from gantry_cli.main import cli
from gantry_client import (
    Admin,
    ConsumerSettings,
    Message,
    Producer,
    PushConsumer,
    ReceivedMessage,
    RetryLater,
    StartFrom,
    resend_run,
)
from gantry_client.resend_plan import READER_PREFIX
from gantry_client.resend_run import COMMIT_EVERY
from gantry_remoting.server import Connection
from gantry_testing.client import FakeCluster, ThreadedCluster, wait_until
from gantry_testing.client.sending import send as fake_send
from gantry_testing.ports import free_broker_port, free_port
from gantry_wire.codes import RequestCode
from gantry_wire.command import Command
from gantry_wire.message import StoredMessage
from gantry_wire.properties import encode_properties

GROUP = "billing"
DEAD = f"%DLQ%{GROUP}"
NOTHING = f"No dead letters of {GROUP} to send\n"


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    fake = FakeCluster()
    fake.add_topic("orders", queues=1)
    fake.add_topic("bills", queues=1)
    fake.add_topic(DEAD, queues=1)
    with ThreadedCluster(fake):
        yield fake


def store_dead_letter(
    cluster: FakeCluster, body: bytes, *, topic: str | None = "orders", at_ms: int = 1_000, **properties: str
) -> None:
    """Store a dead letter as a broker would."""
    number = len(cluster.broker().messages(DEAD))
    pairs = {"UNIQ_KEY": f"{number:032d}", "KEYS": "k1 k2", "TAGS": "t", "own": "mine", **properties}
    if topic is not None:
        pairs |= {"RETRY_TOPIC": topic, "ORIGIN_MESSAGE_ID": "0" * 32, "CLUSTER": "DefaultCluster"}
    cluster.broker().state.log.append(
        StoredMessage(
            topic=DEAD,
            queue_id=0,
            body=body,
            flag=7,
            reconsume_times=17,
            born_timestamp_ms=at_ms,
            store_timestamp_ms=at_ms,
            properties_bytes=encode_properties(pairs),
        )
    )


def iso_time(second: int) -> str:
    """Return a time in seconds as text."""
    return datetime.datetime.fromtimestamp(second, datetime.UTC).isoformat()


def resend(cluster: FakeCluster, *options: str) -> Result:
    arguments = ["group", "resend", GROUP, "--from-dead-letters", "-n", cluster.name_server, *options]
    return CliRunner().invoke(cli, arguments)


def resend_successfully(cluster: FakeCluster, *options: str) -> str:
    """Return the output of a resend that must succeed."""
    result = resend(cluster, *options)
    assert result.exit_code == 0, result.output
    return result.output


def bodies(cluster: FakeCluster, topic: str = "orders") -> list[bytes]:
    return [message.body for message in cluster.broker().messages(topic)]


def test_resent_message_has_its_original_properties(cluster: FakeCluster) -> None:
    """Body, id, keys, tags, flag and user properties are those of the sender; properties of retries are removed."""
    store_dead_letter(cluster, b"1", DELAY="18", TRAN_MSG="true", REAL_TOPIC="SCHEDULE", __SHARDINGKEY="customer-7")

    assert resend_successfully(cluster) == "sent to orders: 1\n"

    (message,) = cluster.broker().messages("orders")
    assert (message.body, message.flag, message.reconsume_times) == (b"1", 7, 0)
    properties = message.properties
    assert {name: properties[name] for name in ("UNIQ_KEY", "KEYS", "TAGS", "own", "__SHARDINGKEY")} == {
        "UNIQ_KEY": "0" * 32, "KEYS": "k1 k2", "TAGS": "t", "own": "mine", "__SHARDINGKEY": "customer-7",
    }  # fmt: skip
    assert properties.keys() <= {"UNIQ_KEY", "KEYS", "TAGS", "own", "__SHARDINGKEY", "WAIT", "CLUSTER"}


def test_group_without_dead_letter_topic_is_reported() -> None:
    """The error does not advise the user to create the dead-letter topic, which does not exist."""
    with ThreadedCluster(FakeCluster(auto_creates_topics=False)) as threaded:
        words = ["group", "resend", GROUP, "--from-dead-letters", "-n", threaded.cluster.name_server]
        result = CliRunner().invoke(cli, words)

    assert result.exit_code == 3
    assert result.stderr.startswith(f"gantry: no dead letters of {GROUP} found -- ") and "%DLQ%" not in result.stderr


def test_dead_letters_are_resent_to_their_topics_once(cluster: FakeCluster) -> None:
    """Messages are counted by topic; the next call continues after them, or restarts with --from-start."""
    for number in range(5):
        store_dead_letter(cluster, b"%d" % number, topic="bills" if number == 3 else "orders")

    assert resend_successfully(cluster) == "sent to bills: 1\nsent to orders: 4\n"
    assert (bodies(cluster), bodies(cluster, "bills")) == ([b"0", b"1", b"2", b"4"], [b"3"])
    assert resend_successfully(cluster) == NOTHING

    store_dead_letter(cluster, b"5")
    assert json.loads(resend_successfully(cluster, "--json"))["sent"] == {"orders": 1}
    assert json.loads(resend_successfully(cluster, "--json", "--from-start"))["sent"] == {"bills": 1, "orders": 5}


def test_dry_run_sends_nothing(cluster: FakeCluster) -> None:
    """A dry run counts the messages; it sends none and commits no progress."""
    store_dead_letter(cluster, b"1")
    before = dict(cluster.broker().state.offsets)

    first, second = resend_successfully(cluster, "--dry-run"), resend_successfully(cluster, "--dry-run")
    assert first == second
    assert re.fullmatch(r"would be sent to orders: 1\ndigest: [0-9a-f]{64}\n", first)

    assert (bodies(cluster), cluster.broker().state.offsets) == ([], before)


def test_since_and_until_limit_resent_messages(cluster: FakeCluster) -> None:
    """Messages from --since up to --until are sent; a later call continues after the last one."""
    for number in range(6):
        store_dead_letter(cluster, b"%d" % number, at_ms=number * 1_000_000_000)

    assert (
        resend_successfully(cluster, "--since", iso_time(2_000_000), "--until", iso_time(4_000_000))
        == "sent to orders: 2\n"
    )
    assert bodies(cluster) == [b"2", b"3"]
    assert resend_successfully(cluster) == "sent to orders: 2\n"
    assert bodies(cluster) == [b"2", b"3", b"4", b"5"]
    assert resend_successfully(cluster, "--until", iso_time(2_000_000), "--from-start") == "sent to orders: 2\n"


def test_failed_resend_continues_with_next_call(cluster: FakeCluster) -> None:
    """A failed send ends the call after its progress is committed, so the next call neither repeats nor omits any."""
    count = COMMIT_EVERY * 2 + 5
    for number in range(count):
        store_dead_letter(cluster, b"%d" % number)
    taken = COMMIT_EVERY + 3
    fail_after(cluster, taken)

    failed = resend(cluster)
    assert (failed.exit_code, len(bodies(cluster))) == (1, taken)

    cluster.broker().heal()
    assert resend_successfully(cluster) == f"sent to orders: {count - taken}\n"
    assert bodies(cluster) == [b"%d" % number for number in range(count)]


def test_killed_resend_repeats_few_and_omits_none(cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the last commit, as after a kill, fewer messages are repeated than are sent between two commits."""
    count = COMMIT_EVERY * 2
    for number in range(count):
        store_dead_letter(cluster, b"%d" % number)
    fail_after(cluster, COMMIT_EVERY + 3)
    commits: list[int] = []
    commit = resend_run.ResendRun._commit

    async def dying(letters: resend_run.ResendRun, queue: object, offset: int) -> None:
        commits.append(offset)
        if len(commits) == 1:
            await commit(letters, queue, offset)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(resend_run.ResendRun, "_commit", dying)
        assert resend(cluster).exit_code == 1
    cluster.broker().heal()
    resend_successfully(cluster)

    assert commits == [COMMIT_EVERY, COMMIT_EVERY + 3]
    assert sorted(set(bodies(cluster)), key=int) == [b"%d" % number for number in range(count)]
    assert len(bodies(cluster)) == count + 3


def fail_after(cluster: FakeCluster, taken: int) -> None:
    """Accept ``taken`` sends, then refuse all others."""
    state = cluster.broker().state
    cluster.broker().fault(
        RequestCode.SEND_MESSAGE_V2, lambda command, connection: fake_send(state, command, connection), times=taken
    )
    cluster.broker().refuse(RequestCode.SEND_MESSAGE_V2, 13, times=100)


def test_unsendable_dead_letters_are_skipped_and_listed(cluster: FakeCluster) -> None:
    """Dead letters without an original topic, or with an invalid one, do not stop the others."""
    store_dead_letter(cluster, b"1", topic=None)
    store_dead_letter(cluster, b"2", RETRY_TOPIC="bad/name", topic=None)
    store_dead_letter(cluster, b"3", RETRY_TOPIC="%RETRY%other", topic=None)
    store_dead_letter(cluster, b"4")

    document = json.loads(resend_successfully(cluster, "--json"))

    assert document["sent"] == {"orders": 1}
    assert document["without_origin"] == [f"{number:032d}" for number in range(3)]
    text = resend_successfully(cluster, "--from-start")
    assert "skipped, without an original topic: " in text


def test_damaged_dead_letter_is_skipped_and_listed(cluster: FakeCluster) -> None:
    """A dead letter whose body does not match its checksum is not sent, and does not stop the others."""
    for body in (b"1", b"2", b"3"):
        store_dead_letter(cluster, body)
    cluster.broker().state.log.damaged.add((DEAD, 0, 1))

    document = json.loads(resend_successfully(cluster, "--json"))

    assert (document["sent"], document["unreadable"]) == ({"orders": 2}, [f"{1:032d}"])
    assert bodies(cluster) == [b"1", b"3"]


def test_unacknowledged_resend_stops_the_call(cluster: FakeCluster) -> None:
    """Response code 12 is not an acknowledgement: the message is not committed, and the next call sends it again."""
    store_dead_letter(cluster, b"1")
    state = cluster.broker().state

    def unsure(command: Command, connection: Connection) -> Command:
        answer = fake_send(state, command, connection)
        answer.code = 12
        return answer

    cluster.broker().fault(RequestCode.SEND_MESSAGE_V2, unsure)
    failed = resend(cluster)
    assert (failed.exit_code, "FLUSH_SLAVE_TIMEOUT" in failed.output) == (1, True)
    assert resend_successfully(cluster) == "sent to orders: 1\n"
    assert bodies(cluster) == [b"1", b"1"]


@pytest.mark.parametrize(
    ("options", "code", "problem"),
    [
        (["--since", "yesterday"], 2, "--since"),
        (["--until", "latest"], 2, "`latest` is not a valid bound"),
        (["--until", "earliest"], 2, "`earliest` is not a valid bound"),
        (["--since", "earliest"], 2, "`earliest` is not a valid bound"),
    ],
    ids=["no time", "latest", "until earliest", "since earliest"],
)
def test_invalid_time_options_are_refused(cluster: FakeCluster, options: list[str], code: int, problem: str) -> None:
    """An invalid time is invalid usage, with exit code 2, and nothing is sent."""
    store_dead_letter(cluster, b"1")
    result = resend(cluster, *options)
    assert (result.exit_code, problem in result.output) == (code, True)
    assert bodies(cluster) == []


def test_unknown_group_and_invalid_name_have_exit_codes(cluster: FakeCluster) -> None:
    """A group without dead letters is not found (3); an invalid name or a missing option is invalid usage (2)."""
    base = ["group", "resend", "-n", cluster.name_server]
    codes = [
        CliRunner().invoke(cli, [*base, "unknown", "--from-dead-letters"]).exit_code,
        CliRunner().invoke(cli, [*base, "bad/name", "--from-dead-letters"]).exit_code,
        CliRunner().invoke(cli, [*base, "x" * 250, "--from-dead-letters"]).exit_code,
        CliRunner().invoke(cli, [*base, GROUP]).exit_code,
    ]
    assert codes == [3, 2, 2, 2]


def test_resend_progress_is_separate_from_group_offsets(cluster: FakeCluster) -> None:
    """Progress is stored under a group of its own, so that the offsets of the group do not change."""
    store_dead_letter(cluster, b"1")
    resend_successfully(cluster)
    assert {key[0] for key in cluster.broker().state.offsets} == {READER_PREFIX + GROUP}


# ------- selections, digests and outcomes


def dry_run(cluster: FakeCluster, *options: str) -> dict[str, Any]:
    """Return the document of a dry run."""
    found: dict[str, Any] = json.loads(resend_successfully(cluster, "--dry-run", "--json", *options))
    return found


def lines_of(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a file of outcomes."""
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--tags", "red || blue"], [b"0", b"2"]),
        (["--sql", "region = 'eu' AND size > 1"], [b"2"]),
        (["--key", "k-1"], [b"1"]),
        (["--tags", "red", "--since", iso_time(1_000_000)], []),
    ],
    ids=["tags", "sql", "key", "tags and time"],
)
def test_selected_dead_letters_are_resent(cluster: FakeCluster, options: list[str], expected: list[bytes]) -> None:
    """Only what the filter accepts is sent, and no progress is kept, which would pass the others."""
    for number, (tag, region) in enumerate([("red", "us"), ("green", "eu"), ("blue", "eu")]):
        store_dead_letter(
            cluster, b"%d" % number, at_ms=number, TAGS=tag, region=region, size=str(number), KEYS=f"k-{number}"
        )  # fmt: skip

    assert dry_run(cluster, *options)["sent"] == ({"orders": len(expected)} if expected else {})
    resend_successfully(cluster, *options)

    assert bodies(cluster) == expected
    assert cluster.broker().state.offsets == {}


def test_dead_letters_go_to_another_topic_once(cluster: FakeCluster) -> None:
    """The copy has the same id; a second call skips what the target has, except with --from-start."""
    store_dead_letter(cluster, b"1", topic=None)
    first = json.loads(resend_successfully(cluster, "--to-topic", "bills", "--json"))
    second = json.loads(resend_successfully(cluster, "--to-topic", "bills", "--json"))
    third = json.loads(resend_successfully(cluster, "--to-topic", "bills", "--json", "--from-start"))

    assert [first["sent"], second["sent"], third["sent"]] == [{"bills": 1}, {}, {"bills": 1}]
    assert second["resent_before"] == [f"{0:032d}"]
    assert (bodies(cluster, "bills"), bodies(cluster)) == ([b"1", b"1"], [])


def test_missing_target_topic_is_not_created(cluster: FakeCluster) -> None:
    """A mistyped target is a failure that names it, in the dry run, too."""
    store_dead_letter(cluster, b"1")
    planned = dry_run(cluster, "--to-topic", "ordres")
    failed = resend(cluster, "--to-topic", "ordres")

    assert (planned["sent"], planned["failed"]) == ({}, [f"{0:032d}"])
    assert (failed.exit_code, "'ordres'" in failed.stderr) == (1, True)
    assert cluster.broker().messages("ordres") == []


def test_execution_is_what_the_dry_run_listed(cluster: FakeCluster, tmp_path: Path) -> None:
    """With the digest of a dry run, the same messages have an outcome, with the ids of their copies."""
    for number in range(3):
        store_dead_letter(cluster, b"%d" % number, topic=None if number == 1 else "orders")
    planned, done = tmp_path / "planned", tmp_path / "done"
    digest = dry_run(cluster, "--outcomes", str(planned))["digest"]
    resend_successfully(cluster, "--digest", digest, "--outcomes", str(done))

    before, after = lines_of(planned), lines_of(done)
    places = ("broker", "queue_id", "offset", "message_id", "target", "bytes")
    assert [[line[name] for name in places] for line in before] == [[line[name] for name in places] for line in after]
    assert [line["outcome"] for line in before] == ["send", "no original topic", "send"]
    assert [line["outcome"] for line in after] == ["sent", "skipped", "sent"]
    assert [line["new_offset_message_id"] for line in after if line["outcome"] == "sent"] == [
        message.offset_message_id for message in cluster.broker().messages("orders")
    ]


def test_changed_set_is_refused(cluster: FakeCluster) -> None:
    """After another dead letter has arrived, the digest is another one, and nothing is sent."""
    store_dead_letter(cluster, b"1")
    digest = dry_run(cluster)["digest"]
    store_dead_letter(cluster, b"2")
    refused = resend(cluster, "--digest", digest)

    assert (refused.exit_code, bodies(cluster)) == (1, [])
    assert "changed since the dry run" in refused.stderr
    assert resend_successfully(cluster, "--digest", dry_run(cluster)["digest"]) == "sent to orders: 2\n"


def test_failure_in_the_middle_is_the_outcome_of_its_message(cluster: FakeCluster, tmp_path: Path) -> None:
    """Of a selection, the messages after one failure are sent; each has its own outcome."""
    for number in range(3):
        store_dead_letter(cluster, b"%d" % number)
    state = cluster.broker().state
    answers = iter([fake_send, None, fake_send])

    def send_or_refuse(command: Command, connection: Connection) -> Command:
        send = next(answers)
        return command.reply(13, "no such message") if send is None else send(state, command, connection)

    cluster.broker().fault(RequestCode.SEND_MESSAGE_V2, send_or_refuse, times=3)
    failed = resend(cluster, "--tags", "t", "--outcomes", str(tmp_path / "done"))

    assert (failed.exit_code, bodies(cluster)) == (1, [b"0", b"2"])
    lines = lines_of(tmp_path / "done")
    assert [line["outcome"] for line in lines] == ["sent", "failed", "sent"]
    assert "no such message" in lines[1]["reason"]


@pytest.mark.parametrize("outcome", ["unknown", "sent"], ids=["no answer", "twin: answered"])
def test_send_without_an_answer_is_unknown(cluster: FakeCluster, tmp_path: Path, outcome: str) -> None:
    """A broker that stores the message and does not answer: its outcome is unknown, never sent."""
    store_dead_letter(cluster, b"1")
    state = cluster.broker().state

    def answer_or_not(command: Command, connection: Connection) -> Command | None:
        answer = fake_send(state, command, connection)
        return None if outcome == "unknown" else answer

    cluster.broker().fault(RequestCode.SEND_MESSAGE_V2, answer_or_not, times=100)
    result = resend(cluster, "--tags", "t", "--outcomes", str(tmp_path / "done"))

    assert [line["outcome"] for line in lines_of(tmp_path / "done")] == [outcome]
    assert result.exit_code == (1 if outcome == "unknown" else 0)


def test_message_of_a_topic_is_sent_again(cluster: FakeCluster) -> None:
    """It is chosen by its position, and sent to another topic, or to its own where it then has a copy."""
    store_dead_letter(cluster, b"1")
    resend_successfully(cluster)
    words = ["message", "resend", "orders/broker-a/0@0", "-n", cluster.name_server]
    to_bills = CliRunner().invoke(cli, [*words, "--to-topic", "bills"])
    to_orders = CliRunner().invoke(cli, words)
    again = CliRunner().invoke(cli, words)
    included = CliRunner().invoke(cli, [*words, "--include-resent"])

    assert [to_bills.output, to_orders.output] == ["sent to bills: 1\n", "sent to orders: 1\n"]
    assert again.output == f"No messages of orders to send\nskipped, resent before: {0:032d}\n"
    assert (included.output, bodies(cluster), bodies(cluster, "bills")) == (to_orders.output, [b"1"] * 3, [b"1"])


@pytest.mark.parametrize(
    ("places", "part"),
    [
        (("orders/broker-a/0",), "expected TOPIC/BROKER/QUEUE@OFFSET"),
        (("orders@0",), "expected TOPIC/BROKER/QUEUE@OFFSET"),
        (("orders/broker-a/0@x",), "expected TOPIC/BROKER/QUEUE@OFFSET"),
        (("orders/broker-a/0@0", "bills/broker-a/0@0"), "in several topics, bills, orders"),
    ],
)
def test_invalid_place_is_refused(cluster: FakeCluster, places: tuple[str, ...], part: str) -> None:
    """A text that is no place, and places in several topics, are invalid usage."""
    result = CliRunner().invoke(cli, ["message", "resend", *places, "-n", cluster.name_server])

    assert (result.exit_code, part in result.stderr) == (2, True), result.stderr


# ------- with a real broker


@pytest.mark.verify
async def test_rejected_messages_are_consumed_after_resend(tmp_path: Path) -> None:
    """A consumer rejects messages until they are dead letters, is fixed, and consumes each once after the command."""
    port = free_port()
    servers = [name_server(tmp_path, port), broker(tmp_path, free_broker_port(), port, {"brokerName": "broker-a"})]
    address = f"{HOST}:{port}"
    given_up: list[str] = []
    consumed: list[ReceivedMessage] = []

    async def fail(message: ReceivedMessage) -> None:
        given_up.append(message.message_id)
        raise RetryLater(-1)

    async def consume(message: ReceivedMessage) -> None:
        consumed.append(message)

    first = ConsumerSettings(start_from=StartFrom.FIRST)
    try:
        for server in servers:
            await server.start()
        async with Admin(address) as admin:

            async def is_known() -> bool:
                return bool(await admin.brokers.all())

            await wait_until(is_known, timeout_s=120, what="the registration")
            await admin.topics.create("orders", queues=2)
        async with Producer(address) as producer:
            sent = [await producer.send(Message("orders", b"%d" % number, keys=[f"k{number}"])) for number in range(5)]
        async with PushConsumer(address, GROUP, topics="orders", handler=fail, settings=first):
            await wait_until(lambda: len(given_up) == 5, timeout_s=120, what="the dead letters")

        async with PushConsumer(address, GROUP, topics="orders", handler=consume, settings=first):
            await until_sent(address, 5)
            await wait_until(lambda: len(consumed) == 5, timeout_s=120, what="the resent messages")
    finally:
        for server in reversed(servers):
            await server.kill()

    assert sorted(message.message_id for message in consumed) == sorted(receipt.message_id for receipt in sent)
    assert {(message.body, message.keys, message.reconsume_times) for message in consumed} == {
        (b"%d" % number, (f"k{number}",), 0) for number in range(5)
    }


async def until_sent(address: str, count: int) -> None:
    """Run the command until it has sent `count` dead letters, since the last ones may not be stored yet."""
    total = 0
    async with asyncio.timeout(180):
        while total < count:
            arguments = ["group", "resend", GROUP, "--from-dead-letters", "--json", "-n", address]
            result = await asyncio.to_thread(CliRunner().invoke, cli, arguments)
            if result.exit_code == 0:
                total += json.loads(result.output)["sent"].get("orders", 0)
            await asyncio.sleep(0.05)
    assert total == count
