"""Search, live tail and resends in a real browser while a group is under load and its master is killed."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlencode

import pytest
from admin_scene import TOKEN, wait_for
from console_browser import browser, page_at
from console_scene import Group, Load, console_group, store_dead_letters
from playwright.sync_api import Browser, Page, expect

from gantry_client import Message, ProducerSettings
from gantry_client.sync import Producer

pytestmark = [pytest.mark.needs_browser, pytest.mark.verify]

LOST = "region = 'us'"


@pytest.fixture
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Group]:
    """A master and two slaves, with dead letters; the test kills the master."""
    with console_group(tmp_path_factory.mktemp("console-faults"), members=3) as started:
        with ThreadPoolExecutor(1) as pool:  # the browser's driver has a running loop in this thread
            pool.submit(store_dead_letters, started.name_server, "billing", [b"one", b"two"]).result()
        yield started


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with browser() as started:
        yield started


def survivor(group: Group) -> str:
    """Return the address of the console of the second member, which becomes the master."""
    return f"{group.sidecars[1].url}/console/#token={TOKEN}"


def open_view(page: Page, name: str, **parameters: str) -> None:
    page.evaluate("(hash) => { location.hash = hash; }", f"/{name}?{urlencode(parameters)}")


def send_lost_order(group: Group, number: int) -> None:
    with Producer(group.name_server, "lost", settings=ProducerSettings(send_timeout_ms=60_000)) as producer:
        producer.send(Message("orders", b"lost %d" % number, properties={"region": "us"}))


def input_count(group: Group) -> int:
    """Return the number of messages in the topic of the dead letters, as the second member knows them."""
    topics = group.sidecars[1].get("/v1/topics", token=TOKEN).json()["topics"]
    return sum(int(queue["end"]) for one in topics if one["name"] == "billing-input" for queue in one["queues"])


def test_order_is_found_and_followed_through_a_failover(group: Group, chromium: Browser) -> None:
    """Under load: the lost order is found before, without and after a master; the tail shows the next one once."""
    with Load(group.name_server, per_second=100), page_at(chromium, survivor(group)) as page:
        send_lost_order(group, 1)
        with page.context.expect_page() as opened:
            page.evaluate("window.open(location.href)")
        following = opened.value
        open_view(following, "tail", topic="orders", sql=LOST)
        expect(following.locator("[data-open]")).to_have_attribute("data-open", "1")
        open_view(page, "search", topic="orders", sql=LOST)
        for step in (lambda: None, lambda: group.brokers[0].child.send(signal.SIGKILL), lambda: group.promote(2)):
            step()
            page.reload()  # searches again
            expect(page.get_by_label("Search results")).to_contain_text("complete, in")
            expect(page.locator("[data-hits]")).to_have_attribute("data-hits", "1")
            expect(page.get_by_role("alert")).to_have_count(0)

        send_lost_order(group, 2)
        expect(following.locator(".message")).to_have_count(1)
        expect(following.locator(".message")).to_contain_text("lost 2")
        expect(following.get_by_role("alert")).to_have_count(0)


def test_resend_without_a_master_is_no_success(group: Group, chromium: Browser) -> None:
    """Under load, without a master, no message is reported as sent; after the promotion it is sent once."""
    wait_for(lambda: input_count(group) == 2, "the slave knows the messages that became dead letters")
    before = input_count(group)
    with Load(group.name_server, per_second=100), page_at(chromium, survivor(group)) as page:
        open_view(page, "letters", group="billing")
        expect(page.locator("[data-message]")).to_have_count(2)
        page.get_by_role("button", name="Resend dead letter").first.click()
        expect(page.get_by_role("dialog").locator("[data-verdict=send]")).to_have_count(1)
        group.brokers[0].child.send(signal.SIGKILL)
        page.get_by_role("dialog").get_by_role("button", name="Resend 1").click()
        expect(page.locator(".outcome").first).to_be_visible()
        expect(page.locator("[data-outcome=sent]")).to_have_count(0)
        assert input_count(group) == before

        group.promote(2)
        expect(page.locator(".verdict")).not_to_contain_text("no master")
        page.get_by_role("button", name="Resend dead letter").first.click()
        page.get_by_role("dialog").get_by_role("button", name="Resend 1").click()
        expect(page.locator("[data-outcome=sent]")).to_have_count(1)
        wait_for(lambda: input_count(group) == before + 1, "it has arrived")
