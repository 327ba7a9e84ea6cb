"""Runs what the pages in docs/ tell people to type, and compares what they show with what comes."""

from gantry_pages.blocks import Block, Kind, blocks_of
from gantry_pages.sandbox import PageFailed, Sandbox

__all__ = ["Block", "Kind", "PageFailed", "Sandbox", "blocks_of"]
