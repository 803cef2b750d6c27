"""The rewriter: what patterns see, what is removed, and what stays."""

from __future__ import annotations

import dataclasses

import numpy as np

from jax2tf_bridge.bytecode import (
    Attribute,
    Block,
    DenseElements,
    Function,
    Operation,
    OtherType,
    Program,
    TensorType,
    Value,
)
from jax2tf_bridge.rewriting import Matcher, Pattern, Replacement, rewrite

F32 = TensorType((2,), "f32")


def value() -> Value:
    return Value(F32)


def operation(kind: str, *operands: Value, **attributes: Attribute) -> Operation:
    return Operation(kind, operands, (value(),), attributes)


def program(x: Value, *operations: Operation) -> Program:
    end = Operation("return", operations[-1].results, (), {})
    return Program({"main": Function("main", Block((x,), (*operations, end)))})


def names(program: Program) -> list[str]:
    return [each.name for each in program.main.body.operations]


def _negate_twice(operation: Operation, matcher: Matcher) -> Operation | None:
    inner = matcher.operand(operation.operands[0], "negate")
    if inner is None:
        return None
    return dataclasses.replace(operation, name="copy", operands=(inner,))


TWICE = Pattern(frozenset({"negate"}), _negate_twice)


def test_a_match_removes_what_nothing_uses_any_more() -> None:
    x = value()
    first = operation("negate", x)
    second = operation("negate", *first.results)
    last = operation("abs", *second.results)
    rewritten = rewrite(program(x, first, second, last), [TWICE])
    assert names(rewritten) == ["copy", "abs", "return"]
    copy, absolute, _ = rewritten.main.body.operations
    assert copy.operands == (x,)
    assert absolute.operands == second.results  # results keep their identity


def test_what_others_use_stays() -> None:
    x = value()
    first = operation("negate", x)
    second = operation("negate", *first.results)
    last = operation("add", *first.results, *second.results)
    rewritten = rewrite(program(x, first, second, last), [TWICE])
    assert names(rewritten) == ["negate", "copy", "add", "return"]


def test_effects_stay() -> None:
    x = value()
    token = Operation("sine", (x,), (Value(OtherType("!stablehlo.token")),), {})
    effects = [operation(name, x) for name in ("custom_call", "call", "all_reduce", "composite")]
    stop = operation("composite", x, name="jax2tf.stop_gradient")
    first = operation("negate", x)
    second = operation("negate", *first.results)
    rewritten = rewrite(program(x, token, *effects, stop, first, second), [TWICE])
    kept = ["sine", "custom_call", "call", "all_reduce", "composite", "copy", "return"]
    assert names(rewritten) == kept


def test_programs_without_a_match_are_the_same_object() -> None:
    x = value()
    before = program(x, operation("abs", x))
    assert rewrite(before, [TWICE]) is before


def test_patterns_are_applied_again_until_none_matches() -> None:
    x = value()
    operations = [operation("negate", x)]
    for _ in range(3):
        operations.append(operation("negate", *operations[-1].results))
    rewritten = rewrite(program(x, *operations), [TWICE])
    # The third negates what is a copy by then, so it stays; the fourth negates the third.
    assert names(rewritten) == ["copy", "copy", "return"]

    def drop(operation: Operation, matcher: Matcher) -> Replacement:
        return Replacement((), operation.operands)

    rewritten = rewrite(rewritten, [Pattern(frozenset({"copy"}), drop)])
    assert names(rewritten) == ["return"]
    assert rewritten.main.body.returned == (x,)


def test_other_operations_and_values_replace_results() -> None:
    x = value()
    difference = operation("subtract", x, x)
    region = Block((), (end := operation("return", *difference.results),))
    branch = dataclasses.replace(operation("case", x), regions=(region,))

    def add_negative(operation_: Operation, matcher: Matcher) -> Replacement:
        negative = operation("negate", operation_.operands[1])
        total = operation("add", operation_.operands[0], *negative.results)
        return Replacement((negative, total), total.results)

    rewritten = rewrite(
        program(x, difference, branch), [Pattern(frozenset({"subtract"}), add_negative)]
    )
    assert names(rewritten) == ["negate", "add", "case", "return"]
    _, total, case, _ = rewritten.main.body.operations
    assert case.regions[0].operations[0].operands == total.results
    assert end.operands == difference.results  # the program before stays what it was


def test_regions_are_rewritten_first_and_know_constants_outside() -> None:
    x = value()
    half = DenseElements(F32, memoryview(np.float32(0.5).tobytes()))
    constant = operation("constant", value=half)
    inside = [operation("negate", *constant.results)]
    inside.append(operation("negate", *inside[0].results))
    region = Block((), (*inside, Operation("return", inside[1].results, (), {})))
    branch = dataclasses.replace(operation("case", x), regions=(region,))
    names: list[str] = []
    numbers: list[float | None] = []

    def look(operation: Operation, matcher: Matcher) -> None:
        if operation.name == "case":
            names.extend(each.name for each in operation.regions[0].operations)
        else:
            numbers.append(matcher.number(operation.operands[0]))

    looking = Pattern(frozenset({"case", "negate"}), look)
    rewrite(program(x, constant, branch), [looking, TWICE])
    assert names == ["copy", "return"]
    assert numbers == [0.5, None]


def test_invalid_operations_match_nothing() -> None:
    x = value()
    invalid = operation("negate")  # without its operand
    before = program(x, invalid)
    assert rewrite(before, [TWICE]) is before
