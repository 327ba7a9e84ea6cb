"""A pytest plugin with the fixture `speedups`, which runs a test twice: on the Python path and on the compiled one.

    def test_a_batch_is_packed(speedups: ModuleType | None) -> None:
        pack = pack_in_python if speedups is None else speedups.pack

Both paths are in this process, whichever GANTRY_SPEEDUPS selects. During the test `gantry_speedups` names the path of
the case, so code that looks there when it builds an object uses this path, and processes that the test starts get it by
GANTRY_SPEEDUPS. Code that chose its functions when it was imported keeps them; test both of its functions by name.

Without a compiled module the compiled case is skipped and counted (`needs_speedups`), or fails if GANTRY_REQUIRE names
`speedups`.
"""

from __future__ import annotations

from types import ModuleType

import pytest

import gantry_speedups
from gantry_speedups import OFF, REQUIRE, VARIABLE, load_native


@pytest.fixture(params=["python", pytest.param("compiled", marks=pytest.mark.needs_speedups)])
def speedups(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> ModuleType | None:
    """Run the test on both paths. Return the compiled module in its case, and None in the other one."""
    is_compiled = request.param == "compiled"
    native = load_native()[0] if is_compiled else None
    assert is_compiled == (native is not None), "the need of the compiled case was checked"
    values = {
        "native": native,
        "is_compiled": is_compiled,
        "is_degraded": False,
        "hot_path": request.param,
        "reason": "" if is_compiled else f"switched off by {VARIABLE}={OFF}",
    }
    for name, value in values.items():
        monkeypatch.setattr(gantry_speedups, name, value)
    monkeypatch.setenv(VARIABLE, REQUIRE if is_compiled else OFF)
    return native
