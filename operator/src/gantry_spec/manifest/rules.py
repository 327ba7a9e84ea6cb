"""The validation rules that a field's own type does not have, each in Python and in CEL for the API server.

A rule has the path of the field to change, a test, the message for the user, and the same test as a CEL expression over
the spec with its defaults. Both forms are side by side, so that they are changed together. Where the schema of the
custom resource already has the rule, there is no CEL expression.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from gantry_spec.manifest.errors import Problem
from gantry_spec.manifest.group import Spec
from gantry_spec.manifest.parts import (
    AckLevel,
    CertificateIssuer,
    ExternalType,
    FailoverMode,
    FlushMode,
    Medium,
    ReplicationMode,
    Storage,
)
from gantry_spec.manifest.proxy import ProxyServiceType
from gantry_spec.manifest.quantities import duration_text, size_text
from gantry_spec.manifest.retention import CACHE_BYTES_MIN

PAGE_BYTES: Final = 2 << 20
"""The size of a huge page, of which a buffer on hugetlbfs must be a multiple."""

BLOCK_BYTES: Final = 4096
"""The block size of which the size of any log file must be a multiple."""

POLL_MS_MIN: Final = 5_000
"""The shortest long poll of clients that proxies accept, as RocketMQ's proxy; a limit below it would contradict it."""

POLL_MS_MAX: Final = 60_000
"""The longest limit of a long poll: a stopping proxy waits for it."""

INVISIBLE_MS_MIN: Final = 10_000
"""The shortest invisible time of a received message, as in RocketMQ; a limit below it would contradict it."""

RESERVED_KEYS: Final = frozenset(
    {
        *("brokerRole", "brokerId", "brokerName", "brokerClusterName", "namesrvAddr", "flushDiskType"),
        *("inSyncReplicas", "slaveTimeout", "haAckLevel", "haDegrade", "haElectable", "haMasterAddress", "roleAtStart"),
        *("controlSocketPath", "storePathRootDir", "transientStorePoolEnable", "transientStorePoolSize"),
        *("transientStorePoolPath", "mappedFileSizeCommitLog", "listenPort", "haListenPort", "fileReservedTime"),
        *("flushIntervalCommitLog", "flushCommitLogLeastPages", "haMaxGapNotInSync"),
        *("brokerIP1", "brokerIP2", "brokerMasterIP", "bindAddress", "fastListenPort", "externalAddressPath"),
        *("statusPagePath", "liveSettingsPath", "aclEnable", "aclFile", "aclCredentialsPath"),
        *("authenticationEnabled", "authorizationEnabled", "initAuthenticationUser"),
        *("tlsMode", "tlsServerCertPath", "tlsServerKeyPath", "tlsEnable", "tlsClientTrustCertPath"),
        *("tlsClientCheckHostName", "haSecretPath", "haTlsCertPath", "haTlsKeyPath", "haTlsTrustCertPath"),
    }
)
"""The keys of ``broker.conf`` that fields of the spec or the operator control, such as paths, addresses and access."""


ARCHIVE_KEYS: Final = frozenset({"archiveSocketPath", "archiveAddress", "archiveSecretPath", "archiveTlsTrustCertPath"})
"""The keys of ``broker.conf`` that name an archive server; the operator sets them if the spec names an archive."""


class Rule(NamedTuple):
    """A validation rule over the fields of a spec."""

    path: str
    is_kept: Callable[[Spec], bool]
    """Whether a spec keeps the rule."""

    text: Callable[[Spec], str]
    """The message for a spec that breaks the rule, with its values."""

    cel: str
    """The same test in CEL, over ``self``, the spec with its defaults; empty where the schema has the rule: it makes
    names unique (``schema.MAP_KEYS``)."""

    message: str
    """The message of the API server when the rule is broken."""


def _acks(spec: Spec) -> int:
    """Return how many acks of slaves a send needs."""
    return spec.replication.acks_needed


def _replicas(spec: Spec) -> int:
    """Return ``inSyncReplicas`` as it is written; 0 if it is not set."""
    return spec.replication.in_sync_replicas or 0


def _segment_unit(spec: Spec) -> int:
    """Return the number of bytes of which ``segmentSize`` must be a multiple."""
    return PAGE_BYTES if spec.write_buffer.medium is Medium.HUGE_PAGES else BLOCK_BYTES


def _has_balancer_fields(spec: Spec) -> bool:
    """Return whether a field of the proxies' Service is set that only a load balancer has."""
    return bool(spec.proxy.service.load_balancer_class or spec.proxy.service.load_balancer_source_ranges)


def _is_cert_manager(spec: Spec) -> bool:
    """Return whether cert-manager issues the certificate of the group."""
    return spec.access.certificates.issuer is CertificateIssuer.CERT_MANAGER


def _can_require_client_certificates(spec: Spec) -> bool:
    """Return whether proxies need no client certificates, or have an authority that issues them."""
    if not spec.proxy.tls.requires_client_certificate:
        return True
    return bool(spec.proxy.tls.secret or spec.access.tls_secret) or _is_cert_manager(spec)


def _is_unique(names: list[str]) -> bool:
    return len(names) == len(set(names))


_SYNC: Final = "self.replication.mode == 'Sync'"
_IN_SYNC: Final = "(has(self.replication.inSyncReplicas) ? self.replication.inSyncReplicas : 2)"
_SEGMENT: Final = "quantity(string(self.writeBuffer.segmentSize)).asInteger()"

RULES: Final = (
    Rule(
        "spec.replication.inSyncReplicas",
        lambda spec: _acks(spec) <= spec.slaves,
        lambda spec: f"{_acks(spec) + 1} needs at least {_acks(spec)} slaves, but spec.slaves is {spec.slaves}",
        f"{_SYNC} ? {_IN_SYNC} <= self.slaves + 1 : true",
        "slaves must be at least inSyncReplicas - 1: raise slaves, or lower inSyncReplicas",
    ),
    Rule(
        "spec.replication.inSyncReplicas",
        lambda spec: spec.replication.mode is not ReplicationMode.SYNC or _acks(spec) >= 1,
        lambda spec: f"{_replicas(spec)} with mode Sync waits for no slave; set 2 or more, or mode Async",
        f"{_SYNC} ? {_IN_SYNC} >= 2 : true",
        "mode Sync needs inSyncReplicas of 2 or more; mode Async waits for no slave",
    ),
    Rule(
        "spec.replication.inSyncReplicas",
        lambda spec: spec.replication.mode is ReplicationMode.SYNC or _replicas(spec) <= 1,
        lambda spec: f"{_replicas(spec)} has no effect with mode Async; set mode Sync, or leave it out",
        "self.replication.mode == 'Async' ? !has(self.replication.inSyncReplicas) ||"
        " self.replication.inSyncReplicas <= 1 : true",
        "mode Async waits for no slave: leave inSyncReplicas out, or set mode Sync",
    ),
    Rule(
        "spec.replication.ack",
        lambda spec: spec.replication.mode is ReplicationMode.SYNC or spec.replication.ack is not AckLevel.FLUSHED,
        lambda _: "Flushed has no effect with mode Async; set mode Sync, or leave it out",
        "self.replication.mode == 'Async' ? !has(self.replication.ack) || self.replication.ack == 'Received' : true",
        "mode Async waits for no acknowledgement: leave ack out, or set mode Sync",
    ),
    Rule(
        "spec.nameServers",
        lambda spec: spec.name_servers.replicas is None or not spec.name_servers.addresses,
        lambda _: "replicas creates name servers and addresses uses existing ones; set only one of them",
        "!has(self.nameServers.replicas) || size(self.nameServers.addresses) == 0",
        "set nameServers.replicas or nameServers.addresses, not both",
    ),
    Rule(
        "spec.writeBuffer.segmentSize",
        lambda spec: (
            spec.write_buffer.segment_size % _segment_unit(spec) == 0 and spec.write_buffer.segment_size >= 1 << 20
        ),
        lambda spec: (
            f"{spec.write_buffer.segment_size} must be a multiple of {size_text(_segment_unit(spec))} with medium"
            f" {spec.write_buffer.medium}, and at least 1Mi"
        ),
        f"{_SEGMENT} >= 1048576 &&"
        f" {_SEGMENT} % (self.writeBuffer.medium == 'HugePages-2Mi' ? {PAGE_BYTES} : {BLOCK_BYTES}) == 0",
        "segmentSize must be at least 1Mi, and a multiple of 2Mi with HugePages-2Mi, otherwise of 4Ki",
    ),
    Rule(
        "spec.storage.size",
        lambda spec: spec.storage.size >= 3 * spec.write_buffer.segment_size,
        lambda spec: (
            f"{spec.storage.size} is too small for files of {spec.write_buffer.segment_size}:"
            f" set at least {size_text(3 * spec.write_buffer.segment_size)}, or a smaller spec.writeBuffer.segmentSize"
        ),
        f"quantity(string(self.storage.size)).asInteger() >= 3 * {_SEGMENT}",
        "storage.size must hold at least three files of writeBuffer.segmentSize",
    ),
    Rule(
        "spec.retention.local",
        lambda spec: (
            spec.retention.local in (None, spec.storage.reserved_time)
            or spec.storage.reserved_time == Storage().reserved_time
        ),
        lambda spec: (
            f"{duration_text(spec.reserved_time)} contradicts spec.storage.reservedTime,"
            f" {duration_text(spec.storage.reserved_time)}: set only spec.retention.local"
        ),
        "!has(self.retention.local) || duration(self.storage.reservedTime) == duration('72h') ||"
        " duration(self.storage.reservedTime) == duration(self.retention.local)",
        "retention.local and storage.reservedTime contradict each other: set only retention.local",
    ),
    Rule(
        "spec.retention.server.cache",
        lambda spec: spec.retention.server.cache >= CACHE_BYTES_MIN,
        lambda spec: f"{spec.retention.server.cache}, expected at least {size_text(CACHE_BYTES_MIN)}",
        f"quantity(string(self.retention.server.cache)).asInteger() >= {CACHE_BYTES_MIN}",
        "retention.server.cache must be at least 1Mi",
    ),
    Rule(
        "spec.durability.maxAtRisk",
        lambda spec: (
            _acks(spec) > 0
            or spec.flush.mode is FlushMode.SYNC
            or spec.durability.max_at_risk >= spec.flush.interval
            or spec.slaves > 0
        ),
        lambda spec: (
            f"{spec.durability.max_at_risk} cannot be kept without slaves and with a flush every"
            f" {duration_text(spec.flush.interval)}; set at least that, or spec.flush.mode Sync"
        ),
        "self.replication.mode == 'Sync' || self.flush.mode == 'Sync' || self.slaves > 0 ||"
        " duration(self.durability.maxAtRisk) >= duration(self.flush.interval)",
        "without slaves maxAtRisk cannot be shorter than flush.interval",
    ),
    Rule(
        "spec.failover.switchback",
        lambda spec: not spec.failover.switchback or spec.failover.mode is not FailoverMode.DISABLED,
        lambda _: "true contradicts mode Disabled, which does not move the role back; set mode Manual or Automatic",
        "!(self.failover.switchback && self.failover.mode == 'Disabled')",
        "switchback moves the master's role, and failover.mode Disabled forbids that",
    ),
    Rule(
        "spec.access.certificates.issuer",
        lambda spec: not spec.access.tls_secret or spec.access.certificates.issuer is CertificateIssuer.NONE,
        lambda spec: (
            f"{spec.access.certificates.issuer} contradicts spec.access.tlsSecret, {spec.access.tls_secret}: set only"
            " one of them"
        ),
        "self.access.tlsSecret == '' || self.access.certificates.issuer == 'None'",
        "set access.tlsSecret or access.certificates.issuer, not both",
    ),
    Rule(
        "spec.access.certificates.issuerRef.name",
        lambda spec: _is_cert_manager(spec) == bool(spec.access.certificates.issuer_ref.name),
        lambda spec: (
            "is required with issuer CertManager: the name of an Issuer or ClusterIssuer of cert-manager"
            if _is_cert_manager(spec)
            else f"{spec.access.certificates.issuer_ref.name} has no effect with issuer"
            f" {spec.access.certificates.issuer}; set issuer CertManager, or leave it out"
        ),
        "(self.access.certificates.issuer == 'CertManager') == (self.access.certificates.issuerRef.name != '')",
        "access.certificates.issuerRef.name is required with issuer CertManager, and has no effect without it",
    ),
    Rule(
        "spec.access.certificates.names",
        lambda spec: (
            not spec.access.certificates.names or spec.access.certificates.issuer is not CertificateIssuer.NONE
        ),
        lambda _: "has no effect while no certificate is issued; set spec.access.certificates.issuer, or leave it out",
        "size(self.access.certificates.names) == 0 || self.access.certificates.issuer != 'None'",
        "access.certificates.names has no effect without access.certificates.issuer: set both, or leave it out",
    ),
    Rule(
        "spec.access.external.gateway.name",
        lambda spec: spec.access.external.type is not ExternalType.GATEWAY or bool(spec.access.external.gateway.name),
        lambda _: "empty, but spec.access.external.type is Gateway; set the name of an existing Gateway",
        "self.access.external.type != 'Gateway' || self.access.external.gateway.name != ''",
        "access.external.type Gateway needs access.external.gateway.name, the name of an existing Gateway",
    ),
    Rule(
        "spec.proxy.credentialsSecret",
        lambda spec: not spec.proxy.credentials_secret or bool(spec.access.acl_secret),
        lambda spec: (
            f"{spec.proxy.credentials_secret} has no effect while brokers check no accounts; set spec.access.aclSecret,"
            " or leave it out"
        ),
        "self.proxy.credentialsSecret == '' || self.access.aclSecret != ''",
        "proxy.credentialsSecret has no effect without access.aclSecret: set both, or leave it out",
    ),
    Rule(
        "spec.proxy.tls.requiresClientCertificate",
        _can_require_client_certificates,
        lambda _: (
            "true needs an authority that issues certificates to clients; set spec.proxy.tls.secret,"
            " spec.access.tlsSecret, or spec.access.certificates.issuer CertManager"
        ),
        "!self.proxy.tls.requiresClientCertificate || self.proxy.tls.secret != '' || self.access.tlsSecret != '' ||"
        " self.access.certificates.issuer == 'CertManager'",
        "proxy.tls.requiresClientCertificate needs an authority that issues certificates to clients: set"
        " proxy.tls.secret, access.tlsSecret, or access.certificates.issuer CertManager",
    ),
    Rule(
        "spec.proxy.service.type",
        lambda spec: spec.proxy.service.type is ProxyServiceType.LOAD_BALANCER or not _has_balancer_fields(spec),
        lambda spec: (
            f"{spec.proxy.service.type} has no load balancer; set LoadBalancer, or leave out loadBalancerClass and"
            " loadBalancerSourceRanges"
        ),
        "self.proxy.service.type == 'LoadBalancer' || (self.proxy.service.loadBalancerClass == '' &&"
        " size(self.proxy.service.loadBalancerSourceRanges) == 0)",
        "proxy.service.type must be LoadBalancer for loadBalancerClass and loadBalancerSourceRanges",
    ),
    Rule(
        "spec.proxy.limits.calls",
        lambda spec: spec.proxy.limits.calls >= spec.proxy.limits.clients,
        lambda spec: (
            f"{spec.proxy.limits.calls} is less than limits.clients, {spec.proxy.limits.clients}: the stream of each"
            f" client is a call; set at least {spec.proxy.limits.clients}"
        ),
        "self.proxy.limits.calls >= self.proxy.limits.clients",
        "proxy.limits.calls must be at least proxy.limits.clients, since each client has a stream",
    ),
    Rule(
        "spec.proxy.limits.longPoll",
        lambda spec: POLL_MS_MIN <= spec.proxy.limits.long_poll <= POLL_MS_MAX,
        lambda spec: f"{duration_text(spec.proxy.limits.long_poll)}, expected 5s to 60s",
        "duration(self.proxy.limits.longPoll) >= duration('5s') &&"
        " duration(self.proxy.limits.longPoll) <= duration('60s')",
        "proxy.limits.longPoll must be between 5s and 60s",
    ),
    Rule(
        "spec.proxy.limits.invisibleTime",
        lambda spec: spec.proxy.limits.invisible_time >= INVISIBLE_MS_MIN,
        lambda spec: f"{duration_text(spec.proxy.limits.invisible_time)}, expected at least 10s",
        "duration(self.proxy.limits.invisibleTime) >= duration('10s')",
        "proxy.limits.invisibleTime must be at least 10s",
    ),
    Rule(
        "spec.proxy.template.terminationGracePeriod",
        lambda spec: spec.proxy.template.calls_grace_ms >= spec.proxy.limits.long_poll,
        lambda spec: (
            f"{duration_text(spec.proxy.template.termination_grace_period)} is too short for calls that wait up to"
            f" {duration_text(spec.proxy.limits.long_poll)} (limits.longPoll); set at least 10s more than that"
        ),
        "duration(self.proxy.template.terminationGracePeriod) >="
        " duration(self.proxy.limits.longPoll) + duration('10s')",
        "proxy.template.terminationGracePeriod must be at least 10s longer than proxy.limits.longPoll",
    ),
    Rule(
        "spec.topics",
        lambda spec: _is_unique([topic.name for topic in spec.topics]),
        lambda _: "duplicate name",
        "",
        "",
    ),
    Rule(
        "spec.groups",
        lambda spec: _is_unique([group.name for group in spec.groups]),
        lambda _: "duplicate name",
        "",
        "",
    ),
    Rule(
        "spec.broker",
        lambda spec: spec.retention.archive is None or not ARCHIVE_KEYS & spec.broker.keys(),
        lambda spec: (
            f"{', '.join(sorted(ARCHIVE_KEYS & spec.broker.keys()))}: spec.retention.archive already names an archive;"
            " set only one of them"
        ),
        "!has(self.retention.archive) ||"
        f" !self.broker.exists(key, key in [{', '.join(repr(key) for key in sorted(ARCHIVE_KEYS))}])",
        "retention.archive and a key of broker both name an archive server: set only one of them",
    ),
    Rule(
        "spec.broker",
        lambda spec: not RESERVED_KEYS & spec.broker.keys(),
        lambda spec: (
            f"{', '.join(sorted(RESERVED_KEYS & spec.broker.keys()))}: reserved,"
            " since other fields or Gantry itself control it"
        ),
        f"!self.broker.exists(key, key in [{', '.join(repr(key) for key in sorted(RESERVED_KEYS))}])",
        "a key of broker is reserved, because another field or Gantry itself controls it",
    ),
)


def broken_rules(spec: Spec) -> Iterator[Problem]:
    """Yield the problem of every rule that a spec breaks."""
    for rule in RULES:
        if not rule.is_kept(spec):
            yield Problem(rule.path, rule.text(spec))
