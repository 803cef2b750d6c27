"""Draws ratios as bars on a logarithmic axis, with a light and a dark theme."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape


@dataclass(frozen=True)
class Bar:
    """The time of the bridge as a multiple of an alternative's."""

    label: str
    ratio: float
    other: str


@dataclass(frozen=True)
class Theme:
    """The colours of a chart."""

    background: str
    text: str
    lines: str
    less: str
    more: str


LIGHT = Theme("#ffffff", "#1f2328", "#d1d9e0", "#1a7f37", "#bc4c00")
DARK = Theme("#0d1117", "#e6edf3", "#30363d", "#3fb950", "#f0883e")

_WIDTH, _ROW, _TOP, _BOTTOM = 760, 44, 44, 40
_LEFT, _RIGHT = 320, 90
_TICKS = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0)


def draw_chart(bars: Sequence[Bar], theme: Theme) -> str:
    """Draws an SVG image with a bar from 1 to each ratio.

    Args:
      bars: the bars, from top to bottom.
      theme: the colours.
    """
    low = min(_TICKS[0], *(bar.ratio for bar in bars)) / 1.1
    high = max(_TICKS[-1], *(bar.ratio for bar in bars)) * 1.1
    height = _TOP + _ROW * len(bars) + _BOTTOM
    title = "Time that jax2tf-bridge takes, where the other takes 1"

    def x_of(ratio: float) -> float:
        fraction = math.log(ratio / low) / math.log(high / low)
        return _LEFT + fraction * (_WIDTH - _LEFT - _RIGHT)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" '
        f'width="{_WIDTH}" height="{height}" font-family="sans-serif" font-size="13">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{_WIDTH}" height="{height}" fill="{theme.background}"/>',
        f'<text x="16" y="26" font-size="15" fill="{theme.text}">{escape(title)}</text>',
    ]
    bottom = _TOP + _ROW * len(bars)
    for tick in _TICKS:
        x = x_of(tick)
        width = 2 if tick == 1 else 1
        parts.append(
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{bottom}" '
            f'stroke="{theme.lines}" stroke-width="{width}"/>'
            f'<text x="{x:.1f}" y="{bottom + 20}" text-anchor="middle" '
            f'fill="{theme.text}">{tick:g}</text>'
        )
    for i, bar in enumerate(bars):
        y = _TOP + _ROW * i
        left, right = sorted((x_of(bar.ratio), x_of(1)))
        colour = theme.less if bar.ratio <= 1 else theme.more
        parts.append(
            f'<text x="{_LEFT - 12}" y="{y + 18}" text-anchor="end" '
            f'fill="{theme.text}">{escape(bar.label)}</text>'
            f'<text x="{_LEFT - 12}" y="{y + 34}" text-anchor="end" font-size="11" '
            f'fill="{theme.text}" opacity="0.7">against {escape(bar.other)}</text>'
            f'<rect x="{left:.1f}" y="{y + 10}" width="{max(right - left, 2):.1f}" height="20" '
            f'fill="{colour}"/>'
            f'<text x="{_WIDTH - _RIGHT + 12}" y="{y + 25}" font-weight="bold" '
            f'fill="{theme.text}">{bar.ratio:.2f}</text>'
        )
    return "\n".join([*parts, "</svg>", ""])
