"""The second seam to JAX's private names: what the lowering rules of the bridge need.

Every name below was found in JAX 0.8.3, 0.10.2 and 0.12.0.1 unless its line says otherwise.
"""

import functools
import inspect
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
from jax._src.interpreters import mlir as _mlir
from jax._src.lax import linalg as _linalg

# A lowering rule takes the context, the operands' values and the primitive's parameters.
Rule = Callable[..., Sequence[Any]]

# Not in jax.lax.linalg: the two halves of qr. Without them every qr would stay a LAPACK call.
geqrf_p: Any = _linalg.geqrf_p
# Public in 0.12; without it orthogonal multiplication (qr_multiply) would stay a LAPACK call.
# Absent before 0.10, where qr_multiply is written with householder_product.
ormqr_p: Any = getattr(_linalg, "ormqr_p", None)
# Not in jax.extend.core.primitives. Its GPU form is a cusolver call.
cholesky_update_p: Any = _linalg.cholesky_update_p

# From 0.9 on the first parameter is the module context.
_AVAL_TO_IR_TAKES_CONTEXT = len(inspect.signature(_mlir.aval_to_ir_type).parameters) == 2


def lower_fun(function: Callable[..., Any], *, multiple_results: bool = True) -> Rule:
    """A lowering rule that traces `function`, written in jax.lax, and lowers its equations.

    The overrides of the export apply to these equations too.
    """

    @functools.wraps(function)
    def traced(*args: Any, **params: Any) -> Any:
        # The user's strictness about promotion is not about our code.
        with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
            return function(*args, **params)

    rule: Rule = _mlir.lower_fun(traced, multiple_results=multiple_results)
    return rule


def platforms_of(ctx: Any) -> tuple[str, ...]:
    """The platforms that an equation is being lowered for (one, in a platform's own branch)."""
    return tuple(_mlir._platforms_for_eqn(ctx))


def jax_rule(primitive: Any, platform: str) -> Rule | None:
    """The rule that JAX has registered for `primitive` on `platform`, or None."""
    entry = _mlir._platform_specific_lowerings[platform].get(primitive)
    if entry is None:
        entry = _mlir._lowerings.get(primitive)
    return None if entry is None else entry.rule


def lower_by_platform(
    ctx: Any, primitive: Any, rules: Mapping[str, Rule], *args: Any, **params: Any
) -> Sequence[Any]:
    """Lower one equation with `rules`, by platform; a platform without one keeps JAX's own.

    Platforms that share a rule share a branch; if all do, there is no branching at all.

    Raises:
      NotImplementedError: a platform has neither a rule in `rules` nor one of JAX's.
    """
    chosen = {p: rules.get(p) or jax_rule(primitive, p) for p in platforms_of(ctx)}
    known = {p: rule for p, rule in chosen.items() if rule is not None}
    if len(known) < len(chosen):
        specific, default = known, None  # JAX's error then names the platforms left over
    else:
        counts = Counter(id(rule) for rule in known.values())
        default = max(known.values(), key=lambda rule: counts[id(rule)])
        specific = {p: rule for p, rule in known.items() if rule is not default}
    outputs: Sequence[Any] = _mlir.lower_per_platform(
        ctx, str(primitive), specific, default, frozenset(), *args, **params
    )
    return outputs


def by_platform(primitive: Any, rules: Mapping[str, Rule]) -> Rule:
    """`lower_by_platform` as a lowering rule."""
    return functools.partial(_lower_by_platform_rule, primitive, dict(rules))


def _lower_by_platform_rule(
    primitive: Any, rules: Mapping[str, Rule], ctx: Any, *args: Any, **params: Any
) -> Sequence[Any]:
    return lower_by_platform(ctx, primitive, rules, *args, **params)


def custom_call(target: str, backend_config: str = "") -> Rule:
    """A rule that emits the custom call `target` with the equation's operands and results.

    For targets that XLA expands on every platform. Results of symbolic shape get their shapes
    as operands, as jax.export requires it.
    """

    def rule(ctx: Any, *operands: Any, **params: Any) -> Sequence[Any]:
        del params
        avals = ctx.avals_out
        static = all(isinstance(d, int) for aval in avals for d in aval.shape)
        op = _mlir.custom_call(
            target,
            result_types=[_ir_type(ctx, aval) for aval in avals],
            operands=list(operands),
            backend_config=backend_config,
            api_version=1,
            result_shapes=None
            if static
            else [_mlir.eval_dynamic_shape_as_tensor(ctx, aval.shape) for aval in avals],
        )
        return list(op.results)

    return rule


def _ir_type(ctx: Any, aval: Any) -> Any:
    convert: Callable[..., Any] = _mlir.aval_to_ir_type
    if _AVAL_TO_IR_TAKES_CONTEXT:
        return convert(ctx.module_context, aval)
    return convert(aval)


def common_rule(primitive: Any) -> Rule:
    """The rule that JAX has registered for `primitive` for every platform without its own."""
    rule: Rule = _mlir._lowerings[primitive].rule
    return rule
