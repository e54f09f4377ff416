//! Samplers of classes for losses over many of them. The classes differ from TensorFlow's, as all random numbers do.
//!
//! TensorFlow draws until a class is new. The classes that come first are those of the largest logarithms of probabilities with
//! Gumbel noise, and the draws in vain before each follow a geometric distribution, by the probability of those that it has.
//!
//! Source: `range_sampler.cc`, `candidate_sampler_ops.cc` of TensorFlow's kernels; T. Vieira, "Gumbel-max trick and weighted
//! reservoir sampling" (2014).

use super::super::call::Outputs;
use super::super::{Call, Value};
use super::Table;
use crate::error::Problem;
use bf16scope_hlo::ops::Comparison;
use bf16scope_hlo::{BinaryOp, DType, InstrId, UnaryOp};

pub(super) const TABLE: Table = &[
    ("UniformCandidateSampler", |c| c.candidates(false)),
    ("LogUniformCandidateSampler", |c| c.candidates(true)),
    ("ComputeAccidentalHits", accidental_hits),
];

/// Classes from which different ones are drawn at most.
const MAX_UNIQUE: i64 = 1 << 24;

impl Call<'_, '_> {
    /// Classes drawn from `range_max` ones, and how often the true and the drawn ones were to be expected: all of one probability,
    /// or of the probability log(1 + 1 / (class + 1)) / log(classes + 1).
    fn candidates(&mut self, is_log: bool) -> Outputs {
        let labels = self.array(0)?;
        let number = |name: &str| self.node.int(name).unwrap_or(0);
        let (n, n_classes) = (number("num_sampled"), number("range_max"));
        let is_unique = self.node.flag("unique");
        let most = if is_unique { n_classes } else { i64::MAX };
        if n < 1 || n_classes < 1 || n > most {
            return Err(Problem::new(format!("it draws {n} of {n_classes} classes")));
        }
        if is_unique && n_classes > MAX_UNIQUE {
            return Err(Problem::new(format!(
                "it draws different classes of {n_classes}, expected at most {MAX_UNIQUE}"
            ))
            .with_help("set `unique=False`, or hand the sampled classes in as a feature"));
        }
        let (drawn, n_draws) = match is_unique {
            true => self.different_classes(n, n_classes, is_log)?,
            false => {
                let bits = self.next_bits(&[n])?;
                (self.classes(bits, n_classes, is_log), None)
            }
        };
        let expected = [labels, drawn].map(|classes| {
            let p = self.probabilities(classes, n_classes, is_log);
            let once = self.e().mul_scalar(p, n as f64);
            let Some(n_draws) = n_draws else { return once };
            let e = self.e();
            let n_draws = e.broadcast(n_draws, &[], &self.dims(p));
            let in_vain = e.mul(n_draws, e.unary(UnaryOp::Log1p, e.neg(p)));
            let at_least_once = e.neg(e.unary(UnaryOp::Expm1, in_vain));
            e.select(e.compare(Comparison::Eq, n_draws, self.like(n_draws, n as f64)), once, at_least_once)
        });
        Ok([drawn, expected[0], expected[1]].map(Value::Array).to_vec())
    }

    /// Classes from bits.
    fn classes(&self, bits: InstrId, n_classes: i64, is_log: bool) -> InstrId {
        let e = self.e();
        if !is_log {
            let [low, high] = [0, n_classes].map(|class| e.scalar(DType::S64, class as f64));
            return self.uniform_int(bits, low, high);
        }
        let log = e.mul_scalar(self.uniform(bits, DType::F32), (n_classes as f64 + 1.0).ln());
        let class = e.convert(e.add_scalar(e.unary(UnaryOp::Exp, log), -1.0), DType::S64);
        self.clamped(self.like(class, 0.0), class, self.like(class, (n_classes - 1) as f64))
    }

    /// The probabilities of classes, f32.
    fn probabilities(&self, classes: InstrId, n_classes: i64, is_log: bool) -> InstrId {
        let e = self.e();
        let class = e.convert(classes, DType::F32);
        if !is_log {
            return self.like(class, 1.0 / n_classes as f64);
        }
        let inverse = e.div(self.like(class, 1.0), e.add_scalar(class, 1.0));
        e.mul_scalar(e.unary(UnaryOp::Log1p, inverse), 1.0 / (n_classes as f64 + 1.0).ln())
    }

    /// `n` different classes, and how many draws they took, f32.
    fn different_classes(
        &mut self,
        n: i64,
        n_classes: i64,
        is_log: bool,
    ) -> Result<(InstrId, Option<InstrId>), Problem> {
        let bits = self.next_bits(&[n_classes + n])?;
        let e = self.e();
        let negative_log = |x: InstrId| e.neg(e.unary(UnaryOp::Log, x));
        let uniform = self.uniform(bits, DType::F32);
        let all = e.iota(DType::S32, &[n_classes], 0);
        let noise = negative_log(negative_log(self.slice_axis(uniform, 0, 0, n_classes)));
        let score = e.add(e.unary(UnaryOp::Log, self.probabilities(all, n_classes, is_log)), noise);
        let (_, order) = self.sorted(score);
        let drawn = self.slice_axis(order, 0, 0, n);
        // Draws in vain behind each class but the last.
        let known = self.running_sums(self.probabilities(drawn, n_classes, is_log), n);
        let known = e.binary(BinaryOp::Minimum, known, self.like(known, 1.0 - f64::from(f32::EPSILON)));
        let luck = e.neg(e.unary(UnaryOp::Log1p, e.neg(self.slice_axis(uniform, 0, n_classes, n))));
        let in_vain = e.unary(UnaryOp::Floor, e.div(luck, negative_log(known)));
        let is_last = e.compare(Comparison::Eq, e.iota(DType::S32, &[n], 0), e.full(DType::S32, &[n], (n - 1) as f64));
        let in_vain = e.reduce_sum(e.select(is_last, self.like(in_vain, 0.0), in_vain), &[0]);
        Ok((e.convert(drawn, DType::S64), Some(e.add_scalar(in_vain, n as f64))))
    }
}

/// Where drawn classes are true ones. How many there are would be known only at run time, so all pairs of a true and a drawn class
/// are kept: those that differ get a row outside of the batch, which a scatter skips. Readers that would notice the difference
/// are refused.
fn accidental_hits(c: &mut Call<'_, '_>) -> Outputs {
    let allowed = ["Cast", "ConcatV2", "ExpandDims", "Identity", "Pack", "Reshape", "SparseToDense"];
    if let Some(reader) = c.reader_beyond(|_, op| allowed.contains(&op)) {
        let message = format!("how many there are is known only when the program runs, and `{}` reads it", reader.name);
        return Err(Problem::new(message).with_help("tf.nn.sampled_softmax_loss puts them into a dense array"));
    }
    let (labels, drawn) = (c.array(0)?, c.array(1)?);
    let (label_dims, drawn_dims) = (c.dims(labels), c.dims(drawn));
    let (&[batch, n_true], &[n]) = (&label_dims[..], &drawn_dims[..]) else {
        let message = format!("its true classes have dims {label_dims:?}, the drawn ones {drawn_dims:?}");
        return Err(Problem::new(message));
    };
    let dims = [batch, n_true, n];
    let square = [n, n];
    c.check_dims(&dims)?;
    c.check_dims(&square)?;
    let e = c.e();
    // TensorFlow keeps the last place of a class that was drawn twice.
    let is_again = e.compare(Comparison::Eq, e.broadcast(drawn, &[0], &square), e.broadcast(drawn, &[1], &square));
    let is_later = e.compare(Comparison::Lt, e.iota(DType::S32, &square, 0), e.iota(DType::S32, &square, 1));
    let is_drawn_later = e.reduce(BinaryOp::Or, e.binary(BinaryOp::And, is_again, is_later), &[1]);
    let is_last = e.broadcast(e.unary(UnaryOp::Not, is_drawn_later), &[2], &dims);
    let is_equal = e.compare(Comparison::Eq, e.broadcast(labels, &[0, 1], &dims), e.broadcast(drawn, &[2], &dims));
    let is_hit = e.binary(BinaryOp::And, is_equal, is_last);
    let row = e.iota(DType::S32, &dims, 0);
    let row = e.select(is_hit, row, c.like(row, batch as f64));
    let weight = e.full(DType::F32, &dims, f64::from(f32::MIN));
    let flat = [row, e.iota(DType::S64, &dims, 2), weight].map(|x| e.reshape(x, &[batch * n_true * n]));
    Ok(flat.map(Value::Array).to_vec())
}
