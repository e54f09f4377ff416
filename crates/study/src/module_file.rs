//! Reads a file into a verified module: HLO text, a serialized `HloModuleProto`, StableHLO in any of its forms, or a
//! graph of TensorFlow, recognised by content. The error for any other file names its format.
//!
//! All modules that a user names are read through [`load`]. Models (YAML) are not: see [`super::ModelSubject`].

use std::io::Read as _;
use std::path::{Path, PathBuf};

use super::StudyError;
use bf16scope_files as files;
use bf16scope_foreign::{self as foreign, FileKind, ForeignError, Sizes};
use bf16scope_hlo::devices::devices_of_compiled;
use bf16scope_hlo::proto::{self, ProtoError};
use bf16scope_hlo::verify::{verify, verify_ids};
use bf16scope_hlo::{Module, text};
use bf16scope_pjrt::{ChildSpec, Setup};
use bf16scope_tensorflow::{self as tensorflow, Graph, GraphKind};
use bf16scope_tpu::explain::backend::BackEnd;

/// The settings for reading other forms: XLA's converter for StableHLO, in a child process; sizes and names for graphs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Converter {
    /// Where to find the converter.
    pub setup: Setup,
    /// The child process.
    pub child: ChildSpec,
    /// Sizes of symbolic dimensions, and of those that a graph of TensorFlow leaves open.
    pub sizes: Sizes,
    /// The part of a TensorFlow graph to read: a signature, or tensors and ops by name, separated by commas. `None`:
    /// the default, see [`tensorflow::Choice`].
    pub fetch: Option<String>,
}

/// Files above this size are refused: several copies of a module are in memory while it is read, and protocol buffers
/// are limited to 2 GiB themselves.
const MAX_BYTES: u64 = 512 << 20;

/// File name extensions of modules.
const ENDINGS: [&str; 7] = ["pb", "txt", "hlo", "mlir", "mlirbc", "meta", "pbtxt"];
/// File name extensions of models.
const MODELS: [&str; 2] = ["yaml", "yml"];
/// How much of a file with another extension is examined.
const HEAD: u64 = 4 << 20;

/// Whether a file is a module and not a model in YAML: by its extension, otherwise by its content. A file of another
/// known format counts as a module, whose reader names the format; so does a file that is not text.
pub fn is_module(path: &Path) -> bool {
    by_ending(path).unwrap_or_else(|| {
        let head = head(path);
        kind(path, &head) != FileKind::Unknown || !is_text(&head) || GraphKind::detect(&head).is_some()
    })
}

/// Whether a file is named like a model in YAML.
pub fn is_model(path: &Path) -> bool {
    by_ending(path) == Some(false)
}

/// Whether a file among others in a folder is a module: by its extension, otherwise by its content.
pub fn holds_module(path: &Path) -> bool {
    by_ending(path)
        .unwrap_or_else(|| matches!(kind(path, &head(path)), FileKind::HloText | FileKind::Mlir | FileKind::JaxExport))
}

/// Whether the extension is a module's; `None` if it is neither a module's nor a model's.
fn by_ending(path: &Path) -> Option<bool> {
    let ends = |endings: &[&str]| path.extension().is_some_and(|ending| endings.iter().any(|known| ending == *known));
    (ends(&ENDINGS) || ends(&MODELS)).then(|| ends(&ENDINGS))
}

/// The format of a file or folder, by its beginning.
fn kind(path: &Path, head: &[u8]) -> FileKind {
    if path.is_dir() { of_folder(path) } else { FileKind::of(head) }
}

/// The beginning of a file; all of a pipe, because it can be read only once; empty if it cannot be read.
fn head(path: &Path) -> Vec<u8> {
    if files::is_pipe(path) {
        return files::read(path, MAX_BYTES).unwrap_or_default();
    }
    let mut head = Vec::new();
    let read = files::open(path).map(|file| file.take(HEAD).read_to_end(&mut head));
    if matches!(read, Ok(Ok(_))) { head } else { Vec::new() }
}

/// Whether these bytes are text like a model in YAML: UTF-8 without control characters, except for a character cut at
/// the end.
fn is_text(head: &[u8]) -> bool {
    let is_utf8 = std::str::from_utf8(head).map_or_else(|error| error.error_len().is_none(), |_| true);
    is_utf8 && !head.iter().any(|byte| matches!(byte, 0..=8 | 0x0e..=0x1f))
}

fn of_folder(path: &Path) -> FileKind {
    FileKind::of_folder(|name| path.join(name).is_file())
}

/// Reads, decodes and verifies a module.
///
/// # Errors
/// A file that cannot be read or is too large, that holds neither text nor proto, or whose module is invalid; each
/// error has the place.
pub fn load(path: &Path, converter: &Converter) -> Result<Module, StudyError> {
    let module = decode(path, converter)?;
    check(&module, path)?;
    Ok(module)
}

/// Verifies a module read by [`decode`].
///
/// # Errors
/// A module that violates rules, or that XLA has compiled.
pub fn check(module: &Module, path: &Path) -> Result<(), StudyError> {
    let _span = tracing::info_span!("verify").entered();
    // A compiler mixes dtypes and layouts as its back end requires: that is not the user's mistake.
    verify(module).map_err(|source| match module.is_scheduled {
        true => compiled_already(module, path),
        false => StudyError::broken(path, source),
    })
}

/// Reads a module for display: for one that a compiler has optimized, only the ids are checked, because such modules
/// violate rules of programs; any other is verified.
///
/// # Errors
/// Those of [`load`].
pub fn load_to_show(path: &Path, converter: &Converter) -> Result<Module, StudyError> {
    let module = decode(path, converter)?;
    match module.is_scheduled {
        true => verify_ids(&module).map_err(|source| StudyError::broken(path, source))?,
        false => check(&module, path)?,
    }
    Ok(module)
}

/// Refuses a module with fusions, which a compiler has optimized and no TPU compiler accepts again.
///
/// # Errors
/// The module is such a one.
pub fn check_uncompiled(module: &Module, path: &Path) -> Result<(), StudyError> {
    let mut instructions = module.computations.iter().flat_map(|computation| &computation.instructions);
    match module.is_scheduled && instructions.any(|instr| instr.op.opcode() == "fusion") {
        true => Err(compiled_already(module, path)),
        false => Ok(()),
    }
}

/// The error for a module that XLA has compiled, where a program to compile is expected.
pub fn compiled_already(module: &Module, path: &Path) -> StudyError {
    StudyError::already_compiled(path, BackEnd::detect(module), devices_of_compiled(module))
}

/// The file in a SavedModel's folder that holds its graph; `None` for other paths.
pub fn saved_model(path: &Path) -> Option<PathBuf> {
    ["saved_model.pb", "saved_model.pbtxt"].into_iter().map(|name| path.join(name)).find(|file| file.is_file())
}

/// Like [`load`], without verification: optimized modules violate rules of programs.
///
/// # Errors
/// Those of [`load`].
pub fn decode(path: &Path, converter: &Converter) -> Result<Module, StudyError> {
    let _span = tracing::info_span!("load", path = %path.display()).entered();
    let graph = saved_model(path);
    let path = graph.as_deref().unwrap_or(path);
    let bytes = files::read(path, MAX_BYTES);
    decode_bytes(&bytes.map_err(|source| StudyError::read(path, source))?, path, converter)
}

/// Like [`decode`], for the bytes of a file; errors use `path`.
///
/// # Errors
/// Those of [`load`].
pub fn decode_bytes(bytes: &[u8], path: &Path, converter: &Converter) -> Result<Module, StudyError> {
    let shown = path.display();
    let kind = FileKind::of(bytes);
    if kind == FileKind::Unknown && GraphKind::detect(bytes).is_some() {
        return of_graph(bytes, path, converter);
    }
    if let Some(fetch) = &converter.fetch {
        return Err(StudyError::no_fetch(path, fetch));
    }
    if !converter.sizes.is_empty() && matches!(kind, FileKind::HloText | FileKind::Unknown) {
        return Err(ForeignError::of_no_symbols(&shown.to_string()).into());
    }
    let mut module = match kind {
        FileKind::HloText => {
            let text = std::str::from_utf8(bytes).map_err(|source| StudyError::not_utf8(path, source))?;
            text::parse(text, &shown.to_string())?
        }
        FileKind::Mlir | FileKind::JaxExport => {
            foreign::read_with(bytes, &shown.to_string(), &converter.sizes, &converter.setup, &converter.child)?
        }
        FileKind::Other(other) => return Err(StudyError::other(path, other)),
        FileKind::Unknown => match proto::decode::from_bytes(bytes) {
            Ok(module) => module,
            Err(source) => {
                return Err(match foreign::of_proto(bytes) {
                    Some(other) => StudyError::other(path, other),
                    // It is a proto, with an error inside.
                    None if !matches!(source, ProtoError::Wire(_)) => StudyError::no_module(path, source),
                    None => StudyError::no_hlo(path, source),
                });
            }
        },
    };
    let n_calls = foreign::calls_to_ops(&mut module);
    if n_calls > 0 {
        tracing::info!("{shown}: {n_calls} calls of LAPACK became XLA's own ops");
    }
    let unknown: Vec<&str> = names_of(&module).filter(|name| !KNOWN.contains(name)).collect();
    if !unknown.is_empty() {
        tracing::warn!("{shown}: the module's {} changes nothing here: HLO has no such attribute", unknown.join(", "));
    }
    Ok(module)
}

/// The module of a TensorFlow graph; warns of parts that were left out.
fn of_graph(bytes: &[u8], path: &Path, converter: &Converter) -> Result<Module, StudyError> {
    let name = path.display().to_string();
    let mut graph = Graph::read(bytes, &name)?;
    graph.read_places(path);
    let size_of = |number: usize, dim: usize| {
        let placed = converter.sizes.placed(number, dim);
        placed.or_else(|| converter.sizes.named("batch").filter(|_| dim == 0))
    };
    let choice = tensorflow::Choice { name: converter.fetch.clone(), size_of: &size_of };
    let lowered = tensorflow::lower(&graph, &choice)?;
    if !lowered.left_out.is_empty() {
        let left_out: Vec<String> = lowered.left_out.iter().map(|(op, n)| format!("{n} {op}")).collect();
        tracing::warn!("{name}: what only a host does is left out: {}", left_out.join(", "));
    }
    Ok(lowered.module)
}

/// Attributes of a module in XLA's text that the IR does not model. Source: `hlo_parser.cc`.
const KNOWN: [&str; 6] = [
    "alias_passthrough_params",
    "allow_spmd_sharding_propagation_to_output",
    "allow_spmd_sharding_propagation_to_parameters",
    "num_partitions",
    "origin_recovery_table",
    "replica_count",
];

fn names_of(module: &Module) -> impl Iterator<Item = &str> {
    module.unmodelled.attributes.iter().map(|(name, _)| name.as_str())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use bf16scope_hlo::proto::encode;

    const SCALAR: &str = "HloModule m\n\nENTRY m {\n  ROOT x = f32[] parameter(0)\n}\n";

    /// XLA's converter, which modules in text do not use.
    pub(crate) fn converter() -> Converter {
        Converter {
            setup: Setup::default(),
            child: ChildSpec::new("/proc/self/exe"),
            sizes: Sizes::default(),
            fetch: None,
        }
    }

    fn loaded(name: &str, bytes: &[u8]) -> Result<Module, String> {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join(name), bytes).unwrap();
        let result = load(&folder.path().join(name), &converter());
        result.map_err(|error| error.chain().replace(&folder.path().display().to_string(), "."))
    }

    #[test]
    fn what_lies_beside_modules_is_no_module() {
        let folder = tempfile::tempdir().unwrap();
        let kinds = |name: &str, bytes: &[u8]| {
            let path = folder.path().join(name);
            std::fs::write(&path, bytes).unwrap();
            (is_module(&path), holds_module(&path))
        };
        assert_eq!(kinds("in.npz", b"PK\x03\x04...in0.npy"), (true, false));
        assert_eq!(kinds("notes", b"of today"), (false, false));
        assert_eq!(kinds("accents", "é".as_bytes().split_last().unwrap().1), (false, false));
        // A model in ONNX, and another file that is not text.
        assert_eq!(kinds("m.onnx", b"\x08\x08\x12\x07pytorch\x3a\x02\x0a\0\x42\x02\x10\x11"), (true, false));
        assert_eq!(kinds("noise", b"\xff\xff"), (true, false));
        assert_eq!(kinds("model.yaml", b"module @m {"), (false, false));
        assert_eq!(kinds("step", b"module @m {"), (true, true));
        assert_eq!(kinds("step.mlir", b""), (true, true));
    }

    #[test]
    fn text_and_proto_are_told_apart_by_what_they_hold() {
        let mut module = loaded("m.txt", SCALAR.as_bytes()).unwrap();
        assert_eq!(loaded("m.pb", format!("// of a test\n\n{SCALAR}").as_bytes()).unwrap(), module);
        // The length of a nine-letter name is a tab, so this proto begins like a text.
        module.name = "HloModule".to_string();
        let bytes = encode::to_bytes(&module).unwrap();
        assert!(bytes.starts_with(b"\n\tHloModule"));
        assert_eq!(loaded("m.txt", &bytes).unwrap().name, "HloModule");
    }

    #[test]
    fn what_is_no_module_is_said_with_its_place() {
        let error = loaded("m.txt", b"model: {kind: mlp}").unwrap_err();
        assert!(
            error.starts_with("./m.txt holds no HLO: it begins neither with `HloModule` nor as StableHLO"),
            "{error}"
        );
        // Only a name.
        let error = loaded("m.pb", b"\n\x01m").unwrap_err();
        assert!(error.starts_with("./m.pb: the proto holds no module: "), "{error}");
        let error = loaded("m.hlo", b"HloModule m\nENTRY m {\n  x = f32[ parameter(0)\n}").unwrap_err();
        assert!(error.starts_with("./m.hlo:3:12: found `parameter`"), "{error}");
        let error = loaded("m.txt", b"HloModule m\n\xff").unwrap_err();
        assert!(error.starts_with("./m.txt: the text is not UTF-8"), "{error}");
        let broken = SCALAR.replace("parameter(0)", "parameter(1)");
        let error = loaded("m.txt", broken.as_bytes()).unwrap_err();
        assert!(error.starts_with("./m.txt: the module is broken: "), "{error}");
        let error = load(Path::new("no/such/m.pb"), &converter()).unwrap_err();
        assert!(error.to_string().starts_with("cannot read no/such/m.pb"), "{error}");
    }
}
