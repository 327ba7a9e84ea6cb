"""Resending, resets and edits in a real browser: each begins with a preview, and shows what became of it."""

from __future__ import annotations

import asyncio
import csv
import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from admin_scene import READ_TOKEN, TOKEN, SidecarChild, sidecar_process, wait_for, write_token_files
from console_browser import CONTRASTS, OVERFLOW, Scheme, browser, page_at
from console_scene import Group, console_group, store_dead_letters
from playwright.sync_api import Browser, Locator, Page, expect

from gantry_client import Admin
from gantry_wire.commands.admin import SubscriptionGroupConfig

pytestmark = pytest.mark.needs_browser


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Group]:
    """One broker, two dead letters of `billing`, and a topic for checks."""
    with console_group(tmp_path_factory.mktemp("changes"), members=1, conf={"brokerRole": "ASYNC_MASTER"}) as started:
        store_dead_letters(started.name_server, "billing", [b"us-1", b"us-2"], region="us")
        for topic in ("checks", "spare", "doomed"):
            with_admin(started, lambda admin, topic=topic: admin.topics.create(topic, queues=1))
        yield started


@pytest.fixture(scope="module")
def sidecar(group: Group, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SidecarChild]:
    """A sidecar with a token that may change and one that may read."""
    with sidecar_process(group.brokers[0].store, *write_token_files(tmp_path_factory.mktemp("tokens"))) as started:
        started.wait_ready()
        wait_for(
            lambda: started.get("/v1/dead-letters/billing", token=TOKEN).json().get("queues", []) != [],
            "letters are read",
        )
        yield started


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with browser() as started:
        yield started


def with_admin(group: Group, work: Any) -> Any:
    """Return the result of a coroutine function with an Admin client."""

    async def call() -> Any:
        async with Admin(group.name_server) as admin:
            return await work(admin)

    return in_thread(lambda: asyncio.run(call()))


def in_thread(work: Callable[[], Any]) -> Any:
    """Return the result of `work` in a thread: this one runs the event loop of the browser's driver."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work).result()


def console(sidecar: SidecarChild, token: str = TOKEN) -> str:
    """Return the address of the console with a token."""
    return f"{sidecar.url}/console/#token={token}"


def open_view(page: Page, view: str) -> None:
    page.evaluate(f"location.hash = '#/{view}'")


def dialog_of(page: Page) -> Locator:
    return page.get_by_role("dialog")


def messages_in(group: Group, topic: str) -> int:
    stats = with_admin(group, lambda admin: admin.topics.stats(topic))
    return sum(row.max_offset - row.min_offset for row in stats.values())


def test_filtered_dead_letters_are_previewed_and_resent(
    group: Group, sidecar: SidecarChild, chromium: Browser, tmp_path: Path
) -> None:
    """The preview lists each message; the outcomes are those of the sidecar, and can be downloaded."""
    with page_at(chromium, console(sidecar)) as page:
        open_view(page, "letters?group=billing")
        form = page.get_by_role("form", name="Select dead letters")
        form.get_by_label("Dead letters").select_option("sql")
        form.get_by_label("Filter").fill("region = 'us'")
        form.get_by_label("Send to").fill("checks")
        page.get_by_role("button", name="Preview resend").click()
        expect(dialog_of(page)).to_contain_text("Resend 2 messages?")
        expect(dialog_of(page).locator("[data-verdict=send]")).to_have_count(2)
        dialog_of(page).get_by_role("button", name="Cancel").click()
        expect(dialog_of(page)).to_be_hidden()
        assert messages_in(group, "checks") == 0, "a cancelled preview sends nothing"

        page.get_by_role("button", name="Preview resend").click()
        dialog_of(page).get_by_role("button", name="Resend 2").click()
        expect(page.locator("[data-outcome=sent]")).to_have_count(2)
        wait_for(lambda: messages_in(group, "checks") == 2, "they have arrived")
        with page.expect_download() as saved:
            page.get_by_role("button", name="Download CSV").click()
        saved.value.save_as(tmp_path / "outcomes.csv")
        with page.expect_download() as saved:
            page.get_by_role("button", name="Download JSON lines").click()
        saved.value.save_as(tmp_path / "outcomes.jsonl")
        page.reload()
        page.get_by_label("Earlier resends").select_option(index=1)
        expect(page.locator("[data-outcome=sent]")).to_have_count(2)

    rows = list(csv.DictReader((tmp_path / "outcomes.csv").read_text().splitlines()))
    lines = [json.loads(line) for line in (tmp_path / "outcomes.jsonl").read_text().splitlines()]
    assert [row["outcome"] for row in rows] == [line["outcome"] for line in lines] == ["sent", "sent"]


def test_changed_set_is_refused_in_the_page(group: Group, sidecar: SidecarChild, chromium: Browser) -> None:
    """A dead letter that arrives while the preview is open makes the order fail with its reason."""
    in_thread(lambda: store_dead_letters(group.name_server, "stock", [b"1"]))
    before = messages_in(group, "stock-input")
    with page_at(chromium, console(sidecar)) as page:
        open_view(page, "letters?group=stock")
        expect(page.locator("[data-message]")).to_have_count(1)
        page.get_by_role("button", name="Preview resend").click()
        expect(dialog_of(page)).to_contain_text("Resend 1 message?")
        in_thread(lambda: store_dead_letters(group.name_server, "stock", [b"1", b"2"]))
        wait_for(
            lambda: sidecar.post("/v1/resend-preview", {"group": "stock"}, token=TOKEN).json()["send_count"] > 1,
            "the second one can be read",
        )
        dialog_of(page).get_by_role("button", name="Resend 1").click()
        expect(page.locator(".outcome")).to_contain_text("have changed since the preview")

    assert messages_in(group, "stock-input") == before + 2, "only the test itself has sent"


def test_single_dead_letters_are_selected(group: Group, sidecar: SidecarChild, chromium: Browser) -> None:
    """One by its button, and those that are ticked, also if they were resent before."""
    before = messages_in(group, "billing-input")
    with page_at(chromium, console(sidecar)) as page:
        open_view(page, "letters?group=billing")
        page.get_by_role("button", name="Resend dead letter 0").click()
        dialog_of(page).get_by_role("button", name="Resend 1").click()
        expect(page.locator("[data-outcome=sent]")).to_have_count(1)
        page.get_by_role("checkbox", name="Select dead letter 0").check()
        page.get_by_role("checkbox", name="Select dead letter 1").check()
        page.get_by_role("button", name="Resend selected (2)").click()
        dialog_of(page).get_by_role("button", name="Resend 2").click()
        expect(page.locator("[data-outcome=sent]")).to_have_count(2)

    wait_for(lambda: messages_in(group, "billing-input") == before + 3, "they have arrived")


def test_message_of_a_topic_is_sent_to_another(group: Group, sidecar: SidecarChild, chromium: Browser) -> None:
    """From the view of messages, after the choice of a target and a preview."""
    before = messages_in(group, "checks")
    queue = next(
        one["queue_id"] for topic in sidecar.get("/v1/topics", token=TOKEN).json()["topics"]
        if topic["name"] == "billing-input" for one in topic["queues"] if one["end"]
    )  # fmt: skip
    with page_at(chromium, console(sidecar)) as page:
        open_view(page, f"messages?how=newest&topic=billing-input&queue={queue}")
        page.get_by_role("button", name="Resend message").first.click()
        dialog_of(page).get_by_label("Target topic").fill("checks")
        dialog_of(page).get_by_role("button", name="Preview").click()
        dialog_of(page).get_by_role("button", name="Resend 1").click()
        expect(page.locator("[data-outcome=sent]")).to_contain_text("checks")

    wait_for(lambda: messages_in(group, "checks") == before + 1, "it has arrived")


def test_offsets_are_reset_after_a_preview(group: Group, sidecar: SidecarChild, chromium: Browser) -> None:
    """The row of a group has the dialog; it shows each queue from and to, and sets these offsets."""

    def committed() -> set[int | None]:
        found = with_admin(group, lambda admin: admin.groups.committed("billing", "billing-input"))
        return set(found.values())

    with page_at(chromium, console(sidecar)) as page:
        open_view(page, "groups")
        page.locator('[data-group="billing"]').get_by_role("button", name="billing").first.click()
        page.get_by_role("button", name="Reset offsets of billing").click()
        dialog_of(page).get_by_label("Reset to").select_option("earliest")
        dialog_of(page).get_by_role("button", name="Preview").click()
        expect(dialog_of(page)).to_contain_text("messages are delivered again")
        assert committed() != {0}, "the preview changes nothing"
        dialog_of(page).get_by_role("button", name="Apply").click()
        expect(dialog_of(page)).to_contain_text("Changed.")

    assert committed() == {0}


def test_topic_is_edited_and_deleted(group: Group, sidecar: SidecarChild, chromium: Browser) -> None:
    """Settings with their effect; a deletion only after its name is typed."""
    with page_at(chromium, console(sidecar)) as page:
        open_view(page, "topics")
        page.get_by_role("button", name="spare", exact=True).click()
        page.get_by_role("button", name="Settings of topic spare").click()
        dialog_of(page).get_by_label("Permission of clients").select_option("r")
        dialog_of(page).get_by_role("button", name="Preview").click()
        expect(dialog_of(page)).to_contain_text("sends are refused")
        dialog_of(page).get_by_role("button", name="Apply").click()
        expect(dialog_of(page)).to_contain_text("Changed.")
        dialog_of(page).get_by_role("button", name="Close").click()
        page.get_by_role("button", name="doomed", exact=True).click()
        page.get_by_role("button", name="Delete topic doomed").click()
        dialog_of(page).get_by_role("button", name="Preview").click()
        apply = dialog_of(page).get_by_role("button", name="Apply")
        expect(apply).to_be_disabled()
        dialog_of(page).get_by_label("Type doomed to confirm").fill("doomed")
        apply.click()
        expect(dialog_of(page)).to_contain_text("Changed.")

    [config] = with_admin(group, lambda admin: admin.topics.settings("spare")).values()
    assert config.perm == 4
    assert "doomed" not in with_admin(group, lambda admin: admin.topics.all())


def test_group_is_deleted_by_its_name(group: Group, sidecar: SidecarChild, chromium: Browser) -> None:
    """A group without consumers, after its preview and its name."""
    config = SubscriptionGroupConfig(group_name="leavers")
    with_admin(group, lambda admin: admin.groups.create(config))
    with page_at(chromium, console(sidecar)) as page:
        open_view(page, "groups?group=leavers")
        page.get_by_role("button", name="Delete group leavers").click()
        dialog_of(page).get_by_role("button", name="Preview").click()
        expect(dialog_of(page)).to_contain_text("its dead letters are kept")
        dialog_of(page).get_by_label("Type leavers to confirm").fill("leavers")
        dialog_of(page).get_by_role("button", name="Apply").click()
        expect(dialog_of(page)).to_contain_text("Changed.")

    assert "leavers" not in with_admin(group, lambda admin: admin.groups.all())


@pytest.mark.parametrize("may_change", [False, True], ids=["read-only", "twin: may change"])
def test_read_only_token_gets_previews_and_no_orders(
    group: Group, sidecar: SidecarChild, chromium: Browser, may_change: bool
) -> None:
    """With a read token the buttons are disabled, with the reason; with the other token they are not."""
    with page_at(chromium, console(sidecar, TOKEN if may_change else READ_TOKEN)) as page:
        open_view(page, "letters?group=billing")
        page.get_by_role("button", name="Resend dead letter 0").click()
        send = dialog_of(page).get_by_role("button", name="Resend 1")
        if may_change:
            expect(send).to_be_enabled()
        else:
            expect(send).to_be_disabled()
            expect(dialog_of(page)).to_contain_text("this token is read-only")
        dialog_of(page).get_by_role("button", name="Cancel").click()
        open_view(page, "topics")
        page.get_by_role("button", name="New topic").click()
        preview = dialog_of(page).get_by_role("button", name="Preview")
        if may_change:
            expect(preview).to_be_enabled()
        else:
            expect(preview).to_be_disabled()


def test_accounts_view_explains_a_broker_without_accounts(
    group: Group, sidecar: SidecarChild, chromium: Browser
) -> None:
    """It says that every client may do everything, and how to change that."""
    with page_at(chromium, console(sidecar)) as page:
        page.keyboard.press("8")
        expect(page.locator("main h1")).to_have_text("Accounts")
        expect(page.locator("main")).to_contain_text("No access control")


@pytest.mark.parametrize("scheme", ["dark", "light"])
def test_dialogs_are_readable_and_fit_a_phone(
    group: Group, sidecar: SidecarChild, chromium: Browser, scheme: Scheme
) -> None:
    """Texts have a contrast of at least 4.5, and neither the page nor a dialog is wider than a phone."""
    with page_at(chromium, console(sidecar), size="narrow", scheme=scheme, motion="reduce") as page:
        open_view(page, "letters?group=billing")
        page.get_by_role("button", name="Resend dead letter 0").click()
        expect(dialog_of(page).locator("[data-verdict]")).to_have_count(1)
        page.evaluate("document.getAnimations().forEach((one) => one.finish())")

        assert page.evaluate(OVERFLOW) <= 0
        assert page.evaluate("document.querySelector('dialog').scrollWidth <= window.innerWidth")
        assert [one for one in page.evaluate(CONTRASTS) if one[0] < 4.5] == []
