"""The admission policies: requests of people that would lose data, or give an order that cannot be read, are refused.

The rules of the CRD see only a group's spec. A policy also sees deletions, metadata, other kinds, and who asks:

    groups        a deletion that deletes the volumes too (``storage.retain: Never``)
    orders        an annotation whose value the operator cannot read
    volumes       a deletion of a broker's claim
    sets          a deletion, or fewer replicas, of a StatefulSet that deletes claims with its pods
    scale         fewer replicas by ``kubectl scale``: a request that does not show whether claims would be deleted
    leases        a deletion, or another record, of the Lease that decides which broker is the master
    definition    a deletion of the CRD, with which the API server deletes all groups
    namespaces    a deletion of a namespace with the label ``PROTECTED_LABEL``

Nothing is refused for the operator, nor for the controllers of Kubernetes, which delete the objects of a deleted owner.
Their names are the first conditions of each policy. A condition that is false ends the evaluation, also if another one
fails. So no error in an expression can hinder a failover. What happens to a request of others that cannot be evaluated
is ``Guard.on_error``: deletions are refused. Orders and changes of Leases are accepted, since a person needs orders in
an emergency, and a master without a renewed Lease stops. ``parse_requests`` reads each order again.

A namespace that is deleted takes everything with it. The namespace controller is not refused anything, because the
namespace would never end, and could not be saved. So a namespace is protected itself, by its label.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum
from typing import Any, Final, NamedTuple

from gantry_spec.cluster_objects import BROKER, COMPONENT_LABEL, GROUP_LABEL
from gantry_spec.manifest import annotations as orders
from gantry_spec.manifest.annotations import ALLOW_DELETION, BLANK_FORM, CHARACTERS_MAX, FORMATS, TOO_LONG, Format
from gantry_spec.manifest.group import API_GROUP, VERSION
from gantry_spec.manifest.parts import Retain
from gantry_spec.manifest.quantities import SIZE_BYTES_MAX

PROTECTED_LABEL: Final = f"{API_GROUP}/protected"
"""The label of a namespace that must not be deleted while the label is ``true``."""

DEFINITION: Final = f"brokergroups.{API_GROUP}"
"""The name of the CRD of groups."""

CONTROLLERS: Final = (
    "system:kube-controller-manager",
    "system:serviceaccount:kube-system:generic-garbage-collector",
    "system:serviceaccount:kube-system:namespace-controller",
    "system:serviceaccount:kube-system:statefulset-controller",
)
"""The users of Kubernetes that delete objects after their owners. A controller manager without an account for each of
its controllers has the first name."""

_ALLOW: Final = f'set the annotation {ALLOW_DELETION}: "true"'
_IS_ALLOWED: Final = f"oldObject.metadata.?annotations[?'{ALLOW_DELETION}'].orValue('') == 'true'"
_OF_BROKERS: Final = {
    "matchExpressions": [
        {"key": GROUP_LABEL, "operator": "Exists"},
        {"key": COMPONENT_LABEL, "operator": "In", "values": [BROKER]},
    ]
}
"""The selector of the objects that belong to brokers. It compares the labels before and after a request."""


class OnError(StrEnum):
    """What happens to a request for which an expression cannot be evaluated."""

    REFUSE = "Fail"
    ACCEPT = "Ignore"


class Check(NamedTuple):
    """A condition that a request must keep, in CEL."""

    expression: str
    message: str
    """The message of a refusal, with the remedy."""

    message_expression: str = ""
    """A CEL expression for a message with values; ``message`` is used where it cannot be evaluated."""

    reason: str = "Forbidden"
    """The reason of the API server's answer; ``Invalid`` where the object itself is invalid."""


class Guard(NamedTuple):
    """A policy: the requests that it checks, and what they must keep."""

    name: str
    resources: tuple[tuple[str, str, str], ...]
    """The API group, the version and the plural name of each kind."""

    operations: tuple[str, ...]
    checks: tuple[Check, ...]
    on_error: OnError = OnError.REFUSE
    selector: dict[str, Any] | None = None
    """The selector of the objects, by the labels that they have before or after the request; None for all."""

    conditions: tuple[tuple[str, str], ...] = ()
    """The names and CEL expressions of further conditions of a request that is checked."""

    variables: tuple[tuple[str, str], ...] = ()
    """The names and CEL expressions of what several checks use."""


# -- orders ------------------------------------------------------------------------------------------------------------


def order_checks() -> Iterator[Check]:
    """Yield a check for the value of each annotation, and the rules that no pattern has.

    A value that the request does not change is accepted, so that other edits stay possible. The only invalid value that
    is accepted besides is a size with a fraction that is not a whole number of bytes; the operator reports it.
    """
    for form in FORMATS.values():
        value = _value(form.name)
        text = f"metadata.annotations[{form.name}]: "
        shown = f"{value}.split(',').filter(entry, !entry.matches({_entry(form)}))[0].trim()" if form.is_list else value
        yield _order_check(
            form.name,
            f"{value}.matches({_whole(form)})",
            f"{text}the value {form.problem}",
            f"{_quoted(text + chr(39))} + {shown} + {_quoted(f'{chr(39)} {form.problem}')}",
        )
    yield Check(
        " && ".join(f"({_is_unchanged(name)} || size({_value(name)}) <= {CHARACTERS_MAX})" for name in FORMATS),
        f"metadata.annotations: the value of an order {TOO_LONG}",
        reason="Invalid",
    )
    yield _order_check(
        orders.PROMOTE,
        f"!{_value(orders.PROMOTE)}.matches({_whole(FORMATS[orders.PROMOTE])}) ||"
        " variables.promoted.all(one, variables.promoted.indexOf(one) == variables.promoted.lastIndexOf(one))",
        f"metadata.annotations[{orders.PROMOTE}]: {orders.ONE_PROMOTION}",
    )
    loss = _value(orders.ACCEPT_LOSS)
    yield _order_check(
        orders.ACCEPT_LOSS,
        f"!{loss}.matches({_whole(FORMATS[orders.ACCEPT_LOSS])}) || {loss} == 'any' ||"
        f" quantity({loss}.trim()).compareTo(quantity('{SIZE_BYTES_MAX}')) <= 0",
        f"metadata.annotations[{orders.ACCEPT_LOSS}]: the value is not a whole number of bytes from 0 to 64Pi",
    )


def _order_check(name: str, is_valid: str, message: str, message_expression: str = "") -> Check:
    """Return a check of an annotation that the request changes.

    A value that is too long is left to its own check, since the time of an evaluation grows with it.
    """
    expression = f"{_is_unchanged(name)} || size({_value(name)}) > {CHARACTERS_MAX} || ({is_valid})"
    # The API server also evaluates the messages of checks that are kept.
    return Check(expression, message, message_expression and f"{expression} ? '' : {message_expression}", "Invalid")


def _is_unchanged(name: str) -> str:
    """Return the CEL expression of whether an annotation does not exist, or is as before."""
    is_same = f"'{name}' in variables.before && variables.before['{name}'] == {_value(name)}"
    return f"!('{name}' in variables.annotations) || {is_same}"


def _value(name: str) -> str:
    """Return the CEL expression of an annotation's new value."""
    return f"variables.annotations['{name}']"


def _whole(form: Format) -> str:
    """Return the CEL string of the pattern for a whole value."""
    inner = f"{BLANK_FORM}(?:{form.pattern})?{BLANK_FORM}"
    return _raw(f"{inner}(?:,{inner})*" if form.is_list else f"(?:{form.pattern})")


def _entry(form: Format) -> str:
    """Return the CEL string of the pattern for an entry of a list, with blanks around it."""
    return _raw(f"{BLANK_FORM}(?:{form.pattern})?{BLANK_FORM}")


def _raw(pattern: str) -> str:
    assert "'" not in pattern, "a raw string of CEL must not contain its quote"
    return f"r'^{pattern}$'"


def _quoted(text: str) -> str:
    """Return a text as a CEL string."""
    return json.dumps(text)


_METADATA: Final = (
    ("annotations", "object == null ? {} : object.metadata.?annotations.orValue({})"),
    ("before", "oldObject == null ? {} : oldObject.metadata.?annotations.orValue({})"),
)
"""The annotations after and before a request, as variables."""

_PROMOTED: Final = (
    f"variables.annotations[?'{orders.PROMOTE}'].orValue('').split(',').filter(entry, entry.matches(r'\\d'))"
    ".map(entry, int(entry.trim().split('@')[0].split('=')[0]))"
)
"""The shards of all promotions, if each of these is valid."""


# -- all policies ------------------------------------------------------------------------------------------------------

_CLAIM_POLICY: Final = "spec.?persistentVolumeClaimRetentionPolicy"
_KEEPS_REPLICAS: Final = "object.spec.?replicas.orValue(1) >= oldObject.spec.?replicas.orValue(1)"
_OWN_PREFIX: Final = f"(key.startsWith('{API_GROUP}/') && key != '{ALLOW_DELETION}')"


def _deletes(which: str, when: str) -> str:
    """Return the CEL expression of whether a StatefulSet deletes claims when it is deleted or scaled."""
    return f"{which}.{_CLAIM_POLICY}.?{when}.orValue('Retain') == 'Delete'"


def _keeps_labels(*names: str) -> str:
    """Return the CEL expression of whether these labels are as before."""
    return " && ".join(
        f"object.metadata.?labels[?'{name}'].orValue('') == oldObject.metadata.?labels[?'{name}'].orValue('')"
        for name in names
    )


GUARDS: Final = (
    Guard(
        "groups",
        ((API_GROUP, VERSION, "brokergroups"),),
        ("DELETE",),
        (
            Check(
                f"{_IS_ALLOWED} || oldObject.spec.?storage.?retain.orValue('{Retain.ALWAYS}') != '{Retain.NEVER}'",
                f"spec.storage.retain is {Retain.NEVER}: the volumes of the group would be deleted with all of its"
                f" messages; to delete them, {_ALLOW} on the group first",
            ),
        ),
    ),
    Guard(
        "orders",
        ((API_GROUP, VERSION, "brokergroups"),),
        ("CREATE", "UPDATE"),
        tuple(order_checks()),
        OnError.ACCEPT,
        variables=(*_METADATA, ("promoted", _PROMOTED)),
    ),
    Guard(
        "volumes",
        (("", "v1", "persistentvolumeclaims"),),
        ("DELETE",),
        (
            Check(
                _IS_ALLOWED,
                "the volume of a broker may have the only copy of acknowledged messages; to replace a lost volume, use"
                f" {orders.REPLACE_DISK} of the group; to delete this one, {_ALLOW} on the claim first",
            ),
        ),
        selector=_OF_BROKERS,
    ),
    Guard(
        "sets",
        (("apps", "v1", "statefulsets"),),
        ("UPDATE", "DELETE"),
        (
            Check(
                f"request.operation != 'DELETE' || {_IS_ALLOWED} || !({_deletes('oldObject', 'whenDeleted')})",
                "the volumes of these brokers would be deleted with the StatefulSet, since spec.storage.retain of the"
                f" group is {Retain.NEVER}; to delete them, {_ALLOW} on the StatefulSet first",
            ),
            Check(
                f"request.operation != 'UPDATE' || {_KEEPS_REPLICAS} ||"
                f" !({_deletes('object', 'whenScaled')} || {_deletes('oldObject', 'whenScaled')})",
                "the volumes of removed brokers would be deleted; edit spec.slaves or spec.shards of the group, so that"
                " the operator removes brokers when no message is lost",
            ),
            Check(
                "request.operation != 'UPDATE' ||"
                f" (!({_deletes('object', 'whenDeleted')}) || {_deletes('oldObject', 'whenDeleted')}) &&"
                f" (!({_deletes('object', 'whenScaled')}) || {_deletes('oldObject', 'whenScaled')})",
                "whether volumes are deleted follows from spec.storage.retain of the group; edit that",
            ),
        ),
        selector=_OF_BROKERS,
    ),
    Guard(
        "scale",
        (("apps", "v1", "statefulsets/scale"),),
        ("UPDATE",),
        (
            Check(
                "object.spec.?replicas.orValue(0) >= oldObject.spec.?replicas.orValue(0)",
                "the operator sets the number of brokers, and volumes may be deleted with their pods; edit spec.slaves"
                f" or spec.shards of the group, or set its annotation {orders.HIBERNATE}",
            ),
        ),
        conditions=(
            (
                "is-of-brokers",
                f"oldObject.status.?selector.orValue('').contains('{COMPONENT_LABEL}={BROKER}') &&"
                f" oldObject.status.?selector.orValue('').contains('{GROUP_LABEL}=')",
            ),
        ),
    ),
    Guard(
        "leases",
        (("coordination.k8s.io", "v1", "leases"),),
        ("UPDATE", "DELETE"),
        (
            Check(
                f"request.operation != 'DELETE' || {_IS_ALLOWED}",
                "the Lease has the epoch and the master of the shard, which stops without it until all of its brokers"
                f" have reported; to delete it, {_ALLOW} on the Lease first",
            ),
            Check(
                f"request.operation != 'UPDATE' || {_keeps_labels(GROUP_LABEL, COMPONENT_LABEL)} &&"
                f" variables.before.all(key, !{_OWN_PREFIX} ||"
                " (key in variables.annotations && variables.annotations[key] == variables.before[key])) &&"
                f" variables.annotations.all(key, !{_OWN_PREFIX} || key in variables.before)",
                f"only the operator may change the labels and the annotations {API_GROUP}/... of this Lease: its record"
                " decides which broker is the master; to move the role, use"
                f" {orders.PROMOTE} of the group",
            ),
        ),
        OnError.ACCEPT,
        _OF_BROKERS,
        variables=_METADATA,
    ),
    Guard(
        "definition",
        (("apiextensions.k8s.io", "v1", "customresourcedefinitions"),),
        ("DELETE",),
        (
            Check(
                _IS_ALLOWED,
                "all groups of the cluster would be deleted with their definition; to delete them,"
                f" {_ALLOW} on the definition first",
            ),
        ),
        conditions=(("is-of-groups", f"oldObject.metadata.name == '{DEFINITION}'"),),
    ),
    Guard(
        "namespaces",
        (("", "v1", "namespaces"),),
        ("DELETE",),
        (
            Check(
                "false",
                f"the namespace has the label {PROTECTED_LABEL}=true, since its volumes would be deleted with all of"
                " their messages; to delete it, remove the label first",
            ),
        ),
        selector={"matchLabels": {PROTECTED_LABEL: "true"}},
    ),
)
"""All policies."""


def policy_name(release: str, guard: Guard) -> str:
    """Return the name of a policy and of its binding; both are names for the whole cluster."""
    return f"{release}-{guard.name}"


def policy_spec(guard: Guard, users: str) -> dict[str, Any]:
    """Return the spec of a policy. ``users`` is the CEL list of the users who are not refused anything."""
    rules = [
        {"apiGroups": [group], "apiVersions": [version], "operations": list(guard.operations), "resources": [plural]}
        for group, version, plural in guard.resources
    ]
    conditions = [
        ("is-not-exempt", f"!(request.userInfo.username in {users})"),
        ("is-not-a-controller", f"!(request.userInfo.username in {user_list(CONTROLLERS)})"),
        *guard.conditions,
    ]
    spec: dict[str, Any] = {
        "failurePolicy": str(guard.on_error),
        "matchConstraints": ({"objectSelector": guard.selector} if guard.selector else {}) | {"resourceRules": rules},
        "matchConditions": [{"name": name, "expression": expression} for name, expression in conditions],
    }
    if guard.variables:
        spec["variables"] = [{"name": name, "expression": expression} for name, expression in guard.variables]
    return spec | {"validations": [_validation(check) for check in guard.checks]}


def binding_spec(name: str, namespaces: Sequence[str]) -> dict[str, Any]:
    """Return the spec of a policy's binding, for these namespaces or, without any, for the whole cluster."""
    chosen = {"key": "kubernetes.io/metadata.name", "operator": "In", "values": list(namespaces)}
    where = {"matchResources": {"namespaceSelector": {"matchExpressions": [chosen]}}} if namespaces else {}
    return {"policyName": name, "validationActions": ["Deny"]} | where


def admission_objects(release: str, users: Iterable[str], namespaces: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Return all policies and their bindings as documents to apply."""
    found = []
    for guard in GUARDS:
        name = policy_name(release, guard)
        for kind, spec in (("", policy_spec(guard, user_list(users))), ("Binding", binding_spec(name, namespaces))):
            head = {"apiVersion": "admissionregistration.k8s.io/v1", "kind": f"ValidatingAdmissionPolicy{kind}"}
            found.append(head | {"metadata": {"name": name}, "spec": spec})
    return found


def user_list(users: Iterable[str]) -> str:
    """Return the names of users as a CEL list, in the form in which Helm renders it."""
    return json.dumps(list(users), separators=(",", ":"))


def _validation(check: Check) -> dict[str, str]:
    found = {"expression": check.expression, "message": check.message, "reason": check.reason}
    return found | ({"messageExpression": check.message_expression} if check.message_expression else {})
