"""Weights as variables of a SavedModel, or for the variables of a model that is there."""

from jax2tf_bridge.saving.weights._assign import Rename as Rename
from jax2tf_bridge.saving.weights._assign import WeightsReport as WeightsReport
from jax2tf_bridge.saving.weights._assign import assign_weights as assign_weights
from jax2tf_bridge.saving.weights._checkpoint import hold_values as hold_values
from jax2tf_bridge.saving.weights._checkpoint import renew_fingerprint as renew_fingerprint
from jax2tf_bridge.saving.weights._checkpoint import write_values as write_values
from jax2tf_bridge.saving.weights._variables import LITERT_VARIABLES as LITERT_VARIABLES
from jax2tf_bridge.saving.weights._variables import ConstantVariables as ConstantVariables
from jax2tf_bridge.saving.weights._variables import SavedVariable as SavedVariable
from jax2tf_bridge.saving.weights._variables import Weights as Weights
from jax2tf_bridge.saving.weights._variables import as_saved as as_saved
from jax2tf_bridge.saving.weights._variables import check_prefixes as check_prefixes
from jax2tf_bridge.saving.weights._variables import convert_stored as convert_stored
from jax2tf_bridge.saving.weights._variables import has_prefix as has_prefix
from jax2tf_bridge.saving.weights._variables import is_trainable as is_trainable
from jax2tf_bridge.saving.weights._variables import make_variable as make_variable
from jax2tf_bridge.saving.weights._variables import read_prefixes as read_prefixes
