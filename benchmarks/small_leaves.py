"""State dicts and msgpack of 20,000 small leaves, compared with flax.serialization: CPU time."""

from __future__ import annotations

import argparse
import functools
import gc
import importlib.metadata
import random
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks import _measure

_BRIDGE, _FLAX = "bridge", "Flax"
_LEAVES_PER_LAYER = 4


def tree(leaves: int, kind: str) -> dict[str, Any]:
    """Makes layers of four leaves with four float32 each; two are in a list and a tuple."""
    import jax.numpy as jnp

    def leaf(number: int) -> Any:
        array = np.full(4, number, np.float32)
        return jnp.asarray(array) if kind == "JAX" else array

    return {
        "params": {
            f"layer_{i}": {"kernel": leaf(i), "bias": leaf(i), "stats": [leaf(i), (leaf(i),)]}
            for i in range(leaves // _LEAVES_PER_LAYER)
        }
    }


def _make_calls(leaves: int, kind: str) -> dict[str, dict[str, Callable[[], Any]]]:
    """Makes calls of each function by side, and compares their results."""
    from flax import serialization as flax

    from jax2tf_bridge import weights as bridge

    params = tree(leaves, kind)
    state, data = flax.to_state_dict(params), flax.to_bytes(params)
    arguments: dict[str, tuple[Any, ...]] = {
        "to_state_dict": (params,),
        "from_state_dict": (params, state),
        "to_bytes": (params,),
        "from_bytes": (params, data),
        "msgpack_serialize": (state,),
        "msgpack_restore": (data,),
    }
    assert bridge.to_bytes(params) == data
    assert bridge.msgpack_serialize(state) == flax.msgpack_serialize(state)
    assert bridge.to_bytes(bridge.from_bytes(params, data)) == data
    assert bridge.to_bytes(bridge.from_state_dict(params, state)) == data
    return {
        name: {
            side: functools.partial(getattr(module, name), *call_arguments)
            for side, module in ((_BRIDGE, bridge), (_FLAX, flax))
        }
        for name, call_arguments in arguments.items()
    }


def _measure_sides(calls: dict[str, Callable[[], Any]], rounds: int) -> dict[str, list[float]]:
    """Measures the CPU seconds of both sides, which take turns in random order."""
    times: dict[str, list[float]] = {side: [] for side in calls}
    order = list(calls)
    for round_number in range(-1, rounds):
        random.Random(round_number).shuffle(order)
        for side in order:
            # Otherwise a full garbage collection may fall to either side.
            gc.collect()
            start = time.process_time()
            calls[side]()
            if round_number >= 0:
                times[side].append(time.process_time() - start)
    return times


def main() -> None:
    parser: argparse.ArgumentParser = _measure.make_parser(__doc__, rounds=15)
    parser.add_argument("--leaves", type=int, default=20_000, help="of the tree (%(default)s)")
    options = parser.parse_args()
    rows, measured = [], []
    for kind in ("NumPy", "JAX"):
        for name, calls in _make_calls(options.leaves, kind).items():
            _measure.print_progress(f"{name}, {kind}")
            times = _measure_sides(calls, options.rounds)
            row: dict[str, Any] = {"function": name, "leaves": kind}
            row |= {side: _measure.Spread.of(times[side]) for side in times}
            row["ratio"] = _measure.compute_ratios(times, _BRIDGE, _FLAX)
            measured.append(row)
            texts = [_measure.seconds_text(row[side].median) for side in (_BRIDGE, _FLAX)]
            rows.append([name, kind, *texts, row["ratio"].ratio_text()])
    _measure.report(
        f"{options.leaves} leaves of 16 bytes, CPU time",
        ["function", "leaves", _BRIDGE, _FLAX, "bridge / Flax"],
        rows,
        measured,
        json_path=options.json,
        notes=[f"Flax {importlib.metadata.version('flax')}."],
    )


if __name__ == "__main__":
    main()
