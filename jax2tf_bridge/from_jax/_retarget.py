"""Rewrites StableHLO modules for a target: those of functions and of XlaCallModule ops."""

from __future__ import annotations

import math
import re
from dataclasses import replace

from jax2tf_bridge._dtypes import WIDENED
from jax2tf_bridge.errors import Message, ModuleError, UnsupportedByTargetError
from jax2tf_bridge.from_jax import _jax_compat
from jax2tf_bridge.from_jax._archives import rewrite_calls
from jax2tf_bridge.from_jax.stablehlo import (
    WIDE_ELEMENT_TYPES,
    StableHloModule,
    check_one_device,
    read_stablehlo_module,
    retarget_module,
    retype_narrow_values,
)
from jax2tf_bridge.portable import (
    Gradient,
    HoldsPortable,
    Module,
    PortableFunction,
    as_portable_function,
    check_function_types,
    is_vouched,
    mark_types_checked,
    no_handler_text,
)
from jax2tf_bridge.targets import Target, as_target


def retarget(
    portable: PortableFunction | HoldsPortable, target: Target | None = None
) -> PortableFunction:
    """Rewrites a portable function for another target, such as an older TensorFlow.

    Composites and CHLO operations are expanded, LAPACK calls become StableHLO, and 4-bit integers
    are passed as 8-bit integers. The module is written at the first StableHLO version of the target
    that can express it without loss. This needs JAX.

    Args:
      portable: a function from an export, a file or a JAX archive.
      target: the consumer's capabilities; `Target.widest()` by default.

    Returns:
      The rewritten function. Existing VJPs are retargeted at once, others on demand.

    Raises:
      ShardingError: the function is for one device but uses a mesh of several.
      UnsupportedByTargetError: the target cannot run an operation or custom call of the module.
      ModuleError: the installed JAX cannot read the module, a LAPACK call has no equivalent in
        StableHLO, or the types of the module and the function differ.
      FunctionError: `portable` is not a portable function.
      TargetError: `target` is not a Target.
    """
    portable = as_portable_function(portable, "retarget")
    target = as_target(target)
    module = read_stablehlo_module(portable)
    rewrite_calls(module, portable.name, target)
    if portable.module.nr_devices == 1:
        module.reduce_to_one_device(portable.name)
    module.narrow_platform_index()
    if target.xla:
        module.expand()
    else:
        check_one_device(portable.name, portable.module.nr_devices, target)
    retype_narrow_values(module, portable, WIDE_ELEMENT_TYPES)
    if target.xla:
        _check_custom_calls(module, portable, target)
    check_function_types(portable, *module.main_types())
    retargeted = retarget_module(
        module, target, function_name=portable.name, has_effects=bool(portable.ordered_effects)
    )
    result = replace(
        portable,
        module=replace(portable.module, **retargeted._asdict()),
        target=target,
        gradient=_retarget_vjp(portable, target),
        # Expanding the composites for XLA drops stop_gradient.
        tensorflow_differentiates=portable.tensorflow_differentiates and not target.xla,
    )
    mark_types_checked(result)
    return result


def _check_custom_calls(
    module: StableHloModule, portable: PortableFunction, target: Target
) -> None:
    handled = target.handled_calls(portable.platforms)
    for call in module.describe_custom_calls():
        if call.name not in handled and not is_vouched(call.name, portable.module.disabled_checks):
            raise UnsupportedByTargetError(
                f"{portable.name} cannot run on {target.name}: {no_handler_text([str(call)])}, and "
                "it has no equivalent in StableHLO. Export the function again with "
                "jax2tf_bridge.export, if necessary without the code that makes this call.",
                operation=call.name,
                source=call.source,
            )


def _retarget_vjp(portable: PortableFunction, target: Target) -> Gradient:
    # An existing VJP is retargeted at once because files contain it; others on demand.
    is_stored = portable.gradient.vjp is not None

    def retarget_vjp(vjp: PortableFunction) -> PortableFunction:
        try:
            return retarget(vjp, target)
        except (ModuleError, UnsupportedByTargetError) as e:
            if not is_stored:
                raise
            advice = f" This is the gradient of {portable.name}: portable.with_vjp(0) drops it."
            hint = Message(e, advice)
            if isinstance(e, UnsupportedByTargetError):
                raise UnsupportedByTargetError(hint, operation=e.operation, source=e.source) from e
            raise ModuleError(hint) from e

    return portable.gradient.map_vjp(portable.name, retarget_vjp)


# Module attributes whose product is the number of devices.
_DEVICE_COUNTS = ("mhlo.num_partitions", "mhlo.num_replicas")
_INTEGER = re.compile(r"\d+")


def retarget_call(function: PortableFunction, target: Target) -> Module:
    """Rewrites the module of an XlaCallModule op, written by any tool, for a target.

    Args:
      function: the result of `make_called_function`. The installed JAX must be able to read its
        module, which also has the number of devices.
      target: the consumer.

    Raises:
      ModuleError: the installed JAX cannot read the module, it does not match the op, or a LAPACK
        call has no equivalent in StableHLO.
      UnsupportedByTargetError: the target cannot run the module.
    """
    dtypes = {aval.dtype for aval in (*function.in_avals, *function.out_avals)}
    narrow = sorted(dtypes & WIDENED.keys())
    if narrow:
        raise UnsupportedByTargetError(
            f"{function.name} takes or returns {', '.join(narrow)}, which no TensorFlow passes to "
            "a module correctly. Export the function again with jax2tf_bridge.export, which passes "
            "them as 8-bit integers.",
            operation=narrow[0],
            source=None,
        )
    module = replace(function.module, nr_devices=_count_devices(function.module.data))
    return retarget(replace(function, module=module), target).module


def _count_devices(module: bytes) -> int:
    with _jax_compat.make_ir_context():
        try:
            attributes = _jax_compat.deserialize_module(module).operation.attributes
        except Exception:  # types differ between releases; retarget reports the error
            return 1
        texts = [str(attributes[name]) for name in _DEVICE_COUNTS if name in attributes]
    return math.prod(int(_INTEGER.findall(text)[0]) for text in texts if _INTEGER.match(text))
