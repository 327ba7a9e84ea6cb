"""`gantry status`: when a broker's certificates end is seen without asking each broker by hand."""

import time

from gantry_cli.rates import read_facts
from gantry_cli.status.cluster_view import BrokerView
from gantry_cli.status.commands import ClusterDocument, render
from gantry_client import BrokerAddress

DAY_MS = 86_400_000


def remarks(table: dict[str, str]) -> list[str]:
    """The lines of the screen about a broker that says this of itself."""
    address = BrokerAddress(cluster="c", name="broker-a", broker_id=0, address="192.0.2.1:10911")
    broker = BrokerView(address=address, facts=read_facts(table, 0.0), failure=None)
    view = ClusterDocument(name_server="n", local_stack=None, brokers=(broker,), topics=(), topics_total=0, groups=())
    return [part for part in render(view) if isinstance(part, str) and part.startswith("broker-a")]


def test_the_end_of_a_certificate_is_a_line() -> None:
    """Ahead of it, behind it, and nothing at all for a broker without TLS or one that is not ours."""
    now_ms = int(time.time() * 1000)

    [ahead] = remarks({"tlsCertificateEndsTimestamp": str(now_ms + 13 * DAY_MS + 60_000)})
    [over] = remarks({"tlsCertificateEndsTimestamp": str(now_ms - 2 * DAY_MS)})

    assert ahead.startswith("broker-a (192.0.2.1:10911) has a certificate: ends ") and ahead.endswith(", in 13d 0h")
    assert ": expired " in over and over.endswith(", 2d 0h ago")
    assert remarks({}) == [] and remarks({"tlsCertificateEndsTimestamp": "soon"}) == []
