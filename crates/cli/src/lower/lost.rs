//! Warns of constants that a narrow dtype turns into another number altogether: a decay of 0.999 is 1 in bf16, so that
//! Adam's bias correction divides by 0; an epsilon of 1e-8 is 0 in f16.

use std::collections::BTreeMap;

use bf16scope_hlo::element::f32s;
use bf16scope_hlo::numerics::bf16::{bf16_from_f32, f16_from_f32};
use bf16scope_hlo::{DType, InstrId, Literal, Module, Op, Shape};
use bf16scope_passes::amp::LoweringReport;

/// This many are named.
const N_NAMED: usize = 3;

/// The warning: each constant that became 0, 1 or infinite, its value before, and how to keep it.
pub(super) fn warning(module: &Module, lowered: &Module, report: &LoweringReport) -> Option<String> {
    let low = report.policy.dtype.dtype();
    let scalars: BTreeMap<(&str, &str), f32> = module
        .computations
        .iter()
        .flat_map(|computation| computation.instructions.iter().map(move |instr| (computation, instr)))
        .filter_map(|(computation, instr)| Some(((computation.name.as_str(), instr.name.as_str()), scalar(&instr.op)?)))
        .collect();
    // The new value, if the constant became another number.
    let lost = |place: (&str, &str)| {
        let value = *scalars.get(&place)?;
        let rounded = rounded(value, low);
        is_lost(value, rounded).then_some((value, rounded))
    };
    let described = |(computation, name): (&str, &str), (value, rounded): (f32, f32), reader: &str| {
        format!("{value} is {rounded} in {low} ({computation}/%{name}, read by %{reader})")
    };
    let of_casts = report.casts.iter().filter(|cast| cast.to == low.name()).filter_map(|cast| {
        let place = (cast.computation.as_str(), cast.of.as_str());
        Some(described(place, lost(place)?, &cast.wanted_by))
    });
    // Constants whose own dtype is narrow now.
    let of_constants = lowered.computations.iter().flat_map(|computation| {
        let number = |id: InstrId| {
            let constant = computation.instr(id);
            let is_narrow = matches!(constant.op, Op::Constant(_)) && constant.shape.dtype() == Some(low);
            let place = (computation.name.as_str(), constant.name.as_str());
            is_narrow.then(|| Some((id, place, lost(place)?))).flatten()
        };
        let numbers: Vec<_> = computation.ids().filter_map(number).collect();
        let mut readers: BTreeMap<InstrId, &str> = numbers.iter().map(|(id, ..)| (*id, "ROOT")).collect();
        for instr in computation.instructions.iter().rev() {
            for id in &instr.operands {
                readers.entry(*id).and_modify(|reader| *reader = instr.name.as_str());
            }
        }
        numbers.into_iter().map(move |(id, place, number)| described(place, number, readers[&id]))
    });
    let lost: Vec<String> = of_casts.chain(of_constants).collect();
    let (shown, more) = (lost.iter().take(N_NAMED).cloned().collect::<Vec<_>>(), lost.len().saturating_sub(N_NAMED));
    let more = if more > 0 { format!("; {more} more") } else { String::new() };
    (!lost.is_empty()).then(|| {
        format!(
            "constants become other numbers: {}{more}: what divides by them, or by 1 less them, is no longer finite\nhelp: keep in \
             f32 what reads them: `keep` in a policy or --keep, with its layer's name; or lower by another policy than O3",
            shown.join("; ")
        )
    })
}

/// Refuses lowering that would drop the layout of a parameter or a result: levels of a sparse layout, which a narrow
/// array loses.
pub(super) fn check_layouts(module: &Module, lowered: &Module) -> anyhow::Result<()> {
    // Dense levels are equivalent to no levels.
    let is_dense = |extra: &str| extra.trim_start_matches("D(").chars().all(|c| "D,)".contains(c));
    let entries = module.entry().instructions.iter().filter(|instr| matches!(instr.op, Op::Parameter { .. }));
    let levels = |shape: &Shape| -> Vec<String> {
        let layouts = shape.leaves().into_iter().filter_map(Shape::as_array).filter_map(|array| array.layout.as_ref());
        layouts.map(|layout| layout.extra.clone()).filter(|extra| !is_dense(extra)).collect()
    };
    let after: BTreeMap<&str, &Shape> =
        lowered.entry().instructions.iter().map(|instr| (instr.name.as_str(), &instr.shape)).collect();
    for before in entries {
        let was = levels(&before.shape);
        if was.is_empty() {
            continue;
        }
        if after.get(before.name.as_str()).is_some_and(|after| levels(after) != was) {
            anyhow::bail!(
                "parameter `{}` is {}, and the lowered one would not have its layout ({})\nhelp: keep it: --keep '{}', or a \
                 policy that keeps parameters",
                before.name,
                before.shape,
                was.join(", "),
                before.name
            );
        }
    }
    Ok(())
}

/// The value of a scalar f32 constant.
fn scalar(op: &Op) -> Option<f32> {
    let Op::Constant(Literal::Array { shape, bytes }) = op else { return None };
    if shape.dtype != DType::F32 || shape.n_elements() != 1 {
        return None;
    }
    f32s(DType::F32, bytes)?.next()
}

fn rounded(value: f32, low: DType) -> f32 {
    let bits = |bits: u16| f32s(low, &bits.to_le_bytes()).and_then(|mut values| values.next());
    let narrow = match low {
        DType::F16 => bits(f16_from_f32(value)),
        _ => bits(bf16_from_f32(value)),
    };
    narrow.unwrap_or(value)
}

/// Whether a rounding turned a number into 0, infinity, or a magnitude of 1.
fn is_lost(value: f32, rounded: f32) -> bool {
    value.is_finite() && value != rounded && (rounded == 0.0 || rounded.is_infinite() || rounded.abs() == 1.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use bf16scope_hlo::text::parse;
    use bf16scope_passes::amp::{self, LowDType, Policy};

    const ADAM: &str = "HloModule adam

ENTRY main {
  m = f32[64]{0} parameter(0)
  t = f32[] parameter(1)
  beta = f32[] constant(0.999)
  epsilon = f32[] constant(1e-08)
  one = f32[] constant(1)
  power = f32[] power(beta, t)
  left = f32[] subtract(one, power)
  wide = f32[64]{0} broadcast(left), dimensions={}
  small = f32[64]{0} broadcast(epsilon), dimensions={}
  decays = f32[64]{0} broadcast(beta), dimensions={}
  kept = f32[64]{0} multiply(m, decays)
  mean = f32[64]{0} divide(kept, wide)
  ROOT update = f32[64]{0} add(mean, small)
}
";

    const LAMB: &str = "HloModule lamb

sum {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b)
}

ENTRY main {
  w = f32[64]{0} parameter(0)
  m = f32[64]{0} parameter(1)
  v = f32[64]{0} parameter(2)
  t = f32[] parameter(3)
  beta = f32[] constant(0.999)
  epsilon = f32[] constant(1e-08)
  zero = f32[] constant(0)
  one = f32[] constant(1)
  power = f32[] power(beta, t)
  left = f32[] subtract(one, power)
  wide = f32[64]{0} broadcast(left), dimensions={}
  decays = f32[64]{0} broadcast(beta), dimensions={}
  kept = f32[64]{0} multiply(v, decays)
  variance = f32[64]{0} divide(kept, wide)
  root = f32[64]{0} sqrt(variance)
  small = f32[64]{0} broadcast(epsilon), dimensions={}
  damped = f32[64]{0} add(root, small)
  update = f32[64]{0} divide(m, damped)
  squares = f32[64]{0} multiply(w, w)
  of_weights = f32[] reduce(squares, zero), dimensions={0}, to_apply=sum
  moved = f32[64]{0} multiply(update, update)
  of_update = f32[] reduce(moved, zero), dimensions={0}, to_apply=sum
  quotient = f32[] divide(of_weights, of_update)
  ratio = f32[] sqrt(quotient)
  trust = f32[64]{0} broadcast(ratio), dimensions={}
  ROOT step = f32[64]{0} multiply(update, trust)
}
";

    fn warning_of(text: &str, policy: &Policy) -> Option<String> {
        let module = parse(text, "m").unwrap();
        let (lowered, report) = amp::run(&module, policy).unwrap();
        warning(&module, &lowered, &report)
    }

    #[test]
    fn a_sparse_layout_is_not_lost_without_a_word() {
        let text = "HloModule m\n\nENTRY main {\n  x = f32[4,4]{1,0:D(D,C~)} parameter(0)\n  ROOT r = f32[4,4]{1,0} dot(x, x), \
                    lhs_contracting_dims={1}, rhs_contracting_dims={0}\n}\n";
        let module = parse(text, "m").unwrap();
        let lowered = |policy: &Policy| amp::run(&module, policy).unwrap().0;
        check_layouts(&module, &lowered(&Policy::default())).unwrap();
        let dense = parse(&text.replace("C~", "D"), "m").unwrap();
        check_layouts(&dense, &amp::run(&dense, &Policy::preset("O3").unwrap()).unwrap().0).unwrap();
        let refused = check_layouts(&module, &lowered(&Policy::preset("O3").unwrap())).unwrap_err().to_string();
        assert!(
            refused.starts_with("parameter `x` is f32[4,4]{1,0:D(D,C~)}, and the lowered one would not have"),
            "{refused}"
        );
    }

    #[test]
    fn a_decay_that_becomes_1_is_warned_of() {
        let all = Policy::preset("O3").unwrap();
        for text in [ADAM, LAMB] {
            let warning = warning_of(text, &all).unwrap();
            assert!(
                warning
                    .starts_with("constants become other numbers: 0.999 is 1 in bf16 (main/%beta, read by %decays): "),
                "{warning}"
            );
            // 1e-8 is representable in bf16 and not in f16.
            assert!(!warning.contains("epsilon"), "{warning}");
            let f16 = warning_of(text, &Policy { dtype: LowDType::F16, ..all.clone() }).unwrap();
            assert!(f16.contains("0.00000001 is 0 in f16 (main/%epsilon, read by %"), "{f16}");
            assert!(!f16.contains("%beta") && f16.contains("--keep"), "{f16}");
            assert_eq!(warning_of(text, &Policy::default()), None);
            // The correction of the bias is a single number, which stays f32.
            let moment = if text == ADAM { "multiply(m, decays)" } else { "multiply(v, decays)" };
            let corrected = text.replace(moment, "add(wide, small)");
            assert_eq!(warning_of(&corrected, &all), None);
        }
        assert!(is_lost(0.999, 1.0) && is_lost(1e-8, 0.0) && is_lost(1e5, f32::INFINITY) && is_lost(-0.9999, -1.0));
        assert!(!is_lost(1.0, 1.0) && !is_lost(0.1, 0.100_097_656) && !is_lost(0.0, 0.0));
    }
}
