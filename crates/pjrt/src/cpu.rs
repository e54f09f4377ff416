//! Works around XLA's CPU compiler: programs that it would miscompile or fail to compile, and the flags that prevent
//! it.

use std::borrow::Cow;
use std::collections::HashMap;

use prost::Message;

use super::folding::folds_wrongly;
use super::skimmed::{Computation, Instruction, Program};
use super::{CompileOptions, OptionValue, PjrtError};
use bf16scope_hlo::DType;

/// XLA's flag with passes to skip, and the pass.
const DISABLED: &str = "xla_disable_hlo_passes";
const FOLDING: &str = "constant_folding";

/// XLA's flag for the kinds of operations that go to its library YNNPACK, and the value for none.
const YNN: &str = "xla_cpu_experimental_ynn_fusion_type";
const NONE: &str = "LIBRARY_FUSION_TYPE_INVALID";

/// The options with which the CPU plugin compiles a program correctly.
pub(super) fn options<'a>(program: &[u8], requested: &'a CompileOptions) -> Result<Cow<'a, CompileOptions>, PjrtError> {
    let program = Program::decode(program).map_err(PjrtError::program)?;
    let mut options = Cow::Borrowed(requested);
    if folds_wrongly(&program) {
        let flags = &mut options.to_mut().flags;
        let passes = match flags.remove(DISABLED) {
            Some(OptionValue::Str(passes)) if !passes.is_empty() => format!("{passes},{FOLDING}"),
            _ => FOLDING.to_string(),
        };
        flags.insert(DISABLED.to_string(), OptionValue::Str(passes));
    }
    if !requested.flags.contains_key(YNN) && program.computations.iter().any(widens_a_product) {
        options.to_mut().flags.insert(YNN.to_string(), OptionValue::Str(NONE.to_string()));
    }
    Ok(options)
}

/// Whether there is a product of bf16 arrays with an f32 result. XLA widens its operands, unless YNNPACK is to run it.
/// Whether YNNPACK supports it is decided again once arrays have layouts, and if it does not (an operand is transposed
/// in memory, by the product's own dimensions or by a previous transpose), nothing is left that runs it: "Unsupported
/// element type for DotThunk::Execute: BF16 x BF16 = F32".
fn widens_a_product(computation: &Computation) -> bool {
    let dtype = |it: &Instruction| it.shape.as_ref().map(|shape| shape.element_type);
    let is = |it: &Instruction, expected: DType| dtype(it) == Some(expected.xla());
    let mut narrow: HashMap<i64, bool> = HashMap::new();
    for it in &computation.instructions {
        let of_narrow = || it.operand_ids.iter().all(|id| narrow.get(id) == Some(&true));
        if it.opcode == "dot" && is(it, DType::F32) && of_narrow() {
            return true;
        }
        narrow.insert(it.id, is(it, DType::BF16));
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use bf16scope_hlo::{proto, text};

    /// Programs built by bf16scope keep their options.
    #[test]
    fn the_programs_of_the_examples_need_no_other_options() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../hlo");
        let mut n = 0;
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|ending| ending == "txt") {
                let module = text::parse(&std::fs::read_to_string(&path).unwrap(), "golden").unwrap();
                let program = proto::encode::to_bytes(&module).unwrap();
                let requested = CompileOptions::default();
                assert!(options(&program, &requested).unwrap().flags.is_empty(), "{}", path.display());
                n += 1;
            }
        }
        assert_eq!(n, 16);
    }

    #[test]
    fn flags_that_are_given_stay() {
        let product = "HloModule m\n\nENTRY m {\n  x = bf16[2,2] parameter(0)\n  ROOT d = f32[2,2] dot(x, x), \
                       lhs_contracting_dims={1}, rhs_contracting_dims={0}\n}\n";
        let program = proto::encode::to_bytes(&text::parse(product, "m.txt").unwrap()).unwrap();
        let with = |flags: &[(&str, &str)]| {
            let flags = flags.iter().map(|&(name, value)| (name.to_string(), OptionValue::Str(value.to_string())));
            let requested = CompileOptions { flags: flags.collect(), ..CompileOptions::default() };
            let options = options(&program, &requested).unwrap().into_owned();
            (options.flags.len(), options.flags.get(YNN).cloned())
        };
        assert_eq!(with(&[]), (1, Some(OptionValue::Str(NONE.into()))));
        assert_eq!(with(&[(DISABLED, "algsimp")]), (2, Some(OptionValue::Str(NONE.into()))));
        let chosen = "LIBRARY_FUSION_TYPE_DOT";
        assert_eq!(with(&[(YNN, chosen)]), (1, Some(OptionValue::Str(chosen.into()))));
    }
}
