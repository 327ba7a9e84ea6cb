"""The folders of a cluster: one with everything that it writes, and one with programs that all clusters share.

The folder must not be below a path that a node hides behind a mount of its own (`HIDDEN`), because then the node
would find an empty folder.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from gantry_cluster.errors import ClusterError

CLUSTER = Path(__file__).resolve().parents[1]
ROOT = CLUSTER.parents[1]
MODULE = CLUSTER / "go"
MACHINE_CLAIM = Path("/run/gantry-cluster")
"""The folder whose creation claims the machine, which carries one cluster.

It holds a link to the folder of the cluster, and the journal, which must survive that folder: it may be removed while
the cluster runs.
"""

HIDDEN = tuple(Path(name) for name in ("/run", "/var/run", "/var/lib", "/var/log", "/proc", "/sys", "/dev"))
"""Paths of which every node has its own."""

CACHE_VARIABLE = "GANTRY_CLUSTER_CACHE"


def default_folder() -> Path:
    """Return the default folder, beside the other generated files of this clone."""
    return ROOT / ".gantry" / "cluster"


def cache_folder() -> Path:
    """Return the folder where built programs are kept between runs and between clones."""
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
        """Return the folder at a path that nodes can see. Raises ``ClusterError``."""
        root = path.resolve()
        for hidden in HIDDEN:
            if root.is_relative_to(hidden):
                raise ClusterError(
                    f"a cluster cannot be in {root}, because every node has its own {hidden}; choose another folder"
                )
        return cls(root)

    @property
    def state(self) -> Path:
        """The state file: everything that runs."""
        return self.root / "cluster.json"

    @property
    def logs(self) -> Path:
        """The folder with the logs of all programs."""
        return self.root / "logs"

    @property
    def keys(self) -> Path:
        """The folder with keys and certificates."""
        return self.root / "keys"

    @property
    def kubeconfig(self) -> Path:
        """The path of the administrator's kubeconfig."""
        return self.root / "kubeconfig"

    @property
    def etcd(self) -> Path:
        """The data folder of etcd."""
        return self.root / "etcd"

    def node(self, name: str) -> Path:
        """Return the folder of a node's private files."""
        return self.root / "nodes" / name

    def disk(self, name: str) -> Path:
        """Return the disk of a node: a folder with one folder per volume."""
        return self.root / "disks" / name
