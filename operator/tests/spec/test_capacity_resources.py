"""What a pod requests, as the scheduler counts it: the cases of its own rules, one by one."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gantry_spec.capacity.resources import (
    InvalidQuantity,
    amount_text,
    amounts_of,
    limits_of,
    need_text,
    quantities,
    requests_of,
    short_text,
)
from gantry_spec.manifest.quantities import quantity_millis

Object = dict[str, Any]
MIB = 1 << 20


def container(name: str, cpu: str = "", memory: str = "", *, is_sidecar: bool = False, **more: Any) -> Object:
    """Return a container with these requests."""
    requests = {key: value for key, value in (("cpu", cpu), ("memory", memory)) if value}
    sidecar = {"restartPolicy": "Always"} if is_sidecar else {}
    return {"name": name, "resources": {"requests": requests}} | sidecar | more


def pod(containers: list[Object], before: list[Object] | None = None, **spec: Any) -> Object:
    return {"spec": {"containers": containers, "initContainers": before or []} | spec}


def cpu_and_memory(document: Object) -> tuple[int, int]:
    found = requests_of(document)
    return found.get("cpu", 0), found.get("memory", 0) // MIB


def test_containers_and_native_sidecars_are_added() -> None:
    """They run at the same time, and the pod counts as one piece of the node's pods."""
    document = pod([container("a", "100m", "64Mi"), container("b", "1", "1Gi")],
                   [container("s", "50m", "16Mi", is_sidecar=True)])  # fmt: skip

    assert requests_of(document) == {"cpu": 1150, "memory": 1104 * MIB, "pods": 1}


@pytest.mark.parametrize(
    ("before", "expected"),
    [
        ([container("i", "2", "8Mi")], (2000, 64)),
        ([container("i", "50m", "8Mi"), container("j", "40m", "9Mi")], (100, 64)),
        ([container("s", "30m", "16Mi", is_sidecar=True), container("i", "1", "80Mi")], (1030, 96)),
        ([container("i", "1", "80Mi"), container("s", "30m", "16Mi", is_sidecar=True)], (1000, 80)),
        ([container("s", "30m", "16Mi", is_sidecar=True), container("t", "40m", "1Mi", is_sidecar=True)], (170, 81)),
    ],
    ids=["one larger", "two smaller", "after a sidecar", "before a sidecar", "two sidecars"],
)
def test_init_containers_count_at_their_greatest_moment(before: list[Object], expected: tuple[int, int]) -> None:
    """An init container runs alone but for the native sidecars that were started before it."""
    assert cpu_and_memory(pod([container("a", "100m", "64Mi")], before)) == expected


def test_overhead_is_added_to_requests_and_to_existing_limits() -> None:
    """The overhead of a runtime class makes no limit where there is none."""
    one = container("a", "100m", "64Mi")
    one["resources"]["limits"] = {"memory": "64Mi"}
    document = pod([one], overhead={"cpu": "10m", "memory": "6Mi"})

    assert cpu_and_memory(document) == (110, 70)
    assert limits_of(document) == {"memory": 70 * MIB}


def test_pod_level_requests_replace_those_of_containers() -> None:
    """Only CPU, memory and huge pages can be set for a pod."""
    level = {"requests": {"cpu": "2", "hugepages-2Mi": "4Mi", "ephemeral-storage": "1Gi"}}
    document = pod([container("a", "100m", "64Mi")], resources=level)

    assert requests_of(document) == {"cpu": 2000, "memory": 64 * MIB, "hugepages-2Mi": 4 * MIB, "pods": 1}


def test_limit_without_a_request_is_the_request() -> None:
    """The API server sets it so, and a rendered pod has not been there yet."""
    one = {"name": "a", "resources": {"limits": {"memory": "64Mi", "cpu": "1"}, "requests": {"cpu": "100m"}}}

    assert requests_of(pod([one])) == {"cpu": 100, "memory": 64 * MIB, "pods": 1}


def test_limit_counts_only_if_every_container_has_one() -> None:
    """Otherwise a container of the pod can use any amount. An init container that has ended does not matter."""
    limited = {"name": "a", "resources": {"limits": {"cpu": "1", "memory": "64Mi"}}}
    sidecar = {"name": "s", "restartPolicy": "Always", "resources": {"limits": {"memory": "16Mi"}}}

    assert limits_of(pod([limited], [sidecar, {"name": "i"}])) == {"memory": 80 * MIB}


@pytest.mark.parametrize(
    ("reason", "expected"), [("Deferred", 256), ("Infeasible", 64)], ids=["deferred", "infeasible"]
)
def test_resize_in_place_reserves_the_greater_amount(reason: str, expected: int) -> None:
    """A resize that can never be made reserves nothing."""
    document = pod([container("a", memory="256Mi")])
    document["status"] = {
        "containerStatuses": [{"name": "a", "resources": {"requests": {"memory": "64Mi"}}}],
        "conditions": [{"type": "PodResizePending", "status": "True", "reason": reason}],
    }

    assert cpu_and_memory(document)[1] == expected


def test_smaller_request_frees_memory_only_when_kubelet_has_made_it() -> None:
    """Until then the container may use what it had."""
    document = pod([container("a", memory="64Mi")])
    document["status"] = {"containerStatuses": [{"name": "a", "allocatedResources": {"memory": "256Mi"}}]}

    assert cpu_and_memory(document)[1] == 256


@pytest.mark.parametrize(
    ("text", "millis"), [("1", 1000), ("250m", 250), ("1.5", 1500), ("1n", 1), ("2k", 2_000_000), ("1e1", 10_000)]
)
def test_cpu_is_counted_in_thousandths_rounded_up(text: str, millis: int) -> None:
    """As Kubernetes does for its scheduler."""
    assert quantity_millis(text) == millis


def test_text_that_is_no_quantity_is_refused_with_its_resource() -> None:
    """A manifest may have any text in its resources."""
    with pytest.raises(InvalidQuantity, match=r"cpu: 'two' is not a quantity"):
        amounts_of({"cpu": "two"})
    with pytest.raises(InvalidQuantity, match="memory"):
        amounts_of({"memory": "-1Gi"})


def test_texts_name_resources_in_one_order() -> None:
    """CPU and memory come first; a short text has two decimals at most."""
    amounts = {"pods": 1, "hugepages-2Mi": 512 * MIB, "memory": 1300 * MIB, "cpu": 2050}

    assert need_text(amounts) == "cpu 2.05, memory 1.27Gi, hugepages-2Mi 512Mi"
    assert list(quantities(amounts)) == ["cpu", "memory", "hugepages-2Mi", "pods"]
    assert (short_text("memory", 1023), short_text("memory", 1 << 40), short_text("cpu", 90)) == ("1023", "1Ti", "90m")


@given(name=st.sampled_from(["cpu", "memory", "hugepages-2Mi"]), amount=st.integers(0, 1 << 50))
def test_quantity_of_an_amount_is_exact(name: str, amount: int) -> None:
    """A program that parses the document has the same figure."""
    assert amounts_of({name: amount_text(name, amount)}) == {name: amount}
