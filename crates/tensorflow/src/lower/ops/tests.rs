//! Each op has one rule, and an op without one is told what is near.

use super::*;

#[test]
fn each_op_has_one_rule() {
    let names = known_ops();
    let mut once = names.clone();
    once.dedup();
    assert_eq!(names, once);
    assert!(names.len() > 400 && names.iter().all(|name| !crate::host::is_left_out(name)), "{}", names.len());
}
#[test]
fn an_op_that_no_tpu_runs_is_refused_with_what_to_write() {
    for (part, why) in REFUSED {
        let op = known_ops().into_iter().find(|op| op.contains(part));
        assert_eq!(op, None, "{part}: {why}");
    }
    let help = nearest("FixedUnigramCandidateSampler").unwrap();
    assert!(help.ends_with("hand the sampled classes in as a feature"), "{help}");
    let help = nearest("LogMatrixDeterminant").unwrap();
    assert!(help.contains("write tf.linalg.cholesky and tf.linalg.cholesky_solve"), "{help}");
    let help = nearest("NonMaxSuppressionV3").unwrap();
    assert!(help.starts_with("how many boxes it gives is known only when it runs"), "{help}");
}
#[test]
fn only_another_version_of_an_op_is_suggested() {
    for op in ["MatMulV9", "ResourceMatMul", "FusedBatchNormV7"] {
        assert!(nearest(op).is_some_and(|help| help.contains("` becomes HLO")), "{op}");
    }
    for op in ["RealPart", "Rea", "MatMult", "Svds", "Igammac"] {
        assert_eq!(nearest(op), None, "{op}");
    }
}
