"""What a local group is planned to be before anything starts: names, ports, buffers, files. No process runs here."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from gantry_cli.errors import CliError
from gantry_cli.local import buffers
from gantry_cli.local.buffers import Mount
from gantry_cli.local.child import boot_id_of
from gantry_cli.local.lease_file import LeaseFile
from gantry_cli.local.names import member_name, parse_member
from gantry_cli.local.orphans import wait_for_end
from gantry_cli.local.plan import DEFAULT_MANIFEST, Planner, Wanted, notes_of, refuse_unrunnable
from gantry_cli.local.port_plan import BROKER, NAME_SERVER, SIDECAR, PortPlan
from gantry_cli.local.state import GroupRecord, GroupState, Held
from gantry_cli.local.whole_file import write_whole
from gantry_spec.lease import Goal, LeaseRecord
from gantry_spec.manifest import BrokerGroup, Spec, read_group
from gantry_spec.manifest.annotations import wanted
from gantry_spec.observed import LastWord

HEAD = "apiVersion: gantry.dev/v1alpha1\nkind: BrokerGroup\nmetadata: {name: crew}\n"
MIB = 1 << 20


def group_of(spec: str) -> BrokerGroup:
    return read_group(f"{HEAD}spec: {spec}")


def spec_of(spec: str) -> Spec:
    return group_of(spec).spec


# ------- names


@pytest.mark.parametrize(
    ("shard", "number", "name"), [(0, 1, "master-0"), (0, 2, "slave-0-1"), (12, 1, "master-12"), (3, 4, "slave-3-3")]
)
def test_a_member_is_found_by_its_name(shard: int, number: int, name: str) -> None:
    """A name says shard and number, both ways, and as a person may write them shorter."""
    assert member_name(shard, number) == name
    assert parse_member(name) == parse_member(f"{shard}/{number}") == (shard, number)


@pytest.mark.parametrize("text", ["", "master", "master-", "slave-0", "broker-0", "0/", "master-0 ", "nameserver-0"])
def test_other_words_are_no_members(text: str) -> None:
    """Whatever else is typed is no broker."""
    assert parse_member(text) is None


# ------- ports


def test_the_first_of_each_kind_has_the_well_known_port_and_others_follow() -> None:
    """9876, 10911 and 8080 first; the others upward, past what members of the group have beside their ports."""
    plan = PortPlan(is_free=lambda port: True)

    brokers = [plan.first(BROKER, 10911, "master-0"), plan.next(BROKER, 10911), plan.next(BROKER, 10911)]
    servers = [plan.first(NAME_SERVER, 9876, "nameserver-0"), plan.next(NAME_SERVER, 9876)]
    sidecars = [plan.first(SIDECAR, 8080, "sidecar"), plan.next(SIDECAR, 8080)]

    assert brokers == [10911, 10921, 10931] and servers == [9876, 9877] and sidecars == [8080, 8082]


@pytest.mark.parametrize(
    ("busy", "words"),
    [(10911, "broker of master-0"), (10909, "fast port of master-0"), (10912, "replication port of master-0")],
)
def test_a_busy_well_known_port_is_named_and_never_moved(busy: int, words: str) -> None:
    """Another program has it: the port, what wanted it, and the option that moves it."""
    plan = PortPlan(is_free=lambda port: port != busy)

    with pytest.raises(CliError, match=rf"port {busy} \({words}\) is in use by another program -- .*--broker-port"):
        plan.first(BROKER, 10911, "master-0")


def test_others_step_over_what_is_busy() -> None:
    """A later member takes the next free port, since nobody looks for it at a well-known one."""
    plan = PortPlan(is_free=lambda port: port not in (10919, 10932))
    plan.first(BROKER, 10911, "master-0")

    assert plan.next(BROKER, 10911) == 10941


def test_a_group_without_a_port_left_is_told() -> None:
    """There is an end to ports."""
    with pytest.raises(CliError, match="no free port"):
        PortPlan(is_free=lambda port: False).next(SIDECAR, 65_000)


def planned(state: Path, spec: str, before: GroupRecord | None = None) -> GroupRecord:
    """On free ports, or on those that it had."""
    kinds = (NAME_SERVER, BROKER, SIDECAR) if before is None else ()
    return Planner(GroupState(state), group_of(spec), Wanted(ports=tuple((kind, 0) for kind in kinds)), before).record


def test_ports_stay_over_runs_and_edits(tmp_path: Path) -> None:
    """Whoever had a port has it in the next run, though there are more members now; the new ones get others."""
    first = planned(tmp_path, "{slaves: 1}")
    second = planned(tmp_path, "{slaves: 2, shards: 2}", first)

    before = {one.name: (one.port, one.ha_port, one.sidecar_port) for one in first.members}
    after = {one.name: (one.port, one.ha_port, one.sidecar_port) for one in second.members}
    assert before.items() <= after.items() and len(after) == 6
    every = [port for ports in after.values() for port in (ports[0] - 2, *ports, ports[2] + 1)]
    assert len(every) == len(set(every))
    assert second.addresses == first.addresses


def test_members_that_were_scaled_away_while_nothing_ran_are_still_there(tmp_path: Path) -> None:
    """Somebody may still need their voices: whoever supervises decides when they go, and not the file."""
    first = planned(tmp_path, "{slaves: 2}")
    second = planned(tmp_path, "{slaves: 1}", first)

    assert [one.name for one in second.members] == ["master-0", "slave-0-1", "slave-0-2"]


def test_given_name_servers_are_used_and_none_is_started(tmp_path: Path) -> None:
    """``addresses`` of others: no process, and no port."""
    record = planned(tmp_path, '{nameServers: {addresses: ["ns.example:9876"]}}')

    assert record.name_servers == [] and record.addresses == ["ns.example:9876"]


# ------- the manifest on one machine


def test_the_default_group_is_a_pair() -> None:
    """Without a manifest: one shard, one slave that is waited for, one name server."""
    spec = read_group(DEFAULT_MANIFEST).spec

    assert (spec.shards, spec.slaves, spec.name_servers.count, spec.replication.acks_needed) == (1, 1, 1, 1)


@pytest.mark.parametrize("field", ["aclSecret", "tlsSecret"])
def test_a_promise_that_cannot_be_kept_here_is_refused(field: str) -> None:
    """Accounts and certificates that are asked for and are not there must not be left out silently."""
    with pytest.raises(CliError, match=rf"spec\.access\.{field}"):
        refuse_unrunnable(spec_of(f"{{access: {{{field}: keys}}}}"))
    refuse_unrunnable(spec_of("{}"))


def test_what_means_nothing_here_is_said() -> None:
    """Fields of pods are named, not obeyed."""
    notes = notes_of(spec_of("{image: x, resources: {limits: {cpu: 1}}}"), buffers.Choice(None))

    assert notes == ["of no meaning on one machine: spec.image, spec.resources"]


# ------- buffers


def buffered(medium: str) -> Spec:
    return spec_of(f"{{writeBuffer: {{medium: {medium}, buffers: 2, segmentSize: 2Mi}}}}")


MEMORY = Mount(Path("/dev/shm"), 100 * MIB)


def test_buffers_go_to_huge_pages_while_there_are_enough() -> None:
    """The mount with the most free pages, if all buffers fit; one page too few, and they go to tmpfs, which is said."""
    spec, needed = buffered("HugePages-2Mi"), 8 * MIB
    huge = [Mount(Path("/small"), 2 * MIB), Mount(Path("/huge"), needed)]

    assert buffers.choose(spec, needed, huge, MEMORY).root == Path("/huge")
    fallback = buffers.choose(spec, needed + 1, huge, MEMORY)
    none = buffers.choose(spec, needed, [], MEMORY)

    assert fallback.root == none.root == Path("/dev/shm")
    assert "only 8.0 MiB of huge pages are free" in fallback.note and "no huge pages are here" in none.note


def test_buffers_never_take_more_memory_than_there_is() -> None:
    """A tenth stays free; beyond that nothing starts, and both numbers are named."""
    spec = buffered("Memory")

    assert buffers.choose(spec, 90 * MIB, [], MEMORY).root == Path("/dev/shm")
    with pytest.raises(CliError, match=r"need 90\.\d MiB, and /dev/shm has room for 90\.0 MiB"):
        buffers.choose(spec, 90 * MIB + 200_000, [], MEMORY)


def test_memory_does_not_take_huge_pages_and_off_takes_nothing() -> None:
    """Each medium means what it says."""
    huge = [Mount(Path("/huge"), 100 * MIB)]

    assert buffers.choose(buffered("Memory"), MIB, huge, MEMORY).root == Path("/dev/shm")
    assert buffers.choose(spec_of("{}"), 0, huge, MEMORY).root is None


def test_two_groups_share_no_buffer() -> None:
    """The folder of a member is named by its group's folder."""
    one, two = (buffers.folder_of(Path("/dev/shm"), Path(state), "master-0") for state in ("/a", "/b"))

    assert one != two and one == buffers.folder_of(Path("/dev/shm"), Path("/a"), "master-0")


def test_only_mounts_of_small_huge_pages_count(tmp_path: Path) -> None:
    """Other file systems, other page sizes and what we may not write to are no place for a buffer."""
    mounts = tmp_path / "mounts"
    mounts.write_text(
        f"none {tmp_path} hugetlbfs rw,pagesize=2M 0 0\nnone {tmp_path} hugetlbfs rw,pagesize=1024M 0 0\n"
        f"tmp {tmp_path} tmpfs rw 0 0\nnone /absent hugetlbfs rw 0 0\n"
    )

    assert [mount.path for mount in buffers.huge_mounts(mounts)] == [tmp_path]


# ------- files


def lease_record(epoch: int) -> LeaseRecord:
    return LeaseRecord(epoch=epoch, goal=Goal(why="a test"))


def test_a_lease_is_replaced_only_by_who_has_seen_it(tmp_path: Path) -> None:
    """Compare and swap: a second write for the same version changes nothing; another process finds the first."""
    lease = LeaseFile(tmp_path / "lease-0.json", lambda: 7)

    assert lease.observed.record is None and lease.observed.seen_ms == 7
    assert lease.write(None, lease_record(1000))
    assert not lease.write(None, lease_record(2000)), "somebody was faster"
    assert lease.write("1", lease_record(3000))

    found = LeaseFile(tmp_path / "lease-0.json", lambda: 9).observed
    assert found.record is not None and (found.record.epoch, found.record.version, found.seen_ms) == (3000, "2", 9)


def test_a_loss_that_was_accepted_is_written_down(tmp_path: Path) -> None:
    """An order's size in the Lease, as ``gantry promote --accept-loss`` leaves it."""
    [order] = wanted({"gantry.dev/promote": "0", "gantry.dev/accept-loss": "64Mi"}).orders
    goal = Goal(why="it was ordered", wish=order.id, loss_accepted=order.loss_accepted)

    LeaseFile(tmp_path / "l", lambda: 0).write(None, LeaseRecord(epoch=1000, goal=goal))

    found = LeaseFile(tmp_path / "l", lambda: 0).observed.record
    assert found is not None and found.goal is not None and found.goal.loss_accepted == 64 * MIB


@pytest.mark.parametrize("name", ["group.json", "lease-0.json", "annotations.json", "manifest.yaml", "words.json"])
@pytest.mark.parametrize("content", [b"", b'{"epoch"', b"\xff\xfe", b"[1]"], ids=["empty", "torn", "binary", "other"])
def test_a_damaged_file_is_a_line_with_a_remedy(tmp_path: Path, name: str, content: bytes) -> None:
    """Nothing is guessed from half a file: it is named, and what to do about it."""
    state = GroupState(tmp_path)
    (tmp_path / name).write_bytes(content)
    readers: dict[str, Callable[[], object]] = {
        "group.json": state.read_group,
        "lease-0.json": lambda: LeaseFile(state.lease(0), lambda: 0),
        "annotations.json": state.read_annotations,
        "manifest.yaml": state.read_manifest,
        "words.json": lambda: state.read_words("boot"),
    }

    with pytest.raises(CliError) as caught:
        readers[name]()

    text = caught.value.format_message()
    assert str(tmp_path / name) in text and " -- " in text and "\n" not in text


def test_a_file_is_whole_or_as_it_was(tmp_path: Path) -> None:
    """A write that is cut off leaves what was there before."""
    path = tmp_path / "file"
    write_whole(path, b"before")
    os.mkdir(tmp_path / ".file.new")  # the next one cannot even begin

    with pytest.raises(OSError):
        write_whole(path, b"after")

    assert path.read_bytes() == b"before"


def test_the_secret_is_made_once_and_only_we_can_read_it(tmp_path: Path) -> None:
    """The same token in every run, in a file of ours alone; a damaged one is no token."""
    state = GroupState(tmp_path)
    token = state.token()

    assert len(token) >= 32 and state.token() == token
    assert state.token_file.stat().st_mode & 0o777 == 0o600
    state.token_file.write_text("nothing")
    with pytest.raises(CliError, match="damaged"):
        state.token()


def test_last_words_of_another_boot_are_not_believed(tmp_path: Path) -> None:
    """Their times are of another clock."""
    state = GroupState(tmp_path)
    state.write_words("monday", {0: LastWord(epoch=1000, asked_ms=5, wrote=7)})

    assert state.read_words("monday")[0].wrote == 7
    assert state.read_words("tuesday") == {}


def test_a_member_is_held_until_its_time_is_over(tmp_path: Path) -> None:
    """Only this one, only so long; a damaged file holds nobody."""
    state = GroupState(tmp_path)
    state.write_held([Held(name="master-0", until_ms=100)])

    assert state.is_held("master-0", 99) and not state.is_held("master-0", 100) and not state.is_held("slave-0-1", 1)
    state.held_file.write_bytes(b"{")
    assert not state.is_held("master-0", 1)


def test_a_process_is_known_by_more_than_its_number(tmp_path: Path) -> None:
    """A number that belongs to somebody else by now is no orphan of ours, and nobody waits for it."""
    record = planned(tmp_path, "{}")
    mine = boot_id_of(os.getpid())
    record.members[0].pid, record.members[0].boot_id = os.getpid(), f"{mine}0"

    told: list[str] = []
    wait_for_end(record, told.append)

    assert mine.startswith(f"{os.getpid()}-") and told == [] and boot_id_of(2**22 + 1) == ""


def test_group_json_holds_no_secret(tmp_path: Path) -> None:
    """The console's address is in it without its token."""
    state = GroupState(tmp_path)
    token = state.token()
    state.write_group(planned(tmp_path, "{}"))

    text = state.group_file.read_text()
    assert token not in text and "/console/" in text
    assert msgspec.json.decode(text.encode(), type=GroupRecord).name == "crew"
