"""Rounds the results of a module's operations, as `rewriting` does for programs."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Mapping
from typing import Any

from jax2tf_bridge.from_jax._jax_compat import ir
from jax2tf_bridge.from_jax.stablehlo._operations import (
    attribute,
    create_value,
    find_main,
    make_int_attribute,
    symbol_name,
    walk_operations,
)
from jax2tf_bridge.rewriting import (
    EXACT_COMPOSITES,
    EXPONENT_BITS,
    ROUNDED,
    choose_mantissa_bits,
)

_PREFIX = "stablehlo."


def round_results(module: Any, seed: int) -> None:
    """Rounds the arguments and results of the operations to shorter floats.

    The MLIR context of the module must be the current one.

    Args:
      module: the ir.Module.
      seed: the seed of the lengths.
    """
    generator = random.Random(seed)
    functions = {symbol_name(op.operation): op.operation for op in module.body.operations}
    opaque = _find_opaque(functions)
    main = find_main(module)
    blocks = [
        block
        for name, function in functions.items()
        if name not in opaque and function.name == "func.func"
        for block in function.regions[0]
    ]
    # All are listed before operations are added.
    for operation, following in [pair for block in blocks for pair in _iter_rounded(block)]:
        with ir.InsertionPoint(following):
            for result in operation.results:
                _round(result, generator)
    block = main.regions[0].blocks[0]
    with ir.InsertionPoint.at_block_begin(block):
        for argument in block.arguments:
            _round(argument, generator)


def _round(value: Any, generator: random.Random) -> None:
    """Rounds a value at the current insertion point, and uses the result in its place."""
    element = _read_element(value)
    part = element.removeprefix("complex<").removesuffix(">")
    mantissa_bits = choose_mantissa_bits(part, generator)
    if mantissa_bits is None:
        return
    bits = {
        "exponent_bits": make_int_attribute(EXPONENT_BITS[part], 32),
        "mantissa_bits": make_int_attribute(mantissa_bits, 32),
    }
    kind = ir.RankedTensorType(value.type)
    # The only use of the value that stays.
    copy = create_value("stablehlo.convert", kind, [value])
    if part == element:
        rounded = _round_real(copy, bits)
    else:
        real = ir.RankedTensorType.get(kind.shape, ir.Type.parse(part))
        # Each part has the errors of the magnitude: an FFT does not know which part is 0.
        size = create_value("stablehlo.abs", real, [copy])
        parts = []
        for name in ("stablehlo.real", "stablehlo.imag"):
            number = create_value(name, real, [copy])
            number = _round_real(create_value("stablehlo.add", real, [number, size]), bits)
            parts.append(create_value("stablehlo.subtract", real, [number, size]))
        rounded = create_value("stablehlo.complex", kind, parts)
    value.replace_all_uses_except(rounded, copy.owner.operation)


def _round_real(number: Any, bits: dict[str, Any]) -> Any:
    """Rounds real numbers, as `rewriting` does, at the current insertion point."""
    kind = number.type

    def create(name: str, *operands: Any, attributes: Any = None) -> Any:
        return create_value(f"{_PREFIX}{name}", kind, operands, attributes)

    zero = create("subtract", number, number)
    divisor = create("exponential", create("exponential", zero))
    shorter = create("reduce_precision", create("divide", number, divisor), attributes=bits)
    moved = create("multiply", shorter, divisor)
    is_short = create_value(
        "stablehlo.compare",
        ir.RankedTensorType.get(kind.shape, ir.IntegerType.get_signless(1)),
        [number, create("reduce_precision", number, attributes=bits)],
        {
            "comparison_direction": ir.Attribute.parse("#stablehlo<comparison_direction EQ>"),
            "compare_type": ir.Attribute.parse("#stablehlo<comparison_type FLOAT>"),
        },
    )
    return create("select", is_short, number, moved)


def _read_element(value: Any) -> str:
    """Returns the element type of a value; "" if it is not a tensor."""
    text = str(value.type)
    if not text.startswith("tensor<"):
        return ""
    return str(ir.RankedTensorType(value.type).element_type)


def _find_opaque(functions: Mapping[str | None, Any]) -> set[str]:
    """Returns the functions that data-dependent loops call, which might not end if rounded."""
    pending = [
        name
        for function in functions.values()
        for loop in walk_operations(function)
        if loop.name == "stablehlo.while" and not _is_counted_loop(loop)
        for name in _list_callees(loop)
    ]
    opaque: set[str] = set()
    while pending:
        name = pending.pop()
        if name in functions and name not in opaque:
            opaque.add(name)
            pending += _list_callees(functions[name])
    return opaque


def _list_callees(operation: Any) -> list[str]:
    values = (
        attribute(inner, name)
        for inner in walk_operations(operation)
        for name in ("callee", "decomposition")
    )
    return [str(ir.FlatSymbolRefAttr(value).value) for value in values if value is not None]


def _iter_rounded(block: Any) -> Iterator[tuple[Any, Any]]:
    """Yields the operations with results to round, each with the operation that follows it."""
    operations = [each.operation for each in block.operations]
    for operation, following in itertools.pairwise(operations):
        if _is_rounded(operation):
            yield operation, following
        if not _is_opaque(operation):
            for region in operation.regions:
                for inner in region:
                    yield from _iter_rounded(inner)


def _is_opaque(operation: Any) -> bool:
    """Returns whether the operations in the regions are not rounded one by one."""
    if operation.name == "stablehlo.while":
        return not _is_counted_loop(operation)
    return operation.name not in ("stablehlo.case", "stablehlo.if")


def _is_rounded(operation: Any) -> bool:
    name = operation.name.removeprefix(_PREFIX)
    if not len(operation.regions):
        composite = attribute(operation, "name") if name == "composite" else None
        is_exact = composite is not None and ir.StringAttr(composite).value in EXACT_COMPOSITES
        return name in ROUNDED and not is_exact
    if (name != "while" and name not in ROUNDED) or not _is_opaque(operation):
        return False
    inner = itertools.islice(walk_operations(operation), 1, None)
    return any(each.name.removeprefix(_PREFIX) in (*ROUNDED, "func.call") for each in inner)


def _is_counted_loop(loop: Any) -> bool:
    """Returns whether the number of iterations depends on a counter only."""
    condition, body = (region.blocks[0] for region in loop.regions)
    returned = body.operations[len(body.operations) - 1].operation.operands
    for argument, before, after in zip(condition.arguments, body.arguments, returned, strict=True):
        if after == before or not list(argument.uses):
            continue
        if isinstance(after.owner, ir.Block) or after.owner.name != "stablehlo.add":
            return False
        steps = [value.owner for value in after.owner.operands if value != before]
        if len(steps) != 1 or isinstance(steps[0], ir.Block) or "f" in _read_element(after):
            return False
        if steps[0].name != "stablehlo.constant":
            return False
    return True
