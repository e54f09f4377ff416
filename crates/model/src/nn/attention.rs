//! Multi-head attention.

mod groups;
mod masks;

pub use masks::{MaskKind, RelativePositions};

use super::log_sum_exp::log_sum_exp;
use super::options::{glorot_uniform, is_default, is_true, some_positive, yes};
use super::rotary::{Rope, rotated};
use super::{is_float, of_rank};
use crate::document;
use crate::graph::{FanMode, Init, Scope, Tensor};
use bf16scope_hlo::ops::{DotDims, RuleError, UnaryOp};
use bf16scope_hlo::{DType, Emitter, InstrId};
use bf16scope_passes::tuning::Softmax;
use masks::Visible;
use serde::{Deserialize, Serialize};

/// Configuration of [`attention`]. The defaults are Keras'; `num_heads` has none.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Attention {
    /// Number of query heads, which share the features evenly unless [`head_dim`](Self::head_dim) is set.
    #[serde(deserialize_with = "document::positive")]
    pub num_heads: i64,
    /// Number of key and value heads, each shared by as many query heads. Default `num_heads`.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "some_positive")]
    pub num_key_value_heads: Option<i64>,
    /// Features of a head. Default: those of the queries, divided by the heads.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "some_positive")]
    pub head_dim: Option<i64>,
    /// Whether the four dense layers have biases. Default true.
    #[serde(default = "yes", skip_serializing_if = "is_true")]
    pub use_bias: bool,
    /// Rotary positions of queries and keys. Default none; in YAML, `{}` has a base of 10000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rope: Option<Rope>,
    /// Whether a position attends only to itself and those before it. Default false.
    #[serde(default)]
    pub use_causal_mask: bool,
    /// Sliding window: a position attends only to those at a smaller distance. Default: all.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "some_positive")]
    pub window: Option<i64>,
    /// The meaning of the mask input. Default `padding`.
    #[serde(default, skip_serializing_if = "is_default")]
    pub mask: MaskKind,
    /// Dropout rate of the attention weights. Default 0.
    #[serde(default, skip_serializing_if = "is_default", deserialize_with = "document::fraction")]
    pub dropout: f64,
    /// Learned relative position biases, which are added to the scores. Default none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub relative_positions: Option<RelativePositions>,
    /// The axis of positions, counting the batch, of inputs with further axes before it, which are treated as
    /// the batch is. Default none: inputs have three axes.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "groups::axis")]
    pub attention_axes: Option<i64>,
    /// The initializer of the four kernels. Default `glorot_uniform`.
    #[serde(default = "glorot_uniform")]
    pub kernel_initializer: Init,
    /// Rematerialisation in the backward pass; not in YAML. Default the weights.
    #[serde(skip)]
    pub remat: AttentionRemat,
    /// How the softmax's sums are computed; not in YAML. Default: the graph's tuning decides.
    #[serde(skip)]
    pub softmax: Option<Softmax>,
}

impl Attention {
    fn key_value_heads(&self) -> i64 {
        self.num_key_value_heads.unwrap_or(self.num_heads)
    }

    fn size(&self, features: i64) -> i64 {
        self.head_dim.unwrap_or(features / self.num_heads)
    }
}

/// Rematerialisation in the backward pass of [`attention`]. The values do not depend on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum AttentionRemat {
    /// Nothing: scores `[batch, heads, positions, others]` are residuals.
    Nothing,
    /// The attention weights, from q and k.
    #[default]
    Weights,
    /// In addition, the input of the output projection, from the weights and v.
    Mixed,
    /// In addition v, which repeats its product with the kernel.
    Values,
}

impl Default for Attention {
    fn default() -> Attention {
        Attention {
            num_heads: 1,
            num_key_value_heads: None,
            head_dim: None,
            use_bias: true,
            rope: None,
            use_causal_mask: false,
            window: None,
            mask: MaskKind::Padding,
            dropout: 0.0,
            relative_positions: None,
            attention_axes: None,
            kernel_initializer: Init::GLOROT_UNIFORM,
            remat: AttentionRemat::Weights,
            softmax: None,
        }
    }
}

/// Scaled dot-product attention over several heads: `softmax(q · kᵀ / √size) · v`, projected.
///
/// `q` is a dense layer of `queries`, `k` and `v` dense layers of `memory`; for self-attention both are one tensor.
/// Head `h` has features `h · size .. (h + 1) · size` of each, where `size = features / num_heads`.
/// With fewer heads of keys and values (grouped queries), head `h` reads theirs of number
/// `h · num_key_value_heads / num_heads`, rounded down.
///
/// # Shapes
/// queries `[batch, positions, features]`, memory `[batch, others, features of memory]` → `[batch, positions, features]`;
/// variables `query`, `key`, `value`, `out`, each a `kernel` and a `bias`. The kernel of `out` is
/// `[n_heads, size, features]`, the others are `[features, n_heads, size]`, as Flax's, and start as a matrix would; a bias
/// has one axis. With [`Attention::attention_axes`] there are further axes after the batch, the same of both.
///
/// Everything in the dtype of queries, except the softmax of bf16 and f16 scores, which is computed in f32 and rounded
/// once; `√size` is rounded to the dtype. Rotations are computed in f32, and rounded once. A masked position has a
/// score of minus infinity, and so a weight and a gradient of exactly 0.
///
/// # Errors
/// Operands not floating, of other ranks, or of different batches or dtypes; features not divisible by the heads; heads not divisible by those of keys and values; rotated heads of an odd size; a causal mask where queries
/// and memory have different lengths; more rematerialised than weights without biases or with fewer heads of keys and
/// values.
///
/// # Source
/// Grouped queries: Ainslie et al. 2023. Rotary positions: Su et al. 2021.
/// Vaswani et al. 2017; the order of operations is that of Flax's `MultiHeadDotProductAttention`: the scale divides `q`.
#[track_caller]
pub fn attention(s: &Scope, queries: &Tensor, memory: &Tensor, name: &str, config: &Attention) -> Tensor {
    attention_masked(s, queries, memory, None, name, config)
}

/// [`attention`] with a mask input.
///
/// # Shapes
/// As [`attention`]; the mask has any dtype. [`MaskKind::Padding`]: `[batch, others]`, 0 for padding.
/// [`MaskKind::Segments`]: `[batch, positions]`, segment ids; a position attends to those with the same id.
/// [`MaskKind::Full`]: `[batch, positions, others]`, 0 where the first does not attend to the second.
///
/// # Types
/// As [`attention`]. A position that attends to nothing weights all equally; such a row has no gradient in the scores.
///
/// # Errors
/// As [`attention`]; a mask with other dims.
#[track_caller]
pub fn attention_masked(
    s: &Scope,
    queries: &Tensor,
    memory: &Tensor,
    mask: Option<&Tensor>,
    name: &str,
    config: &Attention,
) -> Tensor {
    if config.attention_axes.is_some() {
        return groups::attention(s, queries, memory, mask, name, config);
    }
    s.layer(name, |s| {
        let all: Vec<&Tensor> = [Some(queries), Some(memory), mask].into_iter().flatten().collect();
        if let Some(poison) = all.iter().find(|tensor| tensor.is_poison()) {
            return (*poison).clone();
        }
        let fits = check(queries, memory, config).and_then(|()| masks::check(queries, memory, mask, config));
        if let Err(error) = fits {
            return s.graph().fail("attention", &all, error);
        }
        let mask = mask.map(|mask| masks::seen(mask, config.mask));
        let shared = config.key_value_heads();
        let size = config.size(queries.dims()[2]);
        let heads = |x: &Tensor, name: &str, n_heads: i64| heads(s, x, name, [n_heads, size], config);
        let (q, k, v) =
            (heads(queries, "query", config.num_heads), heads(memory, "key", shared), heads(memory, "value", shared));
        let ((q, _), (k, _), (v, values)) = (q, k, v);
        if let Some(poison) = [&q, &k, &v].into_iter().find(|tensor| tensor.is_poison()) {
            return poison.clone();
        }
        let [q, k] = match &config.rope {
            Some(rope) => s.within("rotary", |s| [rotated(s, &q, rope), rotated(s, &k, rope)]),
            None => [q, k],
        };
        let [k, v] = [k, v].map(|x| for_each_query(&x, config.num_heads));
        if let Some(poison) = [&q, &k, &v].into_iter().find(|tensor| tensor.is_poison()) {
            return poison.clone();
        }
        if (config.dropout > 0.0 && s.is_training()) || config.relative_positions.is_some() {
            let mixed = masks::mix(s, [&q, &k, &v], mask.as_ref(), config);
            return if mixed.is_poison() { mixed } else { out(s, &mixed, queries.dims()[2], config).0 };
        }
        let (mixed, scaled, residuals) = mix(s, [&q, &k, &v], mask.as_ref(), config);
        // Scores grow with the square of positions, and may exceed the largest array.
        if mixed.is_poison() {
            return mixed;
        }
        let (result, kernel, bias) = out(s, &mixed, queries.dims()[2], config);
        let Some(bias) = bias.filter(|_| config.remat >= AttentionRemat::Mixed) else { return result };
        let inputs = [&scaled, &k, &v, &kernel, &bias];
        let kernel = kernel.id;
        let values = Some(values).filter(|_| config.remat == AttentionRemat::Values);
        result.with_layer_vjp(&inputs, move |e, g, _| of_projected(e, g, (&residuals, values.as_ref()), kernel))
    })
}

/// A dense layer whose units are heads: x `[batch, positions, features]` → `[batch, positions, n_heads, size]`;
/// variables `kernel` `[features, n_heads, size]` and `bias` `[n_heads · size]`.
///
/// The kernel has the heads as an axis and the product is not reshaped: the compiler may choose the layout that
/// attention reads best, and stores the kernel as that product reads it. The gradients are those of the dense layer;
/// they reshape nothing of the kernel's size either. Also returns the projection's inputs.
#[track_caller]
fn heads(s: &Scope, x: &Tensor, name: &str, [n_heads, size]: [i64; 2], config: &Attention) -> (Tensor, Projection) {
    s.layer(name, |s| {
        let (dims, dtype) = (x.dims(), x.dtype());
        let features = dims[2];
        let kernel_dims = [features, n_heads, size];
        let init = as_matrix(config.kernel_initializer, kernel_dims, [features, n_heads * size]);
        let variable = s.variable("kernel", dtype, kernel_dims, init);
        let (stored, kernel) = (variable.stored.id, variable.value);
        let bias = config.use_bias.then(|| s.variable("bias", dtype, [n_heads * size], Init::Zeros).value);
        let by_unit = DotDims { lhs_contracting: vec![2], rhs_contracting: vec![0], ..DotDims::default() };
        let product = x.dot(&kernel, by_unit);
        let heads = [dims[0], dims[1], n_heads, size];
        let y = match &bias {
            Some(bias) => product + bias.reshape([n_heads, size]).broadcast_in_dim(&heads, &[2, 3]),
            None => product,
        };
        let x_id = x.id;
        let projection = Projection { x: x_id, stored, bias: bias.as_ref().map(|bias| bias.id) };
        let inputs: Vec<&Tensor> = [x, &kernel].into_iter().chain(&bias).collect();
        let has_bias = bias.is_some();
        let y = y.with_layer_vjp(&inputs, move |e, g, _| {
            // The variable exists anyway; its cast is rematerialised, or the compiler would keep the cast of each
            // layer.
            let [stored] = e.barrier([stored]);
            let kernel_again = e.convert(stored, dtype);
            let contracting = |lhs: &[i64], rhs: &[i64]| DotDims {
                lhs_contracting: lhs.to_vec(),
                rhs_contracting: rhs.to_vec(),
                ..DotDims::default()
            };
            let wide = if dtype.bits() < 32 { DType::F32 } else { dtype };
            let mut cotangents = vec![
                e.dot(g, kernel_again, contracting(&[2, 3], &[1, 2])),
                e.dot(x_id, g, contracting(&[0, 1], &[0, 1])),
            ];
            if has_bias {
                let sum = e.reduce_sum(e.convert(g, wide), &[0, 1]);
                cotangents.push(e.reshape(e.convert(sum, dtype), &[n_heads * size]));
            }
            cotangents
        });
        (y, projection)
    })
}

/// The dense layer after the heads, `out`: x `[batch, n_heads, positions, size]` → `[batch, positions, features]`;
/// variables `kernel` `[n_heads, size, features]` and `bias` `[features]`. Also returns both as read.
///
/// The heads are axes of the product, so the cotangent of x has the layout that attention reads, and the product
/// computes the row sums that [`of_mix`] needs.
#[track_caller]
fn out(s: &Scope, x: &Tensor, features: i64, config: &Attention) -> (Tensor, Tensor, Option<Tensor>) {
    s.layer("out", |s| {
        let (dims, dtype) = (x.dims(), x.dtype());
        let (n_heads, size) = (dims[1], dims[3]);
        let kernel_dims = [n_heads, size, features];
        let init = as_matrix(config.kernel_initializer, kernel_dims, [n_heads * size, features]);
        let kernel = s.variable("kernel", dtype, kernel_dims, init).value;
        let bias = config.use_bias.then(|| s.variable("bias", dtype, [features], Init::Zeros).value);
        let by_input = DotDims { lhs_contracting: vec![1, 3], rhs_contracting: vec![0, 1], ..DotDims::default() };
        let product = x.dot(&kernel, by_input);
        let y = match &bias {
            Some(bias) => product + bias,
            None => product,
        };
        (y, kernel, bias)
    })
}

/// Keys or values `[batch, others, shared, size]`, with each head repeated for the query heads that read it: `[batch,
/// others, n_heads, size]`.
#[track_caller]
fn for_each_query(x: &Tensor, n_heads: i64) -> Tensor {
    let dims = x.dims();
    if dims[2] == n_heads {
        return x.clone();
    }
    let each = [dims[0], dims[1], dims[2], n_heads / dims[2], dims[3]];
    x.broadcast_in_dim(&each, &[0, 1, 2, 4]).reshape([dims[0], dims[1], n_heads, dims[3]])
}

/// The inputs of [`heads`].
#[derive(Clone, Copy, Debug)]
struct Projection {
    x: InstrId,
    /// The kernel as stored.
    stored: InstrId,
    bias: Option<InstrId>,
}

impl Projection {
    /// Rematerialises the projection once `late` is available; returns it with `late` from behind the barrier.
    fn again(self, e: &Emitter, late: InstrId) -> (InstrId, InstrId) {
        let [stored, late] = e.barrier([self.stored, late]);
        let kernel = e.convert(stored, e.dtype(self.x));
        let by_unit = DotDims { lhs_contracting: vec![2], rhs_contracting: vec![0], ..DotDims::default() };
        let product = e.dot(self.x, kernel, by_unit);
        let Some(bias) = self.bias else { return (product, late) };
        let dims = e.dims(product);
        let bias = e.broadcast(e.reshape(bias, &dims[2..]), &[2, 3], &dims);
        (e.add(product, bias), late)
    }
}

/// The initializer of a kernel with the heads as an axis that gives the distribution of the matrix `[inputs, outputs]`:
/// fans are counted from a kernel's dims, as for a convolution.
fn as_matrix(init: Init, dims: [i64; 3], [inputs, outputs]: [i64; 2]) -> Init {
    let Init::VarianceScaling { scale, mode, distribution } = init else { return init };
    let counted = |axis: usize| dims[0] as f64 * dims[axis] as f64;
    let (inputs, outputs) = (inputs as f64, outputs as f64);
    let times = match mode {
        FanMode::FanIn => counted(1) / inputs,
        FanMode::FanOut => counted(2) / outputs,
        FanMode::FanAvg => (counted(1) + counted(2)) / (inputs + outputs),
    };
    Init::VarianceScaling { scale: scale * times, mode, distribution }
}

/// `softmax(q · kᵀ / √size) · v`: q `[batch, positions, heads, size]`, k and v `[batch, others, heads, size]` →
/// `[batch, heads, positions, size]`; also returns `q / √size`, and the residuals of the gradient.
///
/// The softmax is `e^(scores - log Σ e^scores)`; its sum is computed in the pass that computes the scores.
///
/// Its custom VJP rematerialises the weights from q, k and one number per row, so that no array of `positions · others`
/// is a residual. The row sum in a softmax's gradient comes from the result: `Σ g · weights · dweights = Σ g · result`
/// over the head's features, which are fewer. See [`of_mix`].
#[track_caller]
fn mix(
    s: &Scope,
    [q, k, v]: [&Tensor; 3],
    mask: Option<&Tensor>,
    config: &Attention,
) -> (Tensor, Tensor, AttentionResiduals) {
    let visible = Visible::new(config, mask);
    let scaled = q / (q.dims()[3] as f64).sqrt();
    let scores = visible.mask_tensor(&scaled.dot(k, scoring()));
    let (log_sum, weights) = s.within("weights", |_| {
        let dtype = scores.dtype();
        let wide = scores.cast(if dtype.bits() < 32 { DType::F32 } else { dtype });
        let log_sum = log_sum_exp(&wide, config.softmax.unwrap_or(s.tuning().softmax));
        let along = log_sum.broadcast_in_dim(&scores.dims(), &[0, 1, 2]);
        (log_sum, (wide - along).exponential().cast(dtype))
    });
    let mixed = weights.dot(v, mixing());
    let scores = Some(scores.id).filter(|_| config.remat == AttentionRemat::Nothing);
    let residuals = AttentionResiduals { scaled: scaled.id, k: k.id, v: v.id, scores, log_sum: log_sum.id, visible };
    let result = mixed.id;
    let mixed =
        mixed.with_layer_vjp(&[&scaled, k, v], move |e, g, _| of_mix(e, g, &residuals, Some(result)).0.to_vec());
    (mixed, scaled, residuals)
}

/// The residuals of [`mix`], other than its result.
#[derive(Clone, Copy, Debug)]
struct AttentionResiduals {
    scaled: InstrId,
    k: InstrId,
    v: InstrId,
    /// Masked scores, unless they are rematerialised.
    scores: Option<InstrId>,
    /// The logarithm of the sum of exponentials of each row of scores.
    log_sum: InstrId,
    visible: Visible,
}

/// The cotangents of `q / √size`, k and v, and the result, which is rematerialised if it is not passed in.
///
/// The weights are rematerialised with the same operations, so they are bitwise the same; `Σ` and the differences from
/// it are f32 if the dtype is narrower, and operands of products are rounded once.
fn of_mix(e: &Emitter, g: InstrId, residuals: &AttentionResiduals, mixed: Option<InstrId>) -> ([InstrId; 3], InstrId) {
    let AttentionResiduals { mut scaled, mut k, v, mut log_sum, visible, .. } = *residuals;
    let (mut g, dtype) = (g, e.dtype(g));
    let wide = if dtype.bits() < 32 { DType::F32 } else { dtype };
    let total_of = |g, mixed| e.reduce_sum(e.mul(e.convert(g, wide), e.convert(mixed, wide)), &[3]);
    let total = mixed.map(|mixed| total_of(g, mixed));
    let scores = residuals.scores.unwrap_or_else(|| {
        // Without the barrier, common subexpression elimination would keep the weights of the forward pass.
        [scaled, k, log_sum, g] = e.barrier([scaled, k, log_sum, g]);
        visible.mask_scores(e, e.dot(scaled, k, scoring()))
    });
    let dims = e.dims(scores);
    let along = |row: InstrId| e.broadcast(row, &[0, 1, 2], &dims);
    let weights = e.convert(e.unary(UnaryOp::Exp, e.sub(e.convert(scores, wide), along(log_sum))), dtype);
    let mixed = mixed.unwrap_or_else(|| e.dot(weights, v, mixing()));
    let total = total.unwrap_or_else(|| total_of(g, mixed));
    let of_weights = e.dot(g, v, dot_dims([0, 1], [0, 2], 3, 3));
    let difference = e.sub(e.convert(of_weights, wide), along(total));
    let of_scores = visible.cotangent(e, e.convert(e.mul(e.convert(weights, wide), difference), dtype));
    // [batch, heads, positions, size] and [batch, heads, others, size], with the axes in the order of q, k and v.
    let in_order = |x: InstrId| e.transpose(x, &[0, 2, 1, 3]);
    let cotangents = [
        in_order(e.dot(of_scores, k, dot_dims([0, 1], [0, 2], 3, 1))),
        in_order(e.dot(of_scores, scaled, dot_dims([0, 1], [0, 2], 2, 1))),
        in_order(e.dot(weights, g, dot_dims([0, 1], [0, 1], 2, 2))),
    ];
    (cotangents, mixed)
}

/// The cotangents of `q / √size`, k, v, and the kernel and bias of the dense layer that reads [`mix`]'s result. The
/// result is rematerialised, and v too if its projection is passed in.
fn of_projected(
    e: &Emitter,
    g: InstrId,
    (residuals, values): (&AttentionResiduals, Option<&Projection>),
    kernel: InstrId,
) -> Vec<InstrId> {
    let dtype = e.dtype(g);
    let wide = if dtype.bits() < 32 { DType::F32 } else { dtype };
    let dot = |lhs, rhs, lhs_contracting: &[i64], rhs_contracting: &[i64]| {
        let (lhs_contracting, rhs_contracting) = (lhs_contracting.to_vec(), rhs_contracting.to_vec());
        e.dot(lhs, rhs, DotDims { lhs_contracting, rhs_contracting, ..DotDims::default() })
    };
    let of_heads = e.transpose(dot(g, kernel, &[2], &[2]), &[0, 2, 1, 3]);
    let (v, of_heads) = values.map_or((residuals.v, of_heads), |values| values.again(e, of_heads));
    let ([q, k, v], mixed) = of_mix(e, of_heads, &AttentionResiduals { v, ..*residuals }, None);
    let of_bias = e.convert(e.reduce_sum(e.convert(g, wide), &[0, 1]), dtype);
    vec![q, k, v, dot(mixed, g, &[0, 2], &[0, 1]), of_bias]
}

/// `[batch, positions, heads, size]` by `[batch, others, heads, size]` → `[batch, heads, positions, others]`.
fn scoring() -> DotDims {
    dot_dims([0, 2], [0, 2], 3, 3)
}

/// `[batch, heads, positions, others]` by `[batch, others, heads, size]` → `[batch, heads, positions, size]`.
fn mixing() -> DotDims {
    dot_dims([0, 1], [0, 2], 3, 1)
}

fn dot_dims(lhs_batch: [i64; 2], rhs_batch: [i64; 2], lhs_contracting: i64, rhs_contracting: i64) -> DotDims {
    DotDims {
        lhs_batch: lhs_batch.to_vec(),
        rhs_batch: rhs_batch.to_vec(),
        lhs_contracting: vec![lhs_contracting],
        rhs_contracting: vec![rhs_contracting],
    }
}

fn check(queries: &Tensor, memory: &Tensor, config: &Attention) -> Result<(), RuleError> {
    for (what, x) in [("queries", queries), ("memory", memory)] {
        is_float("attention/dtype", what, x)?;
        let help = "a mask is the third of what attention reads: `inputs: [x, x, mask]`";
        of_rank("attention/rank", what, x, 3, "[batch, positions, features]").map_err(|error| match x.rank() {
            2 if what == "memory" => error.with_help(help),
            rank @ 4.. => error.with_help(groups::help(rank)),
            _ => error,
        })?;
    }
    let (q, m) = (queries.dims(), memory.dims());
    if (q[0], queries.dtype()) != (m[0], memory.dtype()) {
        let message = format!(
            "memory {} does not fit queries {}, expected one batch and one dtype",
            memory.shape(),
            queries.shape()
        );
        return Err(RuleError::new("attention/shape", message));
    }
    super::at_least("attention/heads", "num_heads", config.num_heads, 1)?;
    super::at_least("attention/heads", "head_dim", config.head_dim.unwrap_or(1), 1)?;
    let shared = config.key_value_heads();
    super::at_least("attention/heads", "num_key_value_heads", shared, 1)?;
    if config.num_heads % shared != 0 {
        let message = format!(
            "{} heads of queries do not divide into {shared} of keys and values, expected as many for each",
            config.num_heads
        );
        return Err(RuleError::new("attention/heads", message));
    }
    if config.remat >= AttentionRemat::Mixed && (!config.use_bias || shared != config.num_heads) {
        let message = format!(
            "remat is {:?} of attention without biases or with fewer heads of keys and values, expected Weights or Nothing",
            config.remat
        );
        return Err(RuleError::new("attention/remat", message));
    }
    if config.head_dim.is_none() && q[2] % config.num_heads != 0 {
        let message = format!("{} features do not divide into {} heads", q[2], config.num_heads);
        let help = format!("write a number of heads that divides {}, or say `head_dim`", q[2]);
        return Err(RuleError::new("attention/heads", message).with_help(help));
    }
    let size = config.size(q[2]);
    if config.num_heads.checked_mul(size).is_none() {
        let message = format!("{} heads of {size} features are more than there can be", config.num_heads);
        return Err(RuleError::new("attention/heads", message));
    }
    if let Some(rope) = &config.rope {
        rope.check(size)?;
    }
    if config.use_causal_mask && q[1] != m[1] {
        let message =
            format!("a causal mask wants as many queries as positions of memory, measured {} and {}", q[1], m[1]);
        return Err(RuleError::new("attention/causal", message));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{Distribution, Graph};

    /// A hundred million positions used to end the process, and heads of 2^32 features took 16 GiB.
    #[test]
    fn attention_over_more_than_there_can_be_is_an_error() {
        let rope = Some(Rope::default());
        let built = |positions, config: Attention| {
            let g = Graph::new("g");
            let x = g.input("x", DType::F32, [1000, positions, 8]);
            let y = attention(&g.scope(), &x, &x, "attention", &config);
            g.finish(&[("y", &y)]).map(drop).map_err(|error| error.to_string())
        };
        let heads_of = |num_heads, size| Attention { num_heads, head_dim: Some(size), ..Attention::default() };
        built(16, Attention { rope, use_causal_mask: true, ..heads_of(2, 4) }).unwrap();
        for (positions, config, expected) in [
            (100_000_000, heads_of(2, 4), "expected at most 2^56 bytes"),
            (100_000_000, Attention { rope, use_causal_mask: true, ..heads_of(2, 4) }, "expected at most 2^56 bytes"),
            (16, heads_of(1 << 32, 1 << 32), "4294967296 heads of 4294967296 features are more than there can be"),
            (16, Attention { rope, ..heads_of(2, 1 << 32) }, "expected at most 65536"),
            (16, heads_of(2, 1 << 60), "expected at most 2^56 bytes"),
        ] {
            let error = built(positions, config).unwrap_err();
            assert!(error.contains(expected), "{positions}, {config:?}: {error}");
        }
    }

    /// The variance of a matrix `[12, 12]` is `scale / 12` by any fan; a kernel `[12, 3, 4]` counts 36 inputs and 48 outputs,
    /// one `[3, 4, 12]` 12 and 36.
    #[test]
    fn kernels_start_as_matrices_do() {
        let fans = [(FanMode::FanIn, 36.0, 12.0), (FanMode::FanOut, 48.0, 36.0), (FanMode::FanAvg, 42.0, 24.0)];
        for (mode, before, after) in fans {
            let scaled = |scale| Init::VarianceScaling { scale, mode, distribution: Distribution::Uniform };
            assert_eq!(as_matrix(scaled(2.0), [12, 3, 4], [12, 12]), scaled(2.0 * before / 12.0));
            assert_eq!(as_matrix(scaled(2.0), [3, 4, 12], [12, 12]), scaled(2.0 * after / 12.0));
        }
        // For keys with fewer heads: 12 features to 2 heads of 4.
        let fans = [(FanMode::FanIn, 24.0, 12.0), (FanMode::FanOut, 48.0, 8.0), (FanMode::FanAvg, 36.0, 10.0)];
        for (mode, counted, wanted) in fans {
            let scaled = |scale| Init::VarianceScaling { scale, mode, distribution: Distribution::Uniform };
            assert_eq!(as_matrix(scaled(2.0), [12, 2, 4], [12, 8]), scaled(2.0 * counted / wanted));
        }
        assert_eq!(as_matrix(Init::Ones, [12, 3, 4], [12, 12]), Init::Ones);
    }
}
