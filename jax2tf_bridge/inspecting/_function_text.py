"""Describes a portable function in one line."""

from __future__ import annotations

from collections.abc import Sequence

from jax2tf_bridge._utils import some
from jax2tf_bridge.portable import PortableFunction


def stored_functions(portable: PortableFunction) -> tuple[PortableFunction, ...]:
    """Returns the function and those of its VJPs that are stored, by order."""
    functions = [portable]
    while (vjp := functions[-1].gradient.made) is not None:
        functions.append(vjp)
    return tuple(functions)


def summary(portable: PortableFunction) -> str:
    """Describes a portable function in one line."""
    arguments = [f"{p}: {a}" for p, a in zip(portable.in_paths(), portable.in_avals, strict=True)]
    results = [str(aval) for aval in portable.out_avals]
    sizes = (*portable.constraints, *portable.requirements)
    own = "" if portable.target.xla else ", as its own operations"
    return "; ".join(
        [
            f"{portable.name}({some(arguments, 8)}) -> ({some(results, 8)})",
            *([f"needs {', '.join(sizes)}"] if sizes else []),
            f"{gradients_text(len(stored_functions(portable)) - 1)}",
            f"runs on {releases_text(portable.tensorflow_releases)}{own}",
        ]
    )


def gradients_text(orders: int) -> str:
    """Describes how many orders of gradients there are.

    >>> gradients_text(0), gradients_text(2)
    ('no gradient', 'gradients to order 2')
    """
    return f"gradients to order {orders}" if orders else "no gradient"


def releases_text(releases: Sequence[str]) -> str:
    """Names the oldest and the newest of some TensorFlow releases.

    >>> releases_text(["2.15", "2.16", "2.17"])
    'TensorFlow 2.15 to 2.17'
    """
    if not releases:
        return "no TensorFlow release that is known"
    first, last = releases[0], releases[-1]
    return f"TensorFlow {first}" if first == last else f"TensorFlow {first} to {last}"
