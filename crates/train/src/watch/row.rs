//! The record of a watched step: statistics of each layer's numbers.

use bf16scope_data::ColumnSize;
use bf16scope_model::optim::Clip;
use serde::{Deserialize, Serialize};
use std::fmt;

/// A kind of observed numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Quantity {
    /// A layer's output in the forward pass.
    Activation,
    /// The derivative of the (scaled) loss by an activation, in the backward pass.
    Cotangent,
    /// The derivative of the loss by a variable, as the optimizer receives it.
    Gradient,
    /// The change of a variable in a step.
    Update,
}

impl Quantity {
    /// All, in the order in which a step computes them.
    pub const ALL: [Quantity; 4] = [Quantity::Activation, Quantity::Cotangent, Quantity::Gradient, Quantity::Update];

    /// `activation`.
    pub fn name(self) -> &'static str {
        match self {
            Quantity::Activation => "activation",
            Quantity::Cotangent => "cotangent",
            Quantity::Gradient => "gradient",
            Quantity::Update => "update",
        }
    }

    /// The part of a step that computes it: `forward`.
    pub fn direction(self) -> &'static str {
        match self {
            Quantity::Activation => "forward",
            Quantity::Cotangent | Quantity::Gradient => "backward",
            Quantity::Update => "update",
        }
    }
}

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The role of an activation in the network, if it has a special one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Role {
    /// A feature of the batch, not computed by a layer.
    Input,
    /// A label of the batch, which only the loss reads.
    Label,
    /// The loss.
    Loss,
    /// The sum of a block's input and its output.
    Residual,
    /// The output of an activation function outside of the layer whose output it reads.
    Activated,
    /// The exponents of a softmax: logits minus their maximum, or minus the logarithm of their sum.
    Softmax,
    /// The output of dropout or stochastic depth: dropped elements are 0.
    Dropped,
}

/// An activation function whose slope may be 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Function {
    /// 0 below 0; also ReLU6.
    Relu,
    /// Its slope is at most 1/4, and 0 far from 0.
    Sigmoid,
    /// Its slope is 0 far from 0.
    Tanh,
}

/// A histogram of numbers by the exponents of their magnitudes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Bins;

impl Bins {
    /// The number of bins.
    pub const N: usize = 16;
    /// The exponents of the first and the last bound.
    pub const ENDS: (i32, i32) = (-40, 16);
    /// The width of a bin, as a power of two.
    pub const WIDTH: i32 = 4;

    /// The exponents of the bounds between the bins: -40, -36, … 16. The first bin holds nonzero magnitudes below
    /// 2^-40, the last finite ones from 2^16 on, and bin `i` in between those from 2^(4·i - 44) to 2^(4·i - 40).
    ///
    /// The range is that of healthy numbers: f16 ends at 2^16, and a gradient below 2^-40 changes nothing in f32.
    pub fn bounds() -> impl Iterator<Item = i32> {
        (Bins::ENDS.0..=Bins::ENDS.1).step_by(Bins::WIDTH as usize)
    }
}

/// Statistics of one quantity of one layer. Shares are of all `n` numbers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct WatchRow {
    /// The layer's scope, `cnn/block1/conv`; for an input its name; for gradients and updates the variable,
    /// `cnn/block1/conv/kernel`.
    pub layer: String,
    /// The quantity.
    pub quantity: Quantity,
    /// The role of an activation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<Role>,
    /// Its dtype: `bf16`. For an update, the variable's storage.
    pub dtype: String,
    /// The number of elements.
    pub n: u64,
    /// The largest finite magnitude.
    pub max: f32,
    /// √mean x² of the finite numbers; others count as 0.
    pub rms: f32,
    /// Share of zeros.
    pub zero: f64,
    /// Share of nonzero numbers below the smallest normal number of the dtype.
    pub subnormal: f64,
    /// Share of numbers at the largest finite number of the dtype.
    pub saturated: f64,
    /// Share of infinite and NaN numbers.
    pub not_finite: f64,
    /// Shares of finite nonzero numbers by exponent: see [`Bins`].
    pub bins: [f64; Bins::N],
    /// For an update: the share of stored numbers that did not change although their gradient is not 0, because the
    /// update was below half an ulp.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lost: Option<f64>,
    /// For an update: the same share for the numbers that the network reads, in its compute dtype.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unseen: Option<f64>,
    /// For an update: the largest magnitude of the variable before it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stored: Option<f32>,
    /// For a feature, a label or the loss: the mean of the finite numbers, with its sign; others count as 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mean: Option<f32>,
    /// For an activation: the indices of the rows that it depends on.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub takes: Vec<u32>,
    /// For a feature that is too large or too small, of a file of text or of rank 1: its columns, those farthest from an
    /// rms of 1 first, 64 at most; none where half of those without names are off, as pixels are.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub columns: Vec<ColumnSize>,
    /// For an activation: the function that makes it, if its slope can be 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub function: Option<Function>,
    /// For a gradient: whether stochastic depth can drop its branch.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_gated: bool,
    /// For an update: whether a constraint projects the new value.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_constrained: bool,
}

impl WatchRow {
    /// The layer that it belongs to: for a variable, its scope.
    pub fn scope(&self) -> &str {
        match self.quantity {
            Quantity::Activation | Quantity::Cotangent => &self.layer,
            Quantity::Gradient | Quantity::Update => self.layer.rsplit_once('/').map_or("", |(scope, _)| scope),
        }
    }

    /// `mlp/dense0`; `mlp/dense0 (softmax)` for a softmax's exponents, which differ from the layer's output, and so on.
    pub fn name(&self) -> String {
        match self.role {
            Some(Role::Softmax) => format!("{} (softmax)", self.layer),
            Some(Role::Residual) => format!("{} (sum)", self.layer),
            Some(Role::Activated) => format!("{} (activated)", self.layer),
            Some(Role::Dropped) => format!("{} (dropped)", self.layer),
            Some(Role::Input | Role::Label | Role::Loss) | None => self.layer.clone(),
        }
    }

    /// Whether it is an activation of the network, and no input, label, loss or exponent of a softmax.
    pub(super) fn is_layer(&self) -> bool {
        let is_of_layer = matches!(self.role, None | Some(Role::Residual | Role::Activated | Role::Dropped));
        self.quantity == Quantity::Activation && is_of_layer
    }

    /// Whether all numbers are 0.
    pub fn is_zero(&self) -> bool {
        self.zero >= 1.0
    }
}

/// The record of one watched step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct WatchRecord {
    /// The step, counted from 1.
    pub step: u64,
    /// Its learning rate.
    pub learning_rate: f64,
    /// The optimizer: `adam`.
    pub optimizer: String,
    /// The storage of variables: `f32`.
    pub variables: String,
    /// The loss scale before the step, if there is one, static or dynamic.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss_scale: Option<f64>,
    /// The share of a variable that weight decay removes in the step, if the decay bypasses the optimizer's quotient.
    #[serde(default, skip_serializing_if = "is_no_share")]
    pub decay: f64,
    /// Updates skipped before this step, if the loss scale is dynamic.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub n_skipped: Option<u64>,
    /// The optimizer's ε, which it adds to the size of a gradient before dividing by it, if it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epsilon: Option<f64>,
    /// The share of its sum or mean of gradients that the optimizer keeps in a step: its momentum or β1, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub momentum: Option<f64>,
    /// How gradients are clipped, if they are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clip: Option<RecordedClip>,
    /// The steepest rise of the learning rate from one step to the next since the last record but one, if it is at
    /// least twofold.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate_jump: Option<RateJump>,
    /// Whether the learning rate has been 0 in all steps so far, this one included.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub never_moves: bool,
    /// Running statistics that keep more than 0.999 in a step, with that share.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub slow_statistics: Vec<(String, f64)>,
    /// In program order: inputs, activations forward, cotangents backward, then gradients and updates by variable.
    pub rows: Vec<WatchRow>,
}

/// How gradients are clipped.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct RecordedClip {
    /// `global_norm`, `norm` or `value`.
    pub kind: String,
    /// The largest norm or element.
    pub value: f64,
}

impl From<Clip> for RecordedClip {
    fn from(clip: Clip) -> RecordedClip {
        let (kind, value) = match clip {
            Clip::GlobalNorm { value, .. } => ("global_norm", value),
            Clip::Norm { value } => ("norm", value),
            Clip::Value { value } => ("value", value),
        };
        RecordedClip { kind: kind.to_string(), value }
    }
}

/// A rise of the learning rate from one step to the next.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct RateJump {
    /// The first step at the higher rate, counted from 1.
    pub step: u64,
    /// The rate of the step before.
    pub before: f64,
    /// The rate of this one.
    pub now: f64,
}

impl RateJump {
    /// The steepest rise among steps, counted from 1, after `from` and up to `to`.
    pub(crate) fn steepest(from: u64, to: u64, rate: impl Fn(u64) -> f64) -> Option<RateJump> {
        let rises = (from.max(1) + 1..=to).map(|step| RateJump { step, before: rate(step - 1), now: rate(step) });
        let rises = rises.filter(|jump| jump.before > 0.0 && jump.now >= 2.0 * jump.before);
        rises.max_by(|a, b| (a.now / a.before).total_cmp(&(b.now / b.before)))
    }
}

fn is_no_share(share: &f64) -> bool {
    *share == 0.0
}

impl WatchRecord {
    /// The loss before the update, if it is finite. Records of older versions have only its magnitude.
    pub fn loss(&self) -> Option<f32> {
        let row = self.rows.iter().find(|row| row.role == Some(Role::Loss))?;
        (row.not_finite == 0.0).then_some(row.mean.unwrap_or(row.max))
    }

    /// The first row with infinite or NaN numbers, in the order in which a step computes them: the forward pass, the
    /// backward pass and the gradients of variables from the loss on, updates. The exponents of softmaxes do not count,
    /// which masks make infinite.
    pub(super) fn first_not_finite(&self) -> Option<(usize, &WatchRow)> {
        let rows = || self.rows.iter().enumerate().filter(|(_, row)| row.not_finite > 0.0);
        let first_pass = |row: &WatchRow| matches!(row.quantity, Quantity::Activation | Quantity::Cotangent);
        rows()
            .find(|(_, row)| first_pass(row) && row.role != Some(Role::Softmax))
            .or_else(|| rows().rfind(|(_, row)| row.quantity == Quantity::Gradient))
            .or_else(|| rows().find(|(_, row)| row.quantity == Quantity::Update))
    }

    /// As [`first_not_finite`](WatchRecord::first_not_finite), of what reaches the state: where the loss scale is
    /// dynamic, a step whose gradients are not finite is left out.
    pub(crate) fn first_harmful(&self) -> Option<(usize, &WatchRow)> {
        let is_retried = |row: &WatchRow| self.n_skipped.is_some() && row.quantity != Quantity::Activation;
        self.first_not_finite().filter(|(_, row)| !is_retried(row))
    }
}
