"""Transactions over real sockets are atomic, also after a change of producers and with a torn log."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from gantry_broker.app import Broker
from gantry_broker.errors import BrokerError
from gantry_broker.ports.real_disk import RealDisk
from gantry_broker.server.transactions.endings import TransactionEndings
from gantry_broker.server.transactions.journal import TransactionWriter
from gantry_broker.store.checkpoint import decode_checkpoint, encode_checkpoint
from gantry_broker.store.draft import Draft
from gantry_broker.store.identity import IdentityFile
from gantry_broker.store.reader import ReadResult
from gantry_testing.local import TOPIC, Dialogue, dialogue, properties_text, running_broker, wait_until
from gantry_wire import Command, RequestCode, ResponseCode, names
from gantry_wire import properties as keys
from gantry_wire.commands.transactions import EndTransaction
from gantry_wire.message import TRANSACTION_COMMIT, TRANSACTION_MASK, StoredMessage, decode_record, decode_records
from gantry_wire.unique_id import UniqueIds

COMMIT, ROLL_BACK, UNKNOWN = "8", "12", "0"
GROUP = "producers"
_unique_ids = UniqueIds(b"\x7f\x00\x00\x01", salt=1)


@asynccontextmanager
async def asking_broker(path: Path, **conf: str) -> AsyncIterator[Broker]:
    """Start a broker that soon checks open transactions."""
    soon = {"transactionTimeOut": "100", "transactionCheckInterval": "200", **conf}
    async with running_broker(path, disk=None, clock=None, **soon) as broker:
        yield broker


async def prepare(peer: Dialogue, body: bytes, queue_id: int = 0, **properties: str) -> dict[str, str]:
    """The answer to a half message, with the unique id that it was given."""
    unique = _unique_ids.next(1_700_000_000_000)
    text = properties_text(UNIQ_KEY=unique, TRAN_MSG="true", PGROUP=GROUP, **properties)
    born = str(int(time.time() * 1000))
    reply = await peer.send_ok(body, properties=text, bornTimestamp=born, sysFlag="4", queueId=str(queue_id))
    return {**reply, "unique": unique}


def end_ext(half: dict[str, str], how: str, **fields: str) -> dict[str, str]:
    return {
        "producerGroup": GROUP,
        "tranStateTableOffset": half["queueOffset"],
        "commitLogOffset": str(int(half["msgId"][16:], 16)),
        "commitOrRollback": how,
        "fromTransactionCheck": "false",
        "msgId": half["unique"],
        **fields,
    }


async def end_transaction(peer: Dialogue, half: dict[str, str], how: str, **fields: str) -> Command:
    return await peer.ask(RequestCode.END_TRANSACTION, end_ext(half, how, **fields))


async def bodies(peer: Dialogue, topic: str = TOPIC) -> list[bytes]:
    return [message.body for message in await peer.read(0, topic=topic)]


def check_requests(peer: Dialogue) -> list[Command]:
    return [command for command in peer.pushed if command.code == RequestCode.CHECK_TRANSACTION_STATE]


def half_message_of(question: Command) -> StoredMessage:
    return decode_record(question.body)


def answer_ext(question: Command, how: str) -> dict[str, str]:
    """As RocketMQ's client answers a question."""
    return {
        "producerGroup": GROUP,
        "tranStateTableOffset": question.ext["tranStateTableOffset"],
        "commitLogOffset": question.ext["commitLogOffset"],
        "commitOrRollback": how,
        "fromTransactionCheck": "true",
        "msgId": question.ext["msgId"],
    }


async def test_half_message_is_visible_only_after_its_commit(tmp_path: Path) -> None:
    """It is delivered to its own topic and queue, with the commit bits and the offset of the half message."""
    async with running_broker(tmp_path) as broker, dialogue(broker) as peer:
        half = await prepare(peer, b"all", TAGS="a", KEYS="k1")
        assert await bodies(peer) == []
        assert half["queueId"] == "0"

        assert (await end_transaction(peer, half, COMMIT)).code == 0
        [message] = await peer.read(0)
        assert (message.body, message.topic, message.queue_offset) == (b"all", TOPIC, 0)
        assert message.sys_flag & TRANSACTION_MASK == TRANSACTION_COMMIT
        assert message.prepared_offset == int(half["msgId"][16:], 16)
        assert message.properties[keys.UNIQUE_KEY] == half["unique"]
        assert message.properties[keys.TAGS] == "a"
        await wait_until(lambda: len(broker.transactions.journal.halves) == 0)


async def test_rolled_back_message_is_never_visible(tmp_path: Path) -> None:
    """A rolled back transaction is not checked either."""
    async with asking_broker(tmp_path) as broker, dialogue(broker) as peer:
        half = await prepare(peer, b"nothing")
        assert (await end_transaction(peer, half, ROLL_BACK)).code == 0
        await peer.heartbeat("p")  # before it the broker asks no producer about the transaction
        other = await prepare(peer, b"all")

        await wait_until(lambda: bool(check_requests(peer)))
        assert {question.ext["msgId"] for question in check_requests(peer)} == {other["unique"]}
        assert await bodies(peer) == []


@pytest.mark.parametrize("how", [COMMIT, ROLL_BACK], ids=["commit", "roll-back"])
async def test_ending_twice_stores_once(tmp_path: Path, how: str) -> None:
    """The same outcome again succeeds, also after a restart; the other one is refused."""
    other = ROLL_BACK if how == COMMIT else COMMIT
    async with running_broker(tmp_path) as broker, dialogue(broker) as peer:
        half = await prepare(peer, b"once")
        assert [(await end_transaction(peer, half, how)).code for _ in range(2)] == [0, 0]
        assert (await end_transaction(peer, half, other)).code == ResponseCode.ILLEGAL_OPERATION
    async with running_broker(tmp_path) as broker, dialogue(broker) as peer:
        assert (await end_transaction(peer, half, how)).code == 0
        assert (await end_transaction(peer, half, other)).code == ResponseCode.ILLEGAL_OPERATION
        assert await bodies(peer) == ([b"once"] if how == COMMIT else [])


async def test_mismatched_end_ends_nothing(tmp_path: Path) -> None:
    """Another group, another place, nothing there at all: code 1, as in RocketMQ. Unknown is not answered."""
    async with running_broker(tmp_path) as broker, dialogue(broker) as peer:
        half = await prepare(peer, b"x")
        for wrong in (
            {"producerGroup": "others"},
            {"commitLogOffset": "12"},
            {"tranStateTableOffset": "7"},
            {"tranStateTableOffset": "-1"},
        ):
            assert (await end_transaction(peer, half, COMMIT, **wrong)).code == ResponseCode.SYSTEM_ERROR, wrong
        peer.send_oneway(RequestCode.END_TRANSACTION, end_ext(half, UNKNOWN))
        assert await bodies(peer) == []
        assert len(broker.transactions.journal.halves) == 1
        assert (await end_transaction(peer, half, COMMIT)).code == 0
        assert await bodies(peer) == [b"x"]


async def test_producer_is_checked_and_its_answer_counts(tmp_path: Path) -> None:
    """The check has the message as in its own topic, and goes to any producer of the group, also a later one."""
    async with asking_broker(tmp_path) as broker, dialogue(broker) as peer:
        half = await prepare(peer, b"asked", TAGS="t")
        await peer.close()
        async with dialogue(broker) as other:
            await other.heartbeat("another")
            await wait_until(lambda: bool(check_requests(other)))
            question = check_requests(other)[0]
            about = half_message_of(question)
            assert (about.topic, about.body, question.ext["msgId"]) == (TOPIC, b"asked", half["unique"])
            assert about.properties[keys.PRODUCER_GROUP] == GROUP
            assert int(question.ext["commitLogOffset"]) == about.physical_offset

            other.send_oneway(RequestCode.END_TRANSACTION, answer_ext(question, COMMIT))
            await wait_until(lambda: broker.transactions.endings.committed_count == 1)
            assert await bodies(other) == [b"asked"]


async def test_late_end_finds_the_newest_copy(tmp_path: Path) -> None:
    """The half message was stored again, but the producer knows only its first offset."""
    async with asking_broker(tmp_path) as broker, dialogue(broker) as peer:
        await peer.heartbeat("p")
        half = await prepare(peer, b"late")
        await wait_until(lambda: len(check_requests(peer)) >= 2)

        assert (await end_transaction(peer, half, COMMIT)).code == 0
        assert await bodies(peer) == [b"late"]
        asked = len(check_requests(peer))
        assert (await peer.ask(RequestCode.END_TRANSACTION, answer_ext(check_requests(peer)[0], ROLL_BACK))).code != 0
        assert (await bodies(peer), len(check_requests(peer))) == ([b"late"], asked)


async def test_transaction_without_an_end_is_given_up(tmp_path: Path) -> None:
    """After the maximum of checks the message is in TRANS_CHECK_MAX_TIME_TOPIC, and was never delivered."""
    async with asking_broker(tmp_path, transactionCheckMax="2") as broker, dialogue(broker) as peer:
        await peer.heartbeat("p")
        half = await prepare(peer, b"who knows")
        await wait_until(lambda: broker.transactions.checker.given_up_count == 1)

        assert len(check_requests(peer)) == 2
        assert await bodies(peer) == []
        assert await bodies(peer, names.CHECK_MAX_TIME_TOPIC) == [b"who knows"]
        assert (await end_transaction(peer, half, COMMIT)).code == ResponseCode.ILLEGAL_OPERATION
        await wait_until(lambda: len(broker.transactions.journal.halves) == 0)


async def test_checks_without_a_producer_do_not_count(tmp_path: Path) -> None:
    """A producer that was away for a while finds its transactions unchanged."""
    async with asking_broker(tmp_path, transactionCheckMax="1") as broker, dialogue(broker) as peer:
        await prepare(peer, b"x")
        rounds = broker.delay.rounds
        await wait_until(lambda: broker.delay.rounds > rounds + 5)
        assert (broker.transactions.checker.check_count, broker.transactions.checker.given_up_count) == (0, 0)
        await peer.heartbeat("p")
        await wait_until(lambda: bool(check_requests(peer)))


async def test_restart_loses_no_transaction_and_repeats_none(tmp_path: Path) -> None:
    """Open transactions are checked, ended ones are not; a restart reads from the restart offsets."""
    async with running_broker(tmp_path, flushCommitLogThoroughInterval="1") as broker, dialogue(broker) as peer:
        ended = [await prepare(peer, b"old") for _ in range(3)]
        for half, how in zip(ended, (COMMIT, ROLL_BACK, COMMIT), strict=True):
            assert (await end_transaction(peer, half, how)).code == 0
        opened = await prepare(peer, b"open")
        await wait_until(lambda: broker.core.offsets.find(names.TRANSACTION_GROUP, names.HALF_TOPIC, 0) == 3)
    async with asking_broker(tmp_path) as broker, dialogue(broker) as peer:
        await peer.heartbeat("p")
        await wait_until(lambda: bool(check_requests(peer)))
        assert {question.ext["msgId"] for question in check_requests(peer)} == {opened["unique"]}
        assert (await end_transaction(peer, opened, COMMIT)).code == 0
        assert await bodies(peer) == [b"old", b"old", b"open"]


@pytest.mark.parametrize("is_looked_up", [True, False], ids=["looked-up", "not looked up, the twin"])
async def test_commit_without_its_torn_off_op_message_is_not_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_looked_up: bool
) -> None:
    """The log may be torn between the two; then the half message seems open, and its producer commits again."""

    def torn(self: TransactionWriter, half: object, outcome: object, drafts: list[Draft]) -> None:
        self._core.store.append_contiguous(drafts)
        raise BrokerError("killed here")

    with monkeypatch.context() as patch:
        patch.setattr(TransactionWriter, "end", torn)
        async with running_broker(tmp_path) as broker, dialogue(broker) as peer:
            half = await prepare(peer, b"once")
            assert (await end_transaction(peer, half, COMMIT)).code != 0
    if not is_looked_up:
        monkeypatch.setattr(TransactionEndings, "_was_committed", lambda *_: False)
    async with running_broker(tmp_path) as broker, dialogue(broker) as peer:
        assert (await end_transaction(peer, half, COMMIT)).code == 0
        assert await bodies(peer) == ([b"once"] if is_looked_up else [b"once", b"once"])


async def test_producer_may_set_an_immunity_time(tmp_path: Path) -> None:
    """With CHECK_IMMUNITY_TIME_IN_SECONDS it is not checked before; and it cannot end it afterwards: code 604."""
    async with asking_broker(tmp_path) as broker, dialogue(broker) as peer:
        await peer.heartbeat("p")
        patient = await prepare(peer, b"patient", CHECK_IMMUNITY_TIME_IN_SECONDS="3600")
        immediate = await prepare(peer, b"immediate", CHECK_IMMUNITY_TIME_IN_SECONDS="0")
        await wait_until(lambda: bool(check_requests(peer)))

        assert {question.ext["msgId"] for question in check_requests(peer)} == {immediate["unique"]}
        assert (await end_transaction(peer, immediate, COMMIT)).code == ResponseCode.ILLEGAL_OPERATION
        assert (await end_transaction(peer, patient, COMMIT)).code == 0
        assert await bodies(peer) == [b"patient"]


async def test_transactions_can_be_refused(tmp_path: Path) -> None:
    """rejectTransactionMessage=true: code 16, and nothing is stored."""
    async with running_broker(tmp_path, rejectTransactionMessage="true") as broker, dialogue(broker) as peer:
        text = properties_text(UNIQ_KEY=_unique_ids.next(1), TRAN_MSG="true", PGROUP=GROUP)
        assert (await peer.send(b"x", properties=text)).code == ResponseCode.NO_PERMISSION
        assert broker.store.log.wrote == 0


async def test_commit_makes_a_queue_readable_that_a_crash_removed(tmp_path: Path) -> None:
    """The topic may be lost, and created again from the queues with messages: the commit adds its queue again."""
    async with running_broker(tmp_path) as broker, dialogue(broker) as peer:
        await peer.send_ok(b"plain", queueId="0")
        half = await prepare(peer, b"all", 3)
    for path in (tmp_path / "config").glob("topics.json*"):
        path.unlink()
    async with running_broker(tmp_path) as broker, dialogue(broker) as peer:
        config = broker.core.topics.find(TOPIC)
        assert config is not None and config.read_queue_nums == 1
        assert (await end_transaction(peer, half, COMMIT)).code == 0
        assert [message.body for message in await peer.read(0, queueId="3")] == [b"all"]


async def test_half_message_is_never_visible(tmp_path: Path) -> None:
    """It is not found by key, unique id or offset, not pulled from its topic, and cannot be sent back to a group."""
    async with running_broker(tmp_path) as broker, dialogue(broker) as peer:
        half = await prepare(peer, b"secret", KEYS="k1")
        place = str(int(half["msgId"][16:], 16))
        for topic in (TOPIC, names.HALF_TOPIC):
            for key in ("k1", half["unique"]):
                ext = {"topic": topic, "key": key, "maxNum": "9", "beginTimestamp": "0", "endTimestamp": str(1 << 60)}
                assert (await peer.ask(RequestCode.QUERY_MESSAGE, ext)).code == ResponseCode.QUERY_NOT_FOUND
        assert (await peer.ask(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": place})).code == ResponseCode.SYSTEM_ERROR
        assert (await peer.ask(RequestCode.GET_MAX_OFFSET, {"topic": TOPIC, "queueId": "0"})).ext["offset"] == "0"
        assert (await peer.pull(0, topic=names.HALF_TOPIC)).code == ResponseCode.NO_PERMISSION
        back = {"offset": place, "group": "GroupTest", "delayLevel": "0", "originTopic": TOPIC}
        assert (await peer.ask(RequestCode.CONSUMER_SEND_MSG_BACK, back)).code == ResponseCode.SYSTEM_ERROR

        assert (await end_transaction(peer, half, COMMIT)).code == 0
        [message] = await peer.read(0)
        view = await peer.ask(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": str(message.physical_offset)})
        assert decode_record(view.body).body == b"secret"


async def test_end_cannot_name_two_messages(tmp_path: Path) -> None:
    """Access control checks the log offset, so it must be that of the half message."""
    async with asking_broker(tmp_path) as broker, dialogue(broker) as peer:
        await peer.heartbeat("p")
        half = await prepare(peer, b"x")
        other = await prepare(peer, b"mine")
        await wait_until(lambda: len(check_requests(peer)) >= 4)
    async with running_broker(tmp_path) as broker, dialogue(broker) as peer:
        mixed = {**end_ext(half, COMMIT), "commitLogOffset": end_ext(other, COMMIT)["commitLogOffset"]}
        assert (await peer.ask(RequestCode.END_TRANSACTION, mixed)).code == ResponseCode.SYSTEM_ERROR
        assert await bodies(peer) == []
        assert (await end_transaction(peer, half, COMMIT)).code == 0
        assert await bodies(peer) == [b"x"]


async def test_end_between_a_check_and_its_reading_ends_both_copies(tmp_path: Path) -> None:
    """The producer commits after the half message was stored again, before that is read: it is committed once."""
    async with asking_broker(tmp_path) as broker, dialogue(broker) as peer:
        half = await prepare(peer, b"once")
        await wait_until(lambda: len(broker.transactions.journal.halves) == 1)
        journal = broker.transactions.journal
        found = journal.halves.find(0)
        assert found is not None
        message = journal.read_message(found)
        assert message is not None and broker.transactions.writer.renew(found, message) is not None
        ended = broker.transactions.endings.end(EndTransaction.read(end_ext(half, COMMIT)))
        assert ended is not None and ended.code == 0

        await peer.heartbeat("p")  # before it the broker asks no producer about the transaction
        last = await prepare(peer, b"later")
        await wait_until(lambda: any(one.ext["msgId"] == last["unique"] for one in check_requests(peer)))
        assert {question.ext["msgId"] for question in check_requests(peer)} == {last["unique"]}
        assert await bodies(peer) == [b"once"]
    async with asking_broker(tmp_path) as broker, dialogue(broker) as peer:
        await peer.heartbeat("p")
        await wait_until(lambda: bool(check_requests(peer)))
        assert (await end_transaction(peer, half, ROLL_BACK)).code == ResponseCode.ILLEGAL_OPERATION
        assert {question.ext["msgId"] for question in check_requests(peer)} == {last["unique"]}


async def test_repeated_commit_is_found_by_the_first_offset(tmp_path: Path) -> None:
    """It was stored again, checked, and ended under its last offset; also after a restart."""
    async with asking_broker(tmp_path) as broker, dialogue(broker) as peer:
        await peer.heartbeat("p")
        half = await prepare(peer, b"once")
        await wait_until(lambda: len(check_requests(peer)) >= 2)
        peer.send_oneway(RequestCode.END_TRANSACTION, answer_ext(check_requests(peer)[-1], COMMIT))
        await wait_until(lambda: broker.transactions.endings.committed_count == 1)
        assert (await end_transaction(peer, half, COMMIT)).code == 0
    async with running_broker(tmp_path) as broker, dialogue(broker) as peer:
        assert (await end_transaction(peer, half, COMMIT)).code == 0
        assert (await end_transaction(peer, half, ROLL_BACK)).code == ResponseCode.ILLEGAL_OPERATION
        assert await bodies(peer) == [b"once"]


def draft_of_apache(broker: Broker, topic: str, body: bytes, properties: dict[str, str]) -> Draft:
    """A message as RocketMQ's broker appends it."""
    now_ms = int(time.time() * 1000)
    return Draft(
        queue=broker.store.queues.get_or_create(topic, 0), body=body,
        properties=keys.encode_properties(properties), sys_flag=0, flag=0,
        born_timestamp_ms=now_ms, born_host=bytes(8), reconsume_times=0, prepared_offset=0, tags_code=0,
        delay_ms=0, keys=(),
    )  # fmt: skip


async def test_transaction_ended_by_rocketmq_is_not_open(tmp_path: Path) -> None:
    """RocketMQ's op messages name several half messages, 4.9's one without a comma; neither has the outcome."""
    async with running_broker(tmp_path) as broker, dialogue(broker) as peer:
        halves = [await prepare(peer, f"{number}".encode()) for number in range(5)]
        drafts = [
            draft_of_apache(broker, names.OP_HALF_TOPIC, body, {keys.TAGS: "d"}) for body in (b"0,2,", b"3", b"junk,")
        ]
        broker.store.append(drafts)
        await wait_until(lambda: len(broker.transactions.journal.halves) == 2)
        assert [(await end_transaction(peer, half, COMMIT)).code for half in halves] == [1, 0, 1, 1, 0]
        assert await bodies(peer) == [b"1", b"4"]
    async with running_broker(tmp_path) as broker, dialogue(broker) as peer:
        assert (await end_transaction(peer, halves[2], COMMIT)).code == ResponseCode.SYSTEM_ERROR
        assert await bodies(peer) == [b"1", b"4"]


async def test_transaction_with_a_lost_end_is_checked_again(tmp_path: Path) -> None:
    """A power loss tears off a rollback that was not flushed: the transaction is open, and can be ended again."""
    async with running_broker(tmp_path) as broker, dialogue(broker) as peer:
        half = await prepare(peer, b"nothing")
        before = broker.store.log.wrote
        assert (await end_transaction(peer, half, ROLL_BACK)).code == 0
    lose_log_tail(tmp_path, before)
    async with asking_broker(tmp_path) as broker, dialogue(broker) as peer:
        await peer.heartbeat("p")
        await wait_until(lambda: bool(check_requests(peer)))
        assert check_requests(peer)[0].ext["msgId"] == half["unique"]
        assert (await end_transaction(peer, half, ROLL_BACK)).code == 0
        assert await bodies(peer) == []


def lose_log_tail(store: Path, log_end: int) -> None:
    """Zero the log from an offset on, and remove the marks of a clean stop, as after a power loss before the flush."""
    with (store / "commitlog" / f"{0:020d}").open("r+b") as file:
        size = file.seek(0, 2)
        file.seek(log_end)
        file.write(bytes(size - log_end))
    (store / "recovery-point.json").unlink(missing_ok=True)
    checkpoint = store / "checkpoint"
    facts = decode_checkpoint(checkpoint.read_bytes())
    checkpoint.write_bytes(encode_checkpoint(facts._replace(flushed=min(facts.flushed, log_end))))
    identities = IdentityFile(RealDisk(), str(store))
    identity = identities.read()
    assert identity is not None
    identities.write(msgspec.structs.replace(identity, log_end=min(identity.log_end, log_end)))
    (store / "log-end").unlink()
    (store / "abort").touch()


async def test_half_message_in_a_deleted_file_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a full disk the file of an open half message may be deleted; it is lost, and the others continue."""
    async with asking_broker(tmp_path) as broker, dialogue(broker) as peer:
        gone, there = await prepare(peer, b"gone"), await prepare(peer, b"there")
        await wait_until(lambda: len(broker.transactions.journal.halves) == 2)
        first, read = int(gone["msgId"][16:], 16), broker.transactions.journal.read_half_at
        monkeypatch.setattr(
            broker.transactions.journal.__class__,
            "read_half_at",
            lambda _, place, *, is_known=False: None if place == first else read(place, is_known=is_known),
        )
        assert (await end_transaction(peer, gone, COMMIT)).code == ResponseCode.SYSTEM_ERROR
        await peer.heartbeat("p")
        await wait_until(lambda: bool(check_requests(peer)) and len(broker.transactions.journal.halves) == 1)
        assert (await end_transaction(peer, there, COMMIT)).code == 0
        assert await bodies(peer) == [b"there"]


class ReadCounter:
    """Counts the reads of messages from the store."""

    def __init__(self, broker: Broker, patch: pytest.MonkeyPatch) -> None:
        self.records = 0
        read, message_at = broker.store.read, broker.store.guard.message_at

        def counted_read(*given: object, **named: object) -> ReadResult:
            result: ReadResult = read(*given, **named)  # type: ignore[arg-type]
            self.records += len(decode_records(result.body))
            return result

        def counted_message_at(physical_offset: int, *, is_known: bool = False) -> bytes | None:
            self.records += 1
            return message_at(physical_offset, is_known=is_known)

        patch.setattr(broker.store, "read", counted_read)
        patch.setattr(broker.store.guard, "message_at", counted_message_at)


@pytest.mark.parametrize("others", [0, 2000], ids=["alone", "beside-many"])
async def test_ending_does_not_read_open_transactions_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, others: int
) -> None:
    """100 open transactions read only their own messages: two for each half message, one for each op message."""
    never = "3600000"  # a question that is due reads, too, and thousands of sends take their time
    async with running_broker(tmp_path, transactionTimeOut=never) as broker, dialogue(broker) as peer:
        for number in range(others):
            await prepare(peer, b"other %d" % number)
        await wait_until(lambda: len(broker.transactions.journal.halves) == others)
        with monkeypatch.context() as patch:
            reads = ReadCounter(broker, patch)
            halves = [await prepare(peer, b"x") for _ in range(100)]
            assert {(await end_transaction(peer, half, COMMIT)).code for half in halves} == {0}
            await wait_until(lambda: len(broker.transactions.journal.halves) == others)
            await wait_until(lambda: reads.records >= 300)
            assert reads.records == 300


async def test_start_with_many_open_transactions_answers_the_first_end(tmp_path: Path) -> None:
    """They are read once, in slices; an end that comes meanwhile waits for its answer and is not refused."""
    async with running_broker(tmp_path) as broker, dialogue(broker) as peer:
        halves = [await prepare(peer, b"%d" % number) for number in range(1000)]
    async with running_broker(tmp_path) as broker, dialogue(broker) as peer:
        assert (await end_transaction(peer, halves[-1], COMMIT)).code == 0
        assert len(broker.transactions.journal.halves) == 999
        assert await bodies(peer) == [b"999"]


@pytest.mark.parametrize("days", [365, -365], ids=["ahead", "behind"])
async def test_producer_with_a_wrong_clock_is_checked_in_time(tmp_path: Path, days: int) -> None:
    """Otherwise the check would come a year late, or the transaction be given up before its end."""
    async with asking_broker(tmp_path) as broker, dialogue(broker) as peer:
        await peer.heartbeat("p")
        text = properties_text(UNIQ_KEY=_unique_ids.next(1), TRAN_MSG="true", PGROUP=GROUP)
        await peer.send_ok(b"x", properties=text, bornTimestamp=str(int(time.time() * 1000) + days * 86_400_000))
        await wait_until(lambda: len(check_requests(peer)) >= 2)
        assert broker.transactions.checker.given_up_count == 0
