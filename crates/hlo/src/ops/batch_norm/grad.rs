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
