//! The emitter: appends instructions to one computation of a module, with short methods for the common ops.
//!
//! The graph builder and the passes write HLO through it, so each convenience exists once. Methods never fail: the emitter
//! keeps the first broken rule, whose result is [`POISON`]; everything computed from poison is poison and emits nothing,
//! and [`Emitter::finish`] returns the error. It infers nothing itself: shapes come from
//! [`ops::infer_shape`](super::ops::infer_shape).

use super::ops::{BatchNorm, BinaryOp, Comparison, DotDims, PadDim, PrecisionConfig, RuleError, SliceDim, UnaryOp};
use super::round::{bf16_from_f64, f16_from_f64};
use super::{ArrayShape, CompId, DType, DTypeClass, InstrId, Literal, Metadata, Module, Op, Shape};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;

mod custom_vjp;

pub use custom_vjp::{CustomVjp, VjpRule};

/// The result of an emission that broke a rule. It has no shape, dtype or dims.
pub const POISON: InstrId = InstrId(u32::MAX);

/// Writes one computation of a module that it owns. Methods take `&self`, so calls nest: `e.mul(g, e.cos(x))`.
#[derive(Debug)]
pub struct Emitter {
    module: RefCell<Module>,
    comp: CompId,
    metadata: RefCell<Metadata>,
    error: RefCell<Option<EmitError>>,
    /// The scalar constants so far, by dtype and bits of the f64 value: each is emitted once.
    scalars: RefCell<BTreeMap<(DType, u64), InstrId>>,
    custom_vjps: RefCell<BTreeMap<InstrId, CustomVjp>>,
}

/// A reference to a value of the computation that an [`Emitter`] writes: an id, which is not checked, or a handle that
/// knows its graph.
pub trait Value {
    /// Its id in the computation of `e`; a value of another one is [`POISON`], with an error in `e`.
    #[track_caller]
    fn id_in(&self, e: &Emitter) -> InstrId;
}

impl Value for InstrId {
    fn id_in(&self, _: &Emitter) -> InstrId {
        *self
    }
}

impl<V: Value> Value for &V {
    #[track_caller]
    fn id_in(&self, e: &Emitter) -> InstrId {
        (*self).id_in(e)
    }
}

/// A broken rule with where it happened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub struct EmitError {
    /// The opcode.
    pub opcode: String,
    /// The instruction's metadata: scoped name, user's file and line.
    pub metadata: Metadata,
    /// For each operand its scoped name (or instruction name) and shape.
    pub operands: Vec<(String, String)>,
    /// The broken rule.
    pub error: RuleError,
}

impl fmt::Display for EmitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Metadata { op_name, source_file, source_line, .. } = &self.metadata;
        if !op_name.is_empty() {
            write!(f, "{op_name}: ")?;
        }
        write!(f, "{}: {}", self.opcode, self.error.message)?;
        for (idx, (name, shape)) in self.operands.iter().enumerate() {
            write!(f, "\n  operand {idx}: {shape} {name}")?;
        }
        if !source_file.is_empty() {
            write!(f, "\n  at {source_file}:{source_line}")?;
        }
        match &self.error.help {
            Some(help) => write!(f, "\n  help: {help}"),
            None => Ok(()),
        }
    }
}

impl Emitter {
    /// An emitter that appends to computation `comp` of `module`.
    pub fn new(module: Module, comp: CompId) -> Emitter {
        Emitter {
            module: RefCell::new(module),
            comp,
            metadata: RefCell::default(),
            error: RefCell::default(),
            scalars: RefCell::default(),
            custom_vjps: RefCell::default(),
        }
    }

    /// The module, if no rule was broken.
    ///
    /// # Errors
    /// The first broken rule.
    pub fn finish(self) -> Result<Module, Box<EmitError>> {
        match self.error.into_inner() {
            Some(error) => Err(Box::new(error)),
            None => Ok(self.module.into_inner()),
        }
    }

    /// The first broken rule so far.
    pub fn error(&self) -> Option<EmitError> {
        self.error.borrow().clone()
    }

    /// The computation written to.
    pub fn comp(&self) -> CompId {
        self.comp
    }

    /// Sets the metadata of everything emitted from now on; returns the previous one.
    pub fn set_metadata(&self, metadata: Metadata) -> Metadata {
        self.metadata.replace(metadata)
    }

    /// Reads the module.
    pub fn with_module<R>(&self, read: impl FnOnce(&Module) -> R) -> R {
        read(&self.module.borrow())
    }

    /// Changes the module (to add computations, say). Not to be called from inside [`Emitter::with_module`].
    pub fn with_module_mut<R>(&self, change: impl FnOnce(&mut Module) -> R) -> R {
        change(&mut self.module.borrow_mut())
    }

    /// Takes the module out, and leaves an empty one.
    pub fn take_module(&self) -> Module {
        let mut module = self.module.borrow_mut();
        let name = module.name.clone();
        std::mem::replace(&mut *module, Module::new(name))
    }

    /// Number of instructions in the computation so far; the next one gets this id.
    pub fn n_instructions(&self) -> usize {
        self.module.borrow().comp(self.comp).instructions.len()
    }

    /// Shape of an instruction; [`Shape::Opaque`] for poison and for an id that the computation does not have.
    pub fn shape(&self, id: InstrId) -> Shape {
        let module = self.module.borrow();
        module.comp(self.comp).instructions.get(id.idx()).map_or(Shape::Opaque, |instr| instr.shape.clone())
    }

    /// The scoped name of an instruction, or its own if it has none, and its shape; empty for poison.
    pub fn describe(&self, id: InstrId) -> (String, String) {
        let module = self.module.borrow();
        let Some(instr) = module.comp(self.comp).instructions.get(id.idx()) else { return Default::default() };
        let name = if instr.metadata.op_name.is_empty() { &instr.name } else { &instr.metadata.op_name };
        (name.clone(), instr.shape.to_string())
    }

    /// Array shape of an instruction; `None` for poison, tuples and tokens.
    pub fn array(&self, id: InstrId) -> Option<ArrayShape> {
        self.shape(id).as_array().cloned()
    }

    /// Dims of an instruction; empty for poison and anything that is not an array.
    pub fn dims(&self, id: InstrId) -> Vec<i64> {
        self.shape(id).dims().to_vec()
    }

    /// Dtype of an instruction; f32 for poison and anything that is not an array.
    pub fn dtype(&self, id: InstrId) -> DType {
        self.shape(id).dtype().unwrap_or(DType::F32)
    }

    /// Records `error` as if an emission of `opcode` had broken a rule, unless there is an earlier error; returns
    /// poison.
    pub fn fail(&self, opcode: &str, operands: &[InstrId], error: RuleError) -> InstrId {
        if operands.contains(&POISON) {
            return POISON;
        }
        self.fail_described(opcode, operands.iter().map(|&id| self.describe(id)).collect(), error)
    }

    /// As [`Emitter::fail`], with results of [`Emitter::describe`]: for operands that are not all in this computation.
    pub fn fail_described(&self, opcode: &str, operands: Vec<(String, String)>, error: RuleError) -> InstrId {
        let (opcode, metadata) = (opcode.to_string(), self.metadata.borrow().clone());
        self.error.borrow_mut().get_or_insert(EmitError { opcode, metadata, operands, error });
        POISON
    }

    /// Emits an op; `declared` as for [`infer_shape`](super::ops::infer_shape).
    pub fn emit(&self, op: Op, operands: &[InstrId], declared: Option<&Shape>) -> InstrId {
        if operands.contains(&POISON) || self.error.borrow().is_some() {
            return POISON;
        }
        let n_instructions = self.n_instructions();
        if let Some(idx) = operands.iter().position(|id| id.idx() >= n_instructions) {
            let message = format!("operand {idx} is instruction {}, but there are {n_instructions}", operands[idx].0);
            let error =
                RuleError::new("emit/operand", message).with_help("an id is one of the computation it was made in");
            return self.fail(&op.opcode(), operands, error);
        }
        let metadata = self.metadata.borrow().clone();
        let opcode = op.opcode();
        let pushed = self.module.borrow_mut().push(self.comp, op, operands, declared, metadata);
        match pushed {
            Ok(id) => id,
            Err(error) => self.fail(&opcode, operands, error),
        }
    }

    /// The entry's or computation's parameter `number`.
    pub fn parameter(&self, number: i64, shape: &Shape) -> InstrId {
        self.emit(Op::parameter(number), &[], Some(shape))
    }

    /// A constant.
    pub fn constant(&self, literal: Literal) -> InstrId {
        self.emit(Op::Constant(literal), &[], None)
    }

    /// The scalar of `dtype` nearest to `value`; emitted once per value and dtype. Infinities become the least and the
    /// largest integer.
    ///
    /// # Errors
    /// The number is too large for the dtype; or it is a fraction or NaN for an integer, or neither 0 nor 1 for
    /// `pred`.
    pub fn scalar(&self, dtype: DType, value: f64) -> InstrId {
        let key = (dtype, value.to_bits());
        if let Some(&id) = self.scalars.borrow().get(&key) {
            return id;
        }
        let id = match Literal::scalar_of(dtype, value) {
            Some(_) if let Some(message) = misfit(dtype, value) => {
                let error = RuleError::new("constant/value", message);
                self.fail("constant", &[], error.with_help("use another dtype, or the value that is meant"))
            }
            Some(literal) => self.constant(literal),
            None => {
                let message = format!("a constant of {dtype} was asked for, which has no scalar rule");
                self.fail("constant", &[], RuleError::new("constant/dtype", message))
            }
        };
        if id != POISON {
            self.scalars.borrow_mut().insert(key, id);
        }
        id
    }

    /// Forgets the scalar constants and custom VJPs from instruction `n_kept` on: for a pass that rewrites those
    /// instructions.
    pub fn forget_from(&self, n_kept: usize) {
        self.scalars.borrow_mut().retain(|_, id| id.idx() < n_kept);
        self.custom_vjps.borrow_mut().retain(|id, _| id.idx() < n_kept);
    }

    /// An array of `dims` filled with `value`.
    pub fn full(&self, dtype: DType, dims: &[i64], value: f64) -> InstrId {
        let scalar = self.scalar(dtype, value);
        if dims.is_empty() { scalar } else { self.broadcast(scalar, &[], dims) }
    }

    /// An array like `x` filled with `value`.
    pub fn full_like(&self, x: InstrId, value: f64) -> InstrId {
        if x == POISON {
            return POISON;
        }
        self.full(self.dtype(x), &self.dims(x), value)
    }

    /// Zeros like `x`.
    pub fn zeros_like(&self, x: InstrId) -> InstrId {
        self.full_like(x, 0.0)
    }

    /// Ones like `x`.
    pub fn ones_like(&self, x: InstrId) -> InstrId {
        self.full_like(x, 1.0)
    }

    /// 0, 1, … along `dimension` of `dims`.
    pub fn iota(&self, dtype: DType, dims: &[i64], dimension: i64) -> InstrId {
        self.emit(Op::Iota { dimension }, &[], Some(&Shape::array(dtype, dims)))
    }

    /// A function of one operand.
    pub fn unary(&self, op: UnaryOp, x: InstrId) -> InstrId {
        self.emit(Op::Unary(op), &[x], None)
    }

    /// A function of two operands of one shape.
    pub fn binary(&self, op: BinaryOp, lhs: InstrId, rhs: InstrId) -> InstrId {
        self.emit(Op::Binary(op), &[lhs, rhs], None)
    }

    /// `lhs + rhs`.
    pub fn add(&self, lhs: InstrId, rhs: InstrId) -> InstrId {
        self.binary(BinaryOp::Add, lhs, rhs)
    }

    /// `lhs - rhs`.
    pub fn sub(&self, lhs: InstrId, rhs: InstrId) -> InstrId {
        self.binary(BinaryOp::Subtract, lhs, rhs)
    }

    /// `lhs * rhs`.
    pub fn mul(&self, lhs: InstrId, rhs: InstrId) -> InstrId {
        self.binary(BinaryOp::Multiply, lhs, rhs)
    }

    /// `lhs / rhs`.
    pub fn div(&self, lhs: InstrId, rhs: InstrId) -> InstrId {
        self.binary(BinaryOp::Divide, lhs, rhs)
    }

    /// `x * value`, the value in the dtype of `x`.
    pub fn mul_scalar(&self, x: InstrId, value: f64) -> InstrId {
        self.mul(x, self.full_like(x, value))
    }

    /// `x + value`, the value in the dtype of `x`.
    pub fn add_scalar(&self, x: InstrId, value: f64) -> InstrId {
        self.add(x, self.full_like(x, value))
    }

    /// `-x`.
    pub fn neg(&self, x: InstrId) -> InstrId {
        self.unary(UnaryOp::Negate, x)
    }

    /// Elementwise comparison, in the dtype's own order.
    pub fn compare(&self, direction: Comparison, lhs: InstrId, rhs: InstrId) -> InstrId {
        self.emit(Op::Compare { direction, kind: None }, &[lhs, rhs], None)
    }

    /// `pred ? on_true : on_false`.
    pub fn select(&self, pred: InstrId, on_true: InstrId, on_false: InstrId) -> InstrId {
        self.emit(Op::Select, &[pred, on_true, on_false], None)
    }

    /// To another dtype by value; `x` itself if it has that dtype.
    pub fn convert(&self, x: InstrId, dtype: DType) -> InstrId {
        if x == POISON || self.dtype(x) == dtype {
            return x;
        }
        self.emit(Op::Convert, &[x], Some(&Shape::array(dtype, self.dims(x))))
    }

    /// Broadcasts: operand dimension `i` becomes dimension `dimensions[i]` of `dims`.
    pub fn broadcast(&self, x: InstrId, dimensions: &[i64], dims: &[i64]) -> InstrId {
        let declared = Shape::array(self.dtype(x), dims);
        self.emit(Op::Broadcast { dimensions: dimensions.to_vec() }, &[x], Some(&declared))
    }

    /// The same elements in other dims; `x` itself if it has those dims.
    pub fn reshape(&self, x: InstrId, dims: &[i64]) -> InstrId {
        if x == POISON || self.dims(x) == dims {
            return x;
        }
        self.emit(Op::Reshape, &[x], Some(&Shape::array(self.dtype(x), dims)))
    }

    /// Permutes dimensions; `x` itself for the identity.
    pub fn transpose(&self, x: InstrId, permutation: &[i64]) -> InstrId {
        if permutation.iter().enumerate().all(|(i, &p)| i as i64 == p) && self.dims(x).len() == permutation.len() {
            return x;
        }
        self.emit(Op::Transpose { permutation: permutation.to_vec() }, &[x], None)
    }

    /// A strided box.
    pub fn slice(&self, x: InstrId, dims: &[SliceDim]) -> InstrId {
        self.emit(Op::Slice(dims.to_vec()), &[x], None)
    }

    /// Pads with a scalar.
    pub fn pad(&self, x: InstrId, value: InstrId, dims: &[PadDim]) -> InstrId {
        self.emit(Op::Pad(dims.to_vec()), &[x, value], None)
    }

    /// Joins along `dimension`.
    pub fn concatenate(&self, operands: &[InstrId], dimension: i64) -> InstrId {
        self.emit(Op::Concatenate { dimension }, operands, None)
    }

    /// Reverses dimensions.
    pub fn reverse(&self, x: InstrId, dimensions: &[i64]) -> InstrId {
        self.emit(Op::Reverse { dimensions: dimensions.to_vec() }, &[x], None)
    }

    /// Matrix product over the given dimensions, with one dtype. HLO also allows operands of two dtypes; emit
    /// [`Op::Dot`] for that. Two floats, or two integers, are an error here, as they are more often a forgotten cast.
    pub fn dot(&self, lhs: InstrId, rhs: InstrId, dims: DotDims) -> InstrId {
        if let (Some(l), Some(r)) = (self.array(lhs), self.array(rhs))
            && l.dtype.is_float() == r.dtype.is_float()
            && let Err(error) = super::ops::same_dtype("dot", ("lhs", &l), ("rhs", &r))
        {
            return self.fail("dot", &[lhs, rhs], error);
        }
        self.emit(Op::Dot { dims, precision: PrecisionConfig::default() }, &[lhs, rhs], None)
    }

    /// The same arrays behind an optimization barrier: computations on them are not merged with those on the original
    /// arrays, and wait until all arrays are available.
    pub fn barrier<const N: usize>(&self, arrays: [InstrId; N]) -> [InstrId; N] {
        let all = self.emit(Op::OptimizationBarrier, &[self.tuple(&arrays)], None);
        std::array::from_fn(|index| self.get_tuple_element(all, index))
    }

    /// The computation `(x, y) -> op(x, y)` on scalars of `dtype`.
    pub fn scalar_computation(&self, op: BinaryOp, dtype: DType) -> CompId {
        self.module.borrow_mut().scalar_computation(op, dtype)
    }

    /// Reduces `dimensions` with `op` (`add`, `multiply`, `maximum`, `minimum`, `or`, `xor`), from its neutral element,
    /// in the dtype of `x`; `x` itself if there are none to reduce.
    pub fn reduce(&self, op: BinaryOp, x: InstrId, dimensions: &[i64]) -> InstrId {
        if x == POISON || dimensions.is_empty() {
            return x;
        }
        let dtype = self.dtype(x);
        let Some(neutral) = neutral_element(op) else {
            let message = format!("{} has no neutral element to reduce from", op.name());
            return self.fail("reduce", &[x], RuleError::new("reduce/neutral", message));
        };
        // The least and largest of `pred` are false and true.
        let neutral = if dtype == DType::Pred { f64::from(u8::from(neutral > 0.0)) } else { neutral };
        let init = self.scalar(dtype, neutral);
        let to_apply = self.scalar_computation(op, dtype);
        self.emit(Op::Reduce { dimensions: dimensions.to_vec(), to_apply }, &[x, init], None)
    }

    /// Sums over `dimensions`, in the dtype of `x`.
    pub fn reduce_sum(&self, x: InstrId, dimensions: &[i64]) -> InstrId {
        self.reduce(BinaryOp::Add, x, dimensions)
    }

    /// A tuple.
    pub fn tuple(&self, elements: &[InstrId]) -> InstrId {
        self.emit(Op::Tuple, elements, None)
    }

    /// An element of a tuple.
    pub fn get_tuple_element(&self, tuple: InstrId, index: usize) -> InstrId {
        self.emit(Op::GetTupleElement { index: index as i64 }, &[tuple], None)
    }

    /// `batch-norm-training` → (normalised, mean, variance).
    pub fn batch_norm_training(&self, operands: [InstrId; 3], attributes: BatchNorm) -> [InstrId; 3] {
        let tuple = self.emit(Op::BatchNormTraining(attributes), &operands, None);
        [0, 1, 2].map(|index| self.get_tuple_element(tuple, index))
    }
}

/// Why `value` would change in `dtype`, by more than rounding.
fn misfit(dtype: DType, value: f64) -> Option<String> {
    let bits = dtype.bits();
    let fits = match dtype.class() {
        DTypeClass::Pred => value == 0.0 || value == 1.0,
        DTypeClass::Float => {
            let is_lost = match dtype {
                DType::F16 => f16_from_f64(value) & 0x7FFF == 0x7C00,
                DType::BF16 => bf16_from_f64(value) & 0x7FFF == 0x7F80,
                DType::F32 => (value as f32).is_infinite(),
                _ => false,
            };
            !(value.is_finite() && is_lost)
        }
        _ if value.is_infinite() => true,
        DTypeClass::Signed => {
            value.fract() == 0.0 && value >= -2f64.powi(bits as i32 - 1) && value < 2f64.powi(bits as i32 - 1)
        }
        DTypeClass::Unsigned => value.fract() == 0.0 && value >= 0.0 && value < 2f64.powi(bits as i32),
        _ => true,
    };
    (!fits).then(|| format!("{value:?} is not a value of {dtype}"))
}

/// The neutral element of `op`, for ops that a reduction may use.
fn neutral_element(op: BinaryOp) -> Option<f64> {
    match op {
        BinaryOp::Add | BinaryOp::Or | BinaryOp::Xor => Some(0.0),
        BinaryOp::Multiply => Some(1.0),
        BinaryOp::Maximum => Some(f64::NEG_INFINITY),
        BinaryOp::Minimum => Some(f64::INFINITY),
        // The neutral element of `and` is all ones, which is 1 for `pred` and has no f64 for integers.
        BinaryOp::And
        | BinaryOp::Atan2
        | BinaryOp::Complex
        | BinaryOp::Divide
        | BinaryOp::Power
        | BinaryOp::Remainder
        | BinaryOp::ShiftLeft
        | BinaryOp::ShiftRightArithmetic
        | BinaryOp::ShiftRightLogical
        | BinaryOp::Subtract => None,
    }
}
