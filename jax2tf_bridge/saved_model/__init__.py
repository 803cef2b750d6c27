"""Reads and patches SavedModels; imports neither jax nor tensorflow."""

from jax2tf_bridge.saved_model._bundle_writing import NewTensor, append_tensors
from jax2tf_bridge.saved_model._crc32c import is_fast
from jax2tf_bridge.saved_model._dataflow import (
    CallScope,
    Cast,
    GraphConstant,
    GraphVariable,
    Input,
    ModuleCall,
    ModuleResult,
    Opaque,
    Placed,
    Value,
    without_casts,
)
from jax2tf_bridge.saved_model._entry_points import read_module_call
from jax2tf_bridge.saved_model._extras import SERVING_DEFAULT, WARM_UP, Request, read_requests
from jax2tf_bridge.saved_model._graph import CALL_MODULE, Graph, Node, tensor_of
from jax2tf_bridge.saved_model._meta_graph import GraphSignature, MetaGraph, SignaturePort
from jax2tf_bridge.saved_model._new_directory import check_place, edit_copy, replace_file
from jax2tf_bridge.saved_model._patching import NewModule, replace_modules
from jax2tf_bridge.saved_model._protobuf import ProtoMessage, bytes_field, varint_field
from jax2tf_bridge.saved_model._reading import (
    GRAPH_FILE,
    read_message,
    read_saved_model,
    read_serving_graph,
)
from jax2tf_bridge.saved_model._saved_model import (
    CalledModule,
    EntryPoint,
    GradientOrders,
    SavedModelContents,
)
from jax2tf_bridge.saved_model._schema import ModelSpecField, PredictionLogField, RequestField
from jax2tf_bridge.saved_model._sidecar import (
    FILE_NAME,
    MAX_GRADIENT_ORDERS,
    RECORDS,
    SIDECAR,
    ArrayEntry,
    ConstantEntry,
    Sidecar,
    SignatureEntry,
    VariableEntry,
    bucket_texts,
    needs_x64,
    padding_texts,
    read_sidecar,
    write_sidecar,
)
from jax2tf_bridge.saved_model._tensor_bundle import BundleEntry, TensorBundle, variable_name
from jax2tf_bridge.saved_model._tensors import TensorType, constant, tensor_type, texts
from jax2tf_bridge.saved_model._tfrecord import write_records
from jax2tf_bridge.saved_model._weights import read_saved_weights

__all__ = [
    "CALL_MODULE",
    "FILE_NAME",
    "GRAPH_FILE",
    "MAX_GRADIENT_ORDERS",
    "RECORDS",
    "SERVING_DEFAULT",
    "SIDECAR",
    "WARM_UP",
    "ArrayEntry",
    "BundleEntry",
    "CallScope",
    "CalledModule",
    "Cast",
    "ConstantEntry",
    "EntryPoint",
    "GradientOrders",
    "Graph",
    "GraphConstant",
    "GraphSignature",
    "GraphVariable",
    "Input",
    "MetaGraph",
    "ModelSpecField",
    "ModuleCall",
    "ModuleResult",
    "NewModule",
    "NewTensor",
    "Node",
    "Opaque",
    "Placed",
    "PredictionLogField",
    "ProtoMessage",
    "Request",
    "RequestField",
    "SavedModelContents",
    "Sidecar",
    "SignatureEntry",
    "SignaturePort",
    "TensorBundle",
    "TensorType",
    "Value",
    "VariableEntry",
    "append_tensors",
    "bucket_texts",
    "bytes_field",
    "check_place",
    "constant",
    "edit_copy",
    "is_fast",
    "needs_x64",
    "padding_texts",
    "read_message",
    "read_module_call",
    "read_requests",
    "read_saved_model",
    "read_saved_weights",
    "read_serving_graph",
    "read_sidecar",
    "replace_file",
    "replace_modules",
    "tensor_of",
    "tensor_type",
    "texts",
    "variable_name",
    "varint_field",
    "without_casts",
    "write_records",
    "write_sidecar",
]
