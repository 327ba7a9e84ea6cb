"""Both judges of a history: `check`, and Porcupine with the model in `e2e/histories/porcupine`.

They share the file of the run (`recording`) and no code. Each decides whether the history keeps the guarantees of the
group's mode, and they must agree: a difference is a finding of its own, since one of the two is wrong. Only the bytes
of the members' logs (``Kind.DIVERGED``) are not part of Porcupine's model.

    python -m gantry_histories.judges FILE          judge the file of an earlier run again
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from typing import Final, NamedTuple

import msgspec

from gantry_histories.check import check
from gantry_histories.findings import Finding, Kind
from gantry_histories.recording import Recording, load_recording, unpack_recording, write_end

SCRIPT: Final = Path(__file__).resolve().parents[3] / "scripts/porcupine"
"""Builds the program of Porcupine once, and prints its path."""

DECISION_S: Final = 120
"""How long Porcupine may take for one file. It takes seconds, unless its model has a state space that explodes."""

OWN_ONLY: Final = frozenset({Kind.DIVERGED})
"""What only our judge can find."""


class Verdict(StrEnum):
    """What Porcupine has decided about all partitions of a history."""

    LINEARIZABLE = "Ok"
    NOT_LINEARIZABLE = "Illegal"
    UNDECIDED = "Unknown"
    """The time was over."""


class SecondOpinion(msgspec.Struct, frozen=True):
    """The report of Porcupine's program."""

    verdict: Verdict
    partitions: int
    operations: int
    seconds: float
    partition: str
    """The first partition that is not linearizable, or was not decided in time."""

    evidence: str
    """The operation that has no place in any order."""

    picture: str
    """The file with the picture of the partition."""

    def __str__(self) -> str:
        text = f"{self.verdict} for {self.operations} operations in {self.partitions} partitions, {self.seconds:.1f} s"
        return f"{text}; {self.partition}: {self.evidence}" if self.partition else text


class PorcupineFailed(Exception):
    """The program of Porcupine could not be built or run. The text has the reason and the remedy."""


class Judgement(NamedTuple):
    """The results of both judges."""

    findings: Sequence[Finding]
    """What our judge found, and how Porcupine differs from it."""

    second: SecondOpinion | None
    """The report of Porcupine; None if its program is missing here."""

    def __str__(self) -> str:
        own = sum(finding.kind not in (Kind.DISAGREEMENT, Kind.UNDECIDED) for finding in self.findings)
        return f"gantry_histories: {own} findings; Porcupine: {self.second or 'not run here'}"


def build_porcupine() -> Path:
    """Build the program of Porcupine if it is not built yet, and return its path. Raises ``PorcupineFailed``."""
    built = subprocess.run([str(SCRIPT)], capture_output=True, text=True, check=False)
    if built.returncode != 0:
        raise PorcupineFailed(built.stderr.strip().rpartition("\n")[2])
    return Path(built.stdout.strip())


def find_porcupine() -> Path | None:
    """Return the path of the program; None, with a message, if this machine cannot build it.

    Raises ``PorcupineFailed`` if ``GANTRY_REQUIRE`` promises it.
    """
    try:
        return build_porcupine()
    except PorcupineFailed as error:
        if "porcupine" in os.environ.get("GANTRY_REQUIRE", "").split(","):
            raise
        print(f"NOT RUN HERE the second judge of histories, Porcupine: {error}")
        return None


def ask_porcupine(program: Path, path: Path, timeout_s: int = DECISION_S) -> SecondOpinion:
    """Let Porcupine judge a file. The picture of a history that is not linearizable is next to it. Raises
    ``PorcupineFailed``."""
    command = [str(program), "-timeout", f"{timeout_s}s", "-picture", str(path.with_suffix(".html")), str(path)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise PorcupineFailed(result.stderr.strip())
    return msgspec.json.decode(result.stdout, type=SecondOpinion)


def judge(path: Path, recording: Recording, program: Path | None) -> Judgement:
    """Return the results of both judges for a file with this content. Without a program only ours judges. Raises
    ``PorcupineFailed``."""
    findings = check(*recording)
    if program is None:
        return Judgement(findings, None)
    second = ask_porcupine(program, path)
    return Judgement([*findings, *compare(findings, second)], second)


def compare(findings: Sequence[Finding], second: SecondOpinion) -> list[Finding]:
    """Return a finding if the judges disagree, or if Porcupine has not decided."""
    if second.verdict is Verdict.UNDECIDED:
        return [Finding(Kind.UNDECIDED, f"{second.partition} after {second.seconds:.0f} s")]
    own = sorted({finding.kind.name for finding in findings if finding.kind not in OWN_ONLY})
    if bool(own) == (second.verdict is Verdict.NOT_LINEARIZABLE):
        return []
    return [Finding(Kind.DISAGREEMENT, f"gantry_histories found {', '.join(own) or 'nothing'}; Porcupine: {second}")]


def end_and_judge(path: Path, recording: Recording, program: Path | None) -> Judgement:
    """Append the end of the run to the file with its events, and judge it. Raises ``PorcupineFailed``."""
    with path.open("ab") as file:
        write_end(file, recording.final, recording.mode)
    return judge(path, recording, program)


def judge_packed(text: str, folder: Path) -> list[Finding]:
    """Return how Porcupine differs from our judge about a packed recording. Its file is kept in the folder only if it
    does. Raises ``PorcupineFailed``."""
    program = find_porcupine()
    if program is None:
        return []
    folder.mkdir(parents=True, exist_ok=True)
    path = Path(mkdtemp(dir=folder)) / "history.jsonl"
    recording = unpack_recording(text, path)
    found = compare(check(*recording), ask_porcupine(program, path))
    if not found:
        rmtree(path.parent)
    return [finding._replace(evidence=f"{finding.evidence}; the history is {path}") for finding in found]


def main() -> None:
    """Judge the files that are named on the command line."""
    is_good = True
    program = build_porcupine()
    for name in sys.argv[1:]:
        judgement = judge(Path(name), load_recording(Path(name)), program)
        print(f"{name}: {judgement}")
        for finding in judgement.findings:
            print(f"FOUND {finding}")
        is_good = is_good and not judgement.findings
    sys.exit(0 if is_good else 1)


if __name__ == "__main__":
    main()
