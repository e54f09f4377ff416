//! `passes::as_tpu` against a reference that rounds and splits on the host and multiplies in f64.

use crate::run::{self, client};

use bf16scope::hlo::ops::{OperandPrecision, PrecisionConfig};
use bf16scope::hlo::proto::encode;
use bf16scope::hlo::text::{PrintOptions, parse, print};
use bf16scope::hlo::{ArrayShape, DType, InstrId, Literal, Module, Op, Shape, verify};
use bf16scope::passes::as_tpu::{Split, TpuArithmetic, run as as_tpu};
use bf16scope::passes::grad;
use bf16scope::pjrt::CompileOptions;
use half::bf16;

/// The most numbers that a product here sums.
const MOST_SUMMED: f64 = 64.0;
/// The most products of parts that are added.
const MOST_PARTS: f64 = 6.0;

/// A dot or convolution: its operands' dims, its result's, and its attributes.
struct Case {
    lhs: &'static str,
    rhs: &'static str,
    result: &'static str,
    attributes: &'static str,
}

const fn case(lhs: &'static str, rhs: &'static str, result: &'static str, attributes: &'static str) -> Case {
    Case { lhs, rhs, result, attributes }
}

const DOTS: [Case; 9] = [
    case("8,32", "32,16", "8,16", "lhs_contracting_dims={1}, rhs_contracting_dims={0}"),
    case("32,8", "32,16", "8,16", "lhs_contracting_dims={0}, rhs_contracting_dims={0}"),
    case("8,32", "16,32", "8,16", "lhs_contracting_dims={1}, rhs_contracting_dims={1}"),
    case("32,8", "16,32", "8,16", "lhs_contracting_dims={0}, rhs_contracting_dims={1}"),
    case("64", "64", "", "lhs_contracting_dims={0}, rhs_contracting_dims={0}"),
    case("5,64", "64", "5", "lhs_contracting_dims={1}, rhs_contracting_dims={0}"),
    case("3", "4", "3,4", "lhs_contracting_dims={}, rhs_contracting_dims={}"),
    case(
        "3,8,16",
        "3,16,4",
        "3,8,4",
        "lhs_batch_dims={0}, lhs_contracting_dims={2}, rhs_batch_dims={0}, rhs_contracting_dims={1}",
    ),
    case(
        "8,2,16,3",
        "16,5,3,2",
        "3,2,8,5",
        "lhs_batch_dims={3,1}, lhs_contracting_dims={2}, rhs_batch_dims={2,3}, rhs_contracting_dims={0}",
    ),
];

const CONVOLUTIONS: [Case; 8] = [
    case("2,6,6,4", "3,3,4,8", "2,6,6,8", "window={size=3x3 pad=1_1x1_1}, dim_labels=b01f_01io->b01f"),
    case("2,7,7,4", "3,3,4,8", "2,3,3,8", "window={size=3x3 stride=2x2}, dim_labels=b01f_01io->b01f"),
    // Grouped, and one filter a channel.
    case(
        "2,6,6,8",
        "3,3,2,8",
        "2,6,6,8",
        "window={size=3x3 pad=1_1x1_1}, dim_labels=b01f_01io->b01f, feature_group_count=4",
    ),
    case(
        "2,6,6,8",
        "3,3,1,8",
        "2,6,6,8",
        "window={size=3x3 pad=1_1x1_1}, dim_labels=b01f_01io->b01f, feature_group_count=8",
    ),
    // Dilated; transposed.
    case("2,9,9,4", "3,3,4,8", "2,5,5,8", "window={size=3x3 rhs_dilate=2x2}, dim_labels=b01f_01io->b01f"),
    case("2,4,4,4", "3,3,4,8", "2,9,9,8", "window={size=3x3 pad=2_2x2_2 lhs_dilate=2x2}, dim_labels=b01f_01io->b01f"),
    // A gradient with respect to a filter: the batch is contracted.
    case("4,6,6,2", "4,4,4,5", "3,3,2,5", "window={size=4x4}, dim_labels=f01b_i01o->01bf"),
    case("2,4,10", "4,8,5", "2,8,6", "window={size=5}, dim_labels=bf0_io0->bf0"),
];

/// The cases, each under one precision; every pair of precisions occurs.
fn modules() -> Vec<Module> {
    let names = ["default", "high", "highest"];
    let pairs: Vec<String> =
        names.iter().flat_map(|lhs| names.map(|rhs| format!("operand_precision={{{lhs},{rhs}}}"))).collect();
    let algorithms = ["", "_x3", "_x6"].map(|more| format!("algorithm=dot_bf16_bf16_f32{more}"));
    let dots = DOTS.iter().enumerate().flat_map(|(place, case)| {
        [pairs[place].clone(), pairs[(place + 4) % 9].clone()].map(|precision| module(case, "dot", &precision))
    });
    let by_algorithm = DOTS.iter().zip(&algorithms).map(|(case, algorithm)| module(case, "dot", algorithm));
    let convolutions = CONVOLUTIONS.iter().enumerate().flat_map(|(place, case)| {
        [pairs[place + 1].clone(), pairs[(place + 5) % 9].clone()]
            .map(|precision| module(case, "convolution", &precision))
    });
    dots.chain(by_algorithm).chain(convolutions).collect()
}

fn module(case: &Case, opcode: &str, precision: &str) -> Module {
    let Case { lhs, rhs, result, attributes } = case;
    let text = format!(
        "HloModule m\n\nENTRY m {{\n  lhs = f32[{lhs}] parameter(0)\n  rhs = f32[{rhs}] parameter(1)\n  \
         ROOT product = f32[{result}] {opcode}(lhs, rhs), {attributes}, {precision}\n}}\n"
    );
    parse(&text, "m.txt").unwrap_or_else(|error| panic!("{error}\n{text}"))
}

/// The modules of single products that reverse mode generates for a strided, padded convolution.
fn gradients() -> Vec<Module> {
    let text = "HloModule m\n\nENTRY m {\n  x = f32[2,7,7,3] parameter(0)\n  w = f32[3,3,3,5] parameter(1)\n  \
                y = f32[2,4,4,5] convolution(x, w), window={size=3x3 stride=2x2 pad=1_1x1_1}, \
                dim_labels=b01f_01io->b01f, operand_precision={high,high}\n  ROOT q = f32[2,4,4,5] multiply(y, y)\n}\n";
    let module = parse(text, "m.txt").unwrap();
    let differentiated = differentiate(&module);
    let entry = differentiated.entry();
    let products = entry.ids().filter(|&id| matches!(entry.instr(id).op, Op::Convolution(_)));
    let alone: Vec<Module> = products.map(|id| alone(&differentiated, id)).collect();
    assert_eq!(alone.len(), 3, "the product and its two gradients");
    alone
}

fn differentiate(module: &Module) -> Module {
    use bf16scope::hlo::Emitter;
    use bf16scope::hlo::ops::BinaryOp;
    let entry = module.entry;
    let root = module.entry().root;
    let e = Emitter::new(module.clone(), entry);
    let loss = e.reduce(BinaryOp::Add, root, &[0, 1, 2, 3]);
    let wrt = [InstrId(0), InstrId(1)];
    let gradients = grad::gradients(&e, loss, &wrt).unwrap();
    e.tuple(&gradients);
    e.finish().unwrap()
}

/// One product of a module, with its operands.
fn alone(module: &Module, id: InstrId) -> Module {
    let instr = module.entry().instr(id);
    let mut alone = Module::new("alone");
    let entry = alone.entry;
    let operands: Vec<InstrId> = (instr.operands.iter().enumerate())
        .map(|(number, &operand)| {
            let shape = module.entry().instr(operand).shape.clone();
            alone.append(entry, Op::parameter(number as i64), Vec::new(), shape, Default::default())
        })
        .collect();
    alone.push(entry, instr.op.clone(), &operands, Some(&instr.shape), Default::default()).unwrap();
    alone
}

/// Numbers in (-2, 2), of many magnitudes; the same for the same seed.
fn drawn(n: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    (0..n)
        .map(|_| {
            let unit = (next() >> 40) as f32 / (1u64 << 24) as f32;
            let sign = if next() & 1 == 0 { 1.0 } else { -1.0 };
            sign * (unit + 1.0) * (-((next() % 12) as f32)).exp2()
        })
        .collect()
}

fn n_elements(module: &Module, operand: usize) -> usize {
    let parameters = module.entry().parameters();
    module.entry().instr(parameters[operand]).shape.dims().iter().product::<i64>() as usize
}

fn dims(module: &Module, operand: usize) -> Vec<i64> {
    let parameters = module.entry().parameters();
    module.entry().instr(parameters[operand]).shape.dims().to_vec()
}

fn execute(module: &Module, inputs: &[Literal]) -> Literal {
    verify(module).unwrap_or_else(|errors| panic!("{errors}"));
    let executable = client().compile(&encode::to_bytes(module).unwrap(), &CompileOptions::default()).unwrap();
    run::execute(&executable, inputs).pop().unwrap()
}

fn in_f32(module: &Module, values: [&[f32]; 2]) -> Vec<f32> {
    let inputs = [0, 1].map(|operand| Literal::from_elements(dims(module, operand), values[operand]));
    execute(module, &inputs).elements::<f32>().unwrap()
}

/// The product in f64, of two arrays.
fn in_f64(module: &Module, values: [&[f64]; 2]) -> Vec<f64> {
    let mut wide = module.clone();
    let entry = wide.entry;
    for instr in &mut wide.computations[entry.idx()].instructions {
        let array = instr.shape.as_array().unwrap().clone();
        instr.shape = Shape::Array(ArrayShape { dtype: DType::F64, ..array });
        instr.op.precision_mut().into_iter().for_each(|precision| *precision = PrecisionConfig::default());
    }
    let inputs = [0, 1].map(|operand| Literal::from_elements(dims(module, operand), values[operand]));
    execute(&wide, &inputs).elements::<f64>().unwrap()
}

/// Parts of bf16 as documented, implemented a second time: subnormal numbers are zeros.
fn parts(values: &[f32], n: usize) -> Vec<Vec<f64>> {
    let flush = |x: f32| if x.is_subnormal() { 0.0 * x } else { x };
    let mut rest: Vec<f32> = values.to_vec();
    (0..n)
        .map(|_| {
            let part: Vec<f32> = rest.iter().map(|&x| bf16::from_f32(flush(x)).to_f32()).collect();
            rest = rest.iter().zip(&part).map(|(&x, &part)| flush(x) - part).collect();
            part.into_iter().map(f64::from).collect()
        })
        .collect()
}

fn n_parts(module: &Module) -> [usize; 2] {
    let precision = module.entry().instr(module.entry().root).op.precision().unwrap();
    match precision.algorithm.as_deref() {
        Some("dot_bf16_bf16_f32") => [1, 1],
        Some("dot_bf16_bf16_f32_x3") => [2, 2],
        Some("dot_bf16_bf16_f32_x6") => [3, 3],
        Some(other) => panic!("{other}"),
        None => [0, 1].map(|side| match precision.operand_precision.get(side) {
            None | Some(OperandPrecision::Default) => 1,
            Some(OperandPrecision::High) => 2,
            Some(OperandPrecision::Highest) => 3,
        }),
    }
}

/// The module's result in a TPU's arithmetic, summed in f64, and for each element the sum of its products' magnitudes.
fn reference(module: &Module, values: [&[f32]; 2]) -> (Vec<f64>, Vec<f64>) {
    let [l, r] = n_parts(module);
    let (lhs, rhs) = (parts(values[0], l), parts(values[1], r));
    let (mut sums, mut magnitudes) = (Vec::new(), Vec::new());
    let abs = |values: &[f64]| values.iter().map(|x| x.abs()).collect::<Vec<f64>>();
    let add = |sum: &mut Vec<f64>, term: Vec<f64>| match sum.is_empty() {
        true => *sum = term,
        false => sum.iter_mut().zip(term).for_each(|(sum, term)| *sum += term),
    };
    for (i, lhs) in lhs.iter().enumerate() {
        for (_, rhs) in rhs.iter().enumerate().filter(|(j, _)| i + j < l.max(r)) {
            add(&mut sums, in_f64(module, [lhs, rhs]));
            add(&mut magnitudes, in_f64(module, [&abs(lhs), &abs(rhs)]));
        }
    }
    (sums, magnitudes)
}

fn rewritten(module: &Module) -> Module {
    let (rewritten, report) = as_tpu(module, &TpuArithmetic::V2).unwrap_or_else(|error| panic!("{error}"));
    assert!(report.left.is_empty(), "{report:?}");
    rewritten
}

/// Products are exact, and each of `n` additions in f32 rounds by at most 2^-24 of what it gives, which is no more than
/// the sum of the magnitudes: `n · 2^-24` of that, in whatever order; a sum below 2^-126 may become 0. In f64 the same
/// is 2^29 times less.
#[test]
fn products_are_those_of_the_parts_within_the_order_of_sums() {
    let modules: Vec<Module> = modules().into_iter().chain(gradients()).collect();
    assert!(modules.len() >= 30, "{}", modules.len());
    for (seed, module) in modules.iter().enumerate() {
        let [lhs, rhs] = [0, 1].map(|operand| drawn(n_elements(module, operand), (2 * seed + operand + 1) as u64));
        let measured = in_f32(&rewritten(module), [&lhs, &rhs]);
        let (sums, magnitudes) = reference(module, [&lhs, &rhs]);
        let n = MOST_PARTS * MOST_SUMMED;
        for (place, ((&x, sum), magnitude)) in measured.iter().zip(&sums).zip(&magnitudes).enumerate() {
            let bound = n * 2f64.powi(-24) * magnitude + f64::from(f32::MIN_POSITIVE);
            let text = || print(module, &PrintOptions::default());
            assert!((f64::from(x) - sum).abs() <= bound, "{place}: {x} for {sum}, bound {bound:e}\n{}", text());
        }
        assert_eq!(measured.len(), sums.len());
    }
}

/// Integers with few enough bits that the parts represent them, and f32 their sums: of at most 64 products of 500 · 500. If
/// both operands are in two parts, the product of both low parts is omitted: there one operand has no low part.
#[test]
fn integers_are_exact_to_the_bit() {
    for module in modules().iter().chain(&gradients()) {
        let parts = n_parts(module);
        let values = [0, 1].map(|operand| -> Vec<f32> {
            let is_short = parts[operand] == 1 || parts == [2, 2] && operand == 1;
            let greatest = if is_short { 256 } else { 500 };
            let n = n_elements(module, operand);
            (0..n).map(|place| ((place * 7919 + operand * 31) % (2 * greatest + 1)) as f32 - greatest as f32).collect()
        });
        let measured = in_f32(&rewritten(module), [&values[0], &values[1]]);
        let wide = [0, 1].map(|operand| values[operand].iter().map(|&x| f64::from(x)).collect::<Vec<f64>>());
        let exact = in_f64(module, [&wide[0], &wide[1]]);
        let measured: Vec<f64> = measured.into_iter().map(f64::from).collect();
        assert_eq!(measured, exact, "{}", print(module, &PrintOptions::default()));
    }
}

#[test]
fn what_is_a_tpus_already_stays_byte_for_byte() {
    let text = |module: &Module| print(module, &PrintOptions::default());
    for module in modules() {
        let once = rewritten(&module);
        assert_ne!(text(&module), text(&once));
        assert_eq!(text(&rewritten(&once)), text(&once), "a second time changes nothing");
    }
    for body in [
        "  x = f32[4]{0} parameter(0)\n  y = bf16[4]{0} convert(x)\n  ROOT z = f32[4]{0} exponential(x)\n",
        "  x = bf16[4,4]{1,0} parameter(0)\n  ROOT z = f32[4,4]{1,0} dot(x, x), lhs_contracting_dims={1}, \
         rhs_contracting_dims={0}, operand_precision={highest,highest}\n",
        "  x = s8[4,4]{1,0} parameter(0)\n  ROOT z = s32[4,4]{1,0} dot(x, x), lhs_contracting_dims={1}, \
         rhs_contracting_dims={0}\n",
    ] {
        let module = parse(&format!("HloModule m\n\nENTRY m {{\n{body}}}\n"), "m.txt").unwrap();
        let (same, report) = as_tpu(&module, &TpuArithmetic::V3).unwrap();
        assert_eq!(same, module);
        assert!(report.products.is_empty() && report.left.is_empty());
        assert_eq!(encode::to_bytes(&same).unwrap(), encode::to_bytes(&module).unwrap());
    }
}

/// JAX's debug columns have no meaning: a product that has them is rewritten like any other.
#[test]
fn a_product_with_debug_columns_is_rewritten() {
    let step = |columns: &str| {
        format!(
            "HloModule step\n\nENTRY main {{\n  x = f32[8,32] parameter(0)\n  w = f32[32,16] parameter(1)\n  \
             ROOT y = f32[8,16] dot(x, w), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}{columns}\n}}\n"
        )
    };
    for columns in ["", ", metadata={op_name=\"step/dot\" source_end_line=9 source_column=3 source_end_column=12}"] {
        let module = parse(&step(columns), "step").unwrap();
        let (_, report) = as_tpu(&module, &TpuArithmetic::V2).unwrap();
        assert_eq!((report.products.len(), report.left.len()), (1, 0), "{columns:?}");
    }
}

/// Products in loops and branches too; those whose arithmetic on a TPU is not known are left, and reported.
#[test]
fn products_in_called_computations_are_rewritten_and_others_are_said() {
    let text = "HloModule m\n\nbody {\n  s = (f32[4,4], s32[]) parameter(0)\n  x = f32[4,4] get-tuple-element(s), index=0\n  \
                n = s32[] get-tuple-element(s), index=1\n  one = s32[] constant(1)\n  m = s32[] add(n, one)\n  \
                d = f32[4,4] dot(x, x), lhs_contracting_dims={1}, rhs_contracting_dims={0}\n  \
                ROOT t = (f32[4,4], s32[]) tuple(d, m)\n}\n\ncond {\n  s = (f32[4,4], s32[]) parameter(0)\n  \
                n = s32[] get-tuple-element(s), index=1\n  two = s32[] constant(2)\n  \
                ROOT l = pred[] compare(n, two), direction=LT\n}\n\nENTRY m {\n  x = f32[4,4] parameter(0)\n  \
                n = s32[] constant(0)\n  s = (f32[4,4], s32[]) tuple(x, n)\n  w = (f32[4,4], s32[]) while(s), \
                condition=cond, body=body\n  y = f32[4,4] get-tuple-element(w), index=0\n  h = f16[4,4] convert(y)\n  \
                p = f16[4,4] dot(h, h), lhs_contracting_dims={1}, rhs_contracting_dims={0}\n  \
                q = f32[4,4] dot(x, x), lhs_contracting_dims={1}, rhs_contracting_dims={0}, \
                algorithm=dot_tf32_tf32_f32\n  ROOT t = (f32[4,4], f16[4,4], f32[4,4]) tuple(y, p, q)\n}\n";
    let module = parse(text, "m.txt").unwrap();
    let (rewritten, report) = as_tpu(&module, &TpuArithmetic::V2).unwrap();
    verify(&rewritten).unwrap();
    let product_of = |name: &str| report.products.iter().find(|product| product.instruction == name);
    assert_eq!((report.products.len(), product_of("d").unwrap().n_products), (1, 1));
    let left: Vec<&str> = report.left.iter().map(|left| left.why.as_str()).collect();
    assert_eq!(
        left,
        [
            "how a TPU multiplies f16 by f16 into f16 is not known",
            "a TPU's compiler refuses the algorithm `dot_tf32_tf32_f32`"
        ]
    );
}

/// An infinity stays one with one product, and makes NaN with more; subnormal numbers are zeros.
#[test]
fn infinities_and_subnormal_numbers_are_what_the_split_makes_of_them() {
    let products_at = |precision: &str| {
        let case = case("1", "1", "", "lhs_contracting_dims={0}, rhs_contracting_dims={0}");
        let module = module(&case, "dot", &format!("operand_precision={{{precision},{precision}}}"));
        let rewritten = rewritten(&module);
        move |x: f32, y: f32| in_f32(&rewritten, [&[x], &[y]])[0]
    };
    let (one, three) = (products_at("default"), products_at("high"));
    assert_eq!(one(f32::INFINITY, 2.0), f32::INFINITY);
    assert_eq!(one(f32::MAX, 0.5), f32::INFINITY, "the largest f32 is over bf16's greatest");
    assert!(three(f32::INFINITY, 2.0).is_nan() && three(f32::MAX, 0.5).is_nan());
    assert!(one(f32::NAN, 2.0).is_nan());
    assert_eq!(one(f32::MIN_POSITIVE / 2.0, 2f32.powi(100)), 0.0);
    // The low part of a number near the smallest is subnormal: the number is its high part.
    let small = f32::MIN_POSITIVE * (1.0 + 2f32.powi(-10));
    assert_eq!(three(small, 1.0), f32::MIN_POSITIVE);
}

#[test]
fn the_order_of_terms_is_the_smallest_first() {
    let products = |l, r| Split::of_parts(l, r).products();
    assert_eq!(products(1, 1), [(0, 0)]);
    assert_eq!(products(2, 2), [(1, 0), (0, 1), (0, 0)]);
    assert_eq!(products(3, 3), [(1, 1), (2, 0), (0, 2), (1, 0), (0, 1), (0, 0)]);
    assert_eq!((products(2, 1).len(), products(1, 3).len(), products(3, 2).len()), (2, 3, 5));
}

#[test]
fn what_cannot_be_rewritten_is_an_error_with_its_reason() {
    let mut module = modules().swap_remove(0);
    let program = encode::to_bytes(&module).unwrap();
    let refusing = client().clone().rewriting(|_| Err("there is no such arithmetic".into()));
    let error = refusing.compile(&program, &CompileOptions::default()).unwrap_err();
    assert_eq!(error.to_string(), "the program cannot be rewritten before it is compiled: there is no such arithmetic");
    let entry = module.entry;
    module.computations[entry.idx()].instructions.last_mut().unwrap().shape = Shape::array(DType::F32, [9]);
    let error = as_tpu(&module, &TpuArithmetic::V2).unwrap_err().to_string();
    let expected = "the module does not verify, so its products were not rewritten as a TPU's:\nm/%product: ";
    assert!(error.starts_with(expected), "{error}");
}
