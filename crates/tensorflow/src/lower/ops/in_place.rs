//! Updates of rows in place: `InplaceUpdate`, `InplaceAdd`, `InplaceSub`, which `tf.nn.ctc_loss` writes.
//!
//! The kernels take an index out of range modulo the number of rows; the XLA bridge clamps it, as here.
//!
//! Source: `inplace_ops.cc` of `tf2xla/kernels`.

use super::super::Call;
use super::super::call::Outputs;
use super::Table;
use crate::error::Problem;
use bf16scope_hlo::BinaryOp;

pub(super) const TABLE: Table = &[
    ("InplaceAdd", |c| in_place(c, Some(BinaryOp::Add), false)),
    ("InplaceSub", |c| in_place(c, Some(BinaryOp::Add), true)),
    ("InplaceUpdate", |c| in_place(c, None, false)),
];

fn in_place(c: &mut Call<'_, '_>, op: Option<BinaryOp>, is_negated: bool) -> Outputs {
    let (x, rows, mut values) = (c.array(0)?, c.array(1)?, c.array(2)?);
    let dims = c.dims(x);
    let Some((n_rows, row)) = dims.split_first() else {
        return Err(Problem::new("its array is a scalar, expected rows"));
    };
    let expected = [&c.dims(rows)[..], row].concat();
    if c.dims(values) != expected {
        let dims = c.dims(values);
        return Err(Problem::new(format!(
            "its values have dims {dims:?}, expected {expected:?}, a row for each index"
        )));
    }
    if is_negated {
        values = c.e().neg(values);
    }
    let last = c.e().binary(BinaryOp::Minimum, rows, c.like(rows, (n_rows - 1) as f64));
    let clamped = c.e().binary(BinaryOp::Maximum, last, c.like(rows, 0.0));
    c.one(c.scattered(x, clamped, values, 0, op))
}
