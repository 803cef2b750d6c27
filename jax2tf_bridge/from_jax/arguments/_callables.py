"""Functions as users pass them: checked, named and jitted once; advice about their arguments."""

from __future__ import annotations

import functools
import inspect
import keyword
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax import export as jax_export

from jax2tf_bridge.errors import FunctionError
from jax2tf_bridge.from_jax import _jax_compat
from jax2tf_bridge.from_jax.arguments._user_code import defined_at, written_function
from jax2tf_bridge.portable import PortableFunction, unwrap_portable


@dataclass(frozen=True)
class JaxCallable:
    """A function of the user's, ready to be traced.

    Attributes:
      name: for messages and for the module.
      code_name: what code that calls the bridge may call it.
      jitted: what to trace.
      static_argnums, static_argnames: the arguments that jit takes as values.
      source: where it was defined, as "file:line (function)", if that is known.
      is_unbound_module: whether it is a module of flax.linen without parameters.
      variadic_names: names of the first arguments that fall into `*args`, if they are known.
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
        """Checks `function`, and jits it unless it is jitted already.

        Raises:
          FunctionError: `function` is not callable, or is a generator function.
        """
        if not callable(function):
            raise FunctionError(
                f"{caller} expected a JAX function, got {_short(function)} of type "
                f"{type(function).__name__}, which is not callable.{_instead(function)}"
            )
        if inspect.isgeneratorfunction(function):
            raise FunctionError(
                f"{caller} expected a function that returns arrays, got the generator function "
                f"{_name(function)}. Return a list instead of yielding."
            )
        signature = _signature(function)
        jitted: Any = function
        numbers, names = frozenset[int](), frozenset[str]()
        if _is_jitted(function):
            numbers, names = _jax_compat.static_arguments(function)
            count = _positional_count(signature)
            numbers = frozenset(n + count if n < 0 else n for n in numbers)
        else:
            jitted = jax.jit(_plain(function))
        return JaxCallable(
            name=_name(function),
            code_name=_code_name(function),
            jitted=jitted,
            static_argnums=numbers,
            static_argnames=names,
            signature=signature,
            source=defined_at(function),
            is_unbound_module=_is_unbound_module(function),
            variadic_names=_linen_argument_names(function),
        )

    def is_static(self, position: int) -> bool:
        """Returns whether the positional argument is a value and not an array."""
        return position in self.static_argnums

    def argument_names(self, count: int) -> tuple[str, ...]:
        """Names each of `count` positional arguments."""
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
    # The result of flax.nnx.jit looks like one, but traces to objects of Flax.
    is_of_flax = type(function).__module__.partition(".")[0] == "flax"
    return isinstance(function, jax.stages.Wrapped) and not is_of_flax


def _is_linen_module(value: object) -> bool:
    # Compared by name, so that Flax need not be imported.
    kinds = [(kind.__module__, kind.__name__) for kind in type(value).__mro__]
    return ("flax.linen.module", "Module") in kinds


def _is_unbound_module(function: object) -> bool:
    return _is_linen_module(function) and getattr(function, "scope", None) is None


def _linen_argument_names(function: object) -> tuple[str, ...]:
    """Names the positional arguments of a linen module's method behind `Module.apply`'s `*args`.

    Returns no names for any other function.
    """
    args: tuple[Any, ...] = ()
    keywords: dict[str, Any] = {}
    if isinstance(function, functools.partial):
        args, keywords = function.args, function.keywords
        function = function.func
    module = getattr(function, "__self__", None)
    if getattr(function, "__name__", "") != "apply" or not _is_linen_module(module):
        return ()
    method = keywords.get("method") or "__call__"
    signature = _signature(getattr(type(module), method) if isinstance(method, str) else method)
    if signature is None:
        return ()
    positional = list(signature.parameters)[1 : _positional_count(signature)]
    return tuple(positional[max(len(args) - 1, 0) :])


def _plain(function: Callable[..., Any]) -> Callable[..., Any]:
    # A plain function around it, since jit wants a hashable one with a name: callable objects
    # (an Equinox module) and partials may have neither.
    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    call.__name__ = call.__qualname__ = _name(function)
    signature = _signature(function)
    if signature is not None:
        call.__signature__ = signature  # type: ignore[attr-defined]
    written = written_function(function)
    if hasattr(written, "__code__"):
        # JAX's messages name the place of the wrapped function.
        call.__wrapped__ = written  # type: ignore[attr-defined]
    return call


def _name(function: object) -> str:
    while isinstance(function, functools.partial):
        function = function.func
    name = getattr(function, "__name__", None)
    return name if isinstance(name, str) else type(function).__name__


def _code_name(function: object) -> str:
    """Returns the name that code can have for the function; f where it has none."""
    name = getattr(function, "__name__", None)
    named = isinstance(name, str) and name.isidentifier() and not keyword.iskeyword(name)
    is_method = callable(function) and inspect.ismethod(inspect.unwrap(function))
    return str(name) if named and not is_method else "f"


def _signature(function: Callable[..., Any]) -> inspect.Signature | None:
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):
        return None


def _positional_count(signature: inspect.Signature | None) -> int:
    parameters = signature.parameters.values() if signature else ()
    return sum(p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in parameters)


def _instead(value: object) -> str:
    """Returns advice to call a function that was exported already."""
    if isinstance(unwrap_portable(value), PortableFunction):
        return " It is exported already: to_tf(portable) makes a TensorFlow function of it."
    if isinstance(value, jax_export.Exported):
        return " It is exported already: from_exported(exported) makes a portable function of it."
    if callable(getattr(value, "apply", None)):
        return " It has an apply: give that, as model.apply."
    return ""


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:80] + "..."


class AlreadyTraced:
    """A jax.stages.Wrapped around a trace, so that nothing is traced twice."""

    def __init__(self, traced: jax.stages.Traced) -> None:
        """Takes the trace that `trace` will return."""
        self._traced = traced

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Raises, since it is only lowered."""
        raise NotImplementedError

    def trace(self, *args: Any, **kwargs: Any) -> jax.stages.Traced:
        """Returns the trace, whatever the arguments."""
        return self._traced

    def lower(self, *args: Any, **kwargs: Any) -> jax.stages.Lowered:
        """Lowers the trace for JAX's default platform."""
        lowered: jax.stages.Lowered = self._traced.lower()
        return lowered

    def eval_shape(self, *args: Any, **kwargs: Any) -> Any:
        """Returns the shapes and dtypes of the results."""
        return self._traced.out_info


_WRITTEN_AS_CODE = (bool, int, float, str)


def close_over(function: JaxCallable, names: Sequence[str], argument: str, value: Any) -> str:
    """Returns advice, with code, to pass an argument before the function is exported.

    Args:
      function: whose argument it is.
      names: of the positional arguments of the call.
      argument: the name of the one to give before.
      value: what it was called with.

    >>> f = JaxCallable.of(lambda x, mode: x, caller="export")
    >>> close_over(f, ["x", "mode"], "mode", "fast")
    "Close over it, or give it before: functools.partial(f, mode='fast')."
    """
    called = function.code_name
    shown = repr(value) if isinstance(value, _WRITTEN_AS_CODE) else argument
    if not argument.isidentifier():  # one of *args
        return "Close over it."
    parameters = {} if function.signature is None else function.signature.parameters
    parameter = parameters.get(argument)
    by_position = parameter is not None and parameter.kind is parameter.POSITIONAL_ONLY
    if argument in names[:-1] or by_position:
        # Later positional arguments would take its place.
        others = [name for name in names if name != argument]
        if not all(map(str.isidentifier, others)):
            return "Close over it."
        call = ", ".join(shown if name == argument else name for name in names)
        return f"Close over it: lambda {', '.join(others)}: {called}({call})."
    return f"Close over it, or give it before: functools.partial({called}, {argument}={shown})."


def value_note(
    error: Exception, function: JaxCallable, names: Sequence[str], given: Mapping[str, Any]
) -> str | None:
    """Returns a note for JAX's error that an argument has no value while tracing.

    Args:
      error: what JAX raised; it names the arguments.
      function: whose arguments they are.
      names: of the positional arguments of the call.
      given: the arguments that were numbers of Python, by name.
    """
    for argument, value in given.items():
        if re.search(rf"\bargument {re.escape(argument)}(?![\w\[])", str(error)):
            return (
                f"{function.name} needs the value of its argument {argument}, and arguments are "
                f"traced without values. {close_over(function, names, argument, value)}"
            )
    return None
