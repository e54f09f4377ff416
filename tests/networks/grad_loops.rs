//! Gradients of loops: those of the same trips written one after the other, to the last bit, and central differences of modules
//! that other programs wrote.

use crate::run;
use crate::wide;
use bf16scope::graph::{Graph, Operand, Program, Tensor};
use bf16scope::hlo::ops::{DotDims, SliceDim};
use bf16scope::hlo::proto::encode;
use bf16scope::hlo::text::parse;
use bf16scope::hlo::verify::verify;
use bf16scope::hlo::{DType, Instruction, Literal, Op, Shape};
use bf16scope::passes::grad;
use bf16scope::pjrt::CompileOptions;
use ndarray::ArrayD;
use ndarray_npy::NpzReader;
use std::fs::File;

/// Numbers in ±1 that depend on the name.
fn numbers(name: &str, n: usize) -> Vec<f64> {
    let seed = name.bytes().fold(7u64, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte.into()));
    let one = |idx: usize| {
        let mixed = (seed ^ (idx as u64 + 1)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        ((mixed >> 40) as f64) / f64::from(1u32 << 23) - 1.0
    };
    (0..n).map(one).collect()
}

fn argument(name: &str, dtype: DType, dims: &[i64]) -> Literal {
    let values = numbers(name, dims.iter().product::<i64>() as usize);
    let bytes = match dtype {
        DType::S32 => values.iter().flat_map(|value| ((value * 4.0) as i32).to_le_bytes()).collect(),
        DType::F32 => values.iter().flat_map(|value| (*value as f32).to_le_bytes()).collect(),
        _ => values.iter().flat_map(|value| value.to_le_bytes()).collect(),
    };
    let Shape::Array(shape) = Shape::array(dtype, dims) else { unreachable!() };
    Literal::Array { shape, bytes }
}

fn evaluate(program: &Program) -> Vec<Literal> {
    run::run(program, |name| {
        let input = program.inputs.iter().find(|input| input.name == name).unwrap();
        argument(name, input.dtype, &input.dims)
    })
}

fn dot(x: &Tensor, w: &Tensor) -> Tensor {
    x.dot(w, DotDims { lhs_contracting: vec![1], rhs_contracting: vec![0], ..DotDims::default() })
}

/// An operand of a loop: its kind, name, dtype and dims.
#[derive(Clone, Copy)]
enum Kind {
    Carried,
    Split,
    Counted,
}

type Described = (Kind, &'static str, DType, &'static [i64]);

/// A loop over a body, in a loop or written out: the loss of all that it gives, and the gradients by each floating operand.
fn gradients(n: u32, body: &Program, operands: &[Described], is_unrolled: bool) -> Program {
    let g = Graph::new("loop");
    let inputs: Vec<Tensor> =
        operands.iter().map(|(_, name, dtype, dims)| g.input(name, *dtype, dims.to_vec())).collect();
    let all = operands.iter().zip(&inputs).map(|((kind, ..), tensor)| match kind {
        Kind::Carried => Operand::Carried(tensor),
        Kind::Split => Operand::Split(tensor),
        Kind::Counted => Operand::Counted(tensor),
    });
    let all: Vec<Operand<'_>> = all.collect();
    let results = match is_unrolled {
        true => g.scan_unrolled(n, &body.module, &all),
        false => g.scan(n, &body.module, &all),
    };
    let mut loss = g.scalar(DType::F32, 0.0);
    for (number, result) in results.iter().enumerate().filter(|(_, result)| result.dtype().is_float()) {
        let weights = g.input(&format!("weights{number}"), result.dtype(), result.dims());
        let axes: Vec<i64> = (0..result.rank() as i64).collect();
        loss = &loss + (result * &weights).cast(DType::F32).sum(&axes);
    }
    let ids: Vec<_> = inputs.iter().filter(|input| input.dtype().is_float()).map(|tensor| tensor.id).collect();
    let gradients = grad::gradients(g.emitter(), loss.id, &ids).unwrap();
    let named: Vec<(String, Tensor)> =
        gradients.into_iter().enumerate().map(|(number, id)| (format!("gradient{number}"), g.tensor(id))).collect();
    let mut outputs = vec![("loss", &loss)];
    outputs.extend(named.iter().map(|(name, tensor)| (name.as_str(), tensor)));
    g.finish(&outputs).unwrap()
}

#[test]
fn a_recurrent_network_in_a_loop_has_the_gradients_of_its_trips() {
    let body = Graph::new("body");
    let (h, w, u) =
        (body.input("h", DType::F32, [2, 3]), body.input("w", DType::F32, [4, 3]), body.input("u", DType::F32, [3, 3]));
    let x = body.input("x", DType::F32, [1, 2, 4]);
    let next = (dot(&x.reshape([2, 4]), &w) + dot(&h, &u)).tanh();
    let body = body.finish(&[("h", &next), ("w", &w), ("u", &u), ("y", &(&next * &next))]).unwrap();
    let operands = [
        (Kind::Carried, "h", DType::F32, &[2, 3][..]),
        (Kind::Carried, "w", DType::F32, &[4, 3]),
        (Kind::Carried, "u", DType::F32, &[3, 3]),
        (Kind::Split, "x", DType::F32, &[5, 2, 4]),
    ];
    let (looped, unrolled) = (gradients(5, &body, &operands, false), gradients(5, &body, &operands, true));
    run::assert_same(&evaluate(&looped), &evaluate(&unrolled), "");
}

/// Gates, two arrays that are carried, and the number of the trip as data.
#[test]
fn an_lstm_in_a_loop_has_the_gradients_of_its_trips() {
    let body = Graph::new("body");
    let (h, c) = (body.input("h", DType::F32, [2, 3]), body.input("c", DType::F32, [2, 3]));
    let w = body.input("w", DType::F32, [7, 12]);
    let (x, step) = (body.input("x", DType::F32, [1, 2, 4]), body.input("step", DType::S32, []));
    let all = Tensor::concatenate(&[&x.reshape([2, 4]), &h], 1);
    let gates = dot(&all, &w);
    let gate = |number: i64| gates.slice(&[range(0, 2), range(3 * number, 3 * number + 3)]);
    let scale = step.cast(DType::F32).broadcast_in_dim(&[2, 3], &[]);
    let c_next = gate(0).logistic() * &c + gate(1).logistic() * gate(2).tanh() * &scale;
    let h_next = gate(3).logistic() * c_next.tanh();
    let body = body.finish(&[("h", &h_next), ("c", &c_next), ("w", &w), ("y", &h_next)]).unwrap();
    let operands: [Described; 5] = [
        (Kind::Carried, "h", DType::F32, &[2, 3]),
        (Kind::Carried, "c", DType::F32, &[2, 3]),
        (Kind::Carried, "w", DType::F32, &[7, 12]),
        (Kind::Split, "x", DType::F32, &[6, 2, 4]),
        (Kind::Counted, "step", DType::S32, &[]),
    ];
    let (looped, unrolled) = (gradients(6, &body, &operands, false), gradients(6, &body, &operands, true));
    run::assert_same(&evaluate(&looped), &evaluate(&unrolled), "");
    // Each trip keeps what its reverse reads and cannot make again: what the product reads; four gates, the cell before and
    // the tanh of the cell. Beside them stand the cotangents of all `y`, and of all inputs.
    assert_eq!(stacks(&looped), [vec!["f32[6,2,7]", "f32[6,2,4]"], vec!["f32[6,2,3]"; 6 + 1]].concat());
}

/// A kernel that is read as bf16: its gradient is one product of all trips behind the loop, which carries no sum.
#[test]
fn a_bf16_kernel_in_a_loop_has_one_product_of_all_trips() {
    let program = |dtype: DType| {
        let body = Graph::new("body");
        let (h, u) = (body.input("h", dtype, [2, 3]), body.input("u", dtype, [3, 3]));
        let x = body.input("x", dtype, [1, 2, 3]);
        let next = (x.reshape([2, 3]) + dot(&h, &u)).tanh();
        let body = body.finish(&[("h", &next), ("u", &u)]).unwrap();
        let g = Graph::new("loop");
        let all: [(&str, &[i64]); 3] = [("h", &[2, 3]), ("u", &[3, 3]), ("x", &[6, 2, 3])];
        let inputs = all.map(|(name, dims)| g.input(name, DType::F32, dims.to_vec()));
        let low = inputs.each_ref().map(|input| input.cast(dtype));
        let operands = [Operand::Carried(&low[0]), Operand::Carried(&low[1]), Operand::Split(&low[2])];
        let loss = g.scan(6, &body.module, &operands)[0].cast(DType::F32).sum(&[0, 1]);
        // The gradient of x, as of a sequence that a product gave, is the stack that the other one reads.
        let gradients = grad::gradients(g.emitter(), loss.id, &[inputs[1].id, inputs[2].id]).unwrap();
        g.finish(&[("gradient", &g.tensor(gradients[0])), ("rows", &g.tensor(gradients[1]))]).unwrap()
    };
    let (low, full) = (program(DType::BF16), program(DType::F32));
    let is_product = |instr: &&Instruction| matches!(&instr.op, Op::Dot { dims, .. } if dims.lhs_contracting == [0, 1]);
    let n_products = |program: &Program| program.module.entry().instructions.iter().filter(is_product).count();
    assert_eq!((n_products(&low), n_products(&full)), (1, 0));
    let loops = low.module.entry().instructions.iter().filter(|instr| matches!(instr.op, Op::While { .. }));
    let carried: Vec<String> = loops.flat_map(|instr| instr.shape.leaves()).map(ToString::to_string).collect();
    assert!(!carried.is_empty() && !carried.iter().any(|shape| shape.starts_with("f32[3,3]")), "{carried:?}");
    let [low, full] = [low, full].map(|program| run::f32s(&evaluate(&program)[0]));
    let norm = |values: &[f32]| values.iter().map(|value| value * value).sum::<f32>().sqrt();
    let off: Vec<f32> = low.iter().zip(&full).map(|(low, full)| low - full).collect();
    assert!(norm(&off) < 0.02 * norm(&full), "{low:?} {full:?}");
}

/// A bias has one sum of all trips, and a product whose operand only the trip has, as a GRU's, keeps that for all trips.
#[test]
fn bf16_variables_in_a_loop_have_no_sums_in_its_trips() {
    let program = |dtype: DType| {
        let body = Graph::new("body");
        let (h, u) = (body.input("h", dtype, [2, 8]), body.input("u", dtype, [8, 8]));
        let (b, x) = (body.input("b", dtype, [2, 8]), body.input("x", dtype, [1, 2, 8]));
        let row = |number: i64| {
            let row = b.slice(&[range(number, number + 1), range(0, 8)]).reshape([8]);
            row.broadcast_in_dim(&[2, 8], &[1])
        };
        let of_x = x.reshape([2, 8]) + row(0);
        let next = (&of_x + of_x.logistic() * (dot(&h, &u) + row(1))).tanh();
        let body = body.finish(&[("h", &next), ("u", &u), ("b", &b)]).unwrap();
        let g = Graph::new("loop");
        let all: [(&str, &[i64]); 4] = [("h", &[2, 8]), ("u", &[8, 8]), ("b", &[2, 8]), ("x", &[6, 2, 8])];
        let inputs = all.map(|(name, dims)| g.input(name, DType::F32, dims.to_vec()));
        let [h, u, b, x] = inputs.each_ref().map(|input| input.cast(dtype));
        let operands = [Operand::Carried(&h), Operand::Carried(&u), Operand::Carried(&b), Operand::Split(&x)];
        let loss = g.scan(6, &body.module, &operands)[0].cast(DType::F32).sum(&[0, 1]);
        // The gradient of x, as of a sequence that a product gave, is a stack that the bias's sum reads.
        let gradients = grad::gradients(g.emitter(), loss.id, &[inputs[1].id, inputs[2].id, inputs[3].id]).unwrap();
        let [kernel, bias, rows] = [gradients[0], gradients[1], gradients[2]].map(|id| g.tensor(id));
        g.finish(&[("kernel", &kernel), ("bias", &bias), ("rows", &rows)]).unwrap()
    };
    let (low, full) = (program(DType::BF16), program(DType::F32));
    verify(&low.module).unwrap_or_else(|errors| panic!("{errors}"));
    let loops = low.module.entry().instructions.iter().filter(|instr| matches!(instr.op, Op::While { .. }));
    let carried: Vec<String> = loops.flat_map(|instr| instr.shape.leaves()).map(ToString::to_string).collect();
    let is_sum = |shape: &String| shape.starts_with("f32[8,8]") || shape.starts_with("f32[2,8]");
    assert!(!carried.is_empty() && !carried.iter().any(is_sum), "{carried:?}");
    let norm = |values: &[f32]| values.iter().map(|value| value * value).sum::<f32>().sqrt();
    for (low, full) in evaluate(&low).iter().zip(&evaluate(&full)) {
        let [low, full] = [low, full].map(run::f32s);
        let off: Vec<f32> = low.iter().zip(&full).map(|(low, full)| low - full).collect();
        assert!(norm(&off) < 0.05 * norm(&full), "{low:?} {full:?}");
    }
}

/// The arrays with a row for each of six trips that the loop backwards reads, beside the inputs.
fn stacks(program: &Program) -> Vec<String> {
    let module = &program.module;
    let loops = module.entry().instructions.iter().filter(|instr| matches!(instr.op, Op::While { .. }));
    let shapes = loops.flat_map(|instr| instr.shape.leaves().into_iter().map(ToString::to_string).collect::<Vec<_>>());
    let mut stacks: Vec<String> = shapes.filter(|shape| shape.starts_with("f32[6,")).collect();
    stacks.sort_by(|a, b| b.len().cmp(&a.len()).then(b.cmp(a)));
    stacks
}

fn range(start: i64, limit: i64) -> SliceDim {
    SliceDim { start, limit, stride: 1 }
}

/// A loop in the body of a loop.
#[test]
fn a_loop_in_a_loop_has_the_gradients_of_its_trips() {
    let program = |is_unrolled: bool| {
        let inner = Graph::new("inner");
        let (x, w) = (inner.input("x", DType::F32, [3]), inner.input("w", DType::F32, [3]));
        let next = (&x * &w).tanh() + &x;
        let inner = inner.finish(&[("x", &next), ("w", &w)]).unwrap();
        let body = Graph::new("body");
        let (x, w) = (body.input("x", DType::F32, [3]), body.input("w", DType::F32, [3]));
        let operands = [Operand::Carried(&x), Operand::Carried(&w)];
        let both = match is_unrolled {
            true => body.scan_unrolled(3, &inner.module, &operands),
            false => body.scan(3, &inner.module, &operands),
        };
        let body = body.finish(&[("x", &both[0].logistic()), ("w", &w), ("y", &both[0])]).unwrap();
        let operands: [Described; 2] = [(Kind::Carried, "x", DType::F32, &[3]), (Kind::Carried, "w", DType::F32, &[3])];
        gradients(4, &body, &operands, is_unrolled)
    };
    run::assert_same(&evaluate(&program(false)), &evaluate(&program(true)), "");
}

/// As `lax.fori_loop` and `lax.scan` write them: bodies that call, indices that wrap, a bound in the state, a counter that goes down, a
/// loop of no trips; against central differences in f64 with a step of 2^-15. Third derivatives of these losses stay below 300: `h² / 6 · 300 < 5e-8`, and rounding of a
/// loss below 8 adds `8 · 100 · 2^-53 / h < 3e-9`.
#[test]
fn loops_of_others_have_the_gradients_of_central_differences() {
    for (start, step, end, direction) in
        [(0, 1, 4, "LT"), (1, 2, 8, "LE"), (4, -1, 0, "GT"), (3, -1, 0, "GE"), (0, 1, 4, "NE"), (5, 1, 4, "LT")]
    {
        let text = loop_text(start, step, end, direction);
        let module = parse(&text, "loop.hlo").unwrap();
        let (module, _) = grad::run(&module, &grad::Config { loss: 0, wrt: vec![0, 1] }).unwrap();
        verify(&module).unwrap_or_else(|errors| panic!("{errors}"));
        let bytes = encode::to_bytes(&module).unwrap();
        let at = |moved: Option<(usize, usize, f64)>| {
            let argument = |number: usize, name: &str, n: usize| {
                let mut values = numbers(name, n);
                if let Some((_, element, by)) = moved.filter(|(of, ..)| *of == number) {
                    values[element] += by;
                }
                values
            };
            let x = Literal::from_elements([3], &argument(0, "x", 3));
            let all = Literal::from_elements([8, 3], &argument(1, "all", 24));
            run::run_bytes(&bytes, &CompileOptions::default(), &[x, all])
        };
        let results = at(None);
        const STEP: f64 = 1.0 / 32768.0;
        for number in 0..2 {
            for (element, measured) in run::f64s(&results[1 + number]).into_iter().enumerate() {
                let loss = |by: f64| run::f64s(&at(Some((number, element, by)))[0])[0];
                let expected = (loss(STEP) - loss(-STEP)) / (2.0 * STEP);
                assert!((measured - expected).abs() <= 6e-8, "{direction} {number}[{element}]: {measured}, {expected}");
            }
        }
    }
}

/// An LSTM by one `lax.scan`, as JAX exports its forward, beside what `jax.grad` gives for it (`tests/data/scan_jax/make.py`): its body
/// calls functions, the trips go backwards through the rows, and an integer is carried. In f64: a value goes through seven trips of at
/// most 40 roundings, as many again on the way back, and sums of at most 84 terms there and back, on both sides.
#[test]
fn a_scan_of_jax_has_the_gradients_that_jax_computes() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/scan_jax");
    let text = std::fs::read_to_string(format!("{folder}/lstm.hlo.txt")).unwrap();
    let module = wide::module(&parse(&text, "lstm.hlo.txt").unwrap());
    let (module, _) = grad::run(&module, &grad::Config { loss: 0, wrt: (0..6).collect() }).unwrap();
    verify(&module).unwrap_or_else(|errors| panic!("{errors}"));
    let mut recorded = NpzReader::new(File::open(format!("{folder}/lstm.npz")).unwrap()).unwrap();
    let mut arguments = vec![];
    for number in 0..6 {
        let array: ArrayD<f32> = recorded.by_name(&format!("in{number}")).unwrap();
        let dims: Vec<i64> = array.shape().iter().map(|&dim| dim as i64).collect();
        arguments.push(wide::literal(&Literal::from_elements(dims, &array.iter().copied().collect::<Vec<f32>>())));
    }
    let results = run::run_bytes(&encode::to_bytes(&module).unwrap(), &CompileOptions::default(), &arguments);
    let names = ["loss".to_string()].into_iter().chain((0..6).map(|number| format!("gradient{number}")));
    for (name, result) in names.zip(&results) {
        let expected: ArrayD<f64> = recorded.by_name(&name).unwrap();
        let result = run::f64s(result);
        assert_eq!(result.len(), expected.len(), "{name}");
        let largest = expected.iter().fold(1f64, |largest, value| largest.max(value.abs()));
        let bound = 2.0 * (2.0 * 7.0 * 40.0 + 2.0 * 84.0) * 2f64.powi(-53) * largest;
        for (idx, (result, expected)) in result.iter().zip(&expected).enumerate() {
            let off = (result - expected).abs();
            assert!(off <= bound, "{name}[{idx}] is {result:e}, expected {expected:e}: off by {off:e} > {bound:e}");
        }
    }
    assert_eq!(results.len(), 7);
}

fn loop_text(start: i32, step: i32, end: i32, direction: &str) -> String {
    format!(
        "HloModule m

ones {{
  one.1 = f64[] constant(1)
  ROOT ones = f64[3] broadcast(one.1), dimensions={{}}
}}

once {{
  p.1 = f64[3] parameter(0)
  ROOT t = f64[3] tanh(p.1)
}}

twice {{
  p.2 = f64[3] parameter(0)
  t.1 = f64[3] call(p.2), to_apply=once
  ROOT t.2 = f64[3] call(t.1), to_apply=once
}}

body {{
  state = (s32[], s32[], f64[3], f64[8,3], f64[8,3]) parameter(0)
  turn = s32[] get-tuple-element(state), index=0
  end.1 = s32[] get-tuple-element(state), index=1
  x = f64[3] get-tuple-element(state), index=2
  all = f64[8,3] get-tuple-element(state), index=3
  out = f64[8,3] get-tuple-element(state), index=4
  step = s32[] constant({step})
  next = s32[] add(turn, step)
  zero.1 = s32[] constant(0)
  eight = s32[] constant(8)
  is_negative = pred[] compare(turn, zero.1), direction=LT
  wrapped = s32[] add(turn, eight)
  row_idx = s32[] select(is_negative, wrapped, turn)
  row = f64[1,3] dynamic-slice(all, row_idx, zero.1), dynamic_slice_sizes={{1,3}}
  flat = f64[3] reshape(row)
  product = f64[3] multiply(x, flat)
  y = f64[3] call(product), to_apply=twice
  one = f64[3] call(), to_apply=ones
  x.3 = f64[3] multiply(x, one)
  sum = f64[3] add(y, x.3)
  back = f64[1,3] reshape(y)
  new_out = f64[8,3] dynamic-update-slice(out, back, row_idx, zero.1)
  ROOT new = (s32[], s32[], f64[3], f64[8,3], f64[8,3]) tuple(next, end.1, sum, all, new_out)
}}

condition {{
  state.1 = (s32[], s32[], f64[3], f64[8,3], f64[8,3]) parameter(0)
  turn.1 = s32[] get-tuple-element(state.1), index=0
  end.2 = s32[] get-tuple-element(state.1), index=1
  ROOT less = pred[] compare(turn.1, end.2), direction={direction}
}}

add {{
  a = f64[] parameter(0)
  b = f64[] parameter(1)
  ROOT c = f64[] add(a, b)
}}

ENTRY main {{
  x.1 = f64[3] parameter(0)
  all.1 = f64[8,3] parameter(1)
  zero = f64[] constant(0)
  zeros = f64[8,3] broadcast(zero), dimensions={{}}
  start = s32[] constant({start})
  end = s32[] constant({end})
  init = (s32[], s32[], f64[3], f64[8,3], f64[8,3]) tuple(start, end, x.1, all.1, zeros)
  last = (s32[], s32[], f64[3], f64[8,3], f64[8,3]) while(init), condition=condition, body=body
  x.2 = f64[3] get-tuple-element(last), index=2
  out.2 = f64[8,3] get-tuple-element(last), index=4
  all.2 = f64[8,3] get-tuple-element(last), index=3
  squares = f64[8,3] multiply(out.2, out.2)
  both = f64[8,3] add(squares, all.2)
  sum.1 = f64[] reduce(both, zero), dimensions={{0,1}}, to_apply=add
  sum.2 = f64[] reduce(x.2, zero), dimensions={{0}}, to_apply=add
  loss = f64[] add(sum.1, sum.2)
  ROOT result = (f64[]) tuple(loss)
}}
"
    )
}

#[test]
fn a_loop_of_unknown_length_says_what_to_do() {
    let text = loop_text(0, 1, 4, "LT").replace("step = s32[] constant(1)", "step = s32[] multiply(turn, turn)");
    let module = parse(&text, "loop.hlo").unwrap();
    let error = grad::run(&module, &grad::Config { loss: 0, wrt: vec![0] }).unwrap_err().to_string();
    assert!(
        error.contains(
            "while has no gradient: its trip count is not known, and reverse mode keeps values of every trip; count an integer of its \
             state from a constant by a constant up to a constant, as scan and fori_loop do, or unroll it"
        ),
        "{error}"
    );
}
