"""A manifest archives a group's topics: on schedule, after a kill of its pod, and with executors."""

from __future__ import annotations

import pytest
from gantry_cluster.capabilities import Capability
from gantry_cluster.namespaces import NamespaceFactory
from gantry_cluster.pipelines import Pipeline
from gantry_cluster.specs import SMALL, TOPIC

pytestmark = [
    pytest.mark.slow,
    pytest.mark.cluster_can(Capability.RUN_GROUPS),
    pytest.mark.cluster_can(Capability.LOAD_IMAGES),
]

RUN_SECONDS_MAX = 300.0
"""The limit of a run: it starts within a minute, and JVM and Spark are slow while twenty pods share two processors."""
CLAIM = "archive"
"""The name of the volume claim that holds the archive."""

ARCHIVE = {
    "brokerGroups": ["orders"],
    "topics": {"include": [TOPIC]},
    "destination": {"pvc": {"claimName": CLAIM}},
    "engine": {"driver": {"heap": "512Mi"}},
}
SMALL_EXECUTORS = {"instances": 2, "heap": "512Mi", "memoryOverhead": "512Mi"}


def messages(label: str, count: int = 60) -> list[str]:
    """Return different bodies with this label."""
    return [f"{label} {number}" for number in range(count)]


@pytest.mark.cluster_can(Capability.LOAD_IMAGES)
def test_scheduled_archive_survives_a_kill_of_its_pod(namespaces: NamespaceFactory, pipelines_image: str) -> None:
    """Every message is in plain files on the claim, once: those from before the kill, and those that came after it."""
    group = namespaces.create_group("archived", SMALL)
    archive = Pipeline(group.namespace, "TopicArchive", "all", pipelines_image)
    archive.claim(CLAIM)
    archive.apply(ARCHIVE | {"schedule": "* * * * *"})
    first = messages("first")
    group.gantry("produce", TOPIC, *first)

    archive.wait("a driver", archive.running_pods, RUN_SECONDS_MAX)
    [driver, *_] = archive.running_pods()
    archive.kill(driver)
    second = messages("second")
    group.gantry("produce", TOPIC, *second)

    archive.start_reader(CLAIM)
    wanted = sorted(first + second)
    archive.wait("all of it in files", lambda: archive.read_archived(TOPIC) == wanted, 2 * RUN_SECONDS_MAX)
    end = archive.status().get("lastRun", {}).get("end", "")
    archive.wait("another run", lambda: archive.status().get("lastRun", {}).get("end", "") > end, RUN_SECONDS_MAX)
    assert archive.read_archived(TOPIC) == wanted, "another run has changed the archive"
    assert archive.condition("Ready") == ("True", "Scheduled")
    assert archive.condition("DataLoss") == ("False", "NoneObserved")
    assert archive.status()["lag"]["rows"] == 0
    print(f"RESULT verify: {archive.verify().strip()}")


@pytest.mark.cluster_can(Capability.LOAD_IMAGES)
def test_killed_executor_is_replaced(namespaces: NamespaceFactory, pipelines_image: str) -> None:
    """Two executors work for a driver; a killed one is replaced, and no row is missing or duplicated."""
    group = namespaces.create_group("spread", SMALL)
    archive = Pipeline(group.namespace, "TopicArchive", "all", pipelines_image)
    archive.claim(CLAIM)
    spec = ARCHIVE | {
        "trigger": "5s",
        "engine": {
            "mode": "kubernetes",
            "driver": {"heap": "512Mi"},
            "executor": SMALL_EXECUTORS,
            "sparkConf": {"spark.kubernetes.executor.request.cores": "200m"},  # the claim binds all of them to one node
        },
    }
    archive.apply(spec)
    first = messages("first")
    group.gantry("produce", TOPIC, *first)

    archive.wait("two executors", lambda: len(archive.running_pods("executor")) == 2, RUN_SECONDS_MAX)
    [driver] = archive.running_pods()
    for pod in archive.pods("executor"):
        assert [one["name"] for one in pod["metadata"]["ownerReferences"]] == [driver]
    archive.start_reader(CLAIM)
    archive.wait("the first messages", lambda: archive.read_archived(TOPIC) == sorted(first), RUN_SECONDS_MAX)

    [victim, kept] = archive.running_pods("executor")
    archive.kill(victim)
    second = messages("second")
    group.gantry("produce", TOPIC, *second)
    wanted = sorted(first + second)
    archive.wait("all of it in files", lambda: archive.read_archived(TOPIC) == wanted, RUN_SECONDS_MAX)
    archive.wait("another executor", lambda: len(archive.running_pods("executor")) == 2, RUN_SECONDS_MAX)
    assert kept in archive.running_pods("executor") and victim not in archive.running_pods("executor")
    assert archive.condition("Ready") == ("True", "Running")

    archive.apply(spec | {"suspend": True})
    archive.wait("no pod", lambda: not archive.pods() and not archive.pods("executor"), RUN_SECONDS_MAX)


@pytest.mark.cluster_can(Capability.LOAD_IMAGES)
def test_two_archives_cannot_share_a_folder(namespaces: NamespaceFactory, pipelines_image: str) -> None:
    """The younger one is refused, with a reason, and has no pods."""
    group = namespaces.create_group("shared", SMALL)
    older = Pipeline(group.namespace, "TopicArchive", "older", pipelines_image)
    older.claim(CLAIM)
    older.apply(ARCHIVE | {"schedule": "0 0 1 1 *"})
    older.wait("a round of the operator", lambda: older.condition("Ready") == ("True", "Scheduled"), RUN_SECONDS_MAX)
    younger = Pipeline(group.namespace, "TopicArchive", "younger", pipelines_image)
    younger.apply(ARCHIVE | {"destination": {"pvc": {"claimName": CLAIM, "path": "inside"}}})

    younger.wait("a refusal", lambda: younger.condition("Ready") == ("False", "SharedDestination"), RUN_SECONDS_MAX)
    assert younger.pods() == []
