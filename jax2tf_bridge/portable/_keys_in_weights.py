"""Detects PRNG keys among the weights of a saved function, with which all calls draw the same."""

from __future__ import annotations

from collections.abc import Sequence

from jax2tf_bridge._utils import some
from jax2tf_bridge.portable._portable_function import PortableFunction


def key_paths(portable: PortableFunction, weight_count: int) -> tuple[str, ...]:
    """Returns the paths of the PRNG keys among the weights that the module reads.

    Args:
      portable: the function, whose first flat arguments are the weights.
      weight_count: the number of weights.
    """
    kept = set(portable.module.kept_arguments)
    weights = enumerate(portable.inputs[:weight_count])
    return tuple(port.path for i, port in weights if port.aval.is_key and i in kept)


def keys_text(paths: Sequence[str], signature: str = "") -> str:
    """Explains the effect of PRNG keys among the weights.

    >>> print(keys_text(["params['rngs']['dropout']"]))  # doctest: +ELLIPSIS
    the results depend on a PRNG key among the weights (params['rngs']['dropout']): ...
    """
    keys = "a PRNG key" if len(paths) == 1 else f"{len(paths)} PRNG keys"
    of_signature = f" of {signature}" if signature else ""
    return (
        f"the results{of_signature} depend on {keys} among the weights ({some(paths, 3)}): every "
        "call draws the same numbers. If the model was saved in training mode, switch it to "
        "evaluation before it is saved (model.eval() in Flax nnx); if it has to draw, make the "
        "key an argument of the function."
    )
