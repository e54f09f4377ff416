//! Lists, loops, branches and functions that do not fit.

use super::Refused;

pub const FLOW: &[Refused] = &[
    ("x: FLOAT[3]; y TensorListLength x", "input 0 is no list", ""),
    (
        "n = INT32[] 99999999; s = INT32[1] 3; l TensorListReserve s n element_dtype=type:FLOAT; y TensorListLength l",
        "its list has 99999999 elements, expected 0 to 16777216",
        "",
    ),
    (
        "x: FLOAT[]; s = INT32[0]; l TensorListFromTensor x s element_dtype=type:FLOAT; y TensorListLength l",
        "its tensor is a scalar, expected rows",
        "",
    ),
    (
        "s = INT32[1] 3; n = INT32[] 0; l TensorListReserve s n element_dtype=type:FLOAT; i = INT32[] 0; y \
         TensorListGetItem l i s element_dtype=type:FLOAT",
        "its list has no elements",
        "",
    ),
    (
        "s = INT32[1] -1; n = INT32[] 2; l TensorListReserve s n element_dtype=type:FLOAT; i = INT32[] 0; y \
         TensorListGetItem l i s element_dtype=type:FLOAT",
        "nothing was written to its list, and nothing says what its elements are",
        "give the TensorArray its `element_shape`",
    ),
    (
        "s = INT32[1] 3; n = INT32[] 2; l TensorListReserve s n element_dtype=type:FLOAT; i = INT32[] 0; x: FLOAT[4]; \
         w TensorListSetItem l i x element_dtype=type:FLOAT; y TensorListLength w",
        "a list has elements of f32[3] and of f32[4], expected one shape",
        "write elements of one shape",
    ),
    (
        "s = INT32[1] 3; n = INT32[] 2; l TensorListReserve s n element_dtype=type:FLOAT; i = INT32[] 0; x = \
         STRING[1] \"a\"; w TensorListSetItem l i x element_dtype=type:FLOAT; y TensorListLength w",
        "an element of its list is no array: a variable, or text",
        "write arrays of numbers to the list",
    ),
    (
        "s = INT32[1] 3; m = INT32[] 16777216; l TensorListReserve s m element_dtype=type:FLOAT; x: FLOAT[3]; w \
         TensorListPushBack l x element_dtype=type:FLOAT; y TensorListLength w",
        "its list has more than 16777216 elements",
        "",
    ),
    (
        "s = INT32[1] 3; m = INT32[] 1; l EmptyTensorList s m element_dtype=type:FLOAT; x: FLOAT[3]; w \
         TensorListPushBack l x element_dtype=type:FLOAT; v TensorListPushBack w x element_dtype=type:FLOAT; y \
         TensorListLength v",
        "its list is full: it has 1 elements",
        "",
    ),
    (
        "s = INT32[1] 3; m = INT32[] -1; l EmptyTensorList s m element_dtype=type:FLOAT; y TensorListPopBack l s \
         element_dtype=type:FLOAT; z Identity y:1",
        "its list is empty",
        "",
    ),
    (
        "s = INT32[1] 3; n = INT32[] 2; l TensorListReserve s n element_dtype=type:FLOAT; x: FLOAT[2,3]; i = INT32[3] \
         0 1 2; w TensorListScatterIntoExistingList l x i element_dtype=type:FLOAT; y TensorListLength w",
        "it has 3 places for an array of dims [2, 3]",
        "",
    ),
    (
        "s = INT32[1] 3; n = INT32[] 2; l TensorListReserve s n element_dtype=type:FLOAT; x: FLOAT[2,3]; i = INT32[2] \
         0 5; w TensorListScatterIntoExistingList l x i element_dtype=type:FLOAT; y TensorListLength w",
        "it writes element 5 of a list of 2",
        "",
    ),
    (
        "s = INT32[0]; n = INT32[] 2; l TensorListReserve s n element_dtype=type:FLOAT; y TensorListConcatV2 l s n \
         element_dtype=type:FLOAT",
        "its elements are scalars, expected rows to put end to end",
        "",
    ),
    (
        "x: FLOAT[5,3]; s = INT32[1] 3; n = INT64[2] 2 3; l TensorListSplit x s n element_dtype=type:FLOAT; y \
         TensorListLength l",
        "it cuts an array of dims [5, 3] into [2, 3], expected parts of one length",
        "",
    ),
    ("h: FLOAT[]; f: FLOAT[]; y TensorArraySizeV3 h f", "input 0 is no TensorArray", ""),
    (
        "n = INT32[] 2; a TensorArrayV3 n dtype=type:FLOAT dynamic_size=bool:true; i: INT32[]; x: FLOAT[3]; w \
         TensorArrayWriteV3 a i x a:1; y TensorArraySizeV3 a w",
        "its TensorArray grows as it is written, and HLO needs its size before",
        "write it at a loop's counter from its end on, or give it its size and leave `dynamic_size` out",
    ),
    (
        "s = INT32[1] 3; n = INT32[] 2; l TensorListReserve s n element_dtype=type:FLOAT; y OptionalGetValue l",
        "input 0 is no optional",
        "",
    ),
    ("x: FLOAT[3]; o OptionalFromValue x x; y OptionalGetValue o", "it holds 2 values, expected 1", ""),
    ("x: FLOAT[3]; o OptionalFromValue x; y OptionalGetValue o", "no branch saves a value of its dtype and dims", ""),
    ("x: FLOAT[3]; y StackPushV2 x x", "input 0 is no stack", ""),
    (
        "s = INT32[1] 3; n = INT32[] 2; m = INT32[] 4; l TensorListReserve s n element_dtype=type:FLOAT; k \
         TensorListReserve s m element_dtype=type:FLOAT; a AddN l k N=int:2; y TensorListLength a",
        "it adds lists of other lengths",
        "add lists of one length",
    ),
    ("p: BOOL[]; x: FLOAT[3]; y If p x", "it has no `then_branch` and `else_branch`", ""),
    ("i: INT32[]; x: FLOAT[3]; y Case i x", "it has no `branches`", ""),
    (
        "y FakeParam dtype=type:FLOAT shape=shape:-1; x: FLOAT[1]; z Add x y",
        "its `shape` is not known, and HLO needs it before the program runs",
        "give the inputs of the branches shapes that are known, the batch's size too",
    ),
    (
        "s = INT32[1] 3; n = INT32[] 2; l TensorListReserve s n element_dtype=type:FLOAT; x: FLOAT[3]; y Mul x l",
        "input 1 is a list of arrays, expected an array",
        "stack the list: `TensorArray.stack()`",
    ),
    (
        "fn f a:FLOAT -> o:FLOAT=y:output:0; f/y PartitionedCall a f=func:f; x: FLOAT[1]; y PartitionedCall x f=func:f",
        "functions call each other more than 48 deep",
        "",
    ),
    (
        "fn c i:INT32 -> o:BOOL=y:z:0; c/k = INT32[] 3; c/y Less i k:output:0; fn b i:INT32; x: INT32[]; y While x \
         cond=func:c body=func:b",
        "its body gives 0 values of 1",
        "",
    ),
    (
        "fn c i:INT32; fn b i:INT32 -> o:INT32=i; x: INT32[]; y While x cond=func:c body=func:b",
        "its condition gives no array",
        "",
    ),
    (
        "p: BOOL[]; x: FLOAT[3]; y If p x then_branch=func:nowhere else_branch=func:nowhere",
        "the graph has no function `nowhere`",
        "",
    ),
    ("p = STRING[1] \"a\"; x: FLOAT[1]; s Switch x p; y Identity s", "its condition is no array", ""),
    ("a: FLOAT[1]; b: FLOAT[1]; y Merge a b N=int:2; z Identity y", "nothing says which of its inputs is taken", ""),
    (
        "a: FLOAT[1]; b: FLOAT[1]; c: FLOAT[1]; y Merge a b c N=int:3; z Identity y",
        "3 values meet in it, expected 1 or 2",
        "",
    ),
    (
        "fn f a:FLOAT -> o:FLOAT=r:value:0; f/v VarHandleOp shared_name=text:v dtype=type:FLOAT shape=shape:3; f/r \
         ReadVariableOp v:resource:0 dtype=type:FLOAT; x: FLOAT[1]; y PartitionedCall x f=func:f",
        "variable `v` is made inside a function",
        "make variables outside of functions, as TensorFlow asks",
    ),
    (
        "fn f a:FLOAT -> o:FLOAT=r:value:0; f/v VarHandleOp shared_name=text:v dtype=type:FLOAT shape=shape:3; f/r \
         ReadVariableOp v:resource:0 dtype=type:FLOAT; v VarHandleOp shared_name=text:v dtype=type:FLOAT \
         shape=shape:3; w ReadVariableOp v dtype=type:FLOAT; p: BOOL[]; x: FLOAT[1]; y If p x then_branch=func:f \
         else_branch=func:f; z Add w y",
        "variable `v` is read in a loop or branch that it is not handed to",
        "",
    ),
    ("x: FLOAT[1]; y Exit x", "it leaves a loop that nothing enters", ""),
    (
        "x: INT32[]; one = INT32[] 1; e Enter x frame_name=text:f; m Merge n n N=int:2; l Less m e; c LoopCond l; s \
         Switch m c; a Add s:1 e; n NextIteration a; y Exit s:0",
        "a value of its loop enters nowhere",
        "",
    ),
    (
        "x: INT32[]; one = INT32[] 1; ten = INT32[] 10; e Enter x frame_name=text:f; k Enter ten frame_name=text:f \
         is_constant=bool:true; o Enter one frame_name=text:f is_constant=bool:true; m Merge e n N=int:2; l Less m k; \
         c LoopCond l; s Switch m c; a Add s:1 o; n NextIteration a; y Exit s:5",
        "it leaves its loop with a value that the loop does not carry",
        "",
    ),
    (
        "fn c i:INT32 n:INT32 l:VARIANT -> o:BOOL=y:z:0; c/y Less i n; fn b i:INT32 n:INT32 l:VARIANT -> \
         i2:INT32=a:z:0 n2:INT32=n l2:VARIANT=p:output_handle:0; b/one = INT32[] 1; b/a Add i one:output:0; b/p \
         TensorListPushBack l i element_dtype=type:INT32; z = INT32[] 0; s = INT32[0]; m = INT32[] -1; l \
         EmptyTensorList s m element_dtype=type:INT32; n: INT32[]; w While z n l cond=func:c body=func:b; y \
         TensorListLength w:2",
        "a loop pushes on a list, and how often it runs is not known before it runs",
        "give `maximum_iterations=` to tf.while_loop, as XLA asks where a loop has gradients",
    ),
    (
        "fn c i:INT32 n:INT32 l:VARIANT -> o:BOOL=y:z:0; c/y Less i n; fn b i:INT32 n:INT32 l:VARIANT -> \
         i2:INT32=a:z:0 n2:INT32=n l2:VARIANT=p:output_handle:0; b/one = INT32[] 1; b/a Add i one:output:0; b/p \
         TensorListPushBack l i element_dtype=type:INT32; z = INT32[] 0; s = INT32[0]; m = INT32[] -1; l \
         EmptyTensorList s m element_dtype=type:INT32; n = INT32[] 99999999; w While z n l cond=func:c body=func:b; y \
         TensorListLength w:2",
        "a loop pushes more than 16777216 elements on a list",
        "give the loop a smaller bound",
    ),
    (
        "fn t l:VARIANT x:FLOAT -> o:VARIANT=p:output_handle:0; t/p TensorListPushBack l x element_dtype=type:FLOAT; \
         fn e l:VARIANT x:FLOAT -> o:VARIANT=l; p: BOOL[]; x: FLOAT[3]; s = INT32[1] 3; m = INT32[] -1; l \
         EmptyTensorList s m element_dtype=type:FLOAT; i If p l x then_branch=func:t else_branch=func:e; y \
         TensorListStack i s element_dtype=type:FLOAT num_elements=int:-1",
        "how many elements its list has is not known before it runs",
        "give the TensorArray its size; XLA has no array whose size changes",
    ),
    (
        "fn t l:VARIANT x:FLOAT -> o:VARIANT=p:output_handle:0; t/p TensorListPushBack l x element_dtype=type:FLOAT; \
         fn e l:VARIANT x:FLOAT -> o:VARIANT=l; p: BOOL[]; x: FLOAT[3]; s = INT32[1] 3; m = INT32[] -1; l \
         EmptyTensorList s m element_dtype=type:FLOAT; i If p l x then_branch=func:t else_branch=func:e; y \
         TensorListStack i s element_dtype=type:FLOAT num_elements=int:5",
        "it stacks 5 elements of a list of 1",
        "",
    ),
    (
        "fn t a:FLOAT b:FLOAT -> o:VARIANT=p:optional:0; t/p OptionalFromValue a; fn e a:FLOAT b:FLOAT -> \
         o:VARIANT=p:optional:0; e/p OptionalFromValue b; p: BOOL[]; a: FLOAT[3]; b: FLOAT[4]; i If p a b \
         then_branch=func:t else_branch=func:e; y OptionalGetValue i output_types=types:FLOAT output_shapes=shapes:-1",
        "branches save several values of its dtype, and its `output_shapes` fits them all",
        "give the inputs of the branches shapes that are known, the batch's size too",
    ),
    (
        "x: FLOAT[2,3]; s = INT32[1] 3; u = INT32[] -1; m = INT32[] 4; i TensorListFromTensor x s \
         element_dtype=type:FLOAT; k EmptyTensorList u m element_dtype=type:VARIANT; p TensorListPushBack k i \
         element_dtype=type:VARIANT; q TensorListPushBack k i element_dtype=type:VARIANT; a AddN p q N=int:2; y \
         TensorListLength a",
        "it adds lists of lists",
        "",
    ),
    (
        "s = INT32[1] 3; n = INT32[] 2; l TensorListReserve s n element_dtype=type:FLOAT; x: FLOAT[513,3]; i = \
         INT32[513] 1 0; w TensorListScatterIntoExistingList l x i element_dtype=type:FLOAT; y TensorListLength w",
        "it writes 513 elements in no order, expected at most 512",
        "",
    ),
    (
        "x: INT32[]; one = INT32[] 1; ten = INT32[] 10; e Enter x frame_name=text:f; k Enter ten frame_name=text:f \
         is_constant=bool:true; o Enter one frame_name=text:f is_constant=bool:true; m Merge e n N=int:2; l Less m k; \
         s Switch m l; a Add s:1 o; n NextIteration a; y Exit s:0",
        "its loop has no condition",
        "",
    ),
    (
        "x: INT32[]; one = INT32[] 1; ten = INT32[] 10; e Enter x frame_name=text:f; k Enter ten frame_name=text:f \
         is_constant=bool:true; o Enter one frame_name=text:f is_constant=bool:true; m Merge e n N=int:2; l Less m k; \
         c LoopCond ^l; s Switch m c; a Add s:1 o; n NextIteration a; y Exit s:0",
        "its condition has no input",
        "",
    ),
    (
        "fn c i:INT32 n:INT32 h:RESOURCE f:FLOAT -> o:BOOL=y:z:0; c/y Less i n; fn b i:INT32 n:INT32 h:RESOURCE \
         f:FLOAT -> i2:INT32=a:z:0 n2:INT32=n h2:RESOURCE=h f2:FLOAT=w:flow_out:0; b/two = INT32[] 2; b/a Add i \
         two:output:0; b/x = FLOAT[] 1; b/w TensorArrayWriteV3 h i x:output:0 f; z = INT32[] 0; n = INT32[] 6; t \
         TensorArrayV3 z dtype=type:FLOAT dynamic_size=bool:true; w While z n t t:1 cond=func:c body=func:b; y \
         TensorArraySizeV3 t w:3",
        "a TensorArray grows in a loop, and how far is not known before it runs",
        "write it at the loop's counter from its end on, or give it its size",
    ),
    (
        "fn c i:INT32 l:VARIANT -> o:BOOL=y:z:0; c/n = INT32[] 9; c/y Less i n:output:0; fn b i:INT32 l:VARIANT -> \
         i2:INT32=a:z:0 l2:VARIANT=p:output_handle:0; b/one = INT32[] 1; b/a Add i one:output:0; b/s = INT32[] -1; \
         b/m = INT32[] 4; b/k EmptyTensorList s:output:0 m:output:0 element_dtype=type:VARIANT; b/p \
         TensorListPushBack k:handle:0 l element_dtype=type:VARIANT; z = INT32[] 0; u = INT32[] -1; m = INT32[] 4; l \
         EmptyTensorList u m element_dtype=type:VARIANT; w While z l cond=func:c body=func:b; y TensorListLength w:1",
        "its lists change their form on 8 trips",
        "write elements of one shape to a TensorArray",
    ),
    (
        "fn g x:FLOAT -> o:VARIANT=l:handle:0; g/s = INT32[] -1; g/m = INT32[] 4; g/l EmptyTensorList s:output:0 \
         m:output:0 element_dtype=type:FLOAT; fn h x:FLOAT -> o:RESOURCE=s:handle:0; h/m = INT32[] 4; h/s StackV2 \
         m:output:0 elem_type=type:FLOAT; p: BOOL[]; x: FLOAT[3]; i If p x then_branch=func:g else_branch=func:h; y \
         TensorListLength i",
        "one of its branches gives a list where another gives a handle, expected lists or handles",
        "",
    ),
    (
        "fn g x:FLOAT -> o:RESOURCE=s:handle:0; g/m = INT32[] 4; g/s StackV2 m:output:0 elem_type=type:FLOAT; p: \
         BOOL[]; x: FLOAT[3]; i If p x then_branch=func:g else_branch=func:g; y StackPushV2 i x; z Identity y",
        "its stack is used in a loop or branch that it is not handed to",
        "make the stack where it is used, or hand it to the loop",
    ),
    (
        "txt = STRING[1] \"a\"; q Enter txt frame_name=text:f; m Merge q n N=int:2; c LoopCond m; s Switch m c; n \
         NextIteration s:1; y Exit s:0; x: FLOAT[1]; z Add x y",
        "the condition of its loop is no array",
        "",
    ),
];
