"""The plan of the damage matrix: every kind, every way, each replayable, and no file of a store without a kind."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from damage.harms import Harm, NotPossible, Source, damage
from damage.kinds import IN_GROUPS, Kind, UnknownFile, kind_of, survey
from damage.ledger import load_ledger
from damage.plan import NEVER, Stop, When, cells, plan, trial_of
from damage.run_damage import MEMORY, SLICE_SEED, SLICE_TRIALS, TRIALS, parse_replay, replay_command, the_slice
from damage.shard import Setup
from damage.world import CLEAN, OLDER, UNCLEAN, build_world


def test_every_combination_is_planned() -> None:
    """Each kind of file but those of `NEVER` is planned, most of them with each damage, stop, time and setup."""
    found = cells()
    wide = [kind for kind in Kind if kind not in NEVER and sum(cell.kind is kind for cell in found) == 6 * 2 * 2 * 3]

    assert len(found) == len(set(found)) > 1_000
    assert len(wide) >= 25, "too many kinds are not in every combination"
    assert {cell.kind for cell in found} == set(Kind) - NEVER
    assert {(cell.stop, cell.when, cell.setup) for cell in found if cell.kind is Kind.LOG_NEWEST} == {
        (stop, when, setup) for stop in Stop for when in When for setup in Setup
    }


def test_each_combination_comes_once_before_any_twice() -> None:
    """A run over as many trials as there are combinations has every one; its order is the seed's."""
    count = len(cells())
    trials = plan(7, count + 10)

    assert len({trial.cell for trial in trials[:count]}) == count
    assert plan(7, 50) == trials[:50] and plan(8, 50) != trials[:50]


def test_default_run_has_every_combination() -> None:
    """A run without options leaves out no combination, and repeats none."""
    trials = plan(7, TRIALS)

    assert {trial.cell for trial in trials} == set(cells()) and len(trials) == len(cells())


def test_a_trial_is_repeated_by_its_command() -> None:
    """The command that a FAULT prints leads to the same trial, even if the run that found it was filtered."""
    trial = plan(7, 300, ["queue/one bit"])[17]
    command = replay_command(trial)
    text = command.split("'")[1]

    assert parse_replay(text, 7) == trial == trial_of(7, 17, trial.cell)
    assert trial.dice.random() == parse_replay(text, 7).dice.random()


def test_filter_matches_cells_with_all_its_words() -> None:
    """`index/sync group` is the index in sync groups, and no word matches a part of another."""
    trials = plan(1, 100, ["index/sync group", "topics"])

    assert {trial.cell.kind for trial in trials} == {Kind.INDEX, Kind.TOPICS}
    assert all(trial.cell.setup is Setup.SYNC for trial in trials if trial.cell.kind is Kind.INDEX)
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
    await build_world(memory, setup, 1, is_pooled=True)
    ledger = load_ledger(memory)
    found: set[Kind] = set()
    for copy in (*OLDER, UNCLEAN, CLEAN):
        for member in (memory / copy).iterdir():
            found |= {file.kind for file in survey(member, end=ledger.wrote)}

    missing = set(Kind) - NEVER - found
    assert missing == {Setup.ALONE: set(IN_GROUPS), Setup.SYNC: set()}[setup]
    assert {message.topic for message in ledger.known} >= {"Busy", "Later", "Deals", "%RETRY%Failing"}
    assert sum(one.is_half for one in ledger.owed) == 2 and len(ledger.owed) == 6


def test_a_file_of_no_known_kind_is_an_error(tmp_path: Path) -> None:
    """The error names the module in which a new kind is added."""
    for name in ("store/news.json", "store/config/news.json", "store/commitlog/x", "store/consumequeue/T/0/x/y"):
        with pytest.raises(UnknownFile, match=r"kinds\.py"):
            kind_of(name, tmp_path, end=0)


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("how", Harm)
def test_each_way_of_damage_changes_the_file(tmp_path: Path, how: Harm, in_place: bool) -> None:
    """The file differs or is gone; in place it still has its inode, so a broker that has it open sees the damage."""
    member, older, foreign = (tmp_path / name / "1" for name in ("now", "older-1", "foreign"))
    for folder, byte in ((member, b"n"), (older, b"o"), (foreign, b"f")):
        folder.mkdir(parents=True)
        (folder / "file").write_bytes(byte * 100)
        (folder / "twin").write_bytes(byte.upper() * 100)
    path, inode = member / "file", (member / "file").stat().st_ino
    source = Source([older], foreign, ["twin"])

    text = damage(member, "file", how, random.Random(1), source, written=50, in_place=in_place)

    assert text and (not path.exists() or path.read_bytes() != b"n" * 100)
    if in_place and how is not Harm.MISSING:
        assert path.stat().st_ino == inode


def test_impossible_damage_is_not_counted(tmp_path: Path) -> None:
    """An empty file without another one to swap with or an older copy cannot be damaged: there is no trial."""
    member = tmp_path / "now" / "1"
    member.mkdir(parents=True)
    (member / "file").write_bytes(b"")
    source = Source([], tmp_path / "nowhere", [])

    for how in (Harm.EMPTIED, Harm.TRUNCATED, Harm.FLIPPED, Harm.SWAPPED, Harm.ROLLED_BACK):
        with pytest.raises(NotPossible):
            damage(member, "file", how, random.Random(1), source, written=0, in_place=False)
