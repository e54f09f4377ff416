//! Losses and metrics for people.

use bf16scope_train::TOTAL_LOSS;

/// `accuracy 97.50 %`, `loss 0.1234`.
pub(super) fn named(name: &str, value: f64) -> String {
    format!("{} {}", name.replace('_', " "), shown(name, value))
}

/// A share as a percentage, anything else with four decimals; a metric without examples has no value.
pub(super) fn shown(name: &str, value: f64) -> String {
    let is_part = ["accuracy", "precision", "recall"].iter().any(|part| name.contains(part));
    let is_part = is_part || name.split('_').any(|word| word == "iou");
    match is_part {
        _ if value.is_nan() => "undefined".to_string(),
        true => format!("{:.2} %", 100.0 * value),
        false => format!("{value:.4}"),
    }
}

/// Metrics, then the loss, then the total loss.
pub(super) fn list(values: &[(String, f64)]) -> String {
    let place = |name: &str| ["loss", TOTAL_LOSS].iter().position(|loss| *loss == name).map_or(0, |place| place + 1);
    let mut values: Vec<_> = values.iter().collect();
    values.sort_by_key(|(name, _)| place(name));
    let named: Vec<String> = values.into_iter().map(|(name, value)| named(name, *value)).collect();
    named.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accuracies_are_percentages_and_the_loss_is_last() {
        let values = [("loss", 0.12345), ("top_5_accuracy", 0.975), ("mean_error", 2.0), ("total_loss", 0.25)];
        let values = values.map(|(name, value)| (name.to_string(), value));
        assert_eq!(list(&values), "top 5 accuracy 97.50 %, mean error 2.0000, loss 0.1235, total loss 0.2500");
        assert_eq!(
            (named("mean_iou", 0.5), named("previous", 0.5)),
            ("mean iou 50.00 %".into(), "previous 0.5000".into())
        );
        assert_eq!(named("precision", 0.5), "precision 50.00 %");
        assert_eq!(named("recall", f64::NAN), "recall undefined");
    }
}
