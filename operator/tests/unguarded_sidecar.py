"""A sidecar without deadlines and without eviction, the twin for tests of abuse. A program, not a module to import.

    python -m unguarded_sidecar --page ... (the options of a sidecar)

What runs is the shipped sidecar, which only counts connections: beyond the maximum, one more is refused.

A twin repeats a test without the rule that it checks, and finds the fault: so the test can fail.
"""

from __future__ import annotations

import sys

from gantry_admin import __main__ as sidecar
from gantry_remoting.http_admission import HttpAdmission


def guard_nothing() -> None:
    """Replace the deadlines and the eviction of connections by no-ops."""
    HttpAdmission.sweep = lambda self: None  # type: ignore[method-assign]
    HttpAdmission._evict = staticmethod(lambda slots, reason: False)  # type: ignore[method-assign]


if __name__ == "__main__":
    guard_nothing()
    sys.exit(sidecar.main())
