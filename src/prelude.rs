//! What a file that builds a model imports: `use bf16scope::prelude::*;`.
//!
//! The builder, the dtypes, layers and their configurations, what trains them, and the modules [`hlo`], [`nn`] and
//! [`models`] by name for the rest. Of what compiles and runs, [`Trainer`] alone is here; nothing that reads files is.

pub use crate::graph::{Distribution, FanMode, Graph, Init, Precision, Program, Scope, Tensor, Variable};
pub use crate::hlo::{self, DType, Literal, Module};
pub use crate::models::{self, Model};
pub use crate::nn::{
    self, Attention, BatchNorm, Conv2d, Dense, Embedding, FeedForward, Gelu, LayerNorm, Padding, Pool,
    PositionEmbedding,
};
pub use crate::optim::{Adafactor, LearningRate, LossScale, Optimizer, Update, WeightDecay};
pub use crate::passes::grad::gradients;
pub use crate::task::{Feature, Features, Identity, Loss, Metric, Mode, Outputs, Task};
pub use crate::train::Trainer;
