"""Errors about questions on sizes that have no answer."""

from __future__ import annotations

import linecache
import re
from collections.abc import Mapping, Sequence

from jax2tf_bridge.errors import InconclusiveShapeError, Message, format_bullets
from jax2tf_bridge.from_jax import _jax_compat
from jax2tf_bridge.from_jax._symbols import is_single_variable
from jax2tf_bridge.from_jax.shapes._assumptions import Requirement, TracedFunction
from jax2tf_bridge.from_jax.source_lines import format_place, library_line
from shape_poly import Comparison, SymbolicScope, evaluate_shape


class _JaxInconclusiveShapeError(
    InconclusiveShapeError, _jax_compat.InconclusiveDimensionOperation
):
    """InconclusiveShapeError that is also JAX's own error type."""


_JaxInconclusiveShapeError.__name__ = _JaxInconclusiveShapeError.__qualname__ = (
    InconclusiveShapeError.__name__
)


def make_requirements_error(
    function: TracedFunction, call: str, requirements: Sequence[Requirement], stated: Sequence[str]
) -> InconclusiveShapeError:
    """Makes an error for requirements of tracing that the user did not allow.

    `call` is the start of the user's call, up to the `stated` constraints.
    """
    first = requirements[0]
    weakest, counterexample = first.comparison, first.counterexample
    texts = list(dict.fromkeys(str(r.comparison) for r in requirements))
    several = len(texts) > 1
    asked = f" (tracing asked for {first.question})" if first.question != weakest else ""
    more = f" All its requirements:{format_bullets(texts)}\n" if several else " "
    return _JaxInconclusiveShapeError(
        Message(
            f"{function.name} needs {weakest}{asked}{format_place(first.source)}, which "
            f"{_describe_failure(weakest, counterexample)}.{more}If your sizes always "
            f"satisfy {'these' if several else 'this'}, add {'them' if several else 'it'}:\n",
            function.words.advice(call, (*stated, *texts)),
            "Calls with other sizes then fail.",
        ),
        comparison=str(first.question),
        counterexample=counterexample or None,
        requirements=texts,
        source=first.source,
    )


def make_never_holds_error(
    function: TracedFunction,
    comparison: Comparison,
    counterexample: Mapping[str, int],
    scope: SymbolicScope,
    source: str | None,
    cause: Exception | None = None,
) -> InconclusiveShapeError:
    """Makes an error for sizes that never match; `cause` is JAX's error, if there is one."""
    under = f" under {scope}" if scope.constraints else ""
    return _make_error(
        f"The shapes in {function.name} do not fit each other{format_place(source)}: "
        f"{comparison} never holds{under}; {_format_compared(comparison, counterexample)}. No "
        "constraint on the sizes can help: change the function or the shapes of its arguments.",
        str(comparison),
        counterexample,
        source,
        cause,
    )


def make_not_convinced_error(
    function: TracedFunction, comparison: Comparison, source: str | None, cause: Exception
) -> InconclusiveShapeError:
    """Makes an error for a comparison that JAX received as a constraint but did not use."""
    return _make_error(
        Message(
            f"{function.name} needs to know whether {comparison}{format_place(source)}, but JAX "
            f"ignores the answer. {_describe_library_line(cause)}Write the shapes there in "
            "another way, or give one of the sizes in ",
            function.words.shapes,
            " as a number.",
        ),
        str(comparison),
        None,
        source,
        cause,
    )


# Maps messages of JAX functions that need numbers to ways around them.
_OTHER_WAYS = {
    "shape polymorphism for `permutation` or `shuffle`": (
        "draw in a way that needs no number: jax.random.choice without replacement takes equal "
        "probabilities, p=jnp.full(n, 1 / n), and jnp.argsort(jax.random.uniform(key, (n,))) is "
        "a permutation"
    ),
    "'_DimExpr' object has no attribute 'astype'": (
        "give jnp.linalg.matrix_rank its rtol, as 1e-5"
    ),
}


_CALL_OF_SCAN = re.compile(r"\bscan\(")


def _suggest_way(cause: Exception, source: str | None) -> str:
    for words, way in _OTHER_WAYS.items():
        if words in str(cause):
            return way
    # JAX removes its own frames from the traceback, so the user's line shows the call.
    if _CALL_OF_SCAN.search(_read_line(source)):
        return "scan over jnp.arange(n) instead of passing length=n to lax.scan"
    return (
        "compute with it by jax.numpy or jax.lax instead of range, len, int, math, numpy or "
        "iteration"
    )


def _read_line(source: str | None) -> str:
    """Returns the text of a line such as "file.py:12 (function)"."""
    file, _, line = (source or "").partition(" (")[0].rpartition(":")
    return linecache.getline(file, int(line)) if line.isdigit() else ""


def make_needs_a_number_error(
    function: TracedFunction,
    passed: Sequence[Mapping[str, int]],
    source: str | None,
    cause: Exception,
    by_rows: str | None,
) -> InconclusiveShapeError:
    """Makes an error for a size that is used as a Python number, so it cannot be open.

    Tracing works at the sizes in `passed`. `by_rows` is code for an equivalent function that can be
    traced, if there is one.
    """
    names = ", ".join(sorted(function.variables))
    rows = (
        f" Or export {by_rows}: it can be traced with {names} open, and returns the same results "
        f"if {function.name} computes each row independently."
    )
    examples = " and ".join(map(_format_sizes, passed))
    return _make_error(
        Message(
            f"{function.name} needs a size as a Python number while it is "
            f"traced{format_place(source)}. {_describe_library_line(cause)}It can be traced for "
            f"{examples}, but not with {names} open. Give that size as a number in ",
            function.words.shapes,
            f", or {_suggest_way(cause, source)}.",
            rows if by_rows else "",
        ),
        names,
        passed[-1] if passed else None,
        source,
        cause,
    )


def make_some_sizes_fail_error(
    function: TracedFunction,
    passes: Mapping[str, int],
    fails: Mapping[str, int],
    concrete: Exception,
    source: str | None,
    cause: Exception,
) -> InconclusiveShapeError:
    """Makes an error for a function that works at some sizes only, for unknown reasons."""
    return _make_error(
        Message(
            f"{function.name} does not work for all sizes{format_place(source)}: it does for "
            f"{_format_sizes(passes)}, but for {_format_sizes(fails)} it fails with "
            f"{type(concrete).__name__}: {get_first_line(concrete)}\n"
            f"{_describe_library_line(concrete)}Constrain your sizes in ",
            function.words.constraints,
            ", or give some of them in ",
            function.words.shapes,
            " as numbers.",
        ),
        "",
        fails,
        source,
        cause,
    )


def make_only_one_size_error(
    function: TracedFunction,
    requirements: Sequence[str],
    sizes: Mapping[str, int],
    source: str | None,
) -> InconclusiveShapeError:
    """Makes an error for requirements that leave no size open."""
    return _make_error(
        Message(
            f"{function.name} needs {', '.join(requirements)}{format_place(source)}, which leaves "
            f"nothing open: it works only for {_format_sizes(sizes)}. Write "
            f"{'this number' if len(sizes) == 1 else 'these numbers'} in ",
            function.words.shapes,
            ", or change the function.",
        ),
        requirements[0],
        {variable: size + 1 for variable, size in sizes.items()},
        source,
    )


def make_too_many_rounds_error(function: TracedFunction, rounds: int) -> InconclusiveShapeError:
    """Makes an error for questions that do not end."""
    return _make_error(
        Message(
            f"JAX still has questions about the sizes of {function.name} after {rounds} "
            "rounds of answers. Give some of the sizes in ",
            function.words.shapes,
            " as numbers, or constrain them in ",
            function.words.constraints,
            ".",
        ),
    )


def _make_error(
    text: str,
    comparison: str = "",
    counterexample: Mapping[str, int] | None = None,
    source: str | None = None,
    cause: Exception | None = None,
) -> InconclusiveShapeError:
    says = f" JAX says: {get_first_line(cause)}" if cause is not None else ""
    error = _JaxInconclusiveShapeError(
        Message(text, says), comparison=comparison, counterexample=counterexample, source=source
    )
    error.__cause__ = cause
    return error


def describe_failure_at_all_sizes(
    name: str, error: Exception, sizes: Mapping[str, int], concrete: Exception
) -> str:
    """Returns a note for an error of open sizes that also occurs at concrete sizes.

    The note quotes the error at concrete sizes if it differs.
    """
    if is_same_error(error, concrete, sizes):
        return (
            f"{name} fails for every size that was tried, {_format_sizes(sizes)} among them, so no "
            "constraint can help."
        )
    return (
        f"{name} fails for every size that was tried, so no constraint can help. For "
        f"{_format_sizes(sizes)}, {type(concrete).__name__}: {get_first_line(concrete)}"
    )


def is_same_error(error: Exception, concrete: Exception, sizes: Mapping[str, int]) -> bool:
    """Returns whether errors at open and concrete sizes are equal, apart from the sizes."""
    text = written = get_first_line(error)
    for variable, size in sizes.items():
        text = re.sub(rf"\b{variable}\b", str(size), text)
    return type(concrete) is type(error) and get_first_line(concrete) in (written, text)


def _describe_library_line(cause: Exception) -> str:
    line = library_line(cause)
    return f"The library's line is {line}. " if line else ""


def _describe_failure(comparison: Comparison, counterexample: Mapping[str, int]) -> str:
    if not counterexample:
        return "could not be proven"
    return f"does not hold for all sizes: {_format_compared(comparison, counterexample)}"


def _format_compared(comparison: Comparison, values: Mapping[str, int]) -> str:
    """Formats the compared values, as "for b = 3, b + 1 is 4"."""
    where = _format_sizes(values)
    left, right = evaluate_shape((comparison.left, comparison.right), values)
    if left is None or right is None:
        return f"for {where} it divides by zero"
    sides = zip((comparison.left, comparison.right), (left, right), strict=True)
    # The value of a single variable is in the text already.
    shown = [
        f"{side} is {value}"
        for side, value in sides
        if str(side) != str(value) and not is_single_variable(side)
    ]
    text = " and ".join(shown)
    return f"for {where}, {text}" if text else f"for instance {where}"


def _format_sizes(values: Mapping[str, int]) -> str:
    return ", ".join(f"{name} = {value}" for name, value in sorted(values.items()))


def get_first_line(error: Exception) -> str:
    return str(error).strip().split("\n", 1)[0]
