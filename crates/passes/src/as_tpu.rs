//! Emulates a TPU's products on any device: f32 dots and convolutions are rewritten into the bf16 products that its
//! matrix unit computes.
//!
//! A TPU v2 or v3 multiplies bf16 numbers and accumulates in f32. An f32 operand is split into bf16 parts, as many as
//! its `operand_precision` asks for ([`Split`]), and the significant products of parts are computed. This pass writes
//! that out, so that a CPU shows the accuracy of f32 on a TPU.
//!
//! # What is computed
//! The parts of an f32 operand `x` are `p0 = bf16(x)`, `p1 = bf16(x − p0)`, `p2 = bf16(x − p0 − p1)`: conversions round to
//! nearest even and overflow to infinity, the differences are exact, and a subnormal number is a zero of its sign wherever
//! a conversion reads one. With `l` and `r` parts, the products are those of `lhs.p(i)` and `rhs.p(j)` with
//! `i + j < max(l, r)`: one, three or six where both operands have one precision. Each is a product of bf16 arrays that
//! gives f32, so that single products are exact. They are added in f32, the smallest first: of greater `i + j` first, of
//! equal ones the greater `min(i, j)`, then the greater `i` (`X6`: 1·1, 2·0, 0·2, 1·0, 0·1, 0·0). A subnormal result is a
//! zero.
//!
//! An infinity, or a number over bf16's largest (2^128 − 2^119 rounds to infinity), has `p0 = inf` and `p1 = inf − inf`,
//! a NaN: with one product it stays an infinity, with more it makes NaN. Nothing is put in the place of a NaN.
//!
//! A rewritten instruction becomes a `call`, with the same name, of a computation that holds all this. Nothing else
//! changes: a module without such an instruction comes out unchanged, and so does a module that this pass has written.
//! `docs/AS_TPU.md` lists what stays as it is, and what is not known about a TPU.

use std::collections::BTreeSet;
use std::fmt;

use serde::Serialize;

use super::{PassError, PassErrorKind};
use bf16scope_hlo::ops::{BinaryOp, Comparison, OperandPrecision, PrecisionConfig, UnaryOp};
use bf16scope_hlo::{CompId, DType, Emitter, InstrId, Instruction, Module, Op, Shape, verify};

/// The TPUs whose arithmetic can be emulated. As far as is known, both have the same matrix unit: one rule holds for
/// both.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub enum TpuArithmetic {
    /// TPU v2.
    #[serde(rename = "tpu-v2")]
    V2,
    /// TPU v3.
    #[serde(rename = "tpu-v3")]
    V3,
}

impl TpuArithmetic {
    /// All of them.
    pub const ALL: [TpuArithmetic; 2] = [TpuArithmetic::V2, TpuArithmetic::V3];

    /// The name, such as `tpu-v2`.
    pub fn name(self) -> &'static str {
        match self {
            TpuArithmetic::V2 => "tpu-v2",
            TpuArithmetic::V3 => "tpu-v3",
        }
    }
}

impl fmt::Display for TpuArithmetic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl std::str::FromStr for TpuArithmetic {
    type Err = String;

    fn from_str(text: &str) -> Result<TpuArithmetic, String> {
        let names = || TpuArithmetic::ALL.map(TpuArithmetic::name).join(" or ");
        let arithmetic = TpuArithmetic::ALL.into_iter().find(|tpu| tpu.name() == text);
        arithmetic.ok_or_else(|| format!("expected {}", names()))
    }
}

/// How the operands of a product are split.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Split {
    /// The number of parts of lhs.
    pub lhs: u8,
    /// The number of parts of rhs.
    pub rhs: u8,
}

impl Split {
    /// A split into these numbers of parts.
    pub fn of_parts(lhs: u8, rhs: u8) -> Split {
        Split { lhs, rhs }
    }

    /// The products: pairs of the part numbers of lhs and rhs, in the order in which they are added.
    pub fn products(self) -> Vec<(u8, u8)> {
        let all = (0..self.lhs).flat_map(|i| (0..self.rhs).map(move |j| (i, j)));
        let mut products: Vec<(u8, u8)> = all.filter(|(i, j)| i + j < self.lhs.max(self.rhs)).collect();
        products.sort_by_key(|&(i, j)| std::cmp::Reverse((i + j, i.min(j), i)));
        products
    }

    /// The split that an instruction asks for; the reason if a TPU does not have its algorithm.
    fn from_config(precision: &PrecisionConfig, lhs: DType, rhs: DType) -> Result<Split, String> {
        let whole = |dtype: DType, parts: u8| if dtype == DType::BF16 { 1 } else { parts };
        if let Some(algorithm) = &precision.algorithm {
            let parts = match algorithm.as_str() {
                "dot_bf16_bf16_f32" => 1,
                "dot_bf16_bf16_f32_x3" => 2,
                "dot_bf16_bf16_f32_x6" => 3,
                other => return Err(format!("a TPU's compiler refuses the algorithm `{other}`")),
            };
            return Ok(Split::of_parts(whole(lhs, parts), whole(rhs, parts)));
        }
        let parts = |side: usize, dtype: DType| {
            let requested = precision.operand_precision.get(side).copied().unwrap_or(OperandPrecision::Default);
            whole(
                dtype,
                match requested {
                    OperandPrecision::Default => 1,
                    OperandPrecision::High => 2,
                    OperandPrecision::Highest => 3,
                },
            )
        };
        Ok(Split::of_parts(parts(0, lhs), parts(1, rhs)))
    }
}

/// A rewritten instruction.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct SplitProduct {
    /// Its computation.
    pub computation: String,
    /// Its name.
    pub instruction: String,
    /// Its opcode.
    pub opcode: String,
    /// How its operands are split.
    pub split: Split,
    /// The number of bf16 products that replace it.
    pub n_products: usize,
}

/// A floating-point dot or convolution that stays as it is, though a TPU would compute it differently.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct LeftProduct {
    /// Its computation.
    pub computation: String,
    /// Its name.
    pub instruction: String,
    /// The reason.
    pub why: String,
}

/// The report of [`run`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct AsTpuReport {
    /// The emulated arithmetic.
    pub arithmetic: TpuArithmetic,
    /// The rewritten instructions, in the module's order.
    pub products: Vec<SplitProduct>,
    /// The instructions that stay though a TPU would compute them differently.
    pub left: Vec<LeftProduct>,
}

/// Rewrites the products of a module as a TPU computes them.
///
/// # Errors
/// The module does not verify.
pub fn run(module: &Module, arithmetic: &TpuArithmetic) -> Result<(Module, AsTpuReport), PassError> {
    verify(module).map_err(|errors| {
        let text = format!("the module does not verify, so its products were not rewritten as a TPU's:\n{errors}");
        PassError::new(PassErrorKind::Invalid, text)
    })?;
    let mut report = AsTpuReport { arithmetic: *arithmetic, products: Vec::new(), left: Vec::new() };
    let fused = inside_opaque(module);
    let mut rewritten = module.clone();
    for (place, computation) in module.computations.iter().enumerate() {
        for (idx, instr) in computation.instructions.iter().enumerate() {
            let Some(precision) = instr.op.precision() else { continue };
            let opcode = instr.op.opcode();
            let place_of = || (computation.name.clone(), instr.name.clone());
            let shape = |id: InstrId| &computation.instr(id).shape;
            let [lhs, rhs] = [shape(instr.operands[0]), shape(instr.operands[1])];
            let split = match judged(instr, precision, [lhs, rhs], fused.contains(&CompId(place as u32))) {
                Judged::Split(split) => split,
                Judged::Same => continue,
                Judged::Left(why) => {
                    let (computation, instruction) = place_of();
                    report.left.push(LeftProduct { computation, instruction, why });
                    continue;
                }
            };
            let to_apply = written(&mut rewritten, &opcode, instr, [lhs, rhs], split);
            rewritten.computations[place].instructions[idx].op = Op::Call { to_apply };
            let (computation, instruction) = place_of();
            let n_products = split.products().len();
            report.products.push(SplitProduct {
                computation,
                instruction,
                opcode: opcode.into_owned(),
                split,
                n_products,
            });
        }
    }
    verify(&rewritten).map_err(|errors| PassError::broken("rewriting products as a TPU's", &errors))?;
    Ok((rewritten, report))
}

/// The decision on a product.
enum Judged {
    Split(Split),
    /// A TPU computes it as written, or it is of integers.
    Same,
    Left(String),
}

fn judged(instr: &Instruction, precision: &PrecisionConfig, operands: [&Shape; 2], is_fused: bool) -> Judged {
    let [Some(lhs), Some(rhs), Some(result)] = [operands[0], operands[1], &instr.shape].map(Shape::as_array) else {
        return Judged::Same;
    };
    let is_narrow = |dtype: DType| matches!(dtype, DType::F32 | DType::BF16);
    match (lhs.dtype, rhs.dtype) {
        (DType::BF16, DType::BF16) => return Judged::Same,
        (l, r) if !(l.is_float() || l.is_complex() || r.is_float() || r.is_complex()) => return Judged::Same,
        (l, r) if is_narrow(l) && is_narrow(r) && result.dtype == DType::F32 => {}
        (l, r) => {
            let why = format!("how a TPU multiplies {l} by {r} into {} is not known", result.dtype);
            return Judged::Left(why);
        }
    }
    if lhs.has_dynamic() || rhs.has_dynamic() {
        return Judged::Left("its operands have a size that varies".to_string());
    }
    if is_fused {
        return Judged::Left("it is inside a fusion: rewrite the module before optimization".to_string());
    }
    if instr.unmodelled.has_meaning() {
        return Judged::Left("it says something that has no meaning here".to_string());
    }
    Split::from_config(precision, lhs.dtype, rhs.dtype).map_or_else(Judged::Left, Judged::Split)
}

/// The computations that an op of unknown meaning calls, directly or not: these may not hold a `call`.
fn inside_opaque(module: &Module) -> BTreeSet<CompId> {
    let instructions = module.computations.iter().flat_map(|computation| &computation.instructions);
    let opaque = instructions.filter(|instr| matches!(instr.op, Op::Opaque(_) | Op::CustomCall(_)));
    let mut pending: Vec<CompId> = opaque.flat_map(|instr| instr.op.called()).collect();
    let mut reached = BTreeSet::new();
    while let Some(comp) = pending.pop() {
        if reached.insert(comp) {
            pending.extend(module.comp(comp).instructions.iter().flat_map(|instr| instr.op.called()));
        }
    }
    reached
}

/// The computation that replaces a product; equal ones are shared.
fn written(module: &mut Module, opcode: &str, instr: &Instruction, operands: [&Shape; 2], split: Split) -> CompId {
    // For bf16 operands the precision makes no difference.
    let mut op = instr.op.clone();
    op.precision_mut().into_iter().for_each(|precision| *precision = PrecisionConfig::default());
    module.made_once(&format!("as_tpu_{opcode}"), |module, comp| {
        let whole = std::mem::replace(module, Module::new(""));
        let e = Emitter::new(whole, comp);
        let [lhs, rhs] = [0, 1].map(|number: usize| e.parameter(number as i64, operands[number]));
        let (lhs, rhs) = (parts(&e, lhs, split.lhs), parts(&e, rhs, split.rhs));
        let declared = instr.shape.without_layout();
        let mut sum = None;
        for (i, j) in split.products() {
            let term = e.emit(op.clone(), &[lhs[usize::from(i)], rhs[usize::from(j)]], Some(&declared));
            sum = Some(sum.map_or(term, |sum| e.add(sum, term)));
        }
        flushed(&e, sum.expect("the product of the first parts is always taken"));
        *module = e.finish().expect("a verified product is one of its operands' parts too");
    })
}

/// The parts of an operand in bf16, the largest first.
fn parts(e: &Emitter, operand: InstrId, n: u8) -> Vec<InstrId> {
    if e.dtype(operand) == DType::BF16 {
        return vec![operand];
    }
    let mut rest = operand;
    let mut parts = Vec::new();
    for number in 0..n {
        rest = flushed(e, rest);
        let part = e.convert(rest, DType::BF16);
        parts.push(part);
        if number + 1 < n {
            rest = e.sub(rest, e.convert(part, DType::F32));
        }
    }
    parts
}

/// Replaces subnormal f32 numbers by zeros of their sign; a NaN passes.
fn flushed(e: &Emitter, x: InstrId) -> InstrId {
    let magnitude = e.unary(UnaryOp::Abs, x);
    let least = e.full_like(x, f64::from(f32::MIN_POSITIVE));
    let is_subnormal = e.compare(Comparison::Lt, magnitude, least);
    let zero = e.binary(BinaryOp::Multiply, x, e.zeros_like(x));
    e.select(is_subnormal, zero, x)
}
