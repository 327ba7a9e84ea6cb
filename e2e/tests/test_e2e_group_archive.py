"""Consumers of a group in a cluster read messages that only its archive has, while servers and brokers are replaced."""

from __future__ import annotations

import json
import secrets
from typing import Any, Final

import pytest
from gantry_cluster.api import Object
from gantry_cluster.capabilities import Capability
from gantry_cluster.cluster import condition_status
from gantry_cluster.commands import wait_until
from gantry_cluster.errors import DeadlineExceeded
from gantry_cluster.groups import CLIENT, Group
from gantry_cluster.namespaces import NamespaceFactory
from gantry_cluster.pipelines import Pipeline
from gantry_cluster.specs import SMALL, TOPIC

pytestmark = [pytest.mark.slow, pytest.mark.cluster_can(Capability.RUN_GROUPS)]

RUN_SECONDS_MAX: Final = 300.0
DELETION_SECONDS_MAX: Final = 180.0
"""The limit for the deletion of what is archived: the disk is checked every second, and a file is deleted a second."""

KEEPS_NOTHING_SECONDS: Final = 30.0
"""How long a broker is watched that must not delete what is not archived."""

ARCHIVE: Final = "history"
CLAIM: Final = "archive"
SPEC: Final[Object] = {
    "brokerGroups": ["orders"],
    "topics": {"include": [TOPIC]},
    "destination": {"pvc": {"claimName": CLAIM}},
    "engine": {"driver": {"heap": "512Mi"}},
    "schedule": "* * * * *",
}
GREEDY: Final[Object] = SMALL | {
    "writeBuffer": {"segmentSize": "1Mi"},
    "broker": {
        "diskMaxUsedSpaceRatio": "10",
        "diskSpaceCleanForciblyRatio": "10",
        "diskSpaceWarningLevelRatio": "98",
        "deleteUnconsumed": "true",
        "cleanResourceInterval": "500",
    },
}
"""A group that deletes as much of its log as it may: the disk of its machine counts as full."""

NAMED: Final[Object] = GREEDY | {"retention": {"archive": ARCHIVE}}
FILL: Final = 250
"""How many messages of some 30 KiB are sent, so that the log of each member has several files of 1 MiB."""

LABEL: Final = 20
"""The characters of a message by which it is recognized."""

CONSUME: Final = f"""
import json, subprocess, sys
done = subprocess.run(["gantry", "consume", *%s], stdout=subprocess.PIPE, text=True, check=True)
print(json.dumps([line[:{LABEL}].strip() for line in done.stdout.splitlines()]))
"""
"""Reads messages in the client's pod, and prints the labels of all as JSON."""


LOG_BEGIN: Final = """
import os
print(min(int(name) for name in os.listdir("/var/lib/gantry/store/commitlog") if name.isdigit()))
"""
"""Prints the offset at which the first file of a broker's log begins."""


def is_archive_ready(group: Group) -> bool:
    """Return whether the operator reports for the current generation that brokers can read the archive."""
    found = group.read()
    is_current = found.get("status", {}).get("observedGeneration") == found["metadata"]["generation"]
    return is_current and condition_status(found, "ArchiveReady") == "True"


def log_begin(group: Group, pod: str) -> int:
    """Return the offset at which the first file of a broker's log begins."""
    return int(group.namespace.run_python(pod, LOG_BEGIN, container="broker"))


def servers(group: Group) -> list[str]:
    """List the pods of the archive server that exist."""
    selector = f"gantry.dev%2Fgroup%3D{group.name}%2Capp.kubernetes.io%2Fcomponent%3Darchive-server"
    found = group.namespace.cluster.api.items(f"{group.namespace.path('pods')}?labelSelector={selector}")
    return sorted(pod["metadata"]["name"] for pod in found)


def read_all(group: Group, *words: str) -> list[str]:
    """Return the label of each message that the topic has, in the log or in the archive."""
    arguments = json.dumps([TOPIC, "--namesrv", group.name_server, *words])
    found: list[str] = json.loads(group.namespace.run_python(CLIENT, CONSUME % arguments))
    return found


def fill(group: Group) -> None:
    """Send messages that no compression makes much smaller."""
    group.gantry("produce", TOPIC, f"{'filling':<{LABEL}}{secrets.token_hex(30_000)}", "--count", str(FILL))


def start(namespaces: NamespaceFactory, name: str, image: str, spec: Object) -> tuple[Group, Pipeline]:
    """Create a group and its archive, with a claim that one node mounts."""
    group = namespaces.create_group(name, spec)
    archive = Pipeline(group.namespace, "TopicArchive", ARCHIVE, image)
    archive.claim(CLAIM)
    return group, archive


def wait_deleted(group: Group) -> None:
    """Wait until no broker has the beginning of its log any more."""
    wait_until(
        "logs without their beginnings",
        lambda: all(log_begin(group, pod) > 0 for pod in group.brokers()),
        RUN_SECONDS_MAX + DELETION_SECONDS_MAX,
    )


@pytest.mark.cluster_can(Capability.LOAD_IMAGES)
def test_consumers_read_what_only_the_archive_has(namespaces: NamespaceFactory, pipelines_image: str) -> None:
    """From the first message on, in the log and before it: with a new server, a new master, and a new consumer."""
    group, archive = start(namespaces, "archive-read", pipelines_image, NAMED)
    group.gantry("produce", TOPIC, "the first one")
    fill(group)
    with pytest.raises(DeadlineExceeded):
        wait_until("a deletion before the archive exists", lambda: is_any_deleted(group), KEEPS_NOTHING_SECONDS)

    archive.apply(SPEC)
    archive.wait("a server that can read", lambda: is_archive_ready(group), RUN_SECONDS_MAX)
    wait_deleted(group)
    group.gantry("produce", TOPIC, "the last one")
    found = read_all(group)
    print(f"RESULT {len(found)} messages, log begins at {[log_begin(group, pod) for pod in group.brokers()]}")
    assert sorted(set(found)) == ["filling", "the first one", "the last one"]
    assert len(found) == FILL + 2

    [server] = servers(group)
    group.namespace.cluster.kubectl("delete", "pod", server, f"--namespace={group.namespace.name}")
    archive.wait("another server", lambda: server not in servers(group) and is_archive_ready(group), RUN_SECONDS_MAX)
    assert sorted(read_all(group)) == sorted(found)

    [master] = group.masters()
    group.replace_pod(master)
    group.wait_healthy()
    assert sorted(read_all(group, "--group", "newcomers", "--from", "earliest")) == sorted(found)


def is_any_deleted(group: Group) -> bool:
    """Return whether a broker has lost the beginning of its log."""
    return any(log_begin(group, pod) > 0 for pod in group.brokers())


def test_group_without_an_archive_deletes_what_is_nowhere_else(namespaces: NamespaceFactory) -> None:
    """The twin: the same group that names no archive deletes at once, and its consumers miss the first message."""
    group = namespaces.create_group("archive-unnamed", GREEDY)
    group.gantry("produce", TOPIC, "the first one")
    fill(group)
    wait_deleted(group)

    assert "the first one" not in read_all(group)


@pytest.mark.cluster_can(Capability.LOAD_IMAGES)
def test_archive_that_is_named_later_is_read_after_a_roll(namespaces: NamespaceFactory, pipelines_image: str) -> None:
    """The brokers are replaced one after another, and the objects are deleted when the archive is removed again."""
    group, archive = start(namespaces, "archive-later", pipelines_image, SMALL)
    archive.apply(SPEC)
    before = {pod: group.uid_of(pod) for pod in group.brokers()}
    group.apply(SMALL | {"retention": {"archive": ARCHIVE}})
    wait_until("new pods", lambda: not_any(before, group), RUN_SECONDS_MAX)
    group.wait_healthy(RUN_SECONDS_MAX)
    archive.wait("a server that can read", lambda: is_archive_ready(group), RUN_SECONDS_MAX)

    named = {pod: group.uid_of(pod) for pod in group.brokers()}
    group.apply(SMALL)
    wait_until("pods without an archive", lambda: not_any(named, group), RUN_SECONDS_MAX)
    group.wait_healthy(RUN_SECONDS_MAX)
    wait_until("the end of the server", lambda: not servers(group), RUN_SECONDS_MAX)


def not_any(before: dict[str, Any], group: Group) -> bool:
    """Return whether no pod of before exists any more."""
    return not set(before.values()) & {group.uid_of(pod) for pod in group.brokers()}
