"""Runs the commands and programs of some pages of docs/ (`page_runner.PAGES`), and compares their output with them."""

from gantry_pages.blocks import Block, Kind, blocks_of
from gantry_pages.sandbox import PageFailed, Sandbox

__all__ = ["Block", "Kind", "PageFailed", "Sandbox", "blocks_of"]
