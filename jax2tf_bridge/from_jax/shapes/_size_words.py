"""How messages about sizes speak: in the words of jax2tf, or of jax.export."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jax2tf_bridge.errors import Argument, Message
from jax2tf_bridge.portable._auto import AUTO


@dataclass(frozen=True)
class SizeWords:
    """How the caller writes sizes that stay open, and what holds for them.

    Attributes:
      shapes: the argument that the sizes are written in.
      constraints: the argument that the constraints are written in.
      keyword: the name of that argument, in code.
      scopes_hold_all: whether constraints stand with the sizes alone, so that code with further
        ones has to repeat them.
      can_infer: whether "infer" may stand in their place.
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
        return Message(stated, "or let ", INFER, " add it. ") if self.can_infer else stated


SHAPES = Argument("polymorphic_shapes")
CONSTRAINTS = Argument("polymorphic_constraints")
INFER = Argument("polymorphic_constraints", "infer", 'polymorphic_constraints="infer"')
AUTO_SHAPES = Argument("polymorphic_shapes", AUTO, "AUTO")
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
