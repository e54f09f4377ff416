//! Long short-term memory whose products are convolutions: sequences of images.

use super::conv::{check, convolution};
use super::options::{glorot_uniform, is_default, one, orthogonal, pair, sigmoid, tanh, yes, zeros};
use super::window::Padding;
use super::{Activation, Conv2d, at_least, is_float, of_rank};
use crate::document;
use crate::graph::{BuildError, Graph, Init, Operand, Scope, Tensor};
use bf16scope_hlo::ops::RuleError;
use bf16scope_hlo::{DType, Module};
use serde::{Deserialize, Serialize};

/// Configuration of [`conv_lstm`]. The defaults are Keras 3's; `filters` and `kernel_size` have none.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConvLstm {
    /// Channels of the state.
    #[serde(deserialize_with = "document::positive")]
    pub filters: i64,
    /// Height and width of both kernels.
    #[serde(deserialize_with = "pair")]
    pub kernel_size: [i64; 2],
    /// Strides of the input's convolution. Default 1.
    #[serde(default = "one", deserialize_with = "pair")]
    pub strides: [i64; 2],
    /// The padding of the input's convolution. Default `valid`.
    #[serde(default)]
    pub padding: Padding,
    /// The dilation of the input's kernel. Default 1.
    #[serde(default = "one", deserialize_with = "pair")]
    pub dilation_rate: [i64; 2],
    /// The activation of a step's new values. Default `tanh`.
    #[serde(default = "tanh")]
    pub activation: Activation,
    /// The activation of the gates. Default `sigmoid`; Keras 2 has its `hard_sigmoid`.
    #[serde(default = "sigmoid")]
    pub recurrent_activation: Activation,
    /// Whether there is a bias. Default true.
    #[serde(default = "yes")]
    pub use_bias: bool,
    /// The kernel initializer. Default `glorot_uniform`.
    #[serde(default = "glorot_uniform")]
    pub kernel_initializer: Init,
    /// The initializer of the recurrent kernel. Default `orthogonal`.
    #[serde(default = "orthogonal")]
    pub recurrent_initializer: Init,
    /// The bias initializer. Default `zeros`, with one for the forget gate.
    #[serde(default = "zeros")]
    pub bias_initializer: Init,
    /// Whether the output has the state after every step, or only after the last. Default false: the last.
    #[serde(default, skip_serializing_if = "is_default")]
    pub return_sequences: bool,
}

impl Default for ConvLstm {
    fn default() -> ConvLstm {
        ConvLstm {
            filters: 0,
            kernel_size: [0, 0],
            strides: [1, 1],
            padding: Padding::Valid,
            dilation_rate: [1, 1],
            activation: Activation::Tanh,
            recurrent_activation: Activation::Sigmoid,
            use_bias: true,
            kernel_initializer: Init::GLOROT_UNIFORM,
            recurrent_initializer: Init::ORTHOGONAL,
            bias_initializer: Init::Zeros,
            return_sequences: false,
        }
    }
}

impl ConvLstm {
    /// The convolution of the input, of all gates at once.
    fn of_input(&self) -> Conv2d {
        let ConvLstm { kernel_size, strides, padding, dilation_rate, .. } = *self;
        // Saturates: a variable of that size is refused when it is declared.
        let filters = self.filters.saturating_mul(4);
        Conv2d { filters, kernel_size, strides, padding, dilation_rate, ..Conv2d::default() }
    }

    /// The convolution of the state, which keeps its size.
    fn of_state(&self) -> Conv2d {
        let (strides, dilation_rate) = ([1, 1], [1, 1]);
        Conv2d { strides, padding: Padding::Same, dilation_rate, ..self.of_input() }
    }
}

/// As [`lstm`](super::lstm), of images: `c' = f·c + i·g`, `h' = o·tanh(c')`, with the gates i, f and o and the cell's
/// input g from convolutions of x and h, in this order: i, f, g, o. The convolution of h has strides of 1 and SAME
/// padding.
///
/// # Shapes
/// x `[batch, steps, h, w, c]` → `[batch, h', w', filters]`, or `[batch, steps, h', w', filters]` with
/// `return_sequences`, with h' and w' as of [`conv2d`](super::conv2d). Variables `kernel` `[kh, kw, c, 4·filters]`,
/// `recurrent_kernel` `[kh, kw, filters, 4·filters]`, `bias` `[4·filters]`.
///
/// # Types
/// Everything in the dtype of x, except the cell c, which is at least f32: it is a sum over the steps.
///
/// # Errors
/// x not of rank 5, not floating or without steps; what `conv2d` refuses.
///
/// # Source
/// Shi et al. 2015, without peepholes; Keras' `ConvLSTM2D`, whose cell is of the dtype of x.
#[track_caller]
pub fn conv_lstm(s: &Scope, x: &Tensor, name: &str, config: &ConvLstm) -> Tensor {
    s.layer(name, |s| {
        if x.is_poison() {
            return x.clone();
        }
        let frames = match frames(x, config) {
            Ok(frames) => frames,
            Err(error) => return s.graph().fail("conv_lstm", &[x], error),
        };
        match steps(s, x, &frames, config) {
            Ok(result) => result,
            Err(error) => s.graph().fail("conv_lstm", &[x], error),
        }
    })
}

/// All images of a batch, `[batch · steps, h, w, c]`.
fn frames(x: &Tensor, config: &ConvLstm) -> Result<Tensor, RuleError> {
    is_float("conv_lstm/dtype", "x", x)?;
    of_rank("conv_lstm/rank", "x", x, 5, "[batch, steps, height, width, channels]")?;
    at_least("conv_lstm/filters", "filters", config.filters, 1)?;
    let dims = x.dims();
    at_least("conv_lstm/steps", "the number of steps", dims[1], 1)?;
    Ok(x.reshape([&[dims[0] * dims[1]][..], &dims[2..]].concat()))
}

#[track_caller]
fn steps(s: &Scope, x: &Tensor, frames: &Tensor, config: &ConvLstm) -> Result<Tensor, RuleError> {
    let (g, dtype, of_input) = (s.graph(), x.dtype(), config.of_input());
    let (batch, n) = (x.dims()[0], x.dims()[1]);
    let window = check(frames, &of_input)?;
    let [height, width] = config.kernel_size;
    let kernel =
        |name: &str, inputs: i64, init| s.variable(name, dtype, [height, width, inputs, of_input.filters], init).value;
    let input_kernel = kernel("kernel", x.dims()[4], config.kernel_initializer);
    let recurrent_kernel = kernel("recurrent_kernel", config.filters, config.recurrent_initializer);
    let mut of_x = convolution(frames, &input_kernel, window, &of_input);
    if config.use_bias {
        let init = match config.bias_initializer {
            Init::Zeros => Init::ForgetGate,
            init => init,
        };
        let bias = s.variable("bias", dtype, [of_input.filters], init).value;
        of_x = &of_x + bias.broadcast_in_dim(&of_x.dims(), &[3]);
    }
    if of_x.is_poison() || recurrent_kernel.is_poison() {
        return Ok(if of_x.is_poison() { of_x } else { recurrent_kernel });
    }
    let dims = of_x.dims();
    let of_x = of_x.reshape([batch, n, dims[1], dims[2], dims[3]]).transpose(&[1, 0, 2, 3, 4]);
    let state = [batch, dims[1], dims[2], config.filters];
    let memory_dtype = if dtype.bits() < 32 { DType::F32 } else { dtype };
    let (start, memory) = (g.full(dtype, &state, 0.0), g.full(memory_dtype, &state, 0.0));
    let body = body(s, config, &start, &memory, &recurrent_kernel)
        .map_err(|error| RuleError::new("conv_lstm/step", error.to_string()))?;
    let operands = [
        Operand::Carried(&start),
        Operand::Carried(&memory),
        Operand::Carried(&recurrent_kernel),
        Operand::Split(&of_x),
    ];
    let results = g.scan(n as u32, &body, &operands);
    Ok(match (config.return_sequences, &results[..]) {
        (true, [_, _, _, states]) => states.transpose(&[1, 0, 2, 3, 4]),
        _ => results[0].clone(),
    })
}

/// One step as a program: (state, memory, recurrent kernel, convolution of x) → (carried, state).
fn body(
    s: &Scope,
    config: &ConvLstm,
    state: &Tensor,
    memory: &Tensor,
    recurrent_kernel: &Tensor,
) -> Result<Module, BuildError> {
    let g = Graph::new("conv_lstm").placed_as(s.graph());
    let input = |name: &str, like: &Tensor| g.input(name, like.dtype(), like.dims());
    let mut dims = state.dims();
    let (state, memory) = (input("state", state), input("memory", memory));
    let recurrent_kernel = input("recurrent_kernel", recurrent_kernel);
    dims[3] = config.of_input().filters;
    let of_x = g.input("of_x", state.dtype(), [&[1][..], &dims].concat()).reshape(dims);
    let of_state = config.of_state();
    let window = check(&state, &of_state).expect("a kernel of any size fits with SAME padding");
    let sum = of_x + convolution(&state, &recurrent_kernel, window, &of_state);
    let part = |number: i64| {
        let bounds = [number, number + 1].map(|it| Some(it * config.filters));
        super::slice(&sum, bounds, 3)
    };
    let wide = |x: &Tensor| x.cast(memory.dtype());
    let gate = |number| config.recurrent_activation.of_ops(&part(number));
    let new = wide(&gate(1)) * &memory + wide(&gate(0)) * wide(&config.activation.of_ops(&part(2)));
    let next = gate(3) * config.activation.of_ops(&new).cast(state.dtype());
    let mut outputs = vec![("state", &next), ("memory", &new), ("recurrent_kernel", &recurrent_kernel)];
    if config.return_sequences {
        outputs.push(("states", &next));
    }
    g.finish(&outputs).map(|program| program.module)
}
