"""A short fuzz run against real processes: no findings, every code sent, most frames handled."""

import importlib
import sys
from pathlib import Path

import click
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))
run_fuzz = importlib.import_module("run_fuzz")

FRAMES = 30_000
SEED = 1


@pytest.mark.verify
def test_mutated_frames_leave_both_servers_serving(tmp_path: Path) -> None:
    """No missing reply, no traceback, no growth, no stray file; the store opens again with dense queues."""
    options = run_fuzz.Options(frames=FRAMES, seed=SEED)

    tallies = run_fuzz.fuzz(options, tmp_path)

    found = [str(finding) for tally in tallies for finding in tally.findings]
    assert found == [], f"replay: .venv/bin/python broker/tests/fuzz/run_fuzz.py --frames {FRAMES} --seed {SEED}"
    assert sum(tally.frames for tally in tallies) >= FRAMES
    assert all(tally.handled * 2 >= tally.frames for tally in tallies)
    assert all(len(tally.codes_parsed) == len(run_fuzz.RequestCode) for tally in tallies)


def test_the_replay_command_names_the_sessions_up_to_the_finding() -> None:
    """A finding of one session is replayed with some earlier sessions; one of the whole run with the whole run."""
    options = run_fuzz.Options(frames=500, seed=9)
    one, whole = run_fuzz.Tally("broker"), run_fuzz.Tally("nameserver")
    one.find(42, "x")
    whole.find(None, "x")

    assert run_fuzz.replay_command(options, one).endswith("--seed 9 --only broker:12-42")
    assert run_fuzz.replay_command(options, whole).endswith("--seed 9 --frames 500")
    assert run_fuzz.parse_only("broker:12-14") == {"broker": [12, 13, 14]}


@pytest.mark.parametrize("text", ["broker", "broker:", "client:1", "broker:x", "broker:1-x"])
def test_a_wrong_replay_is_refused_with_a_remedy(text: str) -> None:
    """An invalid replay option is refused before anything starts."""
    with pytest.raises(click.BadParameter, match="write broker:NUMBER"):
        run_fuzz.parse_only(text)
