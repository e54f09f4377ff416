//! A client: devices, and the operations on them. Its buffers are in `buffer`, its compiled programs in `executable`.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use super::backend::Backend;
use super::kept::Kept;
use super::{CompileOptions, Device, OptionValue, PjrtError, PjrtErrorKind, PjrtPlace, Plugin, Processes};
use bf16scope_hlo::proto::{decode, encode};
use bf16scope_hlo::{Module, verify};

/// The devices of one library. Clones share it; buffers and executables keep it alive.
#[derive(Clone, Debug)]
pub struct Client {
    pub(super) backend: Arc<dyn Backend>,
    /// The most recently compiled programs, if the client keeps any.
    pub(super) kept: Option<Arc<Kept>>,
    /// XLA's flags for every program that does not set them itself.
    flags: Option<Arc<BTreeMap<String, OptionValue>>>,
    /// Transforms every program before it is compiled.
    rewrite: Option<Rewrite>,
}

/// Why a program could not be rewritten, from the rewriting function.
type RewriteError = Box<dyn std::error::Error + Send + Sync>;

/// A transformation of modules.
type Rewriting = dyn Fn(&Module) -> Result<Module, RewriteError> + Send + Sync;

/// A shared transformation of modules.
#[derive(Clone)]
struct Rewrite(Arc<Rewriting>);

impl fmt::Debug for Rewrite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Rewrite")
    }
}

impl Client {
    pub(super) fn over(backend: impl Backend + 'static) -> Client {
        Client { backend: Arc::new(backend), kept: None, flags: None, rewrite: None }
    }

    /// This client, keeping the last `n_programs` that it compiled: [`compile`](Client::compile) returns one of them at
    /// once if program and options are the same, for example when a training is restarted with another seed or resumed
    /// from a checkpoint. Until the last clone is dropped, kept programs take memory, on a TPU the device's.
    ///
    /// ```no_run
    /// # fn main() -> Result<(), bf16scope_pjrt::PjrtError> {
    /// use bf16scope_pjrt::Client;
    ///
    /// let client = Client::cpu()?.keeping(8);
    /// # Ok(())
    /// # }
    /// ```
    pub fn keeping(self, n_programs: usize) -> Client {
        Client { kept: Some(Arc::new(Kept::new(n_programs))), ..self }
    }

    /// This client, compiling every program with these XLA flags; a program's own ([`CompileOptions::flags`]) take
    /// precedence over them, and they over the variable `XLA_FLAGS`.
    ///
    /// ```no_run
    /// # fn main() -> Result<(), bf16scope_pjrt::PjrtError> {
    /// use bf16scope_pjrt::{Client, OptionValue};
    ///
    /// // Compiles in about half the time; a small network then trained for three times as long.
    /// let quickly = [("xla_backend_optimization_level".to_string(), OptionValue::Int(0))];
    /// let client = Client::cpu()?.with_flags(quickly);
    /// # Ok(())
    /// # }
    /// ```
    pub fn with_flags(self, flags: impl IntoIterator<Item = (String, OptionValue)>) -> Client {
        Client { flags: Some(Arc::new(flags.into_iter().collect())), ..self }
    }

    /// This client, rewriting every module before it compiles it. Programs for [`load`](Client::load) are already
    /// compiled, and stay unchanged.
    ///
    /// ```no_run
    /// # fn main() -> Result<(), bf16scope_pjrt::PjrtError> {
    /// use bf16scope_passes::as_tpu::{self, TpuArithmetic};
    /// use bf16scope_pjrt::Client;
    ///
    /// // Whatever is trained on this client multiplies as a TPU does.
    /// let client = Client::cpu()?.rewriting(|module| Ok(as_tpu::run(module, &TpuArithmetic::V3)?.0));
    /// # Ok(())
    /// # }
    /// ```
    pub fn rewriting(
        self,
        rewrite: impl Fn(&Module) -> Result<Module, Box<dyn std::error::Error + Send + Sync>> + Send + Sync + 'static,
    ) -> Client {
        Client { rewrite: Some(Rewrite(Arc::new(rewrite))), ..self }
    }

    /// The program after rewriting.
    pub(super) fn rewritten<'a>(&self, program: &'a [u8]) -> Result<Cow<'a, [u8]>, PjrtError> {
        let Some(Rewrite(rewrite)) = &self.rewrite else { return Ok(Cow::Borrowed(program)) };
        let rewritten = || -> Result<Vec<u8>, RewriteError> {
            let module = rewrite(&decode::from_bytes(program)?)?;
            verify(&module)?;
            Ok(encode::to_bytes(&module)?)
        };
        rewritten().map(Cow::Owned).map_err(|cause| {
            let text = format!("the program cannot be rewritten before it is compiled: {cause}");
            PjrtError::new(PjrtErrorKind::Program, PjrtPlace::Nowhere, text).because(cause)
        })
    }

    /// The compile options of a program: the given ones, plus this client's flags that they do not set.
    pub(super) fn options<'a>(&self, requested: &'a CompileOptions) -> Cow<'a, CompileOptions> {
        let Some(flags) = &self.flags else { return Cow::Borrowed(requested) };
        let mut options = requested.clone();
        for (name, value) in flags.iter() {
            options.flags.entry(name.clone()).or_insert_with(|| value.clone());
        }
        Cow::Owned(options)
    }

    /// The platform, such as `cpu`.
    pub fn platform_name(&self) -> Result<String, PjrtError> {
        self.backend.platform_name()
    }

    /// The library's description of its version.
    pub fn platform_version(&self) -> Result<String, PjrtError> {
        self.backend.platform_version()
    }

    /// The plugin; `None` for a client without a plugin.
    pub fn plugin(&self) -> Option<&'static Plugin> {
        self.backend.plugin()
    }

    /// The devices this process can use, in the library's order: other calls refer to a device by its index here.
    pub fn devices(&self) -> &[Device] {
        self.backend.devices()
    }

    /// The processes that share the platform's devices, and which of them this is: on a slice with several hosts, one
    /// on each.
    pub fn processes(&self) -> &Processes {
        self.backend.processes()
    }

    /// Whether both are the same client.
    pub(super) fn is(&self, other: &Client) -> bool {
        std::ptr::addr_eq(Arc::as_ptr(&self.backend), Arc::as_ptr(&other.backend))
    }
}
