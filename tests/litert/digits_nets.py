"""The net of examples/digits for integers: trained with rounding, and with products of bytes."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from examples.digits import model

_MAX_STEP = 127
_POOL = (1, 2, 2, 1)
_LAYERS = ("conv1", "conv2", "dense1", "dense2")


def _round(x: Any, scale: Any) -> Any:
    """Rounds to 255 steps, with the gradient of the identity."""
    rounded = jnp.clip(jnp.round(x / scale), -_MAX_STEP, _MAX_STEP) * scale
    return x + lax.stop_gradient(rounded - x)


def _round_weights(kernel: Any) -> Any:
    return _round(kernel, lax.stop_gradient(_find_scale(kernel)))


def _find_scale(kernel: Any) -> Any:
    """Returns the step of each channel of the result."""
    axes = tuple(range(kernel.ndim - 1))
    return jnp.max(jnp.abs(kernel), axis=axes, keepdims=True) / _MAX_STEP


def _convolve(x: Any, kernel: Any, **options: Any) -> Any:
    layout = ("NHWC", "HWIO", "NHWC")
    return lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=layout, **options)


def _multiply(x: Any, kernel: Any, **options: Any) -> Any:
    """Convolves images, or multiplies rows."""
    return _convolve(x, kernel, **options) if kernel.ndim == 4 else jnp.matmul(x, kernel, **options)


def _pool(x: Any) -> Any:
    least = np.array(-np.inf, x.dtype)
    return lax.reduce_window(x, least, lax.max, _POOL, _POOL, "VALID").reshape(x.shape[0], -1)


def rounded_logits(params: Any, images: Any) -> Any:
    """Computes scores with fake quantisation of weights and of what layers compute.

    Args:
      params: the weights `net`, and the steps `scales` of the input and of each layer.
      images: images of (b, 8, 8).
    """
    scales = params["scales"]
    x = _round(images[..., None] / 16, scales["input"])
    for name in _LAYERS:
        layer = params["net"][name]
        x = _multiply(x, _round_weights(layer["kernel"])) + layer["bias"]
        x = _round(x if name == _LAYERS[-1] else jax.nn.relu(x), scales[name])
        x = _pool(x) if name == "conv2" else x
    return x


def find_scales(net: Any, images: Any) -> dict[str, Any]:
    """Measures the steps that `rounded_logits` needs."""
    largest = {}
    x = images[..., None] / 16
    largest["input"] = x
    for name in _LAYERS:
        x = _multiply(x, net[name]["kernel"]) + net[name]["bias"]
        x = x if name == _LAYERS[-1] else jax.nn.relu(x)
        largest[name] = x
        x = _pool(x) if name == "conv2" else x
    return {name: np.float32(np.abs(x).max() / _MAX_STEP) for name, x in largest.items()}


def store_bytes(net: Any) -> dict[str, Any]:
    """Makes the weights of `logits_of_bytes`: int8 kernels with a step for each channel."""
    layers = {}
    for name in _LAYERS:
        kernel = np.asarray(net[name]["kernel"])
        scale = np.asarray(_find_scale(kernel), np.float32)
        integers = np.rint(kernel / scale).astype(np.int8)
        bias = np.asarray(net[name]["bias"])
        layers[name] = {"kernel": integers, "scale": scale.reshape(-1), "bias": bias}
    return layers


def logits_of_bytes(params: Any, images: Any) -> Any:
    """Computes scores with products of int8, in ranges that are measured at each call."""
    x = images[..., None] / 16
    for name in _LAYERS:
        layer = params[name]
        axes = tuple(range(1, x.ndim))
        step = jnp.max(jnp.abs(x), axis=axes, keepdims=True) / _MAX_STEP + 1e-9
        integers = jnp.round(x / step).astype(jnp.int8)
        sums = _multiply(integers, layer["kernel"], preferred_element_type=jnp.int32)
        x = sums.astype(jnp.float32) * step * layer["scale"] + layer["bias"]
        x = x if name == _LAYERS[-1] else jax.nn.relu(x)
        x = _pool(x) if name == "conv2" else x
    return x


logits = model.logits
