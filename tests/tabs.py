"""A real browser for tests of pages, and what a page in it must not do."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext
    from playwright.sync_api import Page as Tab

UNBROKEN = "antidisestablishmentarianism" * 12
ARGUMENTS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
LEAST_CONTRAST = """() => {
  const canvas = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
  const over = (colours) => {
    canvas.clearRect(0, 0, 1, 1);
    for (const colour of colours) { canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1); }
    return [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3);
  };
  const linear = (v) => (v / 255 <= 0.04045 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4);
  const light = ([r, g, b]) => 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
  const found = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const holder = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || !holder.checkVisibility() || holder.closest("svg, script, .skip")) continue;
    const grounds = [];
    for (let e = holder; e; e = e.parentElement) grounds.unshift(getComputedStyle(e).backgroundColor);
    const ground = over(["white", ...grounds]);
    const ink = over(["white", ...grounds, getComputedStyle(holder).color]);
    const [low, high] = [light(ground), light(ink)].sort((a, b) => a - b);
    found.push([(high + 0.05) / (low + 0.05), walker.currentNode.data.trim().slice(0, 40), holder.className]);
  }
  return [found.length, ...found.sort((a, b) => a[0] - b[0])[0]];
}"""


@contextmanager
def launched() -> Iterator[Browser]:
    """A browser, or a skipped test where there is none."""
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install heedful[dev]")
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("chromium is not installed: apt-get install chromium")
    with api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=chromium, args=ARGUMENTS)
        yield started
        started.close()


def opened(context: BrowserContext, address: str) -> tuple[Tab, list[str]]:
    """The page, and a list that collects everything it must not do: dialogs, console lines, errors, requests."""
    tab, faults = context.new_page(), list[str]()

    def refuse(dialog: object) -> None:
        faults.append("dialog")
        dialog.dismiss()  # type: ignore[attr-defined]

    tab.on("dialog", refuse)
    tab.on("console", lambda message: faults.append(f"console: {message.text}"))
    tab.on("pageerror", lambda error: faults.append(f"error: {error}"))
    tab.on("request", lambda r: faults.append(r.url) if not r.url.startswith((address, "data:")) else None)
    tab.goto(address)
    return tab, faults
