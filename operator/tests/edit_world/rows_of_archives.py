"""Rows about the archive of a group, and the server that returns archived messages to its brokers."""

from __future__ import annotations

from typing import Any, Final

from edit_world.making import CONFIG, NO, OBJECT, START_SETTINGS, YES, creating, deleting, edit_row, refused_row
from edit_world.row import Effect, Fields, Row, Shown, spec_part

ARCHIVE: Final = "history"
"""The TopicArchive that the rows name."""

SERVER: Final = "orders-archive-server"
"""The name of all objects of the server."""

ARCHIVED: Final[Fields] = {"retention": {"archive": ARCHIVE}}
OBJECTS: Final = tuple(
    f"{kind}/{SERVER}" for kind in ("ConfigMap", "Deployment", "NetworkPolicy", "Service", "ServiceAccount")
)
DEPLOYMENT: Final = frozenset({f"Deployment/{SERVER}"})
CONTAINER: Final = f"Deployment/{SERVER}:spec.template.spec.containers.0"
ADDRESS: Final = f"{SERVER}.shop.svc:10915"


def server_row(path: str, before: Any, after: Any, changes: frozenset[str], *shown: Shown) -> Row:
    """Return a row of a field of the server, of a group with an archive before and after."""
    path = f"retention.server.{path}"
    return edit_row(Effect.OBJECTS, path, before, after, changes, *shown, prerequisites=ARCHIVED)


ARCHIVES: Final = (
    edit_row(
        Effect.ROLL, "retention.archive", None, ARCHIVE, START_SETTINGS | creating(*OBJECTS),
        Shown(CONFIG, "archiveAddress", "", ADDRESS),
        Shown(OBJECT, f"Service/{SERVER}", NO, YES),
    ),
    Row(
        path="retention.archive",
        title="retention.archive: none any more",
        before=spec_part("retention.archive", ARCHIVE),
        after=spec_part("retention.archive", None),
        effect=Effect.ROLL,
        changes=START_SETTINGS | deleting(*OBJECTS),
        shown=(Shown(CONFIG, "archiveAddress", ADDRESS, ""), *(Shown(OBJECT, name, YES, NO) for name in OBJECTS)),
    ),
    server_row(
        "replicas", 1, 2, DEPLOYMENT | creating(f"PodDisruptionBudget/{SERVER}"),
        Shown(OBJECT, f"Deployment/{SERVER}:spec.replicas", "1", "2"),
        Shown(OBJECT, f"PodDisruptionBudget/{SERVER}", NO, YES),
    ),
    server_row(
        "cache", "128Mi", "256Mi", DEPLOYMENT | {f"ConfigMap/{SERVER}"},
        Shown(OBJECT, f"{CONTAINER}.resources.limits.memory", "1Gi", "1280Mi"),
    ),
    refused_row("retention.server.cache", "128Mi", "1Ki", "retention.server.cache must be at least 1Mi",
                "retention.server.cache: too small"),
    server_row(
        "resources", {}, {"requests": {"cpu": "2"}}, DEPLOYMENT,
        Shown(OBJECT, f"{CONTAINER}.resources.requests.cpu", "100m", "2"),
    ),
)  # fmt: skip
