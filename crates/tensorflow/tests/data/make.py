"""Makes the fixtures of this folder: TensorFlow's results of each op on random inputs.

    python make.py FOLDER [lists|more|images|rest|updates]

writes ops.pb (one GraphDef, a name scope for each case) and ops.safetensors (inputs and outputs, by the graph's names), or of loops
with lists (TensorArray, gradients of loops) lists.pb and lists.safetensors, or of ops that came later more.pb and more.safetensors, or
of ops on images and boxes images.pb and images.safetensors, or of older forms of ops and functions that are called rest.pb and
rest.safetensors, or of ops that change variables updates.pb and updates.safetensors.
`tests/ops.rs` lowers the graph and compares. TensorFlow 2.15.1 made what is committed.
"""

import json
import os
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
import numpy as np
import tensorflow as tf
from tensorflow.python.framework import function, op_def_registry

v1, raw = tf.compat.v1, tf.raw_ops
BF16 = tf.bfloat16.as_numpy_dtype
graph = tf.Graph()
cases = {}
rng = np.random.RandomState(54)


def f32(*shape, low=-2.0, high=2.0):
    return rng.uniform(low, high, shape).astype(np.float32)


def bf16(*shape, low=-2.0, high=2.0):
    return f32(*shape, low=low, high=high).astype(BF16)


def i32(*shape, low=-9, high=10, dtype=np.int32):
    return rng.randint(low, high, shape).astype(dtype)


def boolean(*shape):
    return rng.randint(0, 2, shape).astype(bool)


def case(name, build, *inputs, terms=0):
    """A graph of `build` over placeholders of these inputs. `terms`: the number of roundings in a result beyond eight."""
    with graph.as_default(), tf.name_scope(name):
        fed = [v1.placeholder(x.dtype, x.shape, name=f"in{n}") for n, x in enumerate(inputs)]
        made = build(*fed)
        if isinstance(made, tf.Tensor):
            made = [made]
        outs = []
        for tensor in made:
            if isinstance(tensor, tf.Tensor):
                outs.append(tf.identity(tensor, name=f"out{len(outs)}"))
    assert name not in cases, name
    cases[name] = (fed, inputs, outs, terms)


def with_gradient(build, weights=None):
    """The result, and its gradients under a cotangent that differs in each element."""

    def both(*xs):
        y = build(*xs)
        flat = np.linspace(-1.0, 1.0, int(np.prod(y.shape))).reshape(y.shape)
        wanted = [x for x in xs if x.dtype.is_floating]
        return [y] + [dx for dx in tf.gradients(y, wanted, tf.constant(flat, y.dtype)) if dx is not None]

    return both


def elementwise():
    positive = ["Log", "Log1p", "Sqrt", "Rsqrt", "Reciprocal", "Inv"]
    unit = ["Acos", "Asin", "Atanh"]
    for op in ["Abs", "Acos", "Acosh", "Asin", "Asinh", "Atanh", "Ceil", "Cos", "Cosh", "Elu", "Erf", "Exp", "Expm1",
               "Floor", "Inv", "IsFinite", "IsInf", "IsNan", "LeakyRelu", "Log", "Log1p", "Neg", "Reciprocal", "Relu", "Relu6",
               "Rint", "Round", "Rsqrt", "Selu", "Sigmoid", "Sign", "Sin", "Sinh", "Softplus", "Softsign", "Sqrt", "Square",
               "Tan", "Tanh"]:
        low, high = (0.1, 3.0) if op in positive else (-0.9, 0.9) if op in unit else (1.1, 3.0) if op == "Acosh" else (-3.0, 8.0) if op in ("Relu6", "Softplus") else (-1.4, 1.4)
        argument = "features" if op in ("Elu", "LeakyRelu", "Relu", "Relu6", "Selu", "Softplus", "Softsign") else "x"
        call = lambda x, op=op, argument=argument: getattr(raw, op)(**{argument: x})
        smooth = op not in ("Ceil", "Floor", "IsFinite", "IsInf", "IsNan", "Rint", "Round", "Sign", "Inv")
        case(op, with_gradient(call) if smooth else call, f32(2, 5, low=low, high=high), terms=16)
    special = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-40, 3e38], np.float32)
    for op in ["IsFinite", "IsInf", "IsNan", "Relu", "Sign", "Abs", "Sigmoid", "Tanh"]:
        case(f"{op}_special", lambda x, op=op: getattr(raw, op)(**{"features" if op == "Relu" else "x": x}), special)
    for op in ["Exp", "Relu", "Sigmoid", "Tanh", "Square", "Neg", "Softplus"]:
        case(f"{op}_bf16", lambda x, op=op: getattr(raw, op)(**{"features" if op in ("Relu", "Softplus") else "x": x}), bf16(7), terms=1)
    shapes = [((2, 3), (2, 3)), ((2, 1, 3), (4, 1)), ((), (3,)), ((1, 3), (2, 1))]
    for n, op in enumerate(["AddV2", "Sub", "Mul", "RealDiv", "Maximum", "Minimum", "SquaredDifference", "Atan2", "DivNoNan",
                            "MulNoNan", "FloorDiv", "FloorMod", "Pow", "Xdivy", "Xlogy", "Xlog1py", "Add", "Div", "TruncateMod"]):
        a, b = shapes[n % 4]
        low = 0.2 if op in ("Pow", "Xlogy", "Xlog1py", "RealDiv", "Div", "FloorDiv", "FloorMod", "TruncateMod", "Xdivy") else -2.0
        smooth = op not in ("FloorDiv", "FloorMod", "TruncateMod")
        call = lambda x, y, op=op: getattr(raw, op)(x=x, y=y)
        case(op, with_gradient(call) if smooth else call, f32(*a, low=low), f32(*b, low=low), terms=24)
    zeros = np.array([0.0, 1.0, 0.0, 2.0], np.float32)
    for op in ["DivNoNan", "MulNoNan", "Xdivy", "Xlogy"]:
        case(f"{op}_zero", lambda x, y, op=op: getattr(raw, op)(x=x, y=y), zeros, zeros[::-1].copy())
    whole = np.array([7, -7, 7, -7, 6, -6, 0], np.int32), np.array([3, 3, -3, -3, 3, -3, 5], np.int32)
    for op in ["FloorDiv", "FloorMod", "TruncateDiv", "TruncateMod", "Mod", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "Maximum",
               "SquaredDifference", "Mul", "Sub"]:
        case(f"{op}_int", lambda x, y, op=op: getattr(raw, op)(x=x, y=y), *whole)
    for op in ["LeftShift", "RightShift"]:
        case(op, lambda x, y, op=op: getattr(raw, op)(x=x, y=y), i32(5), i32(5, low=0, high=5))
    case("Invert", lambda x: raw.Invert(x=x), i32(5))
    for op in ["Equal", "NotEqual", "Greater", "GreaterEqual", "Less", "LessEqual"]:
        case(op, lambda x, y, op=op: getattr(raw, op)(x=x, y=y), i32(4, 3, low=0, high=3), i32(3, low=0, high=3))
    for op in ["LogicalAnd", "LogicalOr"]:
        case(op, lambda x, y, op=op: getattr(raw, op)(x=x, y=y), boolean(2, 3), boolean(3))
    case("LogicalNot", lambda x: raw.LogicalNot(x=x), boolean(4))
    case("ApproximateEqual", lambda x: raw.ApproximateEqual(x=x, y=x + tf.constant([0, 1e-6, 1e-3], x.dtype)), f32(3))
    case("AddN", lambda x, y, z: raw.AddN(inputs=[x, y, z]), f32(4), f32(4), f32(4), terms=3)
    case("ClipByValue", lambda x: raw.ClipByValue(t=x, clip_value_min=-0.5, clip_value_max=0.75), f32(9))
    case("clip_by_value", with_gradient(lambda x: tf.clip_by_value(x, -0.5, 0.75)), f32(9))
    case("Select_rows", lambda p, x, y: raw.Select(condition=p, x=x, y=y), boolean(3), f32(3, 2), f32(3, 2))
    case("Select", lambda p, x, y: raw.Select(condition=p, x=x, y=y), boolean(3, 2), f32(3, 2), f32(3, 2))
    case("SelectV2", with_gradient(lambda p, x, y: raw.SelectV2(condition=p, t=x, e=y)), boolean(3, 1), f32(1, 2), f32(3, 2))
    for src, dst in [("float32", "int32"), ("float32", "bfloat16"), ("float32", "float16"), ("float32", "bool"), ("float32", "float64"), ("int32", "float32"), ("int64", "int32"), ("bool", "float32"), ("bfloat16", "float32"), ("int32", "bool"), ("float32", "int64"), ("uint8", "float32")]:
        value = (f32(6, low=-5, high=5) * (rng.rand(6) > 0.3)).astype(tf.as_dtype(src).as_numpy_dtype) if src != "bool" else boolean(6)
        value = np.abs(value) if src == "uint8" else value
        case(f"Cast_{src}_{dst}", lambda x, dst=dst: tf.cast(x, dst), value)
    case("Bitcast", lambda x: raw.Bitcast(input=x, type=tf.int32), f32(4))
    case("BiasAdd", with_gradient(lambda x, b: raw.BiasAdd(value=x, bias=b)), f32(2, 3, 4), f32(4), terms=6)
    case("BiasAdd_nchw", with_gradient(lambda x, b: raw.BiasAdd(value=x, bias=b, data_format="NCHW")), f32(2, 3, 2, 2), f32(3), terms=8)
    case("BiasAddGrad_bf16", lambda x: raw.BiasAddGrad(out_backprop=x), bf16(6, 3), terms=1)


def reductions():
    for op in ["Sum", "Mean", "Prod", "Max", "Min"]:
        for n, (axes, keep) in enumerate([([0], False), ([-1, 0], True), ([], False), ([1, 2, 0], False)]):
            call = lambda x, op=op, axes=axes, keep=keep: getattr(raw, op)(input=x, axis=tf.constant(axes, tf.int32), keep_dims=keep)
            case(f"{op}_{n}", call, f32(3, 4, 2), terms=24)
    case("reduce_sum", with_gradient(lambda x: tf.reduce_sum(x, [0, 2])), f32(3, 4, 2), terms=6)
    case("reduce_mean", with_gradient(lambda x: tf.reduce_mean(x, [1], keepdims=True)), f32(3, 4, 2), terms=6)
    case("reduce_max", with_gradient(lambda x: tf.reduce_max(x, [1])), f32(3, 4, 2), terms=6)
    case("reduce_logsumexp", with_gradient(lambda x: tf.reduce_logsumexp(x, -1)), f32(3, 5), terms=20)
    case("moments", with_gradient(lambda x: tf.stack(tf.nn.moments(x, [0, 1]))), f32(3, 5, 2), terms=40)
    case("Sum_bf16", lambda x: raw.Sum(input=x, axis=[1]), bf16(2, 9), terms=1)
    case("Mean_bf16", lambda x: raw.Mean(input=x, axis=[1]), bf16(2, 9), terms=1)
    case("Sum_int", lambda x: raw.Sum(input=x, axis=[0]), i32(4, 3))
    case("EuclideanNorm", lambda x: raw.EuclideanNorm(input=x, axis=[1], keep_dims=True), f32(2, 5), terms=6)
    case("Any", lambda x: raw.Any(input=x, axis=[1]), boolean(5, 3))
    case("All", lambda x: raw.All(input=x, axis=[0], keep_dims=True), boolean(2, 6))
    case("L2Loss", with_gradient(lambda x: raw.L2Loss(t=x)), f32(4, 5), terms=20)
    ties = np.array([[1, 3, 3, 0], [2, 2, 2, 2], [-1, -5, -1, -7]], np.float32)
    for op in ["ArgMax", "ArgMin"]:
        case(op, lambda x, op=op: getattr(raw, op)(input=x, dimension=1), ties)
        case(f"{op}_int", lambda x, op=op: getattr(raw, op)(input=x, dimension=-2, output_type=tf.int32), i32(4, 5, low=0, high=4))
    for n, (exclusive, reverse) in enumerate([(False, False), (True, False), (False, True), (True, True)]):
        case(f"Cumsum_{n}", lambda x, a=exclusive, b=reverse: raw.Cumsum(x=x, axis=1, exclusive=a, reverse=b), f32(2, 5), terms=5)
    case("Cumprod", lambda x: raw.Cumprod(x=x, axis=-2), f32(4, 2), terms=4)
    case("TopKV2", lambda x: list(raw.TopKV2(input=x, k=3)), ties)
    case("InTopKV2", lambda x, t: raw.InTopKV2(predictions=x, targets=t, k=2), ties, np.array([1, 3, 1], np.int32))
    case("Softmax", with_gradient(lambda x: raw.Softmax(logits=x)), f32(3, 5), terms=20)
    case("LogSoftmax", with_gradient(lambda x: raw.LogSoftmax(logits=x)), f32(2, 3, 4), terms=20)
    case("Softmax_bf16", lambda x: raw.Softmax(logits=x), bf16(3, 5), terms=2)
    case("Xent", lambda x, y: list(raw.SoftmaxCrossEntropyWithLogits(features=x, labels=y)), f32(3, 5), f32(3, 5, low=0.0, high=1.0), terms=20)
    case("SparseXent", lambda x, y: list(raw.SparseSoftmaxCrossEntropyWithLogits(features=x, labels=y)), f32(4, 5), i32(4, low=0, high=5), terms=20)
    case("sparse_xent", with_gradient(lambda x, y: tf.nn.sparse_softmax_cross_entropy_with_logits(y, x)), f32(4, 5), i32(4, low=0, high=5, dtype=np.int64), terms=20)
    case("sigmoid_xent", with_gradient(lambda x, y: tf.nn.sigmoid_cross_entropy_with_logits(y, x)), f32(4, 5), f32(4, 5, low=0, high=1), terms=12)


def shapes():
    x = f32(2, 3, 4)
    for n, (perm) in enumerate([[2, 0, 1], [0, 2, 1], [0, 1, 2]]):
        case(f"Transpose_{n}", with_gradient(lambda x, perm=perm: tf.transpose(x, perm)), x)
    case("Shape", lambda x: raw.Shape(input=x), x)
    case("ShapeN", lambda x, y: list(raw.ShapeN(input=[x, y])), x, f32(5))
    case("SizeRank", lambda x: [raw.Size(input=x, out_type=tf.int64), raw.Rank(input=x)], x)
    case("Reshape", with_gradient(lambda x: tf.reshape(x, [4, -1])), x)
    case("Reshape_by_shape", lambda x: tf.reshape(x, tf.stack([tf.shape(x)[0] * tf.shape(x)[2], -1])), x)
    case("flatten_batch", lambda x: tf.reshape(x, tf.concat([tf.shape(x)[:1], [tf.reduce_prod(tf.shape(x)[1:])]], 0)), x)
    case("ExpandSqueeze", lambda x: [tf.expand_dims(x, -2), tf.squeeze(tf.expand_dims(x, 0)), tf.squeeze(tf.reshape(x, [2, 1, 12, 1]), [1])], x)
    case("InvertPermutation", lambda x: raw.InvertPermutation(x=tf.constant([2, 0, 1])) + tf.cast(x, tf.int32), f32(1))
    case("BroadcastTo", with_gradient(lambda x: tf.broadcast_to(x, [5, 2, 3, 4])), x, terms=5)
    case("Fill", lambda x: tf.fill(tf.shape(x)[1:], x[0, 0, 0]), x)
    case("Tile", with_gradient(lambda x: tf.tile(x, [2, 1, 3])), x, terms=6)
    case("Range", lambda x: [tf.range(2, 11, 3), tf.range(5, 0, -2), tf.cast(tf.range(3), tf.float32) * x[0, 0, 0]], x)
    case("LinSpace", lambda x: raw.LinSpace(start=-1.0, stop=2.0, num=7) + x, f32(1), terms=2)
    for n, (index) in enumerate([
        np.s_[1], np.s_[..., 1:], np.s_[:, ::2, None], np.s_[::-1, 1, ::-2], np.s_[:, tf.newaxis, -1], np.s_[0:0], np.s_[-1:, 5:, 1:-1],
    ]):
        case(f"StridedSlice_{n}", with_gradient(lambda x, index=index: x[index]), x)
    case("Slice", with_gradient(lambda x: tf.slice(x, [0, 1, 1], [-1, 2, 2])), x)
    case("Slice_at", lambda x, at: tf.slice(x, [0, at, 0], [2, 1, 4]), x, np.array(1, np.int32))
    case("Concat", with_gradient(lambda x, y: tf.concat([x, y], -1)), x, f32(2, 3, 2))
    case("ConcatOld", lambda x, y: raw.Concat(concat_dim=0, values=[x, y]), x, f32(1, 3, 4))
    case("Split", with_gradient(lambda x: tf.concat(tf.split(x, 2, 2)[::-1], 1)), x)
    case("SplitV", lambda x: tf.split(x, [1, 3], -1), x)
    case("Pack", with_gradient(lambda x, y: tf.stack([x, y], 1)), x, f32(2, 3, 4))
    case("Unpack", with_gradient(lambda x: tf.add_n(tf.unstack(x, axis=1))), x, terms=3)
    case("Pad", with_gradient(lambda x: tf.pad(x, [[1, 0], [0, 2], [3, 1]])), x)
    case("PadV2", lambda x: tf.pad(x, [[1, 0], [0, 2], [0, 0]], constant_values=7.5), x)
    case("MirrorPad", lambda x: [tf.pad(x, [[1, 0], [2, 1], [0, 3]], "REFLECT"), tf.pad(x, [[2, 2], [0, 1], [4, 0]], "SYMMETRIC")], x)
    case("Reverse", lambda x: [raw.Reverse(tensor=x, dims=[True, False, True]), tf.reverse(x, [-1])], x)
    case("Roll", lambda x: tf.roll(x, [1, -2], [1, 2]), x)
    case("SpaceDepth", lambda x: [raw.SpaceToDepth(input=x, block_size=2), raw.DepthToSpace(input=x, block_size=2)], f32(2, 4, 6, 4))
    case("ZerosOnes", lambda x: [tf.zeros_like(x), tf.ones_like(x)], x)
    case("Splat", lambda x: x + tf.constant(1.5, shape=[2, 3, 4]), x)


def indices():
    table, ids = f32(6, 3), i32(2, 4, low=0, high=6)
    case("Gather", with_gradient(lambda x, i: raw.Gather(params=x, indices=i)), table, ids, terms=8)
    case("GatherV2_axis", lambda x, i: tf.gather(x, i, axis=1), f32(2, 5, 3), i32(2, 2, low=0, high=5))
    case("GatherV2_batch", lambda x, i: tf.gather(x, i, axis=2, batch_dims=1), f32(2, 3, 5), i32(2, 4, low=0, high=5))
    case("GatherV2_batch_last", lambda x, i: tf.gather(x, i, batch_dims=1), f32(3, 5), i32(3, 2, low=0, high=5, dtype=np.int64))
    case("Gather_known", lambda x: tf.reshape(x, tf.gather(tf.shape(x), [1, 0])), f32(2, 3))
    case("GatherNd", with_gradient(lambda x, i: tf.gather_nd(x, i)), f32(3, 4, 2), np.array([[0, 1], [2, 3], [0, 1]], np.int32), terms=3)
    case("ScatterNd", lambda i, u: tf.scatter_nd(i, u, [5, 2]), np.array([[1], [3], [1]], np.int32), f32(3, 2), terms=3)
    case("TensorScatterAdd", lambda x, i, u: raw.TensorScatterAdd(tensor=x, indices=i, updates=u), f32(4, 2), np.array([[1, 0], [3, 1]], np.int32), f32(2), terms=3)
    case("UnsortedSegmentSum", with_gradient(lambda x, i: tf.math.unsorted_segment_sum(x, i, 4)), f32(5, 2), i32(5, low=0, high=4), terms=5)
    case("OneHot", lambda i: tf.one_hot(i, 5), i32(2, 3, low=-1, high=6))
    case("OneHot_axis", lambda i: tf.one_hot(i, 4, 2.5, -1.0, axis=0), i32(3, low=0, high=4))
    case("MatrixBandPart", lambda x: [tf.linalg.band_part(x, 1, 0), tf.linalg.band_part(x, -1, 1), tf.linalg.band_part(x, 0, -1)], f32(2, 4, 3))
    case("DynamicStitch", lambda x, y: raw.DynamicStitch(indices=[[0, 3], [1, 2]], data=[x, y]), f32(2, 3), f32(2, 3))


def products():
    for n, (a, b) in enumerate([(False, False), (True, False), (False, True), (True, True)]):
        x, y = f32(*((4, 3) if a else (3, 4))), f32(*((5, 4) if b else (4, 5)))
        case(f"MatMul_{n}", with_gradient(lambda x, y, a=a, b=b: raw.MatMul(a=x, b=y, transpose_a=a, transpose_b=b)), x, y, terms=10)
        x, y = f32(*((2, 4, 3) if a else (2, 3, 4))), f32(*((2, 5, 4) if b else (2, 4, 5)))
        case(f"BatchMatMul_{n}", with_gradient(lambda x, y, a=a, b=b: raw.BatchMatMulV2(x=x, y=y, adj_x=a, adj_y=b)), x, y, terms=10)
    case("BatchMatMul_wide", with_gradient(lambda x, y: tf.matmul(x, y)), f32(2, 1, 3, 4), f32(3, 4, 2), terms=16)
    case("MatMul_bf16", lambda x, y: tf.matmul(x, y), bf16(3, 4), bf16(4, 2), terms=1)
    for n, (equation, a, b) in enumerate([("abc,cd->abd", (2, 3, 4), (4, 5)), ("bfnh,btnh->bnft", (2, 3, 2, 4), (2, 5, 2, 4)), ("...ij,jk->...ik", (2, 2, 3), (3, 4)), ("ij,jk->ki", (2, 3), (3, 4)), ("ab,ab->a", (2, 3), (2, 3))]):
        case(f"Einsum_{n}", with_gradient(lambda x, y, e=equation: tf.einsum(e, x, y)), f32(*a), f32(*b), terms=16)
    case("Einsum_one", lambda x: tf.einsum("abc->ca", x), f32(2, 3, 4), terms=3)


def convolutions():
    configs = [
        (7, 3, 1, 1, "SAME"), (7, 3, 2, 1, "SAME"), (8, 3, 2, 1, "VALID"), (8, 1, 2, 1, "SAME"), (9, 2, 1, 2, "SAME"),
        (9, 3, 1, 2, "VALID"), (6, 5, 3, 1, "SAME"),
    ]
    for n, (size, k, s, d, pad) in enumerate(configs):
        call = lambda x, w, s=s, d=d, pad=pad: tf.nn.conv2d(x, w, [1, s, s, 1], pad, dilations=[1, d, d, 1])
        # TensorFlow's CPU kernels do not support gradients of dilated convolutions with strides.
        case(f"Conv2D_{n}", with_gradient(call) if d == 1 else call, f32(2, size, size + 1, 2), f32(k, k, 2, 3), terms=2 * 8 * 8 + 60)
    explicit = lambda x, w: tf.nn.conv2d(x, w, [1, 2, 2, 1], [[0, 0], [1, 2], [0, 1], [0, 0]])
    case("Conv2D_explicit", with_gradient(explicit), f32(1, 6, 7, 2), f32(3, 3, 2, 2), terms=60)
    case("Conv2D_bf16", lambda x, w: tf.nn.conv2d(x, w, 1, "SAME"), bf16(1, 5, 5, 2), bf16(3, 3, 2, 2), terms=2)
    for n, (size, k, s, pad, m) in enumerate([(6, 3, 1, "SAME", 1), (7, 3, 2, "SAME", 2), (7, 3, 2, "VALID", 1)]):
        call = lambda x, w, s=s, pad=pad: tf.nn.depthwise_conv2d(x, w, [1, s, s, 1], pad)
        case(f"Depthwise_{n}", with_gradient(call), f32(2, size, size, 3), f32(k, k, 3, m), terms=140)
    for n, (size, k, s, pad) in enumerate([(4, 2, 1, "SAME"), (5, 3, 2, "VALID")]):
        call = lambda x, w, s=s, pad=pad: tf.nn.conv3d(x, w, [1, s, s, s, 1], pad)
        case(f"Conv3D_{n}", with_gradient(call), f32(1, size, size, size, 2), f32(k, k, k, 2, 2), terms=200)
    case("conv2d_transpose", with_gradient(lambda x, w: tf.nn.conv2d_transpose(x, w, [2, 8, 8, 3], 2)), f32(2, 4, 4, 2), f32(3, 3, 3, 2), terms=80)
    for n, (size, k, s, pad) in enumerate([(6, 2, 2, "VALID"), (7, 3, 2, "SAME"), (5, 3, 1, "SAME")]):
        case(f"MaxPool_{n}", with_gradient(lambda x, k=k, s=s, pad=pad: tf.nn.max_pool2d(x, k, s, pad)), f32(2, size, size, 2), terms=9)
        case(f"AvgPool_{n}", with_gradient(lambda x, k=k, s=s, pad=pad: tf.nn.avg_pool2d(x, k, s, pad)), f32(2, size, size, 2), terms=18)
    case("MaxPool_bf16", lambda x: tf.nn.max_pool2d(x, 3, 2, "SAME"), bf16(1, 5, 5, 1))
    case("Pool3D", lambda x: [tf.nn.max_pool3d(x, 2, 2, "SAME"), tf.nn.avg_pool3d(x, 3, 2, "SAME")], f32(1, 5, 4, 5, 2), terms=27)
    case("Pool3D_gradient", with_gradient(lambda x: tf.nn.avg_pool3d(x, 3, 2, "SAME")), f32(1, 5, 4, 5, 1), terms=40)


def normal():
    x, scale, offset, mean, variance = f32(3, 4, 2, 5), f32(5), f32(5), f32(5), f32(5, low=0.5, high=2.0)
    for n, training in enumerate([True, False]):
        for op in ["FusedBatchNorm", "FusedBatchNormV3"]:
            call = lambda x, s, o, m, v, op=op, t=training: list(getattr(raw, op)(x=x, scale=s, offset=o, mean=m, variance=v, epsilon=1e-3, is_training=t))[:3]
            case(f"{op}_{n}", call, x, scale, offset, mean, variance, terms=60)
        gradient = lambda x, s, o, m, v, t=training: tf.gradients(raw.FusedBatchNormV3(x=x, scale=s, offset=o, mean=m, variance=v, epsilon=1e-3, is_training=t)[0], [x, s, o], tf.reshape(tf.linspace(-1.0, 1.0, 120), [3, 4, 2, 5]))
        case(f"FusedBatchNormGrad_{n}", gradient, x, scale, offset, mean, variance, terms=400)
    case("FusedBatchNorm_bf16", lambda x, s, o: list(raw.FusedBatchNormV3(x=x, scale=s, offset=o, mean=[], variance=[], epsilon=1e-3))[:3], bf16(3, 4, 2, 5), scale, offset, terms=4)
    case("LRN", lambda x: raw.LRN(input=x, depth_radius=2, bias=1.5, alpha=0.3, beta=0.6), f32(1, 2, 2, 7), terms=20)


def resizes():
    x = f32(1, 4, 5, 2)
    for n, (align, half) in enumerate([(False, False), (True, False), (False, True)]):
        for size in [(7, 6), (3, 2)]:
            case(f"ResizeBilinear_{n}_{size[0]}", with_gradient(lambda x, a=align, h=half, s=size: raw.ResizeBilinear(images=x, size=s, align_corners=a, half_pixel_centers=h)), x, terms=40)
            case(f"ResizeNearest_{n}_{size[0]}", with_gradient(lambda x, a=align, h=half, s=size: raw.ResizeNearestNeighbor(images=x, size=s, align_corners=a, half_pixel_centers=h)), x, terms=8)


def control():
    for version in (1, 2):
        (v1.enable_control_flow_v2 if version == 2 else v1.disable_control_flow_v2)()

        def loop(x):
            return tf.while_loop(lambda i, x: i < 5, lambda i, x: (i + 1, tf.tanh(x) * 1.5 + tf.cast(i, x.dtype)), [0, x])[1]

        case(f"while_v{version}", loop, f32(3), terms=40)

        def captured(x, n):
            w = tf.constant([[0.5, 0.1], [0.2, 0.4]])
            total = tf.zeros([2])
            return list(v1.while_loop(lambda i, x, t: i < n, lambda i, x, t: (i + 1, tf.matmul(x, w), t + tf.reduce_sum(x, 0)), [0, x, total]))[1:]

        case(f"while_captured_v{version}", captured, f32(3, 2), np.array(4, np.int32), terms=40)

        def nested(x):
            inner = lambda x: tf.while_loop(lambda j, x: j < 2, lambda j, x: (j + 1, x * 1.25), [0, x])[1]
            return tf.while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, inner(x) - 0.5), [0, x])[1]

        case(f"while_nested_v{version}", nested, f32(3), terms=40)
        for taken in (True, False):
            case(f"cond_v{version}_{taken}", lambda p, x: tf.cond(p, lambda: tf.exp(x), lambda: x * 2 + 1), np.array(taken), f32(4), terms=8)
            both = lambda p, q, x: tf.cond(p, lambda: tf.cond(q, lambda: x + 1, lambda: x - 1), lambda: tf.sin(x))
            case(f"cond_nested_v{version}_{taken}", both, np.array(True), np.array(taken), f32(4), terms=8)
        case(f"cond_gradient_v{version}", lambda p, x: tf.gradients(tf.cond(p, lambda: tf.exp(x), lambda: x * x), x), np.array(False), f32(4), terms=8)
        case(f"cond_known_v{version}", lambda x: tf.cond(tf.constant(True), lambda: x + 1, lambda: x - 1), f32(4))
        switched = lambda i, x: tf.switch_case(i, [lambda: x + 1, lambda: x * 2, lambda: tf.exp(x)])
        case(f"case_v{version}", switched, np.array(2, np.int32), f32(3), terms=8)

    @tf.function
    def scaled(x, y):
        return x * y + 1.0, tf.nn.relu(x)

    case("function", lambda x, y: list(scaled(x, y)), f32(3), f32(3), terms=2)


def lists():
    for version in (1, 2):
        (v1.enable_control_flow_v2 if version == 2 else v1.disable_control_flow_v2)()
        array = lambda dtype, n: tf.TensorArray(dtype, n, clear_after_read=False)
        named = lambda name: f"{name}_v{version}"

        def recurrent(x, w, h):
            xs = array(tf.float32, 4).unstack(x)

            def trip(t, h, out):
                h = tf.tanh(xs.read(t) + tf.matmul(h, w))
                return t + 1, h, out.write(t, h)

            _, h, out = tf.while_loop(lambda t, h, out: t < 4, trip, [0, h, array(tf.float32, 4)])
            return tf.concat([tf.reshape(out.stack(), [4, 2, 3]), h[None]], 0)

        case(named("recurrent"), with_gradient(recurrent), f32(4, 2, 3), f32(3, 3), f32(2, 3), terms=200)

        def until_large(x):
            body = lambda t, x: (t + 1, x * 1.5 + 0.1 * tf.cast(t, tf.float32))
            return tf.while_loop(lambda t, x: tf.reduce_sum(tf.abs(x)) < 30.0, body, (0, x), maximum_iterations=20)[1]

        case(named("until_large"), with_gradient(until_large), f32(3), terms=200)
        case(named("down"), with_gradient(lambda x: tf.while_loop(lambda t, x: t > 1, lambda t, x: (t - 2, tf.sin(x) * tf.cast(t, tf.float32)), [9, x])[1]), f32(3), terms=200)

        def branching(x, p):
            trip = lambda t, x: (t + 1, tf.cond(p[t], lambda: tf.exp(-x * x), lambda: x * 0.5 + 1.0))
            return tf.while_loop(lambda t, x: t < 4, trip, [0, x])[1]

        case(named("branching"), with_gradient(branching), f32(3), np.array([True, False, False, True]), terms=200)
        case(named("map"), with_gradient(lambda x: tf.reshape(tf.map_fn(lambda row: tf.reduce_sum(row * row[0], keepdims=True), x), [3, 1])), f32(3, 4), terms=40)
        case(named("scan"), with_gradient(lambda x: tf.reshape(tf.scan(lambda total, row: total * 0.5 + row * row, x), [4, 2])), f32(4, 2), terms=100)
        case(named("fold"), with_gradient(lambda x: tf.foldl(lambda total, row: tf.sin(total) + row, x)), f32(4, 2), terms=100)

        growing = lambda: tf.TensorArray(tf.float32, 0, dynamic_size=True, clear_after_read=False)

        def grown(x, w):
            trip = lambda t, h, out: (t + 1, tf.tanh(h * w + x[t]), out.write(t, h * x[t]))
            _, h, out = tf.while_loop(lambda t, h, out: t < 4, trip, [0, tf.ones([2]), growing()])
            return tf.concat([tf.reshape(out.stack(), [4, 2]), h[None]], 0)

        case(named("grown"), with_gradient(grown), f32(4, 2), f32(2), terms=200)

        def grown_in_place(x):
            out = growing()
            for t in range(3):
                out = out.write(t, x[t] * x[0])
            return tf.reshape(out.stack(), [3, 2])

        case(named("grown_in_place"), with_gradient(grown_in_place), f32(3, 2), terms=20)

        def pieces(x):
            parts = array(tf.float32, 3).split(x, [2, 2, 2])
            again = array(tf.float32, 3).scatter([2, 0, 1], parts.gather([1, 0, 2]))
            return tf.concat([tf.reshape(again.concat(), [6, 2]), tf.reshape(parts.read(1) * parts.read(1) + parts.read(2), [2, 2])], 0)

        case(named("pieces"), with_gradient(pieces), f32(6, 2), terms=10)

        def twice(x, w):
            xs = array(tf.float32, 3).unstack(x)
            trip = lambda t, h: (t + 1, h * xs.read(t) + xs.read(2 - t) * w)
            return tf.while_loop(lambda t, h: t < 3, trip, [0, tf.ones([2])])[1]

        case(named("twice"), with_gradient(twice), f32(3, 2), f32(2), terms=60)

        def nested(x, w):
            inner = lambda h: tf.while_loop(lambda j, h: j < 3, lambda j, h: (j + 1, tf.sin(h * w)), [0, h])[1]
            return tf.while_loop(lambda i, h: i < 2, lambda i, h: (i + 1, inner(h) + h), [0, x])[1]

        case(named("nested"), with_gradient(nested), f32(3), f32(3), terms=200)

        def deep(x, w):
            third = lambda h: tf.while_loop(lambda k, h: k < 2, lambda k, h: (k + 1, h * tf.cos(w)), [0, h])[1]
            second = lambda h: tf.while_loop(lambda j, h: j < 3, lambda j, h: (j + 1, tf.sin(third(h) + w)), [0, h])[1]
            return tf.while_loop(lambda i, h: i < 2, lambda i, h: (i + 1, second(h) * h), [0, x])[1]

        case(named("deep"), with_gradient(deep), f32(3), f32(3), terms=400)

        def rows_of_rows(x, w):
            """An array that every trip of the outer loop makes anew, as a recurrent network in a loop does."""

            def trip(i, h):
                xs = array(tf.float32, 3).unstack(x * h)
                step = lambda j, g, out: (j + 1, tf.tanh(xs.read(j) + g * w), out.write(j, g * g))
                _, g, out = tf.while_loop(lambda j, g, out: j < 3, step, [0, h, array(tf.float32, 3)])
                return i + 1, g + tf.reduce_sum(tf.reshape(out.stack(), [3, 2]), 0)

            return tf.while_loop(lambda i, h: i < 2, trip, [0, tf.ones([2])])[1]

        case(named("rows_of_rows"), with_gradient(rows_of_rows), f32(3, 2), f32(2), terms=400)

        def chosen(x, w):
            trip = lambda h: tf.while_loop(lambda j, h: j < 2, lambda j, h: (j + 1, tf.cond(h[0] > 0.0, lambda: tf.sin(h * w), lambda: h - w)), [0, h])[1]
            return tf.while_loop(lambda i, h: i < 3, lambda i, h: (i + 1, trip(h) + 0.5), [0, x])[1]

        case(named("chosen"), with_gradient(chosen), f32(3), f32(3), terms=400)
        if version == 2:
            branch = lambda x, p: tf.cond(p, lambda: tf.reshape(array(tf.float32, 2).write(1, x * x).stack(), [2, 3]), lambda: tf.stack([x, x]))
            case(named("in_branch"), with_gradient(branch), f32(3), np.array(True), terms=20)
            second = lambda x: tf.gradients(tf.gradients(tf.while_loop(lambda t, x: t < 3, lambda t, x: (t + 1, x * x * 0.7), [0, x])[1], x), x)
            case(named("second_order"), second, f32(3), terms=400)


def more():
    special = np.array([-30.5, -2.25, -0.5, 0.25, 0.5, 1.0, 1.5, 2.0, 7.5, 100.0], np.float32)
    case("Atan", with_gradient(lambda x: raw.Atan(x=x)), f32(7, low=-9.0, high=9.0), terms=16)
    case("Erfc", with_gradient(lambda x: raw.Erfc(x=x)), f32(9, low=-4.0, high=4.0), terms=32)
    case("Erfinv", with_gradient(lambda x: raw.Erfinv(x=x)), f32(9, low=-0.9, high=0.9), terms=32)
    case("Erfinv_ends", lambda x: raw.Erfinv(x=x), np.array([-1.0, 1.0, 0.0], np.float32))
    case("Ndtri", with_gradient(lambda x: raw.Ndtri(x=x)), f32(7, low=0.05, high=0.95), terms=40)
    case("Lgamma", lambda x: raw.Lgamma(x=x), special, terms=64)
    case("lgamma_gradient", with_gradient(lambda x: raw.Lgamma(x=x)), f32(9, low=0.2, high=9.0), terms=64)
    case("Digamma", lambda x: raw.Digamma(x=x), special, terms=64)
    case("AccumulateNV2", lambda x, y: raw.AccumulateNV2(inputs=[x, y, x], shape=[4]), f32(4), f32(4), terms=3)
    case("LRN_gradient", with_gradient(lambda x: raw.LRN(input=x, depth_radius=2, bias=1.5, alpha=0.3, beta=0.6)), f32(1, 2, 2, 7), terms=60)
    x = f32(2, 3, 4)
    case("MirrorPad_reflect", with_gradient(lambda x: tf.pad(x, [[1, 0], [2, 1], [0, 3]], "REFLECT")), x, terms=8)
    case("MirrorPad_symmetric", with_gradient(lambda x: tf.pad(x, [[2, 2], [0, 1], [4, 0]], "SYMMETRIC")), x, terms=16)
    case("SpaceToBatchND", with_gradient(lambda x: raw.SpaceToBatchND(input=x, block_shape=[2, 3], paddings=[[1, 0], [0, 2]])), f32(2, 3, 4, 2))
    case("SpaceToBatchND_1d", with_gradient(lambda x: raw.SpaceToBatchND(input=x, block_shape=[2], paddings=[[1, 2]])), f32(2, 5, 3))
    case("BatchToSpaceND", with_gradient(lambda x: raw.BatchToSpaceND(input=x, block_shape=[2, 3], crops=[[1, 0], [0, 2]])), f32(12, 2, 2, 2))
    case("SpaceToBatch", with_gradient(lambda x: raw.SpaceToBatch(input=x, block_size=2, paddings=[[1, 0], [0, 1]])), f32(1, 3, 5, 2))
    case("BatchToSpace", with_gradient(lambda x: raw.BatchToSpace(input=x, block_size=2, crops=[[0, 1], [0, 0]])), f32(8, 2, 3, 1))

    def dilated(x, w):
        """A convolution at rate 2 as tf.nn.convolution and tf.layers wrote it before kernels had dilations."""
        wide = tf.space_to_batch(x, [2, 2], [[2, 3], [2, 2]])
        return tf.batch_to_space(tf.nn.conv2d(wide, w, 1, "VALID"), [2, 2], [[0, 1], [0, 0]])

    case("dilated", with_gradient(dilated), f32(2, 5, 6, 2), f32(3, 3, 2, 3), terms=120)
    for n, (k, s, r, pad) in enumerate([(3, 1, 1, "SAME"), (2, 2, 1, "VALID"), (3, 2, 2, "SAME")]):
        patches = lambda x, k=k, s=s, r=r, pad=pad: raw.ExtractImagePatches(images=x, ksizes=[1, k, k, 1], strides=[1, s, s, 1], rates=[1, r, r, 1], padding=pad)
        case(f"ExtractImagePatches_{n}", patches, f32(2, 6, 5, 2))
    lengths = np.array([3, 0, 5, 1], np.int32)
    case("ReverseSequence", with_gradient(lambda x, n: tf.reverse_sequence(x, n, seq_axis=1, batch_axis=0)), f32(4, 5, 2), lengths)
    case("ReverseSequence_time", with_gradient(lambda x, n: tf.reverse_sequence(x, n, seq_axis=0, batch_axis=2)), f32(5, 2, 4), lengths.astype(np.int64))
    places = np.array([[1, 0], [3, 1]], np.int32)
    for op in ["Update", "Sub", "Max", "Min"]:
        scattered = lambda x, i, u, op=op: getattr(raw, f"TensorScatter{op}")(tensor=x, indices=i, updates=u)
        smooth = op in ("Update", "Sub")
        case(f"TensorScatter{op}", with_gradient(scattered) if smooth else scattered, f32(4, 2), places, f32(2), terms=3)
    case("TensorScatterUpdate_rows", lambda x, i, u: raw.TensorScatterUpdate(tensor=x, indices=i, updates=u), i32(4, 3), np.array([[2], [0]], np.int32), i32(2, 3))
    case("SparseToDense", lambda i, v: raw.SparseToDense(sparse_indices=i, output_shape=[4, 3], sparse_values=v, default_value=-1.0), np.array([[0, 2], [1, 0], [3, 1]], np.int32), f32(3))
    case("SparseToDense_vector", lambda i: raw.SparseToDense(sparse_indices=i, output_shape=[6], sparse_values=1.0, default_value=0.0), np.array([0, 2, 5], np.int64))
    for op in ["Mean", "Max", "Min"]:
        case(f"Segment{op}", lambda x, op=op: getattr(raw, f"Segment{op}")(data=x, segment_ids=[0, 0, 2, 3, 3, 3]), f32(6, 2), terms=6)
    case("MatrixDiag", with_gradient(lambda x: raw.MatrixDiag(diagonal=x)), f32(2, 3), terms=3)
    case("MatrixDiagV3", lambda x: raw.MatrixDiagV3(diagonal=x, k=0, num_rows=3, num_cols=5, padding_value=2.5), f32(2, 3))
    case("MatrixDiagPart", with_gradient(lambda x: raw.MatrixDiagPart(input=x)), f32(2, 3, 3))
    case("MatrixDiagPartV3", lambda x, y: [raw.MatrixDiagPartV3(input=x, k=0, padding_value=0.0), raw.MatrixDiagPartV3(input=y, k=0, padding_value=0.0)], f32(2, 3, 4), f32(4, 2))
    case("MatrixSetDiag", lambda x, d: [raw.MatrixSetDiagV3(input=x, diagonal=d, k=0), raw.MatrixSetDiag(input=tf.transpose(x, [0, 2, 1]), diagonal=d)], f32(2, 3, 4), f32(2, 3))
    case("Diag", with_gradient(lambda x: raw.Diag(diagonal=x)), f32(2, 3), terms=3)
    case("DiagPart", lambda x: raw.DiagPart(input=x), f32(2, 3, 2, 3))
    branches()


def branches():
    """Gradients of branches that save values of different shapes and dtypes, in control flow of version 2."""
    v1.enable_control_flow_v2()
    w = np.linspace(-1.0, 1.0, 9).reshape(3, 3).astype(np.float32)
    rows = {
        "products": lambda p, x: tf.cond(p, lambda: tf.nn.relu(tf.matmul(x, w) + 0.1), lambda: tf.nn.softplus(tf.matmul(x, w)) * 0.5),
        "slices": lambda p, x: tf.cond(p, lambda: tf.exp(x[:2] * x[:2])[0], lambda: tf.tanh(x)[1] * tf.sin(x)[2]),
        "dtypes": lambda p, x: tf.cond(p, lambda: tf.where(x > 0.0, x * x, x)[0], lambda: tf.sin(x)[3] * tf.cast(tf.argmax(x[0]), tf.float32)),
        "nested": lambda p, x: tf.cond(p, lambda: tf.cond(x[0, 0] > -9.0, lambda: tf.exp(x)[0], lambda: tf.sin(x[:2])[1]), lambda: tf.tanh(x)[1]),
        "in_loop": lambda p, x: tf.while_loop(lambda i, h: i < 3, lambda i, h: (i + 1, tf.cond(tf.equal(i % 2 == 0, p), lambda: tf.sin(h[:2] * h[:2])[0] + h, lambda: tf.tanh(h) * h)), [0, x], maximum_iterations=3)[1],
        "loop_inside": lambda p, x: tf.cond(p, lambda: tf.while_loop(lambda i, h: i < 3, lambda i, h: (i + 1, tf.sin(h) * h), [0, x[0]], maximum_iterations=3)[1], lambda: tf.tanh(x)[1]),
    }
    for name, build in rows.items():
        for taken in (True, False):
            case(f"branches_{name}_{taken}", lambda p, x, build=build: with_gradient(lambda x: build(p, x))(x), np.array(taken), f32(4, 3), terms=100)
    cases_of = lambda i, x: tf.switch_case(i, [lambda: tf.exp(x[:2])[0], lambda: tf.tanh(x)[1] * tf.sin(x)[2], lambda: x[0]])
    case("branches_case", lambda i, x: with_gradient(lambda x: cases_of(i, x))(x), np.array(1, np.int32), f32(4, 3), terms=40)


def images():
    """Crops, resizes by cubic splines and by areas, colours, and boxes that are suppressed."""
    x, at = f32(2, 5, 6, 3), np.array([1, 0, 1, 1], np.int32)
    boxes = np.array([[0.1, 0.2, 0.8, 0.9], [0.0, 0.0, 1.0, 1.0], [0.9, 0.3, 0.2, 0.7], [-0.3, 0.4, 0.6, 1.5]], np.float32)
    for n, size in enumerate([(3, 4), (1, 1), (5, 2)]):
        crop = lambda x, b, size=size: tf.image.crop_and_resize(x, b, at, size, extrapolation_value=-0.75)
        case(f"CropAndResize_{n}", with_gradient(crop), x, boxes, terms=400)
        nearest = lambda x, size=size: tf.image.crop_and_resize(x, boxes, at, size, method="nearest")
        case(f"CropAndResize_nearest_{n}", with_gradient(nearest), x, terms=16)
    case("CropAndResize_boxes", lambda x, b, i: tf.image.crop_and_resize(x, b, i, [2, 3]), x.astype(np.float16), boxes, at, terms=64)
    x = f32(1, 4, 5, 2)
    for n, (align, half) in enumerate([(False, False), (True, False), (False, True)]):
        for size in [(7, 6), (3, 2)]:
            cubic = lambda x, a=align, h=half, s=size: raw.ResizeBicubic(images=x, size=s, align_corners=a, half_pixel_centers=h)
            case(f"ResizeBicubic_{n}_{size[0]}", with_gradient(cubic), x, terms=80)
            if not half:
                case(f"ResizeArea_{n}_{size[0]}", lambda x, a=align, s=size: raw.ResizeArea(images=x, size=s, align_corners=a), x, terms=40)
    case("ResizeArea_int", lambda x: raw.ResizeArea(images=x, size=(2, 3)), i32(1, 5, 4, 2), terms=40)
    colours = np.concatenate([f32(5, 3, low=0.0, high=1.0), [[0.5, 0.5, 0.5], [0.0, 0.0, 0.0], [1.0, 0.25, 1.0]]]).astype(np.float32)
    case("RGBToHSV", lambda x: raw.RGBToHSV(images=x), colours, terms=40)
    case("HSVToRGB", lambda x: raw.HSVToRGB(images=x), colours, terms=40)
    pixels = colours.reshape(2, 2, 2, 3)
    case("AdjustContrast", lambda x: raw.AdjustContrastv2(images=x, contrast_factor=1.75), pixels, terms=40)
    case("AdjustHue", lambda x: raw.AdjustHue(images=x, delta=-0.3), pixels, terms=80)
    case("AdjustSaturation", lambda x: raw.AdjustSaturation(images=x, scale=1.5), pixels, terms=80)
    corners = f32(12, 2, low=0.0, high=0.6)
    boxes = np.concatenate([corners, corners + f32(12, 2, low=-0.1, high=0.5)], 1)
    scores = f32(12, low=0.0, high=1.0)
    scores[7] = scores[3]
    for n, (most, overlap, least) in enumerate([(5, 0.3, 0.2), (20, 0.5, -1.0), (4, 0.1, 2.0)]):
        hard = lambda b, s, m=most, o=overlap, l=least: list(raw.NonMaxSuppressionV4(boxes=b, scores=s, max_output_size=m, iou_threshold=o, score_threshold=l, pad_to_max_output_size=True))
        case(f"NonMaxSuppressionV4_{n}", hard, boxes, scores)
        for sigma in (0.0, 0.4):
            soft = lambda b, s, m=most, o=overlap, l=least, g=sigma: list(raw.NonMaxSuppressionV5(boxes=b, scores=s, max_output_size=m, iou_threshold=o, score_threshold=l, soft_nms_sigma=g, pad_to_max_output_size=True))
            case(f"NonMaxSuppressionV5_{n}_{sigma > 0}", soft, boxes, scores, terms=80)
    each = f32(2, 6, 3, 2, low=0.0, high=0.7)
    each = np.concatenate([each, each + f32(2, 6, 3, 2, low=0.05, high=0.6)], 3)
    for n, (q, padded, clipped) in enumerate([(1, False, True), (3, True, False)]):
        together = lambda b, s, p=padded, c=clipped: list(raw.CombinedNonMaxSuppression(boxes=b, scores=s, max_output_size_per_class=2, max_total_size=9, iou_threshold=0.4, score_threshold=0.3, pad_per_class=p, clip_boxes=c))
        case(f"CombinedNonMaxSuppression_{n}", together, each[:, :, :q], f32(2, 6, 3, low=0.0, high=1.0))
    case("OneHot_bytes", lambda i: tf.one_hot(i, 300), i32(3, low=0, high=44, dtype=np.uint8))
    hits = lambda l, s: tf.nn.compute_accidental_hits(l, s, 2)
    dense = lambda l, s: (lambda h: tf.compat.v1.sparse_to_dense(tf.stack([h[0], tf.cast(h[1], tf.int32)], 1), [3, 4], h[2], 0.0, validate_indices=False))(hits(l, s))
    case("ComputeAccidentalHits", dense, np.array([[1, 2], [3, 5], [2, 7]], np.int64), np.array([2, 9, 3, 2], np.int64))


def rest():
    """Older and newer forms of ops, functions that are called, and ops that pass their input on."""
    x, ids = f32(2, 3), np.array([0, 0, 2, 3, 3], np.int32)
    case("BiasAddV1", lambda x, b: raw.BiasAddV1(value=x, bias=b), f32(2, 4, 3), f32(3))
    case("SoftplusGrad", lambda dy, x: raw.SoftplusGrad(gradients=dy, features=x), f32(9), f32(9, low=-20, high=20), terms=16)
    case("InvGrad", lambda y, dy: raw.InvGrad(y=y, dy=dy), f32(5), f32(5), terms=4)
    for op in ["Prod", "Max", "Min"]:
        case(f"UnsortedSegment{op}", lambda x, i, op=op: getattr(raw, f"UnsortedSegment{op}")(data=x, segment_ids=i, num_segments=5), f32(5, 2), ids, terms=8)
    for op in ["Sum", "Prod"]:
        case(f"Segment{op}", lambda x, op=op: getattr(raw, f"Segment{op}")(data=x, segment_ids=ids), f32(5, 2), terms=8)
    case("ParallelDynamicStitch", lambda x, y: raw.ParallelDynamicStitch(indices=[[0, 3], [1, 2]], data=[x, y]), f32(2, 3), f32(2, 3))
    case("DynamicPartition", lambda x: raw.DynamicPartition(data=x, partitions=[1, 0, 1, 2], num_partitions=3), f32(4, 2))
    case("Bucketize", lambda x: raw.Bucketize(input=x, boundaries=[-0.5, 0.0, 0.75]), f32(9))
    case("Bucketize_f64", lambda x: raw.Bucketize(input=x, boundaries=[-0.5, 0.75]), np.array([0.75 - 1e-12, 0.75, -0.5 - 1e-13, 9.0]))
    for n, (a, b) in enumerate([(False, True), (True, False)]):
        shapes = f32(*((2, 4, 3) if a else (2, 3, 4))), f32(*((2, 5, 4) if b else (2, 4, 5)))
        case(f"BatchMatMul_old_{n}", lambda x, y, a=a, b=b: raw.BatchMatMul(x=x, y=y, adj_x=a, adj_y=b), *shapes, terms=10)
        case(f"BatchMatMulV3_{n}", lambda x, y, a=a, b=b: raw.BatchMatMulV3(x=x, y=y, adj_x=a, adj_y=b, Tout=tf.float32), *shapes, terms=10)
    case("MatrixDiagV2", lambda x: raw.MatrixDiagV2(diagonal=x, k=0, num_rows=3, num_cols=5, padding_value=2.5), f32(2, 3))
    case("MatrixDiagPartV2", lambda x: raw.MatrixDiagPartV2(input=x, k=0, padding_value=0.0), f32(2, 3, 4))
    case("MatrixSetDiagV2", lambda x, d: raw.MatrixSetDiagV2(input=x, diagonal=d, k=0), f32(2, 3, 4), f32(2, 3))
    case("ConjugateTranspose", lambda x: raw.ConjugateTranspose(x=x, perm=[1, 0]), x)
    case("TopKV2_places", lambda x: list(raw.TopKV2(input=x, k=2, index_type=tf.int64)), x)
    case("InTopK", lambda x, t: raw.InTopK(predictions=x, targets=t, k=2), f32(4, 5), np.array([1, 3, 0, 4], np.int64))
    for n, (exclusive, reverse) in enumerate([(False, False), (True, True)]):
        case(f"CumulativeLogsumexp_{n}", lambda x, a=exclusive, b=reverse: raw.CumulativeLogsumexp(x=x, axis=1, exclusive=a, reverse=b), f32(2, 5), terms=20)
    half = f32(3, 3)
    positive = (half @ half.T + 3 * np.eye(3)).astype(np.float32)
    case("Cholesky", with_gradient(tf.linalg.cholesky), positive, terms=100)
    case("CholeskyGrad", lambda l, dl: raw.CholeskyGrad(l=l, grad=dl), np.linalg.cholesky(positive).astype(np.float32), f32(3, 3), terms=100)
    for n, (lower, adjoint) in enumerate([(True, False), (False, True)]):
        solve = lambda x, y, l=lower, a=adjoint: raw.MatrixTriangularSolve(matrix=x, rhs=y, lower=l, adjoint=a)
        case(f"MatrixTriangularSolve_{n}", solve, f32(2, 3, 3) + 4 * np.eye(3, dtype=np.float32), f32(2, 3, 2), terms=40)
    case("MaxPool3D", with_gradient(lambda x: tf.nn.max_pool3d(x, 2, 2, "SAME")), f32(1, 5, 4, 5, 2), terms=8)
    places = lambda x, b: raw.MaxPoolWithArgmax(input=x, ksize=[1, 3, 3, 1], strides=[1, 2, 2, 1], padding="SAME", include_batch_in_index=b)
    case("MaxPoolWithArgmax", lambda x: [part for b in (True, False) for part in places(x, b)], f32(2, 5, 6, 2))
    case("MaxPoolWithArgmax_gradient", with_gradient(lambda x: places(x, True)[0]), f32(2, 5, 6, 2), terms=9)
    channels = [f32(3, 4, 2, 5), f32(5), f32(5), f32(5), f32(5, low=0.5, high=2.0)]
    for op in ["FusedBatchNorm", "FusedBatchNormV2"]:
        for n, training in enumerate([True, False]):
            norm = lambda x, s, o, m, v, op=op, t=training: getattr(raw, op)(x=x, scale=s, offset=o, mean=m, variance=v, epsilon=1e-3, is_training=t)
            whole = lambda *xs, norm=norm: list(norm(*xs))[:3] + tf.gradients(norm(*xs)[0], xs[:3], tf.reshape(tf.linspace(-1.0, 1.0, 120), [3, 4, 2, 5]))
            case(f"{op}_gradient_{n}", whole, *channels, terms=400)
    averaged = lambda x, s, o, m, v: list(raw.FusedBatchNormV3(x=x, scale=s, offset=o, mean=m, variance=v, epsilon=1e-3, exponential_avg_factor=0.3))[:3]
    case("FusedBatchNormV3_averaged", averaged, *channels, terms=60)
    case("EnsureShape", lambda x: raw.EnsureShape(input=x, shape=[2, None]), x)
    case("EmptyOnes", lambda x: [raw.Empty(shape=[2, 3], dtype=tf.float32, init=True), raw.OnesLike(x=x)], x)
    stack = lambda handle: raw.TensorListStack(input_handle=handle, element_shape=[3], element_dtype=tf.float32)
    case("TensorListScatterV2", lambda x: stack(raw.TensorListScatterV2(tensor=x, indices=[2, 0], element_shape=[3], num_elements=4)), x)
    pieces = lambda x: raw.TensorListFromTensor(tensor=x, element_shape=[2, 3])
    case("TensorListConcat", lambda x: list(raw.TensorListConcat(input_handle=pieces(x), element_dtype=tf.float32, element_shape=[2, 3])), f32(3, 2, 3))
    case("passed", lambda x, y: [
        *raw.IdentityN(input=[x, y]), raw.PreventGradient(input=x), raw.Snapshot(input=x), raw.GuaranteeConst(input=x),
        raw.CheckNumerics(tensor=x, message=""), raw.CheckNumericsV2(tensor=x, message=""), raw.Print(input=x, data=[], message=""),
        raw.PlaceholderWithDefault(input=x, shape=[2, 3]),
    ], x, i32(2))
    called(x)
    for op in ["InplaceAdd", "InplaceSub", "InplaceUpdate"]:
        apply = getattr(raw, op)
        case(op, lambda x, v, apply=apply: apply(x=x + x, i=[3, 0], v=v), f32(4, 2, 3), f32(2, 2, 3))
    case("InplaceAdd_twice", lambda x, v: raw.InplaceAdd(x=x + x, i=[1, 1, 2], v=v), f32(3, 2), f32(3, 2), terms=4)


def called(x):
    """Functions that are called, functional loops and branches, and handles that are closed."""
    add = function.Defun(tf.float32)(lambda x: x * 2.0 + 1.0)
    take = function.Defun(tf.float32)(lambda x: tf.exp(x))
    none = function.Defun(tf.float32)(lambda x: raw.FakeParam(dtype=tf.float32, shape=[2, 3]))
    more_left = function.Defun(tf.int32, tf.float32)(lambda i, x: i < 3)
    trip = function.Defun(tf.int32, tf.float32)(lambda i, x: (i + 1, tf.sin(x) + 0.5))
    case("StatefulPartitionedCall", lambda x: raw.StatefulPartitionedCall(args=[x], Tout=[tf.float32], f=add), x, terms=2)
    here = "/job:localhost/replica:0/task:0/device:CPU:0"
    case("RemoteCall", lambda x: raw.RemoteCall(target=here, args=[x], Tout=[tf.float32], f=add), x, terms=2)
    case("While", lambda x: raw.While(input=[0, x], cond=more_left, body=trip)[1], x, terms=40)
    for taken in (True, False):
        case(f"If_{taken}", lambda p, x: raw.If(cond=p, input=[x], Tout=[tf.float32], then_branch=add, else_branch=take), np.array(taken), x, terms=8)
    case("Case", lambda i, x: raw.Case(branch_index=i, input=[x], Tout=[tf.float32], branches=[add, take]), np.array(1, np.int32), x, terms=8)
    case("FakeParam", lambda p, x: raw.If(cond=p, input=[x], Tout=[tf.float32], then_branch=take, else_branch=none), np.array(True), x, terms=8)

    def closed_array(x):
        handle, flow = raw.TensorArrayV3(size=2, dtype=tf.float32)
        flow = raw.TensorArrayWriteV3(handle=handle, index=1, value=x, flow_in=flow)
        value = raw.TensorArrayReadV3(handle=handle, index=1, flow_in=flow, dtype=tf.float32)
        with tf.control_dependencies([value]), tf.control_dependencies([raw.TensorArrayCloseV3(handle=handle)]):
            return value + 1.0

    def closed_stack(x):
        handle = raw.StackV2(max_size=2, elem_type=tf.float32)
        with tf.control_dependencies([raw.StackPushV2(handle=handle, elem=x)]):
            value = raw.StackPopV2(handle=handle, elem_type=tf.float32)
        with tf.control_dependencies([value]), tf.control_dependencies([raw.StackCloseV2(handle=handle)]):
            return value + 1.0

    case("TensorArrayCloseV3", closed_array, x)
    case("StackCloseV2", closed_stack, x)


def held(x, is_ref):
    """A variable, and the op that sets it to x."""
    if is_ref:
        variable = raw.VariableV2(shape=x.shape, dtype=x.dtype)
        return variable, raw.Assign(ref=variable, value=x)
    variable = raw.VarHandleOp(shape=x.shape, dtype=x.dtype, shared_name=x.op.name + "/variable")
    return variable, raw.AssignVariableOp(resource=variable, value=x)


def update(op, *values, name=None, terms=24, **attributes):
    """A case of an op that changes variables: the first values become variables, which are read after it."""
    arguments = op_def_registry.get(op).input_arg
    is_ref = arguments[0].is_ref
    n = sum(argument.is_ref or argument.type == tf.resource.as_datatype_enum for argument in arguments)

    def build(*xs):
        variables, begun = zip(*[held(x, is_ref) for x in xs[:n]])
        with tf.control_dependencies(begun):
            done = getattr(raw, op)(**dict(zip([argument.name for argument in arguments], variables + xs[n:])), **attributes)
        with tf.control_dependencies([done]):
            return [tf.identity(v) if is_ref else raw.ReadVariableOp(resource=v, dtype=x.dtype) for v, x in zip(variables, xs)]

    case(name or op, build, *values, terms=terms)


# Slots of each optimizer (p: positive, s: of any sign, m: small), and its other inputs in order.
GRADIENT, ROWS = "gradient", "rows"
OPTIMIZERS = {
    "GradientDescent": ("", [0.1, GRADIENT]), "Momentum": ("s", [0.1, GRADIENT, ROWS, 0.9]),
    "KerasMomentum": ("s", [0.1, GRADIENT, ROWS, 0.9]), "Adagrad": ("p", [0.1, GRADIENT, ROWS]),
    "AdagradV2": ("p", [0.1, 1e-3, GRADIENT, ROWS]), "ProximalGradientDescent": ("", [0.1, 0.5, 0.2, GRADIENT, ROWS]),
    "ProximalAdagrad": ("p", [0.1, 0.5, 0.2, GRADIENT, ROWS]), "RMSProp": ("ps", [0.1, 0.9, 0.8, 1e-3, GRADIENT, ROWS]),
    "CenteredRMSProp": ("mps", [0.1, 0.9, 0.8, 1e-3, GRADIENT, ROWS]), "Adadelta": ("pp", [0.1, 0.9, 1e-3, GRADIENT, ROWS]),
    "Ftrl": ("ps", [GRADIENT, ROWS, 0.1, 0.3, 0.2, -0.5]), "FtrlV2": ("ps", [GRADIENT, ROWS, 0.1, 0.3, 0.2, 0.15, -0.4]),
    "Adam": ("sp", [0.81, 0.98, 0.1, 0.9, 0.99, 1e-3, GRADIENT]), "AdaMax": ("sp", [0.81, 0.1, 0.9, 0.99, 1e-3, GRADIENT]),
    "AdamWithAmsgrad": ("spp", [0.81, 0.98, 0.1, 0.9, 0.99, 1e-3, GRADIENT]),
    "AddSign": ("s", [0.1, 1.0, 0.9, 0.8, GRADIENT]), "PowerSign": ("s", [0.1, 1.0, 0.9, 0.8, GRADIENT]),
}


def updates():
    """Ops that change variables, references and resources: optimizers, dense and of rows, and scatters."""
    bounds = {"p": (0.1, 1.0), "s": (-2.0, 2.0), "m": (-0.2, 0.2)}

    def step(op, kind, name=None, **attributes):
        slots, inputs = OPTIMIZERS[kind]
        is_sparse = "Sparse" in op
        shape = (5, 3) if is_sparse else (4,)
        values = [f32(*shape)] + [f32(*shape, low=bounds[slot][0], high=bounds[slot][1]) for slot in slots]
        for one in inputs:
            if one == GRADIENT:
                values.append(f32(2, 3) if is_sparse else f32(4))
            elif one != ROWS:
                values.append(np.float32(one))
            elif is_sparse:
                values.append(np.array([3, 1], np.int32))
        update(op, *values, name=name, terms=200, **attributes)

    for kind, (_, inputs) in OPTIMIZERS.items():
        for form in ["Apply", "ResourceApply"] + ["SparseApply", "ResourceSparseApply"] * (ROWS in inputs):
            if op_def_registry.get(form + kind):
                step(form + kind, kind)
    for op, kind in [("ApplyMomentum", "Momentum"), ("ResourceSparseApplyMomentum", "Momentum"), ("ResourceApplyKerasMomentum", "KerasMomentum"),
                     ("ResourceSparseApplyKerasMomentum", "KerasMomentum"), ("ResourceApplyAdam", "Adam")]:
        step(op, kind, name=f"{op}_nesterov", use_nesterov=True)
    for op in ["ResourceApplyAdagrad", "SparseApplyAdagrad"]:
        step(op, "Adagrad", name=f"{op}_slots_kept", update_slots=False)

    for op in ["Assign", "AssignAdd", "AssignSub", "AssignVariableOp", "AssignAddVariableOp", "AssignSubVariableOp"]:
        update(op, f32(4), f32(4), terms=2)
    table = f32(5, 3)
    for form in ["Scatter", "ResourceScatter"]:
        for kind in ["Add", "Sub", "Mul", "Max", "Min", "Update"]:
            rows = np.array([3, 0, 4 if kind == "Update" else 3], np.int32)
            update(form + kind, table, rows, f32(3, 3), terms=4)
            update(form + kind, table, rows[:2], np.float32(0.75), name=f"{form}{kind}_number", terms=4)
        update(f"{form}Add", table, np.array(2, np.int32), f32(3), name=f"{form}Add_row", terms=4)
        for kind in ["Add", "Sub", "Update"]:
            places = np.array([[1, 2], [4, 0]], np.int32)
            update(f"{form}Nd{kind}", table, places, f32(2), terms=4)
            update(f"{form}Nd{kind}", table, places[:, :1], f32(2, 3), name=f"{form}Nd{kind}_rows", terms=4)
    resource(table)


def resource(table):
    """Reads of variables in other ways than as a whole."""

    def read(build, is_ref=False):
        def after(x, *others):
            variable, begun = held(x, is_ref)
            with tf.control_dependencies([begun]):
                return build(variable, *others)

        return after

    case("ResourceGatherNd", read(lambda v, i: raw.ResourceGatherNd(resource=v, indices=i, dtype=tf.float32)), table, np.array([[0, 1], [4, 2]], np.int32))
    case("ResourceGather", read(lambda v, i: raw.ResourceGather(resource=v, indices=i, dtype=tf.float32)), table, np.array([[4], [0]], np.int32))
    case("VariableShape", read(lambda v: raw.VariableShape(input=v, out_type=tf.int64)), table)
    case("VarIsInitializedOp", read(lambda v: raw.VarIsInitializedOp(resource=v)), table)
    case("IsVariableInitialized", read(lambda v: raw.IsVariableInitialized(ref=v), is_ref=True), table)

    def switched(variable, p):
        off, on = raw.RefSwitch(data=raw.RefIdentity(input=variable), pred=p)
        return raw.Merge(inputs=[off * 2.0, on + 1.0])[0]

    for taken in (True, False):
        case(f"RefSwitch_{taken}", read(switched, is_ref=True), table, np.array(taken), terms=2)


def save(folder, file_name):
    feeds = {tensor: value for fed, inputs, _, _ in cases.values() for tensor, value in zip(fed, inputs)}
    outs = [tensor for _, _, outs, _ in cases.values() for tensor in outs]
    with v1.Session(graph=graph) as session:
        values = session.run(outs, feeds)
    arrays = {tensor.op.name: np.asarray(value) for tensor, value in list(feeds.items()) + list(zip(outs, values))}
    names = {"float32": "F32", "float64": "F64", "float16": "F16", "bfloat16": "BF16", "int32": "I32", "int64": "I64", "bool": "BOOL", "uint8": "U8"}
    header, data = {"__metadata__": {name: str(terms) for name, (_, _, _, terms) in cases.items()}}, b""
    for name, array in arrays.items():
        raw_bytes = np.ascontiguousarray(array).tobytes()
        header[name] = {"dtype": names[array.dtype.name], "shape": list(array.shape), "data_offsets": [len(data), len(data) + len(raw_bytes)]}
        data += raw_bytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(os.path.join(folder, f"{file_name}.safetensors"), "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text + data)
    definition = graph.as_graph_def()
    for node in definition.node:
        for key in [key for key in node.attr if key.startswith("_")]:
            del node.attr[key]
    with open(os.path.join(folder, f"{file_name}.pb"), "wb") as file:
        file.write(definition.SerializeToString(deterministic=True))
    print(len(cases), "cases,", len({node.op for node in definition.node}), "ops,", len(text) + len(data), "bytes of arrays")


if __name__ == "__main__":
    name = sys.argv[2] if len(sys.argv) > 2 else "ops"
    families = {"lists": [lists], "more": [more], "images": [images], "rest": [rest], "updates": [updates], "ops": [elementwise, reductions, shapes, indices, products, convolutions, normal, resizes, control]}
    for family in families[name]:
        family()
    save(sys.argv[1], name)
