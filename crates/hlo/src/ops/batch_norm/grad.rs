//! Gradients of batch normalisation.

use super::BatchNorm;
use crate::ops::UnaryOp;
use crate::ops::grad::{Cotangent, Cotangents, Vjp, sum};
use crate::{Emitter, InstrId, Op};

/// Training: through the normalised result by `batch-norm-grad`, as TensorFlow's `FusedBatchNormGradV3`; and, if mean
/// and variance are themselves used, `g_mean / n` and `2 g_variance (x - mean) / n` (n elements per feature).
pub(crate) fn training(vjp: &Vjp<'_>, attributes: &BatchNorm) -> Cotangents {
    let (e, x, scale) = (vjp.e, vjp.operand(0), vjp.operand(1));
    let mean = e.get_tuple_element(vjp.result, 1);
    let mut cotangents = vec![Cotangent::Zero; 3];
    if let Some(g) = vjp.cotangent.element(0).array() {
        let variance = e.get_tuple_element(vjp.result, 2);
        let grads = e.emit(Op::BatchNormGrad(*attributes), &[x, scale, mean, variance, g], None);
        for (idx, cotangent) in cotangents.iter_mut().enumerate().filter(|(idx, _)| vjp.wants(*idx)) {
            *cotangent = Cotangent::Array(e.get_tuple_element(grads, idx));
        }
    }
    if !vjp.wants(0) {
        return Ok(cotangents);
    }
    let per_feature = PerFeature { e, x, feature_index: attributes.feature_index };
    let n_per_feature = per_feature.n_elements();
    let mut to_x = std::mem::take(&mut cotangents[0]);
    if let Some(g_mean) = vjp.cotangent.element(1).array() {
        let share = per_feature.spread(e.mul_scalar(g_mean, 1.0 / n_per_feature));
        to_x = to_x.add(Cotangent::Array(share), e);
    }
    if let Some(g_variance) = vjp.cotangent.element(2).array() {
        let slope = per_feature.spread(e.mul_scalar(g_variance, 2.0 / n_per_feature));
        let share = e.mul(slope, e.sub(x, per_feature.spread(mean)));
        to_x = to_x.add(Cotangent::Array(share), e);
    }
    cotangents[0] = to_x;
    Ok(cotangents)
}

/// Inference, `y = (x - mean) r scale + offset` with `r = 1 / sqrt(variance + epsilon)`.
pub(crate) fn inference(vjp: &Vjp<'_>, attributes: &BatchNorm) -> Cotangents {
    let (e, g) = (vjp.e, vjp.g());
    let [x, scale, mean, variance] = [0, 1, 3, 4].map(|idx| vjp.operand(idx));
    let per_feature = PerFeature { e, x, feature_index: attributes.feature_index };
    let inverse_std = e.unary(UnaryOp::Rsqrt, e.add_scalar(variance, f64::from(attributes.epsilon)));
    let slope = e.mul(scale, inverse_std);
    let to_scale = || {
        let centred = e.sub(x, per_feature.spread(mean));
        e.mul(per_feature.sum(e.mul(g, centred)), inverse_std)
    };
    vjp.each(|idx| match idx {
        0 => e.mul(g, per_feature.spread(slope)),
        1 => to_scale(),
        2 => per_feature.sum(g),
        3 => e.neg(e.mul(slope, per_feature.sum(g))),
        // d r / d variance = -r³ / 2.
        _ => e.mul_scalar(e.mul(e.mul(slope, inverse_std), to_scale()), -0.5),
    })
}

/// The gradient of [`training`]'s rule, of x, scale γ, mean, variance and g. With `c = x - mean`, `r = 1 / sqrt(variance +
/// epsilon)`, sums Σ over the n elements of a feature, `S = Σ g c` and `T = Σ g`, its results are
/// `γ r (g - T / n - c r² S / n)`, `r S` and `T`. With their cotangents u, s and t, `A = Σ u`, `B = Σ u c`, `C = Σ u g` and
/// `Q = C - T A / n`, those of its operands are, in order:
/// `r g s - γ r³ (S u + B g) / n`, `r (Q - r² S B / n)`, `γ r³ (S A + B T) / n - r T s`,
/// `-r³ / 2 · (γ (Q - 3 r² S B / n) + S s)` and `γ r (u - A / n - r² c B / n) + r c s + t`.
pub(crate) fn gradients(vjp: &Vjp<'_>, attributes: &BatchNorm) -> Cotangents {
    let e = vjp.e;
    let [x, scale, mean, variance, g] = [0, 1, 2, 3, 4].map(|idx| vjp.operand(idx));
    let data = PerFeature { e, x, feature_index: attributes.feature_index };
    let share = 1.0 / data.n_elements();
    let zeros = |like: InstrId| e.full_like(like, 0.0);
    let or_zeros = |index, like| vjp.cotangent.element(index).array().unwrap_or_else(|| zeros(like));
    let (u, s, t) = (or_zeros(0, x), or_zeros(1, scale), or_zeros(2, scale));
    let centred = e.sub(x, data.spread(mean));
    let r = e.unary(UnaryOp::Rsqrt, e.add_scalar(variance, f64::from(attributes.epsilon)));
    let (r2, slope) = (e.mul(r, r), e.mul(scale, r));
    let (of_gc, of_g) = (data.sum(e.mul(g, centred)), data.sum(g));
    let (of_u, of_uc, of_ug) = (data.sum(u), data.sum(e.mul(u, centred)), data.sum(e.mul(u, g)));
    let q = || e.sub(of_ug, e.mul_scalar(e.mul(of_g, of_u), share));
    let along = || e.mul_scalar(e.mul(r2, e.mul(of_gc, of_uc)), share);
    let cubed = || e.mul_scalar(e.mul(slope, r2), share);
    vjp.each(|idx| match idx {
        0 => {
            let both = e.add(e.mul(data.spread(of_gc), u), e.mul(data.spread(of_uc), g));
            e.sub(e.mul(data.spread(e.mul(r, s)), g), e.mul(data.spread(cubed()), both))
        }
        1 => e.mul(r, e.sub(q(), along())),
        2 => {
            let both = e.add(e.mul(of_gc, of_u), e.mul(of_uc, of_g));
            e.sub(e.mul(cubed(), both), e.mul(e.mul(r, of_g), s))
        }
        3 => {
            let of_r = e.add(e.mul(scale, e.sub(q(), e.mul_scalar(along(), 3.0))), e.mul(of_gc, s));
            e.mul_scalar(e.mul(e.mul(r, r2), of_r), -0.5)
        }
        _ => {
            let constant = e.mul_scalar(of_u, share);
            let line = e.mul_scalar(e.mul(r2, of_uc), share);
            let rest = e.sub(e.sub(u, data.spread(constant)), e.mul(centred, data.spread(line)));
            let of_data = e.add(e.mul(rest, data.spread(slope)), e.mul(centred, data.spread(e.mul(r, s))));
            e.add(of_data, data.spread(t))
        }
    })
}

/// Converts between the data and one value per feature.
pub(super) struct PerFeature<'a> {
    pub(super) e: &'a Emitter,
    pub(super) x: InstrId,
    pub(super) feature_index: i64,
}

impl PerFeature<'_> {
    /// The number of elements of the data per feature.
    pub(super) fn n_elements(&self) -> f64 {
        let dims = self.e.dims(self.x);
        let others = dims.iter().enumerate().filter(|(axis, _)| *axis as i64 != self.feature_index);
        others.map(|(_, &size)| size as f64).product()
    }

    /// Broadcasts `[c]` to the dims of the data.
    pub(super) fn spread(&self, values: InstrId) -> InstrId {
        self.e.broadcast(values, &[self.feature_index], &self.e.dims(self.x))
    }

    /// Sums the data to `[c]`.
    pub(super) fn sum(&self, values: InstrId) -> InstrId {
        let rank = self.e.dims(self.x).len() as i64;
        let others: Vec<i64> = (0..rank).filter(|&axis| axis != self.feature_index).collect();
        sum(self.e, values, &others)
    }
}
