"""The table of edits: every field of a group's spec, with an edit, its kind of effect, and the values that show it.

A field that is added to the spec is a leaf without a row, and a test fails until it has one. Fields with several kinds
of edits have several rows.
"""

from __future__ import annotations

from typing import Final

from edit_world.row import Row
from edit_world.rows_of_archives import ARCHIVES
from edit_world.rows_of_brokers import BROKER_SETTINGS, DURABILITY, PODS, TOPICS_AND_GROUPS
from edit_world.rows_of_groups import ACCESS, COUNTS, LOSS, VOLUMES
from edit_world.rows_of_proxies import PROXIES

ROWS: Final[tuple[Row, ...]] = (
    *(*COUNTS, *DURABILITY, *VOLUMES, *LOSS),
    *(*ACCESS, *TOPICS_AND_GROUPS, *BROKER_SETTINGS, *PODS, *PROXIES, *ARCHIVES),
)
