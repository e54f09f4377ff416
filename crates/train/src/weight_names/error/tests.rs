//! The texts of errors.

use super::*;
use bf16scope_hlo::{ArrayShape, DType};

#[test]
fn weights_that_are_not_finite_say_where_and_what_to_do() {
    let error = |is_rounded| WeightNameError::NotFinite {
        file: "a.npz".to_string(),
        theirs: "dense/kernel".to_string(),
        ours: "net/dense/kernel".to_string(),
        idx: 7,
        value: "inf".to_string(),
        is_rounded,
    };
    let text = "a.npz: dense/kernel is not finite: element 7 of net/dense/kernel would be inf\nhelp: it is of a training \
                that went wrong: take an earlier checkpoint of it";
    assert_eq!(error(false).to_string(), text);
    assert_eq!(
        error(true).to_string(),
        format!("{text}, or `variables: f32` if the number is only too large for what it is stored in")
    );
}

#[test]
fn variables_that_do_not_fit_are_named_with_a_remedy() {
    let theirs = || "b".to_string();
    let afresh = "start them afresh: `except: ['net/kernel']` under `train`; what is left over may be meant: see `bf16scope \
                  weights FILE`";
    let by_rules = "name rules for these names with `rules` under `train`, or `--rules` of `weights`";
    for (misfit, text, help) in [
        (Misfit::NoRule, "is named by no rule", by_rules),
        (Misfit::Dtype { theirs: theirs(), dtype: "s32".to_string() }, "cannot be made of b, which is s32", by_rules),
        (
            Misfit::Rank { theirs: theirs(), layout: "transposed [1, 0]".to_string() },
            "has other axes than the rule for b is for (transposed [1, 0])",
            afresh,
        ),
        (Misfit::of_shape(theirs(), &[2, 3], &[6]), "has another shape: b is [2, 3], expected [6]", afresh),
        (
            Misfit::of_shape(theirs(), &[2, 3], &[3, 2]),
            "fits transposed only: b is [2, 3], expected [3, 2]",
            "a rule with `transpose: [1, 0]` reads it: name a file of rules with `rules` under `train`, or `--rules` of \
             `weights`",
        ),
        (
            Misfit::Twice { theirs: vec![theirs()], with: Some("net/bias".to_string()) },
            "would be b, as net/bias is",
            "name a file of rules in which each variable has one name (`rules` under `train`, or `--rules` of `weights`), \
             with `shared: true` where two variables have the same values",
        ),
    ] {
        let shape = ArrayShape::new(DType::F32, [6]);
        let wanted = Wanted { name: "net/kernel".to_string(), shape, role: Role::Weight };
        let unfit = |family: &str, n_variables| WeightNameError::Unfit {
            file: "a.npz".to_string(),
            family: family.to_string(),
            n_variables,
            misfits: vec![(wanted.clone(), misfit.clone())],
            left_over: vec!["c".to_string()],
        };
        assert_eq!(
            unfit("names", 4).to_string(),
            format!("a.npz does not fit the model: 1 of its 4 variables\n  net/kernel {text}\nhelp: {help}")
        );
        if misfit == Misfit::NoRule {
            assert_eq!(
                unfit("bert", 1).to_string(),
                format!(
                    "a.npz does not fit the model, by the rules of bert: 1 of its 1 variables\n  net/kernel {text}\nhelp: \
                     it is of another model, or its names are of another family, which has c: `rules` under `train`, or \
                     `--rules` of `weights`, takes {}, or a file",
                    crate::weight_names::families().join(", ")
                )
            );
        }
    }
}
