//! Loops on the device: [`Graph::scan`], as a `while`, and [`Graph::scan_unrolled`], copy after copy.
//!
//! The body of a loop is a computation, and a [`Graph`] writes one computation. So a body is built as a graph of its
//! own, finished, and its module is copied into the outer one: nothing else must handle two computations at once.
//! Gradients can be taken inside the body, or of the loop's results: the reverse of a `while` runs from the last trip
//! to the first (`passes::grad`).

use super::{Graph, Tensor};
use bf16scope_hlo::ops::{BinaryOp, Comparison, RuleError, SliceDim};
use bf16scope_hlo::{CompId, DType, InstrId, Instruction, Literal, Metadata, Module, Op, Shape};

/// An operand of a loop.
#[derive(Clone, Copy, Debug)]
pub enum Operand<'a> {
    /// A value that each trip passes to the next, with this initial value.
    Carried(&'a Tensor),
    /// One of equal parts of this value for each trip, along its first dimension.
    Split(&'a Tensor),
    /// An integer scalar plus the number of the trip, from 0.
    Counted(&'a Tensor),
}

impl<'a> Operand<'a> {
    /// The whole value.
    pub fn tensor(self) -> &'a Tensor {
        match self {
            Operand::Carried(tensor) | Operand::Split(tensor) | Operand::Counted(tensor) => tensor,
        }
    }
}

/// The most instructions in copies of a body: what a compiler still handles.
const MAX_UNROLLED: usize = 1 << 20;

impl Graph {
    /// Runs `body` `n` times, in a `while` loop. Returns the carried values after the last trip, and then, of each further
    /// result of the body, those of all trips.
    ///
    /// # Shapes
    /// Parameter `i` of the body's entry is operand `i`: of its shape where it is carried or counted, `[d / n, …]` where a
    /// `[d, …]` is split, trip 0 getting the first part. The body's result is a tuple of the carried values in their order,
    /// then of any other arrays; one of shape `[…]` there becomes `[n, …]`.
    ///
    /// # Errors
    /// A trip count of 0; a dimension that the trip count does not divide; a body with other parameters or results.
    ///
    /// # Examples
    /// ```
    /// use bf16scope_hlo::DType;
    /// use bf16scope_model::graph::{Graph, Operand};
    ///
    /// let body = Graph::new("body");
    /// let (sum, part) = (body.input("sum", DType::F32, [3]), body.input("part", DType::F32, [2, 3]));
    /// let sum = &sum + part.sum(&[0]);
    /// let body = body.finish(&[("sum", &sum), ("so far", &sum)]).unwrap();
    ///
    /// let g = Graph::new("column_sums");
    /// let (zeros, x) = (g.full(DType::F32, &[3], 0.0), g.input("x", DType::F32, [8, 3]));
    /// let sums = g.scan(4, &body.module, &[Operand::Carried(&zeros), Operand::Split(&x)]);
    /// assert_eq!((sums[0].dims(), sums[1].dims()), (vec![3], vec![4, 3]));
    /// ```
    #[track_caller]
    pub fn scan(&self, n: u32, body: &Module, operands: &[Operand<'_>]) -> Vec<Tensor> {
        let Some(results) = self.results_of("scan", n, body, operands) else {
            return vec![self.poison(); n_results(body)];
        };
        let n_carried = results.carried.len();
        let stacks: Vec<Tensor> = results.stacked.iter().map(|shape| self.zeros_stacked(n, shape)).collect();
        // The state is the carried values and the stacks, then the other operands whole, then the trip number.
        let operands_where = |is_carried: bool| {
            operands.iter().filter(move |it| matches!(it, Operand::Carried(_)) == is_carried).map(|it| it.tensor())
        };
        let trip = self.scalar(DType::S32, 0.0);
        let state: Vec<InstrId> =
            operands_where(true).chain(&stacks).chain(operands_where(false)).chain([&trip]).map(|it| it.id).collect();
        let shape = Shape::Tuple(state.iter().map(|&id| self.emitter().shape(id)).collect());
        let last = self.emit_with("while", |e| {
            let written = e.with_module_mut(|module| {
                let condition = write_condition(module, &shape, n)?;
                Ok((condition, write_body(module, &shape, body, operands, n_carried)?))
            });
            match written {
                Ok((condition, body)) => e.emit(Op::While { condition, body }, &[e.tuple(&state)], None),
                Err(error) => e.fail("while", &state, error),
            }
        });
        (0..n_carried + stacks.len()).map(|index| last.get_tuple_element(index)).collect()
    }

    /// As [`Graph::scan`], but `n` copies of the body, one after the other, with a barrier before each and after the last:
    /// nothing of one copy is fused with another, so each computes what the body alone would.
    ///
    /// # Errors
    /// As [`Graph::scan`]; copies of more than 2^20 instructions in all.
    #[track_caller]
    pub fn scan_unrolled(&self, n: u32, body: &Module, operands: &[Operand<'_>]) -> Vec<Tensor> {
        let poison = || vec![self.poison(); n_results(body)];
        let Some(results) = self.results_of("scan_unrolled", n, body, operands) else { return poison() };
        let tensors: Vec<&Tensor> = operands.iter().map(|operand| operand.tensor()).collect();
        let n_instructions = body.computations.iter().map(|computation| computation.instructions.len()).sum::<usize>();
        if n_instructions.saturating_mul(n as usize) > MAX_UNROLLED {
            let message =
                format!("{n} copies of {n_instructions} instructions are more than {MAX_UNROLLED} instructions");
            let error = RuleError::new("scan/unrolled", message).with_help("make fewer trips, or a `while` loop");
            self.fail("scan_unrolled", &tensors, error);
            return poison();
        }
        let n_carried = results.carried.len();
        let mut carried: Vec<InstrId> = Vec::with_capacity(n_carried);
        carried.extend(operands.iter().filter(|it| matches!(it, Operand::Carried(_))).map(|it| it.tensor().id));
        let mut others: Vec<Vec<InstrId>> = vec![Vec::new(); results.stacked.len()];
        let called = self.emitter().with_module_mut(|module| copy_called(module, body));
        for trip in 0..n {
            // A barrier for all values that this trip reads and all results of the one before.
            let mut parts = Vec::new();
            for operand in operands {
                match operand {
                    Operand::Carried(_) => {}
                    Operand::Split(tensor) => parts.push(part(tensor, n, trip).id),
                    Operand::Counted(tensor) => {
                        let counted = *tensor + self.scalar(tensor.dtype(), f64::from(trip));
                        parts.push(counted.id);
                    }
                }
            }
            let before = others.iter().filter_map(|other| other.last().copied());
            let passed = self.barrier(&carried.iter().copied().chain(parts).chain(before).collect::<Vec<_>>());
            let (now, rest) = passed.split_at(n_carried);
            let (parts, before) = rest.split_at(operands.len() - n_carried);
            for (other, &passed) in others.iter_mut().zip(before) {
                *other.last_mut().expect("it was just read") = passed;
            }
            let (mut now, mut parts) = (now.iter(), parts.iter());
            let arguments = operands.iter().filter_map(|operand| match operand {
                Operand::Carried(_) => now.next(),
                Operand::Split(_) | Operand::Counted(_) => parts.next(),
            });
            let arguments: Vec<InstrId> = arguments.copied().collect();
            let inlined = self.emitter().with_module_mut(|module| {
                let entry = module.entry;
                inline(module, entry, body, &arguments, &called)
            });
            let trip_results = match inlined {
                Ok(trip_results) => trip_results,
                Err(error) => {
                    self.fail("scan_unrolled", &tensors, error);
                    return poison();
                }
            };
            carried = trip_results[..n_carried].to_vec();
            others.iter_mut().zip(&trip_results[n_carried..]).for_each(|(other, &result)| other.push(result));
        }
        let last = others.iter().filter_map(|other| other.last().copied());
        let passed = self.barrier(&carried.iter().copied().chain(last).collect::<Vec<_>>());
        for (other, &passed) in others.iter_mut().zip(&passed[n_carried..]) {
            *other.last_mut().expect("there is a trip") = passed;
        }
        let stacked = others.into_iter().map(|other| {
            let rows: Vec<Tensor> = other.into_iter().map(|id| row(&self.tensor(id))).collect();
            Tensor::concatenate(&rows.iter().collect::<Vec<_>>(), 0)
        });
        passed[..n_carried].iter().map(|&id| self.tensor(id)).chain(stacked).collect()
    }

    /// The results of a loop, if its body is valid.
    #[track_caller]
    pub(super) fn results_of(&self, what: &str, n: u32, body: &Module, operands: &[Operand<'_>]) -> Option<Results> {
        let tensors: Vec<&Tensor> = operands.iter().map(|operand| operand.tensor()).collect();
        if !self.owns(what, &tensors) || tensors.iter().any(|tensor| tensor.is_poison()) {
            return None;
        }
        match check(n, body, operands) {
            Ok(results) => Some(results),
            Err(error) => {
                self.fail(what, &tensors, error);
                None
            }
        }
    }

    #[track_caller]
    fn zeros_stacked(&self, n: u32, shape: &Shape) -> Tensor {
        let dims: Vec<i64> = [i64::from(n)].into_iter().chain(shape.dims().iter().copied()).collect();
        self.full(shape.dtype().expect("what is stacked is an array"), &dims, 0.0)
    }

    /// The values after a barrier.
    #[track_caller]
    fn barrier(&self, values: &[InstrId]) -> Vec<InstrId> {
        let passed = self.emit_with("barrier", |e| {
            let all = e.tuple(values);
            let shape = e.shape(all);
            match e.with_module_mut(|module| write_barrier(module, &shape)) {
                Ok(to_apply) => e.emit(Op::Call { to_apply }, &[all], None),
                Err(error) => e.fail("barrier", values, error),
            }
        });
        if !passed.is_poison() {
            self.emitter().with_module_mut(|module| {
                let entry = module.entry;
                let call = &mut module.computations[entry.idx()].instructions[passed.id.idx()];
                call.frontend_attributes = vec![("inlineable".to_string(), "false".to_string())];
            });
        }
        (0..values.len()).map(|index| passed.get_tuple_element(index).id).collect()
    }
}

/// Part `trip` of `n`.
#[track_caller]
fn part(tensor: &Tensor, n: u32, trip: u32) -> Tensor {
    let mut dims: Vec<SliceDim> = tensor.dims().iter().map(|&limit| SliceDim { start: 0, limit, stride: 1 }).collect();
    let length = dims[0].limit / i64::from(n);
    dims[0] = SliceDim { start: length * i64::from(trip), limit: length * (i64::from(trip) + 1), stride: 1 };
    tensor.slice(&dims)
}

/// `[1, …]`.
#[track_caller]
fn row(tensor: &Tensor) -> Tensor {
    tensor.reshape([1].into_iter().chain(tensor.dims()).collect::<Vec<i64>>())
}

/// The number of results of a loop over `body`.
pub(super) fn n_results(body: &Module) -> usize {
    n_elements(body.entry().result_shape()) as usize
}

/// The results of a body.
pub(super) struct Results {
    carried: Vec<Shape>,
    stacked: Vec<Shape>,
}

/// Checks that the body takes these operands and returns the carried ones.
fn check(n: u32, body: &Module, operands: &[Operand<'_>]) -> Result<Results, RuleError> {
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
    let mut carried = Vec::new();
    for operand in operands {
        match operand {
            Operand::Carried(tensor) => {
                expected.push(tensor.shape().to_string());
                carried.push(tensor.shape());
            }
            Operand::Split(tensor) => expected.push(part_of(tensor, n)?.to_string()),
            Operand::Counted(tensor) => {
                if tensor.rank() != 0 || !tensor.dtype().is_integer() {
                    let message = format!("{} is counted, expected a scalar of integers", tensor.shape());
                    return Err(RuleError::new("scan/counted", message));
                }
                expected.push(tensor.shape().to_string());
            }
        }
    }
    let list = |shapes: &[String]| shapes.join(", ");
    if parameters != expected {
        let message = format!("the body takes ({}), expected ({})", list(&parameters), list(&expected));
        return Err(RuleError::new("scan/parameters", message));
    }
    let wrong = || {
        let expected = Shape::Tuple(carried.clone());
        let message = format!("the body gives {}, expected {expected} and then any arrays", entry.result_shape());
        RuleError::new("scan/results", message)
    };
    let results = entry.result_shape().as_tuple().filter(|results| results.len() >= carried.len()).ok_or_else(wrong)?;
    let (first, stacked) = results.split_at(carried.len());
    let is_same = first.iter().zip(&carried).all(|(left, right)| left.to_string() == right.to_string());
    match is_same && stacked.iter().all(|shape| shape.dtype().is_some()) {
        true => Ok(Results { carried, stacked: stacked.to_vec() }),
        false => Err(wrong()),
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

/// A barrier for fusion: an `opt-barrier` in a called computation that must not be inlined. XLA's CPU compiler removes
/// an `opt-barrier` before it fuses (its pass `cse_barrier_expander`), but keeps such a call until the end; a compiler
/// that inlines the call still has the `opt-barrier`.
fn write_barrier(module: &mut Module, shape: &Shape) -> Result<CompId, RuleError> {
    let comp = module.add_computation("barrier");
    let mut push = |op: Op, operands: &[InstrId], declared: Option<&Shape>| {
        module.push(comp, op, operands, declared, Metadata::default())
    };
    let parameter = push(Op::parameter(0), &[], Some(shape))?;
    push(Op::OptimizationBarrier, &[parameter], None)?;
    Ok(comp)
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
    n_carried: usize,
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
    let n_results = n_results(body);
    let (mut carried, mut whole) = (elements[..n_carried].iter(), elements[n_results..].iter());
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
                let mut all = vec![*whole.next().expect("the state has every split operand"), start];
                all.resize(slice_sizes.len() + 1, zero);
                arguments.push(push(Op::DynamicSlice { slice_sizes }, &all, None)?);
            }
            Operand::Counted(_) => {
                let start = *whole.next().expect("the state has every counted operand");
                let shape = &body.entry().instr(parameter).shape;
                let trip = match shape.dtype() {
                    Some(DType::S32) => trip,
                    _ => push(Op::Convert, &[trip], Some(shape))?,
                };
                arguments.push(push(Op::Binary(BinaryOp::Add), &[start, trip], None)?);
            }
        }
    }
    let one = push(Op::Constant(s32(1.0)), &[], None)?;
    let next_trip = push(Op::Binary(BinaryOp::Add), &[trip, one], None)?;
    let mut next = inline(module, comp, body, &arguments, &renumbered)?;
    for (result, &stack) in next[n_carried..].iter_mut().zip(&elements[n_carried..n_results]) {
        let shape = module.computations[comp.idx()].instr(*result).shape.clone();
        let dims: Vec<i64> = [1].into_iter().chain(shape.dims().iter().copied()).collect();
        let dtype = shape.dtype().expect("what is stacked is an array");
        let mut all = vec![stack];
        all.push(module.push(comp, Op::Reshape, &[*result], Some(&Shape::array(dtype, dims)), Metadata::default())?);
        all.push(trip);
        all.resize(shape.dims().len() + 3, zero);
        *result = module.push(comp, Op::DynamicUpdateSlice, &all, None, Metadata::default())?;
    }
    next.extend(&elements[n_results..elements.len() - 1]);
    next.push(next_trip);
    module.push(comp, Op::Tuple, &next, None, Metadata::default())?;
    Ok(comp)
}

/// Copies every computation of `body` except its entry; returns their new ids by their old ones.
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

/// Copies the entry of `body` into `comp` with its parameters replaced by `arguments`; returns the elements of its
/// result.
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

/// Appends a copy of `instr` under a new name, with its operands mapped by `place`.
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
