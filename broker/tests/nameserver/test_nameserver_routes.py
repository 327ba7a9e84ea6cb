"""The route table's promises, without sockets: time is a number and a connection is any object."""

import pytest

from gantry_nameserver.routes import BrokerRegistration, RegistrationRefused, RouteLimits, RouteTable
from gantry_wire.commands.admin import DataVersion, TopicConfig
from gantry_wire.commands.nameserver import QueueData, RegisteredTopics, TopicQueueMapping

READ_WRITE, READ_ONLY = 6, 4


def topics(*names: str, counter: int = 1, state: int = 0, perm: int = READ_WRITE, queues: int = 8) -> RegisteredTopics:
    table = {
        name: TopicConfig(topic_name=name, perm=perm, read_queue_nums=queues, write_queue_nums=queues) for name in names
    }
    return RegisteredTopics(data_version=DataVersion(counter=counter, state_version=state), topic_config_table=table)


def broker(
    name: str = "a",
    broker_id: int = 0,
    *,
    address: str | None = None,
    cluster: str = "c",
    table: RegisteredTopics | None = None,
    **more: object,
) -> BrokerRegistration:
    return BrokerRegistration(
        cluster=cluster,
        name=name,
        address=address or f"{name}-{broker_id}:10911",
        broker_id=broker_id,
        ha_address=f"{name}-{broker_id}:10912",
        topics=topics("T", "U") if table is None else table,
        **more,  # type: ignore[arg-type]
    )


def permission(table: RouteTable, topic: str = "T", name: str = "a") -> int:
    return table.topics.queues(topic)[name].perm


def test_route_holds_queues_and_addresses_of_every_broker_of_the_topic() -> None:
    """A route names each broker with its queues once, sorted, and all addresses under the broker's name."""
    table = RouteTable()

    table.register(broker("b", table=topics("T", "U", queues=4)), 0)
    table.register(broker("a"), 0)
    table.register(broker("a", 1, table=topics()), 0)

    route = table.route("T")
    assert route is not None
    assert [(q.broker_name, q.write_queue_nums, q.perm) for q in route.queue_datas] == [("a", 8, 6), ("b", 4, 6)]
    assert [b.broker_addrs for b in route.broker_datas] == [{0: "a-0:10911", 1: "a-1:10911"}, {0: "b-0:10911"}]
    assert table.route("nowhere") is None


def test_first_registration_with_one_topic_is_refused_and_changes_nothing() -> None:
    """One topic from an unknown broker is a stray update; the same from a known one is an update."""
    table = RouteTable()

    with pytest.raises(RegistrationRefused, match="exactly one topic"):
        table.register(broker(table=topics("T")), 0)

    assert table.route("T") is None and len(table.brokers) == 0 and table.brokers.clusters() == {}
    table.register(broker(table=topics()), 0)
    table.register(broker(table=topics("T", counter=2)), 0)
    assert table.route("T") is not None


def test_topics_are_taken_again_only_with_a_new_edition() -> None:
    """An unchanged edition leaves an operator's wiped permission alone; a changed one brings the broker's own back."""
    table = RouteTable()
    table.register(broker(), 0)

    assert table.topics.allow_writes("a", is_allowed=False) == 2
    table.register(broker(), 1)
    assert permission(table) == READ_ONLY

    table.register(broker(table=topics("T", "U", counter=2)), 2)
    assert permission(table) == READ_WRITE


def test_added_write_permission_is_read_and_write() -> None:
    """Adding sets exactly read and write; an unknown broker has no topics to change."""
    table = RouteTable()
    table.register(broker(table=topics("T", "U", perm=7)), 0)

    assert table.topics.allow_writes("a", is_allowed=False) == 2 and permission(table) == 5
    assert table.topics.allow_writes("a", is_allowed=True) == 2 and permission(table) == READ_WRITE
    assert table.topics.allow_writes("nobody", is_allowed=False) == 0


def test_deleted_topic_comes_back_with_the_next_registration_even_of_the_same_edition() -> None:
    """A topic that the table lacks is taken whatever the edition says."""
    table = RouteTable()
    table.register(broker(), 0)

    assert table.delete_topic("T")
    assert table.route("T") is None
    table.register(broker(), 1)

    assert table.route("T") is not None


def test_topic_is_deleted_in_one_cluster_only_when_the_cluster_is_named() -> None:
    """Deleting with a cluster leaves the others' queues."""
    table = RouteTable()
    table.register(broker("a", cluster="east"), 0)
    table.register(broker("b", cluster="west"), 0)

    assert table.delete_topic("T", "east")

    route = table.route("T")
    assert route is not None and [q.broker_name for q in route.queue_datas] == ["b"]
    assert not table.delete_topic("T", "nowhere")


def test_absent_topics_stay_unless_asked_otherwise() -> None:
    """A registration without a topic forgets it only under deleteTopicWithBrokerRegistration."""
    table = RouteTable()
    table.register(broker(table=topics("T", "U")), 0)

    table.register(broker(table=topics("U", counter=2)), 0)
    assert table.route("T") is not None
    table.register(broker(table=topics("U", counter=3)), 0, deletes_absent_topics=True)

    assert table.route("T") is None and table.route("U") is not None


def test_slave_learns_its_master_and_does_not_speak_for_topics() -> None:
    """A slave's answer names the master and its replication address; its topics are not published."""
    table = RouteTable()

    orphan = table.register(broker("a", 1), 0)
    assert orphan.master_addr is None and table.route("T") is None
    master = table.register(broker("a", 0), 0)
    slave = table.register(broker("a", 1, table=topics("V", "W", counter=5)), 0)

    assert master.master_addr is None
    assert (slave.master_addr, slave.ha_server_addr) == ("a-0:10911", "a-0:10912")
    assert table.route("V") is None


def test_address_under_a_new_id_gives_up_the_old_one() -> None:
    """A slave that became master has one id."""
    table = RouteTable()
    table.register(broker("a", 1, address="x:1", can_act_as_master=True), 0)

    table.register(broker("a", 0, address="x:1", can_act_as_master=True), 1)

    assert table.members("c", "a").broker_addrs == {0: "x:1"}
    assert len(table.brokers) == 1


def test_address_under_a_new_name_gives_up_the_old_one() -> None:
    """A broker that was renamed leaves nothing behind under its old name."""
    table = RouteTable()
    table.register(broker("old", address="x:1", table=topics("T", "U")), 0)

    table.register(broker("new", address="x:1", table=topics("V", "W")), 1)

    assert table.route("T") is None and table.brokers.clusters() == {"c": ["new"]}


def test_older_state_version_cannot_take_the_id_of_a_living_newer_one() -> None:
    """A former master with an older epoch is ignored, quietly, whatever it sends."""
    table = RouteTable()
    table.register(broker(address="new:1", table=topics("T", "U", state=2)), 0)

    table.register(broker(address="old:1", table=topics("T", "U", state=1, counter=9, queues=1)), 1)

    assert table.members("c", "a").broker_addrs == {0: "new:1"}
    assert table.edition("c", "old:1") is None
    assert table.topics.queues("T")["a"].write_queue_nums == 8


def test_newer_state_version_takes_the_id() -> None:
    """The master of the next epoch replaces the former one, which then is not even alive here."""
    table = RouteTable()
    table.register(broker(address="old:1", table=topics("T", "U", state=1)), 0)

    table.register(broker(address="new:1", table=topics("T", "U", state=2, queues=16)), 1)

    assert table.members("c", "a").broker_addrs == {0: "new:1"}
    assert table.edition("c", "old:1") is None
    assert table.topics.queues("T")["a"].write_queue_nums == 16


def test_former_master_behind_the_same_address_cannot_speak_for_the_new_one() -> None:
    """Two masters may share a service address: the connection of the newer epoch alone refreshes and unregisters."""
    former, current = object(), object()
    table = RouteTable()
    table.register(broker(address="svc:1", table=topics("T", "U", state=1), connection=former), 0)
    table.register(broker(address="svc:1", table=topics("T", "U", state=2, queues=16), connection=current), 1)

    table.register(broker(address="svc:1", table=topics("T", "U", state=1, counter=9), connection=former), 2)
    assert not table.brokers.heard("c", "svc:1", former, 3)
    assert not table.unregister_by(former, "c", "a", "svc:1")
    assert table.disconnected(former) == []

    assert table.topics.queues("T")["a"].write_queue_nums == 16
    assert table.unregister_by(current, "c", "a", "svc:1")
    assert table.route("T") is None


def test_unregistered_broker_takes_its_topics_with_it() -> None:
    """The last address of a name removes name, cluster, topics and mappings; a slave's removal does not."""
    table = RouteTable()
    mapped = topics("T", "U")
    mapped.topic_queue_mapping_info_map["T"] = TopicQueueMapping(topic="T", bname="a", total_queues=2)
    table.register(broker("a", table=mapped), 0)
    table.register(broker("a", 1), 0)
    route = table.route("T")
    assert route is not None and route.topic_queue_mapping_by_broker is not None

    assert table.unregister("c", "a", "a-1:10911")
    assert table.route("T") is not None
    assert table.unregister("c", "a", "a-0:10911")
    assert not table.unregister("c", "a", "a-0:10911")

    assert table.route("T") is None and table.topics.names() == []
    assert table.brokers.clusters() == {} and table.topics.mappings("T") is None


def test_lost_connection_unregisters_what_it_had_registered_and_nothing_else() -> None:
    """All brokers of the connection go; one that has come back over another connection stays."""
    first, second = object(), object()
    table = RouteTable()
    table.register(broker("a", connection=first), 0)
    table.register(broker("b", connection=first), 0)
    table.register(broker("b", connection=second), 1)

    gone = table.disconnected(first)

    assert [live.name for live in gone] == ["a"]
    assert table.brokers.clusters() == {"c": ["b"]}


def test_masterless_broker_that_can_act_becomes_read_only_and_shows_its_smallest_slave() -> None:
    """The acting master is shown under id 0 only when asked for, and only while nobody can write."""
    table = RouteTable()
    table.register(broker("a", 0, can_act_as_master=True), 0)
    table.register(broker("a", 2, can_act_as_master=True), 0)
    table.register(broker("a", 1, can_act_as_master=True), 0)

    table.unregister("c", "a", "a-0:10911")

    assert permission(table) == READ_ONLY
    plain, acting = table.route("T"), table.route("T", with_acting_master=True)
    assert plain is not None and plain.broker_datas[0].broker_addrs == {1: "a-1:10911", 2: "a-2:10911"}
    assert acting is not None and acting.broker_datas[0].broker_addrs == {0: "a-1:10911", 2: "a-2:10911"}
    assert table.members("c", "a").broker_addrs == {1: "a-1:10911", 2: "a-2:10911"}


def test_smallest_slave_publishes_topics_without_write_when_there_is_no_master() -> None:
    """A slave that may act as master keeps its broker's topics known, read only."""
    table = RouteTable()

    table.register(broker("a", 1, can_act_as_master=True), 0)

    assert permission(table) == READ_ONLY


def test_one_name_belongs_to_one_cluster_while_another_address_holds_it() -> None:
    """A name in two clusters would mix their messages; a broker that moved alone moves its name."""
    table = RouteTable()
    table.register(broker("a", cluster="east"), 0)

    with pytest.raises(RegistrationRefused, match="cluster east"):
        table.register(broker("a", 1, cluster="west"), 0)
    table.register(broker("a", cluster="west"), 1)

    assert table.brokers.clusters() == {"west": ["a"]}
    assert table.brokers.live("east", "a-0:10911") is None


def test_registered_topic_needs_known_brokers() -> None:
    """A topic on an unknown broker is refused whole."""
    table = RouteTable()
    table.register(broker("a"), 0)
    known = QueueData(broker_name="a", read_queue_nums=1, write_queue_nums=1, perm=6)
    unknown = QueueData(broker_name="z", read_queue_nums=1, write_queue_nums=1, perm=6)

    with pytest.raises(RegistrationRefused, match="not registered: z"):
        table.register_topic("N", [known, unknown])
    assert table.route("N") is None
    table.register_topic("N", [known])

    assert table.route("N") is not None


def test_limits_refuse_without_a_trace() -> None:
    """Too many brokers or topics are refused; what is known may still be updated."""
    table = RouteTable(RouteLimits(brokers_max=1, topics_max=3))
    table.register(broker("a"), 0)

    with pytest.raises(RegistrationRefused, match="1 brokers"):
        table.register(broker("b"), 0)
    with pytest.raises(RegistrationRefused, match="more than 3 topics"):
        table.register(broker("a", table=topics("T", "U", "V", "W", counter=2)), 0)
    table.register(broker("a", table=topics("T", "U", "V", counter=2)), 0)

    assert table.topics.names() == ["T", "U", "V"] and table.brokers.clusters() == {"c": ["a"]}


def test_unit_flags_select_topics() -> None:
    """Lists by system flag: has all of the one, none of the other."""
    table = RouteTable()
    registered = topics("plain", "unit", "subscribed", "both")
    for name, flag in (("unit", 1), ("subscribed", 2), ("both", 3)):
        registered.topic_config_table[name].topic_sys_flag = flag
    table.register(broker(table=registered), 0)

    assert table.topics.with_flags(has=1) == ["both", "unit"]
    assert table.topics.with_flags(has=2) == ["both", "subscribed"]
    assert table.topics.with_flags(has=2, lacks=1) == ["subscribed"]


def test_filter_servers_are_in_routes_until_the_broker_drops_them() -> None:
    """None leaves the list as it was, an empty list removes it."""
    table = RouteTable()
    table.register(broker(filter_servers=["f:1"]), 0)
    table.register(broker(), 1)
    route = table.route("T")
    assert route is not None and route.filter_server_table == {"a-0:10911": ["f:1"]}

    table.register(broker(filter_servers=[]), 2)

    route = table.route("T")
    assert route is not None and route.filter_server_table == {}


def test_answer_is_the_callers_own() -> None:
    """Changing a route does not change the table."""
    table = RouteTable()
    table.register(broker(), 0)
    route = table.route("T")
    assert route is not None

    route.queue_datas[0].perm = 0
    route.broker_datas[0].broker_addrs.clear()

    assert permission(table) == READ_WRITE and table.members("c", "a").broker_addrs == {0: "a-0:10911"}
