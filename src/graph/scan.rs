//! Loops on the device: [`Graph::scan`].
//!
//! The body of a loop is a computation of its own, and a [`Graph`] writes one. So a body is built as a graph of its own,
//! finished, and its module is copied in here: nothing else has to know of two computations at once. Gradients are taken
//! inside the body or not at all: `while` has none.

use super::{Graph, Tensor};
use crate::hlo::ops::{BinaryOp, Comparison, RuleError};
use crate::hlo::{CompId, DType, InstrId, Instruction, Literal, Metadata, Module, Op, Shape};

/// What a loop's body is given.
#[derive(Clone, Copy, Debug)]
pub enum Operand<'a> {
    /// A value that each trip passes to the next: at first this one.
    Carried(&'a Tensor),
    /// An equal part of this one for each trip, along its first dimension.
    Split(&'a Tensor),
}

impl<'a> Operand<'a> {
    /// The whole value.
    pub fn tensor(self) -> &'a Tensor {
        match self {
            Operand::Carried(tensor) | Operand::Split(tensor) => tensor,
        }
    }
}

impl Graph {
    /// Runs `body` `n` times, in a `while` loop, and returns the carried values after the last trip.
    ///
    /// # Shapes
    /// Parameter `i` of the body's entry is operand `i`: of its shape where it is carried, `[d / n, …]` where a `[d, …]`
    /// is split, trip 0 getting the first part. The body's result is a tuple of the carried values in their order.
    ///
    /// # Errors
    /// A trip count of 0; a dimension that the trip count does not divide; a body with other parameters or results.
    ///
    /// # Examples
    /// ```
    /// use bf16scope::{graph::{Graph, Operand}, hlo::DType};
    ///
    /// let body = Graph::new("body");
    /// let (sum, part) = (body.input("sum", DType::F32, [3]), body.input("part", DType::F32, [2, 3]));
    /// let body = body.finish(&[("sum", &(&sum + part.sum(&[0])))]).unwrap();
    ///
    /// let g = Graph::new("column_sums");
    /// let (zeros, x) = (g.full(DType::F32, &[3], 0.0), g.input("x", DType::F32, [8, 3]));
    /// let sums = g.scan(4, &body.module, &[Operand::Carried(&zeros), Operand::Split(&x)]);
    /// assert_eq!(sums[0].dims(), [3]);
    /// ```
    #[track_caller]
    pub fn scan(&self, n: u32, body: &Module, operands: &[Operand<'_>]) -> Vec<Tensor> {
        let n_carried = operands.iter().filter(|operand| matches!(operand, Operand::Carried(_))).count();
        let tensors: Vec<&Tensor> = operands.iter().map(|operand| operand.tensor()).collect();
        let poison = || vec![self.poison(); n_carried];
        if !self.owns("scan", &tensors) || tensors.iter().any(|tensor| tensor.is_poison()) {
            return poison();
        }
        if let Err(error) = check(n, body, operands) {
            self.fail("scan", &tensors, error);
            return poison();
        }
        // The state is the carried values, then the whole of the split ones, then the number of the trip.
        let split = operands.iter().filter(|operand| matches!(operand, Operand::Split(_)));
        let carried = operands.iter().filter(|operand| matches!(operand, Operand::Carried(_)));
        let trip = self.scalar(DType::S32, 0.0);
        let state: Vec<InstrId> = carried.chain(split).map(|operand| operand.tensor().id).chain([trip.id]).collect();
        let shape = Shape::Tuple(state.iter().map(|&id| self.emitter().shape(id)).collect());
        let last = self.emit_with("while", |e| {
            let written = e.with_module_mut(|module| {
                let condition = write_condition(module, &shape, n)?;
                Ok((condition, write_body(module, &shape, body, operands)?))
            });
            match written {
                Ok((condition, body)) => e.emit(Op::While { condition, body }, &[e.tuple(&state)], None),
                Err(error) => e.fail("while", &state, error),
            }
        });
        (0..n_carried).map(|index| last.get_tuple_element(index)).collect()
    }
}

/// Whether the body takes these operands and gives the carried ones.
fn check(n: u32, body: &Module, operands: &[Operand<'_>]) -> Result<(), RuleError> {
    if n == 0 {
        return Err(RuleError::new("scan/trip-count", "a scan has a trip count of 0, expected at least 1"));
    }
    if i32::try_from(n).is_err() {
        let message = format!("a scan has a trip count of {n}, expected at most {}: it is counted in s32", i32::MAX);
        return Err(RuleError::new("scan/trip-count", message));
    }
    let entry = body.entry();
    let parameters: Vec<String> = entry.parameters().iter().map(|&id| entry.instr(id).shape.to_string()).collect();
    let mut expected = Vec::with_capacity(operands.len());
    let mut results = Vec::new();
    for operand in operands {
        match operand {
            Operand::Carried(tensor) => {
                expected.push(tensor.shape().to_string());
                results.push(tensor.shape());
            }
            Operand::Split(tensor) => expected.push(part_of(tensor, n)?.to_string()),
        }
    }
    let list = |shapes: &[String]| shapes.join(", ");
    if parameters != expected {
        let message = format!("the body takes ({}), expected ({})", list(&parameters), list(&expected));
        return Err(RuleError::new("scan/parameters", message));
    }
    let (measured, expected) = (entry.result_shape().to_string(), Shape::Tuple(results).to_string());
    match measured == expected {
        true => Ok(()),
        false => Err(RuleError::new("scan/results", format!("the body gives {measured}, expected {expected}"))),
    }
}

/// The shape of one of `n` equal parts.
fn part_of(tensor: &Tensor, n: u32) -> Result<Shape, RuleError> {
    let mut dims = tensor.dims();
    match dims.first_mut() {
        Some(first) if *first % i64::from(n) == 0 => *first /= i64::from(n),
        Some(_) | None => {
            let message = format!("{} does not split in {n} equal parts along its first dimension", tensor.shape());
            return Err(RuleError::new("scan/split", message));
        }
    }
    Ok(Shape::array(tensor.dtype(), dims))
}

/// state → trip < n.
fn write_condition(module: &mut Module, state: &Shape, n: u32) -> Result<CompId, RuleError> {
    let comp = module.add_computation("scan_condition");
    let mut push = |op: Op, operands: &[InstrId], declared: Option<&Shape>| {
        module.push(comp, op, operands, declared, Metadata::default())
    };
    let parameter = push(Op::parameter(0), &[], Some(state))?;
    let trip = push(Op::GetTupleElement { index: n_elements(state) - 1 }, &[parameter], None)?;
    let end = push(Op::Constant(s32(f64::from(n))), &[], None)?;
    push(Op::Compare { direction: Comparison::Lt, kind: None }, &[trip, end], None)?;
    Ok(comp)
}

/// state → state: the entry of `body` on the elements, and the trip plus one.
fn write_body(
    module: &mut Module,
    state: &Shape,
    body: &Module,
    operands: &[Operand<'_>],
) -> Result<CompId, RuleError> {
    let renumbered = copy_called(module, body);
    let comp = module.add_computation("scan_body");
    let mut push = |op: Op, operands: &[InstrId], declared: Option<&Shape>| {
        module.push(comp, op, operands, declared, Metadata::default())
    };
    let parameter = push(Op::parameter(0), &[], Some(state))?;
    let elements = (0..n_elements(state))
        .map(|index| push(Op::GetTupleElement { index }, &[parameter], None))
        .collect::<Result<Vec<InstrId>, RuleError>>()?;
    let n_carried = operands.iter().filter(|operand| matches!(operand, Operand::Carried(_))).count();
    let (mut carried, mut split) = (elements[..n_carried].iter(), elements[n_carried..].iter());
    let trip = elements[elements.len() - 1];
    let zero = push(Op::Constant(s32(0.0)), &[], None)?;
    let mut arguments = Vec::with_capacity(operands.len());
    for (operand, parameter) in operands.iter().zip(body.entry().parameters()) {
        match operand {
            Operand::Carried(_) => arguments.extend(carried.next()),
            Operand::Split(_) => {
                let slice_sizes = body.entry().instr(parameter).shape.dims().to_vec();
                let length = push(Op::Constant(s32(slice_sizes[0] as f64)), &[], None)?;
                let start = push(Op::Binary(BinaryOp::Multiply), &[trip, length], None)?;
                let mut all = vec![*split.next().expect("the state has every split operand"), start];
                all.resize(slice_sizes.len() + 1, zero);
                arguments.push(push(Op::DynamicSlice { slice_sizes }, &all, None)?);
            }
        }
    }
    let one = push(Op::Constant(s32(1.0)), &[], None)?;
    let next_trip = push(Op::Binary(BinaryOp::Add), &[trip, one], None)?;
    let mut next = inline(module, comp, body, &arguments, &renumbered)?;
    next.extend(&elements[n_carried..elements.len() - 1]);
    next.push(next_trip);
    module.push(comp, Op::Tuple, &next, None, Metadata::default())?;
    Ok(comp)
}

/// Copies every computation of `body` but its entry; gives their new ids by their old ones.
fn copy_called(module: &mut Module, body: &Module) -> Vec<CompId> {
    let ids: Vec<CompId> = body
        .computations
        .iter()
        .enumerate()
        // The entry is inlined: nothing calls it, and its id is never looked up.
        .map(|(idx, computation)| match CompId(idx as u32) == body.entry {
            true => CompId(u32::MAX),
            false => module.add_computation(&computation.name),
        })
        .collect();
    for (idx, &comp) in ids.iter().enumerate().filter(|(_, id)| id.0 != u32::MAX) {
        let original = &body.computations[idx];
        for instr in &original.instructions {
            copy(module, comp, instr, &|id| id, &ids);
        }
        let copied = &mut module.computations[comp.idx()];
        copied.root = original.root;
        copied.unmodelled = original.unmodelled.clone();
    }
    ids
}

/// Copies the entry of `body` into `comp`, its parameters replaced by `arguments`; gives the elements of its result.
fn inline(
    module: &mut Module,
    comp: CompId,
    body: &Module,
    arguments: &[InstrId],
    renumbered: &[CompId],
) -> Result<Vec<InstrId>, RuleError> {
    let entry = body.entry();
    let mut places: Vec<InstrId> = Vec::with_capacity(entry.instructions.len());
    for instr in &entry.instructions {
        let place = match &instr.op {
            Op::Parameter { number, .. } => arguments[*number as usize],
            _ => copy(module, comp, instr, &|id| places[id.idx()], renumbered),
        };
        places.push(place);
    }
    let root = places[entry.root.idx()];
    (0..n_elements(entry.result_shape()))
        .map(|index| module.push(comp, Op::GetTupleElement { index }, &[root], None, Metadata::default()))
        .collect()
}

/// Appends a copy of `instr` under a new name, what it reads being at `place`.
fn copy(
    module: &mut Module,
    comp: CompId,
    instr: &Instruction,
    place: &dyn Fn(InstrId) -> InstrId,
    renumbered: &[CompId],
) -> InstrId {
    let mut copied = instr.clone();
    copied.op.for_each_called_mut(&mut |called| *called = renumbered[called.idx()]);
    copied.operands.iter_mut().chain(&mut copied.control_predecessors).for_each(|id| *id = place(*id));
    module.append_copy(comp, copied)
}

fn n_elements(state: &Shape) -> i64 {
    state.as_tuple().map_or(0, <[Shape]>::len) as i64
}

fn s32(value: f64) -> Literal {
    Literal::scalar_of(DType::S32, value).expect("s32 has scalars")
}
