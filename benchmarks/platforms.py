"""Cost of lowering for four platforms, the default, compared with the CPU only: bytes and time."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import _measure
from benchmarks._models import MODELS
from jax2tf_bridge import BridgeError, PortableFunction, export


def _attention(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    scores = jnp.einsum("bqd,bkd->bqk", q, k) / np.float32(np.sqrt(q.shape[-1]))
    return jnp.einsum("bqk,bkd->bqd", jax.nn.softmax(scores), v)


def _make_program(f: Callable[..., Any], *args: Any, shapes: Any = None) -> Callable[..., Any]:
    def export_for(platforms: tuple[str, ...] | None) -> PortableFunction:
        # A new function each time, because JAX caches traces by function.
        fresh = lambda *a: f(*a)  # noqa: E731
        return export(fresh, polymorphic_shapes=shapes, platforms=platforms)(*args)

    return export_for


def _make_programs() -> dict[str, Callable[..., PortableFunction]]:
    square = np.eye(16, dtype=np.float32) * 2
    long = np.zeros((2, 32, 16), np.float32)
    programs = {}
    for name in ("MLP", "conv net"):
        model = MODELS[name]()
        shapes = [None, model.polymorphic_shape]
        programs[name] = _make_program(model.apply, model.weights, model.inputs(2), shapes=shapes)
    return programs | {
        "attention": _make_program(_attention, long, long, long, shapes="(b, n, 16)"),
        "top_k": _make_program(lambda x: jax.lax.top_k(x, 5), np.zeros((2, 100), np.float32)),
        "random.normal": _make_program(
            lambda seed: jax.random.normal(jax.random.key(seed), (64,)), np.uint32(0)
        ),
        "solve": _make_program(jnp.linalg.solve, square, square[:, 0]),
        "svd": _make_program(jnp.linalg.svd, square),
    }


def main() -> None:
    options = _measure.make_parser(__doc__, rounds=9).parse_args()
    rows, measured, notes = [], [], []
    for name, export_for in _make_programs().items():
        _measure.print_progress(name)
        try:
            portables = {"four": export_for(None), "cpu": export_for(("cpu",))}
        except BridgeError as e:
            notes.append(f"{name} is not exported: {str(e).splitlines()[0][:200]}")
            continue
        times = _measure.measure_interleaved(
            {"four": partial(export_for, None), "cpu": partial(export_for, ("cpu",))},
            rounds=options.rounds,
            seconds_a_turn=0.0,
        )
        four, cpu = len(portables["four"].module.data), len(portables["cpu"].module.data)
        took = {key: _measure.Spread.of(value) for key, value in times.items()}
        ratio = _measure.compute_ratios(times, "four", "cpu")
        dropped = [f"{platform}: {why}" for platform, why in portables["four"].dropped_platforms]
        measured.append(
            {
                "program": name,
                "platforms": portables["four"].platforms,
                "dropped": dropped,
                "bytes": four,
                "bytes, cpu": cpu,
                "seconds": took["four"],
                "seconds, cpu": took["cpu"],
                "time ratio": ratio,
            }
        )
        rows.append(
            [
                name,
                ", ".join(portables["four"].platforms),
                f"{four}",
                f"{four / cpu:.2f}",
                _measure.seconds_text(took["four"].median),
                ratio.ratio_text(),
            ]
        )
    _measure.report(
        "The default platforms against the CPU alone",
        ["program", "platforms", "bytes", "x cpu", "export", "x cpu"],
        rows,
        measured,
        json_path=options.json,
        notes=notes,
    )


if __name__ == "__main__":
    main()
