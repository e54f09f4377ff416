//! The forward pass of a training step, by instruction: the output of each layer, its role in the network, and the path
//! from a variable to the loss.

use super::row::{Function, Role};
use bf16scope_hlo::ops::{BinaryOp, UnaryOp};
use bf16scope_hlo::{Computation, InstrId, Instruction, Literal, Op};
use std::collections::{BTreeMap, BTreeSet};

/// The most instructions of an activation function: a GELU by its formula has a dozen.
const LONGEST_FUNCTION: usize = 40;

/// The forward pass, by instruction.
pub(super) struct Forward<'a> {
    computation: &'a Computation,
    /// Whether an instruction depends on an input.
    is_fed: Vec<bool>,
    /// Whether it depends on a label, or on the weights of examples: the loss and its parts.
    is_judging: Vec<bool>,
    /// Whether it depends on random numbers.
    is_drawn: Vec<bool>,
}

impl<'a> Forward<'a> {
    /// The forward pass from these inputs, each with whether it is a label.
    pub(super) fn new(computation: &'a Computation, inputs: &[(InstrId, bool)]) -> Forward<'a> {
        let n = computation.instructions.len();
        let [mut is_fed, mut is_judging, mut is_drawn] = [vec![false; n], vec![false; n], vec![false; n]];
        for &(input, is_label) in inputs {
            is_fed[input.idx()] = true;
            is_judging[input.idx()] = is_label;
        }
        for (idx, instr) in computation.instructions.iter().enumerate() {
            is_drawn[idx] |= matches!(instr.op, Op::RngBitGenerator(_));
            for operand in &instr.operands {
                is_fed[idx] |= is_fed[operand.idx()];
                is_judging[idx] |= is_judging[operand.idx()];
                is_drawn[idx] |= is_drawn[operand.idx()];
            }
        }
        Forward { computation, is_fed, is_judging, is_drawn }
    }

    /// The values to observe, in program order: each layer's output, which is the last array of floats in its scope
    /// that another scope reads; an activation function's output if it is outside of the layer; sums of residual
    /// blocks; and the exponents of softmaxes. Values that depend on a label belong to no layer.
    pub(super) fn chosen(&self) -> Vec<InstrId> {
        let instructions = &self.computation.instructions;
        let mut last_of: BTreeMap<&str, InstrId> = BTreeMap::new();
        let mut activated: BTreeSet<InstrId> = BTreeSet::new();
        for instr in instructions {
            for &operand in &instr.operands {
                let (producer, scope) = (&instructions[operand.idx()], scope_of(&instructions[operand.idx()]));
                if scope != scope_of(instr) && self.is_value(operand, producer) {
                    let last = last_of.entry(scope).or_insert(operand);
                    *last = operand.max(*last);
                    if self.role(operand) == Some(Role::Activated) {
                        activated.insert(operand);
                    }
                }
            }
        }
        let all = last_of.into_values().chain(activated);
        let mut chosen: BTreeSet<InstrId> = all.collect();
        for (idx, instr) in instructions.iter().enumerate() {
            let id = InstrId(idx as u32);
            if let (Op::Unary(UnaryOp::Exp), true) = (&instr.op, self.is_fed[idx])
                && self.is_shifted(instr.operands[0])
            {
                chosen.insert(instr.operands[0]);
            } else if self.role(id) == Some(Role::Residual) && self.is_value(id, instr) {
                chosen.insert(id);
            }
        }
        chosen.into_iter().filter(|id| !self.is_judging[id.idx()]).collect()
    }

    pub(super) fn described(&self, id: InstrId, is_last: bool) -> (String, Option<Role>) {
        if is_last {
            return ("loss".to_string(), Some(Role::Loss));
        }
        let role = self.role(id);
        let of_layer = self.activates(id).filter(|_| role == Some(Role::Activated));
        let layer = match of_layer.unwrap_or(scope_of(self.computation.instr(id))) {
            "" => "(in no scope)".to_string(),
            scope => scope.to_string(),
        };
        (layer, role)
    }

    fn role(&self, id: InstrId) -> Option<Role> {
        let instructions = &self.computation.instructions;
        let instr = &instructions[id.idx()];
        let is_raised = |user: &Instruction| user.op == Op::Unary(UnaryOp::Exp) && user.operands[0] == id;
        if self.is_shifted(id) && instructions[id.idx()..].iter().any(is_raised) {
            return Some(Role::Softmax);
        }
        // Both summands depend on the input and neither is a bias, which would be broadcast.
        let is_branch = |operand: &InstrId| {
            self.is_fed[operand.idx()] && !matches!(instructions[operand.idx()].op, Op::Broadcast { .. })
        };
        let is_sum = instr.op == Op::Binary(BinaryOp::Add) && instr.operands.iter().all(is_branch);
        if is_sum && self.reads(instr.operands[0], instr.operands[1]) {
            return Some(Role::Residual);
        }
        if self.gate(id).is_some() {
            return Some(Role::Dropped);
        }
        self.activates(id).map(|_| Role::Activated)
    }

    /// The layer whose output an activation function reads: the function is elementwise in one value of a scope below
    /// its own.
    fn activates(&self, id: InstrId) -> Option<&'a str> {
        let instr = self.computation.instr(id);
        let scope = scope_of(instr);
        let (mut pending, mut taken, mut n_left) = (vec![id], None, LONGEST_FUNCTION);
        while let Some(next) = pending.pop() {
            let instr = self.computation.instr(next);
            let is_elementwise = matches!(
                instr.op,
                Op::Unary(_) | Op::Binary(_) | Op::Clamp | Op::Select | Op::Compare { .. } | Op::Convert
            );
            n_left -= 1;
            if !is_elementwise || n_left == 0 {
                return None;
            }
            for &operand in instr.operands.iter().filter(|operand| self.is_fed[operand.idx()]) {
                match scope_of(self.computation.instr(operand)) == scope {
                    true => pending.push(operand),
                    false if taken.is_none_or(|taken| taken == operand) => taken = Some(operand),
                    false => return None,
                }
            }
        }
        let taken = self.computation.instr(taken?);
        let inner = scope_of(taken).strip_prefix(scope)?;
        let is_below = if scope.is_empty() { !inner.is_empty() } else { inner.starts_with('/') };
        (is_below && taken.shape.dims() == instr.shape.dims()).then(|| scope_of(taken))
    }

    /// Whether one of two values depends on the other.
    fn reads(&self, one: InstrId, other: InstrId) -> bool {
        let (early, late) = (one.min(other), one.max(other));
        let mut is_read = vec![false; late.idx() + 1];
        is_read[late.idx()] = true;
        for idx in (early.idx() + 1..=late.idx()).rev().filter(|&idx| self.is_fed[idx]) {
            if is_read[idx] {
                self.computation.instructions[idx].operands.iter().for_each(|operand| is_read[operand.idx()] = true);
            }
        }
        early != late && is_read[early.idx()]
    }

    /// Whether it is a difference along an axis: `x - max x`.
    fn is_shifted(&self, id: InstrId) -> bool {
        let instr = self.computation.instr(id);
        let is_along = |operand: &InstrId| {
            let along = self.computation.instr(*operand);
            matches!(&along.op, Op::Broadcast { dimensions } if !dimensions.is_empty()) && self.is_fed[operand.idx()]
        };
        instr.op == Op::Binary(BinaryOp::Subtract) && instr.operands.get(1).is_some_and(is_along)
    }

    /// Whether it is an array of floats that depends on an input and has no infinities of a mask.
    fn is_value(&self, id: InstrId, instr: &Instruction) -> bool {
        let is_masked = matches!(instr.op, Op::Select)
            && instr.operands[1..].iter().any(|operand| !self.is_fed[operand.idx()])
            && self.gate(id).is_none();
        let is_array = instr.shape.as_array().is_some_and(|array| array.dtype.is_float() && array.n_elements() > 1);
        is_array && self.is_fed[id.idx()] && !is_masked && !matches!(instr.op, Op::Parameter { .. })
    }

    /// For the output of dropout or stochastic depth: whether it drops whole examples.
    fn gate(&self, id: InstrId) -> Option<bool> {
        let instr = self.computation.instr(id);
        let &[is_kept, _, zeros] = &instr.operands[..] else { return None };
        let is_gate = instr.op == Op::Select && self.is_drawn[is_kept.idx()] && self.is_fed[id.idx()];
        let is_coarse = matches!(self.computation.instr(is_kept).op, Op::Broadcast { .. });
        (is_gate && self.number(zeros) == Some(0.0)).then_some(is_coarse)
    }

    /// The instructions from which a path leads to `end` that stochastic depth does not drop.
    pub(super) fn without_gates(&self, end: InstrId) -> Vec<bool> {
        let mut is_open = vec![false; self.computation.instructions.len()];
        is_open[end.idx()] = true;
        for idx in (0..=end.idx()).rev().filter(|&idx| idx < self.computation.instructions.len()) {
            if is_open[idx] && self.gate(InstrId(idx as u32)) != Some(true) {
                self.computation.instructions[idx].operands.iter().for_each(|operand| is_open[operand.idx()] = true);
            }
        }
        is_open
    }

    /// The observed rows that a value depends on directly.
    pub(super) fn takes(&self, id: InstrId, places: &BTreeMap<InstrId, usize>) -> Vec<u32> {
        let (mut pending, mut seen, mut taken) = (vec![id], BTreeSet::from([id]), BTreeSet::new());
        while let Some(next) = pending.pop() {
            for &operand in self.computation.instr(next).operands.iter().filter(|operand| self.is_fed[operand.idx()]) {
                match places.get(&operand) {
                    Some(&place) => drop(taken.insert(place as u32)),
                    None if seen.insert(operand) => pending.push(operand),
                    None => {}
                }
            }
        }
        taken.into_iter().collect()
    }

    /// The activation function that makes a value, if its slope can be 0.
    pub(super) fn function(&self, id: InstrId) -> Option<Function> {
        let instr = self.computation.instr(id);
        match &instr.op {
            Op::Convert | Op::Reshape => self.function(instr.operands[0]),
            Op::Unary(UnaryOp::Logistic) => Some(Function::Sigmoid),
            Op::Unary(UnaryOp::Tanh) => Some(Function::Tanh),
            Op::Binary(BinaryOp::Maximum) if self.number(instr.operands[1]) == Some(0.0) => Some(Function::Relu),
            // The upper end of ReLU6.
            Op::Binary(BinaryOp::Minimum) if self.number(instr.operands[1]).is_some() => {
                self.function(instr.operands[0])
            }
            // A hard sigmoid is ReLU6 / 6, whose slope is 0 at both ends.
            Op::Binary(BinaryOp::Divide) if self.number(instr.operands[1]).is_some() => {
                let is_cut = matches!(self.computation.instr(instr.operands[0]).op, Op::Binary(BinaryOp::Minimum));
                let within = self.function(instr.operands[0]);
                (is_cut && within == Some(Function::Relu)).then_some(Function::Sigmoid)
            }
            _ => None,
        }
    }

    /// The share of a running statistic that a step keeps: `kept` in `old − (old − batch) · (1 − kept)`.
    pub(super) fn kept(&self, old: InstrId, new: InstrId) -> Option<f64> {
        let operands = |id: InstrId, op: BinaryOp| {
            let instr = self.computation.instr(id);
            (instr.op == Op::Binary(op)).then(|| [instr.operands[0], instr.operands[1]])
        };
        let [from, step] = operands(new, BinaryOp::Subtract)?;
        let [distance, share] = operands(step, BinaryOp::Multiply)?;
        let [again, _] = operands(distance, BinaryOp::Subtract)?;
        ([from, again] == [old, old]).then(|| Some(1.0 - self.number(share)?)).flatten()
    }

    /// The constant that all elements of a value have, if it is one.
    fn number(&self, id: InstrId) -> Option<f64> {
        let instr = self.computation.instr(id);
        match &instr.op {
            Op::Broadcast { .. } | Op::Convert | Op::Reshape => self.number(instr.operands[0]),
            Op::Constant(Literal::Array { shape, bytes }) => {
                let mut values = bf16scope_hlo::element::f64s(shape.dtype, bytes)?;
                let first = values.next()?;
                values.all(|value| value == first).then_some(first)
            }
            _ => None,
        }
    }
}

/// Whether a feature is a label in fact, as in a likelihood that a formula of the network computes: the loss reads it,
/// and on the way nothing meets a variable or mixes its numbers by a product, a lookup or a loop.
pub(super) fn is_target(computation: &Computation, inputs: &[InstrId], input: InstrId, loss: InstrId) -> bool {
    let forward = &computation.instructions[..=loss.idx()];
    let mut is_fed = vec![false; forward.len()];
    for id in inputs.iter().filter(|id| id.idx() < forward.len()) {
        is_fed[id.idx()] = true;
    }
    let (mut is_variable, mut is_of_input) = (vec![false; forward.len()], vec![false; forward.len()]);
    is_of_input[input.idx()] = true;
    for (idx, instr) in forward.iter().enumerate() {
        let any = |flags: &[bool]| instr.operands.iter().any(|operand| flags[operand.idx()]);
        is_fed[idx] |= any(&is_fed);
        is_variable[idx] = !is_fed[idx] && (matches!(instr.op, Op::Parameter { .. }) || any(&is_variable));
        if any(&is_of_input) {
            is_of_input[idx] = true;
            let is_plain = matches!(
                instr.op,
                Op::Unary(_)
                    | Op::Binary(_)
                    | Op::Compare { .. }
                    | Op::Select
                    | Op::Clamp
                    | Op::Convert
                    | Op::Broadcast { .. }
                    | Op::Reshape
                    | Op::Transpose { .. }
                    | Op::Slice(_)
                    | Op::Concatenate { .. }
                    | Op::Reduce { .. }
                    | Op::AllReduce(_)
            );
            if !is_plain || any(&is_variable) {
                return false;
            }
        }
    }
    is_of_input[loss.idx()]
}

/// The scope of an instruction: all but the last level of its name.
fn scope_of(instr: &Instruction) -> &str {
    instr.metadata.op_name.rsplit_once('/').map_or("", |(scope, _)| scope)
}
