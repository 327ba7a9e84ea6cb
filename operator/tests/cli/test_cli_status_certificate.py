"""`gantry status` shows when the certificates of brokers expire."""

import time

from gantry_cli.rates import parse_runtime_info
from gantry_cli.status.cluster_view import BrokerView
from gantry_cli.status.commands import ClusterDocument, render
from gantry_client import BrokerAddress

DAY_MS = 86_400_000


def remarks(table: dict[str, str]) -> list[str]:
    """Return the lines about a broker with this runtime info."""
    address = BrokerAddress(cluster="c", name="broker-a", broker_id=0, address="192.0.2.1:10911")
    broker = BrokerView(address=address, facts=parse_runtime_info(table, 0.0), failure=None)
    view = ClusterDocument(name_server="n", local_stack=None, brokers=(broker,), topics=(), topics_total=0, groups=())
    return [part for part in render(view) if isinstance(part, str) and part.startswith("broker-a")]


def test_status_shows_certificate_expiry() -> None:
    """The line shows the expiry in the future or in the past; brokers without the value have no line."""
    now_ms = int(time.time() * 1000)

    [ahead] = remarks({"tlsCertificateEndsTimestamp": str(now_ms + 13 * DAY_MS + 60_000)})
    [over] = remarks({"tlsCertificateEndsTimestamp": str(now_ms - 2 * DAY_MS)})

    assert ahead.startswith("broker-a (192.0.2.1:10911) certificate expires ") and ahead.endswith(", in 13d 0h")
    assert " certificate expired " in over and over.endswith(", 2d 0h ago")
    assert remarks({}) == [] and remarks({"tlsCertificateEndsTimestamp": "soon"}) == []
