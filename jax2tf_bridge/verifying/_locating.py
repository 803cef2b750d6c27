"""Finds the first line of a function whose value a model computes differently.

A model has no record of the values that its tensors stand for, and converters of runtimes reorder,
merge and rename operations. So values are matched by their numbers: a value of the function is
confirmed if a tensor of the model has the same numbers for the same inputs. The search goes back
from the differing outputs, through values that are not confirmed, to the first of them.
"""

from __future__ import annotations

import itertools
import linecache
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from jax2tf_bridge._dtypes import find_kind
from jax2tf_bridge.comparing import measure_distance, tolerance_of, widen_array

_STRUCTURAL = frozenset(
    {
        *("broadcast_in_dim", "reshape", "squeeze", "expand_dims", "transpose", "rev"),
        *("convert_element_type", "copy", "copy_p", "stop_gradient", "slice", "iota"),
        *("optimization_barrier", "random_wrap", "random_unwrap"),
    }
)
"""JAX's primitives that only move numbers. Converters often fold them into other operations."""

_MOVES = (
    *("transpose", "slice", "stridedslice", "reverse", "gather", "tile", "expand", "broadcast"),
    *("batchtospace", "spacetobatch", "depthtospace", "spacetodepth", "reshape", "cast", "convert"),
)
"""Beginnings of the names of operations of the runtimes that only move numbers."""

_MAX_AXES = 5
"""Maximum number of axes whose orders are tried."""

_ROUNDING = 1e-9
"""Bound of the rounding of sums of float64, relative to the sum."""

_MIN_INFORMATION = 3
"""Minimum number of different numbers of a value that no unrelated tensor equals by chance."""


@dataclass(frozen=True)
class Step:
    """An operation that computes values of a trace.

    Attributes:
      operation: its kind: JAX's primitive, or the runtime's name of the operation.
      name: the user's line, such as "model.py:12 (predict)", or the name of the model's node.
      operands: the numbers of the values that it takes.
      results: the numbers of the values that it returns.
      trace_body: computes the values of the first iteration of a loop, or of the chosen branch;
        None for other operations, and where this is not possible.
    """

    operation: str
    name: str | None
    operands: tuple[int, ...]
    results: tuple[int, ...]
    trace_body: Callable[[], Trace | None] | None = None


@dataclass
class Trace:
    """All values that a function or a model computes for one set of inputs.

    Attributes:
      values: the arrays by number; None for values that cannot be read.
      steps: the operations, in an order in which each follows those that it needs.
      outputs: the numbers of the results.
      constants: the numbers of the constants.
    """

    values: list[Any] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    outputs: list[int] = field(default_factory=list)
    constants: set[int] = field(default_factory=set)

    def add(self, value: Any) -> int:
        """Adds a value, and returns its number."""
        self.values.append(value)
        return len(self.values) - 1


@dataclass(frozen=True)
class Location:
    """The first line whose value differs.

    Attributes:
      line: the user's line, such as "model.py:12 (predict)"; None if JAX has no record of it.
      operation: JAX's primitive.
      tensor: the tensor of the model that has the differing value; None if the model has no tensor
        of this size there.
      index: the index of the largest difference.
      expected: the number at this index in JAX.
      actual: the number at this index in the model; None without `tensor`.
    """

    line: str | None
    operation: str
    tensor: str | None
    index: tuple[int, ...]
    expected: Any
    actual: Any

    def as_json(self) -> dict[str, Any]:
        """Returns the field `location` of `jax2tf-bridge verify --json`."""
        return {
            "line": self.line,
            "operation": self.operation,
            "tensor": self.tensor,
            "index": list(self.index),
            "jax": _as_json_number(self.expected),
            "model": _as_json_number(self.actual),
        }

    def format_lines(self, runtime: str) -> Iterator[str]:
        """Yields the lines of the report."""
        yield f"first line that differs: {self.line or 'unknown'}"
        file, _, rest = (self.line or "").rpartition(" (")[0].rpartition(":")
        text = linecache.getline(file, int(rest)).strip() if rest.isdigit() else ""
        if text:
            yield f"    {text}"
        if self.tensor is None:
            yield f"{self.operation}: the model has no tensor of this size there"
            return
        place = f" at {list(self.index)}" if self.index else ""
        yield f"{self.operation}{place}: {self.expected:.6g} in JAX, {self.actual:.6g} in {runtime}"
        yield f"(its tensor there: {self.tensor})"


def _as_json_number(number: Any) -> Any:
    """Returns a number that JSON has; complex and non-finite numbers become text."""
    if isinstance(number, complex) or (isinstance(number, float) and not math.isfinite(number)):
        return str(number)
    return number


def locate(function: Trace, model: Trace, tolerance: float | None = None) -> Location | None:
    """Finds the first operation of the function whose value differs in the model.

    Args:
      function: the values of the function.
      model: the values of the model, for the same inputs, with the same outputs in the same order.
      tolerance: the tolerance of floats; None for the default of each dtype.

    Returns:
      The location; None if no output differs.
    """
    return _Search(function, model, tolerance).find()


class _Numbers:
    """An array, with sums by which arrays that differ are told apart quickly."""

    def __init__(self, array: Any) -> None:
        self.array = np.asarray(array)
        # A model may hold narrow floats in float32, and bools as numbers.
        self._flat = widen_array(self.array).reshape(-1)
        finite = np.abs(self._flat[np.isfinite(self._flat)])
        self._sum, self._max = float(finite.sum()), float(finite.max(initial=0.0))

    def may_equal(self, actual: _Numbers, allowed: float) -> bool:
        """Returns whether the numbers may be equal in some order."""
        slack = 2 * allowed * self._max + _ROUNDING * self._sum
        if not abs(self._max - actual._max) <= slack:
            return False
        return bool(abs(self._sum - actual._sum) <= slack * self._flat.size)

    def equals(self, actual: _Numbers, allowed: float) -> bool:
        """Returns whether the numbers are equal in their order, up to a tolerance."""
        return measure_distance(self._flat, actual._flat).relative() <= allowed

    def equals_transposed(self, actual: _Numbers, allowed: float) -> bool:
        """Returns whether the arrays are equal but for the order of their axes."""
        expected, squeezed = np.squeeze(self.array), np.squeeze(actual.array)
        if sorted(expected.shape) != sorted(squeezed.shape) or not 2 <= expected.ndim <= _MAX_AXES:
            return False
        if measure_distance(np.sort(self._flat), np.sort(actual._flat)).relative() > allowed:
            return False
        wide, actual_wide = widen_array(expected), widen_array(squeezed)
        return any(
            measure_distance(np.transpose(wide, axes), actual_wide).relative() <= allowed
            for axes in itertools.permutations(range(wide.ndim))
            if tuple(wide.shape[axis] for axis in axes) == actual_wide.shape
        )


class _Search:
    """Search of one function and model.

    A tensor explains a value if both have the same numbers, in the same order or with other axes
    first, because converters move transpositions. A moved transposition and a wrong one look alike.
    So a transposition counts as wrong only if the model moves numbers from a tensor that equals the
    operand to a tensor that equals no value.
    """

    def __init__(self, function: Trace, model: Trace, tolerance: float | None) -> None:
        self._function, self._model, self._tolerance = function, model, tolerance
        self._producers = {v: s for s in function.steps for v in s.results}
        self._model_producers = {v: s for s in model.steps for v in s.results}
        self._function_constants = self._find_constants()
        # The tensors that equal each value, exactly and up to the order of axes.
        self._exact: dict[int, set[int]] = {}
        self._similar: dict[int, set[int]] = {}
        self._match_values()
        self._exactly_explained = {t for tensors in self._exact.values() for t in tensors}
        self._explained = {t for tensors in self._similar.values() for t in tensors}

    def find(self) -> Location | None:
        pairs = [
            (value, tensor)
            for value, tensor in zip(self._function.outputs, self._model.outputs, strict=True)
            if not self._is_equal(self._function.values[value], self._model.values[tensor])
        ]
        if not pairs:
            return None
        return self._find([value for value, _ in pairs], [tensor for _, tensor in pairs])

    def _find(self, outputs: Sequence[int], wrong: Sequence[int]) -> Location | None:
        """Finds the line from the outputs that differ, and their tensors."""
        needed = self._find_needed(outputs)
        # Values of one or two numbers, such as masks, may equal a tensor by chance. They are taken
        # for equal unless only operations that move numbers are left.
        suspects = self._find_suspects(needed, set(outputs), min_information=1)
        if self._moves_only(suspects):
            suspects = self._find_suspects(needed, set(outputs), min_information=_MIN_INFORMATION)
        tensors = self._find_unexplained(wrong, self._explained)
        moved_tensors = self._find_unexplained(wrong, self._exactly_explained)
        first = fallback = None
        for step in self._function.steps:
            if needed.isdisjoint(step.results):
                continue
            if step.operation in _STRUCTURAL:
                if self._is_moved_wrongly(step, moved_tensors):
                    first = step
            elif self._is_computed_wrongly(step, tensors):
                first = step
            elif not suspects.isdisjoint(step.results):
                fallback = fallback or step
                if self._is_differing(step, suspects):
                    first = step
            if first is not None:
                break
        # An output that only moves numbers.
        first = first or fallback or self._producers.get(outputs[0])
        if first is None:
            return None
        inner = None if first.trace_body is None else self._find_inside(first.trace_body, tensors)
        return inner or self._make_location(first, tensors or moved_tensors)

    def _find_inside(
        self, trace_body: Callable[[], Trace | None], tensors: Iterable[int]
    ) -> Location | None:
        """Finds the line inside a loop or branch, if its first iteration shows the difference."""
        loops = {id(s): s for s in map(self._model_producers.__getitem__, tensors) if s.trace_body}
        function = trace_body() if loops else None
        if function is None:
            return None
        for loop in loops.values():
            model = loop.trace_body() if loop.trace_body is not None else None
            if model is not None:
                location = _Search(function, model, self._tolerance).find_in_body()
                if location is not None:
                    return location
        return None

    def find_in_body(self) -> Location | None:
        """Finds the line in a body, whose results are not those of the model's body."""
        outputs = [v for v in self._function.outputs if v not in self._similar]
        tensors = [t for t in self._model.outputs if t not in self._explained]
        return self._find(outputs, tensors) if outputs and tensors else None

    def _is_differing(self, step: Step, suspects: set[int]) -> bool:
        if self._function_constants.issuperset(step.results):
            return False  # converters compute it; its consumer then has a wrong operand
        # A value that a tensor equals may have too few numbers to be confirmed.
        return any(v in suspects and v not in self._similar for v in step.results)

    def _find_constants(self) -> set[int]:
        """Returns the results that depend on no value from outside of the function."""
        constants = set(self._function.constants)
        for step in self._function.steps:
            if constants.issuperset(step.operands):
                constants.update(step.results)
        return constants

    def _match_values(self) -> None:
        by_size: dict[tuple[int, str], list[int]] = {}
        tensors = {n: _Numbers(v) for n, v in enumerate(self._model.values) if v is not None}
        for number, tensor in tensors.items():
            by_size.setdefault(_get_size_key(tensor.array), []).append(number)
        for number, array in enumerate(self._function.values):
            if array is None:
                continue
            value, allowed = _Numbers(array), self._find_tolerance(array)
            candidates = [
                t
                for t in by_size.get(_get_size_key(array), ())
                if value.may_equal(tensors[t], allowed)
            ]
            exact = {t for t in candidates if value.equals(tensors[t], allowed)}
            similar = {
                t
                for t in candidates
                if t not in exact and value.equals_transposed(tensors[t], allowed)
            }
            if exact:
                self._exact[number] = exact
            if exact or similar:
                self._similar[number] = exact | similar

    def _find_tolerance(self, expected: Any) -> float:
        allowed = tolerance_of(str(expected.dtype))
        return self._tolerance if self._tolerance is not None and allowed else allowed

    def _is_equal(self, expected: Any, actual: Any) -> bool:
        if expected is None or actual is None or expected.size != actual.size:
            return False
        return _Numbers(expected).equals(_Numbers(actual), self._find_tolerance(expected))

    def _find_needed(self, outputs: Iterable[int]) -> set[int]:
        """Returns the values that the outputs depend on."""
        needed = set(outputs)
        for step in reversed(self._function.steps):
            if not needed.isdisjoint(step.results):
                needed.update(step.operands)
        return needed

    def _moves_only(self, values: Iterable[int]) -> bool:
        return all(self._producers[v].operation in _STRUCTURAL for v in values)

    def _find_suspects(
        self, needed: set[int], wrong: set[int], *, min_information: int
    ) -> set[int]:
        """Returns the values that are not confirmed, and on which the wrong outputs depend.

        A value is confirmed by a tensor that equals it, by an operand with the same numbers, or by
        a confirmed value that needs it.
        """
        confirmed = self._find_moved()
        for step in reversed(self._function.steps):
            known = [
                v
                for v in step.results
                if v in confirmed or self._is_confirmed(v, wrong, min_information)
            ]
            confirmed.update(known)
            if known and len(known) == len(step.results):
                confirmed.update(step.operands)
        suspects: set[int] = set()
        pending = list(wrong)
        while pending:
            value = pending.pop()
            if value in suspects or value in confirmed or value not in self._producers:
                continue
            suspects.add(value)
            pending += self._producers[value].operands
        return suspects & needed

    def _is_confirmed(self, value: int, wrong: set[int], min_information: int) -> bool:
        if value in wrong or value not in self._similar:
            return False
        return _count_numbers(self._function.values[value]) >= min_information

    def _find_moved(self) -> set[int]:
        """Returns the values with the numbers of an equal operand, in another shape or dtype."""
        values, moved = self._function.values, set[int]()
        for step in self._function.steps:
            if step.operation not in _STRUCTURAL or not step.operands:
                continue
            source, result = step.operands[0], step.results[0]
            if source not in moved and source not in self._exact:
                continue
            before, after = values[source], values[result]
            if before is not None and after is not None and before.size == after.size:
                pair = (widen_array(before).reshape(-1), widen_array(after).reshape(-1))
                if np.array_equal(*pair, equal_nan=True):
                    moved.add(result)
        return moved

    def _find_unexplained(self, outputs: Sequence[int], explained: set[int]) -> list[int]:
        """Returns the tensors that equal no value, and on which the outputs depend, in order."""
        unexplained: set[int] = set()
        pending = list(outputs)
        while pending:
            tensor = pending.pop()
            step = self._model_producers.get(tensor)
            is_explained = tensor in explained and tensor not in outputs
            if tensor in unexplained or step is None or is_explained:
                continue
            unexplained.add(tensor)
            pending += step.operands
        return [t for step in self._model.steps for t in step.results if t in unexplained]

    def _is_moved_wrongly(self, step: Step, tensors: Iterable[int]) -> bool:
        """Returns whether a tensor has the moved numbers of the operand, in a wrong order."""
        if any(v in self._exact for v in step.results):
            return False
        sizes = {_get_size_key(self._function.values[v]) for v in step.results}
        sources = {t for v in step.operands for t in self._exact.get(v, ())}
        for tensor in tensors:
            value, operands = self._model.values[tensor], self._model_producers[tensor].operands
            is_moved = self._moves(tensor) and bool(operands) and operands[0] in sources
            if is_moved and value is not None and _get_size_key(value) in sizes:
                return True
        return False

    def _is_computed_wrongly(self, step: Step, tensors: Iterable[int]) -> bool:
        """Returns whether the model computes another result from the operands of a step.

        Later values do not tell: a normalization, for example, removes some errors.
        """
        if not self._lacks_tensor(step):
            return False
        sizes = {_get_size_key(self._function.values[v]) for v in step.results}
        operands = [self._list_sources(v) for v in step.operands]
        variable = [
            sources
            for v, sources in zip(step.operands, operands, strict=True)
            if v not in self._function_constants
        ]
        known = {t for sources in operands for t in sources}
        if not known:
            return False
        for tensor in tensors:
            value = self._model.values[tensor]
            if value is None or _get_size_key(value) not in sizes:
                continue
            inputs = set(self._model_producers[tensor].operands)
            unknown = [t for t in inputs - known if not _is_index(self._model.values[t])]
            if not unknown and all(inputs & sources for sources in variable or operands):
                return True
        return False

    def _lacks_tensor(self, step: Step) -> bool:
        """Returns whether the model has no tensor for a result, or one for several results."""
        for value in step.results:
            tensors = self._similar.get(value)
            if tensors is None:
                return True
            # A result that equals an operand, such as that of a maximum without effect.
            if any(tensors <= self._similar.get(v, set()) for v in step.operands):
                return True
            computed = [t for t in tensors if t in self._model_producers and not self._moves(t)]
            equals = [
                v
                for v, others in self._similar.items()
                if others == tensors
                and v in self._producers
                and self._producers[v].operation == step.operation
            ]
            if len(computed) < len(equals):
                return True
        return False

    def _moves(self, tensor: int) -> bool:
        kind = self._model_producers[tensor].operation.replace("_", "").lower()
        return kind.startswith(_MOVES)

    def _list_sources(self, value: int) -> set[int]:
        """Returns the tensors of a value, and of the values that it has its numbers from."""
        tensors = set(self._similar.get(value, ()))
        step = self._producers.get(value)
        while step is not None and step.operation in _STRUCTURAL and step.operands:
            tensors.update(self._similar.get(step.operands[0], ()))
            step = self._producers.get(step.operands[0])
        return tensors

    def _make_location(self, step: Step, tensors: Sequence[int]) -> Location:
        result = next((v for v in step.results if v not in self._exact), step.results[0])
        expected = self._function.values[result]
        tensor = self._choose_tensor(step, expected, tensors)
        if tensor is None:
            return Location(step.name, step.operation, None, (), None, None)
        actual = _align(np.asarray(self._model.values[tensor]), expected)
        index = measure_distance(widen_array(expected), widen_array(actual)).index
        return Location(
            step.name,
            step.operation,
            self._model_producers[tensor].name,
            index,
            expected[index].item(),
            actual[index].item(),
        )

    def _choose_tensor(self, step: Step, expected: Any, tensors: Sequence[int]) -> int | None:
        """Returns the first tensor of the value's size, one computed from the operands if any."""
        sources = {t for v in step.operands for t in self._similar.get(v, ())}
        candidates = [
            t
            for t in tensors
            if self._model.values[t] is not None
            and _get_size_key(self._model.values[t]) == _get_size_key(expected)
        ]
        from_operands = [
            t for t in candidates if not sources.isdisjoint(self._model_producers[t].operands)
        ]
        return next(iter([*from_operands, *candidates]), None)


def _align(actual: Any, expected: Any) -> Any:
    """Returns an array in the shape and order of axes in which it is closest to another."""
    squeezed = np.squeeze(expected)
    orders = [actual.reshape(expected.shape)]
    if squeezed.ndim <= _MAX_AXES and sorted(np.squeeze(actual).shape) == sorted(squeezed.shape):
        orders += [
            np.transpose(np.squeeze(actual), axes).reshape(expected.shape)
            for axes in itertools.permutations(range(squeezed.ndim))
            if tuple(np.squeeze(actual).shape[axis] for axis in axes) == squeezed.shape
        ]
    wide = widen_array(expected)
    with np.errstate(invalid="ignore", over="ignore"):
        return min(orders, key=lambda array: float(np.nansum(np.abs(widen_array(array) - wide))))


def _get_size_key(value: Any) -> tuple[int, str]:
    kind = str(find_kind(str(value.dtype)))
    return value.size, "int" if kind in ("uint", "bool") else kind


def _count_numbers(value: Any) -> int:
    return len(np.unique(widen_array(value)))


def _is_index(value: Any) -> bool:
    """Returns whether a value may be a shape, axes or an index."""
    return value is None or (value.dtype.kind in "iu" and value.ndim <= 1)
