"""Fixtures of the fault tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from faults.loop_disk import LoopDisk, loop_disk
from faults.modes import buffer_directory


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[LoopDisk]:
    """A mounted disk whose power can be cut. The test is marked `needs_loop`."""
    with loop_disk(tmp_path) as made:
        yield made


@pytest.fixture
def buffers() -> Iterator[Path]:
    """A directory in memory for write buffers that survive their process."""
    with buffer_directory() as made:
        yield made
