"""Advice with code works: each message's code is pasted, as a user would, and runs."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf
from flax import linen

import jax2tf_bridge as bridge
from jax2tf_bridge import Signature, Target, convert, save

X = np.ones((4, 3), np.float32)
PARAMS = {"w": np.ones((3, 2), np.float32)}
export: Any = functools.partial(bridge.export, platforms=["cpu"])


def dense(params: Any, x: Any) -> Any:
    return x @ params["w"]


def flag(x: Any, training: bool) -> Any:
    return x * 2 if training else x


def mode_first(mode: str, x: Any) -> Any:
    return {"double": 2, "same": 1}[mode] * x


def repeated(x: Any, n: int) -> Any:
    for _ in range(n):
        x = jnp.sin(x)
    return x


def paired(x: Any) -> Any:
    return x.reshape(-1, 6)


def mean(x: Any, *, scale: Any) -> Any:
    return x * scale


def opened(f: Callable[..., Any], *shapes: tuple[int | None, ...]) -> Any:
    """Traces what convert gave at shapes that are partly not known."""
    specs = [tf.TensorSpec(shape) for shape in shapes]
    return tf.function(f, autograph=False).get_concrete_function(*specs)


class Words(dict[str, Any]):
    """A pytree that is no dict of Python's own."""


def taken_apart(words: Words) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    return tuple(words.values()), tuple(words)


def put_together(keys: Any, children: Any) -> Words:
    return Words(zip(keys, children, strict=True))


jax.tree_util.register_pytree_node(Words, taken_apart, put_together)


class Checked:
    """A pytree whose constructor refuses abstract arrays."""

    def __init__(self, x: Any, label: str) -> None:
        if not isinstance(x, (jax.Array, np.ndarray)):
            raise TypeError(f"expected an array, got {type(x).__name__}")
        self.x, self.label = x, label


class Registered(Checked):
    """Type like Checked, registered for files without from_children."""


class KnownToJax(Checked):
    """Type like Checked, registered for files with jax.export alone."""


class Grid(Checked):
    """Type like Checked, with several static data."""

    def __init__(self, x: Any, label: tuple[Any, ...]) -> None:
        super().__init__(x, "")
        del self.label
        self.rows, self.cols, self.cache = *label, None


class Sized(Checked):
    """Type like Checked, with an attribute that its constructor takes from a shape."""

    def __init__(self, x: Any, label: str) -> None:
        super().__init__(x, label)
        self.n = x.shape[0]


class Computing(Checked):
    """Type like Checked, with an attribute that its constructor computes."""

    def __init__(self, x: Any, label: str) -> None:
        super().__init__(x, label)
        self.size = np.size(x) * 1.0


def register_checked(kind: type[Checked]) -> None:
    jax.tree_util.register_pytree_node(
        kind,
        lambda node: ((node.x,), (node.label,)),
        lambda static, children: kind(children[0], static[0]),
    )


for each in (Checked, Registered, KnownToJax, Sized, Computing):
    register_checked(each)
jax.tree_util.register_pytree_node(
    Grid,
    lambda node: ((node.x,), (node.rows, node.cols)),
    lambda static, children: Grid(children[0], static),
)
bridge.register_pytree_node_serialization(Registered, serialized_name="test_advice.Registered")
jax.export.register_pytree_node_serialization(
    KnownToJax,
    serialized_name="test_advice.KnownToJax",
    serialize_auxdata=lambda static: static[0].encode(),
    deserialize_auxdata=lambda data: (data.decode(),),
)


def doubled(node: Any) -> Any:
    return type(node)(2 * node.x, node.label)


def called_in_jax(node: Any) -> Any:
    portable = bridge.deserialize(bridge.serialize(export(doubled)(node)))
    result = bridge.to_exported(portable).call(node)
    return type(result), result.label, result.x[0, 0]


model = linen.Dense(2)
variables = {"params": {"kernel": np.ones((3, 2), np.float32), "bias": np.zeros(2, np.float32)}}


@dataclass(frozen=True)
class Advice:
    """A call that is refused, and what to do with the code in the message.

    Attributes:
      refused: the call.
      code: a pattern with the code as its group.
      pasted: the program in which {} stands for the code; it must run.
      names: what the program may use beside this module's names.
    """

    refused: Callable[[], object]
    code: str
    pasted: str
    names: dict[str, Any] = field(default_factory=dict)


SHAPES = r"Write: polymorphic_shapes=(.*)\Z"
REBUILT = r"nothing[^\n]*:\n((?s:.*))\Z"
PARTIAL = r"(functools\.partial\(.*\))\."
ADVICE = {
    "one entry for all, and weights": Advice(
        lambda: export(dense, polymorphic_shapes="(b, 3)")(PARAMS, X),
        SHAPES,
        "export(dense, polymorphic_shapes={})(PARAMS, X)",
    ),
    "by keyword as well": Advice(
        lambda: export(lambda x, y, *, z: x, polymorphic_shapes="(b, 3)")(X, X[0], z=X),
        SHAPES,
        "export(lambda x, y, *, z: x, polymorphic_shapes={})(X, X[0], z=X)",
    ),
    "not known": Advice(
        lambda: opened(convert(lambda w, x: x @ w), (3, 2), (None, 3)),
        SHAPES,
        "opened(convert(lambda w, x: x @ w, polymorphic_shapes={}), (3, 2), (None, 3))",
    ),
    "not known, twice": Advice(
        lambda: opened(convert(jnp.add, polymorphic_shapes=["(n, _)", None]), (None, 3), (None, 1)),
        SHAPES,
        "opened(convert(lambda x, y: (x, y), polymorphic_shapes={}), (None, 3), (None, 1))",
    ),
    "not known, within a tree": Advice(
        lambda: tree_at(None),
        SHAPES,
        "tree_at({})",
    ),
    "a tuple for a shape": Advice(
        lambda: export(jnp.sin, polymorphic_shapes=[(None, 3)])(X),
        r"as a string: (.*)\.\Z",
        "export(jnp.sin, polymorphic_shapes=[{}])(X)",
    ),
    "a deprecated PolyShape": Advice(
        lambda: polyshape(),
        r"Write the string (.*) in its place",
        "export(jnp.sin, polymorphic_shapes=[{}])(X)",
    ),
    "auto as a string": Advice(
        lambda: export(jnp.sin, polymorphic_shapes="auto")(X),
        r"\((from jax2tf_bridge import AUTO)\)",
        "{}\nexport(jnp.sin, polymorphic_shapes=AUTO)(X)",
    ),
    "an argument by keyword": Advice(
        lambda: export(mean, polymorphic_shapes=["(b, 3)", None])(X, scale=X[0]),
        r"use a dict, as (\{.*?\})\)",
        "export(mean, polymorphic_shapes={})(X, scale=X[0])",
    ),
    "a requirement": Advice(
        lambda: export(paired, polymorphic_shapes="(b, 3)")(X),
        r"add it:\n +(.*)\n",
        "{}(X)",
    ),
    "a requirement, to be found": Advice(
        lambda: export(paired, polymorphic_shapes="(b, 3)")(X),
        r"or let (.*) add it",
        "from jax2tf_bridge import AUTO\nexport(paired, polymorphic_shapes='(b, 3)', {})(X)",
    ),
    "a flag": Advice(
        lambda: export(flag)(X, True),
        PARTIAL,
        "assert export({})(X).in_paths() == ('x',)",
    ),
    "a flag by keyword": Advice(
        lambda: convert(flag)(X, training=True),
        PARTIAL,
        "assert convert({})(X)[0, 0] == 2",
    ),
    "a number of repetitions": Advice(
        lambda: export(repeated, polymorphic_shapes=["(b, 3)", None])(X, 2),
        PARTIAL,
        "export({}, polymorphic_shapes=['(b, 3)'])(X)",
    ),
    "a string": Advice(
        lambda: export(lambda x, mode: mode_first(mode, x))(X, "double"),
        PARTIAL,
        "export({})(X)",
        {"f": lambda x, mode: mode_first(mode, x)},
    ),
    "a string, before arrays": Advice(
        lambda: convert(mode_first)("double", X),
        r"Close over it: (lambda .*)\.\Z",
        "assert convert({})(X)[0, 0] == 2",
    ),
    "a release that is too old": Advice(
        lambda: Target.tensorflow("2.14"),
        r"use (Target\.tensorflow\('2\.15'\))",
        "export(jnp.sin, target={})(X)",
    ),
    "a release as a target": Advice(
        lambda: export(jnp.sin, target="2.14"),
        r"as (Target\.tensorflow\('2\.15'\))",
        "export(jnp.sin, target={})(X)",
    ),
    "a platform": Advice(
        lambda: export(jnp.sin, disabled_checks=[bridge.DisabledSafetyCheck]),
        r"(\[DisabledSafetyCheck\.\w+\(.*?\)\])",
        "export(jnp.sin, disabled_checks={})(X)",
        {"DisabledSafetyCheck": bridge.DisabledSafetyCheck},
    ),
    "a module of Flax": Advice(
        lambda: convert(model)(variables, X),
        r"Pass its apply, as ([\w.]+),",
        "convert({})(variables, X)",
    ),
    "a portable function": Advice(
        lambda: convert(cast(Any, exported())),
        r"already: (to_tf\(portable\)) makes",
        "from jax2tf_bridge import to_tf; portable = exported(); {}(X)",
    ),
    "a function without arguments": Advice(
        lambda: bridge.to_tf(export(jnp.sin)),
        r"arguments: (export\(f, \.\.\.\)\(x\))\.",
        "f, x = jnp.sin, X; assert '{}'; bridge.to_tf(export(f)(x))",
    ),
    "a model that is there": Advice(
        lambda: saved(),
        r"(overwrite=True) replaces",
        "saved({})",
    ),
    "a constructor that checks": Advice(
        lambda: export(doubled)(Checked(X, "a")),
        REBUILT,
        "{}\nassert called_in_jax(Checked(X, 'a')) == (Checked, 'a', 2)",
    ),
    "a constructor that checks, of a registered type": Advice(
        lambda: export(doubled)(Registered(X, "a")),
        REBUILT,
        "{}\nassert called_in_jax(Registered(X, 'a')) == (Registered, 'a', 2)",
    ),
    "no size of request": Advice(
        lambda: save("unsized", Signature(jnp.sin, args=[X]), buckets="auto"),  # type: ignore[arg-type]
        r"pass (expected_sizes)=",
        "save('sized', Signature(jnp.sin, args=[X], polymorphic_shapes='(b, 3)'), {}=[1, 2])",
    ),
}


def tree_at(polymorphic_shapes: Any) -> object:
    f = convert(lambda x: x["a"], polymorphic_shapes=polymorphic_shapes)
    spec = {"a": tf.TensorSpec((None, 3)), "b": (tf.TensorSpec((2,)), tf.TensorSpec((4, None)))}
    return tf.function(f, autograph=False).get_concrete_function(spec)


def polyshape() -> None:
    with pytest.warns(DeprecationWarning, match="PolyShape") as warned:
        bridge.PolyShape("b", 3)
    raise ValueError(str(warned[0].message))


def exported() -> bridge.PortableFunction:
    portable: bridge.PortableFunction = export(jnp.sin)(X)
    return portable


def saved(**options: Any) -> None:
    signature = Signature(jnp.sin, args=[X])
    for _ in range(2):
        save("model", signature, **options)


def said(refused: Callable[[], object]) -> str:
    with pytest.raises((bridge.BridgeError, TypeError, ValueError, OSError)) as caught:
        refused()
    return "\n".join([str(caught.value), *reversed(getattr(caught.value, "__notes__", []))])


@pytest.mark.parametrize("advice", ADVICE.values(), ids=ADVICE.keys())
def test_advice_that_is_pasted_works(
    advice: Advice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    message = said(advice.refused)
    found = re.search(advice.code, message)
    assert found, message
    exec(advice.pasted.replace("{}", found[1]), {**globals(), **advice.names})


def test_trees_that_code_cannot_write_get_no_code() -> None:
    spec = Words(a=tf.TensorSpec((None, 3)))
    f = tf.function(convert(lambda x: x), autograph=False)
    message = said(lambda: f.get_concrete_function(spec))
    assert message.endswith("entry None names no variable for it, as '(b, 3)' does.")


def test_no_code_where_none_would_help() -> None:
    message = said(lambda: export(dense, polymorphic_shapes="(b, 5)")(PARAMS, X))
    assert message.endswith("dimension 1 is 2 and not 5.")
    message = said(lambda: export(lambda *x: x)(X, "a"))
    assert message.endswith("with numbers only. Close over it.")


def test_registrations_that_are_there_are_to_be_completed() -> None:
    message = said(lambda: export(doubled)(KnownToJax(X, "a")))
    assert message.startswith(
        "A tests.test_advice.KnownToJax cannot be made of abstract arrays, which have a shape and "
        "dtype but no values: its constructor refuses them with TypeError: expected an array, got "
        "ArraySpec. Add a from_children that checks nothing to its registration for files:\n"
        "import tests.test_advice\n"
        "from jax2tf_bridge import register_pytree_node_serialization\n"
        "def make_knowntojax(static, children):\n"
    )
    assert message.endswith(
        "\nregister_pytree_node_serialization(tests.test_advice.KnownToJax, "
        "serialized_name='test_advice.KnownToJax', serialize_auxdata=..., "
        "deserialize_auxdata=..., from_children=make_knowntojax)"
    )


@pytest.mark.parametrize(
    ("node", "assigned"),
    [
        (Grid(X, (2, 3)), "x=children[0], rows=static[0], cols=static[1], cache=None"),
        (Grid(X, (2, 2)), None),
        (Grid(X, (1, True)), None),
        (Grid(X, (2, None)), None),
        (Grid(X, ("a", ("b",))), "x=children[0], rows=static[0], cols=static[1], cache=None"),
        (Sized(X, "a"), None),
    ],
)
def test_code_has_no_value_that_one_example_does_not_tell(node: Any, assigned: str | None) -> None:
    message = said(lambda: export(lambda node: node.x)(node))
    if assigned is None:
        assert message.endswith(", from_children=...).")
    else:
        assert f"    vars(instance).update({assigned})\n" in message


def test_a_from_children_that_checks_is_to_be_replaced() -> None:
    class Replaced(Checked):
        pass

    Replaced.__qualname__ = "Replaced"
    register_checked(Replaced)
    bridge.register_pytree_node_serialization(
        Replaced,
        serialized_name="test_advice.Replaced",
        from_children=lambda static, children: Replaced(children[0], static[0]),
    )
    message = said(lambda: export(doubled)(Replaced(X, "a")))
    assert message.endswith(
        "Let the from_children of its registration check nothing:\n"
        "import tests.test_advice\n"
        "def make_replaced(static, children):\n"
        "    instance = object.__new__(tests.test_advice.Replaced)\n"
        "    vars(instance).update(x=children[0], label=static[0])\n"
        "    return instance"
    )


def test_local_types_are_named_as_where_they_are_defined() -> None:
    class Local(Checked):
        pass

    register_checked(Local)
    message = said(lambda: export(doubled)(Local(X, "a")))
    found = re.search(REBUILT, message)
    assert found, message
    exec(found[1], {"Local": Local})
    assert called_in_jax(Local(X, "a")) == (Local, "a", 2)


def test_constructors_that_compute_get_no_code_for_it() -> None:
    message = said(lambda: export(doubled)(Computing(X, "a")))
    assert message.endswith(
        "Register the type with a from_children that checks nothing: "
        "register_pytree_node_serialization(tests.test_advice.Computing, "
        "serialized_name='tests.test_advice.Computing', from_children=...)."
    )
