"""The programs of the SDKs, tested by planted faults: each notices a proxy that alters, loses or adds a message."""

from __future__ import annotations

from pathlib import Path

import pytest
from gantry_interop import sdk, sdk_programs
from gantry_interop.processes import Nursery
from gantry_interop.sdk import FlowResult

FAULTY_PROXY = str(sdk_programs.SDK / "faulty_proxy.py")
NEEDS = {"java": "needs_java", "go": "needs_go", "node": "needs_node", "rust": "needs_rust"}

pytestmark = [pytest.mark.slow, pytest.mark.verify]

languages = pytest.mark.parametrize(
    "language",
    [pytest.param(one, marks=getattr(pytest.mark, NEEDS[one])) if one in NEEDS else one for one in sdk.LANGUAGES],
)


def run(directory: Path, language: str, fault: str, flow: str) -> FlowResult:
    """Return the verdict of one flow with ten messages through a proxy with a fault, or without one."""
    program = (FAULTY_PROXY, fault) if fault else ("-m", "gantry_proxy")
    with Nursery(directory / "logs") as nursery:
        [result] = sdk.run_sdks(nursery, "gantry", [language], {flow: 10}, directory, program)
    return result


@languages
@pytest.mark.parametrize("flow", ["normal", "sql"])
def test_flow_passes_without_a_fault(language: str, flow: str, tmp_path: Path) -> None:
    """What the other tests of this file find is the fault."""
    assert run(tmp_path, language, "", flow).is_ok


@languages
def test_altered_body_is_noticed(language: str, tmp_path: Path) -> None:
    """A body is compared with the digest of what was sent."""
    result = run(tmp_path, language, "alter", "normal")

    assert not result.is_ok and result.received == 10 and "changed" in result.note


@languages
def test_lost_message_is_noticed(language: str, tmp_path: Path) -> None:
    """A message that does not arrive within the patience of the program is lost."""
    result = run(tmp_path, language, "lose", "normal")

    assert not result.is_ok and (result.expected, result.received) == (10, 9)


@languages
def test_message_that_the_filter_excludes_is_noticed(language: str, tmp_path: Path) -> None:
    """A consumer gets no message beyond those of its filter."""
    result = run(tmp_path, language, "ignore-filter", "sql")

    assert not result.is_ok and (result.expected, result.received) == (4, 10)
