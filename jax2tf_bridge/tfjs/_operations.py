"""The operations of TensorFlow.js 4.22 that graph models of the bridge may have."""

from __future__ import annotations

OPERATIONS = frozenset(
    {"Abs", "Acos", "Acosh", "Add", "AddN", "AddV2", "All", "Any", "ArgMax", "ArgMin", "Asin"}
    | {"Asinh", "Atan", "Atan2", "Atanh", "AvgPool", "AvgPool3D", "BatchMatMul", "BatchMatMulV2"}
    | {"BatchToSpaceND", "BiasAdd", "BroadcastTo", "Cast", "Ceil", "Complex"}
    | {"ComplexAbs", "Concat", "ConcatV2", "Const", "Conv2D", "Conv2DBackpropInput", "Conv3D"}
    | {"Cos", "Cosh", "Cumprod", "Cumsum", "DepthToSpace", "DepthwiseConv2dNative", "Div"}
    | {"DivNoNan", "Einsum", "Elu", "Equal", "Erf", "Exp", "ExpandDims", "Expm1", "FFT", "Fill"}
    | {"Floor", "FloorDiv", "FloorMod", "FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3"}
    | {"FusedDepthwiseConv2dNative", "Gather", "GatherNd", "GatherV2", "Greater", "GreaterEqual"}
    | {"IFFT", "IRFFT", "Identity", "IdentityN", "If", "Imag", "IsFinite", "IsInf", "IsNan"}
    | {"LeakyRelu", "Less", "LessEqual", "LinSpace", "Log", "Log1p", "LogSoftmax", "LogicalAnd"}
    | {"LogicalNot", "LogicalOr", "MatMul", "MatrixBandPart", "Max", "MaxPool", "MaxPool3D"}
    | {"Maximum", "Mean", "Min", "Minimum", "MirrorPad", "Mod", "Mul", "Neg", "NoOp", "NotEqual"}
    | {"OneHot", "OnesLike", "Pack", "Pad", "PadV2", "Placeholder", "Pow", "Prelu", "Prod", "RFFT"}
    | {"Range", "Rank", "Real", "RealDiv", "Reciprocal", "Relu", "Relu6", "Reshape"}
    | {"ResizeBilinear", "ResizeNearestNeighbor", "Reverse", "ReverseV2", "Round", "Rsqrt"}
    | {"ScatterNd", "Select", "SelectV2", "Selu", "Shape", "ShapeN", "Sigmoid", "Sign", "Sin"}
    | {"Sinh", "Size", "Slice", "Softmax", "Softplus", "SpaceToBatchND", "Split", "SplitV", "Sqrt"}
    | {"Square", "SquaredDifference", "Squeeze", "StatelessIf", "StatelessWhile", "StopGradient"}
    | {"StridedSlice", "Sub", "Sum", "Tan", "Tanh", "TensorScatterUpdate", "Tile", "TopKV2"}
    | {"Transpose", "Unpack", "While", "ZerosLike", "_FusedConv2D", "_FusedMatMul"}
)
