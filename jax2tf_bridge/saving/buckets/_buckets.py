"""Buckets: the sizes that a served function runs at, and their checks."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias, get_args

from jax2tf_bridge._dtypes import dtype_holds, find_kind
from jax2tf_bridge._utils import as_integer, did_you_mean, format_bytes
from jax2tf_bridge.comparing import infer_batch_variable
from jax2tf_bridge.errors import Argument, Blank, DTypeError, Message, ShapeError
from jax2tf_bridge.portable import MAX_REQUEST_BYTES, Aval, count_bytes, variables_in
from jax2tf_bridge.signatures import list_masks
from shape_poly import Comparison, Dim, Plan, SymbolicScope, make_plan, shape_text, variables_of

Oversize: TypeAlias = Literal["split", "as is"]
"""Treatments of sizes above the largest bucket."""

BUCKETS = Argument("buckets", Blank("{...}"))
"""Placeholder for buckets in messages."""

_MAX_PADDING_STEPS = 64
"""Maximum number of sizes below a bucket whose padding is checked."""

_MAX_SEARCH = 1024
"""Maximum distance of a valid size that an error suggests."""


@dataclass(frozen=True)
class Bucketing:
    """Buckets and padding of one signature; made and checked by `make_bucketing`.

    Attributes:
      name: the name of the signature, for messages.
      inputs, outputs: the avals of the function by name, with the symbolic shapes of the op. The
        inputs include the masks.
      sizes: the buckets of each bucketed variable, increasing.
      oversize: the treatment of larger sizes for each bucketed variable: "split" runs pieces of the
        largest bucket and joins the results, "as is" runs (and compiles) the size itself.
      masks: the inputs that callers leave out: 1 where a row is real, 0 where it is padding.
      constraints: the constraints of the function on the variables.
      pad_values: the values with which inputs are padded, by name, where they are not 0.
      unchecked: the variables for which the user vouches that padding changes no result.
      any_padding: whether sequences may be padded with any values, not only with their pad values;
        the trial finds out.
      has_preprocess: whether a preprocess computes the inputs; it pads rows as well.
    """

    name: str
    inputs: Mapping[str, Aval]
    outputs: Mapping[str, Aval]
    sizes: Mapping[str, tuple[int, ...]]
    oversize: Mapping[str, Oversize]
    masks: tuple[str, ...] = ()
    constraints: tuple[Comparison, ...] = ()
    pad_values: Mapping[str, Any] = field(default_factory=dict)
    unchecked: tuple[str, ...] = ()
    any_padding: bool = False
    has_preprocess: bool = False
    plan: Plan = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        shapes = [aval.op_shape for aval in self.passed_inputs().values()]
        object.__setattr__(self, "plan", make_plan(shapes, None, self.constraints))

    def passed_inputs(self) -> dict[str, Aval]:
        """Returns the inputs that callers pass: all but the masks."""
        return {name: aval for name, aval in self.inputs.items() if name not in self.masks}

    @property
    def batch(self) -> str | None:
        """Bucketed variable of the rows; a batch may include rows of other requests."""
        variable = infer_batch_variable(self.passed_inputs())
        return variable if variable in self.sizes else None

    @property
    def sequences(self) -> tuple[str, ...]:
        """Other bucketed variables; only pad values follow a sequence."""
        return tuple(variable for variable in self.sizes if variable != self.batch)

    def is_masked(self, variable: str) -> bool:
        """Returns whether a mask marks what is real along this variable and no other.

        Then the function may mix positions along it. A batch must not include rows of other
        requests, because the mask would mark them as real.
        """
        return any(
            variables_in(self.inputs[mask]) & set(self.sizes) == {variable} for mask in self.masks
        )

    def choices(self) -> tuple[dict[str, int], ...]:
        """Lists all combinations of one bucket for each variable; no others are compiled."""
        return tuple(
            dict(zip(self.sizes, sizes, strict=True))
            for sizes in itertools.product(*self.sizes.values())
        )

    def largest(self) -> dict[str, int]:
        """Returns the largest bucket of each variable."""
        return {variable: sizes[-1] for variable, sizes in self.sizes.items()}

    def find_bucket(self, variable: str, size: int) -> int | None:
        """Returns the smallest bucket that holds a size; None above the largest."""
        sizes = self.sizes[variable]
        index = bisect.bisect_left(sizes, size)
        return sizes[index] if index < len(sizes) else None

    def has_bucketed_variable(self, dimension: Dim) -> bool:
        """Returns whether a dimension contains a bucketed variable."""
        return not variables_of(dimension).isdisjoint(self.sizes)


def make_bucketing(
    name: str,
    inputs: Mapping[str, Aval],
    outputs: Mapping[str, Aval],
    buckets: Mapping[str, Sequence[int]],
    *,
    oversize: Oversize | Mapping[str, Oversize] | None = None,
    mask: str | Sequence[str] | None = None,
    constraints: Iterable[str] = (),
    pad_values: Mapping[str, Any] | None = None,
    unchecked: Sequence[str] = (),
    has_preprocess: bool = False,
) -> Bucketing:
    """Checks buckets against their signature.

    Args:
      name: the name of the signature, for messages.
      inputs: the inputs of the function by name, with symbolic shapes.
      outputs: the outputs of the function by name.
      buckets: the buckets of each dimension variable, such as `{"b": (1, 8, 32)}`.
      oversize: "split" or "as is", for all variables or by name. Names of other variables are
        ignored. The default is "split" for the rows and "as is" for every other variable.
      mask: one or several inputs of a shape such as `(b,)` or `(b, 1, 1, n)`. Callers do not pass
        them; the function gets true (1) for what is real and false (0) for padding.
      constraints: the function's constraints and requirements. The buckets must satisfy them;
        smaller sizes need not.
      pad_values: the number with which each input is padded. Zero is the default, so the result
        leaves zeros out.
      unchecked: the variables whose padding is not tried.
      has_preprocess: whether a preprocess computes the inputs.

    Raises:
      ShapeError: the buckets do not fit; the message says which, why, and what would fit.
      DTypeError: the dtype of an input cannot hold its pad value.
    """
    if not isinstance(buckets, Mapping) or not buckets:
        raise ShapeError(f"{name}: buckets={buckets!r}: expected a dict, as {{'b': (1, 8, 32)}}")
    masks, pad_values = list_masks(name, mask), pad_values or {}
    check_variables(name, buckets, inputs)
    check_inputs(name, inputs, masks, pad_values)
    sizes = {v: _validate_sizes(name, v, values) for v, values in buckets.items()}
    bucketing = Bucketing(
        name,
        inputs,
        outputs,
        sizes,
        {},
        masks,
        SymbolicScope(constraints, check=False).constraints,
        pad_values,
        _check_unchecked(name, unchecked, sizes),
        has_preprocess=has_preprocess,
    )
    bucketing = replace(bucketing, oversize=_complete_oversize(bucketing, oversize))
    _check_masks(bucketing)
    _check_pad_values(bucketing)
    _check_variables_known(bucketing)
    _check_constraints(bucketing)
    _check_growth(bucketing)
    _check_bytes(bucketing)
    for variable, kind in bucketing.oversize.items():
        if kind == "split":
            _check_splittable(bucketing, variable)
    return replace(bucketing, pad_values={n: v for n, v in pad_values.items() if v != 0})


def is_plain(dimension: Dim, variable: str) -> bool:
    """Returns whether a dimension is this variable and nothing else."""
    return str(dimension) == variable


def _validate_sizes(name: str, variable: str, values: Any) -> tuple[int, ...]:
    place = Message(f"{name}: ", Argument("buckets", {variable: values}))
    # Iterators could be read only once, and for one signature.
    is_other = isinstance(values, (str, bytes, Mapping, Iterator))
    if is_other or not isinstance(values, Iterable) or getattr(values, "shape", None) == ():
        raise ShapeError(Message(place, ": expected a sequence of sizes, as (1, 8, 32)"))
    sizes = []
    for size in values:
        if (number := as_integer(size)) is None:
            raise ShapeError(Message(place, f": {size!r} is not an integer"))
        sizes.append(number)
    if not sizes:
        raise ShapeError(Message(place, ": there must be at least one bucket"))
    for size in sizes:
        if not 1 <= size < 2**31:
            hint = " Size 0 needs no bucket." if size == 0 else ""
            problem = f": {size} is not a valid bucket: buckets are from 1 to {2**31 - 1}.{hint}"
            raise ShapeError(Message(place, problem))
    for before, after in itertools.pairwise(sizes):
        if after <= before:
            increasing = Argument("buckets", {variable: tuple(sorted(set(sizes)))})
            problem = f": buckets must increase, and {after} follows {before}. Write "
            raise ShapeError(Message(place, problem, increasing, "."))
    return tuple(sizes)


def _complete_oversize(bucketing: Bucketing, oversize: Any) -> dict[str, Oversize]:
    sizes, oversize = bucketing.sizes, {} if oversize is None else oversize
    by_variable = oversize if isinstance(oversize, Mapping) else dict.fromkeys(sizes, oversize)
    for kind in by_variable.values():
        if kind not in get_args(Oversize):
            near = did_you_mean(str(kind), get_args(Oversize), quoted=True)
            problem = f"oversize={kind!r}: expected 'split' or 'as is'{near}"
            raise ShapeError(f"{bucketing.name}: {problem}")
    # Positions may depend on the whole sequence, so only the batch is cut by default.
    return {v: by_variable.get(v, "split" if v == bucketing.batch else "as is") for v in sizes}


def _check_masks(bucketing: Bucketing) -> None:
    for mask in bucketing.masks:
        place = Message(f"{bucketing.name}: ", Argument("mask", mask))
        aval = bucketing.inputs[mask]
        if not any(map(bucketing.has_bucketed_variable, aval.op_shape)):
            first = next(iter(bucketing.sizes))
            raise ShapeError(
                Message(
                    place,
                    ": a mask needs a dimension that is a variable with buckets, such as "
                    f"{shape_text([first])}. Got: {aval}",
                )
            )
        if find_kind(aval.op_dtype) == "complex":
            problem = f": the dtype of a mask must be bool or real. Got: {aval}"
            raise ShapeError(Message(place, problem))


def _check_pad_values(bucketing: Bucketing) -> None:
    for name, value in bucketing.pad_values.items():
        place = Message(f"{bucketing.name}: ", Argument("pad_values", {name: value}))
        if name in bucketing.masks:
            problem = ": a mask has no pad value; it is 1 for real elements and 0 for padding."
            raise ShapeError(Message(place, problem))
        aval = bucketing.inputs[name]
        if not any(map(bucketing.has_bucketed_variable, aval.op_shape)):
            problem = f": {aval} has no dimension with buckets, so it is never padded."
            raise ShapeError(Message(place, problem))
        # The dtype of the function, which is narrower than that of the op for 4-bit integers.
        dtype = aval.op_dtype if aval.is_key else aval.dtype
        if not dtype_holds(dtype, value):
            raise DTypeError(Message(place, f": expected one number that {dtype} holds."))


def _check_variables_known(bucketing: Bucketing) -> None:
    """Raises unless the shapes of the inputs without the masks determine the variables."""
    known = {step.variable for step in bucketing.plan.steps}
    missing = sorted(set(bucketing.sizes) - known)
    if missing:
        rest = f" other than the mask {bucketing.masks[0]!r}" if bucketing.masks else ""
        raise ShapeError(
            f"{bucketing.name}: buckets for {missing[0]!r}, which does not follow from the shape "
            f"of any input{rest}. Give some input a dimension that is {missing[0]} alone."
        )
    known |= {definition.variable for definition in bucketing.plan.definitions}
    for mask in bucketing.masks:
        unknown = sorted(variables_in(bucketing.inputs[mask]) - known)
        if unknown:
            raise ShapeError(
                Message(
                    f"{bucketing.name}: ",
                    Argument("mask", mask),
                    f": its size {unknown[0]} does not follow from the size of any other input, "
                    "so save cannot fill it.",
                )
            )


def _check_constraints(bucketing: Bucketing) -> None:
    for constraint in bucketing.constraints:
        names = sorted(constraint.variables())
        if bucketing.sizes.keys().isdisjoint(names):
            continue
        if not bucketing.sizes.keys() >= set(names):
            _check_padding_keeps(bucketing, constraint)
            continue
        for sizes in itertools.product(*(bucketing.sizes[v] for v in names)):
            values = dict(zip(names, sizes, strict=True))
            if not constraint.holds(values):
                raise ShapeError(
                    f"{bucketing.name}: the bucket {format_values(values)} violates {constraint}, "
                    f"which the function demands.{_suggest_size(bucketing, values)}"
                )


def _check_padding_keeps(bucketing: Bucketing, constraint: Comparison) -> None:
    for smaller, values in _iterate_paddings(bucketing, sorted(constraint.variables())):
        if constraint.holds(smaller) and not constraint.holds(values):
            others = " and ".join(sorted(constraint.variables() - set(bucketing.sizes)))
            raise ShapeError(
                f"{bucketing.name}: the function demands {constraint}, which holds for "
                f"{format_values(smaller)}, but not after padding to "
                f"{format_values(values)}. Give {others} buckets too."
            )


def _suggest_size(bucketing: Bucketing, values: Mapping[str, int]) -> str:
    if len(values) != 1:
        return ""
    ((variable, size),) = values.items()
    constraints = [c for c in bucketing.constraints if c.variables() == {variable}]
    for larger in range(size + 1, size + _MAX_SEARCH):
        if all(c.holds({variable: larger}) for c in constraints):
            return f" The next size that satisfies it is {larger}."
    return ""


def _check_growth(bucketing: Bucketing) -> None:
    """Raises if a dimension of an input is larger before padding than afterwards."""
    for name, aval in bucketing.inputs.items():
        for dimension in aval.op_shape:
            if not bucketing.has_bucketed_variable(dimension):
                continue
            for smaller, values in _iterate_paddings(bucketing, sorted(variables_of(dimension))):
                before, after = (dimension.evaluate(v) for v in (smaller, values))  # type: ignore[union-attr]
                if before > after or after < 0:
                    raise ShapeError(
                        f"{bucketing.name}: {name}: {aval}: the dimension {dimension} is {before} "
                        f"for {format_values(smaller)} and {after} for the bucket "
                        f"{format_values(values)}: padding cannot shrink a dimension."
                    )


def _check_bytes(bucketing: Bucketing) -> None:
    """Raises if the inputs of the largest buckets are larger than a request can be."""
    largest = {variable: sizes[-1] for variable, sizes in bucketing.sizes.items()}
    total = count_bytes(bucketing.inputs.values(), largest)
    if total > MAX_REQUEST_BYTES:
        raise ShapeError(
            f"{bucketing.name}: a request in the bucket {format_values(largest)} would have "
            f"{format_bytes(total)}, and TensorFlow takes at most "
            f"{format_bytes(MAX_REQUEST_BYTES)}. Give smaller buckets."
        )


def _iterate_paddings(
    bucketing: Bucketing, names: Sequence[str]
) -> Iterator[tuple[dict[str, int], dict[str, int]]]:
    """Yields sizes of some variables, before and after one of them is padded to its bucket."""
    for buckets in itertools.product(*(bucketing.sizes.get(n, (1, 2, 3, 8)) for n in names)):
        values = dict(zip(names, buckets, strict=True))
        for name in names:
            if name in bucketing.sizes:
                lowest = max(1, values[name] - _MAX_PADDING_STEPS)
                for size in range(lowest, values[name]):
                    yield {**values, name: size}, values


def _check_splittable(bucketing: Bucketing, variable: str) -> None:
    for kind, avals in (("input", bucketing.passed_inputs()), ("output", bucketing.outputs)):
        for name, aval in avals.items():
            affected = [d for d in aval.op_shape if variable in variables_of(d)]
            plain = [d for d in affected if is_plain(d, variable)]
            if len(affected) > 1 or plain != affected:
                raise ShapeError(
                    Message(
                        f"{bucketing.name}: sizes of {variable} above "
                        f"{bucketing.sizes[variable][-1]} cannot be split into pieces, since the "
                        f"{kind} {name} is {aval}: each input and output may have {variable} "
                        "once, alone in its dimension. Pass ",
                        Argument("oversize", {variable: "as is"}),
                        " to run such sizes as they are.",
                    )
                )


def format_values(values: Mapping[str, int]) -> str:
    """Formats sizes for a message: "b = 3, l = 8"."""
    return ", ".join(f"{variable} = {size}" for variable, size in values.items())


def check_buckets(name: str, buckets: Any) -> None:
    """Checks that buckets are a mapping.

    Raises:
      ShapeError: they are no mapping.
    """
    if not isinstance(buckets, Mapping):
        raise ShapeError(
            f"{name}: buckets={buckets!r}: expected a mapping, as {{'b': [1, 8, 32]}}. To have "
            "buckets chosen, pass save(..., expected_sizes=[...]), the sizes of requests."
        )


def check_variables(name: str, buckets: Iterable[str], inputs: Mapping[str, Aval]) -> None:
    """Checks that buckets are for dimension variables of the inputs.

    Raises:
      ShapeError: a name is no variable; the message suggests what was probably meant.
    """
    variables = sorted({v for aval in inputs.values() for v in variables_in(aval)})
    shapes = ", ".join(f"{n}: {aval}" for n, aval in inputs.items()) or "none"
    for variable in buckets:
        if variable in variables:
            continue
        if not variables:
            raise ShapeError(
                Message(
                    f"{name}: buckets are for dimension variables, and its inputs have none "
                    f"({shapes}). Export the function with ",
                    Argument("polymorphic_shapes", f"({variable}, ...)"),
                    ".",
                )
            )
        near = did_you_mean(str(variable), variables, quoted=True) or f" ({shapes})."
        problem = f" for {variable!r}, which is not a dimension variable of its inputs{near}"
        raise ShapeError(Message(f"{name}: ", Argument("buckets"), problem))


def check_inputs(
    name: str,
    inputs: Collection[str],
    masks: Sequence[str],
    pad_values: Mapping[str, Any],
    before: Collection[str] = (),
) -> None:
    """Checks that masks and pad values are for inputs of the function.

    Args:
      name: the name of the signature, for messages.
      inputs: the inputs of the function.
      masks: the masks.
      pad_values: the pad values by input.
      before: the inputs of preprocess, if there is one.

    Raises:
      ShapeError: a name is no input; the message suggests what was probably meant.
    """
    if not isinstance(pad_values, Mapping):
        raise ShapeError(f"{name}: pad_values={pad_values!r}: expected a dict, as {{'ids': 1}}")
    places = [(mask, Argument("mask", mask)) for mask in masks]
    places += [(n, Argument("pad_values", {n: value})) for n, value in pad_values.items()]
    listed = ", ".join(map(repr, inputs))
    for input_name, place in places:
        if input_name in inputs:
            continue
        if input_name in before:
            raise ShapeError(
                f"{name}: {place}: that is an input of preprocess. Name an input of the function: "
                f"{listed}"
            )
        near = did_you_mean(str(input_name), inputs, quoted=True) or f". The inputs: {listed}."
        raise ShapeError(Message(f"{name}: ", place, f": there is no such input{near}"))


def _check_unchecked(
    name: str, variables: Sequence[str], bucketed: Collection[str]
) -> tuple[str, ...]:
    """Lists the variables of unchecked_padding, each once.

    Raises:
      ShapeError: a variable has no buckets, or the option is not a list.
    """
    if isinstance(variables, str) or not isinstance(variables, Collection):
        shown = [variables if isinstance(variables, str) else "n"]
        raise ShapeError(f"{name}: unchecked_padding={variables!r}: expected a list, as {shown}")
    for variable in variables:
        if variable not in bucketed:
            near = did_you_mean(str(variable), bucketed, quoted=True)
            problem = f" names {variable!r}, which has no buckets{near}"
            raise ShapeError(Message(f"{name}: ", Argument("unchecked_padding"), problem))
    return tuple(dict.fromkeys(variables))
