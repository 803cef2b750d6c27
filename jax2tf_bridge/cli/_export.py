"""`jax2tf-bridge export`: writes a JAX function as a .jaxfn file."""

from __future__ import annotations

import argparse
import ast
import inspect
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from jax2tf_bridge._dtypes import ALL_DTYPES, KEYS, NEED_X64, Kind
from jax2tf_bridge._utils import did_you_mean
from jax2tf_bridge.cli._commands import (
    NOT_NEGATIVE,
    Command,
    UsageError,
    UserCodeError,
    add_json,
    add_output,
    add_target,
    check_output,
    import_reference,
    read_target,
    report_output,
    search_current_folder_first,
    split_assignment,
    split_names,
)
from jax2tf_bridge.cli._console import Console, get_first_line
from jax2tf_bridge.errors import BridgeError, InconclusiveShapeError, Message
from jax2tf_bridge.inspecting import summarize_function
from jax2tf_bridge.portable import AUTO, NoGradient, PortableFunction
from jax2tf_bridge.serialization import write_function
from shape_poly import Dim, is_symbolic_dim, symbolic_shape

_DESCRIPTION = """\
Writes a JAX function, for the given shapes, as a .jaxfn file. Needs JAX, not TensorFlow."""

_EXAMPLES = """\
SPEC is one argument: a dtype and sizes, such as f32[3,28] or int32[b,t], where names are open
sizes; a pytree of these, such as '{"w": "f32[28,10]", "b": "f32[10]"}'; or @module:name for an
array or pytree of arrays (or a function that returns it). If the only SPEC is @module:name of a
tuple, the tuple has all the arguments.

examples:
  jax2tf-bridge export model:predict --args @model:params 'f32[b,28]' -o predict.jaxfn
  jax2tf-bridge export model:predict --args @model:example_args --shapes None '(b, 28)' \\
      --constraints 'b >= 2' --tensorflow 2.17 -o predict.jaxfn"""


_LETTERS: Mapping[Kind, tuple[str, ...]] = MappingProxyType(
    {"float": ("f",), "int": ("i", "s"), "uint": ("u", "ui"), "complex": ("c",)}
)
_SHORT = {"bool": "bool", "b1": "bool", "i1": "bool", "pred": "bool"} | {
    short: row.name
    for row in ALL_DTYPES
    if row.element_type is not None
    for letter in _LETTERS.get(row.kind, ())
    # f8_e4m3 and f8e4m3
    for name in (row.name, row.name.replace("_", ""))
    for short in (name.replace(row.kind, letter, 1),)
}
DTYPES: Mapping[str, str] = MappingProxyType({**_SHORT, **{name: name for name in _SHORT.values()}})
"""Dtypes by their short (f32, bf16, u8) and long names."""

_ARRAY = re.compile(r"\s*(?P<dtype>key<\w+>|[A-Za-z]\w*)\s*(?:\[(?P<shape>.*)\])?\s*", re.DOTALL)
_UNNAMED = re.compile(r"(?:^|,)\s*(None|\?|-\s*1)\s*(?=,|$)")
"""Notations of other tools for an open size."""
_FORM = "a dtype and sizes or names of sizes, as 'f32[b,28]', 'int32[4]' or 'bool' for a scalar"


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "function",
        metavar="module:function",
        help="the function to export, imported from the current folder or an installed package",
    )
    several: dict[str, Any] = {"nargs": "+", "action": "extend", "default": []}
    parser.add_argument("--args", metavar="SPEC", help="the positional arguments", **several)
    parser.add_argument("--kwargs", metavar="NAME=SPEC", help="the keyword arguments", **several)
    parser.add_argument(
        "--shapes",
        metavar="SHAPE",
        help="polymorphic_shapes, one for all of --args or one for each: '(b, 28)', None to keep "
        "the sizes, auto, or a pytree of these",
        **several,
    )
    parser.add_argument(
        "--constraints",
        metavar="CONSTRAINT",
        help="constraints on open sizes, such as 'b >= 2'; auto adds those that the function needs",
        **several,
    )
    parser.add_argument(
        "--platforms",
        type=split_names,
        metavar="NAME,NAME",
        help="cpu, cuda, rocm, tpu, gpu; by default all",
    )
    add_target(
        parser, "the release to write it for, such as 2.17; by default, most releases can run it"
    )
    parser.add_argument(
        "--runtime-checks",
        choices=["drop"],
        help="leave out the checks of values that equinox.error_if and checkify.check make",
    )
    parser.add_argument(
        "--vjp-order",
        type=NOT_NEGATIVE,
        metavar="N",
        help="number of gradient orders to store; by default 1, or 0 if there is no gradient",
    )
    parser.add_argument("--x64", action="store_true", help="let JAX use 64 bits")
    add_output(parser, "FILE", "the file to write")
    add_json(parser)


def _run(options: argparse.Namespace, console: Console) -> None:
    check_output(options.output)
    specs = [_read_argument(text, "--args") for text in options.args]
    keyword_specs = dict(map(read_keyword, options.kwargs))
    shapes = _read_all_shapes(options.shapes, specs)
    target = read_target(options)
    with console.loading("JAX", "export"):
        from jax2tf_bridge.from_jax import export
    import jax

    if options.x64:
        jax.config.update("jax_enable_x64", True)
    with search_current_folder_first():
        with console.step(f"importing {options.function}"):
            function = import_reference(options.function, "module:function")
            args = _make_args(specs)
            kwargs = {name: _make_value(spec) for name, spec in keyword_specs.items()}
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
                    platforms=options.platforms,
                    target=target,
                    runtime_checks=options.runtime_checks,
                )(*args, **kwargs),
                options.function,
            )
        with console.step(f"exporting the gradient of {options.function}"):
            portable = _add_gradient(portable, options.vjp_order, console)
    with console.step(f"writing {options.output}"):
        write_function(options.output, portable)
    for platform, reason in portable.dropped_platforms:
        console.note(f"not for {platform}: {reason}")
    report_output(options, options.output, [f"{options.output}: {summarize_function(portable)}"])


@dataclass(frozen=True)
class _Reference:
    """Reference to an array or pytree of arrays in the user's module."""

    name: str
    option: str


def _read_argument(text: str, option: str) -> Any:
    if text.startswith("@"):
        return _Reference(text[1:], option)
    return read_arguments(text, option)


def read_keyword(text: str) -> tuple[str, Any]:
    """Reads NAME=SPEC.

    Raises:
      UsageError: it has no name, or SPEC cannot be read.
    """
    try:
        name, spec = split_assignment(text)
    except ValueError:
        raise UsageError(f"--kwargs: expected name=SPEC, as scale=f32[3]. Got: {text!r}") from None
    return name, _read_argument(spec, f"--kwargs {name}")


def _read_all_shapes(texts: Sequence[str], specs: Sequence[Any]) -> Any:
    if not texts:
        return None
    for i, spec in enumerate(specs):
        if any(leaf.is_open for leaf in _list_leaves(spec)):
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


def _list_leaves(tree: Any) -> list[ArgumentSpec]:
    if isinstance(tree, ArgumentSpec):
        return [tree]
    children = tree.values() if isinstance(tree, dict) else tree
    if not isinstance(tree, (dict, list, tuple)):
        return []
    return [leaf for child in children for leaf in _list_leaves(child)]


def _make_args(specs: Sequence[Any]) -> tuple[Any, ...]:
    values = [_make_value(spec) for spec in specs]
    if len(specs) == 1 and isinstance(specs[0], _Reference):
        (value,) = values
        # The arguments of an example call; a named tuple is one argument.
        if isinstance(value, tuple) and not hasattr(value, "_fields"):
            return value
    return tuple(values)


def _make_value(spec: Any) -> Any:
    if isinstance(spec, _Reference):
        value = import_reference(spec.name, spec.option)
        # Callable objects are not called: a model may be both callable and a pytree of arrays.
        if inspect.isroutine(value):
            try:
                return value()
            except (Exception, SystemExit) as e:
                raise UserCodeError(f"{spec.option}: calling {spec.name}()", e) from e
        return value
    if isinstance(spec, ArgumentSpec):
        return replace(spec, dtype=_make_dtype(spec.dtype))
    if isinstance(spec, dict):
        return {key: _make_value(child) for key, child in spec.items()}
    if isinstance(spec, (list, tuple)):
        return type(spec)(_make_value(child) for child in spec)
    return None


def _make_dtype(name: str) -> Any:
    import jax

    if name.startswith("key<"):
        if name not in KEYS:
            kinds = ", ".join(key[4:-1] for key in KEYS)
            raise UsageError(f"JAX has no PRNG keys of type {name[4:-1]}; it has {kinds}")
        return jax.eval_shape(lambda: jax.random.key(0, impl=KEYS[name].implementation)).dtype
    if name in NEED_X64 and not jax.config.read("jax_enable_x64"):
        raise UsageError(f"JAX would take {name} in 32 bits; add --x64, or set JAX_ENABLE_X64=1")
    dtype = getattr(jax.numpy, name, None)
    if dtype is None:
        raise UsageError(f"JAX {jax.__version__} has no dtype {name}")
    return jax.numpy.dtype(dtype)


def _check_call(name: str, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    if not callable(function):
        raise UsageError(
            f"module:function: {name} must be a function. Got: {type(function).__name__}"
        )
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return  # without a signature, only JAX can check the call
    try:
        signature.bind(*args, **kwargs)
    except TypeError as e:
        counts = f"{len(args)} in --args" + (f", {', '.join(kwargs)} in --kwargs" if kwargs else "")
        plain = signature.replace(
            parameters=[p.replace(annotation=p.empty) for p in signature.parameters.values()],
            return_annotation=signature.empty,
        )
        raise UsageError(f"--args: {name}{plain}: {e}. Got: {counts}") from e


def _run_export(make: Callable[[], PortableFunction], name: str) -> PortableFunction:
    try:
        return make()
    except BridgeError:
        raise
    except (Exception, SystemExit) as e:
        # Imported late: the package needs JAX, which is loaded by now.
        from jax2tf_bridge.from_jax.source_lines import user_line

        raise UserCodeError(f"tracing {name}", e, user_line(e)) from e


def _add_gradient(
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
            text = get_first_line(e).removeprefix(f"{portable.name} has no gradient: ")
            because = text.rstrip(".")
            console.note(f"{portable.name} is stored without a gradient: {because}.")
            return replace(portable, gradient=NoGradient(because))
    except InconclusiveShapeError as e:
        raise BridgeError(Message(e, " Or leave the gradient out: --vjp-order 0")) from e


@dataclass(frozen=True)
class ArgumentSpec:
    """Shape and dtype of an array argument; `_make_value` replaces the dtype's name by JAX's dtype.

    >>> ArgumentSpec.read("f32[b,28]", "--args")
    ArgumentSpec(shape=(DimExpr('b'), 28), dtype='float32')
    """

    shape: tuple[Dim, ...]
    dtype: Any

    @property
    def is_open(self) -> bool:
        """True if a dimension is symbolic."""
        return any(map(is_symbolic_dim, self.shape))

    @staticmethod
    def read(text: str, option: str) -> ArgumentSpec:
        """Reads "f32[b,28]".

        Raises:
          UsageError: the syntax is wrong; the text names `option`.
        """
        match = _ARRAY.fullmatch(text)
        if match is None:
            hint = ""
            if option == "--args" and re.fullmatch(r"[A-Za-z_]\w*=.+", text):
                hint = f". For an argument by keyword, pass --kwargs {text!r}"
            raise UsageError(f"{option}: expected {_FORM}. Got: {text!r}{hint}")
        dtype = match["dtype"]
        if not dtype.startswith("key<"):
            if dtype not in DTYPES:
                near = did_you_mean(dtype, DTYPES)
                raise UsageError(f"{option}: {text!r} has the unknown dtype {dtype}{near}")
            dtype = DTYPES[dtype]
        unnamed = _UNNAMED.search(match["shape"] or "")
        if unnamed is not None:
            raise UsageError(
                f"{option}: {unnamed[1]} in {text!r} is not a size. Write a name for each open "
                "size, such as b; sizes with the same name are equal"
            )
        try:
            return ArgumentSpec(symbolic_shape(f"({match['shape'] or ''})"), dtype)
        except ValueError as e:
            raise UsageError(f"{option}: the shape in {text!r} cannot be read: {e}") from e


def read_arguments(text: str, option: str) -> Any:
    """Reads a pytree of ArgumentSpecs.

    Args:
      text: "f32[b,28]", or a pytree of such texts in JSON or Python syntax.
      option: where the user wrote it, for messages.

    Raises:
      UsageError: it cannot be read.

    >>> read_arguments('{"w": "f32[3]", "n": null}', "--args")
    {'w': ArgumentSpec(shape=(3,), dtype='float32'), 'n': None}
    """
    return _read_tree(text, option, ArgumentSpec.read)


def read_shapes(text: str, option: str) -> Any:
    """Reads an entry of polymorphic_shapes: a shape, "auto", "None", or a pytree of these.

    >>> read_shapes("(b, 28)", "--shapes"), read_shapes("auto", "--shapes")
    ('(b, 28)', AUTO)

    Raises:
      UsageError: it begins like a pytree but cannot be read as one.
    """
    if text.strip().startswith("(") and '"' not in text and "'" not in text:
        return text  # a shape, not a tuple of texts
    words = {"none": None, "-": None, "auto": AUTO}
    return _read_tree(text, option, lambda leaf, _: words.get(leaf.strip().lower(), leaf))


def _read_tree(text: str, option: str, leaf: Callable[[str, str], Any]) -> Any:
    if text.strip()[:1] not in ("{", "[", "("):
        return leaf(text, option)
    return _map_tree(_parse_tree(text, option), leaf, option, "")


def _parse_tree(text: str, option: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        pass
    try:
        return ast.literal_eval(text.strip())
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError) as e:
        shown = text if len(text) <= 80 else f"{text[:80]}..."
        raise UsageError(
            f"{option}: {shown!r} is not a pytree in JSON or Python syntax. "
            "Put it in single quotes for the shell, and each of its arrays in double quotes: "
            '\'{"w": "f32[3,4]", "b": ["f32[4]", null]}\''
        ) from e


def _map_tree(tree: Any, leaf: Callable[[str, str], Any], option: str, path: str) -> Any:
    if isinstance(tree, dict):
        return {k: _map_tree(v, leaf, option, f"{path}[{k!r}]") for k, v in tree.items()}
    if isinstance(tree, (list, tuple)):
        children = [_map_tree(v, leaf, option, f"{path}[{i}]") for i, v in enumerate(tree)]
        return children if isinstance(tree, list) else tuple(children)
    place = f"{option}, at {path}" if path else option
    if tree is None:
        return None
    if not isinstance(tree, str):
        raise UsageError(f"{place}: expected a text, as 'f32[3]'. Got: {tree!r}")
    return leaf(tree, place)


COMMAND = Command(
    "export", "write a JAX function as a .jaxfn file", _DESCRIPTION, _EXAMPLES, _add_options, _run
)
