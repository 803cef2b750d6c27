"""Builds, serves and checks the site: Zensical with mkdocstrings, in an environment of its own."""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from pathlib import Path

from _docs_links import find_broken_links
from _docs_pages import SETTINGS, SiteError, stage
from _env import ROOT, Environment, process_environment, say

FOLDER = ROOT / ".site"
"""Folder of the site: pages/ in Markdown, html/ as built."""

BROWSER = ROOT / "scripts" / "_docs_browser.py"
CHROMIUM = ("chromium", "chromium-browser", "google-chrome")
"""Names of the browsers that can check the site."""

_COLORS = re.compile(r"\x1b\[[0-9;]*m")


def _zensical(environment: Environment, *words: str) -> list[str]:
    return [environment.python, "-m", "zensical", *words]


def build_site(environment: Environment) -> None:
    """Builds the site in .site/html.

    Raises:
        SiteError: a page or a link is missing, or Zensical or Griffe warns.
    """
    start = time.monotonic()
    html = FOLDER / "html"
    shutil.rmtree(html, ignore_errors=True)
    configuration = stage(FOLDER)
    done = subprocess.run(
        _zensical(environment, "build", "--clean", "--strict", "-f", str(configuration)),
        capture_output=True,
        text=True,
        env=process_environment(),
        check=False,
    )
    output = _COLORS.sub("", done.stdout + done.stderr)
    if done.returncode != 0 or re.search(r"^(griffe:|Warning:|WARNING)", output, re.MULTILINE):
        raise SiteError(f"Zensical could not build the site without warnings:\n{output.strip()}")
    _copy_markdown(html)
    broken = list(find_broken_links(html))
    if broken:
        raise SiteError("\n".join(["The site has broken links:", *broken]))
    count = len(list(html.rglob("*.html")))
    seconds = time.monotonic() - start
    say(f"built .site/html/index.html and {count - 1} more pages in {seconds:.0f} s")


def _copy_markdown(html: Path) -> None:
    """Copies the text of the guides, which llms.txt links to."""
    pages = FOLDER / "pages"
    for path in pages.rglob("*.md"):
        place = path.relative_to(pages)
        if place.parts[0] not in ("reference", "source"):
            (html / place).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, html / place)


def serve_site(environment: Environment) -> None:
    """Serves the site, and prepares its pages anew when their sources change; until Ctrl-C."""
    configuration = stage(FOLDER)
    server = subprocess.Popen(
        _zensical(environment, "serve", "-f", str(configuration)), env=process_environment()
    )
    newest = _newest_change()
    try:
        while server.poll() is None:
            time.sleep(1)
            if newest != (newest := _newest_change()):
                try:
                    stage(FOLDER)
                except SiteError as e:
                    say(f"WARNING: {e}")
    except KeyboardInterrupt:
        pass  # the usual end
    finally:
        server.terminate()
        server.wait()


def _newest_change() -> float:
    """Returns the time of the last change of a page or of a setting."""
    folders = (ROOT / "docs", ROOT / "benchmarks", SETTINGS)
    files = [*ROOT.glob("*.md"), *(path for folder in folders for path in folder.rglob("*.*"))]
    return max(path.stat().st_mtime for path in files)


def find_chromium() -> str | None:
    """Returns the path of the first browser on the PATH, or None."""
    return next((path for path in map(shutil.which, CHROMIUM) if path), None)


def check_site(environment: Environment, screenshots: str | None = None) -> None:
    """Opens each page of the site in headless Chromium.

    Args:
        environment: of the site.
        screenshots: a folder for screenshots.

    Raises:
        SiteError: a page has a horizontal bar, an image is missing, or a script fails; or there is
            no Chromium.
    """
    chromium = find_chromium()
    if chromium is None:
        raise SiteError(
            f"None of {', '.join(CHROMIUM)} is on the PATH, so no page was opened. Install one, "
            "on Debian with: apt-get install chromium"
        )
    words = [str(FOLDER / "html"), chromium, *([screenshots] if screenshots else [])]
    done = subprocess.run(
        [environment.python, str(BROWSER), *words],
        stdout=subprocess.PIPE,
        text=True,
        env=process_environment(),
        check=False,
    )
    if done.returncode != 0:
        raise SiteError(f"Pages are wrong in Chromium:\n{done.stdout.strip()}")
    say("opened each page in Chromium, 1280 and 400 pixels wide: no horizontal bar")
