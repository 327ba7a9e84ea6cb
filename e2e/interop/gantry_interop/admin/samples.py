"""Raw outputs of Apache's side, one for each set of rules of the plan and one refusal, for tests that run without Java.

A rule is tested with output for which it was made. `run.py admin --record` writes the samples.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from gantry_interop.admin import plan
from gantry_interop.admin.masks import Window, normalize
from gantry_interop.admin.plan_runner import Compared
from gantry_interop.admin.steps import Step
from gantry_interop.paths import ROOT

SAMPLES: Final = Path(__file__).with_name("samples.json")
LINES_MAX: Final = 60
CLONE: Final = "/srv/gantry"
"""The path of the clone in the samples, in outputs and in facts."""


@dataclass(frozen=True)
class Sample:
    """One recorded output of a step."""

    typed: str
    text: str
    facts: Mapping[str, str]
    start_ms: int
    end_ms: int

    @property
    def step(self) -> Step:
        """The step to which the output belongs."""
        return next(step for step in plan.ALL if step.typed == self.typed)

    def normalize(self, text: str | None = None) -> list[str]:
        """Return what is compared of the sample, or of another text in its place."""
        window = Window(self.start_ms, self.end_ms)
        return normalize(self.text if text is None else text, self.facts, window, self.step.masks, self.step.quirks)


def choose(compared: Sequence[Compared], window: Window) -> Iterator[Sample]:
    """Yield one sample for each set of rules, of the first successful step with it, and one of a refusal."""
    seen: set[object] = set()
    for one in compared:
        kind = "refused" if one.is_theirs_failed else (tuple(one.step.masks), tuple(one.step.quirks), one.step.common)
        raw = one.raw
        if raw is None or kind in seen or not (raw.out or raw.error or raw.file):
            continue
        seen.add(kind)
        text = "\n".join((raw.error if one.is_theirs_failed else raw.out + (raw.file or "")).splitlines()[:LINES_MAX])
        facts = {name: value for name, value in one.facts.items() if value in text}
        yield Sample(one.step.typed, text + "\n", facts, window.start_ms, window.end_ms)


def write(found: Iterator[Sample]) -> None:
    """Write the samples to their file, with another path in place of this clone's."""
    text = json.dumps([asdict(one) for one in found], indent=1)
    SAMPLES.write_text(text.replace(str(ROOT), CLONE) + "\n")


def read() -> list[Sample]:
    """Read the samples from their file."""
    return [Sample(**one) for one in json.loads(SAMPLES.read_text())]
