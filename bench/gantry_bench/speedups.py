"""Which code path a broker of this tree takes: the compiled one, or pure Python.

The question goes to a new interpreter with the environment that the broker gets, because the switch is read at import,
and because a compiled module may be missing, may fail to load, or may not belong to this version at all. So a figure is
never attributed to a path by the setting alone.
"""

from __future__ import annotations

import subprocess
import sys
from typing import Final, Literal

import msgspec

from gantry_bench.errors import BenchmarkFailed

Setting = Literal["off", "auto"]
"""A value of the switch: `off` is the Python path, `auto` takes the compiled one if it can be loaded."""

SWITCH: Final = "GANTRY_SPEEDUPS"
TIMEOUT_SECONDS: Final = 60
NO_PACKAGE: Final = "this version has no compiled path"
PROBE: Final = f"""
import importlib, json

def value_of(attribute):
    return attribute() if callable(attribute) else attribute

try:
    speedups = importlib.import_module("gantry_speedups")
except ModuleNotFoundError as error:
    if error.name != "gantry_speedups":
        raise
    found = (False, {NO_PACKAGE!r})
else:
    found = (bool(value_of(speedups.is_compiled)), str(value_of(getattr(speedups, "reason", "")) or ""))
print(json.dumps(dict(is_compiled=found[0], reason=found[1])))
"""


class CodePath(msgspec.Struct, frozen=True):
    """The path that a broker takes with one setting of the switch."""

    setting: str
    """The setting; empty if it is that of the environment."""
    is_compiled: bool
    reason: str = ""
    """Why it is not the compiled one, or which module it is."""


class _Answer(msgspec.Struct, frozen=True):
    is_compiled: bool
    reason: str


def prefix_for(setting: Setting) -> tuple[str, ...]:
    """Return the words before a command line that give a process this setting."""
    return ("env", f"{SWITCH}={setting}")


def probe(setting: Setting | None = None) -> CodePath:
    """Return the path that a broker takes with this setting; None is the setting of this process's environment.

    Raises BenchmarkFailed if it cannot be determined.
    """
    prefix = () if setting is None else prefix_for(setting)
    text = f"{SWITCH}={setting}" if setting else "the switch as it is"
    try:
        done = subprocess.run(
            [*prefix, sys.executable, "-c", PROBE], capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False
        )
        if done.returncode != 0:
            raise BenchmarkFailed(f"loading gantry_speedups with {text} failed: {done.stderr[-500:].strip()}")
        answer = msgspec.json.decode(done.stdout.encode(), type=_Answer)
    except (OSError, subprocess.TimeoutExpired, msgspec.MsgspecError) as error:
        raise BenchmarkFailed(f"cannot determine the code path with {text}: {error}") from error
    if setting == "off" and answer.is_compiled:
        raise BenchmarkFailed(f"with {text} the compiled path is still taken")
    reason = answer.reason or ("" if answer.is_compiled else "no reason was given")
    return CodePath(setting=setting or "", is_compiled=answer.is_compiled, reason=reason)
