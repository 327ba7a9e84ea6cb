"""The console during failures: the master is killed, a slave promoted, a sidecar killed, and the page keeps working."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest
from admin_scene import SidecarChild
from console_browser import browser, page_at
from console_scene import Group, console_group
from playwright.sync_api import Browser, Page, expect

from gantry_client import Message, ProducerSettings
from gantry_client.sync import Producer

pytestmark = pytest.mark.needs_browser
PATIENT = ProducerSettings(send_timeout_ms=60_000)


@pytest.fixture
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Group]:
    """A group that the test may break."""
    with console_group(tmp_path_factory.mktemp("console-failover")) as started:
        with Producer(started.name_server, "before", settings=PATIENT) as producer:
            for number in range(20):
                producer.send(Message("orders", b"%d" % number))
        yield started


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with browser() as started:
        yield started


def card(page: Page, group: Group, number: int) -> str:
    """Return the selector of a member's card on the page of the first member's sidecar."""
    url = "self" if number == 1 else group.sidecars[number - 1].url
    return f'[data-member="{url}"]'


@pytest.mark.verify
def test_console_shows_a_failover_and_the_loss_of_a_sidecar(group: Group, chromium: Browser) -> None:
    """After kill -9 the master is shown as gone, then the promoted one with a greater epoch, without a reload.

    When the new master's sidecar is killed, its card shows that and the time of its last answer. When the page's own
    sidecar is killed, a banner appears and the last known state stays; after its restart the page is updated again.
    """
    epoch = int(str(group.status()["epoch"]))
    with page_at(chromium, group.console) as page:
        expect(page.locator(card(page, group, 1))).to_have_attribute("data-role", "master")
        expect(page.locator(card(page, group, 2))).to_have_attribute("data-state", "ready")
        page.evaluate("window.mark = 'not reloaded'")

        group.brokers[0].child.send(signal.SIGKILL)
        expect(page.locator(card(page, group, 1))).to_have_attribute("data-state", "crashed")
        expect(page.locator(card(page, group, 1))).to_contain_text("since")
        expect(page.locator(".card.vacant")).to_contain_text("No master")
        expect(page.locator(".verdict")).to_contain_text("orders-0 has no master")
        expect(page.locator(".ledger")).to_contain_text("the last report of a broker that is not running")

        group.promote(2)
        expect(page.locator(card(page, group, 2))).to_have_attribute("data-role", "master")
        expect(page.locator(".card.vacant")).to_have_count(0)
        expect(page.locator("[data-epoch]")).to_have_attribute("data-epoch", str(group.status(2)["epoch"]))
        assert int(str(group.status(2)["epoch"])) > epoch
        expect(page.locator('[data-offset="wrote"]')).to_have_attribute("data-value", str(group.status(2)["wrote"]))

        group.sidecars[1].child.send(signal.SIGKILL)
        expect(page.locator(card(page, group, 2))).to_have_attribute("data-state", "sidecar unreachable")
        expect(page.locator(card(page, group, 2))).to_contain_text("last seen")

        end_and_begin_again(page, group)
        assert page.evaluate("window.mark") == "not reloaded"


def end_and_begin_again(page: Page, group: Group) -> None:
    """The page's own sidecar is killed, and another one started in its place."""
    own = group.sidecars[0]
    own.child.send(signal.SIGKILL)
    expect(page.get_by_role("alert")).to_contain_text("This page's sidecar is not responding")
    expect(page.locator("[data-connection]")).to_have_attribute("data-connection", "lost")
    expect(page.locator("[data-member]")).to_have_count(2)

    store = group.brokers[0].store
    tokens = ["--token-file", str(group.folder / "tokens")]
    again = SidecarChild(store, "--open-reads", *tokens, "--peer", group.sidecars[1].url, listen=own.address)
    try:
        expect(page.get_by_role("alert")).to_have_count(0)
        expect(page.locator("[data-connection]")).to_have_attribute("data-connection", "live")
        expect(page.locator(card(page, group, 1))).to_have_attribute("data-state", "crashed")
    finally:
        again.child.end()
