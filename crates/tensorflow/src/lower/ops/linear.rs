//! Products of matrices.
//!
//! Source: `matmul_op.cc`, `batch_matmul_op.cc`, `einsum_op.cc` of `tf2xla/kernels`.

use super::super::Call;
use super::super::call::Outputs;
use super::Table;
use crate::error::Problem;
use bf16scope_hlo::InstrId;
use bf16scope_hlo::ops::DotDims;

pub(super) const TABLE: Table = &[
    ("MatMul", |c| {
        let (x, y) = (c.array(0)?, c.array(1)?);
        let (x_axis, y_axis) = (i64::from(!c.node.flag("transpose_a")), i64::from(c.node.flag("transpose_b")));
        let dims = DotDims { lhs_contracting: vec![x_axis], rhs_contracting: vec![y_axis], ..DotDims::default() };
        c.one(c.e().dot(x, y, dims))
    }),
    ("BatchMatMul", |c| c.batched("adj_x", "adj_y")),
    ("BatchMatMulV2", |c| c.batched("adj_x", "adj_y")),
    ("BatchMatMulV3", |c| c.batched("adj_x", "adj_y")),
    ("Einsum", einsum),
    ("XlaEinsum", einsum),
];

impl Call<'_, '_> {
    /// Products of matrices in the last two dims; the dims before them are batch dims, which broadcast. A matrix that is adjoint is
    /// transposed and conjugated.
    fn batched(&mut self, x_flag: &str, y_flag: &str) -> Outputs {
        let (mut x, mut y) = (self.array(0)?, self.array(1)?);
        let are_adjoint = [self.node.flag(x_flag), self.node.flag(y_flag)];
        x = if are_adjoint[0] { self.conjugate(x) } else { x };
        y = if are_adjoint[1] { self.conjugate(y) } else { y };
        // Version 3 says the result's dtype: sums of products of 8-bit integers are of 32 bits.
        let dtype = self.node.dtype("Tout").unwrap_or(self.dtype(x));
        if dtype.bits() > self.dtype(x).bits() {
            (x, y) = (self.e().convert(x, dtype), self.e().convert(y, dtype));
        }
        let (x_dims, y_dims) = (self.dims(x), self.dims(y));
        let (Some(x_batch), Some(y_batch)) = (x_dims.len().checked_sub(2), y_dims.len().checked_sub(2)) else {
            return Err(Problem::new(format!("its inputs have dims {x_dims:?} and {y_dims:?}, expected matrices")));
        };
        let batch = self.broadcast_dims(&x_dims[..x_batch], &y_dims[..y_batch])?;
        x = self.broadcast_to(x, &[&batch[..], &x_dims[x_batch..]].concat())?;
        y = self.broadcast_to(y, &[&batch[..], &y_dims[y_batch..]].concat())?;
        let product = self.matrix_product(x, y, are_adjoint);
        self.one(self.e().convert(product, dtype))
    }

    /// Products of matrices in the last two dims, of arrays with the same batch dims; each may be transposed first.
    pub(super) fn matrix_product(&self, x: InstrId, y: InstrId, are_transposed: [bool; 2]) -> InstrId {
        let n = self.dims(x).len().saturating_sub(2) as i64;
        let axes: Vec<i64> = (0..n).collect();
        let dims = DotDims {
            lhs_batch: axes.clone(),
            rhs_batch: axes,
            lhs_contracting: vec![n + i64::from(!are_transposed[0])],
            rhs_contracting: vec![n + i64::from(are_transposed[1])],
        };
        self.e().dot(x, y, dims)
    }
}

/// The labels of a term of an equation; the axes of an ellipsis are labelled by digits.
fn labels(term: &str, rank: usize, n_hidden: usize) -> Result<Vec<char>, Problem> {
    let hidden = |n: usize| (0..n).map(move |at| char::from(b'0' + (n_hidden - n + at) as u8));
    let named = term.chars().filter(|c| c.is_alphabetic()).count();
    let n = rank.checked_sub(named).filter(|n| *n == 0 || term.contains("..."));
    let n = n.ok_or_else(|| Problem::new(format!("`{term}` does not name the axes of an array of rank {rank}")))?;
    let (before, after) = term.split_once("...").unwrap_or((term, ""));
    let plain = |part: &str| part.chars().filter(|c| c.is_alphabetic()).collect::<Vec<_>>();
    Ok(plain(before).into_iter().chain(hidden(n)).chain(plain(after)).collect())
}

fn einsum(c: &mut Call<'_, '_>) -> Outputs {
    let equation = c.node.text("equation").to_string();
    let n = c.inputs.len();
    let mut all = c.arrays(0, n)?;
    let (inputs, output) =
        equation.split_once("->").ok_or_else(|| Problem::new(format!("`{equation}` has no `->`")))?;
    let terms: Vec<&str> = inputs.split(',').collect();
    if terms.len() != n || n == 0 || n > 2 {
        return Err(Problem::new(format!(
            "`{equation}` is of {} arrays, and it has {n}; 1 or 2 are lowered",
            terms.len()
        )));
    }
    let named = |term: &str| term.chars().filter(|c| c.is_alphabetic()).count();
    let n_hidden =
        all.iter().zip(&terms).map(|(x, term)| c.dims(*x).len().saturating_sub(named(term))).max().unwrap_or(0);
    if n_hidden > 9 {
        return Err(Problem::new("its ellipsis stands for more than 9 axes"));
    }
    let mut sets = Vec::new();
    for (x, term) in all.iter_mut().zip(&terms) {
        let set = labels(term, c.dims(*x).len(), n_hidden)?;
        let repeats = (1..set.len()).any(|at| set[..at].contains(&set[at]));
        if repeats {
            let problem = Problem::new(format!("`{equation}` takes a diagonal, which is not lowered"));
            return Err(problem.with_help("write tf.linalg.diag_part before it, or cut the graph behind it"));
        }
        sets.push(set);
    }
    let hidden: Vec<char> = (0..n_hidden).map(|at| char::from(b'0' + at as u8)).collect();
    let (before, after) = output.split_once("...").unwrap_or((output, ""));
    let plain = |part: &str| part.chars().filter(|c| c.is_alphabetic()).collect::<Vec<_>>();
    let is_kept = output.contains("...");
    let wanted: Vec<char> =
        plain(before).into_iter().chain(hidden.into_iter().filter(|_| is_kept)).chain(plain(after)).collect();
    // Axes that only one array and not the result has are summed first.
    for at in 0..n {
        let is_summed = |label: &char| !(wanted.contains(label) || n == 2 && sets[1 - at].contains(label));
        let axes: Vec<i64> =
            (0..sets[at].len()).filter(|axis| is_summed(&sets[at][*axis])).map(|axis| axis as i64).collect();
        if !axes.is_empty() {
            all[at] = c.sum(all[at], &axes);
            let remaining: Vec<char> = sets[at].iter().filter(|label| !is_summed(label)).copied().collect();
            sets[at] = remaining;
        }
    }
    let (result, labels): (InstrId, Vec<char>) = match all[..] {
        [x] => (x, sets.remove(0)),
        [x, y] => {
            let place = |set: &[char], labels: &[char]| -> Vec<i64> {
                labels
                    .iter()
                    .filter_map(|label| set.iter().position(|known| known == label))
                    .map(|at| at as i64)
                    .collect()
            };
            let is_shared = |label: &&char| sets[1].contains(label);
            let shared: Vec<char> = sets[0].iter().filter(is_shared).copied().collect();
            let (batch, contracted): (Vec<char>, Vec<char>) =
                shared.into_iter().partition(|label| wanted.contains(label));
            let dims = DotDims {
                lhs_batch: place(&sets[0], &batch),
                rhs_batch: place(&sets[1], &batch),
                lhs_contracting: place(&sets[0], &contracted),
                rhs_contracting: place(&sets[1], &contracted),
            };
            let rest = |set: &[char]| -> Vec<char> {
                set.iter().filter(|label| !batch.contains(label) && !contracted.contains(label)).copied().collect()
            };
            let labels = [&batch[..], &rest(&sets[0]), &rest(&sets[1])].concat();
            (c.e().dot(x, y, dims), labels)
        }
        _ => return Err(Problem::new("it has no inputs")),
    };
    let permutation: Option<Vec<i64>> =
        wanted.iter().map(|label| labels.iter().position(|known| known == label).map(|at| at as i64)).collect();
    let permutation = permutation.filter(|permutation| permutation.len() == labels.len());
    let permutation = permutation.ok_or_else(|| Problem::new(format!("`{equation}` gives axes that no array has")))?;
    c.one(c.e().transpose(result, &permutation))
}
