"""Tables of what modules consist of: operations of StableHLO, composites, and custom calls.

To add one that TensorFlow can express, add a row here, and a function with `@emits(name)` in
`emitters.operations`. A test compares the rows with these functions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal


@dataclass(frozen=True)
class OperationKind:
    """An operation of StableHLO.

    Attributes:
      name: its name, without the dialect.
      versions: the names of its attributes in each of its versions in VHLO, from version 1 on; ()
        if no version has any.
      in_tensorflow: whether TensorFlow's operations can express it.
      has_effects: whether it stays although nothing uses its results.
      same_gradient: JAX primitives that become this operation, if TensorFlow's operations have
        JAX's derivatives of any order, also at ties and kinks.
    """

    name: str
    versions: tuple[tuple[str, ...], ...]
    in_tensorflow: bool
    has_effects: bool
    same_gradient: tuple[str, ...]


@dataclass(frozen=True)
class Composite:
    """A composite that becomes a TensorFlow operation; others are replaced by their decomposition.

    Attributes:
      name: its name in modules.
      primitive: the JAX primitive that the bridge writes as this composite for targets without
        XLA; None if JAX writes the composite itself.
      parameters: the primitive's parameters that become attributes.
      unless: a parameter that TensorFlow lacks; a primitive that sets it is decomposed.
      for_converters: whether tf2onnx and OpenVINO can express it; if not, it is decomposed.
      for_litert: the same for LiteRT.
      same_gradient: as in OperationKind.
    """

    name: str
    primitive: str | None = None
    parameters: tuple[str, ...] = ()
    unless: str = ""
    for_converters: bool = True
    for_litert: bool = True
    same_gradient: tuple[str, ...] = ()


@dataclass(frozen=True)
class CustomCall:
    """A custom call that a consumer can run.

    Attributes:
      target: its target in modules.
      in_xla: where every TensorFlow release has a handler for it: on all platforms, on TPUs only,
        or nowhere.
      expanded_since: the first TensorFlow release known to replace it by operations. Measured in
        2.15 and 2.17 to 2.22.
      in_tensorflow: whether TensorFlow's own operations can express it.
    """

    target: str
    in_xla: Literal["all", "tpu"] | None = None
    expanded_since: str | None = None
    in_tensorflow: bool = True


def _row(
    name: str,
    *versions: str,
    in_tensorflow: bool = True,
    has_effects: bool = False,
    same_gradient: str = "",
) -> OperationKind:
    """Makes a row of names that are separated by spaces."""
    attributes = tuple(tuple(version.split()) for version in versions)
    gradients = tuple(same_gradient.split())
    return OperationKind(name, attributes, in_tensorflow, has_effects, gradients)


_ACCURACY = "result_accuracy"
_ALL_REDUCE = "channel_id replica_groups use_global_device_ids"
_ALL_GATHER = f"all_gather_dim {_ALL_REDUCE}"
_ALL_TO_ALL = "channel_id concat_dimension replica_groups split_count split_dimension"
_BROADCAST = "channel_id replica_groups"
_COMPOSITE = "composite_attributes decomposition name version"
_CONVOLUTION = (
    "batch_group_count feature_group_count input_batch_dimension input_feature_dimension "
    "input_spatial_dimensions kernel_input_feature_dimension kernel_output_feature_dimension "
    "kernel_spatial_dimensions lhs_dilation output_batch_dimension output_feature_dimension "
    "output_spatial_dimensions precision_config rhs_dilation window_reversal window_strides"
)
_CUSTOM_CALL = (
    "api_version backend_config call_target_name called_computations has_side_effect "
    "operand_layouts output_operand_aliases result_layouts"
)
_DOT = (
    "lhs_batching_dimensions lhs_contracting_dimensions precision_config "
    "rhs_batching_dimensions rhs_contracting_dimensions"
)
_DOT_ALGORITHM = (
    "accumulation_type allow_imprecise_accumulation lhs_component_count lhs_precision_type "
    "num_primitive_operations rhs_component_count rhs_precision_type"
)
_DOT_GENERAL = _DOT, f"{_DOT} {_DOT_ALGORITHM}"
_EXPANDING = "known_expanding_dimensions known_nonexpanding_dimensions"
_SLICES = "collapsed_slice_dims index_vector_dim indices_are_sorted offset_dims start_index_map"
_GATHER = _SLICES, f"{_SLICES} operand_batching_dims start_indices_batching_dims"
_NORMALIZATION = "epsilon feature_index"
_SCATTER = (
    "index_vector_dim indices_are_sorted inserted_window_dims scatter_dims_to_operand_dims "
    "unique_indices update_window_dims"
)
_SCATTER_BATCHING = "input_batching_dims scatter_indices_batching_dims"
_CHANNEL = "channel_id channel_type is_host_transfer"
_TRANSFER = _CHANNEL, f"{_CHANNEL} source_target_pairs"
_WINDOW = "padding window_dimensions window_strides"

_OPERATIONS = (
    _row("abs", same_gradient="abs"),
    _row("add", same_gradient="add add_any"),
    _row("after_all", has_effects=True),
    _row("all_gather", _ALL_GATHER, _ALL_GATHER, has_effects=True),
    _row("all_reduce", _ALL_REDUCE, _ALL_REDUCE, has_effects=True),
    _row("all_to_all", _ALL_TO_ALL, _ALL_TO_ALL, has_effects=True),
    _row("and"),
    _row("atan2"),
    _row("batch_norm_grad", _NORMALIZATION),
    _row("batch_norm_inference", _NORMALIZATION),
    _row("batch_norm_training", _NORMALIZATION),
    _row("bitcast_convert"),
    _row("broadcast", "broadcast_sizes"),
    _row("broadcast_in_dim", "broadcast_dimensions", same_gradient="broadcast_in_dim"),
    _row("call", "callee", has_effects=True),
    _row("case", has_effects=True),
    _row("cbrt", "", _ACCURACY),
    _row("ceil"),
    _row("cholesky", "lower"),
    _row("clamp"),
    _row("collective_broadcast", _BROADCAST, f"{_BROADCAST} has_dynamic_root", has_effects=True),
    _row("collective_permute", "channel_id source_target_pairs", has_effects=True),
    _row("collective_reduce", f"{_ALL_REDUCE} has_dynamic_root", has_effects=True),
    _row("compare", "compare_type comparison_direction"),
    # The gradient of conj is the one of imag and complex.
    _row("complex", same_gradient="complex conj"),
    _row("composite", _COMPOSITE, _COMPOSITE, has_effects=True),
    _row("concatenate", "dimension", same_gradient="concatenate"),
    _row("constant", "value"),
    _row("convert", same_gradient="convert_element_type"),
    _row("convolution", f"{_CONVOLUTION} padding"),
    _row("cosine", "", _ACCURACY, same_gradient="cos"),
    _row("count_leading_zeros"),
    _row("create_token", has_effects=True),
    _row("cross-replica-sum", "replica_groups", has_effects=True),
    _row("custom_call", _CUSTOM_CALL, f"{_CUSTOM_CALL} result_tilings", has_effects=True),
    _row("divide", same_gradient="div"),
    _row("dot", "precision_config"),
    _row("dot_general", *_DOT_GENERAL, same_gradient="dot_general"),
    _row("dynamic_broadcast_in_dim", f"broadcast_dimensions {_EXPANDING}"),
    _row("dynamic_conv", f"{_CONVOLUTION} padding", _CONVOLUTION),
    _row("dynamic_gather", *_GATHER),
    _row("dynamic_iota", "iota_dimension"),
    _row("dynamic_pad"),
    _row("dynamic_reshape"),
    _row("dynamic_slice", "slice_sizes", same_gradient="dynamic_slice"),
    _row("dynamic_update_slice"),
    _row("einsum", "einsum_config"),
    _row("exponential", "", _ACCURACY, same_gradient="exp exp2"),
    _row("exponential_minus_one", "", _ACCURACY, same_gradient="expm1"),
    _row("fft", "fft_length fft_type"),
    _row("floor"),
    _row("func", "arg_attrs function_type res_attrs sym_name sym_visibility", in_tensorflow=False),
    _row("gather", *(f"{each} slice_sizes" for each in _GATHER), same_gradient="gather"),
    _row("get_dimension_size", "dimension"),
    _row("get_tuple_element", "index"),
    _row("if", has_effects=True),
    _row("imag", same_gradient="imag"),
    _row("infeed", "infeed_config layout", has_effects=True, in_tensorflow=False),
    _row("iota", "iota_dimension"),
    _row("is_finite"),
    _row("log", "", _ACCURACY, same_gradient="log"),
    _row("log_plus_one", "", _ACCURACY, same_gradient="log1p"),
    _row("logistic", "", _ACCURACY, same_gradient="logistic"),
    _row("map", "dimensions"),
    _row("maximum"),
    _row("minimum"),
    _row("multiply", same_gradient="mul square integer_pow"),
    _row("negate", same_gradient="neg"),
    _row("not"),
    _row("optimization_barrier", has_effects=True),
    _row("or"),
    _row("outfeed", "outfeed_config", has_effects=True, in_tensorflow=False),
    _row("pad", "edge_padding_high edge_padding_low interior_padding", same_gradient="pad"),
    _row("partition_id", has_effects=True),
    _row("popcnt"),
    _row("power"),
    _row("real", same_gradient="real"),
    _row("real_dynamic_slice"),
    _row("recv", *_TRANSFER, has_effects=True, in_tensorflow=False),
    _row("reduce", "dimensions", same_gradient="reduce_sum reduce_max"),
    _row("reduce_precision", "exponent_bits mantissa_bits"),
    _row("reduce_scatter", f"{_ALL_REDUCE} scatter_dimension", has_effects=True),
    _row("reduce_window", f"{_WINDOW} base_dilations window_dilations"),
    _row("remainder"),
    _row("replica_id", has_effects=True),
    _row("reshape", same_gradient="reshape squeeze expand_dims"),
    _row("return", has_effects=True, in_tensorflow=False),
    _row("reverse", "dimensions", same_gradient="rev"),
    _row("rng", "rng_distribution"),
    _row("rng_bit_generator", "rng_algorithm"),
    _row("round_nearest_afz"),
    _row("round_nearest_even"),
    _row("rsqrt", "", _ACCURACY, same_gradient="rsqrt"),
    _row("scatter", _SCATTER, f"{_SCATTER} {_SCATTER_BATCHING}"),
    _row("select", same_gradient="select_n"),
    _row("select_and_scatter", _WINDOW),
    _row("send", *_TRANSFER, has_effects=True, in_tensorflow=False),
    _row("set_dimension_size", "dimension"),
    _row("shift_left"),
    _row("shift_right_arithmetic"),
    _row("shift_right_logical"),
    _row("sign"),
    _row("sine", "", _ACCURACY, same_gradient="sin"),
    _row("slice", "limit_indices start_indices strides", same_gradient="slice split"),
    _row("sort", "dimension is_stable"),
    # At a pole of rsqrt, the gradient of sqrt for a zero cotangent is 0 in TensorFlow, NaN in JAX.
    _row("sqrt", "", _ACCURACY),
    _row("subtract", same_gradient="sub"),
    _row("tan", "", _ACCURACY),
    _row("tanh", "", _ACCURACY, same_gradient="tanh"),
    _row("torch_index_select", "batch_dims dim"),
    _row("transpose", "permutation", same_gradient="transpose"),
    _row("triangular_solve", "left_side lower transpose_a unit_diagonal"),
    _row("tuple"),
    _row("unary_einsum", "einsum_config"),
    _row("while", has_effects=True),
    _row("xor"),
)
OPERATIONS: Mapping[str, OperationKind] = MappingProxyType({row.name: row for row in _OPERATIONS})
"""The operations of StableHLO that the bridge knows, by name."""

_CUMULATIVE = ("axis", "reverse")
_IN_TENSORFLOW_ALONE: Mapping[str, Any] = MappingProxyType(
    {"for_converters": False, "for_litert": False}
)
_COMPOSITES = (
    Composite("chlo.acos"),
    Composite("chlo.acosh"),
    Composite("chlo.asin"),
    Composite("chlo.asinh"),
    Composite("chlo.atanh"),
    Composite("chlo.bessel_i1e", "bessel_i1e", **_IN_TENSORFLOW_ALONE),
    Composite("chlo.cosh"),
    Composite("chlo.digamma", "digamma", **_IN_TENSORFLOW_ALONE),
    Composite("chlo.erf", same_gradient=("erf",)),
    Composite("chlo.erf_inv", "erf_inv", for_converters=False),
    Composite("chlo.erfc", "erfc", for_converters=False),
    Composite("chlo.lgamma", "lgamma"),
    Composite("chlo.next_after", "nextafter"),
    Composite("chlo.polygamma", "polygamma", **_IN_TENSORFLOW_ALONE),
    Composite("chlo.sinh"),
    Composite("chlo.top_k"),
    Composite("chlo.zeta", "zeta", **_IN_TENSORFLOW_ALONE),
    Composite("jax2tf.bessel_i0e", "bessel_i0e", **_IN_TENSORFLOW_ALONE),
    Composite("jax2tf.betainc", "regularized_incomplete_beta", **_IN_TENSORFLOW_ALONE),
    Composite("jax2tf.cumlogsumexp", "cumlogsumexp", _CUMULATIVE),
    Composite("jax2tf.cummax", "cummax", _CUMULATIVE),
    Composite("jax2tf.cummin", "cummin", _CUMULATIVE),
    Composite("jax2tf.cumprod", "cumprod", _CUMULATIVE),
    Composite("jax2tf.cumsum", "cumsum", _CUMULATIVE, same_gradient=("cumsum",)),
    Composite(
        "jax2tf.eig",
        "eig",
        ("compute_left_eigenvectors", "compute_right_eigenvectors"),
        **_IN_TENSORFLOW_ALONE,
    ),
    Composite("jax2tf.eigh", "eigh", ("lower",), unless="subset_by_index", **_IN_TENSORFLOW_ALONE),
    Composite("jax2tf.igamma", "igamma", **_IN_TENSORFLOW_ALONE),
    Composite("jax2tf.igammac", "igammac", **_IN_TENSORFLOW_ALONE),
    Composite("jax2tf.lu", "lu"),
    Composite("jax2tf.qr", "qr", ("full_matrices",), unless="pivoting", **_IN_TENSORFLOW_ALONE),
    Composite("jax2tf.stop_gradient", "stop_gradient", same_gradient=("stop_gradient",)),
    Composite(
        "jax2tf.svd",
        "svd",
        ("full_matrices", "compute_uv"),
        unless="subset_by_index",
        **_IN_TENSORFLOW_ALONE,
    ),
    Composite(
        "jax2tf.tridiagonal_solve",
        "tridiagonal_solve",
        unless="perturb_singular",
        **_IN_TENSORFLOW_ALONE,
    ),
)
COMPOSITES: Mapping[str, Composite] = MappingProxyType({row.name: row for row in _COMPOSITES})
"""The composites that become a TensorFlow operation, by name."""

_CUSTOM_CALLS = (
    CustomCall("AllocateBuffer", "tpu", in_tensorflow=False),
    CustomCall("ApproxTopK", "all"),
    CustomCall("Eigh", "all"),
    CustomCall("LuDecomposition", "tpu"),
    CustomCall("ProductOfElementaryHouseholderReflectors", "all"),
    CustomCall("Qr", "all"),
    CustomCall("SPMDFullToShardShape", "all"),
    CustomCall("SPMDShardToFullShape", "all"),
    CustomCall("Sharding", "all"),
    CustomCall("annotate_device_placement", "tpu"),
    # LAPACK's routines; the letters are the dtypes.
    *(
        CustomCall(f"lapack_{letter}{routine}_ffi")
        for letters, routines in (
            ("sdcz", ("geqrf", "gesdd", "getrf", "potrf", "trsm")),
            ("sd", ("orgqr", "syevd")),
            ("cz", ("heevd", "ungqr")),
        )
        for letter in letters
        for routine in routines
    ),
    # JAX up to 0.9 writes these; later releases write composites.
    CustomCall("mhlo.acos", expanded_since="2.21"),
    CustomCall("mhlo.acosh", expanded_since="2.21"),
    CustomCall("mhlo.asin", expanded_since="2.21"),
    CustomCall("mhlo.asinh", expanded_since="2.21"),
    CustomCall("mhlo.atanh", expanded_since="2.21"),
    CustomCall("mhlo.cosh", expanded_since="2.21"),
    CustomCall("mhlo.erf", expanded_since="2.17"),
    CustomCall("mhlo.sinh", expanded_since="2.21"),
    CustomCall("mhlo.topk", expanded_since="2.17"),
    CustomCall("shape_assertion", "all"),
    CustomCall("stablehlo.dynamic_approx_top_k", "all"),
    CustomCall("stablehlo.dynamic_reduce_window", "all"),
    CustomCall("stablehlo.dynamic_rng_bit_generator", "all"),
    CustomCall("stablehlo.dynamic_top_k", "all"),
    CustomCall("tf.call_tf_function", "all"),
    CustomCall("tpu_custom_call", "tpu", in_tensorflow=False),
    # Shardy's operations, as custom calls for readers that do not know Shardy.
    CustomCall("xla.sdy.FuncResultSharding", "all"),
    CustomCall("xla.sdy.GlobalToLocalShape", "all"),
    CustomCall("xla.sdy.LocalToGlobalShape", "all"),
    CustomCall("xla.sdy.PropagationBarrier", "all", in_tensorflow=False),
    CustomCall("xla.sdy.ShardingGroup", "all", in_tensorflow=False),
)
CUSTOM_CALLS: Mapping[str, CustomCall] = MappingProxyType(
    {row.target: row for row in _CUSTOM_CALLS}
)
"""The custom calls that a consumer can run, by target."""

SAME_GRADIENT = frozenset(
    primitive for row in (*_OPERATIONS, *_COMPOSITES) for primitive in row.same_gradient
)
"""JAX primitives whose derivatives TensorFlow's operations have, of any order."""
