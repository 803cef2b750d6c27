"""Tables of VHLO: the attributes of its operations, and the names of its enum values.

VHLO is the versioned form of StableHLO in files: https://openxla.org/stablehlo/vhlo.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType

_VHLO_NAME = re.compile(r"vhlo\.(.+)_v[0-9]+")


def find_stablehlo_name(name: str) -> str | None:
    """Returns StableHLO's name for a VHLO operation; None for other dialects.

    >>> find_stablehlo_name("vhlo.add_v1"), find_stablehlo_name("builtin.module")
    ('add', None)
    """
    match = _VHLO_NAME.fullmatch(name)
    return match.group(1) if match else None


_CONVOLUTION = (
    *("batch_group_count", "feature_group_count", "input_batch_dimension"),
    *("input_feature_dimension", "input_spatial_dimensions", "kernel_input_feature_dimension"),
    *("kernel_output_feature_dimension", "kernel_spatial_dimensions", "lhs_dilation"),
    *("output_batch_dimension", "output_feature_dimension", "output_spatial_dimensions"),
    *("precision_config", "rhs_dilation", "window_reversal", "window_strides"),
)
_CUSTOM_CALL = (
    *("api_version", "backend_config", "call_target_name", "called_computations"),
    *("has_side_effect", "operand_layouts", "output_operand_aliases", "result_layouts"),
)
_DYNAMIC_GATHER = (
    *("collapsed_slice_dims", "index_vector_dim", "indices_are_sorted", "offset_dims"),
    "start_index_map",
)
_BATCHED_GATHER = (*_DYNAMIC_GATHER, "operand_batching_dims", "start_indices_batching_dims")
_SCATTER = (
    *("index_vector_dim", "indices_are_sorted", "inserted_window_dims"),
    *("scatter_dims_to_operand_dims", "unique_indices", "update_window_dims"),
)
_DOT_GENERAL = (
    *("lhs_batching_dimensions", "lhs_contracting_dimensions", "precision_config"),
    *("rhs_batching_dimensions", "rhs_contracting_dimensions"),
)
_DOT_ALGORITHM = (
    *("accumulation_type", "allow_imprecise_accumulation", "lhs_component_count"),
    *("lhs_precision_type", "num_primitive_operations", "rhs_component_count"),
    "rhs_precision_type",
)
_ALL_GATHER = ("all_gather_dim", "channel_id", "replica_groups", "use_global_device_ids")
_ALL_REDUCE = ("channel_id", "replica_groups", "use_global_device_ids")
_ALL_TO_ALL = (
    *("channel_id", "concat_dimension", "replica_groups", "split_count", "split_dimension"),
)
_COMPOSITE = ("composite_attributes", "decomposition", "name", "version")
_TRANSFER = ("channel_id", "channel_type", "is_host_transfer")
_NORMALIZATION = ("epsilon", "feature_index")
_ACCURACY = ("result_accuracy",)

_ATTRIBUTES: Mapping[str, tuple[str, ...]] = {
    "all_gather_v1": _ALL_GATHER,
    "all_gather_v2": _ALL_GATHER,
    "all_reduce_v1": _ALL_REDUCE,
    "all_reduce_v2": _ALL_REDUCE,
    "all_to_all_v1": _ALL_TO_ALL,
    "all_to_all_v2": _ALL_TO_ALL,
    "batch_norm_grad_v1": _NORMALIZATION,
    "batch_norm_inference_v1": _NORMALIZATION,
    "batch_norm_training_v1": _NORMALIZATION,
    "broadcast_in_dim_v1": ("broadcast_dimensions",),
    "broadcast_v1": ("broadcast_sizes",),
    "call_v1": ("callee",),
    "cbrt_v2": _ACCURACY,
    "cholesky_v1": ("lower",),
    "collective_broadcast_v1": ("channel_id", "replica_groups"),
    "collective_broadcast_v2": ("channel_id", "has_dynamic_root", "replica_groups"),
    "collective_permute_v1": ("channel_id", "source_target_pairs"),
    "collective_reduce_v1": (
        *("channel_id", "has_dynamic_root", "replica_groups", "use_global_device_ids"),
    ),
    "compare_v1": ("compare_type", "comparison_direction"),
    "composite_v1": _COMPOSITE,
    "composite_v2": _COMPOSITE,
    "concatenate_v1": ("dimension",),
    "constant_v1": ("value",),
    "convolution_v1": (*_CONVOLUTION, "padding"),
    "cosine_v2": _ACCURACY,
    "cross-replica-sum_v1": ("replica_groups",),
    "custom_call_v1": _CUSTOM_CALL,
    "custom_call_v2": (*_CUSTOM_CALL, "result_tilings"),
    "dot_general_v1": _DOT_GENERAL,
    "dot_general_v2": (*_DOT_GENERAL, *_DOT_ALGORITHM),
    "dot_v1": ("precision_config",),
    "dynamic_broadcast_in_dim_v1": (
        *("broadcast_dimensions", "known_expanding_dimensions", "known_nonexpanding_dimensions"),
    ),
    "dynamic_conv_v1": (*_CONVOLUTION, "padding"),
    "dynamic_conv_v2": _CONVOLUTION,
    "dynamic_gather_v1": _DYNAMIC_GATHER,
    "dynamic_gather_v2": _BATCHED_GATHER,
    "dynamic_iota_v1": ("iota_dimension",),
    "dynamic_slice_v1": ("slice_sizes",),
    "einsum_v1": ("einsum_config",),
    "exponential_minus_one_v2": _ACCURACY,
    "exponential_v2": _ACCURACY,
    "fft_v1": ("fft_length", "fft_type"),
    "func_v1": ("arg_attrs", "function_type", "res_attrs", "sym_name", "sym_visibility"),
    "gather_v1": (*_DYNAMIC_GATHER, "slice_sizes"),
    "gather_v2": (*_BATCHED_GATHER, "slice_sizes"),
    "get_dimension_size_v1": ("dimension",),
    "get_tuple_element_v1": ("index",),
    "infeed_v1": ("infeed_config", "layout"),
    "iota_v1": ("iota_dimension",),
    "log_plus_one_v2": _ACCURACY,
    "log_v2": _ACCURACY,
    "logistic_v2": _ACCURACY,
    "map_v1": ("dimensions",),
    "outfeed_v1": ("outfeed_config",),
    "pad_v1": ("edge_padding_high", "edge_padding_low", "interior_padding"),
    "recv_v1": _TRANSFER,
    "recv_v2": (*_TRANSFER, "source_target_pairs"),
    "reduce_precision_v1": ("exponent_bits", "mantissa_bits"),
    "reduce_scatter_v1": (*_ALL_REDUCE, "scatter_dimension"),
    "reduce_v1": ("dimensions",),
    "reduce_window_v1": (
        *("base_dilations", "padding", "window_dilations", "window_dimensions", "window_strides"),
    ),
    "reverse_v1": ("dimensions",),
    "rng_bit_generator_v1": ("rng_algorithm",),
    "rng_v1": ("rng_distribution",),
    "rsqrt_v2": _ACCURACY,
    "scatter_v1": _SCATTER,
    "scatter_v2": (*_SCATTER, "input_batching_dims", "scatter_indices_batching_dims"),
    "select_and_scatter_v1": ("padding", "window_dimensions", "window_strides"),
    "send_v1": _TRANSFER,
    "send_v2": (*_TRANSFER, "source_target_pairs"),
    "set_dimension_size_v1": ("dimension",),
    "sine_v2": _ACCURACY,
    "slice_v1": ("limit_indices", "start_indices", "strides"),
    "sort_v1": ("dimension", "is_stable"),
    "sqrt_v2": _ACCURACY,
    "tan_v2": _ACCURACY,
    "tanh_v2": _ACCURACY,
    "torch_index_select_v1": ("batch_dims", "dim"),
    "transpose_v1": ("permutation",),
    "triangular_solve_v1": ("left_side", "lower", "transpose_a", "unit_diagonal"),
    "unary_einsum_v1": ("einsum_config",),
}

PROPERTIES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    # Files store properties in alphabetical order.
    {f"vhlo.{name}": tuple(sorted(attributes)) for name, attributes in _ATTRIBUTES.items()}
)
"""The native properties of each operation, in the order of the file."""

_PRECISION = ("DEFAULT", "HIGH", "HIGHEST")

ENUMS: Mapping[tuple[str, int | None], Mapping[int, str]] = MappingProxyType(
    {
        ("vhlo", code): MappingProxyType(dict(enumerate(names, first)))
        for code, first, names in (
            # comparison_direction, compare_type
            (3, 0, ("EQ", "NE", "GE", "GT", "LE", "LT")),
            (4, 0, ("NOTYPE", "FLOAT", "TOTALORDER", "SIGNED", "UNSIGNED")),
            # api_version, fft_type, precision_config
            (
                *(5, 0),
                (
                    *("API_VERSION_UNSPECIFIED", "API_VERSION_ORIGINAL"),
                    *("API_VERSION_STATUS_RETURNING", "API_VERSION_STATUS_RETURNING_UNIFIED"),
                    "API_VERSION_TYPED_FFI",
                ),
            ),
            (7, 0, ("FFT", "IFFT", "RFFT", "IRFFT")),
            (11, 0, _PRECISION),
            # rng_algorithm, rng_distribution, transpose_a
            (12, 0, ("DEFAULT", "THREE_FRY", "PHILOX")),
            (13, 1, ("UNIFORM", "NORMAL")),
            (16, 0, ("TRANSPOSE_INVALID", "NO_TRANSPOSE", "TRANSPOSE", "ADJOINT")),
            # mode of result_accuracy
            (19, 0, ("DEFAULT", "HIGHEST", "TOLERANCE")),
        )
    }
)
"""The names of enum values, by the kind of attribute and the value's number."""
