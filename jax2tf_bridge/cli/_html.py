"""Self-contained HTML pages with bar charts, which load nothing and run no script."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from html import escape

from jax2tf_bridge._utils import format_bytes, printable
from jax2tf_bridge._version import __version__

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
th:last-child, td:last-child { padding-right: 0; }
figure { margin: 1.25rem 0; }
figcaption { font-weight: 600; margin-bottom: .4rem; }
.bars { display: grid; grid-template-columns: fit-content(26rem) minmax(5rem, 1fr) auto;
  column-gap: .75rem; row-gap: .3rem; margin: 0; font-size: .85rem; }
.bars div { display: grid; grid-template-columns: subgrid; grid-column: 1 / -1;
  align-items: center; }
.bars dt { grid-area: 1 / 1; text-align: right; overflow-wrap: anywhere;
  font-family: ui-monospace, monospace; }
.bars dd { margin: 0; }
.bars .bar { grid-area: 1 / 2; }
.bars .value { grid-area: 1 / 3; text-align: right; color: var(--faint); white-space: nowrap;
  font-variant-numeric: tabular-nums; }
svg { display: block; width: 100%; height: .85rem; background: var(--panel); }
svg rect { fill: var(--accent); }
details { border: 1px solid var(--line); border-radius: 4px; margin: 0 0 .75rem;
  padding: .6rem .9rem; }
details details { margin: .75rem 0 0; background: var(--panel); }
h3 { font-size: 1rem; margin: 1rem 0 .25rem; overflow-wrap: anywhere; }
summary { cursor: pointer; font-weight: 600; overflow-wrap: anywhere; }
pre { overflow: auto; max-height: 40rem; font-size: .8rem; line-height: 1.45; margin: .75rem 0 0; }
pre.copied { background: var(--panel); border: 1px solid var(--line); border-radius: 4px;
  padding: .6rem .75rem; white-space: pre-wrap; overflow-wrap: anywhere; user-select: all; }
.program { margin: .5rem 0 1.25rem; }
footer { margin-top: 3rem; color: var(--faint); font-size: .85rem; }
@media (max-width: 40rem) {
  body { padding-top: 1.25rem; }
  tbody th { width: auto; }
  td, tbody th { overflow-wrap: anywhere; }
  table.wide, table.wide tbody, table.wide tr, table.wide td { display: block; }
  table.wide thead { display: none; }
  table.wide tr { border-bottom: 1px solid var(--line); padding: .5rem 0; }
  table.wide td { border: 0; padding: .1rem 0; }
  table.wide td:empty { display: none; }
  table.wide td::before { content: attr(data-title) ": "; color: var(--faint); }
  .bars { grid-template-columns: 1fr auto; }
  .bars dt { text-align: left; }
  .bars .bar { grid-area: 2 / 1 / auto / -1; }
  .bars .value { grid-area: 1 / 2; } }
"""

_SEVERITIES = {"error": "Error", "warning": "Warning", "note": "Note"}


@dataclass(frozen=True)
class PageTable:
    """Table of a page; `number_column` is the index of its column of numbers, if it has one."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    number_column: int | None = None


@dataclass(frozen=True)
class PageRequest:
    """Request that a reader copies.

    Attributes:
      signature: the name of its signature.
      command: a command for a shell, or the reason why there is none.
      is_command: whether it is a command.
      program: the same request as a program.
    """

    signature: str
    command: str
    is_command: bool
    program: str


@dataclass(frozen=True)
class Fold:
    """Part of a page that the reader can unfold.

    Attributes:
      title: the visible title.
      paragraphs: the paragraphs inside.
      chart: the text of a `draw_bars`.
      stablehlo: the text of a module, folded once more.
      is_open: whether it is unfolded at first.
    """

    title: str
    paragraphs: Sequence[str] = ()
    chart: str = ""
    stablehlo: str = ""
    is_open: bool = False


@dataclass(frozen=True)
class Page:
    """Contents of a page; except for charts these are plain texts, which `render` escapes.

    Attributes:
      title, subtitle: the titles of the page.
      findings: severity, text and remedy of each finding, the worst first.
      summary: titles and texts.
      tables: the tables.
      requests: calls of the signatures.
      charts: texts of `draw_bars`.
      modules: the folded parts, about modules.
    """

    title: str
    subtitle: str
    findings: Sequence[tuple[str, str, str]] = ()
    summary: Sequence[tuple[str, str]] = ()
    tables: Sequence[PageTable] = ()
    requests: Sequence[PageRequest] = ()
    charts: Sequence[str] = ()
    modules: Sequence[Fold] = ()


def render(page: Page) -> str:
    """Renders the page as HTML."""
    parts = [
        "<!DOCTYPE html>\n",
        '<html lang="en">\n<head>\n<meta charset="utf-8">\n',
        # This policy keeps a page about a hostile file from loading or running anything.
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
        "style-src 'unsafe-inline'\">\n",
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n',
        f"<title>{escape_text(page.title)}</title>\n<style>\n{_STYLE}</style>\n</head>\n<body>\n",
        f"<header><h1>{escape_text(page.title)}</h1>\n",
        f'<p class="subtitle">{escape_text(page.subtitle)}</p></header>\n<main>\n',
        *_render_findings(page),
        *_render_summary(page),
        *_render_requests(page),
        *(part for table in page.tables for part in _render_table(table)),
        *(["<h2>Sizes</h2>\n", *page.charts] if any(page.charts) else []),
        *(["<h2>Modules</h2>\n"] if page.modules else []),
        *(part for fold in page.modules for part in _render_fold(fold)),
        f"</main>\n<footer>Made by jax2tf-bridge {__version__} inspect.</footer>\n",
        "</body>\n</html>\n",
    ]
    return "".join(parts)


def _render_findings(page: Page) -> Iterator[str]:
    yield "<h2>What to know</h2>\n"
    if not page.findings:
        yield "<p>No problems were found.</p>\n"
        return
    yield '<ul class="findings">\n'
    for severity, text, remedy in page.findings:
        label = f'<span class="severity">{_SEVERITIES[severity]}:</span>'
        yield f'<li class="{severity}"><p>{label} {escape_text(text)}</p>'
        yield f'<p class="remedy">{escape_text(remedy)}</p></li>\n' if remedy else "</li>\n"
    yield "</ul>\n"


def _render_summary(page: Page) -> Iterator[str]:
    rows = [(title, text) for title, text in page.summary if text]
    if rows:
        yield "<h2>Summary</h2>\n<table><tbody>\n"
        for title, text in rows:
            yield f'<tr><th scope="row">{escape_text(title)}</th>'
            yield f"<td>{escape_text(text)}</td></tr>\n"
        yield "</tbody></table>\n"


def _render_table(table: PageTable) -> Iterator[str]:
    if not table.rows:
        return
    classes = [
        ' class="number"' if i == table.number_column else "" for i in range(len(table.head))
    ]
    # On a narrow screen each row of a wide table becomes a block.
    is_wide = len(table.head) > 3
    kind = ' class="wide"' if is_wide else ""
    yield f'<h2>{escape_text(table.title)}</h2>\n<div class="scrolls"><table{kind}>\n<thead><tr>'
    for kind, title in zip(classes, table.head, strict=True):
        yield f'<th scope="col"{kind}>{escape_text(title)}</th>'
    yield "</tr></thead>\n<tbody>\n"
    for row in table.rows:
        cells = []
        for kind, title, cell in zip(classes, table.head, row, strict=True):
            name = f' data-title="{escape_text(title)}"' if is_wide else ""
            cells.append(f"<td{kind}{name}>{escape_text(cell)}</td>")
        yield f"<tr>{''.join(cells)}</tr>\n"
    yield "</tbody></table></div>\n"


def _render_requests(page: Page) -> Iterator[str]:
    if not page.requests:
        return
    yield "<h2>A request to copy</h2>\n"
    yield "<p>It works once TensorFlow Serving runs with this model. A click selects all of it."
    yield "</p>\n"
    for request in page.requests:
        if len(page.requests) > 1:
            yield f"<h3>{escape_text(request.signature)}</h3>\n"
        text = escape_text(request.command)
        yield f'<pre class="copied">{text}</pre>\n' if request.is_command else f"<p>{text}</p>\n"
        yield '<details class="program"><summary>In Python, over gRPC</summary>'
        yield f'<pre class="copied">{escape_text(request.program)}</pre></details>\n'


def _render_fold(fold: Fold) -> Iterator[str]:
    yield f"<details{' open' if fold.is_open else ''}>"
    yield f"<summary>{escape_text(fold.title)}</summary>\n"
    yield from (f"<p>{escape_text(paragraph)}</p>\n" for paragraph in fold.paragraphs)
    yield fold.chart
    if fold.stablehlo:
        yield "<details><summary>StableHLO</summary>"
        yield f'<pre tabindex="0">{escape_text(fold.stablehlo)}</pre></details>\n'
    yield "</details>\n"


def take_largest(
    sizes: Sequence[tuple[str, int]], max_count: int, *, in_order: bool = False
) -> list[tuple[str, int]]:
    """Returns the largest sizes with their labels, the largest first, and the sum of all others.

    Args:
      sizes: labels and sizes; sizes of 0 are dropped, and equal sizes keep their order.
      max_count: the maximum number of entries.
      in_order: whether to keep the order of `sizes`.
    """
    positive = [entry for entry in enumerate(sizes) if entry[1][1] > 0]
    ordered = sorted(positive, key=lambda entry: -entry[1][1])
    first = ordered if len(ordered) <= max_count else ordered[: max_count - 1]
    rest = [size for _, (_, size) in ordered[len(first) :]]
    entries = [entry for _, entry in (sorted(first) if in_order else first)]
    return [*entries, (f"{len(rest)} others", sum(rest))] if rest else entries


def escape_text(text: str) -> str:
    """Escapes an untrusted text for elements and attributes.

    >>> escape_text('<b title="x">')
    '&lt;b title=&quot;x&quot;&gt;'
    """
    return escape(printable(text))


def draw_bars(
    title: str, bars: Sequence[tuple[str, int]], write: Callable[[int], str] = format_bytes
) -> str:
    """Draws horizontal bars that share a scale; "" for no bars.

    Args:
      title: the quantity and its unit.
      bars: labels and lengths, from the top.
      write: formats a length.
    """
    if not bars:
        return ""
    longest = max(size for _, size in bars)
    rows = "".join(
        f"<div><dt>{escape_text(label)}</dt>"
        '<dd class="bar"><svg aria-hidden="true">'
        f'<rect width="{max(100 * size / longest, 0.3):.1f}%" height="100%"/></svg></dd>'
        f'<dd class="value">{escape_text(write(size))}</dd></div>\n'
        for label, size in bars
    )
    return (
        f"<figure><figcaption>{escape_text(title)}</figcaption>\n"
        f'<dl class="bars">\n{rows}</dl></figure>\n'
    )
