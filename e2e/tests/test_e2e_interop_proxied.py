"""Apache's proxy in front of Gantry's servers: the judge of a failover's records, and a small part of the run."""

from __future__ import annotations

from pathlib import Path

import pytest
from gantry_interop import apache_servers, java, peers, proxied, versions
from gantry_interop.proxied import Loads


def write(folder: Path, name: str, *lines: str) -> None:
    (folder / f"{name}.txt").write_text("".join(f"{line}\n" for line in lines))


def test_received_acknowledged_messages_keep_the_rules(tmp_path: Path) -> None:
    """Copies are allowed, and messages whose outcome is unknown may be received or not."""
    write(tmp_path, "attempted", "a 1", "b 2", "c 3")
    write(tmp_path, "acknowledged", "a 5")
    write(tmp_path, "received", "a 7", "b 8", "a 9")

    loads = Loads(tmp_path).read()

    assert (loads.broken(), loads.copies, len(loads.received)) == ([], 3, 2)
    assert loads.first_acknowledgement_after(4) == 5
    assert loads.first_acknowledgement_after(5) is None


def test_lost_message_is_a_broken_rule(tmp_path: Path) -> None:
    """An acknowledged message that was never received is named."""
    write(tmp_path, "attempted", "a 1", "b 2")
    write(tmp_path, "acknowledged", "a 5", "b 6")
    write(tmp_path, "received", "a 7")

    [broken] = Loads(tmp_path).read().broken()

    assert "1 acknowledged messages were not received: ['b']" in broken


def test_altered_message_is_a_broken_rule(tmp_path: Path) -> None:
    """A body that no sender has sent is named; a line that is not complete yet does not count."""
    write(tmp_path, "attempted", "a 1")
    (tmp_path / "received.txt").write_text("altered-x 7\na 9")

    [broken] = Loads(tmp_path).read().broken()

    assert "altered-x" in broken


def test_kind_of_a_peer_may_have_a_version() -> None:
    """`apache` is the version of the reference module, `apache-VERSION` another one."""
    assert peers.is_apache("apache")
    assert peers.is_apache(f"apache-{versions.PREVIOUS}")
    assert not peers.is_apache("gantry")


@pytest.mark.slow
@pytest.mark.needs_java
@pytest.mark.parametrize("version", proxied.VERSIONS)
def test_sdk_and_failover_through_apaches_proxy(version: str, tmp_path: Path) -> None:
    """All flows of the Python SDK pass, and a failover under load loses nothing that was acknowledged."""
    java.build()
    apache_servers.class_path(version)

    results = proxied.run_all([version], ["flows", "failover"], ["python"], 4, tmp_path, lambda result: None)

    assert [result.line() for result in results if not result.is_ok] == []
    assert len(results) > 5
