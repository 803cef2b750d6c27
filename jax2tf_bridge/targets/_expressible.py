"""Rejects modules that TensorFlow's own operations cannot express."""

from __future__ import annotations

from jax2tf_bridge.bytecode import read_program
from jax2tf_bridge.errors import Argument, Message, UnsupportedByTargetError
from jax2tf_bridge.targets._target import NO_XLA, Target
from jax2tf_bridge.targets._tensorflow_operations import OPERATIONS, find_inexpressible


def check_expressible(artifact: bytes, target: Target, function_name: str) -> None:
    """Checks that TensorFlow has operations for everything in a module.

    Raises:
      UnsupportedByTargetError: TensorFlow lacks an operation; the error names it and its source
        line.
    """
    problem = find_inexpressible(read_program(artifact))
    if problem is None:
        return
    with_xla = Target.widest().custom_calls(("cpu",)) | OPERATIONS
    advice: tuple[Argument | str, ...] = (
        (", or export it without ", NO_XLA, ", for a TensorFlow that has XLA.")
        if problem.operation in with_xla
        else (".",)
    )
    raise UnsupportedByTargetError(
        Message(
            f"{function_name} cannot run on {target.name}, where it has to become TensorFlow's own "
            f"operations: {problem.problem}. Write this part of the function with other JAX "
            "operations",
            *advice,
        ),
        operation=problem.operation,
        source=problem.source,
    )
