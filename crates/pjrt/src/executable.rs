//! Executables: compiled programs loaded on a client's devices.

use std::sync::Arc;

use super::array_type::{ArgumentSpec, OutputSpec};
use super::backend::{Array, Given};
use super::compiled::{Code, Compiled};
use super::{Buffer, Client, CompileOptions, ForeignCode, PjrtError, PjrtErrorKind, PjrtPlace, program};

/// An argument of an execution.
#[derive(Debug)]
pub enum Arg<'a> {
    /// Stays the caller's, unchanged, whatever the program aliases.
    Keep(&'a Buffer),
    /// Is given up: if the program aliases this parameter to an output, the output takes over its memory; otherwise it
    /// is freed.
    Donate(Buffer),
}

impl Arg<'_> {
    fn buffer(&self) -> &Buffer {
        match self {
            Arg::Keep(buffer) => buffer,
            Arg::Donate(buffer) => buffer,
        }
    }

    fn to_given(&self) -> Given<'_> {
        Given { array: &*self.buffer().array, is_donated: matches!(self, Arg::Donate(_)) }
    }
}

/// A program loaded on devices of a client.
#[derive(Debug)]
pub struct Executable {
    // Dropped before the client.
    code: Arc<Code>,
    client: Client,
    arguments: Option<Vec<ArgumentSpec>>,
}

impl Executable {
    /// The compiler's information on it.
    pub fn compiled(&self) -> &Compiled {
        &self.code.compiled
    }

    /// Outputs for each device.
    pub fn n_outputs(&self) -> usize {
        self.code.n_outputs
    }

    /// Devices it runs on: replicas × partitions.
    pub fn n_devices(&self) -> usize {
        self.code.n_devices
    }

    /// Runs it on its single device, and returns when the outputs are ready.
    ///
    /// Donated arguments are consumed, even if the run fails.
    pub fn execute(&self, args: Vec<Arg<'_>>) -> Result<Vec<Buffer>, PjrtError> {
        let mut outputs = self.execute_sharded(vec![args])?;
        Ok(outputs.pop().expect("one list of outputs for each list of arguments"))
    }

    /// Runs it on all its devices, with one list of arguments for each; returns when the outputs are ready.
    ///
    /// An argument is donated only if every device donates it.
    pub fn execute_sharded(&self, args: Vec<Vec<Arg<'_>>>) -> Result<Vec<Vec<Buffer>>, PjrtError> {
        self.check_args(&args)?;
        let lists: Vec<Vec<Given<'_>>> = args.iter().map(|list| list.iter().map(Arg::to_given).collect()).collect();
        let outputs = self.code.runner.execute(&lists, self.code.n_outputs)?;
        let buffers = |list: Vec<Box<dyn Array>>| list.into_iter().map(|array| self.client.wrap(array)).collect();
        Ok(outputs.into_iter().map(buffers).collect())
    }

    /// Checks the counts and types of the arguments before the plugin sees them.
    fn check_args(&self, args: &[Vec<Arg<'_>>]) -> Result<(), PjrtError> {
        let count = |what, measured, expected| match measured == expected {
            true => Ok(()),
            false => Err(PjrtError::count(&self.code.name, what, measured, expected)),
        };
        count("lists of arguments, one for each device", args.len(), self.code.n_devices)?;
        for list in args {
            let expected = self.arguments.as_ref().map_or(args[0].len(), Vec::len);
            count("arguments", list.len(), expected)?;
            for (idx, arg) in list.iter().enumerate() {
                let buffer = arg.buffer();
                if !buffer.client.is(&self.client) {
                    let error = self.argument_error(format!("argument {idx} lives in another client"));
                    return Err(error.with_help("upload it with the client that compiled the executable"));
                }
                if let Some(arguments) = &self.arguments {
                    self.check_type(idx, buffer, &arguments[idx])?;
                }
            }
        }
        Ok(())
    }

    fn check_type(&self, idx: usize, buffer: &Buffer, expected: &ArgumentSpec) -> Result<(), PjrtError> {
        let measured = OutputSpec { dtype: buffer.dtype()?, dims: buffer.dims()? };
        let ArgumentSpec { whole, shard } = expected;
        // The plugin checks types that are unknown here.
        let Some(shard) = shard.as_ref().filter(|shard| **shard != measured) else { return Ok(()) };
        let text = format!("argument {idx}: measured {measured}, expected {shard}");
        Err(match shard == whole {
            true => self.argument_error(text),
            false => {
                let error = self.argument_error(format!("{text}, the part of {whole} that each device holds"));
                error.with_help("upload to each device its own")
            }
        })
    }

    fn argument_error(&self, text: String) -> PjrtError {
        PjrtError::new(PjrtErrorKind::Argument, PjrtPlace::Executable(self.code.name.clone()), text)
    }
}

impl Client {
    /// Compiles a program (serialized `HloModuleProto`) and loads it on the first devices.
    ///
    /// The program must have passed `hlo::verify`: XLA aborts the process on some of what the verifier rejects. A
    /// client that keeps programs ([`Client::keeping`]) does not compile a kept one again.
    pub fn compile(&self, program: &[u8], options: &CompileOptions) -> Result<Executable, PjrtError> {
        let options = &*self.options(options);
        let program = &*self.rewritten(program)?;
        program::check_calls(program)?;
        let arguments = program::argument_specs(program, options)?;
        let program = program::without_schedule(program)?;
        let compile = || Code::new(Arc::clone(&self.backend).compile(&program, options)?);
        let code = match &self.kept {
            Some(kept) => kept.code(&program, options, compile)?,
            None => Arc::new(compile()?),
        };
        Ok(Executable { code, client: self.clone(), arguments })
    }

    /// The same in a process started only for this, whose parent has checked the arguments.
    pub(super) fn load_alone(&self, executable: &[u8]) -> Result<Executable, PjrtError> {
        // SAFETY: this process holds nothing else, and its parent does not trust its output.
        let foreign = unsafe { ForeignCode::allow() };
        let code = Code::new(Arc::clone(&self.backend).load(executable, Some(foreign))?)?;
        Ok(Executable { code: Arc::new(code), client: self.clone(), arguments: None })
    }

    /// Loads the output of [`Compiled::serialize`] for this program and these options, without compiling.
    ///
    /// An executable is machine code that cannot be checked here. A client in a child process ([`Client::in_child`])
    /// loads it there and needs no permission; in this process the caller must vouch for it.
    ///
    /// # Errors
    /// [`PjrtErrorKind::ForeignCode`] in this process without permission; errors of the plugin for bytes that are
    /// damaged, or written by another version.
    pub fn load(
        &self,
        executable: &[u8],
        program: &[u8],
        options: &CompileOptions,
        foreign: Option<ForeignCode>,
    ) -> Result<Executable, PjrtError> {
        let arguments = program::argument_specs(program, options)?;
        let code = Code::new(Arc::clone(&self.backend).load(executable, foreign)?)?;
        Ok(Executable { code: Arc::new(code), client: self.clone(), arguments })
    }
}
