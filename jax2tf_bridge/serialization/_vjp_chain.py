"""Collects the VJPs that are written with a function; the same for every format."""

from __future__ import annotations

from jax2tf_bridge.errors import Argument, GradientError, Message, SerializationError
from jax2tf_bridge.portable._consistency import vjp_problem
from jax2tf_bridge.portable._portable_function import PortableFunction


def vjp_chain(
    portable: PortableFunction, vjp_order: int | None, most: int
) -> tuple[PortableFunction, ...]:
    """Collects a function, its VJP, that one's VJP and so on.

    Args:
      portable: the function.
      vjp_order: how many VJPs, which are made if they are not there; None for those that are.
      most: how many the format holds.

    Raises:
      SerializationError: there are fewer, the format holds fewer, or one is not the VJP of the
        function before it.
      InconclusiveShapeError: making a VJP asked something about the sizes.
      ValueError: vjp_order is negative.
    """
    if vjp_order is not None and vjp_order < 0:
        raise ValueError(f"vjp_order must be at least 0. Got: {vjp_order}")
    functions = [portable]
    while len(functions) - 1 != vjp_order:
        primal = functions[-1]
        if vjp_order is None and primal.gradient.made is None:
            break
        if len(functions) > most:
            raise SerializationError(
                f"{portable.name} cannot be written with its VJPs: a file holds VJPs up to order "
                f"{most}."
            )
        try:
            vjp = primal.vjp()
        except GradientError as e:
            order = len(functions) - 1
            there = f"only VJPs up to order {order} are there" if order else "there is no VJP"
            raise SerializationError(
                Message(
                    f"{portable.name} cannot be written with ",
                    Argument("vjp_order", vjp_order),
                    f": {there}. ",
                    e,
                )
            ) from e
        problem = vjp_problem(primal, vjp.in_tree, vjp.in_avals, vjp.out_avals)
        if problem is not None:
            raise SerializationError(
                f"{portable.name} cannot be written: the VJP of order {len(functions)} is not that "
                f"of {primal.name}: {problem}."
            )
        functions.append(vjp)
    return tuple(functions)
