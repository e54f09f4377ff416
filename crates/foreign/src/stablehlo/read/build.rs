//! Computations of functions and regions: who is called, and what a loop's body sees of outside.

use std::collections::{HashMap, HashSet};

use super::attributes::{Attribute, Attributes};
use super::{Function, Operation, Program, Region, UNKNOWN, Use};
use bf16scope_hlo::ops::Conditional;
use bf16scope_hlo::{Alias, AliasKind, CompId, Computation, InstrId, Literal, Metadata, Module, Op, Shape};

/// The most that is written, with every function once for each of its shapes.
const MAX_OPERATIONS: u64 = 1 << 20;
/// Functions call each other no deeper.
const MAX_CALLS: u32 = 48;

/// The module of a program, whose lines are those of a file of this name.
pub(super) fn module(program: Program<'_>, file: &str) -> Option<Module> {
    let mut builder = Builder::of(program, file);
    builder.main()?;
    // A function without a call site was not read, so it was not checked either.
    builder.functions.is_empty().then_some(builder.module)
}

/// As [`module`], with names in the place of lines: those of locations, by their numbers.
pub(super) fn named(program: Program<'_>, names: Vec<String>) -> Option<Module> {
    let mut builder = Builder { names: Some(names), ..Builder::of(program, "") };
    builder.main()?;
    builder.functions.is_empty().then_some(builder.module)
}

/// As [`module`], of a program whose `main` has sizes, and other functions need not have any. Where it is not written, the
/// line, and what an assertion says that does not hold.
pub(super) fn symbolic(program: Program<'_>, file: &str) -> Result<Module, (u32, Option<String>)> {
    let mut builder = Builder { symbolic: Some(Symbolic::default()), ..Builder::of(program, file) };
    let Some(()) = builder.main() else {
        let Symbolic { line, broken, .. } = builder.symbolic.unwrap_or_default();
        return Err((line, broken));
    };
    let mut module = builder.module;
    for computation in &mut module.computations {
        drop_unused(computation);
    }
    Ok(module)
}

/// Takes out what nothing uses: sizes that became parts of shapes.
fn drop_unused(computation: &mut Computation) {
    let n = computation.instructions.len();
    let mut is_used = vec![false; n];
    for at in (0..n).rev() {
        let instr = &computation.instructions[at];
        is_used[at] |= computation.root.idx() == at || matches!(instr.op, Op::Parameter { .. });
        if is_used[at] {
            instr.operands.iter().for_each(|operand| is_used[operand.idx()] = true);
        }
    }
    let mut places = vec![computation.root; n];
    let mut next = 0;
    for at in 0..n {
        places[at] = InstrId(next);
        next += u32::from(is_used[at]);
    }
    let mut at = 0;
    computation.instructions.retain(|_| {
        at += 1;
        is_used[at - 1]
    });
    for instr in &mut computation.instructions {
        instr.operands.iter_mut().for_each(|operand| *operand = places[operand.idx()]);
    }
    computation.root = places[computation.root.idx()];
}

pub(super) struct Builder<'f, 't> {
    pub(super) module: Module,
    file: &'f str,
    /// Those that are not built yet.
    pub(super) functions: HashMap<&'t str, Function<'t>>,
    built: HashMap<&'t str, CompId>,
    n_calls: u32,
    n_regions: u32,
    /// Where sizes are symbolic, and given.
    pub(super) symbolic: Option<Symbolic>,
    /// Names by the numbers that operations have in place of lines.
    names: Option<Vec<String>>,
}

/// Values that are known when the sizes are given.
#[derive(Debug, Default)]
pub(super) struct Symbolic {
    /// Where the builder is.
    pub(super) line: u32,
    /// An assertion about shapes that does not hold, in its own words.
    pub(super) broken: Option<String>,
    n_operations: u64,
    /// Functions by name, shapes and sizes.
    pub(super) written: HashMap<String, CompId>,
}

impl Symbolic {
    /// Counts an op.
    pub(super) fn reach(&mut self, line: u32) -> Option<()> {
        self.line = line;
        self.n_operations += 1;
        (self.n_operations <= MAX_OPERATIONS).then_some(())
    }
}

/// A computation that is being written.
pub(super) struct Scope<'t> {
    pub(super) comp: CompId,
    pub(super) values: HashMap<Use<'t>, InstrId>,
    /// Constants by shape and bytes.
    pub(super) constants: HashMap<(Shape, Vec<u8>), InstrId>,
    /// Constants repeated to a shape.
    pub(super) repeated: HashMap<(InstrId, Vec<i64>), InstrId>,
}

impl Scope<'_> {
    pub(super) fn of(comp: CompId) -> Self {
        Scope { comp, values: HashMap::new(), constants: HashMap::new(), repeated: HashMap::new() }
    }
}

impl<'f, 't> Builder<'f, 't> {
    fn of(program: Program<'t>, file: &'f str) -> Self {
        let Program { name, functions } = program;
        let functions = functions.into_iter().map(|function| (function.name, function)).collect();
        let module = Module::new(name);
        Builder {
            module,
            file,
            functions,
            built: HashMap::new(),
            n_calls: 0,
            n_regions: 0,
            symbolic: None,
            names: None,
        }
    }

    fn main(&mut self) -> Option<()> {
        let main = self.functions.remove("main")?;
        let comp = self.module.entry;
        self.module.rename_computation(comp, "main");
        let (n_results, result_types) = (main.results.len(), main.results.clone());
        for (number, said) in (0..).zip(&main.parameters) {
            self.donation(number, said.clone(), n_results)?;
        }
        self.body_of(comp, Function { parameters: vec![Attributes::default(); main.parameters.len()], ..main })?;
        let same = match &result_types[..] {
            [one] => agrees(self.module.entry().result_shape(), one),
            all => agrees(self.module.entry().result_shape(), &Shape::Tuple(all.to_vec())),
        };
        same.then_some(())
    }

    /// Reads the donation of a parameter of `main`.
    fn donation(&mut self, parameter_number: i64, mut said: Attributes<'t>, n_results: usize) -> Option<()> {
        for name in ["jax.result_info", "jax.arg_info"] {
            drop(said.take(name));
        }
        let parameter_index = Vec::new();
        if said.has("tf.aliasing_output") {
            let output = said.take_int("tf.aliasing_output")?;
            if !(0..n_results as i64).contains(&output) {
                return None;
            }
            let output_index = if n_results == 1 { Vec::new() } else { vec![output] };
            let aliases = &mut self.module.input_output_alias;
            if aliases.iter().any(|alias| alias.output_index == output_index) {
                return None;
            }
            aliases.push(Alias { output_index, parameter_number, parameter_index, kind: AliasKind::May });
        } else if said.take_bool("jax.buffer_donor")? {
            self.module.buffer_donors.push((parameter_number, parameter_index));
        }
        said.is_empty().then_some(())
    }

    /// Writes a function into an empty computation.
    fn body_of(&mut self, comp: CompId, function: Function<'t>) -> Option<()> {
        let Function { body, parameters, places, results, .. } = function;
        if !parameters.iter().all(Attributes::is_empty) {
            return None;
        }
        let mut scope = Scope::of(comp);
        self.parameters(&mut scope, &body.parameters);
        if self.names.is_some() && comp == self.module.entry {
            for (number, place) in places.into_iter().enumerate() {
                self.module.computations[comp.idx()].instructions[number].metadata = self.metadata(place);
            }
        }
        let returned = self.operations(&mut scope, body.operations)?;
        self.are(&scope, &returned, &results)?;
        self.root(comp, &returned);
        Some(())
    }

    fn parameters(&mut self, scope: &mut Scope<'t>, parameters: &[(&'t str, Shape)]) {
        for (number, (name, shape)) in parameters.iter().enumerate() {
            let id = self.parameter(scope.comp, number, shape.clone());
            scope.values.insert(Use { name, result: 0 }, id);
        }
    }

    pub(super) fn parameter(&mut self, comp: CompId, number: usize, shape: Shape) -> InstrId {
        let id = self.module.append(comp, Op::parameter(number as i64), Vec::new(), shape, Metadata::default());
        let instr = &mut self.module.computations[comp.idx()].instructions[id.idx()];
        instr.name = instr.name.replace("parameter", &format!("Arg_{number}"));
        id
    }

    /// The result: one value as it is, others as a tuple.
    pub(super) fn root(&mut self, comp: CompId, returned: &[InstrId]) {
        let root = match returned {
            [one] => *one,
            all => self.tuple(comp, all),
        };
        self.module.computations[comp.idx()].root = root;
    }

    pub(super) fn tuple(&mut self, comp: CompId, of: &[InstrId]) -> InstrId {
        let shapes = of.iter().map(|id| self.shape(comp, *id).clone()).collect();
        self.module.append(comp, Op::Tuple, of.to_vec(), Shape::Tuple(shapes), Metadata::default())
    }

    pub(super) fn shape(&self, comp: CompId, id: InstrId) -> &Shape {
        &self.module.comp(comp).instr(id).shape
    }

    /// Whether these values have the types that are said.
    pub(super) fn are(&self, scope: &Scope<'t>, values: &[InstrId], types: &[Shape]) -> Option<()> {
        let is = |(id, ty): (&InstrId, &Shape)| agrees(self.shape(scope.comp, *id), ty);
        (values.len() == types.len() && values.iter().zip(types).all(is)).then_some(())
    }

    /// Writes ops; what the last of them returns.
    pub(super) fn operations(&mut self, scope: &mut Scope<'t>, operations: Vec<Operation<'t>>) -> Option<Vec<InstrId>> {
        let n_before = operations.len().checked_sub(1)?;
        for (idx, mut operation) in operations.into_iter().enumerate() {
            if let Some(symbolic) = &mut self.symbolic {
                symbolic.reach(operation.line)?;
            }
            let operands = operation.operands.iter().map(|used| scope.values.get(used).copied());
            let operands: Vec<InstrId> = operands.collect::<Option<_>>()?;
            self.are(scope, &operands, &operation.operand_types)?;
            let returns = matches!(operation.name, "return" | "func.return" | "stablehlo.return");
            if returns != (idx == n_before) {
                return None;
            }
            if returns {
                return operation.attributes.is_empty().then_some(operands);
            }
            let results = std::mem::take(&mut operation.results);
            let types = std::mem::take(&mut operation.result_types);
            let values = self.operation(scope, &mut operation, operands, &types)?;
            self.are(scope, &values, &types)?;
            if !operation.attributes.is_empty() || !operation.regions.is_empty() {
                return None;
            }
            let names = results.into_iter().flat_map(|(name, n)| (0..n).map(move |result| Use { name, result }));
            scope.values.extend(names.zip(values));
        }
        None
    }

    fn operation(
        &mut self,
        scope: &mut Scope<'t>,
        operation: &mut Operation<'t>,
        operands: Vec<InstrId>,
        types: &[Shape],
    ) -> Option<Vec<InstrId>> {
        if self.symbolic.is_some()
            && let Some(found) = self.with_sizes(scope, operation, &operands, types)?
        {
            return Some(found);
        }
        match operation.name {
            "call" | "func.call" => {
                let Some(Attribute::Symbol(callee)) = operation.attributes.take("callee") else { return None };
                let to_apply = self.function(callee)?;
                self.push(scope, Op::Call { to_apply }, &operands, types, operation.line)
            }
            "stablehlo.while" => self.while_loop(scope, operation, operands),
            "stablehlo.case" | "stablehlo.if" => self.branches(scope, operation, operands, types),
            _ => self.plain(scope, operation, operands, types),
        }
    }

    /// The computation of a function, written where it is first called.
    fn function(&mut self, name: &'t str) -> Option<CompId> {
        if let Some(built) = self.built.get(name) {
            return Some(*built);
        }
        // One that calls itself is gone here.
        let function = self.functions.remove(name)?;
        let comp = self.module.add_computation(name);
        self.deeper(|builder| builder.body_of(comp, function))?;
        self.built.insert(name, comp);
        Some(comp)
    }

    /// Writes a function that another one calls.
    pub(super) fn deeper<T>(&mut self, write: impl FnOnce(&mut Self) -> Option<T>) -> Option<T> {
        self.n_calls += 1;
        if self.n_calls > MAX_CALLS {
            return None;
        }
        let written = write(self)?;
        self.n_calls -= 1;
        Some(written)
    }

    /// Appends an instruction; its value, or of a tuple its elements.
    pub(super) fn push(
        &mut self,
        scope: &Scope<'t>,
        op: Op,
        operands: &[InstrId],
        types: &[Shape],
        line: u32,
    ) -> Option<Vec<InstrId>> {
        let comp = scope.comp;
        let metadata = self.metadata(line);
        let is_unknown = |ty: &Shape| ty.dims().contains(&UNKNOWN);
        let id = match types {
            // For these ops the type says more than the dims.
            [Shape::Array(one)] if matches!(op, Op::Convert | Op::BitcastConvert) && one.dims.contains(&UNKNOWN) => {
                let dims = operands.first().map(|id| self.shape(comp, *id).dims().to_vec())?;
                self.module.push(comp, op, operands, Some(&Shape::array(one.dtype, dims)), metadata)
            }
            // Operands give the dims, and the type what is accumulated in.
            [Shape::Array(one)] if matches!(op, Op::Dot { .. } | Op::Convolution(_)) && one.dims.contains(&UNKNOWN) => {
                let inferred = self.module.push(comp, op.clone(), operands, None, metadata.clone()).ok()?;
                let dims = self.shape(comp, inferred).dims().to_vec();
                drop(self.module.computations[comp.idx()].instructions.pop());
                self.module.push(comp, op, operands, Some(&Shape::array(one.dtype, dims)), metadata)
            }
            all if all.iter().any(is_unknown) => self.module.push(comp, op, operands, None, metadata),
            [one] => self.module.push(comp, op, operands, Some(one), metadata),
            all => self.module.push(comp, op, operands, Some(&Shape::Tuple(all.to_vec())), metadata),
        };
        let id = id.ok()?;
        match self.shape(comp, id) {
            Shape::Tuple(_) => Some(self.elements(comp, id)),
            _ => Some(vec![id]),
        }
    }

    fn metadata(&self, line: u32) -> Metadata {
        if let Some(names) = &self.names {
            let op_name = names.get(line as usize).cloned().unwrap_or_default();
            return Metadata { op_name, ..Metadata::default() };
        }
        let source_line = i32::try_from(line).unwrap_or(0);
        Metadata { source_file: self.file.to_string(), source_line, ..Metadata::default() }
    }

    fn elements(&mut self, comp: CompId, tuple: InstrId) -> Vec<InstrId> {
        let shapes = self.shape(comp, tuple).as_tuple().unwrap_or_default().to_vec();
        let element = |(index, shape)| {
            let op = Op::GetTupleElement { index };
            self.module.append(comp, op, vec![tuple], shape, Metadata::default())
        };
        (0..).zip(shapes).map(element).collect()
    }

    /// The computation that a reduction, a sort or a scatter applies. Of outside it sees constants.
    pub(super) fn applied(&mut self, scope: &Scope<'t>, region: Region<'t>) -> Option<CompId> {
        let mut inner = self.open(&region.parameters);
        let carried = self.sink(scope, &mut inner, &region.captures)?;
        if !carried.is_empty() {
            return None;
        }
        let returned = self.operations(&mut inner, region.operations)?;
        self.root(inner.comp, &returned);
        Some(inner.comp)
    }

    fn open(&mut self, parameters: &[(&'t str, Shape)]) -> Scope<'t> {
        let mut scope = Scope::of(self.module.add_computation(&format!("region_{}", self.n_regions)));
        self.n_regions += 1;
        self.parameters(&mut scope, parameters);
        scope
    }

    /// Repeats captured constants inside; what else is captured has to be handed over.
    fn sink(&mut self, outer: &Scope<'t>, inner: &mut Scope<'t>, captures: &[Use<'t>]) -> Option<Vec<Use<'t>>> {
        let mut carried = Vec::new();
        for used in captures {
            let instr = self.module.comp(outer.comp).instr(*outer.values.get(used)?);
            let Op::Constant(literal) = instr.op.clone() else {
                carried.push(*used);
                continue;
            };
            let id = self.constant(inner, literal);
            inner.values.insert(*used, id);
        }
        Some(carried)
    }

    /// A constant; each is written once.
    pub(super) fn constant(&mut self, scope: &mut Scope<'t>, literal: Literal) -> InstrId {
        /// Larger ones are hardly there twice.
        const MAX_KEY: usize = 64;
        let shape = literal.shape();
        let key = match &literal {
            Literal::Array { bytes, .. } if bytes.len() <= MAX_KEY => Some((shape.clone(), bytes.clone())),
            _ => None,
        };
        if let Some(known) = key.as_ref().and_then(|key| scope.constants.get(key)) {
            return *known;
        }
        if let (Some(symbolic), Literal::Array { bytes, .. }) = (&mut self.symbolic, &literal) {
            // One in a function that is written often is held as often.
            symbolic.n_operations += bytes.len() as u64 / 1024;
        }
        let id = self.module.append(scope.comp, Op::Constant(literal), Vec::new(), shape, Metadata::default());
        scope.constants.extend(key.map(|key| (key, id)));
        id
    }

    /// A loop over its values, and over those of outside that its regions use.
    fn while_loop(
        &mut self,
        scope: &mut Scope<'t>,
        operation: &mut Operation<'t>,
        mut operands: Vec<InstrId>,
    ) -> Option<Vec<InstrId>> {
        let n_values = operands.len();
        let regions: [Region<'t>; 2] = std::mem::take(&mut operation.regions).try_into().ok()?;
        let mut seen = HashSet::new();
        let captures: Vec<Use<'t>> = regions.iter().flat_map(|region| region.captures.iter().copied()).collect();
        let captures: Vec<Use<'t>> = captures.into_iter().filter(|used| seen.insert(*used)).collect();
        for used in &captures {
            let id = *scope.values.get(used)?;
            if !matches!(self.module.comp(scope.comp).instr(id).op, Op::Constant(_)) {
                operands.push(id);
            }
        }
        let shapes: Vec<Shape> = operands.iter().map(|id| self.shape(scope.comp, *id).clone()).collect();
        let mut comps = Vec::new();
        for (idx, region) in regions.into_iter().enumerate() {
            let types: Vec<Shape> = region.parameters.iter().map(|(_, ty)| ty.clone()).collect();
            self.are(scope, &operands[..n_values], &types)?;
            let mut inner = self.open(&[]);
            let given = self.given(&inner, &shapes);
            let names = region.parameters.iter().map(|(name, _)| Use { name, result: 0 });
            inner.values.extend(names.zip(given.iter().copied()));
            let carried = self.sink(scope, &mut inner, &captures)?;
            inner.values.extend(carried.into_iter().zip(given[n_values..].iter().copied()));
            let mut returned = self.operations(&mut inner, region.operations)?;
            if idx == 1 {
                self.are(&inner, &returned, &types)?;
                returned.extend_from_slice(&given[n_values..]);
            }
            self.root(inner.comp, &returned);
            comps.push(inner.comp);
        }
        let [condition, body] = comps.try_into().ok()?;
        let state = if let [one] = operands[..] { one } else { self.tuple(scope.comp, &operands) };
        let mut results = self.push(scope, Op::While { condition, body }, &[state], &shapes, operation.line)?;
        results.truncate(n_values);
        Some(results)
    }

    /// The one parameter of a computation that is handed these, and them.
    fn given(&mut self, inner: &Scope<'t>, shapes: &[Shape]) -> Vec<InstrId> {
        match shapes {
            [one] => vec![self.parameter(inner.comp, 0, one.clone())],
            all => {
                let tuple = self.parameter(inner.comp, 0, Shape::Tuple(all.to_vec()));
                self.elements(inner.comp, tuple)
            }
        }
    }

    /// One of several regions, by a number or a `pred`.
    fn branches(
        &mut self,
        scope: &mut Scope<'t>,
        operation: &mut Operation<'t>,
        mut operands: Vec<InstrId>,
        types: &[Shape],
    ) -> Option<Vec<InstrId>> {
        let mut branches = Vec::new();
        for region in std::mem::take(&mut operation.regions) {
            let mut inner = self.open(&region.parameters);
            if !region.parameters.is_empty() {
                return None;
            }
            let carried = self.sink(scope, &mut inner, &region.captures)?;
            let values = carried.iter().map(|used| scope.values.get(used).copied()).collect::<Option<Vec<_>>>()?;
            let shapes: Vec<Shape> = values.iter().map(|id| self.shape(scope.comp, *id).clone()).collect();
            let given = self.given(&inner, &shapes);
            inner.values.extend(carried.into_iter().zip(given));
            operands.push(if let [one] = values[..] { one } else { self.tuple(scope.comp, &values) });
            let returned = self.operations(&mut inner, region.operations)?;
            self.are(&inner, &returned, types)?;
            self.root(inner.comp, &returned);
            branches.push(inner.comp);
        }
        self.push(scope, Op::Conditional(Conditional { branches }), &operands, types, operation.line)
    }
}

/// Whether a shape is the one that is said, but for sizes that are not.
fn agrees(shape: &Shape, said: &Shape) -> bool {
    match (shape, said) {
        (Shape::Array(shape), Shape::Array(said)) if said.dims.contains(&UNKNOWN) => {
            let agree = |(dim, said): (&i64, &i64)| *said == UNKNOWN || dim == said;
            shape.dtype == said.dtype
                && shape.dims.len() == said.dims.len()
                && shape.dims.iter().zip(&said.dims).all(agree)
        }
        (Shape::Tuple(shapes), Shape::Tuple(said)) => {
            shapes.len() == said.len() && shapes.iter().zip(said).all(|(shape, said)| agrees(shape, said))
        }
        _ => shape.is_compatible(said),
    }
}
