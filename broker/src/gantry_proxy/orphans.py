"""Open transactions whose producer is silent: brokers ask the proxy, and the proxy asks a connected producer.

A broker asks any member of the producer group of a half message. The group of a message that came through a proxy is
its topic. So the proxy registers at the brokers of each topic that has a connected producer and accepts transactions,
and leaves when the last producer of it is gone. A question that reaches no producer is dropped: the broker repeats it,
and asks another proxy. A question that a broker repeats while it still waits for the producer to read is not sent
twice: a producer that answers slowly would get repetitions, and no new questions.
"""

import asyncio
import logging
from typing import Final, final

from gantry_client.errors import ClientError
from gantry_client.messages import to_received_message
from gantry_proxy.brokers import BrokerPort
from gantry_proxy.clients import ClientTable, ProxyClient
from gantry_proxy.protocol import rocketmq_pb2 as pb
from gantry_proxy.topics import Topics
from gantry_proxy.translation.handles import OpenTransaction, write_transaction_id
from gantry_proxy.translation.incoming import write_message
from gantry_wire.command import Command
from gantry_wire.commands.fields import FieldError
from gantry_wire.commands.nameserver import MASTER_ID
from gantry_wire.commands.transactions import CheckTransactionState
from gantry_wire.errors import RemoteProtocolError
from gantry_wire.message import decode_record

log = logging.getLogger(__name__)

TRANSACTION_KINDS: Final = frozenset({"TRANSACTION", "MIXED"})
GROUPS_PER_HEARTBEAT: Final = 100
"""How many groups one heartbeat has, as in RocketMQ's proxy."""


@final
class OrphanedTransactions:
    """The questions of brokers about transactions. Owned by one event loop."""

    def __init__(self, brokers: BrokerPort, topics: Topics, clients: ClientTable, body_bytes_max: int) -> None:
        self._brokers: Final = brokers
        self._topics: Final = topics
        self._clients: Final = clients
        self._body_bytes_max: Final = body_bytes_max
        self._registered: dict[str, dict[str, str]] = {}
        """By topic: the addresses of the masters at which it is registered, and their names."""
        self._waiting: Final[set[tuple[str, str]]] = set()
        """The questions that wait for a producer to read: its client id, and the id of the message."""
        self.asked = 0
        """How many questions were passed on to a producer."""
        self.dropped = 0
        """How many questions no connected producer could be asked."""

    def __repr__(self) -> str:
        return f"<OrphanedTransactions topics={len(self._registered)}>"

    async def register(self) -> None:
        """Register the topics of connected producers, and leave those without one. Called every few seconds."""
        wanted: dict[str, dict[str, str]] = {}
        for topic in self._clients.produced_topics():
            try:
                if await self._topics.kind(topic) in TRANSACTION_KINDS:
                    brokers = (await self._topics.get(topic)).route.brokers
                    masters = ((name, brokers[name].get(MASTER_ID)) for name in brokers)
                    wanted[topic] = {address: name for name, address in masters if address is not None}
            except ClientError as error:
                log.info("cannot register producer of topic", extra={"topic": topic, "reason": str(error)})
                if topic in self._registered:
                    wanted[topic] = self._registered[topic]
        by_address: dict[str, list[str]] = {}
        for topic, masters_of_topic in wanted.items():
            for address in masters_of_topic:
                by_address.setdefault(address, []).append(topic)
        left = [
            self._leave(address, topic)
            for topic, addresses in self._registered.items()
            for address in addresses
            if topic not in wanted
        ]
        self._registered = wanted
        await asyncio.gather(*(self._register_at(address, groups) for address, groups in by_address.items()), *left)

    async def unregister(self) -> None:
        """Leave all groups, before the proxy stops."""
        left = [self._leave(address, topic) for topic, masters in self._registered.items() for address in masters]
        self._registered = {}
        await asyncio.gather(*left)

    async def on_check(self, command: Command, address: str) -> None:
        """Ask a producer about a transaction, for a broker."""
        try:
            request = CheckTransactionState.read(command.ext)
            message = to_received_message(
                decode_record(command.body), request.bname or "", body_bytes_max=self._body_bytes_max
            )
        except (FieldError, RemoteProtocolError) as error:
            log.warning("invalid transaction check request", extra={"broker": address, "reason": str(error)})
            return
        topic = message.topic  # that of the request may be the topic of half messages
        broker_name = request.bname or self._registered.get(topic, {}).get(address, "")
        transaction = OpenTransaction(
            request.transaction_id or message.message_id, broker_name, request.tran_state_table_offset,
            request.commit_log_offset,
        )  # fmt: skip
        ask = pb.RecoverOrphanedTransactionCommand(
            message=write_message(message), transaction_id=write_transaction_id(transaction)
        )
        producer = self._clients.producer_of(topic)
        if broker_name and producer is not None:
            question = (producer.client_id, message.message_id)
            if question in self._waiting or await self._ask(producer, question, ask):
                return
        self.dropped += 1
        log.info("no producer to ask about a transaction; the broker asks again", extra={"topic": topic})

    async def _ask(
        self, producer: ProxyClient, question: tuple[str, str], ask: pb.RecoverOrphanedTransactionCommand
    ) -> bool:
        """Send a question to a producer, and return whether its stream accepted it."""
        self._waiting.add(question)
        try:
            is_sent = await producer.send(pb.TelemetryCommand(recover_orphaned_transaction_command=ask))
        finally:
            self._waiting.discard(question)
        self.asked += is_sent
        return is_sent

    async def _register_at(self, address: str, groups: list[str]) -> None:
        for start in range(0, len(groups), GROUPS_PER_HEARTBEAT):
            try:
                await self._brokers.register_producers(address, groups[start : start + GROUPS_PER_HEARTBEAT])
            except ClientError as error:
                log.warning("failed to send heartbeat", extra={"broker": address, "reason": str(error)})
                return

    async def _leave(self, address: str, group: str) -> None:
        try:
            await self._brokers.unregister_producer(address, group)
        except ClientError as error:
            log.info("could not unregister from broker", extra={"broker": address, "reason": str(error)})
