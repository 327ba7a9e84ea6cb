"""Transactions over real sockets: all or nothing, whoever is asked, and whatever was torn."""

from __future__ import annotations

from pathlib import Path

import pytest

from gantry_broker.errors import BrokerError
from gantry_broker.server.transactions.service import Transactions
from gantry_broker.store.draft import Draft
from gantry_broker.testing.local import TOPIC, Dialogue, dialogue, properties_text, running_broker, wait_until
from gantry_wire import Command, RequestCode, ResponseCode, names
from gantry_wire import properties as keys
from gantry_wire.message import TRANSACTION_COMMIT, TRANSACTION_MASK, StoredMessage, decode_record
from gantry_wire.unique_id import UniqueIds

COMMIT, ROLL_BACK, UNKNOWN = "8", "12", "0"
SOON = {"transactionTimeOut": "100", "transactionCheckInterval": "200"}
GROUP = "producers"
_unique_ids = UniqueIds(b"\x7f\x00\x00\x01", salt=1)


async def prepare(peer: Dialogue, body: bytes, **properties: str) -> dict[str, str]:
    """The answer to a half message, with the unique id that it was given."""
    unique = _unique_ids.next(1_700_000_000_000)
    text = properties_text(UNIQ_KEY=unique, TRAN_MSG="true", PGROUP=GROUP, **properties)
    import time

    reply = await peer.send_ok(body, properties=text, bornTimestamp=str(int(time.time() * 1000)), sysFlag="4")
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


async def end(peer: Dialogue, half: dict[str, str], how: str, **fields: str) -> Command:
    return await peer.ask(RequestCode.END_TRANSACTION, end_ext(half, how, **fields))


async def bodies(peer: Dialogue, topic: str = TOPIC) -> list[bytes]:
    return [message.body for message in await peer.read(0, topic=topic)]


def questions(peer: Dialogue) -> list[Command]:
    return [command for command in peer.told if command.code == RequestCode.CHECK_TRANSACTION_STATE]


def asked_about(question: Command) -> StoredMessage:
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


async def test_a_half_message_is_seen_when_it_is_committed_and_not_before(tmp_path: Path) -> None:
    """In its own topic and queue, whole, with the transaction's bits and the place of the half message."""
    async with running_broker(tmp_path) as broker, dialogue(broker) as peer:
        half = await prepare(peer, b"all", TAGS="a", KEYS="k1")
        assert await bodies(peer) == []
        assert half["queueId"] == "0"

        assert (await end(peer, half, COMMIT)).code == 0
        [message] = await peer.read(0)
        assert (message.body, message.topic, message.queue_offset) == (b"all", TOPIC, 0)
        assert message.sys_flag & TRANSACTION_MASK == TRANSACTION_COMMIT
        assert message.prepared_offset == int(half["msgId"][16:], 16)
        assert message.properties[keys.UNIQUE_KEY] == half["unique"]
        assert message.properties[keys.TAGS] == "a"
        await wait_until(lambda: broker.transactions.open_count == 0)


async def test_what_is_rolled_back_is_never_seen(tmp_path: Path) -> None:
    """Nor asked about."""
    async with running_broker(tmp_path, **SOON) as broker, dialogue(broker) as peer:
        await peer.heartbeat("p")
        half = await prepare(peer, b"nothing")
        assert (await end(peer, half, ROLL_BACK)).code == 0
        other = await prepare(peer, b"all")

        await wait_until(lambda: bool(questions(peer)))
        assert {question.ext["msgId"] for question in questions(peer)} == {other["unique"]}
        assert await bodies(peer) == []


@pytest.mark.parametrize("how", [COMMIT, ROLL_BACK], ids=["commit", "roll-back"])
async def test_ending_twice_stores_once(tmp_path: Path, how: str) -> None:
    """The second time in the same way is no failure, and after a restart it is none either; otherwise it is refused."""
    other = ROLL_BACK if how == COMMIT else COMMIT
    async with running_broker(tmp_path) as broker, dialogue(broker) as peer:
        half = await prepare(peer, b"once")
        assert [(await end(peer, half, how)).code for _ in range(2)] == [0, 0]
        assert (await end(peer, half, other)).code == ResponseCode.ILLEGAL_OPERATION
    async with running_broker(tmp_path) as broker, dialogue(broker) as peer:
        assert (await end(peer, half, how)).code == 0
        assert (await end(peer, half, other)).code == ResponseCode.ILLEGAL_OPERATION
        assert await bodies(peer) == ([b"once"] if how == COMMIT else [])


async def test_an_end_that_does_not_fit_ends_nothing(tmp_path: Path) -> None:
    """Another group, another place, nothing there at all: code 1, as in RocketMQ. Unknown is not answered."""
    async with running_broker(tmp_path) as broker, dialogue(broker) as peer:
        half = await prepare(peer, b"x")
        for wrong in (
            {"producerGroup": "others"},
            {"commitLogOffset": "12"},
            {"tranStateTableOffset": "7"},
            {"tranStateTableOffset": "-1"},
        ):
            assert (await end(peer, half, COMMIT, **wrong)).code == ResponseCode.SYSTEM_ERROR, wrong
        peer.tell(RequestCode.END_TRANSACTION, end_ext(half, UNKNOWN))
        assert await bodies(peer) == []
        assert broker.transactions.open_count == 1
        assert (await end(peer, half, COMMIT)).code == 0
        assert await bodies(peer) == [b"x"]


async def test_a_producer_is_asked_and_its_answer_counts(tmp_path: Path) -> None:
    """With the message as it would be in its own topic; any producer of the group is asked, also a later one."""
    async with running_broker(tmp_path, **SOON) as broker, dialogue(broker) as peer:
        half = await prepare(peer, b"asked", TAGS="t")
        await peer.close()
        async with dialogue(broker) as other:
            await other.heartbeat("another")
            await wait_until(lambda: bool(questions(other)))
            question = questions(other)[0]
            about = asked_about(question)
            assert (about.topic, about.body, question.ext["msgId"]) == (TOPIC, b"asked", half["unique"])
            assert about.properties[keys.PRODUCER_GROUP] == GROUP
            assert int(question.ext["commitLogOffset"]) == about.physical_offset

            other.tell(RequestCode.END_TRANSACTION, answer_ext(question, COMMIT))
            await wait_until(lambda: broker.transactions.committed == 1)
            assert await bodies(other) == [b"asked"]


async def test_a_late_end_finds_the_message_where_it_is_now(tmp_path: Path) -> None:
    """Though it was stored again, the producer knows its first place only."""
    async with running_broker(tmp_path, **SOON) as broker, dialogue(broker) as peer:
        await peer.heartbeat("p")
        half = await prepare(peer, b"late")
        await wait_until(lambda: len(questions(peer)) >= 2)

        assert (await end(peer, half, COMMIT)).code == 0
        assert await bodies(peer) == [b"late"]
        asked = len(questions(peer))
        assert (await peer.ask(RequestCode.END_TRANSACTION, answer_ext(questions(peer)[0], ROLL_BACK))).code != 0
        assert (await bodies(peer), len(questions(peer))) == ([b"late"], asked)


async def test_who_never_says_is_given_up(tmp_path: Path) -> None:
    """After as many questions as were allowed: the message lies in a topic of its own, and was never delivered."""
    async with running_broker(tmp_path, **SOON, transactionCheckMax="2") as broker, dialogue(broker) as peer:
        await peer.heartbeat("p")
        half = await prepare(peer, b"who knows")
        await wait_until(lambda: broker.transactions.given_up == 1)

        assert len(questions(peer)) == 2
        assert await bodies(peer) == []
        assert await bodies(peer, names.CHECK_MAX_TIME_TOPIC) == [b"who knows"]
        assert (await end(peer, half, COMMIT)).code == ResponseCode.SYSTEM_ERROR
        await wait_until(lambda: broker.transactions.open_count == 0)


async def test_questions_to_nobody_do_not_count(tmp_path: Path) -> None:
    """A producer that is away for a while finds its transactions where it left them."""
    async with running_broker(tmp_path, **SOON, transactionCheckMax="1") as broker, dialogue(broker) as peer:
        await prepare(peer, b"x")
        rounds = broker.delay.rounds
        await wait_until(lambda: broker.delay.rounds > rounds + 5)
        assert (broker.transactions.asked, broker.transactions.given_up) == (0, 0)
        await peer.heartbeat("p")
        await wait_until(lambda: bool(questions(peer)))


async def test_a_restart_forgets_no_transaction_and_repeats_none(tmp_path: Path) -> None:
    """What is open is asked about, what has ended is not; a restart reads only what is of interest."""
    async with running_broker(tmp_path) as broker, dialogue(broker) as peer:
        ended = [await prepare(peer, b"old") for _ in range(3)]
        for half, how in zip(ended, (COMMIT, ROLL_BACK, COMMIT), strict=True):
            assert (await end(peer, half, how)).code == 0
        opened = await prepare(peer, b"open")
        await wait_until(lambda: broker.core.offsets.find(names.TRANSACTION_GROUP, names.HALF_TOPIC, 0) == 3)
    async with running_broker(tmp_path, **SOON) as broker, dialogue(broker) as peer:
        await peer.heartbeat("p")
        await wait_until(lambda: bool(questions(peer)))
        assert {question.ext["msgId"] for question in questions(peer)} == {opened["unique"]}
        assert (await end(peer, opened, COMMIT)).code == 0
        assert await bodies(peer) == [b"old", b"old", b"open"]


@pytest.mark.parametrize("is_looked_up", [True, False], ids=["looked-up", "twin"])
async def test_a_commit_that_was_torn_off_its_op_message_is_not_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_looked_up: bool
) -> None:
    """The log may end between the two; then the half message looks open, and its producer says "commit" once more."""

    def torn(self: Transactions, half: object, outcome: object, drafts: list[Draft]) -> None:
        self._core.store.append_contiguous(drafts)
        raise BrokerError("killed here")

    with monkeypatch.context() as patch:
        patch.setattr(Transactions, "_close", torn)
        async with running_broker(tmp_path) as broker, dialogue(broker) as peer:
            half = await prepare(peer, b"once")
            assert (await end(peer, half, COMMIT)).code != 0
    if not is_looked_up:
        monkeypatch.setattr(Transactions, "_was_committed", lambda *_: False)
    async with running_broker(tmp_path) as broker, dialogue(broker) as peer:
        assert (await end(peer, half, COMMIT)).code == 0
        assert await bodies(peer) == ([b"once"] if is_looked_up else [b"once", b"once"])


async def test_a_producer_may_ask_for_time(tmp_path: Path) -> None:
    """With CHECK_IMMUNITY_TIME_IN_SECONDS it is not asked before; and it must not end by itself after it: code 604."""
    async with running_broker(tmp_path, **SOON) as broker, dialogue(broker) as peer:
        await peer.heartbeat("p")
        patient = await prepare(peer, b"patient", CHECK_IMMUNITY_TIME_IN_SECONDS="3600")
        hasty = await prepare(peer, b"hasty", CHECK_IMMUNITY_TIME_IN_SECONDS="0")
        await wait_until(lambda: bool(questions(peer)))

        assert {question.ext["msgId"] for question in questions(peer)} == {hasty["unique"]}
        assert (await end(peer, hasty, COMMIT)).code == ResponseCode.ILLEGAL_OPERATION
        assert (await end(peer, patient, COMMIT)).code == 0
        assert await bodies(peer) == [b"patient"]


async def test_transactions_can_be_refused(tmp_path: Path) -> None:
    """rejectTransactionMessage=true: code 16, and nothing is stored."""
    async with running_broker(tmp_path, rejectTransactionMessage="true") as broker, dialogue(broker) as peer:
        text = properties_text(UNIQ_KEY=_unique_ids.next(1), TRAN_MSG="true", PGROUP=GROUP)
        assert (await peer.send(b"x", properties=text)).code == ResponseCode.NO_PERMISSION
        assert broker.store.wrote == 0
