//! Padding and cropping of sequences, images and volumes: `zero_padding`, `crop`.

use super::layer_options::LayerOptions;
use crate::document::{self, Node, Value};
use crate::graph::{Scope, Tensor};
use crate::nn::options::is_default;
use crate::nn::{self, DataFormat};
use bf16scope_hlo::ops::RuleError;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Margins before and after each spatial axis: for an image `[[above, below], [left, right]]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Margins(pub Vec<[i64; 2]>);

impl Margins {
    fn one() -> Margins {
        Margins(vec![[1; 2]; 2])
    }

    /// The margins for `n` axes: one number is for all sides, and for a sequence two numbers are before and after.
    fn of_axes(&self, n: usize) -> Result<Vec<[i64; 2]>, RuleError> {
        let is_symmetric = self.0.iter().all(|[low, high]| low == high);
        let is_one = is_symmetric && self.0.iter().all(|pair| *pair == self.0[0]);
        match (self.0.len(), n) {
            (own, n) if own == n => Ok(self.0.clone()),
            (2, 1) if is_symmetric => Ok(vec![[self.0[0][0], self.0[1][0]]]),
            _ if is_one => Ok(vec![self.0[0]; n]),
            (own, _) => {
                let message = format!("the margins are of {own} axes, and there are {n} axes of places");
                let error = RuleError::new("margins/axes", message);
                Err(error.with_help("write one number, or one, or [before, after], for each axis"))
            }
        }
    }
}

/// As in Keras: one number for all sides, one for each axis, or `[before, after]` for each axis.
impl<'de> Deserialize<'de> for Margins {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Margins, D::Error> {
        const EXPECTED: &str = "a whole number of at least 1, [height, width], or [[top, bottom], [left, right]]";
        // No axis has more elements; f64 holds the number exactly.
        let fits = |n: f64| n.fract() == 0.0 && (0.0..=f64::from(u32::MAX)).contains(&n);
        let number = |node: &Node| document::number(node, fits, EXPECTED).map(|n| n as i64);
        let sides = |node: &Node| match &node.value {
            Value::List(list) => match &list[..] {
                [low, high] => Ok([number(low)?, number(high)?]),
                _ => Err(node.wrong(EXPECTED)),
            },
            _ => number(node).map(|n| [n; 2]),
        };
        Node::read(deserializer, |node| {
            let margins = match &node.value {
                Value::List(list) if (1..=3).contains(&list.len()) => {
                    list.iter().map(sides).collect::<Result<_, _>>()?
                }
                Value::List(_) => return Err(node.wrong(EXPECTED)),
                _ => vec![sides(node)?; 2],
            };
            if margins.iter().flatten().all(|n| *n == 0) { Err(node.wrong(EXPECTED)) } else { Ok(Margins(margins)) }
        })
    }
}

/// Written in the shortest form, as in checkpoints that are older than the longer form.
impl Serialize for Margins {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match &self.0[..] {
            [[top, bottom], [left, right]] if top == bottom && left == right => [top, left].serialize(serializer),
            each => each.serialize(serializer),
        }
    }
}

/// Options of `crop`; see [`nn::crop`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Crop {
    /// For an image: rows above and below, columns left and right. Default 1.
    #[serde(default = "Margins::one")]
    pub cropping: Margins,
    /// The position of the channels. Default `channels_last`.
    #[serde(default, skip_serializing_if = "is_default")]
    pub data_format: DataFormat,
}

/// Options of `zero_padding`; see [`nn::zero_padding`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ZeroPadding {
    /// For an image: rows above and below, columns left and right. Default 1.
    #[serde(default = "Margins::one")]
    pub padding: Margins,
    /// The position of the channels. Default `channels_last`.
    #[serde(default, skip_serializing_if = "is_default")]
    pub data_format: DataFormat,
}

/// An image by `image`; a sequence or a volume by padding of `sign` times the margins.
fn moved(
    s: &Scope,
    what: &'static str,
    x: &Tensor,
    (margins, format, sign): (&Margins, DataFormat, i64),
    image: impl Fn([[i64; 2]; 2]) -> Tensor,
) -> Tensor {
    if x.is_poison() {
        return x.clone();
    }
    // The function for images reports ranks that no input may have.
    let n = if matches!(x.rank(), 3 | 5) { x.rank() - 2 } else { 2 };
    let margins = margins.of_axes(n).and_then(|margins| match n != 2 && format != DataFormat::ChannelsLast {
        true => Err(RuleError::new("margins/format", "`channels_first` is for images, expected `channels_last`")),
        false => Ok(margins),
    });
    match margins {
        Ok(margins) => match margins[..] {
            [rows, columns] => image([rows, columns]),
            _ => nn::pad_places(x, &margins.iter().map(|pair| pair.map(|n| n * sign)).collect::<Vec<_>>()),
        },
        Err(error) => s.graph().fail(what, &[x], error),
    }
}

impl LayerOptions for Crop {
    fn build(&self, s: &Scope, name: &str, inputs: &[&Tensor]) -> Tensor {
        let (x, format) = (inputs[0], self.data_format);
        s.layer(name, |s| moved(s, "crop", x, (&self.cropping, format, -1), |margins| nn::crop(x, margins, format)))
    }
}

impl LayerOptions for ZeroPadding {
    fn build(&self, s: &Scope, name: &str, inputs: &[&Tensor]) -> Tensor {
        let (x, format) = (inputs[0], self.data_format);
        let image = |margins| nn::zero_padding(x, margins, format);
        s.layer(name, |s| moved(s, "zero_padding", x, (&self.padding, format, 1), image))
    }
}
