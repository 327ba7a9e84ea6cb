"""The list of groups of `gantry console` in a real browser: groups, faults, keys, both themes, the way to a console.

A twin repeats a test without the rule that it checks, and finds the fault: so the test can fail.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, final

import httpx
import msgspec
import pytest
from admin_scene import TOKEN, SidecarChild, write_token_files
from console_browser import CONTRASTS, OVERFLOW, Scheme, accessibility_violations, browser, page_at
from playwright.sync_api import Browser, expect

from gantry_cli.console import groups_page
from gantry_cli.console.backend import SidecarAccess
from gantry_cli.console.documents import ConditionSummary, GroupSummary, ShardSummary
from gantry_cli.console.groups_page import GroupsPage
from gantry_cli.console.http import SidecarUnavailable
from gantry_cli.console.local_groups import LocalDirectory
from gantry_cli.errors import CliError
from gantry_testing.loop_thread import LoopThread

pytestmark = pytest.mark.needs_browser

HOSTILE: Final = "<img src=x onerror='window.broken=1'>\u202e"


def shard(number: int, **fields: object) -> ShardSummary:
    made = ShardSummary(
        number=number, master=f"orders-{number}-master-0", epoch=3, in_sync=1, at_risk="64Ki", is_durability_met=True
    )
    return msgspec.structs.replace(made, **fields)


ORDERS: Final = GroupSummary(
    id="shop/orders", name="orders", place="shop", phase="Ready", ready="2/2", shards=[shard(0), shard(1)],
    observed_ms=1_767_225_600_000,
)  # fmt: skip
BILLS: Final = GroupSummary(
    id="bank/bills", name="bills", place="bank", phase="Unavailable", ready="0/1",
    shards=[shard(0, master="", in_sync=None, at_risk="unknown", is_durability_met=False)],
    conditions=[ConditionSummary(type="Available", status="False", reason="NoMaster", message=f"shards 0 {HOSTILE}")],
)  # fmt: skip


@final
class ScriptedGroups:
    """A directory of groups, one of which has a real sidecar."""

    title = "context test, all namespaces"

    def __init__(self, sidecar: SidecarChild) -> None:
        self.sidecar = sidecar
        self.groups = [ORDERS, BILLS]
        self.fault = ""

    def read(self) -> list[GroupSummary]:
        if self.fault:
            raise CliError(self.fault)
        return self.groups

    def sidecars(self, group: GroupSummary) -> OneSidecar:
        return OneSidecar(group.id, self.sidecar)


@final
class OneSidecar:
    """The sidecars of one group: a real one for `shop/orders`, and none for the others."""

    def __init__(self, name: str, sidecar: SidecarChild) -> None:
        self.name = name
        self._sidecar = sidecar

    def names(self) -> list[str]:
        return ["orders-0-master-0"] if self.name == ORDERS.id else ["bills-0-master-0"]

    def new_access(self, name: str) -> SidecarAccess:
        if self.name != ORDERS.id:
            raise SidecarUnavailable("you may not create pods/exec in namespace bank")
        answer = self._sidecar.post("/v1/console/codes", {}, token=TOKEN)
        return SidecarAccess(answer.json()["code"], b"")

    def connect(self, name: str) -> socket.socket:
        host, _, port = self._sidecar.address.rpartition(":")
        return socket.create_connection((host, int(port)), 10)


@contextmanager
def served(page: GroupsPage) -> Iterator[GroupsPage]:
    """Serve a page in a loop of its own during the context."""
    with LoopThread("console") as loop:
        loop.run(page.start())
        try:
            yield page
        finally:
            loop.run(page.close())


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with browser() as started:
        yield started


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ScriptedGroups]:
    folder = tmp_path_factory.mktemp("sidecar")
    sidecar = SidecarChild(folder / "store", *write_token_files(folder))
    yield ScriptedGroups(sidecar)
    sidecar.child.end()


@pytest.fixture
def groups(directory: ScriptedGroups, monkeypatch: pytest.MonkeyPatch) -> Iterator[GroupsPage]:
    monkeypatch.setattr(groups_page, "READ_INTERVAL_S", 0.1)
    directory.groups, directory.fault = [ORDERS, BILLS], ""
    with served(GroupsPage(directory, lambda line: None)) as page:
        yield page


def test_list_shows_groups_that_need_attention_first(chromium: Browser, groups: GroupsPage) -> None:
    """Masters, conditions, data at risk and the age of the status; untrusted text stays text."""
    with page_at(chromium, groups.new_address()) as page:
        cards = page.locator("[data-group]")
        expect(cards).to_have_count(2)
        assert cards.evaluate_all("found => found.map(one => one.dataset.group)") == ["bank/bills", "shop/orders"]
        expect(page.locator("[role=status]")).to_have_text("1 group needs attention")
        bills, orders = cards.nth(0), cards.nth(1)
        expect(bills).to_contain_text("Available is False: NoMaster")
        expect(bills).to_contain_text("<img src=x onerror='window.broken=1'>⟨U+202E⟩")
        expect(bills).to_contain_text("no master")
        expect(orders).to_contain_text("orders-0-master-0")
        expect(orders).to_contain_text("2 shards, 2 masters")
        expect(orders.locator("header")).to_contain_text("old")
        assert page.evaluate("window.broken") is None
        assert "code=" not in page.url

        page.keyboard.press("/")
        page.keyboard.type("orders")
        expect(cards).to_have_count(1)
        expect(page.locator("main")).to_contain_text("1 of 2 groups")


@pytest.mark.verify
def test_list_follows_the_cluster_and_keeps_the_last_data_in_a_fault(
    chromium: Browser, groups: GroupsPage, directory: ScriptedGroups
) -> None:
    """A changed status appears without a reload; an API server that fails is named, and the old list stays."""
    with page_at(chromium, groups.new_address()) as page:
        expect(page.locator("[data-group]")).to_have_count(2)
        directory.groups = [ORDERS]
        expect(page.locator("[data-group]")).to_have_count(1)
        expect(page.locator("[role=status]")).to_have_text("The group is healthy")
        directory.fault = "you may not list brokergroups in all namespaces"
        expect(page.locator(".banner")).to_contain_text("you may not list brokergroups in all namespaces")
        expect(page.locator("[data-group]")).to_have_count(1)


def test_console_of_a_group_opens_and_leads_back(chromium: Browser, groups: GroupsPage) -> None:
    """One click to the group's console, which is logged in, and back to the list, which still is."""
    with page_at(chromium, groups.new_address()) as page:
        list_url = page.url
        page.get_by_role("button", name="Open the console of orders").click()
        expect(page.get_by_role("navigation", name="Views")).to_be_visible()
        expect(page.locator("[data-connection]")).to_have_attribute("data-connection", "live")
        assert "/console/" in page.url and not page.url.startswith(list_url)
        assert page.evaluate("sessionStorage.getItem('gantry-token')").startswith("session-")
        back = page.get_by_role("link", name="All groups")
        expect(back).to_have_attribute("href", list_url)
        back.click()
        expect(page.locator("[data-group]")).to_have_count(2)


def test_group_that_cannot_be_reached_shows_the_reason(chromium: Browser, groups: GroupsPage) -> None:
    """The page stays, with the reason at the group, also after the list has been read again."""
    with page_at(chromium, groups.new_address()) as page:
        page.get_by_role("button", name="Open the console of bills").click()
        fault = page.locator("[data-group='bank/bills'] .note.bad")
        expect(fault).to_contain_text("bills-0-master-0: you may not create pods/exec in namespace bank")
        with page.expect_response(lambda response: response.url.endswith("/v1/broker-groups")):
            pass
        expect(fault).to_contain_text("pods/exec")


def test_used_code_shows_how_to_log_in(chromium: Browser, groups: GroupsPage) -> None:
    """An address from a terminal's history shows nothing of the groups."""
    address = groups.new_address()
    with page_at(chromium, address) as page:
        expect(page.locator("[data-group]")).to_have_count(2)
    with page_at(chromium, address) as page:
        expect(page.locator(".banner")).to_contain_text("gantry console")
        expect(page.locator("[data-group]")).to_have_count(0)


@pytest.mark.parametrize("scheme", ["dark", "light"])
@pytest.mark.parametrize("size", ["wide", "narrow"])
def test_list_is_readable_on_every_screen(chromium: Browser, groups: GroupsPage, scheme: Scheme, size: str) -> None:
    """In both themes text has a contrast of at least 4.5, and a phone needs no scrolling to the side."""
    with page_at(chromium, groups.new_address(), size=size, scheme=scheme) as page:
        expect(page.locator("[data-group]")).to_have_count(2)
        contrasts = page.evaluate(CONTRASTS)
        assert len(contrasts) > 20 and min(contrasts)[0] >= 4.5, min(contrasts)
        assert page.evaluate(OVERFLOW) <= 0
        page.keyboard.press("t")
        assert page.evaluate("document.documentElement.dataset.theme") != scheme


@pytest.mark.needs_axe
@pytest.mark.parametrize("scheme", ["dark", "light"])
def test_list_has_no_serious_violation(chromium: Browser, groups: GroupsPage, scheme: Scheme) -> None:
    """Nothing that axe-core calls serious or critical, with faults of groups, and without any group."""
    with page_at(chromium, groups.new_address(), scheme=scheme, motion="reduce") as page:
        expect(page.locator("[data-group]")).to_have_count(2)
        assert accessibility_violations(page) == []
        page.get_by_label("Filter groups").fill("unknown")
        expect(page.locator(".empty")).to_be_visible()
        assert accessibility_violations(page) == []


def test_files_of_the_page_are_a_fixed_set(groups: GroupsPage) -> None:
    """No path leads to another file of this machine, and data needs a login; the twin path is one of the page."""
    base = groups.new_address().partition("/#")[0]
    for path in ("/pyproject.toml", "/console/js/../../app.py", "/console/js/%2e%2e/index.html", "/console/index.html"):
        assert httpx.get(base + path, timeout=60).status_code in (400, 404), path
    assert httpx.get(f"{base}/v1/broker-groups", timeout=60).status_code == 401
    page = httpx.get(f"{base}/groups.js", timeout=60)
    assert page.status_code == 200 and "default-src 'none'" in page.headers["content-security-policy"]


def test_local_folder_without_a_group_is_listed_with_the_reason(tmp_path: Path) -> None:
    """A folder whose group does not run is shown, and has no console."""
    [found] = LocalDirectory([tmp_path / "crew"]).read()
    assert (found.name, found.can_open) == ("crew", False)
    assert "no group runs" in found.fault
