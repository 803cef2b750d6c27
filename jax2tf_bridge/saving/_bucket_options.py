"""Options of `save` for buckets, and their application to the signatures of a SavedModel."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeAlias

from jax2tf_bridge._utils import did_you_mean, progress_bar
from jax2tf_bridge.errors import Argument, Message, SavingError, ShapeError
from jax2tf_bridge.portable import Aval
from jax2tf_bridge.saving.buckets import (
    BUCKETS,
    Bucketing,
    Inputs,
    NamedCall,
    Oversize,
    PieceGradients,
    Step,
    check_buckets,
    check_inputs,
    check_rows,
    check_variables,
    choose_buckets,
    choose_tolerance,
    count_trial_steps,
    find_change,
    is_plain,
    make_bucketing,
    pad_to_buckets,
    randomize_degenerate_weights,
)
from jax2tf_bridge.saving.serving import (
    check_example,
    make_example_arguments,
    make_example_rows,
)
from jax2tf_bridge.saving.signatures import Endpoint, PaddedCall
from jax2tf_bridge.signatures import SignatureInputs, avals_of

Buckets: TypeAlias = Mapping[str, Sequence[int]]
"""Sizes to compile a model for, by dimension variable, as `{"b": [1, 8, 32]}`."""
ExpectedSizes: TypeAlias = Mapping[str, Iterable[int]] | Iterable[int]
"""Sizes of requests, with repetitions, by dimension variable or of the only one."""


@dataclass(frozen=True)
class BucketOptions:
    """Options of `save` for buckets, for all signatures.

    Attributes:
      buckets: the buckets by dimension variable.
      oversize: the treatment of larger sizes, by variable or for all, as for `make_bucketing`.
      expected_sizes: the sizes of requests by variable, or a list for the only variable; buckets
        are chosen from them.
    """

    buckets: Buckets | None = None
    oversize: Oversize | Mapping[str, Oversize] | None = None
    expected_sizes: ExpectedSizes | None = None

    @cached_property
    def chosen(self) -> Mapping[str, Sequence[int]] | tuple[int, ...]:
        """Buckets by variable, or the buckets of the only variable.

        Cached, because the expected sizes may be many, and may come from an iterator.

        Raises:
          ShapeError, SavingError: the options contradict each other, or a size is invalid.
        """
        buckets, expected = self.buckets, self.expected_sizes
        if buckets is None:
            if isinstance(expected, Mapping):
                return {variable: choose_buckets(sizes) for variable, sizes in expected.items()}
            return {} if expected is None else choose_buckets(expected)
        if expected is not None:
            raise SavingError(
                "save got both buckets and expected_sizes, from which it would choose buckets. "
                "Leave out one of them."
            )
        if not isinstance(buckets, Mapping):
            raise ShapeError(
                f"buckets={buckets!r}: expected a mapping, as {{'b': [1, 8, 32]}}. To have buckets "
                "chosen, pass expected_sizes=[...], the sizes of requests, and no buckets."
            )
        return buckets


def add_buckets(
    endpoints: Sequence[Endpoint],
    options: BucketOptions,
    *,
    before_trials: Callable[[], None],
) -> list[Endpoint]:
    """Pads the endpoints that have buckets, and tries whether padding changes a result.

    Calls `before_trials` before the first trial, if there is one.

    Raises:
      ShapeError: the buckets do not fit a signature, or no signature has their variable.
      UnsoundBucketsError: padding would change results.
      SavingError: options contradict each other, such as a mask without buckets.
    """
    common = _get_common_buckets([e.signature_inputs() for e in endpoints], options)
    bucketings = [
        _make_endpoint_bucketing(endpoint, common, options.oversize) for endpoint in endpoints
    ]
    if any(bucketing is not None for bucketing in bucketings):
        before_trials()
    steps = sum(count_trial_steps(bucketing) for bucketing in bucketings if bucketing is not None)
    with progress_bar("trying buckets", steps, "trial") as advance:
        return [
            endpoint if bucketing is None else _pad_and_try(endpoint, bucketing, lambda: advance(1))
            for endpoint, bucketing in zip(endpoints, bucketings, strict=True)
        ]


def check_bucket_options(signatures: Sequence[SignatureInputs], options: BucketOptions) -> None:
    """Checks options for buckets: they fit the inputs, and no option lacks buckets.

    While AUTO has not found the variables, options that name variables are not checked.

    Raises:
      ShapeError, DTypeError, SavingError: an option is wrong; the message suggests a correction.
    """
    are_decided = all(each.is_decided for each in signatures)
    common = _get_common_buckets(signatures, options)
    if are_decided and common is not None:
        inputs = {
            f"{each.name}.{name}" if len(signatures) > 1 else name: aval
            for each in signatures
            for name, aval in each.inputs.items()
        }
        check_variables("save", common, inputs)
    names = [_check_signature(each, common, options.oversize) for each in signatures]
    if are_decided:
        _check_oversize(options.oversize, list(itertools.chain(*names)))


def _check_signature(
    inputs: SignatureInputs,
    common: Mapping[str, Sequence[int]] | None,
    oversize: Oversize | Mapping[str, Oversize] | None,
) -> list[str]:
    """Checks the options of a signature, and lists its variables with buckets."""
    name, padding = inputs.name, inputs.signature.padding
    before = inputs.signature.processing.inputs
    check_inputs(name, inputs.inputs, inputs.masks, padding.pad_values, before)
    if padding.buckets is not None:
        check_buckets(name, padding.buckets)
    buckets = _get_buckets(inputs, common)
    if buckets is None or not inputs.is_decided:
        return []
    if not buckets:
        for option, value in (
            ("mask", padding.mask),
            ("pad_values", dict(padding.pad_values)),
            ("unchecked_padding", padding.unchecked_padding),
        ):
            if value:
                raise SavingError(
                    Message(
                        f"The signature {name} has ",
                        Argument(option, value),
                        " but no buckets; the option is for padded inputs. Give save ",
                        BUCKETS,
                        ", or leave it out.",
                    )
                )
        return []
    _make_bucketing(inputs, {}, (), buckets, oversize)
    return list(buckets)


def _get_buckets(
    inputs: SignatureInputs, common: Mapping[str, Sequence[int]] | None
) -> Mapping[str, Sequence[int]] | None:
    """Returns the buckets of a signature: its own, or the common ones for its variables.

    Returns None while the common buckets are not known.
    """
    buckets = inputs.signature.padding.buckets
    if buckets is not None or common is None:
        return buckets
    return {v: sizes for v, sizes in common.items() if v in inputs.variables}


def _make_endpoint_bucketing(
    endpoint: Endpoint,
    common: Mapping[str, Sequence[int]] | None,
    oversize: Oversize | Mapping[str, Oversize] | None,
) -> Bucketing | None:
    inputs, portable = endpoint.signature_inputs(), endpoint.portable
    buckets = _get_buckets(inputs, common)
    if not buckets:
        return None
    constraints = (*portable.constraints, *portable.requirements)
    outputs = avals_of(endpoint.function.results)
    return _make_bucketing(inputs, outputs, constraints, buckets, oversize)


def _make_bucketing(
    inputs: SignatureInputs,
    outputs: Mapping[str, Aval],
    constraints: Iterable[str],
    buckets: Mapping[str, Sequence[int]],
    oversize: Oversize | Mapping[str, Oversize] | None,
) -> Bucketing:
    """Makes the buckets of a signature; before an export without outputs and constraints."""
    padding = inputs.signature.padding
    return make_bucketing(
        inputs.name,
        inputs.inputs,
        outputs,
        buckets,
        oversize=oversize,
        mask=padding.mask,
        constraints=constraints,
        pad_values=padding.pad_values,
        unchecked=padding.unchecked_padding,
        has_preprocess=inputs.signature.processing.preprocess is not None,
    )


def _check_oversize(
    oversize: Oversize | Mapping[str, Oversize] | None, names: Collection[str]
) -> None:
    if oversize is None:
        return
    if not names:
        raise SavingError(
            Message(
                Argument("oversize", oversize),
                " is for sizes above the largest bucket, and no signature has buckets. Give save ",
                BUCKETS,
                ", or leave it out.",
            )
        )
    for variable in oversize if isinstance(oversize, Mapping) else ():
        if variable not in names:
            near = did_you_mean(str(variable), dict.fromkeys(names), quoted=True)
            problem = f" names {variable!r}, which has no buckets{near}"
            raise SavingError(Message(Argument("oversize"), problem))


def _pad_and_try(endpoint: Endpoint, bucketing: Bucketing, step: Step) -> Endpoint:
    function = endpoint.function
    gradients = PieceGradients(function.gradient_problem)
    pull = function.pull if function.can_pull else None
    call = pad_to_buckets(function.call, bucketing, function.read_held, gradients, pull)
    padded = PaddedCall(bucketing, call, gradients)
    endpoint = replace(endpoint, padded=padded)
    example = _example_inputs(endpoint, bucketing)
    tolerance = choose_tolerance(endpoint.portable)
    with randomize_degenerate_weights(function.weights):
        held = function.read_held()  # read once, not for each of about twenty calls

        def call_bucket(tensors: Mapping[str, Any]) -> Mapping[str, Any]:
            return function.call(Inputs(tensors, held))

        trial = check_rows(call_bucket, bucketing, example=example, tolerance=tolerance, step=step)
        if endpoint.signature.processing.preprocess is not None:
            _check_rows_of_example(endpoint, bucketing, call_bucket, tolerance)
    tried = replace(bucketing, any_padding=trial.any_padding)
    return replace(endpoint, padded=replace(padded, bucketing=tried, notes=trial.notes))


_READS_PADDING = (
    "preprocess pads the rows of a request to one size, and the function takes this padding for "
    "real. Return a mask of what is real from preprocess, as an argument of the function. (A mask "
    "that the buckets fill marks the padding of the buckets only.)"
)


def _check_rows_of_example(
    endpoint: Endpoint,
    bucketing: Bucketing,
    call_bucket: NamedCall,
    tolerance: Mapping[str, float],
) -> None:
    """Raises if a row of the examples has another result alone than beside other rows.

    The trial of buckets cannot see this, because it does not run preprocess, which may pad as well.

    Raises:
      UnsoundBucketsError: the result of a row differs.
      SavingError: preprocess fails on the examples.
    """
    if bucketing.batch is None or not bucketing.sequences:
        return
    rows = make_example_rows(endpoint)
    if not rows:
        return
    call = pad_to_buckets(lambda inputs: call_bucket(inputs.named), bucketing)
    together, *alone = map(call, rows)
    for row, results in enumerate(alone):
        for name, aval in bucketing.outputs.items():
            if not aval.op_shape or not is_plain(aval.op_shape[0], bucketing.batch):
                continue
            expected = results[name]
            sizes = (slice(row, row + 1), *(slice(size) for size in expected.shape[1:]))
            change = find_change(name, aval.op_dtype, expected, together[name][sizes], tolerance)
            if change is not None:
                what = f"running row {row} of the example beside the other rows changes"
                raise change.error(bucketing, {}, {}, what, _READS_PADDING)


def _example_inputs(endpoint: Endpoint, bucketing: Bucketing) -> Mapping[str, Any]:
    """Returns the user's example as arguments of the function, for the trial of buckets."""
    if endpoint.signature.processing.preprocess is not None:
        return make_example_arguments(endpoint)
    example = endpoint.example()
    check_example(bucketing, example)
    return example


def _get_common_buckets(
    signatures: Sequence[SignatureInputs], options: BucketOptions
) -> Mapping[str, Sequence[int]] | None:
    """Returns the buckets for all signatures; None while AUTO has not found their variable."""
    chosen = options.chosen
    if isinstance(chosen, Mapping):
        return chosen
    if not all(each.is_decided for each in signatures):
        return None
    variables = sorted({variable for each in signatures for variable in each.variables})
    if len(variables) != 1:
        raise SavingError(
            f"expected_sizes is one list, and the signatures have {len(variables)} dimension "
            f"variables ({', '.join(variables) or 'none'}): give a mapping of lists by variable."
        )
    return {variables[0]: chosen}
