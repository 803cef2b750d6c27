"""Tries on numbers that padding changes no result, before a function with buckets is saved."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf

from jax2tf_bridge.errors import Argument, Message, UnsoundBucketsError
from jax2tf_bridge.portable import (
    DRAWS,
    FULL_DRAWS,
    Aval,
    Draw,
    PlausibleInputs,
)
from jax2tf_bridge.saving.buckets._buckets import Bucketing, values_text
from jax2tf_bridge.saving.buckets._padding import NamedCall, pad_inputs, run_padded, slice_result
from jax2tf_bridge.saving.buckets.trials._differences import (
    OTHER_PROGRAM,
    SAME_PROGRAM,
    Difference,
    difference,
    is_finite,
    says_something,
)
from jax2tf_bridge.saving.buckets.trials._remedies import pad_text, remedy
from jax2tf_bridge.saving.buckets.trials._sizes import TrialSizes
from shape_poly import variables_of

_MOST_KEPT = 2**26
"""Bytes of results that are kept while a function is tried."""

_BESIDE_DRAWS: tuple[Draw, ...] = ("full", "negative", "prefix", "short")
"""Of what kind the other rows are beside those of `DRAWS`: numbers of other signs, for one."""

Step: TypeAlias = Callable[[], None]
"""Called after each part of a trial."""


@dataclass(frozen=True)
class Trial:
    """Findings of a trial that are no errors.

    Attributes:
      any_padding: whether anything may stand beyond a sequence.
      notes: for people: where padding comes out as infinity or NaN. That touches no result, and
        makes the gradients with respect to weights NaN.
    """

    any_padding: bool
    notes: tuple[str, ...] = ()


def trial_steps(bucketing: Bucketing) -> int:
    """Counts how often `check_rows` calls its `step`."""
    return 3 + sum(kind == "split" for kind in bucketing.oversize.values())


def check_rows(
    call: NamedCall,
    bucketing: Bucketing,
    *,
    sizes: Mapping[str, int] | None = None,
    example: Mapping[str, Any] | None = None,
    step: Step = lambda: None,
    seed: int = 0,
) -> Trial:
    """Raises if what a bucket holds beside what is real changes the results.

    Sizes below a bucket are run as they are, and padded with what will really stand there, and the
    results compared. Rows, beside which TensorFlow Serving puts those of others, are run beside
    other rows, in one program, unless a mask tells the function which are real. Where larger sizes
    are to be split, a whole is compared with its pieces. All this happens at small sizes, with two
    programs. Then each larger bucket runs once, and must give no NaN or infinity that the small
    sizes do not give. Inputs are drawn as requests could have them (`PlausibleInputs`).

    Args:
      call: as `bucketed` takes it, with the weights that are to be saved.
      bucketing: of the signature.
      sizes: of variables without buckets, where the usual ones will not do.
      example: values of inputs, where drawn ones will not do.
      step: called `trial_steps(bucketing)` times, as the trial goes on.
      seed: of the random inputs.

    Raises:
      UnsoundBucketsError: with the output, the size, the bucket and the largest difference.
      ShapeError: no sizes satisfy the constraints.
      tf.errors.OpError: the function cannot run here.
    """
    others = dict(sizes or {})
    trial = _Trial(
        _remembered(call), bucketing, TrialSizes(bucketing, others), dict(example or {}), seed
    )
    if trial.silent_outputs():
        sizes_of_user = TrialSizes(bucketing, others, small=False)
        trial = dataclasses.replace(trial, sizes=sizes_of_user)
    trial.padding()
    step()
    trial.rows()
    step()
    for variable, kind in bucketing.oversize.items():
        if kind == "split":
            trial.pieces(variable)
            step()
    trial.larger_buckets()
    step()
    return Trial(trial.takes_any_padding(), trial.notes())


def _remembered(call: NamedCall) -> NamedCall:
    """Makes a function that runs once for the same numbers: some are compared with several others.

    Results are kept up to `_MOST_KEPT`; beyond it functions run as often as they are called.
    """
    kept: dict[Hashable, Mapping[str, Any]] = {}
    room = _MOST_KEPT

    def run(tensors: Mapping[str, Any]) -> Mapping[str, Any]:
        nonlocal room
        key = tuple((name, tuple(x.shape), _digest(x)) for name, x in tensors.items())
        if key in kept:
            return kept[key]
        results = call(tensors)
        needed = sum(x.shape.num_elements() * x.dtype.size for x in results.values())
        if needed <= room:
            room -= needed
            kept[key] = results
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
    seed: int

    @functools.cached_property
    def plausible(self) -> PlausibleInputs:
        bucketing = self.bucketing
        return PlausibleInputs(
            bucketing.given(),
            bucketing.sequences,
            bucketing.batch,
            bucketing.pad_values,
            self.example,
        )

    def silent_outputs(self) -> list[str]:
        """Lists the outputs in which padding could change nothing, at the sizes tried."""
        full, below = self.sizes.all({}), self.sizes.below()
        values = {**full, **below}
        if not below:
            return []
        if not self.sizes.allows(values):
            values = full
        silent = list(self.bucketing.outputs)
        for tensors in self._inputs(values, DRAWS):
            results = run_padded(self.call, self.bucketing, tensors, values, values)
            silent = [name for name in silent if not says_something(results[name])]
            if not silent:
                break
        return silent

    def padding(self) -> None:
        """Pads all variables at once; if that changes something, each alone, to say which."""
        full, below = self.sizes.all({}), self.sizes.below()
        if below and self.sizes.allows({**full, **below}):
            error = self._padding_error(below)
            if error is None:
                return
            if len(below) > 1:
                for variable, size in below.items():
                    alone = self._padding_error({variable: size})
                    if alone is not None:
                        raise alone
            raise error
        for variable, size in below.items():
            error = self._padding_error({variable: size})
            if error is not None:
                raise error

    def rows(self) -> None:
        """Puts other rows beside rows, and anything behind sequences that run at no other size."""
        batch = self.bucketing.batch
        for variable in self.sizes.checked():
            size = self.sizes.size_below(variable)
            if self.bucketing.is_masked(variable) or not (variable == batch or size is None):
                continue
            bucket = self.sizes.bucket(variable)
            # A size that the function does not take by itself may be padded to one that it takes.
            usual = max(1, bucket * 2 // 3)
            for each in dict.fromkeys((usual if size is None else size, usual)):
                found = self._beside_others({variable: each})
                if found is not None:
                    raise found.error(
                        self.bucketing,
                        {variable: each},
                        {variable: bucket},
                        f"what stands beyond {variable} = {each} in "
                        f"{self.sizes.bucket_text(variable)} changes",
                        remedy(
                            self.bucketing, self.plausible, [variable], beside=variable == batch
                        ),
                    )

    def takes_any_padding(self) -> bool:
        """Checks that anything may stand beyond all sequences."""
        checked, sequences = self.sizes.checked(), self.bucketing.sequences
        if (
            self.bucketing.batch is None
            or self.bucketing.masks
            or not set(sequences) <= set(checked)
        ):
            return False
        below = {v: max(1, self.sizes.bucket(v) * 2 // 3) for v in sequences}
        return not below or self._beside_others(below) is None

    def pieces(self, variable: str) -> None:
        """Compares a whole with its pieces."""
        bucket = self.sizes.bucket(variable)
        if bucket == 1:
            self._compare_in_pieces(variable, self.sizes.valid(variable, range(2, 1024)), 1)
            return
        below = self.sizes.size_below(variable)
        self._compare_in_pieces(
            variable, bucket, max(1, bucket * 2 // 3) if below is None else below
        )

    def larger_buckets(self) -> None:
        """Raises if a bucket gives NaN or infinity, and the small sizes of the trial do not.

        Small sizes do not reach the limits of a function, such as the rows of a table of positions.
        """
        buckets = list(self.sizes.larger_buckets())
        if not buckets:
            return
        small = self.sizes.all({})
        finite = self._finite_outputs(small, small, self.bucketing.outputs)
        for least, full in buckets:
            for sizes in (least, full):
                bad = finite - self._finite_outputs(sizes, full, finite)
                if bad:
                    alone = self._finite_outputs(sizes, sizes, bad)
                    raise self._not_finite_error(min(bad), sizes, full, bad <= alone)

    def _finite_outputs(
        self, values: Mapping[str, int], targets: Mapping[str, int], names: Iterable[str]
    ) -> set[str]:
        """Returns the outputs without NaN and infinity at some sizes, padded to others."""
        (tensors,) = self._inputs(values, ("full",))
        results = run_padded(self.call, self.bucketing, tensors, values, targets)
        return {name for name in names if is_finite(results[name])}

    def _not_finite_error(
        self, output: str, sizes: Mapping[str, int], full: Mapping[str, int], is_padding: bool
    ) -> UnsoundBucketsError:
        trial = self.sizes.all({})
        variables = [v for v in self.bucketing.sizes if full[v] > trial[v]]
        for variable in variables if len(variables) > 1 else ():
            alone, target = ({**trial, variable: s[variable]} for s in (sizes, full))
            if self.sizes.allows(target) and not self._finite_outputs(alone, target, [output]):
                variables = [variable]
                break
        size, bucket, small = ({v: values[v] for v in variables} for values in (sizes, full, trial))
        if is_padding:
            problem = (
                f"padding {values_text(size)} to the bucket {values_text(bucket)} makes the output "
                f"{output!r} infinite or NaN; without padding it is finite"
            )
        else:
            problem = (
                f"the output {output!r} is infinite or NaN at {values_text(size)}, in the bucket "
                f"{values_text(bucket)}; at {values_text(small)} it is finite"
            )
        names = " and ".join(variables)
        return UnsoundBucketsError(
            Message(
                f"{self.bucketing.name}: {problem}. A table with fewer rows than the bucket, as of "
                f"learned positions, does that: let the largest bucket of {names} be its length. "
                "If it is right for all your requests, vouch for it: ",
                Argument("unchecked_padding", variables),
                ".",
            ),
            output=output,
            sizes=size,
            bucket=bucket,
            difference=float("nan"),
        )

    def notes(self) -> tuple[str, ...]:
        """Warns of outputs that are infinite or NaN for padding, where they are finite without."""
        found: dict[str, list[str]] = {}
        for variable in self.sizes.checked():
            output = self._not_finite(variable)
            if output is not None:
                found.setdefault(output, []).append(variable)
        return tuple(
            Message(
                f"{self.bucketing.name}: the output {output!r} is not finite where "
                f"{' or '.join(names)} is padded "
                f"({pad_text(self.bucketing, self.plausible, names)}). No result is changed by "
                "it, but gradients with respect to weights are NaN for sizes that are no bucket. "
                "To train the saved model, divide by jnp.maximum(count, 1) there, or pad with "
                "other numbers (",
                Argument("pad_values"),
                ").",
            )
            for output, names in found.items()
        )

    def _not_finite(self, variable: str) -> str | None:
        """Finds an output that padding along a variable makes infinite or NaN."""
        full = self.sizes.all({})
        values = {**full, variable: max(1, self.sizes.bucket(variable) * 2 // 3)}
        real = next(self._inputs(full, ("prefix",)))
        padded = self.call(pad_inputs(self.bucketing, self._part(real, values), values, full))
        without = run_padded(self.call, self.bucketing, real, full, full)
        for name in self.bucketing.outputs:
            if is_finite(without[name]) and not is_finite(padded[name]):
                return name
        return None

    def _padding_error(self, smaller: Mapping[str, int]) -> UnsoundBucketsError | None:
        full = self.sizes.all({})
        values = {**full, **smaller}
        for tensors in self._inputs(values, DRAWS):
            whole = run_padded(self.call, self.bucketing, tensors, values, values)
            padded = run_padded(self.call, self.bucketing, tensors, values, full)
            found = self._worst(whole, padded, OTHER_PROGRAM)
            if found is not None:
                bucket = {variable: full[variable] for variable in smaller}
                target = "the bucket " if self.sizes.are_buckets(bucket) else ""
                return found.error(
                    self.bucketing,
                    smaller,
                    bucket,
                    f"padding {values_text(smaller)} to {target}{values_text(bucket)} changes",
                    remedy(self.bucketing, self.plausible, list(smaller)),
                )
        return None

    def _beside_others(self, smaller: Mapping[str, int]) -> Difference | None:
        """Compares results with those for other numbers beyond these sizes, in one program."""
        full = self.sizes.all({})
        values = {**full, **smaller}
        # The others' rows are drawn anew, and those of examples come in another order.
        along = {v: int(size) for v, size in smaller.items()}
        for tensors, others in zip(
            self._inputs(values, DRAWS),
            self._inputs(full, _BESIDE_DRAWS, seed=1, moved=along),
            strict=True,
        ):
            filled = {name: _beside(tensors[name], others[name]) for name in tensors}
            # A mask says that rows of others are real, and that what is behind a sequence is not.
            real = {v: size for v, size in values.items() if v != self.bucketing.batch}
            beside = run_padded(self.call, self.bucketing, filled, {**full, **real}, full)
            alone = run_padded(self.call, self.bucketing, tensors, values, full)
            found = self._worst(self._cut(beside, values), alone, SAME_PROGRAM)
            if found is not None:
                return found
        return None

    def _compare_in_pieces(self, variable: str, size: int, first: int) -> None:
        """Compares a whole of some size with its first part, and the rest."""
        full = self.sizes.all({variable: size})
        bucket = {**full, variable: self.sizes.bucket(variable)}
        # With buckets of 1 the whole was compiled for another size than the pieces.
        allowed = SAME_PROGRAM if size == bucket[variable] else OTHER_PROGRAM
        for tensors in self._inputs(full, FULL_DRAWS):
            whole = run_padded(self.call, self.bucketing, tensors, full, full)
            for start, stop in ((0, first), (first, min(size, first + bucket[variable]))):
                values = {**full, variable: stop - start}
                part = self._part(tensors, values, {variable: start})
                piece = run_padded(self.call, self.bucketing, part, values, bucket)
                found = self._worst(self._cut(whole, values, {variable: start}), piece, allowed)
                if found is None:
                    continue
                raise found.error(
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

    def _inputs(
        self,
        values: Mapping[str, int],
        draws: Iterable[Draw],
        *,
        seed: int = 0,
        moved: Mapping[str, int] | None = None,
    ) -> Iterator[dict[str, Any]]:
        """Yields tensors for all inputs, of each kind of draw."""
        plausible = self.plausible
        if moved:
            given = self.bucketing.given()
            examples = {n: _others(given[n], x, moved) for n, x in self.example.items()}
            plausible = dataclasses.replace(plausible, examples=examples)
        rng = np.random.default_rng((self.seed, seed))
        for draw in draws:
            arrays = plausible.draw(draw, values, rng)
            yield {
                name: tf.cast(tf.constant(arrays[name]), tf.as_dtype(aval.op_dtype))
                for name, aval in plausible.avals.items()
            }

    def _part(
        self,
        tensors: Mapping[str, Any],
        values: Mapping[str, int],
        start: Mapping[str, int] | None = None,
    ) -> dict[str, Any]:
        return {
            name: _cut(self.bucketing, aval, tensors[name], values, start)
            for name, aval in self.bucketing.given().items()
        }

    def _cut(
        self,
        results: Mapping[str, Any],
        values: Mapping[str, int],
        start: Mapping[str, int] | None = None,
    ) -> dict[str, Any]:
        return {
            name: _cut(self.bucketing, aval, results[name], values, start)
            for name, aval in self.bucketing.outputs.items()
        }

    def _worst(
        self, expected: Mapping[str, Any], got: Mapping[str, Any], allowed: Mapping[str, float]
    ) -> Difference | None:
        """Finds the output that differs most, of those that differ by more than is allowed."""
        found = (
            difference(name, aval.op_dtype, expected[name], got[name], allowed)
            for name, aval in self.bucketing.outputs.items()
        )
        return max(filter(None, found), key=lambda d: d.ratio, default=None)


def _others(aval: Aval, example: Any, moved: Mapping[str, int]) -> Any:
    """Draws values like an example's: rows in another order, and numbers but 0 and 1 scaled."""
    array = np.asarray(example)
    for axis, dimension in enumerate(aval.op_shape):
        for variable in variables_of(dimension) & set(moved):
            array = np.roll(array, -(moved[variable] % array.shape[axis]) - 1, axis)
    is_flags = array.dtype.kind not in "fc" or bool(np.isin(array, (0, 1)).all())
    return array if is_flags else (array * 1.5).astype(array.dtype)


def _beside(tensor: Any, others: Any) -> Any:
    """Extends a tensor to the others' shape, with the others' numbers beyond it."""
    array = np.array(others.numpy())  # a scalar is a number for numpy()
    array[tuple(slice(size) for size in tensor.shape)] = tensor.numpy()
    return tf.constant(array)


def _cut(
    bucketing: Bucketing,
    aval: Aval,
    tensor: Any,
    values: Mapping[str, int],
    start: Mapping[str, int] | None,
) -> Any:
    """Cuts a tensor from `start` of a variable, as long as `values` say."""
    if start and aval.op_shape:  # tf.slice takes no scalars
        (variable,) = start
        begin = [start[variable] if str(d) == variable else 0 for d in aval.op_shape]
        tensor = tf.slice(tensor, begin, [-1] * len(begin))
    return slice_result(bucketing, aval, tensor, values)
