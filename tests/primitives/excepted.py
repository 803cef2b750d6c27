"""Names that have no case, and why."""

from __future__ import annotations

from collections.abc import Mapping

_DEVICES = (
    "Needs several devices, or does not run on a CPU. Other collectives work over a mesh of one "
    "device, and over the axis of a jax.vmap"
)
_INTERNAL = "JAX uses it only while it traces or lowers; no public function makes it"

PRIMITIVES: Mapping[str, str] = {
    **dict.fromkeys(
        ("ragged_all_to_all", "xla_pmap"),
        _DEVICES,
    ),
    **dict.fromkeys(
        (
            "call",
            "closed_call",
            "custom_lin",
            "empty2",
            "eq_to",
            "eval_jaxpr",
            "le_to",
            "lt_to",
            "remat_opt",
            "select_and_scatter",
            "stage",
            "zeros_like",
        ),
        _INTERNAL,
    ),
    "dce_sink": "The bridge refuses this effect of JAX's compiler, because it would be lost",
}
"""Primitives by name. Not every release of JAX has all of them."""

_SHAPES = "Computes with shapes, not with arrays"
_KEYS = "Returns the kind of a key, not an array"

FUNCTIONS: Mapping[str, str] = {
    **dict.fromkeys(
        (
            "jax.lax.pbroadcast",
            "jax.lax.precv",
            "jax.lax.psend",
            "jax.lax.psum_scatter_start",
            "jax.lax.ragged_all_to_all",
        ),
        _DEVICES,
    ),
    **dict.fromkeys(
        (
            "jax.lax.broadcast_shapes",
            "jax.lax.conv_dimension_numbers",
            "jax.lax.conv_general_permutations",
            "jax.lax.conv_general_shape_tuple",
            "jax.lax.conv_shape_tuple",
            "jax.lax.conv_transpose_shape_tuple",
            "jax.lax.dtype",
            "jax.lax.padtype_to_pads",
            "jax.lax.reduce_window_shape_tuple",
        ),
        _SHAPES,
    ),
    **dict.fromkeys(
        (
            "jax.lax.ConvGeneralDilatedDimensionNumbers",
            "jax.lax.DotDimensionNumbers",
            "jax.lax.PrecisionLike",
        ),
        "A name for annotations",
    ),
    **dict.fromkeys(("jax.random.Key", "jax.random.key_dtype", "jax.random.key_impl"), _KEYS),
    "jax.lax.pvary": "A deprecated name of pcast",
    "jax.lax.dce_sink": PRIMITIVES["dce_sink"],
    "jax.nn.get_scaled_dot_general_config": "Makes a configuration for a kernel of cuDNN",
    "jax.scipy.spatial.transform.Rotation.random": "JAX raises NotImplementedError",
    "jax.scipy.spatial.transform.Rotation.single": "A property of the object, not an array",
}
"""Public functions by name. Not every release of JAX has all of them."""
