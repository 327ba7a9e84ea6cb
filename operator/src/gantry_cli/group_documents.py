"""What `gantry status` tells programs."""

from __future__ import annotations

from dataclasses import dataclass

from gantry_cli.cluster_view import BrokerView, GroupView, TopicView
from gantry_cli.local.look import Look
from gantry_cli.stack import StackRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterDocument:
    """`gantry status`: a cluster."""

    name_server: str
    local_stack: StackRecord | None
    """The `gantry up` here, if it is that cluster."""
    brokers: tuple[BrokerView, ...]
    topics: tuple[TopicView, ...]
    topics_total: int
    groups: tuple[GroupView, ...]
    local_group: Look | None = None
    """The group of `gantry up` here, if it is that cluster, as its supervisor saw it last."""
