//! Batch normalisation, local response normalisation and their gradients.
//!
//! The computation is in the dtype of the scale: f32 for bf16 data. Training returns the unbiased variance (divided by n - 1) and
//! passes the biased one to the gradient.
//!
//! Source: `batch_norm_op.cc` of `tf2xla/kernels`.

use super::super::Call;
use super::super::Value;
use super::super::call::Outputs;
use super::Table;
use crate::error::Problem;
use bf16scope_hlo::ops::{BatchNorm, WindowDim};
use bf16scope_hlo::{BinaryOp, InstrId, Op, UnaryOp};

pub(super) const TABLE: Table = &[
    ("FusedBatchNorm", forward),
    ("FusedBatchNormV2", forward),
    ("FusedBatchNormV3", forward),
    ("FusedBatchNormGrad", backward),
    ("FusedBatchNormGradV2", backward),
    ("FusedBatchNormGradV3", backward),
    ("LRN", local_response),
    ("LRNGrad", local_response_grad),
];

impl Call<'_, '_> {
    fn batch_norm(&self, x: InstrId) -> BatchNorm {
        let rank = self.dims(x).len();
        BatchNorm { epsilon: self.node.float("epsilon").unwrap_or(1e-4), feature_index: self.channel_axis(rank) }
    }

    /// The attribute `is_training`; true if it is not set.
    fn is_training(&self) -> bool {
        self.node.kind("is_training").is_none() || self.node.flag("is_training")
    }
}

fn forward(c: &mut Call<'_, '_>) -> Outputs {
    let [x, scale, offset, mean, variance] = c.first()?;
    let (dtype, attributes) = (c.dtype(x), c.batch_norm(x));
    let wide = c.e().convert(x, c.dtype(scale));
    let is_v3 = c.node.op == "FusedBatchNormV3";
    if !c.is_training() {
        let y = c.e().emit(Op::BatchNormInference(attributes), &[wide, scale, offset, mean, variance], None);
        let y = c.e().convert(y, dtype);
        let mut out = vec![y, mean, variance, mean, variance];
        if is_v3 {
            out.push(c.e().scalar(c.dtype(scale), 0.0));
        }
        return Ok(out.into_iter().map(Value::Array).collect());
    }
    let [y, batch_mean, batch_variance] = c.e().batch_norm_training([wide, scale, offset], attributes);
    let dims = c.dims(x);
    let n_features = dims.get(attributes.feature_index as usize).copied().unwrap_or(1);
    let n = dims.iter().product::<i64>() / n_features.max(1);
    // Bessel's correction; TensorFlow divides by at least 1.
    let unbiased = c.e().mul_scalar(batch_variance, n as f64 / (n - 1).max(1) as f64);
    let factor = f64::from(c.node.float("exponential_avg_factor").unwrap_or(1.0));
    let averaged = |running: InstrId, new: InstrId| match factor {
        1.0 => new,
        factor => c.e().add(c.e().mul_scalar(running, 1.0 - factor), c.e().mul_scalar(new, factor)),
    };
    let mut out = vec![
        c.e().convert(y, dtype),
        averaged(mean, batch_mean),
        averaged(variance, unbiased),
        batch_mean,
        batch_variance,
    ];
    if is_v3 {
        out.push(c.e().scalar(c.dtype(scale), 0.0));
    }
    Ok(out.into_iter().map(Value::Array).collect())
}

/// Inputs: cotangent, input, scale, mean, variance.
fn backward(c: &mut Call<'_, '_>) -> Outputs {
    let [dy, x, scale, mean, variance] = c.first()?;
    let (dtype, attributes) = (c.dtype(x), c.batch_norm(x));
    let (wide_dy, wide_x) = (c.e().convert(dy, c.dtype(scale)), c.e().convert(x, c.dtype(scale)));
    let (dx, dscale, doffset) = if c.is_training() {
        let grads = c.e().emit(Op::BatchNormGrad(attributes), &[wide_x, scale, mean, variance, wide_dy], None);
        let part = |index| c.e().get_tuple_element(grads, index);
        (part(0), part(1), part(2))
    } else {
        // The statistics are inputs, so no gradient flows through them.
        let dims = c.dims(x);
        let axis = attributes.feature_index;
        let axes: Vec<i64> = (0..dims.len() as i64).filter(|other| *other != axis).collect();
        let inverse = c.e().unary(UnaryOp::Rsqrt, c.e().add_scalar(variance, f64::from(attributes.epsilon)));
        let centred = c.e().sub(wide_x, c.along(mean, axis, &dims));
        let dscale = c.e().mul(c.e().reduce_sum(c.e().mul(wide_dy, centred), &axes), inverse);
        let dx = c.e().mul(wide_dy, c.along(c.e().mul(inverse, scale), axis, &dims));
        (dx, dscale, c.e().reduce_sum(wide_dy, &axes))
    };
    let zero = c.e().scalar(c.dtype(scale), 0.0);
    let out = [c.e().convert(dx, dtype), dscale, doffset, zero, zero];
    Ok(out.map(Value::Array).to_vec())
}

/// Sums over neighbouring channels.
fn neighbours(c: &Call<'_, '_>, x: InstrId) -> Result<InstrId, Problem> {
    let dtype = c.dtype(x);
    let radius = c.node.int("depth_radius").unwrap_or(5);
    if !(0..1 << 20).contains(&radius) {
        return Err(Problem::new(format!("its depth_radius is {radius}")));
    }
    let mut window = vec![WindowDim::of_size(1); c.dims(x).len()];
    let last = window.last_mut().ok_or_else(|| Problem::new("its input is a scalar"))?;
    *last = WindowDim { padding_low: radius, padding_high: radius, ..WindowDim::of_size(2 * radius + 1) };
    let (to_apply, zero) = (c.e().scalar_computation(BinaryOp::Add, dtype), c.e().scalar(dtype, 0.0));
    Ok(c.e().emit(Op::ReduceWindow { window, to_apply }, &[x, zero], None))
}

/// bias + alpha * the sum of squares over neighbouring channels; alpha, and beta.
fn response_base(c: &Call<'_, '_>, x: InstrId) -> Result<(InstrId, [f64; 2]), Problem> {
    let number = |name: &str, default: f32| f64::from(c.node.float(name).unwrap_or(default));
    let (alpha, beta) = (number("alpha", 1.0), number("beta", 0.5));
    let sums = neighbours(c, c.e().mul(x, x))?;
    Ok((c.e().add_scalar(c.e().mul_scalar(sums, alpha), number("bias", 1.0)), [alpha, beta]))
}

/// x / (bias + alpha * the sum of squares over neighbouring channels)^beta.
fn local_response(c: &mut Call<'_, '_>) -> Outputs {
    let x = c.array(0)?;
    let (base, [_, beta]) = response_base(c, x)?;
    let power = c.e().binary(BinaryOp::Power, base, c.like(x, -beta));
    c.one(c.e().mul(x, power))
}

/// Inputs: cotangent, input, result.
fn local_response_grad(c: &mut Call<'_, '_>) -> Outputs {
    let [dy, x, y] = c.first()?;
    let (base, [alpha, beta]) = response_base(c, x)?;
    let direct = c.e().mul(dy, c.e().binary(BinaryOp::Power, base, c.like(x, -beta)));
    let shares = neighbours(c, c.e().div(c.e().mul(dy, y), base))?;
    let indirect = c.e().mul(c.e().mul_scalar(x, -2.0 * alpha * beta), shares);
    c.one(c.e().add(direct, indirect))
}
