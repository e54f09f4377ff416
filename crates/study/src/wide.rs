//! 64-bit types, which a TPU lacks: the compiler rewrites them to 32 bits or refuses them with an unhelpful message.

use bf16scope_hlo::{DType, Module, Op, proto};

/// The remark below a refusal of a program with such types: the first instructions, where they were written, and what
/// to do. An instruction that the compiler's text names comes first. `None` without such types.
pub(super) fn remark(program: &[u8], refusal: &str) -> Option<String> {
    let (instructions, remedy) = named(program, refusal)?;
    Some(format!("a TPU has no types of 64 bits, and these have them: {instructions}\nhelp: {remedy}"))
}

/// The warning about 64-bit floats in a program that the compiler accepts; `None` if it has no such floats.
pub(super) fn warning(program: &[u8]) -> Option<String> {
    let (instructions, remedy) = named(program, "")?;
    Some(format!(
        "a TPU has no floats of 64 bits, and its compiler computes these by several of 32, which takes many times as long: \
         {instructions}\nhelp: {remedy}"
    ))
}

/// The first instructions with such types, and the remedy.
fn named(program: &[u8], refusal: &str) -> Option<(String, &'static str)> {
    /// This many are named.
    const N_NAMED: usize = 3;
    let module = proto::decode::from_bytes(program).ok()?;
    let floats = wide(&module, &[DType::F64, DType::C128]);
    // Integers are rewritten almost everywhere.
    let is_about_them = refusal.contains("X64") || refusal.contains("64-bit");
    let mut all = if floats.is_empty() && is_about_them { wide(&module, &[DType::S64, DType::U64]) } else { floats };
    // A stable sort: first named instructions, then constants, where such types often begin.
    all.sort_by_key(|one| (!names(refusal, &one.name), !one.begins));
    let (first, more) = (all.first()?, all.len().saturating_sub(N_NAMED));
    let named: Vec<&str> = all.iter().take(N_NAMED).map(|one| one.shown.as_str()).collect();
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    let remedy = match first.dtype {
        DType::C128 => "make it complex64 there",
        DType::F64 => "make it float32 there; in JAX without `jax_enable_x64`, in NumPy by `np.float32(…)`",
        _ => "make it int32 there; in JAX without `jax_enable_x64`",
    };
    Some((format!("{}{more}", named.join(", ")), remedy))
}

/// Whether a text of the compiler names an instruction: `%fft.3`, but not as part of a longer name.
fn names(text: &str, name: &str) -> bool {
    let ends = |rest: &str| !rest.starts_with(|c: char| c.is_ascii_alphanumeric() || "._-".contains(c));
    let marked = format!("%{name}");
    text.match_indices(&marked).any(|(at, _)| ends(&text[at + marked.len()..]))
}

struct Wide {
    name: String,
    dtype: DType,
    /// Whether it has such a type and none of its operands has.
    begins: bool,
    shown: String,
}

fn wide(module: &Module, dtypes: &[DType]) -> Vec<Wide> {
    let mut all = Vec::new();
    for computation in &module.computations {
        let dtype_of = |id: &bf16scope_hlo::InstrId| computation.instr(*id).shape.dtype();
        for instr in &computation.instructions {
            let Some(dtype) = instr.shape.dtype().filter(|dtype| dtypes.contains(dtype)) else { continue };
            let is_made = !matches!(instr.op, Op::Parameter { .. });
            let begins = is_made && !instr.operands.iter().filter_map(dtype_of).any(|dtype| dtypes.contains(&dtype));
            let source = module.source_text(&instr.metadata);
            let place = if source.is_empty() { String::new() } else { format!(", {source}") };
            let shown = format!(
                "{}/%{} ({} {}{place})",
                computation.name,
                instr.name,
                instr.op.opcode(),
                instr.shape.without_layout()
            );
            all.push(Wide { name: instr.name.clone(), dtype, begins, shown });
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use bf16scope_hlo::text::parse;

    fn remark_on(body: &str, refusal: &str) -> Option<String> {
        let text = format!("HloModule m\n\nENTRY main {{\n  x = f32[8] parameter(0)\n{body}}}\n");
        remark(&proto::encode::to_bytes(&parse(&text, "m").unwrap()).unwrap(), refusal)
    }

    #[test]
    fn types_of_64_bits_are_named_with_their_lines() {
        let fft = "  c = c64[8] convert(x)\n  w = c128[8] convert(c), metadata={source_file=\"net.py\" source_line=7}\n  ROOT y = \
                   c128[8] fft(w), fft_type=FFT, fft_length={8}, metadata={source_file=\"net.py\" source_line=8}\n";
        assert_eq!(
            remark_on(fft, "UNIMPLEMENTED: While rewriting computation to not contain X64 element types").as_deref(),
            Some(
                "a TPU has no types of 64 bits, and these have them: main/%w (convert c128[8], net.py:7), main/%y (fft c128[8], \
                 net.py:8)\nhelp: make it complex64 there"
            )
        );
        let constant = "  c = f64[] constant(0.1)\n  b = f64[8] broadcast(c), dimensions={}\n  w = f64[8] convert(x)\n  s = f64[8] \
                        add(w, b)\n  n = f64[8] negate(s)\n  ROOT y = f32[8] convert(n)\n";
        let remark = remark_on(constant, "INTERNAL: %n cannot be rewritten: n").unwrap();
        let expected = "a TPU has no types of 64 bits, and these have them: main/%n (negate f64[8]), ";
        assert!(
            remark.starts_with(expected) && remark.contains(" and 2 more\nhelp: make it float32 there"),
            "{remark}"
        );
        let whole = "  i = s64[8] convert(x)\n  ROOT y = f32[8] convert(i)\n";
        assert_eq!(remark_on(whole, "INTERNAL: no"), None);
        assert!(
            remark_on(whole, "X64 element types")
                .unwrap()
                .ends_with("make it int32 there; in JAX without `jax_enable_x64`")
        );
        assert_eq!(remark_on("  ROOT y = f32[8] negate(x)\n", "X64"), None);
    }
}
