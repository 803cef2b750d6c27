"""StableHLO modules of other tools: from_stablehlo() makes portable functions of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from jax2tf_bridge._dtypes import WIDENED
from jax2tf_bridge.bytecode import STOP_GRADIENT, read_main_types, read_stablehlo_version
from jax2tf_bridge.errors import (
    Argument,
    FileFormatError,
    Message,
    MissingDependencyError,
    ModuleError,
    ShapeError,
    StructureError,
)
from jax2tf_bridge.portable import (
    LEAF,
    Aval,
    DisabledSafetyCheck,
    Module,
    NodeKind,
    NoGradient,
    PortableFunction,
    TreeSpec,
    flat_names,
    flat_tuple,
    mark_types_checked,
    name_open_sizes,
    read_tensor_type,
    variables_in,
)
from jax2tf_bridge.targets import TENSORFLOW_RELEASES, Target, as_target, check_expressible
from shape_poly import Dim, is_symbolic_dim, shape_text, symbolic_shape

_BYTECODE = b"ML\xefR"
_CONVENTION = 9
"""Calling convention of modules without effects and shardings, which all releases read."""
_MAX_NESTING = 100


def from_stablehlo(
    module: str | bytes,
    *,
    arguments: Mapping[str, Any] | Sequence[str] | None = None,
    results: Any = None,
    polymorphic_shapes: Sequence[str | None] | None = None,
    result_shapes: Sequence[str | None] | None = None,
    name: str = "main",
    target: Target | None = None,
) -> PortableFunction:
    """Makes a portable function from StableHLO of another tool, such as PyTorch/XLA.

    You can save, serve and call it like any other portable function. It has no VJP; with a target
    without XLA, TensorFlow differentiates its operations.

    >>> portable = from_stablehlo('''
    ...   func.func @main(%x: tensor<?x2xf32>) -> tensor<?x2xf32> {
    ...     %0 = stablehlo.tanh %x : tensor<?x2xf32>
    ...     return %0 : tensor<?x2xf32>
    ...   }''', arguments=["x"], polymorphic_shapes=["(b, 2)"], result_shapes=["(b, 2)"])
    >>> portable.inputs[0].path, str(portable.in_avals[0])
    ('x', 'float32[b,2]')

    Args:
      module: a portable artifact, as stablehlo.serialize_portable_artifact returns it; or MLIR text
        or bytecode, which needs JAX. The function called main is the entry point.
      arguments: the names of main's arguments in order, such as ["x", "mask"]. If arguments are
        trees of arrays, a dict of their structures with any values as leaves, such as
        {"params": {"w": 0, "b": 0}, "x": 0}. The default names are x0, x1, ...
      results: the structure of the result, with any values as leaves. The default is a single
        array if main has one result, else a tuple.
      polymorphic_shapes: one shape such as "(b, 2)" for each array that main takes. For an entry
        None, each open size becomes a variable of its own, such as "x0_0".
      result_shapes: one shape for each array that main returns, in the variables of the arguments;
        required if the results have open sizes.
      name: the function's name, for messages.
      target: the consumer's capabilities; `Target.widest()` by default.

    Raises:
      ModuleError: the module cannot be read, or has no function to call.
      StructureError: the number of leaves of `arguments` or `results` differs from main's.
      ShapeError: polymorphic_shapes or result_shapes do not match the types of main.
      MissingDependencyError: the module needs JAX (it is not a portable artifact, or must be
        rewritten for the target), and JAX is not installed.
      UnsupportedByTargetError: the target cannot run the module.
    """
    artifact = _make_artifact(module, name)
    version = read_stablehlo_version(memoryview(artifact))
    assert version is not None, "a portable artifact has a version"
    try:
        inputs, outputs = read_main_types(artifact)
    except FileFormatError as e:
        raise ModuleError(f"The StableHLO of {name} cannot be read: {e}") from e
    names, in_tree = _make_argument_trees(arguments, len(inputs), name)
    out_tree = _make_result_tree(results, len(outputs), name)
    in_avals = _make_avals(inputs, Argument("polymorphic_shapes", polymorphic_shapes), name)
    out_avals = _make_avals(outputs, Argument("result_shapes", result_shapes), name)
    _check_result_sizes(in_avals, out_avals, name)
    function = PortableFunction(
        name=name,
        in_tree=in_tree,
        in_avals=tuple(in_avals),
        out_tree=out_tree,
        out_avals=tuple(out_avals),
        argument_names=names,
        module=Module(
            artifact,
            version,
            _CONVENTION,
            kept_arguments=tuple(range(len(in_avals))),
            platforms=("cpu",),
            uses_shape_polymorphism=any("?" in kind for kind in inputs),
            # It was not lowered for a platform, so it may run on every one.
            disabled_checks=(DisabledSafetyCheck.platform(),),
        ),
        target=Target(f"StableHLO {'.'.join(map(str, version))}", (version,), _CONVENTION),
        producer="StableHLO",
        in_shardings=(None,) * len(in_avals),
        out_shardings=(None,) * len(out_avals),
        gradient=NoGradient("it comes from a StableHLO module, which has no gradient"),
        constraints_known=False,
        tensorflow_differentiates=True,
    )
    return _retarget_function(function, target)


def _retarget_function(function: PortableFunction, target: Target | None) -> PortableFunction:
    consumer = as_target(target)
    if not consumer.xla:
        check_expressible(function.module.data, consumer, function.name)
        return replace(function, target=consumer)
    is_open = function.module.uses_shape_polymorphism
    try:
        from jax2tf_bridge.from_jax import retarget
        from jax2tf_bridge.from_jax.stablehlo import mark_for_refinement
    except MissingDependencyError as e:
        newest = max(version for version, _ in TENSORFLOW_RELEASES.values())
        if target is None and not is_open and function.module.stablehlo_version <= newest:
            return function
        raise MissingDependencyError("JAX", "jax", f"Writing a module for {consumer.name}") from e
    if is_open:
        artifact = mark_for_refinement(function.module.data)
        function = replace(function, module=replace(function.module, data=artifact))
    # Expanding replaces the stop_gradient composite, so TensorFlow would differentiate it.
    has_stops = STOP_GRADIENT.encode() in function.module.data
    result = replace(retarget(function, consumer), tensorflow_differentiates=not has_stops)
    mark_types_checked(result)
    return result


def _make_artifact(module: str | bytes, name: str) -> bytes:
    if not isinstance(module, (str, bytes, bytearray, memoryview)):
        raise ModuleError(
            "from_stablehlo expected a StableHLO module as text or bytes. Got: "
            f"{type(module).__name__}. Pass the contents of a file, as path.read_bytes(), or the "
            "text of an MLIR module, as str(module)."
        )
    data = module if isinstance(module, str) else bytes(module)
    if isinstance(data, bytes):
        if not data.startswith(_BYTECODE):
            try:
                data = data.decode()
            except UnicodeDecodeError as e:
                raise ModuleError(
                    f"The StableHLO of {name} is neither MLIR bytecode, which begins with "
                    f"{_BYTECODE!r}, nor text. Got: {data[:8]!r}"
                ) from e
        elif read_stablehlo_version(memoryview(data)) is not None:
            return data
    try:
        from jax2tf_bridge.from_jax.stablehlo import make_portable_artifact
    except MissingDependencyError as e:
        raise MissingDependencyError(
            "JAX", "jax", "Reading StableHLO that is not a portable artifact"
        ) from e
    return make_portable_artifact(data, name)


def _make_avals(types: Sequence[str], argument: Argument, name: str) -> list[Aval]:
    """Makes the abstract values of main's arguments or results.

    Args:
      types: their MLIR types.
      argument: polymorphic_shapes or result_shapes, with the value that the user passed.
      name: the function's name, for messages.
    """
    specs: Any = [None] * len(types) if argument.value is None else argument.value
    if isinstance(specs, str) or not isinstance(specs, Sequence) or len(specs) != len(types):
        raise ShapeError(
            Message(
                argument,
                f" must be a list with one entry for each of the {len(types)} arrays of {name}: "
                "a text as '(b, 2)', or None.",
            )
        )
    noun, prefix = ("argument", "x") if argument.name == "polymorphic_shapes" else ("result", "y")
    avals = []
    for i, (tensor_type, spec) in enumerate(zip(types, specs, strict=True)):
        sizes_and_dtype = read_tensor_type(tensor_type)
        if sizes_and_dtype is None or sizes_and_dtype[1] in WIDENED:
            raise ModuleError(
                f"The {noun} {i} of {name} has the type {tensor_type}: expected a tensor of "
                "numbers with at least 8 bits."
            )
        sizes, dtype = sizes_and_dtype
        shape = (
            name_open_sizes(sizes, f"{prefix}{i}")
            if spec is None
            else _parse_shape(spec, sizes, argument, i)
        )
        avals.append(Aval(shape, dtype))
    return avals


def _check_result_sizes(in_avals: Sequence[Aval], out_avals: Sequence[Aval], name: str) -> None:
    known_variables = frozenset[str]().union(*map(variables_in, in_avals))
    for i, aval in enumerate(out_avals):
        if not variables_in(aval) <= known_variables:
            sizes = (size if isinstance(size, int) else None for size in aval.shape)
            raise ShapeError(
                Message(
                    f"Result {i} of {name} has open sizes: its shape in the module is "
                    f"{shape_text(sizes)}. Name the open sizes of the arguments in ",
                    Argument("polymorphic_shapes"),
                    ", such as ['(b, 2)'], and use only these names in ",
                    Argument("result_shapes"),
                    f". Names in the arguments: {', '.join(sorted(known_variables)) or 'none'}.",
                )
            )


def _parse_shape(text: str, sizes: Sequence[str], argument: Argument, i: int) -> tuple[Dim, ...]:
    like = [int(size) if size != "?" else None for size in sizes]
    try:
        shape = symbolic_shape(text, like=like)
    except (TypeError, ValueError) as e:
        raise ShapeError(Message(argument, f", entry {i}: {e}")) from e
    # Numbers have been compared with `like`.
    if any((size == "?") != is_symbolic_dim(dim) for dim, size in zip(shape, sizes, strict=True)):
        raise ShapeError(
            Message(
                argument,
                f", entry {i}: the module takes {shape_text(sizes)}. Write a variable for each ?, "
                f"and the other sizes as they are. Got: {text!r}",
            )
        )
    return shape


def _make_argument_trees(
    arguments: Mapping[str, Any] | Sequence[str] | None, count: int, name: str
) -> tuple[tuple[str, ...], TreeSpec]:
    if arguments is None:
        arguments = flat_names(count)
    is_list = isinstance(arguments, Iterable) and not isinstance(arguments, str)
    if not is_list or not all(isinstance(name, str) for name in arguments):
        raise StructureError(
            Message(
                Argument("arguments", arguments),
                " must be a list of names, as ['x'], or a dict of structures by name.",
            )
        )
    trees = (
        {key: _to_tree(value) for key, value in arguments.items()}
        if isinstance(arguments, Mapping)
        else dict.fromkeys(arguments, LEAF)
    )
    leaf_count = sum(tree.leaf_count for tree in trees.values())
    if leaf_count != count or len(trees) != len(arguments):
        raise StructureError(
            Message(
                Argument("arguments"),
                f" has {leaf_count} arrays, and {name} takes {count}. Name each of them once.",
            )
        )
    positional = TreeSpec("tuple", children=tuple(trees.values()))
    return tuple(trees), TreeSpec("tuple", children=(positional, TreeSpec("dict")))


def _make_result_tree(results: Any, count: int, name: str) -> TreeSpec:
    if results is None:
        return LEAF if count == 1 else flat_tuple(count)
    tree = _to_tree(results)
    if tree.leaf_count != count:
        raise StructureError(
            Message(
                Argument("results"), f" has {tree.leaf_count} arrays, and {name} returns {count}."
            )
        )
    return tree


def _to_tree(value: Any, depth: int = 0) -> TreeSpec:
    """Returns the structure of nested containers; dicts keep their order."""
    if depth > _MAX_NESTING:
        raise StructureError(
            f"The containers of arguments and results must be nested at most {_MAX_NESTING} deep."
        )
    kind: NodeKind
    if isinstance(value, Mapping):
        kind, keys, items = "dict", tuple(value), tuple(value.values())
    elif isinstance(value, tuple) and hasattr(value, "_fields"):
        kind, keys, items = "namedtuple", value._fields, value
    elif isinstance(value, (tuple, list)):
        kind, keys, items = "tuple" if isinstance(value, tuple) else "list", (), tuple(value)
    else:
        return TreeSpec("none") if value is None else LEAF
    name = type(value).__name__ if kind == "namedtuple" else ""
    return TreeSpec(kind, name, keys, tuple(_to_tree(item, depth + 1) for item in items))
