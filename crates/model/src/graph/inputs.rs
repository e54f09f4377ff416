//! What the host hands over at every call.

use super::{Graph, Tensor, name_problem};
use bf16scope_hlo::{DType, InstrId};

/// An input of the program: data that the host hands over at every call.
#[derive(Clone, Debug, PartialEq)]
pub struct InputInfo {
    /// Its name.
    pub name: String,
    /// Its dtype.
    pub dtype: DType,
    /// Its dims.
    pub dims: Vec<i64>,
    /// Of one that has the examples last, in one dimension: the dims of a step's batch, examples first, as the host has it.
    pub transposed: Option<Vec<i64>>,
    /// Its parameter instruction.
    pub instr: InstrId,
}

impl InputInfo {
    /// The dims of the array that it is made of, examples first.
    pub fn dims_of_batch(&self) -> Vec<i64> {
        let Some(step) = &self.transposed else { return self.dims.clone() };
        // Of several steps, one batch after the other.
        let n_steps = self.dims[0] / step.iter().product::<i64>().max(1);
        let mut dims = step.clone();
        dims[0] *= n_steps;
        dims
    }
}

impl Graph {
    /// Data the host hands over: `[dims]` of `dtype`.
    #[track_caller]
    pub fn input(&self, name: &str, dtype: DType, dims: impl Into<Vec<i64>>) -> Tensor {
        self.declare_input(name, dtype, dims.into(), None)
    }

    /// An input that is a batch of examples, `[batch, dims…]`. Where
    /// [`Tuning::transpose_input`](bf16scope_passes::tuning::Tuning::transpose_input) says so, one of images is a parameter of one
    /// dimension, `[height · width · channels · batch]`, that is turned back here.
    #[track_caller]
    pub fn batch_input(&self, name: &str, dtype: DType, dims: impl Into<Vec<i64>>) -> Tensor {
        let dims = dims.into();
        let &[n, height, width, channels] = dims.as_slice() else { return self.input(name, dtype, dims) };
        if !self.tuning().transpose_input || !dtype.is_float() {
            return self.input(name, dtype, dims);
        }
        let n_elements = dims.iter().fold(1i64, |product, &dim| product.saturating_mul(dim));
        let flat = self.declare_input(name, dtype, vec![n_elements], Some(dims));
        flat.reshape([height, width, channels, n]).transpose(&[3, 0, 1, 2])
    }

    /// An input that is the batches of `n` steps of a program that has `input`, one after the other.
    pub fn input_of_steps(&self, input: &InputInfo, n: u32) -> Tensor {
        let mut dims = input.dims.clone();
        if let Some(first) = dims.first_mut() {
            *first *= i64::from(n);
        }
        self.declare_input(&input.name, input.dtype, dims, input.transposed.clone())
    }

    #[track_caller]
    fn declare_input(&self, name: &str, dtype: DType, dims: Vec<i64>, transposed: Option<Vec<i64>>) -> Tensor {
        let is_taken = self.inner.inputs.borrow().iter().any(|input| input.name == name);
        if let Some(error) = name_problem("an input", name, is_taken) {
            return self.fail("input", &[], error);
        }
        let instr = self.parameter(name, dtype, &dims);
        self.inner.inputs.borrow_mut().push(InputInfo { name: name.to_string(), dtype, dims, transposed, instr });
        self.tensor(instr)
    }

    /// The inputs so far, in the order they were made.
    pub fn inputs(&self) -> Vec<InputInfo> {
        self.inner.inputs.borrow().clone()
    }

    /// Puts the inputs in the order of `names`; those that are not among them follow, in the order they were made.
    pub fn order_inputs(&self, names: &[&str]) {
        let place = |input: &InputInfo| names.iter().position(|name| *name == input.name).unwrap_or(names.len());
        self.inner.inputs.borrow_mut().sort_by_key(place);
    }
}
