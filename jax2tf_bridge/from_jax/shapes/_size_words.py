"""Words of messages about sizes: those of jax2tf, or of jax.export."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class SizeWords:
    """Words by which the caller writes sizes that stay open, and constraints on them.

    Attributes:
      shapes: where the sizes are written.
      constraints: where the constraints are written.
      keyword: the argument of the constraints, in code.
      scopes_hold_all: whether constraints stand with the sizes alone, so that code with further
        ones has to repeat them.
      can_infer: whether "infer" may stand in their place.
    """

    shapes: str
    constraints: str
    keyword: str
    scopes_hold_all: bool
    can_infer: bool

    def advice(self, call: str, constraints: Sequence[str]) -> str:
        """Writes the code that states the constraints: `call` up to them, and what follows."""
        quoted = ", ".join(f'"{constraint}"' for constraint in constraints)
        code = f"    {call}, {self.keyword}=[{quoted}])\n"
        return f'{code}or let {self.keyword}="infer" add it. ' if self.can_infer else code


POLYMORPHIC = SizeWords(
    shapes="polymorphic_shapes",
    constraints="polymorphic_constraints",
    keyword="polymorphic_constraints",
    scopes_hold_all=False,
    can_infer=True,
)
"""Those of jax2tf, which `convert`, `export` and `save` have."""

SYMBOLIC = SizeWords(
    shapes="symbolic_shape",
    constraints="symbolic_shape(..., constraints=[...])",
    keyword="constraints",
    scopes_hold_all=True,
    can_infer=False,
)
"""Those of jax.export."""
