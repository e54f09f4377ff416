//! Policies under well-known names, each with the model it follows and where it differs.
//!
//! All of them keep the module's loss in f32 (what reaches a scalar result without passing a dot) and compute sums in
//! f32, because HLO's `reduce` has no separate accumulator. Only `O3` and `jmp` policies do neither.
//!
//! | name | model | what it does here |
//! | --- | --- | --- |
//! | `default` | a network written for bf16 by hand, as in Flax | dots, convolutions and what lies between them and is stored; f32 within a norm, a softmax, a sum, and rounded where a value is stored; tables of narrow rows as there |
//! | `tf_amp` | TensorFlow's `auto_mixed_precision` with its oneDNN bf16 lists | dots, convolutions and what lies between them; what follows a denied op is f32 up to the next dot; `log`, `log-plus-one` and `rsqrt` are *infer*, and a sum does not make what follows it f32 (TensorFlow lists `Sum` and `Mean` as *infer*; its kernels accumulate in f32) |
//! | `bf16_scope` | `tf.tpu.bfloat16_scope` | f32 variables read as bf16, everything between bf16; exponentials, logarithms and statistics are computed in f32 and rounded back; logits, loss and update f32. The scope ends where the loss begins, which is found by structure |
//! | `O0` | Apex | nothing is lowered |
//! | `O1` | Apex: patched functions | as `default`: weights f32, dots in low precision, the deny list f32 |
//! | `O2` | Apex: model cast, batch norm f32, f32 master weights | as `bf16_scope`, and beyond the dots too; single numbers that no dot computes stay f32 |
//! | `O3` | Apex: everything low | parameters, results, sums, batch norm, loss and update too |
//! | `mixed_bfloat16` | Keras policy (compute bf16, variable f32) | as `O2`; results stay f32, as Keras asks users to make their last layer |
//! | `mixed_float16` | Keras policy | the same in f16, without its loss scaling |
//! | `jmp:params=…,compute=…,output=…` | `jmp.Policy` | f32 parameters get the dtype `params`, everything is computed in `compute`, f32 results get `output` |
//!
//! In Apex the levels are f16; here they are bf16 unless `dtype: f16` is given.

pub use super::keys::PRESETS as NAMES;
use super::keys::{Boundary, LowDType, Policy, Reach, Rounds};
use super::policy::PolicyError;
use bf16scope_hlo::ops::decisions::all_list_names;
use bf16scope_hlo::words::nearest;

impl Policy {
    /// The policy of this name: see [the table](self).
    ///
    /// # Errors
    /// No preset has that name.
    pub fn preset(name: &str) -> Result<Policy, PolicyError> {
        let default = Policy::default();
        let scope = Policy { unstored: Boundary::Lower, ..Policy::default() };
        let whole = Policy { reach: Reach::All, ..scope.clone() };
        Ok(match name {
            "default" | "O1" => default,
            "tf_amp" => Rounds::Listed.apply(Policy {
                infer: strings(&["log", "log-plus-one", "rsqrt"]),
                island: strings(&["reduce:add", "reduce-window:add", "reduce:multiply"]),
                choices: Boundary::Lower,
                ..default
            }),
            "bf16_scope" => scope,
            "O0" => Policy { reach: Reach::None, ..default },
            "O2" | "mixed_bfloat16" => whole,
            "mixed_float16" => Policy { dtype: LowDType::F16, ..whole },
            "O3" => everything(),
            _ => match name.strip_prefix("jmp:") {
                Some(text) => jmp(name, text)?,
                None => {
                    let nearest = nearest(name, NAMES).map(str::to_string);
                    return Err(PolicyError::UnknownPreset { name: name.to_string(), nearest });
                }
            },
        })
    }
}

fn strings(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| name.to_string()).collect()
}

/// Everything that has a low-precision form in HLO.
fn everything() -> Policy {
    // The class of the last three depends on their combiner; their names with a combiner are of class infer.
    let others = "convolution dot abs broadcast clamp compare concatenate copy dynamic-slice dynamic-update-slice \
                  gather is-finite maximum minimum negate pad reshape reverse select slice transpose reduce \
                  reduce-window scatter";
    let is_left = |name: &String| !others.split(' ').any(|other| other == name);
    Policy {
        infer: all_list_names().into_iter().filter(is_left).collect(),
        parameters: Boundary::Lower,
        results: Boundary::Lower,
        loss: Boundary::Lower,
        choices: Boundary::Lower,
        reach: Reach::All,
        unstored: Boundary::Lower,
        ..Policy::default()
    }
}

/// Parses `params=f32,compute=bf16,output=f32`, in any order; `p`, `c`, `o` for short. Defaults: params f32, compute
/// as params, output as compute.
fn jmp(whole: &str, text: &str) -> Result<Policy, PolicyError> {
    let error = |problem: String| PolicyError::Jmp { text: whole.to_string(), problem };
    let mut dtypes: [Option<Option<LowDType>>; 3] = [None; 3];
    for part in text.split(',') {
        let Some((key, value)) = part.split_once('=') else {
            return Err(error(format!("`{part}` is not of the form `key=dtype`")));
        };
        let key = key.trim();
        let names = ["params", "compute", "output"];
        let Some(place) = names.iter().position(|name| *name == key || name[..1] == *key) else {
            return Err(error(format!("`{key}` is none of params, compute, output")));
        };
        let dtype = match value.trim() {
            "f32" | "float32" | "full" => None,
            "bf16" | "bfloat16" => Some(LowDType::Bf16),
            "f16" | "float16" => Some(LowDType::F16),
            other => return Err(error(format!("`{other}` is none of f32, bf16, f16"))),
        };
        if dtypes[place].replace(dtype).is_some() {
            return Err(error(format!("`{key}` is given twice")));
        }
    }
    let params = dtypes[0].unwrap_or(None);
    let compute = dtypes[1].unwrap_or(params);
    let output = dtypes[2].unwrap_or(compute);
    let narrow: Vec<LowDType> = [params, compute, output].into_iter().flatten().collect();
    if narrow.contains(&LowDType::Bf16) && narrow.contains(&LowDType::F16) {
        return Err(error("it names two narrow dtypes".to_string()));
    }
    Ok(Policy {
        dtype: narrow.first().copied().unwrap_or(LowDType::Bf16),
        parameters: Boundary::lower_if(params.is_some()),
        results: Boundary::lower_if(output.is_some()),
        reach: if compute.is_some() { Reach::All } else { Reach::None },
        ..everything()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_preset_is_a_valid_policy() {
        for name in NAMES {
            Policy::preset(name).unwrap().check().unwrap();
        }
        assert_eq!(
            Policy::preset("bf16_scop").unwrap_err().to_string(),
            "unknown preset `bf16_scop`, expected one of default, tf_amp, bf16_scope, O0, O1, O2, O3, mixed_bfloat16, \
             mixed_float16, jmp:params=…,compute=…,output=…; did you mean `bf16_scope`?"
        );
    }

    /// TensorFlow's lists have none of the rules about materialised values.
    #[test]
    fn tf_amp_keeps_what_tensorflow_does_not_name() {
        let policy = Policy::preset("tf_amp").unwrap();
        let boundaries = [policy.logits, policy.tables, policy.moved, policy.loops];
        assert_eq!(boundaries, [Boundary::Keep; 4]);
    }

    /// A policy of your own that rounds choices still leaves a sine its angle; these presets do not.
    #[test]
    fn presets_that_round_choices_round_what_other_consumers_need_too() {
        for name in NAMES {
            let policy = Policy::preset(name).unwrap();
            assert_eq!(policy.regards_needs(), !["tf_amp", "O3"].contains(&name), "{name}");
        }
        assert!(!Policy::preset("jmp:p=f32,c=bf16").unwrap().regards_needs());
        assert!(Policy { choices: Boundary::Lower, ..Policy::default() }.regards_needs());
    }

    #[test]
    fn jmp_policies_have_jmps_defaults() {
        let policy = Policy::preset("jmp:p=f32,c=bf16").unwrap();
        assert_eq!((policy.parameters, policy.results), (Boundary::Keep, Boundary::Lower));
        let policy = Policy::preset("jmp:params=f32,compute=f16,output=f32").unwrap();
        assert_eq!((policy.dtype, policy.results), (LowDType::F16, Boundary::Keep));
        for (text, problem) in [
            ("jmp:params", "`params` is not of the form `key=dtype`"),
            ("jmp:p=f32,p=f32", "`p` is given twice"),
            ("jmp:p=f8", "`f8` is none of f32, bf16, f16"),
            ("jmp:p=bf16,c=f16", "it names two narrow dtypes"),
        ] {
            assert!(Policy::preset(text).unwrap_err().to_string().contains(problem), "{text}");
        }
    }
}
