"""`gantry ha`: its input and output, over real control sockets of simulated brokers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gantry_broker.control.server import ControlServer
from gantry_cli.ha.group import MemberSocket
from gantry_cli.main import cli
from gantry_status.orders import AnyOrder, BrokerUnreachable, Drain, HaRole, HaStatus, OrderRefused, Promised
from gantry_testing.fake_group import FakeGroup
from gantry_testing.loop_thread import LoopThread


class Sockets:
    """A group whose members listen on control sockets."""

    def __init__(self, group: FakeGroup, directory: Path, loop: LoopThread) -> None:
        self.group = group
        self._servers: dict[int, ControlServer] = {}
        for number, member in group.members.items():
            path = directory / str(number) / "control.sock"
            path.parent.mkdir(parents=True)
            self._servers[number] = ControlServer(str(path), member)
        self._loop = loop

    @property
    def options(self) -> list[str]:
        """All of them, as they are typed."""
        return [word for server in self._servers.values() for word in ("--socket", server.path)]

    def option(self, number: int) -> list[str]:
        return ["--socket", self._servers[number].path]

    def start(self, number: int) -> None:
        self._loop.run(self._servers[number].start())

    def stop(self, number: int) -> None:
        """As if its process were gone."""
        self._loop.run(self._servers[number].close())

    def stop_all(self) -> None:
        for number in self._servers:
            self.stop(number)


@contextmanager
def listening(group: FakeGroup, directory: Path) -> Iterator[Sockets]:
    """Run its members on a loop in another thread, since a command has its own loop."""
    with LoopThread("fake-brokers") as loop:
        sockets = Sockets(group, directory, loop)
        for number in group.members:
            sockets.start(number)
        yield sockets
        sockets.stop_all()


@pytest.fixture
def sockets(tmp_path: Path) -> Iterator[Sockets]:
    """Master 1 and slaves 2 and 3, with one required ack."""
    group = FakeGroup([1, 2, 3], acks_needed=1)
    group.begin(1)
    with listening(group, tmp_path) as sockets:
        yield sockets


def gantry_ha(*words: str, given: str | None = None) -> Result:
    return CliRunner().invoke(cli, ["ha", *words], input=given)


def roles(group: FakeGroup) -> dict[int, str]:
    return {number: member.role.value for number, member in group.members.items()}


def test_status_shows_all_members_and_promotion_needs(sockets: Sockets) -> None:
    """The exit code is 1 when a member does not answer, and the member is named."""
    whole = gantry_ha("status", *sockets.options)
    sockets.stop(3)
    partly = gantry_ha("status", *sockets.options)

    assert whole.exit_code == 0, whole.output
    assert "b/1" in whole.output and "master" in whole.output and "slave" in whole.output
    needs = "epoch 1, slaves [2, 3] may be promoted; sends need 1 ack; a failover needs 2 votes"
    assert needs + "; members that can vote: [2, 3]\n" in whole.output
    assert partly.exit_code == 1
    assert "3/control.sock does not answer: there is no control socket at" in partly.output
    assert "members that can vote: [2] (too few)" in partly.output


def test_status_document_has_every_member(sockets: Sockets) -> None:
    """Each member has its socket, and its status or the reason why there is none."""
    sockets.stop(3)
    result = gantry_ha("status", *sockets.options, "--json")
    members = json.loads(result.stdout)["members"]

    assert [one["status"] and one["status"]["role"] for one in members] == ["MASTER", "SLAVE", None]
    assert members[0]["status"]["electable"] == [2, 3]
    assert "no control socket" in members[2]["failure"]


def test_status_shows_faults_and_temporary_states(sockets: Sockets, monkeypatch: pytest.MonkeyPatch) -> None:
    """It shows faults, a drain, a promise, and a master that may not acknowledge."""
    member = sockets.group.members[1]

    async def with_problem() -> HaStatus:
        return HaStatus(
            role=HaRole.MASTER, epoch=3, promised_epoch=7, broker_id=1, problem="the disk is slow", is_draining=True
        )

    monkeypatch.setattr(member, "status", with_problem)
    output = gantry_ha("status", *sockets.option(1)).output

    assert "broker/1: the disk is slow\n" in output
    assert "broker/1 is drained: it takes no sends" in output
    assert "broker/1 may acknowledge nothing" in output
    assert "broker/1 has promised epoch 7" in output
    assert "promotion is not possible now: no member has recorded which slaves may be promoted" in output


def test_promote_replaces_a_dead_master(sockets: Sockets) -> None:
    """The command prints each step with its duration, and the new master."""
    sockets.stop(1)
    result = gantry_ha("promote", *sockets.options)

    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    assert sorted(line.split()[0] for line in lines[:2]) == ["promise", "promise"]
    assert [line.split()[:2] for line in lines[2:4]] == [["promote", "b/2"], ["follow", "b/3"]]
    assert all(" ms " in line for line in lines[:4])
    assert lines[4:] == ["b/2 is the master in epoch 1002"]
    assert roles(sockets.group) == {1: "MASTER", 2: "MASTER", 3: "SLAVE"}


def test_promote_hands_over_to_the_named_member(sockets: Sockets) -> None:
    """The JSON document has all steps, which also go to standard error meanwhile."""
    result = gantry_ha("promote", *sockets.options, "--to", "3", "--json")
    document = json.loads(result.stdout)

    assert result.exit_code == 0
    assert (document["epoch"], document["number"], document["loss"], document["error"]) == (1003, 3, "", None)
    assert document["steps"][0]["what"] == "drain"
    assert "promote" in result.stderr
    assert roles(sockets.group) == {1: "SLAVE", 2: "SLAVE", 3: "MASTER"}


def test_promote_with_too_few_votes_is_refused_with_the_reason(sockets: Sockets) -> None:
    """One line and exit code 1, and the same text in the document."""
    sockets.stop(1)
    sockets.stop(3)
    result = gantry_ha("promote", *sockets.options)
    as_json = gantry_ha("promote", *sockets.options, "--json")

    assert (result.exit_code, as_json.exit_code) == (1, 1)
    assert "gantry: 2 of the slaves [2, 3] of epoch 1 must vote, and [3] cannot -- start one of them" in result.output
    assert json.loads(as_json.stdout)["error"].startswith("2 of the slaves [2, 3] of epoch 1 must vote")
    assert sockets.group.members[2].received_orders == []


def test_force_asks_before_a_possible_loss(sockets: Sockets) -> None:
    """Answering no changes nothing; --yes is for scripts; the loss is printed in either case."""
    sockets.stop(1)
    sockets.stop(3)
    no = gantry_ha("promote", *sockets.options, "--force", given="n\n")
    yes = gantry_ha("promote", *sockets.options, "--force", "--yes")

    assert no.exit_code == 1
    assert "Acknowledged messages beyond the new master's end are lost" in no.output
    assert "no member was promoted" in no.output
    assert yes.exit_code == 0, yes.output
    assert "possibly lost: acknowledged messages beyond 1 that only unreachable members have" in yes.output


def test_member_that_does_not_follow_gives_exit_code_1(sockets: Sockets, monkeypatch: pytest.MonkeyPatch) -> None:
    """The role has moved, but not every member follows."""

    async def refuses(epoch: int, master: str) -> HaStatus:
        raise OrderRefused("its history is another one")

    monkeypatch.setattr(sockets.group.members[3], "follow", refuses)
    result = gantry_ha("promote", *sockets.options, "--to", "2")

    assert result.exit_code == 1
    assert "FAILED: its history is another one" in result.output
    assert "b/2 is the master in epoch 1002" in result.output
    assert "again to attach the members that do not follow" in result.output


def test_member_that_dies_before_its_order_is_exit_code_1(sockets: Sockets, monkeypatch: pytest.MonkeyPatch) -> None:
    """Code 3 and the advice to name another socket are for sockets at which no member has answered."""

    async def refuse(self: MemberSocket, order: AnyOrder, check: object) -> HaStatus | Promised:
        if isinstance(order, Drain):
            raise BrokerUnreachable(f"no broker listens at {self.path}: a stopped broker left the socket behind")
        return await self.call(order)

    monkeypatch.setattr(MemberSocket, "call_checked", refuse)
    result = gantry_ha("promote", *sockets.options, "--to", "2")

    assert result.exit_code == 1, result.output
    assert "a member no longer answers: no broker listens at" in result.output
    assert "controlSocketPath" not in result.output and "run the command again" in result.output


def test_no_broker_at_the_socket_is_exit_code_3(tmp_path: Path) -> None:
    """The error has the path and the remedy."""
    path = str(tmp_path / "control.sock")
    for words in (["promote"], ["drain"], ["fence"], ["flush"], ["promise", "--epoch", "2"]):
        result = gantry_ha(*words, "--socket", path)

        assert result.exit_code == 3, (words, result.output)
        assert f"there is no control socket at {path}" in result.output


@pytest.mark.parametrize(
    ("words", "ordered", "text"),
    [
        (["promise", "--epoch", "8", "--to", "ann"], "promise 8", "has promised to follow no master below epoch 8"),
        (["promote-at", "--epoch", "8", "--electable", "1"], "promote 8", "b/2 is master in epoch 8"),
        (["fence"], "fence 2", "b/2 is unassigned in epoch 1"),
        (["fence", "--epoch", "9"], "fence 9", "b/2 has promised epoch 9"),
        (["drain", "--timeout", "3"], "drain", "b/2 is drained: it takes no sends"),
        (["follow", "--epoch", "5", "--master", "127.0.0.1:20003"], "follow 5 127.0.0.1:20003", "is slave in epoch 5"),
        (["demote", "--epoch", "5", "--master", "127.0.0.1:20003"], "follow 5 127.0.0.1:20003", "is slave in epoch 5"),
        (["flush"], "flush", "b/2 is slave in epoch 1, and has written 1"),
    ],
    ids=["promise", "promote-at", "fence", "fence-at", "drain", "follow", "demote", "flush"],
)  # fmt: skip
def test_each_step_of_a_promotion_is_a_command(sockets: Sockets, words: list[str], ordered: str, text: str) -> None:
    """The steps of a promotion are commands for emergencies and for programs."""
    shown = gantry_ha(words[0], *sockets.option(2), *words[1:])
    as_json = gantry_ha(words[0], *sockets.option(2), *words[1:], "--json")

    assert shown.exit_code == 0, shown.output
    assert text in shown.output
    assert sockets.group.members[2].received_orders[0] == ordered
    assert json.loads(as_json.stdout)["broker_id"] == 2


def test_unchecked_orders_are_hidden() -> None:
    """The help lists `promote`, which checks everything, and the orders that are useful by themselves."""
    listed = {
        line.split()[0] for line in gantry_ha("--help").output.splitlines() if line.startswith("  ") and line.split()
    }

    assert {"status", "promote", "drain", "flush", "accept-loss"} <= listed
    assert not listed & {"promise", "promote-at", "fence", "follow", "demote"}


def test_refused_order_is_one_line(sockets: Sockets) -> None:
    """It has the broker's reason and exit code 1."""
    gantry_ha("promise", *sockets.option(2), "--epoch", "9")
    result = gantry_ha("fence", *sockets.option(2), "--epoch", "3")

    assert result.exit_code == 1
    assert result.output.startswith("gantry: the broker at ")
    assert "refused: epoch 9 was promised -- it was not executed" in result.output
    assert result.output.count("\n") == 1


@pytest.mark.parametrize(
    "words",
    [
        ["promise", "--epoch", "0"],
        ["promise", "--epoch", str(1 << 62)],
        ["promise"],
        ["follow", "--epoch", "1", "--master", "nowhere"],
        ["drain", "--timeout", "-1"],
    ],
    ids=["zero", "huge", "missing", "no-port", "negative"],
)
def test_invalid_input_sends_no_order(sockets: Sockets, words: list[str]) -> None:
    """The exit code is 2, and no broker gets an order."""
    result = gantry_ha(words[0], *sockets.option(2), *words[1:])

    assert result.exit_code == 2
    assert sockets.group.members[2].received_orders == []


def test_sockets_of_gantry_up_are_the_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sockets are found below its directory; without any there is an error."""
    monkeypatch.chdir(tmp_path)
    missing = gantry_ha("status")
    with listening(FakeGroup([1, 2], acks_needed=1), tmp_path / ".gantry/local"):
        found = gantry_ha("status", "--json")

    assert missing.exit_code == 2
    assert "no broker of `gantry up` has a control socket below .gantry/local" in missing.output
    assert [one["status"]["broker_id"] for one in json.loads(found.stdout)["members"]] == [1, 2]
