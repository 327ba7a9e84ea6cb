"""The admission policies at a real API server: what they refuse to people, and what they let pass.

The policies hold in the namespace `guarded`. The same objects are in `unguarded`, where the same requests succeed. All
requests are dry runs, so that the objects stay.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
from api_server import PERSON, ApiServer, path_of
from hypothesis import given, settings
from hypothesis import strategies as st
from objects_scene import broker_sets, group, rendered

from gantry_operator.objects import names
from gantry_operator.objects.access import shard_account
from gantry_operator.objects.base import Object, labels, make_object
from gantry_spec.admission import CONTROLLERS, GUARDS, admission_objects
from gantry_spec.lease import LeaseRecord
from gantry_spec.lease_annotations import RECORD, lease_annotations
from gantry_spec.manifest import ManifestError
from gantry_spec.manifest.annotations import (
    ACCEPT_LOSS,
    ALLOW_DELETION,
    BACKUP,
    CHARACTERS_MAX,
    FENCE,
    FORMATS,
    HIBERNATE,
    PAUSED,
    PROMOTE,
    REPLACE_DISK,
    RESTORE,
    parse_requests,
)
from gantry_spec.manifest.quantities import SIZE_BYTES_MAX, quantity_bytes

pytestmark = pytest.mark.needs_api_server

GUARDED, UNGUARDED = "guarded", "unguarded"
OPERATOR = f"system:serviceaccount:{GUARDED}:operator"
EXEMPT = "velero"
"""A user that the installation exempts, besides the operator."""

SIDECAR = f"system:serviceaccount:{GUARDED}:orders-0"
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
MERGE = "application/merge-patch+json"
DRY = "?dryRun=All"
ACTIVE_S = 60.0
"""The limit for the API server to apply policies that were created."""

Answer = tuple[int, Any]


def groups_path(namespace: str, name: str = "") -> str:
    """Return the API path of the groups of a namespace, or of one of them."""
    return f"/apis/gantry.dev/v1alpha1/namespaces/{namespace}/brokergroups{f'/{name}' if name else ''}"


def sets_path(namespace: str, name: str = "orders-0-slave") -> str:
    """Return the API path of a StatefulSet."""
    return f"/apis/apps/v1/namespaces/{namespace}/statefulsets/{name}"


def claims_path(namespace: str, name: str = "data-orders-0-slave-0") -> str:
    """Return the API path of a claim, or of all claims without a name."""
    return f"/api/v1/namespaces/{namespace}/persistentvolumeclaims{f'/{name}' if name else ''}"


def lease_path(namespace: str) -> str:
    """Return the API path of the Lease of the only shard."""
    return f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/orders-0"


def stored_objects(namespace: str) -> Iterator[Object]:
    """Yield what a cluster has of a group that retains no volumes, and of one that retains them."""
    for name, retain in (("orders", "Never"), ("kept", "Always")):
        one = group(name, namespace, slaves=2, storage={"retain": retain})
        head = {"apiVersion": "gantry.dev/v1alpha1", "kind": "BrokerGroup"}
        yield head | {"metadata": {"name": name, "namespace": namespace}, "spec": {"storage": {"retain": retain}}}
        for made in broker_sets(rendered(one)).values():
            yield made
            claim = copy.deepcopy(made["spec"]["volumeClaimTemplates"][0])
            claim["metadata"] |= {"name": f"data-{made['metadata']['name']}-0", "namespace": namespace}
            yield claim
        annotations = lease_annotations(LeaseRecord(epoch=3000))
        kind = ("coordination.k8s.io/v1", "Lease")
        own_labels = labels(one, names.BROKER, 0)
        yield make_object(one, kind, f"{name}-0", own_labels, {"spec": {}}, annotations=annotations)
        yield from shard_account(one, 0)


@pytest.fixture(scope="module")
def server(groups_api: ApiServer) -> Iterator[ApiServer]:
    """The API server that all tests share, with the policies for one namespace; they are removed at the end."""
    for namespace in (GUARDED, UNGUARDED):
        head = {"name": namespace, "labels": {"gantry.dev/protected": "true"}}
        put(groups_api, {"apiVersion": "v1", "kind": "Namespace", "metadata": head})
        for made in stored_objects(namespace):
            put(groups_api, made)
    users = [OPERATOR, EXEMPT, *CONTROLLERS]
    put(groups_api, {
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": "exempt"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": one} for one in users],
    })  # fmt: skip
    before = groups_api.ask("DELETE", f"{DEFINITIONS}/brokergroups.gantry.dev{DRY}")
    assert before[0] == 200, "the twin of the policy for the definition: without it the request succeeds"
    installed = admission_objects("admission", [OPERATOR, EXEMPT], [GUARDED])
    for made in installed:
        put(groups_api, made)
    deadline = time.monotonic() + ACTIVE_S
    while not all(is_refused(case.ask(groups_api, GUARDED, "")) for case in CASES.values()):
        assert time.monotonic() < deadline, "the policies are not applied"
        time.sleep(0.1)
    yield groups_api
    for made in reversed(installed):
        assert groups_api.ask("DELETE", path_of(made))[0] == 200
    while not is_taken(groups_api.ask("DELETE", f"{DEFINITIONS}/brokergroups.gantry.dev{DRY}")):
        assert time.monotonic() < deadline + ACTIVE_S, "the policies are still applied"
        time.sleep(0.1)


def put(server: ApiServer, document: Object) -> None:
    """Apply an object, as an administrator."""
    status, answer = server.apply(path_of(document), document)
    assert status in (200, 201), answer


def is_refused(answer: Answer) -> bool:
    """Return whether a policy has refused a request."""
    return answer[0] in (403, 422) and "ValidatingAdmissionPolicy" in answer[1]["message"]


def is_taken(answer: Answer) -> bool:
    """Return whether a request succeeded."""
    return answer[0] in (200, 201)


# -- what is refused ---------------------------------------------------------------------------------------------------


class Case(NamedTuple):
    """A request that a policy refuses."""

    guard: str
    text: str
    """A part of the message."""

    ask: Callable[[ApiServer, str, str], Answer]
    """Sends the request to a namespace, as a user or, with an empty name, as the administrator."""


def deletion(path: Callable[[str], str]) -> Callable[[ApiServer, str, str], Answer]:
    """Return a request that deletes an object."""
    return lambda server, namespace, user: server.ask("DELETE", path(namespace) + DRY, user=user)


def change(path: Callable[[str], str], body: Object) -> Callable[[ApiServer, str, str], Answer]:
    """Return a request that merges a change into an object."""
    return lambda server, namespace, user: server.ask("PATCH", path(namespace) + DRY, body, MERGE, user=user)


def creation(annotations: dict[str, str]) -> Callable[[ApiServer, str, str], Answer]:
    """Return a request that creates a group with annotations."""
    return lambda server, namespace, user: create(server, namespace, annotations, user)


def create(server: ApiServer, namespace: str, annotations: dict[str, str], user: str = "") -> Answer:
    """Create a group with annotations, with a dry run."""
    head = {"apiVersion": "gantry.dev/v1alpha1", "kind": "BrokerGroup", "spec": {}}
    document = head | {"metadata": {"name": "ordered", "annotations": annotations}}
    return server.ask("POST", groups_path(namespace) + DRY, document, user=user)


def policy_of_claims(when: str) -> Object:
    """Return a change with which a StatefulSet deletes claims."""
    return {"spec": {"persistentVolumeClaimRetentionPolicy": {when: "Delete"}}}


CASES = {
    "group": Case("groups", "volumes of the group would be deleted", deletion(lambda at: groups_path(at, "orders"))),
    "all groups": Case("groups", "volumes of the group would be deleted", deletion(groups_path)),
    "claim": Case("volumes", "the only copy", deletion(claims_path)),
    "claim of a group that is kept": Case(
        "volumes", "the only copy", deletion(lambda at: claims_path(at, "data-kept-0-master-0"))
    ),
    "all claims": Case("volumes", "the only copy", deletion(lambda at: claims_path(at, ""))),
    "set": Case("sets", "volumes of these brokers would be deleted", deletion(sets_path)),
    "replicas": Case("sets", "volumes of removed brokers", change(sets_path, {"spec": {"replicas": 1}})),
    "deleting claims": Case(
        "sets",
        "follows from spec.storage.retain",
        change(lambda at: sets_path(at, "kept-0-slave"), policy_of_claims("whenDeleted")),
    ),
    "deleting claims of removed pods": Case(
        "sets",
        "follows from spec.storage.retain",
        change(lambda at: sets_path(at, "kept-0-slave"), policy_of_claims("whenScaled")),
    ),
    "scale": Case(
        "scale",
        "the operator sets the number of brokers",
        change(lambda at: f"{sets_path(at)}/scale", {"spec": {"replicas": 0}}),
    ),
    "lease": Case("leases", "the epoch and the master", deletion(lease_path)),
    "record": Case("leases", "only the operator", change(lease_path, {"metadata": {"annotations": {RECORD: "{}"}}})),
    "removed record": Case(
        "leases", "only the operator", change(lease_path, {"metadata": {"annotations": {RECORD: None}}})
    ),
    "added annotation": Case(
        "leases",
        "only the operator",
        change(lease_path, {"metadata": {"annotations": {"gantry.dev/last-report": "{}"}}}),
    ),
    "labels of a lease": Case(
        "leases", "only the operator", change(lease_path, {"metadata": {"labels": {"gantry.dev/group": None}}})
    ),
    "definition": Case(
        "definition", "all groups of the cluster", deletion(lambda at: f"{DEFINITIONS}/brokergroups.gantry.dev")
    ),
    "namespace": Case("namespaces", "remove the label first", deletion(lambda at: f"/api/v1/namespaces/{at}")),
    "paused": Case("orders", "neither", creation({PAUSED: "yes"})),
    "hibernate": Case("orders", "neither", creation({HIBERNATE: "on"})),
    "promote": Case("orders", "is not a promotion", creation({PROMOTE: "0=2,orders-0-slave-0"})),
    "promote twice": Case("orders", "a shard may have only one promotion", creation({PROMOTE: "0=1,00=2"})),
    "loss": Case("orders", "is not a size", creation({ACCEPT_LOSS: "everything"})),
    "great loss": Case("orders", "from 0 to 64Pi", creation({ACCEPT_LOSS: "65537Ti"})),
    "disk": Case("orders", "is not a member", creation({REPLACE_DISK: "2"})),
    "restore": Case("orders", "is not a shard", creation({RESTORE: "all"})),
    "fence": Case("orders", "is not a shard", creation({FENCE: "everything"})),
    "backup": Case("orders", "is not a name", creation({BACKUP: "Before"})),
    "long": Case("orders", "is too long", creation({FENCE: "0," * CHARACTERS_MAX})),
    "edit": Case(
        "orders",
        "is not a promotion",
        change(lambda at: groups_path(at, "kept"), {"metadata": {"annotations": {PROMOTE: "x"}}}),
    ),
}
"""Requests that are refused: each check of each policy at least once."""

for_each_case = pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))


def test_every_check_has_a_request_that_it_refuses() -> None:
    """A new check needs an entry with a request."""
    for guard in GUARDS:
        for check in guard.checks:
            assert any(case.guard == guard.name and case.text in check.message for case in CASES.values()), check


@for_each_case
def test_request_that_would_lose_data_is_refused(server: ApiServer, case: Case) -> None:
    """The administrator is refused, too, with the remedy; in a namespace without policies the request succeeds."""
    status, answer = case.ask(server, GUARDED, "")

    assert status in (403, 422), answer
    assert case.text in answer["message"]
    assert f"'admission-{case.guard}'" in answer["message"]
    if case.guard != "definition":  # it belongs to no namespace; the fixture has tried it without the policies
        status, answer = case.ask(server, UNGUARDED, "")
        assert is_taken((status, answer)), answer


@pytest.mark.parametrize("user", [OPERATOR, EXEMPT, *CONTROLLERS])
def test_operator_and_controllers_are_refused_nothing(server: ApiServer, user: str) -> None:
    """A deleted namespace, or owner, takes its objects with it; the operator replaces volumes and records."""
    for name, case in CASES.items():
        answer = case.ask(server, GUARDED, user)
        assert is_taken(answer), (name, answer)


# -- what passes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    [
        groups_path(GUARDED, "orders"),
        claims_path(GUARDED),
        sets_path(GUARDED),
        lease_path(GUARDED),
        f"{DEFINITIONS}/brokergroups.gantry.dev",
    ],
    ids=["group", "claim", "set", "lease", "definition"],
)
def test_annotation_allows_a_deletion(server: ApiServer, path: str) -> None:
    """A person sets it first; only the value `true` counts."""
    for value, is_allowed in (("yes", False), ("true", True)):
        change = {"metadata": {"annotations": {ALLOW_DELETION: value}}}
        assert server.ask("PATCH", path, change, MERGE)[0] == 200
        answer = server.ask("DELETE", path + DRY)
        assert is_taken(answer) is is_allowed, answer

    assert server.ask("PATCH", path, {"metadata": {"annotations": {ALLOW_DELETION: None}}}, MERGE)[0] == 200
    assert is_refused(server.ask("DELETE", path + DRY))


def test_namespace_without_the_label_can_be_deleted(server: ApiServer) -> None:
    """A person removes the label first."""
    path = f"/api/v1/namespaces/{GUARDED}"
    labels_of = {"metadata": {"labels": {"gantry.dev/protected": None}}}
    assert server.ask("PATCH", path, labels_of, MERGE)[0] == 200

    assert is_taken(server.ask("DELETE", path + DRY))

    assert server.ask("PATCH", path, {"metadata": {"labels": {"gantry.dev/protected": "true"}}}, MERGE)[0] == 200


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("DELETE", groups_path(GUARDED, "kept"), None),
        ("DELETE", sets_path(GUARDED, "kept-0-slave"), None),
        ("PATCH", sets_path(GUARDED, "kept-0-slave"), {"spec": {"replicas": 1}}),
        ("PATCH", sets_path(GUARDED), {"spec": {"replicas": 3}}),
        ("PATCH", f"{sets_path(GUARDED)}/scale", {"spec": {"replicas": 3}}),
        ("PATCH", sets_path(GUARDED), {"metadata": {"annotations": {"example.com/a": "b"}}}),
        ("PATCH", lease_path(GUARDED), {"metadata": {"annotations": {"example.com/a": "b"}}}),
        ("PATCH", groups_path(GUARDED, "orders"), {"spec": {"slaves": 1}}),
        ("PATCH", claims_path(GUARDED), {"metadata": {"labels": {"example.com/a": "b"}}}),
        ("DELETE", f"{DEFINITIONS}/logaudits.gantry.dev", None),
    ],
)
def test_request_without_a_loss_passes(server: ApiServer, method: str, path: str, body: Object | None) -> None:
    """Deletions that keep volumes, growth, and edits of anything else are not refused."""
    answer = server.ask(method, path + DRY, body, MERGE)

    assert is_taken(answer), answer


def test_other_objects_are_not_guarded(server: ApiServer) -> None:
    """Claims, StatefulSets and Leases of others have no label of a group, and are deleted as before."""
    head = {"name": "other", "namespace": GUARDED}
    lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": head, "spec": {}}
    claim = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": head}
    size = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    [given_set, *_] = broker_sets(rendered(group("orders", GUARDED, storage={"retain": "Never"}))).values()
    other_labels = {"app": "other"}
    body = given_set["spec"] | {"selector": {"matchLabels": other_labels}}
    body["template"] = body["template"] | {"metadata": {"labels": other_labels}}
    other_set = {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": head, "spec": body}
    for made in (lease, claim | {"spec": size}, other_set):
        put(server, made)
    scale = f"{sets_path(GUARDED, 'other')}/scale"

    assert is_taken(server.ask("PATCH", scale, {"spec": {"replicas": 0}}, MERGE))
    for made in (lease, claim, other_set):
        assert is_taken(server.ask("DELETE", path_of(made))), made["kind"]


def test_sidecar_renews_its_lease_and_cannot_change_the_record(server: ApiServer) -> None:
    """Its role allows updates of the whole Lease; the record is the operator's."""
    path = lease_path(GUARDED)
    status, document = server.ask("GET", path, user=SIDECAR)
    assert status == 200, document
    document["spec"] |= {"holderIdentity": "1", "renewTime": "2026-01-01T00:00:00.000000Z", "leaseDurationSeconds": 15}

    assert is_taken(server.ask("PUT", path + DRY, document, user=SIDECAR))

    record = lease_annotations(LeaseRecord(epoch=9000))
    document["metadata"]["annotations"] |= record
    answer = server.ask("PUT", path + DRY, document, user=SIDECAR)
    assert is_refused(answer), answer
    assert is_taken(server.ask("PUT", path + DRY, document, user=OPERATOR))


def test_invalid_order_that_exists_blocks_no_other_edit(server: ApiServer) -> None:
    """A group may have one from before the policies; its spec and other annotations can be changed, and it removed."""
    path = groups_path(GUARDED, "orders")
    change = {"metadata": {"annotations": {PROMOTE: "nonsense"}}}
    assert is_taken(server.ask("PATCH", path, change, MERGE, user=OPERATOR))

    assert is_taken(server.ask("PATCH", path + DRY, {"spec": {"slaves": 2}}, MERGE))
    assert is_taken(server.ask("PATCH", path + DRY, {"metadata": {"annotations": {FENCE: "0"}}}, MERGE))
    assert is_refused(server.ask("PATCH", path + DRY, {"metadata": {"annotations": {PROMOTE: "other"}}}, MERGE))
    assert is_taken(server.ask("PATCH", path, {"metadata": {"annotations": {PROMOTE: None}}}, MERGE))


def test_person_without_permissions_is_refused_as_before(server: ApiServer) -> None:
    """The policies grant nothing: permissions are checked first."""
    status, answer = server.ask("DELETE", claims_path(GUARDED) + DRY, user=PERSON)

    assert status == 403
    assert "ValidatingAdmissionPolicy" not in answer["message"]


# -- orders: the API server and the operator agree ---------------------------------------------------------------------

VALID = {
    PAUSED: ["true", "false"],
    HIBERNATE: ["true", "false"],
    PROMOTE: ["0=2", "0", "0=2, 3@tuesday", " 7=1@a:b.c+d-e_f ,", ""],
    ACCEPT_LOSS: ["64Mi", "any", " 0 ", "1.5Gi", "65536Ti", "999999999999999999"],
    REPLACE_DISK: ["0/2", "0/2,\t1/3"],
    RESTORE: ["0", "1,1, 2"],
    FENCE: ["0,2", ",,"],
    BACKUP: ["before-upgrade", "a", ""],
}
"""Values to start from, for each annotation."""

VALUES = st.one_of(
    *(
        st.tuples(
            st.just(name),
            st.one_of(
                st.from_regex(form.pattern.replace(r"\w", "[a-zA-Z0-9_]").replace(r"\d", "[0-9]"), fullmatch=True),
                st.sampled_from(VALID[name]).flatmap(
                    lambda text: st.tuples(
                        st.just(text),
                        st.integers(0, len(text)),
                        st.sampled_from(
                            ["", *" \t\r\n\v\f,=@/.-:+aZ_09", "\xa0", "\u2003", "\u0660", "é", "any", "Ti"]
                        ),
                        st.integers(0, 2),
                    ).map(lambda one: one[0][: one[1]] + one[2] + one[0][one[1] + one[3] :])
                ),
                st.text(" ,0129=@/anytrue.kMi\t\u0665", max_size=9),
            ),
        )
        for name, form in FORMATS.items()
    )
)
"""The name of an annotation and a value: a valid one, a valid one that was changed, or any other."""


def problem_of(name: str, value: str) -> str:
    """Return the error message of the operator's parser; empty for a valid value."""
    try:
        parse_requests({name: value})
    except ManifestError as error:
        return str(error)
    return ""


def is_fraction(name: str, value: str) -> bool:
    """Return whether only the operator refuses a value, because its number of bytes is not whole."""
    size = quantity_bytes(value) if name == ACCEPT_LOSS and "." in value else None
    return size is not None and size <= SIZE_BYTES_MAX


@settings(max_examples=100)
@given(VALUES)
def test_api_server_and_operator_accept_the_same_orders(server: ApiServer, one: tuple[str, str]) -> None:
    """The same formats are read by RE2 and by Python, and the message is the operator's."""
    name, value = one
    problem = problem_of(name, value)

    status, answer = create(server, GUARDED, {name: value})

    if status == 201:
        assert not problem or is_fraction(name, value), (value, problem)
    else:
        assert problem, (value, answer["message"])
        assert f"metadata.annotations[{name}]" in answer["message"]
        if value.isprintable() and not {"'", "\\"} & set(value) and "whole number" not in problem:
            assert problem in answer["message"]


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in VALID.items() for value in values])
def test_valid_orders_are_accepted(server: ApiServer, name: str, value: str) -> None:
    """Every form of an order in the documentation passes, and the longest list does."""
    status, answer = create(server, GUARDED, {name: value})

    if value == "999999999999999999":
        assert problem_of(name, value) and status == 422
    else:
        assert problem_of(name, value) == ""
        assert status == 201, answer


def test_long_lists_are_checked_in_time(server: ApiServer) -> None:
    """The limit of characters bounds the time; a value beyond it is refused without being parsed."""
    longest = ",".join(str(number) for number in range(999))
    assert len(longest) <= CHARACTERS_MAX and problem_of(PROMOTE, longest) == ""

    assert create(server, GUARDED, {PROMOTE: longest})[0] == 201
    assert is_refused(create(server, GUARDED, {FENCE: "0," * 100_000}))
