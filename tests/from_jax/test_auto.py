"""polymorphic_shapes=AUTO: what is chosen, how it is reported, and when it is refused."""

import logging
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax2tf_bridge import AUTO, PortableFunction, export
from jax2tf_bridge.errors import InconclusiveShapeError, ShapeError
from tests.sampling import sampled


def ones(*shape: int) -> Any:
    return np.ones(shape, np.float32)


def exported(f: Any, *args: Any, shapes: Any = AUTO, constraints: Any = ()) -> PortableFunction:
    return export(
        f, polymorphic_shapes=shapes, polymorphic_constraints=constraints, platforms=["cpu"]
    )(*args)


def dense(params: Any, x: Any) -> Any:
    return jnp.tanh(x @ params["w"] + params["b"])


DENSE = {"w": ones(28, 10), "b": ones(10)}


def convolved(kernel: Any, image: Any) -> Any:
    return jax.lax.conv_general_dilated(
        image, kernel, (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


def with_same_size(kernel: Any, image: Any) -> Any:
    return jax.lax.conv_general_dilated(
        image, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


KERNEL, IMAGE = ones(3, 3, 8, 16), ones(2, 32, 32, 8)
TABLE, IDS = ones(100, 16), np.zeros((4, 7), np.int32)


def trained(table: Any, ids: Any) -> Any:
    loss, gradient = jax.value_and_grad(lambda t: (t[ids] ** 2).mean())(table)
    return table - gradient, loss


def attention(q: Any, k: Any, v: Any) -> Any:
    return jax.nn.softmax(q @ k.swapaxes(-1, -2)) @ v


def two_layers(params: Sequence[Any], x: Any) -> Any:
    for layer in params:
        x = dense(layer, x)
    return x


CASES: dict[str, tuple[Any, tuple[Any, ...], dict[str, str]]] = {
    "elementwise": (jnp.sin, (ones(4, 3),), {"x": "(b, d1)"}),
    "parameters keep their shapes": (dense, (DENSE, ones(4, 28)), {"x": "(b, 28)"}),
    "several layers": (
        two_layers,
        ([DENSE, {"w": ones(10, 3), "b": ones(3)}], ones(4, 28)),
        {"x": "(b, 28)"},
    ),
    "equal where they must be": (
        lambda x, y: x + y,
        (ones(4, 3), ones(4, 3)),
        {"x": "(b, d1)", "y": "(b, d1)"},
    ),
    "lengths of their own": (
        attention,
        (ones(2, 5, 8), ones(2, 7, 8), ones(2, 7, 4)),
        {"q": "(b, d1, d2)", "k": "(b, d3, d2)", "v": "(b, d3, d4)"},
    ),
    "the batch alone": (
        lambda x: x.reshape(x.shape[0], 4, -1).sum(axis=-1) + jnp.arange(4.0),
        (ones(2, 12),),
        {"x": "(b, 12)"},
    ),
    "an image": (
        lambda x: convolved(ones(3, 3, 1, 2), x),
        (ones(2, 8, 8, 1),),
        {"x": "(b, d1, d2, 1)"},
    ),
    "a dict of data": (
        lambda batch: batch["x"] * batch["mask"][:, None],
        ({"mask": ones(4), "x": ones(4, 3)},),
        {"batch['mask']": "(b,)", "batch['x']": "(b, d1)"},
    ),
    "a kernel first": (with_same_size, (KERNEL, IMAGE), {"image": "(b, d1, d2, 8)"}),
    "a kernel last": (
        lambda x, w: with_same_size(w, x),
        (IMAGE, KERNEL),
        {"x": "(b, d1, d2, 8)"},
    ),
    "a kernel whose channels come first": (
        lambda w, x: jax.lax.conv(x, w, (1, 1), "SAME"),
        (ones(16, 8, 3, 3), ones(2, 8, 32, 32)),
        {"x": "(b, 8, d1, d2)"},
    ),
    "a kernel and a bias": (
        lambda w, b, x: with_same_size(w, x) + b,
        (KERNEL, ones(16), IMAGE),
        {"x": "(b, d1, d2, 8)"},
    ),
    "kernels in a list": (
        lambda kernels, x: with_same_size(kernels[1], with_same_size(kernels[0], x)),
        ([KERNEL, ones(3, 3, 16, 4)], IMAGE),
        {"x": "(b, d1, d2, 8)"},
    ),
    "a residual block": (
        lambda w, x: x + with_same_size(w, x),
        (ones(3, 3, 8, 8), IMAGE),
        {"x": "(b, d1, d2, 8)"},
    ),
    "a batch that does not come first": (
        lambda w, x: jnp.moveaxis(with_same_size(w, x), 0, 1),
        (KERNEL, IMAGE),
        {"x": "(b, d1, d2, 8)"},
    ),
    "a dense layer": (
        lambda w, b, x: x @ w + b,
        (ones(28, 10), ones(10), ones(4, 28)),
        {"x": "(b, 28)"},
    ),
    "a dense layer's data first": (
        lambda x, w, b: x @ w + b,
        (ones(4, 28), ones(28, 10), ones(10)),
        {"x": "(b, 28)"},
    ),
    "an embedding": (lambda table, ids: table[ids], (TABLE, IDS), {"ids": "(b, d1)"}),
    "an embedding's table last": (lambda ids, t: t[ids], (IDS, TABLE), {"ids": "(b, d1)"}),
    "a table that is the last layer, too": (
        lambda table, ids: table[ids] @ table.T,
        (TABLE, IDS),
        {"ids": "(b, d1)"},
    ),
    "two results, each of its own argument": (
        lambda x, y: (x.sum(axis=-1), 2 * y),
        (ones(4, 3), ones(4)),
        {"x": "(b, d1)", "y": "(d2,)"},
    ),
    "a step of training tells nothing of the data": (
        trained,
        (TABLE, IDS),
        {"table": "(b, d1)", "ids": "(d2, d3)"},
    ),
    "scalars": (lambda x, s: x * s, (ones(4), 2.0), {"x": "(b,)"}),
}


KEPT = ("parameters keep their shapes", "lengths of their own", "the batch alone", "scalars")


@pytest.mark.parametrize("case", sampled([*CASES], every=3, keep=KEPT, others=pytest.mark.slow))
def test_of_examples(case: str) -> None:
    f, args, expected = CASES[case]
    portable = exported(f, *args)
    assert portable.polymorphic_shapes == expected
    assert portable.requirements == ()


def test_for_one_argument() -> None:
    portable = exported(lambda w, x: x @ w, ones(28, 10), ones(4, 28), shapes=[None, AUTO])
    assert portable.polymorphic_shapes == {"x": "(b, 28)"}
    portable = exported(lambda x, y: x @ y, ones(4, 28), ones(28, 3), shapes=["(b, n)", AUTO])
    assert portable.polymorphic_shapes == {"x": "(b, n)", "y": "(n, d1)"}
    shapes = [AUTO, "(n, 32, 32, 8)"]
    portable = exported(with_same_size, KERNEL, IMAGE, shapes=shapes)
    assert portable.polymorphic_shapes == {"image": "(n, 32, 32, 8)"}


def test_arguments_by_keyword_are_told_apart_in_any_order() -> None:
    def looked_up(*, table: Any, ids: Any) -> Any:
        return table["a"][ids] + table["b"].sum()

    table = {"a": TABLE, "b": ones(5)}
    for kwargs in ({"table": table, "ids": IDS}, {"ids": IDS, "table": table}):
        shapes = dict.fromkeys(kwargs, AUTO)
        portable = export(looked_up, polymorphic_shapes=shapes, platforms=["cpu"])(**kwargs)
        assert portable.polymorphic_shapes == {"ids": "(b, d1)"}


def test_what_was_chosen_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "jax2tf_bridge"):
        exported(dense, DENSE, ones(4, 28))
    assert [r.message for r in caplog.records] == ["AUTO chose (b, 28) for x."]


def test_what_always_holds_needs_no_constraint() -> None:
    portable = exported(lambda x: jnp.pad(x, (0, -x.shape[0] % 8)).reshape(-1, 8), ones(3))
    assert portable.polymorphic_shapes == {"x": "(b,)"}


def test_a_requirement_closes_a_dimension_unless_it_may_be_added() -> None:
    def f(x: Any) -> Any:
        return jax.lax.top_k(x, 3)[0]

    assert exported(f, ones(4, 6)).polymorphic_shapes == {"x": "(b, 6)"}
    portable = exported(f, ones(4, 6), constraints=AUTO)
    assert portable.polymorphic_shapes == {"x": "(b, d1)"}
    assert portable.requirements == ("d1 >= 3",)


def test_what_only_fits_while_it_is_open_stays_open() -> None:
    portable = exported(lambda w, x: x + jnp.repeat(w, 2), ones(3), ones(6), constraints=AUTO)
    assert portable.polymorphic_shapes == {"w": "(b,)", "x": "(d1,)"}
    assert portable.requirements == ("d1 == 2*b",)


def test_nothing_can_stay_open() -> None:
    with pytest.raises(
        ShapeError,
        match=r"AUTO finds no dimension that can stay open for all sizes: the function needs d0 >= "
        r"5 \(d0, d1, \.\.\. are .*Pass polymorphic_constraints=AUTO",
    ):
        exported(lambda x: jax.lax.top_k(x, 5)[0], ones(7))
    with pytest.raises(ShapeError, match=r"for all sizes: the function needs d0 == 12 \("):
        exported(lambda x: x.reshape(3, 4), ones(12))
    with pytest.raises(ShapeError, match=r"its arguments\)\. Write polymorphic_shapes and "):
        exported(lambda x: x.reshape(3, 4), ones(12), constraints=AUTO)
    with pytest.raises(InconclusiveShapeError, match="needs a size as a Python number"):
        exported(lambda x: sum(x[i] for i in range(x.shape[0])), ones(7))


def test_constraints_cannot_speak_of_names_that_are_not_there_yet() -> None:
    with pytest.raises(
        ShapeError,
        match=r"polymorphic_constraints=\['b >= 2'\] use b, which no entry of "
        r"polymorphic_shapes names: AUTO names its variables itself\. Write the entry yourself, or "
        r"pass polymorphic_constraints=AUTO\.$",
    ):
        exported(jnp.sin, ones(4), constraints=["b >= 2"])
    portable = exported(
        lambda x, y: (x[:2], y), ones(4), ones(3), shapes=["(n,)", AUTO], constraints=["n >= 2"]
    )
    assert portable.polymorphic_shapes == {"x": "(n,)", "y": "(b,)"}


def test_errors_of_the_function_stay_what_they_are() -> None:
    def f(x: Any) -> Any:
        raise KeyError("no such weight")

    with pytest.raises(KeyError, match="no such weight"):
        exported(f, ones(3))
