"""Checks the user's function and arguments, names them, and prepares them for JAX."""

from __future__ import annotations

import functools
import inspect
import keyword
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax import export as jax_export

from jax2tf_bridge._dtypes import WIDENED
from jax2tf_bridge.errors import DTypeError, FunctionError
from jax2tf_bridge.from_jax import _jax_compat
from jax2tf_bridge.from_jax._symbols import dim_from_jax
from jax2tf_bridge.from_jax.source_lines import find_definition, unwrap_function
from jax2tf_bridge.portable import Aval, MemorySpace, PortableFunction, unwrap_portable
from shape_poly import Dim


def shape_and_dtype(leaf: Any, path: str) -> tuple[tuple[Any, ...], Any]:
    """Returns the shape of an argument, and its dtype in JAX (64 bits only with x64).

    Raises:
      DTypeError: it is not an array, or JAX has no such dtype.
    """
    if not (hasattr(leaf, "shape") and hasattr(leaf, "dtype")):
        try:
            leaf = jax.typeof(leaf)
        except TypeError as e:
            raise DTypeError(
                f"The argument {path} must be an array, a scalar or a ShapeDtypeStruct. "
                f"Got: {leaf!r} of type {type(leaf).__name__}{advise_on_leaf(leaf, path)}"
            ) from e
        except OverflowError as e:
            raise DTypeError(
                f"The argument {path} is an integer that JAX cannot hold: {e}. Pass a float, or an "
                "array of a dtype that holds it."
            ) from e
    return tuple(leaf.shape), jax_dtype(leaf.dtype, path)


def advise_on_leaf(leaf: Any, path: str) -> str:
    """Returns advice for a leaf of a model that is not an array, such as its activation.

    The advice completes a sentence whose full stop is missing. Other leaves get "".

    >>> advise_on_leaf(None, "model.bias"), advise_on_leaf(len, "model.activation")[:25]
    ('', '. Close over model, or pa')
    >>> advise_on_leaf(len, "activation")
    '. Close over activation.'
    """
    if not (callable(leaf) or isinstance(leaf, str)):
        return ""
    name = re.split(r"[.\[]", path, maxsplit=1)[0]
    if name == path:
        return f". Close over {name}."
    return (
        f". Close over {name}, or pass its arrays alone: with Equinox by arrays, static = "
        f"eqx.partition({name}, eqx.is_array), and eqx.combine(arrays, static) in the function."
    )


def jax_dtype(dtype: Any, path: str, *, shown: str | None = None) -> Any:
    """Converts a dtype to the dtype that JAX uses for it; messages call it `shown`.

    Raises:
      DTypeError: JAX has no such dtype.
    """
    try:
        is_extended = jax.dtypes.issubdtype(dtype, jax.dtypes.extended)
    except TypeError as e:
        raise DTypeError(
            f"The argument {path} has dtype {shown or dtype}, which NumPy does not have. Pass "
            f"a NumPy array, for instance np.asarray({path})."
        ) from e
    if is_extended:
        if is_key(dtype):
            return dtype
    elif dtype == jax.dtypes.float0:
        return dtype
    else:
        dtype = np.dtype(dtype)
        canonical = jax.dtypes.canonicalize_dtype(dtype)
        if _is_known_to_jax(canonical):
            return canonical
    raise DTypeError(
        f"The argument {path} has dtype {shown or dtype}, which JAX does not have. "
        f"Convert it to numbers before the JAX function{_advise_conversion(dtype)}."
    )


def _advise_conversion(dtype: Any) -> str:
    kind = getattr(dtype, "kind", "?")
    if kind in "SUO":
        return ", in TensorFlow for instance with tf.strings.to_number or a table of tf.lookup"
    if kind in "mM":
        return ", for instance with x.astype(np.int64)"
    return ", for instance with x.astype(np.float32)" if kind in "fc" else ""


_MAX_ITEM_BYTES = {"b": 1, "i": 8, "u": 8, "f": 8, "c": 16}
"""Size in bytes of an item of JAX's widest standard dtype of each kind."""


@functools.cache
def _is_known_to_jax(dtype: np.dtype[Any]) -> bool:
    if dtype.isbuiltin == 1:
        return dtype.itemsize <= _MAX_ITEM_BYTES.get(dtype.kind, 0)
    try:
        jax.eval_shape(lambda: jax.numpy.zeros((), dtype))
    except TypeError:
        return False
    return True


# A ShapeDtypeStruct has no memory space.
_MEMORY_SPACES: dict[str, MemorySpace] = {"Device": "device", "Host": "host", "Any": "any"}


def portable_aval(aval: Any, shape: tuple[Dim, ...] | None = None) -> Aval:
    """Converts a JAX aval or ShapeDtypeStruct to an Aval with the shape `shape`."""
    if shape is None:
        shape = tuple(dim_from_jax(d) for d in aval.shape)
    space = _MEMORY_SPACES.get(getattr(getattr(aval, "memory_space", None), "name", ""), "device")
    if not is_key(aval.dtype):
        weak = bool(getattr(aval, "weak_type", False))
        name = "float0" if aval.dtype == jax.dtypes.float0 else np.dtype(aval.dtype).name
        return Aval(shape, name, memory_space=space, weak_type=weak)
    words = jax.eval_shape(jax.random.key_data, jax.ShapeDtypeStruct((), aval.dtype))
    return Aval(shape, str(aval.dtype), tuple(words.shape), space)


def is_key(dtype: Any) -> bool:
    """Returns whether a dtype is that of typed PRNG keys."""
    return bool(jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key))


def is_narrow(aval: Aval) -> bool:
    """Returns whether values have fewer than 8 bits; TF's op passes them in a wider dtype."""
    return aval.dtype in WIDENED


@dataclass(frozen=True)
class JaxCallable:
    """The user's function, ready for tracing.

    Attributes:
      name: the name, for messages and for the module.
      code_name: the name of the function in code, for advice.
      jitted: the jitted function to trace.
      static_argnums, static_argnames: the static arguments of jit. Negative numbers count from the
        last positional argument of a call.
      signature: the signature, if known.
      source: the place of its definition, as "file:line (function)", if known.
      is_unbound_module: whether it is a flax.linen module without parameters.
      variadic_names: the names of the first arguments in `*args`, if known.
    """

    name: str
    code_name: str
    jitted: Any
    static_argnums: frozenset[int]
    static_argnames: frozenset[str]
    signature: inspect.Signature | None
    source: str | None = None
    is_unbound_module: bool = False
    variadic_names: tuple[str, ...] = ()

    @staticmethod
    def of(function: object, *, caller: str) -> JaxCallable:
        """Checks `function`, and jits it unless it is already jitted.

        Raises:
          FunctionError: `function` is not callable, or is a generator function.
        """
        if not callable(function):
            raise FunctionError(
                f"{caller} expected a JAX function, got {_shorten(function)} of type "
                f"{type(function).__name__}, which is not callable.{_advise_instead(function)}"
            )
        if inspect.isgeneratorfunction(function):
            raise FunctionError(
                f"{caller} expected a function that returns arrays, got the generator function "
                f"{_get_name(function)}. Return a list instead of yielding."
            )
        signature = _read_signature(function)
        jitted: Any = function
        numbers, names = frozenset[int](), frozenset[str]()
        if _is_jitted(function):
            numbers, names = _jax_compat.read_static_arguments(function)
        else:
            jitted = jax.jit(_wrap(function))
        return JaxCallable(
            name=_get_name(function),
            code_name=_get_code_name(function),
            jitted=jitted,
            static_argnums=numbers,
            static_argnames=names,
            signature=signature,
            source=find_definition(function),
            is_unbound_module=_is_linen_module(function)
            and getattr(function, "scope", None) is None,
            variadic_names=_list_linen_arguments(function),
        )

    def static_positions(self, count: int) -> frozenset[int]:
        """Returns the positions of the static ones among `count` positional arguments.

        >>> f = JaxCallable.of(jax.jit(lambda *args: args[0], static_argnums=-1), caller="export")
        >>> f.static_positions(3)
        frozenset({2})
        """
        return frozenset(n % count for n in self.static_argnums if -count <= n < count)

    def argument_names(self, count: int) -> tuple[str, ...]:
        """Returns the names of `count` positional arguments."""
        names: list[str] = []
        variadic = "args"
        for parameter in self.signature.parameters.values() if self.signature else ():
            if parameter.kind is parameter.VAR_POSITIONAL:
                variadic = parameter.name
                break
            if parameter.kind is parameter.KEYWORD_ONLY:
                break
            names.append(parameter.name)
        if not set(self.variadic_names) & set(names):
            names += self.variadic_names
        named = names[:count]
        return (*named, *(f"{variadic}[{i}]" for i in range(count - len(named))))


def _is_jitted(function: object) -> bool:
    # The result of flax.nnx.jit looks like a jitted function, but its traces are Flax objects.
    is_of_flax = type(function).__module__.partition(".")[0] == "flax"
    return isinstance(function, jax.stages.Wrapped) and not is_of_flax


def _is_linen_module(value: object) -> bool:
    # The comparison by name avoids importing Flax.
    kinds = [(kind.__module__, kind.__name__) for kind in type(value).__mro__]
    return ("flax.linen.module", "Module") in kinds


def _list_linen_arguments(function: object) -> tuple[str, ...]:
    # Module.apply takes the arguments of a linen method as *args.
    args: tuple[Any, ...] = ()
    keywords: dict[str, Any] = {}
    if isinstance(function, functools.partial):
        args, keywords = function.args, function.keywords
        function = function.func
    module = getattr(function, "__self__", None)
    if getattr(function, "__name__", "") != "apply" or not _is_linen_module(module):
        return ()
    method = keywords.get("method") or "__call__"
    signature = _read_signature(
        getattr(type(module), method) if isinstance(method, str) else method
    )
    if signature is None:
        return ()
    positional = list(signature.parameters)[1 : _count_positional(signature)]
    return tuple(positional[max(len(args) - 1, 0) :])


def _wrap(function: Callable[..., Any]) -> Callable[..., Any]:
    # jit needs a hashable function with a name, so a plain function wraps the callable: partials
    # and callable objects (an Equinox module) may lack both.
    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    call.__name__ = call.__qualname__ = _get_name(function)
    signature = _read_signature(function)
    if signature is not None:
        call.__signature__ = signature  # type: ignore[attr-defined]
    written = unwrap_function(function)
    if hasattr(written, "__code__"):
        # JAX's messages use the place of the wrapped function.
        call.__wrapped__ = written  # type: ignore[attr-defined]
    return call


def _get_name(function: object) -> str:
    while isinstance(function, functools.partial):
        function = function.func
    name = getattr(function, "__name__", None)
    return name if isinstance(name, str) else type(function).__name__


def _get_code_name(function: object) -> str:
    name = getattr(function, "__name__", None)
    if not isinstance(name, str) or not name.isidentifier() or keyword.iskeyword(name):
        return "f"
    is_method = callable(function) and inspect.ismethod(inspect.unwrap(function))
    return "f" if is_method else name


def _read_signature(function: Callable[..., Any]) -> inspect.Signature | None:
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):
        return None


def _count_positional(signature: inspect.Signature | None) -> int:
    parameters = signature.parameters.values() if signature else ()
    return sum(p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in parameters)


def _advise_instead(value: object) -> str:
    if isinstance(unwrap_portable(value), PortableFunction):
        return " It is exported already: to_tf(portable) makes a TensorFlow function of it."
    if isinstance(value, jax_export.Exported):
        return " It is exported already: from_exported(exported) makes a portable function of it."
    if callable(getattr(value, "apply", None)):
        return " It has a method apply: pass that, as model.apply."
    return ""


def _shorten(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:80] + "..."


_WRITTEN_AS_CODE = (bool, int, float, str)


def advise_closure(function: JaxCallable, names: Sequence[str], argument: str, value: Any) -> str:
    """Returns advice, with code, to bind `argument` to `value` before the function is exported.

    `names` are those of the call's positional arguments.

    >>> f = JaxCallable.of(lambda x, mode: x, caller="export")
    >>> advise_closure(f, ["x", "mode"], "mode", "fast")
    "Close over it, or bind it first: functools.partial(f, mode='fast')."
    """
    code_name = function.code_name
    shown = repr(value)
    if not isinstance(value, _WRITTEN_AS_CODE) or shown in {"inf", "-inf", "nan"}:
        shown = argument
    if not argument.isidentifier():  # an item of *args
        return "Close over it."
    parameters = {} if function.signature is None else function.signature.parameters
    parameter = parameters.get(argument)
    by_position = parameter is not None and parameter.kind is parameter.POSITIONAL_ONLY
    if argument in names[:-1] or by_position:
        # functools.partial would shift the later positional arguments.
        others = [name for name in names if name != argument]
        if not all(map(str.isidentifier, others)):
            return "Close over it."
        call = ", ".join(shown if name == argument else name for name in names)
        start = f"lambda {', '.join(others)}".rstrip()
        return f"Close over it: {start}: {code_name}({call})."
    return f"Close over it, or bind it first: functools.partial({code_name}, {argument}={shown})."


def explain_missing_value(
    error: Exception, function: JaxCallable, names: Sequence[str], numbers: Mapping[str, Any]
) -> str | None:
    """Returns a note for JAX's error that an argument has no value while tracing; None for others.

    `names` are those of the call's positional arguments. `numbers` has the arguments that were
    Python numbers, by name.
    """
    for argument, value in numbers.items():
        if re.search(rf"\bargument {re.escape(argument)}(?![\w\[])", str(error)):
            return (
                f"{function.name} needs the value of its argument {argument}, and arguments are "
                f"traced without values. {advise_closure(function, names, argument, value)}"
            )
    return None
