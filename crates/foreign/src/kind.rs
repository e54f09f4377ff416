//! Tells the content of a file by its first bytes (and an archive's last): HLO, StableHLO, or another format that has a name.
//!
//! Source: the magic numbers of MLIR bytecode, HDF5, GGUF, zip, TFLite and safetensors; the schemas of ONNX's `ModelProto`,
//! TensorFlow's `SavedModel` and `GraphDef`.

use memchr::memmem;
use prost::encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field};

use super::jax_export::{self, BYTECODE};

/// The content of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FileKind {
    /// HLO text.
    HloText,
    /// MLIR, as text or bytecode: StableHLO, or another dialect.
    Mlir,
    /// A file that `jax.export` serialized.
    JaxExport,
    /// Something that is known, and is no module.
    Other(Other),
    /// Nothing that is known: a proto, or a model in YAML.
    Unknown,
}

/// A file of another kind, and how its owner exports a module instead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Other {
    /// The format in words: `a model in ONNX`.
    pub what: &'static str,
    /// The remedy.
    pub export: &'static str,
}

const FROM_JAX: &str =
    "from JAX, write a program with `open(\"step.mlir\", \"w\").write(jax.jit(f).lower(*args).as_text())`";
const FROM_TENSORFLOW: &str = "from TensorFlow, write a program with `open(\"step.hlo.pb\", \"wb\").write(tf.function(f, \
     jit_compile=True).experimental_get_compiler_ir(*args)(stage=\"hlo_serialized\"))`";
const FROM_KERAS: &str = "load it, and write a program with `f = tf.function(keras.saving.load_model(FILE), jit_compile=True); \
     open(\"model.hlo.pb\", \"wb\").write(f.experimental_get_compiler_ir(x)(stage=\"hlo_serialized\"))`";
const FROM_H5: &str = "make its model, `model.load_weights(FILE)` where it holds weights alone (.weights.h5), else \
     `model = keras.saving.load_model(FILE)`; then write a program with `f = tf.function(model, jit_compile=True); \
     open(\"model.hlo.pb\", \"wb\").write(f.experimental_get_compiler_ir(x)(stage=\"hlo_serialized\"))`";
const FROM_SAVED_MODEL: &str = "load it, and write a program with `m = tf.saved_model.load(FOLDER); \
     f = m.signatures[\"serving_default\"]; g = tf.function(lambda **xs: f(**xs), jit_compile=True); \
     open(\"model.hlo.pb\", \"wb\").write(g.experimental_get_compiler_ir(**xs)(stage=\"hlo_serialized\"))`";
const FROM_TORCH: &str = "from the nn.Module, with torch_xla: `open(\"model.mlir\", \"w\").write(torch_xla.stablehlo.\
     exported_program_to_stablehlo(torch.export.export(model, args)).get_stablehlo_text())`";

const FROM_WEIGHTS: &str = "export the model that reads them, with its weights loaded: an nn.Module with torch_xla, \
     `open(\"model.mlir\", \"w\").write(torch_xla.stablehlo.exported_program_to_stablehlo(torch.export.export(model, args))\
     .get_stablehlo_text())`; a function of JAX with \
     `open(\"step.mlir\", \"w\").write(jax.jit(f).lower(*args).as_text())`";
const FROM_GGUF: &str = "its program is within llama.cpp: export the model that it was converted from, an nn.Module with torch_xla: \
     `open(\"model.mlir\", \"w\").write(torch_xla.stablehlo.exported_program_to_stablehlo(torch.export.export(model, args))\
     .get_stablehlo_text())`";

const EMPTY: Other = Other {
    what: "an empty file",
    export: "whoever wrote it may have been stopped, or a shell made it for a command that failed: export it again",
};
const ONNX: Other = Other { what: "a model in ONNX", export: FROM_TORCH };
/// For the file `saved_model.pb` and for its folder.
pub(super) const SAVED_MODEL: Other = Other { what: "a SavedModel of TensorFlow", export: FROM_SAVED_MODEL };
const GRAPH_DEF: Other = Other { what: "a GraphDef of TensorFlow", export: FROM_TENSORFLOW };
const TORCH_SCRIPT: Other = Other { what: "a TorchScript archive", export: FROM_TORCH };
const TORCH_EXPORT: Other = Other { what: "a program of torch.export (.pt2)", export: FROM_TORCH };
const TORCH_WEIGHTS: Other = Other { what: "weights of PyTorch (torch.save)", export: FROM_TORCH };
const PICKLE: Other = Other { what: "a pickle, as older PyTorch saves weights", export: FROM_TORCH };
const KERAS: Other = Other { what: "a Keras model", export: FROM_KERAS };
const HDF5: Other = Other { what: "an HDF5 file, as Keras's .h5", export: FROM_H5 };
const GGUF: Other = Other { what: "weights in GGUF, without a program", export: FROM_GGUF };
const SAFETENSORS: Other = Other { what: "weights in safetensors, without a program", export: FROM_WEIGHTS };
const NPZ: Other = Other { what: "arrays in an .npz archive, without a program", export: FROM_JAX };
const NPY: Other = Other { what: "an array in .npy, without a program", export: FROM_JAX };
const CHECKPOINT: Other =
    Other { what: "the index of a TensorFlow checkpoint, without a program", export: FROM_TENSORFLOW };
const ZIP: Other = Other { what: "a zip archive", export: FROM_JAX };
const TFLITE: Other = Other { what: "a model in TensorFlow Lite", export: FROM_TENSORFLOW };
const GZIP: Other = Other { what: "compressed (gzip)", export: "unpack it first: `gunzip FILE`" };
const UTF16: Other = Other {
    what: "text in UTF-16, as PowerShell's `>` writes it",
    export: "write it in UTF-8: from the program that makes it, or in PowerShell by `Get-Content FILE | Set-Content -Encoding \
             utf8NoBOM NEW`",
};
const MARKED: Other = Other {
    what: "text that begins with a byte order mark",
    export: "write it without: `sed '1s/^\\xEF\\xBB\\xBF//' FILE > NEW`",
};
const LLVM: Other = Other { what: "LLVM bitcode", export: FROM_JAX };

/// The magic number of LevelDB's tables, at their end.
const CHECKPOINT_END: [u8; 8] = [0x57, 0xfb, 0x80, 0x8b, 0x24, 0x75, 0x47, 0xdb];

/// How many of a file's first bytes [`FileKind::of`] looks at, but for archives and JAX's files.
const HEAD: usize = 64 << 10;

impl FileKind {
    /// Tells the content of these bytes: a whole file, or enough of its head and tail.
    pub fn of(bytes: &[u8]) -> FileKind {
        let head = &bytes[..bytes.len().min(HEAD)];
        let text = without_comments(head);
        if head.iter().all(u8::is_ascii_whitespace) && head.len() == bytes.len() {
            return FileKind::Other(EMPTY);
        } else if text.strip_prefix(b"HloModule").is_some_and(|rest| rest.first().is_some_and(u8::is_ascii_whitespace))
        {
            return FileKind::HloText;
        } else if head.starts_with(BYTECODE) || is_mlir_text(text) {
            return FileKind::Mlir;
        } else if jax_export::read(bytes).is_some() || looks_exported(bytes) {
            return FileKind::JaxExport;
        }
        by_magic(bytes).map_or(FileKind::Unknown, FileKind::Other)
    }

    /// Tells the content of a folder: a SavedModel's has one fixed name in it.
    pub fn of_folder(has_file: impl Fn(&str) -> bool) -> FileKind {
        match has_file("saved_model.pb") {
            true => FileKind::Other(SAVED_MODEL),
            false => FileKind::Unknown,
        }
    }
}

/// A JAX file of which the end is missing.
fn looks_exported(bytes: &[u8]) -> bool {
    const NEAR: usize = 1 << 20;
    let near = &bytes[..bytes.len().min(NEAR)];
    near.len() > 8 && near[2..4] == [0, 0] && memmem::find(near, b"ML\xefR\rStableHLO").is_some()
}

fn without_comments(bytes: &[u8]) -> &[u8] {
    let mut rest = bytes.trim_ascii_start();
    while let Some(comment) = rest.strip_prefix(b"//") {
        let end = memchr::memchr(b'\n', comment).unwrap_or(comment.len());
        rest = comment[end..].trim_ascii_start();
    }
    rest
}

/// Whether text is MLIR: a module, a function, or the aliases that stand before one.
fn is_mlir_text(text: &[u8]) -> bool {
    let starts = |word: &str, ends: &[u8]| {
        text.strip_prefix(word.as_bytes()).is_some_and(|rest| rest.first().is_some_and(|byte| ends.contains(byte)))
    };
    let is_alias = matches!(text, [b'#' | b'!', b'a'..=b'z' | b'A'..=b'Z' | b'_', ..])
        && memchr::memchr(b'\n', text).is_some_and(|end| memmem::find(&text[..end], b" = ").is_some())
        && (["\nmodule", "\nfunc.func"].iter().any(|word| memmem::find(text, word.as_bytes()).is_some())
            || text.starts_with(b"#loc"));
    is_alias
        || starts("module", b" {\n\r@")
        || starts("builtin.module", b" {\n\r@")
        || starts("func.func", b" ")
        || ["\"builtin.module\"(", "\"func.func\"("].iter().any(|word| text.starts_with(word.as_bytes()))
}

fn by_magic(bytes: &[u8]) -> Option<Other> {
    let tail = &bytes[bytes.len().saturating_sub(1 << 20)..];
    let holds = |name: &str| memmem::find(tail, name.as_bytes()).is_some();
    Some(match bytes {
        [b'P', b'K', 3 | 5, 4 | 6, ..] if holds("model.weights.h5") => KERAS,
        [b'P', b'K', 3, 4, ..] if holds("archive_format") || holds("models/model.json") => TORCH_EXPORT,
        [b'P', b'K', 3, 4, ..] if holds("constants.pkl") => TORCH_SCRIPT,
        [b'P', b'K', 3, 4, ..] if holds("data.pkl") => TORCH_WEIGHTS,
        [b'P', b'K', 3, 4, ..] if holds(".npy") => NPZ,
        [b'P', b'K', 3 | 5, 4 | 6, ..] => ZIP,
        [0x93, b'N', b'U', b'M', b'P', b'Y', ..] => NPY,
        _ if bytes.ends_with(&CHECKPOINT_END) => CHECKPOINT,
        [0x89, b'H', b'D', b'F', b'\r', b'\n', 0x1a, b'\n', ..] => HDF5,
        [b'G', b'G', b'U', b'F', ..] => GGUF,
        [_, _, _, _, b'T', b'F', b'L', b'3', ..] => TFLITE,
        [0x1f, 0x8b, ..] => GZIP,
        [b'B', b'C', 0xc0, 0xde, ..] => LLVM,
        [0xff, 0xfe, ..] | [0xfe, 0xff, ..] => UTF16,
        [0xef, 0xbb, 0xbf, ..] => MARKED,
        // A protocol, then a dict, a tuple or a long number: torch's magic.
        [0x80, 2..=5, b'}' | b'c' | b'(' | b'.' | 0x8a | 0x95, ..] => PICKLE,
        [_, _, _, _, _, 0, 0, 0, b'{', b'"', ..] => SAFETENSORS,
        _ => return None,
    })
}

/// Tells the format of a protocol buffer that is not HLO by its fields: ONNX, a SavedModel or a GraphDef.
pub fn of_proto(bytes: &[u8]) -> Option<Other> {
    let (mut rest, mut seen) = (bytes, [false; 32]);
    let mut version = None;
    let mut first_node: Option<&[u8]> = None;
    while !rest.is_empty() {
        let (tag, wire_type) = decode_key(&mut rest).ok()?;
        if let (1, WireType::Varint) = (tag, wire_type) {
            version = Some(decode_varint(&mut rest).ok()?);
        } else {
            let before = rest;
            skip_field(wire_type, tag, &mut rest, DecodeContext::default()).ok()?;
            if tag == 1 && first_node.is_none() {
                first_node = Some(&before[..before.len() - rest.len()]);
            }
        }
        *seen.get_mut(tag as usize)? = true;
    }
    let only = |tags: &[usize]| seen.iter().enumerate().all(|(tag, is_seen)| !is_seen || tags.contains(&tag));
    match (version, first_node) {
        // ir_version, graph, opset_import.
        (Some(_), None) if seen[7] || seen[8] => Some(ONNX),
        // saved_model_schema_version, meta_graphs.
        (Some(1), None) if seen[2] && only(&[1, 2]) => Some(SAVED_MODEL),
        // node, versions, library.
        (None, Some(_)) if only(&[1, 2, 3, 4]) && (seen[2] || seen[4]) => Some(GRAPH_DEF),
        _ => None,
    }
}

/// Dialects that become HLO.
const OURS: [&str; 6] = ["stablehlo", "chlo", "sdy", "mhlo", "func", "vhlo"];
/// Dialects that do not; `tf` and the like before what their names begin with.
const OTHERS: [&str; 20] = [
    "tosa",
    "linalg",
    "torch",
    "tfl",
    "tf",
    "onnx",
    "krnl",
    "tt",
    "triton_gpu",
    "arith",
    "math",
    "memref",
    "scf",
    "affine",
    "vector",
    "gpu",
    "llvm",
    "spirv",
    "ttir",
    "toy",
];

/// The dialect of an MLIR program that is not StableHLO; `None` where it is, or cannot be told.
pub(super) fn other_dialect(program: &[u8]) -> Option<String> {
    if program.starts_with(BYTECODE) {
        // Names of dialects stand in the strings, after a NUL.
        let is_ours = OURS[..4].iter().any(|name| memmem::find(program, name.as_bytes()).is_some())
            || memmem::find(program, b"vhlo").is_some();
        let of = |name: &&&str| memmem::find(program, format!("\0{name}\0").as_bytes()).is_some();
        return OTHERS.iter().find(of).filter(|_| !is_ours).map(|name| (*name).to_string());
    }
    let text = std::str::from_utf8(program).ok()?;
    let op = |line: &str| {
        let line = line.trim_start();
        let line = if line.starts_with('%') { line.split_once(" = ")?.1 } else { line };
        let (dialect, _) = line.trim_start_matches('"').split_once('.')?;
        OTHERS.iter().find(|name| **name == dialect).map(|name| (*name).to_string())
    };
    text.lines().find_map(op)
}

/// The line by which the owner of a dialect exports StableHLO.
pub(super) fn export_of(dialect: &str) -> &'static str {
    match dialect {
        "torch" | "onnx" | "krnl" => FROM_TORCH,
        "tf" | "tfl" | "tosa" => FROM_TENSORFLOW,
        _ => FROM_JAX,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn what(bytes: &[u8]) -> &'static str {
        match FileKind::of(bytes) {
            FileKind::Other(other) => other.what,
            FileKind::HloText => "HLO text",
            FileKind::Mlir => "MLIR",
            FileKind::JaxExport => "jax.export",
            FileKind::Unknown => of_proto(bytes).map_or("unknown", |other| other.what),
        }
    }

    #[test]
    fn files_are_known_by_what_they_hold() {
        for (bytes, expected) in [
            (&b""[..], "an empty file"),
            (b" \n", "an empty file"),
            (b"HloModule m", "HLO text"),
            (b"// a comment\nHloModule m", "HLO text"),
            (b"HloModuleX", "unknown"),
            (b"\n\tHloModule", "unknown"),
            (b"module @jit_f attributes {", "MLIR"),
            (b"module {\n}", "MLIR"),
            (b"#loc1 = loc(\"x\")\nmodule @m {", "MLIR"),
            (b"!t = tensor<2xf32>\nmodule @m {", "MLIR"),
            (b"#SV = #sparse_tensor.encoding<{ map = (d0) -> (d0 : compressed) }>\nmodule @m {", "MLIR"),
            (b"\"builtin.module\"() <{", "MLIR"),
            (b"ML\xefR\rStableHLO", "MLIR"),
            (b"model: {kind: mlp}", "unknown"),
            (b"# a comment\nmodel: {kind: mlp}", "unknown"),
            (b"#loc is where\nmodel: x", "unknown"),
            (b"module: {kind: mlp}", "unknown"),
            (b"\x89HDF\r\n\x1a\n\0", "an HDF5 file, as Keras's .h5"),
            (b"GGUF\x03\0\0\0", "weights in GGUF, without a program"),
            (b"\x1c\0\0\0TFL3", "a model in TensorFlow Lite"),
            (b"PK\x03\x04...m/constants.pkl", "a TorchScript archive"),
            (b"PK\x03\x04...m/data.pkl", "weights of PyTorch (torch.save)"),
            (b"PK\x03\x04...archive_format", "a program of torch.export (.pt2)"),
            (b"PK\x03\x04...model.weights.h5", "a Keras model"),
            (b"PK\x03\x04...x.npy", "arrays in an .npz archive, without a program"),
            (b"PK\x03\x04", "a zip archive"),
            (b"\x93NUMPY\x01\0", "an array in .npy, without a program"),
            (
                b"\0\0\x01\x08\x01\x1a\x57\xfb\x80\x8b\x24\x75\x47\xdb",
                "the index of a TensorFlow checkpoint, without a program",
            ),
            (b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.", "a pickle, as older PyTorch saves weights"),
            (b"\x40\0\0\0\0\0\0\0{\"w\":{", "weights in safetensors, without a program"),
            (b"\x1f\x8b\x08", "compressed (gzip)"),
            (b"\xff\xfem\0o\0d\0u\0l\0e\0", "text in UTF-16, as PowerShell's `>` writes it"),
            (b"\xef\xbb\xbfHloModule m", "text that begins with a byte order mark"),
            // ir_version 8, producer, graph, opset.
            (b"\x08\x08\x12\x07pytorch\x3a\x02\x0a\0\x42\x02\x10\x11", "a model in ONNX"),
            (b"\x08\x01\x12\x04\x0a\x02\x10\x01", "a SavedModel of TensorFlow"),
            (b"\x0a\x03\x0a\x01x\x22\x02\x08\x01", "a GraphDef of TensorFlow"),
        ] {
            assert_eq!(what(bytes), expected, "{}", bytes.escape_ascii());
        }
        // Weights are no function that could be traced: their model is exported, with them in it.
        for bytes in [&b"GGUF\x03\0\0\0"[..], b"\x40\0\0\0\0\0\0\0{\"w\":{"] {
            let FileKind::Other(Other { export, .. }) = FileKind::of(bytes) else { panic!("weights are known") };
            assert!(export.contains("export the model that") && export.contains("torch.export.export"), "{export}");
        }
        let folder = FileKind::of_folder(|name| name == "saved_model.pb");
        assert_eq!(folder, FileKind::Other(SAVED_MODEL));
    }

    #[test]
    fn dialects_are_named() {
        let tosa = b"module {\n func.func @main() {\n  %0 = \"tosa.abs\"(%a) : () -> ()\n";
        assert_eq!(other_dialect(tosa).as_deref(), Some("tosa"));
        assert_eq!(other_dialect(b"module {\n  %0 = stablehlo.abs %a\n").as_deref(), None);
        assert_eq!(other_dialect(b"ML\xefR\0torch\0").as_deref(), Some("torch"));
        assert_eq!(other_dialect(b"ML\xefR\0torch\0stablehlo\0"), None);
    }
}
