"""Gantry's proxy with one planted fault, with which the programs of the SDKs are tested: each of them must notice it.

    python faulty_proxy.py FAULT ARGUMENTS OF THE PROXY

The faults are in what a broker returns to the proxy, so that SDKs see valid messages. Every message with the number 3
of its flow is affected.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from gantry_client.pop import PoppedMessage, PopReply, PopRequest
from gantry_proxy import brokers
from gantry_proxy.main import main
from gantry_wire.filters import parse_tag_filter

NUMBER: Final = "3"
"""The number of the affected message. With a filter it is one that consumers must not get."""

_pop: Final = brokers.RemotingBrokers.pop


async def alter(port: brokers.RemotingBrokers, address: str, request: PopRequest) -> PopReply:
    """Change the body of the message."""
    reply = await _pop(port, address, request)
    return dataclasses.replace(reply, messages=tuple(map(_altered, reply.messages)))


def _altered(popped: PoppedMessage) -> PoppedMessage:
    if popped.message.properties.get("number") != NUMBER:
        return popped
    message = msgspec.structs.replace(popped.message, stored_body=popped.message.stored_body[:-1] + b"!")
    return PoppedMessage(message, popped.receipt)


async def lose(port: brokers.RemotingBrokers, address: str, request: PopRequest) -> PopReply:
    """Acknowledge the message, and return it to no client."""
    reply = await _pop(port, address, request)
    lost = [one for one in reply.messages if one.message.properties.get("number") == NUMBER]
    for one in lost:
        await port.ack(address, request.topic, request.group, one.receipt)
    return dataclasses.replace(reply, messages=tuple(one for one in reply.messages if one not in lost))


async def ignore_filter(port: brokers.RemotingBrokers, address: str, request: PopRequest) -> PopReply:
    """Return messages that the filter of the consumer excludes."""
    return await _pop(port, address, dataclasses.replace(request, filter=parse_tag_filter(None)))


FAULTS: Final[dict[str, Callable[[brokers.RemotingBrokers, str, PopRequest], Awaitable[PopReply]]]] = {
    "alter": alter,
    "lose": lose,
    "ignore-filter": ignore_filter,
}

if __name__ == "__main__":
    brokers.RemotingBrokers.pop = FAULTS[sys.argv.pop(1)]  # type: ignore[method-assign,assignment]
    main(prog_name="faulty proxy")
