//! The nearest words of ops and optimizers.

use super::*;

#[test]
fn an_op_without_a_word_is_told_the_nearest() {
    assert_eq!(layer("Transpose"), "the nearest word is `permute`");
    assert_eq!(layer("OneHot"), "the nearest word is `one_hot`");
    assert_eq!(layer("Frobnicate"), "docs/EXPERIMENTS.md has the layers; no word is near");
    assert_eq!(optimizer("ApplyAdamWithAmsgrad"), "the nearest word is `optimizer: adam`, whose updates differ");
    assert_eq!(optimizer("ApplyPowerSign"), "docs/EXPERIMENTS.md has the optimizers; no word is near");
}
