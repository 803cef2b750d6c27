"""Texts of modules are equal if they differ only in attributes at their defaults."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax2tf_bridge import export

# Private: unequal texts only make an export slower.
from jax2tf_bridge.from_jax.stablehlo import _module
from jax2tf_bridge.from_jax.stablehlo._module import _are_texts_equal

PRODUCT = "%0 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0]{} : (tensor<2x2xf32>)"
WINDOW = '%1 = "stablehlo.reduce_window"(%0, %c) <{{{}window_dimensions = array<i64: 2>}}> ({{'
CONVOLUTION = (
    "%2 = stablehlo.convolution(%1, %d) dim_numbers = [b, f]x[i, o]->[b, f], window = {{{}}} "
    "{{batch_group_count = 1 : i64{}}} : (tensor<2x2xf32>)"
)
DEFAULT = "#stablehlo<precision DEFAULT>"


@pytest.mark.parametrize(
    ("said", "unsaid"),
    [
        (PRODUCT.format(", precision = [DEFAULT, DEFAULT]"), PRODUCT.format("")),
        (WINDOW.format("padding = dense<0> : tensor<1x2xi64>, "), WINDOW.format("")),
        (
            CONVOLUTION.format(
                "stride = [1, 1], pad = [[0, 0], [0, 0]], reverse = [false, false]",
                f", precision_config = [{DEFAULT}, {DEFAULT}]",
            ),
            CONVOLUTION.format("", ""),
        ),
        (
            CONVOLUTION.format("stride = [2, 1], lhs_dilate = [1, 1]", ""),
            CONVOLUTION.format("stride = [2, 1]", ""),
        ),
    ],
)
def test_defaults(said: str, unsaid: str) -> None:
    assert _are_texts_equal(said, unsaid)
    assert _are_texts_equal(unsaid, said)


@pytest.mark.parametrize(
    ("said", "unsaid"),
    [
        (PRODUCT.format(", precision = [DEFAULT, HIGHEST]"), PRODUCT.format("")),
        (WINDOW.format("padding = dense<1> : tensor<1x2xi64>, "), WINDOW.format("")),
        (CONVOLUTION.format("stride = [1, 2]", ""), CONVOLUTION.format("", "")),
        (CONVOLUTION.format("pad = [[0, 0], [0, 1]]", ""), CONVOLUTION.format("", "")),
        (CONVOLUTION.format("reverse = [false, true]", ""), CONVOLUTION.format("", "")),
        (PRODUCT.format(""), PRODUCT.format("") + "\nreturn"),
    ],
)
def test_what_is_no_default(said: str, unsaid: str) -> None:
    assert not _are_texts_equal(said, unsaid)
    assert not _are_texts_equal(unsaid, said)


def test_a_usual_module_is_compared_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second artifact would take as long to write as the rest of the export."""
    printed = []
    plain = _module._print

    def recorded(module: Any) -> str:
        printed.append(plain(module))
        return printed[-1]

    monkeypatch.setattr(_module, "_print", recorded)

    def layer(x: jax.Array) -> Any:
        images = jax.lax.conv_general_dilated(
            x[:, None], jnp.ones((2, 1, 3)), (2,), "SAME", rhs_dilation=(1,)
        )
        pooled = jax.lax.reduce_window(images, 0.0, jax.lax.add, (1, 1, 2), (1, 1, 1), "VALID")
        return jnp.take(pooled, jnp.array([0, 1]), axis=1) @ pooled.mT

    export(layer, polymorphic_shapes="(b, 9)")(np.ones((2, 9), np.float32))
    assert len(printed) == 2
    assert printed[0] != printed[1]
