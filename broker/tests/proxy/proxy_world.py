"""A proxy over brokers in memory: the core that handlers get, and brokers that tests can look into."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gantry_access import AccessMode, AccountFile
from gantry_client.background import BackgroundTasks
from gantry_client.connections import OnOutcome
from gantry_client.errors import BrokerRefused, Unavailable
from gantry_client.messages import ReceivedMessage
from gantry_client.pop import PoppedMessage, PopReply, PopRequest, PopStatus
from gantry_proxy.access import ClientAccounts, FileAccounts, ProxyGuard
from gantry_proxy.ack_batches import AckBatches
from gantry_proxy.bodies import BodyInflater
from gantry_proxy.broker_accounts import BrokerAccounts
from gantry_proxy.client_requests import ClientRequests
from gantry_proxy.clients import ClientTable
from gantry_proxy.context import CallContext
from gantry_proxy.core import ProxyCore
from gantry_proxy.protocol import rocketmq_pb2 as pb
from gantry_proxy.renewal import Renewals
from gantry_proxy.send_batches import SendBatches
from gantry_proxy.settings import ProxyLimits
from gantry_proxy.topics import Topics
from gantry_testing.local import wait_until
from gantry_wire.codes import RequestCode, ResponseCode
from gantry_wire.command import Command
from gantry_wire.commands.accounts import AclInfo, AclSubject, PolicyEntryInfo, PolicyInfo, UserInfo, Username
from gantry_wire.commands.admin import SubscriptionGroupConfig, TopicConfig
from gantry_wire.commands.clients import HeartbeatData, MessageQueue
from gantry_wire.commands.documents import write_document
from gantry_wire.commands.fields import Fields
from gantry_wire.commands.nameserver import BrokerData, ClusterInfo, QueueData, TopicRoute
from gantry_wire.message import StoredMessage, encode_host, offset_message_id
from gantry_wire.pop_receipts import parse_receipt
from gantry_wire.properties import parse_properties

BROKER = "broker-a"
ADDRESS = "10.0.0.1:10911"
ENDPOINTS = pb.Endpoints(scheme=pb.DOMAIN_NAME, addresses=[pb.Address(host="proxy.example", port=8081)])
NOW_MS = 1_800_000_000_000


@dataclass
class Request:
    """One request that a broker received."""

    address: str
    code: RequestCode
    header: Fields
    body: bytes


@dataclass
class FakeBrokers:
    """Brokers in memory. Sends are stored, pops return them; `failure` makes every request fail."""

    kinds: dict[str, str] = field(default_factory=lambda: {"orders": "NORMAL"})
    attributes: dict[str, str] = field(default_factory=dict)
    """More attributes of every topic."""
    groups: dict[str, SubscriptionGroupConfig] = field(default_factory=dict)
    masters: dict[str, str] = field(default_factory=lambda: {BROKER: ADDRESS})
    requests: list[Request] = field(default_factory=list)
    answers: dict[RequestCode, Command | Exception] = field(default_factory=dict)
    failure: Exception | None = None
    users: dict[str, UserInfo] = field(default_factory=dict)
    """The users that the brokers store, by name."""
    policies: dict[str, dict[str, list[str]]] = field(default_factory=dict)
    """The allowed actions by user and resource."""
    down: set[str] = field(default_factory=set)
    """The addresses at which no broker answers."""
    silent: set[str] = field(default_factory=set)
    """The addresses at which a broker accepts requests and never answers."""
    reached: list[str] = field(default_factory=list)
    """The addresses that were asked about topics and groups, or to settle messages."""
    popped: list[PoppedMessage] = field(default_factory=list)
    pops: list[PopRequest] = field(default_factory=list)
    acked: list[tuple[str, str, str]] = field(default_factory=list)
    changed: list[tuple[str, int]] = field(default_factory=list)
    suspended: list[str] = field(default_factory=list)
    registered: dict[str, list[str]] = field(default_factory=dict)
    unregistered: list[tuple[str, str]] = field(default_factory=list)
    consumers: dict[tuple[str, int, str], HeartbeatData] = field(default_factory=dict)
    """The registered consumers by address, slot and group: a broker knows one client of a group by one connection."""
    heartbeats: int = 0
    before_pop: Callable[[], Any] | None = None
    """Awaited before a pop is answered."""

    before_change: Callable[[], Any] | None = None
    """Awaited before a change of an invisible time is answered."""

    is_connected: bool = False
    """Whether requests can begin without waiting; their outcomes wait in `begun`."""

    begun: list[tuple[str, Command, int, OnOutcome]] = field(default_factory=list)
    perm: int = 6
    queues: int = 4
    """How many queues a topic has at each broker."""
    queries: int = 0

    async def topic_route(self, topic: str) -> TopicRoute | None:
        self.queries += 1
        self._fail()
        if topic not in self.kinds:
            return None
        return TopicRoute(
            queue_datas=[
                QueueData(broker_name=name, read_queue_nums=self.queues, write_queue_nums=self.queues, perm=self.perm)
                for name in self.masters
            ],
            broker_datas=[
                BrokerData(cluster="c", broker_name=name, broker_addrs={0: address} if address else {1: "10.0.0.9:1"})
                for name, address in self.masters.items()
            ],
        )

    async def cluster_info(self) -> ClusterInfo:
        self._fail()
        table = {
            name: BrokerData(cluster="c", broker_name=name, broker_addrs={0: address} if address else {1: "10.0.0.9:1"})
            for name, address in self.masters.items()
        }
        return ClusterInfo(broker_addr_table=table, cluster_addr_table={"c": list(table)})

    async def topic_config(self, address: str, topic: str) -> TopicConfig | None:
        await self._reach(address)
        return TopicConfig(topic_name=topic, attributes={"message.type": self.kinds[topic], **self.attributes})

    async def group_config(self, address: str, group: str) -> SubscriptionGroupConfig | None:
        await self._reach(address)
        return self.groups.get(group)

    async def request(
        self, address: str, code: RequestCode, header: Fields, body: bytes = b"", *, timeout_ms: int = 3000
    ) -> Command:
        self._fail()
        self.requests.append(Request(address, code, header, body))
        if address in self.down:
            raise Unavailable(f"{address} is down")
        answer = self.answers.get(code) or self._account_answer(header) or Command(code=ResponseCode.SUCCESS)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def can_begin(self, address: str) -> bool:
        return self.is_connected

    def begin_request(self, address: str, command: Command, timeout_ms: int, on_outcome: OnOutcome) -> bool:
        if self.is_connected:
            self.begun.append((address, command, timeout_ms, on_outcome))
        return self.is_connected

    async def pop(self, address: str, request: PopRequest) -> PopReply:
        self.pops.append(request)
        if self.before_pop is not None:
            await self.before_pop()
        self._fail()
        found, self.popped = self.popped[: request.messages_max], self.popped[request.messages_max :]
        return PopReply(status=PopStatus.FOUND if found else PopStatus.NO_NEW, messages=tuple(found))

    async def ack(self, address: str, topic: str, group: str, receipt: str) -> None:
        await self._reach(address)
        self.acked.append((topic, group, receipt))

    async def change_invisible(
        self, address: str, topic: str, group: str, receipt: str, invisible_ms: int, *, is_suspended: bool = False
    ) -> str:
        if self.before_change is not None:
            await self.before_change()
        await self._reach(address)
        self.suspended += [receipt] if is_suspended else []
        self.changed.append((receipt, invisible_ms))
        old = parse_receipt(receipt)
        return old._replace(pop_time_ms=old.pop_time_ms + 1, invisible_ms=invisible_ms).text

    async def register_producers(self, address: str, groups: list[str]) -> None:
        self._fail()
        self.registered[address] = groups

    async def unregister_producer(self, address: str, group: str) -> None:
        self._fail()
        self.unregistered.append((address, group))

    async def register_consumer(self, slot: int, address: str, beat: HeartbeatData, language: str) -> None:
        self._fail()
        self.heartbeats += 1
        self.consumers[address, slot, beat.consumer_data_set[0].group_name] = beat

    async def unregister_consumer(self, slot: int, address: str, client_id: str, group: str) -> None:
        self._fail()
        assert self.consumers.pop((address, slot, group)).client_id == client_id

    def _account_answer(self, header: Fields) -> Command | None:
        """Return the answer about a stored user or its policies; None for another request."""
        found: UserInfo | AclInfo | None = None
        if isinstance(header, Username):
            found = self.users.get(header.username or "")
        elif isinstance(header, AclSubject):
            rules = self.policies.get((header.subject or "").removeprefix("User:"), {})
            entries = [PolicyEntryInfo(resource=one, actions=rules[one], decision="Allow") for one in rules]
            found = AclInfo(policies=[PolicyInfo(policy_type="Custom", entries=entries)])
        else:
            return None
        return Command(code=ResponseCode.SUCCESS, body=b"" if found is None else write_document(found))

    async def _reach(self, address: str) -> None:
        """Raise as the broker at an address does; wait for ever if it is silent."""
        self.reached.append(address)
        self._fail()
        if address in self.silent:
            await asyncio.Event().wait()
        if address in self.down:
            raise Unavailable(f"{address} is down")

    def _fail(self) -> None:
        if self.failure is not None:
            raise self.failure

    @property
    def sent_properties(self) -> dict[str, str]:
        """The properties of the last message that was sent."""
        properties: str = self.requests[-1].header.properties  # type: ignore[attr-defined]
        return parse_properties(properties)


@dataclass(eq=False)
class FakeStream:
    """The writing side of a Telemetry stream."""

    written: list[pb.TelemetryCommand] = field(default_factory=list)
    is_closed: bool = False
    failure: Exception | None = None
    is_read: asyncio.Event | None = None
    """Set when the client reads; None if it always does."""

    async def write(self, command: pb.TelemetryCommand) -> None:
        if self.is_read is not None:
            await self.is_read.wait()
        if self.failure is not None:
            raise self.failure
        self.written.append(command)

    def close(self) -> None:
        self.is_closed = True


@dataclass
class World:
    """One proxy, its brokers, and its clock."""

    brokers: FakeBrokers = field(default_factory=FakeBrokers)
    limits: ProxyLimits = field(default_factory=ProxyLimits)
    accounts: Path | None = None
    has_broker_accounts: bool = False
    """Whether the accounts of clients are those of the brokers."""
    now_ms: int = NOW_MS

    def __post_init__(self) -> None:
        self.tasks = BackgroundTasks("test")
        self.topics = Topics(self.brokers, self.clock)
        self.clients = ClientTable(self.clock, self.limits.clients_max, self.limits.clients_per_account_max)
        self.renewals = Renewals(
            self.brokers, self.topics, self.clock, self.limits.in_flight_messages_per_client_max, self.tasks
        )
        source: ClientAccounts | None = None
        if self.accounts is not None:
            file = AccountFile(str(self.accounts), AccessMode.V1)
            file.load()
            source = FileAccounts(file)
        self.broker_accounts = BrokerAccounts(self.brokers, self.clock)
        if self.has_broker_accounts:
            source = self.broker_accounts
        self.guard = ProxyGuard(source, self.clock, window_ms=60_000)
        self.client_requests = ClientRequests(self.clients, self.clock, self.limits.message_bytes_max)
        self.core = ProxyCore(
            brokers=self.brokers, topics=self.topics, clients=self.clients, client_requests=self.client_requests,
            renewals=self.renewals, sends=SendBatches(self.brokers), acks=AckBatches(self.brokers), guard=self.guard,
            limits=self.limits,
            tasks=self.tasks, wall_ms=self.clock, monotonic_s=lambda: self.now_ms / 1000,
            bodies=BodyInflater(self.limits.message_bytes_max),
        )  # fmt: skip

    def clock(self) -> int:
        return self.now_ms

    async def renew(self) -> None:
        """Renew the messages that need it, and wait until that has ended."""
        self.renewals.renew_due()
        await self.wait_for_workers()

    async def wait_for_workers(self) -> None:
        """Wait until no renewal and no return is in progress."""
        await wait_until(lambda: self.renewals.worker_count == 0)

    def context(self, client_id: str = "client-1", *, remaining_ms: int = 30_000) -> CallContext:
        return CallContext(client_id=client_id, peer="192.0.2.7", remaining_ms=remaining_ms)

    def join_consumer(self, group: str = "billing", client_id: str = "client-1") -> FakeStream:
        """Register a consumer, and return its stream."""
        stream = FakeStream()
        self.clients.register(client_id, consumer_settings(group), stream)
        return stream

    def join_producer(self, topic: str = "orders", client_id: str = "producer-1") -> FakeStream:
        """Register a producer, and return its stream."""
        stream = FakeStream()
        self.clients.register(client_id, producer_settings(topic), stream)
        return stream


def consumer_settings(group: str = "billing", topic: str = "orders") -> pb.Settings:
    entry = pb.SubscriptionEntry(topic=pb.Resource(name=topic), expression=pb.FilterExpression(expression="*"))
    subscription = pb.Subscription(group=pb.Resource(name=group), subscriptions=[entry])
    return pb.Settings(client_type=pb.PUSH_CONSUMER, subscription=subscription)


def producer_settings(topic: str = "orders") -> pb.Settings:
    publishing = pb.Publishing(topics=[pb.Resource(name=topic)])
    return pb.Settings(client_type=pb.PRODUCER, publishing=publishing)


def message(topic: str = "orders", body: bytes = b"body", **system: Any) -> pb.Message:
    """Return a message of a producer."""
    fields = {"message_id": "01ABC", "body_encoding": pb.IDENTITY, "message_type": pb.NORMAL, **system}
    return pb.Message(topic=pb.Resource(name=topic), body=body, system_properties=pb.SystemProperties(**fields))


def send_reply(code: int = ResponseCode.SUCCESS, **more: str) -> Command:
    """Return a broker's reply to a send."""
    message_id = offset_message_id(encode_host("10.0.0.1", 10911), 4711)
    return Command(code=code, ext={"msgId": message_id, "queueId": "1", "queueOffset": "7", **more})


def popped(number: int = 1, *, reconsume_times: int = 0, pop_time_ms: int = NOW_MS, **properties: str) -> PoppedMessage:
    """Return a message that a broker popped."""
    received = ReceivedMessage(
        topic="orders",
        queue=MessageQueue(topic="orders", broker_name=BROKER, queue_id=1),
        queue_offset=number,
        stored_body=f"body {number}".encode(),
        properties={"UNIQ_KEY": f"id-{number}", **properties},
        reconsume_times=reconsume_times,
        physical_offset=1000 + number,
    )
    receipt = f"{number} {pop_time_ms} 60000 3 0 {BROKER} 1 {number}"
    return PoppedMessage(received, receipt)


def receipt_of(number: int = 1, *, pop_time_ms: int = NOW_MS, invisible_ms: int = 60_000, broker: str = BROKER) -> str:
    """Return the receipt that a client gets for ``popped(number)``."""
    return f"{number} {pop_time_ms} {invisible_ms} 3 0 {broker} 1 {number} {1000 + number}"


_HOST = encode_host("10.0.0.1", 10911)
STORED = StoredMessage(
    topic="orders", queue_id=1, body=b"body", queue_offset=1, physical_offset=1001, flag=0, sys_flag=0,
    born_timestamp_ms=1, born_host=_HOST, store_timestamp_ms=1, store_host=_HOST, reconsume_times=0, prepared_offset=0,
    properties_bytes=b"",
)  # fmt: skip
"""The message of ``receipt_of(1)``, as its broker stores it."""

REFUSED = BrokerRefused(ResponseCode.SYSTEM_ERROR, "no", ADDRESS)
UNAVAILABLE = Unavailable("no broker")
