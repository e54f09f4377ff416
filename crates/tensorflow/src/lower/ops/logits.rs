//! Softmax and its cross-entropies.
//!
//! Source: `softmax_op.cc` of `tf2xla/kernels`.

use super::super::Call;
use super::super::Value;
use super::super::call::Outputs;
use super::Table;
use bf16scope_hlo::ops::Comparison;
use bf16scope_hlo::{BinaryOp, InstrId, UnaryOp};

pub(super) const TABLE: Table = &[
    ("Softmax", |c| {
        let x = c.array(0)?;
        let (_, exp, sum) = c.exponentials(x);
        c.one(c.e().div(exp, sum))
    }),
    ("LogSoftmax", |c| {
        let x = c.array(0)?;
        let (shifted, _, sum) = c.exponentials(x);
        c.one(c.e().sub(shifted, c.e().unary(UnaryOp::Log, sum)))
    }),
    ("SoftmaxCrossEntropyWithLogits", |c| {
        let (logits, labels) = c.pair()?;
        c.cross_entropy(logits, labels)
    }),
    ("SparseSoftmaxCrossEntropyWithLogits", |c| {
        let (logits, labels) = (c.array(0)?, c.array(1)?);
        let dims = c.dims(logits);
        let classes = c.e().iota(c.dtype(labels), &dims, 1);
        let wide = c.along(labels, 0, &dims);
        let is_label = c.e().compare(Comparison::Eq, classes, wide);
        let one_hot = c.e().convert(is_label, c.dtype(logits));
        // A label out of range makes its row NaN.
        let is_low = c.e().compare(Comparison::Lt, labels, c.like(labels, 0.0));
        let is_high = c.e().compare(Comparison::Ge, labels, c.like(labels, dims.get(1).copied().unwrap_or(0) as f64));
        let is_none = c.along(c.e().binary(BinaryOp::Or, is_low, is_high), 0, &dims);
        let labels = c.e().select(is_none, c.like(one_hot, f64::NAN), one_hot);
        c.cross_entropy(logits, labels)
    }),
];

impl Call<'_, '_> {
    /// Logits minus their maximum, the exponentials of these, and the exponentials' sums along the last axis, all in the logits'
    /// dims.
    fn exponentials(&self, x: InstrId) -> (InstrId, InstrId, InstrId) {
        let dims = self.dims(x);
        let last = dims.len() as i64 - 1;
        let batch: Vec<i64> = (0..last).collect();
        let max = self.e().broadcast(self.e().reduce(BinaryOp::Maximum, x, &[last]), &batch, &dims);
        let shifted = self.e().sub(x, max);
        let exp = self.e().unary(UnaryOp::Exp, shifted);
        let sum = self.e().broadcast(self.sum(exp, &[last]), &batch, &dims);
        (shifted, exp, sum)
    }

    /// The loss of each row, and the gradient of the summed loss with respect to the logits.
    fn cross_entropy(&self, logits: InstrId, labels: InstrId) -> Outputs {
        let (shifted, exp, sum) = self.exponentials(logits);
        let negated = self.e().neg(self.e().sub(shifted, self.e().unary(UnaryOp::Log, sum)));
        let products = self.e().mul(labels, negated);
        // A label of 0 times an infinite logarithm counts as 0.
        let zero = self.like(labels, 0.0);
        let is_zero = self.e().compare(Comparison::Eq, labels, zero);
        let loss = self.sum(self.e().select(is_zero, zero, products), &[1]);
        let backprop = self.e().sub(self.e().div(exp, sum), labels);
        Ok(vec![Value::Array(loss), Value::Array(backprop)])
    }
}
