//! The usual imports of a file that builds a model: `use bf16scope_model::prelude::*;`.
//!
//! It has the builder, the dtypes, layers and their configurations, optimizers, and the modules [`nn`] and [`models`]
//! for everything else. The package `bf16scope` has the same prelude plus training.

pub use crate::graph::{Distribution, FanMode, Graph, Init, Precision, Program, Scope, Tensor, Variable, gradients};
pub use crate::models::{self, Model};
pub use crate::nn::{
    self, Attention, BatchNorm, Conv2d, Dense, Embedding, FeedForward, Gelu, LayerNorm, Padding, Pool,
    PositionEmbedding,
};
pub use crate::optim::{Adafactor, LearningRate, LossScale, Optimizer, Update, WeightDecay};
pub use crate::task::{Feature, Features, Identity, Loss, Metric, Mode, Outputs, Task};
pub use bf16scope_hlo::{Array, DType, Literal, Module};
