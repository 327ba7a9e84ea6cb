"""The memory of a broker's pod: buffers are added automatically, and impossible sums are refused with their field."""

from __future__ import annotations

from typing import Any

import pytest
from objects_scene import group, rendered

from gantry_broker.store.write_buffer import piece_bytes
from gantry_operator.objects import ImpossibleResources, NodeFacts, hugepages_shortage
from gantry_operator.objects.memory import PAGE_BYTES, broker_resources
from gantry_spec.manifest.quantities import parse_size

MEBIBYTE = 1 << 20


def sums(resources: dict[str, Any] | None = None, **buffer: Any) -> tuple[int, int, int]:
    """Return request and limit of memory in MiB, and the huge pages, which have one number."""
    spec = group(resources=resources or {}, writeBuffer=buffer).spec
    found = broker_resources(spec)
    request, limit = (parse_size(found[name]["memory"]) // MEBIBYTE for name in ("requests", "limits"))
    pages = {found[name].get("hugepages-2Mi", "0") for name in ("requests", "limits")}
    assert len(pages) == 1, "request and limit of hugepages differ: the API server would refuse the pod"
    return request, limit, parse_size(pages.pop()) // MEBIBYTE


def test_hugepages_are_not_part_of_the_memory() -> None:
    """3 buffers of 64Mi, each after one page: 198Mi; the memory is the default and the volume of the status page."""
    assert sums(medium="HugePages-2Mi", buffers=3, segmentSize="64Mi") == (1040, 1040, 198)
    assert sums(medium="Off", segmentSize="64Mi") == (1040, 1040, 0)


@pytest.mark.parametrize("segment", ["2Mi", "8Mi", "64Mi", "1Gi"])
def test_broker_gets_the_hugepages_that_it_uses(segment: str) -> None:
    """The sum is the broker's own size of a buffer times their number: with one page less it cannot start."""
    taken = 3 * piece_bytes(int(parse_size(segment)), PAGE_BYTES)

    assert sums(medium="HugePages-2Mi", buffers=3, segmentSize=segment)[2] == taken // MEBIBYTE


def test_limit_includes_buffers_in_memory() -> None:
    """The pod must have memory for what a crashed container leaves in tmpfs, and for the next process."""
    assert sums(medium="Memory", buffers=4, segmentSize="64Mi") == (1040 + 256 + 16, 1040 + 256 + 16, 0)


def test_resources_of_the_spec_are_for_the_process() -> None:
    """Request and limit may differ; the buffers are added to both; other resources are passed on."""
    asked = {"requests": {"memory": "512Mi", "cpu": "2"}, "limits": {"memory": "2Gi", "example.com/disk": "1"}}

    assert sums(asked, medium="Memory", buffers=2, segmentSize="32Mi") == (512 + 16 + 68, 2048 + 16 + 68, 0)
    found = broker_resources(group(resources=asked).spec)
    assert found["requests"]["cpu"] == "2" and "cpu" not in found["limits"]
    assert found["limits"]["example.com/disk"] == "1"


@pytest.mark.parametrize(
    ("resources", "path", "expected_text"),
    [
        ({"limits": {"memory": "64Mi"}}, "spec.resources.limits.memory", "at least 256Mi"),
        ({"requests": {"memory": "2Gi"}, "limits": {"memory": "1Gi"}}, "spec.resources.requests.memory", "limit, 1Gi"),
        ({"limits": {"hugepages-2Mi": "1Gi"}}, "spec.resources.limits.hugepages-2Mi", "follow from spec.writeBuffer"),
        ({"limits": {"memory": "lots"}}, "spec.resources.limits.memory", "is not a size"),
        ({"memory": "1Gi"}, "spec.resources.memory", "requests, limits, claims"),
        ({"limits": "1Gi"}, "spec.resources.limits", "mapping"),
    ],
    ids=["too little", "request above limit", "twice", "no size", "no such field", "no mapping"],
)
def test_impossible_resources_are_refused(resources: dict[str, Any], path: str, expected_text: str) -> None:
    """The field to change is named."""
    with pytest.raises(ImpossibleResources, match=expected_text) as refused:
        rendered(group(resources=resources))

    assert refused.value.path == path


def test_shortage_of_hugepages_names_the_largest_node() -> None:
    """The condition has the needed size and the Node with the most pages; unknown Nodes are no shortage."""
    spec = group(writeBuffer={"medium": "HugePages-2Mi", "buffers": 2, "segmentSize": "64Mi"}).spec
    small = [NodeFacts(name="a", memory_bytes=1 << 30), NodeFacts(name="b", memory_bytes=1, hugepages_bytes=2 << 20)]
    enough = NodeFacts(name="c", memory_bytes=1, hugepages_bytes=132 << 20)

    assert hugepages_shortage(spec, []) is None
    assert hugepages_shortage(spec, [*small, enough]) is None
    assert hugepages_shortage(group().spec, small) is None
    shortage = hugepages_shortage(spec, small)
    assert shortage is not None and "132Mi" in shortage and "2Mi (b)" in shortage
