"""Heartbeat timeouts and unregistration in any order, compared with a simple model of the route table."""

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from gantry_nameserver.routes import HEARTBEAT_TIMEOUT_MS, BrokerRegistration, RouteTable
from gantry_wire.commands.admin import DataVersion, TopicConfig
from gantry_wire.commands.nameserver import RegisteredTopics

NAMES = ("a", "b")
IDS = (0, 1)
TOPICS = ("T", "U", "V")
CONNECTIONS = ("first", "second")


@dataclass
class ModelBroker:
    """The state of one address in the model."""

    name: str
    broker_id: int
    deadline_ms: int
    timeout_ms: int
    connection: str


@dataclass
class Model:
    """The live addresses, and the topics that the master of each live name has registered."""

    live: dict[str, ModelBroker] = field(default_factory=dict)
    topics: dict[str, set[str]] = field(default_factory=dict)

    def forget(self, address: str) -> None:
        gone = self.live.pop(address, None)
        if gone is not None and all(other.name != gone.name for other in self.live.values()):
            self.topics.pop(gone.name, None)


class RouteTableMachine(RuleBasedStateMachine):
    """Each address belongs to one (name, id), so the model needs no rules about conflicts."""

    def __init__(self) -> None:
        super().__init__()
        self.table = RouteTable()
        self.model = Model()
        self.now_ms = 0
        self.counter = 0

    @rule(
        name=st.sampled_from(NAMES),
        broker_id=st.sampled_from(IDS),
        topics=st.sets(st.sampled_from(TOPICS), min_size=2),
        timeout_ms=st.one_of(st.none(), st.integers(1, 50)),
        connection=st.sampled_from(CONNECTIONS),
    )
    def register(self, name: str, broker_id: int, topics: set[str], timeout_ms: int | None, connection: str) -> None:
        self.counter += 1
        address = f"{name}-{broker_id}:1"
        self.table.register(
            BrokerRegistration(
                cluster="c",
                name=name,
                address=address,
                broker_id=broker_id,
                heartbeat_timeout_ms=timeout_ms,
                topics=RegisteredTopics(
                    data_version=DataVersion(counter=self.counter),
                    topic_config_table={topic: TopicConfig(topic_name=topic) for topic in topics},
                ),
                connection=connection,
            ),
            self.now_ms,
        )
        timeout = timeout_ms or HEARTBEAT_TIMEOUT_MS
        self.model.live[address] = ModelBroker(name, broker_id, self.now_ms + timeout, timeout, connection)
        if broker_id == 0:
            self.model.topics.setdefault(name, set()).update(topics)

    @rule(name=st.sampled_from(NAMES), broker_id=st.sampled_from(IDS))
    def heartbeat(self, name: str, broker_id: int) -> None:
        address = f"{name}-{broker_id}:1"
        known = self.model.live.get(address)
        assert self.table.brokers.record_heartbeat("c", address, "anybody", self.now_ms) == (known is not None)
        if known is not None:
            known.deadline_ms = self.now_ms + known.timeout_ms

    @rule(name=st.sampled_from(NAMES), broker_id=st.sampled_from(IDS))
    def leave(self, name: str, broker_id: int) -> None:
        address = f"{name}-{broker_id}:1"
        assert self.table.unregister("c", name, address) == (address in self.model.live)
        self.model.forget(address)

    @rule(connection=st.sampled_from(CONNECTIONS))
    def cut(self, connection: str) -> None:
        gone = {live.address for live in self.table.unregister_connection(connection)}
        expected = {address for address, live in self.model.live.items() if live.connection == connection}
        assert gone == expected
        for address in expected:
            self.model.forget(address)

    @rule(elapsed_ms=st.one_of(st.integers(0, 60), st.just(HEARTBEAT_TIMEOUT_MS)))
    def time_passes(self, elapsed_ms: int) -> None:
        self.now_ms += elapsed_ms
        gone = {live.address for live in self.table.expire(self.now_ms)}
        expected = {address for address, live in self.model.live.items() if live.deadline_ms < self.now_ms}
        assert gone == expected
        for address in expected:
            self.model.forget(address)

    @invariant()
    def routes_name_exactly_the_living(self) -> None:
        addresses = {live.address for live in self.table.brokers}
        assert addresses == set(self.model.live)
        for topic in TOPICS:
            route = self.table.route(topic)
            holders = {name for name, names in self.model.topics.items() if topic in names}
            assert {q.broker_name for q in (route.queue_datas if route else [])} == holders
            listed = {a for b in (route.broker_datas if route else []) for a in b.broker_addrs.values()}
            assert listed == {a for a, live in self.model.live.items() if live.name in holders}
        for name in NAMES:
            assert self.table.topics.topics_of(name) == self.model.topics.get(name, set())


RouteTableMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestExpiry = RouteTableMachine.TestCase


def test_broker_expires_exactly_after_its_timeout() -> None:
    """A broker expires after its last heartbeat plus its timeout, exclusive; the default timeout is 120 s."""
    table = RouteTable()
    table.register(BrokerRegistration(cluster="c", name="a", address="a:1", broker_id=0, heartbeat_timeout_ms=10), 0)
    table.register(BrokerRegistration(cluster="c", name="b", address="b:1", broker_id=0), 0)

    assert table.expire(10) == []
    assert [live.name for live in table.expire(11)] == ["a"]
    assert table.expire(120_000) == []
    assert [live.name for live in table.expire(120_001)] == ["b"]
