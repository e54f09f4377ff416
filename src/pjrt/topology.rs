//! A topology: devices that are described but not here, and the compiler for them.

use std::collections::BTreeMap;

use super::executable::Compiled;
use super::live::{HandleKind, Live};
use super::plugin::{Plugin, call, log_drop};
use super::{CompileOptions, DeviceDescription, PjrtError, Value, ffi, program, value};

/// Devices described by a name such as `v2:2x2`.
#[derive(Debug)]
pub struct Topology {
    plugin: &'static Plugin,
    raw: *mut ffi::PJRT_TopologyDescription,
    devices: Vec<DeviceDescription>,
    _live: Live,
}

// SAFETY: a `PJRT_TopologyDescription` is only read after it is made; any thread may do so.
unsafe impl Send for Topology {}
// SAFETY: as above.
unsafe impl Sync for Topology {}

impl Drop for Topology {
    fn drop(&mut self) {
        let mut args = ffi::PJRT_TopologyDescription_Destroy_Args::zeroed();
        args.topology = self.raw;
        // SAFETY: `raw` is live and not used again.
        log_drop(unsafe { call!(self.plugin, PJRT_TopologyDescription_Destroy, args) });
    }
}

impl Topology {
    /// A TPU topology, described by the TPU compiler, which is installed on first use.
    pub fn tpu(name: &str, options: &BTreeMap<String, Value>) -> Result<Topology, PjrtError> {
        Topology::new(Plugin::tpu()?, name, options)
    }

    /// A topology of this plugin.
    pub fn new(plugin: &'static Plugin, name: &str, options: &BTreeMap<String, Value>) -> Result<Topology, PjrtError> {
        let options = value::encode(options);
        let mut args = ffi::PJRT_TopologyDescription_Create_Args::zeroed();
        args.topology_name = name.as_ptr().cast();
        args.topology_name_size = name.len();
        args.create_options = options.as_ptr();
        args.num_options = options.len();
        // SAFETY: no handles; name and options are alive during the call.
        unsafe { call!(plugin, PJRT_TopologyDescription_Create, args)? };
        let mut topology =
            Topology { plugin, raw: args.topology, devices: Vec::new(), _live: Live::new(HandleKind::Topology) };
        topology.devices = topology.read_devices()?;
        Ok(topology)
    }

    /// Its devices. A TPU v2 or v3 chip has two, one for each core.
    pub fn devices(&self) -> &[DeviceDescription] {
        &self.devices
    }

    /// Such as `tpu`.
    pub fn platform_name(&self) -> Result<String, PjrtError> {
        let mut args = ffi::PJRT_TopologyDescription_PlatformName_Args::zeroed();
        args.topology = self.raw;
        // SAFETY: a live topology; the text lives as long as it, and is copied.
        unsafe {
            call!(self.plugin, PJRT_TopologyDescription_PlatformName, args)?;
            Ok(value::text(args.platform_name, args.platform_name_size))
        }
    }

    /// What the compiler says of its version.
    pub fn platform_version(&self) -> Result<String, PjrtError> {
        let mut args = ffi::PJRT_TopologyDescription_PlatformVersion_Args::zeroed();
        args.topology = self.raw;
        // SAFETY: a live topology; the text lives as long as it, and is copied.
        unsafe {
            call!(self.plugin, PJRT_TopologyDescription_PlatformVersion, args)?;
            Ok(value::text(args.platform_version, args.platform_version_size))
        }
    }

    /// Compiles a program (serialized `HloModuleProto`) for these devices. It cannot be run here.
    ///
    /// The program must have passed `hlo::verify`: XLA aborts the process over some of what the verifier rejects.
    pub fn compile(&self, program: &[u8], options: &CompileOptions) -> Result<Compiled, PjrtError> {
        program::argument_specs(program, options.parameter_is_tupled)?;
        let program = program::without_schedule(program)?;
        let options = options.encode();
        let mut program = program::program(&program);
        let mut args = ffi::PJRT_Compile_Args::zeroed();
        args.topology = self.raw;
        args.program = &raw mut program;
        args.compile_options = options.as_ptr().cast();
        args.compile_options_size = options.len();
        // SAFETY: a live topology; program and options are alive during the call, which is as long as they are
        // needed; the client is optional. The executable returned is ours.
        unsafe {
            call!(self.plugin, PJRT_Compile, args)?;
            Ok(Compiled::new(self.plugin, args.executable, None))
        }
    }

    fn read_devices(&self) -> Result<Vec<DeviceDescription>, PjrtError> {
        let mut args = ffi::PJRT_TopologyDescription_GetDeviceDescriptions_Args::zeroed();
        args.topology = self.raw;
        // SAFETY: a live topology; the descriptions live as long as it, and are copied.
        unsafe {
            call!(self.plugin, PJRT_TopologyDescription_GetDeviceDescriptions, args)?;
            value::list(args.descriptions, args.num_descriptions)
                .iter()
                .map(|&raw| DeviceDescription::read(self.plugin, raw))
                .collect()
        }
    }
}
