//! Inputs and attributes of ops that do not fit.

use super::Refused;

pub const OPS: &[Refused] = &[
    (
        "x: FLOAT[2,3]; p = INT32[1,2] 1 1; y MirrorPad x p mode=text:REFLECT",
        "an array of dims [2, 3] is mirrored by [1, 1]",
        "",
    ),
    ("x: FLOAT[3]; p = INT32[1,2] 5 5; y MirrorPad x p mode=text:REFLECT", "3 elements are mirrored by [5, 5]", ""),
    (
        "x: FLOAT[3]; p = INT32[1,2] 1 1; y MirrorPad x p mode=text:CONSTANT",
        "its mode is `CONSTANT`, expected REFLECT or SYMMETRIC",
        "",
    ),
    ("a = INT32[] 0; x: FLOAT[4]; y Split a x num_split=int:0", "4 elements are split into 0 parts", ""),
    ("x: FLOAT[2,3]; y EnsureShape x shape=shape:-1,4", "its input has dims [2, 3], and its `shape` is [-1, 4]", ""),
    ("x: FLOAT[2,3]; y EnsureShape x shape=shape:6", "its input has dims [2, 3], and its `shape` is [6]", ""),
    (
        "x: FLOAT[1,4,4,2]; k: FLOAT[2,2,2,3]; y Conv2D x k strides=ints:2,1,1,1 padding=text:SAME",
        "axis 0, of batch or features, has stride and dilation [2, 1] and padding [0, 0], expected [1, 1] and [0, 0]",
        "",
    ),
    (
        "x: FLOAT[1,2,4,4]; k: FLOAT[2,2,2,3]; y Conv2D x k strides=ints:1,1,1,1 padding=text:EXPLICIT \
         explicit_paddings=ints:0,0,1,0,0,0,0,0 data_format=text:NCHW",
        "axis 1, of batch or features, has stride and dilation [1, 1] and padding [1, 0], expected [1, 1] and [0, 0]",
        "",
    ),
    (
        "x: FLOAT[3,4]; i: INT32[2,1]; y GatherNd x i bad_indices_policy=text:IGNORE",
        "its `bad_indices_policy` gives 0 for an index out of range, where HLO clamps it",
        "leave the policy out, and choose by tf.where",
    ),
    (
        "x: FLOAT[1,4,4,2]; s = INT32[2] 8 8; y ResizeBilinear x s align_corners=bool:true \
         half_pixel_centers=bool:true",
        "it has both `align_corners` and `half_pixel_centers`, expected at most one",
        "",
    ),
    ("a = INT32[] 0; y ConcatV2 a N=int:0", "it joins no arrays", ""),
    ("x: FLOAT[3]; p = INT32[1,2] -1 5; y Pad x p", "it pads by [-1, 5], expected 0 or more", ""),
    (
        "x: FLOAT[3]; b = INT32[2] 0 0; e = INT32[2] 1 1; s = INT32[2] 1 1; y StridedSlice x b e s",
        "it slices 2 axes of an array of rank 1",
        "",
    ),
    (
        "x: FLOAT[3]; b = INT32[1] 0; e = INT32[2] 1 1; s = INT32[1] 1; y StridedSlice x b e s",
        "its begin, end and strides differ in length",
        "",
    ),
    (
        "x: FLOAT[3]; b = INT32[2] 0 0; e = INT32[2] 1 1; s = INT32[2] 1 1; y StridedSlice x b e s ellipsis_mask=int:3",
        "it has 2 ellipses, expected at most 1",
        "",
    ),
    (
        "x: FLOAT[3]; b = INT32[1] 0; e = INT32[1] 1; s = INT32[1] 0; y StridedSlice x b e s",
        "one of its strides is 0",
        "",
    ),
    (
        "x: FLOAT[3]; b: INT32[1]; e: INT32[1]; s = INT32[1] 1; y StridedSlice x b e s",
        "where it begins or ends is computed when the program runs, and HLO needs it before",
        "take one element, or tf.slice with a size that is a constant",
    ),
    ("x: FLOAT[3]; m = INT32[1] -2; y Tile x m", "its result would have dims [-6]", ""),
    ("x: FLOAT[6]; s = INT32[2] -1 4; y Reshape x s", "6 elements do not become dims [-1, 4]", ""),
    (
        "b: FLOAT[5,4]; s: FLOAT[5]; m = INT32[] 3; t = FLOAT[] 0.5; u = FLOAT[] 0.0; y NonMaxSuppressionV4 b s m t \
         u; z Identity y:1",
        "how many boxes it gives is known only when the program runs",
        "set `pad_to_max_output_size`, or name the boxes and scores before it",
    ),
    (
        "b: FLOAT[5,3]; s: FLOAT[5]; m = INT32[] 3; t = FLOAT[] 0.5; u = FLOAT[] 0.0; y NonMaxSuppressionV4 b s m t u \
         pad_to_max_output_size=bool:true",
        "its boxes have dims [5, 3], expected [n, 4]",
        "",
    ),
    (
        "b: FLOAT[5,4]; s: FLOAT[4]; m = INT32[] 3; t = FLOAT[] 0.5; u = FLOAT[] 0.0; y NonMaxSuppressionV4 b s m t u \
         pad_to_max_output_size=bool:true",
        "its scores have dims [4], expected [5]",
        "",
    ),
    (
        "b: FLOAT[1,5,1,4]; s: FLOAT[1,4,2]; m = INT32[] 3; n = INT32[] 3; t = FLOAT[] 0.5; u = FLOAT[] 0.0; y \
         CombinedNonMaxSuppression b s m n t u",
        "its boxes have dims [1, 5, 1, 4], its scores [1, 4, 2]",
        "",
    ),
    (
        "l: INT64[2,1]; y UniformCandidateSampler l num_true=int:1 num_sampled=int:5 unique=bool:true \
         range_max=int:1000000000",
        "it draws different classes of 1000000000, expected at most 16777216",
        "set `unique=False`, or hand the sampled classes in as a feature",
    ),
    (
        "l: INT64[2,1]; c: INT64[3,3]; y ComputeAccidentalHits l c num_true=int:1",
        "its true classes have dims [2, 1], the drawn ones [3, 3]",
        "",
    ),
    (
        "l: INT64[2,1]; c: INT64[3]; y ComputeAccidentalHits l c num_true=int:1; z Mul y:2 y:2",
        "how many there are is known only when the program runs, and `z` reads it",
        "tf.nn.sampled_softmax_loss puts them into a dense array",
    ),
    (
        "x: FLOAT[1,4,4,2]; k: FLOAT[2,2,2,3]; y Conv2D x k strides=ints:1,0,1,1 padding=text:SAME",
        "it has stride 0 and dilation 1, expected 1 to 2147483648",
        "",
    ),
    (
        "x: FLOAT[1,4,4,2]; k: FLOAT[2,2,2]; y Conv2D x k strides=ints:1,1,1,1 padding=text:SAME",
        "its input has dims [1, 4, 4, 2], its kernel [2, 2, 2]",
        "",
    ),
    (
        "x: FLOAT[1,4,4,2]; k: FLOAT[2,2,2,3]; y Conv2D x k strides=ints:1,1,1,1 padding=text:FULL",
        "its padding is `FULL`, expected SAME, VALID or EXPLICIT",
        "",
    ),
    (
        "x: FLOAT[3]; k = INT32[] 1; r = INT32[] -1; c = INT32[] -1; v = FLOAT[] 0; y MatrixDiagV3 x k r c v",
        "it is about the diagonals [1]",
        "only the main diagonal (`k=0`) becomes HLO",
    ),
    ("x: FLOAT[3]; y MatrixDiagPart x", "its input has dims [3], expected matrices", ""),
    ("x: FLOAT[3,3]; d: FLOAT[2]; y MatrixSetDiag x d", "its diagonal has dims [2], expected [3]", ""),
    ("x: FLOAT[]; y MatrixDiag x", "its diagonal is a scalar, expected vectors", ""),
    (
        "x: FLOAT[3]; y Cast x SrcT=type:FLOAT DstT=type:BFLOAT16 Truncate=bool:true",
        "it cuts f32 off to bf16 (`Truncate`), which HLO's convert does not",
        "cast without `Truncate`, which rounds to nearest",
    ),
    ("x: FLOAT[3]; y Bitcast x type=type:DOUBLE", "it makes f64 of f32, which is not as wide", ""),
    ("x: FLOAT[2,3]; y Cholesky x", "its matrices are 2 by 3 of f32, expected square ones of floats", ""),
    ("l: FLOAT[2,2]; g: FLOAT[3,3]; y CholeskyGrad l g", "its cotangent is f32[3, 3], expected f32[2, 2]", ""),
    (
        "m: FLOAT[2,2]; r: FLOAT[3,1]; y MatrixTriangularSolve m r",
        "its right sides have 3 rows of f32, expected 2 of f32",
        "",
    ),
    (
        "x: FLOAT[2,4,4,3]; b: FLOAT[5,4]; i: INT32[4]; s = INT32[2] 2 2; y CropAndResize x b i s",
        "the images' indices have dims [4], expected [5]",
        "",
    ),
    (
        "x: FLOAT[2,4,4,3]; b: FLOAT[5,4]; i: INT32[5]; s = INT32[2] 0 2; y CropAndResize x b i s",
        "it makes crops of [0, 2] pixels of images of [4, 4]",
        "",
    ),
    (
        "x: FLOAT[2,4,4,3]; b: FLOAT[5,4]; i: INT32[5]; s = INT32[3] 2 2 2; y CropAndResize x b i s",
        "the size of its crops is [2, 2, 2], expected two numbers",
        "",
    ),
    (
        "x: FLOAT[2,4,4,3]; b: FLOAT[5,4]; i: INT32[5]; s = INT32[2] 2 2; y CropAndResize x b i s method=text:bicubic",
        "its method is bicubic, expected bilinear or nearest",
        "",
    ),
    (
        "x: FLOAT[4,4,3]; b: FLOAT[5,4]; i: INT32[5]; s = INT32[2] 2 2; y CropAndResize x b i s",
        "its images have dims [4, 4, 3], expected 4",
        "",
    ),
    ("x: FLOAT[4,2]; y RGBToHSV x", "its input has dims [4, 2], expected 3 channels at the end", ""),
    ("x: FLOAT[4]; f = FLOAT[] 0.5; y AdjustContrastv2 x f", "its input has dims [4], expected images", ""),
    (
        "x: FLOAT[1,4,4,2]; k: FLOAT[2,2,2,3]; y Conv2D x k strides=ints:1,1,1,1 padding=text:SAME \
         data_format=text:HWCN",
        "its data_format is HWCN, expected channels last (NHWC) or first (NCHW)",
        "",
    ),
    (
        "s = INT32[4] 1 4 4 2; k: FLOAT[2,2,2,3]; d: FLOAT[4,4,3]; y Conv2DBackpropInput s k d strides=ints:1,1,1,1 \
         padding=text:SAME",
        "its cotangent has dims [4, 4, 3], expected as many as [1, 4, 4, 2]",
        "",
    ),
    (
        "x: FLOAT[4]; p = INT32[4] 0 7 0 1; y DynamicPartition x p num_partitions=int:2",
        "a partition number is not between 0 and 1",
        "",
    ),
    (
        "x: FLOAT[4]; p: INT32[4]; y DynamicPartition x p num_partitions=int:2",
        "how many rows a part has is known only when it runs",
        "multiply by a mask of each part, or make `partitions` a constant in the script",
    ),
    (
        "x: FLOAT[4]; p = INT32[3] 0 1 0; y DynamicPartition x p num_partitions=int:2",
        "its partitions have dims [3], and its data [4]",
        "",
    ),
    (
        "x: FLOAT[3,4]; l: INT32[3]; y ReverseSequence x l seq_dim=int:0 batch_dim=int:0",
        "axis 0 is that of its examples and that of its sequences",
        "",
    ),
    (
        "x: FLOAT[4,2]; s: INT32[4]; y SegmentSum x s",
        "how many segments it has is known only when the program runs",
        "tf.math.unsorted_segment_sum with `num_segments`, as XLA asks",
    ),
    (
        "x: FLOAT[4]; y Unique x; z Mul y y",
        "how many there are is known only when the program runs, and `z` reads it",
        "on a TPU, sum with tf.math.unsorted_segment_sum into a fixed number of rows",
    ),
    (
        "x: FLOAT[3,4]; i: INT32[3,2]; a = INT32[] 0; y GatherV2 x i a batch_dims=int:1",
        "its batch_dims are 1, its axis is 0, its indices have rank 2",
        "",
    ),
    (
        "x: FLOAT[3,4]; i: INT32[2,3]; y GatherNd x i",
        "its index vectors have 3 numbers, and its array has dims [3, 4]",
        "",
    ),
    ("x: FLOAT[3,4]; i: INT32[]; y GatherNd x i", "its indices are a scalar, expected vectors", ""),
    (
        "i: INT32[2,2,2]; s = INT32[2] 4 4; v: FLOAT[2]; d = FLOAT[] 0; y SparseToDense i s v d",
        "its indices have dims [2, 2, 2], expected rows",
        "",
    ),
    ("i = INT32[2] 0 2; a: FLOAT[2,3]; y DynamicStitch i a N=int:1", "one of its places has no row", ""),
    ("i = INT32[2] 0 -2; a: FLOAT[2,3]; y DynamicStitch i a N=int:1", "one of its places is -2", ""),
    (
        "a: FLOAT[2,3]; b: FLOAT[3,4]; y Einsum a b equation=text:ij,jk->il N=int:2",
        "`ij,jk->il` gives axes that no array has",
        "",
    ),
    ("a: FLOAT[2,3]; b: FLOAT[3,4]; y Einsum a b equation=text:ij,jk N=int:2", "`ij,jk` has no `->`", ""),
    (
        "a: FLOAT[2,3]; b: FLOAT[3,4]; c: FLOAT[4]; y Einsum a b c equation=text:ij,jk,k->i N=int:3",
        "`ij,jk,k->i` is of 3 arrays, and it has 3; 1 or 2 are lowered",
        "",
    ),
    (
        "a: FLOAT[3,3]; y Einsum a equation=text:ii->i N=int:1",
        "`ii->i` takes a diagonal, which is not lowered",
        "write tf.linalg.diag_part before it, or cut the graph behind it",
    ),
    (
        "x: COMPLEX64[3]; a = INT32[1] 0; y Sum x a T=type:COMPLEX64",
        "constant: a constant of c64 was asked for, which has no scalar rule",
        "it is not lowered here in this dtype: cut the graph behind it",
    ),
    (
        "a: FLOAT[2,3]; y Einsum a equation=text:ijk->i N=int:1",
        "`ijk` does not name the axes of an array of rank 2",
        "",
    ),
    (
        "a: FLOAT[1,1,1,1,1,1,1,1,1,1,1]; y Einsum a equation=text:...->... N=int:1",
        "its ellipsis stands for more than 9 axes",
        "",
    ),
    ("x: FLOAT[1,2,2,4]; y LRN x depth_radius=int:-1", "its depth_radius is -1", ""),
    ("x: FLOAT[]; y LRN x depth_radius=int:1", "its input is a scalar", ""),
    (
        "v VariableV2 dtype=type:FLOAT shape=shape:3; a VariableV2 dtype=type:FLOAT shape=shape:3; l VariableV2 \
         dtype=type:FLOAT shape=shape:3; g: FLOAT[3]; r = FLOAT[] 0.1; p = FLOAT[] -0.5; y ApplyFtrl v a l g r r r p \
         multiply_linear_by_lr=bool:true",
        "its linear term is kept times the rate, which has no rule",
        "",
    ),
    (
        "x: FLOAT[1,4,4,2]; g: FLOAT[1,2,2,2]; i: INT64[1,1,2,2]; y MaxPoolGradWithArgmax x g i ksize=ints:1,2,2,1 \
         strides=ints:1,2,2,1 padding=text:SAME",
        "its places have dims [1, 1, 2, 2], expected [1, 2, 2, 2] of its cotangent",
        "",
    ),
    (
        "x: FLOAT[1,200,200,2]; y MaxPoolWithArgmax x ksize=ints:1,100,100,1 strides=ints:1,2,2,1 padding=text:SAME; \
         z Identity y:1 T=type:INT64",
        "its window has more than 1024 elements",
        "tf.nn.max_pool2d has windows of any size",
    ),
    (
        "x: FLOAT[1,4,4,2]; y MaxPoolWithArgmax x ksize=ints:1,9,9,1 strides=ints:1,2,2,1 padding=text:VALID; z \
         Identity y:1 T=type:INT64",
        "its window is larger than its input of dims [1, 4, 4, 2]",
        "",
    ),
    (
        "x: FLOAT[1,4,4,2]; y MaxPool x ksize=ints:1,0,2,1 strides=ints:1,2,2,1 padding=text:SAME",
        "its window is [1, 0, 2, 1] in steps of [1, 2, 2, 1], expected 1 to 2147483648",
        "",
    ),
    (
        "x: FLOAT[4,2]; i = INT32[2] 0 1; v: FLOAT[2,3]; y InplaceAdd x i v",
        "its values have dims [2, 3], expected [2, 2], a row for each index",
        "",
    ),
    ("x: FLOAT[]; i = INT32[] 0; v: FLOAT[]; y InplaceUpdate x i v", "its array is a scalar, expected rows", ""),
    ("x: FLOAT[4]; n = INT32[] 3; y Multinomial x n", "its logits have dims [4], expected 2", ""),
    (
        "x: FLOAT[1,4,4,2]; b = INT32[2] 2 3; p = INT32[2,2] 0 0 0 0; y SpaceToBatchND x b p",
        "axis 2 has 4 elements with its padding, in blocks of 3",
        "",
    ),
    (
        "x: FLOAT[1,4]; b = INT32[2] 2 2; p = INT32[2,2] 0 0 0 0; y SpaceToBatchND x b p",
        "blocks of [2, 2] with edges [0, 0, 0, 0] do not fit an array of rank 2",
        "",
    ),
    (
        "x: FLOAT[1,4,4,4]; y SpaceToDepth x block_size=int:2 data_format=text:NCHW_VECT_C",
        "its data_format is NCHW_VECT_C, expected NHWC or NCHW",
        "",
    ),
    (
        "x: FLOAT[1,4,4,3]; y ExtractImagePatches x ksizes=ints:1,0,2,1 strides=ints:1,1,1,1 rates=ints:1,1,1,1 \
         padding=text:VALID",
        "its windows are [0, 2] in steps of [1, 1] at rates [1, 1]",
        "take at most 4096 pixels a window",
    ),
    (
        "x: FLOAT[1,4,4,3]; y ExtractImagePatches x ksizes=ints:1,9,9,1 strides=ints:1,1,1,1 rates=ints:1,1,1,1 \
         padding=text:VALID",
        "no window of [9, 9] fits an image of 4 x 4",
        "",
    ),
    (
        "x: FLOAT[8,2,2,1]; b = INT32[2] 2 2; c = INT32[2,2] 3 3 0 0; y BatchToSpaceND x b c",
        "[3, 3] are cropped from 4 elements",
        "",
    ),
    (
        "x: FLOAT[6,2,2,1]; b = INT32[2] 2 2; c = INT32[2,2] 0 0 0 0; y BatchToSpaceND x b c",
        "6 examples are in blocks of [2, 2]",
        "",
    ),
    ("a: FLOAT[2,3]; b: FLOAT[4]; y Add a b", "its inputs have dims [2, 3] and [4], which do not broadcast", ""),
    ("x: FLOAT[3]; s = INT32[1] 4; y BroadcastTo x s", "an array of dims [3] does not broadcast to [4]", ""),
    ("x: FLOAT[2,3]; d = INT32[] 5; y ArgMax x d", "axis 5 is none of an array of rank 2", ""),
    (
        "x: FLOAT[2,3]; p: INT32[2]; y Transpose x p",
        "input 1 is computed when the program runs, and HLO needs it before",
        "it is a shape, an axis, a size or a padding: make it a constant in the script",
    ),
    ("x: FLOAT[2,3]; y AssignAdd x x", "input 0 is no variable", ""),
    ("x: FLOAT[3]; y Cast x SrcT=type:FLOAT", "its attribute `DstT` is missing", ""),
    ("x: FLOAT[3]; y Cast x DstT=type:STRING", "its `DstT` is string, which HLO does not have", ""),
    (
        "a = STRING[1] \"a\"; x: FLOAT[1]; y Add x a",
        "input 1 is no array of numbers: text, or of the input pipeline",
        "cut the graph behind its input pipeline",
    ),
    ("i = INT64[0]; x: FLOAT[0,3]; y Unique x", "its indices are no vector", ""),
    (
        "a = FLOAT[1000000000000,1000000000000]; x: FLOAT[3]; y Add x a",
        "its dims are [1000000000000, 1000000000000], more than memory holds",
        "",
    ),
    (
        "a = FLOAT[100000,100000] 1 2; x: FLOAT[3]; y Add x a",
        "its value has dims [100000, 100000], more than 1073741824 bytes",
        "",
    ),
    ("a = FLOAT[1] 1 2; x: FLOAT[1]; y Add x a", "its value holds 8 bytes, expected 1 elements of f32", ""),
    ("a = COMPLEX64[2] 1; y Identity a", "a constant of c64 in a list is not read", ""),
    ("a = FLOAT[-1] 1; x: FLOAT[1]; y Add x a", "the shape of its value is not known", ""),
    ("x: FLOAT[1]; a Const dtype=type:FLOAT; y Add x a", "its attribute `value` is missing", ""),
    (
        "x: FLOAT[2]; p = INT32[2] 0 1; y DynamicPartition x p num_partitions=int:0",
        "its `num_partitions` is not between 1 and 65536",
        "",
    ),
    ("x: FLOAT[1]; a AddN N=int:0; y Add x a", "it has no inputs", ""),
    (
        "x: BOOL[3]; s = INT32[3] 0 1 1; n = INT32[] 2; y UnsortedSegmentMax x s n T=type:BOOL",
        "it compares pred, expected floats or s32",
        "",
    ),
    ("s: INT32[3]; d = INT32[1] 4; y StatelessRandomGetKeyCounter s", "its seed has dims [3], expected [2]", ""),
    (
        "v VariableV2 dtype=type:FLOAT shape=shape:-1; y Identity v",
        "its shape is not known, or of a dtype that HLO does not have",
        "make the variable with a shape, not with `validate_shape=False`",
    ),
    ("x: FLOAT[1]; y PartitionedCall x f=func:nowhere", "its `f` is `nowhere`, and the graph has no such function", ""),
    (
        "v VariableV2 dtype=type:FLOAT shape=shape:3; x: FLOAT[4]; y Assign v x; z Identity y",
        "variable `v` is f32[3], and f32[4] is assigned to it",
        "",
    ),
    (
        "b: COMPLEX64[5,4]; s: FLOAT[5]; m = INT32[] 3; t = FLOAT[] 0.5; u = FLOAT[] 0; y NonMaxSuppressionV4 b s m t \
         u pad_to_max_output_size=bool:true",
        "convert is from c64 to f32, expected a complex result",
        "take its `real`, `imag` or `abs` first",
    ),
];
