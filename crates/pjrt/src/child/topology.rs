//! A topology whose compiler is in a child.

use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt as _;
use std::sync::{Arc, Mutex, PoisonError};

use super::client::{Opened, compile, opened};
use super::error::Doing;
use super::message::{Id, Request};
use super::process::Child;
use super::spec::ChildSpec;
use crate::locate::locate;
use crate::topology::Describes;
use crate::{CompileOptions, Compiled, PjrtError, PluginSpec, Purpose, Setup, Topology, Value, environment};

/// A child that compiles for devices which are not present. It is started by the first request, and again after it
/// died.
#[derive(Debug)]
pub struct ChildCompiler {
    spec: ChildSpec,
    child: Mutex<Option<Arc<Child>>>,
}

impl ChildCompiler {
    /// A compiler in a child, which is not started yet.
    pub fn new(spec: &ChildSpec) -> ChildCompiler {
        ChildCompiler { spec: spec.clone(), child: Mutex::default() }
    }
}

#[derive(Debug)]
struct ChildTopology {
    child: Arc<Child>,
    id: Id,
    platform_name: String,
    platform_version: String,
}

/// Describes devices in the compiler's child, which is started if there is none.
pub(super) fn open(
    compiler: &ChildCompiler,
    setup: &Setup,
    name: &str,
    options: &BTreeMap<String, Value>,
) -> Result<Topology, PjrtError> {
    let plugin = PluginSpec::tpu();
    let library = locate(plugin, setup)?.path.as_os_str().as_bytes().to_vec();
    let child = {
        let mut slot = compiler.child.lock().unwrap_or_else(PoisonError::into_inner);
        match slot.as_ref().filter(|child| !child.has_ended()) {
            Some(child) => Arc::clone(child),
            None => {
                let environment = environment::of_child(plugin, Purpose::Compile);
                Arc::clone(slot.insert(Arc::new(Child::start(&compiler.spec, &environment)?)))
            }
        }
    };
    let doing = Doing { what: "describing", of: Some(name.to_string()) };
    let request = Request::Topology { library, name: name.to_string(), options: options.clone() };
    let Opened { id, platform_name, platform_version, devices, .. } = opened(&child, doing, request)?;
    Ok(Topology::from_parts(Box::new(ChildTopology { child, id, platform_name, platform_version }), devices))
}

impl Describes for ChildTopology {
    fn platform_name(&self) -> Result<String, PjrtError> {
        Ok(self.platform_name.clone())
    }

    fn platform_version(&self) -> Result<String, PjrtError> {
        Ok(self.platform_version.clone())
    }

    fn compile(&self, program: &[u8], options: &CompileOptions) -> Result<Compiled, PjrtError> {
        let (program, _) = compile(&self.child, Some(self.id), program, options)?;
        Ok(Compiled { program: Box::new(program) })
    }
}
