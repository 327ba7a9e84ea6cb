"""The views of messages in a real browser: picked topics, pages over two shards, one message, links, and failures."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from admin_scene import (
    READ_TOKEN,
    TOKEN,
    BrokerChild,
    Child,
    SidecarChild,
    broker_process,
    sidecar_process,
    wait_for,
    write_token_files,
)
from console_browser import OVERFLOW, browser, page_at
from console_scene import store_dead_letters
from playwright.sync_api import Browser, Locator, Page, Route, expect

from gantry_client import (
    Admin,
    ConsumerSettings,
    Message,
    Producer,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    StartFrom,
)
from gantry_testing.local import TOPIC
from gantry_testing.ports import free_ports
from gantry_wire.commands.admin import TopicConfig
from gantry_wire.commands.clients import MessageQueue

pytestmark = pytest.mark.needs_browser

SHARDS = ("orders-0", "orders-1")
SENT = 60
"""Messages of the topic `orders`, in turn on two shards with two queues each."""

TOPICS = 450
"""Topics without messages, for the list in which a topic is picked."""

EXACT = '{"order": 12345678901234567890, "total": 1.10, "note": "<b>x</b>", "items": [], "order": 2}'
"""JSON whose numbers and repeated keys a JavaScript object cannot hold."""


class Shards:
    """Two shards of one broker each, with sidecars that are peers, and messages."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        ports = free_ports(3)
        self.name_server = f"127.0.0.1:{ports[0]}"
        listen = ["--listen", self.name_server, "--data", str(folder / "ns")]
        stack.callback(Child("gantry_nameserver", listen, "name server listening").end)
        options = write_token_files(folder / "tokens")
        self.brokers: list[BrokerChild] = []
        self.sidecars: list[SidecarChild] = []
        for name, port, peer in zip(SHARDS, ports[1:], reversed(ports[1:]), strict=True):
            conf = {"brokerName": name, "brokerClusterName": "shop", "namesrvAddr": self.name_server}
            broker = BrokerChild(folder / name, **conf, traceTopicEnable="true")
            stack.callback(broker.child.end)
            sidecar = SidecarChild(
                broker.store, "--open-reads", *options, "--peer", f"http://127.0.0.1:{peer}", listen=f"127.0.0.1:{port}"
            )
            stack.callback(sidecar.child.end)
            self.brokers.append(broker)
            self.sidecars.append(sidecar)

    @property
    def console(self) -> str:
        return f"{self.sidecars[0].url}/console/#token={TOKEN}"

    def messages(self, topic: str) -> list[dict[str, Any]]:
        """Return the newest messages of a topic on the first shard."""
        return stored(self.sidecars[0], topic)


async def fill(shards: Shards) -> None:
    """Create many topics, send orders to both shards in turn, and one message with JSON that must be shown exactly."""
    semaphore = asyncio.Semaphore(20)

    async def create(admin: Admin, name: str, broker: BrokerChild) -> None:
        async with semaphore:
            config = TopicConfig(topic_name=name, read_queue_nums=2, write_queue_nums=2, perm=6)
            await admin.brokers.put_topic(broker.address, config)

    async with Admin(shards.name_server) as admin, Producer(shards.name_server, "shop") as producer:
        for broker in shards.brokers:
            await create(admin, "orders", broker)
        await create(admin, "exact", shards.brokers[0])
        await create(admin, "second-shard-only", shards.brokers[1])
        await asyncio.gather(*(create(admin, f"load-{number:03d}", shards.brokers[0]) for number in range(TOPICS)))
        for number in range(SENT):
            queue = MessageQueue(topic="orders", broker_name=SHARDS[number % 2], queue_id=number // 2 % 2)
            await producer.send(Message("orders", f"order {number}".encode(), keys=[f"k{number}"]), queue=queue)
            await asyncio.sleep(0.002)  # so that their store times differ, by which shards are merged
        for body in (EXACT, "plain text", json.dumps({"long": "x" * 9000})):
            queue = MessageQueue(topic="exact", broker_name=SHARDS[0], queue_id=1)
            await producer.send(Message("exact", body.encode(), keys=["one", "two"], tags="t"), queue=queue)


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shards]:
    """Two shards with their messages, and a group with a dead letter."""
    with ExitStack() as stack:
        started = Shards(tmp_path_factory.mktemp("shards"), stack)
        for sidecar in started.sidecars:
            sidecar.wait_ready()
        asyncio.run(asyncio.wait_for(fill(started), 120))
        store_dead_letters(started.name_server, "billing", [b"order 7"])
        wait_for(lambda: len(started.messages("exact")) == 3, "the messages can be read")
        yield started


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with browser() as started:
        yield started


def stored(sidecar: SidecarChild, topic: str = TOPIC, token: str | None = None) -> list[dict[str, Any]]:
    """Return the newest messages of a topic that can be read."""
    document = sidecar.get(f"/v1/topics/{topic}/messages", token=token).json()
    found: list[dict[str, Any]] = document.get("messages", [])
    return found


def in_thread(work: Callable[[], object]) -> None:
    """Run work with an event loop of its own, while Playwright's runs in this thread."""
    with ThreadPoolExecutor(1) as threads:
        threads.submit(work).result(60)


def at(shards: Shards, view: str) -> str:
    """Return the address of a view, for a reader without a token."""
    return f"{shards.console.partition('#')[0]}#/{view}"


def options(page: Page) -> Locator:
    """Return the options of the list of topics."""
    return page.get_by_role("listbox", name="Topic").get_by_role("option")


def gists(page: Page) -> list[str]:
    """Return the beginnings of the bodies of the listed messages."""
    return page.locator(".message-gist").all_inner_texts()


def newest_orders(count: int) -> list[str]:
    return [f"order {number}" for number in range(SENT - 1, SENT - 1 - count, -1)]


# -- the picker --------------------------------------------------------------------------------------------------------


def test_topic_is_picked_with_the_keyboard(shards: Shards, chromium: Browser) -> None:
    """Typing filters hundreds of topics, arrows choose an option that screen readers hear, and Enter shows messages."""
    with page_at(chromium, at(shards, "messages")) as page:
        field = page.get_by_role("combobox", name="Topic")
        expect(field).to_have_attribute("aria-expanded", "false")
        field.focus()
        expect(page.locator(".picker-count")).to_contain_text(re.compile(r"4\d\d topics; type to narrow"))
        expect(options(page)).to_have_count(100)
        page.keyboard.type("order")
        expect(options(page)).to_have_text(["orders"])
        page.keyboard.press("ArrowDown")
        expect(options(page)).to_have_attribute("aria-selected", "true")
        assert options(page).get_attribute("id") == field.get_attribute("aria-activedescendant")
        page.keyboard.press("Enter")
        expect(page.locator(".message-gist").first).to_have_text(f"order {SENT - 1}")
        assert page.url.endswith("#/messages?topic=orders")
        expect(field).to_have_attribute("aria-expanded", "false")
        page.reload()
        expect(page.locator(".message-gist").first).to_have_text(f"order {SENT - 1}")
        expect(field).to_have_value("orders")


def test_escape_keeps_the_chosen_topic(shards: Shards, chromium: Browser) -> None:
    """Escape closes the list and restores the name; a topic that only the other shard has is in the list, too."""
    with page_at(chromium, at(shards, "messages?topic=orders")) as page:
        field = page.get_by_role("combobox", name="Topic")
        field.fill("second")
        expect(options(page)).to_have_text(["second-shard-only"])
        page.keyboard.press("Escape")
        expect(page.get_by_role("listbox")).to_be_hidden()
        expect(field).to_have_value("orders")
        field.fill("no such topic")
        expect(page.locator(".picker-count")).to_contain_text("No topic has this text")


def test_topic_is_picked_on_a_phone(shards: Shards, chromium: Browser) -> None:
    """The options are large enough for a finger, fit on the page, and one tap shows the messages."""
    with page_at(chromium, at(shards, "messages"), size="narrow") as page:
        page.get_by_role("combobox", name="Topic").click()
        page.keyboard.type("orders")
        option = options(page).filter(has_text="orders")
        box = option.bounding_box()
        assert box is not None
        assert box["height"] >= 40 and box["x"] >= 0 and box["x"] + box["width"] <= 390
        option.click()
        expect(page.locator(".message-gist").first).to_have_text(f"order {SENT - 1}")
        assert page.evaluate(OVERFLOW) <= 0


# -- pages -------------------------------------------------------------------------------------------------------------


def test_messages_of_both_shards_are_merged_newest_first(shards: Shards, chromium: Browser) -> None:
    """Older pages add messages at the end until there are no more: each is shown once, in the order of store times."""
    with page_at(chromium, at(shards, "messages?topic=orders")) as page:
        expect(page.locator(".message-gist")).to_have_count(20)
        assert gists(page) == newest_orders(20)
        for number in (40, 60):
            page.get_by_role("button", name="Older").click()
            expect(page.locator(".message-gist")).to_have_count(number)
            assert gists(page) == newest_orders(number)
        expect(page.get_by_role("button", name="Older")).to_have_count(0)
        expect(page.locator(".results")).to_contain_text(f"orders holds {SENT} messages")


def test_queue_shard_offset_and_time_narrow_the_messages(shards: Shards, chromium: Browser) -> None:
    """Each choice is in the address, which shows the same after a reload."""
    with page_at(chromium, at(shards, "messages?topic=orders&queue=0")) as page:
        expect(page.locator(".message-gist")).to_have_count(20)
        assert gists(page) == [f"order {number}" for number in reversed(range(SENT)) if number // 2 % 2 == 0][:20]
        page.get_by_role("combobox", name="Shard").select_option("orders-1")
        expect(page.locator(".message-gist").first).to_have_text("order 57")
        assert page.url.endswith("#/messages?topic=orders&queue=0&shard=orders-1")
        page.get_by_role("radio", name="From offset").check()
        page.get_by_role("textbox", name="Offset").fill("13")
        page.get_by_role("button", name="Search").click()
        expect(page.locator(".message-gist")).to_have_text(["order 53", "order 57"])
        page.reload()
        expect(page.locator(".message-gist")).to_have_text(["order 53", "order 57"])
        expect(page.get_by_role("textbox", name="Offset")).to_have_value("13")
        moment = shards.messages("orders")[10]["stored_wall_ms"]
        time = page.evaluate("(ms) => new Date(ms).toISOString()", moment)
        page.evaluate("(time) => { location.hash = `/messages?how=time&topic=orders&time=${time}`; }", time)
        expect(page.locator(".message-gist").first).not_to_have_text("order 53")
        first = int(gists(page)[0].removeprefix("order "))
        assert gists(page) == [f"order {number}" for number in range(first, first - 20, -1)]
        assert SENT - 24 <= first < SENT - 18


def test_message_is_found_by_key_on_any_shard(shards: Shards, chromium: Browser) -> None:
    """The reader need not know the shard; a key without messages is no error."""
    with page_at(chromium, at(shards, "messages?how=key&topic=orders&key=k41")) as page:
        expect(page.locator(".message-gist")).to_have_text(["order 41"])
        page.evaluate("location.hash = '/messages?how=key&topic=orders&key=unknown'")
        expect(page.locator(".results")).to_contain_text("No message of this topic has this key.")


# -- one message -------------------------------------------------------------------------------------------------------


def exact_address(shards: Shards, number: int) -> str:
    """Return the view of one of the three messages with exact bodies."""
    return f"message?topic=exact&queue=1&offset={number}&shard=orders-0"


def body(page: Page) -> Locator:
    return page.get_by_role("region", name="Content of the body")


def test_json_is_indented_and_shown_exactly(shards: Shards, chromium: Browser) -> None:
    """Numbers, repeated keys and markup are as in the body; Text and Hex show the same bytes; the address has it."""
    with page_at(chromium, at(shards, exact_address(shards, 0))) as page:
        expect(body(page)).to_have_text(
            '{\n  "order": 12345678901234567890,\n  "total": 1.10,\n  "note": "<b>x</b>",\n'
            '  "items": [],\n  "order": 2\n}'
        )
        page.get_by_role("radio", name="Text").check()
        expect(body(page)).to_have_text(EXACT)
        page.get_by_role("radio", name="Hex").check()
        expect(body(page)).to_contain_text('000000  7b 22 6f 72 64 65 72 22 3a 20 31 32 33 34 35 36  {"order": 123456')
        assert page.url.endswith("&as=hex")
        page.reload()
        expect(page.get_by_role("radio", name="Hex")).to_be_checked()


def test_neighbours_keys_and_copies_of_a_message(shards: Shards, chromium: Browser) -> None:
    """Next and previous follow the queue, a key leads to its messages, and address, id and body can be copied."""
    with page_at(chromium, at(shards, exact_address(shards, 1))) as page:
        page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        expect(body(page)).to_have_text("plain text")
        page.get_by_role("button", name="Copy the body").click()
        wait_for(lambda: page.evaluate("navigator.clipboard.readText()") == "plain text", "the body is copied")
        page.get_by_role("button", name="Copy the address").click()
        wait_for(lambda: page.evaluate("navigator.clipboard.readText()") == page.url, "the address is copied")
        page.get_by_role("link", name="Next").click()
        expect(body(page)).to_contain_text('"long": "xxx')
        expect(page.locator("main")).to_contain_text("stored compressed, shown decompressed")
        expect(page.get_by_role("link", name="Next")).to_have_count(0)
        page.get_by_role("link", name="Previous").click()
        page.get_by_role("link", name="Previous").click()
        expect(body(page)).to_contain_text("12345678901234567890")
        page.locator("main").get_by_role("link", name="two").click()
        expect(page.locator(".message-gist")).to_have_count(3)


def test_message_leads_to_its_dead_letter_and_back(shards: Shards, chromium: Browser) -> None:
    """The progress of a message names the group that gave it up; its dead letter leads to the original."""
    [message] = [
        one for sidecar in shards.sidecars for one in stored(sidecar, "billing-input")
    ]  # fmt: skip
    shard = SHARDS[0] if shards.messages("billing-input") else SHARDS[1]
    address = f"message?topic=billing-input&queue={message['queue_id']}&offset={message['queue_offset']}&shard={shard}"
    with page_at(chromium, at(shards, address)) as page:
        step = page.locator('[data-step="group-billing"]')
        expect(step).to_contain_text("dead letter")
        expect(step).to_contain_text("has passed it: its offset in this queue is 1.")
        expect(page.locator('[data-step="stored"]')).to_contain_text(f"of {shard}")
        expect(page.locator(".trace")).to_contain_text("no trace of this message")
        step.get_by_role("link", name="of %DLQ%billing").click()
        expect(page.locator("main h1 + nav")).to_contain_text("%DLQ%billing")
        page.get_by_role("link", name="Original in billing-input").click()
        expect(page.locator("main h1 + nav")).to_contain_text("billing-input")
        assert f"offset={message['queue_offset']}" in page.url and "id=" not in page.url


# -- links -------------------------------------------------------------------------------------------------------------


@pytest.mark.verify
def test_topics_groups_clients_and_messages_link_to_each_other(shards: Shards, chromium: Browser) -> None:
    """From a topic to its messages and its group, from the group to its clients, from a client to its topic."""

    async def take(message: ReceivedMessage) -> None:
        return

    async def walk() -> None:
        settings = ConsumerSettings(start_from=StartFrom.FIRST)
        async with PushConsumer(shards.name_server, "audit", topics="orders", handler=take, settings=settings):
            while not all(  # noqa: ASYNC110 - it comes from other processes
                [await asyncio.to_thread(commits, sidecar) for sidecar in shards.sidecars]
            ):
                await asyncio.sleep(0.1)
            await asyncio.to_thread(follow)

    def commits(sidecar: SidecarChild) -> bool:
        groups = sidecar.get("/v1/groups", token=TOKEN).json().get("groups", [])
        orders = [queue for group in groups if group["name"] == "audit" for queue in group["queues"]]
        return sum(queue["end"] for queue in orders) == SENT // 2 and all(queue["lag"] == 0 for queue in orders)

    def follow() -> None:
        with browser() as started, page_at(started, at(shards, "topics?topic=orders")) as page:
            page.get_by_role("link", name="audit").click()
            expect(page.locator('[data-group="audit"]')).to_be_visible()
            assert page.url.endswith("#/groups?group=audit")
            page.get_by_role("link", name="Clients").click()
            expect(page.locator("[data-client]")).to_have_count(2)  # one for each shard
            page.reload()
            expect(page.locator("[data-client]")).to_have_count(2)
            page.locator("dl").get_by_role("link", name="orders", exact=True).click()
            expect(page.locator(".message-gist").first).to_have_text(f"order {SENT - 1}")
            page.get_by_role("link", name=re.compile("^Open message")).first.click()
            expect(page.locator('[data-step="group-audit"]')).to_contain_text("has passed it")
            page.get_by_role("link", name="Topic", exact=True).click()
            page.get_by_role("link", name="Messages of orders").click()
            expect(page.locator(".message-gist").first).to_have_text(f"order {SENT - 1}")

    in_thread(lambda: asyncio.run(asyncio.wait_for(walk(), 50)))


def test_lag_of_a_group_is_summed_over_all_shards(shards: Shards, chromium: Browser) -> None:
    """The table of all shards has the sum, and leads to the shard with the longest wait."""
    in_thread(lambda: asyncio.run(commit_at_the_beginning(shards.name_server)))
    wait_for(lambda: lag_of(shards.sidecars[0]) + lag_of(shards.sidecars[1]) == SENT, "both shards know the lag")
    with page_at(chromium, at(shards, "groups")) as page:
        row = page.locator('[data-all-shards="late"]')
        expect(row.locator("[data-lag]")).to_have_attribute("data-lag", str(SENT))
        expect(page.locator('[data-group="late"] [data-lag]')).to_have_attribute("data-lag", str(SENT // 2))
        row.get_by_role("button", name="Show late in").click()
        expect(page.locator("tr.inner [data-queue-wait]").first).to_be_visible()


def test_shard_without_an_answer_is_named_beside_the_sums(shards: Shards, chromium: Browser) -> None:
    """The twin: the sum has the other shard only, and says so."""
    with page_at(chromium, at(shards, "groups")) as page:
        page.route("**/v1/groups?shard=orders-1", lambda route: refuse(route, 504, "no answer in time"))
        page.reload()
        expect(page.get_by_role("alert").filter(has_text="Shard orders-1 is missing here")).to_be_visible()


async def commit_at_the_beginning(name_server: str) -> None:
    """Commit the beginning of each queue of the orders for the group `late`, which has then all messages to consume."""
    async with PullConsumer(name_server, "late") as consumer:
        for queue in await consumer.queues("orders"):
            await consumer.fetch(queue, 0)
            await consumer.commit(queue, 0)


def lag_of(sidecar: SidecarChild) -> int:
    groups = sidecar.get("/v1/groups", token=TOKEN).json().get("groups", [])
    return sum(int(one["lag"]) for one in groups if one["name"] == "late")


def test_times_are_in_the_zone_of_the_reader_with_utc_at_hand(shards: Shards, chromium: Browser) -> None:
    """The list has UTC in the tooltip, the view of a message beside the time; the footer names the zone."""
    stored = shards.messages("exact")[0]["stored_wall_ms"]
    with page_at(chromium, at(shards, "messages?topic=exact"), zone="Asia/Tokyo") as page:
        time = page.locator(".message-line time").first
        local, utc = page.evaluate(
            "(ms) => [new Date(ms).toLocaleTimeString('en-GB'), new Date(ms).toISOString()]", stored
        )
        utc = utc.replace("T", " ").replace("Z", " UTC")
        expect(time).to_have_attribute("title", utc)
        assert time.inner_text().endswith(local) and local[:5] not in utc
        expect(page.locator(".foot")).to_contain_text("times in Asia/Tokyo")
        page.get_by_role("link", name=re.compile("^Open message")).first.click()
        expect(page.locator('[data-step="stored"]')).to_contain_text(f"{local}.{stored % 1000:03d} ({utc})")


# -- empty states and failures -----------------------------------------------------------------------------------------


@pytest.mark.verify
def test_first_visit_without_topics_names_the_command(tmp_path: Path, chromium: Browser) -> None:
    """The empty state names the command; an unknown topic is not found, an offset beyond the end is not stored yet."""
    with broker_process(tmp_path) as broker, sidecar_process(tmp_path, "--open-reads") as sidecar:
        sidecar.wait_ready()
        with page_at(chromium, f"{sidecar.url}/console/#/messages") as page:
            expect(page.locator(".results")).to_contain_text("No topics yet")
            expect(page.locator(".results code")).to_have_text("gantry produce orders 'first message'")
            page.evaluate("location.hash = '/messages?topic=unknown'")
            expect(page.get_by_role("alert")).to_have_attribute("data-fault", "missing")
            in_thread(lambda: broker.send(1))
            wait_for(lambda: bool(stored(sidecar)), "it is stored")
            page.evaluate(f"location.hash = '/message?topic={TOPIC}&queue=0&offset=5'")
            expect(page.get_by_role("alert")).to_have_attribute("data-fault", "beyond")
            expect(page.get_by_role("alert")).to_contain_text("the queue ends at offset 1 now")


def refuse(route: Route, status: int, reason: str) -> None:
    """Answer a request in place of the sidecar."""
    route.fulfill(status=status, content_type="application/json", body=json.dumps({"reason": reason}))


def test_shard_that_does_not_answer_is_named(shards: Shards, chromium: Browser) -> None:
    """The messages of the other shard are shown, older ones too, and it is said what is missing."""
    with page_at(chromium, at(shards, "overview")) as page:
        page.route("**/v1/topics/**shard=orders-1**", lambda route: refuse(route, 504, "no answer in time"))
        page.evaluate("location.hash = '/messages?topic=orders'")
        expect(page.locator("main").get_by_role("alert")).to_have_text(
            "Shard orders-1 is missing here: no answer in time"
        )
        page.get_by_role("button", name="Older").click()
        expect(page.locator(".message-gist")).to_have_count(SENT // 2)
        assert gists(page) == [f"order {number}" for number in range(SENT - 2, -1, -2)]


FAULTS = {
    403: ("rights", "may read messages"), 404: ("missing", "was deleted"), 410: ("deleted", "Retention"),
    429: ("busy", "Try again in a few seconds"), 503: ("broker", "from the store's files"),
    504: ("broker", "from the store's files"), None: ("sidecar", "until it answers"),
}  # fmt: skip
"""What the view shows by the status of the answer; None for no answer."""


def test_each_failure_has_its_own_state(shards: Shards, chromium: Browser) -> None:
    """The reason, what still works, and a retry, after which the messages are shown; without rights, another token."""
    statuses = iter(FAULTS)

    def fail(route: Route) -> None:
        status = next(statuses, 0)
        if status is None:
            route.abort()
        elif status:
            refuse(route, status, f"reason {status}")
        else:
            route.continue_()

    with page_at(chromium, at(shards, "overview")) as page:
        page.route("**/v1/queues/**", fail)
        page.evaluate("location.hash = '/messages?how=offset&topic=exact&queue=1&offset=0&shard=orders-0'")
        alert = page.locator("main").get_by_role("alert")
        for status, (kind, advice) in FAULTS.items():
            expect(alert).to_have_attribute("data-fault", kind)
            expect(alert).to_contain_text(advice)
            expect(alert).to_contain_text("the sidecar is unreachable" if status is None else f"reason {status}")
            assert alert.get_by_role("button", name="Enter a token").count() == (status == 403)
            alert.get_by_role("button", name="Try again").click()
        expect(page.locator(".message-gist")).to_have_count(3)


def test_token_that_is_entered_shows_all_shards(shards: Shards, chromium: Browser) -> None:
    """The shards are unknown until the token is entered; the view is then read again from all of them."""

    def check(route: Route) -> None:
        if "authorization" in route.request.headers:
            route.continue_()
        else:
            refuse(route, 401, "a token is required")

    with page_at(chromium, at(shards, "messages?topic=orders")) as page:
        page.route("**/v1/**", check)
        page.reload()
        page.get_by_role("textbox", name="Token").fill(TOKEN)
        page.get_by_role("button", name="Use token").click()
        expect(page.locator(".message-gist").first).to_have_text(f"order {SENT - 1}")
        assert gists(page) == newest_orders(20)


@pytest.mark.verify
def test_messages_remain_readable_while_the_broker_is_gone(tmp_path: Path, chromium: Browser) -> None:
    """By topic they are read from files; a key needs the broker, and the state says so, until a retry succeeds."""
    with broker_process(tmp_path) as broker, sidecar_process(tmp_path, "--open-reads") as sidecar:
        sidecar.wait_ready()
        in_thread(lambda: broker.send(3, body=b"kept"))
        wait_for(lambda: len(stored(sidecar)) == 3, "they are stored")
        broker.child.end()
        wait_for(lambda: sidecar.get("/livez").json()["broker"]["state"] == "crashed", "it is gone")
        with page_at(chromium, f"{sidecar.url}/console/#/messages?topic={TOPIC}") as page:
            expect(page.locator(".message-gist")).to_have_text(["kept"] * 3)
            page.get_by_role("link", name=re.compile("^Open message 2")).click()
            expect(body(page)).to_have_text("kept")
            page.evaluate(f"location.hash = '/messages?how=key&topic={TOPIC}&key=k'")
            alert = page.locator("main").get_by_role("alert")
            expect(alert).to_have_attribute("data-fault", "broker")
            expect(alert).to_contain_text("Messages can still be read by topic, queue and offset")
            page.evaluate("location.hash = '/clients?group=billing'")
            expect(alert).to_have_attribute("data-fault", "broker")


@pytest.mark.verify
def test_revoked_token_is_shown_and_another_one_continues(tmp_path: Path, chromium: Browser) -> None:
    """The view names the cause, keeps what it was asked for, and shows it after another token was entered."""
    options = write_token_files(tmp_path / "tokens")
    with broker_process(tmp_path / "store") as broker, sidecar_process(tmp_path / "store", *options) as sidecar:
        wait_for(lambda: sidecar.get("/readyz").status_code == 200, "it is ready")
        in_thread(lambda: broker.send(1, body=b"secret"))
        wait_for(lambda: len(stored(sidecar, token=TOKEN)) == 1, "it is stored")
        with page_at(chromium, f"{sidecar.url}/console/#token={READ_TOKEN}") as page:
            page.evaluate(f"location.hash = '/messages?topic={TOPIC}'")
            expect(page.locator(".message-gist")).to_have_text(["secret"])
            (tmp_path / "tokens/read-tokens").write_text(f"spark:{READ_TOKEN[::-1]}\n")
            wait_for(lambda: sidecar.get("/v1/group", token=READ_TOKEN).status_code == 401, "the token is revoked")
            page.get_by_role("button", name="Refresh").click()
            page.get_by_role("dialog").get_by_role("button", name="Cancel").click()
            alert = page.locator("main").get_by_role("alert")
            expect(alert).to_have_attribute("data-fault", "token")
            expect(alert).to_contain_text("expired or was revoked")
            expect(page.locator(".message-gist")).to_have_count(0)
            alert.get_by_role("button", name="Enter a token").click()
            page.get_by_role("textbox", name="Token").fill(TOKEN)
            page.get_by_role("button", name="Use token").click()
            expect(page.locator(".message-gist")).to_have_text(["secret"])
