//! xla-rs's client and its loaded programs.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use prost::Message;

use super::super::backend::{Array, Backend, Loaded, Program, Runner, array};
use super::super::environment::prepare_environment;
use super::super::error::USE_THE_PLUGIN;
use super::super::live::{HandleKind, Live};
use super::super::{
    Arg, Buffer, Client, CompileOptions, Compiled, Device, DeviceDescription, MemoryStats, OutputSpec, PjrtError,
    Plugin, Purpose,
};
use super::arrays::{XlaArray, element_type};
use super::{failed, rewrite, wire};
use crate::hlo::proto::encode;
use crate::hlo::proto::messages::HloModuleProto;
use crate::hlo::{DType, Emitter, Module, Shape};

/// xla-rs's client.
pub(super) struct XlaClient {
    client: xla::PjRtClient,
    devices: Vec<Device>,
    /// Whether XLA compiles with excess precision in this process: measured.
    excess_precision: bool,
    _live: Live,
}

impl fmt::Debug for XlaClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("XlaClient").field("devices", &self.devices).finish_non_exhaustive()
    }
}

impl Client {
    /// A client of xla-rs's CPU device, `xla::PjRtClient::cpu()`.
    pub fn xla_cpu() -> Result<Client, PjrtError> {
        prepare_environment(Purpose::Run)?;
        Client::from_xla(xla::PjRtClient::cpu().map_err(failed("PjRtClient::cpu"))?)
    }

    /// A client over one that xla-rs made.
    pub fn from_xla(client: xla::PjRtClient) -> Result<Client, PjrtError> {
        let devices = client.addressable_devices().iter().map(describe).collect();
        let excess_precision = keeps_excess_precision(&client)?;
        let _live = Live::new(HandleKind::Client);
        Ok(Client { backend: Arc::new(XlaClient { client, devices, excess_precision, _live }) })
    }
}

fn describe(device: &xla::PjRtDevice<'_>) -> Device {
    Device::without_plugin(DeviceDescription {
        id: device.id() as i32,
        process_idx: device.process_index() as i32,
        kind: device.kind(),
        name: device.to_string(),
        debug_name: device.debug_string(),
        attributes: BTreeMap::new(),
    })
}

/// Whether a sum in bf16 comes out with bits that bf16 has not: XLA's CPU compiler widens it, and keeps the rounding of
/// its result only without excess precision.
fn keeps_excess_precision(client: &xla::PjRtClient) -> Result<bool, PjrtError> {
    // 256 + 1: bf16 counts by 2 from 256, and the tie goes to the even 256.
    const TERMS: [f32; 2] = [256.0, 1.0];
    let module = Module::new("rounds");
    let entry = module.entry;
    let e = Emitter::new(module, entry);
    let term = |number| e.convert(e.parameter(number, &Shape::array(DType::F32, [])), DType::BF16);
    e.convert(e.add(term(0), term(1)), DType::F32);
    let module = e.finish().expect("a sum of two scalars breaks no rule");
    let program = wire::from_bytes(&encode::to_bytes(&module).expect("a module of four kinds of ops is encoded"))?;
    let failed = failed("PjRtLoadedExecutable::execute");
    let executable = client.compile(&xla::XlaComputation::from_proto(&program)).map_err(&failed)?;
    let outputs = executable.execute(&TERMS.map(xla::Literal::scalar)).map_err(&failed)?;
    let sum: f32 = outputs[0][0].to_literal_sync().and_then(|sum| sum.get_first_element()).map_err(&failed)?;
    Ok(sum != 256.0)
}

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
        Ok(Loaded { compiled: Compiled { program: Box::new(program) }, runner: Box::new(runner), n_devices: 1 })
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

impl XlaClient {
    /// Copies a dense row-major array to a device.
    fn put(&self, bytes: &[u8], dtype: DType, dims: &[i64], device_idx: usize) -> Result<xla::PjRtBuffer, PjrtError> {
        let sizes: Vec<usize> = dims.iter().map(|&dim| dim as usize).collect();
        let devices = self.client.addressable_devices();
        let put = self.client.buffer_from_host_raw_bytes(element_type(dtype)?, bytes, &sizes, devices.get(device_idx));
        put.map_err(failed("PjRtClient::buffer_from_host_raw_bytes"))
    }

    /// Refuses what xla-rs's `compile`, which takes no options, cannot do.
    fn check_options(&self, options: &CompileOptions) -> Result<(), PjrtError> {
        let refuse = |what| Err(PjrtError::NotInXlaRs { what, help: USE_THE_PLUGIN });
        if options.n_replicas != 1 || options.n_partitions != 1 {
            return refuse("way to compile for several devices");
        }
        if !options.flags.is_empty() {
            return refuse("way to set XLA's flags for one program");
        }
        if options.allow_excess_precision != self.excess_precision {
            let name = |on| if on { "on" } else { "off" };
            return Err(PjrtError::ExcessPrecision {
                measured: name(self.excess_precision),
                wanted: name(options.allow_excess_precision),
            });
        }
        Ok(())
    }
}

/// What is known of a program from its message.
#[derive(Debug)]
struct Facts {
    name: String,
    outputs: Vec<OutputSpec>,
    /// Parameters whose memory the program may take: XLA takes it from every argument that is not excepted, and xla-rs
    /// excepts none.
    donated: BTreeSet<usize>,
}

impl Facts {
    fn read(proto: &HloModuleProto) -> Result<Facts, PjrtError> {
        let result = proto.host_program_shape.as_ref().and_then(|shape| shape.result.as_ref());
        let result = result.ok_or(PjrtError::XlaRs {
            call: "PjRtClient::compile",
            text: "the program says no result type (host_program_shape)".to_string(),
        })?;
        let mut outputs = Vec::new();
        let leaves =
            if result.element_type == rewrite::TUPLE { &result.tuple_shapes[..] } else { std::slice::from_ref(result) };
        for leaf in leaves {
            let Some(dtype) = DType::from_xla(leaf.element_type) else {
                return Err(PjrtError::NotInXlaRs {
                    what: "results that are tuples in tuples or tokens",
                    help: USE_THE_PLUGIN,
                });
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

/// What is known of a program that xla-rs compiled.
#[derive(Debug)]
struct XlaProgram {
    facts: Arc<Facts>,
    _live: Live,
}

fn no<T>(what: &'static str) -> Result<T, PjrtError> {
    Err(PjrtError::NotInXlaRs { what, help: USE_THE_PLUGIN })
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
    fn execute(&self, args: &[Vec<Arg<'_>>], n_outputs: usize) -> Result<Vec<Vec<Box<dyn Array>>>, PjrtError> {
        // One device, so one list: `Loaded::n_devices` said so.
        let args = &args[0];
        // Arguments that are kept although the program takes their memory are copied. The copies live until it has run.
        let copies: Vec<Option<xla::PjRtBuffer>> = (args.iter().enumerate())
            .map(|(idx, arg)| match arg {
                Arg::Keep(buffer) if self.facts.donated.contains(&idx) => self.copy(buffer).map(Some),
                Arg::Keep(_) | Arg::Donate(_) => Ok(None),
            })
            .collect::<Result<_, _>>()?;
        let raw: Vec<&xla::PjRtBuffer> = (args.iter().zip(&copies))
            .map(|(arg, copy)| copy.as_ref().unwrap_or_else(|| &array::<XlaArray>(arg.buffer()).raw))
            .collect();
        let lists = self.executable.execute_b(&raw).map_err(failed("PjRtLoadedExecutable::execute_b"))?;
        let list = lists.into_iter().next().unwrap_or_default();
        if list.len() != n_outputs {
            return Err(PjrtError::Arguments {
                name: self.facts.name.clone(),
                what: "outputs of xla-rs",
                measured: list.len(),
                expected: n_outputs,
            });
        }
        let own = |(raw, spec): (xla::PjRtBuffer, &OutputSpec)| {
            Box::new(XlaArray::new(&self.client, raw, spec.clone())) as Box<dyn Array>
        };
        Ok(vec![list.into_iter().zip(&self.facts.outputs).map(own).collect()])
    }
}

impl XlaRunner {
    /// Another buffer of the same elements. Through bytes: xla-rs's upload of a literal returns before it has read it.
    fn copy(&self, buffer: &Buffer) -> Result<xla::PjRtBuffer, PjrtError> {
        let XlaArray { spec, .. } = array(buffer);
        self.client.put(&buffer.to_host()?, spec.dtype, &spec.dims, 0)
    }
}
