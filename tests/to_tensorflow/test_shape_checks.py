"""Shapes against the portable function's: one text in every mode."""

import functools
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf

from jax2tf_bridge import PortableFunction, export
from jax2tf_bridge.to_tensorflow import to_tf
from tests.sampling import sampled
from tests.tensorflow_process import run_in_tensorflow
from tests.to_tensorflow.shape_checking import (
    CONSTRAINT,
    SPECIFICATION,
    TARGETS,
    double,
    function_of,
    in_mode,
    ones,
    open_specs,
    words,
)


def add_up(*arrays: Any) -> Any:
    """Accepts any shapes, so that only JAX's own check can fail inside jit_compile."""
    return [jnp.sum(x) for x in arrays]


WRONG: dict[str, Any] = {
    "one variable twice": (
        ["b, b"],
        (),
        [(2, 3)],
        f"{SPECIFICATION}arrays[0]: expected shape (b, b), got (2, 3): b is 2",
    ),
    "expression": (
        ["b, 2*b"],
        (),
        [(2, 5)],
        f"{SPECIFICATION}arrays[0]: expected shape (b, 2*b), got (2, 5): 2*b is 4 for b = 2",
    ),
    "two arguments": (
        ["b", "b"],
        (),
        [(3,), (4,)],
        f"{SPECIFICATION}arrays[1]: expected shape (b,), got (4,): b is 3",
    ),
    "remainder": (
        ["2*b"],
        (),
        [(3,)],
        f"{SPECIFICATION}arrays[0]: expected shape (2*b,), got (3,): "
        "Division had remainder 1 when computing the value of b",
    ),
    "size 0": (
        ["b, 3"],
        (),
        [(0, 3)],
        f"{SPECIFICATION}arrays[0]: expected shape (b, 3), got (0, 3): "
        "Expected value >= 1 for dimension variable b. Got: 0",
    ),
    "division by zero": (
        ["b", "floordiv(8, b - 1)"],
        ["b >= 2"],
        [(1,), (8,)],
        f"{SPECIFICATION}arrays[1]: expected shape (floordiv(8, b - 1),), got (8,): "
        "floordiv(8, b - 1) divides by b - 1, which is 0 for b = 1",
    ),
    "constraint": (
        ["b"],
        ["b >= 4"],
        [(3,)],
        f"{CONSTRAINT}b >= 4 of double: arrays[0]: expected shape (b,), got (3,): b is 3",
    ),
    "modulo": (
        ["b"],
        ["mod(b, 4) == 0"],
        [(6,)],
        f"{CONSTRAINT}mod(b, 4) == 0 of double: arrays[0]: expected shape (b,), got (6,): "
        "mod(b, 4) is 2 for b = 6",
    ),
    "equation": (
        ["n + b"],
        ["n == b"],
        [(5,)],
        f"{SPECIFICATION}arrays[0]: expected shape (b + n,), got (5,): "
        "Division had remainder 1 when computing the value of b",
    ),
    "two variables": (
        ["a", "3, b"],
        ["a <= b"],
        [(5,), (3, 4)],
        f"{CONSTRAINT}a <= b of double: arrays[0]: expected shape (a,), got (5,); "
        "arrays[1]: expected shape (3, b), got (3, 4): a is 5 and b is 4",
    ),
}


def modes(fast: Mapping[str, Sequence[str]]) -> list[Any]:
    """Makes parameters of all modes with all targets; those not in `fast` are slow."""
    return [
        pytest.param(target, mode, marks=() if mode in fast[target] else pytest.mark.slow)
        for target in TARGETS
        for mode in ("eager", "static", "jit", "open", "loaded", "jit open")
    ]


# Each mode with one of the targets; saving and loading is what takes long.
MODES_OF_FITTING = modes(
    {"XLA": ("eager", "open", "jit open"), "own operations": ("static", "jit", "loaded")}
)
_QUICK = ("eager", "static", "jit", "open")
# "jit open" has another text: see test_inside_a_users_jit_compile_the_module_checks.
MODES_OF_WRONG = [
    row
    for row in modes({"XLA": _QUICK, "own operations": (*_QUICK, "loaded")})
    if row.values[1] != "jit open"
]


@functools.cache
def wrong_function(name: str, target: str) -> PortableFunction:
    specs, constraints, *_ = WRONG[name]
    return function_of(double, specs, constraints, target=TARGETS[target])


@pytest.fixture(scope="module", params=TARGETS)
def target(request: pytest.FixtureRequest) -> Any:
    """Name of the target that functions are exported for."""
    return request.param


@pytest.fixture(scope="module")
def loaded(target: str, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A function for each of WRONG, of one SavedModel."""
    module = tf.Module()
    module.functions = {
        name: tf.function(
            to_tf(wrong_function(name, target)), input_signature=open_specs(shapes), autograph=False
        )
        for name, (_, _, shapes, _) in WRONG.items()
    }
    path = str(tmp_path_factory.mktemp("wrong"))
    tf.saved_model.save(module, path)
    return tf.saved_model.load(path)


@pytest.mark.parametrize(("target", "mode"), MODES_OF_WRONG, indirect=["target"], scope="module")
@pytest.mark.parametrize("name", WRONG)
def test_text_is_the_same_in_every_mode(
    mode: str, name: str, target: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    *_, shapes, text = WRONG[name]
    if mode == "loaded":
        f = request.getfixturevalue("loaded").functions[name]
    else:
        f = in_mode(mode, to_tf(wrong_function(name, target)), shapes, tmp_path)
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        f(*ones(shapes))
    message = str(caught.value)
    if mode in ("open", "loaded"):
        assert f"assertion failed: [{text.split(', got ')[0]}, got] [" in message
        assert words(text) in words(message)
    else:
        assert text in message
    assert "stablehlo" not in message
    assert "refinement" not in message


FITTING: list[tuple[list[str], Sequence[str], list[tuple[int, ...]]]] = [
    (["b, b"], (), [(2, 2)]),
    (["2*b, n", "b, 3"], ["b >= 2", "n > 1", "n < 9"], [(6, 2), (3, 3)]),
    (["b", "min(b, 8)", "max(b, 8)"], (), [(20,), (8,), (20,)]),
    (["b", "mod(b, 4)"], (), [(6,), (2,)]),
    (["b", "floordiv(8, b - 1)"], ["b >= 2"], [(3,), (4,)]),
    (["a", "a + b", "a*b + 1"], ["a*b != 7"], [(2,), (5,), (7,)]),
    (["- b + 9"], ["b <= 5"], [(6,)]),
    (["a + b"], ["a == b"], [(6,)]),
]


@functools.cache
def fitting_functions(target: str) -> list[PortableFunction]:
    return [
        function_of(double, specs, constraints, target=TARGETS[target])
        for specs, constraints, _ in FITTING
    ]


@pytest.mark.parametrize(("target", "mode"), MODES_OF_FITTING, indirect=["target"], scope="module")
def test_sizes_that_fit(mode: str, target: str, tmp_path: Path) -> None:
    functions = [to_tf(portable) for portable in fitting_functions(target)]

    def all_of_them(*arrays: Any) -> Any:
        left = list(arrays)
        results = []
        for f, (specs, _, _) in zip(functions, FITTING, strict=True):
            results += f(*(left.pop(0) for _ in specs))
        return results

    shapes = [shape for _, _, several in FITTING for shape in several]
    f = in_mode(mode, all_of_them, shapes, tmp_path)
    for result, shape in zip(f(*ones(shapes)), shapes, strict=True):
        np.testing.assert_array_equal(result, np.full(shape, 2, np.float32))


IN_THE_MODULE = {
    # XLA itself divides by 0 when it folds constants, which ends the process.
    name: case
    for name, case in WRONG.items()
    if name != "division by zero"
}


@pytest.mark.parametrize(
    "name",
    sampled(
        list(IN_THE_MODULE),
        every=len(IN_THE_MODULE),
        keep=["remainder", "size 0", "two variables"],
        others=pytest.mark.slow,
    ),
)
def test_inside_a_users_jit_compile_the_module_checks(name: str) -> None:
    """XLA drops assertions, so JAX's own check fails, unless the body fails first."""
    specs, constraints, shapes, text = IN_THE_MODULE[name]
    f = to_tf(function_of(add_up, specs, constraints))
    function = tf.function(f, input_signature=open_specs(shapes), autograph=False, jit_compile=True)
    phrase = text.split(" of double")[0]
    with pytest.raises(tf.errors.InvalidArgumentError, match=f"(?s){re.escape(phrase)}"):
        function(*ones(shapes))
    g = to_tf(function_of(double, specs, constraints))
    function = tf.function(g, input_signature=open_specs(shapes), autograph=False, jit_compile=True)
    with pytest.raises(tf.errors.InvalidArgumentError):
        function(*ones(shapes))


def test_every_problem_that_is_known_is_listed(target: str) -> None:
    f = to_tf(function_of(double, ["b, n", "b, n"], ["n >= 3"], target=TARGETS[target]))
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        f(*ones([(2, 2), (3, 4)]))
    assert str(caught.value) == (
        f"{SPECIFICATION.strip()}\n"
        "  - arrays[1]: expected shape (b, n), got (3, 4): b is 2\n"
        "  - arrays[1]: expected shape (b, n), got (3, 4): n is 2\n"
        f"{CONSTRAINT}n >= 3 of double: arrays[0]: expected shape (b, n), got (2, 2): n is 2"
    )


def test_what_is_known_is_judged_while_tracing(target: str) -> None:
    f = to_tf(function_of(double, ["b, n", "b, n"], target=TARGETS[target]))
    specs = [tf.TensorSpec([None, 2]), tf.TensorSpec([3, 4])]
    with pytest.raises(
        tf.errors.InvalidArgumentError,
        match=r"arrays\[1\]: expected shape \(b, n\), got \(3, 4\): n is 2$",
    ):
        tf.function(f, input_signature=specs, autograph=False).get_concrete_function()


def test_sizes_of_the_specification_that_are_not_known_while_tracing(target: str) -> None:
    f = tf.function(
        to_tf(function_of(double, ["b, 28"], target=TARGETS[target])),
        input_signature=[tf.TensorSpec([None, None])],
        autograph=False,
    )
    assert f(tf.ones((2, 28)))[0].shape == (2, 28)
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        f(tf.ones((2, 27)))
    text = "expected shape (b, 28), got (2, 27): the size of dimension 1 must be 28"
    assert words(f"{SPECIFICATION}arrays[0]: {text}") in words(str(caught.value))


def test_static_function_on_sizes_that_are_not_known(target: str) -> None:
    portable = export(double, target=TARGETS[target])(jnp.ones((2, 3)))
    f = tf.function(to_tf(portable), input_signature=[tf.TensorSpec([None, 3])], autograph=False)
    (result,) = f.get_concrete_function().structured_outputs
    assert result.shape.as_list() == [2, 3]
    with pytest.raises(tf.errors.InvalidArgumentError, match="the size of dimension 0 must be 2"):
        f(tf.ones((3, 3)))


@pytest.mark.parametrize("shape", [(2, 28, 1), (28,), ()], ids=str)
def test_ranks_that_are_not_known_while_tracing(shape: Any, target: str) -> None:
    f = tf.function(
        to_tf(function_of(double, ["b, 28"], target=TARGETS[target])),
        input_signature=[tf.TensorSpec(None)],
        autograph=False,
    )
    assert f(tf.ones((2, 28)))[0].shape == (2, 28)
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        f(tf.ones(shape))
    text = f"arrays[0]: expected shape (b, 28), got {shape}: the rank must be 2"
    assert words(f"{SPECIFICATION}{text}") in words(str(caught.value))
    with pytest.raises(tf.errors.InvalidArgumentError, match="must be 28"):
        f(tf.ones((2, 27)))


def test_loaded_without_jax_and_by_its_signature(target: str, tmp_path: Path) -> None:
    f = to_tf(function_of(double, ["2*b, n"], ["n >= 2"], target=TARGETS[target]))
    module = tf.Module()
    module.f = tf.function(
        lambda x: {"y": f(x)[0]}, input_signature=[tf.TensorSpec([None, None])], autograph=False
    )
    tf.saved_model.save(module, str(tmp_path), signatures=module.f)
    out = run_in_tensorflow(
        """
        import sys
        import tensorflow as tf
        model = tf.saved_model.load(sys.argv[1])
        serve = model.signatures["serving_default"]
        print(serve(x=tf.ones((4, 2)))["y"].shape)
        for call in (lambda x: model.f(x), lambda x: serve(x=x)):
            for shape in ((3, 2), (4, 1)):
                try:
                    call(tf.ones(shape))
                except tf.errors.InvalidArgumentError as e:
                    print(next(l for l in str(e).splitlines() if "assertion failed" in l))
        """,
        str(tmp_path),
    ).splitlines()
    assert out[0] == "(4, 2)"
    odd = f"{SPECIFICATION}arrays[0]: expected shape (2*b, n), got (3, 2): Division had remainder 1"
    small = f"{CONSTRAINT}n >= 2 of double: arrays[0]: expected shape (2*b, n), got (4, 1): n is 1"
    assert len(out) == 5
    for line, text in zip(out[1:], (odd, small, odd, small), strict=True):
        assert words(text) in words(line)
