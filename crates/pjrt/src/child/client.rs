//! The parent's proxies for a child's client, arrays and programs: each holds the object's number, and sends requests.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::ffi::OsStrExt as _;
use std::sync::Arc;

use super::error::{ChildError, Doing};
use super::message::{AskArray, AskProgram, Id, Reply, Request, dtype, output_specs, unexpected};
use super::process::Child;
use super::spec::ChildSpec;
use super::wire;
use crate::backend::{Array, Backend, Given, Loaded, Program, Runner, array, array_in};
use crate::device::CountsMemory;
use crate::locate::locate;
use crate::{
    Client, CompileOptions, Device, DeviceDescription, DeviceMemory, ForeignCode, MemoryStats, OutputSpec, PjrtError,
    Platform, Plugin, Processes, Purpose, Setup, environment, program,
};
use bf16scope_hlo::DType;

/// The client of a child.
#[derive(Debug)]
struct ChildClient {
    child: Arc<Child>,
    platform_name: String,
    platform_version: String,
    devices: Vec<Device>,
    processes: Processes,
}

/// Starts a child, and opens the platform in it.
pub(super) fn open(platform: &Platform, setup: &Setup, spec: &ChildSpec) -> Result<Client, PjrtError> {
    let (library, environment, create_options) = match platform.spec() {
        Some(plugin) => {
            // Found and installed in the parent: the child has no way to report progress.
            let library = locate(plugin, setup)?.path;
            plugin.check_hardware(Purpose::Run)?;
            (Some(library), environment::of_child(plugin, Purpose::Run), plugin.create_options.clone())
        }
        None => (None, Vec::new(), BTreeMap::new()),
    };
    let child = Arc::new(Child::start(spec, &environment)?);
    let doing = Doing { what: "opening device", of: Some(platform.to_string()) };
    let library = library.map(|path| path.as_os_str().as_bytes().to_vec());
    let request = Request::Client { platform: platform.to_string(), library, create_options };
    let Opened { platform_name, platform_version, devices: descriptions, processes, .. } =
        opened(&child, doing, request)?;
    let device =
        |(idx, description)| Device::new(description, Box::new(ChildDevice { child: Arc::clone(&child), idx }));
    let devices: Vec<Device> = descriptions.into_iter().enumerate().map(device).collect();
    let processes = processes.unwrap_or_else(|| Processes::one(&devices));
    Ok(Client::over(ChildClient { child, platform_name, platform_version, devices, processes }))
}

/// The child's information on a client or topology that it opened.
pub(super) struct Opened {
    pub(super) id: Id,
    pub(super) platform_name: String,
    pub(super) platform_version: String,
    pub(super) devices: Vec<DeviceDescription>,
    processes: Option<Processes>,
}

/// Opens a client or topology in the child.
pub(super) fn opened(child: &Child, doing: Doing, request: Request) -> Result<Opened, PjrtError> {
    match child.request(doing.clone(), request, None)? {
        (Reply::Opened { id, platform_name, platform_version, devices, processes }, _) => {
            Ok(Opened { id, platform_name, platform_version, devices, processes })
        }
        (reply, _) => Err(unexpected(doing, &reply)),
    }
}

/// A device of a child's client, by its position there.
#[derive(Debug)]
struct ChildDevice {
    child: Arc<Child>,
    idx: usize,
}

impl CountsMemory for ChildDevice {
    fn memory(&self) -> Result<DeviceMemory, PjrtError> {
        let ChildDevice { child, idx } = self;
        let doing = Doing { what: "asking about device", of: Some(idx.to_string()) };
        match child.request(doing.clone(), Request::DeviceMemory { idx: *idx }, None)? {
            (Reply::DeviceMemory(memory), _) => Ok(memory),
            (reply, _) => Err(unexpected(doing, &reply)),
        }
    }
}

/// Compiles, for the client or for a topology; returns the program's number and its number of devices.
pub(super) fn compile(
    child: &Arc<Child>,
    topology: Option<Id>,
    bytes: &[u8],
    options: &CompileOptions,
) -> Result<(ChildProgram, usize), PjrtError> {
    let name = program::name(bytes)?;
    let doing = Doing { what: "compiling", of: Some(name.clone()) };
    let file = wire::file_of(bytes).map_err(|source| ChildError::Io { doing: doing.clone(), source })?;
    match child.request(doing.clone(), Request::Compile { topology, options: options.clone() }, Some(&file))? {
        (Reply::Compiled { id, n_devices }, _) => {
            Ok((ChildProgram(Arc::new(ProgramId { child: Arc::clone(child), id, name })), n_devices))
        }
        (reply, _) => Err(unexpected(doing, &reply)),
    }
}

impl Backend for ChildClient {
    fn platform_name(&self) -> Result<String, PjrtError> {
        Ok(self.platform_name.clone())
    }

    fn platform_version(&self) -> Result<String, PjrtError> {
        Ok(self.platform_version.clone())
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
        let (program, n_devices) = compile(&self.child, None, program, options)?;
        let runner = ChildRunner { program: Arc::clone(&program.0) };
        Ok(Loaded { program: Box::new(program), runner: Box::new(runner), n_devices })
    }

    fn load(self: Arc<Self>, executable: &[u8], _foreign: Option<ForeignCode>) -> Result<Loaded, PjrtError> {
        let doing = Doing { what: "loading an executable", of: None };
        let file = wire::file_of(executable).map_err(|source| ChildError::Io { doing: doing.clone(), source })?;
        let (id, n_devices) = match self.child.request(doing.clone(), Request::Load, Some(&file))? {
            (Reply::Compiled { id, n_devices }, _) => (id, n_devices),
            (reply, _) => return Err(unexpected(doing, &reply)),
        };
        let name = "an executable".to_string();
        let program = ChildProgram(Arc::new(ProgramId { child: Arc::clone(&self.child), id, name }));
        let runner = ChildRunner { program: Arc::clone(&program.0) };
        Ok(Loaded { program: Box::new(program), runner: Box::new(runner), n_devices })
    }

    fn upload(
        self: Arc<Self>,
        bytes: &[u8],
        dtype: DType,
        dims: &[i64],
        device_idx: usize,
    ) -> Result<Box<dyn Array>, PjrtError> {
        let doing = uploading(dtype, dims);
        let file = wire::file_of(bytes).map_err(|source| ChildError::Io { doing, source })?;
        self.upload_file(&file, dtype, dims, device_idx)
    }

    fn upload_file(
        self: Arc<Self>,
        file: &File,
        dtype: DType,
        dims: &[i64],
        device_idx: usize,
    ) -> Result<Box<dyn Array>, PjrtError> {
        if !wire::is_sealed(file) {
            return self.upload(&array_in(file, dtype, dims)?, dtype, dims, device_idx);
        }
        let spec = OutputSpec { dtype, dims: dims.to_vec() };
        let doing = uploading(dtype, dims);
        let request = Request::Upload { dtype: dtype.xla(), dims: dims.to_vec(), device_idx };
        match self.child.request(doing.clone(), request, Some(file))? {
            (Reply::Uploaded { id }, _) => Ok(Box::new(ChildArray { child: Arc::clone(&self.child), id, spec })),
            (reply, _) => Err(unexpected(doing, &reply)),
        }
    }
}

fn uploading(dtype: DType, dims: &[i64]) -> Doing {
    let spec = OutputSpec { dtype, dims: dims.to_vec() };
    Doing { what: "copying an argument to the device:", of: Some(spec.to_string()) }
}

/// An array in a child.
#[derive(Debug)]
struct ChildArray {
    child: Arc<Child>,
    id: Id,
    spec: OutputSpec,
}

impl Drop for ChildArray {
    fn drop(&mut self) {
        self.child.forget(&[self.id], &[]);
    }
}

impl ChildArray {
    fn ask(&self, ask: AskArray) -> Result<Reply, PjrtError> {
        let doing = Doing { what: "asking about an array", of: Some(self.spec.to_string()) };
        Ok(self.child.request(doing, Request::Array { array: self.id, ask }, None)?.0)
    }

    fn number(&self, ask: AskArray) -> Result<usize, PjrtError> {
        match self.ask(ask)? {
            Reply::Number(number) => Ok(number),
            reply => Err(unexpected(Doing { what: "asking about an array", of: None }, &reply)),
        }
    }
}

impl Array for ChildArray {
    fn dtype(&self) -> Result<DType, PjrtError> {
        Ok(self.spec.dtype)
    }

    fn dims(&self) -> Result<Vec<i64>, PjrtError> {
        Ok(self.spec.dims.clone())
    }

    fn n_device_bytes(&self) -> Result<usize, PjrtError> {
        self.number(AskArray::DeviceBytes)
    }

    fn is_deleted(&self) -> Result<bool, PjrtError> {
        match self.ask(AskArray::IsDeleted)? {
            Reply::Flag(flag) => Ok(flag),
            reply => Err(unexpected(Doing { what: "asking about an array", of: None }, &reply)),
        }
    }

    fn address(&self) -> Result<usize, PjrtError> {
        self.number(AskArray::Address)
    }

    fn copy_to_host(&self, bytes: &mut [u8], _dims: &[i64]) -> Result<(), PjrtError> {
        let doing = Doing { what: "copying a result from the device:", of: Some(self.spec.to_string()) };
        self.child.request_bytes(&doing, Request::Download { array: self.id }, bytes)
    }
}

/// A program in a child.
#[derive(Debug)]
struct ProgramId {
    child: Arc<Child>,
    id: Id,
    name: String,
}

impl Drop for ProgramId {
    fn drop(&mut self) {
        self.child.forget(&[], &[self.id]);
    }
}

/// Information from the child's compiler on a program.
#[derive(Debug)]
pub(super) struct ChildProgram(Arc<ProgramId>);

impl ChildProgram {
    fn doing(&self) -> Doing {
        Doing { what: "asking about", of: Some(self.0.name.clone()) }
    }

    fn ask(&self, ask: AskProgram) -> Result<(Reply, Option<File>), PjrtError> {
        self.0.child.request(self.doing(), Request::Program { program: self.0.id, ask }, None)
    }

    /// An answer that comes as a file.
    fn file(&self, ask: AskProgram) -> Result<Vec<u8>, PjrtError> {
        match self.ask(ask)? {
            (Reply::Bytes, Some(file)) => Ok(wire::with_bytes(&file, <[u8]>::to_vec)
                .map_err(|source| ChildError::Io { doing: self.doing(), source })?),
            (reply, _) => self.unexpected(&reply),
        }
    }

    fn unexpected<T>(&self, reply: &Reply) -> Result<T, PjrtError> {
        Err(unexpected(self.doing(), reply))
    }
}

impl Program for ChildProgram {
    fn name(&self) -> Result<String, PjrtError> {
        match self.ask(AskProgram::Name)?.0 {
            Reply::Text(name) => Ok(name),
            reply => self.unexpected(&reply),
        }
    }

    fn outputs(&self) -> Result<Vec<OutputSpec>, PjrtError> {
        match self.ask(AskProgram::Outputs)?.0 {
            Reply::Outputs(outputs) => output_specs(outputs),
            reply => self.unexpected(&reply),
        }
    }

    fn n_outputs(&self) -> Result<usize, PjrtError> {
        match self.ask(AskProgram::CountOutputs)?.0 {
            Reply::Number(number) => Ok(number),
            reply => self.unexpected(&reply),
        }
    }

    fn memory_stats(&self) -> Result<MemoryStats, PjrtError> {
        match self.ask(AskProgram::MemoryStats)?.0 {
            Reply::MemoryStats(stats) => Ok(stats),
            reply => self.unexpected(&reply),
        }
    }

    fn cost_analysis(&self) -> Result<BTreeMap<String, f64>, PjrtError> {
        match self.ask(AskProgram::CostAnalysis)?.0 {
            Reply::Costs(costs) => Ok(costs.into_iter().map(|(name, bits)| (name, f64::from_bits(bits))).collect()),
            reply => self.unexpected(&reply),
        }
    }

    fn optimized_program(&self) -> Result<Vec<u8>, PjrtError> {
        self.file(AskProgram::Optimized)
    }

    fn fingerprint(&self) -> Result<Vec<u8>, PjrtError> {
        match self.ask(AskProgram::Fingerprint)?.0 {
            Reply::Raw(bytes) => Ok(bytes),
            reply => self.unexpected(&reply),
        }
    }

    fn serialize(&self) -> Result<Vec<u8>, PjrtError> {
        self.file(AskProgram::Serialized)
    }
}

/// Runs a program in a child.
#[derive(Debug)]
struct ChildRunner {
    program: Arc<ProgramId>,
}

impl Runner for ChildRunner {
    fn execute(&self, args: &[Vec<Given<'_>>], n_outputs: usize) -> Result<Vec<Vec<Box<dyn Array>>>, PjrtError> {
        let ProgramId { child, id, name } = &*self.program;
        let id_of = |arg: &Given<'_>| (array::<ChildArray>(arg.array).id, arg.is_donated);
        let args = args.iter().map(|list| list.iter().map(id_of).collect()).collect();
        let doing = Doing { what: "running", of: Some(name.clone()) };
        let outputs = match child.request(doing.clone(), Request::Execute { program: *id, args }, None)? {
            (Reply::Ran { outputs }, _) if outputs.iter().all(|list| list.len() == n_outputs) => outputs,
            (reply, _) => return Err(unexpected(doing, &reply)),
        };
        let wrap = |output: super::message::Output| -> Result<Box<dyn Array>, PjrtError> {
            let spec = OutputSpec { dtype: dtype(output.dtype)?, dims: output.dims };
            Ok(Box::new(ChildArray { child: Arc::clone(child), id: output.id, spec }))
        };
        outputs.into_iter().map(|list| list.into_iter().map(wrap).collect()).collect()
    }
}
