"""What a cluster could leave behind on the machine, as text in which two captures can be compared.

Only the machine's own side is captured: the claim, its mounts, devices, addresses, routes, packet filters, control
groups and settings, and processes that came from a cluster.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from gantry_cluster.commands import run
from gantry_cluster.lifecycle import HUGE_PAGES, KUBELET_SETTINGS
from gantry_cluster.network import NETWORKS
from gantry_cluster.node import GROUPS
from gantry_cluster.paths import HIDDEN, MACHINE_CLAIM, cache_folder
from gantry_cluster.programs import PACKAGES
from gantry_cluster.requirements import PACKAGES as OTHER_PROGRAMS

WATCHED_FOLDERS = (*HIDDEN, Path("/etc"))
"""The folders in which a cluster mounts file systems."""

NETWORK_SETTINGS = (
    *(setting for network in NETWORKS.values() for setting in (network.forwarding, network.bridge_filter)),
    "net/netfilter/nf_conntrack_max",
)


def _mounts() -> Iterator[str]:
    """Yield mounts only where a cluster mounts file systems; other programs mount elsewhere."""
    for line in Path("/proc/self/mounts").read_text().splitlines():
        device, target, kind, *_ = line.split()
        if any(Path(target).is_relative_to(place) for place in WATCHED_FOLDERS):
            yield f"{target} {kind} {device}"


def _groups() -> Iterator[str]:
    """Yield two levels of control groups: deeper ones change with the work of other programs."""
    for pattern in ("*", "*/*"):
        for path in GROUPS.glob(pattern):
            if path.is_dir():
                yield str(path)


def _settings() -> Iterator[str]:
    for name in (*KUBELET_SETTINGS, HUGE_PAGES, *NETWORK_SETTINGS):
        file = Path("/proc/sys", name)
        yield f"{name}={file.read_text().strip() if file.exists() else 'absent'}"


def _processes() -> Iterator[str]:
    """Yield processes of a cluster: its programs in other namespaces, and processes that wait for them.

    The same programs in the namespaces of this process do not belong to a cluster: many tests use an API server alone.
    """
    own_namespace = Path("/proc/self/ns/pid").readlink()
    ours = {str(cache_folder())} | {f"/{name}" for name in OTHER_PROGRAMS if name.startswith("containerd")}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            program = str((entry / "exe").readlink())
            words = (entry / "cmdline").read_bytes().split(b"\0")
            is_apart = (entry / "ns" / "pid").readlink() != own_namespace
        except OSError:
            continue
        is_entered = b"nsenter" in words[0] or b"unshare" in words[0]
        is_ours = (is_apart and any(part in program for part in ours)) or (
            is_entered and program.rpartition("/")[2] in OTHER_PROGRAMS
        )
        if is_ours:
            yield f"{entry.name} {b' '.join(words).decode(errors='replace')}"


def _filters() -> Iterator[str]:
    for program in ("iptables-save", "ip6tables-save"):
        for line in run(program).splitlines():
            if line.startswith(("-", "*")):
                yield f"{program}: {line}"


def capture_machine_state() -> dict[str, list[str]]:
    """Return the state of the machine, by kind."""
    links = [line.split()[0] for line in run("ip", "-brief", "link").splitlines()]
    return {
        "claim": [str(MACHINE_CLAIM)] if MACHINE_CLAIM.is_dir() else [],
        "mounts": sorted(_mounts()),
        "devices": sorted(links),
        "addresses": sorted(run("ip", "-brief", "address").splitlines()),
        "routes": sorted(
            line
            for words in (("-4", "route", "show", "table", "all"), ("-6", "route", "show"))
            for line in run("ip", *words).splitlines()
        ),
        "filters": sorted(_filters()),
        "groups": sorted(_groups()),
        "settings": sorted(_settings()),
        "processes": sorted(_processes()),
    }


def differences(before: dict[str, list[str]], after: dict[str, list[str]]) -> list[str]:
    """List what was added and what was removed."""
    return [
        f"{kind}: {sign} {line}"
        for kind in before
        for sign, some, others in (("+", after[kind], before[kind]), ("-", before[kind], after[kind]))
        for line in some
        if line not in others
    ]


assert set(PACKAGES).isdisjoint(OTHER_PROGRAMS), "a program is in both tables: built here, and expected on the machine"
