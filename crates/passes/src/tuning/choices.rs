//! The choices of a tuning: what each changes, and whether results stay bitwise the same.

/// Whether a choice keeps results bitwise the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// The same operations on the same values: every bit stays, if the compiler rounds each instruction as written.
    Exact,
    /// The same terms, added in another order or rounded in between: last bits differ.
    Reassociating,
}

/// A choice that a [`Tuning`](super::Tuning) makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// Its key under `tune`, which is also the field of `Tuning`.
    pub key: &'static str,
    /// Its key in earlier versions, if that was another. Checkpoints may have it; a document with it is refused, with
    /// a hint at the new key.
    pub was: Option<&'static str>,
    /// Whether it keeps results bitwise the same.
    pub effect: Effect,
    /// The difference in results, and its size.
    pub about: &'static str,
}

const fn exact(key: &'static str, about: &'static str) -> Choice {
    Choice { key, was: None, effect: Effect::Exact, about }
}

const fn reassociating(key: &'static str, about: &'static str) -> Choice {
    Choice { key, was: None, effect: Effect::Reassociating, about }
}

/// Every choice, in the order of [`Tuning`](super::Tuning)'s fields.
pub const CHOICES: [Choice; 9] = [
    reassociating(
        "stem",
        "the convolution's sums have zeros among their terms (`space_to_depth`), the norm's gradient sums fewer terms \
         (`pool_first`): a sum of n terms differs by at most n roundings of its dtype",
    ),
    reassociating(
        "pair_columns",
        "zeros are among the terms of the convolution's sums: at most n roundings for n terms",
    ),
    reassociating(
        "norm_gradient",
        "products and quotients of the same numbers in another order: a few roundings in f32",
    ),
    reassociating("softmax", "each of n terms rounds a value of the result's size by 2^-24 of it, in f32"),
    exact("layer_remat", "products run twice, on the same values").was("recompute"),
    exact("remat", "instructions run twice, on the same values"),
    exact("cotangent_remat", "a cotangent is computed twice, from the same values; where a sum is NaN it is NaN too")
        .was("residual"),
    exact("pace", "no value changes: barriers wait for more"),
    exact("transpose_input", "the same images, in another order on the way to the device"),
];

impl Choice {
    /// The choice with this key, or with this key in earlier versions.
    pub fn from_key(key: &str) -> Option<&'static Choice> {
        CHOICES.iter().find(|choice| choice.key == key || choice.was == Some(key))
    }

    const fn was(self, key: &'static str) -> Choice {
        Choice { was: Some(key), ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Tuning;
    use super::*;

    #[test]
    fn every_field_is_a_choice() {
        let tuning = Tuning::none().with(|tuning| tuning.transpose_input = true);
        let serde_json::Value::Object(fields) = serde_json::to_value(tuning).unwrap() else { panic!() };
        let keys: Vec<&str> = CHOICES.iter().map(|choice| choice.key).collect();
        assert_eq!(
            fields.keys().map(String::as_str).collect::<std::collections::BTreeSet<_>>(),
            keys.into_iter().collect()
        );
    }
}
