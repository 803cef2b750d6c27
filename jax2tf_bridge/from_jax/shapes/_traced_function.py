"""TracedFunction, a function for inference, and the options for its open sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import jax
from jax import export as jax_export

from jax2tf_bridge.errors import Argument, Message
from jax2tf_bridge.from_jax.shapes._assumptions import SizeAssumptions
from jax2tf_bridge.portable import AUTO
from shape_poly import SymbolicScope


@dataclass(frozen=True)
class SizeWords:
    """Names of the caller's arguments for open sizes and constraints, for messages.

    Attributes:
      shapes: the argument for the sizes.
      constraints: the argument for the constraints.
      scopes_hold_all: whether the sizes carry the constraints, so that code that adds a constraint
        must repeat the others. AUTO is not allowed then.
    """

    shapes: Argument
    constraints: Argument
    scopes_hold_all: bool

    def advice(self, call: str, constraints: Sequence[str]) -> Message:
        """Formats code with the constraints, after `call`, and the advice to use AUTO."""
        quoted = ", ".join(f'"{constraint}"' for constraint in constraints)
        code = f"{call}, {self.constraints.name}=[{quoted}])"
        stated = Message("    ", Argument(self.constraints.name, list(constraints), code), "\n")
        if self.scopes_hold_all:
            return stated
        return Message(stated, "or let ", AUTO_CONSTRAINTS, " add it. ")


SHAPES = Argument("polymorphic_shapes")
CONSTRAINTS = Argument("polymorphic_constraints")
AUTO_CONSTRAINTS = Argument("polymorphic_constraints", AUTO, "polymorphic_constraints=AUTO")
AUTO_SHAPES = Argument("polymorphic_shapes", AUTO, "AUTO")
_IMPORTED_AUTO = "AUTO (from jax2tf_bridge import AUTO), which is not a string"
NAMED_AUTO_SHAPES = Argument("polymorphic_shapes", AUTO, _IMPORTED_AUTO)
NAMED_AUTO_CONSTRAINTS = Argument("polymorphic_constraints", AUTO, _IMPORTED_AUTO)
"""Arguments to name in messages."""

POLYMORPHIC = SizeWords(SHAPES, CONSTRAINTS, scopes_hold_all=False)
"""Arguments of jax2tf, `convert`, `export` and `save`."""

SYMBOLIC = SizeWords(
    shapes=Argument("symbolic_shape"),
    constraints=Argument("constraints", code="symbolic_shape(..., constraints=[...])"),
    scopes_hold_all=True,
)
"""Arguments of jax.export."""


@dataclass(frozen=True)
class SizeOptions:
    """Validated options of an export for open sizes.

    Attributes:
      constraints: the user's constraints on the dimension variables; `scope` holds them.
      infer: whether requirements may be added to the constraints.
      call: the start of the user's call, up to the constraints, for messages.
      words: the names of the caller's arguments, for messages.
    """

    constraints: tuple[str, ...] = ()
    scope: SymbolicScope = field(default_factory=SymbolicScope)
    infer: bool = False
    call: str = ""
    words: SizeWords = POLYMORPHIC


@dataclass(frozen=True)
class RowWise:
    """Function of a batch, written as jax.vmap of a function of one row.

    Attributes:
      code: the code of the function.
      trace: traces it, as in TracedFunction.
      is_same: runs both functions at random numbers, and returns whether the results are equal;
        False if the arguments are too large for that.
    """

    code: str
    trace: Callable[[SizeAssumptions, jax_export.SymbolicScope], jax.stages.Traced]
    is_same: Callable[[], bool]


@dataclass(frozen=True)
class TracedFunction:
    """Function that can be traced repeatedly, with open sizes or at concrete sizes.

    Attributes:
      name: the name, for messages.
      variables: the dimension variables.
      trace: traces it under assumptions on the sizes, in JAX's scope of them; raises JAX's errors.
      trace_at: traces it at concrete sizes; called if an error alone does not show the problem.
      example: the sizes of the variables in the actual arguments, as far as they are known.
      source: the place of its definition, for errors without a line.
      words: the names of the caller's arguments, for errors.
      is_gradient: whether it is the VJP of a function. Its errors are JAX's, and an error that also
        occurs at concrete sizes is not about sizes.
      row_wise: rewrites of it with jax.vmap.
    """

    name: str
    variables: frozenset[str]
    trace: Callable[[SizeAssumptions, jax_export.SymbolicScope], jax.stages.Traced]
    trace_at: Callable[[Mapping[str, int]], jax.stages.Traced]
    example: Mapping[str, int]
    source: str | None = None
    words: SizeWords = POLYMORPHIC
    is_gradient: bool = False
    row_wise: tuple[RowWise, ...] = ()
