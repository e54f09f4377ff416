//! xla-rs's client.

use std::collections::BTreeMap;
use std::fmt;

use super::dtypes::element_type;
use super::error::{excess_precision, failed, not_in_xla_rs};
use super::wire;
use crate::device::CountsMemory;
use crate::environment::prepare_environment;
use crate::live::{HandleKind, Live};
use crate::{Client, CompileOptions, Device, DeviceDescription, DeviceMemory, PjrtError, Processes, Purpose};
use bf16scope_hlo::proto::encode;
use bf16scope_hlo::{DType, Emitter, Module, Shape};

/// xla-rs's client.
pub(super) struct XlaClient {
    pub(super) client: xla::PjRtClient,
    pub(super) devices: Vec<Device>,
    pub(super) processes: Processes,
    /// Whether XLA compiles with excess precision in this process, found by measuring.
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

    /// Wraps a client that xla-rs made.
    pub fn from_xla(client: xla::PjRtClient) -> Result<Client, PjrtError> {
        let devices: Vec<Device> = client.addressable_devices().iter().map(describe).collect();
        let processes = Processes::one(&devices);
        let excess_precision = keeps_excess_precision(&client)?;
        let _live = Live::new(HandleKind::Client);
        Ok(Client::over(XlaClient { client, devices, processes, excess_precision, _live }))
    }
}

fn describe(device: &xla::PjRtDevice<'_>) -> Device {
    let description = DeviceDescription {
        id: device.id() as i32,
        process_idx: device.process_index() as i32,
        kind: device.kind(),
        name: device.to_string(),
        debug_name: device.debug_string(),
        attributes: BTreeMap::new(),
    };
    Device::new(description, Box::new(XlaDevice))
}

/// A device of xla-rs.
#[derive(Debug)]
struct XlaDevice;

impl CountsMemory for XlaDevice {
    fn memory(&self) -> Result<DeviceMemory, PjrtError> {
        Err(not_in_xla_rs("memory statistics of a device"))
    }
}

/// Whether a sum in bf16 has bits beyond bf16: XLA's CPU compiler widens it, and rounds the result only without excess
/// precision.
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

impl XlaClient {
    /// Copies a dense row-major array to a device.
    pub(super) fn put(
        &self,
        bytes: &[u8],
        dtype: DType,
        dims: &[i64],
        device_idx: usize,
    ) -> Result<xla::PjRtBuffer, PjrtError> {
        let sizes: Vec<usize> = dims.iter().map(|&dim| dim as usize).collect();
        let devices = self.client.addressable_devices();
        let put = self.client.buffer_from_host_raw_bytes(element_type(dtype)?, bytes, &sizes, devices.get(device_idx));
        put.map_err(failed("PjRtClient::buffer_from_host_raw_bytes"))
    }

    /// Refuses options that xla-rs's `compile`, which takes none, cannot implement.
    pub(super) fn check_options(&self, options: &CompileOptions) -> Result<(), PjrtError> {
        let refuse = |what| Err(not_in_xla_rs(what));
        if options.n_replicas != 1 || options.n_partitions != 1 {
            return refuse("way to compile for several devices");
        }
        if !options.flags.is_empty() {
            return refuse("way to set XLA's flags for one program");
        }
        if options.allow_excess_precision != self.excess_precision {
            return Err(excess_precision(self.excess_precision, options.allow_excess_precision));
        }
        Ok(())
    }
}
