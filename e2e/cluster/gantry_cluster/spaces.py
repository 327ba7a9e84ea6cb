"""Namespaces for groups that come and go with a test."""

from __future__ import annotations

from typing import final

from gantry_cluster.api import Object
from gantry_cluster.cluster import Cluster
from gantry_cluster.commands import wait_until
from gantry_cluster.groups import Group
from gantry_cluster.pods import Namespace, is_gone

END_SECONDS_MAX = 300.0
"""After an API server was away its controllers find back to it in their own time, up to minutes."""
TOPICS_SECONDS_MAX = 60.0
GROUP = "orders"


@final
class Spaces:
    """Of one test; ended with it."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._made: list[Namespace] = []

    def make(self, name: str) -> Namespace:
        """A new one, which demands the `restricted` pod standard."""
        space = Namespace(self._cluster, name).make()  # one that was there already is not ours to end
        self._made.append(space)
        return space

    def group(self, name: str, spec: Object, *, apart_from_all: bool = False) -> Group:
        """A group in a namespace of its own, healthy, with the topics of its spec, and a client."""
        return self.begin(Group(self.make(name), GROUP), spec, apart_from_all=apart_from_all)

    def begin(self, group: Group, spec: Object, *, apart_from_all: bool = False) -> Group:
        """The same, where something had to be in the namespace before.

        The client is on another node than masters, or than all brokers.
        """
        group.apply(spec)
        print(f"{group.space.name}: applied to healthy in {group.wait_healthy():.1f} s")
        avoided = group.brokers() if apart_from_all else group.masters()[:1]
        group.start_client(group.node_without(*avoided))
        topics = {topic["name"] for topic in spec.get("topics", ())}
        wait_until(
            "the topics of the spec", lambda: topics <= set(group.gantry("topic", "list").split()), TOPICS_SECONDS_MAX
        )
        return group

    def end(self) -> None:
        """Everything in them goes, and is gone when this returns."""
        made, self._made = self._made, []
        for space in made:
            space.cluster.kubectl("delete", "namespace", space.name, "--wait=false", "--ignore-not-found")
        for space in made:
            wait_until(f"the end of {space.name}", lambda space=space: is_gone(space), END_SECONDS_MAX)  # type: ignore[misc]
