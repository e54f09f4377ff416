//! Tensors: handles on values of a graph, with a method per op.
//!
//! Methods spell ops as HLO does, in snake_case. Where a method does more than its op (broadcasting, accumulation in
//! f32), its doc says so. Axes may be negative: -1 is the last.

use super::Graph;
use bf16scope_hlo::ops::{BinaryOp, Comparison, DotDims, PadDim, RuleError, SliceDim, UnaryOp};
use bf16scope_hlo::{CustomVjp, DType, Emitter, InstrId, Op, POISON, Shape};
use std::fmt;
use std::rc::Rc;

/// A value of a [`Graph`]. Cheap to clone.
#[derive(Clone)]
pub struct Tensor {
    pub(super) graph: Graph,
    /// Its instruction, or [`POISON`] after an error.
    pub id: InstrId,
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tensor({:?}: {})", self.id, self.shape())
    }
}

macro_rules! unary_methods {
    ($($(#[$doc:meta])* $method:ident = $op:ident;)*) => {$(
        $(#[$doc])*
        #[track_caller]
        pub fn $method(&self) -> Tensor {
            self.unary(UnaryOp::$op)
        }
    )*};
}

macro_rules! compare_methods {
    ($($(#[$doc:meta])* $method:ident = $direction:ident;)*) => {$(
        $(#[$doc])*
        #[track_caller]
        pub fn $method(&self, rhs: &Tensor) -> Tensor {
            self.compare(Comparison::$direction, rhs)
        }
    )*};
}

impl Tensor {
    /// The graph it belongs to.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// Its shape; [`Shape::Opaque`] after an error.
    pub fn shape(&self) -> Shape {
        self.graph.emitter().shape(self.id)
    }

    /// Its dims; empty after an error.
    pub fn dims(&self) -> Vec<i64> {
        self.graph.emitter().dims(self.id)
    }

    /// Number of dimensions; 0 after an error.
    pub fn rank(&self) -> usize {
        self.dims().len()
    }

    /// Its dtype; f32 after an error.
    pub fn dtype(&self) -> DType {
        self.graph.emitter().dtype(self.id)
    }

    /// Whether it is the result of an error.
    pub fn is_poison(&self) -> bool {
        self.id == POISON
    }

    /// Renames the instruction that computes it, under the open scope: `block1/addition`.
    pub fn named(self, name: &str) -> Tensor {
        if !self.is_poison() {
            let full = self.graph.inner.path.join(name);
            self.graph.emitter().with_module_mut(|module| {
                let entry = module.entry;
                module.computations[entry.idx()].instructions[self.id.idx()].metadata.op_name = full;
            });
        }
        self
    }

    /// The scoped name of the instruction that computes it; empty after an error.
    pub fn name(&self) -> String {
        if self.is_poison() {
            return String::new();
        }
        self.graph.emitter().with_module(|module| module.entry().instr(self.id).metadata.op_name.clone())
    }

    /// Emits through the graph under the name `leaf`, if the operands `others` belong to this tensor's graph.
    #[track_caller]
    pub(crate) fn emit(&self, leaf: &str, others: &[&Tensor], emit: impl FnOnce(&Emitter) -> InstrId) -> Tensor {
        if !others.iter().all(|other| self.graph.is_of(other)) {
            self.graph.owns(leaf, &[&[self], others].concat());
            return self.graph.poison();
        }
        self.graph.emit_with(leaf, emit)
    }

    /// This array with a custom VJP: reverse mode goes from the result directly to `inputs`, not through the ops in
    /// between; `rule` emits the cotangent of each input from that of the result. The result is a separate value, a
    /// `copy`: other readers of this array are not affected, even if it is one of `inputs`.
    ///
    /// The rule is not part of the module. Take gradients in the graph ([`gradients`](bf16scope_passes::grad::gradients))
    /// before [`Graph::finish`]; a finished module refuses to be differentiated through the result.
    ///
    /// # Errors
    /// An array that is not floating; no inputs; inputs that it does not depend on, that are not arrays, or that belong
    /// to another graph. Cotangents of another number, dtype or dims than the inputs are errors when gradients are
    /// taken.
    #[track_caller]
    pub fn with_custom_vjp(
        &self,
        inputs: &[&Tensor],
        rule: impl Fn(&Emitter, InstrId) -> Vec<InstrId> + 'static,
    ) -> Tensor {
        self.attach(inputs, false, move |e, g, _| rule(e, g))
    }

    /// [`Tensor::with_custom_vjp`] for a layer that returns no other handle on its result: no copy is emitted unless
    /// something reads this array already. The rule receives which cotangents are needed, and may omit the others.
    #[track_caller]
    pub(crate) fn with_layer_vjp(
        self,
        inputs: &[&Tensor],
        rule: impl Fn(&Emitter, InstrId, &[bool]) -> Vec<InstrId> + 'static,
    ) -> Tensor {
        self.attach(inputs, true, rule)
    }

    #[track_caller]
    fn attach(
        &self,
        inputs: &[&Tensor],
        in_place: bool,
        rule: impl Fn(&Emitter, InstrId, &[bool]) -> Vec<InstrId> + 'static,
    ) -> Tensor {
        let ids: Vec<InstrId> = inputs.iter().map(|input| input.id).collect();
        self.emit("custom_vjp", inputs, |e| {
            let is_own = in_place && !ids.contains(&self.id) && e.is_unread(self.id);
            let result = if is_own { self.id } else { e.unary(UnaryOp::Copy, self.id) };
            e.set_custom_vjp(result, CustomVjp { inputs: ids, rule: Rc::new(rule) })
        })
    }

    /// A function of one operand.
    #[track_caller]
    pub fn unary(&self, op: UnaryOp) -> Tensor {
        self.emit(op.name(), &[], |e| e.unary(op, self.id))
    }

    unary_methods! {
        /// `|x|`.
        abs = Abs;
        /// `e^x`.
        exponential = Exp;
        /// Natural logarithm.
        log = Log;
        /// `log(1 + x)`.
        log_plus_one = Log1p;
        /// `-x`.
        negate = Negate;
        /// `1 / sqrt(x)`.
        rsqrt = Rsqrt;
        /// Square root.
        sqrt = Sqrt;
        /// `1 / (1 + e^-x)`.
        logistic = Logistic;
        /// Hyperbolic tangent.
        tanh = Tanh;
        /// Error function.
        erf = Erf;
        /// Cosine.
        cosine = Cos;
        /// Sine.
        sine = Sin;
        /// -1, 0 or 1.
        sign = Sign;
        /// Neither infinite nor NaN, as `pred`.
        is_finite = IsFinite;
        /// Largest integer not above.
        floor = Floor;
        /// Bitwise or logical not.
        not = Not;
    }

    compare_methods! {
        /// `lhs == rhs`, as `pred`.
        equal = Eq;
        /// `lhs >= rhs`, as `pred`.
        greater_equal = Ge;
        /// `lhs > rhs`, as `pred`.
        greater = Gt;
        /// `lhs <= rhs`, as `pred`.
        less_equal = Le;
        /// `lhs < rhs`, as `pred`.
        less = Lt;
        /// `lhs != rhs`, as `pred`.
        not_equal = Ne;
    }

    /// A function of two operands, broadcast to each other as NumPy does (right-aligned, sizes equal or 1). Dtypes must
    /// be equal: nothing is promoted.
    #[track_caller]
    pub fn binary(&self, op: BinaryOp, rhs: &Tensor) -> Tensor {
        let (lhs, rhs) = self.broadcast_together(rhs, op.name());
        self.emit(op.name(), &[&rhs], |e| e.binary(op, lhs.id, rhs.id))
    }

    /// [`Tensor::binary`] with a scalar in this tensor's dtype.
    #[track_caller]
    pub fn binary_scalar(&self, op: BinaryOp, value: f64) -> Tensor {
        self.emit(op.name(), &[], |e| e.binary(op, self.id, e.full_like(self.id, value)))
    }

    /// Comparison, broadcast as [`Tensor::binary`].
    #[track_caller]
    pub fn compare(&self, direction: Comparison, rhs: &Tensor) -> Tensor {
        let (lhs, rhs) = self.broadcast_together(rhs, "compare");
        self.emit("compare", &[&rhs], |e| e.compare(direction, lhs.id, rhs.id))
    }

    /// The greater of two, broadcast as [`Tensor::binary`].
    #[track_caller]
    pub fn maximum(&self, rhs: &Tensor) -> Tensor {
        self.binary(BinaryOp::Maximum, rhs)
    }

    /// The lesser of two, broadcast as [`Tensor::binary`].
    #[track_caller]
    pub fn minimum(&self, rhs: &Tensor) -> Tensor {
        self.binary(BinaryOp::Minimum, rhs)
    }

    /// `self ^ rhs`, broadcast as [`Tensor::binary`].
    #[track_caller]
    pub fn power(&self, rhs: &Tensor) -> Tensor {
        self.binary(BinaryOp::Power, rhs)
    }

    /// `self ? on_true : on_false`; this must be `pred`, all of one shape.
    #[track_caller]
    pub fn select(&self, on_true: &Tensor, on_false: &Tensor) -> Tensor {
        self.emit("select", &[on_true, on_false], |e| e.select(self.id, on_true.id, on_false.id))
    }

    /// Converts to another dtype by value (floats round to nearest even); the tensor itself if it has that dtype. Named
    /// `Cast`, as in TensorFlow.
    #[track_caller]
    pub fn cast(&self, dtype: DType) -> Tensor {
        self.emit("Cast", &[], |e| e.convert(self.id, dtype))
    }

    /// The same numbers, through which reverse mode takes no gradient: TensorFlow's `stop_gradient`. Their bits are read
    /// as whole numbers and back, which costs nothing once compiled. Whole numbers have no gradient anyway.
    ///
    /// # Errors
    /// Floats narrower than a byte.
    #[track_caller]
    pub fn stop_gradient(&self) -> Tensor {
        let dtype = self.dtype();
        if self.is_poison() || !dtype.is_float() {
            return self.clone();
        }
        let words = match dtype.bits() {
            8 => DType::U8,
            16 => DType::U16,
            32 => DType::U32,
            _ => DType::U64,
        };
        let [words, floats] = [words, dtype].map(|dtype| Shape::array(dtype, self.dims()));
        self.emit("stop_gradient", &[], |e| {
            let bits = e.emit(Op::BitcastConvert, &[self.id], Some(&words));
            e.emit(Op::BitcastConvert, &[bits], Some(&floats))
        })
    }

    /// The same elements in other dims.
    #[track_caller]
    pub fn reshape(&self, dims: impl Into<Vec<i64>>) -> Tensor {
        let dims = dims.into();
        self.emit("reshape", &[], |e| e.reshape(self.id, &dims))
    }

    /// Permutes dimensions: result dimension `i` is this one's `permutation[i]`.
    #[track_caller]
    pub fn transpose(&self, permutation: &[i64]) -> Tensor {
        self.emit("transpose", &[], |e| e.transpose(self.id, permutation))
    }

    /// HLO's broadcast: this dimension `i` becomes dimension `dimensions[i]` of `dims`.
    #[track_caller]
    pub fn broadcast_in_dim(&self, dims: &[i64], dimensions: &[i64]) -> Tensor {
        self.emit("broadcast", &[], |e| e.broadcast(self.id, dimensions, dims))
    }

    /// Repeats to `dims` as NumPy broadcasts: right-aligned, sizes equal or 1.
    #[track_caller]
    pub fn broadcast_to(&self, dims: &[i64]) -> Tensor {
        let source_dims = self.dims();
        if self.is_poison() || source_dims == dims {
            return self.clone();
        }
        let fits = source_dims.len() <= dims.len()
            && source_dims.iter().rev().zip(dims.iter().rev()).all(|(&from, &to)| from == to || from == 1);
        if !fits {
            let message = format!("dims {source_dims:?} do not broadcast to {dims:?}");
            let help = "dims are aligned at the right; each must be equal or 1";
            return self.graph.fail("broadcast", &[self], RuleError::new("broadcast/fit", message).with_help(help));
        }
        let offset = dims.len() - source_dims.len();
        let kept_axes: Vec<usize> =
            (0..source_dims.len()).filter(|&axis| source_dims[axis] == dims[axis + offset]).collect();
        let squeezed: Vec<i64> = kept_axes.iter().map(|&axis| source_dims[axis]).collect();
        let dimensions: Vec<i64> = kept_axes.iter().map(|&axis| (axis + offset) as i64).collect();
        self.emit("broadcast", &[], |e| e.broadcast(e.reshape(self.id, &squeezed), &dimensions, dims))
    }

    /// Both operands broadcast to their common dims, as NumPy does; unchanged where none exist (the op then reports).
    #[track_caller]
    fn broadcast_together(&self, rhs: &Tensor, what: &str) -> (Tensor, Tensor) {
        if !self.graph.owns(what, &[self, rhs]) {
            return (self.graph.poison(), self.graph.poison());
        }
        let (a, b) = (self.dims(), rhs.dims());
        if self.is_poison() || rhs.is_poison() || a == b {
            return (self.clone(), rhs.clone());
        }
        // Dtypes are checked first: a broadcast must not hide which two tensors the user passed.
        if self.dtype() != rhs.dtype() {
            return (self.clone(), rhs.clone());
        }
        let rank = a.len().max(b.len());
        let size =
            |dims: &[i64], axis: usize| (axis + dims.len()).checked_sub(rank).map_or(1, |own_axis| dims[own_axis]);
        let mut common = Vec::with_capacity(rank);
        for axis in 0..rank {
            match (size(&a, axis), size(&b, axis)) {
                (x, y) if x == y => common.push(x),
                (1, y) => common.push(y),
                (x, 1) => common.push(x),
                (x, y) => {
                    let message = format!("dims {a:?} and {b:?} do not broadcast: sizes {x} and {y} meet");
                    let error = RuleError::new("broadcast/fit", message)
                        .with_help("dims are aligned at the right; each pair must be equal or hold a 1");
                    let poison = self.graph.fail(what, &[self, rhs], error);
                    return (poison.clone(), poison);
                }
            }
        }
        (self.broadcast_to(&common), rhs.broadcast_to(&common))
    }

    /// A strided box.
    #[track_caller]
    pub fn slice(&self, dims: &[SliceDim]) -> Tensor {
        self.emit("slice", &[], |e| e.slice(self.id, dims))
    }

    /// Pads with `value` in this tensor's dtype.
    #[track_caller]
    pub fn pad(&self, value: f64, dims: &[PadDim]) -> Tensor {
        self.emit("pad", &[], |e| e.pad(self.id, e.scalar(e.dtype(self.id), value), dims))
    }

    /// Joins `tensors` along `axis`; there must be at least one.
    #[track_caller]
    pub fn concatenate(tensors: &[&Tensor], axis: i64) -> Tensor {
        let ids: Vec<InstrId> = tensors.iter().map(|tensor| tensor.id).collect();
        let axis = tensors[0].axis(axis);
        tensors[0].emit("concatenate", &tensors[1..], |e| e.concatenate(&ids, axis))
    }

    /// Reduces `axes` with `op`, in this tensor's dtype.
    #[track_caller]
    pub fn reduce(&self, op: BinaryOp, axes: &[i64]) -> Tensor {
        let axes = self.axes(axes);
        self.emit("reduce", &[], |e| e.reduce(op, self.id, &axes))
    }

    /// Sums over `axes`. bf16 and f16 are summed in f32 and the sum rounded once, as TensorFlow's `reduce_sum` does.
    #[track_caller]
    pub fn sum(&self, axes: &[i64]) -> Tensor {
        self.reduce_in_f32(axes, |sum| sum)
    }

    /// Mean over `axes`. bf16 and f16 are summed and divided in f32 and the quotient rounded once, as TensorFlow's
    /// `reduce_mean` does.
    #[track_caller]
    pub fn mean(&self, axes: &[i64]) -> Tensor {
        let _open = self.graph.open_layer();
        let dims = self.dims();
        let n: i64 = self.axes(axes).iter().filter_map(|&axis| dims.get(axis as usize)).product();
        self.reduce_in_f32(axes, |sum| sum.binary_scalar(BinaryOp::Divide, n as f64))
    }

    /// Largest over `axes`.
    #[track_caller]
    pub fn max(&self, axes: &[i64]) -> Tensor {
        self.reduce(BinaryOp::Maximum, axes)
    }

    #[track_caller]
    fn reduce_in_f32(&self, axes: &[i64], finish: impl FnOnce(Tensor) -> Tensor) -> Tensor {
        let dtype = self.dtype();
        match dtype {
            DType::BF16 | DType::F16 => finish(self.cast(DType::F32).reduce(BinaryOp::Add, axes)).cast(dtype),
            _ => finish(self.reduce(BinaryOp::Add, axes)),
        }
    }

    /// Generalised matrix product; the result has this tensor's dtype.
    #[track_caller]
    pub fn dot(&self, rhs: &Tensor, dims: DotDims) -> Tensor {
        self.emit("dot", &[rhs], |e| e.dot(self.id, rhs.id, dims))
    }

    /// Matrix product: `[…, k] · [k, n]` → `[…, n]`.
    #[track_caller]
    pub fn matmul(&self, rhs: &Tensor) -> Tensor {
        let lhs_contracting = vec![self.rank() as i64 - 1];
        self.dot(rhs, DotDims { lhs_contracting, rhs_contracting: vec![0], ..DotDims::default() })
    }

    /// An element of a tuple.
    #[track_caller]
    pub fn get_tuple_element(&self, index: usize) -> Tensor {
        self.emit("get-tuple-element", &[], |e| e.get_tuple_element(self.id, index))
    }

    /// `axis` counted from the front.
    pub fn axis(&self, axis: i64) -> i64 {
        if axis < 0 { axis + self.rank() as i64 } else { axis }
    }

    /// `axes` counted from the front.
    pub fn axes(&self, axes: &[i64]) -> Vec<i64> {
        axes.iter().map(|&axis| self.axis(axis)).collect()
    }
}
