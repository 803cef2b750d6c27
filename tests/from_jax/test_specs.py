"""polymorphic_shapes against the arguments: what is accepted, and each error's text."""

import re

import jax
import numpy as np
import pytest
import tensorflow as tf

import jax2tf_bridge as bridge
from jax2tf_bridge.errors import DTypeError, InconclusiveShapeError, ShapeError, StructureError
from jax2tf_bridge.from_jax.arguments import JaxCallable
from jax2tf_bridge.from_jax.shapes import OpenSpec, symbolic_specs

x32 = np.ones((3, 4), np.float32)
tree = {"a": x32, "b": (x32, x32)}


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (None, ["3,4", "3,4", "3,4", "3,4"]),
        ("b, _", ["b,4"] * 4),
        ("(b, ...)", ["b,4"] * 4),
        ("...", ["3,4"] * 4),
        (["b, 4", None], ["b,4", "3,4", "3,4", "3,4"]),
        (("b, 4", "b, 4"), ["b,4"] * 4),
        ([None, {"a": "b, c", "b": None}], ["3,4", "b,c", "3,4", "3,4"]),
        ([None, {"a": None, "b": (None, "2*b+1, ...")}], ["3,4", "3,4", "3,4", "2*b + 1,4"]),
    ],
)
def test_prefixes(spec: object, expected: list[str]) -> None:
    portable = bridge.export(lambda x, t: x, polymorphic_shapes=spec, platforms=["cpu"])(x32, tree)
    assert [str(a) for a in portable.in_avals] == [f"float32[{e}]" for e in expected]


def export_error(spec: object, *args: object, error: type[Exception]) -> str:
    with pytest.raises(error) as info:
        bridge.export(lambda x, *rest: x, polymorphic_shapes=spec)(*args)
    return str(info.value)


def test_a_static_argument_may_have_a_shape_of_its_own() -> None:
    class Config:
        shape = 3

    function = jax.jit(lambda x, config: x * config.shape, static_argnums=1)
    portable = bridge.export(function, platforms=["cpu"])(x32, Config())
    assert [str(a) for a in portable.in_avals] == ["float32[3,4]"]


MASK = {"m": np.ones((3, 1), np.float32)}


def masked(x: jax.Array, *, mask: dict[str, jax.Array]) -> jax.Array:
    return x * mask["m"]


@pytest.mark.parametrize(
    "spec",
    [
        {"x": "(b, _)", "mask": "(b, 1)"},
        {"x": "(b, _)", "mask": {"m": "(b, 1)"}},
        {"mask": bridge.AUTO, "x": "(b, 4)"},
    ],
)
def test_entries_by_name_are_for_arguments_by_keyword_too(spec: object) -> None:
    portable = bridge.export(masked, polymorphic_shapes=spec, platforms=["cpu"])(x32, mask=MASK)
    assert [str(a) for a in portable.in_avals] == ["float32[b,4]", "float32[b,1]"]
    assert str(portable.out_avals[0]) == "float32[b,4]"
    assert portable.polymorphic_shapes == {"x": "(b, 4)", "mask['m']": "(b, 1)"}


def test_arguments_without_an_entry_by_name_keep_their_shapes() -> None:
    def exported(spec: object) -> bridge.PortableFunction:
        f = bridge.export(lambda x, y: (x, y), polymorphic_shapes=spec, platforms=["cpu"])
        return f(x32, y=x32)

    for spec, expected in (
        ({"y": "b, _"}, ["3,4", "b,4"]),
        ({"x": "b, _"}, ["b,4", "3,4"]),
        ({}, ["3,4", "3,4"]),
    ):
        assert [str(a) for a in exported(spec).in_avals] == [f"float32[{e}]" for e in expected]


def test_what_is_asked_of_sizes_by_keyword_is_said_by_name() -> None:
    spec = {"x": "(b, _)", "mask": "(c, 1)"}
    with pytest.raises(InconclusiveShapeError, match="needs b == c") as error:
        bridge.export(masked, polymorphic_shapes=spec)(x32, mask=MASK)
    assert f"export(masked, polymorphic_shapes={spec!r}, polymorphic_constraints=[" in (
        str(error.value)
    )


def test_specifications_are_written_by_name_where_an_argument_by_keyword_has_one() -> None:
    function = JaxCallable.of(masked, caller="export")
    for given, texts in (
        ({"x": "b, _", "mask": "b, 1"}, {"x": "(b, 4)", "mask": {"m": "(b, 1)"}}),
        ({"mask": "b, 1"}, {"mask": {"m": "(b, 1)"}}),
        ({"x": "b, _"}, ["(b, 4)"]),
        (None, [None]),
    ):
        assert symbolic_specs(function, (x32,), {"mask": MASK}, given).texts() == texts


def test_an_entry_by_a_name_that_no_argument_has() -> None:
    message = export_error({"y": "b, _"}, x32, error=StructureError)
    assert message == (
        "polymorphic_shapes of <lambda> has an entry 'y', but no argument has this name. The "
        "arguments are x. If one of them is a dict, nest its shapes in a dict below its name, or "
        "pass a list with one entry for each argument."
    )
    with pytest.raises(StructureError, match="has this name: did you mean 'mask'"):
        bridge.export(masked, polymorphic_shapes={"masks": "b, _"})(x32, mask=MASK)


ENTRY = "The argument x has shape (3, 4), which does not match its polymorphic_shapes entry "
UNREADABLE = "The argument x of shape (3, 4) has no valid polymorphic_shapes entry: "
PASS_AUTO = (
    "[...]the entry has 1 dimension, the argument 2. To let the bridge choose it, pass AUTO (from "
    "jax2tf_bridge import AUTO), which is not a string."
)
# Entries for an argument of shape (3, 4), with their errors; [...] stands for anything.
ENTRIES: list[tuple[object, str]] = [
    ("b, 5", ENTRY + "'b, 5': dimension 1 is 4 and not 5."),
    ("(2, 5)", ENTRY + "'(2, 5)': dimension 0 is 3 and not 2, dimension 1 is 4 and not 5."),
    ("2, ...", ENTRY + "'2, ...': dimension 0 is 3 and not 2."),
    ("b, 4, 5", ENTRY + "'b, 4, 5': the entry has 3 dimensions, the argument 2."),
    ("b", ENTRY + "'b': the entry has 1 dimension, the argument 2."),
    ("max(b, 2)", ENTRY + "'max(b, 2)': the entry has 1 dimension, the argument 2."),
    ("_, _, b, ...", ENTRY + "'_, _, b, ...': the entry has 3 dimensions, the argument 2."),
    *((spec, PASS_AUTO) for spec in ("auto", "AUTO", ["(auto)"], "atuo", "infer")),
    ("rows", "[...]the entry has 1 dimension, the argument 2."),
    *(
        (spec, f"{UNREADABLE}The shape specification {spec!r} is wrong at column {problem}[...]")
        for spec, problem in (
            ("(None, 4)", "2: None is not a size: write a name, as b, or '_' for the known one."),
            ("b, ?", "4: unexpected character '?'. A shape is"),
            ("mdo(b, 2), _", "1: unknown function mdo (did you mean mod?). A shape is"),
            ("b, -1", "4: a negative size -1. A shape is"),
            ("..., 4", "1: '...' must be the last dimension: write '_' for single ones. A shape"),
        )
    ),
    (
        "b*b, 4",
        "The shapes of <lambda>'s arguments do not determine its dimension variables: Cannot "
        "solve for values of dimension variables {'b'}.[...]",
    ),
]


def check_error(error: type[Exception], text: str, spec: object, *args: object) -> None:
    pattern = ".*".join(map(re.escape, text.split("[...]")))
    assert re.fullmatch(pattern, export_error(spec, *args, error=error), re.DOTALL)


@pytest.mark.parametrize(("spec", "text"), ENTRIES, ids=[str(spec) for spec, _ in ENTRIES])
def test_entries_that_do_not_fit(spec: object, text: str) -> None:
    check_error(ShapeError, text, spec, x32)


def test_errors_name_the_path() -> None:
    text = "The argument rest[0]['b'][1] has shape (3, 4)[...]"
    check_error(ValueError, text, [None, {"a": None, "b": (None, "b")}], x32, tree)


def test_open_dimension_without_a_specification() -> None:
    open_argument = OpenSpec((None, 4), np.dtype(np.float32))
    text = (
        "The argument x has shape (?, 4) with an unknown dimension[...]its "
        "polymorphic_shapes entry None names no variable for it, as '(b, 4)' does. Write: "
        "polymorphic_shapes=['(b, 4)']"
    )
    check_error(ShapeError, text, None, open_argument)
    text = "[...]its polymorphic_shapes entry '_, 4' names no variable for it[...]"
    check_error(ShapeError, text, "_, 4", open_argument)


def test_wrong_structure() -> None:
    text = "[...]one entry for each of the 2 positional arguments. Got: ['b, 4'][...]"
    check_error(StructureError, text, ["b, 4"], x32, x32)
    text = "[...]A shape is written as a string: '(b, 4)'."
    check_error(StructureError, text, [(None, 4)], x32)
    check_error(StructureError, text.replace("4", "..."), [("b", ...)], x32)
    text = (
        "The polymorphic_shapes entry of the argument x must be None or a string, as '(b, 28)'. "
        "Got: 3 of type int."
    )
    check_error(StructureError, text, [3], x32)
    text = "[...]for the argument rest[0] is {'a': None}, which is not a prefix[...]"
    check_error(TypeError, text, [None, {"a": None}], x32, tree)


def test_dtypes_that_jax_lacks() -> None:
    text = "The argument x has dtype <U1, which JAX does not have.[...]"
    check_error(DTypeError, text, None, np.array(["a"]))
    text = "[...]for instance with x.astype(np.int64).[...]"
    check_error(DTypeError, text, None, np.array(["2026-01-01"], "M8[D]"))
    text = "The argument x['k'] must be an array, a scalar or a Shape[...]"
    check_error(TypeError, text, None, {"k": "text"})
    text = "The argument x is an integer that JAX cannot hold: [...] Pass a float[...]"
    check_error(DTypeError, text, None, 2**70)


def test_arrays_of_another_library() -> None:
    class Tensor:
        shape, dtype = (2, 3), "torch.float32"

    text = (
        "The argument x has dtype torch.float32, which NumPy does not have. Pass a NumPy array, "
        "for instance np.asarray(x)."
    )
    check_error(DTypeError, text, None, Tensor())


def test_negative_sizes() -> None:
    text = (
        "The argument x has shape (-1, 3), and sizes are at least 0. To leave a size open, write "
        "polymorphic_shapes='(b, 3)', and pass any size there."
    )
    check_error(ShapeError, text, None, jax.ShapeDtypeStruct((-1, 3), np.float32))


def test_a_list_for_arguments_by_keyword() -> None:
    with pytest.raises(
        StructureError,
        match=r"\(passed by keyword: y; use a dict, as \{'x': 'b, 4'\}\)",
    ):
        bridge.export(lambda x, y: x, polymorphic_shapes=["b, 4", None])(x32, y=x32)


@pytest.mark.parametrize(
    ("constraints", "message"),
    [
        (
            ["b =< 2"],
            r"polymorphic_constraints=\['b =< 2'\] cannot be read: The constraint 'b =< 2' is "
            r"wrong at column 3: '=<' is not a comparison operator\. A constraint compares two "
            r"dimensions",
        ),
        (
            ["b >= 4", "a <= 3", "b <= 2"],
            "polymorphic_constraints: The constraints 'b >= 4' and 'b <= 2' contradict each other",
        ),
        ("b >= 2", r"must be a sequence of strings, as \['b >= 2'\], or AUTO\. Got: 'b >= 2'$"),
        ("auto", r"or AUTO\. Got: 'auto'\. To let the bridge add the constraints, pass AUTO \("),
        (["b >= 2", "infr"], r"\['b >= 2', 'infr'\] cannot be read\. To let the bridge add the "),
        (None, r"must be a sequence of strings, as \['b >= 2'\], or AUTO\. Got: None$"),
        ([2], r"must be a sequence of strings, as \['b >= 2'\], or AUTO\. Got: \[2\]$"),
        (
            ["n >= 2"],
            r"polymorphic_constraints=\['n >= 2'\] use n, which no entry of "
            r"polymorphic_shapes names\. Its variables: b\.",
        ),
    ],
)
def test_constraints_that_cannot_be_read(constraints: object, message: str) -> None:
    with pytest.raises(ShapeError, match=message):
        bridge.export(
            lambda x: x,
            polymorphic_shapes="b, 4",
            polymorphic_constraints=constraints,  # type: ignore[arg-type]
        )(x32)


@pytest.mark.parametrize(
    ("model", "path"), [({"act": jax.nn.relu}, "model['act']"), ({"act": "relu"}, "model['act']")]
)
def test_models_with_leaves_that_are_no_arrays(model: object, path: str) -> None:
    hint = (
        ". Close over model, or pass its arrays alone: with Equinox by arrays, static = "
        "eqx.partition(model, eqx.is_array), and eqx.combine(arrays, static) in the function."
    )
    for call in (bridge.export(lambda model, x: x), bridge.convert(lambda model, x: x)):
        with pytest.raises(DTypeError) as error:
            call(model, x32)
        assert str(error.value).startswith(f"The argument {path} ")
        assert str(error.value).endswith(hint)
    message = export_error(None, np.array([object()]), error=DTypeError)
    assert "Close over" not in message


def test_strings_are_no_arguments() -> None:
    message = export_error(None, x32, "fast", error=DTypeError)
    assert message == (
        "The argument rest[0] of <lambda> is the string 'fast', and JAX computes with numbers "
        "only. Close over it."
    )
    with pytest.raises(DTypeError) as error:
        bridge.convert(lambda x, mode: x)(x32, "fast")
    assert str(error.value) == (
        "The argument mode of <lambda> is the string 'fast', a tf.string in TensorFlow, and JAX "
        "computes with numbers only. Close over it, or bind it first: functools.partial(f, "
        "mode='fast')."
    )
    with pytest.raises(DTypeError) as error:
        bridge.convert(lambda x: x)(tf.constant(["a"]))
    assert str(error.value) == (
        "The argument x has dtype tf.string, which JAX does not have. Convert it to numbers before "
        "the JAX function, in TensorFlow for instance with tf.strings.to_number or a table of "
        "tf.lookup."
    )


def test_flags_are_given_before() -> None:
    def f(x: jax.Array, training: bool) -> jax.Array:
        return x * 2 if training else x

    for spec in (None, ["(b, 4)", None]):
        with pytest.raises(jax.errors.TracerBoolConversionError) as error:
            bridge.export(f, polymorphic_shapes=spec)(x32, True)
        assert (
            "f needs the value of its argument training, and arguments are traced without values. "
            "Close over it, or bind it first: functools.partial(f, training=True)."
        ) in error.value.__notes__


def test_arguments_that_have_no_keyword_are_given_by_a_lambda() -> None:
    def f(x: jax.Array, training: bool, /) -> jax.Array:
        return x * 2 if training else x

    def alone(mode: str, /) -> jax.Array:
        return jax.numpy.ones(len(mode))

    with pytest.raises(jax.errors.TracerBoolConversionError) as error:
        bridge.export(f)(x32, True)
    assert error.value.__notes__[-1].endswith("Close over it: lambda x: f(x, True).")
    with pytest.raises(DTypeError, match=r"Close over it: lambda: alone\('fast'\)\.$"):
        bridge.export(alone)("fast")


def test_64_bits_are_taken_as_jax_takes_them() -> None:
    portable = bridge.export(lambda x, n: x)(x32.astype(np.float64), 3)
    assert [a.dtype for a in portable.in_avals] == ["float32", "int32"]
    with jax.enable_x64(True):
        portable = bridge.export(lambda x, n: x)(x32.astype(np.float64), 3)
    assert [a.dtype for a in portable.in_avals] == ["float64", "int64"]


def test_constraints_reach_the_scope() -> None:
    portable = bridge.export(
        lambda x: x[:5], polymorphic_shapes="b", polymorphic_constraints=["b >= 5"]
    )(np.ones(7, np.float32))
    assert str(portable.out_avals[0]) == "float32[5]"
    assert portable.constraints == ("b >= 5",)
