"""The pages of docs/ about groups, run from top to bottom, with real faults, switchovers and restores."""

from __future__ import annotations

from pathlib import Path

import pytest
from gantry_pages.page_runner import SECOND_HALF, run_page


@pytest.mark.verify
@pytest.mark.needs_curl
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name == "upgrade" else name for name in SECOND_HALF]
)
def test_every_command_of_the_page_works_as_shown(name: str, tmp_path: Path) -> None:
    """Each block succeeds and prints the lines that the page shows."""
    run_page(name, tmp_path)
