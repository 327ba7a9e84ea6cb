"""`gantry up -f` with real processes: a group goes on through kills, moves, edits, and the end of its supervisor."""

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

from gantry_cli.local.look import Look
from gantry_cli.processes import boot_id_of


@pytest.fixture(scope="module")
def crew(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Group]:
    """One shard, one slave that is waited for. Each test leaves it well."""
    group = Group(tmp_path_factory.mktemp("crew") / "state", topics="[{name: hands, queues: 2}]")
    said = group.up(*FREE_PORTS)
    assert "1 message sent and read back" in said and f"console       {group.record.console_url}#code=" in said
    assert group.state.token() not in said
    yield group
    group.down()


@pytest.fixture
def group(crew: Group) -> Group:
    crew.until(crew.is_well)
    return crew


def other(name: str) -> str:
    return {"master-0": "slave-0-1", "slave-0-1": "master-0"}[name]


@pytest.mark.verify
def test_a_group_has_a_sidecar_beside_each_broker_and_one_secret(group: Group) -> None:
    """Every sidecar answers and is asked without it for what may be looked at; only we can read the token."""
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


def test_a_second_start_names_the_first(group: Group) -> None:
    """One group at a time has a folder; who has it is said in a line."""
    said = gantry("up", "--data", str(group.folder), code=1)

    assert f"pid {group.record.pid}" in said and len(said.splitlines()) == 1


def test_topics_of_the_spec_are_there(group: Group) -> None:
    """A topic of the spec exists with its queues, without anybody having sent to it."""
    group.until(lambda: "hands" in gantry("topic", "list", "-n", group.name_server))

    described = json.loads(gantry("topic", "describe", "-n", group.name_server, "hands", "--output", "json"))

    assert described["topic"]["queues"] == 2


def test_a_planned_promotion_loses_nothing_under_load(group: Group) -> None:
    """The role moves while messages come in: everything acknowledged is there, and the master is who was ordered."""
    [(before, epoch)] = group.masters().values()
    number = 2 if before == "master-0" else 1

    with Load(group, "moves") as load:
        group.until(load.more(30))
        said = group.do("promote", f"0={number}")
        group.until(load.more(30))

    assert f"shard 0: {other(before)} is the master in epoch" in said
    [(after, newer)] = group.masters().values()
    assert after == other(before) and newer > epoch
    assert set(load.acknowledged) <= set(group.read("moves"))
    assert group.state.read_annotations() == {}, "an order that was obeyed is taken off"


@pytest.mark.verify
def test_what_is_explained_is_what_happens_when_the_master_is_killed(group: Group) -> None:
    """kill -9: whoever was named takes over, nothing acknowledged is lost, and the old master comes back as a slave."""
    [(before, epoch)] = group.masters().values()

    with Load(group, "kills") as load:
        group.until(load.more(30))
        [outlook] = group.explain()
        killed = group.do("kill", before, "--down", "20s")
        group.until(lambda: any(newer > epoch for _, newer in group.masters().values()))
        [(after, _)] = group.masters().values()
        group.until(group.is_well)
        group.until(load.more(30))

    assert "stays down for 20s" in killed
    assert (outlook["winner"], outlook["loss_at_most"], outlook["blocked_by"]) == (
        2 if after != "master-0" else 1,
        0,
        [],
    )
    assert after == other(before)
    assert {one.name: one.role for one in group.look().members}[before] == "SLAVE"
    assert set(load.acknowledged) <= set(group.read("kills"))


def test_a_crashed_broker_is_back_at_once(group: Group) -> None:
    """A slave that is killed without being held down runs again long before anything would have moved."""
    [(master, epoch)] = group.masters().values()
    slave = next(one for one in group.record.members if one.name != master)
    assert slave.pid is not None

    os.kill(slave.pid, signal.SIGKILL)
    group.until(lambda: group.record.member(0, slave.number).pid not in (None, slave.pid))  # type: ignore[union-attr]
    group.until(group.is_well)

    assert group.masters() == {0: (master, epoch)}


@pytest.mark.verify
def test_a_master_that_stands_still_is_replaced_and_follows_when_it_goes_on(group: Group) -> None:
    """SIGSTOP of the master, with all its connections open: it is silent, a slave is promoted; SIGCONT: it follows."""
    [(before, _)] = group.masters().values()

    group.do("kill", before, "--stop")
    try:
        group.until(lambda: [name for name, _ in group.masters().values() if name != before] == [other(before)])
        seen = group.do("status", code=None)
    finally:
        group.do("kill", before, "--cont")
    group.until(group.is_well)

    assert "silent for" in seen
    assert [name for name, _ in group.masters().values()] == [other(before)]


def has_caught_up(look: Look, members: int) -> bool:
    """Whether there are so many, and each has what the others have."""
    return len(look.members) == members and len({one.wrote for one in look.members}) == 1


@pytest.mark.verify
def test_slaves_come_and_go_by_an_edit(group: Group) -> None:
    """One slave more by `gantry apply` gets the whole log and may be elected; then the highest number goes again."""
    group.send("edits", "one", "two")

    group.apply(slaves="2", topics="[{name: hands, queues: 2}]")
    group.until(lambda: has_caught_up(group.look(), 3) and group.is_well())
    group.until(lambda: len([one for one in group.explain()[0]["candidates"] if one["has_voice"]]) == 2)
    group.apply(slaves="1", topics="[{name: hands, queues: 2}]")
    group.until(lambda: len(group.look().members) == 2 and group.is_well())

    assert sorted(one.number for one in group.record.members) == [1, 2]
    assert (group.folder / "stores" / "slave-0-2").is_dir(), "retain is Always"
    assert sorted(group.read("edits")) == ["one", "two"]


def test_an_edit_that_a_store_cannot_bear_is_refused(group: Group) -> None:
    """Another segment size, another name: named by field, and the group goes on as it was."""
    other_group = group.manifest.with_name("other.yaml")
    other_group.write_text(group.manifest.read_text().replace("8Mi", "16Mi").replace("name: crew", "name: ship"))

    said = group.do("apply", "-f", str(other_group), code=1)

    assert "metadata.name: it was crew" in said and "spec.writeBuffer.segmentSize: it was 8Mi" in said
    group.until(group.is_well)


@pytest.mark.verify
def test_a_bundle_holds_what_explains_and_no_secret(group: Group, tmp_path: Path) -> None:
    """Records, decisions, logs and each sidecar's own bundle; the token and the messages are not in it."""
    token = (group.folder / "token").read_text().split(":", 1)[1].strip()
    group.send("packs", "a-body-that-nobody-should-find")

    def packed() -> dict[str, bytes]:
        group.do("bundle", "--to", str(tmp_path / "b.tar.gz"))
        with tarfile.open(tmp_path / "b.tar.gz") as archive:
            files = {one.name.removeprefix("gantry-bundle/"): archive.extractfile(one) for one in archive.getmembers()}
            return {name: file.read() for name, file in files.items() if file is not None}

    # Sidecars begin again after an edit of their peers, and one that does not run is named in missing.txt.
    group.until(lambda: "missing.txt" not in packed())
    texts = packed()
    assert {"manifest.yaml", "group.json", "decision.json", "lease-0.json", "logs/master-0.log"} <= texts.keys()
    assert {"sidecars/master-0.tar.gz", "sidecars/slave-0-1.tar.gz"} <= texts.keys()
    assert not [name for name, text in texts.items() if token.encode() in text]
    assert not [name for name, text in texts.items() if b"a-body-that-nobody" in text]


@pytest.mark.verify
def test_a_killed_supervisor_takes_its_brokers_along_and_the_next_finds_everything(group: Group) -> None:
    """kill -9 of the supervisor: its processes end, the next run has the same ports and all that was acknowledged."""
    group.send("orphans", "one", "two", "three")
    before = group.record
    assert before.pid is not None
    processes = [one.boot_id for one in before.members] + [one.sidecar_boot_id for one in before.members]

    os.kill(before.pid, signal.SIGKILL)
    said = group.up()
    group.until(group.is_well)

    assert [name for name in processes if boot_id_of(int(name.split("-")[0])) == name] == [], said
    after = group.record
    assert [(one.port, one.sidecar_port) for one in after.members] == [
        (one.port, one.sidecar_port) for one in before.members
    ]
    assert after.addresses == before.addresses
    assert sorted(group.read("orphans")) == ["one", "three", "two"]
