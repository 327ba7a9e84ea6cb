"""Sending messages again over HTTP, with real brokers: the preview is what is sent, and each message has an outcome."""

from __future__ import annotations

import asyncio
import csv
import io
import json
from collections.abc import Iterator
from typing import Any

import pytest
from admin_scene import READ_TOKEN, TOKEN, SidecarChild, sidecar_process, wait_for, write_token_files
from console_scene import Group, console_group, store_dead_letters

from gantry_admin.resend_documents import outcome_csv
from gantry_admin.resender import ResendJob
from gantry_client import Admin, Message
from gantry_client.resend_plan import (
    OutcomeKind,
    PlannedMessage,
    Position,
    ResendOutcome,
    ResendPlan,
    ResendRequest,
    Verdict,
)
from gantry_client.sync import Producer

EU, US = {"region": "eu"}, {"region": "us"}
PLACE = ("broker_name", "queue_id", "offset", "message_id", "target", "bytes")


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Group]:
    """One broker with its sidecar, dead letters of two regions, and a second topic."""
    with console_group(tmp_path_factory.mktemp("resends"), members=1, conf={"brokerRole": "ASYNC_MASTER"}) as started:
        store_dead_letters(started.name_server, "billing", [b"eu-1", b"eu-2"], **EU)

        async def create() -> None:
            async with Admin(started.name_server) as admin:
                await admin.topics.create("checks", queues=1)

        asyncio.run(create())
        yield started


@pytest.fixture(scope="module")
def sidecar(group: Group, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SidecarChild]:
    """A second sidecar of the same broker, with a token that may change and one that may read."""
    tokens = write_token_files(tmp_path_factory.mktemp("tokens"))
    with sidecar_process(group.brokers[0].store, *tokens) as started:
        started.wait_ready()
        yield started


def preview(sidecar: SidecarChild, token: str = TOKEN, **body: object) -> dict[str, Any]:
    """Return a preview, which must succeed."""
    answer = sidecar.post("/v1/resend-preview", body, token=token)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def complete(sidecar: SidecarChild, started: dict[str, Any]) -> dict[str, Any]:
    """Return the job when it has ended."""
    path = f"/v1/resends/{started['id']}"
    wait_for(lambda: sidecar.get(path, token=READ_TOKEN).json()["state"] != "running", "the resend ends")
    found: dict[str, Any] = sidecar.get(path, token=READ_TOKEN).json()
    return found


def places(rows: list[dict[str, Any]]) -> list[list[object]]:
    return [[row[name] for name in PLACE] for row in rows]


def test_outcomes_are_what_the_preview_listed(sidecar: SidecarChild) -> None:
    """Each message of the preview has one outcome, in the same order; a second preview shows the copies."""
    chosen = {"group": "billing", "sql": "region = 'eu'", "to_topic": "checks"}
    planned = preview(sidecar, **chosen)
    started = sidecar.post("/v1/resends", {**chosen, "digest": planned["digest"]}, token=TOKEN)
    job = complete(sidecar, started.json())

    assert (planned["send_count"], planned["send_bytes"], planned["remaining"]) == (2, 8, 0)
    assert places(planned["messages"]) == places(job["outcomes"])
    assert (job["state"], job["counts"]) == ("complete", {"sent": 2, "failed": 0, "unknown": 0, "skipped": 0})
    assert preview(sidecar, group="billing", sql="region = 'us'")["messages"] == []
    [listed] = sidecar.get("/v1/resends", token=READ_TOKEN).json()["resends"]
    assert listed == {name: value for name, value in job.items() if name != "outcomes"}
    path = f"/v1/resends/{job['id']}/outcomes"
    lines = sidecar.get(path, token=READ_TOKEN).text.splitlines()
    rows = list(csv.DictReader(io.StringIO(sidecar.get(f"{path}?format=csv", token=READ_TOKEN).text)))
    assert [json.loads(line) for line in lines] == job["outcomes"]
    assert [row["new_offset_message_id"] for row in rows] == [one["new_offset_message_id"] for one in job["outcomes"]]

    def verdicts() -> list[str]:
        return [one["verdict"] for one in preview(sidecar, **chosen)["messages"]]

    wait_for(lambda: verdicts() == ["resent before"] * 2, "the index has the copies")
    assert preview(sidecar, **chosen, include_resent=True)["send_count"] == 2


@pytest.mark.parametrize("changes", [True, False], ids=["changed", "twin: unchanged"])
def test_changed_set_is_refused(group: Group, sidecar: SidecarChild, changes: bool) -> None:
    """409 if another dead letter matches since the preview; without it, the same order is executed."""
    name = "shipping" if changes else "stock"
    store_dead_letters(group.name_server, name, [b"1"])
    planned = preview(sidecar, group=name)
    if changes:
        store_dead_letters(group.name_server, name, [b"1", b"2"])
    answer = sidecar.post("/v1/resends", {"group": name, "digest": planned["digest"]}, token=TOKEN)

    assert answer.status_code == (409 if changes else 200), answer.text
    if not changes:
        assert complete(sidecar, answer.json())["counts"]["sent"] == 1


def test_message_of_a_topic_is_sent_to_another(group: Group, sidecar: SidecarChild) -> None:
    """It is chosen by its position; a position without a message is listed with the reason."""
    with Producer(group.name_server) as producer:
        receipt = producer.send(Message("checks", b"once", keys=["k"]))
    place = {"broker_name": "orders-0", "queue_id": 0, "offset": receipt.queue_offset}
    chosen: dict[str, Any] = {
        "topic": "checks",
        "to_topic": "billing-input",
        "positions": [place, place | {"offset": 10_000}],
    }

    def planned() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = preview(sidecar, **chosen)["messages"]
        return found

    wait_for(lambda: planned()[0]["message_id"] == receipt.message_id, "it can be read")
    assert [one["verdict"] for one in planned()] == ["send", "cannot be sent"]
    digest = preview(sidecar, **chosen)["digest"]
    job = complete(sidecar, sidecar.post("/v1/resends", {**chosen, "digest": digest}, token=TOKEN).json())

    assert [one["outcome"] for one in job["outcomes"]] == ["sent", "skipped"]
    assert job["outcomes"][0]["target"] == "billing-input"


def test_sending_requires_a_token_that_may_change(sidecar: SidecarChild) -> None:
    """A read token gets the preview and the outcomes, and 403 for orders; each order has an audit line."""
    digest = preview(sidecar, READ_TOKEN, group="billing", include_resent=True)["digest"]
    order = {"group": "billing", "include_resent": True, "digest": digest}
    refused = sidecar.post("/v1/resends", order, token=READ_TOKEN)
    accepted = sidecar.post("/v1/resends", order, token=TOKEN)
    job = complete(sidecar, accepted.json())

    assert (refused.status_code, accepted.status_code) == (403, 200)
    assert sidecar.post("/v1/resend-preview", {"group": "billing"}).status_code == 401
    assert sidecar.post(f"/v1/resends/{job['id']}/stop", {}, token=READ_TOKEN).status_code == 403
    assert sidecar.post(f"/v1/resends/{job['id']}/stop", {}, token=TOKEN).json()["state"] == "complete"
    wait_for(lambda: "resend ended" in sidecar.child.log, "the end has a line")
    lines = sidecar.child.log.splitlines()
    assert any("resend ended" in line and str(job["id"]) in line and "token:operator" in line for line in lines)
    assert any("http 403" in line and "token:spark" not in line and "resends" in line for line in lines)


@pytest.mark.parametrize(
    "body",
    [{}, {"group": "a", "topic": "b"}, {"topic": "checks"}, {"group": "a", "sql": "region ="},
     {"group": "a", "tags": "x", "sql": "a = 1"}, {"group": "a", "to_topic": "%RETRY%b"}],
    ids=["nothing", "both", "no positions", "invalid sql", "two filters", "retry topic"],
)  # fmt: skip
def test_contradictory_selection_is_refused(sidecar: SidecarChild, body: dict[str, object]) -> None:
    """400 with the reason, before anything is read."""
    assert sidecar.post("/v1/resend-preview", body, token=TOKEN).status_code == 400


def test_cell_that_a_spreadsheet_would_evaluate_is_quoted() -> None:
    """Ids of messages come from producers; a cell that begins like a formula gets a quote, others do not."""
    ids = ["=1+1", "+1", "@x", "plain"]
    messages = [
        PlannedMessage(
            position=Position("b", 0, number), message_id=text, target="t", body_bytes=1, stored_ms=1,
            verdict=Verdict.SEND,
        )
        for number, text in enumerate(ids)
    ]  # fmt: skip
    job = ResendJob(id="0" * 16, request=ResendRequest(group="g"), plan=ResendPlan(), started_wall_ms=0)
    job.outcomes += [ResendOutcome(message=one, kind=OutcomeKind.SENT) for one in messages]

    rows = list(csv.DictReader(io.StringIO(outcome_csv(job))))

    assert [row["message_id"] for row in rows] == ["'=1+1", "'+1", "'@x", "plain"]
