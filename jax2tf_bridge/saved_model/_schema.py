"""Field numbers of TensorFlow's messages."""

from __future__ import annotations

from enum import IntEnum


class SavedModelField(IntEnum):
    """SavedModel, the file saved_model.pb."""

    META_GRAPHS = 2


class MetaGraphField(IntEnum):
    """MetaGraphDef: a graph with its signatures."""

    META_INFO = 1
    GRAPH = 2
    SAVER = 3
    SIGNATURES = 5
    ASSETS = 6
    OBJECT_GRAPH = 7


class MetaInfoField(IntEnum):
    """MetaGraphDef.MetaInfoDef."""

    TAGS = 4
    TENSORFLOW_VERSION = 5


class SaverField(IntEnum):
    """SaverDef: how variables are restored."""

    RESTORE = 3


class GraphField(IntEnum):
    """GraphDef."""

    NODES = 1
    LIBRARY = 2


class LibraryField(IntEnum):
    """FunctionDefLibrary; in its GradientDef and RegisteredGradient 1 and 2 are names."""

    FUNCTIONS = 1
    GRADIENTS = 2
    REGISTERED_GRADIENTS = 3


class FunctionField(IntEnum):
    """FunctionDef; the signature is an OpDef."""

    SIGNATURE = 1
    NODES = 3
    RESULTS = 4


class OpField(IntEnum):
    """OpDef: arguments and results of a function; an argument's first field is its name."""

    NAME = 1
    ARGUMENTS = 2
    RESULTS = 3


class NodeField(IntEnum):
    """NodeDef."""

    NAME = 1
    OP = 2
    INPUTS = 3
    ATTRIBUTES = 5


class AttributeField(IntEnum):
    """AttrValue; a list has the other fields under the same numbers."""

    LIST = 1
    BYTES = 2
    INTEGER = 3
    FLAG = 5
    TYPE = 6
    SHAPE = 7
    TENSOR = 8
    FUNCTION = 10


class ListField(IntEnum):
    """AttrValue.ListValue."""

    BYTES = 2
    TYPES = 6
    SHAPES = 7
    FUNCTIONS = 9


class TensorProtoField(IntEnum):
    """TensorProto."""

    DTYPE = 1
    SHAPE = 2
    CONTENT = 4


class ShapeField(IntEnum):
    """TensorShapeProto; the first field of a dimension is its size."""

    DIMENSIONS = 2
    UNKNOWN_RANK = 3


class SignatureField(IntEnum):
    """SignatureDef."""

    INPUTS = 1
    OUTPUTS = 2
    DEFAULTS = 4


class TensorInfoField(IntEnum):
    """TensorInfo: an input or output of a signature."""

    NAME = 1
    DTYPE = 2
    SHAPE = 3


class ObjectGraphField(IntEnum):
    """SavedObjectGraph."""

    NODES = 1
    CONCRETE_FUNCTIONS = 2


class ObjectField(IntEnum):
    """SavedObject."""

    CHILDREN = 1
    FUNCTION = 6
    VARIABLE = 7
    CAPTURED_TENSOR = 12


class ConcreteFunctionField(IntEnum):
    """SavedConcreteFunction."""

    BOUND_INPUTS = 2


class CapturedTensorField(IntEnum):
    """CapturedTensor: a captured tensor of a function."""

    NAME = 1
    FUNCTION = 2


class VariableField(IntEnum):
    """SavedVariable."""

    DTYPE = 1
    SHAPE = 2
    TRAINABLE = 3
    NAME = 6


class PredictionLogField(IntEnum):
    """tensorflow.serving.PredictionLog, and PredictLog within it (prediction_log.proto)."""

    PREDICT_LOG = 6
    REQUEST = 1


class RequestField(IntEnum):
    """tensorflow.serving.PredictRequest (predict.proto)."""

    MODEL_SPEC = 1
    INPUTS = 2


class ModelSpecField(IntEnum):
    """tensorflow.serving.ModelSpec (model.proto)."""

    NAME = 1
    SIGNATURE_NAME = 3
