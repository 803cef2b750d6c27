"""Draws latencies over the percentiles of the requests, as SVG."""

from __future__ import annotations

import math
from html import escape
from typing import Any

import numpy as np
import numpy.typing as npt

from jax2tf_bridge._utils import TIME_TICKS, PlotAxis, nearest_ticks

_WIDTH, _HEIGHT = 720, 420
_LEFT, _RIGHT, _TOP, _BOTTOM = 78, 36, 72, 62
_PERCENTILES = (0.0, 50.0, 90.0, 99.0, 99.9, 99.99, 99.999)
_LABELLED = (50.0, 90.0, 99.0)
_MAX_POINTS = 400
_MIN_DISTANCE = 22
"""Minimum distance of two horizontal grid lines with a label, in pixels."""

_STYLE = """
.page { fill: #ffffff; } .text { fill: #1d2430; } .faint { fill: #5a6575; }
.grid { stroke: #e2e6eb; } .axis { stroke: #8a94a3; } .line { stroke: #2f6fb0; }
.dot { fill: #2f6fb0; stroke: #ffffff; }
@media (prefers-color-scheme: dark) {
.page { fill: #14181f; } .text { fill: #e3e8ef; } .faint { fill: #9aa6b6; }
.grid { stroke: #2a323d; } .axis { stroke: #66717f; } .line { stroke: #6aa7e8; }
.dot { fill: #6aa7e8; stroke: #14181f; }
}
"""


def plot_latencies(title: str, subtitle: str, milliseconds: npt.NDArray[Any]) -> str:
    """Plots latencies over percentiles; both axes are logarithmic, so that the slowest are seen.

    Args:
      title: the line above the plot.
      subtitle: the smaller line below the title.
      milliseconds: the latencies, increasing.

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
    if len(milliseconds):
        parts += _draw(milliseconds)
    return "\n".join([*parts, "</svg>", ""])


def _draw(milliseconds: npt.NDArray[Any]) -> list[str]:
    count = len(milliseconds)
    low, high = nearest_ticks(float(milliseconds[0]), float(milliseconds[-1]))
    # The last request is at the percentile that leaves one request.
    last = max(1.0, min(math.log10(count), _position(_PERCENTILES[-1])))
    across = PlotAxis(0, last, _LEFT, _WIDTH - _RIGHT, margin=0)
    up = PlotAxis(math.log10(low), math.log10(high), _HEIGHT - _BOTTOM, _TOP, margin=0)

    def latency_at(position: float) -> float:
        index = math.ceil((1 - 10**-position) * count - 1e-6) - 1
        return float(milliseconds[min(max(index, 0), count - 1)])

    parts = _draw_grid(across, up, low, high, last)
    places = [
        (across.at(x), up.at(math.log10(latency_at(x)))) for x in np.linspace(0, last, _MAX_POINTS)
    ]
    # The slowest request is where the axis ends.
    places[-1] = (places[-1][0], up.at(math.log10(float(milliseconds[-1]))))
    points = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    parts.append(
        f'<polyline class="line" points="{points}" fill="none" stroke-width="2" '
        'stroke-linejoin="round"/>'
    )
    for percentile in _LABELLED:
        position = _position(percentile)
        if position > last:
            continue
        value = latency_at(position)
        x, y = across.at(position), up.at(math.log10(value))
        # The line rises from left to right, so the space to the lower right is free.
        parts.append(
            f'<circle class="dot" cx="{x:.1f}" cy="{y:.1f}" r="4.5" stroke-width="1.5"/>'
            f'<text class="text" x="{x + 7:.1f}" y="{min(y + 19, _HEIGHT - _BOTTOM - 6):.1f}">'
            f"{value:.3g} ms</text>"
        )
    return parts


def _position(percentile: float) -> float:
    """Returns the place of a percentile: each step of 1 leaves a tenth of the requests."""
    return -math.log10(1 - percentile / 100)


def _draw_grid(across: PlotAxis, up: PlotAxis, low: float, high: float, last: float) -> list[str]:
    bottom, right = _HEIGHT - _BOTTOM, _WIDTH - _RIGHT
    parts, before = [], math.inf
    for tick in (t for t in TIME_TICKS if low * 0.999 <= t <= high * 1.001):
        y = up.at(math.log10(tick))
        if before - y < _MIN_DISTANCE:
            continue
        before = y
        parts.append(
            f'<line class="grid" x1="{_LEFT}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>'
            f'<text class="faint" x="{_LEFT - 8}" y="{y + 4.5:.1f}" text-anchor="end">'
            f"{tick:g}</text>"
        )
    for percentile in _PERCENTILES:
        position = _position(percentile)
        if position > last + 1e-6:
            break
        x = across.at(position)
        parts.append(
            f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{bottom}"/>'
            f'<text class="faint" x="{x:.1f}" y="{bottom + 20}" text-anchor="middle">'
            f"{percentile:g} %</text>"
        )
    middle = (_TOP + bottom) / 2
    parts.append(
        f'<line class="axis" x1="{_LEFT}" x2="{right}" y1="{bottom}" y2="{bottom}"/>'
        f'<line class="axis" x1="{_LEFT}" x2="{_LEFT}" y1="{_TOP}" y2="{bottom}"/>'
        f'<text class="text" x="{(_LEFT + right) / 2}" y="{_HEIGHT - 16}" text-anchor="middle">'
        "percentage of requests that were answered at least as fast</text>"
        f'<text class="text" x="24" y="{middle}" text-anchor="middle" '
        f'transform="rotate(-90 24 {middle})">latency in milliseconds</text>'
    )
    return parts
