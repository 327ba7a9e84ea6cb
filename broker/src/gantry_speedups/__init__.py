"""The choice between the compiled hot path and the Python path, made once for a process.

`_native` is a compiled module with the functions that run for each message. Each of them replaces a Python function and
gives the same result, byte for byte, so only the speed depends on the choice:

    from gantry_speedups import native
    crc32 = zlib.crc32 if native is None else native.crc32

The environment variable GANTRY_SPEEDUPS decides: `auto` (the default) uses the compiled module if there is a usable
one, `require` refuses to start without it, and `off` uses the Python path. It is read here and not with the other
settings, because modules choose their functions when they are imported, before any setting is parsed.

A compiled module is used only if it was built from the sources beside it. A checkout that was updated and not built
again takes the Python path, and `reason` names the remedy. Wheels contain no sources, so nothing is compared there.

The package is the lowest layer and imports no other package of Gantry.
"""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Final

from gantry_speedups.build_record import find_damage, hash_sources, read_reason

VARIABLE: Final = "GANTRY_SPEEDUPS"
AUTO: Final = "auto"
REQUIRE: Final = "require"
OFF: Final = "off"
MODES: Final = (AUTO, REQUIRE, OFF)

_NAME: Final = f"{__name__}._native"
_FOLDER: Final = Path(__file__).parent


class SpeedupsError(ImportError):
    """GANTRY_SPEEDUPS is invalid, or it requires a compiled module that is not usable. Correct it, and start again."""


def _read_mode() -> str:
    """Return the value of GANTRY_SPEEDUPS; an empty one counts as unset. Raises SpeedupsError for an invalid one."""
    mode = os.environ.get(VARIABLE) or AUTO
    if mode not in MODES:
        raise SpeedupsError(f"{VARIABLE}={mode}: expected {', '.join(MODES[:-1])} or {MODES[-1]}")
    return mode


def _load(mode: str) -> tuple[ModuleType | None, str]:
    """Return the compiled module, or None and the reason. Raises SpeedupsError if the module is required."""
    module, why = (None, f"switched off by {VARIABLE}={OFF}") if mode == OFF else load_native()
    if module is None and mode == REQUIRE:
        raise SpeedupsError(
            f"{VARIABLE}={REQUIRE}, but the compiled hot path is not usable: {why} "
            f"-- run scripts/setup with a C compiler, install a wheel for this platform, or set {VARIABLE}={AUTO}"
        )
    return module, why


def load_native() -> tuple[ModuleType | None, str]:
    """Import the compiled module. Return None and the reason if it is missing, broken or built from other sources.

    Only tests call this directly, to compare both paths in one process; everything else uses `native`.
    """
    if damage := find_damage(_FOLDER):
        return None, f"cannot be loaded: {damage}"
    try:
        module = importlib.import_module(_NAME)
    except ModuleNotFoundError as error:
        return None, read_reason(_FOLDER) if error.name == _NAME else f"cannot be loaded: {error}"
    except ImportError as error:
        return None, "cannot be loaded: " + " ".join(str(error).split())
    sources = hash_sources(_FOLDER)
    if sources is None or sources == getattr(module, "SOURCES_HASH", None):
        return module, ""
    del sys.modules[_NAME], globals()[_NAME.rpartition(".")[2]]  # no later import gets it, either
    return None, "built from other sources; run scripts/setup"


mode: Final = _read_mode()
"""The value of GANTRY_SPEEDUPS."""

_loaded: Final = _load(mode)

native: Final = _loaded[0]
"""The compiled module, or None if the Python path runs."""

reason: Final = _loaded[1]
"""Why the Python path runs, in one line; empty if the compiled module is used."""

is_compiled: Final = native is not None
"""Whether the compiled module is used."""


def is_fault(text: str) -> bool:
    """Whether a reason for the Python path is a fault: the build failed, or what it has built is broken or outdated."""
    return bool(text) and not text.startswith(("switched off", "not built"))


is_degraded: Final = is_fault(reason)
"""Whether the Python path runs because of a fault."""

hot_path: Final = "compiled" if is_compiled else "python"
"""The name of the path that runs, as the broker's log and the sidecar give it."""


def describe() -> str:
    """Return which path runs, for people: `compiled hot path`, or `Python hot path: REASON`."""
    return "compiled hot path" if is_compiled else f"Python hot path: {reason}"
