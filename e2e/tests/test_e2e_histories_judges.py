"""Both judges of histories: Porcupine calls a history illegal exactly if ours has findings; differences are found."""

from __future__ import annotations

import os
import random
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from gantry_histories import judges
from gantry_histories.events import Answered, Outcome, Shown, Term
from gantry_histories.final import EpochStart
from gantry_histories.findings import Finding, Kind, Loss, Mode
from gantry_histories.hand_made import ASYNC, BROKEN, OTHER, SYNC, Case, Q, lose_and_give_the_place_away
from gantry_histories.ideal import IdealGroup
from gantry_histories.judges import OWN_ONLY, Judgement, PorcupineFailed, SecondOpinion, Verdict, build_porcupine
from gantry_histories.recording import Recording, pack_recording, write_recording

MODULE = judges.SCRIPT.parent.parent / "e2e/histories/porcupine"
TEST_TIMEOUT_S = 300


@pytest.fixture(scope="module")
def program() -> Path:
    """Return the program of Porcupine, built from this tree."""
    return build_porcupine()


def judge(recording: Recording, program: Path, folder: Path) -> Judgement:
    """Write the recording and let both judges judge it."""
    path = folder / "history.jsonl"
    with path.open("wb") as file:
        write_recording(file, recording)
    return judges.judge(path, recording, program)


def verdict(recording: Recording, program: Path, folder: Path) -> Verdict:
    """Return the verdict of Porcupine, which must not be the only judge with this result."""
    judgement = judge(recording, program, folder)
    assert judgement.second is not None
    assert not {Kind.DISAGREEMENT, Kind.UNDECIDED} & {finding.kind for finding in judgement.findings}, judgement
    return judgement.second.verdict


@pytest.mark.needs_porcupine
@pytest.mark.parametrize("mode", [SYNC, ASYNC], ids=["sync", "async"])
def test_both_judges_accept_a_valid_history(mode: Mode, program: Path, tmp_path: Path) -> None:
    """In both modes, so every verdict of the tests below comes from their change. No picture is drawn."""
    assert verdict(Case().recording(mode), program, tmp_path) is Verdict.LINEARIZABLE
    assert not (tmp_path / "history.html").exists()


@pytest.mark.needs_porcupine
@pytest.mark.parametrize(
    ("kind", "spoil"),
    [(kind, spoil) for kind, spoils in BROKEN.items() for spoil in spoils],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_both_judges_find_every_broken_guarantee(
    kind: Kind, spoil: Callable[[Case], None], program: Path, tmp_path: Path
) -> None:
    """Only what is no part of the clients' history is left to our judge. Every illegal history gets a picture."""
    case = Case()
    spoil(case)

    found = verdict(case.recording(), program, tmp_path)

    assert (found is Verdict.LINEARIZABLE) == (kind in OWN_ONLY)
    assert (tmp_path / "history.html").exists() == (found is Verdict.NOT_LINEARIZABLE)


@pytest.mark.needs_porcupine
def test_duplicated_offset_is_not_linearizable(program: Path, tmp_path: Path) -> None:
    """Two messages are acknowledged at one offset, and one of them is stored."""
    case = Case()
    lose_and_give_the_place_away(case)
    case.ok("x", 4, 710, "b")

    assert verdict(case.recording(), program, tmp_path) is Verdict.NOT_LINEARIZABLE


@pytest.mark.needs_porcupine
@pytest.mark.parametrize("is_stored", [True, False])
@pytest.mark.parametrize("outcome", [Outcome.UNKNOWN, None], ids=["unknown", "no-answer"])
def test_uncertain_send_may_be_stored_or_not(
    outcome: Outcome | None, is_stored: bool, program: Path, tmp_path: Path
) -> None:
    """Both are legal, and the message may be stored long after the send."""
    case = Case()
    case.send("x", 50, queue=OTHER)
    if outcome is not None:
        case.add(Answered(key="x", outcome=outcome, code=12, broker="a", at=55))
    if is_stored:
        case.store("x", 0, OTHER)

    assert verdict(case.recording(), program, tmp_path) is Verdict.LINEARIZABLE


@pytest.mark.needs_porcupine
def test_uncertain_send_explains_a_hole_before_a_cut(program: Path, tmp_path: Path) -> None:
    """In a log whose end a failover cuts, an offset without a known message belongs to an open send; without one, the
    next message has an offset that no correct group gives."""
    for is_sent in (True, False):
        case = Case()
        if is_sent:
            case.send("x", 60)
        case.send("y", 61)
        case.ok("y", 4, 65, "a")
        case.history.answered["y"] = replace_offset(case.history.answered["y"], 400)

        second = judge(case.recording(ASYNC), program, tmp_path).second

        assert second is not None
        assert second.verdict is (Verdict.LINEARIZABLE if is_sent else Verdict.NOT_LINEARIZABLE)


def replace_offset(answer: Answered, physical_offset: int) -> Answered:
    """Return the answer with another physical offset."""
    return Answered(
        key=answer.key, outcome=answer.outcome, broker=answer.broker, at=answer.at,
        queue_offset=answer.queue_offset, physical_offset=physical_offset,
    )  # fmt: skip


@pytest.mark.needs_porcupine
def test_asynchronous_group_may_lose_only_the_end_of_the_old_log(program: Path, tmp_path: Path) -> None:
    """A promotion cuts the log in this mode, and in no other."""
    case = Case()
    case.send("x", 60)
    case.ok("x", 3, 65, "a")

    assert verdict(case.recording(ASYNC), program, tmp_path) is Verdict.LINEARIZABLE
    assert verdict(case.recording(SYNC), program, tmp_path) is Verdict.NOT_LINEARIZABLE

    earlier = Case()
    earlier.send("x", 60)
    earlier.ok("x", 2, 65, "a")
    assert verdict(earlier.recording(ASYNC), program, tmp_path) is Verdict.NOT_LINEARIZABLE


@pytest.mark.needs_porcupine
def test_slave_may_lag_and_a_master_may_not(program: Path, tmp_path: Path) -> None:
    """The same reply, with an end before acknowledged messages, is legal from a broker that is not the master."""
    for broker, expected in (("c", Verdict.LINEARIZABLE), ("b", Verdict.NOT_LINEARIZABLE)):
        case = Case()
        case.read(3, 3, 3, at=850, broker=broker)

        assert verdict(case.recording(), program, tmp_path) is expected


@pytest.mark.needs_porcupine
def test_master_that_gets_a_new_epoch_may_still_acknowledge_in_the_old_one(program: Path, tmp_path: Path) -> None:
    """A term is recorded before the order. What the same master appends in between belongs to the older term."""
    case = Case()
    case.epochs.append(EpochStart(3, 600))
    case.term(3, "b", 1_000)
    for number in (5, 6):
        case.send(f"m{number}", 1_000 + 10 * number, stream=2)
        case.ok(f"m{number}", number, 1_005 + 10 * number, "b")
        case.store(f"m{number}", number)

    assert verdict(case.recording(), program, tmp_path) is Verdict.LINEARIZABLE


@pytest.mark.needs_porcupine
@pytest.mark.parametrize("is_estimated", [True, False])
def test_estimated_term_may_begin_before_its_first_acknowledgement(
    is_estimated: bool, program: Path, tmp_path: Path
) -> None:
    """In a cluster the begin of a term is not recorded: its first acknowledgement shows that it had begun."""
    case = Case()
    case.history.terms[1] = Term(epoch=2, broker="b", at=115, is_estimated=is_estimated)
    case.add(Shown(client="d", queue=Q, queue_offset=3, physical_offset=300, key="m3", digest="#m3", broker="b",
                   at=112))  # fmt: skip

    second = judge(case.recording(), program, tmp_path).second

    assert second is not None
    assert second.verdict is (Verdict.LINEARIZABLE if is_estimated else Verdict.NOT_LINEARIZABLE)


@pytest.mark.needs_porcupine
def test_master_with_an_anonymous_buffer_may_show_acknowledged_messages_later(program: Path, tmp_path: Path) -> None:
    """It shows them when they are committed."""
    case = Case()
    case.read(3, 3, 3, at=850)

    assert verdict(case.recording(Mode(Loss.NOTHING, shows_acknowledged=False)), program, tmp_path) is (
        Verdict.LINEARIZABLE
    )


@pytest.mark.needs_porcupine
def test_offset_of_another_process_may_be_older(program: Path, tmp_path: Path) -> None:
    """Offsets are replicated later, so after a failover a group may go back; a commit without a reply may count."""
    case = Case()
    case.query_offset(3, 910, broker="a", connected=905)
    case.commit(2, 920)
    case.commit(4, 930, is_answered=False)
    case.query_offset(4, 940)
    case.query_offset(-1, 950, connected=945)

    assert verdict(case.recording(), program, tmp_path) is Verdict.LINEARIZABLE


@pytest.mark.needs_porcupine
@pytest.mark.parametrize("loss", Loss)
def test_both_judges_accept_correct_groups(loss: Loss, program: Path, tmp_path: Path) -> None:
    """Lost, late and refused sends and frequent failovers are legal as far as the mode allows them."""
    for seed in range(25):
        group = IdealGroup(random.Random(seed), loss, 400)

        assert verdict(Recording(group.history, group.end(), Mode(loss)), program, tmp_path) is Verdict.LINEARIZABLE


@pytest.mark.needs_porcupine
def test_both_judges_find_any_lost_message(program: Path, tmp_path: Path) -> None:
    """The message may be in any queue, at any offset."""
    for seed in range(25):
        chance = random.Random(seed)
        group = IdealGroup(chance, Loss.NOTHING, 300)
        final = group.end()
        victim, _ = chance.choice(list(group.history.acknowledged_sends()))
        kept = [stored for stored in final.queues[victim.queue] if stored.key != victim.key]
        recording = Recording(group.history, replace(final, queues={**final.queues, victim.queue: kept}), SYNC)

        assert verdict(recording, program, tmp_path) is Verdict.NOT_LINEARIZABLE


@pytest.mark.needs_porcupine
def test_long_history_of_one_queue_is_decided(program: Path, tmp_path: Path) -> None:
    """More than ten thousand operations of one queue, legal and not, within the time that a run has."""
    recording = long_history()
    assert len(recording.history.sent) + len(recording.history.reads) > 10_000

    assert verdict(recording, program, tmp_path) is Verdict.LINEARIZABLE

    middle = len(recording.final.queues[Q]) // 2
    first, second = recording.final.queues[Q][middle : middle + 2]
    recording.final.queues[Q][middle : middle + 2] = [  # type: ignore[index]
        second._replace(queue_offset=middle), first._replace(queue_offset=middle + 1)
    ]  # fmt: skip
    assert verdict(recording, program, tmp_path) is Verdict.NOT_LINEARIZABLE


def long_history(messages: int = 5_200) -> Recording:
    """Return the history of one queue with many sends that overlap, and a consumer that follows."""
    case = Case()
    for number in range(5, messages):
        case.send(f"m{number}", 1_000 + 10 * number)
        case.ok(f"m{number}", number, 1_000 + 10 * number + 95, "b")
        case.store(f"m{number}", number)
        case.show(f"m{number}", number, 1_000 + 10 * number + 97)
        case.read(number, number + 1, number + 1, at=1_000 + 10 * number + 97, count=1)
    return case.recording()


@pytest.mark.needs_porcupine
def test_history_that_is_not_decided_in_time_is_a_finding(program: Path, tmp_path: Path) -> None:
    """A timeout is no success: it is reported with the partition."""
    recording = long_history()
    path = tmp_path / "history.jsonl"
    with path.open("wb") as file:
        write_recording(file, recording)

    second = judges.ask_porcupine(program, path, timeout_s=0)

    assert second.verdict is Verdict.UNDECIDED
    assert [finding.kind for finding in judges.compare([], second)] == [Kind.UNDECIDED]
    assert second.partition in judges.compare([], second)[0].evidence


def second_opinion(result: Verdict) -> SecondOpinion:
    return SecondOpinion(result, 2, 10, 0.1, "T/0", "read [0, 1)", "")


@pytest.mark.parametrize(
    ("findings", "result"),
    [([Finding(Kind.LOST, "m1")], Verdict.LINEARIZABLE), ([], Verdict.NOT_LINEARIZABLE)],
    ids=["only-ours", "only-porcupine"],
)
def test_disagreement_names_both_judges(findings: list[Finding], result: Verdict) -> None:
    """One of the two is wrong, so it is a finding of its own."""
    [finding] = judges.compare(findings, second_opinion(result))

    assert finding.kind is Kind.DISAGREEMENT
    assert "gantry_histories found " + ("LOST" if findings else "nothing") in finding.evidence
    assert f"Porcupine: {result}" in finding.evidence


def test_agreement_is_no_finding() -> None:
    """Findings that are no part of Porcupine's model are not compared."""
    assert judges.compare([Finding(Kind.LOST, "m1")], second_opinion(Verdict.NOT_LINEARIZABLE)) == []
    assert judges.compare([Finding(Kind.DIVERGED, "a")], second_opinion(Verdict.LINEARIZABLE)) == []


def test_missing_program_is_reported(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Without Go only our judge runs, and the output says so; if ``GANTRY_REQUIRE`` promises it, that is an error."""

    def fail() -> Path:
        raise PorcupineFailed("porcupine: go is missing")

    monkeypatch.setattr(judges, "build_porcupine", fail)
    monkeypatch.setenv("GANTRY_REQUIRE", "root,go")
    assert judges.find_porcupine() is None
    assert "NOT RUN HERE" in capsys.readouterr().out
    monkeypatch.setenv("GANTRY_REQUIRE", "root,porcupine")
    with pytest.raises(PorcupineFailed):
        judges.find_porcupine()


@pytest.mark.needs_porcupine
def test_packed_recording_is_kept_only_if_the_judges_disagree(
    program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A load in a pod sends its recording as a text. The finding names the file."""
    text = pack_recording(Case().recording())

    assert judges.judge_packed(text, tmp_path / "kept") == []
    assert list((tmp_path / "kept").iterdir()) == []

    monkeypatch.setattr(judges, "check", lambda *recording: [Finding(Kind.LOST, "m1")])
    [finding] = judges.judge_packed(text, tmp_path / "kept")
    [folder] = (tmp_path / "kept").iterdir()
    assert finding.kind is Kind.DISAGREEMENT
    assert str(folder / "history.jsonl") in finding.evidence


@pytest.mark.needs_porcupine
def test_incomplete_file_is_refused(program: Path, tmp_path: Path) -> None:
    """The file of a run that did not complete has no end, and is not judged."""
    path = tmp_path / "history.jsonl"
    path.write_text('{"event":"term","epoch":1,"broker":"a","at":1}\n')

    with pytest.raises(PorcupineFailed, match="did not complete"):
        judges.ask_porcupine(program, path)


@pytest.mark.needs_go
@pytest.mark.needs_porcupine
def test_tests_of_the_program_pass() -> None:
    """The program has tests in its own language."""
    environment = {**os.environ, "GOFLAGS": "-mod=readonly", "GOTOOLCHAIN": "local"}
    result = subprocess.run(
        ["go", "test", "./..."], cwd=MODULE, env=environment, capture_output=True, text=True, timeout=TEST_TIMEOUT_S,
        check=False,
    )  # fmt: skip

    assert result.returncode == 0, result.stdout + result.stderr
