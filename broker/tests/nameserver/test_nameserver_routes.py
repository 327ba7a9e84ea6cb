"""The rules of the route table, without sockets: time is a number and a connection is any object."""

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


def test_route_has_queues_and_addresses_of_every_broker() -> None:
    """A route lists each broker with its queues once, sorted, and all addresses under its name."""
    table = RouteTable()

    table.register(broker("b", table=topics("T", "U", queues=4)), 0)
    table.register(broker("a"), 0)
    table.register(broker("a", 1, table=topics()), 0)

    route = table.route("T")
    assert route is not None
    assert [(q.broker_name, q.write_queue_nums, q.perm) for q in route.queue_datas] == [("a", 8, 6), ("b", 4, 6)]
    assert [b.broker_addrs for b in route.broker_datas] == [{0: "a-0:10911", 1: "a-1:10911"}, {0: "b-0:10911"}]
    assert table.route("nowhere") is None


def test_first_registration_with_one_topic_is_refused() -> None:
    """One topic of an unknown broker may be an incremental update; the same of a known broker is one."""
    table = RouteTable()

    with pytest.raises(RegistrationRefused, match="exactly one topic"):
        table.register(broker(table=topics("T")), 0)

    assert table.route("T") is None and len(table.brokers) == 0 and table.brokers.clusters() == {}
    table.register(broker(table=topics()), 0)
    table.register(broker(table=topics("T", counter=2)), 0)
    assert table.route("T") is not None


def test_topics_change_only_with_a_new_data_version() -> None:
    """The same version keeps a wiped permission; a new version restores the permission of the broker."""
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
    assert table.topics.allow_writes("unknown", is_allowed=False) == 0


def test_deleted_topic_returns_with_the_next_registration() -> None:
    """A missing topic is added even if the data version is the same."""
    table = RouteTable()
    table.register(broker(), 0)

    assert table.delete_topic("T")
    assert table.route("T") is None
    table.register(broker(), 1)

    assert table.route("T") is not None


def test_topic_is_deleted_only_in_the_named_cluster() -> None:
    """Deleting with a cluster keeps the queues of other clusters."""
    table = RouteTable()
    table.register(broker("a", cluster="east"), 0)
    table.register(broker("b", cluster="west"), 0)

    assert table.delete_topic("T", "east")

    route = table.route("T")
    assert route is not None and [q.broker_name for q in route.queue_datas] == ["b"]
    assert not table.delete_topic("T", "nowhere")


def test_absent_topics_are_kept_by_default() -> None:
    """A registration without a topic removes it only with deleteTopicWithBrokerRegistration."""
    table = RouteTable()
    table.register(broker(table=topics("T", "U")), 0)

    table.register(broker(table=topics("U", counter=2)), 0)
    assert table.route("T") is not None
    table.register(broker(table=topics("U", counter=3)), 0, deletes_absent_topics=True)

    assert table.route("T") is None and table.route("U") is not None


def test_slave_gets_its_master_and_publishes_no_topics() -> None:
    """The reply to a slave has the addresses of the master; the topics of the slave are not published."""
    table = RouteTable()

    orphan = table.register(broker("a", 1), 0)
    assert orphan.master_addr is None and table.route("T") is None
    master = table.register(broker("a", 0), 0)
    slave = table.register(broker("a", 1, table=topics("V", "W", counter=5)), 0)

    assert master.master_addr is None
    assert (slave.master_addr, slave.ha_server_addr) == ("a-0:10911", "a-0:10912")
    assert table.route("V") is None


def test_address_with_a_new_id_loses_the_old_id() -> None:
    """A promoted slave has one id only."""
    table = RouteTable()
    table.register(broker("a", 1, address="x:1", can_act_as_master=True), 0)

    table.register(broker("a", 0, address="x:1", can_act_as_master=True), 1)

    assert table.members("c", "a").broker_addrs == {0: "x:1"}
    assert len(table.brokers) == 1


def test_address_with_a_new_name_loses_the_old_name() -> None:
    """A renamed broker leaves nothing under its old name."""
    table = RouteTable()
    table.register(broker("old", address="x:1", table=topics("T", "U")), 0)

    table.register(broker("new", address="x:1", table=topics("V", "W")), 1)

    assert table.route("T") is None and table.brokers.clusters() == {"c": ["new"]}


def test_older_state_version_cannot_take_the_id_of_a_live_newer_one() -> None:
    """The registration of a former master with an older epoch is ignored, even with a newer counter."""
    table = RouteTable()
    table.register(broker(address="new:1", table=topics("T", "U", state=2)), 0)

    table.register(broker(address="old:1", table=topics("T", "U", state=1, counter=9, queues=1)), 1)

    assert table.members("c", "a").broker_addrs == {0: "new:1"}
    assert table.find_data_version("c", "old:1") is None
    assert table.topics.queues("T")["a"].write_queue_nums == 8


def test_newer_state_version_takes_the_id() -> None:
    """The master of the next epoch replaces the former one, which is removed from the live brokers."""
    table = RouteTable()
    table.register(broker(address="old:1", table=topics("T", "U", state=1)), 0)

    table.register(broker(address="new:1", table=topics("T", "U", state=2, queues=16)), 1)

    assert table.members("c", "a").broker_addrs == {0: "new:1"}
    assert table.find_data_version("c", "old:1") is None
    assert table.topics.queues("T")["a"].write_queue_nums == 16


def test_former_master_with_the_same_address_is_ignored() -> None:
    """Two masters may share a service address: only the connection of the newer epoch refreshes and unregisters."""
    former, current = object(), object()
    table = RouteTable()
    table.register(broker(address="svc:1", table=topics("T", "U", state=1), connection=former), 0)
    table.register(broker(address="svc:1", table=topics("T", "U", state=2, queues=16), connection=current), 1)

    table.register(broker(address="svc:1", table=topics("T", "U", state=1, counter=9), connection=former), 2)
    assert not table.brokers.record_heartbeat("c", "svc:1", former, 3)
    assert not table.unregister_over(former, "c", "a", "svc:1")
    assert table.unregister_connection(former) == []

    assert table.topics.queues("T")["a"].write_queue_nums == 16
    assert table.unregister_over(current, "c", "a", "svc:1")
    assert table.route("T") is None


def test_unregistering_a_broker_removes_its_topics() -> None:
    """Removing the last address of a name removes name, cluster, topics and mappings; removing a slave does not."""
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


def test_lost_connection_unregisters_only_its_own_brokers() -> None:
    """All brokers of the connection are removed, except one that re-registered over another connection."""
    first, second = object(), object()
    table = RouteTable()
    table.register(broker("a", connection=first), 0)
    table.register(broker("b", connection=first), 0)
    table.register(broker("b", connection=second), 1)

    gone = table.unregister_connection(first)

    assert [live.name for live in gone] == ["a"]
    assert table.brokers.clusters() == {"c": ["b"]}


def test_acting_master_is_presented_for_read_only_broker() -> None:
    """The acting master has id 0 only if the query requests it and the broker is read-only."""
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


def test_acting_master_publishes_read_only_topics() -> None:
    """A slave that can act as master keeps the topics of its broker, without write permission."""
    table = RouteTable()

    table.register(broker("a", 1, can_act_as_master=True), 0)

    assert permission(table) == READ_ONLY


def test_broker_name_belongs_to_one_cluster() -> None:
    """A name in two clusters would mix their messages; a single broker can move its name."""
    table = RouteTable()
    table.register(broker("a", cluster="east"), 0)

    with pytest.raises(RegistrationRefused, match="cluster east"):
        table.register(broker("a", 1, cluster="west"), 0)
    table.register(broker("a", cluster="west"), 1)

    assert table.brokers.clusters() == {"west": ["a"]}
    assert table.brokers.find_live("east", "a-0:10911") is None


def test_topic_registration_needs_known_brokers() -> None:
    """A topic with an unknown broker is refused as a whole."""
    table = RouteTable()
    table.register(broker("a"), 0)
    known = QueueData(broker_name="a", read_queue_nums=1, write_queue_nums=1, perm=6)
    unknown = QueueData(broker_name="z", read_queue_nums=1, write_queue_nums=1, perm=6)

    with pytest.raises(RegistrationRefused, match="not registered: z"):
        table.register_topic("N", [known, unknown])
    assert table.route("N") is None
    table.register_topic("N", [known])

    assert table.route("N") is not None


def test_limits_refuse_new_brokers_and_topics() -> None:
    """Beyond the limits nothing changes; known brokers may still be updated."""
    table = RouteTable(RouteLimits(brokers_max=1, topics_max=3))
    table.register(broker("a"), 0)

    with pytest.raises(RegistrationRefused, match="1 brokers"):
        table.register(broker("b"), 0)
    with pytest.raises(RegistrationRefused, match="more than 3 topics"):
        table.register(broker("a", table=topics("T", "U", "V", "W", counter=2)), 0)
    table.register(broker("a", table=topics("T", "U", "V", counter=2)), 0)

    assert table.topics.names() == ["T", "U", "V"] and table.brokers.clusters() == {"c": ["a"]}


def test_unit_flags_select_topics() -> None:
    """A list by system flag has the topics with all of one set of flags and none of the other."""
    table = RouteTable()
    registered = topics("plain", "unit", "subscribed", "both")
    for name, flag in (("unit", 1), ("subscribed", 2), ("both", 3)):
        registered.topic_config_table[name].topic_sys_flag = flag
    table.register(broker(table=registered), 0)

    assert table.topics.with_flags(has=1) == ["both", "unit"]
    assert table.topics.with_flags(has=2) == ["both", "subscribed"]
    assert table.topics.with_flags(has=2, lacks=1) == ["subscribed"]


def test_filter_servers_are_kept_until_removed() -> None:
    """None keeps the list, an empty list removes it."""
    table = RouteTable()
    table.register(broker(filter_servers=["f:1"]), 0)
    table.register(broker(), 1)
    route = table.route("T")
    assert route is not None and route.filter_server_table == {"a-0:10911": ["f:1"]}

    table.register(broker(filter_servers=[]), 2)

    route = table.route("T")
    assert route is not None and route.filter_server_table == {}


def test_returned_route_is_a_copy() -> None:
    """Changing a returned route does not change the table."""
    table = RouteTable()
    table.register(broker(), 0)
    route = table.route("T")
    assert route is not None

    route.queue_datas[0].perm = 0
    route.broker_datas[0].broker_addrs.clear()

    assert permission(table) == READ_WRITE and table.members("c", "a").broker_addrs == {0: "a-0:10911"}
