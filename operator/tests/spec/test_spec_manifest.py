"""A manifest is parsed as a whole, or refused with the path, the reason and the remedy of every problem."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gantry_spec.manifest import BrokerGroup, ManifestError, check_changes, read_group, read_groups
from gantry_spec.manifest.group import Spec
from gantry_spec.manifest.parts import FailoverMode, Medium, ReplicationMode
from gantry_spec.manifest.quantities import duration_text, parse_duration, parse_size, quantity_bytes, size_text
from gantry_spec.manifest.reading import group_of, plain_values
from gantry_spec.manifest.struct_fields import walk_fields

HEAD = "apiVersion: gantry.dev/v1alpha1\nkind: BrokerGroup\nmetadata: {name: orders}\n"

WHOLE = (
    HEAD
    + """
spec:
  shards: 2
  slaves: 1                                   # per shard
  nameServers: {replicas: 2}
  replication: {mode: Sync, inSyncReplicas: 2, ackTimeout: 3s, ack: Received}
  flush: {mode: Async, interval: 500ms}
  writeBuffer: {medium: HugePages-2Mi, buffers: 3, segmentSize: 1Gi}
  storage: {size: 100Gi, storageClassName: fast, retain: Always, reservedTime: 72h}
  durability: {maxAtRiskBytes: 64Mi, maxAtRisk: 1s}
  failover: {mode: Automatic, maxDataLossBytes: 0, switchback: false}
  access: {aclSecret: orders-acl, tlsSecret: orders-tls, external: {type: LoadBalancer}}
  topics: [{name: orders, queues: 16}]
  groups: [{name: billing}]
  resources: {requests: {cpu: "1"}}
  template:
    tolerations: [{key: dedicated, operator: Exists}]
"""
)


def problems_of(text: str) -> str:
    """Return the problems of a manifest as text."""
    with pytest.raises(ManifestError) as caught:
        read_group(text)
    return str(caught.value)


def edited(**spec: object) -> BrokerGroup:
    """Return a group with these fields of its spec."""
    document = {"apiVersion": "gantry.dev/v1alpha1", "kind": "BrokerGroup", "metadata": {"name": "orders"}}
    return group_of(document | {"spec": spec})


def test_values_of_a_manifest_are_parsed() -> None:
    """Sizes are bytes, durations are milliseconds, and settings of pods are unchanged."""
    group = read_group(WHOLE)

    spec = group.spec
    assert (group.metadata.name, spec.shards, spec.slaves, spec.name_servers.count) == ("orders", 2, 1, 2)
    assert (spec.replication.mode, spec.replication.acks_needed) == (ReplicationMode.SYNC, 1)
    assert (spec.replication.ack_timeout, spec.flush.interval) == (3_000, 500)
    assert (spec.write_buffer.medium, spec.write_buffer.segment_size) == (Medium.HUGE_PAGES, 1 << 30)
    assert (spec.storage.size, spec.storage.reserved_time) == (100 << 30, 72 * 3_600_000)
    assert (spec.durability.max_at_risk_bytes, spec.durability.max_at_risk) == (64 << 20, 1_000)
    assert (spec.failover.mode, spec.failover.max_data_loss_bytes) == (FailoverMode.AUTOMATIC, 0)
    assert spec.template.tolerations == [{"key": "dedicated", "operator": "Exists"}]
    assert list(spec.members) == [1, 2]


def test_the_smallest_manifest_is_a_safe_group() -> None:
    """The defaults lose nothing: synchronous replication, one slave, automatic failover, no loss allowed."""
    spec = read_group(HEAD).spec

    assert (spec.slaves, spec.replication.acks_needed, spec.failover.max_data_loss_bytes) == (1, 1, 0)


def test_an_encoded_manifest_reads_the_same() -> None:
    """This includes the defaults, as a document and as JSON text."""
    group = read_group(WHOLE)
    document = {"apiVersion": "gantry.dev/v1alpha1", "kind": "BrokerGroup", **plain_values(group)}

    assert group_of(document) == group
    assert read_group(json.dumps(document)) == group


def test_fields_that_kubernetes_adds_are_accepted() -> None:
    """Other metadata and the status are ignored."""
    text = WHOLE.replace("{name: orders}", "{name: orders, uid: u, managedFields: [{a: 1}], generation: 3}", 1)

    group = read_group(text + "status: {phase: Ready}\n")

    assert group.metadata.generation == 3


def test_null_is_the_default() -> None:
    """The API server drops a null before it sets defaults, so both read the same; other wrong values are refused."""
    spec = read_group(HEAD + "spec: {proxy: null, slaves: null, flush: {mode: null, interval: 1s}}").spec

    assert (spec.proxy, spec.slaves, spec.flush.mode) == (Spec().proxy, Spec().slaves, Spec().flush.mode)
    assert spec.flush.interval == 1_000
    assert "spec.proxy.replicas: expected int" in problems_of(HEAD + "spec: {proxy: {replicas: none}}")


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        (
            "replication: {inSyncReplicas: 3}",
            "spec.replication.inSyncReplicas: 3 needs at least 2 slaves, but spec.slaves is 1",
        ),
        ("replication: {inSyncReplicas: 1}", "spec.replication.inSyncReplicas: 1 with mode Sync waits for no slave"),
        (
            "replication: {mode: Async, inSyncReplicas: 2}",
            "spec.replication.inSyncReplicas: 2 has no effect with mode Async",
        ),
        ("replication: {mode: Async, ack: Flushed}", "spec.replication.ack: Flushed has no effect with mode Async"),
        ("slaves: 0", "spec.replication.inSyncReplicas: 2 needs at least 1 slaves, but spec.slaves is 0"),
        ("nameServers: {replicas: 1, addresses: ['n:9876']}", "spec.nameServers: replicas creates name servers"),
        ("writeBuffer: {medium: HugePages-2Mi, segmentSize: 3Mi}", "spec.writeBuffer.segmentSize: 3Mi must be a multi"),
        ("writeBuffer: {segmentSize: 1000000}", "spec.writeBuffer.segmentSize: 1000000 must be a multiple of 4Ki"),
        ("storage: {size: 2Gi}", "spec.storage.size: 2Gi is too small for files of 1Gi: set at least 3Gi"),
        (
            "slaves: 0\n  replication: {mode: Async}\n  durability: {maxAtRisk: 100ms}",
            "spec.durability.maxAtRisk: 100ms cannot be kept",
        ),
        (
            "access: {external: {type: Gateway}}",
            "spec.access.external.gateway.name: empty, but spec.access.external.type is Gateway; set the name",
        ),
        ("proxy: {credentialsSecret: mine}", "spec.proxy.credentialsSecret: mine has no effect while brokers check no"),
        (
            "proxy: {tls: {requiresClientCertificate: true}}",
            "spec.proxy.tls.requiresClientCertificate: true needs an authority that issues certificates to clients",
        ),
        (
            "access: {certificates: {issuer: Operator}}\n  proxy: {tls: {requiresClientCertificate: true}}",
            "spec.proxy.tls.requiresClientCertificate: true needs an authority that issues certificates to clients",
        ),
        (
            "access: {tlsSecret: mine, certificates: {issuer: Operator}}",
            "spec.access.certificates.issuer: Operator contradicts spec.access.tlsSecret, mine: set only one",
        ),
        (
            "access: {certificates: {issuer: CertManager}}",
            "spec.access.certificates.issuerRef.name: is required with issuer CertManager",
        ),
        (
            "access: {certificates: {issuer: Operator, issuerRef: {name: mine}}}",
            "spec.access.certificates.issuerRef.name: mine has no effect with issuer Operator",
        ),
        (
            "access: {certificates: {names: [mq.example.com]}}",
            "spec.access.certificates.names: has no effect while no certificate is issued",
        ),
        (
            "proxy: {service: {loadBalancerSourceRanges: [10.0.0.0/8]}}",
            "spec.proxy.service.type: ClusterIP has no load balancer; set LoadBalancer",
        ),
        ("proxy: {limits: {calls: 10}}", "spec.proxy.limits.calls: 10 is less than limits.clients, 5000"),
        ("proxy: {limits: {longPoll: 2m}}", "spec.proxy.limits.longPoll: 2m, expected 5s to 60s"),
        ("proxy: {limits: {invisibleTime: 9s}}", "spec.proxy.limits.invisibleTime: 9s, expected at least 10s"),
        (
            "proxy: {limits: {longPoll: 40s}}",
            "spec.proxy.template.terminationGracePeriod: 45s is too short for calls that wait up to 40s",
        ),
        ("failover: {mode: Disabled, switchback: true}", "spec.failover.switchback: true contradicts mode Disabled"),
        ("topics: [{name: a}, {name: a}]", "spec.topics: duplicate name"),
        (
            "broker: {brokerRole: SLAVE}",
            "spec.broker: brokerRole: reserved, since other fields or Gantry itself control it",
        ),
    ],
)
def test_contradictory_fields_are_refused(spec: str, problem: str) -> None:
    """The problem has the path of the field to change, both values, and the remedy."""
    assert problem in problems_of(f"{HEAD}spec:\n  {spec}\n")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            "spec: {failover: {maxDataLosBytes: 1}}",
            "spec.failover.maxDataLosBytes: unknown field; did you mean maxData",
        ),
        ("spec: {shard: 2}", "spec.shard: unknown field; did you mean shards?"),
        ("spec: {topics: [{name: a, queue: 2}]}", "spec.topics[0].queue: unknown field; did you mean queues?"),
        (
            "spec: {access: {external: {kind: x}}}",
            "spec.access.external.kind: unknown field; expected one of type, annota",
        ),
        ("specs: {}", "specs: unknown field; did you mean spec?"),
        ("spec: {slaves: 99}", "spec.slaves: expected int <= 8"),
        ("spec: {slaves: two}", "spec.slaves: expected int, got str"),
        ("spec: {slaves: yes}", "spec.slaves: expected int, got str"),
        ("spec: {flush: {mode: Sink}}", "spec.flush.mode: invalid enum value 'Sink'"),
        ("spec: {durability: {maxAtRiskBytes: 64Q}}", "spec.durability.maxAtRiskBytes: '64Q' is not a size"),
        ("spec: {flush: {interval: 5}}", "spec.flush.interval: 5 is not a duration: write it like 500ms"),
        ("spec: {slaves: 1, slaves: 2}", "line 4: slaves: duplicate key"),
        ("spec: {topics: &t [], groups: *t}", "anchors and aliases are not supported"),
        ("spec: {topics: !!python/name:os.system x}", "is not supported"),
        ("spec: {slaves: [1", "invalid YAML"),
        ("spec: {resources: " + "[" * 40 + "]" * 40 + "}", "deeper than 32 levels"),
        ("spec: {resources: " + "[" * 1500 + "]" * 1500 + "}", "deeper than 32 levels"),
        ("x: '" + "y" * (1 << 20) + "'", "at most 1048576 are allowed"),
    ],
    ids=lambda value: value[:32],
)
def test_an_invalid_manifest_is_refused_with_place_and_reason(text: str, problem: str) -> None:
    """A typo never becomes a default, and a hostile file costs little."""
    assert problem in problems_of(HEAD + text)


def test_all_unknown_fields_are_reported_at_once() -> None:
    """A user can correct all of them in one edit."""
    text = problems_of(HEAD + "spec: {shard: 2, flush: {intervall: 1s}}")

    assert len(text.splitlines()) == 2


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "the file is empty"),
        ("- 1\n", "a BrokerGroup is a mapping"),
        ("kind: Deployment\napiVersion: apps/v1\n", "kind: 'Deployment' is not supported, expected BrokerGroup"),
        (HEAD.replace("orders", "Orders_1"), "metadata.name: expected str matching regex"),
        (HEAD.replace("metadata: {name: orders}\n", ""), "metadata: missing"),
        (WHOLE + "---\n" + WHOLE, "the file holds 2 groups"),
    ],
    ids=["empty", "list", "other", "name", "nameless", "two"],
)
def test_a_file_without_a_single_group_is_refused(text: str, problem: str) -> None:
    """The problem says what was found and what was expected."""
    assert problem in problems_of(text)


def test_a_file_may_hold_several_groups() -> None:
    """A YAML file for Kubernetes may have several documents."""
    assert [one.metadata.name for one in read_groups(HEAD + "---\n" + HEAD.replace("orders", "bills"))] == [
        "orders",
        "bills",
    ]


@given(st.integers(0, 1 << 50))
def test_a_size_survives_formatting_and_parsing(size: int) -> None:
    """The text has the exact value, with the largest binary suffix that divides it."""
    assert parse_size(size_text(size)) == size


@given(st.integers(0, 10**10))
def test_a_duration_survives_formatting_and_parsing(duration_ms: int) -> None:
    """The text has the exact value, in the largest unit of which it is a whole number."""
    assert parse_duration(duration_text(duration_ms)) == duration_ms


@pytest.mark.parametrize(("text", "size"), [("64Mi", 64 << 20), ("1.5Gi", 3 << 29), ("10k", 10_000), (7, 7), ("0", 0)])
def test_sizes_are_parsed_in_the_format_of_kubernetes(text: object, size: int) -> None:
    """Binary and decimal suffixes, exact fractions, and plain numbers are allowed."""
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["-1", "1.5", "0.3Ki", "64mi", "", "1e3", True, None, "1 Mi", "999999999Ti", "٣"])
def test_a_size_must_be_a_whole_number_of_bytes(text: object) -> None:
    """The intended value of other texts cannot be guessed."""
    with pytest.raises(ValueError, match=r"not a size|not a whole number"):
        parse_size(text)


DOCS = Path(__file__).resolve().parents[3] / "docs/groups.md"


def test_the_manifest_in_the_docs_is_valid() -> None:
    """A user can copy it and get a group."""
    example = DOCS.read_text().split("```yaml\n")[1].split("```")[0]

    assert read_group(example).spec.shards == 2


def test_every_field_is_in_the_docs() -> None:
    """The docs have the path of the field and its description."""
    text = DOCS.read_text()

    for path, field in walk_fields(Spec, "spec"):
        parent, name = path.rsplit(".", 1)
        assert f"### `{parent}`" in text, path
        assert f"| `{name}` |" in text, path
        assert field.description in text, path


def test_the_errors_in_the_docs_are_the_real_ones() -> None:
    """The text in the docs is the exact output."""
    shown = DOCS.read_text().split("```text\n")[1].split("```")[0].splitlines()

    assert problems_of(HEAD + "spec: {replication: {inSyncReplicas: 3}}") == shown[0]
    assert problems_of(HEAD + "spec: {failover: {maxDataLosBytes: 1}}") == shown[1]
    assert problems_of("#\n" * 8 + HEAD + "spec: {slaves: 1, slaves: 2}") == shown[2]


# -- changes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "after", "path"),
    [
        ({}, {"writeBuffer": {"segmentSize": "512Mi"}}, "spec.writeBuffer.segmentSize"),
        ({"storage": {"storageClassName": "fast"}}, {}, "spec.storage.storageClassName"),
        ({"storage": {"size": "100Gi"}}, {"storage": {"size": "50Gi"}}, "spec.storage.size"),
        (
            {"access": {"tlsSecret": "mine"}},
            {"access": {"certificates": {"issuer": "Operator"}}},
            "spec.access.certificates.issuer",
        ),
        (
            {"access": {"certificates": {"issuer": "CertManager", "issuerRef": {"name": "ca"}}}},
            {"access": {}},
            "spec.access.tlsSecret",
        ),
    ],
)
def test_an_edit_that_needs_another_store_is_refused(
    before: dict[str, object], after: dict[str, object], path: str
) -> None:
    """The problem names the field with both values and the remedy."""
    [problem] = check_changes(edited(**before), edited(**after))

    assert problem.path == path
    assert problem.text.startswith("cannot change from ")


@pytest.mark.parametrize(
    "after",
    [{"shards": 4}, {"slaves": 2}, {"storage": {"size": "200Gi"}}, {"flush": {"mode": "Sync"}}, {"shards": 1}],
    ids=lambda after: next(iter(after)),
)
def test_other_fields_may_be_edited(after: dict[str, object]) -> None:
    """Fewer slaves or shards and other modes are accepted, since decisions apply them safely."""
    assert check_changes(edited(shards=2), edited(**{"shards": 2, **after})) == []


def test_the_name_of_a_group_cannot_change() -> None:
    """The name is part of the names of volumes."""
    other = group_of({"apiVersion": "gantry.dev/v1alpha1", "kind": "BrokerGroup", "metadata": {"name": "other"}})

    assert [one.path for one in check_changes(edited(), other)] == ["metadata.name"]


def test_defaults_in_code_equal_those_of_an_empty_file() -> None:
    """A spec that is made in code equals the parsed one."""
    assert read_group(HEAD).spec == Spec()


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0), ("1024", 1024), ("1.5Gi", 3 << 29), ("1P", 10**15), ("1Pi", 1 << 50), ("2Ei", 2 << 60),
        ("12e6", 12_000_000), ("1E3", 1000), ("1E", 10**18), ("1500m", 2), (".5k", 500), ("-1", -1),
        ("", None), ("1Q", None), ("Gi", None), ("1e", None), ("1 Gi", None), ("1" * 40, None),
    ],
)  # fmt: skip
def test_quantities_of_others_are_read_in_every_form_of_kubernetes(text: str, size: int | None) -> None:
    """Parts of a byte are rounded up; a text that is not a quantity gives None, and is no error."""
    assert quantity_bytes(text) == size
