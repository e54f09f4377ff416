//! Accepts and rejects of the indexing rules; messages are compared whole.

use super::super::testing::{check, check_in, shape};
use super::*;
use crate::Module;
use crate::ops::BinaryOp;
use crate::{Metadata, Op};

fn dynamic_slice_op(sizes: &[i64]) -> Op {
    Op::DynamicSlice { slice_sizes: sizes.to_vec() }
}

#[test]
fn dynamic_slice_accepts() {
    let accept = |sizes: &[i64], operands: &[&str], expected: &str| {
        check(&dynamic_slice_op(sizes), operands, "", Ok(expected));
    };
    accept(&[2, 0], &["bf16[4,3]", "s32[]", "s32[]"], "bf16[2,0]");
    accept(&[4, 2], &["f32[<=4,<=3]", "u8[]", "u8[]"], "f32[<=4,2]");
    accept(&[], &["pred[]"], "pred[]");
}

#[test]
fn dynamic_slice_rejects() {
    let reject = |sizes: &[i64], operands: &[&str], expected: &str| {
        check(&dynamic_slice_op(sizes), operands, "", Err(expected));
    };
    reject(&[], &[], "dynamic-slice/arity: dynamic-slice takes an array and its start indices, got 0 operands");
    reject(&[], &["token[]"], "operands/kind: dynamic-slice operand is token[], expected an array");
    reject(
        &[1],
        &["f32[2]"],
        "operands/per-dimension: dynamic-slice start indices has 0 entries, expected 1, one per dimension of f32[2]",
    );
    reject(&[1], &["f32[2]", "s32[1]"], "operands/scalar: dynamic-slice start index 0 is s32[1], expected a scalar");
    reject(
        &[1],
        &["f32[2]", "f32[]"],
        "operands/dtype: dynamic-slice start index 0 is f32[], expected an integer dtype
  help: insert a `convert` to such a dtype",
    );
    reject(
        &[1, 1],
        &["f32[2,2]", "s32[]", "s64[]"],
        "operands/dtypes-differ: dynamic-slice dtypes differ: start index 0 is s32[], start index 1 is s64[]
  help: hlo converts nothing by itself: insert a `convert` of start index 1 to s32 (or of start index 0 to s64)",
    );
    reject(
        &[],
        &["f32[2]", "s32[]"],
        "operands/per-dimension: dynamic-slice dynamic_slice_sizes has 0 entries, expected 1, one per dimension of f32[2]",
    );
    for size in [-1, 3] {
        let message = format!(
            "indexing/box-size: dynamic-slice dynamic_slice_sizes[0] is {size}, expected 0 to 2, the size of operand axis 0"
        );
        reject(&[size], &["f32[2]", "s32[]"], &message);
    }
}

#[test]
fn dynamic_update_slice_accepts() {
    let op = Op::DynamicUpdateSlice;
    check(&op, &["bf16[4,<=3]", "bf16[1,3]", "s32[]", "s32[]"], "", Ok("bf16[4,<=3]"));
    check(&op, &["f32[4]", "f32[0]", "u64[]"], "", Ok("f32[4]"));
}

#[test]
fn dynamic_update_slice_rejects() {
    let reject = |operands: &[&str], expected: &str| check(&Op::DynamicUpdateSlice, operands, "", Err(expected));
    reject(
        &["f32[]"],
        "dynamic-update-slice/arity: dynamic-update-slice takes an array, an update and its start indices, got 1 operands",
    );
    reject(&["token[]", "f32[]"], "operands/kind: dynamic-update-slice operand is token[], expected an array");
    reject(
        &["f32[2]", "bf16[2]", "s32[]"],
        "operands/dtypes-differ: dynamic-update-slice dtypes differ: operand is f32[2], update is bf16[2]
  help: hlo converts nothing by itself: insert a `convert` of update to f32 (or of operand to bf16)",
    );
    reject(
        &["f32[2,2]", "f32[2]", "s32[]", "s32[]"],
        "operands/per-dimension: dynamic-update-slice update has 1 entries, expected 2, one per dimension of f32[2,2]",
    );
    reject(
        &["f32[2]", "f32[3]", "s32[]"],
        "indexing/box-size: dynamic-update-slice update[0] is 3, expected 0 to 2, the size of operand axis 0",
    );
    reject(
        &["f32[2]", "f32[1]", "pred[]"],
        "operands/dtype: dynamic-update-slice start index 0 is pred[], expected an integer dtype
  help: insert a `convert` to such a dtype",
    );
    reject(
        &["f32[2]", "f32[1]"],
        "operands/per-dimension: dynamic-update-slice start indices has 0 entries, expected 1, one per dimension of f32[2]",
    );
}

/// Rows of a table: operand `[n, d]`, indices `[b, 1]` → `[b, d]`, for `n = 10`, `d = 4`.
fn rows() -> GatherDims {
    GatherDims {
        offset_dims: vec![1],
        collapsed_slice_dims: vec![0],
        start_index_map: vec![0],
        index_vector_dim: 1,
        slice_sizes: vec![1, 4],
        ..GatherDims::default()
    }
}

/// A row per batch element: operand `[b, n, d]`, indices `[k, b, 1]` → `[k, b, d]`.
fn batched_rows() -> GatherDims {
    GatherDims {
        offset_dims: vec![2],
        collapsed_slice_dims: vec![1],
        start_index_map: vec![1],
        operand_batching_dims: vec![0],
        start_indices_batching_dims: vec![1],
        index_vector_dim: 2,
        slice_sizes: vec![1, 1, 4],
        indices_are_sorted: false,
    }
}

#[test]
fn gather_accepts() {
    let accept = |dims: GatherDims, operands: &[&str], expected: &str| {
        check(&Op::Gather(dims), operands, "", Ok(expected));
    };
    accept(rows(), &["bf16[10,4]", "s32[<=3,1]"], "bf16[<=3,4]");
    accept(rows(), &["f32[10,<=4]", "u64[3,1]"], "f32[3,<=4]");
    accept(batched_rows(), &["f32[5,10,4]", "s32[7,5,1]"], "f32[7,5,4]");
    let scalars = GatherDims { index_vector_dim: 2, offset_dims: vec![2], ..rows() };
    accept(scalars, &["f32[10,4]", "s32[3,2]"], "f32[3,2,4]");
    let boxes = GatherDims {
        offset_dims: vec![0, 2],
        collapsed_slice_dims: vec![],
        start_index_map: vec![1, 0],
        index_vector_dim: 0,
        slice_sizes: vec![2, 3],
        ..GatherDims::default()
    };
    accept(boxes, &["f32[10,4]", "s32[2,6]"], "f32[2,6,3]");
    let empty = GatherDims { slice_sizes: vec![0, 4], ..rows() };
    accept(empty, &["f32[0,4]", "s32[3,1]"], "f32[3,4]");
}

#[test]
fn gather_rejects_operands() {
    let reject = |operands: &[&str], expected: &str| check(&Op::Gather(rows()), operands, "", Err(expected));
    reject(&["f32[10,4]"], "operands/arity: gather takes 2 operands, got 1");
    reject(&["token[]", "s32[3,1]"], "operands/kind: gather operand is token[], expected an array");
    reject(
        &["f32[10,4]", "f32[3,1]"],
        "operands/dtype: gather indices is f32[3,1], expected an integer dtype
  help: insert a `convert` to such a dtype",
    );
    reject(
        &["f32[10,4]", "s32[]"],
        "indexing/index-vector-dim: gather index_vector_dim is 1, expected 0 to 0, the rank of the indices",
    );
    reject(
        &["f32[10,4]", "s32[3,2]"],
        "indexing/index-map: gather start_index_map has 1 entries, expected 2, the size of index_vector_dim=1 of s32[3,2]",
    );
    reject(
        &["f32[10,4]", "s32[4611686018427387904,1]"],
        "operands/size: gather indices is s32[4611686018427387904,1], expected at most 2^56 bytes",
    );
    reject(
        &["f64[10,4]", "s8[36028797018963968,1]"],
        "operands/size: gather result is f64[36028797018963968,4], expected at most 2^56 bytes",
    );
}

#[test]
fn gather_rejects_dims() {
    let reject = |dims: GatherDims, expected: &str| {
        check(&Op::Gather(dims), &["f32[10,4]", "s32[3,1]"], "", Err(expected));
    };
    reject(
        GatherDims { index_vector_dim: -1, ..rows() },
        "indexing/index-vector-dim: gather index_vector_dim is -1, expected 0 to 2, the rank of the indices",
    );
    reject(
        GatherDims { start_index_map: vec![2], ..rows() },
        "operands/axis: gather start_index_map names axis 2, expected 0 <= axis < 2",
    );
    reject(
        GatherDims { collapsed_slice_dims: vec![1, 0], ..rows() },
        "operands/axes-order: gather collapsed_slice_dims={1,0} is not in order, expected ascending axes",
    );
    reject(
        GatherDims { collapsed_slice_dims: vec![0, 0], ..rows() },
        "operands/axis-twice: gather collapsed_slice_dims={0,0} names axis 0 twice, expected each axis at most once",
    );
    reject(
        GatherDims { offset_dims: vec![0, 1], ..rows() },
        "indexing/window-dims: gather offset_dims has 2 entries, expected 1: the axes of f32[10,4] that are in neither \
         collapsed_slice_dims nor operand_batching_dims",
    );
    reject(
        GatherDims { offset_dims: vec![2], ..rows() },
        "operands/axis: gather offset_dims names axis 2, expected 0 <= axis < 2",
    );
    reject(
        GatherDims { slice_sizes: vec![1], ..rows() },
        "operands/per-dimension: gather slice_sizes has 1 entries, expected 2, one per dimension of f32[10,4]",
    );
    reject(
        GatherDims { slice_sizes: vec![1, 5], ..rows() },
        "indexing/box-size: gather slice_sizes[1] is 5, expected 0 to 4, the size of operand axis 1",
    );
    reject(
        GatherDims { slice_sizes: vec![2, 4], ..rows() },
        "gather/collapsed-size: gather slice_sizes[0] is 2, expected at most 1: axis 0 is collapsed or batching",
    );
}

#[test]
fn gather_rejects_batching() {
    let reject = |dims: GatherDims, indices: &str, expected: &str| {
        check(&Op::Gather(dims), &["f32[5,10,4]", indices], "", Err(expected));
    };
    reject(
        batched_rows(),
        "s32[7,6,1]",
        "indexing/batching-sizes: gather batching sizes differ: operand[0]=5, indices[1]=6",
    );
    reject(
        GatherDims { start_indices_batching_dims: vec![], ..batched_rows() },
        "s32[7,5,1]",
        "indexing/batching-counts: gather operand_batching_dims has 1 entries, start_indices_batching_dims has 0, \
         expected as many",
    );
    reject(
        GatherDims { start_indices_batching_dims: vec![2], ..batched_rows() },
        "s32[7,5,1]",
        "indexing/batching-vector-dim: gather start_indices_batching_dims names axis 2, expected another than \
         index_vector_dim=2",
    );
    reject(
        GatherDims { start_indices_batching_dims: vec![3], ..batched_rows() },
        "s32[7,5,1]",
        "operands/axis: gather start_indices_batching_dims names axis 3, expected 0 <= axis < 3",
    );
    reject(
        GatherDims { operand_batching_dims: vec![1], start_indices_batching_dims: vec![0], ..batched_rows() },
        "s32[10,5,1]",
        "indexing/batching-overlap: gather axis 1 is in collapsed_slice_dims and in operand_batching_dims, expected it in \
         at most one",
    );
    reject(
        GatherDims { start_index_map: vec![0], ..batched_rows() },
        "s32[7,5,1]",
        "indexing/batching-overlap: gather axis 0 is in start_index_map and in operand_batching_dims, expected it in at \
         most one",
    );
}

/// Adds rows to a table: operand `[n, d]`, indices `[b, 1]`, updates `[b, d]`.
fn add_rows() -> ScatterDims {
    ScatterDims {
        update_window_dims: vec![1],
        inserted_window_dims: vec![0],
        scatter_dims_to_operand_dims: vec![0],
        index_vector_dim: 1,
        ..ScatterDims::default()
    }
}

/// A module with computations `add` on f32 (1), `add` on bf16 (2), and a pair `(f32, s32) -> (f32, s32)` (3).
fn module() -> Module {
    let mut module = Module::new("test");
    module.scalar_computation(BinaryOp::Add, DType::F32);
    module.scalar_computation(BinaryOp::Add, DType::BF16);
    let pair = module.add_computation("pair");
    let parameters = ["f32[]", "s32[]", "f32[]", "s32[]"];
    let ids: Vec<_> = (parameters.iter().enumerate())
        .map(|(i, text)| module.append(pair, Op::parameter(i as i64), vec![], shape(text), Metadata::default()))
        .collect();
    module.append(pair, Op::Tuple, vec![ids[2], ids[3]], shape("(f32[], s32[])"), Metadata::default());
    module
}

#[track_caller]
fn check_scatter(dims: ScatterDims, to_apply: u32, operands: &[&str], expected: Result<&str, &str>) {
    check_in(&module(), &Op::Scatter { dims, to_apply: CompId(to_apply) }, operands, "", expected);
}

#[test]
fn scatter_accepts() {
    let accept = |dims: ScatterDims, to_apply: u32, operands: &[&str], expected: &str| {
        check_scatter(dims, to_apply, operands, Ok(expected));
    };
    accept(add_rows(), 1, &["f32[10,4]", "s32[3,1]", "f32[3,4]"], "f32[10,4]");
    accept(add_rows(), 2, &["bf16[<=10,4]", "u8[3,1]", "bf16[3,2]"], "bf16[<=10,4]");
    accept(add_rows(), 3, &["f32[10,4]", "s32[10,4]", "s32[3,1]", "f32[3,4]", "s32[3,4]"], "(f32[10,4], s32[10,4])");
    let batched = ScatterDims {
        update_window_dims: vec![2],
        inserted_window_dims: vec![1],
        scatter_dims_to_operand_dims: vec![1],
        input_batching_dims: vec![0],
        scatter_indices_batching_dims: vec![1],
        index_vector_dim: 2,
        ..ScatterDims::default()
    };
    accept(batched, 1, &["f32[5,10,4]", "s32[7,5,1]", "f32[7,5,4]"], "f32[5,10,4]");
    let scalars = ScatterDims { index_vector_dim: 1, ..add_rows() };
    accept(scalars, 1, &["f32[10,4]", "s32[3]", "f32[3,4]"], "f32[10,4]");
}

#[test]
fn scatter_rejects_operands() {
    let reject = |operands: &[&str], expected: &str| check_scatter(add_rows(), 1, operands, Err(expected));
    for n in [0, 1, 2, 4] {
        let message = format!("scatter/arity: scatter takes N arrays, indices and N updates, got {n} operands");
        reject(&vec!["f32[2]"; n], &message);
    }
    reject(&["f32[10,4]", "token[]", "f32[3,4]"], "operands/kind: scatter operand 1 is token[], expected an array");
    reject(
        &["f32[10,4]", "f32[3,1]", "f32[3,4]"],
        "operands/dtype: scatter indices is f32[3,1], expected an integer dtype
  help: insert a `convert` to such a dtype",
    );
    reject(
        &["f32[10,4]", "s32[3,1]", "bf16[3,4]"],
        "operands/dtypes-differ: scatter dtypes differ: operand 0 is f32[10,4], update 0 is bf16[3,4]
  help: hlo converts nothing by itself: insert a `convert` of update 0 to f32 (or of operand 0 to bf16)",
    );
    let broadcast_help = "\n  help: hlo broadcasts nothing by itself: insert a `broadcast` of the smaller one";
    reject(
        &["f32[10,4]", "f32[10]", "s32[3,1]", "f32[3,4]", "f32[3,4]"],
        &format!(
            "operands/dims-differ: scatter dims differ: operand 0 is f32[10,4], operand 1 is f32[10]{broadcast_help}"
        ),
    );
    reject(
        &["f32[10,4]", "f32[10,4]", "s32[3,1]", "f32[3,4]", "f32[3,3]"],
        &format!(
            "operands/dims-differ: scatter dims differ: update 0 is f32[3,4], update 1 is f32[3,3]{broadcast_help}"
        ),
    );
    reject(
        &["f32[10,4]", "s32[3,1]", "f32[3]"],
        "scatter/updates-rank: scatter updates are f32[3], expected rank 2: 1 from the indices and 1 window dims",
    );
    reject(
        &["f32[10,4]", "s32[3,1]", "f32[3,5]"],
        "scatter/window-size: scatter window is too large: updates[1]=5, operand[1]=4",
    );
    reject(
        &["f32[10,4]", "s32[3,1]", "f32[2,4]"],
        "scatter/batch-size: scatter batch sizes differ: updates[0]=2, indices have 3 there",
    );
}

#[test]
fn scatter_rejects_dims() {
    let reject = |dims: ScatterDims, expected: &str| {
        check_scatter(dims, 1, &["f32[10,4]", "s32[3,1]", "f32[3,4]"], Err(expected));
    };
    reject(
        ScatterDims { index_vector_dim: 3, ..add_rows() },
        "indexing/index-vector-dim: scatter index_vector_dim is 3, expected 0 to 2, the rank of the indices",
    );
    reject(
        ScatterDims { scatter_dims_to_operand_dims: vec![0, 1], ..add_rows() },
        "indexing/index-map: scatter scatter_dims_to_operand_dims has 2 entries, expected 1, the size of \
         index_vector_dim=1 of s32[3,1]",
    );
    reject(
        ScatterDims { inserted_window_dims: vec![-1], ..add_rows() },
        "operands/axis: scatter inserted_window_dims names axis -1, expected 0 <= axis < 2",
    );
    reject(
        ScatterDims { inserted_window_dims: vec![], ..add_rows() },
        "indexing/window-dims: scatter update_window_dims has 1 entries, expected 2: the axes of f32[10,4] that are in \
         neither inserted_window_dims nor input_batching_dims",
    );
    reject(
        ScatterDims { update_window_dims: vec![2], ..add_rows() },
        "operands/axis: scatter update_window_dims names axis 2, expected 0 <= axis < 2",
    );
    reject(
        ScatterDims { input_batching_dims: vec![0], scatter_indices_batching_dims: vec![0], ..add_rows() },
        "indexing/batching-sizes: scatter batching sizes differ: operand[0]=10, indices[0]=3",
    );
}

#[test]
fn scatter_rejects_computations() {
    let reject = |to_apply: u32, expected: &str| {
        check_scatter(add_rows(), to_apply, &["f32[10,4]", "s32[3,1]", "f32[3,4]"], Err(expected));
    };
    reject(2, "operands/signature: scatter to_apply is (bf16[], bf16[]) -> bf16[], expected (f32[], f32[]) -> f32[]");
    reject(
        3,
        "operands/signature: scatter to_apply is (f32[], s32[], f32[], s32[]) -> (f32[], s32[]), \
         expected (f32[], f32[]) -> f32[]",
    );
    reject(4, "operands/computation: scatter to_apply is computation 4, expected one that exists and has a root");
    // The entry computation of the test module is empty.
    reject(0, "operands/computation: scatter to_apply is computation 0, expected one that exists and has a root");
}
