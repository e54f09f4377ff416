//! The context of an op's lowering rule: the node, its inputs, and helpers that rules share.

use std::rc::Rc;

use super::constant::{Known, Number};
use super::{Gates, Lowering, Value};
use crate::error::{Problem, counted};
use crate::node::Node;
use bf16scope_hlo::ops::SliceDim;
use bf16scope_hlo::{DType, Emitter, InstrId, POISON};

/// A node whose op is being lowered.
pub(crate) struct Call<'a, 'g> {
    pub lowering: &'a mut Lowering<'g>,
    pub node: &'g Node,
    pub inputs: Vec<Value>,
    pub gates: Gates,
}

/// A rule's result: the values of the node's outputs.
pub(crate) type Outputs = Result<Vec<Value>, Problem>;

impl<'g> Call<'_, 'g> {
    /// The emitter.
    pub(crate) fn e(&self) -> &Emitter {
        &self.lowering.e
    }

    pub(crate) fn input(&self, number: usize) -> Result<&Value, Problem> {
        let n = self.inputs.len();
        self.inputs
            .get(number)
            .ok_or_else(|| Problem::new(format!("it has {}, expected at least {}", counted(n, "input"), number + 1)))
    }

    /// An input as an array; for a variable its value.
    pub(crate) fn array(&mut self, number: usize) -> Result<InstrId, Problem> {
        match *self.input(number)? {
            Value::Array(id) => Ok(id),
            Value::Variable(variable) => self.lowering.read(variable),
            Value::List(_) | Value::Store(_) | Value::Handle(_) => {
                Err(Problem::new(format!("input {number} is a list of arrays, expected an array"))
                    .with_help("stack the list: `TensorArray.stack()`"))
            }
            Value::Nothing => {
                Err(Problem::new(format!("input {number} is no array of numbers: text, or of the input pipeline"))
                    .with_help("cut the graph behind its input pipeline"))
            }
        }
    }

    /// All inputs from `first` on, as arrays.
    pub(crate) fn arrays(&mut self, first: usize, n: usize) -> Result<Vec<InstrId>, Problem> {
        (first..first + n).map(|number| self.array(number)).collect()
    }

    /// The first `N` inputs, as arrays.
    pub(crate) fn first<const N: usize>(&mut self) -> Result<[InstrId; N], Problem> {
        let mut all = [POISON; N];
        for (number, one) in all.iter_mut().enumerate() {
            *one = self.array(number)?;
        }
        Ok(all)
    }

    /// An input that is a variable: its index.
    pub(crate) fn variable(&self, number: usize) -> Result<usize, Problem> {
        match self.input(number)? {
            Value::Variable(variable) => Ok(*variable),
            _ => Err(Problem::new(format!("input {number} is no variable"))),
        }
    }

    pub(crate) fn dims(&self, id: InstrId) -> Vec<i64> {
        self.e().dims(id)
    }

    pub(crate) fn dtype(&self, id: InstrId) -> DType {
        self.e().dtype(id)
    }

    /// An input that has to be known at compile time.
    pub(crate) fn known(&mut self, number: usize) -> Result<Rc<Known>, Problem> {
        let id = self.array(number)?;
        self.lowering.known(id).ok_or_else(|| {
            Problem::new(format!("input {number} is computed when the program runs, and HLO needs it before"))
                .with_help("it is a shape, an axis, a size or a padding: make it a constant in the script")
        })
    }

    /// An input that has to be known, as integers.
    pub(crate) fn ints(&mut self, number: usize) -> Result<Vec<i64>, Problem> {
        let known = self.known(number)?;
        let whole = known.values.iter().map(|value| value.whole()).collect::<Option<Vec<i64>>>();
        whole.ok_or_else(|| Problem::new(format!("input {number} is {}, expected whole numbers", known.dtype)))
    }

    /// An input that has to be known, as a single integer.
    pub(crate) fn int(&mut self, number: usize) -> Result<i64, Problem> {
        let ints = self.ints(number)?;
        match ints[..] {
            [one] => Ok(one),
            _ => Err(Problem::new(format!("input {number} has {} elements, expected 1", ints.len()))),
        }
    }

    /// An input that has to be known, as a float: its first element.
    pub(crate) fn number(&mut self, number: usize) -> Result<f64, Problem> {
        let known = self.known(number)?;
        known.values.first().map(|value| Number::real(*value)).ok_or_else(|| Problem::new("it is empty"))
    }

    /// A dtype attribute as HLO's dtype.
    pub(crate) fn dtype_of(&self, name: &str) -> Result<DType, Problem> {
        match self.node.type_number(name) {
            None => Err(Problem::new(format!("its attribute `{name}` is missing"))),
            Some(number) => crate::dtypes::hlo(number).ok_or_else(|| {
                Problem::new(format!("its `{name}` is {}, which HLO does not have", crate::dtypes::name(number)))
            }),
        }
    }

    /// Axes of an array of this rank; negative ones count from the end.
    pub(crate) fn axes(&self, axes: &[i64], rank: usize) -> Result<Vec<i64>, Problem> {
        axes.iter().map(|axis| self.axis(*axis, rank)).collect()
    }

    /// An axis of an array of this rank; a negative one counts from the end.
    pub(crate) fn axis(&self, axis: i64, rank: usize) -> Result<i64, Problem> {
        let rank = rank as i64;
        let from_start = if axis < 0 { axis + rank } else { axis };
        match (0..rank).contains(&from_start) {
            true => Ok(from_start),
            false => Err(Problem::new(format!("axis {axis} is none of an array of rank {rank}"))),
        }
    }

    /// The dims that two shapes broadcast to, by NumPy's rule.
    pub(crate) fn broadcast_dims(&self, a: &[i64], b: &[i64]) -> Result<Vec<i64>, Problem> {
        let rank = a.len().max(b.len());
        let at = |dims: &[i64], axis: usize| (axis + dims.len()).checked_sub(rank).map_or(1, |axis| dims[axis]);
        (0..rank)
            .map(|axis| match (at(a, axis), at(b, axis)) {
                (a, b) if a == b => Ok(a),
                (1, b) => Ok(b),
                (a, 1) => Ok(a),
                _ => Err(Problem::new(format!("its inputs have dims {a:?} and {b:?}, which do not broadcast"))),
            })
            .collect()
    }

    /// An array broadcast to these dims, by NumPy's rule.
    pub(crate) fn broadcast_to(&self, x: InstrId, dims: &[i64]) -> Result<InstrId, Problem> {
        let from = self.dims(x);
        if from == dims {
            return Ok(x);
        }
        let offset = dims
            .len()
            .checked_sub(from.len())
            .ok_or_else(|| Problem::new(format!("an array of dims {from:?} does not broadcast to {dims:?}")))?;
        let fits = from.iter().zip(&dims[offset..]).all(|(from, to)| from == to || *from == 1);
        if !fits {
            return Err(Problem::new(format!("an array of dims {from:?} does not broadcast to {dims:?}")));
        }
        let axes: Vec<usize> = (0..from.len()).filter(|axis| from[*axis] == dims[offset + axis]).collect();
        let sizes: Vec<i64> = axes.iter().map(|axis| from[*axis]).collect();
        let places: Vec<i64> = axes.iter().map(|axis| (offset + axis) as i64).collect();
        Ok(self.e().broadcast(self.e().reshape(x, &sizes), &places, dims))
    }

    /// Two arrays broadcast to common dims.
    pub(crate) fn same(&self, x: InstrId, y: InstrId) -> Result<(InstrId, InstrId), Problem> {
        let dims = self.broadcast_dims(&self.dims(x), &self.dims(y))?;
        Ok((self.broadcast_to(x, &dims)?, self.broadcast_to(y, &dims)?))
    }

    /// An array with the dtype and dims of `x`, filled with `value`.
    pub(crate) fn like(&self, x: InstrId, value: f64) -> InstrId {
        self.e().full_like(x, value)
    }

    /// A vector broadcast along `axis` of `dims`.
    pub(crate) fn along(&self, vector: InstrId, axis: i64, dims: &[i64]) -> InstrId {
        self.e().broadcast(vector, &[axis], dims)
    }

    /// A slice with stride 1.
    pub(crate) fn slice(&self, x: InstrId, starts: &[i64], limits: &[i64]) -> InstrId {
        let dims = starts.iter().zip(limits).map(|(&start, &limit)| SliceDim { start, limit, stride: 1 });
        self.e().slice(x, &dims.collect::<Vec<_>>())
    }

    /// `n` elements from `start` along one axis.
    pub(crate) fn slice_axis(&self, x: InstrId, axis: i64, start: i64, n: i64) -> InstrId {
        // The emitter has the error; there are no axes.
        if x == POISON {
            return x;
        }
        let mut limits = self.dims(x);
        // A slice along an axis that the array does not have is the emitter's error.
        let at = usize::try_from(axis).unwrap_or_default().min(limits.len());
        limits.resize(limits.len().max(at + 1), 0);
        let mut starts = vec![0; limits.len()];
        (starts[at], limits[at]) = (start, start.saturating_add(n));
        self.slice(x, &starts, &limits)
    }

    /// A constant array of integers with these dims.
    pub(crate) fn ints_constant(&self, values: &[i64], dims: &[i64], dtype: DType) -> InstrId {
        use bf16scope_hlo::Literal;
        let literal = match dtype {
            DType::S64 => Literal::from_elements(dims, values),
            _ => Literal::from_elements(dims, &values.iter().map(|value| *value as i32).collect::<Vec<_>>()),
        };
        self.e().constant(literal)
    }

    /// The accumulation dtype of sums of `dtype`, as in TensorFlow's XLA bridge.
    pub(crate) fn sums_in(&self, dtype: DType) -> DType {
        match dtype {
            DType::BF16 | DType::F16 => DType::F32,
            other => other,
        }
    }

    /// A sum over axes, accumulated in f32 for 16-bit dtypes and rounded at the end.
    pub(crate) fn sum(&self, x: InstrId, axes: &[i64]) -> InstrId {
        let dtype = self.dtype(x);
        let wide = self.e().convert(x, self.sums_in(dtype));
        self.e().convert(self.e().reduce_sum(wide, axes), dtype)
    }

    /// One array as the only output.
    pub(crate) fn one(&self, id: InstrId) -> Outputs {
        Ok(vec![Value::Array(id)])
    }
}
