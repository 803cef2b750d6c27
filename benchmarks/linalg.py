"""Linear algebra in TensorFlow, converted by the bridge, against LAPACK in JAX.

    python benchmarks/linalg.py [--sizes 16 64 256] [--repeats 15] [--dtype float32]

Both sides are measured in one run, alternating, and the medians are printed with their ratio.
Needs JAX and TensorFlow in one environment.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp

import jax2tf_bridge

Program = tuple[Callable[..., Any], tuple[Any, ...]]


def programs(n: int, dtype: str) -> dict[str, Program]:
    """Name to (function, arguments) for matrices of n rows."""
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


def medians(calls: dict[str, Callable[[], Any]], repeats: int) -> dict[str, float]:
    """Median seconds of each call, taken in turns after two calls that are not counted."""
    for call in calls.values():
        call()
        call()
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(repeats):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            times[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in times.items()}


def main() -> None:
    """Prints a line for each program and size."""
    import tensorflow as tf

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[16, 64, 256])
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--dtype", default="float32", choices=["float32", "float64"])
    options = parser.parse_args()
    jax.config.update("jax_enable_x64", options.dtype == "float64")

    print(f"JAX {jax.__version__}, TensorFlow {tf.__version__}, {options.dtype}")
    print(f"{'n':>4}  {'program':<10}  {'JAX, LAPACK':>12}  {'TF, bridge':>12}  {'ratio':>6}")
    for n in options.sizes:
        for name, (function, arguments) in programs(n, options.dtype).items():
            converted = tf.function(jax2tf_bridge.convert(function), jit_compile=True)
            tensors = [tf.constant(x) for x in arguments]
            arrays = [jnp.asarray(x) for x in arguments]
            jitted = jax.jit(function)

            def in_jax(jitted: Any = jitted, arrays: Any = arrays) -> None:
                jax.block_until_ready(jitted(*arrays))

            def in_tf(converted: Any = converted, tensors: Any = tensors) -> None:
                # numpy() waits for the result, which on CPU it does not copy.
                for x in tf.nest.flatten(converted(*tensors)):
                    x.numpy()

            taken = medians({"jax": in_jax, "tf": in_tf}, options.repeats)
            print(
                f"{n:>4}  {name:<10}  {taken['jax'] * 1e6:>9.0f} us  "
                f"{taken['tf'] * 1e6:>9.0f} us  {taken['tf'] / taken['jax']:>6.1f}"
            )


if __name__ == "__main__":
    main()
