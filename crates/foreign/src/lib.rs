//! Programs in other forms than HLO's own: what a file holds ([`FileKind`]), StableHLO to HLO ([`read`]), and HLO to StableHLO
//! ([`stablehlo`]). Calls of LAPACK become ops where HLO has them ([`calls_to_ops`]).
//!
//! StableHLO comes in through XLA's own converter, in a child process ([`hlo_of_stablehlo`]); what it answers is kept by
//! content. Text whose every op is certain is read here instead, which takes a small part of the time
//! ([`stablehlo::read`]). It goes out through a printer of our own. This room does not read HLO text or protos (`hlo`), and opens no
//! file that a user names: it is given bytes.
//!
//! ```
//! use bf16scope_foreign::stablehlo;
//! use bf16scope_hlo::text;
//!
//! let module = text::parse("HloModule double\nENTRY main { x = f32[2] parameter(0) ROOT y = f32[2] add(x, x) }", "double.hlo")?;
//! let written = stablehlo::write(&module)?;
//! assert!(written.text.contains("stablehlo.add"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]

mod cache;
mod error;
mod jax_export;
mod kind;
mod lapack;
mod sizes;
pub mod stablehlo;

pub use cache::conversions;
pub use error::ForeignError;
pub use kind::{FileKind, Other, of_proto};
pub use lapack::calls_to_ops;
pub use sizes::{Size, Sizes};

use memchr::memmem;

use bf16scope_hlo::proto::decode;
use bf16scope_hlo::{Metadata, Module, verify};
use bf16scope_pjrt::{ChildSpec, Setup, hlo_of_stablehlo, text_of_stablehlo};

/// A module from StableHLO: MLIR as text or bytecode, a portable artifact, or a file of `jax.export` around one.
///
/// It is decoded, and may not be verified. The name by which messages and source locations call the file is `name`. The
/// converter's answers are kept in the cache directory of `setup`, by content.
///
/// # Errors
/// [`ForeignError`]: what has no HLO, with its line; another dialect; a converter that cannot be had.
pub fn read(bytes: &[u8], name: &str, setup: &Setup, spec: &ChildSpec) -> Result<Module, ForeignError> {
    read_with(bytes, name, &Sizes::default(), setup, spec)
}

/// As [`read`], with sizes for symbolic dimensions.
///
/// # Errors
/// As [`read`]; a dimension without a size, and a size that is no dimension's; an op that is not read with sizes.
pub fn read_with(
    bytes: &[u8],
    name: &str,
    sizes: &Sizes,
    setup: &Setup,
    spec: &ChildSpec,
) -> Result<Module, ForeignError> {
    if let Ok(text) = std::str::from_utf8(bytes) {
        check_ranks(text, name)?;
        check_elements(text, name)?;
        if has_unknown_sizes(text) && (text.contains(SYMBOLIC_TEXT) || !sizes.is_empty()) {
            return stablehlo::read_symbolic(text, name, sizes);
        } else if !sizes.is_empty() {
            return Err(ForeignError::of_no_symbols(name));
        }
    }
    let exported = match FileKind::of(bytes) {
        FileKind::JaxExport => Some(jax_export::read(bytes).ok_or(ForeignError::Damaged { name: name.to_string() })?),
        _ => None,
    };
    match &exported {
        Some(exported) if exported.platforms.len() > 1 => warn_of_platforms(name, &exported.platforms),
        None if memmem::find(bytes, PLATFORM_INDEX).is_some() => warn_of_platforms(name, &[]),
        _ => {}
    }
    if let Some(module) = read_here(bytes, name) {
        return Ok(module);
    }
    let program = exported.as_ref().map_or(bytes, |exported| exported.module);
    let conversion = Conversion { program, name, sizes, setup, spec };
    if !sizes.is_empty() {
        let text = conversion.text()?;
        return match has_unknown_sizes(&text) {
            true => conversion.symbolic(&text),
            false => Err(ForeignError::of_no_symbols(name)),
        };
    }
    let hlo = match conversion.hlo() {
        Ok(hlo) => hlo,
        Err(error) => return conversion.symbolic_or(error),
    };
    let mut module =
        decode::from_bytes(&hlo).map_err(|source| ForeignError::Proto { name: name.to_string(), source })?;
    name_the_file(&mut module, name);
    if let Err(error) = are_static(&module, name) {
        return conversion.symbolic_or(error);
    }
    let n_partitions = exported.map_or_else(|| count(program, "num_partitions"), |exported| exported.n_devices);
    say_devices(&mut module, count(program, "num_replicas"), n_partitions);
    Ok(module)
}

/// A program on its way through XLA's converter.
struct Conversion<'a> {
    program: &'a [u8],
    name: &'a str,
    sizes: &'a Sizes,
    setup: &'a Setup,
    spec: &'a ChildSpec,
}

impl Conversion<'_> {
    /// Its text. Bytecode shows in its text alone whether its sizes are symbolic: JAX's flag is a word of it either way.
    fn text(&self) -> Result<String, ForeignError> {
        let _span = tracing::info_span!("convert", n_bytes = self.program.len()).entered();
        let text = text_of_stablehlo(self.program, self.setup, self.spec);
        text.map_err(|error| ForeignError::refused(error, self.name, self.program))
    }

    /// The module of its text, with sizes for its symbols.
    fn symbolic(&self, text: &str) -> Result<Module, ForeignError> {
        stablehlo::read_symbolic(text, self.name, self.sizes).map_err(ForeignError::of_bytecode)
    }

    /// The error, unless the program is refused for its sizes: the flags that give them are better than the converter's
    /// words.
    fn symbolic_or(&self, error: ForeignError) -> Result<Module, ForeignError> {
        let may_be_symbolic = !self.program.is_ascii() && memmem::find(self.program, error::SYMBOLIC).is_some();
        let text = may_be_symbolic.then(|| self.text().ok()).flatten().filter(|text| has_unknown_sizes(text));
        text.map_or(Err(error), |text| self.symbolic(&text))
    }

    /// Its HLO, from the cache or from the converter, whose answer is then kept.
    fn hlo(&self) -> Result<Vec<u8>, ForeignError> {
        let cache = self.setup.cache_dir.as_deref().map(|folder| cache::Cache::of(folder, self.program));
        if let Some(hlo) = cache.as_ref().and_then(cache::Cache::read) {
            return Ok(hlo);
        }
        let _span = tracing::info_span!("convert", n_bytes = self.program.len()).entered();
        let hlo = hlo_of_stablehlo(self.program, self.setup, self.spec)
            .map_err(|error| ForeignError::refused(error, self.name, self.program))?;
        if let Some(cache) = &cache {
            cache.keep(&hlo);
        }
        Ok(hlo)
    }
}

/// Says for how many devices a module is. A proto knows several only by its shardings.
fn say_devices(module: &mut Module, n_replicas: u64, n_partitions: u64) {
    for (attribute, count) in [("replica_count", n_replicas), ("num_partitions", n_partitions)] {
        if count > 1 {
            module.unmodelled.attributes.retain(|(name, _)| name != attribute);
            module.unmodelled.attributes.push((attribute.to_string(), count.to_string()));
        }
    }
}

/// Dims of a type at most. Arrays have some ten; of a hundred thousand the converter makes no end.
const MAX_RANK: usize = 1000;

/// Refuses a text with a type of more dims than any array has.
fn check_ranks(text: &str, name: &str) -> Result<(), ForeignError> {
    for (nth, line) in text.lines().enumerate() {
        for (at, _) in line.match_indices("tensor<") {
            let inner = line[at..].split('>').next().unwrap_or_default();
            let n_dims = inner.bytes().filter(|&byte| byte == b'x').count();
            if n_dims > MAX_RANK {
                let said = format!("{name}:{}: a tensor has {n_dims} dimensions; expected at most {MAX_RANK}", nth + 1);
                return Err(ForeignError::Refused { said, help: "reshape it where the program is made".to_string() });
            }
        }
    }
    Ok(())
}

/// Refuses a text that leaves elements of constants out, as a printer does that shows it to people.
fn check_elements(text: &str, name: &str) -> Result<(), ForeignError> {
    const RESOURCE: &str = "dense_resource<";
    let has_resources = text.contains("dialect_resources");
    for (nth, line) in text.lines().enumerate() {
        let named = line.find(RESOURCE).and_then(|at| line[at + RESOURCE.len()..].split('>').next());
        let what = match named {
            Some("__elided__") => "the elements of a constant are left out (`dense_resource<__elided__>`)".to_string(),
            Some(resource) if !has_resources => {
                format!("the elements of a constant are in the resource `{resource}`, which the text does not have")
            }
            _ if line.contains("opaque<\"elided_large_const\"") => {
                "the elements of a constant are left out (`elided_large_const`)".to_string()
            }
            _ => continue,
        };
        let help = "write the module whole: bytecode, or text without a limit on large elements, such as \
                    `lowered.compiler_ir().operation.get_asm()` in JAX";
        return Err(ForeignError::Refused { said: format!("{name}:{}: {what}", nth + 1), help: help.to_string() });
    }
    Ok(())
}

/// JAX's name for the parameter that says on which platform a program runs.
const PLATFORM_INDEX: &[u8] = b"\"_platform_index\"";

/// Says that a program was exported for several platforms: these, in order, or some that its text does not name.
fn warn_of_platforms(name: &str, platforms: &[String]) {
    let numbered: Vec<String> = platforms.iter().enumerate().map(|(idx, name)| format!("{idx} for {name}")).collect();
    let numbered =
        if numbered.is_empty() { "from 0, in the order of the export".to_string() } else { numbered.join(", ") };
    let advised = advised(platforms);
    tracing::warn!(
        "{name} was exported for several platforms: its first parameter says on which it runs ({numbered}), and the \
         function's own follow; with `platforms=[\"{advised}\"]` it has only those, and lowers better"
    );
}

/// The platform to export for: a module is lowered for a TPU, where that is one of them.
fn advised(platforms: &[String]) -> &str {
    platforms.iter().find(|platform| *platform == "tpu").or(platforms.first()).map_or("tpu", String::as_str)
}

/// The attribute of a JAX module with symbolic sizes, also of one for several platforms.
const SYMBOLIC_TEXT: &str = "jax.uses_shape_polymorphism = true";

/// Whether some tensor of a text has a size that is not known.
fn has_unknown_sizes(text: &str) -> bool {
    ["<?x", "x?x"].iter().any(|mark| text.contains(mark))
}

/// A module from a text that needs no converter. What does not verify is XLA's to refuse, in its words.
fn read_here(bytes: &[u8], name: &str) -> Option<Module> {
    let _span = tracing::info_span!("read", n_bytes = bytes.len()).entered();
    let module = stablehlo::read(std::str::from_utf8(bytes).ok()?, name)?;
    verify(&module).is_ok().then_some(module)
}

/// A program in text that has no locations of its own is located in its text, a file without a name: `-`.
fn name_the_file(module: &mut Module, name: &str) {
    let instructions = module.computations.iter_mut().flat_map(|computation| &mut computation.instructions);
    for instruction in instructions.filter(|instruction| instruction.metadata.source_file == "-") {
        instruction.metadata.source_file = name.to_string();
    }
}

/// The converter lets through what no plugin compiles.
fn are_static(module: &Module, name: &str) -> Result<(), ForeignError> {
    let instructions = module.computations.iter().flat_map(|computation| &computation.instructions);
    for instruction in instructions {
        if let Some(shape) = instruction.shape.leaves().into_iter().find(|leaf| leaf.dims().iter().any(|&dim| dim < 0))
        {
            let Metadata { source_file, source_line, .. } = &instruction.metadata;
            let place = if source_file.is_empty() { name.to_string() } else { format!("{source_file}:{source_line}") };
            return Err(ForeignError::Dynamic {
                place,
                name: format!("%{}", instruction.name),
                shape: shape.to_string(),
            });
        }
    }
    Ok(())
}

/// `mhlo.num_partitions = 8 : i32` among the attributes of a module in text; 1 where it does not say.
fn count(program: &[u8], attribute: &str) -> u64 {
    let marker = format!("mhlo.{attribute} = ");
    let Some(at) = memchr::memmem::find(program, marker.as_bytes()) else { return 1 };
    let digits = program[at + marker.len()..].iter().take_while(|byte| byte.is_ascii_digit());
    digits.fold(0u64, |count, digit| count.saturating_mul(10).saturating_add(u64::from(digit - b'0')))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_type_of_dims_without_end_is_refused_before_it_is_converted() {
        let text = |n: usize| {
            format!("module @m {{\n  func.func @main(%a: tensor<{}f32>) -> tensor<2x3xf32> {{", "1x".repeat(n))
        };
        check_ranks(&text(1000), "m").unwrap();
        assert_eq!(
            check_ranks(&text(100_000), "m").unwrap_err().to_string(),
            "m:2: a tensor has 100000 dimensions; expected at most 1000\nhelp: reshape it where the program is made"
        );
    }

    #[test]
    fn a_text_without_its_elements_is_refused_with_its_line() {
        let text =
            |constant: &str| format!("module @m {{\n  %0 = stablehlo.constant {constant} : tensor<64xf32>\n}}\n");
        let refused = |text: &str| check_elements(text, "m").unwrap_err().to_string();
        let help = "\nhelp: write the module whole: bytecode, or text without a limit on large elements, such as \
                    `lowered.compiler_ir().operation.get_asm()` in JAX";
        assert_eq!(
            refused(&text("dense_resource<__elided__>")),
            format!("m:2: the elements of a constant are left out (`dense_resource<__elided__>`){help}")
        );
        let said = "m:2: the elements of a constant are in the resource `w`, which the text does not have";
        assert_eq!(refused(&text("dense_resource<w>")), format!("{said}{help}"));
        assert_eq!(
            refused(&text("opaque<\"elided_large_const\", \"0xDEADBEEF\">")),
            format!("m:2: the elements of a constant are left out (`elided_large_const`){help}")
        );
        for whole in [text("dense<0.0>"), text("dense_resource<w>") + "{-#\n  dialect_resources: {\n"] {
            check_elements(&whole, "m").unwrap();
        }
    }

    /// It was the last: of `["tpu", "cpu"]` a CPU.
    #[test]
    fn an_export_for_a_tpu_is_advised_where_it_is_for_one() {
        let of =
            |platforms: &[&str]| advised(&platforms.iter().map(ToString::to_string).collect::<Vec<_>>()).to_string();
        assert_eq!(
            [of(&["tpu", "cpu"]), of(&["cpu", "tpu"]), of(&["cpu", "cuda"]), of(&[])],
            ["tpu", "tpu", "cpu", "tpu"]
        );
    }

    #[test]
    fn a_text_says_how_many_devices_it_is_for() {
        let text = b"module @m attributes {mhlo.num_partitions = 8 : i32, mhlo.num_replicas = 2 : i32} {";
        assert_eq!((count(text, "num_partitions"), count(text, "num_replicas")), (8, 2));
        assert_eq!(count(b"module @m {", "num_partitions"), 1);
        assert_eq!(count(b"mhlo.num_partitions = 99999999999999999999999", "num_partitions"), u64::MAX);
    }
}
