"""The console in a real browser: roles, moving offsets, messages as plain text, keys instead of a mouse.

A twin repeats a test without the rule that it checks, and finds the fault: so the test can fail.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest
from admin_scene import TOKEN, wait_for
from console_browser import CONTRASTS, OVERFLOW, Scheme, browser, page_at
from console_scene import (
    Group,
    Load,
    body_of,
    console_group,
    fullest_queue,
    store_dead_letters,
    sum_of_queue_ends,
)
from playwright.sync_api import Browser, Page, expect

from gantry_client import Message, ProducerSettings
from gantry_client.sync import Producer

pytestmark = pytest.mark.needs_browser

UNKNOWN = "\N{EN DASH}"
LEVELS = ("wrote", "committed", "flushed", "acked", "confirmed")
VIEWS = ("overview", "topics", "groups", "messages", "letters", "search", "tail", "accounts")
HOSTILE = (
    '<img src=x onerror="window.broken=1"><script>window.broken=2</script><svg onload="window.broken=3">'
    "</pre></li>{{7*7}}\u202egnp.exe\u2066\u200b"
)


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Group]:
    """A master and a slave with their sidecars, some messages and some dead letters."""
    with console_group(tmp_path_factory.mktemp("console")) as started:
        store_dead_letters(started.name_server, "billing", [body_of(number) for number in range(3)])
        yield started


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with browser() as started:
        yield started


CLOSED_AND_ASKED_AGAIN = """() => {
    document.querySelector("dialog").close();
    document.body.dispatchEvent(new KeyboardEvent("keydown", {key: "?", bubbles: true}));
}"""
"""The browser delivers the close event of a dialog late: the next dialog may be open by then."""


COLOURS_OF_TONE = """([tone, parts]) => {
    const colours = (prepare) => {
        const made = document.createElement("div");
        prepare(made);
        document.body.append(made);
        const {backgroundColor, color} = getComputedStyle(made);
        made.remove();
        return [backgroundColor, color];
    };
    const expected = colours((made) => Object.assign(made.style, {
        background: `var(--${tone}-ground)`, color: `var(--${tone})`}));
    return [expected, ...parts.map((part) => colours((made) => { made.className = `${part} ${tone}`; }))];
}"""
"""The colours of a tone's tokens, then those of each part that has the tone."""


def by_id(group: Group, topic: str, number: str | None) -> int:
    """How many messages the broker's index has of this id by now: it is built a moment after they are acknowledged."""
    answer = group.sidecars[0].get(f"/v1/messages?topic={topic}&id={number}", token=TOKEN)
    return len(answer.json().get("messages", []))


def by_key(group: Group, topic: str, key: str) -> int:
    """The same of a key."""
    answer = group.sidecars[0].get(f"/v1/messages?topic={topic}&key={quote(key)}", token=TOKEN)
    return len(answer.json().get("messages", []))


def shown_offsets(page: Page) -> dict[str, int | None]:
    """Return the offsets that the ledger shows."""
    found: dict[str, int | None] = page.evaluate(
        "Object.fromEntries([...document.querySelectorAll('[data-offset]')].map((one) =>"
        " [one.dataset.offset, one.dataset.value === '' ? null : Number(one.dataset.value)]))"
    )
    return found


@pytest.mark.verify
def test_topology_matches_the_group(group: Group, chromium: Browser) -> None:
    """Every broker has a card with its role, its readiness and its master; the shard has its epoch and is healthy."""
    epoch = group.status()["epoch"]
    with page_at(chromium, group.console) as page:
        cards = page.locator("[data-member]")
        expect(cards).to_have_count(2)
        master, slave = page.locator('[data-role="master"]'), page.locator('[data-role="slave"]')
        expect(master).to_have_attribute("data-state", "ready")
        expect(slave).to_have_attribute("data-state", "ready")
        expect(master).to_contain_text(group.brokers[0].address)
        expect(slave).to_contain_text(f"follows {group.status()['reported_role']['ha_address']}")  # type: ignore[index]
        expect(page.locator("[data-epoch]")).to_have_attribute("data-epoch", str(epoch))
        expect(page.get_by_role("status").first).to_contain_text("Healthy: 1 shard, 2 brokers")
        page.get_by_role("button", name="Details of orders-0 · 2").click()
        expect(page.get_by_role("dialog")).to_contain_text(str(group.status(2)["store_uuid"]))


def test_token_is_removed_from_the_address_and_kept_for_the_tab(group: Group, chromium: Browser) -> None:
    """The fragment is removed at once; a reload keeps the token; another tab has none."""
    with page_at(chromium, group.console) as page:
        assert TOKEN not in page.url
        page.reload()
        expect(page.get_by_role("button", name="Token: change or remove")).to_be_visible()
    with page_at(chromium, group.console.partition("#")[0]) as page:
        expect(page.get_by_role("button", name="Enter a token")).to_be_visible()


ACKNOWLEDGEMENT_TEXTS = """async ([quantiles, sends]) => {
    const { record } = await import("/console/js/series.js");
    const { acknowledgementTexts } = await import("/console/js/overview.js");
    const [median_ms, p99_ms] = quantiles;
    const ack_wait = { sends, at_once: 0, median_ms, p99_ms, buckets: Array(32).fill(0) };
    const rates = { put_per_second: 1, put_bytes_per_second: 1, get_per_second: 1, get_bytes_per_second: 1, ack_wait };
    const status = { rates: { ...rates, answer_ms: 1 }, role: "master", loop_state: { state: "running" } };
    record({ members: [{ is_reachable: true, status }] }, Date.now());
    return acknowledgementTexts();
}"""


def test_acknowledgement_latency_beyond_all_buckets_is_over_a_limit(group: Group, chromium: Browser) -> None:
    """A quantile in the last bucket has no upper limit; a null without sends is no such quantile."""
    with page_at(chromium, group.console) as page:
        texts = [
            page.evaluate(ACKNOWLEDGEMENT_TEXTS, [quantiles, sends])
            for quantiles, sends in (([2.048, 4.096], 9), ([2.048, None], 9), ([None, None], 9), ([None, None], 0))
        ]

    assert texts == [
        ["4.10 ms", "99th percentile, at most"],
        ["over 18 min", "99th percentile"],
        ["over 18 min", "99th percentile"],
        [UNKNOWN, "no sends now"],
    ]


NOT_FLUSHED_TEXTS = """async (parts) => {
    const { notFlushedTexts } = await import("/console/js/overview.js");
    const machine = ([bytes, seconds]) => ({ loss: "machine", bytes, seconds });
    const status = (part) => ({ at_risk: [{ loss: "process", bytes: 0, seconds: 0 }, machine(part)] });
    return notFlushedTexts(parts.map((part) => ({ lastMaster: part === null ? null : { status: status(part) } })));
}"""


def test_bytes_that_are_not_flushed_are_unknown_if_those_of_one_shard_are(group: Group, chromium: Browser) -> None:
    """An unknown number is never zero: neither the bytes of a shard, nor their age."""
    known, old, unknown = [2_048, 1.5], [1_024, None], [None, None]
    with page_at(chromium, group.console) as page:
        texts = [
            page.evaluate(NOT_FLUSHED_TEXTS, parts)
            for parts in ([known, [0, 0.0]], [[0, 0.0]], [known, old], [known, unknown], [known, None], [])
        ]

    assert texts == [
        ["2.00 KiB", "up to 1.5 s old", "warn"],
        ["0 B", "nothing at risk", "good"],
        ["3.00 KiB", "of unknown age", "warn"],
        [UNKNOWN, "unknown", "warn"],
        [UNKNOWN, "unknown", "warn"],
        [UNKNOWN, "unknown", "warn"],
    ]


GREATEST_LAG = """async (shards) => {
    const { greatestLag } = await import("/console/js/overview.js");
    const status = (lags) => ({ slaves: lags.map((lag) => ({ behind_bytes: lag })) });
    return greatestLag(shards.map((lags) => ({ master: lags === null ? null : { status: status(lags) } })));
}"""


def test_replication_lag_is_unknown_if_that_of_one_slave_is(group: Group, chromium: Browser) -> None:
    """The slave with an unknown lag may be the slowest, and so may one of a shard without a master."""
    cases: tuple[list[list[int | None] | None], ...] = ([[5, 7], [6]], [[0]], [[5, None]], [[5], None], [[]])
    with page_at(chromium, group.console) as page:
        lags = [page.evaluate(GREATEST_LAG, shards) for shards in cases]

    assert lags == [7, 0, None, None, None]


@pytest.mark.verify
def test_ledger_moves_under_load_and_matches_the_status(group: Group, chromium: Browser) -> None:
    """Offsets in the page rise with the load, lie between two answers of `/v1/status`, and end at the last one."""
    with page_at(chromium, group.console) as page:
        expect(page.locator("[data-connection]")).to_have_attribute("data-connection", "live")
        with Load(group.name_server, per_second=200):
            seen: list[int] = []
            for _ in range(4):
                before = group.status()["wrote"]
                wait_for(lambda before=before: (shown_offsets(page)["wrote"] or 0) > before, "the page gets there")  # type: ignore[misc]
                offsets = shown_offsets(page)
                assert offsets["wrote"] is not None
                assert before < offsets["wrote"] <= group.status()["wrote"]  # type: ignore[operator]
                seen.append(offsets["wrote"])
            moved = page.evaluate("document.querySelector('[data-lane=flushed]').style.getPropertyValue('--x')")
            wait_for(
                lambda: page.inner_text('[data-series="Messages/in"]') not in (UNKNOWN, "0/s"), "the rate is there"
            )
            wait_for(lambda: "ms" in page.inner_text('[data-series="Acknowledgement latency/99%"]'), "waits are there")
        assert seen == sorted(set(seen)), "it rises"
        assert 0.0 < float(moved) <= 1.0

        def is_level() -> bool:
            status, offsets = group.status(), shown_offsets(page)
            slave = status["slaves"][0]  # type: ignore[index]
            return [offsets[name] for name in LEVELS] == [status[name] for name in LEVELS] and (
                offsets[f"slave-{slave['slave_id']}"] == slave["received"] == status["wrote"]
            )

        wait_for(is_level, "page and status say the same, exactly")
        for loss in ("process", "machine", "master"):
            expect(page.locator(f'[data-risk="{loss}"] .risk-bytes')).to_have_text("0 B")


SLOW_GROUP_DOCUMENTS = """() => {
    const real = window.fetch;
    window.fetch = async (path, options) => {
        const answer = await real(path, options);
        if (path === "/v1/group") await new Promise((resolve) => setTimeout(resolve, 1500));
        return answer;
    };
}"""
"""Each document of the group is 1.5 s old when the page gets it: events have overtaken it."""

REMEMBERED = """() => {
    window.wrote = [];
    setInterval(() => {
        const shown = document.querySelector("[data-offset=wrote]")?.dataset.value;
        if (shown && Number(shown) !== window.wrote.at(-1)) window.wrote.push(Number(shown));
    }, 20);
}"""


@pytest.mark.verify
def test_late_group_document_sets_no_offset_back(group: Group, chromium: Browser) -> None:
    """Offsets of events are newer than the document and are kept; its other values are used."""
    with page_at(chromium, group.console) as page, Load(group.name_server, per_second=200):
        expect(page.locator("[data-connection]")).to_have_attribute("data-connection", "live")
        page.evaluate(SLOW_GROUP_DOCUMENTS)
        page.evaluate(REMEMBERED)
        wait_for(lambda: page.evaluate("window.wrote.length") >= 20, "many offsets were shown")
        seen = page.evaluate("window.wrote")

    assert seen == sorted(seen)


@pytest.mark.verify
def test_layout_does_not_shift_while_numbers_change(group: Group, chromium: Browser) -> None:
    """Under load, after the first drawing, the browser measures next to no layout shift."""
    with page_at(chromium, group.console) as page, Load(group.name_server, per_second=100):
        expect(page.locator("[data-offset]")).to_have_count(6)
        wait_for(lambda: page.inner_text('[data-series="Messages/in"]') != UNKNOWN, "everything is drawn")
        page.evaluate(
            "window.shift = 0; new PerformanceObserver((list) => {"
            " for (const one of list.getEntries()) shift += one.value; }).observe({type: 'layout-shift'})"
        )
        first = shown_offsets(page)["wrote"]
        wait_for(lambda: (shown_offsets(page)["wrote"] or 0) > (first or 0) + 100_000, "a lot has moved")
        shift = page.evaluate("window.shift")

    assert shift < 0.02


@pytest.mark.verify
@pytest.mark.parametrize("scheme", ["dark", "light"])
@pytest.mark.parametrize("size", ["wide", "narrow"])
def test_every_view_fits_and_has_enough_contrast(
    group: Group, chromium: Browser, tmp_path: Path, size: str, scheme: Scheme
) -> None:
    """1280 and 390 px, dark and light: nothing is wider than the page, and every text has a contrast of 4.5."""
    with page_at(chromium, group.console, size=size, scheme=scheme, motion="reduce") as page:
        expect(page.locator("[data-offset]")).to_have_count(6)
        for view in VIEWS:
            page.evaluate("(view) => { location.hash = view; }", f"/{view}")
            if view == "messages":
                page.evaluate("location.hash = '/messages?how=newest&topic=billing-input&queue=0'")
            expect(page.locator("main h1")).to_be_attached()
            wait_for(lambda: "Loading…" not in page.inner_text("main"), "the tables are there")
            if view in ("topics", "groups"):
                page.locator("main .opener").first.click()
            contrasts = page.evaluate(CONTRASTS)
            assert page.evaluate(OVERFLOW) <= 0, f"{view} is too wide"
            assert len(contrasts) > 10
            assert [one for one in contrasts if one[0] < 4.5] == [], view
            picture = page.screenshot(path=tmp_path / f"{view}-{size}-{scheme}.png", full_page=True)
            assert len(picture) > 10_000


@pytest.mark.parametrize("tone", ["good", "warn", "bad"])
def test_parts_have_the_colours_of_their_tone(group: Group, chromium: Browser, tone: str) -> None:
    """A verdict, a badge, a note and a banner (never a good one) have the two colours of their tone."""
    with page_at(chromium, group.console) as page:
        parts = ["verdict", "badge", "note", *(["banner"] if tone != "good" else [])]
        expected, *found = page.evaluate(COLOURS_OF_TONE, [tone, parts])

    assert found == [expected] * len(found)


def test_theme_choice_is_remembered(group: Group, chromium: Browser) -> None:
    """The system's scheme is used until the user chooses; the choice survives a reload."""
    ground = "getComputedStyle(document.documentElement).backgroundColor"
    with page_at(chromium, group.console, scheme="light") as page:
        light = page.evaluate(ground)
        page.emulate_media(color_scheme="dark")
        wait_for(lambda: page.evaluate(ground) != light, "the system's other scheme is shown")
        page.emulate_media(color_scheme="light")
        wait_for(lambda: page.evaluate(ground) == light, "and its first one again")
        page.get_by_role("button", name="Dark or light").click()
        dark = page.evaluate(ground)
        page.reload()
        page.wait_for_selector("#main")

        assert (page.evaluate(ground), dark != light) == (dark, True)


@pytest.mark.verify
def test_reduced_motion_is_respected(group: Group, chromium: Browser) -> None:
    """With reduced motion there is no animation at all; the twin without it has some."""
    running = "document.getAnimations().length"
    with page_at(chromium, group.console, motion="reduce") as page:
        expect(page.locator('[data-role="slave"]')).to_have_attribute("data-state", "ready")
        assert page.evaluate(running) == 0
    with page_at(chromium, group.console) as page:
        expect(page.locator('[data-role="slave"]')).to_have_attribute("data-state", "ready")
        wait_for(lambda: page.evaluate(running) > 0, "something moves")


def test_message_is_never_interpreted_as_markup(group: Group, chromium: Browser) -> None:
    """Body, tag, key and properties that look like markup are shown as text; invisible characters as codes."""
    with Producer(group.name_server, "hostile", settings=ProducerSettings(send_timeout_ms=60_000)) as producer:
        producer.send(
            Message(
                "hostile", HOSTILE.encode(), tags="<b>tag</b>", keys=["<i>key</i>"], properties={"<u>n</u>": HOSTILE}
            )
        )
        producer.send(Message("hostile", bytes(range(256))))
    wait_for(lambda: by_key(group, "hostile", "<i>key</i>") == 1, "the index has its key")
    with page_at(chromium, f"{group.console.partition('#')[0]}#/messages?how=key&topic=hostile&key=<i>key</i>") as page:
        page.wait_for_selector(".message-whole")
        text = page.inner_text(".body")
        whole = page.inner_text(".message-whole")

        assert '<img src=x onerror="window.broken=1"><script>' in text
        assert "⟨U+202E⟩gnp.exe⟨U+2066⟩⟨U+200B⟩" in text
        assert "<u>n</u>" in whole and "<i>key</i>" in whole
        assert page.locator("main :is(img, script, u, b b, i:not(.swatch))").count() == 0
        assert page.evaluate("window.broken") is None
        page.evaluate("location.hash = '/messages?how=newest&topic=hostile&queue=9'")
        expect(page.get_by_role("alert")).to_contain_text("queue not found")


@pytest.mark.verify
def test_content_security_policy_refuses_markup(group: Group, chromium: Browser) -> None:
    """The second line of defence: the policy forbids text to become markup, and foreign scripts."""
    answer = httpx.get(f"{group.sidecars[0].url}/console/")
    policy = answer.headers["content-security-policy"]
    with page_at(chromium, group.console, expects_errors=True) as page:
        refusal = page.evaluate(
            "() => { try { document.body.innerHTML = '<b>x</b>'; return 'taken'; } catch (e) { return e.name; } }"
        )

    assert refusal == "TypeError"
    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self';")
    assert "unsafe" not in policy
    assert "default-src 'none'" in httpx.get(f"{group.sidecars[0].url}/v1/status").headers["content-security-policy"]


@pytest.mark.verify
def test_durations_are_rounded_once(group: Group, chromium: Browser) -> None:
    """An hour is not lost where 59 minutes and some seconds are rounded up."""
    with page_at(chromium, group.console) as page:
        page.evaluate("window.format = import(new URL('js/format.js', document.baseURI))")
        shown = page.evaluate("window.format.then(module => [0, 7199, 10770, 10799, 90000].map(module.duration))")

    assert shown == ["0 s", "120 min", "3 h 00 min", "3 h 00 min", "25 h 00 min"]


@pytest.mark.verify
def test_dead_letters_are_resent_one_and_all(group: Group, chromium: Browser) -> None:
    """After a confirmation, and with a token that may: one arrives in its topic, with its id; then all of them."""
    wait_for(lambda: sum_of_queue_ends(group, "billing-input") == 3, "the topic is known")
    url = group.console.partition("#")[0]
    with page_at(chromium, f"{url}#/letters?group=billing") as page:
        expect(page.locator("[data-message]")).to_have_count(3)
        first = page.locator("[data-message]").last
        wanted = first.get_attribute("data-message")
        page.get_by_role("button", name="Resend dead letter 0").click()
        expect(page.get_by_role("dialog")).to_contain_text("billing-input")
        page.get_by_role("dialog").get_by_role("button", name="Cancel").click()
        page.get_by_role("button", name="Resend dead letter 0").click()
        page.get_by_role("dialog").get_by_role("button", name="Resend 1", exact=True).click()
        page.get_by_role("textbox", name="Token").fill(TOKEN)
        page.get_by_role("button", name="Use token").click()
        expect(page.locator(".outcome")).to_contain_text("Resend complete: 1 sent")
        wait_for(lambda: by_id(group, "billing-input", wanted) >= 2, "the index has it")
        assert by_id(group, "billing-input", wanted) == 2, "once, and again; and not for the order that was cancelled"

        page.get_by_role("checkbox", name="resent before, too").check()
        page.get_by_role("button", name="Preview resend").click()
        page.get_by_role("dialog").get_by_role("button", name="Resend 3").click()
        expect(page.locator(".outcome")).to_contain_text("Resend complete: 3 sent")
        wait_for(lambda: sum_of_queue_ends(group, "billing-input") == 7, "they have arrived")


@pytest.mark.verify
def test_topics_and_groups_link_to_their_messages(group: Group, chromium: Browser) -> None:
    """A topic opens to its queues, a queue to its newest messages, and a message to its whole content."""
    with page_at(chromium, group.console) as page:
        page.get_by_role("link", name="Topics").click()
        page.get_by_role("button", name="billing-input").click()
        page.get_by_role("button", name=f"Newest messages of billing-input, queue {fullest_queue(group)}").click()
        page.locator(".message-open").first.click()
        expect(page.locator(".body")).to_contain_text('"currency": "EUR"')
        page.get_by_role("link", name="Groups").click()
        expect(page.locator('[data-group="billing"]')).to_be_visible()


@pytest.mark.verify
def test_console_is_usable_with_the_keyboard_alone(group: Group, chromium: Browser) -> None:
    """Tab moves visibly through skip link, tools, views and content; keys select views; `?` helps, Escape closes."""
    focused = "document.activeElement.getAttribute('aria-label') ?? document.activeElement.textContent"
    with page_at(chromium, group.console) as page:
        expect(page.locator("[data-offset]")).to_have_count(6)
        order = []
        for _ in range(15):
            page.keyboard.press("Tab")
            order.append(page.evaluate(focused))
            outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
            assert outline != "none", f"{order[-1]} has the focus and does not look like it"
        assert order[0] == "Skip to content"
        assert [name.partition(",")[0] for name in order[5:13]] == [
            "Overview", "Topics", "Groups", "Messages", "Dead letters", "Search", "Live tail", "Accounts",
        ]  # fmt: skip
        assert order[13] == "Details of orders-0 · 1"

        page.keyboard.press("Enter")
        expect(page.get_by_role("dialog")).to_be_visible()
        page.keyboard.press("Escape")
        expect(page.get_by_role("dialog")).to_be_hidden()
        wait_for(lambda: page.evaluate(focused) == order[14] or "Details" in page.evaluate(focused), "it is given back")
        page.keyboard.press("?")
        expect(page.get_by_role("dialog")).to_contain_text("go to a view")
        page.keyboard.press("Escape")
        expect(page.get_by_role("dialog")).to_be_hidden()
        page.keyboard.press("?")
        page.evaluate(CLOSED_AND_ASKED_AGAIN)
        expect(page.get_by_role("dialog")).to_contain_text("go to a view")
        page.keyboard.press("Escape")
        page.keyboard.press("2")
        expect(page.locator("main h1")).to_have_text("Topics")
        page.keyboard.press("/")
        page.keyboard.type("billing")
        expect(page.locator("[data-topic]")).to_have_count(1)
        page.keyboard.press("Tab")
        page.keyboard.press("Tab")
        page.keyboard.press("Tab")
        page.keyboard.press("Enter")
        expect(page.locator(".opener")).to_have_attribute("aria-expanded", "true")


@pytest.mark.verify
def test_changes_are_announced_to_screen_readers(group: Group, chromium: Browser) -> None:
    """The headline is a polite live region, tables can be reached and have names, decoration is hidden."""
    with page_at(chromium, group.console) as page:
        assert page.locator(".verdict[role=status][aria-live=polite]").count() == 1
        page.get_by_role("link", name="Topics").click()
        box = page.locator(".table-box")
        expect(box).to_have_attribute("tabindex", "0")
        expect(box).to_have_attribute("aria-label", "Topics table")
        assert page.locator("svg:not([aria-hidden])").count() == 0
