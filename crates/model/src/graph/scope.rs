//! Scopes: where variables are declared, and the low-precision rule.
//!
//! The rule is exactly that of TensorFlow's `bfloat16_scope`: the scope does not touch operations, inputs or outputs.
//! It decides by the dtype that the caller *requests* for a variable. A request in the scope's dtype declares an
//! **f32** variable and returns its cast; any other request declares a variable of the requested dtype (so batch norm,
//! which requests f32, keeps f32 parameters and statistics). Outside of the scope, a bf16 request declares a bf16
//! variable. A layer requests the dtype of its input, so casting the input is what turns a network bf16.
//!
//! Where the rule says f32, [`Storage`](super::Storage) may store trainable variables as bf16.
//!
//! Source: `tensorflow/python/tpu/bfloat16.py`.

use super::{Graph, Init, Tensor, VariableInfo, VariableShard, name_problem};
use bf16scope_hlo::ops::RuleError;
use bf16scope_hlo::{DType, InstrId, Op, POISON};
use bf16scope_passes::tuning::Tuning;
use std::cell::Cell;
use std::panic::Location;
use std::rc::Rc;

/// A place to declare variables. Their names are nested in the open levels.
#[derive(Clone, Debug)]
pub struct Scope {
    graph: Graph,
    low: Option<Rc<Low>>,
}

/// An open low-precision scope.
#[derive(Debug)]
struct Low {
    dtype: DType,
    n_low_requests: Cell<usize>,
    n_f32_requests: Cell<usize>,
}

/// A variable as a layer sees it.
#[derive(Clone, Debug)]
pub struct Variable {
    /// Its number in [`Graph::variables`].
    pub number: usize,
    /// As stored (the parameter); for a sharded variable the gathered value, which is the cast if all readers read
    /// that.
    pub stored: Tensor,
    /// The value for readers of single elements, whose gradients add up like a whole cast's: `stored`, or, for a
    /// sharded variable that is gathered as a cast, that cast in f32.
    pub full: Tensor,
    /// As read, in the requested dtype: `stored`, or its cast.
    pub value: Tensor,
}

/// The request for a variable.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Request {
    /// The dtype that it is read in.
    pub requested: DType,
    /// The dtype that it is stored in, unless [`Storage`](super::Storage) says otherwise.
    pub master: DType,
    /// Dims of the whole.
    pub dims: Vec<i64>,
    pub init: Init,
    pub trainable: bool,
}

impl Scope {
    pub(super) fn root(graph: Graph) -> Scope {
        Scope { graph, low: None }
    }

    /// The graph.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// Whether the program trains.
    pub fn is_training(&self) -> bool {
        self.graph.is_training()
    }

    /// Runs `layer`, whose variables are frozen: they get no gradient, no slots and no update, while gradients pass
    /// through the layer. A batch norm in it normalises by its running statistics in training, too, and keeps them;
    /// dropout still drops. That is what `trainable = False` means for a layer of Keras.
    pub fn frozen<R>(&self, layer: impl FnOnce(&Scope) -> R) -> R {
        let open = &self.graph.inner.frozen;
        let outer = open.replace(true);
        let result = layer(self);
        open.set(outer);
        result
    }

    /// Whether the layer that is being built is [frozen](Scope::frozen).
    pub fn is_frozen(&self) -> bool {
        self.graph.inner.frozen.get()
    }

    /// The optimisations for the target.
    pub fn tuning(&self) -> Rc<Tuning> {
        self.graph.tuning()
    }

    /// The dtype whose requests are stored as f32 here, if a low-precision scope is open.
    pub fn low_precision_dtype(&self) -> Option<DType> {
        self.low.as_ref().map(|low| low.dtype)
    }

    /// Runs `body` with one more name level: `block1/…`.
    pub fn within<R>(&self, level: &str, body: impl FnOnce(&Scope) -> R) -> R {
        self.graph.inner.path.within(level, || body(self))
    }

    /// [`Scope::within`] for a layer: its instructions carry the file and line of its caller, not of its own body. The
    /// outermost of nested layers counts: it is the one that the user wrote.
    #[track_caller]
    pub fn layer<R>(&self, name: &str, body: impl FnOnce(&Scope) -> R) -> R {
        let _open = self.graph.open_layer();
        self.within(name, body)
    }

    /// Runs `body`, whose instructions carry this file and line instead of a caller's in Rust, for users who wrote
    /// YAML. The innermost of nested calls counts.
    pub fn written_at<R>(&self, file: &str, line: u32, body: impl FnOnce(&Scope) -> R) -> R {
        let open = &self.graph.inner.written_at;
        let outer = open.replace(Some((file.into(), line)));
        let result = body(self);
        open.replace(outer);
        result
    }

    /// A trainable variable requested in `dtype`.
    #[track_caller]
    pub fn variable(&self, name: &str, dtype: DType, dims: impl Into<Vec<i64>>, init: Init) -> Variable {
        let dims = dims.into();
        let part = self.graph.part_of(&dims);
        self.make(name, dtype, dims, init, true, part)
    }

    /// A variable no optimizer updates, such as a running mean; its value after the call is set by
    /// [`Graph::set_update`].
    #[track_caller]
    pub fn state(&self, name: &str, dtype: DType, dims: impl Into<Vec<i64>>, init: Init) -> Variable {
        self.make(name, dtype, dims.into(), init, false, None)
    }

    /// State of a variable, sharded if the variable is: `dims` are those of the whole.
    #[track_caller]
    pub(crate) fn state_in_parts(
        &self,
        name: &str,
        dtype: DType,
        dims: Vec<i64>,
        init: Init,
        part: Option<VariableShard>,
    ) -> Variable {
        self.make(name, dtype, dims, init, false, part)
    }

    #[track_caller]
    fn make(
        &self,
        name: &str,
        requested: DType,
        dims: Vec<i64>,
        init: Init,
        trainable: bool,
        part: Option<VariableShard>,
    ) -> Variable {
        let graph = &self.graph;
        let full = graph.inner.path.join(name);
        let is_low = self.low.as_ref().is_some_and(|low| low.dtype == requested);
        let master = if is_low { DType::F32 } else { requested };
        if let Some(low) = &self.low {
            let count = if is_low { &low.n_low_requests } else { &low.n_f32_requests };
            if is_low || requested == DType::F32 {
                count.set(count.get() + 1);
            }
        }
        let request = Request { requested, master, dims: dims.clone(), init, trainable };
        let variable = match graph.shared_variable(&full, &request) {
            Ok(Some(variable)) => return variable,
            Ok(None) => self.normalised(name, self.make_new(name, &full, &request, part)),
            Err(error) => return graph.no_variable(error),
        };
        graph.remember_shared(&full, request, &variable);
        variable
    }

    #[track_caller]
    fn make_new(&self, name: &str, full: &str, request: &Request, part: Option<VariableShard>) -> Variable {
        let (graph, &Request { requested, master, ref dims, init, trainable }) = (&self.graph, request);
        let number = graph.inner.variables.borrow().len();
        let is_taken = !graph.inner.variable_names.borrow_mut().insert(full.to_string());
        if let Some(error) = name_problem("a variable", full, is_taken) {
            return graph.no_variable(error);
        }
        let (is_low, dtype) = (master != requested, if trainable { graph.storage().dtype_for(master) } else { master });
        let dims = part.map_or(dims.clone(), |part| part.dims(dims));
        let instr = graph.parameter(name, dtype, &dims);
        graph.inner.variables.borrow_mut().push(VariableInfo {
            name: full.to_string(),
            dtype,
            dims,
            part,
            init,
            trainable: trainable && !self.is_frozen(),
            is_frozen: trainable && self.is_frozen(),
            instr,
            update: None,
        });
        let mut stored = graph.tensor(instr);
        if let Some(part) = part.filter(|_| trainable) {
            // If all readers read a cast, the cast is gathered. Gradients are still taken at an f32 value: it
            // represents the variable that each replica would have, so reads and sums of gradients are the same.
            let in_low = is_low && dtype == master;
            stored = if in_low { stored.cast(requested) } else { stored }.gathered(part);
            let full = if in_low { stored.cast(master) } else { stored.clone() };
            graph.inner.gathered.borrow_mut().insert(number, full.id);
            if in_low {
                let value = full.cast(requested);
                return Variable { number, stored, full, value };
            }
        }
        // If it is stored narrower than its readers compute in, they share an f32 value, and gradients add up in f32.
        let is_widened = dtype != master && requested != dtype;
        let wide = if is_widened { stored.cast(DType::F32) } else { stored.clone() };
        if is_widened {
            graph.inner.widened.borrow_mut().insert(number, wide.id);
        }
        let value = wide.cast(requested);
        Variable { number, full: stored.clone(), stored, value }
    }

    /// The low-precision scope of the graph's [`precision`](Graph::precision), nested here; in f32 nothing changes. No name
    /// level is added.
    #[track_caller]
    pub fn low_precision<R>(&self, network: impl FnOnce(&Scope) -> R) -> R {
        self.low_precision_named("", self.graph.precision().compute(), network)
    }

    /// A part of a low-precision scope that computes in f32, as if outside of it. No name level is added.
    pub(crate) fn in_f32<R>(&self, part: impl FnOnce(&Scope) -> R) -> R {
        part(&Scope { graph: self.graph.clone(), low: None })
    }

    /// [`Graph::low_precision_scope`], nested here.
    #[track_caller]
    pub(super) fn low_precision_named<R>(&self, name: &str, dtype: DType, network: impl FnOnce(&Scope) -> R) -> R {
        if dtype == DType::F32 {
            return self.within(name, network);
        }
        let caller = Location::caller();
        let low = Rc::new(Low { dtype, n_low_requests: Cell::new(0), n_f32_requests: Cell::new(0) });
        let scope = Scope { graph: self.graph.clone(), low: Some(low.clone()) };
        let start = self.graph.emitter().n_instructions();
        let result = scope.within(name, network);
        if low.n_low_requests.get() == 0 && low.n_f32_requests.get() > 0 {
            self.warn_stayed_f32(name, dtype, start, caller);
        }
        result
    }

    /// Warns if variables were declared in a scope but none in its dtype: its input was f32, most likely.
    fn warn_stayed_f32(&self, name: &str, dtype: DType, start: usize, caller: &Location<'_>) {
        let path = self.graph.inner.path.join(name);
        let path = if path.is_empty() { "(unnamed)" } else { &path };
        let mut warning = format!(
            "{dtype} scope {path} at {}:{} has no {dtype} variable: its network stays f32",
            caller.file(),
            caller.line()
        );
        if let Some((name, file, line)) = self.first_f32_input(start) {
            warning += &format!("; its input {name} at {file}:{line} is f32: cast it with .cast(DType::{dtype:?})");
        }
        self.graph.warn(warning);
    }

    /// The first f32 value from outside that instructions from `start` on read, traced back to a program input.
    fn first_f32_input(&self, start: usize) -> Option<(String, String, i32)> {
        let variables: Vec<InstrId> = self.graph.variables().iter().map(|v| v.instr).collect();
        self.graph.emitter().with_module(|module| {
            let entry = module.entry();
            let outside = |id: InstrId| id.idx() < start && entry.instr(id).shape.dtype() == Some(DType::F32);
            let crossing = entry.instructions.get(start..)?.iter().flat_map(|instr| &instr.operands);
            let mut id = crossing.copied().find(|&id| outside(id) && !variables.contains(&id))?;
            while let Some(&operand) = entry.instr(id).operands.first() {
                id = operand;
            }
            let instr = entry.instr(id);
            let metadata = &instr.metadata;
            matches!(instr.op, Op::Parameter { .. })
                .then(|| (metadata.op_name.clone(), metadata.source_file.clone(), metadata.source_line))
        })
    }

    /// The name levels that are open, as one path.
    pub fn path(&self) -> String {
        self.graph.inner.path.current()
    }
}

impl Graph {
    /// The poisoned result of an invalid request.
    #[track_caller]
    fn no_variable(&self, error: RuleError) -> Variable {
        let number = self.inner.variables.borrow().len();
        let poison = self.fail("variable", &[], error);
        Variable { number, stored: poison.clone(), full: poison.clone(), value: poison }
    }
}

impl Variable {
    /// Whether making it failed.
    pub fn is_poison(&self) -> bool {
        self.stored.id == POISON
    }
}
