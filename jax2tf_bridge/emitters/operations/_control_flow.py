"""Control flow: while, if and case."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jax2tf_bridge.bytecode import Block, Operation, Value
from jax2tf_bridge.emitters._array import Array, Arrays, Shape, make_integer
from jax2tf_bridge.emitters._ops import ops
from jax2tf_bridge.emitters._scope import Scope, emits
from jax2tf_bridge.emitters._sizes import fill_sizes
from jax2tf_bridge.emitters.formulas import converter_forms
from jax2tf_bridge.emitters.operations._calls import TOKEN, is_token
from jax2tf_bridge.rewriting import Matcher
from shape_poly import Dim


class _SizesChange(Exception):
    """Raised with the axes of a loop's state whose sizes the body changes, as (index, axis)."""

    def __init__(self, axes: frozenset[tuple[int, int]]) -> None:
        super().__init__(axes)
        self.axes = axes


class _Loop:
    """While operation, whose values are divided into state and loop invariants.

    Values that the body returns unchanged, such as JAX's constants and scanned arrays, are captured
    from outside of the loop. As state they would be copied, and their elements would be unknown.
    """

    def __init__(self, scope: Scope, operation: Operation, operands: Arrays) -> None:
        self._scope, self._operation, self._operands = scope, operation, operands
        condition, body = operation.regions
        self._condition, self._body = condition, body
        self._matchers = {block: Matcher.of(block) for block in operation.regions}
        self._state = [
            i
            for i, (returned, argument) in enumerate(
                zip(body.returned, body.arguments, strict=True)
            )
            if returned is not argument and not is_token(argument)
        ]
        self._counter = self._find_counter()

    def _find_counter(self) -> tuple[int, int, Dim] | None:
        """Finds the counter of the loop: the index of its value, its start, and its exclusive end.

        JAX's scan and fori_loop have a counter: while i < n, i becomes i + 1. In the body it is a
        size with known bounds, so that indices need no checks.
        """
        condition, body = self._condition, self._body
        match self._matchers[condition].comparison(condition.returned[0]):
            case "LT", counter, limit if counter in condition.arguments:
                place = condition.arguments.index(counter)
            case _:
                return None
        array, step = self._operands[place], self._matchers[body].maker(body.returned[place], "add")
        if array.element != "i32" or step is None:
            return None
        others = [value for value in step.operands if value is not body.arguments[place]]
        if len(others) != 1 or self._integer(body, others[0]) != 1:
            return None
        start, end = array.integers, self._integer(condition, limit)
        if start is None or not isinstance(start[0], int) or end is None:
            return None
        return place, start[0], end

    def _integer(self, block: Block, value: Value) -> Dim | None:
        """Returns a known scalar that does not change during the loop, or None."""
        matcher = self._matchers[block]
        if value in matcher.makers:
            number = matcher.number(value)
            return None if number is None else int(number)
        if value in block.arguments:
            place = block.arguments.index(value)
            if place in self._state:
                return None
            array = self._operands[place]
        else:
            array = self._scope.array(value)
        integers = array.integers if array.rank == 0 else None
        return None if integers is None else integers[0]

    def run(self) -> list[Array]:
        """Makes the loop; makes it again with more unknown sizes if the body changes sizes.

        Known sizes make a better graph, and nearly all loops keep them.
        """
        changing: frozenset[tuple[int, int]] = frozenset()
        while self._state:
            try:
                return self._run(changing)
            except _SizesChange as e:
                changing |= e.axes
        return list(self._operands)

    def _run(self, changing: frozenset[tuple[int, int]]) -> list[Array]:
        scope = self._scope
        sizes = {
            i: [None if (i, axis) in changing else size for axis, size in self._sizes(i)]
            for i in self._state
        }

        def condition(*state: ops.Tensor) -> ops.Tensor:
            inner = scope.new_region(other_graph=True)
            (flag,) = inner.run(self._condition, self._arrays(inner, state, sizes))
            _check_scalar(inner, self._operation, flag)
            return inner.tensor(flag)

        def body(*state: ops.Tensor) -> list[ops.Tensor]:
            inner = scope.new_region(other_graph=True)
            arrays = self._arrays(inner, state, sizes)
            if self._counter is not None:
                place, start, end = self._counter
                counter = inner.sizes.counter(inner.tensor(arrays[place]), start, end)
                arrays[place] = make_integer("i32", counter)
            results = inner.run(self._body, arrays)
            self._check_sizes(results, sizes)
            tensors = [inner.carry(results[i]) for i in self._state]
            if scope.for_converters:
                # OpenVINO writes the results into the loop's variables one by one.
                moved = [any(new is old for old in state) for new in tensors]
                pairs = zip(tensors, moved, strict=True)
                tensors = [converter_forms.copy(x) if is_moved else x for x, is_moved in pairs]
            return tensors

        shapes = [
            ops.TensorShape([size if isinstance(size, int) else None for size in sizes[i]])
            for i in self._state
        ]
        initial = [scope.carry(self._operands[i]) for i in self._state]
        results = ops.while_loop(condition, body, initial, shape_invariants=shapes)
        return self._arrays(scope, results, sizes)

    def _sizes(self, place: int) -> list[tuple[int, Dim]]:
        kind = self._operation.results[place].tensor
        return list(enumerate(fill_sizes(kind.shape, self._operands[place].sizes)))

    def _arrays(
        self, scope: Scope, state: Sequence[ops.Tensor], sizes: Mapping[int, Sequence[Dim | None]]
    ) -> list[Array]:
        """Returns the loop's values as arrays, in the graph of the state's tensors."""
        arrays = [scope.capture(array) for array in self._operands]
        for i, tensor in zip(self._state, state, strict=True):
            arrays[i] = scope.measure(tensor, arrays[i].element, sizes[i])
        return arrays

    def _check_sizes(self, results: Arrays, sizes: Mapping[int, Sequence[Dim | None]]) -> None:
        changed = {
            (i, axis)
            for i in self._state
            for axis, (before, after) in enumerate(zip(sizes[i], results[i].sizes, strict=True))
            if before is not None and not _is_same(self._scope, before, after)
        }
        if changed:
            raise _SizesChange(frozenset(changed))


@emits("while")
def _while(scope: Scope, operation: Operation, operands: Arrays) -> list[Array]:
    return _Loop(scope, operation, operands).run()


@emits("if")
def _if(scope: Scope, operation: Operation, operands: Arrays) -> Arrays:
    on_true, on_false = operation.regions
    _check_scalar(scope, operation, operands[0])
    flag = operands[0].scalar
    if flag is not None:
        return scope.new_region().run(on_true if flag else on_false, [])
    return _branches(scope, operation, scope.tensor(operands[0]), [on_false, on_true])


@emits("case")
def _case(scope: Scope, operation: Operation, operands: Arrays) -> Arrays:
    blocks = operation.regions
    _check_scalar(scope, operation, operands[0])
    number = operands[0].scalar
    last = len(blocks) - 1
    if last == 0 or number is not None:
        place = int(number) if number is not None and 0 <= number <= last else last
        return scope.new_region().run(blocks[place], [])
    index = scope.tensor(operands[0])
    if last > 1:
        return _branches(scope, operation, index, blocks)
    return _branches(scope, operation, ops.not_equal(index, 0), blocks)


def _check_scalar(scope: Scope, operation: Operation, array: Array) -> None:
    """Raises for control flow in a body that is applied to many elements at once."""
    if array.sizes:
        scope.fail(operation, "it is in a body that is applied to each element of an array")


def _choose_nested(index: ops.Tensor, functions: Sequence[Callable[[], Any]]) -> Callable[[], Any]:
    """Chooses one of many branches by nested binary choices.

    LiteRT, OpenVINO and tf2onnx have no operation for more than two branches.
    """
    last = len(functions) - 1
    # All numbers out of range choose the last branch.
    index = ops.where(
        ops.less(index, ops.zeros_like(index)), ops.constant(last, index.dtype), index
    )

    def choice(low: int, high: int) -> Callable[[], Any]:
        if high - low == 1:
            return functions[low]
        middle = (low + high) // 2
        before, after = choice(low, middle), choice(middle, high)

        def choose() -> list[ops.Tensor]:
            is_before = ops.less(index, ops.constant(middle, index.dtype))
            result = ops.cond(is_before, before, after)
            return [result] if ops.is_tensor(result) else list(result)

        return choose

    return choice(0, len(functions))


def _branches(
    scope: Scope, operation: Operation, index: ops.Tensor, blocks: Sequence[Block]
) -> list[Array]:
    """Makes a branch for each block; `index` chooses, or is a flag for the second of two."""
    results = operation.results
    tensors = [i for i, result in enumerate(results) if not is_token(result)]
    sizes: list[list[tuple[Dim, ...]]] = []

    def branch(block: Block) -> Any:
        def run() -> list[ops.Tensor]:
            inner = scope.new_region(other_graph=True)
            arrays = inner.run(block, [])
            sizes.append([arrays[i].sizes for i in tensors])
            return [inner.carry(arrays[i]) for i in tensors]

        return run

    functions = [branch(block) for block in blocks]
    if not tensors:
        outputs: Sequence[ops.Tensor] = ()
    elif index.dtype == ops.bool:
        outputs = ops.cond(index, functions[1], functions[0])
    else:
        outputs = _choose_nested(index, functions)()
    arrays = [TOKEN for _ in results]
    # TensorFlow may return a single result as the tensor itself.
    listed = [outputs] if ops.is_tensor(outputs) else list(outputs)
    for place, (i, tensor) in enumerate(zip(tensors, listed, strict=True)):
        kind = results[i].tensor
        agreed = _agree_sizes(scope, kind.shape, [of_branch[place] for of_branch in sizes])
        arrays[i] = scope.measure(tensor, kind.element, agreed)
    return arrays


def _agree_sizes(
    scope: Scope, known: Sequence[int | None], shapes: Sequence[Shape]
) -> list[Dim | None]:
    """Returns the sizes that all branches agree on for a result; None for others."""
    agreed: list[Dim | None] = []
    for number, first, *others in zip(known, *shapes, strict=True):
        if number is not None:
            agreed.append(number)
        elif scope.sizes.knows(first) and all(_is_same(scope, first, other) for other in others):
            agreed.append(first)
        else:
            agreed.append(None)
    return agreed


def _is_same(scope: Scope, left: Dim, right: Dim) -> bool:
    if left == right:
        return True
    return (
        scope.sizes.knows(left)
        and scope.sizes.knows(right)
        and bool(scope.sizes.compare("EQ", left, right))
    )
