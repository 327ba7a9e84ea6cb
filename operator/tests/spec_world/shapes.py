"""The kinds of groups in histories."""

from __future__ import annotations

from typing import NamedTuple

from gantry_spec.manifest.group import Spec
from gantry_spec.manifest.parts import Failover, FailoverMode, Replication, ReplicationMode
from gantry_spec.manifest.quantities import Duration, Size


class Shape(NamedTuple):
    """The kind of the group in a history."""

    slaves: int
    acks_needed: int
    """How many slaves must acknowledge a message; 0 for an asynchronous group."""

    loss_bytes_max: int = 0
    """The loss that an automatic failover of an asynchronous group may announce."""

    mode: FailoverMode = FailoverMode.AUTOMATIC

    @property
    def spec(self) -> Spec:
        """The spec of such a group."""
        is_sync = self.acks_needed > 0
        return Spec(
            slaves=self.slaves,
            replication=Replication(
                mode=ReplicationMode.SYNC if is_sync else ReplicationMode.ASYNC,
                in_sync_replicas=self.acks_needed + 1 if is_sync else None,
            ),
            failover=Failover(mode=self.mode, max_data_loss_bytes=Size(self.loss_bytes_max), after=Duration(2_000)),
        )
