"""Every view of the console is checked by axe-core, in both themes and both widths, with data and with dialogs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from admin_scene import TOKEN, wait_for
from console_browser import OVERFLOW, Scheme, accessibility_violations, browser, page_at
from console_scene import Group, body_of, console_group, store_dead_letters
from playwright.sync_api import Browser, Page, expect

pytestmark = [pytest.mark.needs_browser, pytest.mark.needs_axe]

SHOWN = {
    "overview": "[data-offset]",
    "topics?topic=billing-input": "tr.inner",
    "groups?group=billing": "tr.inner",
    "clients?group=billing": ".empty",
    "messages": ".results .empty",
    "messages?topic=billing-input": ".message",
    "messages?how=time&topic=billing-input&time=2020-01-01T00:00:00.000Z": ".results .empty",
    "messages?topic=unknown": "[data-fault]",
    "letters?group=billing": ".message",
    "message": "[data-fault]",
    "search": ".results .empty",
    "search?topic=billing-input&text=order": ".message",
    "search?topic=billing-input&sql=(": "[role=alert]",
    "tail": ".results .empty",
    "tail?topic=billing-input": "[data-open='1']",
    "accounts": "[data-account]",
}
"""The views, each with the element whose presence shows that its data has arrived."""

RULES = [
    {"decision": "Allow", "resource": "Topic:orders", "actions": ["Pub", "Sub"], "source_ips": ["10.0.0.0/8"]},
    {"decision": "Deny", "resource": "Group:*", "actions": ["Sub"], "source_ips": []},
]
ACCOUNTS = {
    "is_access_controlled": True, "left_out": 2,
    "accounts": [
        {"name": "root", "type": "Super", "status": "enable", "rules": [], "rules_left_out": 0},
        {"name": "shop", "type": "Normal", "status": "enable", "rules": RULES, "rules_left_out": 1},
    ],
}  # fmt: skip
"""An answer of `/v1/accounts`: the broker of this test has no access control."""


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Group]:
    """A master with dead letters."""
    conf = {"brokerRole": "ASYNC_MASTER"}
    with console_group(tmp_path_factory.mktemp("accessibility"), members=1, conf=conf) as started:
        store_dead_letters(started.name_server, "billing", [body_of(number) for number in range(3)])
        wait_for(lambda: bool(letters(started)), "the dead letters can be read")
        yield started


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with browser() as started:
        yield started


def letters(group: Group) -> list[dict[str, object]]:
    path = "/v1/topics/%25DLQ%25billing/messages"
    found: list[dict[str, object]] = group.sidecars[0].get(path, token=TOKEN).json().get("messages", [])
    return found


def show(page: Page, view: str, element: str) -> None:
    page.evaluate("(view) => { location.hash = `/${view}`; }", view)
    expect(page.locator(f"main {element}").first).to_be_visible()


@pytest.mark.verify
@pytest.mark.parametrize("scheme", ["dark", "light"])
@pytest.mark.parametrize("size", ["wide", "narrow"])
def test_no_view_has_a_serious_violation(group: Group, chromium: Browser, size: str, scheme: Scheme) -> None:
    """Nothing that axe-core calls serious or critical, with rows and messages open, and the list of topics."""
    found: dict[str, list[str]] = {}
    with page_at(chromium, group.console, size=size, scheme=scheme, motion="reduce") as page:
        page.route("**/v1/accounts*", lambda route: route.fulfill(json=ACCOUNTS))
        for view, element in SHOWN.items():
            show(page, view, element)
            if element == ".message":
                page.locator(".message-open").first.click()
                expect(page.locator(".message-whole")).to_be_visible()
            found[view] = accessibility_violations(page)
            assert page.evaluate(OVERFLOW) <= 0, f"{view} is too wide"
        show(page, "message?topic=%25DLQ%25billing&queue=0&offset=0", '[data-step="stored"]')
        expect(page.locator(".trace")).to_be_visible()
        found["message"] = accessibility_violations(page)
        assert page.evaluate(OVERFLOW) <= 0, "the view of a message is too wide"
        show(page, "messages", ".results .empty")
        page.get_by_role("combobox", name="Topic").click()
        page.keyboard.press("ArrowDown")
        expect(page.locator(".option.active")).to_be_visible()
        found["picker"] = accessibility_violations(page)

    assert {view: faults for view, faults in found.items() if faults} == {}
    assert len(found) == len(SHOWN) + 1


@pytest.mark.verify
@pytest.mark.parametrize("scheme", ["dark", "light"])
@pytest.mark.parametrize("size", ["wide", "narrow"])
def test_no_dialog_has_a_serious_violation(group: Group, chromium: Browser, size: str, scheme: Scheme) -> None:
    """Keys, the preview and the outcomes of a resend, and the form and the preview of a change."""
    found: dict[str, list[str]] = {}
    with page_at(chromium, group.console, size=size, scheme=scheme, motion="reduce") as page:
        dialog = page.get_by_role("dialog")

        def check(name: str) -> None:
            found[name] = accessibility_violations(page)
            assert page.evaluate(OVERFLOW) <= 0, f"{name} is too wide"

        expect(page.locator("main [data-offset]").first).to_be_visible()
        page.get_by_role("button", name="Keys (?)").click()
        check("keys")
        page.keyboard.press("Escape")
        show(page, "letters?group=billing", ".message")
        page.get_by_role("button", name="Resend dead letter").first.click()
        expect(dialog.locator("[data-verdict]")).to_have_count(1)
        check("preview of a resend")
        dialog.get_by_role("button", name="Resend 1").click()
        expect(page.locator("[data-outcome=sent]")).to_have_count(1)
        check("outcomes of a resend")
        show(page, "topics?topic=billing-input", "tr.inner")
        page.get_by_role("button", name="Delete topic billing-input").click()
        check("form of a deletion")
        dialog.get_by_role("button", name="Preview").click()
        expect(dialog.get_by_label("Type billing-input to confirm")).to_be_visible()
        check("preview of a deletion")
        page.keyboard.press("Escape")
        show(page, "groups?group=billing", "tr.inner")
        page.get_by_role("button", name="Reset offsets of billing").click()
        check("form of a reset")

    assert {name: faults for name, faults in found.items() if faults} == {}
    assert len(found) == 6


def test_violation_is_detected(group: Group, chromium: Browser) -> None:
    """The twin: a field without a label, and text with too little contrast, are reported."""
    with page_at(chromium, group.console) as page:
        expect(page.locator("main [data-offset]").first).to_be_visible()
        page.evaluate(
            "() => { const field = document.createElement('input'); const text = document.createElement('p');"
            " text.textContent = 'faint'; text.style.color = '#333';"
            " document.querySelector('main').append(field, text); }"
        )
        found = accessibility_violations(page)

    assert any(one.startswith("label ") for one in found)
    assert any(one.startswith("color-contrast ") for one in found)
