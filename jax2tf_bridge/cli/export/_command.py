"""`jax2tf-bridge export`: writes a JAX function as a .jaxfn file."""

from __future__ import annotations

import argparse
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from jax2tf_bridge._dtypes import KEYS, NEED_X64
from jax2tf_bridge._utils import printable
from jax2tf_bridge.cli._commands import (
    NOT_NEGATIVE,
    Command,
    UsageError,
    add_output,
    add_target,
    check_output,
    target_of,
)
from jax2tf_bridge.cli._console import Console, first_line
from jax2tf_bridge.cli._packages import loading
from jax2tf_bridge.cli._references import UserCodeError, current_folder_first, import_reference
from jax2tf_bridge.cli.export._argument_specs import (
    ArgumentSpec,
    read_arguments,
    read_named,
    read_shapes,
)
from jax2tf_bridge.errors import BridgeError, InconclusiveShapeError, Message
from jax2tf_bridge.inspecting import summary
from jax2tf_bridge.portable import AUTO, NoGradient, PortableFunction
from jax2tf_bridge.serialization import write_function
from shape_poly import Dim

_DESCRIPTION = """\
Writes a JAX function, at the shapes given, as a .jaxfn file. Needs JAX, and no TensorFlow."""

_EXAMPLES = """\
SPEC is one argument: a dtype and the sizes, as f32[3,28] or int32[b,t], where names are sizes that
stay open; a pytree of these, as '{"w": "f32[28,10]", "b": "f32[10]"}'; or @module:name for an array
or pytree of arrays (or a function that returns it). A tuple @module:name as the only SPEC is all
the arguments.

examples:
  jax2tf-bridge export model:predict --args @model:params 'f32[b,28]' -o predict.jaxfn
  jax2tf-bridge export model:predict --args @model:example_args --shapes None '(b, 28)' \\
      --constraints 'b >= 2' --tensorflow 2.17 -o predict.jaxfn"""


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "function",
        metavar="module:function",
        help="what to export, imported from the current folder or what is installed",
    )
    several: dict[str, Any] = {"nargs": "+", "action": "extend", "default": []}
    parser.add_argument("--args", metavar="SPEC", help="its arguments", **several)
    parser.add_argument("--kwargs", metavar="NAME=SPEC", help="those by keyword", **several)
    parser.add_argument(
        "--shapes",
        metavar="SHAPE",
        help="polymorphic_shapes: one for all or for each of --args: '(b, 28)', None to keep its "
        "sizes, auto, or a pytree of these",
        **several,
    )
    parser.add_argument(
        "--constraints",
        metavar="CONSTRAINT",
        help="what holds for open sizes, as 'b >= 2'; or auto, to add what the function needs",
        **several,
    )
    parser.add_argument(
        "--platforms", metavar="NAME,NAME", help="cpu, cuda, rocm, tpu, gpu; by default all"
    )
    add_target(parser, "the release to write it for, as 2.17; by default what most can run")
    parser.add_argument(
        "--runtime-checks",
        choices=["drop"],
        help="leave out the checks of values that equinox.error_if and checkify.check make",
    )
    parser.add_argument(
        "--vjp-order",
        type=NOT_NEGATIVE,
        metavar="N",
        help="how many orders of gradients to store; by default 1, or 0 if it has no gradient",
    )
    parser.add_argument("--x64", action="store_true", help="let JAX use 64 bits")
    add_output(parser, "FILE", "the file to write", required=True)


@dataclass(frozen=True)
class _ArrayOption:
    """Array argument of `export`: a shape, which may have names, and a dtype."""

    shape: tuple[Dim, ...]
    dtype: Any


def run(options: argparse.Namespace) -> None:
    """Exports the function and writes the file."""
    console = Console(verbose=options.verbose)
    check_output(options.output)
    specs = [_read(text, "--args") for text in options.args]
    named = dict(_read_keyword(text) for text in options.kwargs)
    shapes = _shapes(options.shapes, specs)
    target = target_of(options)
    platforms = None if options.platforms is None else options.platforms.split(",")
    with loading("JAX", "export", console):
        from jax2tf_bridge.from_jax import export
    import jax

    if options.x64:
        jax.config.update("jax_enable_x64", True)
    with current_folder_first():
        with console.step(f"importing {options.function}"):
            function = import_reference(options.function, "module:function")
            args = _positional(specs)
            kwargs = {name: _value(spec) for name, spec in named.items()}
        _check_call(options.function, function, args, kwargs)
        _check_shapes(options.shapes, len(args))
        with console.step(f"exporting {options.function}"):
            portable = _run_export(
                lambda: export(
                    function,
                    polymorphic_shapes=shapes,
                    polymorphic_constraints=[
                        AUTO if c == "auto" else c for c in options.constraints
                    ],
                    platforms=platforms,
                    target=target,
                    runtime_checks=options.runtime_checks,
                )(*args, **kwargs),
                options.function,
            )
        with console.step(f"exporting the gradient of {options.function}"):
            portable = _with_gradient(portable, options.vjp_order, console)
    with console.step(f"writing {options.output}"):
        write_function(options.output, portable)
    for platform, reason in portable.dropped_platforms:
        console.note(f"not for {platform}: {reason}")
    print(printable(f"{options.output}: {summary(portable)}"))


@dataclass(frozen=True)
class _Reference:
    """Reference to an array or pytree of arrays in the user's module."""

    name: str
    option: str


def _read(text: str, option: str) -> Any:
    if text.startswith("@"):
        return _Reference(text[1:], option)
    return read_arguments(text, option)


def _read_keyword(text: str) -> tuple[str, Any]:
    name, spec = read_named(text, "--kwargs")
    return name, _read(spec, f"--kwargs {name}")


def _shapes(texts: Sequence[str], specs: Sequence[Any]) -> Any:
    if not texts:
        return None
    for i, spec in enumerate(specs):
        if any(leaf.is_open for leaf in _leaves(spec)):
            raise UsageError(
                f"--shapes: argument {i + 1} of --args names open sizes itself; write them either "
                "there or in --shapes"
            )
    shapes = [read_shapes(text, "--shapes") for text in texts]
    if len(shapes) == 1 and not isinstance(shapes[0], (dict, list, tuple)):
        return shapes[0]  # for all arguments
    return shapes


def _check_shapes(texts: Sequence[str], arguments: int) -> None:
    if len(texts) > 1 and len(texts) != arguments:
        raise UsageError(
            f"--shapes: expected one shape for all arguments, or one for each of the {arguments} "
            f"of --args. Got: {len(texts)}"
        )


def _leaves(tree: Any) -> list[ArgumentSpec]:
    if isinstance(tree, ArgumentSpec):
        return [tree]
    children = tree.values() if isinstance(tree, dict) else tree
    if not isinstance(tree, (dict, list, tuple)):
        return []
    return [leaf for child in children for leaf in _leaves(child)]


def _positional(specs: Sequence[Any]) -> tuple[Any, ...]:
    values = [_value(spec) for spec in specs]
    if len(specs) == 1 and isinstance(specs[0], _Reference):
        (value,) = values
        # The arguments of an example call; a named tuple is one argument.
        if isinstance(value, tuple) and not hasattr(value, "_fields"):
            return value
    return tuple(values)


def _value(spec: Any) -> Any:
    """Makes an argument of `export` from ArgumentSpecs or a reference."""
    if isinstance(spec, _Reference):
        value = import_reference(spec.name, spec.option)
        # Callable objects are not called: a model may be both callable and a pytree of arrays.
        if inspect.isroutine(value):
            try:
                return value()
            except Exception as e:
                raise UserCodeError(f"{spec.option}: calling {spec.name}()", e) from e
        return value
    if isinstance(spec, ArgumentSpec):
        return _ArrayOption(spec.shape, _dtype(spec.dtype))
    if isinstance(spec, dict):
        return {key: _value(child) for key, child in spec.items()}
    if isinstance(spec, (list, tuple)):
        return type(spec)(_value(child) for child in spec)
    return None


def _dtype(name: str) -> Any:
    import jax

    if name.startswith("key<"):
        if name not in KEYS:
            kinds = ", ".join(key[4:-1] for key in KEYS)
            raise UsageError(f"--args: no PRNG key type {name[4:-1]}; there are {kinds}")
        return jax.eval_shape(lambda: jax.random.key(0, impl=KEYS[name].implementation)).dtype
    if name in NEED_X64 and not jax.config.read("jax_enable_x64"):
        raise UsageError(
            f"--args: JAX would take {name} in 32 bits; add --x64, or set JAX_ENABLE_X64=1"
        )
    dtype = getattr(jax.numpy, name, None)
    if dtype is None:
        raise UsageError(f"--args: JAX {jax.__version__} has no dtype {name}")
    return jax.numpy.dtype(dtype)


def _check_call(name: str, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    if not callable(function):
        raise UsageError(
            f"module:function: {name} is no function, but of type {type(function).__name__}"
        )
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return  # JAX will find out
    try:
        signature.bind(*args, **kwargs)
    except TypeError as e:
        given = f"{len(args)} by --args" + (f", {', '.join(kwargs)} by --kwargs" if kwargs else "")
        plain = signature.replace(
            parameters=[p.replace(annotation=p.empty) for p in signature.parameters.values()],
            return_annotation=signature.empty,
        )
        raise UsageError(f"--args: {name}{plain}: {e}; given are {given}") from e


def _run_export(make: Callable[[], PortableFunction], name: str) -> PortableFunction:
    try:
        return make()
    except BridgeError:
        raise
    except Exception as e:
        # Imported late: the package needs JAX, which is loaded by now.
        from jax2tf_bridge.from_jax.arguments import user_line

        raise UserCodeError(f"tracing {name}", e, user_line(e)) from e


def _with_gradient(
    portable: PortableFunction, order: int | None, console: Console
) -> PortableFunction:
    """Adds the requested gradients; by default one order, if possible."""
    try:
        if order is not None:
            return portable.with_vjp(order)
        try:
            return portable.with_vjp(1)
        except InconclusiveShapeError:
            raise
        except BridgeError as e:
            text = first_line(e).removeprefix(f"{portable.name} has no gradient: ")
            because = text.rstrip(".")
            console.note(f"{portable.name} is stored without a gradient: {because}.")
            return replace(portable, gradient=NoGradient(because))
    except InconclusiveShapeError as e:
        raise BridgeError(Message(e, " Or leave the gradient out: --vjp-order 0")) from e


COMMAND = Command("export", _DESCRIPTION, _EXAMPLES, _add_options, run)
