"""The plan of the damage run: every kind of file and of damage, each trial replayable, and no file without a kind."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from damage.damage_kinds import DamageKind, NotPossible, Source, damage_file
from damage.expectations import load_expectations
from damage.file_kinds import IN_GROUPS_ONLY, FileKind, UnknownFile, classify_files, kind_of
from damage.plan import NEVER_LEFT_BEHIND, BrokerState, Stop, TemplateKind, combinations, plan, trial_of
from damage.run_damage import MEMORY, SLICE_SEED, SLICE_TRIALS, TRIALS, parse_replay, replay_command, the_slice
from damage.shard import Setup
from damage.template import CLEAN, OLDER, PENDING, UNCLEAN, build_template


def test_every_combination_is_planned() -> None:
    """Each kind of file that a stop leaves behind is planned, most of them with each damage, stop, time and setup."""
    found = combinations()
    wide = [
        kind
        for kind in FileKind
        if kind not in NEVER_LEFT_BEHIND
        and sum(combination.file_kind is kind for combination in found) == 6 * 2 * 2 * 3
    ]

    assert len(found) == len(set(found)) > 1_000
    assert len(wide) >= 25, "too many kinds are not in every combination"
    assert {combination.file_kind for combination in found} == set(FileKind) - NEVER_LEFT_BEHIND
    assert {
        (combination.stop, combination.broker, combination.setup)
        for combination in found
        if combination.file_kind is FileKind.LOG_NEWEST
    } == {(stop, broker, setup) for stop in Stop for broker in BrokerState for setup in Setup}


def test_each_combination_comes_once_before_any_twice() -> None:
    """A run over as many trials as there are combinations has every one; its order is the seed's."""
    count = len(combinations())
    trials = plan(7, count + 10)

    assert len({trial.combination for trial in trials[:count]}) == count
    assert plan(7, 50) == trials[:50] and plan(8, 50) != trials[:50]


def test_default_run_has_every_combination() -> None:
    """A run without options leaves out no combination, and repeats none."""
    trials = plan(7, TRIALS)

    assert {trial.combination for trial in trials} == set(combinations()) and len(trials) == len(combinations())


def test_a_trial_is_repeated_by_its_command() -> None:
    """The command that a FAULT prints leads to the same trial, even if the run that found it was filtered."""
    trial = plan(7, 300, ["queue/one bit"])[17]
    command = replay_command(trial)
    text = command.split("'")[1]

    assert parse_replay(text, 7) == trial == trial_of(7, 17, trial.combination)
    assert trial.make_rng().random() == parse_replay(text, 7).make_rng().random()


def test_filter_matches_combinations_with_all_its_words() -> None:
    """`index/sync group` is the index in sync groups, and no word matches a part of another."""
    trials = plan(1, 100, ["index/sync group", "topics"])

    assert {trial.combination.file_kind for trial in trials} == {FileKind.INDEX, FileKind.TOPICS}
    assert all(
        trial.combination.setup is Setup.SYNC for trial in trials if trial.combination.file_kind is FileKind.INDEX
    )
    assert plan(1, 10, ["no such word"]) == []


def test_the_slice_is_fixed() -> None:
    """The trials among the tests are the same in every run."""
    trials = the_slice()

    assert trials == the_slice() and len(trials) == SLICE_TRIALS
    assert all(trial.seed == SLICE_SEED for trial in trials)


@pytest.fixture
def memory() -> Iterator[Path]:
    """Return a folder on a tmpfs, which write buffers need."""
    with TemporaryDirectory(prefix="gantry-damage-", dir=MEMORY) as folder:
        yield Path(folder)


@pytest.mark.verify(quick=1)
@pytest.mark.parametrize("setup", [Setup.ALONE, Setup.SYNC])
async def test_every_file_of_a_real_store_has_a_kind(
    memory: Path, monkeypatch: pytest.MonkeyPatch, setup: Setup
) -> None:
    """A used store with write buffers has no file that the matrix does not know."""
    monkeypatch.chdir(memory)
    await build_template(memory, TemplateKind(setup, has_write_buffers=True, has_users=True), 1)
    expectations = load_expectations(memory)
    found: set[FileKind] = set()
    for copy in (*OLDER, UNCLEAN, CLEAN):
        for member in (memory / copy).iterdir():
            found |= {file.kind for file in classify_files(member, end=expectations.wrote)}

    missing = set(FileKind) - NEVER_LEFT_BEHIND - found
    assert missing == {Setup.ALONE: set(IN_GROUPS_ONLY), Setup.SYNC: set()}[setup]
    assert {message.topic for message in expectations.messages} >= {"Busy", "Later", "Deals", "%RETRY%Failing"}
    assert sum(one.is_half for one in expectations.pending) == 2 and len(expectations.pending) == PENDING


def test_a_file_of_no_known_kind_is_an_error(tmp_path: Path) -> None:
    """The error names the module in which a new kind is added."""
    for name in ("store/news.json", "store/config/news.json", "store/commitlog/x", "store/consumequeue/T/0/x/y"):
        with pytest.raises(UnknownFile, match=r"kinds\.py"):
            kind_of(name, tmp_path, end=0)


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("how", DamageKind)
def test_each_way_of_damage_changes_the_file(tmp_path: Path, how: DamageKind, in_place: bool) -> None:
    """The file differs or is gone; in place it still has its inode, so a broker that has it open sees the damage."""
    member, older, foreign = (tmp_path / name / "1" for name in ("now", "older-1", "foreign"))
    for folder, byte in ((member, b"n"), (older, b"o"), (foreign, b"f")):
        folder.mkdir(parents=True)
        (folder / "file").write_bytes(byte * 100)
        (folder / "other").write_bytes(byte.upper() * 100)
    path, inode = member / "file", (member / "file").stat().st_ino
    source = Source([older], foreign, ["other"])

    text = damage_file(member, "file", how, random.Random(1), source, written=50, in_place=in_place)

    assert text and (not path.exists() or path.read_bytes() != b"n" * 100)
    if in_place and how is not DamageKind.MISSING:
        assert path.stat().st_ino == inode


def test_impossible_damage_is_not_counted(tmp_path: Path) -> None:
    """An empty file without another one to swap with or an older copy cannot be damaged: there is no trial."""
    member = tmp_path / "now" / "1"
    member.mkdir(parents=True)
    (member / "file").write_bytes(b"")
    source = Source([], tmp_path / "nowhere", [])

    for how in (
        DamageKind.EMPTIED,
        DamageKind.TRUNCATED,
        DamageKind.FLIPPED,
        DamageKind.SWAPPED,
        DamageKind.ROLLED_BACK,
    ):
        with pytest.raises(NotPossible):
            damage_file(member, "file", how, random.Random(1), source, written=0, in_place=False)
