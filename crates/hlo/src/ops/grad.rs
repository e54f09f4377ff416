//! The interface of gradient rules, and the helpers that rules share.
//!
//! Rules are vector-Jacobian products: they emit, as HLO, the cotangents of the operands from that of a result. A
//! family's rules are in `<family>/grad.rs`; the rule of each op is in [`decisions`](super::decisions::gradient).
//! `passes::grad` walks the computations.
//!
//! A cotangent has the dtype and dims of its primal value. Sums that a rule adds (over broadcast dimensions, windows,
//! gathered rows) run in f32 if the dtype is narrower, and round once at the end, as in TensorFlow's `BiasAddGrad`.

use super::{BinaryOp, Comparison, Op};
use crate::element::f64s;
use crate::{CompId, DType, Emitter, InstrId, Literal, Metadata, Module, Shape};
use std::borrow::Cow;

/// Why something has no gradient: a clause that fits behind "has no gradient: ".
pub type Why = Cow<'static, str>;

/// The result of a rule: one cotangent per operand, in order. `Err` says why this use of the op has none.
pub type Cotangents = Result<Vec<Cotangent>, Why>;

/// A gradient rule: emits the cotangents of the operands.
pub type Rule<'a> = Box<dyn Fn(&Vjp<'_>) -> Cotangents + 'a>;

/// How reverse mode treats an op.
pub enum Gradient<'a> {
    /// There is a rule. It may still refuse some attributes.
    Vjp(Rule<'a>),
    /// The result does not change with small changes of the operands, or does not have a floating-point dtype.
    Zero {
        /// A clause.
        why: &'static str,
    },
    /// There is no rule: it is an error if the output depends on a variable through this op.
    Undefined {
        /// A clause, with a remedy if there is one.
        why: Why,
    },
}

impl<'a> Gradient<'a> {
    /// A gradient by a rule.
    pub fn vjp(rule: impl Fn(&Vjp<'_>) -> Cotangents + 'a) -> Gradient<'a> {
        Gradient::Vjp(Box::new(rule))
    }

    /// No gradient, for this reason.
    pub fn undefined(why: &'static str) -> Gradient<'a> {
        Gradient::Undefined { why: Cow::Borrowed(why) }
    }
}

/// The cotangent of a value: one array per floating-point array, where it is not zero.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub enum Cotangent {
    /// Zero by structure: nothing was emitted for it.
    #[default]
    Zero,
    /// The cotangent of an array.
    Array(InstrId),
    /// The cotangent of a tuple, one per element.
    Tuple(Vec<Cotangent>),
}

impl Cotangent {
    /// Whether it is zero by structure.
    pub fn is_zero(&self) -> bool {
        match self {
            Cotangent::Zero => true,
            Cotangent::Array(_) => false,
            Cotangent::Tuple(elements) => elements.iter().all(Cotangent::is_zero),
        }
    }

    /// Element `index` of a tuple's cotangent; zero for anything else.
    pub fn element(&self, index: usize) -> Cotangent {
        match self {
            Cotangent::Tuple(elements) => elements.get(index).cloned().unwrap_or_default(),
            Cotangent::Zero | Cotangent::Array(_) => Cotangent::Zero,
        }
    }

    /// Adds `addend` to element `index` of a tuple's cotangent, which is extended only as far as needed.
    pub fn add_element(self, index: usize, addend: Cotangent, e: &Emitter) -> Cotangent {
        let mut elements = match self {
            Cotangent::Tuple(elements) => elements,
            Cotangent::Zero | Cotangent::Array(_) => Vec::new(),
        };
        if elements.len() <= index {
            elements.resize(index + 1, Cotangent::Zero);
        }
        elements[index] = std::mem::take(&mut elements[index]).add(addend, e);
        Cotangent::Tuple(elements)
    }

    /// The array, if it is one.
    pub fn array(&self) -> Option<InstrId> {
        match self {
            Cotangent::Array(id) => Some(*id),
            Cotangent::Zero | Cotangent::Tuple(_) => None,
        }
    }

    /// The sum of two cotangents of one value, in their dtype.
    pub fn add(self, other: Cotangent, e: &Emitter) -> Cotangent {
        match (self, other) {
            (Cotangent::Zero, other) => other,
            (this, Cotangent::Zero) => this,
            (Cotangent::Array(lhs), Cotangent::Array(rhs)) => Cotangent::Array(e.add(lhs, rhs)),
            (Cotangent::Tuple(mut lhs), Cotangent::Tuple(rhs)) => {
                lhs.resize(lhs.len().max(rhs.len()), Cotangent::Zero);
                for (element, addend) in lhs.iter_mut().zip(rhs) {
                    *element = std::mem::take(element).add(addend, e);
                }
                Cotangent::Tuple(lhs)
            }
            // A value is either an array or a tuple.
            (this @ Cotangent::Array(_), Cotangent::Tuple(_)) | (this @ Cotangent::Tuple(_), Cotangent::Array(_)) => {
                this
            }
        }
    }
}

/// Reverse mode's support for rules of ops that call computations.
pub trait CalledGradient {
    /// A computation whose parameters are those of `comp` followed by one per array in `cotangent` (depth first), and
    /// whose result is the tuple of the cotangents of the leaves of the wanted parameters (depth first, floating
    /// leaves only).
    ///
    /// # Errors
    /// The reason why an instruction inside has no gradient, naming it.
    fn vjp_computation(&self, comp: CompId, wanted: &[bool], cotangent: &Cotangent) -> Result<CompId, Why>;

    /// The cotangents of the operand of a `while`, given those of its result.
    ///
    /// # Errors
    /// The reason why the loop has no gradient: its trip count is not known, or an instruction inside has none.
    fn while_loop(&self, vjp: &Vjp<'_>, condition: CompId, body: CompId) -> Cotangents;
}

/// The operands of a rule: the instruction, which operands matter, and the cotangent of its result.
pub struct Vjp<'a> {
    /// Where to emit. Its metadata already names the primal.
    pub e: &'a Emitter,
    /// The primal's operands.
    pub operands: &'a [InstrId],
    /// The primal itself: its value can be used.
    pub result: InstrId,
    /// For each operand whether its cotangent is used.
    pub wanted: &'a [bool],
    /// The cotangent of the result; not zero.
    pub cotangent: &'a Cotangent,
    /// Reverse mode for called computations.
    pub called: &'a dyn CalledGradient,
}

impl Vjp<'_> {
    /// The cotangent of a result that is an array.
    pub fn g(&self) -> InstrId {
        self.cotangent.array().expect("reverse mode calls a rule with a cotangent of the result's kind")
    }

    /// Operand `idx`.
    pub fn operand(&self, idx: usize) -> InstrId {
        self.operands[idx]
    }

    /// Whether the cotangent of operand `idx` is used.
    pub fn wants(&self, idx: usize) -> bool {
        self.wanted.get(idx).copied().unwrap_or(false)
    }

    /// Calls `rule` with the index of each wanted operand; zero for the others.
    pub fn each(&self, mut rule: impl FnMut(usize) -> InstrId) -> Cotangents {
        let one = |idx| if self.wants(idx) { Cotangent::Array(rule(idx)) } else { Cotangent::Zero };
        Ok((0..self.operands.len()).map(one).collect())
    }
}

/// The dtype in which sums over values of `dtype` run: f32 for narrower floats, else the dtype itself.
pub(crate) fn accum_dtype(dtype: DType) -> DType {
    if dtype.is_float() && dtype.bits() < 32 { DType::F32 } else { dtype }
}

/// Sums over `dimensions` in [`accum_dtype`], and rounds back to the dtype of `x`.
pub(crate) fn sum(e: &Emitter, x: InstrId, dimensions: &[i64]) -> InstrId {
    if dimensions.is_empty() {
        return x;
    }
    let dtype = e.dtype(x);
    let total = e.reduce_sum(e.convert(x, accum_dtype(dtype)), dimensions);
    e.convert(total, dtype)
}

/// Sums over everything.
pub(crate) fn sum_all(e: &Emitter, x: InstrId) -> InstrId {
    let dimensions: Vec<i64> = (0..e.dims(x).len() as i64).collect();
    sum(e, x, &dimensions)
}

/// A computation of two scalars, as reductions and scatters apply it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Combiner {
    /// One binary op of both, in either order.
    Binary(BinaryOp),
    /// One comparison of first and second, in this order.
    Compare(Comparison),
    /// The second operand: an update replaces the old value.
    Second,
    /// Anything else.
    Other,
}

/// The combiner of `comp`, if it is one op of its two parameters.
pub(crate) fn combiner(module: &Module, comp: CompId) -> Combiner {
    let computation = module.comp(comp);
    // A reduction of many arrays has a computation with as many parameters, so no more than three are looked for.
    let parameter = |id: InstrId| match computation.instr(id).op {
        Op::Parameter { number, .. } => Some((number, id)),
        _ => None,
    };
    let mut parameters: Vec<(i64, InstrId)> = computation.ids().filter_map(parameter).take(3).collect();
    parameters.sort();
    let &[(_, first), (_, second)] = parameters.as_slice() else { return Combiner::Other };
    let root = computation.instr(computation.root);
    let in_order = root.operands == [first, second];
    let swapped = root.operands == [second, first];
    match &root.op {
        Op::Binary(op) if in_order => Combiner::Binary(*op),
        Op::Binary(op @ (BinaryOp::Add | BinaryOp::Multiply | BinaryOp::Maximum | BinaryOp::Minimum)) if swapped => {
            Combiner::Binary(*op)
        }
        Op::Compare { direction, .. } if in_order => Combiner::Compare(*direction),
        Op::Parameter { number: 1, .. } => Combiner::Second,
        _ => Combiner::Other,
    }
}

/// The computation `(x, y) -> x direction y` on scalars of `dtype`; made once.
pub(crate) fn comparison_computation(module: &mut Module, direction: Comparison, dtype: DType) -> CompId {
    let name = format!("{}_{dtype}", direction.name().to_lowercase());
    module.made_once(&name, |module, comp| {
        let [lhs, rhs] = [0, 1].map(|number| {
            module.append(comp, Op::parameter(number), Vec::new(), Shape::scalar(dtype), Metadata::default())
        });
        let op = Op::Compare { direction, kind: None };
        module.append(comp, op, vec![lhs, rhs], Shape::scalar(DType::Pred), Metadata::default());
    })
}

/// A copy of a computation, whose instructions have fresh names and the same ids. Its callees are shared.
pub(crate) fn copy_computation(module: &mut Module, comp: CompId, name: &str) -> CompId {
    let original = module.comp(comp).clone();
    let copy = module.add_computation(name);
    for instr in original.instructions {
        module.append_copy(copy, instr);
    }
    module.computations[copy.idx()].root = original.root;
    copy
}

/// The number of every element of `id`, if it is a constant with equal elements behind broadcasts and conversions.
pub(crate) fn constant_value(e: &Emitter, id: InstrId) -> Option<f64> {
    e.with_module(|module| {
        let computation = module.comp(e.comp());
        let mut instr = computation.instr(id);
        loop {
            match &instr.op {
                Op::Constant(literal) => return splat_value(literal),
                Op::Broadcast { .. } | Op::Reshape | Op::Convert => instr = computation.instr(instr.operands[0]),
                _ => return None,
            }
        }
    })
}

/// The number of every element of a literal; `None` if they differ, the literal is empty, or Rust has no type for the dtype.
fn splat_value(literal: &Literal) -> Option<f64> {
    let Literal::Array { shape, bytes } = literal else { return None };
    if !matches!(shape.dtype, DType::F32 | DType::BF16 | DType::F16 | DType::F64 | DType::S32) {
        return None;
    }
    let mut numbers = f64s(shape.dtype, bytes)?;
    let first = numbers.next().filter(|first| !first.is_nan())?;
    numbers.all(|number| number == first).then_some(first)
}
