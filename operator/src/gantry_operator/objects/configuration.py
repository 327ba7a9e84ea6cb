"""What a broker of the group is told, in two parts: what it is started with, and what may change while it runs.

    the pod's template (GANTRY_BROKER_CONF)   keys that a broker reads at its start only
    the ConfigMap's live.conf                 keys that a running broker takes
    the ConfigMap's peers                     sidecars of the group, one URL a line
    the ConfigMap's wanted                    topics and groups of consumers that the master has, for its sidecar
    the ConfigMap's outside                   where clients outside of the cluster reach the shard's brokers
    the pod itself                            its number and its addresses (`gantry pod broker`)

What stands in the template belongs to the pod from its birth to its death: a broker that crashed starts again with what
its pod was made with, also if the group was edited meanwhile and its new pods wait for their turn. So the template's
hash says exactly what a member was started with. Whatever may change under a running broker is kept out of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from gantry_operator.objects import names
from gantry_operator.objects.base import Object, json_text, labels, made
from gantry_operator.objects.facts import Facts
from gantry_spec.broker_conf import Place, broker_conf, conf_text
from gantry_spec.manifest.group import BrokerGroup
from gantry_spec.manifest.parts import ExternalType

STORE_FOLDER: Final = "/var/lib/gantry"
STORE: Final = f"{STORE_FOLDER}/store"
RUN: Final = "/run/gantry"
STATUS_PAGE: Final = f"{RUN}/status"
CONTROL: Final = f"{RUN}/control.sock"
BUFFERS: Final = "/var/lib/gantry-buffers"
CONFIGURATION: Final = "/etc/gantry/group"
REPLICATION_SECRET: Final = "/etc/gantry/replication"
SIDECAR_SECRET: Final = "/etc/gantry/sidecar"
ACCOUNTS: Final = "/etc/gantry/accounts"
CERTIFICATES: Final = "/etc/gantry/certificates"
PEERS_MAX: Final = 24
"""A group of more brokers than this shows each sidecar its own shard only: all of them ask all of their peers."""
GRACE_LEFT_MS: Final = 10_000
"""Of a pod's grace period, after the broker's own deadline to stop: for the supervisor to see it and say so."""

LIVE_KEYS: Final = frozenset(
    {
        *("autoCreateTopicEnable", "autoCreateSubscriptionGroup", "maxBatchMessages"),
        *("sendThreadPoolQueueCapacity", "waitTimeMillsInSendQueue", "osPageCacheBusyTimeOutMills"),
        *("pullThreadPoolQueueCapacity", "maxHeldPullsPerConnection", "maxPullBatchSize"),
        *("maxTransferBytesOnMessageInMemory", "maxTransferBytesOnRequest", "flushConsumerOffsetInterval"),
        *("fileReservedTime", "deleteWhen", "diskMaxUsedSpaceRatio", "diskSpaceCleanForciblyRatio"),
        *("diskSpaceWarningLevelRatio", "cleanResourceInterval", "slaveReadEnable", "accessMessageInMemoryMaxRatio"),
        *("transactionTimeOut", "transactionCheckMax", "transactionCheckInterval", "enablePropertyFilter"),
        "useServerSideResetOffset",
    }
)
"""Keys that a running broker takes. `maxMessageSize` is none here: with a small `segmentSize` it follows that."""

_OWN_KEYS: Final = frozenset({"brokerId", "brokerIP1"})
"""Of one member; its pod knows them."""


def name_servers(group: BrokerGroup) -> tuple[str, ...]:
    """Where the group's brokers register."""
    spec = group.spec.name_servers
    if spec.addresses:
        return tuple(spec.addresses)
    return names.name_server_addresses(group.metadata.name, group.metadata.namespace, spec.count)


def cold_conf(group: BrokerGroup, shard: int) -> str:
    """What a broker of a shard is started with."""
    return conf_text({key: value for key, value in _conf(group, shard).items() if key not in LIVE_KEYS})


def live_conf(group: BrokerGroup) -> str:
    """What a running broker takes."""
    return conf_text({key: value for key, value in sorted(_conf(group, 0).items()) if key in LIVE_KEYS})


def peers(group: BrokerGroup, facts: Facts, shard: int) -> tuple[str, ...]:
    """The sidecars that the one of a shard should ask."""
    name, namespace = group.metadata.name, group.metadata.namespace
    shards = shard_numbers(group, facts)
    members = {number: member_numbers(group, facts, number) for number in shards}
    if sum(map(len, members.values())) > PEERS_MAX:
        members = {shard: members[shard]}
    scheme = "https" if group.spec.access.tls_secret else "http"
    return tuple(
        f"{scheme}://{names.member_host(name, namespace, number, member)}:{names.SIDECAR_PORT}"
        for number, some in members.items()
        for member in some
    )


def shard_numbers(group: BrokerGroup, facts: Facts) -> list[int]:
    """Shards that are wanted, and those that cannot go yet."""
    return sorted({*range(group.spec.shards), *(shard.number for shard in facts.shards)})


def slaves_of(group: BrokerGroup, facts: Facts, shard: int) -> int:
    """How many slaves a shard has: what is wanted, and more while their vote is needed."""
    return max(group.spec.slaves, facts.shard(shard).slaves)


def member_numbers(group: BrokerGroup, facts: Facts, shard: int) -> range:
    """The members of a shard."""
    return range(1, slaves_of(group, facts, shard) + 2)


def outside(group: BrokerGroup, facts: Facts, shard: int) -> Iterator[tuple[str, str]]:
    """Who of a shard is reached at which address from outside, as far as the cluster has given them one."""
    name = group.metadata.name
    services = {"master": names.shard_name(name, shard)} | {
        str(member): names.member_pod(name, shard, member) for member in member_numbers(group, facts, shard)
    }
    for who, service in services.items():
        address = facts.outside.get(names.external_name(service), "")
        if address and group.spec.access.external.type is not ExternalType.NONE:
            yield who, address


def wanted(group: BrokerGroup) -> str:
    """Topics and groups of consumers of the spec, for the sidecar, which keeps them on the master."""
    spec = group.spec
    return json_text({"topics": spec.topics, "groups": spec.groups})


def config_map(group: BrokerGroup, facts: Facts, shard: int) -> Object:
    """A shard's."""
    data = {
        "live.conf": live_conf(group),
        "outside": "".join(f"{who}={address}\n" for who, address in outside(group, facts, shard)),
        "peers": "".join(f"{url}\n" for url in peers(group, facts, shard)),
        "wanted": wanted(group),
        "broker.conf": "# What new brokers of this shard are started with; for people, nobody reads it.\n"
        + cold_conf(group, shard),
    }
    name = names.shard_name(group.metadata.name, shard)
    return made(group, ("v1", "ConfigMap"), name, labels(group, names.BROKER, shard), {"data": data})


def _conf(group: BrokerGroup, shard: int) -> dict[str, str]:
    spec = group.spec
    place = Place(
        group=group.metadata.name,
        shard=shard,
        number=1,
        address="",
        port=names.BROKER_PORT,
        ha_port=names.REPLICATION_PORT,
        name_servers=name_servers(group),
        store=STORE,
        control=CONTROL,
        status_page=STATUS_PAGE,
        buffers=BUFFERS,
        access=_access(group),
    )
    grace_ms = int(spec.template.termination_grace_period)
    stop_ms = max(1_000, min(60_000, grace_ms - GRACE_LEFT_MS))
    conf = {
        "shutdownTimeout": str(stop_ms),
        "externalAddressPath": f"{CONFIGURATION}/outside",
        "liveSettingsPath": f"{CONFIGURATION}/live.conf",
    }
    conf |= broker_conf(spec, place)
    return {key: value for key, value in conf.items() if key not in _OWN_KEYS}


def _access(group: BrokerGroup) -> tuple[tuple[str, str], ...]:
    """Where accounts, certificates and the group's own secret lie."""
    access = group.spec.access
    found = [("haSecretPath", f"{REPLICATION_SECRET}/secret")]
    if access.acl_secret:
        found += [
            ("aclEnable", "true"),
            ("aclFile", f"{ACCOUNTS}/plain_acl.yml"),
            ("aclCredentialsPath", f"{ACCOUNTS}/credentials"),
        ]
    if access.tls_secret:
        found += tls_keys()
        found += [
            ("tlsEnable", "true"),
            ("tlsClientTrustCertPath", f"{CERTIFICATES}/ca.crt"),
            ("tlsClientCheckHostName", "false"),
            ("haTlsCertPath", f"{CERTIFICATES}/tls.crt"),
            ("haTlsKeyPath", f"{CERTIFICATES}/tls.key"),
            ("haTlsTrustCertPath", f"{CERTIFICATES}/ca.crt"),
        ]
    return tuple(found)


def tls_keys() -> list[tuple[str, str]]:
    """For a port that speaks TLS only."""
    return [
        ("tlsMode", "enforcing"),
        ("tlsServerCertPath", f"{CERTIFICATES}/tls.crt"),
        ("tlsServerKeyPath", f"{CERTIFICATES}/tls.key"),
    ]
