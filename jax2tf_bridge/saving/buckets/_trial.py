"""Runs a function with buckets on numbers before it is saved: padding must change no result."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf

from jax2tf_bridge._dtypes import NARROW_FLOATS
from jax2tf_bridge.comparing import DRAWS, FULL_DRAWS, Draw, PlausibleInputs
from jax2tf_bridge.errors import Argument, Message, UnsoundBucketsError
from jax2tf_bridge.portable import Aval
from jax2tf_bridge.saving.buckets._buckets import Bucketing, format_values
from jax2tf_bridge.saving.buckets._padding import NamedCall, pad_inputs, run_padded, slice_result
from jax2tf_bridge.saving.buckets._result_changes import (
    NARROW_PROGRAM_TOLERANCE,
    SAME_PROGRAM_TOLERANCE,
    ResultChange,
    find_change,
    format_pad_values,
    format_remedy,
    has_nonzero,
    is_finite,
)
from jax2tf_bridge.saving.buckets._sizes import TrialSizes
from shape_poly import variables_of

_MAX_CACHED_BYTES = 2**26
"""Maximum size of the results that one trial caches, in bytes."""

_NEIGHBOR_DRAWS: tuple[Draw, ...] = ("full", "negative", "prefix", "short")
"""Draws of the neighboring rows, one for each of `DRAWS`, such as numbers of the other sign."""

_WEIGHT_SCALE = 0.1
"""Standard deviation of the numbers that replace degenerate weights."""

Step: TypeAlias = Callable[[], None]
"""Function that is called after each part of a trial."""


@dataclass(frozen=True)
class TrialReport:
    """Findings of a trial that are not errors.

    Attributes:
      any_padding: whether sequences may be padded with any values.
      notes: warnings for people about outputs that padding makes infinite or NaN. No result
        changes, but gradients with respect to weights become NaN.
    """

    any_padding: bool
    notes: tuple[str, ...] = ()


def count_trial_steps(bucketing: Bucketing) -> int:
    """Counts how often `check_rows` calls its `step`."""
    return 3 + sum(kind == "split" for kind in bucketing.oversize.values())


def check_rows(
    call: NamedCall,
    bucketing: Bucketing,
    *,
    example: Mapping[str, Any] | None = None,
    tolerance: Mapping[str, float] = NARROW_PROGRAM_TOLERANCE,
    step: Step = lambda: None,
) -> TrialReport:
    """Raises if the padding of a bucket changes the results.

    Compares results at sizes below a bucket without padding and with the padding of the bucket.
    TensorFlow Serving batches rows with rows of other requests, so rows also run beside other
    rows, in one program, unless a mask marks the real ones. If larger sizes are split, compares a
    whole with its pieces. All this takes small sizes and two programs. Then each larger bucket runs
    once; its results must be finite if those of the small sizes are. The inputs are drawn to
    resemble requests (`PlausibleInputs`).

    Args:
      call: the function at the sizes of its buckets, with the weights to be saved.
      bucketing: the buckets of the signature.
      example: values of inputs, in place of the drawn ones.
      tolerance: the tolerance for results of different programs, from `choose_tolerance`.
      step: called `count_trial_steps(bucketing)` times, as the trial goes on.

    Raises:
      UnsoundBucketsError: a result changes. The error has the output, the size, the bucket and the
        largest difference.
      ShapeError: no sizes satisfy the constraints.
      tf.errors.OpError: the function cannot run here.
    """
    sizes = TrialSizes(bucketing)
    trial = _Trial(_cache_results(call), bucketing, sizes, dict(example or {}), tolerance)
    if trial.has_silent_outputs():
        trial = dataclasses.replace(trial, sizes=TrialSizes(bucketing, is_small=False))
    trial.check_padding()
    step()
    trial.check_row_independence()
    step()
    for variable, kind in bucketing.oversize.items():
        if kind == "split":
            trial.check_pieces(variable)
            step()
    trial.check_larger_buckets()
    step()
    return TrialReport(trial.allows_any_padding(), trial.list_notes())


def _cache_results(call: NamedCall) -> NamedCall:
    """Caches up to `_MAX_CACHED_BYTES` of results, since some are compared several times."""
    cache: dict[Hashable, Mapping[str, Any]] = {}
    room = _MAX_CACHED_BYTES

    def run(tensors: Mapping[str, Any]) -> Mapping[str, Any]:
        nonlocal room
        key = tuple((name, tuple(x.shape), _digest(x)) for name, x in tensors.items())
        if key in cache:
            return cache[key]
        results = call(tensors)
        result_bytes = sum(x.shape.num_elements() * x.dtype.size for x in results.values())
        if result_bytes <= room:
            room -= result_bytes
            cache[key] = results
        return results

    return run


def _digest(tensor: Any) -> bytes:
    return hashlib.blake2b(tensor.numpy().tobytes()).digest()


@dataclass(frozen=True)
class _Trial:
    call: NamedCall
    bucketing: Bucketing
    sizes: TrialSizes
    example: Mapping[str, Any]
    tolerance: Mapping[str, float]

    @functools.cached_property
    def plausible(self) -> PlausibleInputs:
        bucketing = self.bucketing
        return PlausibleInputs(
            bucketing.passed_inputs(),
            bucketing.sequences,
            bucketing.batch,
            bucketing.pad_values,
            self.example,
        )

    def has_silent_outputs(self) -> bool:
        """Returns whether some output is only 0, infinity or NaN, which padding does not change."""
        full, below = self.sizes.full, self.sizes.find_sizes_below()
        values = {**full, **below}
        if not below:
            return False
        if not self.sizes.satisfies_constraints(values):
            values = full
        silent = list(self.bucketing.outputs)
        for tensors in self._draw_inputs(values, DRAWS):
            results = self._run(tensors, values, values)
            silent = [name for name in silent if not has_nonzero(results[name])]
            if not silent:
                return False
        return True

    def check_padding(self) -> None:
        """Pads all variables at once; if a result changes, pads each alone to name the cause."""
        below = self.sizes.find_sizes_below()
        error = None
        if below and self.sizes.satisfies_constraints({**self.sizes.full, **below}):
            error = self._find_padding_error(below)
            if error is None:
                return
        errors = (self._find_padding_error({variable: size}) for variable, size in below.items())
        error = next(filter(None, errors), error)
        if error is not None:
            raise error

    def check_row_independence(self) -> None:
        """Raises if rows of other requests change results.

        A sequence that has only one valid size cannot be padded in a trial. It is compared as rows
        are: with other values after it.
        """
        batch = self.bucketing.batch
        for variable in self.sizes.list_checked():
            size = self.sizes.find_size_below(variable)
            if self.bucketing.is_masked(variable) or not (variable == batch or size is None):
                continue
            bucket = self.sizes.bucket(variable)
            # A size that the function does not take by itself may be padded to one that it takes.
            usual = self.sizes.get_usual_size(variable)
            for smaller in dict.fromkeys((usual if size is None else size, usual)):
                change = self._find_change_by_neighbors({variable: smaller})
                if change is None:
                    continue
                place = f"{variable} = {smaller} in {self.sizes.bucket_text(variable)}"
                raise change.error(
                    self.bucketing,
                    {variable: smaller},
                    {variable: bucket},
                    f"the content beyond {place} changes",
                    format_remedy(
                        self.bucketing, self.plausible, [variable], mixes_rows=variable == batch
                    ),
                )

    def allows_any_padding(self) -> bool:
        bucketing = self.bucketing
        are_checked = set(bucketing.sequences) <= set(self.sizes.list_checked())
        if bucketing.batch is None or bucketing.masks or not are_checked:
            return False
        below = {v: self.sizes.get_usual_size(v) for v in bucketing.sequences}
        return not below or self._find_change_by_neighbors(below) is None

    def check_pieces(self, variable: str) -> None:
        bucket = self.sizes.bucket(variable)
        if bucket == 1:
            size, first = self.sizes.find_valid(variable, range(2, 1024)), 1
        else:
            below = self.sizes.find_size_below(variable)
            size, first = bucket, below or self.sizes.get_usual_size(variable)
        self._compare_in_pieces(variable, size, first)

    def check_larger_buckets(self) -> None:
        """Raises if an output is finite at the small sizes of the trial, but not at larger buckets.

        Small sizes do not reach the limits of a function, such as the length of a position table.
        """
        buckets = list(self.sizes.iterate_larger_buckets())
        if not buckets:
            return
        small = self.sizes.full
        finite = self._find_finite_outputs(small, small, self.bucketing.outputs)
        for least, full in buckets:
            for sizes in (least, full):
                not_finite = finite - self._find_finite_outputs(sizes, full, finite)
                if not_finite:
                    unpadded = self._find_finite_outputs(sizes, sizes, not_finite)
                    is_padding = not_finite <= unpadded
                    raise self._make_not_finite_error(min(not_finite), sizes, full, is_padding)

    def _find_finite_outputs(
        self, values: Mapping[str, int], targets: Mapping[str, int], names: Iterable[str]
    ) -> set[str]:
        """Returns the outputs without NaN and infinity at `values`, padded to `targets`."""
        (tensors,) = self._draw_inputs(values, ("full",))
        results = self._run(tensors, values, targets)
        return {name for name in names if is_finite(results[name])}

    def _make_not_finite_error(
        self, output: str, sizes: Mapping[str, int], full: Mapping[str, int], is_padding: bool
    ) -> UnsoundBucketsError:
        trial = self.sizes.full
        variables = [v for v in self.bucketing.sizes if full[v] > trial[v]]
        for variable in variables if len(variables) > 1 else ():
            alone, target = ({**trial, variable: s[variable]} for s in (sizes, full))
            if self.sizes.satisfies_constraints(target) and not self._find_finite_outputs(
                alone, target, [output]
            ):
                variables = [variable]
                break
        size, bucket, small = ({v: values[v] for v in variables} for values in (sizes, full, trial))
        if is_padding:
            problem = (
                f"padding {format_values(size)} to the bucket {format_values(bucket)} makes the "
                f"output {output!r} infinite or NaN; without padding it is finite"
            )
        else:
            problem = (
                f"the output {output!r} is infinite or NaN at {format_values(size)}, in the bucket "
                f"{format_values(bucket)}; at {format_values(small)} it is finite"
            )
        names = " and ".join(variables)
        return UnsoundBucketsError(
            Message(
                f"{self.bucketing.name}: {problem}. A likely cause is a table with fewer rows than "
                "the bucket, such as learned positions: make its length the largest bucket of "
                f"{names}. If it is right for all your requests, vouch for it: ",
                Argument("unchecked_padding", variables),
                ".",
            ),
            output=output,
            sizes=size,
            bucket=bucket,
            difference=float("nan"),
        )

    def list_notes(self) -> tuple[str, ...]:
        """Warns of outputs that are infinite or NaN only with padding."""
        by_output: dict[str, list[str]] = {}
        for variable in self.sizes.list_checked():
            output = self._find_not_finite_output(variable)
            if output is not None:
                by_output.setdefault(output, []).append(variable)
        return tuple(
            Message(
                f"{self.bucketing.name}: the output {output!r} is not finite where "
                f"{' or '.join(names)} is padded "
                f"({format_pad_values(self.bucketing, self.plausible, names)}). No result changes, "
                "but gradients with respect to weights are NaN for sizes that are no bucket. "
                "To train the saved model, divide by jnp.maximum(count, 1) there, or pad with "
                "other numbers (",
                Argument("pad_values"),
                ").",
            )
            for output, names in by_output.items()
        )

    def _find_not_finite_output(self, variable: str) -> str | None:
        """Finds an output that padding along a variable makes infinite or NaN."""
        full = self.sizes.full
        values = {**full, variable: self.sizes.get_usual_size(variable)}
        real = next(self._draw_inputs(full, ("prefix",)))
        cut = self._cut(self.bucketing.passed_inputs(), real, values)
        padded = self.call(pad_inputs(self.bucketing, cut, values, full))
        without = self._run(real, full, full)
        for name in self.bucketing.outputs:
            if is_finite(without[name]) and not is_finite(padded[name]):
                return name
        return None

    def _find_padding_error(self, smaller: Mapping[str, int]) -> UnsoundBucketsError | None:
        full = self.sizes.full
        values = {**full, **smaller}
        for tensors in self._draw_inputs(values, DRAWS):
            whole = self._run(tensors, values, values)
            padded = self._run(tensors, values, full)
            change = self._find_largest_change(whole, padded, self.tolerance)
            if change is not None:
                bucket = {variable: full[variable] for variable in smaller}
                target = "the bucket " if self.sizes.are_buckets(bucket) else ""
                return change.error(
                    self.bucketing,
                    smaller,
                    bucket,
                    f"padding {format_values(smaller)} to {target}{format_values(bucket)} changes",
                    format_remedy(self.bucketing, self.plausible, list(smaller)),
                )
        return None

    def _find_change_by_neighbors(self, smaller: Mapping[str, int]) -> ResultChange | None:
        """Compares results with those beside other numbers beyond these sizes, in one program."""
        full = self.sizes.full
        values = {**full, **smaller}
        # Neighbors are drawn separately, and rows of examples are reordered.
        for tensors, neighbors in zip(
            self._draw_inputs(values, DRAWS),
            self._draw_inputs(full, _NEIGHBOR_DRAWS, seed=1, shifts=smaller),
            strict=True,
        ):
            filled = {name: _fill_up(tensors[name], neighbors[name]) for name in tensors}
            # A mask marks rows of other requests as real, but not values after a sequence.
            real = {v: size for v, size in values.items() if v != self.bucketing.batch}
            beside = self._run(filled, {**full, **real}, full)
            alone = self._run(tensors, values, full)
            cut = self._cut(self.bucketing.outputs, beside, values)
            change = self._find_largest_change(cut, alone, SAME_PROGRAM_TOLERANCE)
            if change is not None:
                return change
        return None

    def _compare_in_pieces(self, variable: str, size: int, first: int) -> None:
        """Compares the results for a size with those for its first part and for the rest."""
        inputs, outputs = self.bucketing.passed_inputs(), self.bucketing.outputs
        full = self.sizes.complete({variable: size})
        bucket = {**full, variable: self.sizes.bucket(variable)}
        # With a bucket of 1, whole and pieces are compiled for different sizes.
        allowed = SAME_PROGRAM_TOLERANCE if size == bucket[variable] else self.tolerance
        for tensors in self._draw_inputs(full, FULL_DRAWS):
            whole = self._run(tensors, full, full)
            for start, stop in ((0, first), (first, min(size, first + bucket[variable]))):
                values = {**full, variable: stop - start}
                part = self._cut(inputs, tensors, values, {variable: start})
                piece = self._run(part, values, bucket)
                expected = self._cut(outputs, whole, values, {variable: start})
                change = self._find_largest_change(expected, piece, allowed)
                if change is None:
                    continue
                raise change.error(
                    self.bucketing,
                    {variable: size},
                    {variable: bucket[variable]},
                    f"running {variable} = {size} in pieces, as {first} and {size - first}, "
                    "changes",
                    Message(
                        "Pass ",
                        Argument("oversize", {variable: "as is"}),
                        f", so that sizes above the largest bucket of {variable} run whole.",
                    ),
                )

    def _draw_inputs(
        self,
        values: Mapping[str, int],
        draws: Iterable[Draw],
        *,
        seed: int = 0,
        shifts: Mapping[str, int] | None = None,
    ) -> Iterator[dict[str, Any]]:
        plausible = self.plausible
        if shifts:
            avals = self.bucketing.passed_inputs()
            examples = {n: _vary(avals[n], x, shifts) for n, x in self.example.items()}
            plausible = dataclasses.replace(plausible, examples=examples)
        rng = np.random.default_rng((0, seed))
        for draw in draws:
            arrays = plausible.draw(draw, values, rng)
            yield {
                name: tf.cast(tf.constant(arrays[name]), tf.as_dtype(aval.op_dtype))
                for name, aval in plausible.avals.items()
            }

    def _run(
        self, tensors: Mapping[str, Any], values: Mapping[str, int], targets: Mapping[str, int]
    ) -> dict[str, Any]:
        """Runs the function on inputs of sizes `values`, padded to `targets`."""
        return run_padded(self.call, self.bucketing, tensors, values, targets)

    def _cut(
        self,
        avals: Mapping[str, Aval],
        tensors: Mapping[str, Any],
        values: Mapping[str, int],
        starts: Mapping[str, int] | None = None,
    ) -> dict[str, Any]:
        """Cuts the part of sizes `values` from tensors, from the start of each variable."""
        parts = {}
        for name, aval in avals.items():
            tensor = tensors[name]
            if starts and aval.op_shape:  # tf.slice takes no scalars
                begin = [starts.get(str(d), 0) for d in aval.op_shape]
                tensor = tf.slice(tensor, begin, [-1] * len(begin))
            parts[name] = slice_result(self.bucketing, aval, tensor, values)
        return parts

    def _find_largest_change(
        self, expected: Mapping[str, Any], got: Mapping[str, Any], allowed: Mapping[str, float]
    ) -> ResultChange | None:
        """Finds the output that changes most; None if no change is larger than allowed."""
        changes = (
            find_change(name, aval.op_dtype, expected[name], got[name], allowed)
            for name, aval in self.bucketing.outputs.items()
        )
        return max(filter(None, changes), key=lambda change: change.ratio, default=None)


def _vary(aval: Aval, example: Any, shifts: Mapping[str, int]) -> Any:
    """Makes neighbors from an example: rolls its rows, and scales floats that are not flags."""
    array = np.asarray(example)
    for axis, dimension in enumerate(aval.op_shape):
        for variable in variables_of(dimension) & set(shifts):
            array = np.roll(array, -(shifts[variable] % array.shape[axis]) - 1, axis)
    is_flags = array.dtype.kind not in "fc" or bool(np.isin(array, (0, 1)).all())
    return array if is_flags else (array * 1.5).astype(array.dtype)


def _fill_up(tensor: Any, neighbors: Any) -> Any:
    """Extends a tensor to the shape of `neighbors`, with their numbers."""
    array = np.array(neighbors.numpy())  # a scalar is a number for numpy()
    array[tuple(slice(size) for size in tensor.shape)] = tensor.numpy()
    return tf.constant(array)


@contextlib.contextmanager
def randomize_degenerate_weights(weights: Sequence[tf.Variable]) -> Iterator[None]:
    """Replaces weights without a finite nonzero number by small random numbers, and restores them.

    A layer that is initialized to zeros returns zeros even if it mixes rows, so the trial would
    miss a fault that appears after training.
    """
    rng = np.random.default_rng(0)
    before = [(variable, variable.read_value()) for variable in weights if _is_degenerate(variable)]
    try:
        for variable, _ in before:
            numbers = rng.standard_normal(variable.shape.as_list()) * _WEIGHT_SCALE
            variable.assign(tf.cast(numbers, variable.dtype))
        yield
    finally:
        for variable, value in before:
            variable.assign(value)


def _is_degenerate(variable: Any) -> bool:
    if not (variable.dtype.is_floating or variable.dtype.is_complex):
        return False
    if variable.dtype.name in NARROW_FLOATS:  # TensorFlow has no kernels for them
        return False
    value = variable.read_value()
    finite = tf.math.is_finite(tf.math.real(value))
    return not bool(tf.reduce_any(tf.logical_and(finite, tf.math.real(value) != 0)))
