"""The resources that a pod requests, as the scheduler of Kubernetes counts them.

    containers          run at the same time: their requests are added
    native sidecars     init containers with ``restartPolicy: Always``: added, too, from their own start on
    init containers     run one after another, beside the native sidecars before them: the greatest moment counts
    pod level           ``spec.resources`` replaces CPU, memory and huge pages of all containers
    overhead            ``spec.overhead`` of the runtime class is added at the end
    resize in place     until kubelet has made it, the greater of the old and the new request counts

Amounts are integers by the name of the resource: CPU in thousandths of a core, all others in bytes or pieces. A pod
counts as one piece of ``pods``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from gantry_spec.manifest.quantities import quantity_bytes, quantity_millis, size_text

Object = Mapping[str, Any]
Amounts = dict[str, int]

CPU: Final = "cpu"
MEMORY: Final = "memory"
PODS: Final = "pods"
STORAGE: Final = "storage"
HUGEPAGES_PREFIX: Final = "hugepages-"
EPHEMERAL_STORAGE: Final = "ephemeral-storage"
UNLIMITED: Final = (CPU, MEMORY, EPHEMERAL_STORAGE)
"""The resources that a container without a limit can use all the same."""

REQUESTS: Final = "requests"
LIMITS: Final = "limits"

_UNITS: Final = ("Ti", "Gi", "Mi", "Ki")


class InvalidQuantity(ValueError):
    """An amount of a resource is not a quantity of Kubernetes; correct it in the manifest."""


def amounts_of(given: Object | None) -> Amounts:
    """Return amounts from quantities by resource name. Raises ``InvalidQuantity``, which names the resource."""
    found = {}
    for name, value in (given or {}).items():
        parsed = quantity_millis(str(value)) if name == CPU else quantity_bytes(str(value))
        if parsed is None or parsed < 0:
            raise InvalidQuantity(f"{name}: {value!r} is not a quantity: write it like 500m, 2 or 64Mi")
        found[name] = parsed
    return found


def requests_of(pod: Object) -> Amounts:
    """Return what the scheduler reserves for a pod, or for a pod of this template. Raises ``InvalidQuantity``."""
    return _effective(pod, REQUESTS) | {PODS: 1}


def limits_of(pod: Object) -> Amounts:
    """Return the limits of a pod, without the resources that one of its containers may use without a limit.

    Resources that must be requested, such as huge pages, always have one. Raises ``InvalidQuantity``.
    """
    spec = pod.get("spec") or {}
    containers = [*(spec.get("initContainers") or []), *(spec.get("containers") or [])]
    limited = [set(_section(one, LIMITS)) for one in containers if _is_long_running(one, spec)]
    bounded = set.intersection(*limited) if limited else set()
    bounded |= set(_pod_level(spec, LIMITS))
    found = _effective(pod, LIMITS).items()
    return {name: amount for name, amount in found if name in bounded or name not in UNLIMITED}


def added(*parts: Mapping[str, int]) -> Amounts:
    """Return the sum of amounts."""
    total: Amounts = {}
    for part in parts:
        for name, amount in part.items():
            total[name] = total.get(name, 0) + amount
    return total


def scaled(amounts: Mapping[str, int], count: int) -> Amounts:
    """Return amounts for several pods."""
    return {name: amount * count for name, amount in amounts.items()}


def amount_text(name: str, amount: int) -> str:
    """Return an exact amount as a quantity of Kubernetes: `300m`, `1360Mi`."""
    if name == CPU:
        return f"{amount}m" if amount % 1000 else f"{amount // 1000}"
    return size_text(amount)


def short_text(name: str, amount: int) -> str:
    """Return an amount for people, with at most two decimals: `61.94Gi`, `2.05` cores, `250m`."""
    if name == CPU:
        return f"{amount}m" if abs(amount) < 1000 else _decimal(amount / 1000)
    for power, unit in zip(range(4, 0, -1), _UNITS, strict=True):
        if abs(amount) >= 1 << (10 * power):
            return _decimal(amount / (1 << (10 * power))) + unit
    return str(amount)


def _decimal(number: float) -> str:
    return f"{number:.2f}".rstrip("0").rstrip(".")


def quantities(amounts: Mapping[str, int]) -> dict[str, str]:
    """Return amounts as quantities of Kubernetes, CPU and memory first."""
    return {name: amount_text(name, amounts[name]) for name in sorted_names(amounts)}


def sorted_names(names: Iterable[str]) -> list[str]:
    """Return resource names in the order in which people read them: CPU, memory, huge pages, then the rest."""
    return sorted(names, key=lambda name: (_RANKS.get(name, 2 if name.startswith(HUGEPAGES_PREFIX) else 3), name))


_RANKS: Final = {CPU: 0, MEMORY: 1, PODS: 9}


def need_text(amounts: Mapping[str, int]) -> str:
    """Return what one pod needs, for a sentence: `cpu 300m, memory 1.3Gi, hugepages-2Mi 512Mi`."""
    shown = [name for name in sorted_names(amounts) if name != PODS and amounts[name]]
    return ", ".join(f"{name} {short_text(name, amounts[name])}" for name in shown) or "no resources"


# -- one pod -----------------------------------------------------------------------------------------------------------


def _effective(pod: Object, section: str) -> Amounts:
    spec = pod.get("spec") or {}
    total: Amounts = {}
    sidecars: Amounts = {}
    peak: Amounts = {}
    for container in spec.get("initContainers") or []:
        amounts = _container(pod, container, section)
        if _is_sidecar(container):
            total, sidecars = added(total, amounts), added(sidecars, amounts)
            moment = sidecars
        else:
            moment = added(amounts, sidecars)
        peak = _greatest(peak, moment)
    total = added(total, *(_container(pod, one, section) for one in spec.get("containers") or []))
    total = _greatest(total, peak) | _pod_level(spec, section)
    overhead = amounts_of(spec.get("overhead"))
    if section == LIMITS:  # overhead raises a limit that exists, and makes none
        overhead = {name: amount for name, amount in overhead.items() if name in total}
    return added(total, overhead)


def _container(pod: Object, container: Object, section: str) -> Amounts:
    """Return the amounts of one container; for requests, with those that kubelet has not given back yet."""
    spec = _section(container, section)
    if section == LIMITS:
        return spec
    status = _status_of(pod, str(container.get("name", "")))
    actual = _greatest(
        amounts_of((status.get("resources") or {}).get(REQUESTS)), amounts_of(status.get("allocatedResources"))
    )
    if not actual:
        return spec
    return actual if _is_resize_infeasible(pod) else _greatest(spec, actual)


def _section(container: Object, section: str) -> Amounts:
    """Return a part of a container's resources. As in the API server, a limit without a request is one, too."""
    resources = container.get("resources") or {}
    given = resources.get(section) or {}
    return amounts_of({**(resources.get(LIMITS) or {}), **given} if section == REQUESTS else given)


def _pod_level(spec: Object, section: str) -> Amounts:
    resources = spec.get("resources") or {}
    given = resources.get(section) or {}
    if section == REQUESTS:
        given = {**(resources.get(LIMITS) or {}), **given}
    shared = {
        name: value for name, value in given.items() if name in (CPU, MEMORY) or name.startswith(HUGEPAGES_PREFIX)
    }
    return amounts_of(shared)


def _status_of(pod: Object, name: str) -> Object:
    status = pod.get("status") or {}
    statuses = [*(status.get("containerStatuses") or []), *(status.get("initContainerStatuses") or [])]
    found: Object = next((one for one in statuses if one.get("name") == name), {})
    return found


def _is_resize_infeasible(pod: Object) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or []
    return any(one.get("type") == "PodResizePending" and one.get("reason") == "Infeasible" for one in conditions)


def _is_sidecar(container: Object) -> bool:
    return container.get("restartPolicy") == "Always"


def _is_long_running(container: Object, spec: Object) -> bool:
    return _is_sidecar(container) or container in (spec.get("containers") or [])


def _greatest(one: Mapping[str, int], other: Mapping[str, int]) -> Amounts:
    return {name: max(one.get(name, 0), other.get(name, 0)) for name in {**one, **other}}
