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
use super::known::{self, Known, MAX_ELEMENTS, n_elements};
use super::ops::window;
use super::{Function, Operation, Use};
use bf16scope_hlo::ops::{BinaryOp, PadDim, SliceDim};
use bf16scope_hlo::{DType, InstrId, Op, Shape};

/// The function that `jax.export` wraps, and which its static exports do not have.
const WRAPPED: &str = "_wrapped_jax_export_main";
/// The attribute of a parameter that is a size.
const IS_SIZE: &str = "jax.global_constant";

/// An op's operands, the types of its results, and its line.
struct Site<'o> {
    operands: &'o [InstrId],
    types: &'o [Shape],
    line: u32,
}

impl Site<'_> {
    fn dtype(&self) -> Option<DType> {
        self.types.first()?.dtype()
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
        let site = &Site { operands, types, line: operation.line };
        let attributes = &mut operation.attributes;
        let results = match operation.name {
            "call" | "func.call" => {
                let Attribute::Symbol(callee) = attributes.take("callee")? else { return None };
                self.called(scope, callee, site)
            }
            "stablehlo.composite" => {
                let Attribute::Symbol(callee) = attributes.take("decomposition")? else { return None };
                *attributes = Attributes::default();
                self.called(scope, callee, site)
            }
            "stablehlo.custom_call" => self.custom_call(scope, attributes, site),
            "stablehlo.get_dimension_size" => self.dimension_size(scope, attributes, site),
            "stablehlo.dynamic_broadcast_in_dim" => self.dynamic_broadcast(scope, attributes, site),
            "stablehlo.dynamic_reshape" => self.dynamic_reshape(scope, site),
            "stablehlo.dynamic_iota" => {
                let [shape] = *operands else { return None };
                let dimension = attributes.take_int("iota_dimension")?;
                let to = [self.sized(scope, site, shape)?];
                self.push(scope, Op::Iota { dimension }, &[], &to, site.line)
            }
            "stablehlo.dynamic_pad" => self.dynamic_pad(scope, site),
            "stablehlo.real_dynamic_slice" => self.real_slice(scope, site),
            "stablehlo.dynamic_gather" => self.with_list(scope, operation, ("stablehlo.gather", "slice_sizes"), site),
            "stablehlo.dynamic_conv" => self.with_list(scope, operation, ("stablehlo.convolution", "padding"), site),
            _ => {
                let known = operands.iter().map(|id| self.known(scope, *id)).collect::<Option<Vec<_>>>();
                let Some(known) = known.and_then(|known| known::fold(operation, &known, types)) else {
                    return Some(None);
                };
                operation.attributes = Attributes::default();
                Some(vec![self.constant(scope, known.literal())])
            }
        };
        results.map(Some)
    }

    /// The size of a dimension, which is known.
    fn dimension_size(
        &mut self,
        scope: &mut Scope<'t>,
        attributes: &mut Attributes<'t>,
        site: &Site<'_>,
    ) -> Option<Vec<InstrId>> {
        let dim = usize::try_from(attributes.take_int("dimension")?).ok()?;
        let size = *self.shape(scope.comp, *site.operands.first()?).dims().get(dim)?;
        let known = Known { dtype: site.dtype()?, dims: Vec::new(), values: vec![size.into()] };
        Some(vec![self.constant(scope, known.literal())])
    }

    fn dynamic_broadcast(
        &mut self,
        scope: &mut Scope<'t>,
        attributes: &mut Attributes<'t>,
        site: &Site<'_>,
    ) -> Option<Vec<InstrId>> {
        let [operand, shape] = *site.operands else { return None };
        let dims = attributes.take_ints("broadcast_dimensions")?;
        // The sizes already say which dimensions are repeated.
        for name in ["known_expanding_dimensions", "known_nonexpanding_dimensions"] {
            drop(attributes.take(name));
        }
        let to = [self.sized(scope, site, shape)?];
        self.broadcast(scope, [operand], &dims, &to, site.line)
    }

    fn dynamic_reshape(&mut self, scope: &mut Scope<'t>, site: &Site<'_>) -> Option<Vec<InstrId>> {
        let [operand, shape] = *site.operands else { return None };
        let to = self.sized(scope, site, shape)?;
        match self.shape(scope.comp, operand).is_compatible(&to) {
            true => Some(vec![operand]),
            false => self.push(scope, Op::Reshape, &[operand], &[to], site.line),
        }
    }

    fn dynamic_pad(&mut self, scope: &mut Scope<'t>, site: &Site<'_>) -> Option<Vec<InstrId>> {
        let [operand, value, low, high, interior] = *site.operands else { return None };
        let lists = [self.ints(scope, low)?, self.ints(scope, high)?, self.ints(scope, interior)?];
        let pad =
            |i: usize| Some(PadDim { low: *lists[0].get(i)?, high: *lists[1].get(i)?, interior: *lists[2].get(i)? });
        let dims = (0..lists[0].len()).map(pad).collect::<Option<Vec<_>>>()?;
        match dims.iter().all(|dim| (dim.low, dim.high, dim.interior) == (0, 0, 0)) {
            true => Some(vec![operand]),
            false => self.push(scope, Op::Pad(dims), &[operand, value], site.types, site.line),
        }
    }

    /// An op whose last operand becomes an attribute of the static op: the names of both.
    fn with_list(
        &mut self,
        scope: &mut Scope<'t>,
        operation: &mut Operation<'t>,
        (name, attribute): (&'static str, &'static str),
        site: &Site<'_>,
    ) -> Option<Vec<InstrId>> {
        let (list, operands) = site.operands.split_last()?;
        operation.name = name;
        drop(operation.attributes.take(attribute));
        operation.attributes.put(attribute, Attribute::Ints(self.ints(scope, *list)?))?;
        self.plain(scope, operation, operands.to_vec(), site.types)
    }

    fn known(&self, scope: &Scope<'t>, id: InstrId) -> Option<Known> {
        let computation = self.module.comp(scope.comp);
        let instr = computation.instr(id);
        match &instr.op {
            Op::Constant(literal) => Known::from_literal(literal),
            Op::Broadcast { .. } => {
                let Op::Constant(literal) = &computation.instr(*instr.operands.first()?).op else { return None };
                let scalar = Known::from_literal(literal)?;
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

    /// The type of the op's result, with the dims that an operand gives.
    fn sized(&self, scope: &Scope<'t>, site: &Site<'_>, shape: InstrId) -> Option<Shape> {
        Some(Shape::array(site.dtype()?, self.sizes(scope, shape)?))
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
        &Site { operands, types, line }: &Site<'_>,
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
        attributes: &mut Attributes<'t>,
        &Site { operands, types, line }: &Site<'_>,
    ) -> Option<Vec<InstrId>> {
        let Attribute::Symbol(target) = attributes.take("call_target_name")? else { return None };
        drop(attributes.take("api_version"));
        match target {
            "shape_assertion" => {
                let (holds, values) = operands.split_first()?;
                let holds = self.ints(scope, *holds)?;
                let Some(Attribute::Text(message)) = attributes.take("error_message") else { return None };
                drop(attributes.take("has_side_effect"));
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
                let Some(Attribute::List(called)) = attributes.take("called_computations") else { return None };
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
                self.push(scope, Op::ReduceWindow { window, to_apply }, &[operand, init], types, line)
            }
            _ => None,
        }
    }

    /// A slice whose bounds are operands: all are known; or the starts are not, and how far the limits are from them is.
    fn real_slice(
        &mut self,
        scope: &mut Scope<'t>,
        &Site { operands, types, line }: &Site<'_>,
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
}
