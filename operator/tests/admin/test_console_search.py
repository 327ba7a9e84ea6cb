"""Search and live tail in a real browser: hits and new messages of all shards, with the share that was scanned.

A twin repeats a test without the rule that it checks, and finds the fault: so the test can fail.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from urllib.parse import urlencode

import pytest
from admin_scene import wait_for
from console_browser import CONTRASTS, OVERFLOW, Scheme, browser, page_at
from console_scene import Group, console_group, sum_of_queue_ends
from playwright.sync_api import Browser, Page, expect

from gantry_client import Message
from gantry_client.sync import Producer

pytestmark = pytest.mark.needs_browser

COUNT = 400
HOSTILE = '<img src=x onerror="window.broken=1">'


def body_of(number: int) -> bytes:
    """Return the JSON body of an order."""
    note = f"lost {HOSTILE}" if number == 17 else "plain"
    return json.dumps({"order": {"id": number}, "note": note}).encode()


def send(group: Group, numbers: range, topic: str = "orders") -> None:
    """Send orders with a key, a tag and a property."""
    with Producer(group.name_server, "test") as producer:
        for number in numbers:
            message = Message(
                topic, body_of(number), tags="even" if number % 2 == 0 else "odd", keys=[f"order-{number}"],
                properties={"region": "us" if number == 17 else "eu"},
            )  # fmt: skip
            producer.send(message)


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Group]:
    """A master and a slave with their sidecars, and a topic with some hundred messages."""
    with console_group(tmp_path_factory.mktemp("console"), conf={}) as started:
        send(started, range(COUNT))
        wait_for(lambda: sum_of_queue_ends(started, "orders") == COUNT, "all orders are visible")
        yield started


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with browser() as started:
        yield started


def open_view(page: Page, name: str, **parameters: str) -> None:
    """Go to the address of a view."""
    page.evaluate("(hash) => { location.hash = hash; }", f"/{name}?{urlencode(parameters)}")


@pytest.mark.parametrize(
    "condition",
    [{"text": "LOST", "ignore_case": "true"}, {"sql": "region = 'us'"}, {"json_path": "$.order.id = 17"},
     {"key": "order-17"}],
    ids=["text", "property", "json", "key"],
)  # fmt: skip
def test_lost_order_is_found_by_an_address(group: Group, chromium: Browser, condition: dict[str, str]) -> None:
    """An address executes its search; the hit is shown as text, and the share that was scanned is complete."""
    with page_at(chromium, group.console) as page:
        open_view(page, "search", topic="orders", **condition)

        expect(page.locator("[data-hits]")).to_have_attribute("data-hits", "1")
        expect(page.get_by_label("Search results")).to_contain_text("complete")
        if "key" not in condition:
            expect(page.get_by_role("progressbar", name="Share scanned")).to_have_attribute("data-share", "1.0000")
            expect(page.get_by_label("Search results")).to_contain_text(f"{COUNT} of {COUNT} messages scanned")
        page.locator(".message-open").click()
        expect(page.get_by_role("region", name="Body")).to_contain_text("onerror")
        assert page.evaluate("window.broken") is None


def test_form_searches_and_shows_faults_with_their_positions(group: Group, chromium: Browser) -> None:
    """The form's search is in the address; a wrong condition is answered with the position of its fault."""
    with page_at(chromium, group.console) as page:
        open_view(page, "search")
        page.get_by_role("combobox", name="Topic").fill("orders")
        page.get_by_label("JSON path").fill("$.order.id ~ 17")
        page.get_by_role("button", name="Search", exact=True).click()

        expect(page.get_by_role("alert")).to_contain_text("position 11: expected")
        assert "json_path" in page.url
        page.get_by_label("JSON path").fill("$.order.id = 17")
        page.keyboard.press("Enter")
        expect(page.locator("[data-hits]")).to_have_attribute("data-hits", "1")
        expect(page.get_by_role("alert")).to_have_count(0)


def test_tail_shows_new_messages_and_can_be_paused(group: Group, chromium: Browser) -> None:
    """Only new messages that match appear; while paused, none does, and none is lost."""
    with page_at(chromium, group.console) as page:
        open_view(page, "tail", topic="orders", tag="even")
        expect(page.locator("[data-open]")).to_have_attribute("data-open", "1")
        send(group, range(1000, 1004))
        expect(page.locator(".message")).to_have_count(2)
        expect(page.locator(".message").first).to_contain_text("1002")

        page.get_by_role("button", name="Pause").click()
        send(group, range(2000, 2002))
        expect(page.get_by_role("button", name="Resume (1 new)")).to_be_visible()
        expect(page.locator(".message")).to_have_count(2)
        page.get_by_role("button", name="Resume (1 new)").click()
        expect(page.locator(".message")).to_have_count(3)


def test_tail_counts_what_the_rate_leaves_out(group: Group, chromium: Browser) -> None:
    """Beyond the rate, messages are left out, and their number is shown."""
    with page_at(chromium, group.console) as page:
        open_view(page, "tail", topic="orders", rate="10")
        expect(page.locator("[data-open]")).to_have_attribute("data-open", "1")
        send(group, range(3000, 3200))
        expect(page.locator("[data-left-out]")).to_contain_text("not shown")


@pytest.mark.parametrize("scheme", ["dark", "light"])
@pytest.mark.parametrize("size", ["wide", "narrow"])
def test_views_fit_and_are_readable(group: Group, chromium: Browser, size: str, scheme: Scheme) -> None:
    """In both themes every text has enough contrast, and no view is wider than a phone."""
    with page_at(chromium, group.console, size=size, scheme=scheme) as page:
        for name, parameters in (("search", {"text": "plain"}), ("tail", {})):
            open_view(page, name, topic="orders", **parameters)
            expect(page.locator("h2").first).to_be_visible()

            assert page.evaluate(OVERFLOW) <= 0
            assert [one for one in page.evaluate(CONTRASTS) if one[0] < 4.5] == []
