//! Converts a module to f64, to compute its f32 arithmetic without f32's roundings.
//!
//! Every f32 becomes f64 (and every c64 c128): parameters, constants, intermediate values, results. Constants keep
//! their f32 values, and the program's own roundings to bf16, to f16 and by `reduce-precision` stay. A
//! `bitcast-convert` still reads or writes the bits of an f32. A `custom-call` on floats has a meaning that only a
//! back end knows, so the module is refused.

use super::{PassError, PassErrorKind, Place};
use bf16scope_hlo::ops::PrecisionConfig;
use bf16scope_hlo::ops::decisions::is_placement;
use bf16scope_hlo::{
    ArrayShape, CompId, DType, Element, InstrId, Instruction, Literal, Metadata, Module, Op, Shape, Unmodelled,
};

/// The pass has no options.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Config;

/// The report of [`run`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct WidenReport {
    /// Instructions whose results are now in f64 or c128, by computation and name.
    pub widened: Vec<(String, String)>,
    /// `bitcast-convert`s that still read or write f32, by computation and name.
    pub in_f32: Vec<(String, String)>,
}

/// Converts a module to f64. Its f32 parameters and results become f64, and its aliases are dropped.
///
/// # Errors
/// The module has a custom call on floats.
pub fn run(module: &Module, _: &Config) -> Result<(Module, WidenReport), PassError> {
    let mut report = WidenReport::default();
    let mut wide = module.clone();
    wide.entry_layout = None;
    wide.input_output_alias.clear();
    wide.buffer_donors.clear();
    wide.is_scheduled = false;
    for (comp, computation) in wide.computations.iter_mut().enumerate() {
        let comp = CompId(comp as u32);
        let old = std::mem::take(&mut computation.instructions);
        let mut new_ids: Vec<InstrId> = Vec::with_capacity(old.len());
        let mut written: Vec<Instruction> = Vec::with_capacity(old.len());
        let mut narrow_shapes: Vec<Shape> = Vec::with_capacity(old.len());
        for mut instr in old {
            let operand_shapes: Vec<Shape> = instr.operands.iter().map(|id| narrow_shapes[id.idx()].clone()).collect();
            narrow_shapes.push(instr.shape.clone());
            let ids = instr.operands.iter_mut().chain(&mut instr.control_predecessors);
            ids.for_each(|id| *id = new_ids[id.idx()]);
            let is_opaque = matches!(instr.op, Op::CustomCall(_)) && !is_placement(&instr.op);
            if is_opaque && operand_shapes.iter().chain([&instr.shape]).any(has_f32) {
                let text = format!("%{} is a custom call on f32, which has no form in f64", instr.name);
                let place = Place::new(module, comp, InstrId(narrow_shapes.len() as u32 - 1));
                return Err(PassError::new(PassErrorKind::NoForm, text).about(place));
            }
            let is_bits = instr.op == Op::BitcastConvert;
            let named = || (computation.name.clone(), instr.name.clone());
            if has_f32(&instr.shape) {
                report.widened.push(named());
            }
            if is_bits && (has_f32(&operand_shapes[0]) || has_f32(&instr.shape)) {
                report.in_f32.push(named());
            }
            if is_bits && has_f32(&operand_shapes[0]) {
                let name = format!("{}.f32", instr.name);
                instr.operands[0] = push(&mut written, converted(name, instr.operands[0], &operand_shapes[0]));
            }
            if is_bits && has_f32(&instr.shape) {
                // The name goes to the value that other instructions read.
                let (name, shape) = (instr.name.clone(), instr.shape.clone());
                instr.name += ".f32";
                let narrow = push(&mut written, instr);
                new_ids.push(push(&mut written, converted(name, narrow, &widened(&shape))));
                continue;
            }
            instr.shape = widened(&instr.shape);
            if let Op::Constant(literal) = &mut instr.op {
                *literal = widened_literal(literal);
            }
            instr.op.precision_mut().into_iter().for_each(|precision| *precision = PrecisionConfig::default());
            new_ids.push(push(&mut written, instr));
        }
        computation.root = new_ids[computation.root.idx()];
        computation.instructions = written;
    }
    Ok((wide, report))
}

fn push(written: &mut Vec<Instruction>, instr: Instruction) -> InstrId {
    let id = InstrId(written.len() as u32);
    written.push(instr);
    id
}

fn converted(name: String, operand: InstrId, shape: &Shape) -> Instruction {
    Instruction {
        name,
        op: Op::Convert,
        shape: shape.clone(),
        operands: vec![operand],
        metadata: Metadata::default(),
        sharding: None,
        frontend_attributes: Vec::new(),
        control_predecessors: Vec::new(),
        backend_config: String::new(),
        unmodelled: Unmodelled::default(),
    }
}

fn has_f32(shape: &Shape) -> bool {
    shape.leaves().iter().any(|leaf| matches!(leaf.dtype(), Some(DType::F32 | DType::C64)))
}

/// The shape with f64 for f32, and c128 for c64.
pub fn widened(shape: &Shape) -> Shape {
    match shape {
        Shape::Array(array) => Shape::Array(ArrayShape { dtype: wide(array.dtype), ..array.clone() }),
        Shape::Tuple(parts) => Shape::Tuple(parts.iter().map(widened).collect()),
        other => other.clone(),
    }
}

fn wide(dtype: DType) -> DType {
    match dtype {
        DType::F32 => DType::F64,
        DType::C64 => DType::C128,
        other => other,
    }
}

/// The literal with f64 for f32, and c128 for c64; the values are the same.
pub fn widened_literal(literal: &Literal) -> Literal {
    match literal {
        Literal::Array { shape, bytes } if wide(shape.dtype) != shape.dtype => {
            let mut out = Vec::with_capacity(2 * bytes.len());
            bytes.chunks_exact(4).for_each(|bytes| f64::from(f32::read(bytes)).write(&mut out));
            Literal::Array { shape: ArrayShape { dtype: wide(shape.dtype), ..shape.clone() }, bytes: out }
        }
        Literal::Tuple(parts) => Literal::Tuple(parts.iter().map(widened_literal).collect()),
        other => other.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bf16scope_hlo::{text, verify};

    #[test]
    fn floats_are_wide_and_bits_are_f32() {
        let module = text::parse(
            "HloModule m\n\nsum {\n  a = f32[] parameter(0)\n  b = f32[] parameter(1)\n  ROOT s = f32[] add(a, b)\n}\n\n\
             ENTRY m {\n  x = f32[4] parameter(0)\n  bits = u32[4] bitcast-convert(x)\n  \
             y = f32[4] bitcast-convert(bits)\n  tenth = f32[] constant(0.1)\n  r = f32[] reduce(y, tenth), \
             dimensions={0}, to_apply=sum\n  n = bf16[4] convert(y)\n  w = f32[4] convert(n)\n  \
             ROOT t = (f32[], f32[4], u32[4]) tuple(r, w, bits)\n}\n",
            "m.txt",
        );
        let (wide, report) = run(&module.unwrap(), &Config).unwrap();
        verify(&wide).unwrap_or_else(|errors| panic!("{errors}"));
        assert_eq!(wide.entry().result_shape().to_string(), "(f64[], f64[4], u32[4])");
        let named = |name: &str| wide.entry().instructions.iter().find(|instr| instr.name == name).unwrap();
        assert_eq!(
            (named("bits.f32").shape.to_string(), named("n").shape.to_string()),
            ("f32[4]".into(), "bf16[4]".into())
        );
        assert_eq!(named("tenth").op, Op::Constant(Literal::scalar(f64::from(0.1f32))));
        let in_main = |names: &[&str]| names.iter().map(|name| ("m".to_string(), name.to_string())).collect::<Vec<_>>();
        assert_eq!(report.in_f32, in_main(&["bits", "y"]));
        assert_eq!(report.widened[3..], in_main(&["x", "y", "tenth", "r", "w", "t"]));
    }

    #[test]
    fn a_custom_call_on_floats_has_no_wide_form() {
        let module = text::parse(
            "HloModule m\n\nENTRY m {\n  x = f32[4] parameter(0)\n  ROOT y = f32[4] custom-call(x), \
             custom_call_target=\"f\"\n}\n",
            "m.txt",
        );
        let error = run(&module.unwrap(), &Config).unwrap_err();
        assert_eq!(error.to_string(), "%y is a custom call on f32, which has no form in f64");
        assert_eq!(error.kind(), &PassErrorKind::NoForm);
        assert_eq!(error.place().map(Place::to_string), Some("m/%y".to_string()));
    }
}
