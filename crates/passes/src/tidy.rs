//! Tidying: folds exact converts, merges common subexpressions, removes dead code.
//!
//! The three steps run in this order; [`Config`] switches each of them. Each is linear in the module, and tidying a
//! tidied module changes nothing. No step changes a result, not even in the last bit: `f32 → bf16 → f32` rounds and
//! stays, `bf16 → f32 → bf16` is the identity and is removed. (A signalling NaN, which a conversion would make quiet,
//! counts as the same value.) Instructions keep their names and metadata; of two that are merged, the first stays.
//!
//! The pass does not simplify algebra, fold constants or fuse: compilers do that better.

use super::{PassError, hash_debug, is_tied};
use bf16scope_hlo::ops::decisions::{is_effective, side_effects};
use bf16scope_hlo::{CompId, Computation, DType, DTypeClass, InstrId, Instruction, Literal, Module, Op};
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

/// Which steps run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Removes conversions that change nothing, and shortens chains whose first link is exact.
    pub fold_converts: bool,
    /// Merges instructions that compute the same value.
    pub merge_common: bool,
    /// Removes instructions that nothing uses, and computations that nothing calls.
    pub remove_dead: bool,
}

impl Default for Config {
    fn default() -> Config {
        Config { fold_converts: true, merge_common: true, remove_dead: true }
    }
}

/// The changes, in the order in which they were made.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct TidyReport {
    /// One per changed instruction or computation.
    pub changes: Vec<Change>,
}

/// One change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// A convert now reads an earlier value of its chain, or is replaced by it.
    FoldedConvert {
        /// Computation and instruction.
        at: (String, String),
        /// The instruction that is converted, or used, instead.
        from: String,
    },
    /// An instruction computed the same value as an earlier one.
    Merged {
        /// Computation and instruction.
        at: (String, String),
        /// The earlier one.
        into: String,
    },
    /// An instruction was unused.
    Dead {
        /// Computation and instruction.
        at: (String, String),
    },
    /// A computation had no caller.
    Uncalled {
        /// Its name.
        computation: String,
    },
}

/// Tidies a verified module.
///
/// # Errors
/// It never fails.
pub fn run(module: &Module, config: &Config) -> Result<(Module, TidyReport), PassError> {
    let mut module = module.clone();
    let mut report = TidyReport::default();
    let has_effects = side_effects(&module);
    for idx in 0..module.computations.len() {
        let computation = &mut module.computations[idx];
        if config.fold_converts {
            fold_converts(computation, &mut report);
        }
        if config.merge_common {
            merge_common(computation, &has_effects, &mut report);
        }
        if config.remove_dead {
            remove_dead(computation, &has_effects, &mut report);
        }
    }
    if config.remove_dead {
        remove_uncalled(&mut module, &mut report);
    }
    Ok((module, report))
}

/// Replaces every use of `id`, also by the root and by control edges, by `replacement[id]`.
fn replace_uses(computation: &mut Computation, replacement: &[InstrId]) {
    for instr in &mut computation.instructions {
        let uses = instr.operands.iter_mut().chain(&mut instr.control_predecessors);
        uses.for_each(|id| *id = replacement[id.idx()]);
    }
    computation.root = replacement[computation.root.idx()];
}

/// Whether `to` represents every value of `from`, so that converting loses nothing.
fn is_exact(from: DType, to: DType) -> bool {
    match (from.class(), to.class()) {
        _ if from == to => true,
        (DTypeClass::Float, DTypeClass::Float) => {
            matches!((from, to), (DType::F16 | DType::BF16, DType::F32 | DType::F64) | (DType::F32, DType::F64))
        }
        (DTypeClass::Signed, DTypeClass::Signed)
        | (DTypeClass::Unsigned, DTypeClass::Unsigned | DTypeClass::Signed) => from.bits() < to.bits(),
        // Between integers and floats, conversions of values out of range depend on the path.
        _ => false,
    }
}

/// Replaces `convert(convert(x))`, if the inner one is exact, by `convert(x)`, and a convert to a value's own dtype by
/// the value.
fn fold_converts(computation: &mut Computation, report: &mut TidyReport) {
    let mut replacement: Vec<InstrId> = computation.ids().collect();
    for id in computation.ids() {
        let instr = computation.instr(id);
        if !is_plain_convert(instr) {
            continue;
        }
        // Operands were folded before, so looking one step up the chain is enough.
        let mut source = replacement[instr.operands[0].idx()];
        let inner = computation.instr(source);
        if is_plain_convert(inner) {
            let origin = inner.operands[0];
            if let (Some(from), Some(to)) = (computation.instr(origin).shape.dtype(), inner.shape.dtype())
                && is_exact(from, to)
            {
                source = origin;
            }
        }
        let origin = computation.instr(source);
        let at = (computation.name.clone(), instr.name.clone());
        let from = origin.name.clone();
        if origin.shape == instr.shape || origin.shape == instr.shape.without_layout() {
            replacement[id.idx()] = source;
            report.changes.push(Change::FoldedConvert { at, from });
        } else if source != instr.operands[0] {
            if source != replacement[instr.operands[0].idx()] {
                report.changes.push(Change::FoldedConvert { at, from });
            }
            computation.instructions[id.idx()].operands[0] = source;
        }
    }
    replace_uses(computation, &replacement);
}

/// Whether an instruction is a convert that nothing but its operand determines.
fn is_plain_convert(instr: &Instruction) -> bool {
    matches!(instr.op, Op::Convert) && !is_tied(instr) && !instr.metadata.is_custom_vjp()
}

/// Merges each instruction with the first that has the same op, operands and shape.
fn merge_common(computation: &mut Computation, has_effects: &[bool], report: &mut TidyReport) {
    let mut replacement: Vec<InstrId> = computation.ids().collect();
    let mut seen: HashMap<u64, Vec<InstrId>> = HashMap::with_capacity(replacement.len());
    for id in computation.ids() {
        let instr = &mut computation.instructions[id.idx()];
        instr.operands.iter_mut().for_each(|operand| *operand = replacement[operand.idx()]);
        let instr = computation.instr(id);
        if !is_mergeable(instr) || is_effective(instr, has_effects) {
            continue;
        }
        let alike = seen.entry(fingerprint(instr)).or_default();
        match alike.iter().find(|&&earlier| computes_the_same(computation.instr(earlier), instr)) {
            Some(&earlier) => {
                replacement[id.idx()] = earlier;
                let at = (computation.name.clone(), instr.name.clone());
                report.changes.push(Change::Merged { at, into: computation.instr(earlier).name.clone() });
            }
            None => alike.push(id),
        }
    }
    replace_uses(computation, &replacement);
}

/// Parameters are distinct; ops that only a back end or another device understands are left alone.
fn is_mergeable(instr: &Instruction) -> bool {
    let is_foreign = matches!(instr.op, Op::Parameter { .. } | Op::CustomCall(_) | Op::Opaque(_) | Op::AllReduce(_));
    !is_foreign && instr.control_predecessors.is_empty()
}

fn computes_the_same(a: &Instruction, b: &Instruction) -> bool {
    a.operands == b.operands
        && a.shape == b.shape
        && a.op == b.op
        && a.sharding == b.sharding
        && a.frontend_attributes == b.frontend_attributes
        && a.backend_config == b.backend_config
        && a.unmodelled.without_metadata() == b.unmodelled.without_metadata()
        // One may have a gradient that the other does not have.
        && a.metadata.is_custom_vjp() == b.metadata.is_custom_vjp()
}

/// A hash that is equal for instructions that [`computes_the_same`] accepts, and differs for nearly all others,
/// whatever they differ in: a module may hold a hundred thousand that differ in one attribute.
fn fingerprint(instr: &Instruction) -> u64 {
    let mut hasher = DefaultHasher::new();
    instr.op.opcode().hash(&mut hasher);
    instr.operands.hash(&mut hasher);
    instr.shape.hash(&mut hasher);
    instr.frontend_attributes.hash(&mut hasher);
    instr.backend_config.hash(&mut hasher);
    match &instr.op {
        Op::Unary(_) | Op::Binary(_) | Op::Select | Op::Convert | Op::Reshape | Op::Tuple => {}
        Op::Constant(Literal::Array { bytes, .. }) => bytes.hash(&mut hasher),
        op => hash_debug(&mut hasher, op),
    }
    hasher.finish()
}

/// Keeps parameters, instructions that the root needs, and those with effects.
fn remove_dead(computation: &mut Computation, has_effects: &[bool], report: &mut TidyReport) {
    let mut live = vec![false; computation.instructions.len()];
    live[computation.root.idx()] = true;
    for id in computation.ids().rev() {
        let instr = computation.instr(id);
        live[id.idx()] |= matches!(instr.op, Op::Parameter { .. }) || is_effective(instr, has_effects);
        if live[id.idx()] {
            // Ids were verified, so a control predecessor stands before.
            for used in instr.operands.iter().chain(&instr.control_predecessors) {
                live[used.idx()] = true;
            }
        }
    }
    let dead = computation.instructions.iter().zip(&live).filter(|(_, is_live)| !**is_live);
    let at = |instr: &Instruction| (computation.name.clone(), instr.name.clone());
    report.changes.extend(dead.map(|(instr, _)| Change::Dead { at: at(instr) }));
    keep_only(computation, &live);
}

/// Removes all instructions but those that are kept, which read none of the others.
pub(super) fn keep_only(computation: &mut Computation, is_kept: &[bool]) {
    let mut renumbered = Vec::with_capacity(is_kept.len());
    let mut n_kept = 0;
    for &is_kept in is_kept {
        renumbered.push(InstrId(n_kept));
        n_kept += u32::from(is_kept);
    }
    let mut keep = is_kept.iter();
    computation.instructions.retain(|_| keep.next() == Some(&true));
    replace_uses(computation, &renumbered);
}

/// Keeps the entry and its callees, direct or not.
fn remove_uncalled(module: &mut Module, report: &mut TidyReport) {
    let mut is_called = vec![false; module.computations.len()];
    let mut pending = vec![module.entry];
    while let Some(comp) = pending.pop() {
        if !std::mem::replace(&mut is_called[comp.idx()], true) {
            pending.extend(module.comp(comp).instructions.iter().flat_map(|instr| instr.op.called()));
        }
    }
    let mut renumbered = Vec::with_capacity(is_called.len());
    let mut n_kept = 0;
    for &is_called in &is_called {
        renumbered.push(CompId(n_kept));
        n_kept += u32::from(is_called);
    }
    let mut keep = is_called.iter();
    module.computations.retain(|computation| {
        let keep = *keep.next().expect("one flag per computation");
        if !keep {
            report.changes.push(Change::Uncalled { computation: computation.name.clone() });
        }
        keep
    });
    module.entry = renumbered[module.entry.idx()];
    let instructions = module.computations.iter_mut().flat_map(|computation| &mut computation.instructions);
    instructions.for_each(|instr| instr.op.for_each_called_mut(&mut |comp| *comp = renumbered[comp.idx()]));
}

#[cfg(test)]
mod tests {
    use super::*;
    use bf16scope_hlo::ops::{BinaryOp, CustomCall, UnaryOp};
    use bf16scope_hlo::text::parse;
    use bf16scope_hlo::verify::verify;
    use bf16scope_hlo::{Emitter, Shape};

    /// Builds a module, tidies it twice, and returns the opcodes left in the entry.
    fn check(build: impl Fn(&Emitter)) -> (Vec<String>, TidyReport) {
        let module = Module::new("tidy");
        let e = Emitter::new(module.clone(), module.entry);
        build(&e);
        let module = e.finish().unwrap();
        verify(&module).unwrap();
        let (tidied, report) = run(&module, &Config::default()).unwrap();
        verify(&tidied).unwrap();
        let (again, nothing) = run(&tidied, &Config::default()).unwrap();
        assert_eq!(again, tidied, "tidying twice is tidying once");
        assert_eq!(nothing, TidyReport::default());
        let opcodes = tidied.entry().instructions.iter().map(|instr| instr.op.opcode().into_owned());
        (opcodes.collect(), report)
    }

    fn param(e: &Emitter, number: i64, dtype: DType) -> InstrId {
        e.parameter(number, &Shape::array(dtype, [4]))
    }

    #[test]
    fn a_cast_that_rounds_stays() {
        let (opcodes, report) = check(|e| {
            let x = param(e, 0, DType::F32);
            e.convert(e.convert(x, DType::BF16), DType::F32);
        });
        assert_eq!(opcodes, ["parameter", "convert", "convert"]);
        assert_eq!(report, TidyReport::default());
    }

    #[test]
    fn a_way_there_and_back_that_loses_nothing_goes() {
        for (narrow, wide) in [(DType::BF16, DType::F32), (DType::F32, DType::F64), (DType::S8, DType::S32)] {
            let (opcodes, _) = check(|e| {
                let x = param(e, 0, narrow);
                let back = e.convert(e.convert(x, wide), narrow);
                e.add(back, back);
            });
            assert_eq!(opcodes, ["parameter", "add"], "{narrow} {wide}");
        }
    }

    #[test]
    fn a_chain_is_shortened_to_its_rounding_step() {
        let (opcodes, report) = check(|e| {
            let x = param(e, 0, DType::BF16);
            let wide = e.convert(e.convert(x, DType::F32), DType::F64);
            e.convert(wide, DType::F16);
        });
        assert_eq!(opcodes, ["parameter", "convert"]);
        let folded =
            |name: &str| Change::FoldedConvert { at: ("tidy".into(), name.into()), from: "parameter.1".into() };
        assert_eq!(report.changes[..2], [folded("convert.3"), folded("convert.4")]);
    }

    #[test]
    fn converting_between_integers_and_floats_is_left_alone() {
        let (opcodes, _) = check(|e| {
            let x = param(e, 0, DType::S8);
            e.convert(e.convert(x, DType::F32), DType::U8);
        });
        assert_eq!(opcodes, ["parameter", "convert", "convert"]);
    }

    #[test]
    fn equal_instructions_merge_and_unequal_constants_do_not() {
        let (opcodes, report) = check(|e| {
            let x = param(e, 0, DType::F32);
            let zero = e.constant(Literal::from_elements([4], &[0.0f32; 4]));
            let negative_zero = e.constant(Literal::from_elements([4], &[-0.0f32; 4]));
            let (a, b) = (e.unary(UnaryOp::Sin, x), e.unary(UnaryOp::Sin, x));
            e.tuple(&[e.add(a, zero), e.add(b, zero), e.add(b, negative_zero)]);
        });
        assert_eq!(opcodes, ["parameter", "constant", "constant", "sine", "add", "add", "tuple"]);
        let merged: Vec<_> = report.changes.iter().filter(|c| matches!(c, Change::Merged { .. })).collect();
        assert_eq!(merged.len(), 2);
    }

    #[test]
    fn dead_code_goes_but_parameters_and_effects_stay() {
        let (opcodes, _) = check(|e| {
            let (x, _unused) = (param(e, 0, DType::F32), param(e, 1, DType::F32));
            e.unary(UnaryOp::Sin, x);
            let call = |has_side_effect| {
                let call = CustomCall { target: "print".into(), has_side_effect, ..CustomCall::default() };
                e.emit(Op::CustomCall(Box::new(call)), &[x], Some(&Shape::array(DType::F32, [4])));
            };
            call(true);
            call(false);
            e.add(x, x);
        });
        assert_eq!(opcodes, ["parameter", "parameter", "custom-call", "add"]);
    }

    #[test]
    fn uncalled_computations_go_and_calls_still_find_theirs() {
        let module = Module::new("tidy");
        let e = Emitter::new(module.clone(), module.entry);
        e.scalar_computation(BinaryOp::Multiply, DType::F32);
        let x = param(&e, 0, DType::F32);
        e.reduce_sum(x, &[0]);
        let (tidied, report) = run(&e.finish().unwrap(), &Config::default()).unwrap();
        verify(&tidied).unwrap();
        let names: Vec<_> = tidied.computations.iter().map(|computation| computation.name.as_str()).collect();
        assert_eq!(names, ["tidy", "add_f32"]);
        assert_eq!(report.changes, [Change::Uncalled { computation: "multiply_f32".into() }]);
    }

    /// Attributes that tie an instruction down: its sharding, attributes for a compiler, and what it waits for.
    const TIES: [&str; 4] = [
        ", sharding={replicated}",
        ", frontend_attributes={kept=\"1\"}",
        ", backend_config=\"kept\"",
        ", control-predecessors={y}",
    ];

    /// The opcodes that tidying leaves in an entry with parameters `x` and `y`.
    fn left_of(body: &str) -> Vec<String> {
        let text = format!(
            "HloModule m\n\nENTRY m {{\n  x = bf16[4]{{0}} parameter(0)\n  y = bf16[4]{{0}} parameter(1)\n{body}}}\n"
        );
        let module = parse(&text, "m.hlo").unwrap_or_else(|error| panic!("{error}"));
        verify(&module).unwrap_or_else(|errors| panic!("{errors}"));
        let (tidied, _) = run(&module, &Config::default()).unwrap();
        verify(&tidied).unwrap();
        tidied.entry().instructions[2..].iter().map(|instr| instr.op.opcode().into_owned()).collect()
    }

    #[test]
    fn a_conversion_that_is_tied_down_stays() {
        let body = |wide: &str, narrow: &str| {
            format!("  wide = f32[4]{{0}} convert(x){wide}\n  ROOT narrow = bf16[4]{{0}} convert(wide){narrow}\n")
        };
        assert!(left_of(&body("", "")).is_empty());
        for tie in TIES.into_iter().chain([", metadata={op_type=\"custom_vjp\"}"]) {
            assert_eq!(left_of(&body(tie, "")), ["convert", "convert"], "{tie}");
            assert_eq!(left_of(&body("", tie)), ["convert", "convert"], "{tie}");
        }
    }

    #[test]
    fn instructions_that_say_something_else_do_not_merge() {
        let body = |a: &str, b: &str| {
            format!(
                "  a = bf16[4]{{0}} sine(x){a}\n  b = bf16[4]{{0}} sine(x){b}\n  ROOT sum = bf16[4]{{0}} add(a, b)\n"
            )
        };
        let (apart, merged) = (["sine", "sine", "add"], ["sine", "add"]);
        assert_eq!(left_of(&body("", "")), merged);
        // Columns of JAX's debug metadata, in text and in proto.
        let columns = ", metadata={op_name=\"a\" source_end_line=9 source_column=3}";
        assert_eq!(left_of(&body(columns, "")), merged);
        let marks = [", metadata={op_type=\"custom_vjp\"}", ", statistics={visualizing_index=0,flops=0.5}"];
        for attribute in TIES.into_iter().chain(marks) {
            assert_eq!(left_of(&body(attribute, "")), apart, "{attribute}");
            // Instructions that wait for another are not merged, even if both wait for the same.
            let is_alike = !attribute.contains("control-predecessors");
            assert_eq!(
                left_of(&body(attribute, attribute)),
                if is_alike { &merged[..] } else { &apart[..] },
                "{attribute}"
            );
        }
        for (a, b) in [("{replicated}", "{maximal device=0}"), ("{replicated}", "{manual}")] {
            let [a, b] = [a, b].map(|sharding| format!(", sharding={sharding}"));
            assert_eq!(left_of(&body(&a, &b)), apart, "{a} {b}");
        }
    }

    #[test]
    fn switches_switch() {
        let module = Module::new("tidy");
        let e = Emitter::new(module.clone(), module.entry);
        let x = param(&e, 0, DType::BF16);
        e.convert(e.convert(x, DType::F32), DType::BF16);
        let module = e.finish().unwrap();
        let none = Config { fold_converts: false, merge_common: false, remove_dead: false };
        assert_eq!(run(&module, &none), Ok((module.clone(), TidyReport::default())));
        let (folded, _) = run(&module, &Config { fold_converts: true, ..none }).unwrap();
        assert_eq!(folded.entry().root, x);
        assert_eq!(folded.entry().instructions.len(), 3);
    }

    #[test]
    fn a_call_of_what_has_an_effect_stays() {
        let text = |has_effect: bool| {
            let effect = if has_effect { ", custom_call_has_side_effect=true" } else { "" };
            format!(
                "HloModule m\n\nsay {{\n  x = f32[4] parameter(0)\n  ROOT y = f32[4] custom-call(x), \
                 custom_call_target=\"say\"{effect}\n}}\n\nENTRY main {{\n  x = f32[4] parameter(0)\n  unused = f32[4] \
                 call(x), to_apply=say\n  ROOT r = f32[4] negate(x)\n}}\n"
            )
        };
        for has_effect in [true, false] {
            let (tidied, _) = run(&parse(&text(has_effect), "tidy").unwrap(), &Config::default()).unwrap();
            let calls = tidied.entry().instructions.iter().filter(|instr| instr.op.opcode() == "call").count();
            assert_eq!(calls, usize::from(has_effect));
        }
    }
}
