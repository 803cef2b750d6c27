"""Rejects callbacks to the host, which cannot be exported; some can be left out on request."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import jaxpr_as_fun

from jax2tf_bridge.errors import Message, NotExportableError
from jax2tf_bridge.from_jax._jax_compat_lowering import (
    Rule,
    find_primitive,
    lower_by_platform,
    lower_fun,
)
from jax2tf_bridge.from_jax.lowering._options import DROP_CHECKS, ExportOptions
from jax2tf_bridge.from_jax.source_lines import (
    format_place,
    iter_equation_paths,
    iter_equations,
    user_line_of_equation,
)

_CALLBACKS = {
    "pure_callback": "jax.pure_callback",
    "io_callback": "jax.experimental.io_callback",
}
_DEBUG_CALLS = {
    "debug_callback": "jax.debug.callback, jax.debug.breakpoint or jax.debug.print",
    "debug_print": "jax.debug.print",
    "inspect_sharding": "jax.debug.inspect_array_sharding",
}
_CHECKIFY_CHECK = "check"
_DEBUG_EFFECT = ".debugging.DebugEffect"
# JAX 0.12 has the second one.
_CHECK_EFFECTS = (".checkify.ErrorEffect", ".effects.ErrorEffect")

# Effects that only keep JAX from dropping calls during tracing; the module does not have them.
_TRACING_EFFECTS = frozenset(
    f"jax2tf_bridge.calling_tf._jax_compat.{name}"
    for name in ("CallTfEffect", "StatefulCallTfEffect")
)

_EQUINOX_CHECKS = frozenset(
    ("equinox._errors", f"_error.<locals>.{name}") for name in ("raises", "tpu_msg")
)
"""Module and qualified name of the callbacks of equinox.error_if, Equinox 0.11 to 0.13."""

_EQUINOX_CALL = "branched_error_if_impl"
"""Name of the jitted function around each Equinox check; JAX caches its trace."""


def refuse_host_callbacks(traced: jax.stages.Traced, name: str, options: ExportOptions) -> None:
    """Rejects a function that calls back to the Python process that traced it.

    Calls that the options leave out are accepted, because `make_callback_rules` drops them.

    Raises:
      NotExportableError: there is such a call. The message has the primitive and the user's line.
    """
    if not all(hasattr(aval, "dtype") for aval in traced.jaxpr.out_avals):
        raise NotExportableError(
            f"{name} returns a token (jax.lax.create_token), which orders effects inside JAX. "
            "TensorFlow has no such type. Return only the arrays."
        )
    for path in iter_equation_paths(traced.jaxpr.jaxpr):
        equation = path[-1]
        primitive = equation.primitive.name
        if primitive in _DEBUG_CALLS:
            if not options.drops_debug_calls:
                raise _make_error(
                    name,
                    path,
                    "Remove the call, or add DisabledSafetyCheck.debug_effects() to the disabled "
                    "checks, which drops it",
                )
            params = equation.params
            if params.get("ordered") or "Ordered" in str(params.get("effect")):
                raise _make_error(
                    name,
                    path,
                    "It is ordered, and only unordered calls can be dropped: write it without "
                    "ordered=True, or remove it",
                )
        elif primitive in _CALLBACKS:
            if not is_equinox_check(equation.params):
                raise _make_error(
                    name,
                    path,
                    "Remove the call, or do that work in TensorFlow before or after the converted "
                    "function",
                )
            if not options.drops_checks:
                raise _make_equinox_error(name, equation.params, _locate_check(path))
        elif _is_checkify_check(equation) and not options.drops_checks:
            raise NotExportableError(
                Message(
                    f"{name} calls checkify.check{_locate(path)}, but nothing handles its "
                    "errors. Leave its checks out with ",
                    DROP_CHECKS,
                    ", or export lambda *args: checkify.checkify(f)(*args)[1].",
                )
            )


def make_callback_rules(
    traced: jax.stages.Traced, name: str, options: ExportOptions
) -> tuple[tuple[Any, Rule], ...]:
    """Lists (primitive, lowering rule) pairs for host callbacks, debugging calls and checks.

    A library's primitive has no visible equations before it is lowered, so
    `refuse_host_callbacks` cannot see the callbacks inside it.
    """
    primitives = map(find_primitive, ("pure_callback_p", "io_callback_p"))
    rules: dict[Any, Rule] = {
        primitive: functools.partial(_lower_callback, name, str(primitive), options)
        for primitive in primitives
        if primitive is not None
    }
    for equation in iter_equations(traced.jaxpr.jaxpr):
        is_debug_call = equation.primitive.name in _DEBUG_CALLS
        if (is_debug_call and options.drops_debug_calls) or (
            options.drops_checks and _is_checkify_check(equation)
        ):
            rules[equation.primitive] = _drop_call
    if options.drops_checks:
        rules[jax.lax.cond_p] = _lower_cond
    return tuple(rules.items())


def name_effects(
    effects: Sequence[Any], function: str, options: ExportOptions | None = None
) -> tuple[str, ...]:
    """Returns module and class of each effect, from which jax.export recreates it.

    Effects of calls that the options leave out are omitted; by default there are no options.

    Raises:
      NotExportableError: an effect cannot be recreated, so the function could not be called.
    """
    names = []
    dropped: tuple[str, ...] = ()
    if options is not None:
        dropped += (_DEBUG_EFFECT,) if options.drops_debug_calls else ()
        dropped += _CHECK_EFFECTS if options.drops_checks else ()
    for effect in effects:
        kind = type(effect)
        name = f"{kind.__module__}.{kind.__qualname__}"
        if name in _TRACING_EFFECTS or name.endswith(dropped):
            continue
        if not _can_recreate(effect):
            raise NotExportableError(
                f"{function} has the effect {name}, which cannot be recreated when the function "
                f"is read, because {kind.__name__}() does not return an equal object. Give the "
                "class a constructor without arguments, and __eq__ and __hash__."
            )
        names.append(name)
    return tuple(names)


def _can_recreate(effect: Any) -> bool:
    try:
        copy = type(effect)()
        return bool(copy == effect and hash(copy) == hash(effect))
    except Exception:  # any type is possible: the class is the user's
        return False


def is_equinox_check(params: Mapping[str, Any]) -> bool:
    """Returns whether the parameters of a callback belong to an Equinox check."""
    function = _get_callback(params)
    place = (getattr(function, "__module__", ""), getattr(function, "__qualname__", ""))
    return place in _EQUINOX_CHECKS


def _get_callback(params: Mapping[str, Any]) -> Any:
    callback = params.get("callback")
    return getattr(callback, "callback_func", callback)


def _make_equinox_error(name: str, params: Mapping[str, Any], place: str) -> NotExportableError:
    return NotExportableError(
        Message(
            f"{name} checks values while it runs{_quote_check(params)}{place}. Such a check of "
            "Equinox (equinox.error_if) calls back to Python, which is not available where the "
            "model is served. Leave the checks out with ",
            DROP_CHECKS,
            ": the function then returns what it computes, whatever the values.",
        )
    )


def _quote_check(params: Mapping[str, Any]) -> str:
    """Quotes the only message of an Equinox check, as " ('x must be positive')", or returns ""."""
    function = _get_callback(params)
    try:
        messages = inspect.getclosurevars(function).nonlocals.get("msgs") or ()
    except (TypeError, ValueError):
        return ""
    text = str(messages[0]).strip().split("\n", 1)[0] if messages else ""
    return f" ({text!r})" if text and len(messages) == 1 else ""


def _locate_check(path: Sequence[Any]) -> str:
    """Returns " at file:line" of a check; the user's line may be that of an outer equation."""
    names = [equation.params.get("name") for equation in path]
    if _EQUINOX_CALL in names:
        # Inner equations may come from a cached trace of another call.
        path = path[: names.index(_EQUINOX_CALL) + 1]
    return _locate(path)


def _is_checkify_check(equation: Any) -> bool:
    return bool(
        equation.primitive.name == _CHECKIFY_CHECK and equation.params.keys() >= {"err_tree"}
    )


def _drop_call(ctx: Any, *args: Any, **params: Any) -> Sequence[Any]:
    return []


def _lower_callback(
    name: str, primitive: str, options: ExportOptions, ctx: Any, *args: Any, **params: Any
) -> Sequence[Any]:
    if not is_equinox_check(params):
        raise NotExportableError(
            f"{name} calls back to Python by {_CALLBACKS[primitive]} within a primitive of a "
            "library, and Python is not available where the model is served. Call the library "
            "without its callback, or do that work in TensorFlow before or after the converted "
            "function."
        )
    if not options.drops_checks:
        raise _make_equinox_error(name, params, "")
    # Reached only outside the branch that `_lower_cond` removes.
    avals = ctx.avals_out
    return lower_fun(lambda *_: [_make_invalid(aval) for aval in avals])(ctx, *args)


def _make_invalid(aval: Any) -> Any:
    value = jnp.nan if jnp.issubdtype(aval.dtype, jnp.inexact) else 0
    return jnp.full(aval.shape, value, aval.dtype)


def _lower_cond(ctx: Any, index: Any, *args: Any, **params: Any) -> Sequence[Any]:
    """Lowers a cond between a check's error and its value to the value alone."""
    passing = [b for b in params["branches"] if not any(map(_is_equinox_call, b.jaxpr.eqns))]
    if len(passing) != 1 or len(params["branches"]) != 2:
        return lower_by_platform(jax.lax.cond_p, {}, ctx, index, *args, **params)
    return lower_fun(lambda _, *operands: jaxpr_as_fun(passing[0])(*operands))(ctx, index, *args)


def _is_equinox_call(equation: Any) -> bool:
    primitive: str = equation.primitive.name
    return primitive in _CALLBACKS and is_equinox_check(equation.params)


def _make_error(name: str, path: Sequence[Any], help_text: str) -> NotExportableError:
    primitive = path[-1].primitive.name
    function = {**_CALLBACKS, **_DEBUG_CALLS}[primitive]
    return NotExportableError(
        f"{name} calls back to Python by {function}{_locate(path)}, and Python is not "
        f"available where the model is served. {help_text}."
    )


def _locate(path: Sequence[Any]) -> str:
    return format_place(user_line_of_equation(path))
