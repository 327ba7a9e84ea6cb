"""A running cluster, and how a program finds the one that another program has made.

The machine carries one cluster at a time, because node names, addresses and control groups belong to the machine. The
program that creates the folder `MACHINE_CLAIM` owns the machine; a link in it leads other programs to the folder of the
cluster, whose state file lists what runs.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from gantry_cluster.api import Api, Object
from gantry_cluster.commands import run
from gantry_cluster.errors import NoCluster
from gantry_cluster.image_names import BUILT, IMAGE, Images
from gantry_cluster.journal import Journal
from gantry_cluster.machine import Machine, Program
from gantry_cluster.network import NETWORKS, Family, Network
from gantry_cluster.node import load_image, tag_image
from gantry_cluster.paths import MACHINE_CLAIM, Folder
from gantry_cluster.processes import Process
from gantry_cluster.programs import Programs

HUB = "hub"
"""The name of the machine that holds the bridge and the control plane."""

LINK = "folder"
"""The name of the link in `MACHINE_CLAIM`."""


@dataclass(frozen=True)
class Plan:
    """The parameters with which `up` makes a cluster."""

    nodes: int = 3
    huge_pages: int = 0
    """The number of 2 MiB pages for each node."""

    family: Family = Family.IPV4
    """The family of the addresses of pods and Services."""

    @property
    def network(self) -> Network:
        """The addresses of this family."""
        return NETWORKS[self.family]


@dataclass
class Cluster:
    """The machines of a running cluster."""

    folder: Folder
    programs: Programs
    """The built programs of Kubernetes."""

    plan: Plan
    machines: dict[str, Machine]
    """The hub and the nodes, by name."""

    @property
    def hub(self) -> Machine:
        """The machine in which the control plane runs."""
        return self.machines[HUB]

    @property
    def nodes(self) -> list[str]:
        """The names of the nodes."""
        return [name for name in self.machines if name != HUB]

    @property
    def api(self) -> Api:
        """The API server, as administrator."""
        return Api.of(self.folder)

    def kubectl(self, *words: str | Path, stdin: str | None = None) -> str:
        """Run kubectl from outside, as administrator."""
        return run(self.programs["kubectl"], f"--kubeconfig={self.folder.kubeconfig}", *words, stdin=stdin)

    def helm(self, *words: str | Path) -> str:
        """Run helm from outside, as administrator, with empty caches and repository lists."""
        homes = {f"HELM_{kind}_HOME": str(self.folder.root / "helm") for kind in ("CACHE", "CONFIG", "DATA")}
        kubeconfig_option = f"--kubeconfig={self.folder.kubeconfig}"
        return run(self.programs["helm"], kubeconfig_option, *words, environment={**os.environ, **homes})

    def load_image(self, archive: Path) -> list[str]:
        """Load an image into every node."""
        names: list[str] = []
        for name in self.nodes:
            names = load_image(self.machines[name], archive)
        return names

    def tag_image(self, known: str, name: str) -> None:
        """Give an image on all nodes another name: charts refuse `latest`, and a new name is a new version."""
        for node in self.nodes:
            tag_image(self.machines[node], known, name)

    def provide_images(self, archive: Path | None) -> Images:
        """Load the operator's image and give both images names with versions. The broker's image is loaded already."""
        assert archive is not None, "expected an archive: nodes that are made here use images that are built here"
        [known, *_] = self.load_image(archive)
        self.tag_image(known, BUILT.operator)
        self.tag_image(IMAGE, BUILT.broker)
        return BUILT

    def localize_pod_spec(self, spec: Object) -> Object:
        """Return a pod's specification with the name that Gantry's image has on these nodes."""
        return spec

    def save(self) -> None:
        """Write the state file with everything that runs."""
        content = {
            "programs": str(self.programs.folder),
            "plan": asdict(self.plan),
            "machines": {
                machine.name: {
                    "init": [machine.init.pid, machine.init.started],
                    "programs": {
                        name: [program.process.pid, program.process.started, str(program.log), *program.command]
                        for name, program in machine.programs.items()
                    },
                }
                for machine in self.machines.values()
            },
        }
        draft = self.folder.state.with_suffix(".draft")
        draft.write_text(json.dumps(content, indent=1))
        draft.replace(self.folder.state)


def find_machine_claim() -> Folder | None:
    """Return the folder of the cluster that owns this machine, or None."""
    link = MACHINE_CLAIM / LINK
    return Folder(Path(os.readlink(link))) if link.is_symlink() else None


def find() -> Cluster:
    """Return the cluster of this machine. Raises ``NoCluster``."""
    folder = find_machine_claim()
    if folder is None:
        raise NoCluster("no cluster on this machine; make one with: .venv/bin/python e2e/cluster/run.py up")
    if not folder.state.exists():
        raise NoCluster(
            f"the cluster in {folder.root} did not start; remove it with: .venv/bin/python e2e/cluster/run.py down"
        )
    content = json.loads(folder.state.read_text())
    machines = {
        name: Machine(
            name,
            Process(*kept["init"]),
            Journal(MACHINE_CLAIM),
            {
                program: Program(Process(pid, started), tuple(words), Path(log))
                for program, (pid, started, log, *words) in kept["programs"].items()
            },
        )
        for name, kept in content["machines"].items()
    }
    return Cluster(
        folder,
        Programs(Path(content["programs"])),
        Plan(**content["plan"] | {"family": Family(content["plan"]["family"])}),
        machines,
    )


def condition_status(thing: Object, kind: str) -> str:
    """Return the status of an object's condition: True, False, Unknown, or an empty string."""
    conditions = thing.get("status", {}).get("conditions", [])
    return next((str(entry["status"]) for entry in conditions if entry["type"] == kind), "")


def ready_nodes(api: Api) -> set[str]:
    """Return the names of the nodes that are ready."""
    return {
        node["metadata"]["name"] for node in api.items("/api/v1/nodes") if condition_status(node, "Ready") == "True"
    }
