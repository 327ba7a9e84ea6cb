"""What people ask of a local group: the annotations in its folder, read at every look, cleared when they are obeyed.

What was fenced stays fenced, whoever mistypes what: of annotations that cannot all be understood the states stand, as
in a cluster, and while the file itself is damaged what stood last. A supervisor that has never read it knows of no
fence and must not guess that there is none, so its group is paused until somebody has mended the file.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, final

from gantry_cli.errors import CliError
from gantry_cli.local.state import GroupState
from gantry_spec.manifest.annotations import ACCEPT_LOSS, PROMOTE, Wanted, asked, standing, without


@final
class Wishes:
    """Of one supervisor."""

    def __init__(self, state: GroupState, tell: Callable[[str], None]) -> None:
        self._state: Final = state
        self._tell: Final = tell
        self._trouble = ""
        self._standing = Wanted(is_paused=True)
        """What holds while the file is damaged."""

    def read(self) -> Wanted:
        """What is asked for. Orders that nobody can read are told once, and ask for nothing; what stands goes on."""
        try:
            annotations = self._state.read_annotations()
        except CliError as error:
            self._complain(str(error))
            return self._standing
        self._standing = standing(annotations)
        found, complaint = asked(annotations)
        self._complain(complaint)
        return found

    def _complain(self, text: str) -> None:
        if text and text != self._trouble:
            self._tell(f"orders that nobody can read: {text}")
        self._trouble = text

    def clear(self, wish: str) -> None:
        """Take an obeyed order off; with the last one goes what it accepted. Raises CliError and OSError."""
        with self._state.editing():
            annotations = self._state.read_annotations()
            rest = without(annotations.get(PROMOTE, ""), wish)
            annotations |= {PROMOTE: rest}
            if not rest:
                annotations.pop(PROMOTE)
                annotations.pop(ACCEPT_LOSS, None)
            self._state.write_annotations(annotations)
