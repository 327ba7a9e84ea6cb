"""`gantry status` shows missing and damaged log data with its ranges, and popped messages that are not acked."""

import pytest

from gantry_cli.rates import parse_runtime_info
from gantry_cli.status.cluster_view import BrokerView
from gantry_cli.status.commands import ClusterDocument, render
from gantry_client import BrokerAddress


def remarks(table: dict[str, str]) -> list[str]:
    """Return the lines about a broker with this runtime info."""
    address = BrokerAddress(cluster="c", name="broker-a", broker_id=0, address="192.0.2.1:10911")
    broker = BrokerView(address=address, facts=parse_runtime_info(table, 0.0), failure=None)
    view = ClusterDocument(name_server="n", local_stack=None, brokers=(broker,), topics=(), topics_total=0, groups=())
    return [part for part in render(view) if isinstance(part, str) and part.startswith("broker-a")]


def test_status_shows_missing_ranges_and_damaged_messages() -> None:
    """Each line lists its ranges and counts the rest; a broker without damage has no line."""
    [missing, damaged] = remarks(
        {
            "commitLogMissingBytes": "6144", "commitLogMissingRanges": "0-4096;8192-9216",
            "commitLogDamagedRecords": "2", "commitLogDamagedBytes": "300",
            "commitLogDamagedRanges": "5000-5100;6000-6200",
        }
    )  # fmt: skip

    assert "6.0 KiB: [0, 4096), [8192, 9216) and 1.0 KiB more" in missing and "gantry ha accept-loss" in missing
    assert damaged.endswith("has damaged messages: 2 (300 B: [5000, 5100), [6000, 6200))")
    assert remarks({}) == remarks({"commitLogMissingBytes": "0", "commitLogMissingRanges": ""}) == []


@pytest.mark.parametrize("text", ["x", "1", "1-2-3", "a-b"])
def test_unreadable_ranges_are_omitted(text: str) -> None:
    """If the ranges are unreadable, the number of bytes is shown."""
    [line] = remarks({"commitLogMissingBytes": "10", "commitLogMissingRanges": text})

    assert "lost log data: 10 B;" in line


def test_status_shows_popped_messages_and_late_redelivery() -> None:
    """The line says how many are not acked, and how late redelivery is only if it is more than a tick of the broker."""
    table = {"popInflightMessages": "1204", "popOpenCheckpoints": "41", "popReviveLagMillis": "100"}
    [line] = remarks(table)
    [late] = remarks(table | {"popReviveLagMillis": "61000"})

    assert line.endswith("has 1,204 popped messages not acked (from 41 pops)")
    assert late == f"{line}; redelivery is 1m 1s late"
    assert remarks(table | {"popInflightMessages": "0", "popOpenCheckpoints": "0"}) == []
