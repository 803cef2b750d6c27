# The public names of __init__.py, for type checkers and editors.

from jax2tf_bridge import c_library as c_library
from jax2tf_bridge import colocated as colocated
from jax2tf_bridge import compat as compat
from jax2tf_bridge import coreml as coreml
from jax2tf_bridge import errors as errors
from jax2tf_bridge import inspecting as inspecting
from jax2tf_bridge import jax_export as jax_export
from jax2tf_bridge import keras as keras
from jax2tf_bridge import litert as litert
from jax2tf_bridge import loading as loading
from jax2tf_bridge import parallel as parallel
from jax2tf_bridge import portable as portable
from jax2tf_bridge import publishing as publishing
from jax2tf_bridge import saving as saving
from jax2tf_bridge import serve_checking as serve_checking
from jax2tf_bridge import signatures as signatures
from jax2tf_bridge import tfjs as tfjs
from jax2tf_bridge import to_onnx as to_onnx
from jax2tf_bridge import verifying as verifying
from jax2tf_bridge import weights as weights
from jax2tf_bridge._version import __version__ as __version__
from jax2tf_bridge.c_library import compile_library as compile_library
from jax2tf_bridge.c_library import load_library as load_library
from jax2tf_bridge.calling_tf import call_tf as call_tf
from jax2tf_bridge.compat import PolyShape as PolyShape
from jax2tf_bridge.compat import dtype_of_val as dtype_of_val
from jax2tf_bridge.compat import eval_polymorphic_shape as eval_polymorphic_shape
from jax2tf_bridge.compat import split_to_logical_devices as split_to_logical_devices
from jax2tf_bridge.converting import convert as convert
from jax2tf_bridge.converting import publish as publish
from jax2tf_bridge.converting import save as save
from jax2tf_bridge.converting import serialize_exported as serialize_exported
from jax2tf_bridge.coreml import save_coreml as save_coreml
from jax2tf_bridge.errors import BridgeError as BridgeError
from jax2tf_bridge.from_jax import export as export
from jax2tf_bridge.from_jax import from_exported as from_exported
from jax2tf_bridge.from_jax import retarget as retarget
from jax2tf_bridge.from_jax import to_exported as to_exported
from jax2tf_bridge.inspecting import inspect as inspect
from jax2tf_bridge.keras import KerasLayer as KerasLayer
from jax2tf_bridge.litert import save_litert as save_litert
from jax2tf_bridge.loading import load as load
from jax2tf_bridge.parallel import ExportJob as ExportJob
from jax2tf_bridge.parallel import export_many as export_many
from jax2tf_bridge.portable import AUTO as AUTO
from jax2tf_bridge.portable import DisabledSafetyCheck as DisabledSafetyCheck
from jax2tf_bridge.portable import PortableFunction as PortableFunction
from jax2tf_bridge.publishing import latest_version as latest_version
from jax2tf_bridge.publishing import list_versions as list_versions
from jax2tf_bridge.publishing import promote as promote
from jax2tf_bridge.publishing import published_versions as published_versions
from jax2tf_bridge.publishing import rollback as rollback
from jax2tf_bridge.saving import Batching as Batching
from jax2tf_bridge.saving import assign_weights as assign_weights
from jax2tf_bridge.saving import choose_buckets as choose_buckets
from jax2tf_bridge.scoring import RowScorer as RowScorer
from jax2tf_bridge.serialization import deserialize as deserialize
from jax2tf_bridge.serialization import read_function as read_function
from jax2tf_bridge.serialization import (
    register_namedtuple_serialization as register_namedtuple_serialization,
)
from jax2tf_bridge.serialization import (
    register_pytree_node_serialization as register_pytree_node_serialization,
)
from jax2tf_bridge.serialization import serialize as serialize
from jax2tf_bridge.serialization import write_function as write_function
from jax2tf_bridge.serve_checking import measure_load as measure_load
from jax2tf_bridge.serve_checking import serve_check as serve_check
from jax2tf_bridge.signatures import Padding as Padding
from jax2tf_bridge.signatures import Processing as Processing
from jax2tf_bridge.signatures import Signature as Signature
from jax2tf_bridge.stablehlo import from_stablehlo as from_stablehlo
from jax2tf_bridge.targets import Target as Target
from jax2tf_bridge.tfjs import save_tfjs as save_tfjs
from jax2tf_bridge.to_onnx import save_onnx as save_onnx
from jax2tf_bridge.to_tensorflow import to_tf as to_tf
from jax2tf_bridge.verifying import verify as verify
from jax2tf_bridge.weights import open_weights as open_weights
from jax2tf_bridge.weights import read_weights as read_weights
from jax2tf_bridge.weights import write_weights as write_weights
