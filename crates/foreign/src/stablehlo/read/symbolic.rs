//! Programs whose sizes are symbolic, with the sizes given: what computes with sizes is folded, ops whose shape is an
//! operand become those whose shape is static, and a function is written once for each of its shapes.
//!
//! As JAX's own refinement does where it compiles: functions lose the parameters that are sizes, assertions about shapes
//! are decided, and what is left is what an export of the same function with these sizes holds.
//!
//! Source: `stablehlo/transforms/StablehloRefineShapes.cpp` and the specification's dynamic ops; `jax/_src/export` of
//! jax 0.10 for what it writes.

use super::attributes::{Attribute, Attributes};
use super::build::{Builder, Scope};
use super::ops::window;
use super::{Function, Operation, Use};
use bf16scope_hlo::ops::{BinaryOp, PadDim, SliceDim};
use bf16scope_hlo::{ArrayShape, DType, DTypeClass, InstrId, Literal, Op, Shape};

/// Arrays of more elements are no shapes.
const MAX_ELEMENTS: usize = 64;
/// The function that `jax.export` wraps, and which its static exports do not have.
const WRAPPED: &str = "_wrapped_jax_export_main";
/// The attribute of a parameter that is a size.
const IS_SIZE: &str = "jax.global_constant";

/// Integers that are known.
#[derive(Clone, Debug, PartialEq)]
struct Known {
    dtype: DType,
    dims: Vec<i64>,
    values: Vec<i128>,
}

impl Known {
    fn of(literal: &Literal) -> Option<Known> {
        let Literal::Array { shape, bytes } = literal else { return None };
        let is_signed = match shape.dtype.class() {
            DTypeClass::Signed => true,
            DTypeClass::Unsigned | DTypeClass::Pred => false,
            DTypeClass::Float | DTypeClass::Complex => return None,
        };
        let n = shape.dtype.n_bytes();
        if n == 0 || bytes.len() > MAX_ELEMENTS * n {
            return None;
        }
        let value = |chunk: &[u8]| {
            let fill = if is_signed && chunk[n - 1] >= 0x80 { 0xff } else { 0 };
            let mut wide = [fill; 16];
            wide[..n].copy_from_slice(chunk);
            i128::from_le_bytes(wide)
        };
        let values = bytes.chunks_exact(n).map(value).collect();
        Some(Known { dtype: shape.dtype, dims: shape.dims.clone(), values })
    }

    /// As a constant: what is too wide wraps, as it does where it is computed.
    fn literal(&self) -> Literal {
        let n = self.dtype.n_bytes();
        let bytes = self.values.iter().flat_map(|value| value.to_le_bytes().into_iter().take(n)).collect();
        Literal::Array { shape: ArrayShape::new(self.dtype, self.dims.clone()), bytes }
    }

    fn ints(&self) -> Option<Vec<i64>> {
        self.values.iter().map(|value| i64::try_from(*value).ok()).collect()
    }
}

impl<'t> Builder<'_, 't> {
    /// Writes an op in which a size is; none of those it does not know gives `Some(None)`.
    pub(super) fn with_sizes(
        &mut self,
        scope: &mut Scope<'t>,
        operation: &mut Operation<'t>,
        operands: &[InstrId],
        types: &[Shape],
    ) -> Option<Option<Vec<InstrId>>> {
        let line = operation.line;
        let dtype = types.first().and_then(Shape::dtype);
        let found = match operation.name {
            "call" | "func.call" => {
                let Attribute::Symbol(callee) = operation.attributes.take("callee")? else { return None };
                self.called(scope, callee, operands, types, line)?
            }
            "stablehlo.composite" => {
                let Attribute::Symbol(callee) = operation.attributes.take("decomposition")? else { return None };
                operation.attributes = Attributes::default();
                self.called(scope, callee, operands, types, line)?
            }
            "stablehlo.custom_call" => self.custom_call(scope, operation, operands, types)?,
            "stablehlo.get_dimension_size" => {
                let dim = usize::try_from(operation.attributes.take_int("dimension")?).ok()?;
                let size = *self.shape(scope.comp, *operands.first()?).dims().get(dim)?;
                let known = Known { dtype: dtype?, dims: Vec::new(), values: vec![size.into()] };
                vec![self.constant(scope, known.literal())]
            }
            "stablehlo.dynamic_broadcast_in_dim" => {
                let [operand, shape] = *operands else { return None };
                let dims = operation.attributes.take_ints("broadcast_dimensions")?;
                // The sizes already say which dimensions are repeated.
                for said in ["known_expanding_dimensions", "known_nonexpanding_dimensions"] {
                    drop(operation.attributes.take(said));
                }
                let to = [Shape::array(dtype?, self.sizes(scope, shape)?)];
                self.broadcast(scope, [operand], &dims, &to, line)?
            }
            "stablehlo.dynamic_reshape" => {
                let [operand, shape] = *operands else { return None };
                let to = Shape::array(dtype?, self.sizes(scope, shape)?);
                match self.shape(scope.comp, operand).is_compatible(&to) {
                    true => vec![operand],
                    false => self.push(scope, Op::Reshape, &[operand], &[to], line)?,
                }
            }
            "stablehlo.dynamic_iota" => {
                let [shape] = *operands else { return None };
                let dimension = operation.attributes.take_int("iota_dimension")?;
                let to = [Shape::array(dtype?, self.sizes(scope, shape)?)];
                self.push(scope, Op::Iota { dimension }, &[], &to, line)?
            }
            "stablehlo.dynamic_pad" => {
                let [operand, value, low, high, interior] = *operands else { return None };
                let lists = [self.ints(scope, low)?, self.ints(scope, high)?, self.ints(scope, interior)?];
                let pad = |i: usize| {
                    Some(PadDim { low: *lists[0].get(i)?, high: *lists[1].get(i)?, interior: *lists[2].get(i)? })
                };
                let dims = (0..lists[0].len()).map(pad).collect::<Option<Vec<_>>>()?;
                match dims.iter().all(|dim| (dim.low, dim.high, dim.interior) == (0, 0, 0)) {
                    true => vec![operand],
                    false => self.push(scope, Op::Pad(dims), &[operand, value], types, line)?,
                }
            }
            "stablehlo.real_dynamic_slice" => self.real_slice(scope, operands, types, line)?,
            "stablehlo.dynamic_gather" | "stablehlo.dynamic_conv" => {
                let (sizes, operands) = operands.split_last()?;
                let (name, attribute) = match operation.name {
                    "stablehlo.dynamic_gather" => ("stablehlo.gather", "slice_sizes"),
                    _ => ("stablehlo.convolution", "padding"),
                };
                operation.name = name;
                drop(operation.attributes.take(attribute));
                operation.attributes.put(attribute, Attribute::Ints(self.ints(scope, *sizes)?))?;
                self.plain(scope, operation, operands.to_vec(), types)?
            }
            _ => match self.folded(scope, operation, operands, types) {
                Some(known) => {
                    operation.attributes = Attributes::default();
                    vec![self.constant(scope, known.literal())]
                }
                None => return Some(None),
            },
        };
        Some(Some(found))
    }

    fn known(&self, scope: &Scope<'t>, id: InstrId) -> Option<Known> {
        let computation = self.module.comp(scope.comp);
        let instr = computation.instr(id);
        match &instr.op {
            Op::Constant(literal) => Known::of(literal),
            Op::Broadcast { .. } => {
                let Op::Constant(literal) = &computation.instr(*instr.operands.first()?).op else { return None };
                let scalar = Known::of(literal)?;
                let [value] = scalar.values[..] else { return None };
                let n = n_elements(instr.shape.dims()).filter(|&n| n <= MAX_ELEMENTS)?;
                Some(Known { dims: instr.shape.dims().to_vec(), values: vec![value; n], ..scalar })
            }
            _ => None,
        }
    }

    fn ints(&self, scope: &Scope<'t>, id: InstrId) -> Option<Vec<i64>> {
        self.known(scope, id)?.ints()
    }

    /// The dims that an operand gives.
    fn sizes(&self, scope: &Scope<'t>, id: InstrId) -> Option<Vec<i64>> {
        self.ints(scope, id).filter(|sizes| sizes.iter().all(|size| (0..=i64::from(i32::MAX)).contains(size)))
    }

    /// Writes the ops of a function here, or calls one that is written for these shapes and sizes.
    fn called(
        &mut self,
        scope: &mut Scope<'t>,
        callee: &'t str,
        operands: &[InstrId],
        types: &[Shape],
        line: u32,
    ) -> Option<Vec<InstrId>> {
        let function = self.functions.get(callee)?.clone();
        if function.body.parameters.len() != operands.len() {
            return None;
        }
        let is_known = |id: &InstrId| self.known(scope, *id).is_some();
        if callee == WRAPPED || !operands.is_empty() && operands.iter().all(is_known) {
            return self.deeper(|builder| builder.inlined(scope, function, operands));
        }
        // Not every size is said to be one.
        let is_size = |id: &InstrId| is_known(id) && self.shape(scope.comp, *id).dims().is_empty();
        let sizes: Vec<bool> = operands.iter().map(is_size).collect();
        for mut said in function.parameters.iter().cloned() {
            drop(said.take(IS_SIZE));
            if !said.is_empty() {
                return None;
            }
        }
        let mut key = callee.to_string();
        for (id, is_size) in operands.iter().zip(&sizes) {
            key += &format!(" {}", self.shape(scope.comp, *id));
            if *is_size {
                key += &format!("={:?}", self.ints(scope, *id)?);
            }
        }
        let written = self.symbolic.as_ref()?.written.get(&key).copied();
        let to_apply = match written {
            Some(written) => written,
            None => {
                let comp = self.module.add_computation(callee);
                self.deeper(|builder| builder.written(scope, function, comp, operands, &sizes))?;
                self.symbolic.as_mut()?.written.insert(key, comp);
                comp
            }
        };
        let given: Vec<InstrId> =
            operands.iter().zip(&sizes).filter(|(_, is_size)| !**is_size).map(|(id, _)| *id).collect();
        self.push(scope, Op::Call { to_apply }, &given, types, line)
    }

    fn inlined(&mut self, scope: &mut Scope<'t>, function: Function<'t>, operands: &[InstrId]) -> Option<Vec<InstrId>> {
        let names = function.body.parameters.iter().map(|(name, _)| Use { name, result: 0 });
        let outside = std::mem::take(&mut scope.values);
        scope.values.extend(names.zip(operands.iter().copied()));
        let returned = self.operations(scope, function.body.operations);
        scope.values = outside;
        returned.filter(|returned| self.are(scope, returned, &function.results).is_some())
    }

    /// Writes a function into an empty computation, whose parameters are those that are no sizes.
    fn written(
        &mut self,
        outside: &Scope<'t>,
        function: Function<'t>,
        comp: bf16scope_hlo::CompId,
        operands: &[InstrId],
        sizes: &[bool],
    ) -> Option<()> {
        let mut inner = Scope::of(comp);
        let mut number = 0;
        for (((name, _), id), is_size) in function.body.parameters.iter().zip(operands).zip(sizes) {
            let value = match is_size {
                true => {
                    let literal = self.known(outside, *id)?.literal();
                    self.constant(&mut inner, literal)
                }
                false => {
                    number += 1;
                    self.parameter(comp, number - 1, self.shape(outside.comp, *id).clone())
                }
            };
            inner.values.insert(Use { name, result: 0 }, value);
        }
        let returned = self.operations(&mut inner, function.body.operations)?;
        self.are(&inner, &returned, &function.results)?;
        self.root(comp, &returned);
        Some(())
    }

    /// An assertion is decided; XLA's windows of known sizes become those of HLO.
    fn custom_call(
        &mut self,
        scope: &mut Scope<'t>,
        operation: &mut Operation<'t>,
        operands: &[InstrId],
        types: &[Shape],
    ) -> Option<Vec<InstrId>> {
        let said = &mut operation.attributes;
        let Attribute::Symbol(target) = said.take("call_target_name")? else { return None };
        drop(said.take("api_version"));
        match target {
            "shape_assertion" => {
                let (holds, values) = operands.split_first()?;
                let holds = self.ints(scope, *holds)?;
                let Some(Attribute::Text(message)) = said.take("error_message") else { return None };
                drop(said.take("has_side_effect"));
                if holds != [0] {
                    return Some(Vec::new());
                }
                let mut message = message.split(" Please see ").next()?.to_string();
                for (number, id) in values.iter().enumerate() {
                    let value = self.ints(scope, *id)?.first()?.to_string();
                    message = message.replace(&format!("{{{number}}}"), &value);
                }
                self.symbolic.as_mut()?.broken = Some(message.trim_end_matches([' ', ',', '.']).to_string());
                None
            }
            "stablehlo.dynamic_reduce_window" => {
                let Some(Attribute::List(called)) = said.take("called_computations") else { return None };
                let [Attribute::Symbol(reducer)] = called[..] else { return None };
                let [operand, init, ref lists @ ..] = *operands else { return None };
                let names = ["window_dimensions", "window_strides", "base_dilations", "window_dilations", "padding"];
                if lists.len() != names.len() {
                    return None;
                }
                let mut fields = Attributes::default();
                for (name, id) in names.into_iter().zip(lists) {
                    fields.put(name, Attribute::Ints(self.ints(scope, *id)?))?;
                }
                let window = window(&mut fields, self.shape(scope.comp, operand).dims().len())?;
                let body = self.functions.get(reducer)?.clone().body;
                let to_apply = self.applied(scope, body)?;
                self.push(scope, Op::ReduceWindow { window, to_apply }, &[operand, init], types, operation.line)
            }
            _ => None,
        }
    }

    /// A slice whose bounds are operands: all are known; or the starts are not, and how far the limits are from them is.
    fn real_slice(
        &mut self,
        scope: &mut Scope<'t>,
        operands: &[InstrId],
        types: &[Shape],
        line: u32,
    ) -> Option<Vec<InstrId>> {
        let [operand, start, limit, stride] = *operands else { return None };
        let strides = self.ints(scope, stride)?;
        if let (Some(starts), Some(limits)) = (self.ints(scope, start), self.ints(scope, limit)) {
            if starts.len() != strides.len() || limits.len() != strides.len() {
                return None;
            }
            let dim = |i: usize| SliceDim { start: starts[i], limit: limits[i], stride: strides[i] };
            let dims: Vec<SliceDim> = (0..strides.len()).map(dim).collect();
            let sizes = self.shape(scope.comp, operand).dims();
            let is_all =
                dims.iter().zip(sizes).all(|(dim, size)| (dim.start, dim.stride) == (0, 1) && dim.limit == *size);
            return if is_all {
                Some(vec![operand])
            } else {
                self.push(scope, Op::Slice(dims), &[operand], types, line)
            };
        }
        let instr = self.module.comp(scope.comp).instr(limit);
        let (Op::Binary(BinaryOp::Add), [base, far]) = (&instr.op, &instr.operands[..]) else { return None };
        let (base, far) = (*base, *far);
        let slice_sizes = self.sizes(scope, far)?;
        if base != start || strides.iter().any(|stride| *stride != 1) {
            return None;
        }
        let dtype = self.shape(scope.comp, start).dtype()?;
        let mut given = vec![operand];
        for at in 0..slice_sizes.len() as i64 {
            let one = Op::Slice(vec![SliceDim { start: at, limit: at + 1, stride: 1 }]);
            let one = self.push(scope, one, &[start], &[Shape::array(dtype, [1])], line)?;
            given.extend(self.push(scope, Op::Reshape, &one, &[Shape::scalar(dtype)], line)?);
        }
        self.push(scope, Op::DynamicSlice { slice_sizes }, &given, types, line)
    }

    /// The value of an op on known integers.
    fn folded(
        &self,
        scope: &Scope<'t>,
        operation: &Operation<'t>,
        operands: &[InstrId],
        types: &[Shape],
    ) -> Option<Known> {
        let short = operation.name.strip_prefix("stablehlo.")?;
        let known: Vec<Known> = operands.iter().map(|id| self.known(scope, *id)).collect::<Option<_>>()?;
        let [Shape::Array(to)] = types else { return None };
        let first = known.first()?;
        let mut said = operation.attributes.clone();
        let same = |values: Vec<i128>| Known { dtype: to.dtype, dims: first.dims.clone(), values };
        let each = |of: &dyn Fn(i128) -> Option<i128>| {
            first.values.iter().map(|value| of(*value)).collect::<Option<Vec<_>>>().map(same)
        };
        // A scalar may stand for all of them, where the specification lets it.
        let at = |known: &Known, i: usize| if known.dims.is_empty() { known.values[0] } else { known.values[i] };
        let folded = match (short, &known[..]) {
            ("reshape", [one]) => Known { dims: to.dims.clone(), ..one.clone() },
            ("convert", [_]) if to.dtype == DType::Pred => each(&|value| Some(i128::from(value != 0)))?,
            ("convert", [_]) if !to.dtype.is_float() && !to.dtype.is_complex() => each(&Some)?,
            ("negate", [_]) => each(&|value| value.checked_neg())?,
            ("abs", [_]) => each(&|value| value.checked_abs())?,
            ("sign", [_]) => each(&|value| Some(value.signum()))?,
            ("not", [one]) if one.dtype == DType::Pred => each(&|value| Some(1 - value))?,
            ("broadcast_in_dim", [one]) if one.values.len() == 1 => {
                let n = n_elements(&to.dims).filter(|&n| n <= MAX_ELEMENTS)?;
                Known { dtype: to.dtype, dims: to.dims.clone(), values: vec![one.values[0]; n] }
            }
            ("concatenate", all) => concatenated(all, said.take_int("dimension")?)?,
            ("slice", [one]) if one.dims.len() == 1 => {
                let mut list = |name| said.take_ints(name).filter(|list| list.len() == 1).map(|list| list[0]);
                let (start, limit, stride) = (list("start_indices")?, list("limit_indices")?, list("strides")?);
                let (start, limit) = (usize::try_from(start).ok()?, usize::try_from(limit).ok()?);
                let stride = usize::try_from(stride).ok().filter(|stride| *stride > 0)?;
                let values: Vec<i128> = one.values.get(start..limit)?.iter().step_by(stride).copied().collect();
                Known { dims: vec![values.len() as i64], values, ..one.clone() }
            }
            ("compare", [a, b]) if a.dims == b.dims => {
                let direction = said.take_word("comparison_direction")?;
                let holds = |(a, b): (&i128, &i128)| {
                    Some(i128::from(match direction {
                        "EQ" => a == b,
                        "NE" => a != b,
                        "LT" => a < b,
                        "LE" => a <= b,
                        "GT" => a > b,
                        "GE" => a >= b,
                        _ => return None,
                    }))
                };
                same(a.values.iter().zip(&b.values).map(holds).collect::<Option<_>>()?)
            }
            ("select", [which, a, b]) if a.dims == b.dims && (which.dims.is_empty() || which.dims == a.dims) => {
                let chosen = |i: usize| if at(which, i) != 0 { a.values[i] } else { b.values[i] };
                Known { values: (0..a.values.len()).map(chosen).collect(), ..a.clone() }
            }
            ("clamp", [low, one, high])
                if [low, high].iter().all(|bound| bound.dims.is_empty() || bound.dims == one.dims) =>
            {
                let clamped = |i: usize| one.values[i].max(at(low, i)).min(at(high, i));
                Known { values: (0..one.values.len()).map(clamped).collect(), ..one.clone() }
            }
            (op, [a, b]) if a.dims == b.dims && a.dtype == b.dtype => {
                let of = |(a, b): (&i128, &i128)| binary(op, *a, *b);
                same(a.values.iter().zip(&b.values).map(of).collect::<Option<_>>()?)
            }
            _ => return None,
        };
        // As wide as its type says.
        let folded = Known::of(&folded.literal())?;
        let agrees = folded.dtype == to.dtype
            && folded.dims.len() == to.dims.len()
            && folded.dims.iter().zip(&to.dims).all(|(dim, said)| *said == super::UNKNOWN || dim == said)
            && Some(folded.values.len()) == n_elements(&folded.dims);
        agrees.then_some(folded)
    }
}

fn binary(op: &str, a: i128, b: i128) -> Option<i128> {
    Some(match op {
        "add" => a + b,
        "subtract" => a - b,
        "multiply" => a.checked_mul(b)?,
        "divide" if b != 0 => a / b,
        "remainder" if b != 0 => a % b,
        "maximum" => a.max(b),
        "minimum" => a.min(b),
        "and" => a & b,
        "or" => a | b,
        "xor" => a ^ b,
        _ => return None,
    })
}

/// How many elements such an array has; none where the dims are those of no array.
fn n_elements(dims: &[i64]) -> Option<usize> {
    dims.iter().try_fold(1usize, |n, dim| n.checked_mul(usize::try_from(*dim).ok()?))
}

fn concatenated(all: &[Known], dimension: i64) -> Option<Known> {
    let first = all.first()?;
    let axis = usize::try_from(dimension).ok().filter(|axis| *axis < first.dims.len())?;
    let but = |known: &Known| [&known.dims[..axis], &known.dims[axis + 1..]].concat();
    if all.iter().any(|known| known.dims.len() != first.dims.len() || but(known) != but(first)) {
        return None;
    }
    let chunk = |known: &Known| n_elements(&known.dims[axis..]);
    let n_outer = n_elements(&first.dims[..axis]).filter(|n| *n <= MAX_ELEMENTS)?;
    let mut values = Vec::new();
    for outer in 0..n_outer {
        for known in all {
            let n = chunk(known)?;
            values.extend_from_slice(known.values.get(outer * n..(outer + 1) * n)?);
        }
    }
    let mut dims = first.dims.clone();
    dims[axis] = all.iter().try_fold(0i64, |sum, known| sum.checked_add(known.dims[axis]))?;
    Some(Known { dtype: first.dtype, dims, values })
}
