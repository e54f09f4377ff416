//! Which sequence of labels in a batch does not fit its steps.

use bf16scope_hlo::DType;
use bf16scope_hlo::element::integers;

use crate::alignment::Misfit;
use crate::feature::Feature;

impl Feature {
    /// The first of a batch's `n_examples` sequences that does not fit one of its
    /// [`alignments`](Feature::alignments); `array_of` finds the batch's arrays by name. Batches of
    /// [`Loader`](super::Loader) have been checked; a batch that a program made itself may have one.
    pub fn first_misfit<'a>(
        &self,
        n_examples: usize,
        array_of: impl Fn(&str) -> Option<(DType, &'a [u8])>,
    ) -> Option<Misfit> {
        let numbers = |name: &str| {
            let (dtype, bytes) = array_of(name)?;
            Some(integers(dtype, bytes)?.collect::<Vec<i128>>())
        };
        let length = self.dims.first().and_then(|&length| usize::try_from(length).ok()).filter(|&length| length > 0)?;
        self.alignments.iter().find_map(|alignment| {
            let labels = numbers(&self.name)?;
            let [label_lengths, logit_lengths] =
                [&alignment.label_lengths, &alignment.logit_lengths].map(|name| numbers(name.as_ref()?));
            let mut rows = labels.chunks_exact(length).take(n_examples).enumerate();
            rows.find_map(|(example, labels)| {
                let at = |lengths: &Option<Vec<i128>>| lengths.as_ref()?.get(example).copied();
                alignment.misfit(example, labels, at(&label_lengths), at(&logit_lengths))
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Alignment;
    use crate::{ArrayInfo, Arrays, Loader};
    use std::path::Path;

    fn labels(alignment: Alignment) -> Feature {
        Feature { alignments: vec![alignment], ..Feature::exact("text", DType::S32, [4]).label().below(5) }
    }

    /// Two examples: `1 1 2 0`, and `3 4 3 4`.
    fn source() -> Arrays {
        let bytes = |numbers: &[i32]| numbers.iter().flat_map(|number| number.to_le_bytes()).collect::<Vec<u8>>();
        let arrays = vec![
            (ArrayInfo::new("text", DType::S32, [4]), bytes(&[1, 1, 2, 0, 3, 4, 3, 4])),
            (ArrayInfo::new("n", DType::S32, []), bytes(&[2, 4])),
            (ArrayInfo::new("steps", DType::S32, []), bytes(&[3, 2])),
        ];
        Arrays::new(Path::new("a.npz"), arrays).unwrap()
    }

    #[test]
    fn labels_that_do_not_fit_their_steps_are_refused() {
        let lengths = |name: &str| Feature::exact(name, DType::S32, []).label().below(5);
        let check = |alignment: Alignment| {
            let source = source();
            let features = [labels(alignment), lengths("n"), lengths("steps")];
            let loader = Loader::new(&source, &features, DType::F32, 1, 0).unwrap();
            let is_good = loader.in_order().all(|batch| batch.is_ok());
            let checked = loader.check().map_err(|error| error.to_string());
            assert_eq!(checked.is_ok(), is_good);
            checked
        };
        let help = "\nhelp: leave such examples out, or let the network keep more steps: with smaller strides, or longer inputs";
        let all = Alignment { n_steps: 4, blank: 0, label_lengths: None, logit_lengths: None };
        assert_eq!(check(all.clone()), Ok(()));
        let expected = "a.npz, example 0: `text` has 3 labels and 1 blank between equal ones, which need 4 steps of \
                        the output; expected at most 3";
        assert_eq!(check(Alignment { n_steps: 3, ..all.clone() }), Err(format!("{expected}{help}")));
        // Both lengths: two equal labels in 3 steps, and four labels in 2.
        let named = |name: &str| Some(name.to_string());
        let both = Alignment { label_lengths: named("n"), logit_lengths: named("steps"), ..all.clone() };
        let expected = "a.npz, example 1: `text` has 4 labels, which need 4 steps of the output; expected at most 2";
        assert_eq!(check(both), Err(format!("{expected}{help}")));
        // Another blank: no label ends before the last.
        let error = check(Alignment { blank: 2, n_steps: 2, ..all }).unwrap_err();
        assert!(error.contains("2 labels and 1 blank between equal ones, which need 3 steps"), "{error}");
    }

    #[test]
    fn padding_after_the_examples_of_a_batch_is_not_looked_at() {
        let feature = labels(Alignment { n_steps: 4, blank: 4, label_lengths: None, logit_lengths: None });
        let bytes: Vec<u8> = [1i32, 2, 4, 4, 0, 0, 0, 0].iter().flat_map(|number| number.to_le_bytes()).collect();
        let array_of = |_: &str| Some((DType::S32, &bytes[..]));
        assert_eq!(feature.first_misfit(1, array_of), None);
        let misfit = Misfit { example: 1, n_labels: 4, n_separated: 3, n_steps: 4 };
        assert_eq!(feature.first_misfit(2, array_of), Some(misfit));
    }
}
