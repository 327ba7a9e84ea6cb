"""Observes a cluster through its name servers: who answers, and what brokers and consumers report.

All servers are queried at the same time. A server that does not answer is a fact, not an error.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

import msgspec

from gantry_cli.doctor.dialogue import Answer, CannotTalk, Dialogue
from gantry_cli.doctor.facts import (
    BrokerFacts,
    ClockOffset,
    Connection,
    ConnectionFault,
    ConsumerGroupFacts,
    MemberFacts,
    NameServerFacts,
    ReplicationFacts,
)
from gantry_client import ClientSettings
from gantry_client.documents import ConsumerConnections, GroupTable
from gantry_wire import Command, RequestCode, ResponseCode
from gantry_wire.commands.clients import ConsumerGroup, Document
from gantry_wire.commands.consumers import ConsumerRunningInfo, RunningInfoRequest
from gantry_wire.commands.documents import read_document
from gantry_wire.commands.fields import FieldError
from gantry_wire.commands.nameserver import ClusterInfo, KeyValueTable
from gantry_wire.names import is_retry_or_dead_letter, is_system_group
from gantry_wire.properties_text import property_lines, split_property

BROKERS_MAX: Final = 256
"""How many broker processes are queried; clusters have fewer."""
GROUPS_MAX: Final = 1_000
"""How many consumer groups of a broker are queried for members."""
MEMBERS_MAX: Final = 32
"""How many members of a group are asked for their subscriptions; two different ones are found in any deployment."""
CONCURRENT_GROUPS: Final = 16
SERVER_TIMEOUTS: Final = 6
"""After how many timeouts the observation of one server ends: it has about so many requests in sequence."""


class BrokerPlace(NamedTuple):
    """Where a broker is registered."""

    name: str
    broker_id: int
    address: str


@dataclass(frozen=True, slots=True)
class Observed:
    """The observation of a cluster."""

    name_servers: tuple[NameServerFacts, ...]
    brokers: tuple[BrokerFacts, ...]
    groups: tuple[ConsumerGroupFacts, ...]
    groups_problem: str


async def observe_cluster(
    addresses: Sequence[str], settings: ClientSettings, timeout_ms: int, known: Iterable[BrokerPlace] = ()
) -> Observed:
    """Observe name servers, their brokers, and those in ``known``, which are not registered if a name server failed."""
    answers = await asyncio.gather(*(_observe_name_server(one, settings, timeout_ms) for one in addresses))
    places = {place.address: place for _, found in answers for place in found}
    if not places:
        places = {place.address: place for place in known}
    chosen = sorted(places.values())[:BROKERS_MAX]
    brokers = await asyncio.gather(*(_observe_broker(one, settings, timeout_ms) for one in chosen))
    groups, problem = await _observe_groups(brokers, settings, timeout_ms)
    return Observed(tuple(facts for facts, _ in answers), tuple(brokers), groups, problem)


# -- name servers ------------------------------------------------------------------------------------------------------


async def _observe_name_server(
    address: str, settings: ClientSettings, timeout_ms: int
) -> tuple[NameServerFacts, list[BrokerPlace]]:
    try:
        dialogue = await Dialogue.open(address, settings, timeout_ms)
    except CannotTalk as error:
        return NameServerFacts(address=address, connection=error.connection), []
    facts = NameServerFacts(address=address, connection=Connection(is_on_this_machine=dialogue.is_on_this_machine))
    try:
        reply = (await dialogue.ask(RequestCode.GET_BROKER_CLUSTER_INFO)).reply
        if reply.code != ResponseCode.SUCCESS:
            return replace(facts, **_refused(reply)), []
        info = read_document(reply.body, ClusterInfo)
        places = [
            BrokerPlace(name, number, broker)
            for name, data in info.broker_addr_table.items()
            for number, broker in data.broker_addrs.items()
        ]
        version = (await dialogue.ask(RequestCode.GET_NAMESRV_CONFIG)).reply.ext.get("gantryVersion")
        return replace(facts, brokers=frozenset(one.address for one in places), gantry_version=version), places
    except CannotTalk as error:
        return replace(facts, connection=error.connection), []
    except FieldError as error:
        broken = Connection(fault=ConnectionFault.NOT_ROCKETMQ, detail=str(error))
        return replace(facts, connection=broken), []
    finally:
        await dialogue.close()


def _refused(reply: Command) -> dict[str, Any]:
    """Return the field of the facts for a reply with an error code."""
    if reply.code == ResponseCode.NO_PERMISSION:
        return {"refusal": reply.remark or "no permission"}
    return {"error": f"code {reply.code}: {(reply.remark or 'no remark').strip()}"}


# -- brokers -----------------------------------------------------------------------------------------------------------


async def _observe_broker(place: BrokerPlace, settings: ClientSettings, timeout_ms: int) -> BrokerFacts:
    facts = BrokerFacts(name=place.name, broker_id=place.broker_id, address=place.address, connection=Connection())
    try:
        dialogue = await Dialogue.open(place.address, settings, timeout_ms)
    except CannotTalk as error:
        return replace(facts, connection=error.connection)
    facts = replace(facts, connection=Connection(is_on_this_machine=dialogue.is_on_this_machine))
    try:
        async with asyncio.timeout(timeout_ms * SERVER_TIMEOUTS / 1000):
            return await _ask_broker(facts, dialogue)
    except CannotTalk as error:
        return replace(facts, connection=error.connection)
    except (FieldError, msgspec.MsgspecError) as error:
        broken = Connection(fault=ConnectionFault.NOT_ROCKETMQ, detail=str(error))
        return replace(facts, connection=broken)
    except TimeoutError:
        return replace(facts, connection=Connection(fault=ConnectionFault.SILENT, detail="its answers are too slow"))
    finally:
        await dialogue.close()


async def _ask_broker(facts: BrokerFacts, dialogue: Dialogue) -> BrokerFacts:
    answer = await dialogue.ask(RequestCode.GET_BROKER_RUNTIME_INFO)
    if answer.reply.code != ResponseCode.SUCCESS:
        return replace(facts, **_refused(answer.reply))
    table = read_document(answer.reply.body, KeyValueTable).table
    facts = replace(facts, runtime=table, clock=clock_offset(table, answer))
    reply = (await dialogue.ask(RequestCode.GET_BROKER_CONFIG)).reply
    if reply.code == ResponseCode.SUCCESS:
        lines = property_lines(reply.body.decode("utf-8", "replace"))
        config = dict(entry for _, line in lines if (entry := split_property(line)) is not None)
        own = reply.ext.get("gantryVersion")
        facts = replace(facts, config=config if own is None else {**config, "gantryVersion": own})
    reply = (await dialogue.ask(RequestCode.GET_BROKER_HA_STATUS)).reply
    if reply.code == ResponseCode.SUCCESS:
        facts = replace(facts, replication=_replication(read_document(reply.body, _HaRuntime)))
    return facts


_UPTIME: Final = re.compile(r"\[ (\d{1,6}) days, (\d+) hours, (\d+) minutes, (\d+) seconds \]")


def clock_offset(runtime: Mapping[str, str], answer: Answer) -> ClockOffset | None:
    """Return the bounds of a broker's clock offset; None if its runtime table has no time.

    RocketMQ reports when it was started, and for how long it has been running, in whole seconds that are rounded down.
    The sum is the time at which it made the answer, or up to a second earlier.
    """
    match, booted = _UPTIME.fullmatch(runtime.get("runtime", "")), runtime.get("bootTimestamp", "")
    if match is None or not (booted.isascii() and booted.isdigit()):
        return None
    days, hours, minutes, seconds = map(int, match.groups())
    server_ms = int(booted) + (((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 1000
    return ClockOffset(
        low_ms=server_ms - (answer.asked_wall_ms + answer.round_trip_ms), high_ms=server_ms + 999 - answer.asked_wall_ms
    )


class _HaClient(Document):
    activated: bool = False
    master_addr: str | None = None


class _HaRuntime(Document):
    """The parts of RocketMQ's HARuntimeInfo that are used."""

    master: bool = False
    ha_client_runtime_info: _HaClient | None = None


def _replication(found: _HaRuntime) -> ReplicationFacts:
    client = found.ha_client_runtime_info or _HaClient()
    return ReplicationFacts(
        is_master=found.master,
        is_streaming=client.activated,
        master=client.master_addr or "",
    )


# -- consumer groups ---------------------------------------------------------------------------------------------------


async def _observe_groups(
    brokers: Sequence[BrokerFacts], settings: ClientSettings, timeout_ms: int
) -> tuple[tuple[ConsumerGroupFacts, ...], str]:
    """Return the groups with members on any master, and why those of some masters are not known."""
    masters = [one for one in brokers if one.broker_id == 0]
    found = await asyncio.gather(*(_observe_master(one, settings, timeout_ms) for one in masters))
    members: dict[str, dict[str, MemberFacts]] = {}
    problems = [problem for _, problem in found if problem]
    for groups, _ in found:
        for group, reported in groups.items():
            for member in reported:
                known = members.setdefault(group, {}).get(member.client_id)
                if known is None or known.subscriptions is None:
                    members[group][member.client_id] = member
    facts = tuple(
        ConsumerGroupFacts(name=group, members=tuple(sorted(by_id.values(), key=lambda one: one.client_id)))
        for group, by_id in sorted(members.items())
    )
    return facts, "; ".join(problems)


async def _observe_master(
    broker: BrokerFacts, settings: ClientSettings, timeout_ms: int
) -> tuple[dict[str, list[MemberFacts]], str]:
    if broker.unknown_reason:
        return {}, f"the groups of {broker.label} are not known: {broker.unknown_reason}"
    try:
        async with AsyncExitStack() as stack:
            dialogue = await Dialogue.open(broker.address, settings, timeout_ms)
            stack.push_async_callback(dialogue.close)
            reply = (await dialogue.ask(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)).reply
            if reply.code != ResponseCode.SUCCESS:
                return {}, f"{broker.label} does not list its groups: code {reply.code}"
            names = sorted(read_document(reply.body, GroupTable).subscription_group_table)
            applications = [name for name in names if not is_system_group(name)]
            limit = asyncio.Semaphore(CONCURRENT_GROUPS)
            groups = await asyncio.gather(*(_observe_group(dialogue, one, limit) for one in applications[:GROUPS_MAX]))
    except (CannotTalk, FieldError) as error:
        return {}, f"the groups of {broker.label} are not known: {error}"
    rest = len(applications) - GROUPS_MAX
    problem = f"{rest} groups of {broker.label} were not checked" if rest > 0 else ""
    return {name: members for name, members in zip(applications, groups, strict=False) if members}, problem


async def _observe_group(dialogue: Dialogue, group: str, limit: asyncio.Semaphore) -> list[MemberFacts]:
    async with limit:
        reply = (
            await dialogue.ask(RequestCode.GET_CONSUMER_CONNECTION_LIST, ConsumerGroup(consumer_group=group))
        ).reply
        if reply.code != ResponseCode.SUCCESS:
            return []  # no member is connected to this broker
        ids = sorted(one.client_id for one in read_document(reply.body, ConsumerConnections).connection_set)
        return [await _observe_member(dialogue, group, client_id) for client_id in ids[:MEMBERS_MAX]]


async def _observe_member(dialogue: Dialogue, group: str, client_id: str) -> MemberFacts:
    request = RunningInfoRequest(consumer_group=group, client_id=client_id, jstack_enable=False)
    try:
        reply = (await dialogue.ask(RequestCode.GET_CONSUMER_RUNNING_INFO, request)).reply
    except CannotTalk as error:
        return MemberFacts(client_id=client_id, problem=str(error))
    if reply.code != ResponseCode.SUCCESS:
        return MemberFacts(client_id=client_id, problem=f"code {reply.code}: {(reply.remark or '').strip()[:200]}")
    with suppress(FieldError):
        found = read_document(reply.body, ConsumerRunningInfo).subscription_set
        filters = {one.topic: _filter_text(one.expression_type, one.sub_string) for one in found}
        own = {topic: text for topic, text in filters.items() if not is_retry_or_dead_letter(topic)}
        return MemberFacts(client_id=client_id, subscriptions=own)
    return MemberFacts(client_id=client_id, problem="its answer is not valid")


def _filter_text(kind: str | None, expression: str | None) -> str:
    """Return a filter in one spelling: tags in any order are the same filter."""
    text = (expression or "*").strip()
    if kind not in (None, "", "TAG"):
        return f"{kind} {text}"
    return " || ".join(sorted(filter(None, map(str.strip, text.split("||"))))) or "*"
