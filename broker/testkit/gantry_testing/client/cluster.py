"""A name server in memory with its brokers."""

from collections.abc import Sequence
from types import TracebackType
from typing import Self, final

from gantry_remoting.server import CommandService, Connection, Listener
from gantry_remoting.settings import ListenerSettings
from gantry_testing.client.broker import FakeBroker
from gantry_wire.codes import RequestCode, ResponseCode
from gantry_wire.command import Command
from gantry_wire.commands.admin import TopicConfig, TopicListing, TopicName
from gantry_wire.commands.documents import write_document
from gantry_wire.commands.nameserver import BrokerData, ClusterInfo, QueueData, TopicRoute


@final
class FakeCluster:
    """Some brokers and a name server that routes to the running ones at once. Use it inside `async with`."""

    def __init__(self, brokers: Sequence[str] = ("broker-a",), *, auto_creates_topics: bool = True) -> None:
        self.brokers = {name: FakeBroker(name) for name in brokers}
        for broker in self.brokers.values():
            broker.state.auto_creates_topics = auto_creates_topics
        self.name_server_requests: list[Command] = []
        """Every request to the name server, in order of arrival."""
        self.stale_names: set[str] = set()
        """Brokers that stay in the routes although they do not run, as for a while after a crash."""
        self.masterless_names: set[str] = set()
        """Brokers of which only a slave is registered, and no route, as after a shard was withdrawn from routes."""
        self._service = CommandService(self._answer)
        self._listener: Listener | None = None
        self._port = 0

        self.slaves: dict[str, dict[int, str]] = {}
        """Addresses of slaves for routes, by broker name and id: those of other fake brokers."""

    def __repr__(self) -> str:
        return f"<FakeCluster {self.name_server} brokers={sorted(self.brokers)}>"

    async def __aenter__(self) -> Self:
        await self.start_name_server()
        for broker in self.brokers.values():
            await broker.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for broker in self.brokers.values():
            await broker.stop()
        await self.stop_name_server()

    @property
    def name_server(self) -> str:
        """The name server address for clients."""
        return f"127.0.0.1:{self._port}"

    def broker(self, name: str = "broker-a") -> FakeBroker:
        return self.brokers[name]

    def add_topic(self, topic: str, *, queues: int = 4, permission: int = 6, brokers: Sequence[str] = ()) -> None:
        """Create `topic` on the named brokers, by default on all."""
        for name in brokers or self.brokers:
            self.brokers[name].state.topics[topic] = TopicConfig(
                topic_name=topic, read_queue_nums=queues, write_queue_nums=queues, perm=permission
            )

    async def start_name_server(self) -> None:
        self._listener = Listener(self._service, ListenerSettings(host="127.0.0.1", port=self._port))
        await self._listener.start()
        self._port = self._listener.port

    async def stop_name_server(self) -> None:
        if self._listener is not None:
            listener, self._listener = self._listener, None
            await listener.close()

    def _known(self) -> list[FakeBroker]:
        return [broker for broker in self.brokers.values() if broker.is_running or broker.name in self.stale_names]

    def _answer(self, command: Command, connection: Connection) -> Command:
        self.name_server_requests.append(command)
        match command.code:
            case RequestCode.GET_ROUTEINFO_BY_TOPIC:
                return self._route(command, TopicName.read(command.ext).topic)
            case RequestCode.GET_BROKER_CLUSTER_INFO:
                return command.reply(body=write_document(self._cluster_info()))
            case RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER:
                topics = {name for broker in self._known() for name in broker.state.registered_topics()}
                return command.reply(body=write_document(TopicListing(topic_list=sorted(topics))))
            case RequestCode.DELETE_TOPIC_IN_NAMESRV:
                return command.reply()
            case _:
                return command.reply(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "not supported")

    def _route(self, command: Command, topic: str) -> Command:
        route = TopicRoute()
        for broker in self._known():
            config = broker.state.registered_topics().get(topic)
            if config is not None and broker.name not in self.masterless_names:
                route.broker_datas.append(self._broker_data(broker))
                route.queue_datas.append(
                    QueueData(
                        broker_name=broker.name,
                        read_queue_nums=config.read_queue_nums,
                        write_queue_nums=config.write_queue_nums,
                        perm=config.perm,
                    )
                )
        if not route.queue_datas:
            return command.reply(ResponseCode.TOPIC_NOT_EXIST, f"No topic route info in name server: {topic}")
        return command.reply(body=write_document(route))

    def _cluster_info(self) -> ClusterInfo:
        info = ClusterInfo()
        for broker in self._known():
            info.broker_addr_table[broker.name] = self._broker_data(broker)
            if broker.name in self.masterless_names:
                info.broker_addr_table[broker.name].broker_addrs = {1: broker.address}
            info.cluster_addr_table.setdefault(broker.state.cluster, []).append(broker.name)
        return info

    def _broker_data(self, broker: FakeBroker) -> BrokerData:
        addresses = {0: broker.address, **self.slaves.get(broker.name, {})}
        return BrokerData(cluster=broker.state.cluster, broker_name=broker.name, broker_addrs=addresses)
