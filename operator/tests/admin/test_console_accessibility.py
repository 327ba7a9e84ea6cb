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
}
"""The views, each with the element whose presence shows that its data has arrived."""


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
    """Nothing that axe-core calls serious or critical, with rows and messages open, the list of topics, and dialogs."""
    found: dict[str, list[str]] = {}
    with page_at(chromium, group.console, size=size, scheme=scheme, motion="reduce") as page:
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
        page.keyboard.press("Escape")
        page.get_by_role("button", name="Keys (?)").click()
        found["dialog"] = accessibility_violations(page)

    assert {view: faults for view, faults in found.items() if faults} == {}
    assert len(found) == len(SHOWN) + 2


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
