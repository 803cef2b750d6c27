"""Checks of signatures before they are saved."""

from __future__ import annotations

import keyword
from collections.abc import Iterable, Mapping

import tensorflow as tf

from jax2tf_bridge.errors import Argument, Message, SavingError
from jax2tf_bridge.portable import PortableFunction
from jax2tf_bridge.signatures import Signature

_MAX_GRAPH_BYTES = 2**31 - 1 - (1 << 20)
"""Maximum size of the modules in bytes: that of saved_model.pb, less room for the rest."""

_TAKEN = frozenset(
    {"params", "constants", "gradients", "signatures", "resources"}
    | {"unprocessed", "without_batching", "variables", "trainable_variables"}
    | {name for name in dir(tf.Module) if not name.startswith("_")}
)


def check_signature_names(signatures: Mapping[str, Signature]) -> tuple[str, ...]:
    """Lists the signatures' names.

    Raises:
      SavingError: there are none, or a loaded model cannot have methods of these names.
    """
    if not isinstance(signatures, Mapping) or not signatures:
        raise SavingError(
            f"signatures must be a mapping with at least one signature. Got: {signatures!r}"
        )
    for name in signatures:
        if isinstance(name, str) and keyword.iskeyword(name):
            raise SavingError(
                f"A signature cannot be named {name!r}, a keyword of Python: the loaded model has "
                "a method of that name."
            )
        if not isinstance(name, str) or not name.isidentifier() or name.startswith("_"):
            raise SavingError(
                f"A signature cannot be named {name!r}: the loaded model has a method of that "
                "name, so it must be a name of Python that begins with a letter."
            )
        if name in _TAKEN:
            raise SavingError(
                f"A signature cannot be named {name!r}: a loaded model has another attribute of "
                "that name."
            )
        if signatures[name].seed not in ("key", "scalar"):
            raise SavingError(
                f"seed of the signature {name} must be 'key' or 'scalar'. "
                f"Got: {signatures[name].seed!r}"
            )
    return tuple(signatures)


def check_takes_params(
    name: str, portable: PortableFunction, *, takes: bool, has_params: bool
) -> None:
    """Raises unless there are weights for a function that takes them, and a place for them."""
    if takes and not has_params:
        raise SavingError(
            f"The signature {name} has takes_params=True, but save got no params. "
            "Pass params=..., or leave out takes_params."
        )
    if takes and not portable.argument_names:
        raise SavingError(
            f"params were given, and {portable.name} of the signature {name} has no positional "
            "argument to take them. Give its Signature takes_params=False."
        )


def check_size(portables: Mapping[str, Iterable[PortableFunction]]) -> None:
    """Raises if the modules, by signature, do not fit into a graph."""
    sizes = {name: sum(len(r.module.data) for r in each) for name, each in portables.items()}
    if sum(sizes.values()) > _MAX_GRAPH_BYTES:
        each = ", ".join(f"{name}: {size / 1e9:.2f} GB" for name, size in sizes.items())
        raise SavingError(
            f"The modules take {sum(sizes.values()) / 1e9:.2f} GB ({each}), and a SavedModel's "
            "graph holds less than 2.15 GB. Arrays that the function computes with NumPy, or "
            "captures in a form that is not lifted, are the usual reason: pass them as params."
        )


def check_vjp_order(vjp_order: int | None) -> None:
    """Raises SavingError unless it is None or a number of orders of gradients."""
    if vjp_order is not None and (not isinstance(vjp_order, int) or vjp_order < 0):
        raise SavingError(
            Message(Argument("vjp_order"), f" must be an integer, 0 or more. Got: {vjp_order!r}")
        )
