"""Checks a portable function, and builds its XlaCallModule op."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tensorflow as tf

from jax2tf_bridge.bytecode import ModuleSummary, read_summary, version_text
from jax2tf_bridge.errors import Argument, FileFormatError, Message, ModuleError
from jax2tf_bridge.portable import (
    CUSTOM_CALL,
    PortableFunction,
    are_types_checked,
    check_function_types,
    no_handler_text,
    shared_checks,
    unhandled_calls,
)
from jax2tf_bridge.targets import NO_XLA, find_inexpressible, installed_versions
from jax2tf_bridge.to_tensorflow import _tf_compat
from jax2tf_bridge.to_tensorflow._constants import constant_array
from jax2tf_bridge.to_tensorflow._dtypes import op_dtype
from jax2tf_bridge.to_tensorflow._graph_functions import (
    check_graph_functions,
    register_graph_functions,
)
from jax2tf_bridge.to_tensorflow._operations_call import get_program
from jax2tf_bridge.to_tensorflow._shapes import EarlierShapeCheck, check_shapes
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
    """Raises unless the installed TF can run the portable function, and its types are the module's.

    The modules of stored VJPs are checked as well.

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
    stored: PortableFunction | None = portable
    # A gradient that is too new for this TF is an error only when the user asks for it.
    while stored is not None and not (
        stored.target.xla and stored.module.stablehlo_version > newest
    ):
        if not are_types_checked(stored):
            _check_module(stored, original=portable)
        stored = stored.gradient.vjp


def _check_effects(portable: PortableFunction) -> None:
    effects = (*portable.ordered_effects, *portable.unordered_effects)
    if effects:
        raise ModuleError(
            f"{portable.name} has the effects {', '.join(effects)}, which exist only in JAX: "
            "TensorFlow would ignore them. Export the function without the operations that have "
            "them."
        )


def _check_module(portable: PortableFunction, *, original: PortableFunction) -> None:
    """Raises unless the module has the function's types, and TF can run its operations."""
    summary = _read_summary(portable)
    check_function_types(portable, summary.inputs, summary.outputs)
    if portable.target.xla:
        _check_custom_calls(portable, summary, original=original)
    else:
        _check_operations(portable, original=original)
    check_graph_functions(portable, summary.call_results.get(CUSTOM_CALL))


def _check_custom_calls(
    portable: PortableFunction, summary: ModuleSummary, *, original: PortableFunction
) -> None:
    """Raises unless TF has a handler for each custom call on one of the platforms.

    Without this check the function would fail only when it runs.
    """
    _, newest, _ = installed_versions()
    unknown = unhandled_calls(portable.module, summary.custom_calls, newest)
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
    """Raises unless TensorFlow's own operations can express the module."""
    inexpressible = find_inexpressible(get_program(portable))
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
    constants: Sequence[tf.Tensor] = (),
    paths: Callable[[], Sequence[str]] | None = None,
    before: EarlierShapeCheck | None = None,
) -> list[tf.Tensor]:
    """Calls the module on the flat arguments.

    Args:
      portable: the function to call.
      args: tensors of the portable function's dtypes.
      constants: one tensor for each of the portable function's lifted constants.
      paths: returns the arguments' names for messages; the portable function's paths by default.
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
        "function_list": register_graph_functions(portable),
        "has_token_input_output": False,
        "disabled_checks": [str(check) for check in shared_checks(portable.module.disabled_checks)],
    }
    with tf.control_dependencies(checked.guards):
        annotated = annotate_shardings(portable, args, portable.in_shardings, portable.in_avals)
        inputs = [*(annotated[i] for i in portable.module.kept_arguments), *constants]
        results = _tf_compat.call_module(inputs, attributes)
        return annotate_shardings(portable, results, portable.out_shardings, portable.out_avals)
