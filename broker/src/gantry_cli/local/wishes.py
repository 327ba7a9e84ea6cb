"""What people ask of a local group: the annotations in its folder, read at every look, cleared when they are obeyed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, final

from gantry_cli.errors import CliError
from gantry_cli.local.state import GroupState
from gantry_spec.manifest import ManifestError
from gantry_spec.manifest.annotations import ACCEPT_LOSS, PROMOTE, Wanted, wanted, without


@final
class Wishes:
    """Of one supervisor."""

    def __init__(self, state: GroupState, tell: Callable[[str], None]) -> None:
        self._state: Final = state
        self._tell: Final = tell
        self._trouble = ""

    def read(self) -> Wanted:
        """What is asked for. Orders that nobody can read are told once, and ask for nothing."""
        try:
            asked = wanted(self._state.read_annotations())
        except (ManifestError, CliError) as error:
            if str(error) != self._trouble:
                self._trouble = str(error)
                self._tell(f"orders that nobody can read: {error}")
            return Wanted()
        self._trouble = ""
        return asked

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
