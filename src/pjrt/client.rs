//! A client: devices, and what can be done with them. The buffers that one makes are in `buffer`, the programs that it
//! compiles in `executable`.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use super::backend::Backend;
use super::kept::Kept;
use super::{CompileOptions, Device, OptionValue, PjrtError, Plugin, Processes};

/// Devices of one library. Cloning shares it; buffers and executables keep it alive.
#[derive(Clone, Debug)]
pub struct Client {
    pub(super) backend: Arc<dyn Backend>,
    /// The programs that it compiled last, where it keeps any.
    pub(super) kept: Option<Arc<Kept>>,
    /// XLA's flags for every program that does not set them itself.
    flags: Option<Arc<BTreeMap<String, OptionValue>>>,
}

impl Client {
    pub(super) fn over(backend: impl Backend + 'static) -> Client {
        Client { backend: Arc::new(backend), kept: None, flags: None }
    }

    /// This client, keeping the last `n_programs` that it compiles: [`compile`](Client::compile) gives one of them again
    /// at once where program and options are the same, as when a training is begun anew from another seed or goes on
    /// from a checkpoint. Until the last clone is gone, what is kept takes memory, on a TPU that of the device.
    ///
    /// ```no_run
    /// # fn main() -> Result<(), bf16scope::pjrt::PjrtError> {
    /// use bf16scope::pjrt::Client;
    ///
    /// let client = Client::cpu()?.keeping(8);
    /// # Ok(())
    /// # }
    /// ```
    pub fn keeping(self, n_programs: usize) -> Client {
        Client { kept: Some(Arc::new(Kept::new(n_programs))), ..self }
    }

    /// This client, compiling every program with these of XLA's flags; a program's own
    /// ([`CompileOptions::flags`]) come before them, and they before those of the variable `XLA_FLAGS`.
    ///
    /// ```no_run
    /// # fn main() -> Result<(), bf16scope::pjrt::PjrtError> {
    /// use bf16scope::pjrt::{Client, OptionValue};
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

    /// The options that a program is compiled with: those given, and the flags of this client that they do not set.
    pub(super) fn options<'a>(&self, given: &'a CompileOptions) -> Cow<'a, CompileOptions> {
        let Some(flags) = &self.flags else { return Cow::Borrowed(given) };
        let mut options = given.clone();
        for (name, value) in flags.iter() {
            options.flags.entry(name.clone()).or_insert_with(|| value.clone());
        }
        Cow::Owned(options)
    }

    /// Such as `cpu`.
    pub fn platform_name(&self) -> Result<String, PjrtError> {
        self.backend.platform_name()
    }

    /// What the library says of its version.
    pub fn platform_version(&self) -> Result<String, PjrtError> {
        self.backend.platform_version()
    }

    /// The plugin; `None` for a client that is no plugin's.
    pub fn plugin(&self) -> Option<&'static Plugin> {
        self.backend.plugin()
    }

    /// The devices this process can use, in the library's order: other calls name a device by its position here.
    pub fn devices(&self) -> &[Device] {
        self.backend.devices()
    }

    /// The processes that share the platform's devices, and which of them this is: of a slice of several hosts, one on each.
    pub fn processes(&self) -> &Processes {
        self.backend.processes()
    }

    /// Whether both are one client.
    pub(super) fn is(&self, other: &Client) -> bool {
        std::ptr::addr_eq(Arc::as_ptr(&self.backend), Arc::as_ptr(&other.backend))
    }
}
