"""The way of a new user in the console: find a lost order by a property, see why it was not consumed, send it again.

docs/search.md has the number of actions. `test_cli_message.py` has the way in a terminal.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from admin_scene import TOKEN, wait_for
from console_browser import browser, page_at
from console_scene import Group, body_of, console_group, store_dead_letters
from playwright.sync_api import Browser, Page, expect

from gantry_testing.tree import ROOT

pytestmark = pytest.mark.needs_browser


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Group]:
    """A broker with an order that `billing` has refused."""
    with console_group(tmp_path_factory.mktemp("lost"), members=1, conf={"brokerRole": "ASYNC_MASTER"}) as started:
        store_dead_letters(started.name_server, "billing", [body_of(1711)], order_id="1711")
        wait_for(lambda: stored(started, "%25DLQ%25billing") == 1, "the dead letter can be read")
        yield started


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with browser() as started:
        yield started


def stored(group: Group, topic: str) -> int:
    answer = group.sidecars[0].get(f"/v1/topics/{topic}/messages", token=TOKEN).json()
    return len(answer.get("messages", []))


class User:
    """A user of the page, whose actions are counted. The user knows only what the page shows."""

    def __init__(self, page: Page) -> None:
        self.actions = 0
        self._page = page

    def choose(self, role: str, name: str) -> None:
        self.actions += 1
        self._page.get_by_role(role, name=name).first.click()  # type: ignore[arg-type]  # the roles of this test

    def enter(self, role: str, label: str, text: str, key: str) -> None:
        self.actions += 1
        self._page.get_by_role(role, name=label).fill(text)  # type: ignore[arg-type]
        self._page.keyboard.press(key)


def test_lost_order_is_found_explained_and_sent_again_in_seven_actions(group: Group, chromium: Browser) -> None:
    """Each action follows from what the page shows; the order is in its topic a second time at the end."""
    with page_at(chromium, group.console) as page:
        user = User(page)
        user.choose("link", "Search")
        user.enter("combobox", "Topic", "billing-input", "Tab")
        user.enter("textbox", "Properties (SQL92)", "order_id = '1711'", "Enter")
        expect(page.locator("[data-hits]")).to_have_attribute("data-hits", "1")
        user.choose("link", "Open message")
        reason = page.locator("[data-step=group-billing]")
        expect(reason).to_contain_text("dead letter")
        expect(reason).to_contain_text("Given up")
        expect(reason).to_contain_text("No consumer of the group is connected")
        user.choose("link", "Dead letters of billing")
        user.choose("button", "Resend dead letter")
        expect(page.get_by_role("dialog")).to_contain_text("billing-input")
        user.choose("button", "Resend 1")
        expect(page.locator("[data-outcome=sent]")).to_have_count(1)

    wait_for(lambda: stored(group, "billing-input") == 2, "the order was sent again")
    assert f"in the console: {user.actions} actions" in Path(ROOT / "docs/search.md").read_text()


def test_hit_can_be_sent_again_from_the_list(group: Group, chromium: Browser) -> None:
    """A hit of a search has the button itself, and the outcome is shown above the hits."""
    before = stored(group, "billing-input")
    with page_at(chromium, group.console) as page:
        page.evaluate("location.hash = '#/search?topic=billing-input&sql=order_id%20%3D%20%271711%27'")
        expect(page.locator(".message").first).to_be_visible()
        page.get_by_role("button", name="Resend message").last.click()
        page.get_by_role("dialog").get_by_role("button", name="Preview").click()
        page.get_by_role("dialog").get_by_role("button", name="Resend 1").click()
        expect(page.locator("[data-outcome=sent]")).to_have_count(1)

    wait_for(lambda: stored(group, "billing-input") == before + 1, "it was sent again")
