"""Rejects modules that TensorFlow's own operations cannot express."""

from __future__ import annotations

from jax2tf_bridge.errors import Argument, Message, UnsupportedByTargetError
from jax2tf_bridge.portable._target import NO_XLA, Target
from jax2tf_bridge.portable._tensorflow_operations import OPERATIONS, find_inexpressible
from jax2tf_bridge.portable.bytecode import read_program


def check_expressible(artifact: bytes, target: Target, function_name: str) -> None:
    """Raises unless TensorFlow has operations for all that a module does.

    Raises:
      UnsupportedByTargetError: it has none for one, which is named with its place.
    """
    found = find_inexpressible(read_program(artifact))
    if found is None:
        return
    with_xla = Target.widest().custom_calls(("cpu",)) | OPERATIONS
    advice: tuple[Argument | str, ...] = (
        (", or export it without ", NO_XLA, ", for a TensorFlow that has XLA.")
        if found.operation in with_xla
        else (".",)
    )
    raise UnsupportedByTargetError(
        Message(
            f"{function_name} cannot run on {target.name}, where it has to become TensorFlow's own "
            f"operations: {found.problem}. Write this part of the function with other JAX "
            "operations",
            *advice,
        ),
        operation=found.operation,
        source=found.source,
    )
