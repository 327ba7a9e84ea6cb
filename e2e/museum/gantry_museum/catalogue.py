"""The exhibits, in the order of the page."""

from __future__ import annotations

from typing import Final

from gantry_museum.exhibit import Exhibit
from gantry_museum.scenes import (
    acl_pop,
    failed_flush,
    late_timers,
    lost_topics,
    name_servers,
    operator_claims,
    operator_edits,
    operator_rolls,
    power_loss,
    slave_backlog,
    wrong_election,
)

ALL: Final[tuple[Exhibit, ...]] = (
    failed_flush.EXHIBIT,
    power_loss.EXHIBIT,
    late_timers.EXHIBIT,
    wrong_election.EXHIBIT,
    wrong_election.INACTIVE,
    slave_backlog.EXHIBIT,
    lost_topics.EXHIBIT,
    acl_pop.EXHIBIT,
    name_servers.EXHIBIT,
    operator_claims.ROLL,
    operator_edits.EXHIBIT,
    operator_rolls.EXHIBIT,
    operator_claims.HIBERNATION,
)

BY_NAME: Final = {one.name: one for one in ALL}
