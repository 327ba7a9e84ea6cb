"""The edits of a group that are allowed: some fields are immutable once a store exists, and some may only grow.

An edit is refused if it would need another store, delete messages, could not be rolled out broker by broker, or would
be refused by Kubernetes later. A shard is removed only when it is empty. That is not visible in the manifest, so
reducing ``shards`` is accepted here, and ``decide`` waits with a reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

from gantry_spec.manifest.errors import Problem
from gantry_spec.manifest.group import BrokerGroup, Spec
from gantry_spec.manifest.proxy import ProxyServiceType


class FixedField(NamedTuple):
    """A field that an edit may not change freely."""

    path: str
    value: Callable[[Spec], Any]
    """The function that returns the field's value in a spec; None where it may become any value, and had none."""

    may_grow: bool
    """Whether a greater value is allowed; otherwise no other value is."""

    reason: str
    """Why the edit is refused, with the remedy, for people."""

    cel: str
    """The same rule in CEL, over ``self`` and ``oldSelf``, the spec after and before the edit."""


def _has_balancer(spec: Spec) -> bool:
    """Return whether the proxies have a load balancer."""
    return spec.proxy.replicas > 0 and spec.proxy.service.type is ProxyServiceType.LOAD_BALANCER


FIXED: Final = (
    FixedField(
        "spec.writeBuffer.segmentSize",
        lambda spec: spec.write_buffer.segment_size,
        False,
        "the file size of a store cannot change; create a new group and migrate to it",
        "quantity(string(self.writeBuffer.segmentSize)).compareTo("
        "quantity(string(oldSelf.writeBuffer.segmentSize))) == 0",
    ),
    FixedField(
        "spec.storage.storageClassName",
        lambda spec: spec.storage.storage_class_name,
        False,
        "the storage class of a volume cannot change; create a new group and migrate to it",
        "self.storage.storageClassName == oldSelf.storage.storageClassName",
    ),
    FixedField(
        "spec.storage.size",
        lambda spec: spec.storage.size,
        True,
        "a volume can only grow",
        "quantity(string(self.storage.size)).compareTo(quantity(string(oldSelf.storage.size))) >= 0",
    ),
    FixedField(
        "spec.access.tlsSecret",
        lambda spec: "on" if spec.access.has_tls else "off",
        False,
        "TLS cannot be switched on or off, since a broker with TLS cannot follow one without;"
        " create a new group and migrate to it",
        "(self.access.tlsSecret == '' && self.access.certificates.issuer == 'None') =="
        " (oldSelf.access.tlsSecret == '' && oldSelf.access.certificates.issuer == 'None')",
    ),
    FixedField(
        "spec.access.certificates.issuer",
        lambda spec: "Operator" if spec.access.has_own_authority else "another issuer",
        False,
        "pods verify each other by the authority, which cannot be replaced in all of them at once;"
        " create a new group and migrate to it",
        "(self.access.certificates.issuer == 'Operator') == (oldSelf.access.certificates.issuer == 'Operator')",
    ),
    FixedField(
        "spec.proxy.service.loadBalancerClass",
        lambda spec: spec.proxy.service.load_balancer_class if _has_balancer(spec) else None,
        False,
        "the class of a load balancer cannot change; set spec.proxy.service.type to ClusterIP first",
        "self.proxy.service.type != 'LoadBalancer' || oldSelf.proxy.service.type != 'LoadBalancer' ||"
        " self.proxy.replicas == 0 || oldSelf.proxy.replicas == 0 ||"
        " self.proxy.service.loadBalancerClass == oldSelf.proxy.service.loadBalancerClass",
    ),
)


def check_changes(old: BrokerGroup, new: BrokerGroup) -> list[Problem]:
    """Return the problems of replacing ``old`` by ``new``; none if the edit is allowed."""
    return list(_changes(old, new))


def _changes(old: BrokerGroup, new: BrokerGroup) -> Iterator[Problem]:
    if old.metadata.name != new.metadata.name:
        yield Problem("metadata.name", f"the name cannot change from {old.metadata.name}; create a new group instead")
    for one in FIXED:
        before, after = one.value(old.spec), one.value(new.spec)
        if before == after or before is None or after is None or (one.may_grow and after > before):
            continue
        yield Problem(one.path, f"cannot change from {before or 'empty'} to {after or 'empty'}: {one.reason}")
