"""A real Chromium, headless, for the console's tests: errors of a page and violations of its policy fail the test."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import resources
from typing import Final, Literal

from playwright.sync_api import Browser, Page, expect, sync_playwright

NAMES: Final = ("chromium", "chromium-browser", "google-chrome")
SIZES: Final = {"wide": (1280, 900), "narrow": (390, 844)}
"""The sizes of the window in pixels."""

PATIENCE_MS: Final = 120_000
"""The limit for a condition of a page; a busy machine shows pages slowly."""

Scheme = Literal["dark", "light"]
Motion = Literal["reduce", "no-preference"]


def command() -> str:
    """Return the path of this machine's browser; tests that use it are marked with `needs_browser`."""
    return next(path for name in NAMES if (path := shutil.which(name)) is not None)


@contextmanager
def browser() -> Iterator[Browser]:
    """Run a browser during the context. Root cannot use its sandbox, which only pages of others would need."""
    options = ["--disable-gpu", *(["--no-sandbox"] if os.geteuid() == 0 else [])]
    with sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=command(), args=options)
        try:
            yield started
        finally:
            started.close()


class PageErrors(list[str]):
    """The errors that a page has reported."""


@contextmanager
def page_at(
    started: Browser,
    url: str,
    *,
    size: str = "wide",
    scheme: Scheme = "dark",
    motion: Motion = "no-preference",
    expects_errors: bool = False,
    zone: str | None = None,
) -> Iterator[Page]:
    """Open a page without stored state during the context; ``zone`` is the time zone of its reader.

    An error in it, or a violation of its own Content Security Policy, fails the test.
    """
    expect.set_options(timeout=PATIENCE_MS)
    width, height = SIZES[size]
    context = started.new_context(
        viewport={"width": width, "height": height}, color_scheme=scheme, reduced_motion=motion, timezone_id=zone
    )
    context.set_default_timeout(PATIENCE_MS)
    page, errors = context.new_page(), PageErrors()
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda message: errors.append(message.text) if "Content Security" in message.text else None)
    page.goto(url)
    page.wait_for_selector("#main")
    try:
        yield page
    finally:
        context.close()
    if not expects_errors:
        assert errors == []


def accessibility_violations(page: Page) -> list[str]:
    """Return what axe-core finds on a page that is serious or critical: rule, impact, element and remedy."""
    if not page.evaluate("typeof window.axe === 'object'"):
        page.evaluate(resources.files("axe_playwright_python").joinpath("axe.min.js").read_text())
    found: list[str] = page.evaluate(AXE)
    return found


AXE: Final = """
async () => {
  const result = await axe.run(document, { resultTypes: ["violations"] });
  return result.violations.filter((one) => ["serious", "critical"].includes(one.impact)).flatMap((one) =>
    one.nodes.map((node) => `${one.id} (${one.impact}): ${node.target.join(" ")}: ${node.failureSummary}`));
}
"""

OVERFLOW: Final = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
"""By how many pixels the page is wider than the window."""

CONTRASTS: Final = """
() => {
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const rgba = (text) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = text;
    canvas.fillRect(0, 0, 1, 1);
    const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data;
    return [r, g, b, a / 255];
  };
  const over = (top, below) => [0, 1, 2].map((at) => top[at] * top[3] + below[at] * (1 - top[3])).concat(1);
  const ground = (element) => {
    const layers = [];
    for (let at = element; at !== null; at = at.parentElement) {
      const colour = rgba(getComputedStyle(at).backgroundColor);
      if (colour[3] > 0) layers.push(colour);
      if (colour[3] === 1) break;
    }
    return layers.reduceRight((below, top) => over(top, below), [255, 255, 255, 1]);
  };
  const light = ([r, g, b]) => {
    const linear = (one) => (one <= 0.03928 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4);
    const [x, y, z] = [r, g, b].map((one) => linear(one / 255));
    return 0.2126 * x + 0.7152 * y + 0.0722 * z;
  };
  const found = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    const text = walker.currentNode.nodeValue.trim();
    if (text === "" || element.closest("script, noscript, :disabled") || !element.checkVisibility()) continue;
    const below = ground(element);
    const above = over(rgba(getComputedStyle(element).color), below);
    const [high, low] = [light(above), light(below)].sort((a, b) => b - a);
    found.push([Math.round(((high + 0.05) / (low + 0.05)) * 100) / 100, element.className, text.slice(0, 40)]);
  }
  return found;
}
"""
"""(contrast, class, text) of every visible text outside of disabled controls."""
