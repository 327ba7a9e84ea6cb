"""The options that many benchmarks have."""

from __future__ import annotations

from typing import Final

import click

ASSERT_GOALS: Final = click.option("--assert-goals", is_flag=True, help="Exit with 1 when a goal is missed.")

QUICK_CHECK: Final = click.option(
    "--quick", is_flag=True, help="Run for seconds to check the benchmark itself; the figures mean nothing."
)
