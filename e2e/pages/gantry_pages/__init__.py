"""Runs the commands and programs of the pages in docs/, and compares their output with the pages."""

from gantry_pages.blocks import Block, Kind, blocks_of
from gantry_pages.sandbox import PageFailed, Sandbox

__all__ = ["Block", "Kind", "PageFailed", "Sandbox", "blocks_of"]
