//! A topology: devices that are described but not present, and the compiler for them.

use std::collections::BTreeMap;
use std::fmt::Debug;

use super::compiled::Compiled;
use super::live::{HandleKind, Live};
use super::plugin::{Plugin, call, log_drop, returned};
use super::program::Format;
use super::{CompileOptions, DeviceDescription, PjrtError, Value, capi, ffi, program, value};

/// Devices described by a name such as `v2:2x2`.
#[derive(Debug)]
pub struct Topology {
    describes: Box<dyn Describes>,
    devices: Vec<DeviceDescription>,
}

/// Describes devices, and compiles for them: a plugin, or a child.
pub(super) trait Describes: Debug + Send + Sync {
    /// The platform, such as `tpu`.
    fn platform_name(&self) -> Result<String, PjrtError>;
    /// The compiler's description of its version.
    fn platform_version(&self) -> Result<String, PjrtError>;
    /// Compiles a program whose arguments can be read, and which has no schedule.
    fn compile(&self, program: &[u8], options: &CompileOptions) -> Result<Compiled, PjrtError>;
}

impl Topology {
    /// A TPU topology, described by the TPU compiler, which is installed on first use.
    pub fn tpu(name: &str, options: &BTreeMap<String, Value>) -> Result<Topology, PjrtError> {
        Topology::new(Plugin::tpu()?, name, options)
    }

    /// A topology of this plugin.
    pub fn new(plugin: &'static Plugin, name: &str, options: &BTreeMap<String, Value>) -> Result<Topology, PjrtError> {
        let topology = PluginTopology::new(plugin, name, options)?;
        let devices = topology.read_devices()?;
        Ok(Topology::from_parts(Box::new(topology), devices))
    }

    pub(super) fn from_parts(describes: Box<dyn Describes>, devices: Vec<DeviceDescription>) -> Topology {
        Topology { describes, devices }
    }

    /// Its devices. A TPU v2 or v3 chip has two, one for each core.
    pub fn devices(&self) -> &[DeviceDescription] {
        &self.devices
    }

    /// The platform, such as `tpu`.
    pub fn platform_name(&self) -> Result<String, PjrtError> {
        self.describes.platform_name()
    }

    /// The compiler's description of its version.
    pub fn platform_version(&self) -> Result<String, PjrtError> {
        self.describes.platform_version()
    }

    /// Compiles a program (serialized `HloModuleProto`) for these devices. It cannot be run here.
    ///
    /// The program must have passed `hlo::verify`: XLA aborts the process on some of what the verifier rejects.
    pub fn compile(&self, program: &[u8], options: &CompileOptions) -> Result<Compiled, PjrtError> {
        program::check_calls(program)?;
        program::argument_specs(program, options)?;
        let program = program::without_schedule(program)?;
        self.describes.compile(&program, options)
    }
}

/// Compiles StableHLO for a topology of this plugin, and discards the result: only the compiler's dumps are needed.
pub(super) fn compile_stablehlo(
    plugin: &'static Plugin,
    topology: &str,
    program: &[u8],
    options: &CompileOptions,
) -> Result<(), PjrtError> {
    PluginTopology::new(plugin, topology, &BTreeMap::new())?.compile_as(program, Format::Mlir, options).map(drop)
}

/// A plugin's topology.
#[derive(Debug)]
struct PluginTopology {
    plugin: &'static Plugin,
    raw: *mut ffi::PJRT_TopologyDescription,
    _live: Live,
}

// SAFETY: a `PJRT_TopologyDescription` is only read after it is made; any thread may do so.
unsafe impl Send for PluginTopology {}
// SAFETY: as above.
unsafe impl Sync for PluginTopology {}

impl Drop for PluginTopology {
    fn drop(&mut self) {
        let mut args = ffi::PJRT_TopologyDescription_Destroy_Args::zeroed();
        args.topology = self.raw;
        // SAFETY: `raw` is live and not used again.
        log_drop(unsafe { call!(self.plugin, PJRT_TopologyDescription_Destroy, args) });
    }
}

impl PluginTopology {
    fn new(
        plugin: &'static Plugin,
        name: &str,
        options: &BTreeMap<String, Value>,
    ) -> Result<PluginTopology, PjrtError> {
        let options = value::encode(options);
        let mut args = ffi::PJRT_TopologyDescription_Create_Args::zeroed();
        args.topology_name = name.as_ptr().cast();
        args.topology_name_size = name.len();
        args.create_options = options.as_ptr();
        args.num_options = options.len();
        // SAFETY: no handles; name and options are alive during the call.
        unsafe { call!(plugin, PJRT_TopologyDescription_Create, args)? };
        let raw = returned("PJRT_TopologyDescription_Create", "topology", args.topology)?;
        Ok(PluginTopology { plugin, raw, _live: Live::new(HandleKind::Topology) })
    }

    fn compile_as(&self, program: &[u8], format: Format, options: &CompileOptions) -> Result<Compiled, PjrtError> {
        let options = options.encode();
        let mut program = program::program(program, format);
        let mut args = ffi::PJRT_Compile_Args::zeroed();
        args.topology = self.raw;
        args.program = &raw mut program;
        args.compile_options = options.as_ptr().cast();
        args.compile_options_size = options.len();
        // SAFETY: a live topology; program and options are alive during the call, which is as long as they are needed;
        // the client is optional. The executable returned is ours.
        unsafe {
            call!(self.plugin, PJRT_Compile, args)?;
            let raw = returned("PJRT_Compile", "executable", args.executable)?;
            Ok(Compiled { program: capi::executable::compiled(self.plugin, raw, None) })
        }
    }

    fn read_devices(&self) -> Result<Vec<DeviceDescription>, PjrtError> {
        let mut args = ffi::PJRT_TopologyDescription_GetDeviceDescriptions_Args::zeroed();
        args.topology = self.raw;
        // SAFETY: a live topology; the descriptions live as long as it, and are copied.
        unsafe {
            call!(self.plugin, PJRT_TopologyDescription_GetDeviceDescriptions, args)?;
            const CALL: &str = "PJRT_TopologyDescription_GetDeviceDescriptions";
            value::whole_list(CALL, args.descriptions, args.num_descriptions)?
                .iter()
                .map(|&raw| DeviceDescription::read(self.plugin, returned(CALL, "description", raw)?))
                .collect()
        }
    }
}

impl Describes for PluginTopology {
    fn platform_name(&self) -> Result<String, PjrtError> {
        let mut args = ffi::PJRT_TopologyDescription_PlatformName_Args::zeroed();
        args.topology = self.raw;
        // SAFETY: a live topology; the text lives as long as it, and is copied.
        unsafe {
            call!(self.plugin, PJRT_TopologyDescription_PlatformName, args)?;
            Ok(value::text(args.platform_name, args.platform_name_size))
        }
    }

    fn platform_version(&self) -> Result<String, PjrtError> {
        let mut args = ffi::PJRT_TopologyDescription_PlatformVersion_Args::zeroed();
        args.topology = self.raw;
        // SAFETY: a live topology; the text lives as long as it, and is copied.
        unsafe {
            call!(self.plugin, PJRT_TopologyDescription_PlatformVersion, args)?;
            Ok(value::text(args.platform_version, args.platform_version_size))
        }
    }

    fn compile(&self, program: &[u8], options: &CompileOptions) -> Result<Compiled, PjrtError> {
        self.compile_as(program, Format::Hlo, options)
    }
}
