"""Errors about sizes that tracing cannot do without: their texts, and what they are kin to."""

import functools
import inspect
import re
import site
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jax2tf_bridge import AUTO, export
from jax2tf_bridge.errors import InconclusiveShapeError, ShapeError
from jax2tf_bridge.from_jax import jax_compat, source_lines

# Private: the tests lower its limits.
from jax2tf_bridge.from_jax.lowering import _tracing
from jax2tf_bridge.from_jax.shapes import _inference, _samples
from tests.from_jax.inferring import (
    best_five,
    exported,
    line_of,
    vector,
)

HERE = re.escape(__file__)


def test_what_does_not_always_hold_is_an_error_to_act_on() -> None:
    with pytest.raises(InconclusiveShapeError) as caught:
        exported(best_five, 7)
    error = caught.value
    place = f"{best_five.__code__.co_filename}:{line_of(best_five)} (best_five)"
    assert str(error) == (
        f"best_five needs b >= 5 at {place}, which does not "
        "hold for all sizes: for instance b = 1. If your sizes always satisfy this, add it:\n"
        "    export(best_five, polymorphic_shapes=['(b,)'], polymorphic_constraints=[\"b >= 5\"])\n"
        "or let polymorphic_constraints=AUTO add it. Calls with other sizes "
        "then fail."
    )
    assert error.comparison == "b >= 5"
    assert error.counterexample == {"b": 1}
    assert error.requirements == ("b >= 5",)
    assert error.source == place


def test_the_error_is_caught_as_its_kin_are() -> None:
    for kind in (ShapeError, ValueError, jax_compat.InconclusiveDimensionOperation):
        with pytest.raises(kind):
            exported(best_five, 7)


def test_the_weakest_form_comes_first() -> None:
    with pytest.raises(
        InconclusiveShapeError,
        match=r"f needs mod\(b, 2\) == 0 \(tracing asked for mod\(35\*b, - 2\) == 0\) at \S+ "
        r"\(f\), which does not hold for all sizes: for b = 1, mod\(b, 2\) is 1\. If your sizes",
    ) as caught:
        reshaped_in_halves()
    assert caught.value.comparison == "mod(35*b, - 2) == 0"
    assert caught.value.requirements == ("mod(b, 2) == 0",)


def reshaped_in_halves() -> None:
    def f(x: Any) -> Any:
        return x.reshape(2, -1)

    export(f, polymorphic_shapes="(b, 35)", platforms=["cpu"])(np.ones((4, 35), np.float32))


class Model:
    def __call__(self, x: Any) -> Any:
        return best_five(x)

    def apply(self, x: Any) -> Any:
        return best_five(x)


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (best_five, "best_five"),
        (jax.jit(best_five), "best_five"),
        (lambda x: best_five(x), "f"),
        (jax.jit(lambda x: best_five(x)), "f"),
        (functools.partial(lax.top_k, k=5), "f"),
        (Model(), "f"),
        (Model().apply, "f"),
    ],
    ids=["def", "jit", "lambda", "jitted lambda", "partial", "object", "method"],
)
def test_the_call_to_copy_is_code(function: Any, name: str) -> None:
    with pytest.raises(InconclusiveShapeError) as caught:
        exported(function, 7)
    call = next(line for line in str(caught.value).splitlines() if line.startswith("    "))
    assert call.strip() == (
        f"export({name}, polymorphic_shapes=['(b,)'], polymorphic_constraints=[\"b >= 5\"])"
    )
    made = eval(call, {"export": export, name: function})
    assert made(vector(7)).constraints == ("b >= 5",)


def test_what_no_size_can_do() -> None:
    def f(x: Any) -> Any:
        return x + jnp.concatenate([x, x[:1]])

    with pytest.raises(
        InconclusiveShapeError,
        match=rf"The shapes in f do not fit each other at {HERE}:\d+ \(f\): b == b \+ 1 never "
        r"holds; for b = 1, b \+ 1 is 2\. No constraint on the sizes can help: change the function "
        r"or the shapes of its arguments\. JAX says: add got incompatible shapes",
    ) as caught:
        exported(f, 3, constraints=AUTO)
    assert caught.value.requirements == ()
    assert isinstance(caught.value.__cause__, TypeError)


def test_what_one_size_can_do() -> None:
    def f(x: Any) -> Any:
        return x.reshape(3, 4)

    with pytest.raises(
        InconclusiveShapeError,
        match=r"f needs b == 12 at .*, which leaves nothing open: it works only for b = 12\. "
        r"Write this number in polymorphic_shapes",
    ):
        exported(f, 12, constraints=AUTO)


def test_a_size_that_must_be_a_number() -> None:
    def f(x: Any) -> Any:
        return sum(x[i] for i in range(x.shape[0]))

    with pytest.raises(
        InconclusiveShapeError,
        match=rf"f needs a size as a Python number while it is traced at {HERE}:\d+ \(f\)\. It "
        r"can be traced for b = 1 and b = 2, but not with b open\. Give that size as a number in "
        r"polymorphic_shapes, or compute with it by jax\.numpy",
    ):
        exported(f, 3)


def test_sizes_are_tried_above_the_constraints() -> None:
    def f(x: Any) -> Any:
        return jnp.ones(int(x.shape[0])) + x

    shape = jax.export.symbolic_shape("b", constraints=["b >= 300"])
    with pytest.raises(InconclusiveShapeError, match="can be traced for b = 300 and b = 301, but"):
        export(f, platforms=["cpu"])(jax.ShapeDtypeStruct(shape, np.float32))


def test_a_scan_of_an_open_length() -> None:
    def f(x: Any) -> Any:
        return jax.lax.scan(lambda c, _: (c + 1, c), x[0], None, length=x.shape[0])

    with pytest.raises(
        InconclusiveShapeError,
        match=r"or scan over jnp\.arange\(n\) instead of passing length=n to lax\.scan\.",
    ):
        exported(f, 3)


LIBRARY = """
def reverse(x):
    return [x[i] for i in range(len(x))][::-1]
"""


def test_the_line_of_a_library_in_a_linked_environment_is_named_beside_the_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment, link = tmp_path / "environment", tmp_path / "link"
    link.symlink_to(environment)
    file = link / "some_library" / "lists.py"
    (environment / "some_library").mkdir(parents=True)
    file.write_text(LIBRARY)
    packages = source_lines._spell(link)
    assert str(file.resolve()).startswith(packages)
    monkeypatch.setattr(source_lines, "_PACKAGES", packages)
    monkeypatch.setattr(source_lines, "_INSTALLED", packages)
    library: dict[str, Any] = {"__name__": "some_library.lists"}
    exec(compile(LIBRARY, str(file), "exec"), library)

    def f(x: Any) -> Any:
        return jnp.stack(library["reverse"](x))

    with pytest.raises(
        InconclusiveShapeError,
        match=rf"f needs a size as a Python number while it is traced at {HERE}:{line_of(f)} "
        rf"\(f\)\. The library's line is {re.escape(str(file))}:3 \(reverse\), "
        r"`return \[x\[i\] for i in range\(len\(x\)\)\]\[::-1\]`\. It can be traced for",
    ):
        exported(f, 3)


def test_every_folder_of_packages_has_libraries() -> None:
    for folder in (*site.getsitepackages(), site.getusersitepackages()):
        assert f"{folder}/some_library/lists.py".startswith(source_lines._INSTALLED)


class TestRowWise:
    """A function that needs its batch size may do with jax.vmap of one row."""

    @staticmethod
    def error(f: Any, *args: Any, shapes: Any) -> str:
        with pytest.raises(InconclusiveShapeError) as caught:
            export(f, polymorphic_shapes=shapes, platforms=["cpu"])(*args)
        return str(caught.value)

    def test_of_a_row(self) -> None:
        def total(x: Any, scale: Any) -> Any:
            if x.ndim == 2:
                return jnp.stack([total(x[i], scale) for i in range(len(x))])
            return jnp.sum(x) * scale

        args, shapes = (np.ones((3, 2), np.float32), np.float32(2)), ["(b, 2)", None]
        text = self.error(total, *args, shapes=shapes)
        advice = (
            "instead of range, len, int, math, numpy or iteration. Or export jax.vmap(total, "
            "in_axes=(0, None)): it can be traced with b open, and returns the same results if "
            "total computes each row independently."
        )
        assert advice in text
        mapped = eval("jax.vmap(total, in_axes=(0, None))", {"jax": jax, "total": total})
        assert export(mapped, polymorphic_shapes=shapes)(*args).polymorphic_shapes

    def test_of_a_batch_of_one(self) -> None:
        def halves(x: Any) -> Any:
            return jnp.stack([x[i, :1] for i in range(x.shape[0])])

        text = self.error(halves, np.ones((3, 2), np.float32), shapes="(b, 2)")
        assert "Or export jax.vmap(lambda x: halves(x[None])[0]): it can be traced" in text

    def test_large_arguments_are_not_run(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(_tracing, "MAX_ELEMENTS", 5)

        def halves(x: Any) -> Any:
            return jnp.stack([x[i, :1] for i in range(x.shape[0])])

        assert "jax.vmap" not in self.error(halves, np.ones((3, 2), np.float32), shapes="(b, 2)")

    def test_rows_that_depend_on_each_other_are_not_mapped(self) -> None:
        def running(x: Any) -> Any:
            return jnp.stack([x[: i + 1].sum(0) for i in range(x.shape[0])])

        assert "jax.vmap" not in self.error(running, np.ones((3, 2), np.float32), shapes="(b, 2)")


def test_trials_end_when_all_have_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_samples, "_MAX_SECONDS_WITHOUT_FAILURE", 0.0)
    sizes = []

    def f(x: Any) -> Any:
        sizes.append(x.shape[0])
        return sum(x[i] for i in range(x.shape[0]))

    with pytest.raises(InconclusiveShapeError, match="needs a size as a Python number"):
        exported(f, 3)
    assert len([size for size in sizes if isinstance(size, int)]) == 8


def test_a_value_that_is_needed_is_tried_at_one_size() -> None:
    sizes = []

    def f(x: Any) -> Any:
        sizes.append(x.shape[0])
        return branching(x)

    with pytest.raises(jax.errors.TracerBoolConversionError):
        exported(f, 3)
    assert [size for size in sizes if isinstance(size, int)] == [3]


def test_sizes_that_have_nothing_simple_in_common() -> None:
    def f(x: Any) -> Any:
        if hash(x.shape[0]) not in (2, 3, 5, 7, 11, 13):
            raise RuntimeError("not this one")
        return x

    with pytest.raises(
        InconclusiveShapeError,
        match=r"f does not work for all sizes at .*: it does for b = 2, but for b = 1 it fails "
        r"with RuntimeError: not this one\nConstrain your sizes in polymorphic_c",
    ) as caught:
        exported(f, 3, constraints=AUTO)
    assert caught.value.counterexample == {"b": 1}


def test_errors_about_something_else_stay_what_they_are() -> None:
    def f(x: Any) -> Any:
        raise KeyError("no such weight")

    with pytest.raises(KeyError, match="no such weight") as caught:
        exported(f, 3)
    assert caught.value.__notes__[-1] == (
        "f fails for every size that was tried, b = 1 among them, so no constraint can help."
    )
    with pytest.raises(KeyError) as static:
        exported(f, 3, shapes=["(3,)"])
    assert not any("no constraint" in note for note in getattr(static.value, "__notes__", []))


def test_a_note_only_says_what_the_error_does_not() -> None:
    def same(x: Any) -> Any:
        raise ValueError(f"no weights for {x.shape}")

    def other(x: Any) -> Any:
        return x.reshape(3, 5) + jnp.ones((2, 2))

    with pytest.raises(ValueError, match=r"no weights for \(b,\)") as caught:
        exported(same, 3)
    assert caught.value.__notes__[-1] == (
        "same fails for every size that was tried, b = 1 among them, so no constraint can help."
    )
    with pytest.raises(TypeError, match=r"\(3, 5\), \(2, 2\)") as failed:
        exported(other, 15)
    assert failed.value.__notes__[-1].startswith(
        "other fails for every size that was tried, so no constraint can help. For b = 1, "
        "TypeError: cannot reshape array of shape (1,)"
    )


def branching(x: Any) -> Any:
    return x if x.sum() > 0 else -x


class Branching:
    def __call__(self, x: Any) -> Any:
        return branching(x)


@pytest.mark.parametrize(
    ("function", "written"),
    [
        (branching, branching),
        (functools.partial(branching), branching),
        (Branching(), Branching.__call__),
        (functools.wraps(branching)(lambda x: branching(x)), branching),
    ],
    ids=["def", "partial", "object", "decorated"],
)
def test_jax_names_the_place_of_the_users_function(function: Any, written: Any) -> None:
    with pytest.raises(jax.errors.TracerBoolConversionError) as caught:
        exported(function, 3)
    line = inspect.getsourcelines(written)[1]
    assert f"{written.__name__} at {__file__}:{line} for jit" in str(caught.value)
    assert "from_jax/arguments" not in str(caught.value)


def test_an_end_to_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_inference, "MAX_ROUNDS", 2)
    with pytest.raises(
        InconclusiveShapeError,
        match="JAX still has questions about the sizes of <lambda> after 2 rounds of answers",
    ) as caught:
        exported(lambda x: [lax.top_k(x, k) for k in (2, 3, 4)], 9, constraints=AUTO)
    assert str(caught.value).endswith(
        "Give some of the sizes in polymorphic_shapes as numbers, or constrain them in "
        "polymorphic_constraints."
    )
