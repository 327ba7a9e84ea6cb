"""Refusals for a reason of the broker's own: each is counted by reason, and an episode leaves two lines in the log."""

import logging
from pathlib import Path

import pytest

from gantry_broker.errors import DiskTooSlow, LogReadOnly, MessageTooLarge, OutOfDescriptors, PoolExhausted, StoreFull
from gantry_broker.server.core.refusals import EPISODE_GAP_S, Refusal, Refusals, store_refusal
from gantry_remoting.log_deduplicator import KEYS_MAX, LINES_PER_MINUTE_MAX, LogDeduplicator
from gantry_status import RefusalReason
from gantry_testing.local import TOPIC, dialogue, running_broker
from gantry_wire import Command, RequestCode, ResponseCode

FULL = Refusal(ResponseCode.SERVICE_NOT_AVAILABLE, "the disk is full", RefusalReason.DISK_FULL)
BUSY = Refusal(ResponseCode.SYSTEM_BUSY, "busy", RefusalReason.QUEUE_TIMEOUT)
SLAVE = Refusal(ResponseCode.SERVICE_NOT_AVAILABLE, "a slave", RefusalReason.NOT_MASTER)


def events(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str, int | None, float | None]]:
    return [
        (record.levelname, record.__dict__["reason"], record.__dict__.get("refused"), record.__dict__.get("duration_s"))
        for record in caplog.records
        if "refusing requests" in record.getMessage()
    ]


def test_episode_logs_one_line_at_its_start_and_one_at_its_end(caplog: pytest.LogCaptureFixture) -> None:
    """The log has the start of an episode, and at its end the number of refused requests and the duration."""
    caplog.set_level(logging.INFO)
    refusals = Refusals()
    for second in range(10):
        refusals.end_old_episodes(100.0 + second)
        for _ in range(1000):
            refusals.count(BUSY)
        refusals.count(FULL, 5)
    assert events(caplog) == [("WARNING", "queue_timeout", None, None), ("WARNING", "disk_full", None, None)]

    refusals.end_old_episodes(109.0 + EPISODE_GAP_S - 0.1)
    assert len(events(caplog)) == 2
    refusals.end_old_episodes(109.0 + EPISODE_GAP_S)

    assert events(caplog)[2:] == [("INFO", "queue_timeout", 10_000, 9.0), ("INFO", "disk_full", 50, 9.0)]
    refusals.count(BUSY)
    assert events(caplog)[4:] == [("WARNING", "queue_timeout", None, None)]
    assert refusals.counts[RefusalReason.QUEUE_TIMEOUT] == 10_001


def test_refusals_by_role_are_no_warnings(caplog: pytest.LogCaptureFixture) -> None:
    """Clients that still send to a slave are part of every change of masters."""
    caplog.set_level(logging.INFO)
    refusals = Refusals()
    refusals.count(SLAVE)
    refusals.close()

    assert [level for level, *_ in events(caplog)] == ["INFO", "INFO"]


def test_invalid_request_is_not_counted_as_refused(caplog: pytest.LogCaptureFixture) -> None:
    """A too large message is an error of its sender, not of the broker."""
    refusals = Refusals()
    reply = refusals.reply(Command(code=310), store_refusal(MessageTooLarge("5 MiB")))

    assert (reply.code, sum(refusals.counts.values()), caplog.records) == (ResponseCode.MESSAGE_ILLEGAL, 0, [])


@pytest.mark.parametrize(
    ("error", "code", "reason"),
    [
        (DiskTooSlow("x"), 14, RefusalReason.DISK_TOO_SLOW),
        (StoreFull("x"), 14, RefusalReason.DISK_FULL),
        (OutOfDescriptors("x"), 14, RefusalReason.OUT_OF_DESCRIPTORS),
        (PoolExhausted("x"), 2, RefusalReason.NO_WRITE_BUFFER),
        (LogReadOnly("x"), 14, RefusalReason.LOG_READ_ONLY),
        (OSError(5, "I/O error"), 1, RefusalReason.STORE_FAILED),
    ],
    ids=["slow-disk", "full-disk", "no-descriptor", "no-buffer", "read-only", "io-error"],
)
def test_each_store_error_has_its_refusal_reason(error: Exception, code: int, reason: RefusalReason) -> None:
    """Each error of the store has a code for clients and a reason for administrators."""
    refusal = store_refusal(error)

    assert (refusal.code, refusal.reason) == (code, reason)


@pytest.mark.parametrize("code", [10, 310, 17], ids=["send", "send-v2", "create-topic"])
async def test_refusals_of_the_gate_are_counted(tmp_path: Path, code: int) -> None:
    """A broker with a closed gate counts each send and each change that it refuses with code 14."""
    async with running_broker(tmp_path) as broker, dialogue(broker) as client:
        broker.core.gate.refuse_changes("the test closes it")
        for _ in range(3):
            reply = await client.ask(code, {"topic": "T"}) if code == 17 else await client.send(code=code)
            assert reply.code == ResponseCode.SERVICE_NOT_AVAILABLE

        assert broker.status.snapshot().refused_requests[RefusalReason.NOT_MASTER] == 3
        broker.core.gate.accept_all()


def lines(caplog: pytest.LogCaptureFixture, text: str) -> list[dict[str, object]]:
    return [record.__dict__ for record in caplog.records if record.getMessage().startswith(text)]


async def test_unsupported_request_code_is_counted_and_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Each request is counted; a line names code and client, for unknown codes and for those of RocketMQ."""
    async with running_broker(tmp_path) as broker, dialogue(broker) as client:
        for code in (4711, 4711, 4711, RequestCode.POP_LITE_MESSAGE, RequestCode.POP_LITE_MESSAGE):
            assert (await client.ask(code)).code == 3

        assert broker.core.stats.refusals.counts[RefusalReason.UNKNOWN_REQUEST] == 5
        assert broker.status.snapshot().refused_requests[RefusalReason.UNKNOWN_REQUEST] == 5
    logged = lines(caplog, "refused request code that is not supported")
    assert [(line["code"], line["request"], line["client"]) for line in logged] == [
        (4711, "unknown", "127.0.0.1"), (RequestCode.POP_LITE_MESSAGE, "POP_LITE_MESSAGE", "127.0.0.1"),
    ]  # fmt: skip


async def test_refused_property_filter_is_counted_and_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Go's client repeats the request and reports no error: the broker logs the group whose filter it refuses."""
    async with running_broker(tmp_path) as broker, dialogue(broker) as client:
        await client.send_ok(b"x")
        for _ in range(3):
            reply = await client.pull(0, expressionType="SQL92", subscription="price > 5")
            assert (reply.code, "does not support consumer to filter" in (reply.remark or "")) == (1, True)

        assert broker.core.stats.refusals.counts[RefusalReason.PROPERTY_FILTER] == 3
    [line] = lines(caplog, "refused property filter")
    assert (line["topic"], line["expression_type"], line["levelname"]) == (TOPIC, "SQL92", "WARNING")


def test_lines_about_first_refusals_are_limited() -> None:
    """A client that invents request codes causes a limited number of lines per minute, and takes limited memory."""
    seconds = [0.0]
    first = LogDeduplicator(clock=lambda: seconds[0])
    assert [first.is_new("a"), first.is_new("a")] == [True, False]
    assert sum(first.is_new(number) for number in range(100_000)) == LINES_PER_MINUTE_MAX - 1
    for minute in range(1, 3 * KEYS_MAX // LINES_PER_MINUTE_MAX):
        seconds[0] = 60.0 * minute
        for number in range(LINES_PER_MINUTE_MAX):
            first.is_new((minute, number))
    assert repr(first) == f"<LogDeduplicator keys={KEYS_MAX}>"
    assert first.is_new("a") is False, "expected no line left in this minute"
    seconds[0] += 60.0
    assert first.is_new("a") is True, "expected the oldest key to be forgotten"
