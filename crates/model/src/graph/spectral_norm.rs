//! Kernels that are read divided by their spectral norm: `Scope::with_spectral_norm`.

use super::{Init, Scope, Tensor, Variable};
use bf16scope_hlo::DType;

/// Norms below this count as it, as in torch.
const EPSILON: f64 = 1e-12;

impl Scope {
    /// Runs `layer`, whose `kernel` is read divided by its spectral norm σ, the largest singular value of the kernel as a
    /// matrix `[everything before, outputs]`: its last axis counts as outputs.
    ///
    /// Two vectors, the state `vector_u` `[outputs]` and `vector_v` `[everything before]`, approach the largest singular
    /// value's: a training step first does `n_iterations` of `v ← W·u / ‖W·u‖`, `u ← Wᵀ·v / ‖Wᵀ·v‖`. Then σ is
    /// `vᵀ·W·u`; an evaluation takes the vectors as they are. The gradient passes through σ, not through the vectors.
    ///
    /// # Types
    /// Everything is computed in f32 from the variable; the quotient is rounded once, to what the layer reads.
    ///
    /// # Source
    /// Miyato et al. 2018, with the gradient that torch's `parametrizations.spectral_norm` takes and the iteration of
    /// Keras' `SpectralNormalization`. Torch begins an iteration with `u`, and iterates 15 times more at the start; Keras
    /// stores the quotient as the kernel, without a gradient through σ.
    pub fn with_spectral_norm<R>(&self, n_iterations: u32, layer: impl FnOnce(&Scope) -> R) -> R {
        let open = &self.graph().inner.spectral_norm;
        let outer = open.replace(Some(n_iterations));
        let result = layer(self);
        open.set(outer);
        result
    }

    /// A variable that a layer asked for, as it is read.
    #[track_caller]
    pub(super) fn normalised(&self, name: &str, variable: Variable) -> Variable {
        let graph = self.graph();
        match graph.inner.spectral_norm.get() {
            Some(n_iterations) if name == "kernel" && !variable.is_poison() => {
                self.divided_by_its_norm(variable, n_iterations)
            }
            _ => variable,
        }
    }

    #[track_caller]
    fn divided_by_its_norm(&self, variable: Variable, n_iterations: u32) -> Variable {
        let (number, requested) = (variable.number, variable.value.dtype());
        let wide = variable.full.cast(DType::F32);
        let dims = wide.dims();
        let n_outputs = dims.last().copied().unwrap_or(1);
        let matrix = wide.reshape([dims.iter().product::<i64>() / n_outputs.max(1), n_outputs]);
        let [rows, columns] = [matrix.dims()[0], matrix.dims()[1]];
        let init = Init::Normal { stddev: 1.0 };
        let of_u = self.state("vector_u", DType::F32, [columns], init);
        let of_v = self.state("vector_v", DType::F32, [rows], init);
        let (mut u, mut v) = (unit(&of_u.value), unit(&of_v.value));
        if self.is_training() {
            let fixed = matrix.stop_gradient();
            for _ in 0..n_iterations {
                v = unit(&times(&fixed, &u, 1));
                u = unit(&times(&fixed, &v, 0));
            }
            self.graph().set_update(of_u.number, &u);
            self.graph().set_update(of_v.number, &v);
        }
        let sigma = (times(&matrix, &u, 1) * &v).sum(&[0]);
        let full = &wide / sigma;
        Variable { number, stored: full.clone(), value: full.cast(requested), full }
    }
}

/// The product of a matrix with a vector along `axis`, in f32 on every device: a sum, no product of a matrix unit.
#[track_caller]
fn times(matrix: &Tensor, vector: &Tensor, axis: i64) -> Tensor {
    (matrix * vector.broadcast_in_dim(&matrix.dims(), &[axis])).sum(&[axis])
}

/// A vector at length 1.
#[track_caller]
fn unit(x: &Tensor) -> Tensor {
    let norm = (x * x).sum(&[0]).sqrt();
    x / norm.maximum(&x.graph().scalar(DType::F32, EPSILON))
}
