"""Renders a self-contained HTML page, which loads nothing and runs no script."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from jax2tf_bridge.cli.inspect.html._charts import html_text

_STYLE = """\
:root { color-scheme: light dark; --page: #fff; --text: #1d2430; --faint: #5a6575;
  --line: #d8dde4; --panel: #f5f7f9; --accent: #2f6fb0; --error: #b3261e; --warning: #8a5300;
  --note: #3d5a80; }
@media (prefers-color-scheme: dark) {
  :root { --page: #14181f; --text: #e3e8ef; --faint: #9aa6b6; --line: #333c49; --panel: #1c222b;
    --accent: #6aa7e8; --error: #ff8a80; --warning: #f0b35a; --note: #9dbce6; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 60rem; padding: 2rem 1.25rem 4rem; background: var(--page);
  color: var(--text); font: 1rem/1.5 system-ui, "Segoe UI", Roboto, "Helvetica Neue", sans-serif; }
h1 { font-size: 1.6rem; line-height: 1.25; margin: 0; overflow-wrap: anywhere; }
h2 { font-size: 1.15rem; margin: 2.25rem 0 .75rem; }
p { margin: .25rem 0; }
.subtitle { color: var(--faint); overflow-wrap: anywhere; }
ul.findings { list-style: none; margin: 0; padding: 0; }
ul.findings li { border-left: 4px solid var(--note); background: var(--panel); margin: 0 0 .6rem;
  padding: .55rem .9rem; border-radius: 0 4px 4px 0; overflow-wrap: anywhere; }
ul.findings li.error { border-color: var(--error); }
ul.findings li.warning { border-color: var(--warning); }
.severity { font-weight: 600; color: var(--note); }
.error .severity { color: var(--error); }
.warning .severity { color: var(--warning); }
.remedy { color: var(--faint); }
.scrolls { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: .94rem; }
th, td { text-align: left; vertical-align: top; padding: .35rem .9rem .35rem 0;
  border-bottom: 1px solid var(--line); overflow-wrap: break-word; }
th { font-weight: 600; white-space: nowrap; }
tbody td { max-width: 32rem; }
tbody th { width: 11rem; color: var(--faint); font-weight: 400; }
td.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
th.number { text-align: right; }
figure { margin: 1.25rem 0; }
figcaption { font-weight: 600; margin-bottom: .4rem; }
svg { display: block; max-width: 100%; height: auto; color: var(--text); }
svg .bar { fill: var(--accent); }
svg .value { fill: var(--faint); }
svg .axis { stroke: var(--line); }
details { border: 1px solid var(--line); border-radius: 4px; margin: 0 0 .75rem;
  padding: .6rem .9rem; }
details details { margin: .75rem 0 0; background: var(--panel); }
summary { cursor: pointer; font-weight: 600; overflow-wrap: anywhere; }
pre { overflow: auto; max-height: 40rem; font-size: .8rem; line-height: 1.45; margin: .75rem 0 0; }
footer { margin-top: 3rem; color: var(--faint); font-size: .85rem; }
"""

_SEVERITIES = {"error": "Error", "warning": "Warning", "note": "Note"}


@dataclass(frozen=True)
class PageTable:
    """Table of a page; `numbers` are the columns of numbers."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    numbers: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Fold:
    """Part of a page that the reader can unfold.

    Attributes:
      title: the visible title.
      paragraphs: the paragraphs inside.
      charts: SVG texts of `bar_chart`.
      text_title: the title of the inner folded text, if there is one.
      text: the inner text, of many lines.
      is_open: whether it is unfolded at first.
    """

    title: str
    paragraphs: Sequence[str] = ()
    charts: Sequence[str] = ()
    text_title: str = ""
    text: str = ""
    is_open: bool = False


@dataclass(frozen=True)
class Page:
    """Contents of a page; except for charts these are plain texts, which `render` escapes.

    Attributes:
      title, subtitle: the titles of the page.
      findings: severity, text and remedy of each finding, the worst first.
      summary: titles and texts.
      tables: the tables.
      charts: SVG texts of `bar_chart`.
      folds_title: the title above the folded parts.
      folds: the folded parts.
      footer: the last line.
    """

    title: str
    subtitle: str
    findings: Sequence[tuple[str, str, str]] = ()
    summary: Sequence[tuple[str, str]] = ()
    tables: Sequence[PageTable] = ()
    charts: Sequence[str] = ()
    folds_title: str = ""
    folds: Sequence[Fold] = ()
    footer: str = ""


def render(page: Page) -> str:
    """Renders the page as HTML."""
    parts = [
        "<!DOCTYPE html>\n",
        '<html lang="en">\n<head>\n<meta charset="utf-8">\n',
        # This policy keeps a page about a hostile file from loading or running anything.
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
        "style-src 'unsafe-inline'\">\n",
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n',
        f"<title>{html_text(page.title)}</title>\n<style>\n{_STYLE}</style>\n</head>\n<body>\n",
        f"<header><h1>{html_text(page.title)}</h1>\n",
        f'<p class="subtitle">{html_text(page.subtitle)}</p></header>\n<main>\n',
        *_findings(page),
        *_summary(page),
        *(part for table in page.tables for part in _table(table)),
        *(["<h2>Sizes</h2>\n", *page.charts] if any(page.charts) else []),
        *([f"<h2>{html_text(page.folds_title)}</h2>\n"] if page.folds else []),
        *(part for fold in page.folds for part in _fold(fold)),
        f"</main>\n<footer>{html_text(page.footer)}</footer>\n</body>\n</html>\n",
    ]
    return "".join(parts)


def _findings(page: Page) -> Iterator[str]:
    yield "<h2>What to know</h2>\n"
    if not page.findings:
        yield "<p>Nothing that will go wrong was found.</p>\n"
        return
    yield '<ul class="findings">\n'
    for severity, text, remedy in page.findings:
        label = f'<span class="severity">{_SEVERITIES[severity]}:</span>'
        yield f'<li class="{severity}"><p>{label} {html_text(text)}</p>'
        yield f'<p class="remedy">{html_text(remedy)}</p></li>\n' if remedy else "</li>\n"
    yield "</ul>\n"


def _summary(page: Page) -> Iterator[str]:
    rows = [(title, text) for title, text in page.summary if text]
    if rows:
        yield "<h2>Summary</h2>\n<table><tbody>\n"
        for title, text in rows:
            yield f'<tr><th scope="row">{html_text(title)}</th><td>{html_text(text)}</td></tr>\n'
        yield "</tbody></table>\n"


def _table(table: PageTable) -> Iterator[str]:
    if not table.rows:
        return
    yield f'<h2>{html_text(table.title)}</h2>\n<div class="scrolls"><table>\n<thead><tr>'
    for i, title in enumerate(table.head):
        yield f'<th scope="col"{_number(i, table)}>{html_text(title)}</th>'
    yield "</tr></thead>\n<tbody>\n"
    for row in table.rows:
        cells = "".join(
            f"<td{_number(i, table)}>{html_text(cell)}</td>" for i, cell in enumerate(row)
        )
        yield f"<tr>{cells}</tr>\n"
    yield "</tbody></table></div>\n"


def _number(column: int, table: PageTable) -> str:
    return ' class="number"' if column in table.numbers else ""


def _fold(fold: Fold) -> Iterator[str]:
    yield f"<details{' open' if fold.is_open else ''}><summary>{html_text(fold.title)}</summary>\n"
    yield from (f"<p>{html_text(paragraph)}</p>\n" for paragraph in fold.paragraphs)
    yield from fold.charts
    if fold.text:
        yield f"<details><summary>{html_text(fold.text_title)}</summary>"
        yield f'<pre tabindex="0">{html_text(fold.text)}</pre></details>\n'
    yield "</details>\n"
