"""One store directory, opened in turn by Apache's broker and by ours: each can open the other's."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from gantry_interop import drivers, peers, snapshot, versions
from gantry_interop.processes import Nursery

pytestmark = [pytest.mark.needs_java, pytest.mark.slow]

COUNT = 3_000
CLIENT = versions.PEER
# The files are so small that the log rolls over several of them.
SETTINGS = {"mappedFileSizeCommitLog": str(1 << 20), "maxMessageSize": str(1 << 16)}


def fill_topics(peer: peers.Peer, nursery: Nursery, home: Path, run: str) -> tuple[str, ...]:
    """Let a Java client fill two topics; return their names."""
    options = drivers.DriverOptions(peer.address, COUNT, 0, 3, peers.SHORT_DELAY_LEVELS, run, scenario_seconds_max=60)

    verdicts = drivers.run_scenarios(nursery, CLIENT, ("sync", "batch"), options, home)

    assert [verdict.broken for verdict in verdicts] == [[], []]
    return tuple(f"interop_{name}_{CLIENT.replace('.', '_')}_{run}" for name in ("sync", "batch"))


def take_snapshot(peer: peers.Peer, topics: tuple[str, ...]) -> snapshot.Snapshot:
    keys = [f"{topic}#key-{number}" for topic in topics for number in (0, COUNT - 1, COUNT)]
    return snapshot.take(peer.address, peer.broker_address, topics, keys)


def assert_same(found: snapshot.Snapshot, expected: snapshot.Snapshot, newest_key: str, *, may_lack_hits: bool) -> None:
    """Check that two snapshots are equal; with ``may_lack_hits`` older keys may find nothing."""
    assert (found.physical_offset_max, found.queues) == (expected.physical_offset_max, expected.queues)
    if may_lack_hits:
        assert found.hits[newest_key] == expected.hits[newest_key]
        assert {key: hit for key, hit in found.hits.items() if hit} == {
            key: hit for key, hit in expected.hits.items() if found.hits[key]
        }
    else:
        assert found.hits == expected.hits


@pytest.mark.parametrize("end", ["stop", "crash"])
@pytest.mark.parametrize(("first", "second"), [("apache", "gantry"), ("gantry", "apache")])
def test_store_written_by_one_is_read_and_continued_by_the_other(
    first: str, second: str, end: str, tmp_path: Path
) -> None:
    """After a clean stop and after a crash: same end of the log, same queues, same bytes, same key queries.

    After a crash Apache's broker deletes an index file that is newer than the checkpoint, and indexes again only what
    follows the place where its recovery begins.
    """
    layout = peers.Layout(tmp_path / "peer", settings=SETTINGS)
    with Nursery(tmp_path / "logs") as nursery:
        writer = peers.start(first, nursery, layout)
        topics = fill_topics(writer, nursery, tmp_path / "home", "one")
        written = take_snapshot(writer, topics)
        getattr(writer, end)()

        reader = peers.start(second, nursery, layout)
        newest_key = f"{topics[-1]}#key-{COUNT - 1}"
        is_cut = end == "crash" and second == "apache"
        assert_same(take_snapshot(reader, topics), written, newest_key, may_lack_hits=is_cut)
        more = fill_topics(reader, nursery, tmp_path / "home", "two")
        continued = take_snapshot(reader, topics + more)
        getattr(reader, end)()

        again = peers.start(first, nursery, layout)
        newest_key = f"{more[-1]}#key-{COUNT - 1}"
        # Ours may find again what Apache's broker lacked meanwhile.
        expected = dataclasses.replace(continued, hits=continued.hits | written.hits)
        assert_same(take_snapshot(again, topics + more), expected, newest_key, may_lack_hits=end == "crash")
        again.stop()

    assert written.messages == 2 * COUNT
    assert continued.messages == 4 * COUNT
    assert written.physical_offset_max > 2 * (1 << 20)
    for topic in topics:
        assert written.hits[f"{topic}#key-0"] != ""
        assert written.hits[f"{topic}#key-{COUNT - 1}"] != ""
        assert written.hits[f"{topic}#key-{COUNT}"] == ""
