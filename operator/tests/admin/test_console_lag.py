"""The lag of groups in the console: how long messages wait, the history, and the ways from a group to its messages.

A twin repeats a test without the rule that it checks, and finds the fault: so the test can fail.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest
from admin_scene import TOKEN, wait_for
from console_browser import CONTRASTS, OVERFLOW, Scheme, browser, page_at
from console_scene import Group, body_of, console_group
from playwright.sync_api import Browser, Page, Route, expect

from gantry_client import Message, MessageQueue, NoRoute, Producer, PullConsumer

pytestmark = pytest.mark.needs_browser

TOPIC = "orders"
CONSUMED = 3
UNKNOWN = "\N{EN DASH}"
SENT = 8


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Group]:
    """A broker with messages in one queue, of which `billing` has consumed three, and `audit` all."""
    with console_group(tmp_path_factory.mktemp("lag")) as started:
        asyncio.run(send_and_commit(started.name_server))
        wait_for(lambda: rows(started).keys() >= {"billing", "audit"}, "the groups are known")
        yield started


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with browser() as started:
        yield started


async def send_and_commit(name_server: str) -> None:
    """Send messages to one queue, and commit the offsets of two groups."""
    async with (
        Producer(name_server, "shop") as producer,
        PullConsumer(name_server, "billing") as behind,
        PullConsumer(name_server, "audit") as done,
    ):
        sent = await producer.send(Message(TOPIC, body_of(0)))
        queue = MessageQueue(topic=TOPIC, broker_name=sent.queue.broker_name, queue_id=sent.queue.queue_id)
        for number in range(1, SENT):
            await producer.send(Message(TOPIC, body_of(number)), queue=queue)
        for consumer, offset in ((behind, CONSUMED), (done, SENT)):
            await route_of(consumer, queue.topic)
            await consumer.fetch(queue, 0)
            await consumer.commit(queue, offset)


async def route_of(consumer: PullConsumer, topic: str) -> None:
    """Wait until the broker has registered a topic that its first message has created."""
    async with asyncio.timeout(60):
        while True:
            with suppress(NoRoute):
                await consumer.queues(topic)
                return
            await asyncio.sleep(0.02)


def rows(group: Group) -> dict[str, dict[str, object]]:
    """Return the rows of groups by name, as the sidecar answers them."""
    answer = group.sidecars[0].get("/v1/groups", token=TOKEN).json()
    return {row["name"]: row for row in answer.get("groups", [])}


def go(page: Page, place: str) -> None:
    """Go to a view of the open page by its address."""
    page.evaluate("(place) => { location.hash = place; }", place)


def test_groups_show_how_long_messages_wait(group: Group, chromium: Browser) -> None:
    """The wait of the group that is behind grows; the group that has consumed all waits for nothing."""
    with page_at(chromium, group.console) as page:
        go(page, "/groups")
        behind = page.locator('[data-group="billing"] [data-wait]')
        expect(behind).not_to_have_attribute("data-wait", "")
        first = float(behind.get_attribute("data-wait") or 0)
        assert first > 0
        wait_for(lambda: float(behind.get_attribute("data-wait") or 0) > first, "the wait grows")
        expect(page.locator('[data-group="audit"] [data-wait]')).to_have_attribute("data-wait", "0")
        expect(page.locator('[data-group="audit"] [data-wait]')).to_have_text(UNKNOWN)


@pytest.mark.verify
def test_address_of_a_group_opens_its_row_with_queues_and_history(group: Group, chromium: Browser) -> None:
    """The address can be sent to a colleague; the row has the chart of 24 hours, and a queue leads to its messages."""
    with page_at(chromium, group.console) as page:
        go(page, "/groups?group=billing")
        row = page.locator('[data-group="billing"]')
        expect(row.get_by_role("button")).to_have_attribute("aria-expanded", "true")
        expect(page.locator(".lag-charts .chart-title").first).to_have_text("Waiting, 24 hours")
        expect(page.locator("[data-queue-wait]").first).not_to_have_attribute("data-queue-wait", "")
        page.reload()
        expect(row.get_by_role("button")).to_have_attribute("aria-expanded", "true")

        page.locator(".queue.lag a").first.click()
        expect(page).to_have_url(re.compile(rf"#/messages\?how=offset&topic={TOPIC}&queue=\d+&offset={CONSUMED}$"))
        expect(page.locator("[data-message]")).to_have_count(SENT - CONSUMED)


def test_topic_leads_to_the_group_that_waits_longest(group: Group, chromium: Browser) -> None:
    """The row of a topic names the worst of its groups, and links to that group's row."""
    with page_at(chromium, group.console) as page:
        go(page, "/topics")
        worst = page.locator(f'[data-topic="{TOPIC}"] [data-worst]')
        expect(worst).to_have_attribute("data-worst", "billing")
        worst.get_by_role("link", name="billing").click()
        expect(page).to_have_url(re.compile(r"#/groups\?group=billing$"))
        expect(page.locator('[data-group="billing"]').get_by_role("button")).to_have_attribute("aria-expanded", "true")
        expect(page.locator('[data-group="audit"]').get_by_role("button")).to_have_attribute("aria-expanded", "false")


def test_opened_row_is_in_the_address(group: Group, chromium: Browser) -> None:
    """Opening a row does not move the page, and closing it removes the name from the address."""
    with page_at(chromium, group.console) as page:
        go(page, "/groups")
        opener = page.locator('[data-group="audit"]').get_by_role("button")
        opener.click()
        expect(page).to_have_url(re.compile(r"#/groups\?group=audit$"))
        expect(opener).to_have_attribute("aria-expanded", "true")
        opener.click()
        expect(page).to_have_url(re.compile(r"#/groups$"))
        expect(opener).to_have_attribute("aria-expanded", "false")


@pytest.mark.parametrize("is_behind", [True, False], ids=["behind", "not-behind"])
def test_group_is_marked_by_the_rule_of_the_sidecar(group: Group, chromium: Browser, *, is_behind: bool) -> None:
    """The page shows the sidecar's verdict and trend, and has no rule of its own; a twin without the verdict."""

    def answer(route: Route) -> None:
        document = group.sidecars[0].get("/v1/groups", token=TOKEN).json()
        for row in document["groups"]:
            row |= {"lag_s": 4_000.0, "lag": 7, "is_behind": is_behind and row["name"] == "billing", "trend": "grows"}
        route.fulfill(json=document)

    with page_at(chromium, group.console) as page:
        page.route("**/v1/groups", answer)
        go(page, "/groups")
        expect(page.locator('[data-group="billing"] [data-wait]')).to_contain_text("67 min")
        expect(page.locator('[data-group="billing"] [data-trend]')).to_have_attribute("data-trend", "grows")
        expect(page.locator('[data-group="billing"] .arrow')).to_have_text("↗")
        expect(page.get_by_text("behind", exact=True)).to_have_count(1 if is_behind else 0)


@pytest.mark.parametrize(("gap", "strokes"), [(range(100, 112), 2), (range(0), 1)], ids=["gap", "no-gap"])
def test_gap_in_the_history_is_not_drawn_over(group: Group, chromium: Browser, gap: range, strokes: int) -> None:
    """The lines before and after an hour without points are two; without the gap they are one."""

    def answer(route: Route) -> None:
        minutes, step_ms, count = (60, 120_000, 30) if "minutes=60" in route.request.url else (1_440, 300_000, 288)
        begin_ms = time.time_ns() // 1_000_000 - minutes * 60_000
        points = [
            [begin_ms + number * step_ms, *((None, None) if number in gap else (5, 9.0))] for number in range(count)
        ]
        series = [{"group": "billing", "topic": TOPIC, "trend": "steady", "points": points}]
        route.fulfill(json={"resolution_s": step_ms // 1000, "kept_in": "file", "series_left_out": 0, "series": series})

    with page_at(chromium, group.console) as page:
        page.route("**/v1/lag?*", answer)
        go(page, "/groups?group=billing")
        line = page.locator(".lag-charts .chart-stroke").first
        expect(line).to_have_attribute("d", re.compile("L"))
        assert (line.get_attribute("d") or "").count("M") == strokes


@pytest.mark.parametrize("size", ["wide", "narrow"])
@pytest.mark.parametrize("scheme", ["dark", "light"])
def test_open_row_fits_and_has_enough_contrast(group: Group, chromium: Browser, size: str, scheme: Scheme) -> None:
    """With charts and queues open: nothing is wider than the page, and every text has a contrast of 4.5."""
    with page_at(chromium, group.console, size=size, scheme=scheme, motion="reduce") as page:
        go(page, "/groups?group=billing")
        expect(page.locator(".lag-charts .chart-title").first).to_have_text("Waiting, 24 hours")
        contrasts = page.evaluate(CONTRASTS)
        assert page.evaluate(OVERFLOW) <= 0
        assert len(contrasts) > 10
        assert [one for one in contrasts if one[0] < 4.5] == []
