//! Compiled programs: the compiler's information on one, and one loaded on devices.

use std::collections::BTreeMap;

use super::PjrtError;
use super::array_type::OutputSpec;
use super::backend::{Loaded, MemoryStats, Program, Runner};

/// The compiler's information on a compiled program, from [`Executable::compiled`](super::Executable::compiled) or
/// [`Topology::compile`](super::Topology::compile).
#[derive(Debug)]
pub struct Compiled {
    pub(super) program: Box<dyn Program>,
}

impl Compiled {
    /// The module's name.
    pub fn name(&self) -> Result<String, PjrtError> {
        self.program.name()
    }

    /// Outputs for each device; a tuple result counts its elements.
    pub fn n_outputs(&self) -> Result<usize, PjrtError> {
        self.program.n_outputs()
    }

    /// Types of the outputs.
    pub fn outputs(&self) -> Result<Vec<OutputSpec>, PjrtError> {
        self.program.outputs()
    }

    /// Memory it needs.
    pub fn memory_stats(&self) -> Result<MemoryStats, PjrtError> {
        self.program.memory_stats()
    }

    /// The compiler's estimates, such as `flops`, `bytes accessed`, `optimal_seconds`. Only numbers are kept.
    pub fn cost_analysis(&self) -> Result<BTreeMap<String, f64>, PjrtError> {
        self.program.cost_analysis()
    }

    /// The program after the compiler's passes: a serialized `HloModuleProto`.
    pub fn optimized_program(&self) -> Result<Vec<u8>, PjrtError> {
        self.program.optimized_program()
    }

    /// Identical for the same program, options and compiler version; `UNIMPLEMENTED` if the plugin has none.
    pub fn fingerprint(&self) -> Result<Vec<u8>, PjrtError> {
        self.program.fingerprint()
    }

    /// The compiled program as bytes, for [`Client::load`](super::Client::load) with the same version of the library;
    /// `UNIMPLEMENTED` if the plugin cannot serialize.
    pub fn serialize(&self) -> Result<Vec<u8>, PjrtError> {
        self.program.serialize()
    }
}

/// A compiled program, loaded on devices.
#[derive(Debug)]
pub(super) struct Code {
    // Dropped before the runner that it was made from.
    pub(super) compiled: Compiled,
    pub(super) runner: Box<dyn Runner>,
    pub(super) name: String,
    pub(super) n_outputs: usize,
    pub(super) n_devices: usize,
}

impl Code {
    pub(super) fn new(loaded: Loaded) -> Result<Code, PjrtError> {
        let Loaded { program, runner, n_devices } = loaded;
        let compiled = Compiled { program };
        let (name, n_outputs) = (compiled.name()?, compiled.n_outputs()?);
        Ok(Code { compiled, runner, name, n_outputs, n_devices })
    }
}
