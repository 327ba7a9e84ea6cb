"""A pair of RocketMQ's brokers in controller mode, and requests about topics to brokers of either system.

Brokers are known by their addresses, and the master by the list of the name server.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from gantry_interop import java, probe
from gantry_interop.processes import Child, wait_until

from gantry_museum import clients
from gantry_museum.exhibit import Stage
from gantry_museum.servers import (
    AUTO_CREATE_TOPIC,
    BROKER_NAME,
    READY_SECONDS_MAX,
    plan_broker,
    program_of,
    start_name_server,
)
from gantry_testing.ports import free_port_run

CONTROLLER: Final = "org.apache.rocketmq.controller.ControllerStartup"
CONTROLLER_HEAP_MIB: Final = 256
GET_REPLICA_INFO: Final = 1004
GET_CLUSTER_INFO: Final = 106
MESSAGES: Final = 20
GET_TOPIC_CONFIG: Final = 351


@dataclass(frozen=True)
class ReplicaInfo:
    """The master's address, empty without one, its epoch, and how many brokers are in sync with it."""

    master: str
    epoch: int
    in_sync: int


@dataclass(frozen=True)
class Controller:
    """A running controller of RocketMQ."""

    address: str
    child: Child

    def replica_info(self) -> ReplicaInfo:
        """Return what the controller has recorded about the brokers; nothing if it does not answer."""
        try:
            answer = probe.send_request(self.address, GET_REPLICA_INFO, {"brokerName": BROKER_NAME})
            in_sync = json.loads(answer.body or b"{}").get("syncStateSet") or ()
        except (OSError, ValueError):
            return ReplicaInfo("", -1, 0)
        epoch = int(answer.fields.get("masterEpoch", "-1"))
        return ReplicaInfo(answer.fields.get("masterAddress", ""), epoch, len(in_sync))


def start_controller(stage: Stage, *, is_jraft: bool) -> Controller:
    """Start a controller with a single member, of DLedger's or of JRaft's kind."""
    port = free_port_run(3)
    address = f"127.0.0.1:{port}"
    settings = {"controllerStorePath": str(stage.directory / "controller"), "listenPort": str(port)}
    if is_jraft:
        raft = f"127.0.0.1:{port + 1}"
        settings |= {
            "controllerType": "jRaft", "jRaftServerId": raft, "jRaftInitConf": raft,
            "jRaftControllerRPCAddr": address,
        }  # fmt: skip
    else:
        settings |= {
            "controllerDLegerGroup": "group1", "controllerDLegerPeers": f"n0-{address}", "controllerDLegerSelfId": "n0"
        }  # fmt: skip
    conf = stage.directory / "controller.conf"
    conf.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    home = stage.directory / "controller-home"
    command = program_of(stage, CONTROLLER, CONTROLLER_HEAP_MIB).command(home, ["-c", str(conf)])
    child = stage.nursery.start("controller", command, java.environment(home))
    return Controller(address, child)


@dataclass(frozen=True)
class ControlledPair:
    """Two brokers of RocketMQ in controller mode; which of them is the master is the controller's choice."""

    name_server: str
    controller: Controller
    brokers: Mapping[str, Child] = field(default_factory=dict)
    """The processes of the brokers by their addresses."""

    @property
    def master(self) -> str:
        """Return the address of the master in the route; empty without one."""
        return master_in_route(self.name_server)

    def slave(self, master: str) -> str:
        """Return the address of the other broker."""
        return next(address for address in self.brokers if address != master)


def start_controlled_pair(stage: Stage, *, is_jraft: bool) -> ControlledPair:
    """Start a controller and two brokers, and wait until one is the master and the other one is in sync."""
    stage.directory.mkdir(parents=True, exist_ok=True)
    names = start_name_server(stage)
    controller = start_controller(stage, is_jraft=is_jraft)
    settings = {
        "enableControllerMode": "true", "controllerAddr": controller.address, "brokerRole": "SLAVE", "brokerId": "-1",
    }  # fmt: skip
    plans = [plan_broker(stage, names.address, settings, number=number) for number in (1, 2)]
    pair = ControlledPair(names.address, controller, {plan.address: plan.launch() for plan in plans})
    wait_until("a master", lambda: bool(pair.master), READY_SECONDS_MAX, controller.child)
    asyncio.run(_send_some(names.address))
    wait_until("the slave", lambda: controller.replica_info().in_sync == len(plans), READY_SECONDS_MAX)
    return pair


async def _send_some(name_server: str) -> None:
    """Send messages: a slave of an empty log does not become in sync."""
    await clients.create_topic(name_server)
    async with clients.producer(name_server) as sender:
        sent = await clients.send_many(sender, range(MESSAGES))
    assert any(one.is_acknowledged for one in sent), clients.count_answers(sent)


def master_in_route(name_server: str) -> str:
    """Return the address of the broker with id 0 in a name server's list of brokers; empty without one."""
    return _cluster(name_server).get("0", "")


def _cluster(name_server: str) -> dict[str, str]:
    """Return the addresses of the only broker name by their ids."""
    try:
        answer = probe.send_request(name_server, GET_CLUSTER_INFO)
        # RocketMQ writes the numbers without quotes.
        table = json.loads(re.sub(rb"([{,])(\d+):", rb'\1"\2":', answer.body))["brokerAddrTable"]
    except (OSError, ValueError, KeyError):
        return {}
    return next((dict(one["brokerAddrs"]) for one in table.values()), {})


def has_topic(address: str, topic: str) -> bool:
    """Return whether a broker has the configuration of a topic."""
    try:
        return probe.send_request(address, GET_TOPIC_CONFIG, {"topic": topic}).code == 0
    except OSError:
        return False


def create_topic(address: str, topic: str) -> None:
    """Create a topic at one broker, as mqadmin does."""
    fields = {
        "topic": topic, "defaultTopic": AUTO_CREATE_TOPIC, "readQueueNums": "3", "writeQueueNums": "3", "perm": "6",
        "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false",
    }  # fmt: skip
    answer = probe.send_request(address, probe.UPDATE_TOPIC, fields)
    assert answer.code == 0, (answer.code, answer.remark)
