//! Gradients of elementwise functions that TensorFlow has as separate ops.
//!
//! Source: `binary_ops.cc`, `relu_op.cc`, `elu_op.cc`, `bias_ops.cc` of `tf2xla/kernels`.

use super::super::Call;
use super::super::call::Outputs;
use super::Table;
use bf16scope_hlo::ops::Comparison;
use bf16scope_hlo::{BinaryOp, InstrId, UnaryOp};

pub(super) const TABLE: Table = &[
    ("ReluGrad", |c| {
        let (dy, x) = c.pair()?;
        c.one(c.e().select(c.is_positive(x), dy, c.like(dy, 0.0)))
    }),
    ("Relu6Grad", |c| {
        let (dy, x) = c.pair()?;
        let below = c.e().compare(Comparison::Lt, x, c.like(x, 6.0));
        let is_inside = c.e().binary(BinaryOp::And, c.is_positive(x), below);
        c.one(c.e().select(is_inside, dy, c.like(dy, 0.0)))
    }),
    ("LeakyReluGrad", |c| {
        let ((dy, x), alpha) = (c.pair()?, c.alpha());
        c.one(c.e().select(c.is_positive(x), dy, c.e().mul_scalar(dy, alpha)))
    }),
    ("EluGrad", |c| {
        let (dy, y) = c.pair()?;
        let below = c.e().mul(dy, c.e().add_scalar(y, 1.0));
        c.one(c.e().select(c.is_positive(y), dy, below))
    }),
    ("SeluGrad", |c| {
        let (dy, y) = c.pair()?;
        let below = c.e().mul(dy, c.e().add_scalar(y, 1.758_099_340_847_376_9));
        c.one(c.e().select(c.is_positive(y), c.e().mul_scalar(dy, 1.050_700_987_355_480_5), below))
    }),
    ("SoftplusGrad", |c| {
        let (dy, x) = c.pair()?;
        c.one(c.e().mul(dy, c.e().unary(UnaryOp::Logistic, x)))
    }),
    ("SoftsignGrad", |c| {
        let (dy, x) = c.pair()?;
        let size = c.e().add_scalar(c.e().unary(UnaryOp::Abs, x), 1.0);
        c.one(c.e().div(dy, c.e().mul(size, size)))
    }),
    ("SigmoidGrad", |c| {
        let (y, dy) = c.pair()?;
        let rest = c.e().sub(c.like(y, 1.0), y);
        c.one(c.e().mul(c.e().mul(dy, y), rest))
    }),
    ("TanhGrad", |c| {
        let (y, dy) = c.pair()?;
        let slope = c.e().sub(c.like(y, 1.0), c.e().mul(y, y));
        c.one(c.e().mul(dy, slope))
    }),
    ("RsqrtGrad", |c| {
        let (y, dy) = c.pair()?;
        let cube = c.e().mul(c.e().mul(y, y), y);
        c.one(c.e().mul(cube, c.e().div(dy, c.like(dy, -2.0))))
    }),
    ("SqrtGrad", |c| {
        let (y, dy) = c.pair()?;
        c.one(c.e().div(c.e().mul_scalar(dy, 0.5), y))
    }),
    ("InvGrad", reciprocal),
    ("ReciprocalGrad", reciprocal),
    ("BiasAddGrad", |c| {
        let dy = c.array(0)?;
        let rank = c.dims(dy).len();
        let axis = c.channel_axis(rank);
        let axes: Vec<i64> = (0..rank as i64).filter(|other| *other != axis).collect();
        c.one(c.sum(dy, &axes))
    }),
];

fn reciprocal(c: &mut Call<'_, '_>) -> Outputs {
    let (y, dy): (InstrId, InstrId) = c.pair()?;
    c.one(c.e().neg(c.e().mul(dy, c.e().mul(y, y))))
}
