"""Fixtures and settings for all tests of this folder; helpers are in `gantry_broker.testing`."""

from __future__ import annotations

from hypothesis import settings

# No deadline for one example: a machine with two busy cores makes any such limit a coin toss. A failure prints what
# replays it.
settings.register_profile("gantry", deadline=None, print_blob=True)
settings.load_profile("gantry")
