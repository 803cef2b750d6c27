"""Linear algebra of the bridge, compared with LAPACK in JAX; JAX runs both."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp

import jax2tf_bridge
from benchmarks import _measure

Program = tuple[Callable[..., Any], tuple[Any, ...]]


def programs(n: int, dtype: str) -> dict[str, Program]:
    """Maps names to (function, arguments), for matrices of n rows."""
    random = np.random.default_rng(0)
    a = random.standard_normal((n, n)).astype(dtype)
    b = random.standard_normal((n, n)).astype(dtype)
    regular = (a + 2 * n * np.eye(n)).astype(dtype)
    symmetric = (a + a.T) / 2
    definite = (a @ a.T / n + np.eye(n)).astype(dtype)

    def triangular(a: Any, b: Any) -> Any:
        return lax.linalg.triangular_solve(a, b, left_side=True, lower=True)

    return {
        "solve": (jnp.linalg.solve, (regular, b[:, 0])),
        "qr": (jnp.linalg.qr, (a,)),
        "cholesky": (jnp.linalg.cholesky, (definite,)),
        "eigh": (jnp.linalg.eigh, (symmetric,)),
        "svd": (jnp.linalg.svd, (a,)),
        "lu": (lax.linalg.lu, (a,)),
        "triangular": (triangular, (np.tril(regular), b)),
    }


def main() -> None:
    """Measures and prints a table."""
    parser = _measure.make_parser(__doc__, rounds=15)
    parser.add_argument("--sizes", type=int, nargs="+", default=[16, 64, 256])
    parser.add_argument("--dtype", default="float32", choices=["float32", "float64"])
    options = parser.parse_args()
    jax.config.update("jax_enable_x64", options.dtype == "float64")
    rows, measured = [], []
    for n in options.sizes:
        for name, (function, arguments) in programs(n, options.dtype).items():
            _measure.print_progress(f"{name} of {n}")
            arrays = [jnp.asarray(x) for x in arguments]
            exported = jax2tf_bridge.export(function, platforms=["cpu"])(*arguments)
            calls = {
                "JAX": _make_call(jax.jit(function), arrays),
                "bridge": _make_call(jax.jit(jax2tf_bridge.to_exported(exported).call), arrays),
            }
            compiling = {who: _measure_cpu_time(call) for who, call in calls.items()}
            times = _measure.measure_interleaved(calls, rounds=options.rounds)
            ratio = _measure.compute_ratios(times, "bridge", "JAX")
            spreads = {who: _measure.Spread.of(values) for who, values in times.items()}
            medians = [_measure.seconds_text(spreads[who].median) for who in ("JAX", "bridge")]
            compiled = [_measure.seconds_text(compiling[who]) for who in ("JAX", "bridge")]
            rows.append([str(n), name, *medians, ratio.ratio_text(), *compiled])
            measured.append(
                {"n": n, "program": name, **spreads, "ratio": ratio, "compiling": compiling}
            )
    who = ("LAPACK", "bridge")
    _measure.report(
        f"Linear algebra of {options.dtype}",
        ["n", "program", *who, "x LAPACK", *(f"compiling, {column}" for column in who)],
        rows,
        measured,
        json_path=options.json,
        notes=["Compiling is CPU time of XLA for the first call."],
    )


def _make_call(function: Callable[..., Any], arrays: Sequence[jax.Array]) -> Callable[[], None]:
    def call() -> None:
        jax.block_until_ready(function(*arrays))

    return call


def _measure_cpu_time(call: Callable[[], None]) -> float:
    start = time.process_time()
    call()
    return time.process_time() - start


if __name__ == "__main__":
    main()
