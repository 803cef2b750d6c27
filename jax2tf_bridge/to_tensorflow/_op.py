"""Checks a portable function, and calls its module.

An XlaCallModule op calls the module, or the module becomes TensorFlow's own operations.
"""

from __future__ import annotations

import functools
import re
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import tensorflow as tf

from jax2tf_bridge._utils import once_per_object
from jax2tf_bridge.bytecode import ModuleSummary, Program, read_summary, version_text
from jax2tf_bridge.errors import Argument, FileFormatError, Message, ModuleError
from jax2tf_bridge.portable import (
    CALL_TF_TARGET,
    GraphFunction,
    PortableFunction,
    are_types_checked,
    check_function_types,
    drop_own_checks,
    find_unhandled_calls,
    get_stored_functions,
    no_handler_text,
)
from jax2tf_bridge.targets import NO_XLA, find_inexpressible, installed_versions
from jax2tf_bridge.to_tensorflow import _tf_compat
from jax2tf_bridge.to_tensorflow._constants import constant_array
from jax2tf_bridge.to_tensorflow._dtypes import op_dtype, op_spec
from jax2tf_bridge.to_tensorflow._shapes import (
    CheckedShapes,
    EarlierShapeCheck,
    ShapeContract,
    check_shapes,
)
from jax2tf_bridge.to_tensorflow._sharding import annotate_shardings, check_devices


def check_versions(portable: PortableFunction) -> None:
    """Raises unless the installed TF reads the function's StableHLO and calling convention.

    Raises:
      ModuleError: the module is too new for this TF.
    """
    release, version, convention = installed_versions()
    module = portable.module
    if not portable.target.xla:
        return  # the bridge reads the module itself
    if module.stablehlo_version > version or module.calling_convention_version > convention:
        short = ".".join(release.split(".")[:2])
        raise ModuleError(
            Message(
                f"{portable.name} needs StableHLO {version_text(module.stablehlo_version)} and "
                f"calling convention {module.calling_convention_version}; the installed "
                f"TensorFlow {release} reads up to {version_text(version)} and {convention}. "
                "Where JAX is installed, retarget it: jax2tf-bridge retarget ",
                Argument("file", code="FILE"),
                f" --tensorflow {short}, or in Python retarget(portable, "
                f"Target.tensorflow({short!r})). Or export it again without ",
                Argument("target", code="a target"),
                ", or serve it with a newer TensorFlow.",
            )
        )


def check_function(portable: PortableFunction, *, has_arrays: bool = True) -> None:
    """Raises unless the installed TF can run the function, and its types match its module.

    Also checks the modules of stored VJPs.

    Args:
      portable: the function.
      has_arrays: whether the function must hold the arrays that it captured; False if they come
        from elsewhere.

    Raises:
      ModuleError: the module is too new for this TF, does not match its portable function, has
        effects, or contains a custom call that TF has no handler for.
      DTypeError: TF lacks a dtype of an argument or result.
    """
    check_versions(portable)
    _check_effects(portable)
    for constant in portable.lifted_constants if has_arrays else ():
        constant_array(portable, constant)
    for port in portable.inputs:
        op_dtype(port.aval, f"The argument {port.path} of {portable.name}")
    for i, aval in enumerate(portable.out_avals):
        op_dtype(aval, f"The result {i} of {portable.name}")
    _, newest, _ = installed_versions()
    for stored in get_stored_functions(portable):
        if stored.target.xla and stored.module.stablehlo_version > newest:
            return  # the user gets an error only when asking for this gradient
        if not are_types_checked(stored):
            _check_module(stored, original=portable)


def _check_effects(portable: PortableFunction) -> None:
    effects = (*portable.ordered_effects, *portable.unordered_effects)
    if effects:
        raise ModuleError(
            f"{portable.name} has the effects {', '.join(effects)}, which exist only in JAX: "
            "TensorFlow would ignore them. Export the function without the operations that have "
            "them."
        )


def _check_module(portable: PortableFunction, *, original: PortableFunction) -> None:
    summary = _read_summary(portable)
    check_function_types(portable, summary.inputs, summary.outputs)
    if portable.target.xla:
        _check_custom_calls(portable, summary, original=original)
    else:
        _check_operations(portable, original=original)
    _check_graph_functions(portable, summary.call_results.get(CALL_TF_TARGET))


def _check_custom_calls(
    portable: PortableFunction, summary: ModuleSummary, *, original: PortableFunction
) -> None:
    """Raises unless TF has a handler for each custom call on one of the platforms.

    Without this check the function would fail only when it runs.
    """
    _, newest, _ = installed_versions()
    unknown = find_unhandled_calls(portable.module, summary.custom_calls, newest)
    if not unknown:
        return
    raise ModuleError(
        f"{portable.name} cannot run in TensorFlow on {', '.join(portable.platforms)}: "
        f"{no_handler_text([repr(name) for name in unknown])}. Retarget the portable function "
        "where JAX is installed (retarget, or the command jax2tf-bridge retarget): that "
        "replaces calls that have an equivalent in StableHLO. If the runtime that serves the model "
        f"has handlers, export with disabled_checks=[DisabledSafetyCheck.custom_call("
        f"{unknown[0]!r})].{_gradient_text(portable, original)}"
    )


def _check_operations(portable: PortableFunction, *, original: PortableFunction) -> None:
    inexpressible = find_inexpressible(_get_program(portable))
    if inexpressible is None:
        return
    raise ModuleError(
        Message(
            f"{portable.name} cannot become TensorFlow's own operations: {inexpressible.problem}. "
            "Export it without ",
            NO_XLA,
            f", for a TensorFlow that has XLA.{_gradient_text(portable, original)}",
        )
    )


def _gradient_text(portable: PortableFunction, original: PortableFunction) -> str:
    if portable is original:
        return ""
    return f" This is a gradient of {original.name}: portable.with_vjp(0) drops it."


def _read_summary(portable: PortableFunction) -> ModuleSummary:
    # The bridge has its own reader: TensorFlow has no public one, and MLIR's trusts the bytes.
    try:
        return read_summary(portable.module.data)
    except FileFormatError as e:
        raise ModuleError(f"The module of {portable.name} cannot be read: {e}") from e


def call_op(
    portable: PortableFunction,
    args: Sequence[tf.Tensor],
    constants: Sequence[tf.Tensor],
    paths: Callable[[], Sequence[str]],
    before: EarlierShapeCheck | None,
) -> list[tf.Tensor]:
    """Calls the module on the flat arguments.

    Args:
      portable: the function to call.
      args: tensors of the portable function's dtypes.
      constants: one tensor for each of the portable function's lifted constants.
      paths: returns the arguments' names for messages.
      before: the shape checks of an earlier call, which are not repeated.

    Raises:
      ShardingError: the function is sharded, and TF cannot run it on one device, or not in eager
        mode.
      tf.errors.InvalidArgumentError: the known sizes contradict the portable function or each
        other. Sizes that are unknown now are checked at run time.
    """
    check_devices(portable, is_gradient=before is not None)
    checked = check_shapes(portable, args, paths, before)
    attributes = {
        "version": portable.module.calling_convention_version,
        "module": portable.module.data,
        "Tout": [op_dtype(aval, "a result") for aval in portable.out_avals],
        "Sout": checked.results,
        "platforms": [p.upper() for p in portable.platforms],
        "function_list": _register_graph_functions(portable),
        "has_token_input_output": False,
        "disabled_checks": [
            str(check) for check in drop_own_checks(portable.module.disabled_checks)
        ],
    }
    with tf.control_dependencies(checked.guards):
        annotated = annotate_shardings(portable, args, portable.in_shardings, portable.in_avals)
        inputs = [*(annotated[i] for i in portable.module.kept_arguments), *constants]
        results = _tf_compat.call_module(inputs, attributes)
        return annotate_shardings(portable, results, portable.out_shardings, portable.out_avals)


# Functions of the TensorFlow graphs that a module calls.

_ARGUMENT, _RESULT = re.compile(r"x(\d+)"), re.compile(r"y(\d+)")


def _check_graph_functions(portable: PortableFunction, max_call_results: int | None) -> None:
    # TensorFlow reads stray memory if a call has more results than its function. So every function
    # is padded to the largest number of results of any call, and one function must have that many.
    if max_call_results is not None and not portable.graph_functions:
        raise ModuleError(
            f"The module of {portable.name} calls TensorFlow functions ({CALL_TF_TARGET}) that its "
            "portable function does not hold: it was not exported by this bridge. Export the "
            "function again with jax2tf_bridge.export and call_tf(..., call_tf_graph=True)."
        )
    max_function_results = 0
    for function in portable.graph_functions:
        _get_graph_function(portable, function, max_call_results or 0)
        nodes = tf.compat.v1.GraphDef.FromString(function.graph).node
        max_function_results = max(
            max_function_results, sum(1 for node in nodes if _RESULT.fullmatch(node.name))
        )
    if max_function_results < (max_call_results or 0):
        raise ModuleError(
            f"The module of {portable.name} takes {max_call_results} results from a TensorFlow "
            f"function, but those that its portable function holds have at most "
            f"{max_function_results}. Export the function again."
        )


def _register_graph_functions(portable: PortableFunction) -> list[str]:
    """Adds the functions to the current graph, and returns their names."""
    functions = _get_graph_functions(portable)
    if not tf.executing_eagerly():
        for function in functions:
            function.add_to_graph(tf.compat.v1.get_default_graph())
    return [tf.compat.as_str(function.name) for function in functions]


def _get_graph_functions(portable: PortableFunction) -> list[Any]:
    return [_get_graph_function(portable, function) for function in portable.graph_functions]


def _get_graph_function(
    portable: PortableFunction, function: GraphFunction, n_results: int = 0
) -> Any:
    try:
        # Built outside of the function being traced, because all graphs share it.
        with tf.init_scope():
            return function.get_or_make(functools.partial(_build_graph_function, n_results))
    except Exception as e:  # the type depends on the damage and on the TF release
        raise ModuleError(
            f"The TensorFlow function {function.name} that {portable.name} calls cannot be read by "
            f"the installed TensorFlow {tf.__version__}: {e}. Export the function again, or use "
            "the TensorFlow that it was exported with."
        ) from e


def _build_graph_function(n_results: int, function: GraphFunction) -> Any:
    graph_def = tf.compat.v1.GraphDef.FromString(function.graph)
    names = [node.name for node in graph_def.node]
    wrapped = tf.compat.v1.wrap_function(
        lambda: tf.graph_util.import_graph_def(graph_def, name=""), []
    )

    def find_tensors(kind: re.Pattern[str]) -> list[tf.Tensor]:
        numbers = sorted(int(match[1]) for match in map(kind.fullmatch, names) if match)
        if numbers != list(range(len(numbers))):
            raise ValueError(f"the numbers of {kind.pattern} are {numbers}")
        prefix = kind.pattern[0]
        return [wrapped.graph.get_tensor_by_name(f"{prefix}{i}:0") for i in numbers]

    results = find_tensors(_RESULT)
    with wrapped.graph.as_default():
        results += [tf.zeros([]) for _ in range(n_results - len(results))]
    return wrapped.prune(find_tensors(_ARGUMENT), results)


# Calls as TensorFlow's own operations.


@once_per_object
def _get_program(portable: PortableFunction) -> Program:
    from jax2tf_bridge.emitters import read

    return read(portable)


@once_per_object
def _get_rewritten_program(portable: PortableFunction) -> Program:
    from jax2tf_bridge.emitters import rewrite_program

    return rewrite_program(portable, _get_program(portable))


def call_operations(
    portable: PortableFunction,
    args: Sequence[tf.Tensor],
    constants: Sequence[tf.Tensor] = (),
    paths: Callable[[], Sequence[str]] | None = None,
    before: EarlierShapeCheck | None = None,
    *,
    refuses_bits: bool = False,
) -> list[tf.Tensor]:
    """Calls the function like `call_op`, but with TensorFlow's own operations.

    In eager mode it calls a graph with open sizes, which is traced once.

    Args:
      portable: the function.
      args: its flat arguments.
      constants: one tensor for each of its lifted constants.
      paths: returns the arguments' names for messages, as in `check_shapes`.
      before: the shape checks of an earlier call, which are not repeated.
      refuses_bits: whether Bitcast in the current graph is an error for a converter target.

    Raises:
      ModuleError: TensorFlow cannot express an operation of the module.
      ShardingError: the function is sharded, and cannot run on one device, or not in eager mode.
      tf.errors.InvalidArgumentError: the known sizes contradict the portable function or each
        other. Sizes that are unknown now are checked at run time.
    """
    check_devices(portable, is_gradient=before is not None)
    checked = _check_shapes(portable, args, paths, before)
    if tf.executing_eagerly():
        return list(_get_eager_function(portable)(*args, *constants))
    return _call_in_graph(portable, checked, args, constants, refuses_bits=refuses_bits)


_STAND_IN = "argument_"
"""Prefix of the placeholders in the graph in which sizes of converter targets are computed."""


def _check_shapes(
    portable: PortableFunction,
    args: Sequence[tf.Tensor],
    paths: Callable[[], Sequence[str]] | None,
    before: EarlierShapeCheck | None,
) -> CheckedShapes:
    """Checks the shapes; for converter targets only the sizes that are known now.

    tf2onnx, TF.js and Core ML refuse Assert, and OpenVINO turns unused sizes into outputs.
    """
    if not portable.target.for_converters:
        return check_shapes(portable, args, paths, before)
    with tf.Graph().as_default():
        stand_ins = [
            tf.compat.v1.placeholder(
                arg.dtype,
                [None] * len(aval.op_shape) if arg.shape.rank is None else arg.shape,
                f"{_STAND_IN}{i}",
            )
            for i, (arg, aval) in enumerate(zip(args, portable.in_avals, strict=True))
        ]
        return replace(check_shapes(portable, stand_ins, paths, before), guards=[])


def _call_in_graph(
    portable: PortableFunction,
    checked: CheckedShapes,
    args: Sequence[tf.Tensor],
    constants: Sequence[tf.Tensor],
    *,
    refuses_bits: bool = False,
) -> list[tf.Tensor]:
    from jax2tf_bridge.emitters import make_operations

    variables = checked.variables
    if portable.target.for_converters:
        args = _set_ranks(portable, args)
        variables = _defer_sizes(args, variables)
    elif checked.guards:
        # The guards must fail before any computation with the arguments or their sizes does.
        with tf.control_dependencies(checked.guards):
            args = _set_ranks(portable, args)
            variables = {
                name: size if isinstance(size, int) else tf.identity(size)
                for name, size in variables.items()
            }
    inputs = [*(args[i] for i in portable.module.kept_arguments), *constants]
    results = make_operations(
        portable,
        _get_rewritten_program(portable),
        inputs,
        variables,
        _get_graph_functions(portable),
        refuses_bits=refuses_bits,
    )
    for result, shape in zip(results, checked.results, strict=True):
        result.set_shape(shape)
    return results


def _set_ranks(portable: PortableFunction, args: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    args = [tf.identity(tensor) for tensor in args]
    for tensor, aval in zip(args, portable.in_avals, strict=True):
        tensor.set_shape([s if isinstance(s, int) else None for s in aval.op_shape])
    return args


def _defer_sizes(args: Sequence[tf.Tensor], variables: Mapping[str, Any]) -> dict[str, Any]:
    """Replaces sizes in the stand-in graph by functions that compute them from the arguments."""
    graph = tf.compat.v1.get_default_graph()
    by_name = {f"{_STAND_IN}{i}:0": arg for i, arg in enumerate(args)}

    def compute_size(size: tf.Tensor) -> tf.Tensor:
        operations = {size.op.name: size.op}
        for operation in (queue := [size.op]):
            queue += [t.op for t in operation.inputs if t.op.name not in operations]
            operations |= {t.op.name: t.op for t in operation.inputs}
        definition = tf.compat.v1.GraphDef(
            node=[operation.node_def for operation in operations.values()],
            versions=size.graph.graph_def_versions,
        )
        inputs = {
            name: arg for name, arg in by_name.items() if name.partition(":")[0] in operations
        }
        # The first call may come from a branch or loop, whose tensors others cannot use.
        with graph.as_default(), tf.control_dependencies(None):
            (value,) = tf.graph_util.import_graph_def(definition, inputs, [size.name], name="size")
            return tf.cast(value, tf.int32)

    return {
        name: size
        if isinstance(size, int)
        else functools.cache(functools.partial(compute_size, size))
        for name, size in variables.items()
    }


@once_per_object
def _eager_functions(portable: PortableFunction) -> list[Any]:
    return []


def _get_eager_function(portable: PortableFunction) -> Any:
    functions = _eager_functions(portable)
    if not functions:
        # No lock, because tracing may take long; calls use the graph that is ready first.
        functions.append(_trace(portable))
    return functions[0]


def _trace(portable: PortableFunction) -> Any:
    avals = [*portable.in_avals, *(constant.aval for constant in portable.lifted_constants)]
    n_args = len(portable.in_avals)
    # Held weakly, because the graph is cached for as long as the function lives.
    reference = weakref.ref(portable)

    def call(*tensors: tf.Tensor) -> list[tf.Tensor]:
        function = reference()
        assert function is not None, "the caller holds the function while it is traced"
        args, constants = tensors[:n_args], tensors[n_args:]
        # An eager caller knows all sizes, and has checked them.
        before = EarlierShapeCheck(n_args, ShapeContract.of(function))
        return _call_in_graph(
            function, _check_shapes(function, args, None, before), args, constants
        )

    specs = [op_spec(aval, "an argument") for aval in avals]
    # A concrete function, because TensorFlow warns if many functions of one name are retraced.
    return tf.function(call, input_signature=specs, autograph=False).get_concrete_function()
