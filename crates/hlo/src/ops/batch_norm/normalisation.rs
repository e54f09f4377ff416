//! Batch normalisation with given statistics, and its gradient, in terms of other ops.

use super::BatchNorm;
use super::grad::PerFeature;
use crate::ops::UnaryOp;
use crate::{Emitter, InstrId};

/// `(x - mean) r scale + offset` with `r = 1 / sqrt(variance + epsilon)`; everything except x has one number per
/// feature.
#[derive(Clone, Copy, Debug)]
pub struct Normalisation {
    /// The factor, one number per feature.
    pub scale: InstrId,
    /// Each feature's mean.
    pub mean: InstrId,
    /// Each feature's variance.
    pub variance: InstrId,
    /// The axis of the features, and epsilon.
    pub attributes: BatchNorm,
}

impl Normalisation {
    /// Each step is that of XLA's expansion of `batch-norm-training`, so the result is bitwise that of the op.
    pub fn apply(&self, e: &Emitter, x: InstrId, offset: InstrId) -> InstrId {
        let data = self.data(e, x);
        let normalised = e.mul(self.centred(&data), data.spread(self.inverse_std(e)));
        e.add(e.mul(normalised, data.spread(self.scale)), data.spread(offset))
    }

    /// The cotangents of scale and offset from that of the result.
    pub fn parameter_cotangents(&self, e: &Emitter, x: InstrId, g: InstrId) -> [InstrId; 2] {
        let data = self.data(e, x);
        let to_scale = e.mul(data.sum(e.mul(g, self.centred(&data))), self.inverse_std(e));
        [to_scale, data.sum(g)]
    }

    /// The cotangent of x, whose statistics are mean and variance, from that of the result and those from
    /// [`Normalisation::parameter_cotangents`]: `scale r (g - to_offset / n - (x - mean) r to_scale / n)` for `n`
    /// elements per feature. `batch-norm-grad` divides once per element; this multiplies instead.
    pub fn data_cotangent(&self, e: &Emitter, x: InstrId, g: InstrId, [to_scale, to_offset]: [InstrId; 2]) -> InstrId {
        let data = self.data(e, x);
        let (inverse_std, share) = (self.inverse_std(e), 1.0 / data.n_elements());
        let constant = e.mul_scalar(to_offset, share);
        let along = e.mul_scalar(e.mul(to_scale, inverse_std), share);
        let rest = e.sub(e.sub(g, data.spread(constant)), e.mul(self.centred(&data), data.spread(along)));
        e.mul(rest, data.spread(e.mul(self.scale, inverse_std)))
    }

    fn data<'a>(&self, e: &'a Emitter, x: InstrId) -> PerFeature<'a> {
        PerFeature { e, x, feature_index: self.attributes.feature_index }
    }

    fn centred(&self, data: &PerFeature<'_>) -> InstrId {
        data.e.sub(data.x, data.spread(self.mean))
    }

    fn inverse_std(&self, e: &Emitter) -> InstrId {
        e.unary(UnaryOp::Rsqrt, e.add_scalar(self.variance, f64::from(self.attributes.epsilon)))
    }
}
