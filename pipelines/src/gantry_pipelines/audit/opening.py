"""From a replica to a copy that can be looked at: by its directory if it is seen here, else by its sidecar."""

from __future__ import annotations

from gantry_pipelines.audit.copies import LogCopy
from gantry_pipelines.audit.directory import DirectoryCopy
from gantry_pipelines.audit.errors import CopyUnreachable
from gantry_pipelines.audit.settings import SidecarAccess
from gantry_pipelines.audit.sidecar import SidecarCopy
from pyspark_rocketmq.model import Replica


def open_copy(replica: Replica, access: SidecarAccess) -> LogCopy:
    """Raises ``CopyUnreachable`` for a replica that can only be pulled from: a pull shows messages, and no log."""
    if replica.directory is not None:
        return DirectoryCopy(replica.directory)
    if replica.sidecar is not None:
        return SidecarCopy(replica.sidecar, access)
    raise CopyUnreachable(
        f"{replica.broker}:{replica.number} has no sidecar and no directory seen here; name one, or leave it out"
    )
