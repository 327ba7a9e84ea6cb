"""Namespaces for groups that exist only during a test."""

from __future__ import annotations

from typing import final

from gantry_cluster.api import Object
from gantry_cluster.cluster import Cluster
from gantry_cluster.commands import wait_until
from gantry_cluster.groups import Group
from gantry_cluster.pods import Namespace, is_gone

END_SECONDS_MAX = 300.0
"""How long to wait for the deletion. After an outage of the API server its controllers may need minutes to
reconnect."""
TOPICS_SECONDS_MAX = 60.0
"""The limit for the topics of a spec to exist."""

GROUP = "orders"
"""The name of every group."""


@final
class NamespaceFactory:
    """Creates the namespaces of one test and deletes them at its end."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._made: list[Namespace] = []

    def create(self, name: str) -> Namespace:
        """Create a namespace that enforces the `restricted` pod standard."""
        namespace = Namespace(
            self._cluster, name
        ).create()  # an existing one raises here, so that it is not deleted at the end
        self._made.append(namespace)
        return namespace

    def create_group(self, name: str, spec: Object, *, avoids_all_brokers: bool = False) -> Group:
        """Create a healthy group in a namespace of its own, with the topics of its spec, and a client."""
        return self.start_group(Group(self.create(name), GROUP), spec, avoids_all_brokers=avoids_all_brokers)

    def start_group(self, group: Group, spec: Object, *, avoids_all_brokers: bool = False) -> Group:
        """Create a healthy group in an existing namespace, with the topics of its spec, and a client.

        The client runs on another node than the master of the first shard, or than all brokers.
        """
        group.apply(spec)
        print(f"{group.namespace.name}: applied to healthy in {group.wait_healthy():.1f} s")
        avoided = group.brokers() if avoids_all_brokers else group.masters()[:1]
        group.start_client(group.node_without(*avoided))
        topics = {topic["name"] for topic in spec.get("topics", ())}
        wait_until(
            "the topics of the spec", lambda: topics <= set(group.gantry("topic", "list").split()), TOPICS_SECONDS_MAX
        )
        return group

    def delete_all(self) -> None:
        """Delete all namespaces, and wait until they are gone."""
        made, self._made = self._made, []
        for namespace in made:
            namespace.cluster.kubectl("delete", "namespace", namespace.name, "--wait=false", "--ignore-not-found")
        for namespace in made:
            wait_until(f"the end of {namespace.name}", lambda namespace=namespace: is_gone(namespace), END_SECONDS_MAX)  # type: ignore[misc]
