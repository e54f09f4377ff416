//! Random programs with gathers, branches, loops forwards and back, concatenates and several dtypes.
//!
//! A bound on the result of each op is carried along, forward for values and backward for cotangents, so that all
//! numbers of a program are integers of at most 256.

use bf16scope::hlo::Literal;
use std::fmt::Write as _;

/// The largest integer up to which bf16 represents all integers.
const MAX: u64 = 256;
/// Rows and columns of a value.
const N: usize = 8;

/// Numbers that a seed decides (Steele, Lea, Flood 2014: SplitMix64).
pub struct Draws(pub u64);

impl Draws {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// An integer below `n`.
    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    /// A number from -1 to 1 with 24 bits.
    fn real(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }
}

/// One step: its opcode's text, the values it reads, with how often the step reads each of their elements at most, and
/// the largest magnitude of its result.
struct Step {
    reads: Vec<(usize, u64)>,
    /// The weight that it reads, and the largest magnitude that it multiplies it by, over all rows.
    weight: Option<(usize, u64)>,
    bound: u64,
}

/// A program, forwards.
pub struct Program {
    steps: Vec<Step>,
    body: String,
    ids: [[usize; N]; 2],
}

/// How a program is written.
#[derive(Clone, Copy)]
pub struct Form {
    /// The loop stores the state at the beginning of each step, rather than at the end.
    pub keeps_before: bool,
    /// Each step of the loops multiplies by its own weights, as layers do.
    pub is_over_layers: bool,
    /// The loop back sums products of states and cotangents, which no small integers bound.
    pub sums_products: bool,
    /// Every difference is replaced by a sum: with the magnitudes of the arguments it bounds each sum of magnitudes.
    pub is_majorant: bool,
}

const HEAD: &str = "HloModule random

add {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT sum = f32[] add(a, b)
}

taken {
  both.0 = (f32[8,8], f32[8,8]) parameter(0)
  x.0 = f32[8,8] get-tuple-element(both.0), index=0
  w.0 = f32[8,8] get-tuple-element(both.0), index=1
  ROOT product.0 = f32[8,8] dot(x.0, w.0), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}

not_taken {
  both.1 = (f32[8,8], f32[8,8]) parameter(0)
  x.1 = f32[8,8] get-tuple-element(both.1), index=0
  ROOT minus.1 = f32[8,8] negate(x.1)
}

condition {
  state.0 = (s32[], f32[8,8], f32[3,8,8], f32[3,8,8], f32[8,8]) parameter(0)
  i.0 = s32[] get-tuple-element(state.0), index=0
  three = s32[] constant(3)
  ROOT goes_on = pred[] compare(i.0, three), direction=LT
}

step {
  state.1 = (s32[], f32[8,8], f32[3,8,8], f32[3,8,8], f32[8,8]) parameter(0)
  i.1 = s32[] get-tuple-element(state.1), index=0
  h = f32[8,8] get-tuple-element(state.1), index=1
  xs = f32[3,8,8] get-tuple-element(state.1), index=2
  ys = f32[3,8,8] get-tuple-element(state.1), index=3
  w.1 = f32[8,8] get-tuple-element(state.1), index=4
  zero.1 = s32[] constant(0)
  slice = f32[1,8,8] dynamic-slice(xs, i.1, zero.1, zero.1), dynamic_slice_sizes={1,8,8}
  now = f32[8,8] reshape(slice)
  product.1 = f32[8,8] dot(h, w.1), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  next = f32[8,8] add(product.1, now)
  given = f32[1,8,8] reshape(KEPT)
  filled = f32[3,8,8] dynamic-update-slice(ys, given, i.1, zero.1, zero.1)
  one.1 = s32[] constant(1)
  i.2 = s32[] add(i.1, one.1)
  ROOT state.2 = (s32[], f32[8,8], f32[3,8,8], f32[3,8,8], f32[8,8]) tuple(i.2, next, xs, filled, w.1)
}

condition_back {
  state.2 = (s32[], f32[8,8], f32[3,8,8], f32[3,8,8], f32[3,8,8], f32[8,8], f32[8,8]) parameter(0)
  j.0 = s32[] get-tuple-element(state.2), index=0
  three.2 = s32[] constant(3)
  ROOT goes_back = pred[] compare(j.0, three.2), direction=LT
}

step_back {
  state.3 = (s32[], f32[8,8], f32[3,8,8], f32[3,8,8], f32[3,8,8], f32[8,8], f32[8,8]) parameter(0)
  j.1 = s32[] get-tuple-element(state.3), index=0
  dh.0 = f32[8,8] get-tuple-element(state.3), index=1
  kept = f32[3,8,8] get-tuple-element(state.3), index=2
  dys = f32[3,8,8] get-tuple-element(state.3), index=3
  dxs = f32[3,8,8] get-tuple-element(state.3), index=4
  dw.0 = f32[8,8] get-tuple-element(state.3), index=5
  w.3 = f32[8,8] get-tuple-element(state.3), index=6
  two = s32[] constant(2)
  at.3 = s32[] subtract(two, j.1)
  zero.3 = s32[] constant(0)
  slice.3 = f32[1,8,8] dynamic-slice(dys, at.3, zero.3, zero.3), dynamic_slice_sizes={1,8,8}
  dy = f32[8,8] reshape(slice.3)
  dh.1 = f32[8,8] add(dh.0, dy)
  given.3 = f32[1,8,8] reshape(dh.1)
  dxs.1 = f32[3,8,8] dynamic-update-slice(dxs, given.3, at.3, zero.3, zero.3)
  slice.4 = f32[1,8,8] dynamic-slice(kept, at.3, zero.3, zero.3), dynamic_slice_sizes={1,8,8}
  h.3 = f32[8,8] reshape(slice.4)
  OUTER
  dw.1 = f32[8,8] add(dw.0, outer)
  dh.2 = f32[8,8] dot(dh.1, w.3), lhs_contracting_dims={1}, rhs_contracting_dims={1}
  one.3 = s32[] constant(1)
  j.2 = s32[] add(j.1, one.3)
  ROOT state.4 = (s32[], f32[8,8], f32[3,8,8], f32[3,8,8], f32[3,8,8], f32[8,8], f32[8,8]) tuple(j.2, dh.2, kept, dys, dxs.1, dw.1, w.3)
}

ENTRY main {
  v0 = f32[8,8] parameter(0)
  v1 = f32[8,8] parameter(1)
  w0 = f32[8,8] parameter(2)
  w1 = f32[8,8] parameter(3)
  ids0 = s32[8,1] parameter(4)
  ids1 = s32[8,1] parameter(5)
  where = pred[8,8] parameter(6)
  which = pred[] parameter(7)
  at = s32[] parameter(8)
  ws = f32[3,8,8] parameter(9)
  zero = f32[] constant(0)
  none = s32[] constant(0)
";

const TAIL: &str = "  layers = f32[3,8,8] concatenate(layer0, layer1, layer2), dimensions={0}
  h0 = f32[8,8] broadcast(zero), dimensions={}
  ys0 = f32[3,8,8] broadcast(zero), dimensions={}
  init = (s32[], f32[8,8], f32[3,8,8], f32[3,8,8], f32[8,8]) tuple(none, h0, layers, ys0, w1)
  end = (s32[], f32[8,8], f32[3,8,8], f32[3,8,8], f32[8,8]) while(init), condition=condition, body=step
  all = f32[3,8,8] get-tuple-element(end), index=3
  looped = f32[3,8,8] dot(all, w0), lhs_contracting_dims={2}, rhs_contracting_dims={0}
  one = f32[] constant(1)
  ones = f32[3,8,8] broadcast(one), dimensions={}
  dall = f32[3,8,8] dot(ones, w0), lhs_contracting_dims={2}, rhs_contracting_dims={1}
  init_back = (s32[], f32[8,8], f32[3,8,8], f32[3,8,8], f32[3,8,8], f32[8,8], f32[8,8]) tuple(none, h0, all, dall, ys0, h0, w1)
  end_back = (s32[], f32[8,8], f32[3,8,8], f32[3,8,8], f32[3,8,8], f32[8,8], f32[8,8]) while(init_back), condition=condition_back, body=step_back
  dxs.2 = f32[3,8,8] get-tuple-element(end_back), index=4
  dw = f32[8,8] get-tuple-element(end_back), index=5
  updated = f32[3,8,8] add(ws, ws)
  dlayers = f32[3,8,8] dot(dxs.2, w0), lhs_contracting_dims={2}, rhs_contracting_dims={0}
";

/// The bound for parameters that are values.
const BOUND: u64 = 2;

impl Program {
    /// A program that `draws` determine.
    pub fn new(draws: &mut Draws) -> Program {
        let step = || Step { reads: Vec::new(), weight: None, bound: BOUND };
        let ids = [(); 2].map(|()| [(); N].map(|()| draws.below(N)));
        let mut program = Program { steps: vec![step(), step()], body: String::new(), ids };
        let n_steps = 4 + draws.below(16);
        while program.steps.len() < n_steps {
            program.add(draws);
        }
        program
    }

    /// Adds a step, unless its result may be too large.
    fn add(&mut self, draws: &mut Draws) {
        let n = self.steps.len();
        // Late values more often, so that programs are deep.
        let mut value = || n - 1 - draws.below(n).min(draws.below(n));
        let (a, b) = (value(), value());
        let k = draws.below(2);
        let (of_a, of_b) = (self.steps[a].bound, self.steps[b].bound);
        let rows = "lhs_contracting_dims={1}, rhs_contracting_dims={0}";
        let mut weight = None;
        let mut reads = vec![(a, 1)];
        let mut bound = of_a;
        let mut before = String::new();
        let op = match draws.below(13) {
            0..=2 => {
                weight = Some((k, N as u64 * of_a));
                // Sometimes by a bf16 copy of the weight, as JAX writes products of mixed dtypes.
                let is_mixed = b % 4 == 0;
                if is_mixed {
                    let _ = writeln!(before, "  narrow{n} = bf16[8,8] convert(w{k})");
                }
                let by = if is_mixed { format!("narrow{n}") } else { format!("w{k}") };
                format!("dot(v{a}, {by}), {rows}")
            }
            3 => {
                reads.push((b, 1));
                bound = of_a + of_b;
                format!("{}(v{a}, v{b})", ["add", "subtract"][k])
            }
            4 => {
                let count = |row: usize| self.ids[k].iter().filter(|&&id| id == row).count();
                reads[0].1 = (0..N).map(count).max().unwrap_or(0) as u64;
                let dims = "offset_dims={1}, collapsed_slice_dims={0}, start_index_map={0}, index_vector_dim=1";
                format!("gather(v{a}, ids{k}), {dims}, slice_sizes={{1,8}}")
            }
            5 => {
                reads.push((b, 1));
                bound = of_a.max(of_b);
                let (dims, slices) = [("8,4", "[0:8], [0:4]"), ("4,8", "[0:4], [0:8]")][k];
                for (part, from) in [("left", a), ("right", b)] {
                    let _ = writeln!(before, "  {part}{n} = f32[{dims}] slice(v{from}), slice={{{slices}}}");
                }
                format!("concatenate(left{n}, right{n}), dimensions={{{}}}", 1 - k)
            }
            6 => {
                reads.push((b, 1));
                bound = of_a.max(of_b);
                format!("select(where, v{a}, v{b})")
            }
            7 => {
                weight = Some((k, of_a));
                format!("multiply(v{a}, w{k})")
            }
            8 => {
                reads[0].1 = N as u64;
                bound = N as u64 * of_a;
                let _ = writeln!(before, "  sums{n} = f32[8] reduce(v{a}, zero), dimensions={{1}}, to_apply=add");
                format!("broadcast(sums{n}), dimensions={{0}}")
            }
            9 => {
                weight = Some((k, N as u64 * of_a));
                let _ = writeln!(before, "  both{n} = (f32[8,8], f32[8,8]) tuple(v{a}, w{k})");
                let called = "true_computation=taken, false_computation=not_taken";
                format!("conditional(which, both{n}, both{n}), {called}")
            }
            10 => {
                let _ = writeln!(before, "  narrow{n} = bf16[8,8] convert(v{a})");
                let _ = writeln!(before, "  minus{n} = bf16[8,8] negate(narrow{n})");
                format!("convert(minus{n})")
            }
            11 => {
                reads.push((b, 1));
                bound = of_a.max(of_b);
                let _ = writeln!(before, "  part{n} = f32[2,8] slice(v{b}), slice={{[3:5], [0:8]}}");
                format!("dynamic-update-slice(v{a}, part{n}, at, none)")
            }
            _ => match k {
                0 => format!("transpose(v{a}), dimensions={{1,0}}"),
                _ => format!("reverse(v{a}), dimensions={{0}}"),
            },
        };
        if bound <= MAX {
            let _ = writeln!(self.body, "{before}  v{n} = f32[8,8] {op}");
            self.steps.push(Step { reads, weight, bound });
        }
    }

    /// Whether no cotangent, and no result of the loops at the end, is too large.
    pub fn is_exact(&self) -> bool {
        let mut of_values = vec![0u64; self.steps.len()];
        let mut of_weights = [0u64; 2];
        of_values[self.steps.len() - 1] = 1;
        for (nth, step) in self.steps.iter().enumerate().rev() {
            let cotangent = of_values[nth];
            step.reads.iter().for_each(|&(value, n)| of_values[value] += n * cotangent);
            if let Some((weight, by)) = step.weight {
                of_weights[weight] += by * cotangent;
            }
        }
        // The loop back sums three states.
        let looped = 3 * self.steps.iter().rev().take(3).map(|step| step.bound).sum::<u64>();
        of_values.iter().chain(&of_weights).all(|&bound| bound <= MAX) && looped <= MAX
    }

    /// Its text: a loss, the last value, the same in integers, a loop's result from the last three, and a backward
    /// loop's result from the states that the first loop stored, as JAX differentiates a `scan`.
    pub fn text(&self, form: Form) -> String {
        let last = self.steps.len() - 1;
        let mut tail = format!(
            "  loss = f32[] reduce(v{last}, zero), dimensions={{0,1}}, to_apply=add
  integers = s32[8,8] convert(v{last})
"
        );
        for nth in 0..3 {
            let _ = writeln!(tail, "  layer{nth} = f32[1,8,8] reshape(v{})", last - nth);
        }
        tail += TAIL;
        let results = format!(
            "(f32[], f32[8,8], s32[8,8], f32[3,8,8], f32[3,8,8], f32[8,8], f32[3,8,8]) tuple(loss, v{last}, integers, looped, dlayers, dw, updated)"
        );
        let outer = match form.sums_products {
            true => "outer = f32[8,8] dot(h.3, dh.1), lhs_contracting_dims={0}, rhs_contracting_dims={0}",
            false => "outer = f32[8,8] copy(h.3)",
        };
        let head = HEAD.replace("KEPT", if form.keeps_before { "h" } else { "next" }).replace("OUTER", outer);
        let text = format!("{head}{}{tail}  ROOT out = {results}\n}}\n", self.body);
        let text = if form.is_over_layers { over_layers(&text) } else { text };
        if !form.is_majorant {
            return text;
        }
        let positive = [("f32[8,8] subtract(", "f32[8,8] add("), ("[8,8] negate(", "[8,8] copy(")];
        positive.into_iter().fold(text, |text, (signed, of_sizes)| text.replace(signed, of_sizes))
    }

    /// Arguments, of small integers and weights with one 1 or -1 in each row and column, or of any numbers from -1 to 1.
    pub fn arguments(&self, draws: &mut Draws, is_exact: bool) -> Vec<Literal> {
        let mut arguments = match is_exact {
            true => {
                let mut small = || Literal::from_elements([8, 8], &[(); N * N].map(|()| draws.below(5) as f32 - 2.0));
                let mut arguments = vec![small(), small()];
                arguments.extend([(); 2].map(|()| weight(draws)));
                arguments
            }
            false => (0..4).map(|_| Literal::from_elements([8, 8], &[(); N * N].map(|()| draws.real()))).collect(),
        };
        for ids in &self.ids {
            arguments.push(Literal::from_elements([8, 1], &ids.map(|id| id as i32)));
        }
        let chosen = [(); N * N].map(|()| draws.below(2) == 1);
        arguments.push(Literal::from_elements([8, 8], &chosen));
        arguments.push(Literal::scalar(draws.below(2) == 1));
        arguments.push(Literal::scalar(draws.below(7) as i32));
        let layers: Vec<f32> = match is_exact {
            true => (0..3).flat_map(|_| weight(draws).elements::<f32>().unwrap()).collect(),
            false => (0..3 * N * N).map(|_| draws.real()).collect(),
        };
        arguments.push(Literal::from_elements([3, 8, 8], &layers));
        arguments
    }
}

/// The loops of a text with a slice of a stack of weights where they have one weight.
fn over_layers(text: &str) -> String {
    let sliced = |state: &str, nth: usize, at: &str| {
        let index = format!("index={}", if state == "state.1" { 4 } else { 6 });
        let weight = format!("  w.{nth} = f32[8,8] get-tuple-element({state}), {index}\n");
        let stack = format!("  ws.{nth} = f32[3,8,8] get-tuple-element({state}), {index}\n");
        let slice = format!(
            "  zero.{nth} = s32[] constant(0)
  w_now.{nth} = f32[1,8,8] dynamic-slice(ws.{nth}, {at}, zero.{nth}, zero.{nth}), dynamic_slice_sizes={{1,8,8}}
  w.{nth} = f32[8,8] reshape(w_now.{nth})
"
        );
        [(weight, stack), (format!("  zero.{nth} = s32[] constant(0)\n"), slice)]
    };
    let loops = ["f32[3,8,8], f32[3,8,8]", "f32[3,8,8], f32[3,8,8], f32[3,8,8], f32[8,8]"];
    let carried = loops.map(|arrays| format!("(s32[], f32[8,8], {arrays}, "));
    let carried = carried.map(|state| (format!("{state}f32[8,8])"), format!("{state}f32[3,8,8])")));
    let weights = [
        ("filled, w.1)", "filled, ws.1)"),
        ("dw.1, w.3)", "dw.1, ws.3)"),
        ("ys0, w1)", "ys0, ws)"),
        ("h0, w1)", "h0, ws)"),
    ];
    let weights = weights.map(|(weight, stack)| (weight.to_string(), stack.to_string()));
    let steps = [sliced("state.1", 1, "i.1"), sliced("state.3", 3, "at.3")];
    carried.into_iter().chain(weights).chain(steps.into_iter().flatten()).fold(
        text.to_string(),
        |text, (weight, stack)| {
            assert!(text.contains(&weight), "{weight} is not in {text}");
            text.replace(&weight, &stack)
        },
    )
}

/// One 1 or -1 in each row and column.
fn weight(draws: &mut Draws) -> Literal {
    let mut columns: Vec<usize> = (0..N).collect();
    let mut elements = [0f32; N * N];
    for row in 0..N {
        let column = columns.swap_remove(draws.below(columns.len()));
        elements[row * N + column] = [1.0, -1.0][draws.below(2)];
    }
    Literal::from_elements([8, 8], &elements)
}
