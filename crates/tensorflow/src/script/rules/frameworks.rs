//! Mixed precision of other frameworks: each call with its counterpart here.

use super::{Finding, Line, Script, calls, calls_of, has, has_text, is_import};

/// Mixed-precision calls of other frameworks, with bf16scope's counterpart.
pub(super) fn other_forms(script: &Script) -> Vec<Finding> {
    const FORMS: [(&str, &str, &str); 10] = [
        (
            "initialize",
            "amp",
            "Apex: `bf16scope.jax.lower(step, policy=…)`, or in YAML the bf16 network that is the default; O0 is `--precision f32`",
        ),
        ("scale_loss", "amp", APEX_SCALING),
        ("init", "amp", "MXNet: `bf16scope lower step.hlo.pb`, or the bf16 network that is the default in YAML"),
        ("init_trainer", "amp", MXNET_SCALING),
        ("enable_mixed_precision_graph_rewrite", "mixed_precision", GRAPH_REWRITE),
        ("enable_mixed_precision_graph_rewrite", "train", GRAPH_REWRITE),
        ("enable_mixed_precision_graph_rewrite", "experimental", GRAPH_REWRITE),
        ("set_global_policy", "mixed_precision", KERAS_POLICY),
        ("set_policy", "mixed_precision", KERAS_POLICY),
        ("set_policy", "experimental", KERAS_POLICY),
    ];
    const GRAPH_REWRITE: &str = "TensorFlow AMP: `bf16scope lower GRAPH`";
    const KERAS_POLICY: &str =
        "Keras: `--precision bf16`, the default of `train`; `dtype: float32` on a layer is the same key";
    const APEX_SCALING: &str = "Apex: `train: {loss_scale: dynamic}` in f16; bf16 needs none";
    const MXNET_SCALING: &str = "MXNet: `train: {loss_scale: dynamic}` in f16; bf16 needs none";
    // Both frameworks have an `amp.scale_loss`: the import decides.
    let is_mxnet = script.lines().iter().any(|line| is_import(line) && has(line, "mxnet"));
    let form = |line: &Line| {
        let called = FORMS.iter().find(|(name, owner, _)| calls_of(line, owner, name));
        let by_variable = has_text(line, "TF_ENABLE_AUTO_MIXED_PRECISION") || has_text(line, "auto_mixed_precision");
        let by_wrapper = calls(line, "FP16_Optimizer");
        let becomes = called.map(|(.., becomes)| *becomes);
        let becomes = becomes.or(by_variable.then_some(GRAPH_REWRITE)).or(by_wrapper.then_some(APEX_SCALING))?;
        let becomes = if is_mxnet && becomes == APEX_SCALING { MXNET_SCALING } else { becomes };
        let (what, why) = ("mixed precision of another framework", "it has another form here");
        Some(Finding { line: line.number, what, why, mend: becomes, is_slip: false })
    };
    script.lines().iter().filter_map(form).collect()
}
