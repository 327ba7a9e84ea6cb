"""Declared schemas for tests, and a toy log whose bodies have them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

from spark_kit.toy_log import ToyLog

from gantry_pipelines.archive.schemas.topic_schemas import TopicSchemas
from gantry_spec.pipelines.parts import BodyFormat, SchemaColumn, TopicSchema
from pyspark_rocketmq.model import QueueId


def json_schema(*topics: str, **columns: str) -> TopicSchema:
    """Return a schema of JSON bodies with these columns and types."""
    named = [SchemaColumn(name=name, type=text) for name, text in columns.items()]
    return TopicSchema(topics=list(topics), format=BodyFormat.JSON, columns=named)


def json_schemas(*topics: str, **columns: str) -> TopicSchemas:
    """Return the only schema of an archive, of JSON bodies with these columns and types."""
    return TopicSchemas([json_schema(*topics, **columns)])


@final
@dataclass(frozen=True)
class JsonLog(ToyLog):
    """A toy log with JSON bodies; each body of a number that is a multiple of 7 is not JSON."""

    def row(self, queue: QueueId, offset: int) -> dict[str, Any]:
        """Return the row of one message."""
        body = b"not JSON" if offset % 7 == 0 else json.dumps(order_of(offset)).encode()
        return {**ToyLog.row(self, queue, offset), "body": body, "bodySize": len(body)}


def order_of(offset: int) -> Mapping[str, Any]:
    """Return the object in the body of a message."""
    return {
        "order": offset * 10**10, "amount": f"{offset}.25", "note": None if offset % 2 else f"note {offset}",
        "lines": [{"sku": f"sku-{offset}", "count": offset % 5}],
    }  # fmt: skip
