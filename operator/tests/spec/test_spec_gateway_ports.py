"""The ports of a group at a Gateway: distinct, valid, and never moved by a scale-out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gantry_spec.gateway_ports import master_port, member_port, name_server_port
from gantry_spec.manifest.errors import ManifestError
from gantry_spec.manifest.group import SHARDS_MAX, SLAVES_MAX
from gantry_spec.manifest.parts import FIRST_PORT_MAX, PORT_MAX
from gantry_spec.manifest.reading import group_of

FIRST = st.integers(1, FIRST_PORT_MAX)
SHARDS = st.integers(1, SHARDS_MAX)
SLAVES = st.integers(0, SLAVES_MAX)


def ports(first: int, shards: int, slaves: int) -> dict[str, int]:
    """Return the port of each target of a group."""
    found = {"name servers": name_server_port(first)}
    for shard in range(shards):
        found[f"master of {shard}"] = master_port(first, shard)
        found |= {f"{member} of {shard}": member_port(first, shard, member) for member in range(1, slaves + 2)}
    return found


@given(FIRST, SHARDS, SLAVES)
def test_no_two_targets_share_a_port(first: int, shards: int, slaves: int) -> None:
    """TCP has no host names: a port that two targets shared would lead clients to the wrong broker."""
    found = ports(first, shards, slaves)

    assert len(set(found.values())) == len(found) == 1 + shards * (slaves + 2)
    assert min(found.values()) == first and max(found.values()) <= PORT_MAX


@given(FIRST, SHARDS, SLAVES, SHARDS, SLAVES)
def test_scale_out_moves_no_port(first: int, shards: int, slaves: int, more_shards: int, more_slaves: int) -> None:
    """Clients and brokers keep their addresses when shards and slaves are added, and also when they are removed."""
    before = ports(first, shards, slaves)
    after = ports(first, more_shards, more_slaves)

    assert {name: after[name] for name in before.keys() & after.keys()} == {
        name: before[name] for name in before.keys() & after.keys()
    }


def test_documented_ports_are_those_of_the_default() -> None:
    """They are the ports in the table of `docs/external-access.md`."""
    assert ports(9876, 2, 1) == {
        "name servers": 9876,
        "master of 0": 9886, "1 of 0": 9887, "2 of 0": 9888,
        "master of 1": 9896, "1 of 1": 9897, "2 of 1": 9898,
    }  # fmt: skip


@pytest.mark.parametrize("first", [0, FIRST_PORT_MAX + 1, PORT_MAX])
def test_first_port_leaves_room_for_every_scale_out(first: int) -> None:
    """A greater one is refused at once, and not when a shard is added later."""
    gateway = {"name": "edge", "firstPort": first}
    head = {"apiVersion": "gantry.dev/v1alpha1", "kind": "BrokerGroup", "metadata": {"name": "orders"}}
    document = head | {"spec": {"access": {"external": {"type": "Gateway", "gateway": gateway}}}}

    with pytest.raises(ManifestError, match="firstPort"):
        group_of(document)


def test_type_gateway_needs_the_name_of_a_gateway() -> None:
    """The message names the field and the remedy; other types ignore the Gateway."""
    head = {"apiVersion": "gantry.dev/v1alpha1", "kind": "BrokerGroup", "metadata": {"name": "orders"}}

    with pytest.raises(ManifestError, match=r"spec\.access\.external\.gateway\.name: empty, but .*type is Gateway"):
        group_of(head | {"spec": {"access": {"external": {"type": "Gateway"}}}})
    kept = {"type": "NodePort", "gateway": {"name": "edge"}}
    assert group_of(head | {"spec": {"access": {"external": kept}}}).spec.access.external.gateway.name == "edge"
