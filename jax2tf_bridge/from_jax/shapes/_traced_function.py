"""TracedFunction, which inference traces and messages name, and the options of an export."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import jax
from jax import export as jax_export

from jax2tf_bridge.errors import Argument, Message
from jax2tf_bridge.from_jax.shapes._assumptions import SizeAssumptions
from jax2tf_bridge.portable import AUTO, DisabledSafetyCheck, is_vouched
from jax2tf_bridge.targets import Target
from shape_poly import SymbolicScope


@dataclass(frozen=True)
class SizeWords:
    """Words by which the caller writes sizes that stay open, and constraints on them.

    Attributes:
      shapes: the argument that the sizes are written in.
      constraints: the argument that the constraints are written in.
      keyword: the name of that argument, in code.
      scopes_hold_all: whether constraints stand with the sizes alone, so that code with further
        ones has to repeat them.
      can_infer: whether AUTO is allowed in their place.
    """

    shapes: Argument
    constraints: Argument
    keyword: str
    scopes_hold_all: bool
    can_infer: bool

    def advice(self, call: str, constraints: Sequence[str]) -> Message:
        """Writes the code that states the constraints: `call` up to them, and what follows."""
        quoted = ", ".join(f'"{constraint}"' for constraint in constraints)
        code = f"{call}, {self.keyword}=[{quoted}])"
        stated = Message("    ", Argument(self.constraints.name, list(constraints), code), "\n")
        return (
            Message(stated, "or let ", AUTO_CONSTRAINTS, " add it. ") if self.can_infer else stated
        )


SHAPES = Argument("polymorphic_shapes")
CONSTRAINTS = Argument("polymorphic_constraints")
AUTO_CONSTRAINTS = Argument("polymorphic_constraints", AUTO, "polymorphic_constraints=AUTO")
AUTO_SHAPES = Argument("polymorphic_shapes", AUTO, "AUTO")
_IMPORTED_AUTO = "AUTO (from jax2tf_bridge import AUTO), which is not a string"
NAMED_AUTO_SHAPES = Argument("polymorphic_shapes", AUTO, _IMPORTED_AUTO)
NAMED_AUTO_CONSTRAINTS = Argument("polymorphic_constraints", AUTO, _IMPORTED_AUTO)
"""Parts of messages."""

POLYMORPHIC = SizeWords(
    shapes=SHAPES,
    constraints=CONSTRAINTS,
    keyword="polymorphic_constraints",
    scopes_hold_all=False,
    can_infer=True,
)
"""Those of jax2tf, which `convert`, `export` and `save` have."""

SYMBOLIC = SizeWords(
    shapes=Argument("symbolic_shape"),
    constraints=Argument("constraints", code="symbolic_shape(..., constraints=[...])"),
    keyword="constraints",
    scopes_hold_all=True,
    can_infer=False,
)
"""Those of jax.export."""


@dataclass(frozen=True)
class RowWise:
    """A function of a batch, written as jax.vmap of a function of one row.

    Attributes:
      code: the code that makes it.
      trace: traces it, as that of a TracedFunction.
      is_same: runs both at random numbers, and returns whether the results are equal; False for
        arguments that are too large for that.
    """

    code: str
    trace: Callable[[SizeAssumptions, jax_export.SymbolicScope], jax.stages.Traced]
    is_same: Callable[[], bool]


@dataclass(frozen=True)
class TracedFunction:
    """A function that can be traced as often as needed, with open sizes or at numbers.

    Attributes:
      name: for messages.
      variables: the dimension variables.
      trace: traces it under assumptions on their sizes, in the scope of JAX's that knows them;
        raises what JAX raises.
      trace_at: traces it with numbers in the place of its dimension variables; called where an
        error alone does not tell what is wrong.
      example: sizes at which it should work, as far as they are known.
      source: where it was defined, for errors that name no line of it.
      words: how its user writes sizes and constraints, for errors.
      is_gradient: whether it is the VJP of a function. Errors there are JAX's, and one that is the
        same at numbers is not about sizes.
      row_wise: other forms of it, by jax.vmap.
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


@dataclass(frozen=True)
class ExportOptions:
    """Validated options of an export, without the function and its arguments.

    Attributes:
      platforms: the requested platforms; None for all that work.
      constraints: the user's constraints on the dimension variables; `scope` holds them.
      infer: whether requirements may be added to the constraints.
      call: start of the user's call, up to the constraints, for messages.
      words: the user's notation for sizes and constraints, for messages.
      runtime_checks: "drop" to leave out runtime checks, else None.
    """

    platforms: tuple[str, ...] | None
    disabled_checks: tuple[DisabledSafetyCheck, ...]
    target: Target
    constraints: tuple[str, ...]
    scope: SymbolicScope
    infer: bool
    call: str
    words: SizeWords = POLYMORPHIC
    runtime_checks: str | None = None

    @property
    def without_debug_effects(self) -> bool:
        """Returns whether debugging calls are left out."""
        return DisabledSafetyCheck.debug_effects() in self.disabled_checks

    def allows_custom_call(self, call: str, platforms: Sequence[str]) -> bool:
        """Returns whether the target can run a custom call, or the user vouches for it."""
        return call in self.target.custom_calls(platforms) or is_vouched(call, self.disabled_checks)
