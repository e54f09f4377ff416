//! Constants that a narrow dtype makes another number altogether: a decay of 0.999 is 1 in bf16, so that Adam's correction of bias
//! divides by 0; an epsilon of 1e-8 is 0 in f16.

use std::collections::BTreeMap;

use bf16scope_hlo::element::f32s;
use bf16scope_hlo::numerics::bf16::{bf16_from_f32, f16_from_f32};
use bf16scope_hlo::{DType, Literal, Module, Op};
use bf16scope_passes::amp::LoweringReport;

/// As many are named.
const N_NAMED: usize = 3;

/// What to warn of: each constant that became 0, 1 or infinite, what it was, and what keeps it.
pub(super) fn warning(module: &Module, report: &LoweringReport) -> Option<String> {
    let low = report.policy.dtype.dtype();
    let scalars: BTreeMap<(&str, &str), f32> = module
        .computations
        .iter()
        .flat_map(|computation| computation.instructions.iter().map(move |instr| (computation, instr)))
        .filter_map(|(computation, instr)| Some(((computation.name.as_str(), instr.name.as_str()), scalar(&instr.op)?)))
        .collect();
    let lost: Vec<String> = (report.casts.iter())
        .filter(|cast| cast.to == low.name())
        .filter_map(|cast| {
            let value = *scalars.get(&(cast.computation.as_str(), cast.of.as_str()))?;
            let rounded = rounded(value, low);
            is_lost(value, rounded).then(|| {
                format!(
                    "{value} is {rounded} in {low} ({}/%{}, read by %{})",
                    cast.computation, cast.of, cast.wanted_by
                )
            })
        })
        .collect();
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

/// The one number of a constant of f32.
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

/// Whether a rounding made a number 0, infinite, or 1 in magnitude, which it was not.
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
  mean = f32[64]{0} divide(m, wide)
  ROOT update = f32[64]{0} add(mean, small)
}
";

    fn said(policy: &Policy) -> Option<String> {
        let module = parse(ADAM, "adam").unwrap();
        let (_, report) = amp::run(&module, policy).unwrap();
        warning(&module, &report)
    }

    #[test]
    fn a_decay_that_becomes_1_is_warned_of() {
        let all = Policy::preset("O3").unwrap();
        let warning = said(&all).unwrap();
        assert!(
            warning.starts_with("constants become other numbers: 0.999 is 1 in bf16 (main/%beta, read by %power): "),
            "{warning}"
        );
        // 1e-8 is a number of bf16, and none of f16.
        assert!(!warning.contains("epsilon"), "{warning}");
        let f16 = said(&Policy { dtype: LowDType::F16, ..all.clone() }).unwrap();
        assert!(f16.contains("0.00000001 is 0 in f16 (main/%epsilon, read by %"), "{f16}");
        assert!(!f16.contains("%beta"), "{f16}");
        assert_eq!(said(&Policy::default()), None);
        assert!(is_lost(0.999, 1.0) && is_lost(1e-8, 0.0) && is_lost(1e5, f32::INFINITY) && is_lost(-0.9999, -1.0));
        assert!(!is_lost(1.0, 1.0) && !is_lost(0.1, 0.100_097_656) && !is_lost(0.0, 0.0));
    }
}
