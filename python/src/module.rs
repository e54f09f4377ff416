//! `Module`: a program in HLO, read, lowered, run and written.

use std::collections::{BTreeSet, HashSet};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bf16scope::foreign::{Size, Sizes, stablehlo};
use bf16scope::hlo::alone::runs_alone;
use bf16scope::hlo::{self, DType, InstrId, Op, Shape, proto, text};
use bf16scope::passes::amp::{self, LowDType, Policy, presets};
use bf16scope::passes::name_pattern::{layers, matches};
use bf16scope::pjrt::{Arg, ChildSpec, Client, CompileOptions, Platform, Setup};
use bf16scope::study::{self, Converter, module_file};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

use crate::error::Failure;
use crate::names::add_callers;
use crate::work::work;

/// The type of an array: its dtype as HLO writes it, and its dims.
type Described = (String, Vec<i64>);

/// A result: its dtype, its dims, its bytes.
type Computed = (String, Vec<i64>, Bytes);

/// A program.
#[pyclass(frozen, module = "bf16scope")]
pub(crate) struct Module {
    module: Arc<hlo::Module>,
}

/// Names of the policies that `lower` knows.
#[pyfunction]
pub(crate) fn policies() -> Vec<&'static str> {
    presets::NAMES.to_vec()
}

/// The dtype that a policy lowers to, before there is a module: its own, or the one that is named.
///
/// # Errors
/// The policy is none, or contradicts itself; the dtype is not narrow.
#[pyfunction]
pub(crate) fn narrow_dtype(policy: &str, dtype: Option<&str>) -> PyResult<&'static str> {
    Ok(match policy_in(policy, dtype)?.dtype {
        LowDType::Bf16 => "bfloat16",
        LowDType::F16 => "float16",
    })
}

/// Panics: the tests look at what becomes of it.
#[pyfunction]
pub(crate) fn panic(python: Python<'_>, said: String) -> PyResult<()> {
    work(python, move |_| panic!("{said}"))
}

#[pymethods]
impl Module {
    /// A module from bytes: HLO text, a serialized `HloModuleProto`, StableHLO in any of its forms. `name` is what messages
    /// call it, `program` the path of the program `bf16scope`, in which XLA's converter runs, `sizes` what symbolic dimensions
    /// are, such as `b=32`.
    #[staticmethod]
    fn from_bytes(
        python: Python<'_>,
        bytes: &[u8],
        name: String,
        program: PathBuf,
        sizes: Vec<String>,
    ) -> PyResult<Module> {
        let bytes = bytes.to_vec();
        let sizes = sizes.iter().map(|size| size.parse()).collect::<Result<Vec<Size>, String>>();
        let wrong = |text: String| PyValueError::new_err(hlo::words::visible(&text).into_owned());
        let sizes = sizes.map_err(wrong)?;
        let sizes = Sizes::new(sizes).map_err(|dim| wrong(format!("`{dim}` has two sizes")))?;
        work(python, move |stop| {
            let converter = Converter {
                setup: Setup::from_env(),
                child: ChildSpec { stop, ..ChildSpec::new(program) },
                sizes,
                fetch: None,
            };
            let path = Path::new(&name);
            let mut module = module_file::decode_bytes(&bytes, path, &converter)?;
            module_file::check(&module, path)?;
            add_callers(&mut module);
            Ok(Module { module: Arc::new(module) })
        })
    }

    /// A module from StableHLO's text with its locations, where every op of it is certain; nothing otherwise.
    #[staticmethod]
    fn from_stablehlo(python: Python<'_>, text: String) -> PyResult<Option<Module>> {
        work(python, move |_| {
            let read = stablehlo::read_named(&text).filter(|module| hlo::verify(module).is_ok());
            Ok(read.map(|mut module| {
                add_callers(&mut module);
                Module { module: Arc::new(module) }
            }))
        })
    }

    /// The module's name.
    #[getter]
    fn name(&self) -> &str {
        &self.module.name
    }

    /// How many instructions it has.
    #[getter]
    fn n_instructions(&self) -> usize {
        self.module.computations.iter().map(|computation| computation.instructions.len()).sum()
    }

    /// Dtype and dims of each parameter.
    #[getter]
    fn parameters(&self) -> Vec<Described> {
        let entry = self.module.entry();
        let shapes = entry.parameters().into_iter().map(|id| &entry.instr(id).shape);
        shapes.flat_map(described).collect()
    }

    /// Dtype and dims of each result.
    #[getter]
    fn results(&self) -> Vec<Described> {
        let entry = self.module.entry();
        described(&entry.instr(entry.root).shape)
    }

    /// For each result, whether it could have the narrow dtype as well: it was widened at the end, or others read it rounded.
    fn narrow_results(&self) -> Vec<bool> {
        let entry = self.module.entry();
        let is_low = |id| matches!(entry.instr(id).shape.dtype(), Some(DType::BF16 | DType::F16));
        let converts = || entry.instructions.iter().filter(|instr| matches!(instr.op, Op::Convert));
        let rounded: HashSet<InstrId> = converts()
            .filter(|instr| matches!(instr.shape.dtype(), Some(DType::BF16 | DType::F16)))
            .flat_map(|instr| instr.operands.clone())
            .collect();
        let root = entry.instr(entry.root);
        let results = match root.op {
            Op::Tuple => root.operands.clone(),
            _ => vec![entry.root],
        };
        let could_be = |id: InstrId| {
            let result = entry.instr(id);
            let is_widened = matches!(result.op, Op::Convert) && result.operands.iter().all(|&of| is_low(of));
            result.shape.dtype() == Some(DType::F32) && (is_widened || rounded.contains(&id))
        };
        results.into_iter().map(could_be).collect()
    }

    /// The module by a policy in a narrow dtype, and the report on every decision as JSON. `losses` are the numbers of results
    /// that are losses, unless the policy names them; they are guessed if neither does. `data` are the numbers of parameters that
    /// hold only positions, times, counts or masks.
    #[pyo3(signature = (policy, dtype, keep, losses=None, data=Vec::new()))]
    fn lower(
        &self,
        python: Python<'_>,
        policy: &str,
        dtype: Option<&str>,
        keep: Vec<String>,
        losses: Option<Vec<usize>>,
        data: Vec<usize>,
    ) -> PyResult<(Module, String)> {
        let mut policy = policy_in(policy, dtype)?;
        policy.keep.extend(keep);
        policy.keep = policy.keep.iter().flat_map(|pattern| of_layers(&self.module, pattern)).collect();
        policy.losses = policy.losses.or(losses);
        policy.data.extend(data);
        let module = Arc::clone(&self.module);
        work(python, move |_| {
            let (lowered, report) = amp::run(&module, &policy)?;
            Ok((Module { module: Arc::new(lowered) }, serde_json::to_string(&report)?))
        })
    }

    /// The module on one CPU device, over its parameters, each the bytes of a file, and the bytes of its results.
    fn run(
        &self,
        python: Python<'_>,
        arguments: Vec<PathBuf>,
        program: PathBuf,
        allow_excess_precision: bool,
    ) -> PyResult<Vec<Computed>> {
        let module = Arc::clone(&self.module);
        work(python, move |stop| {
            let child = ChildSpec { stop, ..ChildSpec::new(program) };
            run(&module, &arguments, &child, allow_excess_precision)
        })
    }

    /// The instructions of which HLO text leaves something out, each with its opcode and the numbers of the proto's fields.
    fn lost_in_text(&self) -> Vec<String> {
        let said = |lost: hlo::Lost| {
            let fields: Vec<String> = lost.fields.iter().map(u32::to_string).collect();
            format!("{} ({}: {})", lost.place, lost.opcode, fields.join(", "))
        };
        hlo::lost_in_text(&self.module).into_iter().map(said).collect()
    }

    /// HLO text.
    fn text(&self) -> String {
        text::print(&self.module, &text::PrintOptions::default())
    }

    /// A serialized `HloModuleProto`.
    fn proto<'py>(&self, python: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let module = Arc::clone(&self.module);
        let bytes = work(python, move |_| Ok(proto::encode::to_bytes(&module)?))?;
        Ok(PyBytes::new(python, &bytes))
    }

    /// StableHLO text.
    fn stablehlo(&self, python: Python<'_>) -> PyResult<String> {
        let module = Arc::clone(&self.module);
        work(python, move |_| {
            of_one_replica(&module)?;
            let written = stablehlo::write(&module);
            Ok(written.map_err(|error| Failure::from(error).within("the module cannot be written as StableHLO"))?.text)
        })
    }
}

/// A pattern of names, and the scoped names that it stands for once JAX has transformed the function: those whose layers it
/// matches.
fn of_layers(module: &hlo::Module, pattern: &str) -> Vec<String> {
    let instructions = module.computations.iter().flat_map(|comp| &comp.instructions);
    let names: BTreeSet<&str> = instructions.map(|instr| instr.metadata.op_name.as_str()).collect();
    let of_layers = |name: &&str| !matches(pattern, name) && matches(pattern, &layers(name));
    let named: Vec<String> = names.into_iter().filter(of_layers).map(ToString::to_string).collect();
    // It is not named where it says nothing itself, so that nobody is told that it matches nothing.
    let is_idle = amp::Policy { keep: vec![pattern.to_string()], ..amp::Policy::default() }.idle(module);
    let itself = (named.is_empty() || is_idle.is_empty()).then(|| pattern.to_string());
    itself.into_iter().chain(named).collect()
}

/// A JAX program that takes a module in runs as one replica, whatever the module is for.
fn of_one_replica(module: &hlo::Module) -> Result<(), Failure> {
    let mut instructions = module.computations.iter().flat_map(|comp| &comp.instructions);
    let Some(instr) = instructions.find(|instr| instr.op.opcode() == "replica-id") else { return Ok(()) };
    Err(Failure::new(
        format!(
            "{} has %{}, a `replica-id`: it is a program of replicas, expected one of partitions",
            module.name, instr.name
        ),
        "use `jax.shard_map` instead of `jax.pmap`; the program writes such modules (`bf16scope emit FILE -o FILE.mlir`)",
    ))
}

/// A policy, by its name or its document, in another dtype than its own, if one is named.
fn policy_in(policy: &str, dtype: Option<&str>) -> Result<Policy, Failure> {
    let mut policy = study::policy_of_text(policy).map_err(Failure::from)?;
    policy.dtype = match dtype {
        None => policy.dtype,
        Some("bfloat16" | "bf16") => LowDType::Bf16,
        Some("float16" | "f16") => LowDType::F16,
        Some(other) => return Err(Failure::new(format!("dtype is `{other}`"), "write bfloat16 or float16")),
    };
    Ok(policy)
}

fn described(shape: &Shape) -> Vec<Described> {
    let leaves = shape.leaves().into_iter();
    leaves.map(|leaf| (leaf.dtype().map_or("token", |dtype| dtype.name()).to_string(), leaf.dims().to_vec())).collect()
}

fn run(
    module: &hlo::Module,
    arguments: &[PathBuf],
    child: &ChildSpec,
    allow_excess_precision: bool,
) -> Result<Vec<Computed>, Failure> {
    runs_alone(module).map_err(|error| Failure::from(error).within("the module cannot be run"))?;
    let entry = module.entry();
    let parameters: Vec<&Shape> = entry.parameters().into_iter().map(|id| &entry.instr(id).shape).collect();
    let leaves: Vec<&Shape> = parameters.iter().flat_map(|shape| shape.leaves()).collect();
    let is_tupled = parameters.iter().any(|shape| matches!(shape, Shape::Tuple(_)));
    let client = Client::in_child(&Platform::cpu(), &Setup::from_env(), child)?;
    let options =
        CompileOptions { allow_excess_precision, parameter_is_tupled: is_tupled, ..CompileOptions::default() };
    let executable = client.compile(&proto::encode::to_bytes(module)?, &options)?;
    let mut on_device = Vec::with_capacity(leaves.len());
    for (shape, path) in leaves.iter().zip(arguments) {
        let dtype = shape.dtype().ok_or_else(|| Failure::new("a parameter is a token", "give it no arrays"))?;
        let file = File::open(path).map_err(|error| Failure::from(error).within("an argument cannot be read"))?;
        on_device.push(Arg::Donate(client.buffer_from_file(&file, dtype, shape.dims(), 0)?));
    }
    let mut results = Vec::new();
    for buffer in executable.execute(on_device)? {
        results.push((buffer.dtype()?.name().to_string(), buffer.dims()?, Bytes(buffer.to_host()?)));
    }
    Ok(results)
}

/// Bytes of a result, which NumPy looks at where they are.
#[pyclass(frozen, module = "bf16scope")]
pub(crate) struct Bytes(Vec<u8>);

#[pymethods]
impl Bytes {
    /// NumPy's array interface, version 3: bytes that are read only.
    #[getter(__array_interface__)]
    fn array_interface<'py>(&self, python: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let interface = PyDict::new(python);
        interface.set_item("version", 3)?;
        interface.set_item("shape", (self.0.len(),))?;
        interface.set_item("typestr", "|u1")?;
        interface.set_item("data", (self.0.as_ptr().addr(), true))?;
        Ok(interface)
    }
}
