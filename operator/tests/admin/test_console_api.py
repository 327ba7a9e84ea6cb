"""Messages and dead letters over HTTP: what is read, from where, how much of it, and who may have it sent again."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from admin_scene import (
    READ_TOKEN,
    ROOT,
    TOKEN,
    SidecarChild,
    broker_process,
    sidecar_process,
    wait_for,
    write_token_files,
)
from console_scene import Group, body_of, console_group, store_dead_letters

from gantry_admin.documents import AckWaitDocument
from gantry_admin.message_documents import as_text, body_document
from gantry_admin.rates import Counters, counters_of, rates_between, upper_end_ms
from gantry_wire.compress import Codec, compress_body
from gantry_wire.message import StoredMessage

LETTERS = 5


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Group]:
    """One broker with its sidecar, and a consumer group with dead letters."""
    with console_group(
        tmp_path_factory.mktemp("console-api"), members=1, conf={"brokerRole": "ASYNC_MASTER"}
    ) as started:
        store_dead_letters(started.name_server, "billing", [body_of(number) for number in range(LETTERS)])
        wait_for(lambda: dead_letters(started.sidecars[0]).get("queues", []) != [], "they can be read")
        yield started


def dead_letters(sidecar: SidecarChild) -> dict[str, list[dict[str, object]]]:
    """Return the sidecar's document about the dead letters of the group `billing`."""
    found: dict[str, list[dict[str, object]]] = sidecar.get("/v1/dead-letters/billing", token=TOKEN).json()
    return found


def test_newest_messages_are_shown_even_if_the_broker_is_gone(tmp_path: Path) -> None:
    """Messages are read from files: the newest by default, or from an offset on; 416 and 404 as for the log."""
    with broker_process(tmp_path) as broker, sidecar_process(tmp_path, "--open-reads") as sidecar:
        sidecar.wait_ready()
        broker.send(7, body=b"seven of them")
        path = "/v1/queues/TopicTest/0/messages"
        wait_for(lambda: sidecar.get(path).json().get("end") == 7, "they are confirmed")
        broker.child.end()
        wait_for(lambda: sidecar.get("/livez").json()["broker"]["state"] == "crashed", "it is gone")

        newest = sidecar.get(f"{path}?count=3").json()
        first = sidecar.get(f"{path}?from=0&count=1&body_bytes=5").json()
        [message] = first["messages"]
        by_id = sidecar.get(f"/v1/messages?id={message['offset_message_id']}").json()

        assert [one["queue_offset"] for one in newest["messages"]] == [4, 5, 6]
        assert message["body"] == {
            "form": "text",
            "shown": "seven",
            "is_cut": True,
            "is_compressed": False,
            "fault": None,
        }
        assert (by_id["source"], by_id["messages"][0]["body"]["shown"]) == ("disk", "seven of them")
        assert sidecar.get(f"{path}?from=7").status_code == 416
        assert sidecar.get("/v1/queues/TopicTest/9/messages").status_code == 404
        assert sidecar.get("/v1/messages?topic=TopicTest&key=k").status_code == 503, "only the broker knows keys"
        assert sidecar.get("/v1/messages?id=nonsense").status_code == 404
        assert sidecar.get("/v1/messages").status_code == 400


@pytest.mark.verify
def test_message_is_found_by_key_and_by_both_ids(group: Group) -> None:
    """Sender's id and keys in the broker's index, the broker's id in the files; ids of others are not found."""
    sidecar = group.sidecars[0]
    by_key = sidecar.get("/v1/messages?topic=billing-input&key=dead", token=TOKEN).json()["messages"]
    one = by_key[0]
    by_id = sidecar.get(f"/v1/messages?topic=billing-input&id={one['message_id']}", token=TOKEN).json()["messages"]
    broker_id = one["offset_message_id"]
    other_id = f"0A000001{broker_id[8:]}"

    assert len(by_key) == LETTERS
    assert [found["physical_offset"] for found in by_id] == [one["physical_offset"]]
    assert sidecar.get(f"/v1/messages?id={broker_id}", token=TOKEN).json()["messages"] == [one]
    assert sidecar.get(f"/v1/messages?id={other_id}", token=TOKEN).status_code == 404


@pytest.mark.verify
def test_dead_letters_are_resent_in_bounded_orders(group: Group) -> None:
    """Each order has a maximum and returns how many are left; resent messages are not resent by the next one."""
    sidecar = group.sidecars[0]
    path = "/v1/dead-letters/billing/resend"
    first = sidecar.post(path, {"messages_max": 2}, token=TOKEN).json()
    wait_for(lambda: dead_letters(sidecar)["queues"][0]["resent_end"] == 2, "it is remembered on the broker")
    second = sidecar.post(path, {}, token=TOKEN).json()
    third = sidecar.post(path, {}, token=TOKEN).json()
    single = sidecar.post("/v1/dead-letters/billing/0/4/resend", {}, token=TOKEN).json()

    assert (first["sent"], first["left"]) == ({"billing-input": 2}, LETTERS - 2)
    assert (second["sent"], second["left"]) == ({"billing-input": LETTERS - 2}, 0)
    assert (third["sent"], third["left"]) == ({}, 0)
    assert single["sent"] == {"billing-input": 1}, "an order for one message resends it even if it was resent before"
    assert sidecar.post("/v1/dead-letters/billing/0/99/resend", {}, token=TOKEN).status_code == 404
    assert sidecar.post(path, {"messages_max": 501}, token=TOKEN).status_code == 422
    assert sidecar.post("/v1/dead-letters/unknown/resend", {}, token=TOKEN).status_code == 404
    wait_for(lambda: "resend" in sidecar.child.log, "orders leave a line")


@pytest.mark.verify
def test_resend_and_read_require_their_permissions(tmp_path: Path) -> None:
    """Resending requires a token that may change (else 401 or 403), reading one that may read; orders are audited."""
    with broker_process(tmp_path / "store"), sidecar_process(
        tmp_path / "store", *write_token_files(tmp_path / "tokens")
    ) as sidecar:  # fmt: skip
        sidecar.wait_ready()
        order = "/v1/dead-letters/billing/resend"
        assert sidecar.post(order, {}).status_code == 401
        assert sidecar.post(order, {}, token=READ_TOKEN).status_code == 403
        for path in ("/v1/queues/TopicTest/0/messages", "/v1/messages?id=x", "/v1/dead-letters/billing"):
            assert sidecar.get(path).status_code == 401, path
            assert sidecar.get(path, token=READ_TOKEN).status_code in (200, 404), path
        wait_for(lambda: sidecar.child.log.count("resend") >= 2, "a line for each order")


@pytest.mark.verify
def test_resend_without_a_name_server_is_refused(tmp_path: Path) -> None:
    """409, because the routes of topics are unknown."""
    with broker_process(tmp_path / "store"), sidecar_process(
        tmp_path / "store", *write_token_files(tmp_path / "tokens")
    ) as sidecar:  # fmt: skip
        wait_for(lambda: sidecar.get("/readyz").status_code == 200, "it is ready")
        refused = sidecar.post("/v1/dead-letters/billing/resend", {}, token=TOKEN)

    assert (refused.status_code, "name server" in refused.json()["reason"]) == (409, True)


@pytest.mark.parametrize(
    ("data", "is_cut", "text"),
    [
        (b"plain", False, "plain"),
        ("zwölf".encode()[:3], True, "zw"),
        ("zwölf".encode()[:3], False, None),
        (b"with a \x00", False, None),
        (b"\x1b[31mred", False, None),
        ("C1 \u0085".encode(), False, None),
        (b"tabs\tand\r\nlines", False, "tabs\tand\r\nlines"),
        (b"", False, ""),
    ],
    ids=["text", "cut inside a character", "broken", "zero", "escape", "C1", "lines", "empty"],
)
def test_body_is_text_only_if_it_is_readable(data: bytes, is_cut: bool, text: str | None) -> None:
    """UTF-8 without control characters is text; anything else is shown as hex."""
    assert as_text(data, is_cut) == text


@pytest.mark.parametrize("codec", Codec, ids=[one.value for one in Codec])
def test_compressed_body_is_decompressed_only_as_far_as_shown(codec: Codec) -> None:
    """A decompression bomb costs only what is shown; a damaged body is shown as stored, with the reason."""
    bomb = StoredMessage(topic="t", queue_id=0, body=compress_body(b"a" * 50_000_000, codec), sys_flag=codec.flags)
    shown = body_document(bomb, 100)
    damaged = body_document(StoredMessage(topic="t", queue_id=0, body=b"no frame", sys_flag=codec.flags), 100)

    assert (shown.shown, shown.is_cut, shown.is_compressed) == ("a" * 100, True, True)
    assert (damaged.shown, damaged.is_compressed) == ("no frame", False)
    assert damaged.fault is not None


def counters_at(at_s: float, puts: int, waits: tuple[int, ...]) -> Counters:
    """Return counters of a broker at a time, with the histogram of the waits of sends."""
    return Counters(at_s, "b", puts, puts * 100, puts, puts * 50, waits)


def test_rates_need_two_samples() -> None:
    """With one sample there is no rate. Percentiles are upper ends of buckets; sends without a wait count as 0 ms."""
    older, newer = counters_at(10.0, 1_000, (0, 0, 0, 0)), counters_at(13.0, 1_300, (0, 0, 30, 3))
    alone = rates_between([older], 0, 1.0, None)
    both = rates_between([older, newer], 0, 1.0, None)

    assert (alone.put_per_second, alone.ack_wait) == (None, None)
    assert (both.put_per_second, both.put_bytes_per_second, both.get_bytes_per_second) == (100.0, 10_000.0, 5_000.0)
    assert both.ack_wait == AckWaitDocument(
        sends=300, at_once=267, median_ms=0.0, p99_ms=0.004, buckets=[267, 0, 30, 3]
    )


def test_quantile_in_the_last_bucket_is_unknown() -> None:
    """The last bucket counts all longer waits, so its upper end is no limit of them."""
    assert upper_end_ms([], 0.5) is None
    assert upper_end_ms([0, 0, 7, 0], 0.5) == 0.004
    assert upper_end_ms([0, 0, 0, 7], 0.5) is None

    hanging = rates_between(
        [counters_at(10.0, 0, (0,) * 32), counters_at(13.0, 100, (0,) * 30 + (60, 40))], 0, 1.0, None
    )

    assert hanging.ack_wait is not None
    assert (hanging.ack_wait.median_ms, hanging.ack_wait.p99_ms) == (2**30 / 1000, None)


def test_broker_without_extra_counters_has_no_waits() -> None:
    """Java's tables lack the waits and the bytes sent; without the other counters there are no rates at all."""
    table = {"putMessageTimesTotal": "5", "putMessageSizeTotal": "50", "msgGetTotalTodayNow": "3"}

    assert counters_of(table, 1.0) == Counters(1.0, "", 5, 50, 3, None, ())
    assert counters_of({}, 1.0) is None
    assert counters_of(table | {"putMessageTimesTotal": "many"}, 1.0) is None


def test_console_serves_its_files_and_nothing_else(group: Group) -> None:
    """The page, its modules and styles, each with its type and never from an old cache; no path leaves the folder."""
    sidecar = group.sidecars[0]
    kinds = {
        "": "text/html",
        "js/main.js": "text/javascript",
        "css/tokens.css": "text/css",
        "icon.svg": "image/svg+xml",
    }
    for name, kind in kinds.items():
        answer = sidecar.get(f"/console/{name}")
        assert answer.headers["content-type"].startswith(kind), name
        assert answer.headers["cache-control"] == "no-cache"
    page = sidecar.get("/console/").text

    assert "<style" not in page and " style=" not in page and "onclick" not in page and "https://" not in page
    assert sidecar.get("/console/..%2fapp.py").status_code == 404
    assert sidecar.get("/").headers["location"] == "/console/"


@pytest.mark.verify
def test_wheel_contains_every_file_of_the_console(tmp_path: Path) -> None:
    """An installed wheel serves the same page as the repository."""
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(tmp_path)],
        cwd=ROOT, check=True, capture_output=True, timeout=600, env=os.environ | {"GANTRY_SPEEDUPS": "off"},
    )  # fmt: skip
    [wheel] = tmp_path.glob("*.whl")
    packed = set(zipfile.ZipFile(wheel).namelist())
    source = ROOT / "operator/src"
    files = {str(path.relative_to(source)) for path in (source / "gantry_admin/console").rglob("*") if path.is_file()}

    assert len(files) > 20
    assert files - packed == set()


@pytest.mark.verify
def test_requests_about_other_shards_are_relayed_to_peers_only(tmp_path: Path) -> None:
    """`?shard=` asks a peer; callers cannot name addresses; a dead peer is 502, and 404 as soon as that is noticed."""
    with (
        broker_process(tmp_path / "a", brokerName="a") as first,
        broker_process(tmp_path / "b", brokerName="b") as second,
        sidecar_process(tmp_path / "b", "--open-reads") as peer,
        sidecar_process(tmp_path / "a", "--open-reads", "--peer", peer.url) as sidecar,
    ):
        first.send(2)
        second.send(3)
        wait_for(lambda: sidecar.get("/v1/topics?shard=b").status_code == 200, "the peer is known")
        path = "/v1/queues/TopicTest/0/messages?count=9"
        for where, count in ((f"{path}&shard=b", 3), (path, 2), (f"{path}&shard=a", 2)):
            wait_for(lambda: len(sidecar.get(where).json().get("messages", [])) == count, f"{where} is read")  # noqa: B023

        assert sidecar.get("/v1/groups?shard=b").status_code == 200
        assert sidecar.get("/v1/queues/TopicTest/7/messages?shard=b").status_code == 404
        assert sidecar.get("/v1/topics?shard=nowhere").status_code == 404
        assert sidecar.get(f"/v1/topics?shard={peer.url}").status_code == 422
        peer.child.end()
        assert sidecar.get("/v1/topics?shard=b").status_code in (404, 502)
        wait_for(lambda: sidecar.get("/v1/topics?shard=b").status_code == 404, "the peer is given up")
