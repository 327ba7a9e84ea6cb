"""The memory of a broker's pod: the user's resources, to which the buffers are added, so that users need not add them.

    container's memory = process and page cache  (spec.resources, else 1Gi)
                       + buffers of medium Memory, and a sixteenth of them for the overhead of tmpfs
                       + 16Mi for the volume with the status page and the control socket
    hugepages-2Mi      = buffers of medium HugePages-2Mi; request and limit are the same, as Kubernetes requires
    a buffer in pages  = whole pages for a segment, after one page in which the broker records the owner

Buffers of medium Memory count towards the pod's memory even after a restart of its container. A limit for the process
alone would get the pod OOM killed. Huge pages are not part of the memory limit. Only the broker's container has them;
the sidecar would get SIGBUS at its first access, so it never mounts them.

Resources that cannot work are refused before a pod is created: ``ImpossibleResources`` names the field to change.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, final

from gantry_operator.objects.facts import NodeFacts
from gantry_spec.manifest.group import Spec
from gantry_spec.manifest.parts import Medium
from gantry_spec.manifest.quantities import parse_size, size_text

HUGEPAGES: Final = "hugepages-2Mi"
"""The name of the resource huge pages in a container."""

PAGE_BYTES: Final = 2 << 20
"""The size of a huge page."""

MEMORY_DEFAULT_BYTES: Final = 1 << 30
"""The memory of a broker's process and page cache where the spec sets none."""

CPU_DEFAULT: Final = "250m"
"""The CPU request of a broker where the spec sets none."""

PROCESS_BYTES_MIN: Final = 256 << 20
"""The least memory of a broker: its process, and a page cache without which it would be bound by its disk."""
TMPFS_DIVISOR: Final = 16
"""A tmpfs needs memory in addition to its files: their size divided by this."""

RUN_BYTES: Final = 16 << 20
"""The size of the volume with status page and sockets."""
SIDECAR_BYTES: Final = 256 << 20
"""The memory of a sidecar, as request and limit."""

RESIZABLE: Final = frozenset({"cpu", "memory"})
"""The resources of a container that can change while it runs, where the cluster supports that."""
SECTIONS: Final = ("requests", "limits")
"""The parts of a container's resources with amounts."""
Resources = dict[str, Any]
"""The resources of a container, as in a pod."""


@final
class ImpossibleResources(Exception):
    """The resources of the spec cannot work. ``path`` is the field to change.

    Its text becomes the message of the condition ``Applied``, whose reason is ``Refused``.
    """

    def __init__(self, path: str, text: str) -> None:
        super().__init__(f"{path}: {text}")
        self.path = path
        self.text = text


def buffer_bytes(spec: Spec) -> int:
    """Return the bytes of all write buffers of one broker."""
    if spec.write_buffer.medium is Medium.OFF:
        return 0
    segment = int(spec.write_buffer.segment_size)
    if spec.write_buffer.medium is Medium.HUGE_PAGES:
        pages = 1 + -(-segment // PAGE_BYTES)  # the division rounds up
        segment = pages * PAGE_BYTES
    return spec.write_buffer.buffers * segment


def broker_resources(spec: Spec) -> Resources:
    """Return the resources of the broker's container. Raises ``ImpossibleResources``."""
    user_resources = _user_resources(spec)
    requests, limits = dict(user_resources.get("requests", {})), dict(user_resources.get("limits", {}))
    for path, given in (("requests", requests), ("limits", limits)):
        _refuse_hugepages(path, given)
    limit = _memory(limits, "spec.resources.limits.memory", _memory(requests, "", MEMORY_DEFAULT_BYTES))
    request = _memory(requests, "spec.resources.requests.memory", limit)
    if request > limit:
        raise ImpossibleResources(
            "spec.resources.requests.memory", f"{size_text(request)} is more than the limit, {size_text(limit)}"
        )
    if limit < PROCESS_BYTES_MIN:
        raise ImpossibleResources(
            "spec.resources.limits.memory",
            f"{size_text(limit)} is too little for a broker without its buffers, which are added automatically:"
            f" set at least {size_text(PROCESS_BYTES_MIN)}",
        )
    extra = _tmpfs_bytes(spec)
    requests |= {"memory": _text(request + extra)}
    limits |= {"memory": _text(limit + extra)}
    requests.setdefault("cpu", CPU_DEFAULT)
    if spec.write_buffer.medium is Medium.HUGE_PAGES:
        pages = {HUGEPAGES: _text(buffer_bytes(spec))}
        requests |= pages
        limits |= pages
    return {name: value for name, value in user_resources.items() if name == "claims"} | {
        "requests": requests,
        "limits": limits,
    }


def resizable(resources: Mapping[str, Any]) -> Resources:
    """Return the part of a container's resources that can change while it runs."""
    found: Resources = {}
    for kind in SECTIONS:
        amounts = {name: value for name, value in (resources.get(kind) or {}).items() if name in RESIZABLE}
        found |= {kind: amounts} if amounts else {}
    return found


def without_resizable(resources: Mapping[str, Any]) -> Resources:
    """Return a container's resources without the part that can change while it runs."""
    return {
        kind: {name: value for name, value in amounts.items() if name not in RESIZABLE} if kind in SECTIONS else amounts
        for kind, amounts in resources.items()
    }


def sidecar_resources() -> Resources:
    """Return the resources of the sidecar: request and limit are equal, so that it is not evicted for the broker."""
    memory = {"memory": _text(SIDECAR_BYTES)}
    return {"requests": {"cpu": "50m"} | memory, "limits": memory}


def hugepages_shortage(spec: Spec, nodes: Iterable[NodeFacts]) -> str | None:
    """Return why no Node has enough huge pages for a broker, for the condition ``HugePagesReady``.

    Return None if one has, if the spec needs none, or if no Node is known.
    """
    wanted, known = buffer_bytes(spec), list(nodes)
    if spec.write_buffer.medium is not Medium.HUGE_PAGES or not known:
        return None
    if any(node.hugepages_bytes >= wanted for node in known):
        return None
    most = max(known, key=lambda node: (node.hugepages_bytes, node.name))
    return (
        f"each broker needs {size_text(wanted)} of {HUGEPAGES}, but the largest node has"
        f" {size_text(most.hugepages_bytes)} ({most.name}): reserve pages before kubelet starts,"
        " or reduce spec.writeBuffer"
    )


def _user_resources(spec: Spec) -> Mapping[str, Any]:
    for name, value in spec.resources.items():
        if name not in ("requests", "limits", "claims"):
            raise ImpossibleResources(
                f"spec.resources.{name}", "unknown field; expected one of requests, limits, claims"
            )
        if name != "claims" and not isinstance(value, Mapping):
            raise ImpossibleResources(f"spec.resources.{name}", "expected a mapping of resource names to quantities")
    return spec.resources


def _refuse_hugepages(path: str, given: Mapping[str, Any]) -> None:
    for name in given:
        if name.startswith("hugepages-"):
            raise ImpossibleResources(
                f"spec.resources.{path}.{name}", "huge pages follow from spec.writeBuffer; set them only there"
            )


def _memory(given: Mapping[str, Any], path: str, default: int) -> int:
    """Return the memory in a container's requests or limits in bytes; ``default`` if none is set."""
    if "memory" not in given:
        return default
    try:
        return int(parse_size(given["memory"]))
    except ValueError as error:
        raise ImpossibleResources(path or "spec.resources.requests.memory", str(error)) from error


def _tmpfs_bytes(spec: Spec) -> int:
    """Return the bytes that volumes in memory add to the container's memory."""
    if spec.write_buffer.medium is not Medium.MEMORY:
        return RUN_BYTES
    buffers = buffer_bytes(spec)
    return buffers + buffers // TMPFS_DIVISOR + RUN_BYTES


def _text(size: int) -> str:
    return size_text(size)
