//! Optimizer updates of reference and resource variables, dense and sparse.
//!
//! Source: `training_ops.cc` of `tf2xla/kernels` and of TensorFlow's kernels.

use super::super::Call;
use super::super::Value;
use super::super::call::Outputs;
use super::Table;
use crate::error::Problem;
use bf16scope_hlo::ops::Comparison;
use bf16scope_hlo::{BinaryOp, InstrId, UnaryOp};

pub(super) const TABLE: Table = &[
    ("ApplyGradientDescent", descent),
    ("ResourceApplyGradientDescent", descent),
    ("ApplyMomentum", momentum),
    ("ResourceApplyMomentum", momentum),
    ("ApplyKerasMomentum", keras_momentum),
    ("ResourceApplyKerasMomentum", keras_momentum),
    ("ApplyAdam", adam),
    ("ResourceApplyAdam", adam),
    ("ApplyAdagrad", by_sum_of_squares),
    ("ResourceApplyAdagrad", by_sum_of_squares),
    ("ApplyAdagradV2", by_sum_of_squares_v2),
    ("ResourceApplyAdagradV2", by_sum_of_squares_v2),
    ("ApplyRMSProp", rms_prop),
    ("ResourceApplyRMSProp", rms_prop),
    ("ApplyCenteredRMSProp", centred_rms_prop),
    ("ResourceApplyCenteredRMSProp", centred_rms_prop),
    ("ApplyAdadelta", adadelta),
    ("ResourceApplyAdadelta", adadelta),
    ("ApplyFtrl", ftrl),
    ("ResourceApplyFtrl", ftrl),
    ("ApplyFtrlV2", ftrl),
    ("ResourceApplyFtrlV2", ftrl),
    ("ApplyAdaMax", ada_max),
    ("ResourceApplyAdaMax", ada_max),
    ("ResourceApplyAdamWithAmsgrad", ams_grad),
    ("ApplyAddSign", |c| c.signed(true)),
    ("ResourceApplyAddSign", |c| c.signed(true)),
    ("ApplyPowerSign", |c| c.signed(false)),
    ("ResourceApplyPowerSign", |c| c.signed(false)),
    ("ApplyProximalGradientDescent", proximal_descent),
    ("ResourceApplyProximalGradientDescent", proximal_descent),
    ("ApplyProximalAdagrad", proximal_by_sum_of_squares),
    ("ResourceApplyProximalAdagrad", proximal_by_sum_of_squares),
    ("SparseApplyProximalGradientDescent", |c| c.sparse_update(1, 5, proximal_descent)),
    ("ResourceSparseApplyProximalGradientDescent", |c| c.sparse_update(1, 5, proximal_descent)),
    ("SparseApplyProximalAdagrad", |c| c.sparse_update(2, 6, proximal_by_sum_of_squares)),
    ("ResourceSparseApplyProximalAdagrad", |c| c.sparse_update(2, 6, proximal_by_sum_of_squares)),
    ("SparseApplyMomentum", |c| c.sparse_update(2, 4, momentum)),
    ("ResourceSparseApplyMomentum", |c| c.sparse_update(2, 4, momentum)),
    ("ResourceSparseApplyKerasMomentum", |c| c.sparse_update(2, 4, keras_momentum)),
    ("SparseApplyAdagrad", |c| c.sparse_update(2, 4, by_sum_of_squares)),
    ("ResourceSparseApplyAdagrad", |c| c.sparse_update(2, 4, by_sum_of_squares)),
    ("SparseApplyAdagradV2", |c| c.sparse_update(2, 5, by_sum_of_squares_v2)),
    ("ResourceSparseApplyAdagradV2", |c| c.sparse_update(2, 5, by_sum_of_squares_v2)),
    ("SparseApplyRMSProp", |c| c.sparse_update(3, 8, rms_prop)),
    ("ResourceSparseApplyRMSProp", |c| c.sparse_update(3, 8, rms_prop)),
    ("SparseApplyCenteredRMSProp", |c| c.sparse_update(4, 9, centred_rms_prop)),
    ("ResourceSparseApplyCenteredRMSProp", |c| c.sparse_update(4, 9, centred_rms_prop)),
    ("SparseApplyAdadelta", |c| c.sparse_update(3, 7, adadelta)),
    ("ResourceSparseApplyAdadelta", |c| c.sparse_update(3, 7, adadelta)),
    ("SparseApplyFtrl", |c| c.sparse_update(3, 4, ftrl)),
    ("ResourceSparseApplyFtrl", |c| c.sparse_update(3, 4, ftrl)),
    ("SparseApplyFtrlV2", |c| c.sparse_update(3, 4, ftrl)),
    ("ResourceSparseApplyFtrlV2", |c| c.sparse_update(3, 4, ftrl)),
];

impl Call<'_, '_> {
    /// The first `N` inputs as variables, and their values.
    fn slots<const N: usize>(&mut self) -> Result<([usize; N], [InstrId; N]), Problem> {
        let mut variables = [0; N];
        let mut values = [bf16scope_hlo::POISON; N];
        for number in 0..N {
            variables[number] = self.variable(number)?;
            values[number] = self.lowering.read(variables[number])?;
        }
        Ok((variables, values))
    }

    /// A scalar input, broadcast to the dims of `like`.
    fn wide(&mut self, number: usize, like: InstrId) -> Result<InstrId, Problem> {
        let scalar = self.array(number)?;
        let scalar = self.e().convert(scalar, self.dtype(like));
        self.broadcast_to(scalar, &self.dims(like))
    }

    fn update(&mut self, variables: &[usize], values: &[InstrId]) -> Outputs {
        for (variable, value) in variables.iter().zip(values) {
            self.assign(*variable, *value)?;
        }
        Ok(vec![Value::Variable(variables[0])])
    }

    /// A sparse update: applies `dense` to some rows of the first `n_slots` inputs. Input `indices` holds the rows; TensorFlow's
    /// optimizers make them unique, and rows out of range are skipped.
    fn sparse_update(&mut self, n_slots: usize, indices: usize, dense: super::Rule) -> Outputs {
        let rows = self.array(indices)?;
        self.inputs.remove(indices);
        let gates = std::mem::take(&mut self.gates);
        let mut whole = Vec::new();
        for number in 0..n_slots {
            let variable = self.variable(number)?;
            let value = self.lowering.read(variable)?;
            let shape = self.lowering.variables[variable].shape.clone();
            let Value::Array(part) = self.gathered(value, rows, 0, 0)?.remove(0) else { continue };
            self.lowering.variables[variable].shape = self.lowering.array_shape(part);
            self.lowering.variables[variable].value = Some(part);
            whole.push((variable, value, shape));
        }
        let updated = dense(self);
        self.gates = gates;
        for (variable, value, shape) in whole {
            let new = self.lowering.variables[variable].value.unwrap_or(value);
            self.lowering.variables[variable].shape = shape;
            self.lowering.variables[variable].value = Some(value);
            let ones = self.e().full_like(new, 1.0);
            let zeros = self.e().zeros_like(value);
            let placed = self.scattered(zeros, rows, new, 0, Some(BinaryOp::Add));
            let hit = self.scattered(zeros, rows, ones, 0, Some(BinaryOp::Add));
            let is_hit = self.e().compare(Comparison::Ne, hit, zeros);
            self.assign(variable, self.e().select(is_hit, placed, value))?;
        }
        updated
    }

    /// An update that is larger where gradient and accumulator have one sign. Inputs: variable, accumulator, rate, alpha or the
    /// logarithm of a base, the decay of signs, beta, gradient.
    fn signed(&mut self, is_sum: bool) -> Outputs {
        let (variables, [var, m]) = self.slots::<2>()?;
        let (rate, base) = (self.wide(2, var)?, self.wide(3, var)?);
        let (decay, beta, grad) = (self.wide(4, var)?, self.wide(5, var)?, self.array(6)?);
        let e = self.e();
        let m = e.add(e.mul(m, beta), e.mul(grad, self.one_less(beta)));
        let agrees = e.mul(decay, e.mul(e.unary(UnaryOp::Sign, grad), e.unary(UnaryOp::Sign, m)));
        let scale = match is_sum {
            true => e.add(base, agrees),
            false => e.unary(UnaryOp::Exp, e.mul(base, agrees)),
        };
        let new = e.sub(var, e.mul(e.mul(rate, scale), grad));
        self.update(&variables, &[new, m])
    }

    /// A variable after a step at these rates, moved towards 0 by L1 (to 0 at most) and shrunk by L2.
    fn proximal(&self, stepped: InstrId, rate: InstrId, [l1, l2]: [InstrId; 2]) -> InstrId {
        let e = self.e();
        let left = e.sub(e.unary(UnaryOp::Abs, stepped), e.mul(rate, l1));
        let left = e.binary(BinaryOp::Maximum, left, self.like(left, 0.0));
        e.div(e.mul(e.unary(UnaryOp::Sign, stepped), left), e.add_scalar(e.mul(rate, l2), 1.0))
    }

    fn one_less(&self, x: InstrId) -> InstrId {
        self.e().sub(self.like(x, 1.0), x)
    }
}

fn descent(c: &mut Call<'_, '_>) -> Outputs {
    let (variables, [var]) = c.slots::<1>()?;
    let (rate, grad) = (c.wide(1, var)?, c.array(2)?);
    let new = c.e().sub(var, c.e().mul(grad, rate));
    c.update(&variables, &[new])
}

/// Inputs: variable, accumulator, rate, gradient, momentum.
fn momentum(c: &mut Call<'_, '_>) -> Outputs {
    let (variables, [var, accum]) = c.slots::<2>()?;
    let (rate, grad, momentum) = (c.wide(2, var)?, c.array(3)?, c.wide(4, var)?);
    let accum = c.e().add(c.e().mul(accum, momentum), grad);
    let step = c.e().mul(accum, rate);
    let new = match c.node.flag("use_nesterov") {
        true => {
            let ahead = c.e().add(c.e().mul(grad, rate), c.e().mul(c.e().mul(accum, momentum), rate));
            c.e().sub(var, ahead)
        }
        false => c.e().sub(var, step),
    };
    c.update(&variables, &[new, accum])
}

/// Keras' momentum, whose accumulator includes the learning rate.
fn keras_momentum(c: &mut Call<'_, '_>) -> Outputs {
    let (variables, [var, accum]) = c.slots::<2>()?;
    let (rate, grad, momentum) = (c.wide(2, var)?, c.array(3)?, c.wide(4, var)?);
    let scaled = c.e().mul(grad, rate);
    let accum = c.e().sub(c.e().mul(accum, momentum), scaled);
    let new = match c.node.flag("use_nesterov") {
        true => c.e().sub(c.e().add(var, c.e().mul(accum, momentum)), scaled),
        false => c.e().add(var, accum),
    };
    c.update(&variables, &[new, accum])
}

/// Inputs: variable, m, v, power of beta1, of beta2, rate, beta1, beta2, epsilon, gradient.
fn adam(c: &mut Call<'_, '_>) -> Outputs {
    let (variables, [var, m, v]) = c.slots::<3>()?;
    let scalars = (3..9).map(|number| c.array(number)).collect::<Result<Vec<_>, _>>()?;
    let [power1, power2, rate, beta1, beta2, _] = scalars[..] else {
        unreachable!("six inputs were read");
    };
    let (wide1, epsilon) = (c.wide(6, var)?, c.wide(8, var)?);
    let grad = c.array(9)?;
    let e = c.e();
    // alpha = rate * sqrt(1 - power2) / (1 - power1).
    let alpha = e.div(e.mul(rate, e.unary(UnaryOp::Sqrt, c.one_less(power2))), c.one_less(power1));
    let alpha = c.broadcast_to(alpha, &c.dims(var))?;
    let left1 = c.broadcast_to(c.one_less(beta1), &c.dims(var))?;
    let left2 = c.broadcast_to(c.one_less(beta2), &c.dims(var))?;
    let e = c.e();
    let new_m = e.add(m, e.mul(e.sub(grad, m), left1));
    let new_v = e.add(v, e.mul(e.sub(e.mul(grad, grad), v), left2));
    let root = e.add(e.unary(UnaryOp::Sqrt, new_v), epsilon);
    let top = match c.node.flag("use_nesterov") {
        true => e.add(e.mul(grad, left1), e.mul(wide1, new_m)),
        false => new_m,
    };
    let new = e.sub(var, e.div(e.mul(top, alpha), root));
    c.update(&variables, &[new, new_m, new_v])
}

/// Inputs: variable, m, v, power of beta1, rate, beta1, beta2, epsilon, gradient.
fn ada_max(c: &mut Call<'_, '_>) -> Outputs {
    let (variables, [var, m, v]) = c.slots::<3>()?;
    let (power, rate, beta1) = (c.wide(3, var)?, c.wide(4, var)?, c.wide(5, var)?);
    let (beta2, epsilon, grad) = (c.wide(6, var)?, c.wide(7, var)?, c.array(8)?);
    let e = c.e();
    let new_m = e.add(m, e.mul(e.sub(grad, m), c.one_less(beta1)));
    let new_v = e.binary(BinaryOp::Maximum, e.mul(beta2, v), e.unary(UnaryOp::Abs, grad));
    let step = e.mul(e.div(rate, c.one_less(power)), e.div(new_m, e.add(new_v, epsilon)));
    let new = e.sub(var, step);
    c.update(&variables, &[new, new_m, new_v])
}

/// Inputs: variable, m, v, the largest v, power of beta1, of beta2, rate, beta1, beta2, epsilon, gradient.
fn ams_grad(c: &mut Call<'_, '_>) -> Outputs {
    let (variables, [var, m, v, most]) = c.slots::<4>()?;
    let (power1, power2, rate) = (c.wide(4, var)?, c.wide(5, var)?, c.wide(6, var)?);
    let (beta1, beta2, epsilon, grad) = (c.wide(7, var)?, c.wide(8, var)?, c.wide(9, var)?, c.array(10)?);
    let e = c.e();
    let alpha = e.div(e.mul(rate, e.unary(UnaryOp::Sqrt, c.one_less(power2))), c.one_less(power1));
    let new_m = e.add(m, e.mul(e.sub(grad, m), c.one_less(beta1)));
    let new_v = e.add(v, e.mul(e.sub(e.mul(grad, grad), v), c.one_less(beta2)));
    let most = e.binary(BinaryOp::Maximum, most, new_v);
    let root = e.add(e.unary(UnaryOp::Sqrt, most), epsilon);
    let new = e.sub(var, e.div(e.mul(new_m, alpha), root));
    c.update(&variables, &[new, new_m, new_v, most])
}

/// Inputs: variable, rate, l1, l2, gradient.
fn proximal_descent(c: &mut Call<'_, '_>) -> Outputs {
    let (variables, [var]) = c.slots::<1>()?;
    let (rate, l1, l2, grad) = (c.wide(1, var)?, c.wide(2, var)?, c.wide(3, var)?, c.array(4)?);
    let stepped = c.e().sub(var, c.e().mul(grad, rate));
    let new = c.proximal(stepped, rate, [l1, l2]);
    c.update(&variables, &[new])
}

/// Inputs: variable, accumulator, rate, l1, l2, gradient.
fn proximal_by_sum_of_squares(c: &mut Call<'_, '_>) -> Outputs {
    let (variables, [var, accum]) = c.slots::<2>()?;
    let (rate, l1, l2, grad) = (c.wide(2, var)?, c.wide(3, var)?, c.wide(4, var)?, c.array(5)?);
    let e = c.e();
    let accum = e.add(accum, e.mul(grad, grad));
    let rate = e.mul(rate, e.unary(UnaryOp::Rsqrt, accum));
    let stepped = e.sub(var, e.mul(grad, rate));
    let new = c.proximal(stepped, rate, [l1, l2]);
    c.update(&variables, &[new, accum])
}

fn by_sum_of_squares(c: &mut Call<'_, '_>) -> Outputs {
    let (variables, [var, accum]) = c.slots::<2>()?;
    let (rate, grad) = (c.wide(2, var)?, c.array(3)?);
    let is_updated = c.node.kind("update_slots").is_none() || c.node.flag("update_slots");
    let sum = c.e().add(accum, c.e().mul(grad, grad));
    let accum = if is_updated { sum } else { accum };
    let new = c.e().sub(var, c.e().mul(c.e().mul(grad, rate), c.e().unary(UnaryOp::Rsqrt, accum)));
    c.update(&variables, &[new, accum])
}

fn by_sum_of_squares_v2(c: &mut Call<'_, '_>) -> Outputs {
    let (variables, [var, accum]) = c.slots::<2>()?;
    let (rate, epsilon, grad) = (c.wide(2, var)?, c.wide(3, var)?, c.array(4)?);
    let is_updated = c.node.kind("update_slots").is_none() || c.node.flag("update_slots");
    let sum = c.e().add(accum, c.e().mul(grad, grad));
    let accum = if is_updated { sum } else { accum };
    let root = c.e().add(c.e().unary(UnaryOp::Sqrt, accum), epsilon);
    let new = c.e().sub(var, c.e().div(c.e().mul(grad, rate), root));
    c.update(&variables, &[new, accum])
}

/// Inputs: variable, mean square, momentum slot, rate, decay, momentum, epsilon, gradient. The epsilon is in the root.
fn rms_prop(c: &mut Call<'_, '_>) -> Outputs {
    let (variables, [var, ms, mom]) = c.slots::<3>()?;
    let (rate, rho, momentum, epsilon) = (c.wide(3, var)?, c.wide(4, var)?, c.wide(5, var)?, c.wide(6, var)?);
    let grad = c.array(7)?;
    let e = c.e();
    let new_ms = e.add(ms, e.mul(e.sub(e.mul(grad, grad), ms), c.one_less(rho)));
    let inverse = e.unary(UnaryOp::Rsqrt, e.add(new_ms, epsilon));
    let new_mom = e.add(e.mul(mom, momentum), e.mul(e.mul(grad, rate), inverse));
    let new = e.sub(var, new_mom);
    c.update(&variables, &[new, new_ms, new_mom])
}

/// Inputs: variable, mean gradient, mean square, momentum slot, rate, decay, momentum, epsilon, gradient.
fn centred_rms_prop(c: &mut Call<'_, '_>) -> Outputs {
    let (variables, [var, mg, ms, mom]) = c.slots::<4>()?;
    let (rate, rho, momentum, epsilon) = (c.wide(4, var)?, c.wide(5, var)?, c.wide(6, var)?, c.wide(7, var)?);
    let grad = c.array(8)?;
    let e = c.e();
    let rest = c.one_less(rho);
    let new_ms = e.add(ms, e.mul(e.sub(e.mul(grad, grad), ms), rest));
    let new_mg = e.add(mg, e.mul(e.sub(grad, mg), rest));
    let centred = e.add(e.sub(new_ms, e.mul(new_mg, new_mg)), epsilon);
    let new_mom = e.add(e.mul(mom, momentum), e.mul(e.mul(grad, rate), e.unary(UnaryOp::Rsqrt, centred)));
    let new = e.sub(var, new_mom);
    c.update(&variables, &[new, new_mg, new_ms, new_mom])
}

/// Inputs: variable, accumulator, accumulator of updates, rate, rho, epsilon, gradient.
fn adadelta(c: &mut Call<'_, '_>) -> Outputs {
    let (variables, [var, accum, updates]) = c.slots::<3>()?;
    let (rate, rho, epsilon) = (c.wide(3, var)?, c.wide(4, var)?, c.wide(5, var)?);
    let grad = c.array(6)?;
    let e = c.e();
    let rest = c.one_less(rho);
    let new_accum = e.add(e.mul(rho, accum), e.mul(rest, e.mul(grad, grad)));
    let root = e.unary(UnaryOp::Sqrt, e.add(updates, epsilon));
    let update = e.mul(e.mul(root, e.unary(UnaryOp::Rsqrt, e.add(new_accum, epsilon))), grad);
    let new = e.sub(var, e.binary(BinaryOp::Multiply, update, rate));
    let new_updates = e.add(e.mul(rho, updates), e.mul(rest, e.mul(update, update)));
    c.update(&variables, &[new, new_accum, new_updates])
}

/// Inputs: variable, accumulator, linear, gradient, rate, l1, l2, the shrinkage (version 2 only), the rate's power.
fn ftrl(c: &mut Call<'_, '_>) -> Outputs {
    if c.node.flag("multiply_linear_by_lr") {
        return Err(Problem::new("its linear term is kept times the rate, which has no rule"));
    }
    let (variables, [var, accum, linear]) = c.slots::<3>()?;
    let is_v2 = c.node.op.ends_with("V2");
    let grad = c.array(3)?;
    let (rate, l1, l2) = (c.wide(4, var)?, c.wide(5, var)?, c.wide(6, var)?);
    let power = c.wide(if is_v2 { 8 } else { 7 }, var)?;
    let shrunk = match is_v2 {
        true => {
            let shrinkage = c.wide(7, var)?;
            c.e().add(grad, c.e().mul(c.e().mul_scalar(shrinkage, 2.0), var))
        }
        false => grad,
    };
    let e = c.e();
    let new_accum = e.add(accum, e.mul(grad, grad));
    let raised = |x: InstrId| e.binary(BinaryOp::Power, x, e.neg(power));
    let (new_power, old_power) = (raised(new_accum), raised(accum));
    let sigma = e.div(e.sub(new_power, old_power), rate);
    let new_linear = e.sub(e.add(linear, shrunk), e.mul(sigma, var));
    let quadratic = e.add(e.div(new_power, rate), e.mul_scalar(l2, 2.0));
    let bounded = e.mul(e.unary(UnaryOp::Sign, new_linear), l1);
    let is_large = e.compare(Comparison::Gt, e.unary(UnaryOp::Abs, new_linear), l1);
    let new = e.select(is_large, e.div(e.sub(bounded, new_linear), quadratic), e.zeros_like(var));
    c.update(&variables, &[new, new_accum, new_linear])
}
