"""Runs a function with the results of its operations rounded."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import jax

from jax2tf_bridge.from_jax._exported import to_exported
from jax2tf_bridge.from_jax.stablehlo import round_results
from jax2tf_bridge.portable import PortableFunction

_QUICK = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}


def run_rounded(
    portable: PortableFunction, leaves: Sequence[Any], seeds: Iterable[int]
) -> Iterator[list[Any]]:
    """Yields the flat results of a function whose operations round them to shorter floats.

    Args:
      portable: the function.
      leaves: its flat arguments.
      seeds: the seeds of the lengths, one for each run.

    Raises:
      BridgeError: as for `to_exported`.
    """
    options = get_quick_options()
    for seed in seeds:
        exported = to_exported(round_results(portable, seed))
        args, kwargs = jax.tree_util.tree_unflatten(exported.in_tree, leaves)
        results = jax.jit(exported.call, compiler_options=options)(*args, **kwargs)
        yield jax.tree_util.tree_leaves(results)


def get_quick_options() -> dict[str, Any] | None:
    """Returns the XLA options that halve compile time on CPU; None where XLA lacks them."""
    if jax.default_backend() != "cpu":
        return None
    try:
        jax.jit(lambda: 0, compiler_options=_QUICK)()
    except jax.errors.JaxRuntimeError:  # this XLA lacks the options, which do not affect the values
        return None
    return dict(_QUICK)
