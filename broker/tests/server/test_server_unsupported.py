"""Unsupported requests are each refused with a clear text, and leave nothing behind."""

import pytest

from gantry_broker.app import Broker
from gantry_broker.server.admin import unsupported
from gantry_broker.server.admin.unsupported import UNSUPPORTED
from gantry_testing.local import Dialogue
from gantry_wire import RequestCode


@pytest.mark.parametrize("code", UNSUPPORTED, ids=lambda code: code.name)
async def test_each_unsupported_request_has_its_own_text(broker: Broker, client: Dialogue, code: RequestCode) -> None:
    """The answer is the table's code and text for any content; nothing is stored, and no topic is created."""
    topics = set(broker.core.topics.all)
    expected, text = UNSUPPORTED[code]

    for ext, body in (({}, b""), ({"topic": "New", "consumerGroup": "NewGroup", "queueId": "0"}, b"not JSON")):
        reply = await client.ask(code, ext, body)
        assert (reply.code, reply.remark, reply.body) == (expected, text, b"")
    assert (broker.store.log.wrote, set(broker.core.topics.all)) == (0, topics)
    assert "NewGroup" not in broker.core.groups.all


def test_requests_for_lite_topics_are_in_the_table() -> None:
    """Pops of lite topics are in it under RocketMQ's number."""
    assert 200070 in {int(code) for code in UNSUPPORTED}
    assert all(len(text) > 30 for _, text in UNSUPPORTED.values())


async def test_pop_rollback_succeeds_without_records(client: Dialogue) -> None:
    """Code 200056 has nothing to do: no answer of this broker ever made such a record."""
    assert (await client.ask(RequestCode.POP_ROLLBACK)).code == 0


def test_no_request_is_both_refused_and_handled(broker: Broker) -> None:
    """A request with a handler must not be in the table."""
    refusers = [handler for code, handler in broker.handlers.items() if code in UNSUPPORTED]
    assert len(refusers) == len(UNSUPPORTED)
    assert {handler.__module__ for handler in refusers} == {unsupported.__name__}


async def test_unknown_request_code_is_named(client: Dialogue) -> None:
    """Any other number is answered 3 with the number."""
    reply = await client.ask(4711)
    assert (reply.code, "4711" in (reply.remark or "")) == (3, True)
