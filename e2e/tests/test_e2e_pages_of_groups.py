"""The pages of docs/ about groups, typed from the top to the end: what breaks, moves and comes back on them is real."""

from __future__ import annotations

from pathlib import Path

import pytest
from gantry_pages.typed import SECOND, type_page


@pytest.mark.verify
@pytest.mark.needs_curl
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name == "upgrade" else name for name in SECOND]
)
def test_every_command_of_the_page_does_what_the_page_says(name: str, tmp_path: Path) -> None:
    """Each block ends well and prints the lines that the page shows."""
    type_page(name, tmp_path)
