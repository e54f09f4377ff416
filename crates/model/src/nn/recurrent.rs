//! Recurrent layers: LSTM, GRU and the simple one, in one direction or both, for sequences with and without masks.
//!
//! The product of the whole sequence with the kernel is computed before the loop (or per segment, if segments are
//! rematerialised); the loop adds the product of each step's state. Sums are rounded where Keras' cells round them: the
//! product with the kernel, the product with the recurrent kernel, their sum, and the sum with the bias. The sum over
//! steps in an LSTM's cell is f32 in any precision.

use super::options::{glorot_uniform, is_default, orthogonal, sigmoid, tanh, yes, zeros};
use super::{Activation, STEPS_OF_A_MASK, at_least, is_float, of_rank};
use crate::document;
use crate::graph::{BuildError, Graph, Init, Operand, Program, Scope, Tensor};
use bf16scope_hlo::ops::{RuleError, SliceDim};
use bf16scope_hlo::{DType, Module, Op};
use serde::{Deserialize, Serialize};

macro_rules! recurrent {
    ($(#[$doc:meta])* $Layer:ident[$($gate:ident)?] {
        $($(#[$more:meta])* $field:ident: $Type:ty = $value:expr,)*
    }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
        #[serde(deny_unknown_fields)]
        pub struct $Layer {
            /// Size of the state.
            #[serde(deserialize_with = "document::positive")]
            pub units: i64,
            /// The activation of a step's new values. Default `tanh`.
            #[serde(default = "tanh")]
            pub activation: Activation,
            $(/// The activation of the gates. Default `sigmoid`.
            #[serde(default = "sigmoid")]
            pub $gate: Activation,)?
            /// Whether there are biases. Default true.
            #[serde(default = "yes")]
            pub use_bias: bool,
            /// The kernel initializer. Default `glorot_uniform`.
            #[serde(default = "glorot_uniform")]
            pub kernel_initializer: Init,
            /// The initializer of the recurrent kernel. Default `orthogonal`.
            #[serde(default = "orthogonal")]
            pub recurrent_initializer: Init,
            /// The bias initializer. Default `zeros`.
            #[serde(default = "zeros")]
            pub bias_initializer: Init,
            $($(#[$more])* pub $field: $Type,)*
            /// Whether the output has the state after every step, or only after the last. Default false: the last.
            #[serde(default, skip_serializing_if = "is_default")]
            pub return_sequences: bool,
            /// Whether the last step comes first; the output's steps are then in that order. Default false.
            #[serde(default, skip_serializing_if = "is_default")]
            pub go_backwards: bool,
            /// Whether there are two layers with their own variables, one forwards and one backwards, whose states are
            /// concatenated in the order of the steps. Default false.
            #[serde(default, skip_serializing_if = "is_default")]
            pub bidirectional: bool,
            /// Whether the steps are unrolled instead of a loop. Default false.
            #[serde(default, skip_serializing_if = "is_default")]
            pub unroll: bool,
            /// Rematerialisation in the backward pass. Default `nothing`.
            #[serde(default, skip_serializing_if = "is_default")]
            pub remat: StepRemat,
        }

        impl Default for $Layer {
            fn default() -> $Layer {
                $Layer {
                    units: 0,
                    activation: Activation::Tanh,
                    $($gate: Activation::Sigmoid,)?
                    use_bias: true,
                    kernel_initializer: Init::GLOROT_UNIFORM,
                    recurrent_initializer: Init::ORTHOGONAL,
                    bias_initializer: Init::Zeros,
                    $($field: $value,)*
                    return_sequences: false,
                    go_backwards: false,
                    bidirectional: false,
                    unroll: false,
                    remat: StepRemat::Nothing,
                }
            }
        }

        impl $Layer {
            fn order(&self) -> Order {
                let gates: &[Activation] = &[$(self.$gate)?];
                Order {
                    units: self.units,
                    activations: [self.activation, gates.first().copied().unwrap_or_default()],
                    return_sequences: self.return_sequences,
                    go_backwards: self.go_backwards,
                    bidirectional: self.bidirectional,
                    unroll: self.unroll,
                    remat: self.remat,
                }
            }
        }
    };
}

recurrent! {
    /// Configuration of [`lstm`]. The defaults are Keras'; `units` has none.
    Lstm[recurrent_activation] {
        /// Whether the bias of the forget gate starts at one. Default true.
        #[serde(default = "yes")]
        unit_forget_bias: bool = true,
    }
}

recurrent! {
    /// Configuration of [`gru`]. The defaults are Keras'; `units` has none.
    Gru[recurrent_activation] {}
}

recurrent! {
    /// Configuration of [`simple_rnn`]. The defaults are Keras'; `units` has none.
    SimpleRnn[] {}
}

/// Rematerialisation in the backward pass of a recurrent layer, with the same operations, so gradients are the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StepRemat {
    /// Nothing: the gates of every step are residuals.
    #[default]
    Nothing,
    /// Each step, from the state before it.
    Steps,
    /// Segments of about √n steps: the state before each is kept, and the steps of one segment at a time. The product
    /// with the kernel is computed per segment, too.
    Segments,
}

/// Options of all layers.
struct Order {
    units: i64,
    activations: [Activation; 2],
    return_sequences: bool,
    go_backwards: bool,
    bidirectional: bool,
    unroll: bool,
    remat: StepRemat,
}

/// Long short-term memory: `c' = f·c + i·g`, `h' = o·tanh(c')`, with gates i, f and o and the cell's input g from products of x
/// and h, in this order: i, f, g, o.
///
/// # Shapes
/// x `[batch, steps, inputs]` → `[batch, units]`, or `[batch, steps, units]` with `return_sequences`; twice the units
/// if it is bidirectional. `mask` `[batch, steps]`, of any dtype: where it is 0 the state does not change (and the
/// output of a bidirectional layer is 0 for that step). Variables `kernel` `[inputs, 4·units]`, `recurrent_kernel`
/// `[units, 4·units]`, `bias` `[4·units]`; under `forward` and `backward` if it is bidirectional.
///
/// # Types
/// Everything in the dtype of x, except the cell c, which is at least f32: it is a sum over the steps.
///
/// # Errors
/// x not of rank 3, not floating or without steps; another mask; `units` below 1.
///
/// # Source
/// Hochreiter and Schmidhuber 1997; Keras' `LSTM`, whose cell is of the dtype of x.
#[track_caller]
pub fn lstm(s: &Scope, x: &Tensor, mask: Option<&Tensor>, name: &str, config: &Lstm) -> Tensor {
    lstm_with_states(s, x, mask, &[], name, config).0
}

/// [`lstm`] from initial `states`, `[batch, units]` each: h, or h and c, forwards and then backwards if it is
/// bidirectional. It also returns its last states, h and c, in that order and in the dtype of the carried ones: c is at
/// least f32.
///
/// # Errors
/// As [`lstm`]; another number of states, or of another shape. The list of states is then empty.
#[track_caller]
pub fn lstm_with_states(
    s: &Scope,
    x: &Tensor,
    mask: Option<&Tensor>,
    states: &[&Tensor],
    name: &str,
    config: &Lstm,
) -> (Tensor, Vec<Tensor>) {
    layer(s, x, mask, states, name, ("lstm", &config.order()), |s, x| {
        let Lstm { units, .. } = *config;
        // Saturates: a variable of that size is refused when it is declared.
        let wide = units.saturating_mul(4);
        let kernels = kernels(s, x, wide, (config.kernel_initializer, config.recurrent_initializer), units);
        let bias = config.use_bias.then(|| {
            let init = match (config.unit_forget_bias, config.bias_initializer) {
                (true, Init::Zeros) => Init::ForgetGate,
                (_, init) => init,
            };
            s.variable("bias", x.dtype(), [wide], init).value
        });
        Cell { kernels, bias, has_memory: true, step: Box::new(lstm_step) }
    })
}

/// Gated recurrent unit: `h' = z·h + (1 − z)·g`, where `g` reads the product of h times the gate r; the gates z and r,
/// and g, come from products of x and h, in this order: z, r, g.
///
/// # Shapes
/// As [`lstm`], with three units instead of four; `bias` is `[2, 3·units]`, one row for x and one for h.
///
/// # Types
/// Everything in the dtype of x.
///
/// # Errors
/// As [`lstm`].
///
/// # Source
/// Cho et al. 2014; Keras' `GRU` with `reset_after`, its default, which is cuDNN's.
#[track_caller]
pub fn gru(s: &Scope, x: &Tensor, mask: Option<&Tensor>, name: &str, config: &Gru) -> Tensor {
    gru_with_states(s, x, mask, &[], name, config).0
}

/// [`gru`] from initial `states`, `[batch, units]`, one for each direction; it also returns its last ones.
///
/// # Errors
/// As [`lstm_with_states`].
#[track_caller]
pub fn gru_with_states(
    s: &Scope,
    x: &Tensor,
    mask: Option<&Tensor>,
    states: &[&Tensor],
    name: &str,
    config: &Gru,
) -> (Tensor, Vec<Tensor>) {
    layer(s, x, mask, states, name, ("gru", &config.order()), |s, x| {
        let Gru { units, .. } = *config;
        let wide = units.saturating_mul(3);
        let kernels = kernels(s, x, wide, (config.kernel_initializer, config.recurrent_initializer), units);
        let bias = config.use_bias.then(|| s.variable("bias", x.dtype(), [2, wide], config.bias_initializer).value);
        Cell { kernels, bias, has_memory: false, step: Box::new(gru_step) }
    })
}

/// Fully connected recurrence without gates: `h' = tanh(x · kernel + bias + h · recurrent_kernel)`.
///
/// # Shapes, types, errors
/// As [`gru`], with one unit instead of three; `bias` is `[units]`.
///
/// # Source
/// Elman 1990; Keras' `SimpleRNN`.
#[track_caller]
pub fn simple_rnn(s: &Scope, x: &Tensor, mask: Option<&Tensor>, name: &str, config: &SimpleRnn) -> Tensor {
    simple_rnn_with_states(s, x, mask, &[], name, config).0
}

/// [`simple_rnn`] from initial states, with its last ones, as [`gru_with_states`].
#[track_caller]
pub fn simple_rnn_with_states(
    s: &Scope,
    x: &Tensor,
    mask: Option<&Tensor>,
    states: &[&Tensor],
    name: &str,
    config: &SimpleRnn,
) -> (Tensor, Vec<Tensor>) {
    layer(s, x, mask, states, name, ("simple_rnn", &config.order()), |s, x| {
        let SimpleRnn { units, .. } = *config;
        let kernels = kernels(s, x, units, (config.kernel_initializer, config.recurrent_initializer), units);
        let bias = config.use_bias.then(|| s.variable("bias", x.dtype(), [units], config.bias_initializer).value);
        Cell { kernels, bias, has_memory: false, step: Box::new(simple_step) }
    })
}

/// The variables of one direction, and its step.
struct Cell {
    kernels: [Tensor; 2],
    bias: Option<Tensor>,
    /// Whether a second array is carried.
    has_memory: bool,
    step: Box<Step>,
}

/// From the product of a step's x, the state and the second carried array: both after the step.
type Step = dyn Fn(&StepInputs<'_>) -> (Tensor, Option<Tensor>);

struct StepInputs<'a> {
    of_x: &'a Tensor,
    state: &'a Tensor,
    memory: Option<&'a Tensor>,
    recurrent_kernel: &'a Tensor,
    bias: Option<&'a Tensor>,
    units: i64,
    activation: Activation,
    recurrent_activation: Activation,
}

fn lstm_step(inputs: &StepInputs<'_>) -> (Tensor, Option<Tensor>) {
    let StepInputs { of_x, state, recurrent_kernel, activation, recurrent_activation, .. } = *inputs;
    let mut sum = of_x + state.matmul(recurrent_kernel);
    if let Some(bias) = inputs.bias {
        sum = &sum + bias.broadcast_in_dim(&sum.dims(), &[1]);
    }
    let part = |number| columns(&sum, number, inputs.units);
    let memory = inputs.memory.expect("an LSTM carries a cell");
    let wide = |x: &Tensor| x.cast(memory.dtype());
    let (input, forget, output) = (
        recurrent_activation.of_ops(&part(0)),
        recurrent_activation.of_ops(&part(1)),
        recurrent_activation.of_ops(&part(3)),
    );
    let memory = wide(&forget) * memory + wide(&input) * wide(&activation.of_ops(&part(2)));
    let state = output * activation.of_ops(&memory).cast(state.dtype());
    (state, Some(memory))
}

fn gru_step(inputs: &StepInputs<'_>) -> (Tensor, Option<Tensor>) {
    let StepInputs { of_x, state, recurrent_kernel, activation, recurrent_activation, units, .. } = *inputs;
    let (mut of_x, mut of_state) = (of_x.clone(), state.matmul(recurrent_kernel));
    if let Some(bias) = inputs.bias {
        let wide = units.saturating_mul(3);
        let row = |number: i64| bias.slice(&[range(number, 1), range(0, wide)]).reshape([wide]);
        of_x = &of_x + row(0).broadcast_in_dim(&of_x.dims(), &[1]);
        of_state = &of_state + row(1).broadcast_in_dim(&of_state.dims(), &[1]);
    }
    let part = |x: &Tensor, number| columns(x, number, units);
    let gate = |number| recurrent_activation.of_ops(&(part(&of_x, number) + part(&of_state, number)));
    let (update, reset) = (gate(0), gate(1));
    let new = activation.of_ops(&(part(&of_x, 2) + reset * part(&of_state, 2)));
    let one = state.graph().full(state.dtype(), &state.dims(), 1.0);
    (&update * state + (one - &update) * new, None)
}

fn simple_step(inputs: &StepInputs<'_>) -> (Tensor, Option<Tensor>) {
    let StepInputs { of_x, state, recurrent_kernel, activation, .. } = *inputs;
    let biased = inputs.bias.map(|bias| of_x + bias.broadcast_in_dim(&of_x.dims(), &[1]));
    let sum = biased.as_ref().unwrap_or(of_x) + state.matmul(recurrent_kernel);
    (activation.of_ops(&sum), None)
}

/// Columns `number · units ..` of `[batch, n · units]`.
#[track_caller]
fn columns(x: &Tensor, number: i64, units: i64) -> Tensor {
    x.slice(&[range(0, x.dims()[0]), range(number.saturating_mul(units), units)])
}

fn range(start: i64, length: i64) -> SliceDim {
    SliceDim { start, limit: start + length, stride: 1 }
}

/// The variables `kernel` and `recurrent_kernel`.
#[track_caller]
fn kernels(s: &Scope, x: &Tensor, width: i64, (init, recurrent): (Init, Init), units: i64) -> [Tensor; 2] {
    let inputs = x.dims()[2];
    let kernel = s.variable("kernel", x.dtype(), [inputs, width], init).value;
    [kernel, s.variable("recurrent_kernel", x.dtype(), [units, width], recurrent).value]
}

/// Both directions of a layer, or its only one.
#[track_caller]
fn layer(
    s: &Scope,
    x: &Tensor,
    mask: Option<&Tensor>,
    states: &[&Tensor],
    name: &str,
    (kind, order): (&'static str, &Order),
    cell: impl Fn(&Scope, &Tensor) -> Cell,
) -> (Tensor, Vec<Tensor>) {
    let none = |poison: Tensor| (poison, Vec::new());
    s.layer(name, |s| {
        if let Some(poison) =
            [Some(x), mask].into_iter().flatten().chain(states.iter().copied()).find(|it| it.is_poison())
        {
            return none(poison.clone());
        }
        let checked = check(x, mask, order).and_then(|()| check_states(x, states, kind, order));
        if let Err(error) = checked {
            return none(s.graph().fail(kind, &[x], error));
        }
        let (first, second) = states.split_at(if order.bidirectional { states.len() / 2 } else { states.len() });
        let one =
            |s: &Scope, states, go_backwards| direction(s, x, (mask, states), kind, (order, go_backwards), &cell(s, x));
        if !order.bidirectional {
            return one(s, first, order.go_backwards);
        }
        let (forward, mut last) = s.within("forward", |s| one(s, first, order.go_backwards));
        let (backward, last_backward) = s.within("backward", |s| one(s, second, !order.go_backwards));
        if forward.is_poison() || backward.is_poison() {
            return none(s.graph().tensor(bf16scope_hlo::POISON));
        }
        last.extend(last_backward);
        // In the order of the forward layer's steps.
        let backward = if order.return_sequences { reversed(&backward, 1) } else { backward };
        (Tensor::concatenate(&[&forward, &backward], -1), last)
    })
}

fn check(x: &Tensor, mask: Option<&Tensor>, order: &Order) -> Result<(), RuleError> {
    is_float("recurrent/dtype", "x", x)?;
    of_rank("recurrent/rank", "x", x, 3, "[batch, steps, inputs]").map_err(|error| match x.rank() {
        2 => error.with_help("make it a sequence: `{reshape: [-1, 1]}` has a step for each number, `{repeat_vector: 5}` five equal steps"),
        5 => error.with_help("write `conv_lstm` for a sequence of images, or `{reshape: [STEPS, -1]}` before it"),
        _ => error.with_help("join the axes after the steps: `{reshape: [STEPS, -1]}`"),
    })?;
    at_least("recurrent/units", "units", order.units, 1)?;
    at_least("recurrent/steps", "the number of steps", x.dims()[1], 1)?;
    if let Some(mask) = mask.filter(|mask| mask.dims() != x.dims()[..2]) {
        let message = format!("mask {} is not of x {}, expected [batch, steps]", mask.shape(), x.shape());
        return Err(RuleError::new("recurrent/mask", message).with_help(STEPS_OF_A_MASK));
    }
    Ok(())
}

/// Checks the initial states: as many as the layer carries, or h alone.
fn check_states(x: &Tensor, states: &[&Tensor], kind: &'static str, order: &Order) -> Result<(), RuleError> {
    let n_directions = if order.bidirectional { 2 } else { 1 };
    let fits = [0, n_directions].contains(&states.len()) || (kind == "lstm" && states.len() == 2 * n_directions);
    if !fits {
        let or_cells = if kind == "lstm" { format!(" or {}", 2 * n_directions) } else { String::new() };
        let message = format!("{} states to start from, expected {n_directions}{or_cells}", states.len());
        return Err(RuleError::new("recurrent/states", message));
    }
    match states.iter().find(|state| state.dims() != [x.dims()[0], order.units] || !state.dtype().is_float()) {
        None => Ok(()),
        Some(state) => {
            let message =
                format!("the state to start from is {}, expected [{}, {}]", state.shape(), x.dims()[0], order.units);
            let help = format!("make it of so many units with `{{dense: {}}}`", order.units);
            Err(RuleError::new("recurrent/states", message).with_help(help))
        }
    }
}

/// One direction: the state after the last step, or after all steps; and the last carried values.
#[track_caller]
fn direction(
    s: &Scope,
    x: &Tensor,
    (mask, states): (Option<&Tensor>, &[&Tensor]),
    kind: &'static str,
    (order, go_backwards): (&Order, bool),
    cell: &Cell,
) -> (Tensor, Vec<Tensor>) {
    let g = s.graph();
    let fail = |error: RuleError| (g.fail(kind, &[x], error), Vec::new());
    let (batch, steps, units) = (x.dims()[0], x.dims()[1], order.units);
    let by_step = |x: Tensor, permutation: &[i64]| {
        let x = x.transpose(permutation);
        if go_backwards { reversed(&x, 0) } else { x }
    };
    let mask = mask.map(|mask| {
        let zeros = g.full(mask.dtype(), &mask.dims(), 0.0);
        by_step(mask.not_equal(&zeros), &[1, 0])
    });
    let start = |number: usize, dtype: DType| match states.get(number) {
        Some(state) => state.cast(dtype),
        None => g.full(dtype, &[batch, units], 0.0),
    };
    let state = start(0, x.dtype());
    let is_narrow = x.dtype().bits() < 32;
    let memory_dtype = if is_narrow { DType::F32 } else { x.dtype() };
    let memory = cell.has_memory.then(|| start(1, memory_dtype));
    if let Some(poison) = cell.kernels.iter().find(|kernel| kernel.is_poison()) {
        return (poison.clone(), Vec::new());
    }
    let carried = [Some(&state), memory.as_ref(), Some(&cell.kernels[1]), cell.bias.as_ref()];
    let mut operands: Vec<Operand<'_>> = carried.into_iter().flatten().map(Operand::Carried).collect();
    let body = match body(s, kind, order, cell, batch, memory_dtype, mask.is_some()) {
        Ok(body) => body.module,
        Err(error) => return fail(RuleError::new("recurrent/step", error.to_string())),
    };
    let n = steps as u32;
    let results = if order.remat == StepRemat::Segments && !order.unroll {
        // Each segment computes its own product, so no array has all gates of all steps.
        let x = by_step(x.clone(), &[1, 0, 2]);
        operands.extend([Operand::Carried(&cell.kernels[0]), Operand::Split(&x)]);
        operands.extend(mask.as_ref().map(Operand::Split));
        let n_states = 1 + usize::from(memory.is_some());
        let segment = |length| segment(g, kind, &body, &operands, (n_states, length));
        match g.scan_segments(n, &segment, &operands) {
            Ok(results) => results,
            Err(error) => return fail(RuleError::new("recurrent/segment", error.to_string())),
        }
    } else {
        // The whole sequence's product at once. The narrower of input and result is transposed: a TPU copies it.
        let kernel = &cell.kernels[0];
        let of_x = match kernel.dims()[0] <= kernel.dims()[1] {
            true => by_step(x.clone(), &[1, 0, 2]).matmul(kernel),
            false => by_step(x.matmul(kernel), &[1, 0, 2]),
        };
        operands.push(Operand::Split(&of_x));
        operands.extend(mask.as_ref().map(Operand::Split));
        match (order.unroll, order.remat) {
            (true, _) => g.scan_unrolled(n, &body, &operands),
            (false, StepRemat::Steps) => g.scan_rematerialised(n, &body, &operands),
            (false, _) => g.scan(n, &body, &operands),
        }
    };
    let last = results.iter().take(1 + usize::from(memory.is_some())).cloned().collect();
    match order.return_sequences {
        true => (results.last().map_or_else(|| state.clone(), |states| states.transpose(&[1, 0, 2])), last),
        false => (results[0].clone(), last),
    }
}

/// A segment of `length` steps as a program: (carried, kernel, x, mask) → (carried, kernel, states).
#[track_caller]
fn segment(
    outer: &Graph,
    kind: &'static str,
    body: &Module,
    operands: &[Operand<'_>],
    (n_states, length): (usize, u32),
) -> Result<Module, BuildError> {
    let g = Graph::new(kind).placed_as(outer);
    let input = |(number, operand): (usize, &Operand<'_>)| {
        let (tensor, mut dims) = (operand.tensor(), operand.tensor().dims());
        if let Operand::Split(_) = operand {
            dims[0] = i64::from(length);
        }
        g.input(&format!("operand{number}"), tensor.dtype(), dims)
    };
    let inputs: Vec<Tensor> = operands.iter().enumerate().map(input).collect();
    let n_carried = operands.iter().filter(|it| matches!(it, Operand::Carried(_))).count() - 1;
    let (kernel, x) = (&inputs[n_carried], &inputs[n_carried + 1]);
    let of_x = x.matmul(kernel);
    let trips: Vec<Operand<'_>> = inputs[..n_carried]
        .iter()
        .map(Operand::Carried)
        .chain([&of_x].into_iter().chain(&inputs[n_carried + 2..]).map(Operand::Split))
        .collect();
    let mut results = g.scan(length, body, &trips);
    // The recurrent kernel and the bias do not change, and are passed through.
    for (result, input) in results.iter_mut().zip(&inputs).take(n_carried).skip(n_states) {
        *result = input.clone();
    }
    results.insert(n_carried.min(results.len()), kernel.clone());
    let names: Vec<String> = (0..results.len()).map(|number| format!("result{number}")).collect();
    let outputs: Vec<(&str, &Tensor)> = names.iter().map(String::as_str).zip(&results).collect();
    g.finish(&outputs).map(|program| program.module)
}

/// One step as a program: (state, memory, recurrent kernel, bias, product of x, mask) → (carried, state).
fn body(
    s: &Scope,
    kind: &'static str,
    order: &Order,
    cell: &Cell,
    batch: i64,
    memory_dtype: DType,
    is_masked: bool,
) -> Result<Program, BuildError> {
    let g = Graph::new(kind).placed_as(s.graph());
    let (units, width, dtype) = (order.units, cell.kernels[0].dims()[1], cell.kernels[0].dtype());
    let input = |name: &str, like: &Tensor| g.input(name, like.dtype(), like.dims());
    let state = g.input("state", dtype, [batch, units]);
    let memory = cell.has_memory.then(|| g.input("memory", memory_dtype, [batch, units]));
    let recurrent_kernel = input("recurrent_kernel", &cell.kernels[1]);
    let bias = cell.bias.as_ref().map(|bias| input("bias", bias));
    let row = g.input("of_x", dtype, [1, batch, width]);
    let mask = is_masked.then(|| g.input("mask", DType::Pred, [1, batch]));
    let [activation, recurrent_activation] = order.activations;
    let (next, next_memory) = (cell.step)(&StepInputs {
        of_x: &row.reshape([batch, width]),
        state: &state,
        memory: memory.as_ref(),
        recurrent_kernel: &recurrent_kernel,
        bias: bias.as_ref(),
        units,
        activation,
        recurrent_activation,
    });
    let mask = mask.map(|mask| mask.reshape([batch]).broadcast_in_dim(&[batch, units], &[0]));
    let masked = |next: &Tensor, before: &Tensor| mask.as_ref().map_or(next.clone(), |mask| mask.select(next, before));
    // In a bidirectional layer a masked step gives zeros, as in Keras' `Bidirectional`.
    let zeros = g.full(dtype, &[batch, units], 0.0);
    let shown = if order.bidirectional { masked(&next, &zeros) } else { masked(&next, &state) };
    let next = masked(&next, &state);
    let next_memory = next_memory.zip(memory.as_ref()).map(|(next, before)| masked(&next, before));
    let mut outputs = vec![("state", &next)];
    outputs.extend(next_memory.as_ref().map(|memory| ("memory", memory)));
    outputs.push(("recurrent_kernel", &recurrent_kernel));
    outputs.extend(bias.as_ref().map(|bias| ("bias", bias)));
    if order.return_sequences {
        outputs.push(("states", &shown));
    }
    g.finish(&outputs)
}

/// Reverses an axis.
#[track_caller]
pub(super) fn reversed(x: &Tensor, axis: i64) -> Tensor {
    let dimensions = vec![axis];
    x.emit("reverse", &[], |e| e.emit(Op::Reverse { dimensions }, &[x.id], None))
}
