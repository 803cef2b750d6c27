"""Draws bar charts as inline SVG, with labels and values as text."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

from jax2tf_bridge._utils import printable

_WIDTH, _VALUES = 900, 110
_ROW, _BAR = 26, 14
_MAX_LABEL_LENGTH = 56
_LETTER = 7.5
"""Width of a letter of a label in pixels: 0.55 to 0.61 of the font size, 12."""
_MARGIN = 10
_SMALLEST_BAR = 2.0


@dataclass(frozen=True)
class Bar:
    """Bar of a chart: label, length, and the length as text."""

    label: str
    value: int
    text: str


def largest(
    bars: Sequence[Bar], most: int, written: Callable[[int], str], *, in_order: bool = False
) -> list[Bar]:
    """Returns the longest bars, the longest first, and a last bar for all others.

    Args:
      bars: the bars; those of length 0 are dropped, and equal lengths keep their order.
      most: the maximum number of bars.
      written: formats the length of the last bar.
      in_order: whether to keep the order of `bars`.
    """
    given = [(i, bar) for i, bar in enumerate(bars) if bar.value > 0]
    ordered = sorted(given, key=lambda each: -each[1].value)
    kept = ordered if len(ordered) <= most else ordered[: most - 1]
    shown = [bar for _, bar in (sorted(kept, key=lambda each: each[0]) if in_order else kept)]
    rest = [bar for _, bar in ordered[len(kept) :]]
    if not rest:
        return shown
    total = sum(bar.value for bar in rest)
    return [*shown, Bar(f"{len(rest)} others", total, written(total))]


def html_text(text: str) -> str:
    """Escapes an untrusted text for elements and attributes.

    >>> html_text('<b title="x">')
    '&lt;b title=&quot;x&quot;&gt;'
    """
    return escape(printable(text))


def bar_chart(title: str, bars: Sequence[Bar]) -> str:
    """Draws horizontal bars that share a scale, as SVG; "" for no bars.

    Args:
      title: the quantity and its unit; screen readers read it, too.
      bars: the bars, from the top.
    """
    if not bars:
        return ""
    labels = [_shorten(printable(bar.label)) for bar in bars]
    left = _MARGIN + _LETTER * max(map(_letters, labels)) + _MARGIN
    scale = (_WIDTH - left - _VALUES) / max(bar.value for bar in bars)
    height = len(bars) * _ROW
    said = "; ".join(f"{bar.label}: {bar.text}" for bar in bars)
    label = html_text(f"{title}. {said}")
    rows = "".join(
        _row(i, bar, text, left, scale)
        for i, (bar, text) in enumerate(zip(bars, labels, strict=True))
    )
    return (
        f"<figure><figcaption>{html_text(title)}</figcaption>"
        f'<svg viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}" role="img" '
        f'aria-label="{label}">'
        f'<line class="axis" x1="{left:g}" y1="0" x2="{left:g}" y2="{height}" stroke="#8a94a3"/>'
        f"{rows}</svg></figure>\n"
    )


def _shorten(label: str) -> str:
    """Shortens a label in the middle, because both ends of a path identify it."""
    if _letters(label) <= _MAX_LABEL_LENGTH:
        return label
    half = (_MAX_LABEL_LENGTH - 1) // 2
    first, last = label, label
    while _letters(first) > half:
        first = first[:-1]
    while _letters(last) > half:
        last = last[1:]
    return f"{first}\u2026{last}"


def _letters(label: str) -> int:
    """Returns a label's width in letters; East Asian letters count twice."""
    return sum(2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in label)


def _row(number: int, bar: Bar, label: str, left: float, scale: float) -> str:
    middle = number * _ROW + _ROW / 2
    length = max(bar.value * scale, _SMALLEST_BAR)
    whole = html_text(f"{bar.label}: {bar.text}")
    return (
        f"<g><title>{whole}</title>"
        f'<text class="label" x="{left - _MARGIN:g}" y="{middle:g}" dy="0.35em" text-anchor="end" '
        f'font-family="monospace" font-size="12" fill="currentColor">{html_text(label)}</text>'
        f'<rect class="bar" x="{left:g}" y="{middle - _BAR / 2:g}" width="{length:.1f}" '
        f'height="{_BAR}" fill="#2f6fb0"/>'
        f'<text class="value" x="{left + length + 8:.1f}" y="{middle:g}" dy="0.35em" '
        f'font-size="13" fill="currentColor">{html_text(bar.text)}</text></g>'
    )
