//! Tuning: the choices that make a program cheaper on its target without changing the function that it computes.
//!
//! A [`Tuning`] is one value for a whole program, and it belongs to the target, not to the model. [`Tuning::none`] is
//! the program as TensorFlow writes it: the reference for numbers, and the tuning for a CPU. [`Tuning::tpu`] is the
//! one that pays off with the TPU compiler. A user's `tune: auto | none | {…}` is a [`Tune`]; with a target it becomes
//! a `Tuning`.
//!
//! A `Graph` carries its tuning; layers read it from their scope, and reverse mode and the passes after it
//! (`passes::{remat, cotangent_remat, pace}`) follow it. Variables and their names are the same under every tuning, so
//! training may resume a checkpoint under another tuning.
//!
//! [`CHOICES`] says for each choice whether it keeps every bit ([`Effect::Exact`]) or adds the same terms in another
//! order ([`Effect::Reassociating`]).

mod choices;
mod layers;
mod remat;
mod tune;

pub use choices::{CHOICES, Choice, Effect};
pub use layers::{LayerRemat, Layers};
pub use remat::Remat;
pub use tune::{Base, Keys, LayerRematKeys, Tune};

use serde::{Deserialize, Serialize};

/// How a program is made cheaper on its target. The default is [`Tuning::none`].
///
/// ```
/// use bf16scope_passes::tuning::{Stem, Tuning};
///
/// let tuning = Tuning::none().with(|tuning| tuning.stem = Stem::PoolFirst);
/// assert_eq!(tuning.stem, Tuning::tpu().stem);
/// assert_ne!(tuning, Tuning::tpu());
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Tuning {
    /// How a ResNet's stem is computed. Reassociating.
    pub stem: Stem,
    /// Whether convolutions of at most 64 filters compute two columns at a time if the batch is a multiple of 128, see
    /// `conv2d_paired`. Reassociating.
    pub pair_columns: bool,
    /// How the gradients of batch norms are computed. Reassociating.
    pub norm_gradient: NormGradient,
    /// How softmaxes, attention's and the loss's, compute their sums. Reassociating.
    pub softmax: Softmax,
    /// The values that the gradients of a transformer's layers rematerialise. Exact.
    pub layer_remat: LayerRemat,
    /// The values that the backward pass rematerialises instead of keeping them. Exact.
    pub remat: Remat,
    /// Whether a cotangent of the residual stream is rematerialised where it is added, see
    /// [`passes::cotangent_remat`](crate::cotangent_remat). Exact.
    pub cotangent_remat: bool,
    /// Whether rematerialisation waits for the updates whose gradients are available, see
    /// [`passes::pace`](crate::pace). Exact.
    pub pace: bool,
    /// Whether the host transfers images with the examples last, in one dimension, and the program transposes them
    /// back, as TensorFlow's `transpose_input`. Exact.
    #[serde(skip_serializing_if = "is_off")] // as in checkpoints from before there was the key
    pub transpose_input: bool,
}

fn is_off(choice: &bool) -> bool {
    !choice
}

impl Tuning {
    /// The program as TensorFlow writes it.
    pub fn none() -> Tuning {
        Tuning::default()
    }

    /// The tuning that pays off with the TPU compiler: measured with ResNet-50 and BERT-base on v2 and v3 (`benches/tpu`), and
    /// assumed for later TPUs, which were not measured.
    pub fn tpu() -> Tuning {
        Tuning {
            stem: Stem::PoolFirst,
            pair_columns: true,
            norm_gradient: NormGradient::PerFeature,
            softmax: Softmax::OnePass,
            layer_remat: LayerRemat { weights: Layers::All, ..LayerRemat::default() },
            remat: Remat::Convolutional,
            cotangent_remat: true,
            pace: true,
            // It saves 0.8 % of ResNet-50's cycles, but the host transposes for it.
            transpose_input: false,
        }
    }

    /// This tuning with a change.
    pub fn with(mut self, change: impl FnOnce(&mut Tuning)) -> Tuning {
        change(&mut self);
        self
    }
}

/// How a ResNet's stem (a 7×7 convolution of stride 2, batch norm, relu and a max pool) is computed. The variables and
/// the function are the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stem {
    /// As written.
    #[default]
    Plain,
    /// The convolution as a 4×4 one of stride 1 on an image of half the size and four times the channels; height and
    /// width must be even. See `conv2d_space_to_depth`.
    SpaceToDepth,
    /// With the pool before batch norm and relu, which then work on a quarter of the elements. See `conv_norm_pool`.
    PoolFirst,
}

/// How the gradient of a batch norm is computed. The function is the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NormGradient {
    /// By HLO's `batch-norm-grad`, as in TensorFlow: XLA divides by the variance once per element.
    #[default]
    PerElement,
    /// By separate ops, which compute once per feature what is the same for all its elements. Last bits differ. It is
    /// so little work that a TPU's compiler computes it twice, fused into two convolutions, instead of writing its
    /// result to memory.
    PerFeature,
}

/// How the sum of a softmax's exponentials is computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Softmax {
    /// The maximum first, then the sum of exponentials of the differences to it: two passes, with the roundings of a
    /// sum. Default.
    #[default]
    TwoPasses,
    /// Accumulated element by element as `log(e^a + e^b)`: one pass, which a TPU's compiler fuses into the producer of
    /// the elements. Each step rounds a value of the result's size, and takes a CPU longer than an exponential.
    OnePass,
}
