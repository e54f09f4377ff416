//! Reads of variables, assignments to them, and scatters into them.
//!
//! Source: `variable_ops.cc`, `resource_variable_ops.cc` of TensorFlow's kernels.

use super::super::Call;
use super::super::Value;
use super::super::call::Outputs;
use super::Table;
use crate::error::Problem;
use bf16scope_hlo::{BinaryOp, InstrId, Literal};

pub(super) const TABLE: Table = &[
    ("VarHandleOp", handle),
    ("VariableV2", handle),
    ("Variable", handle),
    ("ReadVariableOp", |c| {
        let value = c.array(0)?;
        c.one(value)
    }),
    ("Assign", |c| c.assigned(|_, _, new| new)),
    ("AssignVariableOp", |c| c.assigned(|_, _, new| new)),
    ("AssignAdd", |c| c.assigned(|c, old, new| c.e().add(old, new))),
    ("AssignAddVariableOp", |c| c.assigned(|c, old, new| c.e().add(old, new))),
    ("AssignSub", |c| c.assigned(|c, old, new| c.e().sub(old, new))),
    ("AssignSubVariableOp", |c| c.assigned(|c, old, new| c.e().sub(old, new))),
    ("ResourceScatterAdd", |c| c.scattered_into(Some(BinaryOp::Add), false)),
    ("ScatterAdd", |c| c.scattered_into(Some(BinaryOp::Add), false)),
    ("ResourceScatterSub", |c| c.scattered_into(Some(BinaryOp::Add), true)),
    ("ScatterSub", |c| c.scattered_into(Some(BinaryOp::Add), true)),
    ("ResourceScatterMul", |c| c.scattered_into(Some(BinaryOp::Multiply), false)),
    ("ScatterMul", |c| c.scattered_into(Some(BinaryOp::Multiply), false)),
    ("ResourceScatterMax", |c| c.scattered_into(Some(BinaryOp::Maximum), false)),
    ("ScatterMax", |c| c.scattered_into(Some(BinaryOp::Maximum), false)),
    ("ResourceScatterMin", |c| c.scattered_into(Some(BinaryOp::Minimum), false)),
    ("ScatterMin", |c| c.scattered_into(Some(BinaryOp::Minimum), false)),
    ("ResourceScatterUpdate", |c| c.scattered_into(None, false)),
    ("ScatterUpdate", |c| c.scattered_into(None, false)),
    ("ResourceScatterNdAdd", |c| c.scattered_nd_into(Some(BinaryOp::Add), false)),
    ("ScatterNdAdd", |c| c.scattered_nd_into(Some(BinaryOp::Add), false)),
    ("ResourceScatterNdSub", |c| c.scattered_nd_into(Some(BinaryOp::Add), true)),
    ("ScatterNdSub", |c| c.scattered_nd_into(Some(BinaryOp::Add), true)),
    ("ResourceScatterNdUpdate", |c| c.scattered_nd_into(None, false)),
    ("ScatterNdUpdate", |c| c.scattered_nd_into(None, false)),
    ("VarIsInitializedOp", |c| c.one(c.e().constant(Literal::scalar(true)))),
    ("IsVariableInitialized", |c| c.one(c.e().constant(Literal::scalar(true)))),
    ("DestroyResourceOp", |_| Ok(Vec::new())),
];

fn handle(c: &mut Call<'_, '_>) -> Outputs {
    let name = c.node.variable_name();
    match c.lowering.variable_of.get(&name) {
        Some(variable) => Ok(vec![Value::Variable(*variable)]),
        None => Err(Problem::new(format!("variable `{name}` is made inside a function"))
            .with_help("make variables outside of functions, as TensorFlow asks")),
    }
}

impl Call<'_, '_> {
    /// Assigns a variable a new value from its old one and the second input. The output is the variable, for references.
    fn assigned(&mut self, new: impl FnOnce(&Self, InstrId, InstrId) -> InstrId) -> Outputs {
        let variable = self.variable(0)?;
        let (old, value) = (self.lowering.read(variable)?, self.array(1)?);
        let new = new(self, old, value);
        self.assign(variable, new)?;
        Ok(vec![Value::Variable(variable)])
    }

    /// Assigns a variable; it keeps its old value where the node's gates do not hold.
    pub(super) fn assign(&mut self, variable: usize, value: InstrId) -> Result<(), Problem> {
        let gates = self.gates.clone();
        self.lowering.assign(variable, value, &gates)
    }

    /// The variable of a scatter, its value, and the indices and updates.
    fn scatter_inputs(&mut self, is_negated: bool) -> Result<(usize, [InstrId; 3]), Problem> {
        let variable = self.variable(0)?;
        let (old, indices, updates) = (self.lowering.read(variable)?, self.array(1)?, self.array(2)?);
        Ok((variable, [old, indices, if is_negated { self.e().neg(updates) } else { updates }]))
    }

    fn scattered_into(&mut self, op: Option<BinaryOp>, is_negated: bool) -> Outputs {
        let (variable, [old, indices, updates]) = self.scatter_inputs(is_negated)?;
        // A single number is for every element of the rows.
        let (dims, row_dims) = (self.dims(indices), self.dims(old).into_iter().skip(1));
        let updates = match self.dims(updates).is_empty() {
            true => self.e().broadcast(updates, &[], &dims.into_iter().chain(row_dims).collect::<Vec<i64>>()),
            false => updates,
        };
        let new = self.scattered(old, indices, updates, 0, op);
        self.assign(variable, new)?;
        Ok(vec![Value::Variable(variable)])
    }

    fn scattered_nd_into(&mut self, op: Option<BinaryOp>, is_negated: bool) -> Outputs {
        let (variable, [old, indices, updates]) = self.scatter_inputs(is_negated)?;
        let new = self.scattered_nd(old, indices, updates, op)?;
        self.assign(variable, new)?;
        Ok(vec![Value::Variable(variable)])
    }
}
