"""Checks the links within a site: each leads to a file and, where it names one, to an anchor."""

from __future__ import annotations

from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class _Page(HTMLParser):
    """Collects the anchors and the links of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if not value:
                continue
            if name == "id" or (tag == "a" and name == "name"):
                self.anchors.add(value)
            elif name in ("href", "src"):
                self.links.add(value)


def find_broken_links(folder: Path) -> Iterator[str]:
    """Describes each link of a site that leads nowhere. Links to other sites are not followed.

    Args:
        folder: the folder of the site.
    """
    pages = {path: _Page(path.read_text()) for path in sorted(folder.rglob("*.html"))}
    for path, page in pages.items():
        for link in sorted(page.links):
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            # The page of an unknown address is shown at any depth, so its links are absolute.
            base = folder if parts.path.startswith("/") else path.parent
            target = (base / unquote(parts.path).lstrip("/")).resolve() if parts.path else path
            if target.is_dir():
                target /= "index.html"
            name = path.relative_to(folder).as_posix()
            if not target.exists():
                yield f"{name}: {link}: no such file"
                continue
            # Browsers know "top" by themselves.
            anchors = pages[target].anchors | {"top"} if target in pages else ()
            if parts.fragment and target in pages and unquote(parts.fragment) not in anchors:
                yield f"{name}: {link}: no such anchor"
