//! What a look at a step says of each layer's numbers.

use serde::{Deserialize, Serialize};
use std::fmt;

/// What is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Quantity {
    /// What a layer gives, in the forward pass.
    Activation,
    /// The derivative of the (scaled) loss by that, in the backward pass.
    Cotangent,
    /// The derivative of the loss by a variable, as the optimizer gets it.
    Gradient,
    /// What a step adds to a variable.
    Update,
}

impl Quantity {
    /// All, in the order in which a step makes them.
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

    /// The part of a step that makes it: `forward`.
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

/// What an activation is to the network, where that matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Role {
    /// A feature of the batch, which no layer made.
    Input,
    /// A label of the batch, which the loss alone reads.
    Label,
    /// The loss.
    Loss,
    /// The sum of a block's input and its output.
    Residual,
    /// What an activation function that stands outside of a layer makes of what the layer gives.
    Activated,
    /// What a softmax raises e to: logits less their greatest, or less the logarithm of their sum.
    Softmax,
    /// What dropout or stochastic depth leaves: what it turned off is 0.
    Dropped,
}

/// A function whose slope may be 0, and that gives an activation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Function {
    /// 0 below 0, ReLU6 included.
    Relu,
    /// Its slope is 1/4 at most, and 0 far from 0.
    Sigmoid,
    /// Its slope is 0 far from 0.
    Tanh,
}

/// Numbers by the exponents of their magnitudes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Bins;

impl Bins {
    /// How many there are.
    pub const N: usize = 16;
    /// The exponents of the first and the last bound.
    pub const ENDS: (i32, i32) = (-40, 16);
    /// Powers of two from a bound to the next.
    pub const WIDTH: i32 = 4;

    /// The exponents of the bounds between the bins: -40, -36, … 16. The first bin holds what is below 2^-40 and not 0, the
    /// last what is finite from 2^16 on, and bin `i` between holds magnitudes from 2^(4·i - 44) to 2^(4·i - 40).
    ///
    /// The range is that of healthy numbers: f16 ends at 2^16, a gradient below 2^-40 changes nothing in f32.
    pub fn bounds() -> impl Iterator<Item = i32> {
        (Bins::ENDS.0..=Bins::ENDS.1).step_by(Bins::WIDTH as usize)
    }
}

/// The numbers of one quantity of one layer. Shares are of all `n`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct WatchRow {
    /// The layer's scope, `cnn/block1/conv`; of an input its name; of gradients and updates the variable, `cnn/block1/conv/kernel`.
    pub layer: String,
    /// What it is of the layer.
    pub quantity: Quantity,
    /// What it is to the network.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<Role>,
    /// Its dtype: `bf16`. Of an update, what the variable is stored in.
    pub dtype: String,
    /// How many numbers.
    pub n: u64,
    /// The largest finite magnitude.
    pub max: f32,
    /// √mean x² of the finite numbers, others counted as 0.
    pub rms: f32,
    /// Zeros.
    pub zero: f64,
    /// Below the smallest normal number of the dtype, and not 0.
    pub subnormal: f64,
    /// At the largest finite number of the dtype.
    pub saturated: f64,
    /// Infinite or NaN.
    pub not_finite: f64,
    /// Finite and not 0, by exponents: see [`Bins`].
    pub bins: [f64; Bins::N],
    /// Of an update: the stored number is what it was though its gradient is not 0, so the update was below half an ulp.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lost: Option<f64>,
    /// Of an update: the same of the number that the network reads, in the dtype that it computes in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unseen: Option<f64>,
    /// Of an update: the largest magnitude of the variable before it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stored: Option<f32>,
    /// Of an activation: the places of the rows that it is computed from.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub takes: Vec<u32>,
    /// Of an activation: what gives it, where that can shut.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub function: Option<Function>,
    /// Of a gradient: stochastic depth turns it off with its branch.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_gated: bool,
}

impl WatchRow {
    /// The layer that it belongs to: of a variable's, the variable's scope.
    pub fn scope(&self) -> &str {
        match self.quantity {
            Quantity::Activation | Quantity::Cotangent => &self.layer,
            Quantity::Gradient | Quantity::Update => self.layer.rsplit_once('/').map_or("", |(scope, _)| scope),
        }
    }

    /// `mlp/dense0`; `mlp/dense0 (softmax)` of what a softmax takes, which its layer may give something else beside, and so on.
    pub fn name(&self) -> String {
        match self.role {
            Some(Role::Softmax) => format!("{} (softmax)", self.layer),
            Some(Role::Residual) => format!("{} (sum)", self.layer),
            Some(Role::Activated) => format!("{} (activated)", self.layer),
            Some(Role::Dropped) => format!("{} (dropped)", self.layer),
            Some(Role::Input | Role::Label | Role::Loss) | None => self.layer.clone(),
        }
    }

    /// Whether all numbers are 0.
    pub fn is_zero(&self) -> bool {
        self.zero >= 1.0
    }
}

/// A look at one step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct WatchRecord {
    /// The step, counted from 1.
    pub step: u64,
    /// Its learning rate.
    pub learning_rate: f64,
    /// The optimizer: `adam`.
    pub optimizer: String,
    /// What variables are stored in: `f32`.
    pub variables: String,
    /// The loss scale before the step, where there is one: a constant too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss_scale: Option<f64>,
    /// The share of a variable that weight decay takes away in the step, where it does not go through the optimizer's quotient.
    #[serde(default, skip_serializing_if = "is_no_share")]
    pub decay: f64,
    /// Steps before this one whose update was left out, where the loss scale is dynamic.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub n_skipped: Option<u64>,
    /// What the optimizer adds to the size of a gradient before it divides by it, where it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epsilon: Option<f64>,
    /// The steepest rise of the learning rate since the last look but one, from one step to the next, where it is at least twofold.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate_jump: Option<RateJump>,
    /// Whether no step so far has a learning rate above 0, this one included.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub never_moves: bool,
    /// The share that a step keeps of running statistics, of those that keep more than 0.999.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub slow_statistics: Vec<(String, f64)>,
    /// In program order: inputs, activations forward, cotangents backward, then gradients and updates by variable.
    pub rows: Vec<WatchRow>,
}

/// A learning rate that rises from one step to the next.
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
    /// The steepest rise among steps, counted from 1, that come after `from`, up to `to`.
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
    /// The loss before the update, if it is finite.
    pub fn loss(&self) -> Option<f32> {
        let row = self.rows.iter().find(|row| row.role == Some(Role::Loss))?;
        (row.not_finite == 0.0).then_some(row.max)
    }
}
