"""Collects the VJPs to write with a function, for all file formats."""

from __future__ import annotations

from jax2tf_bridge.errors import Argument, GradientError, Message, SerializationError
from jax2tf_bridge.portable import PortableFunction, find_vjp_problem, is_vjp_order


def collect_vjps(
    portable: PortableFunction, vjp_order: int | None, max_order: int
) -> tuple[PortableFunction, ...]:
    """Returns a function, its VJP, the VJP of that VJP, and so on.

    Args:
      portable: the function.
      vjp_order: the number of VJPs; missing ones are made. None returns the VJPs that exist.
      max_order: the maximum number of VJPs in the format.

    Raises:
      SerializationError: the function has fewer VJPs, the format holds fewer, or one of them is
        not the VJP of the function before it.
      InconclusiveShapeError: making a VJP requires a decision about unknown sizes.
      ValueError: vjp_order is negative, or not an integer.
    """
    if vjp_order is not None and not is_vjp_order(vjp_order):
        raise ValueError(f"vjp_order must be an integer, at least 0. Got: {vjp_order!r}")
    functions = [portable]
    while len(functions) - 1 != vjp_order:
        primal = functions[-1]
        if vjp_order is None and primal.gradient.vjp is None:
            break
        if len(functions) > max_order:
            raise SerializationError(
                f"{portable.name} cannot be written with its VJPs: a file holds VJPs up to order "
                f"{max_order}."
            )
        try:
            vjp = primal.vjp()
        except GradientError as e:
            order = len(functions) - 1
            available = f"only VJPs up to order {order} exist" if order else "there is no VJP"
            raise SerializationError(
                Message(
                    f"{portable.name} cannot be written with ",
                    Argument("vjp_order", vjp_order),
                    f": {available}. ",
                    e,
                )
            ) from e
        problem = find_vjp_problem(primal, vjp.in_tree, vjp.in_avals, vjp.out_avals)
        if problem is not None:
            raise SerializationError(
                f"{portable.name} cannot be written: the VJP of order {len(functions)} is not that "
                f"of {primal.name}: {problem}."
            )
        functions.append(vjp)
    return tuple(functions)
