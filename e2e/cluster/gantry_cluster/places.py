"""Where a cluster lies: one folder with everything it writes, and one folder with programs that all clusters share.

The folder may be anywhere but in a place that a node hides behind a mount of its own (`HIDDEN`), because then the node
would look for its own files and find an empty folder.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from gantry_cluster.errors import ClusterError

CLUSTER = Path(__file__).resolve().parents[1]
ROOT = CLUSTER.parents[1]
MODULE = CLUSTER / "go"
CLAIM = Path("/run/gantry-cluster")
"""Who makes this folder has the machine, which carries one cluster.

It holds a link to the folder of the cluster, and the journal, which must outlive that folder: somebody may remove it
while the cluster runs."""

HIDDEN = tuple(Path(name) for name in ("/run", "/var/run", "/var/lib", "/var/log", "/proc", "/sys", "/dev"))
CACHE_VARIABLE = "GANTRY_CLUSTER_CACHE"


def default_folder() -> Path:
    """Beside the other traces of this clone."""
    return ROOT / ".gantry" / "cluster"


def cache_folder() -> Path:
    """Where built programs are kept between runs and between clones."""
    chosen = os.environ.get(CACHE_VARIABLE)
    if chosen:
        return Path(chosen)
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "gantry" / "kubernetes"


@dataclass(frozen=True)
class Folder:
    """The files of one cluster."""

    root: Path

    @classmethod
    def at(cls, path: Path) -> Folder:
        """The folder at a path that nodes can see."""
        root = path.resolve()
        for hidden in HIDDEN:
            if root.is_relative_to(hidden):
                raise ClusterError(f"a cluster cannot lie in {root}: every node has a {hidden} of its own")
        return cls(root)

    @property
    def state(self) -> Path:
        """What runs."""
        return self.root / "cluster.json"

    @property
    def logs(self) -> Path:
        """What every program said."""
        return self.root / "logs"

    @property
    def keys(self) -> Path:
        """Keys and certificates."""
        return self.root / "keys"

    @property
    def kubeconfig(self) -> Path:
        """The administrator's way in."""
        return self.root / "kubeconfig"

    @property
    def etcd(self) -> Path:
        """The store of the control plane."""
        return self.root / "etcd"

    def node(self, name: str) -> Path:
        """What a node keeps for itself."""
        return self.root / "nodes" / name

    def disk(self, name: str) -> Path:
        """The disk of a node: one folder per volume."""
        return self.root / "disks" / name
