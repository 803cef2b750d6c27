"""Patterns for operations whose operands are transposed, joined, counted, or broadcast later.

Emitters then need not look at the operations that made their operands.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence

import numpy as np

from jax2tf_bridge._dtypes import dtype_of_element
from jax2tf_bridge.bytecode import Attribute, DenseElements, Operation, TensorType, Value
from jax2tf_bridge.rewriting._patterns import BROADCASTS, Matcher, Pattern, Replacement
from jax2tf_bridge.rewriting._regions import Reducer, match_extreme_index, match_reducers

# Transposes.


def _generalize_dot(dot: Operation, matcher: Matcher) -> Operation:
    left = dot.operands[0]
    attributes = {
        **{"lhs_batching_dimensions": (), "rhs_batching_dimensions": ()},
        "lhs_contracting_dimensions": (len(left.tensor.shape) - 1,),
        "rhs_contracting_dimensions": (0,),
    }
    return dataclasses.replace(dot, name="dot_general", attributes=attributes)


def _absorb_transposes_of_product(product: Operation, matcher: Matcher) -> Operation | None:
    for place, side in enumerate(("lhs", "rhs")):
        names = tuple(f"{side}_{kind}_dimensions" for kind in ("batching", "contracting"))
        transpose = matcher.maker(product.operands[place], "transpose")
        if transpose is None:
            continue
        order = transpose.ints("permutation")
        axes = [product.ints(name, absent=()) for name in names]
        batch, summed = (tuple(order[axis] for axis in each) for each in axes)
        free = [axis for axis in order if axis not in (*batch, *summed)]
        # The free axes of the operands are axes of the result, in the same order.
        if free != sorted(free):
            continue
        is_useful = matcher.uses(transpose.results[0]) > 1 or _is_matrix(len(order), *axes)
        if is_useful and not _is_matrix(len(order), batch, summed):
            continue  # the product would need a transpose of its own
        operands = list(product.operands)
        operands[place] = transpose.operands[0]
        attributes = {**product.attributes, names[0]: batch, names[1]: summed}
        return dataclasses.replace(product, operands=tuple(operands), attributes=attributes)
    return None


def _is_matrix(rank: int, batch: Sequence[int], summed: Sequence[int]) -> bool:
    """Returns whether the free and the contracting axes lie together, behind the batching axes."""
    kinds = ["b" if a in batch else "s" if a in summed else "f" for a in range(rank)]
    changes = sum(a != b for a, b in itertools.pairwise(kinds))
    return changes < len(set(kinds)) and "b" not in kinds[len(batch) :]


def _absorb_transposes_of_convolution(convolution: Operation, matcher: Matcher) -> Operation | None:
    of_image = "input_batch_dimension", "input_feature_dimension"
    of_kernel = "kernel_input_feature_dimension", "kernel_output_feature_dimension"
    for place, (side, numbers) in enumerate((("input", of_image), ("kernel", of_kernel))):
        spatial = f"{side}_spatial_dimensions"
        transpose = matcher.maker(convolution.operands[place], "transpose")
        if transpose is None:
            continue
        order = transpose.ints("permutation")
        operands = list(convolution.operands)
        operands[place] = transpose.operands[0]
        attributes = {
            **convolution.attributes,
            **{name: order[convolution.int(name)] for name in numbers},
            spatial: tuple(order[axis] for axis in convolution.ints(spatial)),
        }
        return dataclasses.replace(convolution, operands=tuple(operands), attributes=attributes)
    return None


# Reductions that TensorFlow has, and broadcasts that restore the reduced axes.

REDUCE = "tensorflow.reduce"
"""Reduction by the operation `reducer` from its identity; the reduced axes stay with size 1 if
`keeps_axes` is true."""
COMBINE = "tensorflow.combine"
"""Applies the region of a reduction to initial values and reduced arrays, elementwise."""
DROP_AXES = "tensorflow.drop_axes"
"""Removes the axes `dimensions`, which have size 1."""


def _reduce_from_identities(reduce: Operation, matcher: Matcher) -> Replacement | None:
    half = len(reduce.operands) // 2
    arrays, inits = reduce.operands[:half], reduce.operands[half:]
    reducers = match_reducers(reduce.regions[0])
    if reducers is None or len(reducers) != half:
        return None
    if not all(map(has_reduction, reducers, (array.tensor.element for array in arrays))):
        return None
    # 0 and -0 are both identities of sums.
    numbers = [matcher.number(init) for init in inits]
    are_identities = all(
        number is not None and number == reducer.identity
        for number, reducer in zip(numbers, reducers, strict=True)
    )
    operations: list[Operation] = []
    values: list[Value] = []
    for reducer, array, result in zip(reducers, arrays, reduce.results, strict=True):
        operations += _make_reduction(reduce, reducer, array, result, matcher)
        values += operations[-1].results
    if not are_identities:
        results = tuple(Value(value.type) for value in values)
        operands = (*inits, *values)
        operations.append(
            dataclasses.replace(reduce, name=COMBINE, operands=operands, results=results)
        )
        values = list(results)
    return Replacement(tuple(operations), tuple(values))


def has_reduction(reducer: Reducer, element: str) -> bool:
    """Returns whether TensorFlow has a reduction for the reducer and an element type."""
    match dtype_of_element(element).kind:
        case "bool":
            return reducer.name in ("and", "or", "xor")
        case "complex":
            return reducer.name in ("add", "multiply")
        case _:
            return reducer.name in ("add", "multiply", "maximum", "minimum")


def _make_reduction(
    reduce: Operation, reducer: Reducer, array: Value, result: Value, matcher: Matcher
) -> list[Operation]:
    axes = reduce.ints("dimensions")
    rank = len(array.tensor.shape)
    remaining = [axis for axis in range(rank) if axis not in axes]
    keeps_axes = array.tensor.element != "i1" and any(
        user.name in BROADCASTS and _restores_axes(user, rank, remaining)
        for user in matcher.users(result)
    )
    attributes: dict[str, Attribute] = {
        **{"dimensions": axes, "keeps_axes": keeps_axes},
        **{"reducer": reducer.name, "element": reducer.element},
    }
    shape = tuple(1 if i in axes else size for i, size in enumerate(array.tensor.shape))
    type_ = TensorType(shape, result.tensor.element) if keeps_axes else result.type
    whole = Value(type_)
    reduction = dataclasses.replace(
        reduce,
        name=REDUCE,
        operands=(array,),
        results=(whole,),
        attributes=attributes,
        regions=(),
    )
    if not keeps_axes:
        return [reduction]
    last = (Value(result.type),)
    drop = {"dimensions": axes}
    return [
        reduction,
        dataclasses.replace(
            reduction, name=DROP_AXES, operands=(whole,), results=last, attributes=drop
        ),
    ]


def _restores_axes(broadcast: Operation, rank: int, remaining: Sequence[int]) -> bool:
    """Returns whether a broadcast gives an array without some axes its rank back."""
    dimensions, (result,) = broadcast.ints("broadcast_dimensions"), broadcast.results
    return len(result.tensor.shape) == rank and list(dimensions) == list(remaining)


def _broadcast_kept_axes(broadcast: Operation, matcher: Matcher) -> Operation | None:
    drop = matcher.maker(broadcast.operands[0], DROP_AXES)
    if drop is None:
        return None
    (whole,) = drop.operands
    rank = len(whole.tensor.shape)
    remaining = [axis for axis in range(rank) if axis not in drop.ints("dimensions")]
    if not _restores_axes(broadcast, rank, remaining):
        return None
    return dataclasses.replace(
        broadcast,
        operands=(whole, *broadcast.operands[1:]),
        attributes={**broadcast.attributes, "broadcast_dimensions": tuple(range(rank))},
    )


# Extremes and their indices.

EXTREME_AND_INDEX = "tensorflow.extreme_and_index"
"""Reduction of numbers and their places along an axis; `extreme` is "maximum" or "minimum"."""
PLACES = "counts_along_axis"
"""Attribute of sorts: for each operand, whether it counts from 0 along the sorted axis."""


_WIDE_INTEGERS = frozenset({"i32", "i64", "ui32", "ui64"})


def _find_extreme_index(reduce: Operation, matcher: Matcher) -> Operation | None:
    extreme = match_extreme_index(reduce.regions[0])
    axes = reduce.ints("dimensions")
    if extreme is None or len(axes) != 1 or len(reduce.operands) != 4:
        return None
    numbers, places, *inits = reduce.operands
    element = numbers.tensor.element
    name = {"maximum": "or", "minimum": "and"}[extreme] if element == "i1" else extreme
    number, place = map(matcher.number, inits)
    if number is None or number != Reducer(name, element).identity:
        return None
    # If all numbers equal the identity, an initial place below 0 would be the result.
    if place is None or place < 0:
        return None
    if not _is_iota(places, axes[0], matcher):
        return None
    attributes = {**reduce.attributes, "extreme": extreme}
    return dataclasses.replace(reduce, name=EXTREME_AND_INDEX, attributes=attributes)


_APPROXIMATE_SORTS = frozenset({"ApproxTopK", "stablehlo.dynamic_approx_top_k"})


def _note_places(sort: Operation, matcher: Matcher) -> Operation | None:
    axis = _find_sorted_axis(sort)
    if PLACES in sort.attributes or axis is None:
        return None
    axis %= len(sort.operands[0].tensor.shape)
    operands = sort.operands[: len(sort.results)]
    flags = tuple(_is_iota(value, axis, matcher) for value in operands)
    if not any(flags):
        return None
    return dataclasses.replace(sort, attributes={**sort.attributes, PLACES: flags})


def _find_sorted_axis(sort: Operation) -> int | None:
    if sort.name == "sort":
        return sort.int("dimension")
    if sort.attributes.get("call_target_name") not in _APPROXIMATE_SORTS:
        return None
    config = sort.attributes.get("mhlo.backend_config")
    axis = config.get("reduction_dim") if isinstance(config, Mapping) else None
    return axis if isinstance(axis, int) else None


def _is_iota(value: Value, axis: int, matcher: Matcher) -> bool:
    """Returns whether all elements of integers are their place along an axis."""
    names = ("broadcast_in_dim", "constant", "convert", "dynamic_iota", "iota")
    is_converted = False
    while (operation := matcher.maker(value, *names)) is not None:
        size = value.tensor.shape[axis]
        match operation.name:
            case "iota" | "dynamic_iota":
                # A narrow dtype rounds places, or they wrap around.
                is_exact = value.tensor.element in _WIDE_INTEGERS or not is_converted
                return is_exact and operation.int("iota_dimension") == axis
            case "constant":
                return _is_range(operation, axis)
            case "broadcast_in_dim":
                dimensions = operation.ints("broadcast_dimensions")
                if axis not in dimensions or size is None:
                    return False
                axis = dimensions.index(axis)
                (value,) = operation.operands
                if value.tensor.shape[axis] != size:
                    return False
            case _:
                if value.tensor.element not in _WIDE_INTEGERS:
                    return False
                is_converted = True
                (value,) = operation.operands
    return False


def _is_range(constant: Operation, axis: int) -> bool:
    elements = constant.attributes.get("value")
    if not isinstance(elements, DenseElements) or elements.type.element not in _WIDE_INTEGERS:
        return False
    array = np.moveaxis(elements.array(), axis, -1)
    return bool(np.array_equal(array, np.broadcast_to(np.arange(array.shape[-1]), array.shape)))


# Index vectors.

INDEX_OPERANDS = "index_operands"
"""Attribute of gather and scatter: the number of operands that are the index vectors, joined along
the axis `index_vector_dim`."""


def _split_index_vectors(operation: Operation, matcher: Matcher) -> Operation | None:
    place = len(operation.results)  # a gather has one array, a scatter one for each result
    vectors = operation.operands[place]
    joined = matcher.maker(vectors, "concatenate")
    if joined is None or INDEX_OPERANDS in operation.attributes or matcher.uses(vectors) != 1:
        return None
    if joined.int("dimension") != operation.int("index_vector_dim"):
        return None
    before, behind = operation.operands[:place], operation.operands[place + 1 :]
    return dataclasses.replace(
        operation,
        operands=(*before, *joined.operands, *behind),
        attributes={**operation.attributes, INDEX_OPERANDS: len(joined.operands)},
    )


PATTERNS_OF_OPERANDS = (
    Pattern(frozenset({"dot"}), _generalize_dot),
    Pattern(frozenset({"dot_general"}), _absorb_transposes_of_product),
    Pattern(frozenset({"convolution", "dynamic_conv"}), _absorb_transposes_of_convolution),
    Pattern(frozenset({"reduce"}), _find_extreme_index),
    Pattern(frozenset({"reduce"}), _reduce_from_identities),
    Pattern(frozenset(BROADCASTS), _broadcast_kept_axes),
    Pattern(frozenset({"gather", "dynamic_gather", "scatter"}), _split_index_vectors),
    Pattern(frozenset({"sort", "custom_call"}), _note_places),
)
"""Patterns for TensorFlow."""
