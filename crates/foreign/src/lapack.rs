//! Calls of LAPACK, which JAX writes where it lowers for a CPU, as the ops of HLO that compute the same: `cholesky` and
//! `triangular-solve`. What XLA has no op for stays a call, and whoever runs it is told so.
//!
//! Source: `jax/_src/lax/linalg.py` of jax 0.10 (what the calls take and give) and jaxlib's `lapack_kernels.h` (their
//! attributes: LAPACK's letters as numbers).

use std::collections::BTreeSet;

use bf16scope_hlo::ops::{Comparison, Opaque, SliceDim};
use bf16scope_hlo::{ArrayShape, Computation, DType, InstrId, Instruction, Module, Op, Shape, Unmodelled};

/// The HLO op that a call stands for.
enum Known {
    /// The factor of a symmetric matrix, and whether there was none.
    Cholesky { is_lower: bool },
    /// The solution of `a·x = b` or `x·a = b`, with its attributes.
    TriangularSolve(Vec<(String, String)>),
}

/// Replaces the calls; how many there were. What `potrf` says of a matrix that has no factor is 1, not the order of its
/// first minor that is not positive, as XLA makes all of that factor NaN.
pub fn calls_to_ops(module: &mut Module) -> usize {
    let mut instructions = module.computations.iter().flat_map(|computation| &computation.instructions);
    if !instructions.any(|instr| is_lapack(&instr.op)) {
        return 0;
    }
    let instructions = module.computations.iter().flat_map(|computation| &computation.instructions);
    let names = instructions.map(|instr| instr.name.clone()).collect();
    let mut writer = Writer { names, n_calls: 0 };
    module.computations.iter_mut().for_each(|computation| writer.rewrite(computation));
    writer.n_calls
}

fn is_lapack(op: &Op) -> bool {
    matches!(op, Op::CustomCall(call) if call.target.starts_with("lapack_"))
}

/// A call whose attributes and shapes are all understood. (JAX before 0.5 leaves the attributes out of HLO's text.)
fn known(computation: &Computation, instr: &Instruction) -> Option<Known> {
    let Op::CustomCall(call) = &instr.op else { return None };
    let (letter, routine) = call.target.strip_prefix("lapack_")?.strip_suffix("_ffi")?.split_at_checked(1)?;
    let dtype = match letter {
        "s" => DType::F32,
        "d" => DType::F64,
        "c" => DType::C64,
        "z" => DType::C128,
        _ => return None,
    };
    let matrix = |shape: &Shape| shape.as_array().filter(|it| it.dtype == dtype && it.dims.len() >= 2).cloned();
    let operands: Vec<ArrayShape> =
        instr.operands.iter().map(|id| matrix(&computation.instr(*id).shape)).collect::<Option<_>>()?;
    let is_square = |it: &ArrayShape| it.dims[it.dims.len() - 2] == it.dims[it.dims.len() - 1] && it.n_elements() > 0;
    let letter = |name: &str| letter_of(&instr.backend_config, name);
    match (routine, &operands[..]) {
        ("potrf", [a]) if is_square(a) => {
            let [Shape::Array(factor), Shape::Array(info)] = instr.shape.as_tuple()? else { return None };
            let batch = &a.dims[..a.dims.len() - 2];
            let is_right = factor.dims == a.dims && info.dtype == DType::S32 && info.dims == batch;
            Some(Known::Cholesky { is_lower: one_of(letter("uplo")?, b'L', b'U')? }).filter(|_| is_right)
        }
        ("trsm", [a, b]) if is_square(a) && instr.shape.as_array().is_some_and(|it| it.dims == b.dims) => {
            let transpose = match letter("trans_x")? {
                b'N' => "NO_TRANSPOSE",
                b'T' => "TRANSPOSE",
                b'C' => "ADJOINT",
                _ => return None,
            };
            let flags = [
                ("left_side", one_of(letter("side")?, b'L', b'R')?),
                ("lower", one_of(letter("uplo")?, b'L', b'U')?),
                ("unit_diagonal", one_of(letter("diag")?, b'U', b'N')?),
            ];
            let flags = flags.into_iter().filter(|(_, is_set)| *is_set).map(|(name, _)| (name, "true"));
            let all = flags.chain([("transpose_a", transpose)]);
            Some(Known::TriangularSolve(all.map(|(name, value)| (name.to_string(), value.to_string())).collect()))
        }
        _ => None,
    }
}

/// `uplo` of `{diag = 78 : ui8, uplo = 76 : ui8}`.
fn letter_of(config: &str, name: &str) -> Option<u8> {
    let members = config.trim().strip_prefix('{')?.strip_suffix('}')?.split(',');
    let mut values = members.filter_map(|member| {
        let (found, value) = member.split_once('=')?;
        (found.trim() == name).then(|| value.split(':').next()?.trim().parse().ok()).flatten()
    });
    values.next()
}

fn one_of(letter: u8, yes: u8, no: u8) -> Option<bool> {
    (letter == yes || letter == no).then_some(letter == yes)
}

struct Writer {
    names: BTreeSet<String>,
    n_calls: usize,
}

impl Writer {
    fn rewrite(&mut self, computation: &mut Computation) {
        let mut made: Vec<Instruction> = Vec::with_capacity(computation.instructions.len());
        let mut place: Vec<InstrId> = Vec::with_capacity(computation.instructions.len());
        for instr in &computation.instructions {
            let known = is_lapack(&instr.op).then(|| known(computation, instr)).flatten();
            let mut instr = instr.clone();
            for id in instr.operands.iter_mut().chain(&mut instr.control_predecessors) {
                *id = place[id.idx()];
            }
            self.n_calls += usize::from(known.is_some());
            match known {
                None => made.push(instr),
                Some(Known::TriangularSolve(attributes)) => made.push(op_of(&instr, "triangular-solve", attributes)),
                Some(Known::Cholesky { is_lower }) => self.factor(instr, is_lower, &mut made),
            }
            place.push(InstrId(made.len() as u32 - 1));
        }
        computation.root = place[computation.root.idx()];
        computation.instructions = made;
    }

    /// `(factor, whether there is none)`: where there is none its first element is NaN, as all others are.
    fn factor(&mut self, instr: Instruction, is_lower: bool, made: &mut Vec<Instruction>) {
        let Shape::Tuple(parts) = instr.shape.without_layout() else { unreachable!("a call that is known gives two") };
        let [factor, info] = &parts[..] else { unreachable!("a call that is known gives two") };
        let (matrix, batch) = (factor.dims().to_vec(), info.dims().to_vec());
        let dtype = factor.dtype().unwrap_or(DType::F32);
        let mut push = |suffix: &str, op: Op, shape: Shape, operands: Vec<InstrId>| {
            let mut name = format!("{}.{suffix}", instr.name);
            while !self.names.insert(name.clone()) {
                name.push('_');
            }
            made.push(Instruction::plain(name, op, shape, operands, instr.metadata.clone()));
            InstrId(made.len() as u32 - 1)
        };
        let cholesky = Op::Opaque(Box::new(Opaque { opcode: "cholesky".to_string(), called: Vec::new() }));
        let id = push("factor", cholesky, factor.clone(), instr.operands.clone());
        let limit = |at: usize| if at < batch.len() { matrix[at] } else { 1 };
        let firsts = (0..matrix.len()).map(|at| SliceDim { start: 0, limit: limit(at), stride: 1 }).collect();
        let dims: Vec<i64> = (0..matrix.len()).map(limit).collect();
        let array = |dtype: DType, dims: &[i64]| Shape::Array(ArrayShape::new(dtype, dims.to_vec()));
        let first = push("first", Op::Slice(firsts), array(dtype, &dims), vec![id]);
        let each = push("each", Op::Reshape, array(dtype, &batch), vec![first]);
        let is_nan = Op::Compare { direction: Comparison::Ne, kind: None };
        let is_nan = push("fails", is_nan, array(DType::Pred, &batch), vec![each, each]);
        let said = push("info", Op::Convert, info.clone(), vec![is_nan]);
        if is_lower {
            made[id.idx()].unmodelled.attributes.push(("lower".to_string(), "true".to_string()));
        }
        let (sharding, shape) = (instr.sharding.clone(), Shape::Tuple(parts.clone()));
        let tuple = Instruction::plain(instr.name.clone(), Op::Tuple, shape, vec![id, said], instr.metadata.clone());
        made.push(Instruction { sharding, ..tuple });
    }
}

/// The instruction with another op, which HLO carries as it came.
fn op_of(instr: &Instruction, opcode: &str, attributes: Vec<(String, String)>) -> Instruction {
    let op = Op::Opaque(Box::new(Opaque { opcode: opcode.to_string(), called: Vec::new() }));
    let shape = instr.shape.without_layout();
    let plain = Instruction::plain(instr.name.clone(), op, shape, instr.operands.clone(), instr.metadata.clone());
    let unmodelled = Unmodelled { attributes, ..Unmodelled::default() };
    let before = instr.control_predecessors.clone();
    Instruction { unmodelled, sharding: instr.sharding.clone(), control_predecessors: before, ..plain }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bf16scope_hlo::{text, verify};

    fn rewritten(body: &str) -> (usize, String) {
        let text = format!(
            "HloModule m\n\nENTRY m {{\n  a = f32[2,4,4] parameter(0)\n  b = f32[2,4,3] parameter(1)\n{body}}}\n"
        );
        let mut module = text::parse(&text, "m.txt").unwrap_or_else(|error| panic!("{error}"));
        let n = calls_to_ops(&mut module);
        verify(&module).unwrap_or_else(|errors| panic!("{errors}"));
        (n, text::print(&module, &text::PrintOptions::default()))
    }

    #[test]
    fn calls_that_are_understood_become_ops() {
        let solve = |config: &str| {
            format!(
                "  ROOT x = f32[2,4,3]{{1,2,0}} custom-call(a, b), custom_call_target=\"lapack_strsm_ffi\", \
                 api_version=API_VERSION_TYPED_FFI, backend_config={{{config}}}\n"
            )
        };
        let (n, text) = rewritten(&solve("diag = 85 : ui8, side = 76 : ui8, trans_x = 84 : ui8, uplo = 85 : ui8"));
        let expected = "triangular-solve(a, b), left_side=true, unit_diagonal=true, transpose_a=TRANSPOSE";
        assert!(n == 1 && text.contains(expected), "{text}");
        let (_, text) = rewritten(&solve("diag = 78 : ui8, side = 76 : ui8, trans_x = 78 : ui8, uplo = 76 : ui8"));
        assert!(
            text.contains("triangular-solve(a, b), left_side=true, lower=true, transpose_a=NO_TRANSPOSE"),
            "{text}"
        );
        // Without attributes, and with letters that LAPACK has not.
        for config in ["", "diag = 78 : ui8", "diag = 1 : ui8, side = 76 : ui8, trans_x = 78 : ui8, uplo = 76 : ui8"] {
            let (n, text) = rewritten(&solve(config));
            assert!(n == 0 && text.contains("lapack_strsm_ffi"), "{text}");
        }
        let factor = "  f = (f32[2,4,4]{1,2,0}, s32[2]{0}) custom-call(a), custom_call_target=\"lapack_spotrf_ffi\", \
                      output_to_operand_aliasing={{0}: (0, {})}, api_version=API_VERSION_TYPED_FFI, \
                      backend_config={uplo = 76 : ui8}\n  ROOT l = f32[2,4,4] get-tuple-element(f), index=0\n";
        let (n, text) = rewritten(factor);
        assert!(n == 1 && text.contains("cholesky(a), lower=true") && text.contains("ROOT l ="), "{text}");
        // One whose dtype differs from its name, and one for which XLA has no op.
        let of_f64 = factor.replace("spotrf", "dpotrf");
        assert_eq!(rewritten(&of_f64).0, 0);
        assert_eq!(rewritten(&factor.replace("spotrf", "sgeqrf")).0, 0);
    }
}
