"""The typed columns of each topic as the archive records them: in `_manifest/schemas.json`, which only grows.

A column is recorded before the manifest has a file with it, and never removed or changed. So the columns of a table
follow from the archive alone, in the same order after any number of changes. Files that were written before a column
was added do not have it, and readers find nulls there.
"""

import json
from collections.abc import Mapping
from typing import Final

from gantry_pipelines.archive.errors import ManifestBroken, SchemaConflict
from gantry_pipelines.archive.layout import SCHEMAS
from gantry_pipelines.archive.schemas.column_types import DeclaredColumn
from gantry_pipelines.archive.schemas.decoding import ERROR_COLUMN
from gantry_pipelines.archive.storage import Storage

VERSION: Final = 1
"""The version of the document."""

RecordedSchemas = Mapping[str, tuple[DeclaredColumn, ...]]
"""The typed columns by topic, in the order in which they were added. Topics without typed columns are left out."""


def read_recorded_schemas(storage: Storage) -> RecordedSchemas:
    """Read the typed columns of all topics of an archive. Raises ManifestBroken."""
    try:
        document = json.loads(storage.read(SCHEMAS))
        if document["version"] != VERSION:
            raise ManifestBroken(f"{SCHEMAS} in {storage} has version {document['version']}, expected {VERSION}")
        return {
            topic: tuple(DeclaredColumn(one["name"], one["type"]) for one in columns)
            for topic, columns in document["topics"].items()
        }
    except FileNotFoundError:
        return {}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ManifestBroken(f"{SCHEMAS} in {storage} is damaged: {error!r}") from error


def write_recorded_schemas(storage: Storage, schemas: RecordedSchemas) -> None:
    """Write the typed columns of all topics, atomically and durably. Only the writer may call it."""
    topics = {
        topic: [{"name": one.name, "type": one.type} for one in columns] for topic, columns in sorted(schemas.items())
    }
    storage.write(SCHEMAS, json.dumps({"version": VERSION, "topics": topics}, indent=1).encode() + b"\n")


def add_columns(
    topic: str, recorded: tuple[DeclaredColumn, ...], declared: tuple[DeclaredColumn, ...]
) -> tuple[DeclaredColumn, ...]:
    """Return the recorded columns of a topic with the new ones that are declared.

    Raises SchemaConflict if a recorded column is not declared any more, or has another type now.
    """
    types = {one.name: one.type for one in declared}
    names = {one.name.lower(): one.name for one in declared}
    for one in sorted(recorded, key=lambda one: one.name == ERROR_COLUMN):  # an error names a declared column first
        other = names.get(one.name.lower(), one.name)
        if other != one.name:
            raise SchemaConflict(
                f"topic {topic!r}: the column {one.name!r} of the archive cannot be renamed to {other!r}: declare it"
                f" as {one.name!r}"
            )
        if one.name not in types:
            raise SchemaConflict(
                f"topic {topic!r}: the archive has the column {one.name!r} {one.type}, which cannot be removed:"
                " declare it again in schemas, or use another destination"
            )
        if types[one.name] != one.type:
            raise SchemaConflict(
                f"topic {topic!r}: the column {one.name!r} is {one.type} in the archive and cannot become"
                f" {types[one.name]}: declare it as {one.type}, and add a column of another name"
            )
    known = {one.name for one in recorded}
    return (*recorded, *(one for one in declared if one.name not in known))
