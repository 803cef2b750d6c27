"""Plots of latency in SVG."""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import TypeAlias

_TIMES = tuple(m * 10.0**e for e in range(-6, 7) for m in (1, 2, 5))
"""Tick values of a logarithmic axis for milliseconds."""

_WIDTH, _HEIGHT = 720, 420
_LEFT, _RIGHT, _TOP, _BOTTOM = 78, 36, 72, 62
_MIN_DISTANCE = 22
"""Minimum distance of two horizontal grid lines with a label, in pixels."""

_STYLE = """
.page { fill: #ffffff; } .text { fill: #1d2430; } .faint { fill: #5a6575; }
.grid { stroke: #e2e6eb; } .axis { stroke: #8a94a3; } .dot { stroke: #ffffff; }
.line0 { stroke: #2f6fb0; } .dot0 { fill: #2f6fb0; }
.line1 { stroke: #c2410c; } .dot1 { fill: #c2410c; }
@media (prefers-color-scheme: dark) {
.page { fill: #14181f; } .text { fill: #e3e8ef; } .faint { fill: #9aa6b6; }
.grid { stroke: #2a323d; } .axis { stroke: #66717f; } .dot { stroke: #14181f; }
.line0 { stroke: #6aa7e8; } .dot0 { fill: #6aa7e8; }
.line1 { stroke: #f0905a; } .dot1 { fill: #f0905a; }
}
"""


@dataclass(frozen=True)
class PlotLine:
    """Line of a plot.

    Attributes:
      points: the place along the plot, and the milliseconds, of each point.
      name: its name in the legend; "" for none.
      marks: points that get a dot, with their texts; "" for no text.
    """

    points: Sequence[tuple[float, float]]
    name: str = ""
    marks: Sequence[tuple[float, float, str]] = ()


def plot_latency(
    title: str,
    lines: Sequence[PlotLine],
    ticks: Sequence[tuple[float, str]],
    *,
    across: str,
    up: str,
    subtitle: str = "",
) -> str:
    """Plots milliseconds on a logarithmic axis.

    Args:
      title: the text above the plot.
      lines: at most two lines; without any, only the titles are drawn.
      ticks: the places along the plot with a label.
      across: the title of the horizontal axis.
      up: the title of the vertical axis.
      subtitle: the smaller text below the title; a plot with a legend has none.

    Returns:
      The text of an SVG, which has the colours of a light or of a dark page.
    """
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
        f'width="{_WIDTH}" height="{_HEIGHT}" font-family="system-ui, sans-serif" font-size="13" '
        f'role="img" aria-label="{escape(title)}">',
        f"<title>{escape(title)}</title>",
        f"<style>{_STYLE}</style>",
        f'<rect class="page" width="{_WIDTH}" height="{_HEIGHT}"/>',
        f'<text class="text" x="{_LEFT}" y="28" font-size="16">{escape(title)}</text>',
        f'<text class="faint" x="{_LEFT}" y="48">{escape(subtitle)}</text>',
    ]
    if lines:
        points = [point for line in lines for point in line.points]
        places = [place for place, _ in (*points, *ticks)]
        first, last = _find_enclosing_ticks([time for _, time in points])
        horizontal = _make_scale(min(places), max(places), _LEFT, _WIDTH - _RIGHT)
        vertical = _make_scale(
            math.log10(_TIMES[first]), math.log10(_TIMES[last]), _HEIGHT - _BOTTOM, _TOP
        )
        parts += _draw_grid(horizontal, vertical, _TIMES[first : last + 1], ticks)
        parts += _draw_axis_titles(across, up)
        for number, line in enumerate(lines):
            parts += _draw_line(line, number, horizontal, vertical)
    return "\n".join([*parts, "</svg>", ""])


_Scale: TypeAlias = Callable[[float], float]
"""Maps numbers to pixels."""


def _make_scale(low: float, high: float, begin: float, end: float) -> _Scale:
    if low == high:
        return lambda _: (begin + end) / 2
    return lambda value: begin + (value - low) / (high - low) * (end - begin)


def _find_enclosing_ticks(times: Sequence[float]) -> tuple[int, int]:
    """Returns the indices of the ticks in `_TIMES` that enclose times; they differ.

    >>> first, last = _find_enclosing_ticks([7.0, 0.3])
    >>> _TIMES[first], _TIMES[last]
    (0.2, 10.0)
    """
    first = min(max(0, bisect.bisect_right(_TIMES, min(times)) - 1), len(_TIMES) - 2)
    last = min(max(first + 1, bisect.bisect_left(_TIMES, max(times))), len(_TIMES) - 1)
    return first, last


def _draw_grid(
    horizontal: _Scale,
    vertical: _Scale,
    times: Iterable[float],
    ticks: Iterable[tuple[float, str]],
) -> Iterator[str]:
    bottom, right = _HEIGHT - _BOTTOM, _WIDTH - _RIGHT
    previous = math.inf
    for time in times:
        y = vertical(math.log10(time))
        if previous - y >= _MIN_DISTANCE:
            previous = y
            yield (
                f'<line class="grid" x1="{_LEFT}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>'
                f'<text class="faint" x="{_LEFT - 8}" y="{y + 4.5:.1f}" text-anchor="end">'
                f"{time:g}</text>"
            )
    for place, label in ticks:
        x = horizontal(place)
        yield (
            f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{bottom}"/>'
            f'<text class="faint" x="{x:.1f}" y="{bottom + 20}" text-anchor="middle">'
            f"{escape(label)}</text>"
        )
    yield f'<line class="axis" x1="{_LEFT}" x2="{right}" y1="{bottom}" y2="{bottom}"/>'
    yield f'<line class="axis" x1="{_LEFT}" x2="{_LEFT}" y1="{_TOP}" y2="{bottom}"/>'


def _draw_axis_titles(across: str, up: str) -> Iterator[str]:
    x, y = (_LEFT + _WIDTH - _RIGHT) / 2, (_TOP + _HEIGHT - _BOTTOM) / 2
    yield (
        f'<text class="text" x="{x}" y="{_HEIGHT - 16}" text-anchor="middle">'
        f"{escape(across)}</text>"
    )
    yield (
        f'<text class="text" x="24" y="{y}" text-anchor="middle" '
        f'transform="rotate(-90 24 {y})">{escape(up)}</text>'
    )


def _draw_line(line: PlotLine, number: int, horizontal: _Scale, vertical: _Scale) -> Iterator[str]:
    def place(at: float, time: float) -> tuple[float, float]:
        return horizontal(at), vertical(math.log10(time))

    points = " ".join("{:.1f},{:.1f}".format(*place(*point)) for point in line.points)
    yield (
        f'<polyline class="line{number}" points="{points}" fill="none" stroke-width="2" '
        'stroke-linejoin="round"/>'
    )
    for at, time, text in line.marks:
        x, y = place(at, time)
        yield (
            f'<circle class="dot dot{number}" cx="{x:.1f}" cy="{y:.1f}" r="4" stroke-width="1.5"/>'
        )
        if text:
            # Latencies increase from left to right, so the space to the lower right is free.
            below = min(y + 19, _HEIGHT - _BOTTOM - 6)
            yield f'<text class="text" x="{x + 7:.1f}" y="{below:.1f}">{escape(text)}</text>'
    if line.name:
        x = _LEFT + 180 * number
        yield (
            f'<line class="line{number}" x1="{x}" x2="{x + 26}" y1="48" y2="48" stroke-width="3"/>'
            f'<text class="text" x="{x + 34}" y="53">{escape(line.name)}</text>'
        )
