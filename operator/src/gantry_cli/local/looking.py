"""Looking at a local group from another process: what its supervisor wrote down last, and how old that is."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from gantry_cli.errors import Absent, CliError
from gantry_cli.group_documents import ExplainDocument
from gantry_cli.local.look import Look
from gantry_cli.local.state import GroupRecord, GroupState
from gantry_cli.local.whole_file import read_whole
from gantry_cli.output import Form, show
from gantry_cli.stack import StackDirectory

STALE_MS: Final = 10_000


def running_look(data: Path) -> Look | None:
    """The newest look of the group that runs on a folder; None if none does. Raises CliError when it is damaged."""
    if not StackDirectory(data).is_running():
        return None
    return read_whole(GroupState(data).decision_file, Look, "it is written again at once; try again")


def require_look(data: Path) -> Look:
    """The same. Raises Absent."""
    look = running_look(data)
    if look is None:
        raise Absent(f"no group runs on {data}", "start one with `gantry up`, or name its folder with --data")
    return look


def require_group(data: Path) -> GroupRecord:
    """The processes of the group that runs on a folder. Raises Absent."""
    state = GroupState(data)
    record = state.read_group() if StackDirectory(data).is_running() else None
    if record is None:
        raise Absent(f"no group runs on {data}", "start one with `gantry up`, or name its folder with --data")
    return record


def age_ms(look: Look) -> int:
    """How long ago it was."""
    return max(0, time.time_ns() // 1_000_000 - look.at_ms)


def require_alive(look: Look) -> None:
    """Raise CliError when the supervisor looks no more: nobody would obey."""
    if age_ms(look) > STALE_MS:
        raise CliError(f"the supervisor (pid {look.pid}) has not looked for {age_ms(look) / 1000:.0f} s", "see its log")


def explain_here(data: Path, form: Form) -> None:
    """For `gantry explain`: what would happen if a master of the group died now, and what is being done."""
    look = require_look(data)
    document = ExplainDocument(at_ms=look.at_ms, group=look.group, decision=look.decision, outlook=look.outlook)
    show(form, document, lambda: explained(look))


def explained(look: Look) -> Iterator[str]:
    """The same for people."""
    for one in look.outlook:
        yield from one.lines
    yield from look.decision or ("nothing is to be done",)
