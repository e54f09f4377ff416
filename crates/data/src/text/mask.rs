//! Masked-LM masking as in BERT: some tokens are replaced, and the network predicts the originals.

use serde::{Deserialize, Serialize};

use crate::random::{Draw, Purpose};

/// Which tokens are masked, and how.
///
/// `share · n` of `n` tokens are chosen, rounded to nearest, at least one, never special ones. Each becomes the token
/// `token` with a probability of 0.8, a random token that is not special with 0.1, and stays unchanged with 0.1.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Mask {
    /// The share of tokens to choose. Default 0.15.
    pub share: f64,
    /// The token that replaces a masked one. Default `[MASK]`.
    pub token: String,
    /// The largest number of chosen tokens per example. Default no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max: Option<u32>,
}

impl Default for Mask {
    fn default() -> Mask {
        Mask { share: 0.15, token: "[MASK]".to_string(), max: None }
    }
}

/// The same, with ids.
#[derive(Clone, Debug)]
pub(super) struct Rule {
    pub share: f64,
    pub max: usize,
    /// The id that replaces a masked token.
    pub mask: i32,
    /// All ids are below this.
    pub vocabulary: u32,
    /// Ids of special tokens, sorted.
    pub special: Vec<u32>,
}

impl Rule {
    /// Replaces tokens of an example with `n` real ones; returns the chosen positions in ascending order.
    pub fn run(&self, tokens: &mut [i32], n: usize, draw: Draw) -> Vec<usize> {
        let is_special = |id: i32| self.special.binary_search(&(id as u32)).is_ok();
        let mut candidates: Vec<usize> = (0..n).filter(|&at| !is_special(tokens[at])).collect();
        let wanted = ((n as f64 * self.share).round_ties_even() as usize).max(1).min(self.max).min(candidates.len());
        let mut random = draw.stream(Purpose::Mask);
        // A partial Fisher-Yates shuffle.
        for at in 0..wanted {
            let other = at + random.below((candidates.len() - at) as u64) as usize;
            candidates.swap(at, other);
        }
        candidates.truncate(wanted);
        let n_words = u64::from(self.vocabulary) - self.special.len() as u64;
        for &at in &candidates {
            match random.below(10) {
                0..8 => tokens[at] = self.mask,
                8 if n_words > 0 => tokens[at] = self.word(random.below(n_words) as u32) as i32,
                _ => {}
            }
        }
        candidates.sort_unstable();
        candidates
    }

    /// The `number`th id that is not special.
    fn word(&self, number: u32) -> u32 {
        self.special.iter().fold(number, |id, &special| if special <= id { id + 1 } else { id })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(vocabulary: u32) -> Rule {
        Rule { share: 0.15, max: usize::MAX, mask: 4, vocabulary, special: vec![0, 2, 3, 4] }
    }

    /// 10^4 examples of 40 tokens, two of them special: 6 of the others are chosen. A count of n independent draws with
    /// probability p deviates from n p by more than 5 √(n p (1 − p)) once in 1.7 million times (the tail of the normal
    /// distribution, a good approximation for such n); about 60 such counts are checked. The chosen positions of an
    /// example exclude one another, which only makes a position's count more regular: 0 or 1 per example, with p = 6 /
    /// 38.
    #[test]
    fn positions_and_replacements_come_as_often_as_bert_says() {
        let (rule, n_examples, n) = (rule(30), 10_000u64, 40);
        let is_near = |count: u64, of: u64, p: f64| {
            let (mean, deviation) = (of as f64 * p, (of as f64 * p * (1.0 - p)).sqrt());
            assert!((count as f64 - mean).abs() <= 5.0 * deviation, "{count} of {of}, expected {mean} ± {deviation}");
        };
        let mut by_position = vec![0; n];
        let (mut masked, mut random, mut unchanged, mut words) = (0, 0, 0, vec![0; 30]);
        for index in 0..n_examples {
            // The word 29 everywhere, so that each result shows what was drawn.
            let mut tokens = vec![29; n];
            (tokens[0], tokens[n - 1]) = (2, 3);
            let chosen = rule.run(&mut tokens, n, Draw::new(1, 2, index));
            assert_eq!(chosen.len(), 6);
            let before = |at: usize| {
                if at == 0 {
                    2
                } else if at == n - 1 {
                    3
                } else {
                    29
                }
            };
            assert!(tokens.iter().enumerate().all(|(at, &token)| chosen.contains(&at) || token == before(at)));
            for at in chosen {
                by_position[at] += 1;
                match tokens[at] {
                    4 => masked += 1,
                    // A random word equals the original by chance once in 26 times.
                    29 => unchanged += 1,
                    word => {
                        random += 1;
                        words[word as usize] += 1;
                    }
                }
            }
        }
        let n_chosen = 6 * n_examples;
        assert_eq!((by_position[0], by_position[n - 1]), (0, 0));
        by_position[1..n - 1].iter().for_each(|&count| is_near(count, n_examples, 6.0 / 38.0));
        is_near(masked, n_chosen, 0.8);
        is_near(random, n_chosen, 0.1 * 25.0 / 26.0);
        is_near(unchanged, n_chosen, 0.1 + 0.1 / 26.0);
        for (id, &count) in words.iter().enumerate() {
            match [0, 2, 3, 4, 29].contains(&id) {
                true => assert_eq!(count, 0, "{id}"),
                false => is_near(count, n_chosen, 0.1 / 26.0),
            }
        }
    }

    /// Expectations from a separate implementation in Python. If this changes, resumed runs see other masks than
    /// before: do not bless it.
    #[test]
    fn masks_never_change() {
        let run = |seed, epoch| {
            let mut tokens: Vec<i32> = (5..30).collect();
            let chosen = rule(30).run(&mut tokens, 25, Draw::new(seed, epoch, 0));
            let shown: Vec<(usize, i32)> = chosen.into_iter().map(|at| (at, tokens[at])).collect();
            shown
        };
        assert_eq!(run(0, 0), [(2, 7), (6, 4), (7, 12), (13, 4)]);
        assert_eq!(run(0, 1), [(6, 4), (9, 4), (11, 4), (15, 4)]);
        assert_eq!(run(1, 0), [(3, 9), (13, 15), (22, 4), (24, 29)]);
    }

    #[test]
    fn an_example_has_its_own_draws_whenever_it_is_asked() {
        let tokens: Vec<i32> = (5..25).collect();
        let run = |rule: &Rule, epoch, index| {
            let mut tokens = tokens.clone();
            (rule.run(&mut tokens, 20, Draw::new(7, epoch, index)), tokens)
        };
        let rule = rule(30);
        assert_eq!(run(&rule, 0, 3), run(&rule, 0, 3));
        assert!(run(&rule, 0, 3) != run(&rule, 1, 3) && run(&rule, 0, 3) != run(&rule, 0, 4));
        assert_eq!(run(&Rule { max: 2, ..rule.clone() }, 0, 0).0.len(), 2);
        // At least one token, none if all are special; padding is never chosen.
        let mut few = vec![2, 9, 3, 0, 0, 0, 0];
        assert_eq!(rule.run(&mut few, 3, Draw::new(0, 0, 0)), [1]);
        let mut none = vec![2, 3, 0];
        assert_eq!((rule.run(&mut none, 2, Draw::new(0, 0, 0)), none), (vec![], vec![2, 3, 0]));
    }
}
