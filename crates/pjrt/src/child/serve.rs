//! The child's side: answers requests until the parent disconnects.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::thread;

use rustix::event::{PollFd, PollFlags};
use rustix::process::{Resource, Rlimit, Signal};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};

use super::error::{ChildError, gib};
use super::message::{AskArray, AskProgram, Envelope, Failure, Id, Output, Reply, Request, dtype};
use super::{memory, wire};
use crate::{
    Arg, Buffer, Client, CompileOptions, Compiled, DeviceDescription, Executable, PjrtError, Platform, Plugin,
    PluginSpec, Processes, Purpose, Setup, Topology, Value, capi, prepare_environment, topology,
};
use bf16scope_hlo::DType;

/// Serves a parent over standard input, which must be its socket, until the parent disconnects or dies.
///
/// A program that is its own child calls this first in `main`, before it starts threads, if its first argument is
/// [`SERVE`](super::SERVE), and exits when it returns.
///
/// # Errors
/// Standard input is not a socket, or receives something other than requests.
pub fn serve() -> io::Result<()> {
    // The parent has set the plugin's variables.
    prepare_environment(Purpose::Run).map_err(io::Error::other)?;
    let socket = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    // Whatever a library does with standard input, it must not read our requests.
    let null = OpenOptions::new().read(true).open("/dev/null")?;
    rustix::stdio::dup2_stdin(&null)?;
    // Ctrl-C and a closed terminal signal both parent and child. The parent handles them; the child exits with it.
    for signal in [SIGHUP, SIGINT, SIGQUIT, SIGTERM] {
        let _ = signal_hook::flag::register(signal, Arc::default())?;
    }
    // An abort is an expected answer here, and its core dump would be gigabytes.
    rustix::process::setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) })?;
    end_with_the_parent(socket.try_clone()?);
    let mut server = Server::default();
    let mut patient = || Ok(());
    loop {
        let (envelope, file): (Envelope, Option<File>) = match wire::receive::<_, io::Error>(&socket, &mut patient) {
            Ok(request) => request,
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            Err(error) => return Err(error),
        };
        envelope.free_arrays.iter().for_each(|id| drop(server.arrays.remove(id)));
        envelope.free_programs.iter().for_each(|id| drop(server.programs.remove(id)));
        let (reply, file) = match server.answer(envelope.request, file) {
            Ok(answer) => answer,
            Err(error) => (Reply::Failed(Failure::from(&error)), None),
        };
        wire::send::<io::Error>(&socket, &reply, file.as_ref(), &mut patient)?;
    }
}

/// Exits this process at once when the other end of the socket is closed, whatever it computes: the parent closes it
/// when it no longer needs the child, and the system when the parent dies. (`PR_SET_PDEATHSIG` kills a child with the
/// *thread* that started it, which is wrong for a library.)
fn end_with_the_parent(socket: UnixStream) {
    thread::spawn(move || {
        loop {
            let mut watched = [PollFd::new(&socket, PollFlags::empty())];
            match rustix::event::poll(&mut watched, None) {
                Err(error) if error == rustix::io::Errno::INTR => {}
                // Disconnected, or nothing to watch.
                Ok(_) | Err(_) => break,
            }
        }
        // A process may always kill itself.
        let _ = rustix::process::kill_process(rustix::process::getpid(), Signal::KILL);
    });
}

/// The objects that a child holds for its parent.
#[derive(Default)]
struct Server {
    // Fields are dropped in this order: a client's objects before the client.
    arrays: BTreeMap<Id, Buffer>,
    programs: BTreeMap<Id, Held>,
    topologies: BTreeMap<Id, Topology>,
    client: Option<Client>,
    n_given: Id,
    outbox: wire::Outbox,
}

enum Held {
    Loaded(Executable),
    Compiled(Compiled),
}

impl Held {
    fn compiled(&self) -> &Compiled {
        match self {
            Held::Loaded(executable) => executable.compiled(),
            Held::Compiled(compiled) => compiled,
        }
    }
}

type Answer = Result<(Reply, Option<File>), PjrtError>;

impl Server {
    fn next(&mut self) -> Id {
        self.n_given += 1;
        self.n_given
    }

    fn answer(&mut self, request: Request, file: Option<File>) -> Answer {
        let reply = match request {
            Request::Hello { .. } => Reply::Hello { version: env!("CARGO_PKG_VERSION").to_string() },
            Request::Client { platform, library, create_options } => {
                self.open_client(&platform, library, &create_options)?
            }
            Request::Topology { library, name, options } => self.describe(&library, &name, &options)?,
            Request::Compile { topology, options } => self.compile(topology, &options, file)?,
            Request::Load => self.load(file)?,
            Request::Convert { library, topology, options } => {
                convert(&library, topology.as_deref(), &options, file)?;
                Reply::Converted
            }
            Request::Upload { dtype: number, dims, device_idx } => {
                self.upload(dtype(number)?, &dims, device_idx, file)?
            }
            Request::Download { array } => {
                let buffer = self.arrays.get(&array).ok_or_else(|| missing("an array"))?;
                return download(buffer, &mut self.outbox);
            }
            Request::Execute { program, args } => self.execute(program, &args)?,
            Request::DeviceMemory { idx } => {
                let device = self.client()?.devices().get(idx).ok_or_else(|| missing("a device"))?;
                Reply::DeviceMemory(device.memory()?)
            }
            Request::Array { array, ask } => {
                let buffer = self.array(array)?;
                match ask {
                    AskArray::DeviceBytes => Reply::Number(buffer.n_device_bytes()?),
                    AskArray::IsDeleted => Reply::Flag(buffer.is_deleted()?),
                    AskArray::Address => Reply::Number(buffer.address()?),
                }
            }
            Request::Program { program, ask } => {
                return of_program(self.program(program)?.compiled(), ask);
            }
        };
        Ok((reply, None))
    }

    fn describe(&mut self, library: &[u8], name: &str, options: &BTreeMap<String, Value>) -> Result<Reply, PjrtError> {
        let topology = Topology::new(load(library)?, name, options)?;
        let id = self.next();
        let (name, version) = (topology.platform_name()?, topology.platform_version()?);
        let devices = topology.devices().to_vec();
        self.topologies.insert(id, topology);
        Ok(opened(id, name, version, devices, None))
    }

    fn compile(
        &mut self,
        topology: Option<Id>,
        options: &CompileOptions,
        file: Option<File>,
    ) -> Result<Reply, PjrtError> {
        let program = file.ok_or_else(|| missing("a program's file"))?;
        let (held, n_devices) = wire::with_bytes(&program, |bytes| match topology {
            Some(id) => {
                let topology = self.topologies.get(&id).ok_or_else(|| missing("a topology"))?;
                Ok((Held::Compiled(topology.compile(bytes, options)?), 0))
            }
            None => {
                let executable = self.client()?.compile(bytes, options)?;
                let n_devices = executable.n_devices();
                Ok::<_, PjrtError>((Held::Loaded(executable), n_devices))
            }
        })
        .map_err(failed)??;
        let id = self.next();
        self.programs.insert(id, held);
        Ok(Reply::Compiled { id, n_devices })
    }

    fn load(&mut self, file: Option<File>) -> Result<Reply, PjrtError> {
        let executable = file.ok_or_else(|| missing("an executable's file"))?;
        let client = self.client()?;
        let loaded = wire::with_bytes(&executable, |bytes| client.load_alone(bytes)).map_err(failed)??;
        let (n_devices, id) = (loaded.n_devices(), self.next());
        self.programs.insert(id, Held::Loaded(loaded));
        Ok(Reply::Compiled { id, n_devices })
    }

    fn upload(
        &mut self,
        dtype: DType,
        dims: &[i64],
        device_idx: usize,
        file: Option<File>,
    ) -> Result<Reply, PjrtError> {
        let file = file.ok_or_else(|| missing("an array's file"))?;
        let client = self.client()?;
        let buffer = wire::with_bytes(&file, |bytes| client.buffer_from_host(bytes, dtype, dims, device_idx));
        let buffer = buffer.map_err(failed)??;
        let id = self.next();
        self.arrays.insert(id, buffer);
        Ok(Reply::Uploaded { id })
    }

    fn open_client(
        &mut self,
        platform: &str,
        library: Option<Vec<u8>>,
        create_options: &BTreeMap<String, Value>,
    ) -> Result<Reply, PjrtError> {
        let client = match library {
            Some(library) => Client::with_options(load(&library)?, create_options)?,
            None => Client::for_platform(&platform.parse::<Platform>()?, &Setup::from_env())?,
        };
        let devices = client.devices().iter().map(|device| device.description().clone()).collect();
        let reply =
            opened(0, client.platform_name()?, client.platform_version()?, devices, Some(client.processes().clone()));
        self.client = Some(client);
        Ok(reply)
    }

    fn client(&self) -> Result<&Client, PjrtError> {
        self.client.as_ref().ok_or_else(|| missing("a client"))
    }

    fn array(&self, id: Id) -> Result<&Buffer, PjrtError> {
        self.arrays.get(&id).ok_or_else(|| missing("an array that was not donated"))
    }

    fn program(&self, id: Id) -> Result<&Held, PjrtError> {
        self.programs.get(&id).ok_or_else(|| missing("a program"))
    }

    fn execute(&mut self, program: Id, args: &[Vec<(Id, bool)>]) -> Result<Reply, PjrtError> {
        // Donated arrays are removed from the table first, so that the others can be borrowed from it.
        let mut donated: BTreeMap<Id, Buffer> = BTreeMap::new();
        for (id, _) in args.iter().flatten().filter(|(_, is_donated)| *is_donated) {
            donated.insert(*id, self.arrays.remove(id).ok_or_else(|| missing("an array that was not donated"))?);
        }
        let Some(Held::Loaded(executable)) = self.programs.get(&program) else {
            return Err(missing("a program that is loaded"));
        };
        let mut lists = Vec::with_capacity(args.len());
        for list in args {
            let arg = |(id, is_donated): &(Id, bool)| match is_donated {
                true => donated.remove(id).map(Arg::Donate).ok_or_else(|| missing("an array that was not donated")),
                false => self.array(*id).map(Arg::Keep),
            };
            lists.push(list.iter().map(arg).collect::<Result<Vec<Arg<'_>>, PjrtError>>()?);
        }
        let ran = executable.execute_sharded(lists)?;
        let mut outputs = Vec::with_capacity(ran.len());
        for list in ran {
            let mut of_device = Vec::with_capacity(list.len());
            for buffer in list {
                let (dtype, dims, id) = (buffer.dtype()?.xla(), buffer.dims()?, self.next());
                self.arrays.insert(id, buffer);
                of_device.push(Output { id, dtype, dims });
            }
            outputs.push(of_device);
        }
        Ok(Reply::Ran { outputs })
    }
}

fn opened(
    id: Id,
    platform_name: String,
    platform_version: String,
    devices: Vec<DeviceDescription>,
    processes: Option<Processes>,
) -> Reply {
    Reply::Opened { id, platform_name, platform_version, devices, processes }
}

/// Loads the library that the parent found.
fn load(path: &[u8]) -> Result<&'static Plugin, PjrtError> {
    let path = Path::new(OsStr::from_bytes(path));
    // SAFETY: this process was started to run this library, and holds nothing else. The parent does not trust its
    // output: answers are parsed, and shared memory contains only numbers.
    unsafe { Plugin::load(path, &PluginSpec::at(path), Purpose::Run) }
}

/// Compiles the StableHLO in the file, only for the compiler's dumps.
fn convert(
    library: &[u8],
    topology: Option<&str>,
    options: &CompileOptions,
    file: Option<File>,
) -> Result<(), PjrtError> {
    let program = file.ok_or_else(|| missing("a program's file"))?;
    let plugin = load(library)?;
    wire::with_bytes(&program, |bytes| match topology {
        Some(name) => topology::compile_stablehlo(plugin, name, bytes, options),
        None => capi::compile_stablehlo(plugin, bytes, options),
    })
    .map_err(failed)?
}

/// The error for a request about an unknown object.
fn missing(what: &str) -> PjrtError {
    ChildError::Failed { text: format!("a request needs {what}: this is a bug of bf16scope, please report it") }.into()
}

fn failed(error: io::Error) -> PjrtError {
    ChildError::Failed { text: format!("shared memory: {error}") }.into()
}

/// Checks that `available` bytes can hold the file of a result and the parent's copy of it. The kernel kills a process
/// when memory runs out, and not always the right one.
fn check_memory(n_bytes: u64, available: u64) -> Result<(), PjrtError> {
    let wanted = 2 * n_bytes;
    if available >= wanted {
        return Ok(());
    }
    let text = format!(
        "a result of {n_bytes} bytes ({}) needs {wanted} to be copied, and this machine has {available} ({}) left\n\
         help: make the module's results smaller",
        gib(n_bytes),
        gib(available)
    );
    Err(ChildError::Failed { text }.into())
}

/// Copies an array into a file.
fn download(buffer: &Buffer, outbox: &mut wire::Outbox) -> Answer {
    let n_bytes = crate::array_type::n_host_bytes(buffer.dtype()?, &buffer.dims()?)?;
    if let Some(available) = memory::available() {
        check_memory(n_bytes as u64, available)?;
    }
    let file = match n_bytes {
        0 => wire::file_of(&[]).map_err(Copy::Io),
        _ => outbox.filled_by(n_bytes, |bytes| buffer.copy_to_host(bytes).map_err(Copy::Pjrt)),
    };
    match file {
        Ok(file) => Ok((Reply::Bytes, Some(file))),
        Err(Copy::Pjrt(error)) => Err(error),
        Err(Copy::Io(error)) => Err(failed(error)),
    }
}

enum Copy {
    Io(io::Error),
    Pjrt(PjrtError),
}

impl From<io::Error> for Copy {
    fn from(error: io::Error) -> Copy {
        Copy::Io(error)
    }
}

fn of_program(compiled: &Compiled, ask: AskProgram) -> Answer {
    let reply = match ask {
        AskProgram::Name => Reply::Text(compiled.name()?),
        AskProgram::Outputs => {
            let outputs = compiled.outputs()?.into_iter().map(|output| (output.dtype.xla(), output.dims));
            Reply::Outputs(outputs.collect())
        }
        AskProgram::CountOutputs => Reply::Number(compiled.n_outputs()?),
        AskProgram::MemoryStats => Reply::MemoryStats(compiled.memory_stats()?),
        AskProgram::CostAnalysis => {
            Reply::Costs(compiled.cost_analysis()?.into_iter().map(|(name, cost)| (name, cost.to_bits())).collect())
        }
        AskProgram::Optimized => {
            let file = wire::file_of(&compiled.optimized_program()?).map_err(failed)?;
            return Ok((Reply::Bytes, Some(file)));
        }
        AskProgram::Fingerprint => Reply::Raw(compiled.fingerprint()?),
        AskProgram::Serialized => {
            let file = wire::file_of(&compiled.serialize()?).map_err(failed)?;
            return Ok((Reply::Bytes, Some(file)));
        }
    };
    Ok((reply, None))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The parent keeps the numbers it gets, so these would be our bugs.
    #[test]
    fn requests_without_their_file_array_or_program_are_refused() {
        let mut server = Server::default();
        let options = CompileOptions::default;
        for (request, needs) in [
            (Request::Compile { topology: None, options: options() }, "a program's file"),
            (Request::Load, "an executable's file"),
            (Request::Upload { dtype: DType::F32.xla(), dims: vec![1], device_idx: 0 }, "an array's file"),
            (Request::Download { array: 1 }, "an array"),
            (Request::DeviceMemory { idx: 0 }, "a client"),
            (Request::Array { array: 1, ask: AskArray::Address }, "an array that was not donated"),
            (Request::Execute { program: 1, args: vec![vec![(1, true)]] }, "an array that was not donated"),
            (Request::Execute { program: 1, args: Vec::new() }, "a program that is loaded"),
            (Request::Program { program: 1, ask: AskProgram::Name }, "a program"),
        ] {
            let error = server.answer(request, None).err().unwrap().to_string();
            assert!(
                error.ends_with(&format!("a request needs {needs}: this is a bug of bf16scope, please report it")),
                "{error}"
            );
        }
    }

    #[test]
    fn a_result_is_copied_where_memory_holds_it_twice() {
        assert!(check_memory(1 << 30, 2 << 30).is_ok());
        let error = check_memory(1 << 30, (2 << 30) - 1).unwrap_err().to_string();
        assert!(
            error.ends_with(
                "a result of 1073741824 bytes (1.00 GiB) needs 2147483648 to be copied, and this machine has 2147483647 (2.00 \
                 GiB) left\nhelp: make the module's results smaller"
            ),
            "{error}"
        );
    }
}
