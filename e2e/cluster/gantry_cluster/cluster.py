"""A cluster as everybody finds it who did not make it.

The machine carries one at a time, because node names, addresses and control groups are the machine's. Who makes the
link `CLAIM` has it; the link leads everybody else to the folder, and the folder's files tell what runs.
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
from gantry_cluster.node import load_image, name_image
from gantry_cluster.places import CLAIM, Folder
from gantry_cluster.processes import Process
from gantry_cluster.programs import Programs

HUB = "hub"
LINK = "folder"
"""The name of the link in `CLAIM`."""


@dataclass(frozen=True)
class Plan:
    """What is asked of `up`."""

    nodes: int = 3
    huge_pages: int = 0
    """Pages of 2 MiB for each node."""


@dataclass
class Cluster:
    """The machines of a running cluster."""

    folder: Folder
    programs: Programs
    plan: Plan
    machines: dict[str, Machine]

    @property
    def hub(self) -> Machine:
        """Where the control plane runs."""
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
        """Run helm from outside, as administrator, with no memory of anybody's repositories."""
        homes = {f"HELM_{kind}_HOME": str(self.folder.root / "helm") for kind in ("CACHE", "CONFIG", "DATA")}
        way_in = f"--kubeconfig={self.folder.kubeconfig}"
        return run(self.programs["helm"], way_in, *words, environment={**os.environ, **homes})

    def load_image(self, archive: Path) -> list[str]:
        """Give every node an image."""
        names: list[str] = []
        for name in self.nodes:
            names = load_image(self.machines[name], archive)
        return names

    def name_image(self, known: str, name: str) -> None:
        """Give an image that every node has another name: charts refuse `latest`, and a new name is a new version."""
        for node in self.nodes:
            name_image(self.machines[node], known, name)

    def give_operator(self, archive: Path | None) -> Images:
        """Have both images on every node, by names that are versions; the broker's is there already."""
        assert archive is not None, "nodes that are made here are given what is built here"
        [known, *_] = self.load_image(archive)
        self.name_image(known, BUILT.operator)
        self.name_image(IMAGE, BUILT.broker)
        return BUILT

    def pod_spec_here(self, spec: Object) -> Object:
        """A pod's specification with our image by the name it has on these nodes."""
        return spec

    def save(self) -> None:
        """Write down what runs."""
        content = {
            "programs": str(self.programs.folder),
            "plan": asdict(self.plan),
            "machines": {
                machine.name: {
                    "init": [machine.init.pid, machine.init.started],
                    "programs": {
                        name: [program.process.pid, program.process.started, str(program.log), *program.words]
                        for name, program in machine.programs.items()
                    },
                }
                for machine in self.machines.values()
            },
        }
        draft = self.folder.state.with_suffix(".draft")
        draft.write_text(json.dumps(content, indent=1))
        draft.replace(self.folder.state)


def claimed() -> Folder | None:
    """The folder of the cluster that has this machine."""
    link = CLAIM / LINK
    return Folder(Path(os.readlink(link))) if link.is_symlink() else None


def find() -> Cluster:
    """The cluster of this machine."""
    folder = claimed()
    if folder is None:
        raise NoCluster("this machine carries no cluster; make one with: e2e/cluster/run.py up")
    if not folder.state.exists():
        raise NoCluster(f"the cluster in {folder.root} never came up; clear it away with: e2e/cluster/run.py down")
    content = json.loads(folder.state.read_text())
    machines = {
        name: Machine(
            name,
            Process(*kept["init"]),
            Journal(CLAIM),
            {
                program: Program(Process(pid, started), tuple(words), Path(log))
                for program, (pid, started, log, *words) in kept["programs"].items()
            },
        )
        for name, kept in content["machines"].items()
    }
    return Cluster(folder, Programs(Path(content["programs"])), Plan(**content["plan"]), machines)


def condition(thing: Object, kind: str) -> str:
    """What a condition of an object says: True, False, Unknown, or nothing."""
    conditions = thing.get("status", {}).get("conditions", [])
    return next((str(entry["status"]) for entry in conditions if entry["type"] == kind), "")


def ready_nodes(api: Api) -> set[str]:
    """The names of the nodes that are ready."""
    return {node["metadata"]["name"] for node in api.items("/api/v1/nodes") if condition(node, "Ready") == "True"}
