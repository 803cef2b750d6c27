"""Cost of inferring constraints of sizes: export time by the number of inference rounds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from benchmarks import _measure
from jax2tf_bridge import export

_ROUNDS = (0, 1, 2, 4, 8, 16)
_MULTIPLES = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53)


def make_padded(multiples: Sequence[int]) -> Callable[[Any], Any]:
    """Makes a function that pads a vector to each multiple; each needs one inference round."""

    def f(x: Any) -> Any:
        y = jnp.sin(x)
        return [jnp.pad(y, (0, -x.shape[0] % m)).reshape(-1, m).sum(axis=1) for m in multiples]

    return f


def list_constraints(multiples: Sequence[int]) -> list[str]:
    """Lists the constraints that make inference unnecessary."""
    return [f"mod(mod(- b, {m}) + b, - {m}) == 0" for m in multiples]


def main() -> None:
    """Measures and prints a table."""
    options = _measure.make_parser(__doc__, rounds=9).parse_args()
    x = np.ones(100, np.float32)

    def make_export(multiples: Sequence[int], constraints: Sequence[str]) -> Callable[[], Any]:
        exporter = export(
            make_padded(multiples),
            polymorphic_shapes="(b,)",
            polymorphic_constraints=constraints,
            platforms=["cpu"],
        )
        return lambda: exporter(x)

    calls: dict[str, Callable[[], Any]] = {}
    for count in _ROUNDS:
        multiples = _MULTIPLES[:count]
        calls[f"{count} inferred"] = make_export(multiples, ())
        calls[f"{count} by hand"] = make_export(multiples, list_constraints(multiples))
    _measure.print_progress("each export once, to load what is loaded once")
    for call in calls.values():
        assert call().requirements == ()
    times = _measure.measure_interleaved(calls, rounds=options.rounds)
    rows, measured = [], []
    for count in _ROUNDS:
        inferred, hand = f"{count} inferred", f"{count} by hand"
        ratio = _measure.compute_ratios(times, inferred, hand)
        seconds = _measure.Spread.of(times[inferred])
        rows.append(
            [
                str(count),
                _measure.seconds_text(seconds.median),
                _measure.seconds_text(_measure.Spread.of(times[hand]).median),
                ratio.ratio_text(),
            ]
        )
        measured.append({"rounds": count, "seconds": seconds, "ratio": ratio})
    _measure.report(
        "Export by rounds of inference",
        ["rounds", "inferred", "constraints by hand", "x by hand"],
        rows,
        measured,
        json_path=options.json,
        notes=["The export of a function that pads a vector to so many different multiples."],
    )


if __name__ == "__main__":
    main()
