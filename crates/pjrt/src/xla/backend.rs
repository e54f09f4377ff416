//! xla-rs's client as a back end: its arrays and its loaded programs.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use prost::Message;

use super::arrays::XlaArray;
use super::client::XlaClient;
use super::error::{failed, not_in_xla_rs, refused};
use super::{rewrite, wire};
use crate::array_type::{OutputSpec, n_host_bytes};
use crate::backend::{Array, Backend, Given, Loaded, MemoryStats, Program, Runner, array};
use crate::live::{HandleKind, Live};
use crate::{CompileOptions, Device, ForeignCode, PjrtError, Plugin, Processes};
use bf16scope_hlo::DType;
use bf16scope_hlo::proto::messages::HloModuleProto;

impl Backend for XlaClient {
    fn platform_name(&self) -> Result<String, PjrtError> {
        Ok(self.client.platform_name())
    }

    fn platform_version(&self) -> Result<String, PjrtError> {
        Ok(self.client.platform_version())
    }

    fn plugin(&self) -> Option<&'static Plugin> {
        None
    }

    fn devices(&self) -> &[Device] {
        &self.devices
    }

    fn processes(&self) -> &Processes {
        &self.processes
    }

    fn compile(self: Arc<Self>, program: &[u8], options: &CompileOptions) -> Result<Loaded, PjrtError> {
        self.check_options(options)?;
        let mut proto = HloModuleProto::decode(program).map_err(PjrtError::program)?;
        let rewritten = rewrite::run(&mut proto, options.parameter_is_tupled).then(|| proto.encode_to_vec());
        let facts = Facts::read(&proto)?;
        let module = wire::from_bytes(rewritten.as_deref().unwrap_or(program))?;
        let computation = xla::XlaComputation::from_proto(&module);
        let executable = self.client.compile(&computation).map_err(failed("PjRtClient::compile"))?;
        let facts = Arc::new(facts);
        let program = XlaProgram { facts: Arc::clone(&facts), _live: Live::new(HandleKind::Executable) };
        let runner = XlaRunner { executable, facts, client: self, _live: Live::new(HandleKind::LoadedExecutable) };
        Ok(Loaded { program: Box::new(program), runner: Box::new(runner), n_devices: 1 })
    }

    fn load(self: Arc<Self>, _executable: &[u8], _foreign: Option<ForeignCode>) -> Result<Loaded, PjrtError> {
        no("way to load a compiled program")
    }

    fn upload(
        self: Arc<Self>,
        bytes: &[u8],
        dtype: DType,
        dims: &[i64],
        device_idx: usize,
    ) -> Result<Box<dyn Array>, PjrtError> {
        let raw = self.put(bytes, dtype, dims, device_idx)?;
        Ok(Box::new(XlaArray::new(&self, raw, OutputSpec { dtype, dims: dims.to_vec() })))
    }
}

/// Facts about a program from its message.
#[derive(Debug)]
struct Facts {
    name: String,
    outputs: Vec<OutputSpec>,
    /// Parameters whose memory the program may take: XLA takes it from every argument that is not excluded, and xla-rs
    /// excludes none.
    donated: BTreeSet<usize>,
}

impl Facts {
    fn read(proto: &HloModuleProto) -> Result<Facts, PjrtError> {
        let result = proto.host_program_shape.as_ref().and_then(|shape| shape.result.as_ref());
        let result = result
            .ok_or_else(|| refused("PjRtClient::compile", "the program says no result type (host_program_shape)"))?;
        let mut outputs = Vec::new();
        let leaves =
            if result.element_type == rewrite::TUPLE { &result.tuple_shapes[..] } else { std::slice::from_ref(result) };
        for leaf in leaves {
            let Some(dtype) = DType::from_xla(leaf.element_type) else {
                return Err(not_in_xla_rs("results that are tuples in tuples or tokens"));
            };
            outputs.push(OutputSpec { dtype, dims: leaf.dimensions.clone() });
        }
        let aliases =
            proto.input_output_alias.iter().flat_map(|alias| &alias.entries).map(|entry| entry.parameter_number);
        let donors = proto.buffer_donor.iter().flat_map(|donor| &donor.entries).map(|entry| entry.parameter_number);
        let donated = aliases.chain(donors).filter_map(|number| usize::try_from(number).ok()).collect();
        Ok(Facts { name: proto.name.clone(), outputs, donated })
    }
}

/// Facts about a program that xla-rs compiled.
#[derive(Debug)]
struct XlaProgram {
    facts: Arc<Facts>,
    _live: Live,
}

fn no<T>(what: &'static str) -> Result<T, PjrtError> {
    Err(not_in_xla_rs(what))
}

impl Program for XlaProgram {
    fn name(&self) -> Result<String, PjrtError> {
        Ok(self.facts.name.clone())
    }

    fn outputs(&self) -> Result<Vec<OutputSpec>, PjrtError> {
        Ok(self.facts.outputs.clone())
    }

    fn n_outputs(&self) -> Result<usize, PjrtError> {
        Ok(self.facts.outputs.len())
    }

    fn memory_stats(&self) -> Result<MemoryStats, PjrtError> {
        no("memory statistics of a program")
    }

    fn cost_analysis(&self) -> Result<BTreeMap<String, f64>, PjrtError> {
        no("cost analysis of a program")
    }

    fn optimized_program(&self) -> Result<Vec<u8>, PjrtError> {
        no("way to read an optimized program")
    }

    fn fingerprint(&self) -> Result<Vec<u8>, PjrtError> {
        no("fingerprint of a program")
    }

    fn serialize(&self) -> Result<Vec<u8>, PjrtError> {
        no("way to write a compiled program")
    }
}

/// A program that xla-rs compiled.
struct XlaRunner {
    executable: xla::PjRtLoadedExecutable,
    facts: Arc<Facts>,
    client: Arc<XlaClient>,
    _live: Live,
}

impl fmt::Debug for XlaRunner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("XlaRunner").field("facts", &self.facts).finish_non_exhaustive()
    }
}

impl Runner for XlaRunner {
    fn execute(&self, args: &[Vec<Given<'_>>], n_outputs: usize) -> Result<Vec<Vec<Box<dyn Array>>>, PjrtError> {
        // A single device, so a single list: `Loaded::n_devices` is 1.
        let args = &args[0];
        // Arguments that the caller keeps although the program takes their memory are copied. The copies live until the
        // run ends.
        let copies: Vec<Option<xla::PjRtBuffer>> = (args.iter().enumerate())
            .map(|(idx, arg)| {
                let is_taken = !arg.is_donated && self.facts.donated.contains(&idx);
                is_taken.then(|| self.copy(array(arg.array))).transpose()
            })
            .collect::<Result<_, _>>()?;
        let raw: Vec<&xla::PjRtBuffer> = (args.iter().zip(&copies))
            .map(|(arg, copy)| copy.as_ref().unwrap_or_else(|| &array::<XlaArray>(arg.array).raw))
            .collect();
        let lists = self.executable.execute_b(&raw).map_err(failed("PjRtLoadedExecutable::execute_b"))?;
        let list = lists.into_iter().next().unwrap_or_default();
        if list.len() != n_outputs {
            return Err(PjrtError::count(&self.facts.name, "outputs of xla-rs", list.len(), n_outputs));
        }
        let wrap = |(raw, spec): (xla::PjRtBuffer, &OutputSpec)| {
            Box::new(XlaArray::new(&self.client, raw, spec.clone())) as Box<dyn Array>
        };
        Ok(vec![list.into_iter().zip(&self.facts.outputs).map(wrap).collect()])
    }
}

impl XlaRunner {
    /// Another buffer with the same elements. Copied through bytes: xla-rs's upload of a literal returns before it has
    /// read it.
    fn copy(&self, array: &XlaArray) -> Result<xla::PjRtBuffer, PjrtError> {
        let OutputSpec { dtype, dims } = &array.spec;
        let mut bytes = vec![0; n_host_bytes(*dtype, dims)?];
        array.copy_to_host(&mut bytes, dims)?;
        self.client.put(&bytes, *dtype, dims, 0)
    }
}
