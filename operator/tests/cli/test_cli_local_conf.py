"""From a spec to broker.conf: a real broker's settings accept every valid manifest, with the same meaning."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gantry_broker.setting_keys import broker_settings
from gantry_spec.broker_conf import BrokerPlacement, broker_conf, broker_name, cluster_name, conf_text, template_of
from gantry_spec.manifest.errors import ManifestError
from gantry_spec.manifest.group import Spec
from gantry_spec.manifest.reading import group_of

PLACE = BrokerPlacement(
    group="crew", shard=1, number=2, address="127.0.0.1", name_servers=("ns:9876",), store="/store", buffers="/buffers"
)


def spec_of(fields: dict[str, Any]) -> Spec:
    head = {"apiVersion": "gantry.dev/v1alpha1", "kind": "BrokerGroup", "metadata": {"name": "crew"}}
    return group_of(head | {"spec": fields}).spec


SPECS = st.fixed_dictionaries(
    {},
    optional={
        "slaves": st.integers(0, 3),
        "replication": st.fixed_dictionaries(
            {"mode": st.sampled_from(["Sync", "Async"])},
            optional={
                "inSyncReplicas": st.integers(1, 3),
                "ack": st.sampled_from(["Received", "Flushed"]),
                "ackTimeout": st.sampled_from(["0s", "1ms", "3s"]),
                "maxLag": st.sampled_from([0, "1Mi"]),
            },
        ),
        "flush": st.fixed_dictionaries({"mode": st.sampled_from(["Sync", "Async"])}),
        "writeBuffer": st.fixed_dictionaries(
            {
                "medium": st.sampled_from(["Off", "Memory", "HugePages-2Mi"]),
                "segmentSize": st.sampled_from(["2Mi", "8Mi", "1Gi"]),
                "buffers": st.integers(2, 64),
            }
        ),
        "storage": st.fixed_dictionaries({"reservedTime": st.sampled_from(["1s", "90m", "72h", "8760h"])}),
        "broker": st.sampled_from([{}, {"autoCreateTopicEnable": "false"}, {"maxMessageSize": "100000"}]),
    },
)


@given(SPECS)
def test_every_valid_spec_gives_an_accepted_broker_conf(fields: dict[str, Any]) -> None:
    """A manifest that was accepted never results in a broker that does not start."""
    try:
        spec = spec_of(fields)
    except ManifestError:
        return

    settings = broker_settings(broker_conf(spec, PLACE))

    assert settings.ha.acks_needed == spec.replication.acks_needed
    assert settings.store.flush.is_sync is (spec.flush.mode == "Sync")
    assert settings.store.pool.is_enabled is (spec.write_buffer.medium != "Off")
    assert settings.store.mapped_file_size_commit_log == spec.write_buffer.segment_size
    assert settings.store.retention.reserved_hours * 3_600_000 >= spec.storage.reserved_time
    assert settings.ha.role_at_start == "UNASSIGNED" and settings.broker_id == 2
    assert (settings.cluster_name, settings.broker_name) == (cluster_name("crew"), broker_name("crew", 1))


def test_flush_interval_is_kept() -> None:
    """Small writes reach the disk at the interval, too. A slave whose disk is waited for needs none."""
    flush = broker_settings(broker_conf(spec_of({}), PLACE)).store.flush

    assert (flush.flush_interval_ms, flush.flush_pages_min) == (500, 0)


@pytest.mark.parametrize(
    ("replication", "level"),
    [
        ({}, "FLUSHED"),
        ({"ack": "Received"}, "RECEIVED"),
        ({"ack": "Flushed"}, "FLUSHED"),
        ({"mode": "Async"}, "RECEIVED"),
        ({"mode": "Async", "ack": "Received"}, "RECEIVED"),
    ],
)
def test_synchronous_group_waits_for_the_disk_of_a_slave(replication: dict[str, str], level: str) -> None:
    """Unless the manifest says that its memory is enough; an asynchronous one waits for no slave."""
    assert broker_conf(spec_of({"replication": replication}), PLACE)["haAckLevel"] == level


def test_settings_of_the_spec_override_derived_ones() -> None:
    """``spec.broker`` sets maxMessageSize: it is used even where small files imply another value."""
    small = {"writeBuffer": {"segmentSize": "2Mi"}}

    assert broker_conf(spec_of(small), PLACE)["maxMessageSize"] == str(1 << 20)
    assert broker_conf(spec_of(small | {"broker": {"maxMessageSize": "9"}}), PLACE)["maxMessageSize"] == "9"
    assert "maxMessageSize" not in broker_conf(spec_of({}), PLACE)


@pytest.mark.parametrize(
    ("fields", "is_other"),
    [
        ({"slaves": 3}, False),
        ({"shards": 4}, False),
        ({"topics": [{"name": "t"}]}, False),
        ({"failover": {"after": "9s"}}, False),
        ({"flush": {"mode": "Sync"}}, True),
        ({"replication": {"mode": "Async"}}, True),
        ({"broker": {"autoCreateTopicEnable": "false"}}, True),
        ({"storage": {"reservedTime": "1h"}}, True),
    ],
    ids=lambda value: str(value),
)
def test_template_changes_only_with_start_settings(fields: dict[str, Any], is_other: bool) -> None:
    """Only changes of a broker's file restart it, but not the number of members or topics."""
    before, after = template_of(spec_of({}), ["ns:9876"]), template_of(spec_of(fields), ["ns:9876"])

    assert (before != after) is is_other


def test_template_depends_on_the_addresses_of_name_servers() -> None:
    """It is made from them and the spec, and from no number, port or folder of a member."""
    spec = spec_of({})

    assert template_of(spec, ["a:1"]) == template_of(spec, ("a:1",)) != template_of(spec, ["b:1"])


def test_broker_conf_has_one_line_per_key() -> None:
    """The file has the form that a broker reads."""
    conf = broker_conf(
        spec_of({}), msgspec.structs.replace(PLACE, control="/c", status_page="/s", access=(("k", "v"),))
    )

    assert conf["controlSocketPath"] == "/c" and conf["statusPagePath"] == "/s" and conf["k"] == "v"
    assert conf_text(conf).splitlines() == [f"{key}={value}" for key, value in conf.items()]
