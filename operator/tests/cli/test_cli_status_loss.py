"""`gantry status`: lost and damaged log data of any broker is shown with its ranges."""

import pytest

from gantry_cli.rates import read_facts
from gantry_cli.status.cluster_view import BrokerView
from gantry_cli.status.commands import ClusterDocument, render
from gantry_client import BrokerAddress


def remarks(table: dict[str, str]) -> list[str]:
    """The lines of the screen about a broker that reports these facts."""
    address = BrokerAddress(cluster="c", name="broker-a", broker_id=0, address="192.0.2.1:10911")
    broker = BrokerView(address=address, facts=read_facts(table, 0.0), failure=None)
    view = ClusterDocument(name_server="n", local_stack=None, brokers=(broker,), topics=(), topics_total=0, groups=())
    return [part for part in render(view) if isinstance(part, str) and part.startswith("broker-a")]


def test_missing_ranges_and_damaged_messages_are_lines() -> None:
    """Each names its ranges; more than a broker lists is counted; a broker without any has no line."""
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
def test_ranges_that_cannot_be_read_are_left_out(text: str) -> None:
    """The number of bytes is shown all the same."""
    [line] = remarks({"commitLogMissingBytes": "10", "commitLogMissingRanges": text})

    assert "lost log data: 10 B;" in line
