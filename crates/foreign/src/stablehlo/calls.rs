//! Custom calls in StableHLO, and the ops that StableHLO has and the IR carries without modelling them: `fft`,
//! `cholesky`, `triangular-solve` and `topk`, whose attributes are text here. (`collectives` has those over devices.)
//!
//! Source: `StablehloOps.td`; `ExportXlaOp` of `CustomCallOp` in XLA's `mhlo_to_hlo`.

use super::collectives;
use super::types::{Missing, escaped, ints, missing};
use bf16scope_hlo::ops::{CustomCall, Opaque};
use bf16scope_hlo::{Instruction, Shape};

/// XLA's `API_VERSION_TYPED_FFI`: what is said to the back end is a dictionary, not a string.
const TYPED_FFI: i32 = 4;
const ALIASING: &str = "output_to_operand_aliasing";

/// An op that the IR does not model, with its name in StableHLO.
pub(super) fn opaque(
    opaque: &Opaque,
    instr: &Instruction,
    lhs: Option<&Shape>,
) -> Result<(&'static str, Vec<String>), Missing> {
    if let Some(collective) = collectives::carried(&opaque.opcode, instr, lhs) {
        return collective;
    }
    let said = |name: &str| attribute(instr, name);
    let flag = |name: &str| format!("{name} = {}", said(name) == Some("true"));
    // These are text as a file gave it: what is none of the words that the op knows is not passed on.
    let of = |name: &str, is_known: &dyn Fn(&str) -> bool| {
        let text = said(name).filter(|text| is_known(text));
        text.ok_or_else(|| missing(&format!("`{}` without a `{name}` that is known", opaque.opcode)))
    };
    let is_number = |text: &str| text.parse::<i64>().is_ok();
    Ok(match opaque.opcode.as_str() {
        "fft" => {
            let numbers = |text: &str| -> Option<Vec<i64>> {
                text.trim_matches(['{', '}']).split(',').map(|length| length.trim().parse().ok()).collect()
            };
            let lengths = numbers(of("fft_length", &|text| numbers(text).is_some())?).unwrap_or_default();
            let kind = of("fft_type", &|text| ["FFT", "IFFT", "RFFT", "IRFFT"].contains(&text))?;
            let kind = format!("fft_type = #stablehlo<fft_type {kind}>");
            ("stablehlo.fft", vec![ints("fft_length", &lengths), kind])
        }
        "cholesky" => ("stablehlo.cholesky", vec![flag("lower")]),
        "triangular-solve" => {
            let transposed = of("transpose_a", &|text| ["NO_TRANSPOSE", "TRANSPOSE", "ADJOINT"].contains(&text))?;
            let transposed = format!("transpose_a = #stablehlo<transpose {transposed}>");
            ("stablehlo.triangular_solve", vec![flag("left_side"), flag("lower"), flag("unit_diagonal"), transposed])
        }
        // The largest, as CHLO has it; XLA and JAX read that dialect beside StableHLO.
        "topk" if said("largest") == Some("true") => {
            ("chlo.top_k", vec![format!("k = {} : i64", of("k", &is_number)?)])
        }
        opcode => return Err(missing(&format!("`{opcode}` that bf16scope can write"))),
    })
}

fn attribute<'i>(instr: &'i Instruction, name: &str) -> Option<&'i str> {
    instr.unmodelled.attributes.iter().find(|(known, _)| known == name).map(|(_, text)| text.as_str())
}

/// The attributes of a custom call.
pub(super) fn custom_call(call: &CustomCall, instr: &Instruction) -> Result<Vec<String>, Missing> {
    if !call.called.is_empty() {
        return Err(missing("custom call that applies computations"));
    }
    let mut said = vec![
        format!("call_target_name = \"{}\"", escaped(&call.target)),
        format!("has_side_effect = {}", call.has_side_effect),
        format!("api_version = {} : i32", call.api_version),
    ];
    let config = instr.backend_config.trim();
    said.push(match call.api_version {
        TYPED_FFI if config.is_empty() => "backend_config = {}".to_string(),
        // It came from MLIR's text and is one attribute of it.
        TYPED_FFI if is_dictionary(config) => format!("backend_config = {config}"),
        TYPED_FFI => return Err(missing("custom call whose typed backend_config is not a dictionary")),
        _ => format!("backend_config = \"{}\"", escaped(&instr.backend_config)),
    });
    // Without constraints the layouts are the compiler's to choose, of results too.
    if !call.operand_layouts.is_empty() {
        let operands: Vec<&Shape> = call.operand_layouts.iter().flat_map(Shape::leaves).collect();
        said.push(layouts("operand_layouts", &operands)?);
        said.push(layouts("result_layouts", &instr.shape.leaves())?);
    }
    if let Some(pairs) = attribute(instr, ALIASING) {
        said.push(aliases(pairs, call, &instr.shape)?);
    }
    Ok(said)
}

/// Whether text is one `{…}`, in which what opens is closed.
fn is_dictionary(text: &str) -> bool {
    let (mut open, mut is_quoted, mut is_escaped) = (Vec::new(), false, false);
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' if is_quoted => is_escaped = true,
            b'"' => is_quoted = !is_quoted,
            _ if is_quoted => {}
            b'{' => open.push(b'}'),
            b'[' => open.push(b']'),
            b'(' => open.push(b')'),
            b'}' | b']' | b')' if open.pop() != Some(byte) => return false,
            _ => {}
        }
        if open.is_empty() {
            return byte == b'}' && at + 1 == text.len();
        }
    }
    false
}

/// `operand_layouts = [dense<[0, 1]> : tensor<2xindex>]`: dimensions, the most minor first.
fn layouts(name: &str, shapes: &[&Shape]) -> Result<String, Missing> {
    let one = |shape: &&Shape| {
        let shape = shape.with_default_layout();
        // A token has no dimensions.
        let order = match shape.as_array().map(|array| array.layout.as_ref()) {
            Some(Some(layout)) if !layout.tiles.is_empty() => {
                return Err(missing("custom call with tiled layouts that bf16scope can write"));
            }
            Some(Some(layout)) => layout.minor_to_major.clone(),
            _ => Vec::new(),
        };
        let words: Vec<String> = order.iter().map(ToString::to_string).collect();
        Ok(match &words[..] {
            [] => "dense<> : tensor<0xindex>".to_string(),
            words => format!("dense<[{}]> : tensor<{}xindex>", words.join(", "), words.len()),
        })
    };
    let all: Result<Vec<String>, Missing> = shapes.iter().map(one).collect();
    Ok(format!("{name} = [{}]", all?.join(", ")))
}

/// The results that are written over operands, from `{{0}: (0, {}), {1}: (2, {})}`.
fn aliases(pairs: &str, call: &CustomCall, shape: &Shape) -> Result<String, Missing> {
    let unknown = || missing("custom call whose results share memory in a way that bf16scope can write");
    // Values that are tuples become several here, and their numbers others.
    let is_flat =
        |shape: &Shape| shape.as_tuple().is_none_or(|parts| parts.iter().all(|part| part.as_tuple().is_none()));
    if !is_flat(shape) || call.operand_layouts.iter().any(|operand| operand.as_tuple().is_some()) {
        return Err(unknown());
    }
    let is_one = shape.leaves().len() == 1;
    let mut rest = pairs.trim().strip_prefix('{').and_then(|rest| rest.strip_suffix('}')).ok_or_else(unknown)?.trim();
    let mut said = Vec::new();
    while !rest.is_empty() {
        let (result, after) = rest.strip_prefix('{').and_then(|rest| rest.split_once('}')).ok_or_else(unknown)?;
        let after = after.trim_start().strip_prefix(':').ok_or_else(unknown)?.trim_start();
        let (operand, after) = after.strip_prefix('(').and_then(|after| after.split_once(')')).ok_or_else(unknown)?;
        let (operand, index) = operand.split_once(',').ok_or_else(unknown)?;
        let (result, operand): (&str, u32) = (result.trim(), operand.trim().parse().map_err(|_| unknown())?);
        if index.trim() != "{}" || !result.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(unknown());
        }
        let result = if is_one { "" } else { result };
        said.push(format!(
            "#stablehlo.output_operand_alias<output_tuple_indices = [{result}], operand_index = {operand}, \
             operand_tuple_indices = []>"
        ));
        rest = after.trim_start().trim_start_matches(',').trim_start();
    }
    Ok(format!("output_operand_aliases = [{}]", said.join(", ")))
}

#[cfg(test)]
mod tests;
