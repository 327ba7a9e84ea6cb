"""`gantry up -f` with real processes: a group survives kills, promotions, manifest changes and its supervisor's end."""

from __future__ import annotations

import json
import os
import signal
import stat
import tarfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from local_group_kit import FREE_PORTS, Group, Load, gantry

from gantry_cli.local.group_status import LocalGroupStatus
from gantry_cli.processes import boot_id_of


@pytest.fixture(scope="module")
def crew(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Group]:
    """One shard with one slave that acknowledges. Each test leaves it healthy."""
    group = Group(tmp_path_factory.mktemp("crew") / "state", topics="[{name: hands, queues: 2}]")
    output = group.up(*FREE_PORTS)
    assert "1 message sent and read back" in output and f"console       {group.record.console_url}#code=" in output
    assert group.state.token() not in output
    yield group
    group.down()


@pytest.fixture
def group(crew: Group) -> Group:
    crew.wait_until(crew.is_healthy)
    return crew


def other_member(name: str) -> str:
    """Return the name of the other member."""
    return {"master-0": "slave-0-1", "slave-0-1": "master-0"}[name]


@pytest.mark.verify
def test_each_broker_has_a_sidecar_and_all_share_one_token(group: Group) -> None:
    """Every sidecar answers public requests without the token, which only its owner can read."""
    record, token = group.record, (group.folder / "token").read_text().split(":", 1)[1].strip()

    for member in record.members:
        with urllib.request.urlopen(f"{member.sidecar_url}/v1/group", timeout=60) as answer:
            view = json.load(answer)
        assert len(json.dumps(view)) > 100
        with urllib.request.urlopen(f"{member.sidecar_url}/openapi.json", timeout=60) as answer:
            assert answer.status == 200

    assert stat.S_IMODE((group.folder / "token").stat().st_mode) == 0o600
    written = [path for path in group.folder.glob("*") if path.is_file() and path.name not in ("token", "up.log")]
    assert not [path for path in written if token in path.read_text(errors="replace")]


def test_second_start_names_the_running_group(group: Group) -> None:
    """Only one group at a time can use a folder; the error names the one that does."""
    output = gantry("up", "--data", str(group.folder), code=1)

    assert f"pid {group.record.pid}" in output and len(output.splitlines()) == 1


def test_topics_of_the_spec_are_created(group: Group) -> None:
    """A topic of the spec exists with its queues before the first message."""
    group.wait_until(lambda: "hands" in gantry("topic", "list", "-n", group.name_server))

    described = json.loads(gantry("topic", "describe", "-n", group.name_server, "hands", "--output", "json"))

    assert described["topic"]["queues"] == 2


def test_planned_promotion_under_load_loses_nothing(group: Group) -> None:
    """The role moves to the ordered member during sends, and every acknowledged message is stored."""
    [(before, epoch)] = group.masters().values()
    number = 2 if before == "master-0" else 1

    with Load(group, "moves") as load:
        group.wait_until(load.has_more(30))
        output = group.run_command("promote", f"0={number}")
        group.wait_until(load.has_more(30))

    assert f"shard 0: {other_member(before)} is the master in epoch" in output
    [(after, newer)] = group.masters().values()
    assert after == other_member(before) and newer > epoch
    assert set(load.acknowledged) <= set(group.read("moves"))
    assert group.state.read_annotations() == {}, "the executed order was not removed"


@pytest.mark.verify
def test_explained_failover_happens_when_the_master_is_killed(group: Group) -> None:
    """After kill -9 the named member takes over without loss, and the old master returns as a slave."""
    [(before, epoch)] = group.masters().values()

    with Load(group, "kills") as load:
        group.wait_until(load.has_more(30))
        [outlook] = group.explain()
        killed = group.run_command("kill", before, "--down", "20s")
        group.wait_until(lambda: any(newer > epoch for _, newer in group.masters().values()))
        [(after, _)] = group.masters().values()
        group.wait_until(group.is_healthy)
        group.wait_until(load.has_more(30))

    assert "stays down for 20s" in killed
    assert (outlook["winner"], outlook["loss_at_most"], outlook["blocked_by"]) == (
        2 if after != "master-0" else 1,
        0,
        [],
    )
    assert after == other_member(before)
    assert {one.name: one.role for one in group.status().members}[before] == "SLAVE"
    assert set(load.acknowledged) <= set(group.read("kills"))


def test_killed_slave_is_restarted_without_a_failover(group: Group) -> None:
    """Its supervisor starts it again, and the master keeps its role and epoch."""
    [(master, epoch)] = group.masters().values()
    slave = next(one for one in group.record.members if one.name != master)
    assert slave.pid is not None

    os.kill(slave.pid, signal.SIGKILL)
    group.wait_until(lambda: group.record.member(0, slave.number).pid not in (None, slave.pid))  # type: ignore[union-attr]
    group.wait_until(group.is_healthy)

    assert group.masters() == {0: (master, epoch)}


@pytest.mark.verify
def test_suspended_master_is_replaced_and_follows_after_resuming(group: Group) -> None:
    """A suspended master keeps its connections but is silent; a slave is promoted. After SIGCONT it follows."""
    [(before, _)] = group.masters().values()

    group.run_command("kill", before, "--stop")
    try:
        group.wait_until(
            lambda: [name for name, _ in group.masters().values() if name != before] == [other_member(before)]
        )
        seen = group.run_command("status", code=None)
    finally:
        group.run_command("kill", before, "--cont")
    group.wait_until(group.is_healthy)

    assert "last report" in seen
    assert [name for name, _ in group.masters().values()] == [other_member(before)]


def has_caught_up(status: LocalGroupStatus, members: int) -> bool:
    """Return whether there are so many slaves, each with the log of the others."""
    return len(status.members) == members and len({one.wrote for one in status.members}) == 1


@pytest.mark.verify
def test_manifest_change_adds_and_removes_slaves(group: Group) -> None:
    """A slave added by `gantry apply` gets the whole log and may be elected; then the highest number is removed."""
    group.send("edits", "one", "two")

    group.apply(slaves="2", topics="[{name: hands, queues: 2}]")
    group.wait_until(lambda: has_caught_up(group.status(), 3) and group.is_healthy())
    group.wait_until(lambda: len([one for one in group.explain()[0]["candidates"] if one["has_vote"]]) == 2)
    group.apply(slaves="1", topics="[{name: hands, queues: 2}]")
    group.wait_until(lambda: len(group.status().members) == 2 and group.is_healthy())

    assert sorted(one.number for one in group.record.members) == [1, 2]
    assert (group.folder / "stores" / "slave-0-2").is_dir(), "the store was deleted, although `retain` is Always"
    assert sorted(group.read("edits")) == ["one", "two"]


def test_manifest_change_unsupported_by_the_store_is_refused(group: Group) -> None:
    """Another segment size or name is refused with its field, and the group is unchanged."""
    other_group = group.manifest.with_name("other.yaml")
    other_group.write_text(group.manifest.read_text().replace("8Mi", "16Mi").replace("name: crew", "name: ship"))

    output = group.run_command("apply", "-f", str(other_group), code=1)

    assert "metadata.name: the name cannot change from crew" in output
    assert "spec.writeBuffer.segmentSize: cannot change from 8Mi" in output
    group.wait_until(group.is_healthy)


@pytest.mark.verify
def test_bundle_has_diagnostic_data_and_no_secret(group: Group, tmp_path: Path) -> None:
    """It contains records, decisions, logs and each sidecar's bundle, but neither the token nor messages."""
    token = (group.folder / "token").read_text().split(":", 1)[1].strip()
    group.send("packs", "a-body-that-must-not-be-packed")

    def packed() -> dict[str, bytes]:
        group.run_command("bundle", "--to", str(tmp_path / "b.tar.gz"))
        with tarfile.open(tmp_path / "b.tar.gz") as archive:
            files = {one.name.removeprefix("gantry-bundle/"): archive.extractfile(one) for one in archive.getmembers()}
            return {name: file.read() for name, file in files.items() if file is not None}

    # Sidecars begin again after an edit of their peers, and one that does not run is named in left-out.txt.
    texts: dict[str, bytes] = {}

    def is_complete() -> bool:
        texts.clear()
        texts.update(packed())
        return "left-out.txt" not in texts

    group.wait_until(is_complete)
    assert {"manifest.yaml", "group.json", "decision.json", "lease-0.json", "logs/master-0.log"} <= texts.keys()
    assert {"sidecars/master-0.tar.gz", "sidecars/slave-0-1.tar.gz"} <= texts.keys()
    assert not [name for name, text in texts.items() if token.encode() in text]
    assert not [name for name, text in texts.items() if b"a-body-that-must-not" in text]


@pytest.mark.verify
def test_supervisor_kill_ends_its_brokers_and_next_run_recovers_all(group: Group) -> None:
    """After kill -9 of the supervisor its processes end, and the next run has the same ports and messages."""
    group.send("orphans", "one", "two", "three")
    before = group.record
    assert before.pid is not None
    processes = [one.boot_id for one in before.members] + [one.sidecar_boot_id for one in before.members]

    os.kill(before.pid, signal.SIGKILL)
    output = group.up()
    group.wait_until(group.is_healthy)

    assert [name for name in processes if boot_id_of(int(name.split("-")[0])) == name] == [], output
    after = group.record
    assert [(one.port, one.sidecar_port) for one in after.members] == [
        (one.port, one.sidecar_port) for one in before.members
    ]
    assert after.addresses == before.addresses
    assert sorted(group.read("orphans")) == ["one", "three", "two"]
