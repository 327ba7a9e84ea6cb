"""A group with the name of an earlier one: objects of the earlier group are neither trusted nor in the way.

A twin repeats a test without the rule that it checks, and finds the fault: so the test can fail.
"""

from __future__ import annotations

import pytest
from operator_world.cluster import NAMESPACE
from operator_world.simulation import SYNC, Simulation, operator_of
from test_operator_acting import Bench, group

from gantry_operator.api import CLAIMS, EVENTS, PODS, SECRETS, Object, annotations_of, labels_of, uid_of
from gantry_operator.errors import Forbidden, Unavailable
from gantry_operator.objects import secret
from gantry_operator.tokens import GroupSecrets

TOKEN = "t" * 64


async def test_loop_ends_with_its_group() -> None:
    """A group was recreated between two rounds: the state of the first loop does not apply to the second group."""
    simulation = await Simulation(SYNC).run_until_healthy()
    first = uid_of(simulation.cluster.group)
    simulation.cluster.delete()
    simulation.cluster.recreate(SYNC)
    before = len(simulation.cluster.api.calls)

    assert uid_of(simulation.cluster.group) != first
    assert await simulation.loop.reconcile_once() is None
    assert simulation.cluster.api.calls[before:] == []

    simulation.loop = operator_of(simulation.cluster)
    await simulation.run_until(simulation.is_healthy, "another loop reconciles it")


# -- the Secret --------------------------------------------------------------------------------------------------------


class Deleted:
    """A group that was deleted and recreated, while the Secret of the first group still exists."""

    def __init__(self, *, is_begun: bool) -> None:
        self.bench = bench = Bench()
        self.keeper = GroupSecrets(bench.objects, bench.api, bench.clock)
        self.old = bench.api.put(secret(group(), "o" * 64))
        begun = {"containerStatuses": [{"name": "broker", "containerID": "containerd://1", "state": {"running": {}}}]}
        status = begun if is_begun else {"phase": "Pending"}
        bench.put(PODS, "g-0-master-0", spec={"nodeName": "n"}, status=status)

    async def pass_by(self, seconds: int, *, is_denied: bool = False) -> None:
        """Let time pass, with one round a second."""
        for _ in range(seconds):
            self.bench.clock.ms += 1_000
            await self.keeper.ensure(lambda: [secret(group(), TOKEN)], is_denied=is_denied)

    def end(self) -> None:
        """Let Kubernetes delete the first Secret."""
        [place] = [one for one in self.bench.api.objects if one.kind == SECRETS]
        self.bench.api.remove(place)

    @property
    def there(self) -> list[Object]:
        return self.bench.api.of_kind(SECRETS)


async def test_pod_that_waits_for_its_secret_gets_it() -> None:
    """The Secret is created within seconds after the old one was deleted, without more calls than needed."""
    scene = Deleted(is_begun=False)
    await scene.pass_by(1)
    assert scene.there == [scene.old]
    scene.end()

    await scene.pass_by(10)

    [made] = scene.there
    assert made["data"] == secret(group(), TOKEN)["data"]
    assert len(scene.bench.api.calls) == 2, (
        "expected one call that finds the old Secret, and one that creates the new one"
    )


async def test_secret_is_not_requested_when_all_brokers_run() -> None:
    """The twin: at rest there is no call for a minute; a sidecar that rejects the token is a reason for one."""
    scene = Deleted(is_begun=True)
    await scene.pass_by(1)
    scene.end()

    await scene.pass_by(60)
    assert scene.there == []

    await scene.pass_by(10, is_denied=True)
    assert len(scene.there) == 1


async def test_failed_creation_is_repeated_within_seconds() -> None:
    """No pod says that the Secret is missing, but the API server has not said either that it exists."""
    scene = Deleted(is_begun=True)
    scene.end()
    scene.bench.api.fault_of = lambda verb, ref: Unavailable(str(ref), "injected", 500)
    with pytest.raises(Unavailable):
        await scene.pass_by(1)
    scene.bench.api.fault_of = lambda verb, ref: None
    await scene.pass_by(9)
    assert scene.there == []

    await scene.pass_by(1)
    assert len(scene.there) == 1


# -- requests ----------------------------------------------------------------------------------------------------------


async def test_request_to_replace_the_disk_of_a_running_broker_is_removed() -> None:
    """It would give up the next disk that the member loses. Requests for other members stay."""
    simulation = Simulation(SYNC)
    await simulation.run_until_healthy()

    simulation.cluster.annotate(replace_disk="0/2,5/1")

    def left() -> str:
        return str(annotations_of(simulation.cluster.group).get("gantry.dev/replace-disk"))

    await simulation.run_until(lambda: left() == "5/1", "only the request for a member that does not exist is left")
    await simulation.step()
    [event] = [one for one in simulation.cluster.api.of_kind(EVENTS) if one["reason"] == "RequestDropped"]
    assert "disk of member 2" in event["message"]


# -- claims ------------------------------------------------------------------------------------------------------------


async def brought_back(simulation: Simulation) -> None:
    """Run a group whose claims a user has created for its volumes: with the right names, and without labels."""
    await simulation.run_until_healthy()
    simulation.cluster.delete()
    for claim in simulation.cluster.api.of_kind(CLAIMS):
        simulation.cluster.api.put(claim | {"metadata": claim["metadata"] | {"labels": {}}})
    simulation.cluster.recreate(SYNC)
    simulation.loop = operator_of(simulation.cluster)
    await simulation.run_until(simulation.is_healthy, "it is back")


@pytest.mark.verify
async def test_claims_of_users_are_labelled_and_resized() -> None:
    """They get the labels of the StatefulSet's own claims, and so they are watched, and grow."""
    simulation = Simulation(SYNC)
    labels = {"gantry.dev/group": "g", "gantry.dev/shard": "0", "app.kubernetes.io/component": "broker"}

    await brought_back(simulation)

    claims = simulation.cluster.api.of_kind(CLAIMS)
    assert all(labels.items() <= labels_of(claim).items() for claim in claims)
    assert {labels_of(claim)["gantry.dev/home"] for claim in claims} == {"g-0-master", "g-0-slave"}
    simulation.cluster.edit(storage={"size": "40Gi"})
    await simulation.run_until(lambda: sizes(simulation) == {str(40 << 30)}, "they grow")


async def test_volume_that_cannot_grow_is_named_in_the_status() -> None:
    """The reason is that of the API server, and goes away when the volumes have grown."""
    simulation = await Simulation(SYNC).run_until_healthy()
    reason = "only dynamically provisioned pvc can be resized"
    simulation.cluster.api.fault_of = lambda verb, ref: (
        Forbidden(str(ref), reason, 403) if (verb, ref.kind) == ("patch", CLAIMS) else None
    )
    simulation.cluster.edit(storage={"size": "40Gi"})
    await simulation.run_until(lambda: simulation.condition("Applied")[0] == "False", "the status says it")

    message = simulation.condition("Applied")[2]
    assert "data-g-0-master-0 cannot grow" in message
    assert reason in message
    simulation.cluster.api.fault_of = lambda verb, ref: None
    await simulation.run_until(lambda: sizes(simulation) == {str(40 << 30)}, "they grow")
    await simulation.run_until(lambda: simulation.condition("Applied") == ("", "", ""), "the status is current")


async def test_unlabelled_claim_is_not_resized(monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin: without labels the volume keeps its size, without any error."""

    async def nothing(_: object) -> None:
        return

    monkeypatch.setattr("gantry_operator.execute.applier.Applier.adopt_claims", nothing)
    simulation = Simulation(SYNC)
    await brought_back(simulation)

    simulation.cluster.edit(storage={"size": "40Gi"})
    for _ in range(20):
        await simulation.step()

    assert sizes(simulation) != {str(40 << 30)}
    assert simulation.cluster.api.found(CLAIMS, NAMESPACE, "data-g-0-master-0") is not None


def sizes(simulation: Simulation) -> set[str]:
    """Return the sizes that all claims request."""
    return {str(one["spec"]["resources"]["requests"]["storage"]) for one in simulation.cluster.api.of_kind(CLAIMS)}
