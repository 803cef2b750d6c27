"""Plots latency over batch size as an SVG, without a plotting package."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from jax2tf_bridge.verifying import Latency

_WIDTH, _HEIGHT = 720, 420
_LEFT, _RIGHT, _TOP, _BOTTOM = 80, 20, 84, 60
_SERIES = (("JAX, jitted", "#0b6e99", "jax_ms"), ("SavedModel", "#c2410c", "saved_model_ms"))


def latency_plot(title: str, variable: str, points: Sequence[Latency]) -> str:
    """Plots two lines on logarithmic axes, as a file of SVG.

    Args:
      title: the plot's title.
      variable: the name of the size.
      points: the points, in order of their sizes.
    """
    sizes = [point.size or 1 for point in points]
    times = [t for p in points for t in (p.jax_ms, p.saved_model_ms)]
    low, high = _decades(min(times), max(times))
    across = _PlotAxis(math.log2(min(sizes)), math.log2(max(sizes)), _LEFT, _WIDTH - _RIGHT)
    up = _PlotAxis(math.log10(low), math.log10(high), _HEIGHT - _BOTTOM, _TOP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
        f'width="{_WIDTH}" height="{_HEIGHT}" font-family="sans-serif" font-size="13">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
        f'<text x="{_LEFT}" y="26" font-size="16" fill="#111">{escape(title)}</text>',
    ]
    for value in _ticks(low, high):
        y = up.at(math.log10(value))
        parts.append(
            f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}" '
            'stroke="#e5e7eb"/>'
            f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end" fill="#444">{value:g}</text>'
        )
    for size in sizes:
        x = across.at(math.log2(size))
        parts.append(
            f'<text x="{x:.1f}" y="{_HEIGHT - _BOTTOM + 20}" text-anchor="middle" '
            f'fill="#444">{size}</text>'
        )
    middle = (_TOP + _HEIGHT - _BOTTOM) / 2
    parts += [
        f'<text x="{(_LEFT + _WIDTH - _RIGHT) / 2}" y="{_HEIGHT - 16}" text-anchor="middle" '
        f'fill="#111">{escape(variable)}</text>',
        f'<text x="22" y="{middle}" text-anchor="middle" fill="#111" '
        f'transform="rotate(-90 22 {middle})">milliseconds, median</text>',
    ]
    for i, (name, colour, attribute) in enumerate(_SERIES):
        places = [
            (across.at(math.log2(size)), up.at(math.log10(getattr(point, attribute))))
            for size, point in zip(sizes, points, strict=True)
        ]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        dots = [f'<circle cx="{a:.1f}" cy="{b:.1f}" r="3.5" fill="{colour}"/>' for a, b in places]
        x = _LEFT + 180 * i
        parts.append(
            f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>'
            + "".join(dots)
            + f'<line x1="{x}" x2="{x + 26}" y1="50" y2="50" stroke="{colour}" stroke-width="3"/>'
            f'<text x="{x + 34}" y="55" fill="#111">{escape(name)}</text>'
        )
    return "\n".join([*parts, "</svg>", ""])


class _PlotAxis:
    """Axis that maps numbers to places; if all numbers are equal, they are in the middle."""

    def __init__(self, low: float, high: float, begin: float, end: float) -> None:
        margin = 0.06 * (end - begin)
        self._low, self._span = low, high - low
        self._begin, self._length = begin + margin, end - begin - 2 * margin

    def at(self, value: float) -> float:
        part = (value - self._low) / self._span if self._span else 0.5
        return self._begin + part * self._length


def _decades(low: float, high: float) -> tuple[float, float]:
    """Returns the nearest ticks (1, 2 or 5 times a power of ten) below and above."""
    ticks = [m * 10.0**e for e in range(-6, 7) for m in (1, 2, 5)]
    below = [tick for tick in ticks if tick <= low]
    above = [tick for tick in ticks if tick >= high]
    first, last = (below or ticks)[-1 if below else 0], (above or ticks)[0 if above else -1]
    return first, last if last > first else 10 * first


def _ticks(low: float, high: float) -> list[float]:
    ticks = [m * 10.0**e for e in range(-6, 7) for m in (1, 2, 5)]
    return [tick for tick in ticks if low * 0.999 <= tick <= high * 1.001]
