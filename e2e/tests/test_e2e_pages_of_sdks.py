"""The pages of docs/ about SDKs of RocketMQ 5, run from top to bottom with the locked packages of each SDK."""

from __future__ import annotations

from pathlib import Path

import pytest
from gantry_interop import sdk_programs
from gantry_pages.page_runner import DOCS, SDK_PAGES, run_page

NEEDS = {"sdk-java": "needs_java", "sdk-go": "needs_go", "sdk-node": "needs_node", "sdk-rust": "needs_rust"}


@pytest.mark.verify
@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=getattr(pytest.mark, NEEDS[name])) if name in NEEDS else name for name in SDK_PAGES],
)
def test_every_command_of_the_page_works_as_shown(name: str, tmp_path: Path) -> None:
    """Each block succeeds and prints the lines that the page shows."""
    run_page(name, tmp_path)


@pytest.mark.parametrize("name", SDK_PAGES)
def test_page_names_the_version_that_is_tested(name: str) -> None:
    """A reader who installs what the page shows gets the SDK that the tests use."""
    language = name.removeprefix("sdk-")
    text = (DOCS / f"{name}.md").read_text()

    assert sdk_programs.version_of(language) in text
    assert sdk_programs.SDKS[language].package.rpartition(":")[2] in text


def test_every_sdk_has_a_page() -> None:
    """No SDK is tested without a page, and no page has an SDK that is not tested."""
    assert {f"sdk-{language}" for language in sdk_programs.SDKS} == set(SDK_PAGES)
