"""Batches of rows that are edited together, so that a group is not rolled for each of them.

A row joins a batch only if no other row edits its field differently, if no other row shows the same values, if not both
it and another row change the memory limit of the same pods (``SUMMED``), and if both sides of all rows together are
valid specs. Its values must then be the same as if it were edited alone, or its test fails.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from edit_world.row import BASE, Fields, Row, merged, values_at
from edit_world.table import ROWS

from gantry_spec.manifest.errors import ManifestError
from gantry_spec.manifest.group import API_VERSION, KIND
from gantry_spec.manifest.reading import group_of

LEAVES = sorted({row.path for row in ROWS})
"""The paths of all fields that rows edit."""

SHARED = {"broker", *(leaf for leaf in LEAVES if "[]" in leaf)}
"""Fields of which several rows may be in one batch, since they edit different parts of them."""

SUMMED = (
    {"resources", "writeBuffer.medium", "writeBuffer.buffers", "writeBuffer.segmentSize"},
    {"retention.server.cache", "retention.server.resources"},
    {"proxy.resources", "proxy.limits.clients", "proxy.limits.calls"},
)
"""The fields that decide the memory limit of a broker's pod, and of a proxy's: at most one of each in a batch."""


class Batch(NamedTuple):
    """Rows that are edited together."""

    rows: tuple[Row, ...]

    @property
    def before(self) -> dict[str, Any]:
        """The spec before the edit."""
        return _together(self.rows, [row.before for row in self.rows])

    @property
    def after(self) -> dict[str, Any]:
        """The spec after the edit."""
        return _together(self.rows, [row.after for row in self.rows])

    @property
    def name(self) -> str:
        """The name of the batch, by its first row."""
        return f"{self.rows[0]} and {len(self.rows) - 1} more"


def batches(rows: Iterable[Row]) -> list[Batch]:
    """Return the batches of all rows, each row in the first batch that it can join."""
    found: list[Batch] = []
    for row in rows:
        for number, batch in enumerate(found):
            if fits(row, batch):
                found[number] = Batch((*batch.rows, row))
                break
        else:
            found.append(Batch((row,)))
    return found


def fits(row: Row, batch: Batch) -> bool:
    """Return whether a row can join a batch without hiding an effect."""
    if any(row.path == other.path and row.path not in SHARED for other in batch.rows):
        return False
    shown = {one[:2] for other in batch.rows for one in other.shown}
    if shown & {one[:2] for one in row.shown}:
        return False
    if any(row.path in summed and any(one.path in summed for one in batch.rows) for summed in SUMMED):
        return False
    joined = Batch((*batch.rows, row))
    before, after = joined.before, joined.after
    if not (_is_allowed(before) and _is_allowed(after)):
        return False
    for one in joined.rows:
        for whole, side in ((before, one.before), (after, one.after)):
            own = merged(one.prerequisites, side)
            if any(not _has(whole, own, leaf) for leaf in LEAVES):
                return False
    return True


def _has(spec: Fields, own: Fields, leaf: str) -> bool:
    """Return whether all values of ``own`` at a leaf are in the whole spec."""
    whole = values_at(spec, leaf)
    return all(any(_is_in(value, other) for other in whole) for value in values_at(own, leaf))


def _is_in(value: Any, other: Any) -> bool:
    if isinstance(value, dict) and isinstance(other, dict):
        return all(key in other and _is_in(inner, other[key]) for key, inner in value.items())
    return bool(value == other)


def _together(rows: Iterable[Row], sides: Iterable[Fields]) -> dict[str, Any]:
    spec = dict(BASE)
    for row, side in zip(rows, sides, strict=True):
        spec = merged(merged(spec, row.prerequisites), side)
    return spec


def _is_allowed(spec: Fields) -> bool:
    head = {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": "orders"}}
    try:
        group_of(head | {"spec": spec})
    except ManifestError:
        return False
    return True
