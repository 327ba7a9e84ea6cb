"""The configuration of a group's brokers, in two parts: settings for the start, and settings that may change later.

    the pod's template (GANTRY_BROKER_CONF)   keys whose change needs a new pod
    the ConfigMap's live.conf                 keys that a running broker reloads
    the ConfigMap's peers                     sidecars of the group, one URL a line
    the ConfigMap's topics.json               topics and consumer groups of the spec, for the sidecar of the master
    the ConfigMap's outside                   the addresses of the shard's brokers for clients outside of the cluster
    the ConfigMap's broker.conf               a copy of the settings for the start, for people only
    the pod itself                            its number, addresses and uid (`gantry pod broker`)

The settings in the template stay the same for the lifetime of the pod: a broker that crashed restarts with the settings
with which its pod was created, even if the group was edited meanwhile and the roll has not reached it. So the hash of
the template identifies the settings with which a member runs. Settings that may change at runtime are kept out of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from gantry_operator.objects import names
from gantry_operator.objects.base import Object, json_text, labels, make_object
from gantry_operator.objects.facts import Facts
from gantry_spec.broker_conf import BrokerPlacement, broker_conf, conf_text
from gantry_spec.manifest.group import BrokerGroup
from gantry_spec.manifest.parts import ExternalType

STORE_FOLDER: Final = "/var/lib/gantry"
"""The folder where the volume of a broker is mounted. The following paths are those in its pod, too."""

STORE: Final = f"{STORE_FOLDER}/store"
RUN: Final = "/run/gantry"
"""The folder that broker and sidecar share, with status page and control socket."""

STATUS_PAGE: Final = f"{RUN}/status"
CONTROL: Final = f"{RUN}/control.sock"
BUFFERS: Final = "/var/lib/gantry-buffers"
CONFIGURATION: Final = "/etc/gantry/group"
"""The folder where the shard's ConfigMap is mounted."""

TOPICS_FILE: Final = "topics.json"
REPLICATION_SECRET: Final = "/etc/gantry/replication"
SIDECAR_SECRET: Final = "/etc/gantry/sidecar"
ARCHIVE_SECRET: Final = "/etc/gantry/archive"
"""The folder with the CA of the archive server and the secret for it, in pods of brokers and of the server."""

ACCOUNTS: Final = "/etc/gantry/accounts"
CERTIFICATES: Final = "/etc/gantry/certificates"
"""The folder with the certificates of the pod; see ``certificates``."""

PEERS_MAX: Final = 24
"""In a group with more brokers, each sidecar only gets the peers of its shard, because sidecars query all peers."""
GRACE_LEFT_MS: Final = 10_000
"""The part of a pod's grace period after the broker's shutdown deadline, in which the supervisor reports the result."""

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
"""Keys that a running broker reloads. Two more that it could reload are not among them: `maxMessageSize`, which a small
`segmentSize` limits, and `shutdownTimeout`, which follows from the grace period of the pod."""

_OWN_KEYS: Final = frozenset({"brokerId", "brokerIP1"})
"""The keys of a single member, which its pod sets itself."""


def name_servers(group: BrokerGroup) -> tuple[str, ...]:
    """Return the addresses of the name servers at which the group's brokers register."""
    spec = group.spec.name_servers
    if spec.addresses:
        return tuple(spec.addresses)
    return names.name_server_addresses(group.metadata.name, group.metadata.namespace, spec.count)


def startup_conf(group: BrokerGroup, shard: int) -> str:
    """Return the configuration with which a broker of a shard is started."""
    return conf_text({key: value for key, value in _conf(group, shard).items() if key not in LIVE_KEYS})


def live_conf(group: BrokerGroup) -> str:
    """Return the configuration that a running broker reloads."""
    return conf_text({key: value for key, value in sorted(_conf(group, 0).items()) if key in LIVE_KEYS})


def peers(group: BrokerGroup, facts: Facts, shard: int) -> tuple[str, ...]:
    """Return the URLs of the peers of a shard's sidecars."""
    name, namespace = group.metadata.name, group.metadata.namespace
    shards = shard_numbers(group, facts)
    members = {number: member_numbers(group, facts, number) for number in shards}
    if sum(map(len, members.values())) > PEERS_MAX:
        members = {shard: members[shard]}
    scheme = "https" if group.spec.access.has_tls else "http"
    return tuple(
        f"{scheme}://{names.member_host(name, namespace, number, member)}:{names.SIDECAR_PORT}"
        for number, some in members.items()
        for member in some
    )


def shard_numbers(group: BrokerGroup, facts: Facts) -> list[int]:
    """Return the shards of the spec, and the removed ones that still exist."""
    return sorted({*range(group.spec.shards), *(shard.number for shard in facts.shards)})


def slaves_of(group: BrokerGroup, facts: Facts, shard: int) -> int:
    """Return how many slaves a shard has: those of the spec, and more until a scale-in has removed them."""
    return max(group.spec.slaves, facts.shard(shard).slaves)


def member_numbers(group: BrokerGroup, facts: Facts, shard: int) -> range:
    """Return the numbers of a shard's members."""
    return range(1, slaves_of(group, facts, shard) + 2)


def external_addresses(group: BrokerGroup, facts: Facts, shard: int) -> Iterator[tuple[str, str]]:
    """Yield the external addresses of a shard: ``master`` or a member's number, and host:port, where assigned."""
    name = group.metadata.name
    services = {"master": names.shard_name(name, shard)} | {
        str(member): names.member_pod(name, shard, member) for member in member_numbers(group, facts, shard)
    }
    for target, service in services.items():
        address = facts.external_addresses.get(names.external_name(service), "")
        if address and group.spec.access.external.type is not ExternalType.NONE:
            yield target, address


def topics_and_groups(group: BrokerGroup) -> str:
    """Return the topics and consumer groups of the spec as JSON, for the sidecar, which creates them on the master."""
    spec = group.spec
    return json_text({"topics": spec.topics, "groups": spec.groups})


def config_map(group: BrokerGroup, facts: Facts, shard: int) -> Object:
    """Return the ConfigMap of a shard."""
    data = {
        "live.conf": live_conf(group),
        "outside": "".join(f"{target}={address}\n" for target, address in external_addresses(group, facts, shard)),
        "peers": "".join(f"{url}\n" for url in peers(group, facts, shard)),
        TOPICS_FILE: topics_and_groups(group),
        "broker.conf": "# The configuration of new brokers of this shard. For information only: no program reads it.\n"
        + startup_conf(group, shard),
    }
    name = names.shard_name(group.metadata.name, shard)
    return make_object(group, ("v1", "ConfigMap"), name, labels(group, names.BROKER, shard), {"data": data})


def _conf(group: BrokerGroup, shard: int) -> dict[str, str]:
    """Return all settings of the shard's brokers, of both parts."""
    spec = group.spec
    place = BrokerPlacement(
        group=group.metadata.name,
        shard=shard,
        number=1,
        address="",
        listen="::",
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
    """Return the settings for accounts, certificates, the group's own secret and its archive."""
    access = group.spec.access
    found = [("haSecretPath", f"{REPLICATION_SECRET}/secret"), *_archive_keys(group)]
    if access.acl_secret:
        found += [
            ("aclEnable", "true"),
            ("aclFile", f"{ACCOUNTS}/plain_acl.yml"),
            ("aclCredentialsPath", f"{ACCOUNTS}/credentials"),
        ]
    if access.has_tls:
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


def _archive_keys(group: BrokerGroup) -> list[tuple[str, str]]:
    """Return the settings for the archive server; none without an archive. Which archive it serves is not in them."""
    if group.spec.retention.archive is None:
        return []
    host = names.archive_server_host(group.metadata.name, group.metadata.namespace)
    return [
        ("archiveAddress", f"{host}:{names.ARCHIVE_PORT}"),
        ("archiveSecretPath", f"{ARCHIVE_SECRET}/secret"),
        ("archiveTlsTrustCertPath", f"{ARCHIVE_SECRET}/ca.crt"),
    ]


def tls_keys() -> list[tuple[str, str]]:
    """Return the settings of a port that accepts only TLS connections."""
    return [
        ("tlsMode", "enforcing"),
        ("tlsServerCertPath", f"{CERTIFICATES}/tls.crt"),
        ("tlsServerKeyPath", f"{CERTIFICATES}/tls.key"),
    ]
