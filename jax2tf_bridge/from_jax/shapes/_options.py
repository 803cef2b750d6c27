"""The caller's options for open sizes, and their names in messages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from jax2tf_bridge._utils import did_you_mean
from jax2tf_bridge.errors import Argument, Message, ShapeError
from jax2tf_bridge.portable import AUTO, Auto, PolyConstraints
from shape_poly import ContradictionError, SymbolicScope


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


def make_size_options(
    constraints: PolyConstraints, *, call: str, words: SizeWords = POLYMORPHIC
) -> SizeOptions:
    """Checks the user's constraints; messages use `call`, the start of the user's call.

    Raises:
      ShapeError: the constraints are not texts, cannot be parsed, or contradict each other.
    """
    entries = (constraints,) if isinstance(constraints, Auto) else constraints
    if isinstance(entries, str) or not (
        isinstance(entries, Sequence) and all(isinstance(c, str | Auto) for c in entries)
    ):
        hint = _advise_auto([entries]) if isinstance(entries, str) else None
        raise ShapeError(
            Message(
                "polymorphic_constraints must be a sequence of strings, as ['b >= 2'], or AUTO. "
                f"Got: {constraints!r}",
                hint or "",
            )
        )
    texts = tuple(c for c in entries if isinstance(c, str))
    try:
        scope = SymbolicScope(texts)
    except ContradictionError as e:
        raise ShapeError(Message(CONSTRAINTS, f": {e}")) from e
    except ValueError as e:
        written = Argument(CONSTRAINTS.name, list(texts))
        raise ShapeError(
            Message(written, " cannot be read", _advise_auto(texts) or f": {e}")
        ) from e
    return SizeOptions(texts, scope, infer=len(texts) < len(entries), call=call, words=words)


def _advise_auto(constraints: Sequence[str]) -> Message | None:
    """Returns the advice to pass AUTO if one of the constraints seems to mean that."""
    if any(did_you_mean(c.strip().lower(), ["auto", "infer"]) for c in constraints):
        return Message(
            ". To let the bridge add the constraints, pass ", NAMED_AUTO_CONSTRAINTS, "."
        )
    return None
