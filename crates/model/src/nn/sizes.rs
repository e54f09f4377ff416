//! Sizes along one, two or three spatial axes, as configurations have them.

use crate::document::{Node, ReadError, Value};
use bf16scope_hlo::ops::RuleError;
use serde::ser::Serializer;
use serde::{Deserialize, Deserializer, Serialize};

/// A size for each spatial axis of a sequence, an image or a volume. Equal sizes apply to any number of axes, and so
/// does a single number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    values: [i64; 3],
    n: usize,
}

impl From<i64> for Sizes {
    fn from(size: i64) -> Sizes {
        Sizes::from([size; 2])
    }
}

impl<const N: usize> From<[i64; N]> for Sizes {
    /// # Panics
    /// With more than three sizes, or none.
    fn from(sizes: [i64; N]) -> Sizes {
        const { assert!(N >= 1 && N <= 3, "one to three sizes") };
        let mut values = [sizes[0]; 3];
        values[..N].copy_from_slice(&sizes);
        Sizes { values, n: N }
    }
}

impl Sizes {
    /// The sizes for an image, if there are two, or all are equal.
    pub(crate) fn image(&self) -> Option<[i64; 2]> {
        self.of_axes("", "", 2).ok().map(|sizes| [sizes[0], sizes[1]])
    }

    /// The sizes for `n` axes.
    ///
    /// # Errors
    /// Different sizes for another number of axes.
    pub(super) fn of_axes(&self, rule: &'static str, what: &str, n: usize) -> Result<Vec<i64>, RuleError> {
        let sizes = &self.values[..self.n];
        if sizes.len() == n {
            return Ok(sizes.to_vec());
        }
        match sizes.iter().all(|size| *size == sizes[0]) {
            true => Ok(vec![sizes[0]; n]),
            false => {
                let axes = ["", "a sequence has 1", "an image has 2", "a volume has 3"][n.min(3)];
                let message = format!("{what} is {sizes:?}, of {} axes, and {axes}", sizes.len());
                Err(RuleError::new(rule, message).with_help(format!("write one number, or {n}")))
            }
        }
    }
}

impl Sizes {
    /// Reads sizes of at least `least`.
    pub(super) fn read(node: &Node, least: f64) -> Result<Sizes, ReadError> {
        let expected = format!("a whole number of at least {least}, or one for each axis: [height, width]");
        // No axis has more elements; f64 holds the number exactly.
        let size = |node: &Node| match &node.value {
            Value::Whole(n) if *n as f64 >= least && *n <= u64::from(u32::MAX) => Ok(*n as i64),
            _ => Err(node.wrong(&expected)),
        };
        match &node.value {
            Value::List(list) => match list.iter().map(size).collect::<Result<Vec<i64>, _>>()?[..] {
                [a] => Ok(Sizes::from([a])),
                [a, b] => Ok(Sizes::from([a, b])),
                [a, b, c] => Ok(Sizes::from([a, b, c])),
                _ => Err(node.wrong(&expected)),
            },
            _ => size(node).map(Sizes::from),
        }
    }
}

impl<'de> Deserialize<'de> for Sizes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Sizes, D::Error> {
        Node::read(deserializer, |node| Sizes::read(node, 1.0))
    }
}

impl Serialize for Sizes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.values[..self.n].serialize(serializer)
    }
}
