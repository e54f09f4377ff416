//! Cholesky's factors and triangular systems, which HLO has ops for. Factors that need pivots become no HLO.
//!
//! Source: `cholesky_op.cc`, `matrix_triangular_solve_op.cc` of `tf2xla/kernels`; `linalg_grad.py` for the factor's gradient.

use super::super::Call;
use super::super::call::Outputs;
use super::Table;
use crate::error::Problem;
use bf16scope_hlo::ops::{Comparison, Opaque};
use bf16scope_hlo::{InstrId, Op, POISON};

pub(super) const TABLE: Table = &[
    ("Cholesky", |c| {
        let x = c.array(0)?;
        c.check_square(x)?;
        let dtype = c.dtype(x);
        let wide = c.e().convert(x, c.sums_in(dtype));
        let factor = c.carried_op("cholesky", &[wide], wide, &[("lower", "true")]);
        // HLO leaves open what the upper triangle has.
        let factor = c.lower_triangle(factor);
        c.one(c.e().convert(factor, dtype))
    }),
    ("CholeskyGrad", factor_grad),
    ("MatrixTriangularSolve", triangular_solve),
];

impl Call<'_, '_> {
    /// Checks that an array has square matrices of floats; their batch dims and their size.
    fn check_square(&self, x: InstrId) -> Result<(Vec<i64>, i64), Problem> {
        let (batch, [rows, columns]) = self.matrix_dims(x)?;
        let dtype = self.dtype(x);
        if rows != columns || !dtype.is_float() {
            return Err(Problem::new(format!(
                "its matrices are {rows} by {columns} of {dtype}, expected square ones of floats"
            )));
        }
        Ok((batch, rows))
    }

    /// An op that the IR carries with its attributes as text, whose result has the shape of `like`.
    fn carried_op(&self, opcode: &str, operands: &[InstrId], like: InstrId, attributes: &[(&str, &str)]) -> InstrId {
        let op = Op::Opaque(Box::new(Opaque { opcode: opcode.to_string(), called: Vec::new() }));
        let id = self.e().emit(op, operands, Some(&self.e().shape(like)));
        if id != POISON {
            let comp = self.e().comp();
            self.e().with_module_mut(|module| {
                let instr = &mut module.computations[comp.idx()].instructions[id.idx()];
                instr.unmodelled.attributes =
                    attributes.iter().map(|&(name, value)| (name.to_string(), value.to_string())).collect();
            });
        }
        id
    }

    /// Matrices with zeros above the diagonal.
    fn lower_triangle(&self, x: InstrId) -> InstrId {
        let is_in = self.row_to_column(Comparison::Ge, &self.dims(x));
        self.e().select(is_in, x, self.like(x, 0.0))
    }

    /// The solution of `a x = b`, or of `aᴴ x = b`, for triangular `a`; its other triangle is not read.
    fn solved(&self, a: InstrId, b: InstrId, is_lower: bool, is_adjoint: bool) -> InstrId {
        let mut attributes = vec![("left_side", "true")];
        if is_lower {
            attributes.push(("lower", "true"));
        }
        attributes.push(("transpose_a", if is_adjoint { "ADJOINT" } else { "NO_TRANSPOSE" }));
        self.carried_op("triangular-solve", &[a, b], b, &attributes)
    }
}

fn triangular_solve(c: &mut Call<'_, '_>) -> Outputs {
    let (a, b) = (c.array(0)?, c.array(1)?);
    let ((a_batch, n), (b_batch, [rows, columns])) = (c.check_square(a)?, c.matrix_dims(b)?);
    let dtype = c.dtype(a);
    if rows != n || c.dtype(b) != dtype {
        let other = c.dtype(b);
        return Err(Problem::new(format!("its right sides have {rows} rows of {other}, expected {n} of {dtype}")));
    }
    let batch = c.broadcast_dims(&a_batch, &b_batch)?;
    let a = c.broadcast_to(a, &[&batch[..], &[n, n]].concat())?;
    let b = c.broadcast_to(b, &[&batch[..], &[rows, columns]].concat())?;
    let wide = c.sums_in(dtype);
    let (a, b) = (c.e().convert(a, wide), c.e().convert(b, wide));
    let is_lower = c.node.kind("lower").is_none() || c.node.flag("lower");
    let solution = c.solved(a, b, is_lower, c.node.flag("adjoint"));
    c.one(c.e().convert(solution, dtype))
}

/// Inputs: the factor, its cotangent.
fn factor_grad(c: &mut Call<'_, '_>) -> Outputs {
    let (l, dl) = (c.array(0)?, c.array(1)?);
    let (batch, _) = c.check_square(l)?;
    let (dims, dtype) = (c.dims(l), c.dtype(l));
    if c.dims(dl) != dims || c.dtype(dl) != dtype {
        let (other, wrong) = (c.dtype(dl), c.dims(dl));
        return Err(Problem::new(format!("its cotangent is {other}{wrong:?}, expected {dtype}{dims:?}")));
    }
    let wide = c.sums_in(dtype);
    let (l, dl) = (c.e().convert(l, wide), c.e().convert(dl, wide));
    let is_on_diagonal = c.row_to_column(Comparison::Eq, &dims);
    let identity = c.e().select(is_on_diagonal, c.like(l, 1.0), c.like(l, 0.0));
    let inverse = c.solved(l, identity, true, false);
    // The lower triangle of lᴴ dl, with half of its diagonal.
    let product = c.matrix_product(l, dl, [true, false]);
    let halved = c.e().select(is_on_diagonal, c.e().mul_scalar(product, 0.5), product);
    let middle = c.lower_triangle(halved);
    let half = c.matrix_product(c.matrix_product(inverse, middle, [true, false]), inverse, [false, false]);
    let n = batch.len() as i64;
    let swapped: Vec<i64> = (0..n).chain([n + 1, n]).collect();
    let sum = c.e().add(half, c.e().transpose(half, &swapped));
    let gradient = c.e().mul_scalar(sum, 0.5);
    c.one(c.e().convert(gradient, dtype))
}
