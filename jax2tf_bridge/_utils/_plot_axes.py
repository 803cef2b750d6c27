"""Axes of plots in SVG."""

from __future__ import annotations

TIME_TICKS = tuple(m * 10.0**e for e in range(-6, 7) for m in (1, 2, 5))
"""Tick values of a logarithmic axis for milliseconds."""


class PlotAxis:
    """Axis that maps numbers to pixels; if all numbers are equal, to the middle of the axis."""

    def __init__(
        self, low: float, high: float, begin: float, end: float, *, margin: float = 0.06
    ) -> None:
        """Maps low and high to begin and end, each moved inwards by a part `margin` of the axis."""
        space = margin * (end - begin)
        self._low, self._span = low, high - low
        self._begin, self._length = begin + space, end - begin - 2 * space

    def at(self, value: float) -> float:
        """Returns the pixel of a number."""
        part = (value - self._low) / self._span if self._span else 0.5
        return self._begin + part * self._length


def nearest_ticks(low: float, high: float) -> tuple[float, float]:
    """Returns the ticks that enclose a range of milliseconds; they differ.

    >>> nearest_ticks(0.3, 7.0)
    (0.2, 10.0)
    """
    first = max((tick for tick in TIME_TICKS if tick <= low), default=TIME_TICKS[0])
    last = min((tick for tick in TIME_TICKS if tick >= high), default=TIME_TICKS[-1])
    return first, last if last > first else 10 * first
