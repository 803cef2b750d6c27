"""Tables of VHLO: the properties of its operations, and the names of its enum values.

VHLO is the versioned form of StableHLO in files: https://openxla.org/stablehlo/vhlo.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType

from jax2tf_bridge._operations import OPERATIONS

_VHLO_NAME = re.compile(r"vhlo\.(.+)_v[0-9]+")


def find_stablehlo_name(name: str) -> str | None:
    """Returns StableHLO's name for a VHLO operation; None for other dialects.

    >>> find_stablehlo_name("vhlo.add_v1"), find_stablehlo_name("builtin.module")
    ('add', None)
    """
    match = _VHLO_NAME.fullmatch(name)
    return match.group(1) if match else None


PROPERTIES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    # Files store properties in alphabetical order.
    {
        f"vhlo.{name}_v{number}": tuple(sorted(attributes))
        for name, row in OPERATIONS.items()
        for number, attributes in enumerate(row.versions, 1)
        if attributes
    }
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
