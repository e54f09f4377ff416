//! Values on the device, and the programs of one instruction that make them from others.
//!
//! A program is compiled on first use, and dropped after its last planned run. A program that runs on the very arrays
//! of an earlier run returns that run's arrays, if they are still alive: values that lowering did not change are not
//! recomputed, and are known to be equal without a comparison.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use super::AuditError;
use super::device::{self, Held, hold};
use super::groups::conversion;
use bf16scope_hlo::proto::encode;
use bf16scope_hlo::{ArrayShape, DType, Module, Shape, verify};
use bf16scope_pjrt::{Client, Executable};

/// The value of an instruction.
#[derive(Clone, Debug)]
pub(super) enum Value {
    Array(Arc<Held>),
    Tuple(Vec<Value>),
}

impl Value {
    /// Its arrays, depth first.
    pub(super) fn arrays(&self) -> Vec<&Arc<Held>> {
        match self {
            Value::Array(array) => vec![array],
            Value::Tuple(parts) => parts.iter().flat_map(Value::arrays).collect(),
        }
    }

    /// The value of this shape made of the next arrays.
    pub(super) fn from_arrays(shape: &Shape, arrays: &mut impl Iterator<Item = Arc<Held>>) -> Value {
        match shape {
            Shape::Tuple(parts) => Value::Tuple(parts.iter().map(|part| Value::from_arrays(part, arrays)).collect()),
            _ => Value::Array(arrays.next().expect("a program gives the arrays that its shape has")),
        }
    }

    /// An element of a tuple.
    pub(super) fn element(&self, index: i64) -> Value {
        match self {
            Value::Tuple(parts) => parts[index as usize].clone(),
            Value::Array(_) => unreachable!("the module is verified: only tuples have elements"),
        }
    }
}

/// The number of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct ProgramId(usize);

#[derive(Debug)]
struct Program {
    bytes: Arc<[u8]>,
    executable: Option<Executable>,
    /// The number of planned runs.
    n_runs: usize,
}

/// A device with its programs.
#[derive(Debug)]
pub(super) struct Machine<'c> {
    client: &'c Client,
    programs: Vec<Program>,
    known: HashMap<Arc<[u8]>, ProgramId>,
    conversions: HashMap<(Vec<i64>, DType, DType), ProgramId>,
    /// Results of earlier runs, by program and arguments.
    ran: HashMap<(ProgramId, Vec<u64>), Vec<Weak<Held>>>,
    flush_subnormals: bool,
    pub n_compiles: usize,
    pub n_runs: usize,
}

impl<'c> Machine<'c> {
    pub(super) fn new(client: &'c Client, flush_subnormals: bool) -> Machine<'c> {
        Machine {
            client,
            programs: Vec::new(),
            known: HashMap::new(),
            conversions: HashMap::new(),
            ran: HashMap::new(),
            flush_subnormals,
            n_compiles: 0,
            n_runs: 0,
        }
    }

    /// Plans `n_runs` runs of a program. Returns whether it is a new program.
    pub(super) fn plan(&mut self, module: &Module, n_runs: usize) -> Result<(ProgramId, bool), AuditError> {
        verify(module).map_err(AuditError::Broken)?;
        let bytes: Arc<[u8]> = encode::to_bytes(module)?.into();
        let is_new = !self.known.contains_key(&bytes);
        let id = *self.known.entry(Arc::clone(&bytes)).or_insert(ProgramId(self.programs.len()));
        if is_new {
            self.programs.push(Program { bytes, executable: None, n_runs: 0 });
        }
        self.programs[id.0].n_runs += n_runs;
        Ok((id, is_new))
    }

    /// Executes one of the planned runs.
    pub(super) fn run(&mut self, id: ProgramId, args: &[&Arc<Held>]) -> Result<Vec<Arc<Held>>, AuditError> {
        let key = (id, args.iter().map(|array| array.id).collect());
        let earlier =
            self.ran.get(&key).and_then(|arrays| arrays.iter().map(Weak::upgrade).collect::<Option<Vec<_>>>());
        let program = &mut self.programs[id.0];
        program.n_runs = program.n_runs.saturating_sub(1);
        let arrays = match earlier {
            Some(arrays) => arrays,
            None => {
                let executable = match &mut program.executable {
                    Some(executable) => executable,
                    none => {
                        self.n_compiles += 1;
                        none.insert(device::compile(self.client, &program.bytes)?)
                    }
                };
                self.n_runs += 1;
                let arrays = device::execute(executable, &device::buffers(args))?;
                let arrays = arrays.into_iter().map(hold).collect::<Result<Vec<_>, _>>()?;
                self.ran.insert(key, arrays.iter().map(Arc::downgrade).collect());
                arrays
            }
        };
        if program.n_runs == 0 {
            program.executable = None;
        }
        Ok(arrays)
    }

    /// Converts a value's arrays to the dtypes of a shape.
    pub(super) fn in_dtypes(&mut self, value: &Value, wanted: &Shape) -> Result<Value, AuditError> {
        let mut arrays = Vec::new();
        for (array, leaf) in value.arrays().into_iter().zip(wanted.leaves()) {
            arrays.push(match leaf.dtype() {
                Some(dtype) if dtype != array.dtype => self.convert(array, dtype)?,
                Some(_) | None => Arc::clone(array),
            });
        }
        Ok(Value::from_arrays(wanted, &mut arrays.into_iter()))
    }

    fn convert(&mut self, array: &Arc<Held>, to: DType) -> Result<Arc<Held>, AuditError> {
        let key = (array.dims.clone(), array.dtype, to);
        let id = match self.conversions.get(&key) {
            Some(&id) => id,
            None => {
                let shape = ArrayShape::new(array.dtype, array.dims.clone());
                // These runs are not planned: the few programs stay.
                let (id, _) = self.plan(&conversion(&shape, to, self.flush_subnormals), usize::MAX / 2)?;
                *self.conversions.entry(key).or_insert(id)
            }
        };
        let mut converted = self.run(id, &[array])?;
        Ok(converted.pop().expect("a conversion gives one array"))
    }
}
