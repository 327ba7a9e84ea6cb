"""Orders of people to a local group, which two processes edit: who leaves one, and the supervisor that clears one."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from gantry_cli.local.promote import _leave
from gantry_cli.local.state import GroupState
from gantry_cli.local.wishes import Wishes
from gantry_spec.manifest.annotations import PROMOTE


def test_an_order_that_is_left_while_another_is_cleared_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cleared by who has read the file before the new one came: `gantry promote` would take it for obeyed."""
    state = GroupState(tmp_path)
    _leave(state, 0, "0@1", "0")
    read, has_read, go_on = GroupState.read_annotations, threading.Event(), threading.Event()

    def slowly(self: GroupState) -> dict[str, str]:
        found = read(self)
        if not has_read.is_set():
            has_read.set()
            go_on.wait(30)
        return found

    monkeypatch.setattr(GroupState, "read_annotations", slowly)
    clearing = threading.Thread(target=Wishes(state, lambda _: None).clear, args=("0@1",))
    clearing.start()
    has_read.wait(30)
    leaving = threading.Thread(target=_leave, args=(GroupState(tmp_path), 1, "1@2", "0"))
    leaving.start()
    leaving.join(0.3)  # as far as it gets
    go_on.set()
    for thread in (clearing, leaving):
        thread.join(30)

    assert state.read_annotations()[PROMOTE] == "1@2"
