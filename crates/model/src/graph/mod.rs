//! The graph builder: [`Graph`], [`Tensor`], [`Scope`].
//!
//! A graph writes the entry computation of an [`hlo::Module`](bf16scope_hlo::Module) directly; there is no intermediate
//! form. Calls do not return `Result`: the first error poisons its result, and [`Graph::finish`] returns that error
//! with the layer's name, the operands and the caller's file and line.
//!
//! ```
//! use bf16scope_hlo::DType;
//! use bf16scope_model::graph::{Graph, Init};
//!
//! let g = Graph::new("linear");
//! let x = g.input("x", DType::F32, [32, 64]).cast(DType::BF16);
//! let logits = g.bf16_scope(|s| {
//!     let w = s.variable("w", DType::BF16, [64, 10], Init::Zeros).value; // stored f32, read bf16
//!     x.matmul(&w)
//! });
//! let program = g.finish(&[("logits", &logits.cast(DType::F32))]).unwrap();
//! assert_eq!(program.variables[0].dtype, DType::F32);
//! assert_eq!(program.module.entry().result_shape().to_string(), "(f32[32,10])");
//! ```

mod collectives;
mod constraint;
mod gradients;
mod init;
mod inputs;
mod names;
mod operators;
mod owner;
mod precision;
mod scan;
mod scope;
mod segments;
mod shared;
mod spectral_norm;
mod storage;
mod tensor;

pub use collectives::{Group, Replicas, SumOrder, VariableShard};
pub use constraint::Constraint;
pub use gradients::gradients;
pub use init::{Distribution, FanMode, Init, Matrix};
pub use inputs::InputInfo;
pub use precision::{Precision, UnknownPrecision};
pub use scan::Operand;
pub use scope::{Scope, Variable};
pub use storage::{Numbers, Storage, UnknownStorage};
pub use tensor::Tensor;

use bf16scope_hlo::ops::RuleError;
use bf16scope_hlo::{DType, EmitError, Emitter, InstrId, Literal, Metadata, Module, Op, POISON, Shape};
use bf16scope_passes::tuning::Tuning;
use names::{Path, Taken};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::panic::Location;
use std::rc::Rc;

/// A computation under construction. Cheap to clone: clones share it.
#[derive(Clone, Debug)]
pub struct Graph {
    inner: Rc<Inner>,
}

#[derive(Debug)]
struct Inner {
    emitter: Emitter,
    path: Path,
    taken: Taken,
    /// The caller of the open layer, if there is one.
    layer_caller: Cell<Option<&'static Location<'static>>>,
    /// The file and line of a user's document that is being built, in place of a line of Rust.
    written_at: RefCell<Option<(Rc<str>, u32)>>,
    training: bool,
    tuning: RefCell<Rc<Tuning>>,
    precision: Cell<Precision>,
    storage: Cell<Storage>,
    inputs: RefCell<Vec<InputInfo>>,
    variables: RefCell<Vec<VariableInfo>>,
    variable_names: RefCell<BTreeSet<String>>,
    /// For variables stored narrower than they are read, by number: the value in f32.
    widened: RefCell<BTreeMap<usize, InstrId>>,
    replicas: Cell<Replicas>,
    /// This replica's id, once it was needed.
    replica_id: Cell<Option<InstrId>>,
    /// For sharded variables, by number: the gathered value, in the dtype in which gradients add up.
    gathered: RefCell<BTreeMap<usize, InstrId>>,
    warnings: RefCell<Vec<String>>,
    shared: shared::Shared,
    /// Projections of variables after updates, by number.
    constraints: RefCell<BTreeMap<usize, Constraint>>,
    /// How often the kernel of the layer that is being built is iterated, if it is divided by its spectral norm.
    spectral_norm: Cell<Option<u32>>,
    /// Whether the layer that is being built is frozen.
    frozen: Cell<bool>,
}

/// A variable of the program: state that stays on the device between calls.
#[derive(Clone, Debug, PartialEq)]
pub struct VariableInfo {
    /// Its scoped name, such as `resnet/block1/conv2/kernel`.
    pub name: String,
    /// The dtype it is stored in.
    pub dtype: DType,
    /// Its dims; for a sharded variable, a shard's.
    pub dims: Vec<i64>,
    /// Its sharding over replicas, if it is sharded.
    pub part: Option<VariableShard>,
    /// Its initial values.
    pub init: Init,
    /// Whether an optimizer updates it (a running mean is not trainable).
    pub trainable: bool,
    /// Whether it would be trainable but was frozen.
    pub is_frozen: bool,
    /// Its parameter instruction.
    pub instr: InstrId,
    /// Its value after the call, if the program assigns one.
    pub update: Option<InstrId>,
}

/// The result of [`Graph::finish`]. Parameters are the variables, then the inputs, each in the order of declaration;
/// the result is a tuple of the outputs.
#[derive(Clone, Debug, PartialEq)]
pub struct Program {
    /// The HLO.
    pub module: Module,
    /// Parameters `0..variables.len()`.
    pub variables: Vec<VariableInfo>,
    /// The parameters after those.
    pub inputs: Vec<InputInfo>,
    /// Names of the result's elements.
    pub outputs: Vec<String>,
    /// The builder's warnings, such as a bf16 scope whose network stayed f32.
    pub warnings: Vec<String>,
}

/// Why a graph could not be built.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BuildError(#[from] pub Box<EmitError>);

/// The problem with the name of a variable or an input, if there is one.
fn name_problem(what: &str, name: &str, is_taken: bool) -> Option<RuleError> {
    if is_taken {
        let error = RuleError::new("graph/name", format!("{what} named {name} exists already"));
        return Some(error.with_help("give one of them another name, or open a scope with `within` around each layer"));
    }
    let is_odd = name.is_empty() || name.chars().any(char::is_control);
    is_odd.then(|| {
        let message = format!("{name:?} is not the name of {what}");
        RuleError::new("graph/name", message).with_help("a name has at least one character, and no control characters")
    })
}

/// An open layer: see [`Graph::open_layer`].
pub(crate) struct OpenLayer {
    graph: Graph,
    outer: Option<&'static Location<'static>>,
}

impl Drop for OpenLayer {
    fn drop(&mut self) {
        self.graph.inner.layer_caller.set(self.outer);
    }
}

impl Graph {
    /// An empty graph for inference: dropout is off, batch norm uses its running statistics.
    pub fn new(name: &str) -> Graph {
        Graph::with_mode(name, false)
    }

    /// An empty graph for training: dropout is on, batch norm uses and updates statistics of the batch.
    pub fn training(name: &str) -> Graph {
        Graph::with_mode(name, true)
    }

    fn with_mode(name: &str, training: bool) -> Graph {
        let module = Module::new(name);
        let entry = module.entry;
        Graph {
            inner: Rc::new(Inner {
                emitter: Emitter::new(module, entry),
                path: Path::default(),
                taken: Taken::default(),
                layer_caller: Cell::default(),
                written_at: RefCell::default(),
                training,
                tuning: RefCell::default(),
                precision: Cell::new(Precision::F32),
                storage: Cell::default(),
                inputs: RefCell::default(),
                variables: RefCell::default(),
                variable_names: RefCell::default(),
                widened: RefCell::default(),
                replicas: Cell::default(),
                replica_id: Cell::default(),
                gathered: RefCell::default(),
                warnings: RefCell::default(),
                shared: shared::Shared::default(),
                constraints: RefCell::default(),
                spectral_norm: Cell::default(),
                frozen: Cell::default(),
            }),
        }
    }

    /// Sets the tuning that layers read from now on; initially [`Tuning::none`].
    #[must_use]
    pub fn tuned(self, tuning: &Tuning) -> Graph {
        self.inner.tuning.replace(Rc::new(tuning.clone()));
        self
    }

    /// The optimisations for the target.
    pub fn tuning(&self) -> Rc<Tuning> {
        Rc::clone(&self.inner.tuning.borrow())
    }

    /// Sets the precision of the network, which [`Scope::low_precision`] reads; initially f32.
    #[must_use]
    pub fn computing_in(self, precision: Precision) -> Graph {
        self.inner.precision.set(precision);
        self
    }

    /// The dtype that the network computes in.
    pub fn precision(&self) -> Precision {
        self.inner.precision.get()
    }

    /// Sets the storage that [`Scope::variable`] follows from now on; initially [`Storage::F32`].
    #[must_use]
    pub fn storing(self, storage: Storage) -> Graph {
        self.inner.storage.set(storage);
        self
    }

    /// The storage of variables.
    pub fn storage(&self) -> Storage {
        self.inner.storage.get()
    }

    /// Whether the program trains.
    pub fn is_training(&self) -> bool {
        self.inner.training
    }

    /// The emitter the graph writes through: for passes that extend the computation, such as reverse mode.
    pub fn emitter(&self) -> &Emitter {
        &self.inner.emitter
    }

    /// A handle on an instruction of the graph. An invalid id is an error of the graph.
    #[track_caller]
    pub fn tensor(&self, id: InstrId) -> Tensor {
        let n_instructions = self.emitter().n_instructions();
        if id.idx() < n_instructions || self.emitter().error().is_some() {
            return Tensor { graph: self.clone(), id };
        }
        let asked = if id == POISON { "POISON".to_string() } else { format!("instruction {}", id.0) };
        let message = format!("{asked} was asked for, but the graph has {n_instructions} instructions");
        self.fail("tensor", &[], RuleError::new("graph/tensor", message))
    }

    /// The poisoned result of an error.
    fn poison(&self) -> Tensor {
        Tensor { graph: self.clone(), id: POISON }
    }

    /// The root scope, outside of any low-precision scope.
    pub fn scope(&self) -> Scope {
        Scope::root(self.clone())
    }

    /// The scalar of `dtype` nearest to `value`.
    #[track_caller]
    pub fn scalar(&self, dtype: DType, value: f64) -> Tensor {
        self.emit_with("constant", |e| e.scalar(dtype, value))
    }

    /// An array filled with `value`.
    #[track_caller]
    pub fn full(&self, dtype: DType, dims: &[i64], value: f64) -> Tensor {
        self.emit_with("broadcast", |e| e.full(dtype, dims, value))
    }

    /// An array whose value is known when the program is built.
    #[track_caller]
    pub(crate) fn constant(&self, array: Literal) -> Tensor {
        self.emit_with("constant", |e| e.constant(array))
    }

    /// 0, 1, … along dimension `axis` of `dims`.
    #[track_caller]
    pub fn iota(&self, dtype: DType, dims: &[i64], axis: i64) -> Tensor {
        self.emit_with("iota", |e| e.iota(dtype, dims, axis))
    }

    /// Inside `network`, a *bf16 request* for a variable declares an f32 variable and returns its bf16 cast; see
    /// [`Scope`].
    /// No name level is added, as with TensorFlow's `bfloat16_scope()`.
    #[track_caller]
    pub fn bf16_scope<R>(&self, network: impl FnOnce(&Scope) -> R) -> R {
        self.scope().low_precision_named("", DType::BF16, network)
    }

    /// [`Graph::bf16_scope`] with a name level, as with TensorFlow's `bfloat16_scope("name")`.
    #[track_caller]
    pub fn bf16_scope_named<R>(&self, name: &str, network: impl FnOnce(&Scope) -> R) -> R {
        self.scope().low_precision_named(name, DType::BF16, network)
    }

    /// [`Graph::bf16_scope`] for any low dtype or [`Precision`]; with f32 it is [`Graph::scope`].
    #[track_caller]
    pub fn low_precision_scope<R>(&self, dtype: impl Into<DType>, network: impl FnOnce(&Scope) -> R) -> R {
        self.scope().low_precision_named("", dtype.into(), network)
    }

    /// Sets the value of variable number `variable` after the call, of its dtype and dims.
    #[track_caller]
    pub fn set_update(&self, variable: usize, value: &Tensor) {
        if !self.owns("set_update", &[value]) || value.is_poison() {
            return;
        }
        let expected = self.inner.variables.borrow().get(variable).map(|v| (v.name.clone(), v.dtype, v.dims.clone()));
        let error = match expected {
            // Not borrowed here: describing an error reads the graph.
            Some((_, dtype, dims)) if value.shape() == Shape::array(dtype, &dims[..]) => None,
            Some((name, dtype, dims)) => {
                let expected = Shape::array(dtype, dims);
                let message = format!("{name} is {expected}, but its new value is {}", value.shape());
                Some(RuleError::new("variable/update", message))
            }
            None => {
                let n_variables = self.inner.variables.borrow().len();
                let message = format!("variable {variable} was asked for, but there are {n_variables}");
                Some(RuleError::new("variable/number", message))
            }
        };
        match error {
            Some(error) => drop(self.fail("set_update", &[value], error)),
            None => self.inner.variables.borrow_mut()[variable].update = Some(value.id),
        }
    }

    /// The variables so far, in the order of declaration.
    pub fn variables(&self) -> Vec<VariableInfo> {
        self.inner.variables.borrow().clone()
    }

    /// The number of variables so far. Code that asks for each layer asks this: [`Graph::variables`] copies them all.
    pub fn n_variables(&self) -> usize {
        self.inner.variables.borrow().len()
    }

    /// The variables from number `first` on, with their numbers.
    pub fn variables_from(&self, first: usize) -> Vec<(usize, VariableInfo)> {
        let variables = self.inner.variables.borrow();
        variables.iter().enumerate().skip(first).map(|(number, variable)| (number, variable.clone())).collect()
    }

    /// Freezes variables by name: they are not trained, and keep their storage.
    pub fn freeze(&self, is_frozen: impl Fn(&str) -> bool) {
        for variable in self.inner.variables.borrow_mut().iter_mut().filter(|variable| variable.trainable) {
            variable.is_frozen = is_frozen(&variable.name);
            variable.trainable = !variable.is_frozen;
        }
    }

    /// The variable with this number.
    pub fn variable(&self, number: usize) -> VariableInfo {
        self.inner.variables.borrow()[number].clone()
    }

    /// The value with respect to which the gradient of variable `number` is taken: the f32 value that its readers
    /// share, or, if there is none or something reads the variable directly, the variable as stored.
    pub fn differentiable(&self, number: usize) -> InstrId {
        self.differentiables(&[number])[0]
    }

    /// The same for several variables, in one pass over the graph.
    pub fn differentiables(&self, numbers: &[usize]) -> Vec<InstrId> {
        let (gathered, widened) = (self.inner.gathered.borrow(), self.inner.widened.borrow());
        let variables = self.inner.variables.borrow();
        let stored = |number: &usize| gathered.get(number).copied().unwrap_or(variables[*number].instr);
        // Each stored value whose readers share an f32 copy of it, with that copy.
        let wide = numbers.iter().filter_map(|number| Some((stored(number), *widened.get(number)?)));
        let mut shared: HashMap<InstrId, InstrId> = wide.collect();
        if !shared.is_empty() {
            self.emitter().with_module(|module| {
                let readers = (0u32..).map(InstrId).zip(&module.comp(self.emitter().comp()).instructions);
                for (id, instr) in readers {
                    for operand in &instr.operands {
                        if shared.get(operand).is_some_and(|wide| *wide != id) {
                            shared.remove(operand);
                        }
                    }
                }
            });
        }
        numbers.iter().map(stored).map(|stored| shared.get(&stored).copied().unwrap_or(stored)).collect()
    }

    /// Records a warning for [`Graph::warnings`] and [`Program::warnings`], once.
    pub fn warn(&self, warning: String) {
        let mut warnings = self.inner.warnings.borrow_mut();
        if !warnings.contains(&warning) {
            tracing::warn!("{warning}");
            warnings.push(warning);
        }
    }

    /// The warnings so far.
    pub fn warnings(&self) -> Vec<String> {
        self.inner.warnings.borrow().clone()
    }

    /// The program whose result is the tuple of `outputs`. Updates of variables are not part of it unless they are
    /// among the outputs.
    ///
    /// # Errors
    /// The first error of building.
    #[track_caller]
    pub fn finish(&self, outputs: &[(&str, &Tensor)]) -> Result<Program, BuildError> {
        self.program(outputs, |emitter| emitter.with_module(Module::clone))
    }

    /// [`Graph::finish`] for a graph that is not used afterwards: its instructions are not copied.
    #[track_caller]
    pub fn finish_for_good(&self, outputs: &[(&str, &Tensor)]) -> Result<Program, BuildError> {
        self.program(outputs, Emitter::take_module)
    }

    #[track_caller]
    fn program(
        &self,
        outputs: &[(&str, &Tensor)],
        module_of: impl FnOnce(&Emitter) -> Module,
    ) -> Result<Program, BuildError> {
        let tensors: Vec<&Tensor> = outputs.iter().map(|(_, tensor)| *tensor).collect();
        self.owns("finish", &tensors);
        let ids: Vec<InstrId> = outputs.iter().map(|(_, tensor)| tensor.id).collect();
        self.inner.emitter.set_metadata(Metadata::default());
        self.inner.emitter.tuple(&ids);
        if let Some(error) = self.inner.emitter.error() {
            return Err(BuildError(Box::new(error)));
        }
        let (variables, inputs) = (self.variables(), self.inner.inputs.borrow().clone());
        let mut module = module_of(&self.inner.emitter);
        let entry = module.entry;
        let order = variables.iter().map(|v| v.instr).chain(inputs.iter().map(|i| i.instr));
        for (number, id) in order.enumerate() {
            module.computations[entry.idx()].instructions[id.idx()].op = Op::parameter(number as i64);
        }
        Ok(Program {
            module,
            variables,
            inputs,
            outputs: outputs.iter().map(|(name, _)| name.to_string()).collect(),
            warnings: self.warnings(),
        })
    }

    /// A parameter instruction named `name` under the current path; numbered in [`Graph::finish`].
    #[track_caller]
    fn parameter(&self, name: &str, dtype: DType, dims: &[i64]) -> InstrId {
        let number = self.inner.variables.borrow().len() + self.inner.inputs.borrow().len();
        let shape = Shape::array(dtype, dims);
        let id = self.emit_with(name, |e| e.parameter(number as i64, &shape)).id;
        if id != POISON {
            let full = self.inner.path.join(name);
            self.inner.emitter.with_module_mut(|module| {
                let entry = module.entry;
                module.computations[entry.idx()].instructions[id.idx()].name = self.inner.taken.unique(&full);
            });
        }
        id
    }

    /// Takes over names and places of `outer`: for the body of a loop in it.
    pub(crate) fn placed_as(self, outer: &Graph) -> Graph {
        self.inner.path.open(outer.inner.path.current());
        self.inner.layer_caller.set(outer.inner.layer_caller.get());
        self.inner.written_at.replace(outer.inner.written_at.borrow().clone());
        self
    }

    /// Emits with the metadata of the current path, `leaf`, and the file and line of the caller or of the open layer.
    #[track_caller]
    pub(crate) fn emit_with(&self, leaf: &str, emit: impl FnOnce(&Emitter) -> InstrId) -> Tensor {
        let caller = self.inner.layer_caller.get().unwrap_or(Location::caller());
        let emitter = &self.inner.emitter;
        emitter.set_metadata(self.metadata_at(leaf, caller));
        let id = emit(emitter);
        Tensor { graph: self.clone(), id }
    }

    /// While it exists, emitted instructions carry the file and line of the caller: for a layer that emits in closures,
    /// which do not know their caller's caller. The outermost open layer counts.
    #[track_caller]
    pub(crate) fn open_layer(&self) -> OpenLayer {
        let open = &self.inner.layer_caller;
        let outer = open.replace(Some(open.get().unwrap_or(Location::caller())));
        OpenLayer { graph: self.clone(), outer }
    }

    /// Metadata with `leaf` under the current path, and a place in the user's code.
    fn metadata_at(&self, leaf: &str, caller: &Location<'_>) -> Metadata {
        let (source_file, source_line) = match &*self.inner.written_at.borrow() {
            Some((file, line)) => (file.to_string(), *line),
            None => (caller.file().to_string(), caller.line()),
        };
        Metadata {
            op_type: String::new(),
            op_name: self.inner.path.join(leaf),
            source_file,
            source_line: i32::try_from(source_line).unwrap_or(0),
            stack_frame_id: 0,
        }
    }

    /// The file and line that emitted instructions carry now.
    #[track_caller]
    fn here(&self) -> String {
        let caller = self.inner.layer_caller.get().unwrap_or(Location::caller());
        let Metadata { source_file, source_line, .. } = self.metadata_at("", caller);
        format!("{source_file}:{source_line}")
    }

    /// As [`Graph::fail`], for an error without a line of the user's, such as an output that a task lacks.
    pub fn fail_without_place(&self, what: &str, operands: &[&Tensor], error: RuleError) {
        if !self.owns(what, operands) {
            return;
        }
        let ids: Vec<InstrId> = operands.iter().map(|tensor| tensor.id).collect();
        let emitter = &self.inner.emitter;
        emitter.set_metadata(Metadata { op_name: self.inner.path.join(""), ..Metadata::default() });
        emitter.fail(what, &ids, error);
    }

    /// Records a broken rule of a layer or operator as the graph's error, unless there is one already; returns poison.
    #[track_caller]
    pub fn fail(&self, what: &str, operands: &[&Tensor], error: RuleError) -> Tensor {
        if !self.owns(what, operands) {
            return self.poison();
        }
        let ids: Vec<InstrId> = operands.iter().map(|tensor| tensor.id).collect();
        self.emit_with("", |e| e.fail(what, &ids, error))
    }
}
