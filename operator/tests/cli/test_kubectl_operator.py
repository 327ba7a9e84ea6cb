"""`kubectl gantry` and the real operator: the operator executes its orders, and it understands the operator's status.

The cluster is the model of `operator_world`, over real HTTP, in which a checker verifies that no acknowledged message
is lost. The operator's loop runs while the command waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner, Result
from kubectl_scene import write_kubeconfig
from operator_world.cluster import GROUP, NAMESPACE
from operator_world.http_kubernetes import TOKEN, HttpKubernetes
from operator_world.simulation import SYNC, Simulation
from test_operator_withheld import lost_without_proof

from gantry_cli.kube.documents import ClusterGroupStatus, KubeExplainDocument
from gantry_cli.kube.plugin import cli
from gantry_cli.orders import OrderDocument
from gantry_spec.manifest.annotations import PROMOTE
from gantry_testing.http_server import application, http_server


class Person:
    """A user at a terminal, while the cluster keeps running."""

    def __init__(self, simulation: Simulation, kubeconfig: Path) -> None:
        self.simulation = simulation
        self.kubeconfig = kubeconfig

    async def types(self, command: str, *words: str) -> Result:
        """Run one command to its end."""
        where = ["--kubeconfig", str(self.kubeconfig), "-n", NAMESPACE]
        typed = asyncio.create_task(asyncio.to_thread(CliRunner().invoke, cli, [command, *where, *words]))
        while not typed.done():
            await self.simulation.step()
            await asyncio.sleep(0.01)
        return await typed


@asynccontextmanager
async def person_at(simulation: Simulation, folder: Path) -> AsyncIterator[Person]:
    """Return a user with a kubeconfig for the model cluster."""
    async with http_server(application(HttpKubernetes(simulation.cluster.api).answer)) as port:
        kubeconfig = folder / "kubeconfig"
        write_kubeconfig(kubeconfig, f"http://127.0.0.1:{port}")
        kubeconfig.write_text(kubeconfig.read_text().replace("a-token-of-an-administrator", TOKEN))
        yield Person(simulation, kubeconfig)


@pytest.mark.verify
async def test_promotion_is_executed_and_reported(tmp_path: Path) -> None:
    """When the command ends, the brokers themselves report the ordered roles; and back again."""
    simulation = await Simulation(SYNC).run_until_healthy()
    async with person_at(simulation, tmp_path) as person:
        there = await person.types("promote", GROUP, "0=2", "-O", "json")
        after_first = simulation.cluster.master(0)
        back = await person.types("promote", GROUP, "0=1", "-O", "json")

    assert there.exit_code == back.exit_code == 0, there.output + back.output
    first, second = (msgspec.json.decode(one.stdout, type=OrderDocument) for one in (there, back))
    assert (first.before_master, first.master, after_first) == (f"{GROUP}-0-master-0", f"{GROUP}-0-slave-0", 2)
    assert (second.master, simulation.cluster.master(0)) == (f"{GROUP}-0-master-0", 1)
    assert first.before_epoch < first.epoch == second.before_epoch < second.epoch
    assert PROMOTE not in simulation.cluster.group["metadata"].get("annotations", {})


@pytest.mark.verify
async def test_promotion_with_a_loss_waits_and_reports_the_reason(tmp_path: Path) -> None:
    """The slave is cut off: the role stays, the operator's reason is printed, and the order stays pending."""
    simulation = await Simulation(SYNC).run_until_healthy()
    simulation.cluster.disconnect_node(simulation.cluster.node_of(0, 2))
    async with person_at(simulation, tmp_path) as person:
        result = await person.types("promote", GROUP, "0=2", "--timeout", "3")

    assert result.exit_code == 1 and "timed out after 3 s: shard 0: " in result.stderr, result.output
    assert "waiting: " in result.stderr and "the order stays pending" in result.stderr
    assert simulation.cluster.group["metadata"]["annotations"][PROMOTE].startswith("0=2@")


async def test_operator_status_is_shown(tmp_path: Path) -> None:
    """Status and explanation need no answer of a sidecar."""
    simulation = await Simulation(SYNC).run_until_healthy()
    async with person_at(simulation, tmp_path) as person:
        status = await person.types("status", GROUP, "--no-exec", "-O", "json")
        explanation = await person.types("explain", "--no-exec", "-O", "json")

    shown = msgspec.json.decode(status.stdout, type=ClusterGroupStatus)
    assert status.exit_code == 0 and (shown.phase, shown.ready, shown.generation) == (
        "Ready",
        "1/1",
        shown.observed_generation,
    )
    assert [(one.pod, one.label, one.phase) for one in shown.members] == [
        (f"{GROUP}-0-master-0", "master", "Running"), (f"{GROUP}-0-slave-0", "slave", "Running")
    ]  # fmt: skip
    assert [(one.master, one.in_sync, one.is_durability_met) for one in shown.shards] == [
        (f"{GROUP}-0-master-0", 1, True)
    ]
    document = msgspec.json.decode(explanation.stdout, type=KubeExplainDocument)
    assert document.source == "status" and "member 2 would take over" in document.lines[0]


async def test_fence_is_in_effect_when_the_command_ends(tmp_path: Path) -> None:
    """The master itself reports that it takes no sends; after --lift it takes them again."""
    simulation = await Simulation(SYNC).run_until_healthy()
    async with person_at(simulation, tmp_path) as person:
        fenced = await person.types("fence", GROUP, "0")
        is_closed = simulation.cluster.shards[0].status(1)["is_draining"]
        status = await person.types("status", GROUP, "--no-exec")
        lifted = await person.types("fence", GROUP, "0", "--lift")
        await simulation.run_until(simulation.is_healthy, "it takes sends again")

    assert fenced.exit_code == lifted.exit_code == 0, fenced.output + lifted.output
    assert "shard 0 is fenced: it takes no sends, and keeps its master" in fenced.stdout and is_closed
    assert status.exit_code == 1 and "Available is False: Fenced" in status.stdout
    assert "annotation: gantry.dev/fence=0" in status.stdout
    assert "shard 0 is not fenced any more" in lifted.stdout
    assert not simulation.cluster.shards[0].status(1)["is_draining"]
    assert simulation.cluster.master(0) == 1


@pytest.mark.verify
async def test_lost_group_is_restored_after_confirmation(tmp_path: Path) -> None:
    """The command shows the operator's question; with --yes the longest log becomes the master."""
    simulation = await lost_without_proof()
    async with person_at(simulation, tmp_path) as person:
        asked = await person.types("restore", GROUP, "0")
        is_begun = bool(simulation.cluster.shards[0].masters())
        simulation.cluster.shards[
            0
        ].checker.acknowledged.clear()  # the person accepts the loss, so nothing counts as lost
        done = await person.types("restore", GROUP, "0", "--yes", "-O", "json")

    assert asked.exit_code == 1 and "the shard is restored from its volumes, and data may be missing" in asked.stderr
    assert not is_begun
    assert done.exit_code == 0, done.output
    assert msgspec.json.decode(done.stdout, type=OrderDocument).master == f"{GROUP}-0-slave-1"
    assert simulation.cluster.master(0) == 3
