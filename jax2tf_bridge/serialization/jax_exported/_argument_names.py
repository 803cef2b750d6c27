"""Names for positional arguments. The file format of jax.export does not store them."""

from __future__ import annotations

from jax2tf_bridge.portable import PortableFunction, TreeSpec


def make_argument_names(in_tree: TreeSpec, primal: PortableFunction | None) -> tuple[str, ...]:
    """Returns names of positional arguments: x0, x1, ... or primal_0, ... cotangent_0, ...

    Args:
      in_tree: the structure of (args, kwargs).
      primal: the function that this is the VJP of; None if this is not a VJP.
    """
    args, kwargs = in_tree.children
    if primal is not None:
        primals = len(primal.in_avals)
        return (
            *(f"primal_{i}" for i in range(primals)),
            *(f"cotangent_{i}" for i in range(len(args.children) - primals)),
        )
    keys, prefix = {str(key) for key in kwargs.keys}, "x"
    while not keys.isdisjoint(f"{prefix}{i}" for i in range(len(args.children))):
        prefix += "_"
    return tuple(f"{prefix}{i}" for i in range(len(args.children)))
