"""The table: every field that a group's spec has, an edit of it, how that takes effect, and what shows it.

A field that is added to the spec is a leaf without a row, and a test fails until somebody has thought about it. Fields
with more than one way to be edited have more than one row.
"""

from __future__ import annotations

from typing import Final

from edit_world.row import Row
from edit_world.rows_of_brokers import LINES, PODS, PROMISES, TABLES_KEPT
from edit_world.rows_of_groups import ACCESS, COUNTS, LOSS, VOLUMES

ROWS: Final[tuple[Row, ...]] = (
    *(*COUNTS, *PROMISES, *VOLUMES, *LOSS),
    *(*ACCESS, *TABLES_KEPT, *LINES, *PODS),
)
