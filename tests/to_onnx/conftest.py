"""The fixture that records what was measured of the real models."""

from tests.consumers.conftest import record as record
