"""The texts of the errors about sizes that tracing cannot do without."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from jax2tf_bridge.errors import InconclusiveShapeError, Message, bullet_list
from jax2tf_bridge.from_jax import _jax_compat
from jax2tf_bridge.from_jax.shapes._knowledge import Requirement
from jax2tf_bridge.from_jax.shapes._size_words import SizeWords
from shape_poly import Comparison, Dim, SymbolicScope, evaluate_shape


class _ForJaxToo(InconclusiveShapeError, _jax_compat.InconclusiveDimensionOperation):
    """Caught by those who expect JAX's error, too."""


_ForJaxToo.__name__ = _ForJaxToo.__qualname__ = InconclusiveShapeError.__name__


def requirements_error(
    name: str,
    call: str,
    requirements: Sequence[Requirement],
    *,
    given: Sequence[str],
    words: SizeWords,
) -> InconclusiveShapeError:
    """Tracing would succeed under requirements that the user has not granted.

    Args:
      name: the function's.
      call: how the user called the bridge, up to the constraints.
      requirements: what is missing.
      given: the constraints that the user gave.
      words: how the user writes them.
    """
    first = requirements[0]
    weakest, counterexample = first.comparison, first.counterexample
    texts = list(dict.fromkeys(str(r.comparison) for r in requirements))
    several = len(texts) > 1
    asked = f" (tracing asked for {first.question})" if first.question != weakest else ""
    more = f" All that it needs:{bullet_list(texts)}\n" if several else " "
    text = Message(
        f"{name} needs {weakest}{asked}{_place(first.source)}, which "
        f"{_failing(weakest, counterexample)}.{more}If your sizes keep to "
        f"{'these' if several else 'this'}, say so:\n",
        words.advice(call, (*given, *texts)),
        "Other sizes are then refused when the function is called.",
    )
    return _ForJaxToo(
        text,
        comparison=str(first.question),
        counterexample=counterexample or None,
        requirements=texts,
        source=first.source,
    )


def never_holds_error(
    name: str,
    comparison: Comparison,
    counterexample: Mapping[str, int],
    scope: SymbolicScope,
    source: str | None,
    cause: Exception | None,
) -> InconclusiveShapeError:
    """Sizes that should fit each other never do; `cause` is what JAX said, if it did."""
    under = f" under {scope}" if scope.constraints else ""
    error = _ForJaxToo(
        f"The shapes in {name} do not fit each other{_place(source)}: {comparison} never "
        f"holds{under}; {_compared(comparison, counterexample)}. No constraint on the sizes can "
        f"help: change the function or the shapes of its arguments.{_says(cause)}",
        comparison=str(comparison),
        counterexample=counterexample,
        source=source,
    )
    error.__cause__ = cause
    return error


def not_convinced_error(
    name: str, comparison: Comparison, source: str | None, cause: Exception, words: SizeWords
) -> InconclusiveShapeError:
    """JAX does not follow, though it was told."""
    error = _ForJaxToo(
        Message(
            f"{name} needs to know whether {comparison}{_place(source)}, and JAX does not see it "
            "even when it is told. Write the shapes there in another way, or give one of the "
            "sizes in ",
            words.shapes,
            f" as a number.{_says(cause)}",
        ),
        comparison=str(comparison),
        source=source,
    )
    error.__cause__ = cause
    return error


def needs_a_number_error(
    name: str,
    variables: frozenset[str],
    passed: Sequence[Mapping[str, int]],
    source: str | None,
    cause: Exception,
    words: SizeWords,
) -> InconclusiveShapeError:
    """A size is used as a number of Python: the function works at each size, but not at all."""
    names = ", ".join(sorted(variables))
    examples = " and ".join(map(_sizes, passed))
    error = _ForJaxToo(
        Message(
            f"{name} needs a size as a number of Python while it is traced{_place(source)}. It "
            f"can be traced for {examples}, but not with {names} open. Give that size as a number "
            "in ",
            words.shapes,
            ", or compute with it by jax.numpy or jax.lax instead of range, int, math, numpy or "
            f"iteration.{_says(cause)}",
        ),
        comparison=names,
        counterexample=passed[-1] if passed else None,
        source=source,
    )
    error.__cause__ = cause
    return error


def some_sizes_fail_error(
    name: str,
    passes: Mapping[str, int],
    fails: Mapping[str, int],
    concrete: Exception,
    source: str | None,
    cause: Exception,
    words: SizeWords,
) -> InconclusiveShapeError:
    """The function only works at some sizes, and what they have in common is not known."""
    error = _ForJaxToo(
        Message(
            f"{name} does not work for all sizes{_place(source)}: it does for {_sizes(passes)}, "
            f"but for {_sizes(fails)} it fails with {type(concrete).__name__}: "
            f"{first_line(concrete)}\nState in ",
            words.constraints,
            " what holds for your sizes, or give some of them in ",
            words.shapes,
            f" as numbers.{_says(cause)}",
        ),
        comparison="",
        counterexample=fails,
        source=source,
    )
    error.__cause__ = cause
    return error


def only_one_size_error(
    name: str,
    requirements: Sequence[str],
    sizes: Mapping[str, int],
    source: str | None,
    words: SizeWords,
) -> InconclusiveShapeError:
    """What is required leaves no size open."""
    return _ForJaxToo(
        Message(
            f"{name} needs {', '.join(requirements)}{_place(source)}, which leaves nothing open: "
            f"it works for {_sizes(sizes)} alone. Write "
            f"{'this number' if len(sizes) == 1 else 'these numbers'} in ",
            words.shapes,
            ", or change the function.",
        ),
        comparison=requirements[0],
        counterexample={variable: size + 1 for variable, size in sizes.items()},
        source=source,
    )


def fails_at_all_sizes(
    name: str, error: Exception, sizes: Mapping[str, int], concrete: Exception
) -> str:
    """A note for an error that has nothing to do with sizes being open.

    Args:
      name: the function's.
      error: what tracing it with open sizes raised, to which the note is added.
      sizes: some at which it was tried.
      concrete: what it raised there; the note says so where it is another error.
    """
    said = first_line(error)
    for variable, size in sizes.items():
        said = re.sub(rf"\b{variable}\b", str(size), said)
    if type(concrete) is type(error) and first_line(concrete) in (first_line(error), said):
        return (
            f"{name} fails for every size that was tried, {_sizes(sizes)} among them, so that no "
            "constraint can help."
        )
    return (
        f"{name} fails for every size that was tried, so that no constraint can help. For "
        f"{_sizes(sizes)}, {type(concrete).__name__}: {first_line(concrete)}"
    )


def too_many_rounds_error(name: str, rounds: int, words: SizeWords) -> InconclusiveShapeError:
    """The questions did not end."""
    return _ForJaxToo(
        Message(
            f"{name} was traced {rounds} times, and JAX still has questions about its sizes. Give "
            "some of the sizes in ",
            words.shapes,
            " as numbers, or state what holds for them in ",
            words.constraints,
            ".",
        ),
        comparison="",
    )


def _place(source: str | None) -> str:
    return f" at {source}" if source else ""


def _failing(comparison: Comparison, counterexample: Mapping[str, int]) -> str:
    if not counterexample:
        return "could not be proven"
    return f"does not hold for all sizes: {_compared(comparison, counterexample)}"


def _compared(comparison: Comparison, values: Mapping[str, int]) -> str:
    """For instance: for b = 3 it compares 4 with 3."""
    where = _sizes(values)
    left, right = evaluate_shape((comparison.left, comparison.right), values)
    if left is None or right is None:
        return f"for {where} it divides by zero"
    sides = zip((comparison.left, comparison.right), (left, right), strict=True)
    shown = [_is(side, value) for side, value in sides if str(side) != str(value)]
    is_shown = " and ".join(s for s in shown if s) or f"it is {left} and {right}"
    return f"for {where}, {is_shown}" if shown and any(shown) else f"for instance {where}"


def _is(side: Dim, value: int) -> str:
    # A variable alone has just been said.
    simple = isinstance(side, int) or str(side) in side.variables()
    return "" if simple else f"{side} is {value}"


def _sizes(values: Mapping[str, int]) -> str:
    return ", ".join(f"{name} = {value}" for name, value in sorted(values.items()))


def _says(error: Exception | None) -> str:
    return f" JAX says: {first_line(error)}" if error is not None else ""


def first_line(error: Exception) -> str:
    """The first line of an error's text."""
    return str(error).strip().split("\n", 1)[0]
