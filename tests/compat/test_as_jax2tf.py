"""Within as_jax2tf, jax.experimental.jax2tf is the bridge; outside, all is as it was."""

import importlib
import sys
import threading
import types
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf

from jax2tf_bridge import convert, export
from jax2tf_bridge.compat import as_jax2tf
from jax2tf_bridge.converting import dtype_of_val
from tests.fresh_process import run_python

PACKAGE = "jax.experimental.jax2tf"


def everything() -> dict[str, Any]:
    """Collects jax2tf's modules and the objects in them."""
    parts = {n: m for n, m in sys.modules.items() if f"{n}.".startswith(f"{PACKAGE}.")}
    contents = {(n, k): v for n, m in parts.items() for k, v in vars(m).items()}
    return {**parts, **{f"{n}: {k}": v for (n, k), v in contents.items()}}


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return one.keys() == other.keys() and all(one[k] is other[k] for k in one)


def divides(x: Any) -> Any:
    """Makes a function that the bridge can export with an open size, and JAX cannot."""
    return jnp.pad(x, (0, -x.shape[0] % 8)).reshape(-1, 8).sum()


def test_names_are_the_bridges_however_they_are_reached(jax2tf: Any) -> None:
    import jax.experimental

    with as_jax2tf() as module:
        from jax.experimental import jax2tf as again
        from jax.experimental.jax2tf import convert as one
        from jax.experimental.jax2tf.call_tf import call_tf
        from jax.experimental.jax2tf.jax2tf import convert as other

        assert module is again is jax2tf is jax.experimental.jax2tf
        assert one is other is jax2tf.convert
        assert isinstance(call_tf, types.FunctionType)
        assert call_tf is jax2tf.call_tf
        assert jax2tf.dtype_of_val is dtype_of_val
        f = jax2tf.convert(divides, polymorphic_shapes="b")
    assert f(np.ones(3, np.float32)).numpy() == 3, "what was converted stays the bridge's"


def test_everything_is_put_back(jax2tf: Any) -> None:
    before = everything()
    with as_jax2tf():
        assert not same(everything(), before)
    assert same(everything(), before)


def test_everything_is_put_back_after_an_exception(jax2tf: Any) -> None:
    before = everything()
    with pytest.raises(KeyError, match="mine"), as_jax2tf():
        raise KeyError("mine")
    assert same(everything(), before)


def test_nested_contexts_end_with_the_outer_one(jax2tf: Any) -> None:
    before = everything()
    with as_jax2tf():
        inside = everything()
        with as_jax2tf():
            assert same(everything(), inside)
        assert same(everything(), inside)
    assert same(everything(), before)


def test_contexts_of_threads_may_overlap(jax2tf: Any) -> None:
    before = everything()
    opened, leave = threading.Event(), threading.Event()

    def other() -> None:
        with as_jax2tf():
            opened.set()
            leave.wait()

    thread = threading.Thread(target=other)
    with as_jax2tf():
        thread.start()
        assert opened.wait(10)
    assert jax2tf.dtype_of_val is dtype_of_val, "the other thread's is open"
    leave.set()
    thread.join()
    assert same(everything(), before)


def test_conversion_within_a_function_of_tensorflow(jax2tf: Any) -> None:
    @tf.function
    def f(x: Any) -> Any:
        return jax2tf.convert(fun_jax=divides, polymorphic_shapes=["b"], enable_xla=True)(x)

    with as_jax2tf():
        assert f(tf.ones(5)).numpy() == 5


def test_arguments_of_older_releases(jax2tf: Any) -> None:
    older = {"experimental_native_lowering": True, "native_serialization_platforms": ("tpu",)}
    with as_jax2tf():
        strict = jax2tf.convert(jnp.sin, **older)
        lenient = jax2tf.convert(jnp.sin, **older, native_serialization_strict_checks=False)
    x = tf.ones(2)
    np.testing.assert_allclose(lenient(x), np.sin(x), rtol=1e-6)
    with pytest.raises(tf.errors.OpError, match="platform"):
        strict(x)


def test_stand_in_is_there_for_as_long_as_the_context(monkeypatch: pytest.MonkeyPatch) -> None:
    """Importing jax2tf fails before and afterwards, as in a JAX without it."""
    import jax.experimental

    for name in [n for n in sys.modules if f"{n}.".startswith(f"{PACKAGE}.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, PACKAGE, None)
    monkeypatch.delattr(jax.experimental, "jax2tf", raising=False)
    with as_jax2tf() as module:
        from jax.experimental import jax2tf as kept
        from jax.experimental.jax2tf.jax2tf import convert as one

        assert module is kept
        assert kept.convert is one
        assert kept.convert(divides, polymorphic_shapes="b")(np.ones(3, np.float32)).numpy() == 3
        with pytest.raises(ModuleNotFoundError, match="no_such_module"):
            importlib.import_module(f"{PACKAGE}.no_such_module")
    with pytest.raises(ImportError):
        from jax.experimental import jax2tf as gone  # noqa: F401
    with pytest.raises(AttributeError, match="this JAX has no jax2tf that can be imported"):
        _ = kept.convert
    with as_jax2tf():
        assert kept.convert(jnp.sin)(0.0).numpy() == 0


def test_export_is_not_changed(jax2tf: Any) -> None:
    with as_jax2tf():
        assert export(jnp.sin)(1.0).out_avals[0].dtype == "float32"
        assert jax2tf.convert is not convert


BLOCKED = """
import sys, warnings
warnings.simplefilter("error")
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name == {blocked!r}:
            raise {error}
sys.meta_path.insert(0, Blocker())
"""
STANDS_IN = """
import jax.experimental
from jax2tf_bridge.compat import as_jax2tf

def parts():
    return sorted(n for n in sys.modules if n.startswith("jax.experimental.jax2tf"))

def library():
    from jax.experimental import jax2tf
    return jax2tf

for _ in range(2):
    with as_jax2tf() as module:
        import jax.experimental.jax2tf.jax2tf
        from jax.experimental.jax2tf.call_tf import call_tf
        from jax.experimental.jax2tf.jax2tf import convert
        kept = library()
        assert kept is module and kept.convert is convert and kept.call_tf is call_tf
        print(kept.convert(lambda x: x + 1)(2.0).numpy())
    assert parts() == [] and not hasattr(jax.experimental, "jax2tf"), parts()
    try:
        kept.convert
    except AttributeError as error:
        print(error)
"""
UNDONE = (
    "module 'jax.experimental.jax2tf' has no attribute 'convert': this JAX has no jax2tf that can "
    "be imported. Within `with jax2tf_bridge.compat.as_jax2tf():` the bridge stands in."
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("blocked", "error"),
    [
        (PACKAGE, "ModuleNotFoundError(name, name=name)"),
        (f"{PACKAGE}.jax2tf", "AttributeError('what a newer JAX lacks')"),
        (f"{PACKAGE}.call_tf", "ImportError('only half of it')"),
    ],
    ids=["no jax2tf", "jax2tf fails", "jax2tf fails half-way"],
)
def test_stands_in_where_there_is_no_jax2tf(blocked: str, error: str) -> None:
    """A library that kept the module finds the bridge in it whenever a context is open."""
    out = run_python(BLOCKED.format(blocked=blocked, error=error) + STANDS_IN)
    assert out.splitlines() == ["3.0", UNDONE, "3.0", UNDONE]


def test_import_loads_nothing_and_missing_packages_change_nothing() -> None:
    out = run_python(
        BLOCKED.format(blocked="tensorflow", error="ModuleNotFoundError(name, name=name)")
        + """
import jax2tf_bridge.compat
assert not {"jax", "tensorflow"} & set(sys.modules)
try:
    with jax2tf_bridge.compat.as_jax2tf():
        pass
except ImportError as error:
    print(type(error).__name__, error)
assert not [n for n in sys.modules if "jax2tf" in n and "bridge" not in n]
"""
    )
    assert out.startswith("MissingDependencyError ")
    assert "needs TensorFlow, which is not installed here" in out
