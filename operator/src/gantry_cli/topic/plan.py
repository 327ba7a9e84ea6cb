"""The dry run of `gantry topic create`: the settings of a topic on each broker, before and after."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from rich.console import RenderableType

from gantry_cli.account import client_settings
from gantry_cli.output import table
from gantry_cli.topic.documents import TopicChangeDocument, TopicPlanDocument
from gantry_client import Admin
from gantry_client.setting_changes import ChangeRow, topic_rows
from gantry_wire.commands.admin import TopicConfig

ORDERED: Final = {True: "yes", False: "no"}


async def plan_topic(
    name_server: str, wanted: TopicConfig, attributes: Mapping[str, str | None], cluster: str | None
) -> TopicPlanDocument:
    """Return what a creation or update with these settings would change on each master."""
    rows: list[ChangeRow] = []
    async with Admin(name_server, client_settings=client_settings()) as admin:
        for broker in await admin.brokers.masters(cluster):
            before = (await admin.brokers.topic_table(broker.address)).get(wanted.topic_name)
            rows += topic_rows(broker.name, before, wanted)
            if before is None or before.order != wanted.order:
                present_order = None if before is None else ORDERED[before.order]
                rows.append(ChangeRow(broker.name, "ordered", present_order, ORDERED[wanted.order], ""))
            present: dict[str, str] = {} if before is None else before.attributes
            rows += [
                ChangeRow(broker.name, name, present.get(name), value, "")
                for name, value in attributes.items()
                if present.get(name) != value
            ]
    changes = [TopicChangeDocument(**row._asdict()) for row in rows]
    return TopicPlanDocument(topic=wanted.topic_name, changes=changes)


def render_plan(plan: TopicPlanDocument) -> Iterator[RenderableType]:
    """Render the changes as a table."""
    if not plan.changes:
        yield f'Topic "{plan.topic}": nothing would change'
        return
    columns = ("broker", "setting", "before", "after", "effect")
    rows = ((one.place, one.setting, one.before or "-", one.after or "removed", one.effect) for one in plan.changes)
    yield table(f'Topic "{plan.topic}" would be changed', columns, rows)
