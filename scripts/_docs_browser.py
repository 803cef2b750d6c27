"""Opens each page of the site in headless Chromium.

    python _docs_browser.py SITE CHROMIUM [SCREENSHOTS]

Run by scripts/docs --check in the environment of the site. Prints a line for each problem: a page
that is wider than the window, an image that is not shown, an error of a script, no search results.
With a folder for them it also takes screenshots.
"""

from __future__ import annotations

import functools
import http.server
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

WIDTHS = (1280, 400)
"""Widths of windows in pixels: a laptop's, and a phone's."""
SHOWN = (
    "index",
    "saving",
    "errors",
    "reference/save",
    "reference/errors",
    "where-it-runs",
    "benchmarks",
)
"""Pages that screenshots are taken of."""
# Elements that are outside the window, and do not scroll within another one.
_WIDE = """() => {
  const root = document.documentElement;
  if (root.scrollWidth <= root.clientWidth) return null;
  const wide = [...document.querySelectorAll("article *")].filter(
    (e) => e.getBoundingClientRect().right > root.clientWidth + 1);
  return wide.slice(-1).map((e) => e.outerHTML.slice(0, 150)).join("") || "outside the article";
}"""
_HIDDEN_IMAGES = """() => [...document.querySelectorAll("article img")]
  .filter((i) => i.offsetParent !== null && i.complete && i.naturalWidth === 0).map((i) => i.src)"""


class _Handler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """Logs nothing: the problems are what is printed."""


def check(site: Path, chromium: Path, address: str, screenshots: Path | None) -> Iterator[str]:
    """Yields the problems of all pages."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=chromium, args=["--no-sandbox", "--disable-gpu"]
        )
        page = browser.new_page()
        errors: list[str] = []
        page.on("pageerror", lambda error: errors.append(str(error)))
        for path in sorted(site.rglob("*.html")):
            name = path.relative_to(site).as_posix()
            page.set_viewport_size({"width": WIDTHS[0], "height": 900})
            page.goto(f"{address}/{name}", wait_until="load")
            for width in WIDTHS:
                page.set_viewport_size({"width": width, "height": 900})
                wide = page.evaluate(_WIDE)
                if wide is not None:
                    yield f"{name}: wider than {width} pixels: {wide}"
            for source in page.evaluate(_HIDDEN_IMAGES):
                yield f"{name}: not shown: {source}"
            for error in errors:
                yield f"{name}: {error}"
            errors.clear()
        page.set_viewport_size({"width": WIDTHS[0], "height": 900})
        page.goto(f"{address}/index.html")
        if not _finds(page, "choose_buckets"):
            yield "index.html: the search finds nothing for choose_buckets"
        if screenshots is not None:
            _take_screenshots(browser, address, screenshots)
        browser.close()


def _finds(page: Any, word: str) -> bool:
    page.keyboard.press("/")
    page.keyboard.type(word, delay=20)
    link = page.locator("a:visible", has_text=word).first
    try:
        link.wait_for(timeout=10_000)
    except Exception:
        return False
    return True


def _take_screenshots(browser: Any, address: str, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for scheme in ("light", "dark"):
        page = browser.new_page(color_scheme=scheme)
        for name in SHOWN:
            for width in WIDTHS:
                page.set_viewport_size({"width": width, "height": 1100})
                page.goto(f"{address}/{name}.html", wait_until="load")
                file = f"{name.replace('/', '-')}-{width}-{scheme}.png"
                page.screenshot(path=folder / file)


def main(site: Path, chromium: Path, screenshots: Path | None = None) -> int:
    """Serves the site to Chromium, prints the problems and returns the exit code."""
    handler = functools.partial(_Handler, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_address[1]}"
        problems = list(check(site, chromium, address, screenshots))
        server.shutdown()
    for problem in problems:
        print(problem)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(*map(Path, sys.argv[1:])))
