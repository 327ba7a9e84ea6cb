"""Fixtures that tests of several files share, since they are expensive to make."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from api_server import ApiServer, groups_server


@pytest.fixture(scope="session")
def groups_api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """An API server that knows our kinds, for tests that delete what they create or give it names of its own."""
    with groups_server(tmp_path_factory.mktemp("api")) as made:
        yield made
