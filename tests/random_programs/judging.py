"""Runs a program on a way, and traces what differs to the step that is to blame."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from jax2tf_bridge import BridgeError
from tests.random_programs.comparing import kind_of_difference, wrong_places
from tests.random_programs.explained import NO_ELEMENTS, Case, explanation_of
from tests.random_programs.noise import explained_by_noise, noisy_results
from tests.random_programs.program import Input, Program, Step
from tests.random_programs.values import Array
from tests.random_programs.ways import WAYS, in_jax, in_jax_with_open_sizes

MAX_REFUSALS = 12
"""Maximum number of steps that are taken out of a program because the bridge refuses them."""

ROUNDING = "rounding errors that later steps enlarge"

SYMBOLIC = "JAX itself answers otherwise where sizes are symbolic"

_LINE = re.compile(r"program_\d+\.py:\d+")


Expected = list[list[Array]]
"""The results in JAX, by call."""


@dataclass(frozen=True)
class Fault:
    """Something wrong, with a program that shows it.

    Attributes:
      signature: the same for faults that look the same.
      detail: the error, or the values that differ.
      program: as small as it was made.
    """

    signature: str
    detail: str
    program: Program


@dataclass
class Verdict:
    """The outcome of a program on a way.

    Attributes:
      compared: whether any results were compared.
      faults: those that are not explained.
      refusals: how often each operation was refused.
      explained: how often each reason of a documented difference applied.
    """

    compared: bool = False
    faults: list[Fault] = field(default_factory=list)
    refusals: Counter[str] = field(default_factory=Counter)
    explained: Counter[str] = field(default_factory=Counter)


def judge(program: Program, way: str) -> Verdict:
    """Compares a program on a way with jax.jit, without the steps that the bridge refuses."""
    return judge_all(program, [way])[way]


def judge_all(program: Program, ways: Sequence[str]) -> dict[str, Verdict]:
    """Compares a program on several ways with jax.jit, which runs once for all of them."""
    program, expected = reference(program)
    return {way: _judge(program, way, expected) for way in ways}


def _judge(program: Program, way: str, expected: Expected) -> Verdict:
    verdict = Verdict()
    for _ in range(MAX_REFUSALS):
        if not program.calls:
            break
        try:
            _compare(program, way, expected, verdict)
        except BridgeError as error:
            if way == "litert" and NO_ELEMENTS in str(error):
                verdict.explained[NO_ELEMENTS] += 1
                break
            blamed = _refused_step(error, program)
            words = f"{type(error).__name__}: {_stable(str(error))}"
            if blamed is None:
                verdict.faults.append(_raised(error, program, way, "refusal without a line"))
                break
            verdict.refusals[f"{blamed.operation}: {words}"] += 1
            smaller = cut(program, {blamed.name})
            if smaller is None:
                break
            program, expected = reference(smaller)
        except Exception as error:
            if way == "litert" and "Invalid tensor size" in str(error):
                verdict.explained[NO_ELEMENTS] += 1
            else:
                verdict.faults.append(_smallest_raising(error, program, way))
            break
        else:
            break
    return verdict


def reference(program: Program) -> tuple[Program, Expected]:
    """Runs a program in JAX; drops the calls of sizes that JAX refuses, as an argmax of nothing."""
    run = in_jax(program)
    calls, values, expected = [], [], []
    for call, sizes in enumerate(program.calls):
        args = program.arguments(call)
        try:
            expected.append(run(args))
        except (IndexError, TypeError, ValueError, ZeroDivisionError):
            continue
        calls.append(sizes)
        values.append(dict(zip([i.name for i in program.inputs], args, strict=True)))
    return dataclasses.replace(program, calls=tuple(calls), values=tuple(values)), expected


def _refused_step(error: BaseException, program: Program) -> Step | None:
    line = _LINE.search(str(getattr(error, "source", None) or "")) or _LINE.search(str(error))
    return program.step_of(line[0]) if line else None


def _stable(text: str) -> str:
    """Drops what differs between programs that fail alike."""
    text = re.sub(r"program_\d+\.py:\d+", "LINE", text)
    text = re.sub(r"0x[0-9a-f]+|\d+", "#", text)
    return text[:160].replace("\n", " ")


def _raised(error: BaseException, program: Program, way: str, what: str) -> Fault:
    words = f"{type(error).__name__}: {_stable(str(error))}"
    return Fault(f"{way}: {what}: {words}", str(error)[:3000], program)


def _smallest_raising(error: Exception, program: Program, way: str) -> Fault:
    """Takes out steps as long as the same type of error is raised."""

    def raises(smaller: Program) -> Exception | None:
        try:
            run = WAYS[way](smaller)
            for call in range(len(smaller.calls)):
                run(smaller.arguments(call))
        except Exception as other:
            return other if type(other) is type(error) else None
        return None

    for name in [step.name for step in program.steps]:
        alone = _alone(program, name)
        found = alone and raises(alone)
        if alone and found:
            operation = alone.steps[0].operation
            return _raised(found, alone, way, f"raised by {operation}")
    program, error = _shrunk(program, error, raises)
    names = "+".join(sorted({step.operation for step in program.steps}))
    return _raised(error, program, way, f"raised by {names}"[:120])


def _shrunk(
    program: Program, error: Exception, raises: Callable[[Program], Exception | None]
) -> tuple[Program, Exception]:
    for name in program.outputs:
        fewer = dataclasses.replace(program, outputs=(name,)).pruned()
        other = raises(fewer)
        if other:
            program, error = fewer, other
            break
    for name in [step.name for step in program.steps]:
        smaller = cut(program, {name})
        other = raises(smaller) if smaller else None
        if smaller and other:
            program, error = smaller, other
    return program, error


def _alone(program: Program, name: str) -> Program | None:
    step = next((s for s in program.steps if s.name == name), None)
    if step is None:
        return None
    others = {s.name for s in program.steps if s.name != name}
    return cut(dataclasses.replace(program, outputs=(name,)), others)


def cut(program: Program, names: set[str]) -> Program | None:
    """Makes inputs of some steps, with their values in JAX; None if no output is left."""
    outputs = tuple(name for name in program.outputs if name not in names)
    if not outputs:
        return None
    shapes = _symbolic_shapes(program)
    if program.has_open_sizes() and not all(
        isinstance(size, int) or size in program.symbols() for n in names for size in shapes[n]
    ):
        # Sizes such as (b + 1) // 2 do not determine b.
        program = program.fixed(0)
        shapes = _symbolic_shapes(program)
    everything = dataclasses.replace(program, outputs=tuple(s.name for s in program.steps))
    run = in_jax(everything)
    values: list[dict[str, Array]] = []
    for call in range(len(program.calls)):
        args = program.arguments(call)
        results = run(args)
        values.append(
            {
                **{i.name: arg for i, arg in zip(program.inputs, args, strict=True)},
                **dict(zip(everything.outputs, results, strict=True)),
            }
        )
    new = [
        Input(name, str(values[0][name].dtype), shapes[name])
        for name in [s.name for s in program.steps]
        if name in names
    ]
    return dataclasses.replace(
        program,
        inputs=(*program.inputs, *new),
        steps=tuple(s for s in program.steps if s.name not in names),
        outputs=outputs,
        values=tuple(values),
    ).pruned()


def _symbolic_shapes(program: Program) -> dict[str, tuple[int | str, ...]]:
    import jax
    from jax import export as jax_export

    names = program.has_open_sizes()
    scope = jax_export.SymbolicScope()
    specs = [
        jax.ShapeDtypeStruct(
            jax_export.symbolic_shape(
                "(" + "".join(f"{size}, " for size in i.shape) + ")", scope=scope
            )
            if names
            else i.shape,
            np.dtype(i.dtype),
        )
        for i in program.inputs
    ]
    everything = dataclasses.replace(program, outputs=tuple(s.name for s in program.steps))
    with jax.enable_x64(program.x64):
        results = jax.eval_shape(everything.function(), *specs)
    return {
        step.name: tuple(s if isinstance(s, int) else str(s) for s in result.shape)
        for step, result in zip(program.steps, results, strict=True)
    }


def _compare(program: Program, way: str, expected: Expected, verdict: Verdict) -> None:
    run = WAYS[way](program)
    for call, results in enumerate(expected):
        actual = run(program.arguments(call))
        verdict.compared = True
        places = _differences(actual, results)
        if any(wrong is None or wrong.any() for wrong in places):
            _blame(program, call, way, actual, results, verdict)
            if verdict.faults:
                return


def _differences(actual: Sequence[Array], expected: Sequence[Array]) -> list[Array | None]:
    return [
        wrong_places(a, e) if (a.dtype, a.shape) == (e.dtype, e.shape) else None
        for a, e in zip(actual, expected, strict=True)
    ]


def _blame(
    program: Program,
    call: int,
    way: str,
    actual: Sequence[Array],
    expected: Sequence[Array],
    verdict: Verdict,
) -> None:
    values = dict(zip([i.name for i in program.inputs], program.arguments(call), strict=True))
    only = dataclasses.replace(program, calls=(program.calls[call],), values=(values,))
    explained = [_blame_step(alone, way, verdict) for alone in _suspects(only, way)]
    if verdict.faults or any(explained):
        return  # what follows a difference differs as well
    if _jax_agrees(only, actual):
        verdict.explained[SYMBOLIC] += 1
        return
    places = _differences(actual, expected)
    samples = noisy_results(only, only.arguments(0), _result_shapes(only))
    for number, (a, e, wrong) in enumerate(zip(actual, expected, places, strict=True)):
        if wrong is not None and wrong.any():
            wrong = explained_by_noise(a, e, wrong, [s[number] for s in samples])
        if wrong is None or wrong.any():
            one = dataclasses.replace(only, outputs=(only.outputs[number],)).pruned()
            _blame_together(one, way, verdict)
            return
    verdict.explained[ROUNDING] += 1


def _jax_agrees(program: Program, actual: Sequence[Array]) -> bool:
    """Returns whether jax.export, with the same open sizes, has the results of the way."""
    if not program.has_open_sizes():
        return False
    try:
        results = in_jax_with_open_sizes(program)(program.arguments(0))
    except Exception:
        return False  # JAX cannot export every program
    return not any(w is None or w.any() for w in _differences(actual, results))


def _suspects(program: Program, way: str) -> list[Program]:
    """Lists the steps that differ alone, each as a program; all run in one, with JAX's operands."""
    apart = _apart(program)
    (_, (expected,)), args = reference(apart), apart.arguments(0)
    try:
        actual = WAYS[way](apart)(args)
    except Exception:
        each = [_alone(program, step.name) for step in program.steps]
        return [step for step in each if step]
    suspects = []
    for step, wrong in zip(program.steps, _differences(actual, expected), strict=True):
        if wrong is None or wrong.any():
            alone = _alone(program, step.name)
            assert alone
            suspects.append(alone)
    return suspects


def _apart(program: Program) -> Program:
    """Makes each step read inputs alone, with the values that its operands have in JAX."""
    everything = dataclasses.replace(program, outputs=tuple(s.name for s in program.steps))
    args = program.arguments(0)
    results = in_jax(everything)(args)
    fixed = program.fixed(0)
    inputs = [
        Input(s.name, str(r.dtype), r.shape) for s, r in zip(program.steps, results, strict=True)
    ]
    steps = [
        dataclasses.replace(step, name=f"v{1000 + number}")
        for number, step in enumerate(program.steps)
    ]
    assert fixed.values
    values = {**fixed.values[0], **dict(zip(everything.outputs, results, strict=True))}
    return dataclasses.replace(
        fixed,
        inputs=(*fixed.inputs, *inputs),
        steps=tuple(steps),
        outputs=tuple(step.name for step in steps),
        values=(values,),
    ).pruned()


def _result_shapes(program: Program) -> list[tuple[int, ...]]:
    everything = dataclasses.replace(program, outputs=tuple(s.name for s in program.steps))
    return [result.shape for result in in_jax(everything)(program.arguments(0))]


def _blame_step(alone: Program, way: str, verdict: Verdict) -> bool:
    """Judges a step alone; returns whether it differs by something documented."""
    step, args = alone.steps[0], alone.arguments(0)
    try:
        expected = in_jax(alone)(args)
        actual = WAYS[way](alone)(args)
    except Exception as error:
        if way == "litert" and NO_ELEMENTS in str(error):
            verdict.explained[NO_ELEMENTS] += 1
            return True
        verdict.faults.append(_raised(error, alone, way, f"raised by {step.operation} alone"))
        return False
    case = difference_of(alone, actual, expected, way)
    if case is None:
        return False
    if _jax_agrees(alone, actual):
        verdict.explained[SYMBOLIC] += 1
        return True
    explanation = explanation_of(case)
    if explanation:
        verdict.explained[explanation.reason] += 1
        return True
    verdict.faults.append(_differing(alone, case))
    return False


def difference_of(
    program: Program, actual: Sequence[Array], expected: Sequence[Array], way: str
) -> Case | None:
    """Finds what differs in a program of one result, beyond rounding errors."""
    (a,), (e,) = actual, expected
    args = program.arguments(0)
    wrong = _differences(actual, expected)[0]
    if wrong is not None and wrong.any():
        samples = noisy_results(program, args, _result_shapes(program))
        wrong = explained_by_noise(a, e, wrong, [s[0] for s in samples])
        if not wrong.any():
            return None
    elif wrong is not None:
        return None
    if wrong is None:
        wrong = np.ones(e.shape, bool)
    return Case(way, program.steps[-1], args, a, e, wrong)


def _differing(program: Program, case: Case) -> Fault:
    if (case.actual.dtype, case.actual.shape) != (case.expected.dtype, case.expected.shape):
        kind = (
            f"{case.actual.dtype}{case.actual.shape} for {case.expected.dtype}{case.expected.shape}"
        )
        detail = kind
    else:
        kind = kind_of_difference(case.actual, case.expected, case.wrong)
        place = tuple(int(i) for i in np.argwhere(case.wrong)[0])
        detail = f"at {place}: expected {case.expected[place]!r}, got {case.actual[place]!r}"
    dtypes = ",".join(str(a.dtype) for a in case.operands)
    operation = "+".join(dict.fromkeys(s.operation for s in program.steps))[:100]
    return Fault(f"{case.way}: {operation}({dtypes}): {kind}", detail, program)


def _blame_together(program: Program, way: str, verdict: Verdict) -> None:
    """Takes out steps as long as the result differs."""

    def differs(smaller: Program) -> Case | None:
        try:
            args = smaller.arguments(0)
            expected, actual = in_jax(smaller)(args), WAYS[way](smaller)(args)
        except Exception:
            return None
        return difference_of(smaller, actual, expected, way)

    case = differs(program)
    if case is None:
        verdict.explained[ROUNDING] += 1
        return
    for name in [step.name for step in program.steps][:-1]:
        smaller = cut(program, {name})
        other = smaller and differs(smaller)
        if smaller and other:
            program, case = smaller, other
    explanation = explanation_of(case)
    if explanation:
        verdict.explained[explanation.reason] += 1
    else:
        verdict.faults.append(_differing(program, case))
