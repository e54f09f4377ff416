//! From a file to a verified module: HLO text or a serialized `HloModuleProto`, told apart by what is in it.
//!
//! Everything that reads a module a user names comes through [`load`]. It does not read models (YAML): see `program`.

use std::path::Path;

use anyhow::Context as _;

use crate::files;
use crate::hlo::proto;
use crate::hlo::verify::verify;
use crate::hlo::{Module, text};

/// Files above this size are refused: a module is held several times over while it is read, and protocol buffers
/// themselves end at 2 GiB.
const MAX_BYTES: u64 = 512 << 20;

/// Endings of files that hold a module; any other file is taken for a model.
const ENDINGS: [&str; 3] = ["pb", "txt", "hlo"];

/// Whether a file is a module by its ending (`.pb`, `.txt`, `.hlo`), and not a model in YAML.
pub(super) fn is_module(path: &Path) -> bool {
    path.extension().is_some_and(|extension| ENDINGS.iter().any(|ending| extension == *ending))
}

/// Reads, decodes and verifies a module.
///
/// # Errors
/// A file that cannot be read or is too large, that holds neither text nor proto, or whose module is broken; each says
/// where.
pub(super) fn load(path: &Path) -> anyhow::Result<Module> {
    let module = decode(path)?;
    check(&module, path)?;
    Ok(module)
}

/// Verifies a module that [`decode`] read.
pub(super) fn check(module: &Module, path: &Path) -> anyhow::Result<()> {
    let _span = tracing::info_span!("verify").entered();
    verify(module).with_context(|| format!("{}: the module is broken", path.display()))
}

/// As [`load`], but does not verify: optimized modules break rules that programs keep.
pub(super) fn decode(path: &Path) -> anyhow::Result<Module> {
    let shown = path.display();
    let _span = tracing::info_span!("load", path = %shown).entered();
    let bytes = files::read(path, MAX_BYTES).with_context(|| format!("cannot read {shown}"))?;
    let module = if is_text(&bytes) {
        let text = std::str::from_utf8(&bytes)
            .with_context(|| format!("{shown}: the text is not UTF-8\nhelp: the file may be damaged"))?;
        text::parse(text, &shown.to_string())?
    } else {
        proto::decode::from_bytes(&bytes).with_context(|| {
            format!("{shown} holds no HLO: it neither begins with `HloModule`, as text does, nor is it a proto")
        })?
    };
    let unknown: Vec<&str> = names_of(&module).filter(|name| !KNOWN.contains(name)).collect();
    if !unknown.is_empty() {
        tracing::warn!("{shown}: the module's {} changes nothing here: HLO has no such attribute", unknown.join(", "));
    }
    Ok(module)
}

/// Attributes of a module that XLA's text has and the IR does not model. Source: `hlo_parser.cc`.
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

/// Whether bytes are HLO text: blanks and comments, then the word `HloModule`. A proto of a module of that name begins
/// with the same letters, but no blank follows them.
fn is_text(bytes: &[u8]) -> bool {
    let mut rest = bytes.trim_ascii_start();
    while let Some(comment) = rest.strip_prefix(b"//") {
        let end = comment.iter().position(|&byte| byte == b'\n').unwrap_or(comment.len());
        rest = comment[end..].trim_ascii_start();
    }
    rest.strip_prefix(b"HloModule").is_some_and(|rest| rest.first().is_some_and(u8::is_ascii_whitespace))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hlo::proto::encode;

    const SCALAR: &str = "HloModule m\n\nENTRY m {\n  ROOT x = f32[] parameter(0)\n}\n";

    fn loaded(name: &str, bytes: &[u8]) -> Result<Module, String> {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join(name), bytes).unwrap();
        let result = load(&folder.path().join(name));
        result.map_err(|error| format!("{error:#}").replace(&folder.path().display().to_string(), "."))
    }

    #[test]
    fn text_and_proto_are_told_apart_by_what_they_hold() {
        let mut module = loaded("m.txt", SCALAR.as_bytes()).unwrap();
        assert_eq!(loaded("m.pb", format!("// of a test\n\n{SCALAR}").as_bytes()).unwrap(), module);
        // A name of nine letters has a tab for its length, so this proto begins like a text.
        module.name = "HloModule".to_string();
        let bytes = encode::to_bytes(&module).unwrap();
        assert!(bytes.starts_with(b"\n\tHloModule"));
        assert_eq!(loaded("m.txt", &bytes).unwrap().name, "HloModule");
    }

    #[test]
    fn what_is_no_module_is_said_with_its_place() {
        let error = loaded("m.txt", b"model: {kind: mlp}").unwrap_err();
        assert!(error.starts_with("./m.txt holds no HLO: it neither begins with `HloModule`"), "{error}");
        let error = loaded("m.hlo", b"HloModule m\nENTRY m {\n  x = f32[ parameter(0)\n}").unwrap_err();
        assert!(error.starts_with("./m.hlo:3:12: found `parameter`"), "{error}");
        let error = loaded("m.txt", b"HloModule m\n\xff").unwrap_err();
        assert!(error.starts_with("./m.txt: the text is not UTF-8"), "{error}");
        let broken = SCALAR.replace("parameter(0)", "parameter(1)");
        let error = loaded("m.txt", broken.as_bytes()).unwrap_err();
        assert!(error.starts_with("./m.txt: the module is broken: "), "{error}");
        let error = load(Path::new("no/such/m.pb")).unwrap_err();
        assert!(error.to_string().starts_with("cannot read no/such/m.pb"), "{error}");
    }
}
