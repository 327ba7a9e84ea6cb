"""The choice between compiled modules and their Python sources, for the packages that have compiled ones.

A package with compiled modules calls `add_compiled` when it is imported, before its modules are:

    add_compiled(__name__, __path__)

Then Python finds the compiled file of a module first, and the source of every other module. Both have the same code, so
only the speed depends on the choice. GANTRY_SPEEDUPS decides as for the compiled hot path. Files that were built
from other sources are not used: after a change of one, all of these modules run in Python until the next setup.
"""

from __future__ import annotations

import importlib.util
import sys
import sysconfig
from pathlib import Path
from typing import Final

import gantry_speedups
from gantry_speedups import module_list
from gantry_speedups.build_record import read_reason

_PACKAGE_FOLDER: Final = Path(__file__).parent
_FOLDER: Final = _PACKAGE_FOLDER / module_list.FOLDER


def add_compiled(package: str, path: list[str]) -> None:
    """Let the compiled modules of a package be found before their sources, if they may be used."""
    if is_compiled:
        path.insert(0, str(_FOLDER.joinpath(*package.split("."))))


def _check(mode: str) -> str:
    """Load the code of the modules. Return why it is not used, in one line; empty if it is. Raises SpeedupsError."""
    fault = f"switched off by {gantry_speedups.VARIABLE}={mode}" if mode == gantry_speedups.OFF else _load()
    if fault and mode == gantry_speedups.REQUIRE:
        raise gantry_speedups.SpeedupsError(
            f"{gantry_speedups.VARIABLE}={mode}, but the compiled modules are not usable: {fault} "
            f"-- run scripts/setup with a C compiler, or install a wheel for this platform"
        )
    return fault


def _load() -> str:
    """Load the code of the modules; return why it cannot be used, in one line, or an empty text."""
    manifest = module_list.read_manifest(_FOLDER)
    if manifest is None and gantry_speedups.is_compiled:  # all is built, or nothing
        return "cannot be loaded: the manifest of the compiled modules is missing or damaged; run scripts/setup"
    if manifest is None:
        return read_reason(_PACKAGE_FOLDER)
    suffix = str(sysconfig.get_config_var("EXT_SUFFIX"))
    fault = module_list.find_fault(_FOLDER, manifest, suffix, _PACKAGE_FOLDER.parent)
    if fault:
        return fault
    name = module_list.LIBRARY
    spec = importlib.util.spec_from_file_location(name, _FOLDER / f"{name}{suffix}")
    assert spec is not None and spec.loader is not None, "a path with the suffix of modules has a loader"
    try:
        library = importlib.util.module_from_spec(spec)
        sys.modules[name] = library
        spec.loader.exec_module(library)
    except ImportError as error:
        sys.modules.pop(name, None)
        return "cannot be loaded: " + " ".join(str(error).split())
    return ""


_fault: Final = _check(gantry_speedups.mode)

is_compiled: Final = not _fault
"""Whether the compiled modules are used."""

reason: Final = gantry_speedups.reason or _fault
"""Why a program with compiled modules runs Python, in one line; empty if all of its hot path is compiled."""

is_degraded: Final = gantry_speedups.is_fault(reason)
"""Whether it runs Python because of a fault."""


def describe() -> str:
    """Return which path a program with compiled modules runs, for people."""
    return f"Python hot path: {reason}" if reason else "compiled hot path"
