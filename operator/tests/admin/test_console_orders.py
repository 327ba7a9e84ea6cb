"""What the console is asked at a bad moment: orders while something else is looked at, a token for an open page."""

from __future__ import annotations

import json
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest
from admin_scene import TOKEN
from console_browser import browser, page_at
from console_scene import Group, body_of, bury, console_group
from playwright.sync_api import Browser, Page, Request, Route, expect

pytestmark = [pytest.mark.verify, pytest.mark.needs_browser]


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Group]:
    """Two brokers with their sidecars, and a group with dead letters."""
    with console_group(tmp_path_factory.mktemp("orders")) as started:
        bury(started.name_server, "billing", [body_of(number) for number in range(2)])
        yield started


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with browser() as started:
        yield started


def orders(page: Page, left: Iterator[int]) -> list[str]:
    """Where orders go, which reach nobody: each is told that it has sent one, and what is left."""
    given: list[str] = []

    def obey(route: Route, request: Request) -> None:
        given.append(urlsplit(request.url).path)
        if len(given) == 1:
            page.evaluate("location.hash = '#/letters?group=audit'")
        answer = {"group": "g", "sent": {"t": 1}, "passed_over": [], "passed_over_count": 0, "left": next(left)}
        route.fulfill(status=200, content_type="application/json", body=json.dumps(answer))

    page.route("**/resend", obey)
    return given


@pytest.mark.parametrize(
    ("name", "verb", "path"),
    [("Send 2 again", "Send 2 again", "/v1/dead-letters/billing/resend"),
     ("Send dead letter 1 again", "Send it again", "/v1/dead-letters/billing/0/1/resend")],
    ids=["all", "one"],
)  # fmt: skip
def test_what_was_asked_about_is_sent_though_another_group_is_looked_at_by_then(
    group: Group, chromium: Browser, name: str, verb: str, path: str
) -> None:
    """The question is about one group's dead letters, and the page moves on to another's before it is answered."""
    with page_at(chromium, f"{group.console}") as page:
        page.evaluate("location.hash = '#/letters?group=billing'")
        given = orders(page, iter([0]))
        page.get_by_role("button", name=name).click()
        dialog = page.get_by_role("dialog")
        expect(dialog).to_be_visible()
        page.evaluate("location.hash = '#/letters?group=audit'")
        expect(page.get_by_role("combobox", name="Group")).to_have_value("audit")
        dialog.get_by_role("button", name=verb).click()
        expect(dialog).to_be_hidden()
        expect(page.locator(".outcome")).to_contain_text("Sent again: 1 to t")

    assert given == [path]


def test_an_order_that_takes_several_goes_on_with_the_group_it_was_given_for(group: Group, chromium: Browser) -> None:
    """Between the first and the second batch somebody looks at another group, which nobody was asked about."""
    with page_at(chromium, f"{group.console}") as page:
        page.evaluate("location.hash = '#/letters?group=billing'")
        given = orders(page, iter([1, 0]))
        page.get_by_role("button", name="Send 2 again").click()
        page.get_by_role("dialog").get_by_role("button", name="Send 2 again").click()
        expect(page.get_by_role("combobox", name="Group")).to_have_value("audit")
        expect(page.locator(".outcome")).to_contain_text("Sent again: 2 to t")
        expect(page.get_by_role("button", name="Stop")).to_have_count(0)

    assert given == ["/v1/dead-letters/billing/resend"] * 2


def test_a_token_that_is_pasted_into_an_open_page_leaves_the_address_too(group: Group, chromium: Browser) -> None:
    """The browser loads nothing anew for a fragment: the page itself takes the token out, and uses it."""
    with page_at(chromium, group.console.partition("#")[0]) as page:
        expect(page.get_by_role("button", name="Give a token").first).to_be_visible()
        page.evaluate(f"location.hash = '#token={TOKEN}'")
        expect(page.get_by_role("button", name="Token: change or forget it")).to_be_visible()

        assert TOKEN not in page.url


def test_an_address_with_a_code_opens_the_page_once(group: Group, chromium: Browser) -> None:
    """The page exchanges the code for a session; the same address opens nothing a second time, and says what to do."""
    address = group.console.partition("#")[0]
    code = group.sidecars[0].post("/v1/console/codes", {}, token=TOKEN).json()["code"]

    with page_at(chromium, f"{address}#code={code}") as page:
        expect(page.get_by_role("button", name="Token: change or forget it")).to_be_visible()
        assert code not in page.url
        assert TOKEN not in page.evaluate("JSON.stringify(sessionStorage)")
    with page_at(chromium, f"{address}#code={code}") as page:
        expect(page.locator(".banner")).to_contain_text("`gantry console` prints another")
