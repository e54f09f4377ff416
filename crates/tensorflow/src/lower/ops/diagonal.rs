//! Diagonals of matrices: the main one of each matrix in the last two dims.
//!
//! Source: `matrix_diag_ops.cc`, `diag_op.cc` of `tf2xla/kernels`.

use super::super::Call;
use super::super::call::Outputs;
use super::Table;
use crate::error::Problem;
use bf16scope_hlo::InstrId;
use bf16scope_hlo::ops::Comparison;

pub(super) const TABLE: Table = &[
    ("MatrixDiag", matrix_of),
    ("MatrixDiagV2", matrix_of),
    ("MatrixDiagV3", matrix_of),
    ("MatrixDiagPart", diagonal_of),
    ("MatrixDiagPartV2", diagonal_of),
    ("MatrixDiagPartV3", diagonal_of),
    ("MatrixSetDiag", with_diagonal),
    ("MatrixSetDiagV2", with_diagonal),
    ("MatrixSetDiagV3", with_diagonal),
    ("Diag", |c| {
        let x = c.array(0)?;
        let dims = c.dims(x);
        let n: i64 = dims.iter().product();
        c.check_dims(&[n, n])?;
        let flat = c.e().reshape(x, &[n]);
        let matrix = c.on_diagonal(flat, c.e().full(c.dtype(x), &[n, n], 0.0))?;
        c.one(c.e().reshape(matrix, &[&dims[..], &dims[..]].concat()))
    }),
    ("DiagPart", |c| {
        let x = c.array(0)?;
        let dims = c.dims(x);
        let half = &dims[..dims.len() / 2];
        if dims != [half, half].concat() {
            return Err(Problem::new(format!("its input has dims {dims:?}, expected some dims twice")));
        }
        let n: i64 = half.iter().product();
        let diagonal = c.diagonal(c.e().reshape(x, &[n, n]))?;
        c.one(c.e().reshape(diagonal, half))
    }),
];

impl Call<'_, '_> {
    /// Refuses any diagonal but the main one; versions 2 and 3 have an input that says which.
    fn check_main_diagonal(&mut self, number: usize) -> Result<(), Problem> {
        if !self.node.op.ends_with("V2") && !self.node.op.ends_with("V3") {
            return Ok(());
        }
        let diagonals = self.ints(number)?;
        match diagonals.iter().all(|at| *at == 0) {
            true => Ok(()),
            false => Err(Problem::new(format!("it is about the diagonals {diagonals:?}"))
                .with_help("only the main diagonal (`k=0`) becomes HLO")),
        }
    }

    /// The dims of matrices: those before the last two, rows and columns.
    pub(super) fn matrix_dims(&self, x: InstrId) -> Result<(Vec<i64>, [i64; 2]), Problem> {
        let dims = self.dims(x);
        match &dims[..] {
            [batch @ .., rows, columns] => Ok((batch.to_vec(), [*rows, *columns])),
            _ => Err(Problem::new(format!("its input has dims {dims:?}, expected matrices"))),
        }
    }

    /// Whether the row of each element of matrices of these dims compares so to its column.
    pub(super) fn row_to_column(&self, direction: Comparison, dims: &[i64]) -> InstrId {
        let rank = dims.len() as i64;
        let [row, column] = [rank - 2, rank - 1].map(|axis| self.e().iota(bf16scope_hlo::DType::S32, dims, axis));
        self.e().compare(direction, row, column)
    }

    /// Whether each element of matrices of these dims is on the diagonal.
    fn is_on_diagonal(&self, dims: &[i64]) -> InstrId {
        self.row_to_column(Comparison::Eq, dims)
    }

    fn diagonal(&self, x: InstrId) -> Result<InstrId, Problem> {
        let (batch, [rows, columns]) = self.matrix_dims(x)?;
        let dims = self.dims(x);
        let masked = self.e().select(self.is_on_diagonal(&dims), x, self.like(x, 0.0));
        // One element of each row, or of each column where there are more rows.
        let n = batch.len() as i64;
        let summed = if rows <= columns { n + 1 } else { n };
        Ok(self.e().reduce_sum(masked, &[summed]))
    }

    /// `matrices` with a diagonal.
    fn on_diagonal(&self, diagonal: InstrId, matrices: InstrId) -> Result<InstrId, Problem> {
        let (batch, [rows, columns]) = self.matrix_dims(matrices)?;
        let (wanted, dims) = ([&batch[..], &[rows.min(columns)]].concat(), self.dims(diagonal));
        if dims != wanted {
            return Err(Problem::new(format!("its diagonal has dims {dims:?}, expected {wanted:?}")));
        }
        let n = batch.len() as i64;
        let along = if rows <= columns { n } else { n + 1 };
        let places: Vec<i64> = (0..n).chain([along]).collect();
        let dims = self.dims(matrices);
        let wide = self.e().broadcast(diagonal, &places, &dims);
        Ok(self.e().select(self.is_on_diagonal(&dims), wide, matrices))
    }
}

fn matrix_of(c: &mut Call<'_, '_>) -> Outputs {
    c.check_main_diagonal(1)?;
    let x = c.array(0)?;
    let mut dims = c.dims(x);
    let n = dims.pop().ok_or_else(|| Problem::new("its diagonal is a scalar, expected vectors"))?;
    let has_sizes = c.inputs.len() > 4;
    let sizes = if has_sizes { [c.int(2)?, c.int(3)?] } else { [-1; 2] };
    dims.extend(sizes.map(|size| if size < 0 { n } else { size }));
    c.check_dims(&dims)?;
    let fill = if has_sizes { c.array(4)? } else { c.e().scalar(c.dtype(x), 0.0) };
    let matrices = c.e().broadcast(fill, &[], &dims);
    c.one(c.on_diagonal(x, matrices)?)
}

fn diagonal_of(c: &mut Call<'_, '_>) -> Outputs {
    c.check_main_diagonal(1)?;
    let x = c.array(0)?;
    c.one(c.diagonal(x)?)
}

fn with_diagonal(c: &mut Call<'_, '_>) -> Outputs {
    c.check_main_diagonal(2)?;
    let (x, diagonal) = (c.array(0)?, c.array(1)?);
    c.one(c.on_diagonal(diagonal, x)?)
}
