"""Orders while another group is shown, and tokens and codes for an open page."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from admin_scene import TOKEN
from console_browser import browser, page_at
from console_scene import Group, body_of, console_group, store_dead_letters
from playwright.sync_api import Browser, Page, Request, Route, expect

pytestmark = [pytest.mark.verify, pytest.mark.needs_browser]


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Group]:
    """Two brokers with their sidecars, and a group with dead letters."""
    with console_group(tmp_path_factory.mktemp("orders")) as started:
        store_dead_letters(started.name_server, "billing", [body_of(number) for number in range(2)])
        yield started


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with browser() as started:
        yield started


PLANNED = {
    "broker_name": "orders-0", "queue_id": 0, "offset": 1, "message_id": "M1", "target": "t", "bytes": 1,
    "stored_wall_ms": 1, "verdict": "send", "reason": "", "resent_wall_ms": None,
}  # fmt: skip
PREVIEW = {"digest": "0" * 64, "messages": [PLANNED], "send_count": 1, "send_bytes": 1, "remaining": 0}
SENT = {
    **PLANNED, "outcome": "sent", "new_offset_message_id": "7F", "new_broker_name": "orders-0", "new_queue_id": 0,
    "new_offset": 9,
}  # fmt: skip
JOB = {
    "id": "0" * 16, "state": "complete", "started_wall_ms": 1, "ended_wall_ms": 2, "message_count": 1,
    "counts": {"sent": 1, "failed": 0, "unknown": 0, "skipped": 0}, "outcomes": [SENT],
}  # fmt: skip


def orders(page: Page) -> list[dict[str, Any]]:
    """Answer previews with one message, and orders with its outcome; return the bodies of the orders."""
    given: list[dict[str, Any]] = []

    def answer(route: Route, request: Request) -> None:
        if request.method == "GET":
            route.fulfill(json={"resends": []})
            return
        if request.url.endswith("/resend-preview"):
            route.fulfill(json=PREVIEW)
            return
        given.append(request.post_data_json or {})
        route.fulfill(json=JOB)

    page.route("**/v1/resends**", answer)
    page.route("**/v1/resend-preview", answer)
    return given


@pytest.mark.parametrize(
    ("name", "chosen"),
    [("Preview resend", {}), ("Resend dead letter 1", {"positions": [
        {"broker_name": "orders-0", "queue_id": 0, "offset": 1}]})],
    ids=["all", "one"],
)  # fmt: skip
def test_confirmed_order_keeps_its_group_after_navigation(
    group: Group, chromium: Browser, name: str, chosen: dict[str, object]
) -> None:
    """The confirmation is about one group, and the page shows another before it is confirmed."""
    with page_at(chromium, f"{group.console}") as page:
        page.evaluate("location.hash = '#/letters?group=billing'")
        given = orders(page)
        page.get_by_role("button", name=name).click()
        dialog = page.get_by_role("dialog")
        expect(dialog).to_be_visible()
        page.evaluate("location.hash = '#/letters?group=audit'")
        expect(page.get_by_role("combobox", name="Group")).to_have_value("audit")
        dialog.get_by_role("button", name="Resend 1").click()
        expect(dialog).to_be_hidden()
        expect(page.locator(".outcome")).to_contain_text("Resend complete: 1 sent")

    assert given == [{"group": "billing", "include_resent": bool(chosen), **chosen, "digest": "0" * 64}]


LETTERS = {"age_ms": 1, "group": "billing", "queues": [], "source": "broker", "topic": "%DLQ%billing"}
SELECT_SHARD = """async (name) => (await import("/console/js/store.js")).selectShard(name)"""
DRAWN = "() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"


def test_late_dead_letters_of_another_shard_are_not_shown(group: Group, chromium: Browser) -> None:
    """They would be resent by queue and offset of the chosen shard, where other dead letters have these numbers."""
    late: list[Route] = []

    def answer(route: Route, request: Request) -> None:
        if "shard=" in request.url:
            route.fulfill(json=LETTERS | {"broker_name": "orders-1"})
        else:
            late.append(route)

    def tables(route: Route, request: Request) -> None:
        route.fulfill(json={"age_ms": 1, "source": "broker", "topics": [], "groups": []})

    with page_at(chromium, f"{group.console}") as page:
        page.route("**/v1/dead-letters/**", answer)
        page.route(re.compile("/v1/(topics|groups)"), tables)
        with page.expect_request("**/v1/dead-letters/**"):
            page.evaluate("location.hash = '#/letters?group=billing'")
        page.evaluate(SELECT_SHARD, "orders-1")
        letters = page.get_by_role("region", name="Dead letters of billing")
        expect(letters).to_contain_text("on orders-1")
        with page.expect_response(lambda response: response.url.endswith("?count=50")):
            late[0].fulfill(json=LETTERS | {"broker_name": "orders-0"})
        page.evaluate(DRAWN)
        assert "on orders-1" in letters.inner_text()


def test_token_pasted_into_an_open_page_is_removed_from_the_address(group: Group, chromium: Browser) -> None:
    """A changed fragment does not reload the page: the page itself removes the token, and uses it."""
    with page_at(chromium, group.console.partition("#")[0]) as page:
        expect(page.get_by_role("button", name="Enter a token").first).to_be_visible()
        page.evaluate(f"location.hash = '#token={TOKEN}'")
        expect(page.get_by_role("button", name="Token: change or remove")).to_be_visible()

        assert TOKEN not in page.url


def test_address_with_a_code_logs_in_once(group: Group, chromium: Browser) -> None:
    """The page exchanges the code for a session; a second use is rejected, with the remedy."""
    address = group.console.partition("#")[0]
    code = group.sidecars[0].post("/v1/console/codes", {}, token=TOKEN).json()["code"]

    with page_at(chromium, f"{address}#code={code}") as page:
        expect(page.get_by_role("button", name="Token: change or remove")).to_be_visible()
        assert code not in page.url
        assert TOKEN not in page.evaluate("JSON.stringify(sessionStorage)")
    with page_at(chromium, f"{address}#code={code}") as page:
        expect(page.locator(".banner")).to_contain_text("run `gantry console` for a new one")
