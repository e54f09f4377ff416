//! Inputs: data that the host uploads at every call.

use super::{Graph, Tensor, name_problem};
use bf16scope_hlo::{DType, InstrId};

/// An input of the program: data that the host uploads at every call.
#[derive(Clone, Debug, PartialEq)]
pub struct InputInfo {
    /// Its name.
    pub name: String,
    /// Its dtype.
    pub dtype: DType,
    /// Its dims.
    pub dims: Vec<i64>,
    /// For an input with the examples last, in one dimension: the dims of a step's batch, examples first, as the host
    /// has it.
    pub transposed: Option<Vec<i64>>,
    /// Its parameter instruction.
    pub instr: InstrId,
}

impl InputInfo {
    /// The dims of the host's array, examples first.
    pub fn dims_of_batch(&self) -> Vec<i64> {
        let Some(step) = &self.transposed else { return self.dims.clone() };
        // For several steps, one batch after the other.
        let n_steps = self.dims[0] / step.iter().product::<i64>().max(1);
        let mut dims = step.clone();
        dims[0] *= n_steps;
        dims
    }
}

impl Graph {
    /// Declares an input `[dims]` of `dtype`.
    #[track_caller]
    pub fn input(&self, name: &str, dtype: DType, dims: impl Into<Vec<i64>>) -> Tensor {
        self.declare_input(name, dtype, dims.into(), None)
    }

    /// Declares an input for a batch of examples, `[batch, dims…]`. With
    /// [`Tuning::transpose_input`](bf16scope_passes::tuning::Tuning::transpose_input), a batch of images is a parameter
    /// of one dimension, `[height · width · channels · batch]`, which is transposed back here.
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

    /// Declares an input for the batches of `n` steps, one after the other, of a program that has `input`.
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

    /// The inputs so far, in the order of their declaration.
    pub fn inputs(&self) -> Vec<InputInfo> {
        self.inner.inputs.borrow().clone()
    }

    /// Orders the inputs as `names`; the others follow in the order of their declaration.
    pub fn order_inputs(&self, names: &[&str]) {
        let place = |input: &InputInfo| names.iter().position(|name| *name == input.name).unwrap_or(names.len());
        self.inner.inputs.borrow_mut().sort_by_key(place);
    }
}
