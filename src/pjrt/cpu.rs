//! Programs that the CPU plugin would compile to other numbers than they say, or to none, and the flags that keep it from that.

use std::borrow::Cow;
use std::collections::HashMap;

use prost::Message;

use super::folding::folds_wrongly;
use super::skimmed::{Computation, Instruction, Program};
use super::{CompileOptions, OptionValue, PjrtError};
use crate::hlo::DType;

/// XLA's list of passes to leave out, and the pass.
const DISABLED: &str = "xla_disable_hlo_passes";
const FOLDING: &str = "constant_folding";

/// Which kinds of operations XLA gives to its library YNNPACK, and the name for none.
const YNN: &str = "xla_cpu_experimental_ynn_fusion_type";
const NONE: &str = "LIBRARY_FUSION_TYPE_INVALID";

/// The options with which the CPU plugin compiles a program to what it says.
pub(super) fn options<'a>(program: &[u8], given: &'a CompileOptions) -> Result<Cow<'a, CompileOptions>, PjrtError> {
    let program = Program::decode(program).map_err(PjrtError::program)?;
    let mut options = Cow::Borrowed(given);
    if folds_wrongly(&program) {
        let flags = &mut options.to_mut().flags;
        let passes = match flags.remove(DISABLED) {
            Some(OptionValue::Str(passes)) if !passes.is_empty() => format!("{passes},{FOLDING}"),
            _ => FOLDING.to_string(),
        };
        flags.insert(DISABLED.to_string(), OptionValue::Str(passes));
    }
    if !given.flags.contains_key(YNN) && program.computations.iter().any(widens_a_product) {
        options.to_mut().flags.insert(YNN.to_string(), OptionValue::Str(NONE.to_string()));
    }
    Ok(options)
}

/// Whether there is a product of bf16 arrays that gives f32. XLA widens its operands, unless YNNPACK is to have it. Whether
/// that takes it is asked again once arrays have layouts, and where it does not (an operand lies transposed in memory, by the
/// product's own dimensions or by a transpose before) nothing is left that runs it: "Unsupported element type for
/// DotThunk::Execute: BF16 x BF16 = F32".
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
