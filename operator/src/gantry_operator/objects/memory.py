"""How much memory a broker's pod gets: what its user asks for, and the buffers on top, so that nobody adds them twice.

    container's memory = process and page cache  (spec.resources, else 1Gi)
                       + buffers of medium Memory, and a sixteenth of them for what tmpfs needs beside the bytes
    hugepages-2Mi      = buffers of medium HugePages-2Mi; request and limit are the same, as Kubernetes demands
    a buffer in them   = whole pages for a segment, and one page before, in which the broker says whose it is

A Memory buffer is paid for by the pod even after its container was started again, so the pod was OOM killed where only
the process had been counted. Hugepages are no part of the memory limit; only the broker's container has them, and the
sidecar would die of SIGBUS at its first touch, so it never mounts them.

A sum that cannot work is refused before a pod is made of it: ``CannotFit`` says which field to change.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, final

from gantry_operator.objects.facts import NodeFacts
from gantry_spec.manifest.group import Spec
from gantry_spec.manifest.parts import Medium
from gantry_spec.manifest.quantities import parse_size, size_text

HUGEPAGES: Final = "hugepages-2Mi"
PAGE_BYTES: Final = 2 << 20
MEMORY_DEFAULT_BYTES: Final = 1 << 30
CPU_DEFAULT: Final = "250m"
PROCESS_BYTES_MIN: Final = 256 << 20
"""A broker's own memory and the page cache without which it would only wait for its disk."""
TMPFS_DIVISOR: Final = 16
RUN_BYTES: Final = 16 << 20
"""Of the volume with status page and sockets."""
SIDECAR_BYTES: Final = 256 << 20

Resources = dict[str, Any]


@final
class CannotFit(Exception):
    """These resources cannot work. ``path`` is the field to change; a condition with ``reason`` should say so."""

    reason: Final = "ImpossibleResources"

    def __init__(self, path: str, text: str) -> None:
        super().__init__(f"{path}: {text}")
        self.path = path
        self.text = text


def buffer_bytes(spec: Spec) -> int:
    """Of all write buffers of one broker."""
    if spec.write_buffer.medium is Medium.OFF:
        return 0
    segment = int(spec.write_buffer.segment_size)
    if spec.write_buffer.medium is Medium.HUGE_PAGES:
        segment = PAGE_BYTES - -segment // PAGE_BYTES * PAGE_BYTES
    return spec.write_buffer.buffers * segment


def broker_resources(spec: Spec) -> Resources:
    """Of the broker's container. Raises ``CannotFit``."""
    asked = _asked(spec)
    requests, limits = dict(asked.get("requests", {})), dict(asked.get("limits", {}))
    for path, given in (("requests", requests), ("limits", limits)):
        _refuse_hugepages(path, given)
    limit = _memory(limits, "spec.resources.limits.memory", _memory(requests, "", MEMORY_DEFAULT_BYTES))
    request = _memory(requests, "spec.resources.requests.memory", limit)
    if request > limit:
        raise CannotFit(
            "spec.resources.requests.memory", f"{size_text(request)} is more than the limit, {size_text(limit)}"
        )
    if limit < PROCESS_BYTES_MIN:
        raise CannotFit(
            "spec.resources.limits.memory",
            f"{size_text(limit)} is too little for a broker without its buffers, which are added by themselves:"
            f" say at least {size_text(PROCESS_BYTES_MIN)}",
        )
    extra = _tmpfs_bytes(spec)
    requests |= {"memory": _text(request + extra)}
    limits |= {"memory": _text(limit + extra)}
    requests.setdefault("cpu", CPU_DEFAULT)
    if spec.write_buffer.medium is Medium.HUGE_PAGES:
        pages = {HUGEPAGES: _text(buffer_bytes(spec))}
        requests |= pages
        limits |= pages
    return {name: value for name, value in asked.items() if name == "claims"} | {"requests": requests, "limits": limits}


def sidecar_resources() -> Resources:
    """Of the sidecar: small, and the same as request and limit, so that it is not the victim of the broker's needs."""
    memory = {"memory": _text(SIDECAR_BYTES)}
    return {"requests": {"cpu": "50m"} | memory, "limits": memory}


def hugepages_shortage(spec: Spec, nodes: Iterable[NodeFacts]) -> str | None:
    """Why no machine could take a broker of the group, for the condition ``HugePagesReady``; None if some could."""
    wanted, known = buffer_bytes(spec), list(nodes)
    if spec.write_buffer.medium is not Medium.HUGE_PAGES or not known:
        return None
    if any(node.hugepages_bytes >= wanted for node in known):
        return None
    most = max(known, key=lambda node: (node.hugepages_bytes, node.name))
    return (
        f"each broker needs {size_text(wanted)} of {HUGEPAGES}, and the most that a machine has is"
        f" {size_text(most.hugepages_bytes)} ({most.name}): reserve pages before kubelet starts,"
        " or ask for less in spec.writeBuffer"
    )


def _asked(spec: Spec) -> Mapping[str, Any]:
    for name, value in spec.resources.items():
        if name not in ("requests", "limits", "claims"):
            raise CannotFit(f"spec.resources.{name}", "no such field; there are requests, limits and claims")
        if name != "claims" and not isinstance(value, Mapping):
            raise CannotFit(f"spec.resources.{name}", "it is a mapping of names and amounts")
    return spec.resources


def _refuse_hugepages(path: str, given: Mapping[str, Any]) -> None:
    for name in given:
        if name.startswith("hugepages-"):
            raise CannotFit(
                f"spec.resources.{path}.{name}", "spec.writeBuffer decides about pages; say it there and not twice"
            )


def _memory(given: Mapping[str, Any], path: str, default: int) -> int:
    if "memory" not in given:
        return default
    try:
        return int(parse_size(given["memory"]))
    except ValueError as error:
        raise CannotFit(path or "spec.resources.requests.memory", str(error)) from error


def _tmpfs_bytes(spec: Spec) -> int:
    """What volumes in memory add to the container's."""
    if spec.write_buffer.medium is not Medium.MEMORY:
        return RUN_BYTES
    buffers = buffer_bytes(spec)
    return buffers + buffers // TMPFS_DIVISOR + RUN_BYTES


def _text(size: int) -> str:
    return size_text(size)
