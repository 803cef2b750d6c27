"""AUTO, with which a user leaves the choice of polymorphic_shapes to the bridge."""

from __future__ import annotations

import enum
from typing import Final, Literal


class Auto(enum.Enum):
    """An enumeration whose one member is AUTO; every string is a specification already."""

    AUTO = "AUTO"

    def __repr__(self) -> str:
        return "AUTO"


AUTO: Final[Literal[Auto.AUTO]] = Auto.AUTO
"""For polymorphic_shapes, or an entry of it: the bridge finds which dimensions can stay open.

Of an argument with dimensions that are not known (None in a tf.TensorSpec), these are open. Of
example arguments, as many are open as tracing allows, but none of what the results show to be
parameters. Open dimensions share a variable where tracing shows that they must be equal.
"""
