//! Attributes of ops, functions and values, as the generic form writes them.

use super::cursor::Cursor;
use super::types::{Dense, element};
use bf16scope_hlo::ops::ConvolutionDims;
use bf16scope_hlo::{ArrayShape, DType, Literal};

/// Names and values, no name twice. What nobody takes is something that nobody understood.
#[derive(Debug, Default)]
pub(super) struct Attributes<'t>(Vec<(&'t str, Attribute<'t>)>);

/// A value.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Attribute<'t> {
    /// Alone, or with an integer's type.
    Int(i64),
    Bool(bool),
    /// With a float's type.
    Float(Literal),
    /// `array<i64: 1, 2>`; of `i1`, 0 and 1.
    Ints(Vec<i64>),
    Dense(Dense),
    /// `"…"`, as it is written.
    Text(&'t str),
    Symbol(&'t str),
    /// The last word of `#stablehlo<precision DEFAULT>`, or one alone.
    Word(&'t str),
    /// `[…, …]`.
    List(Vec<Attribute<'t>>),
    /// `#stablehlo.gather<offset_dims = [1], index_vector_dim = 1>`.
    Fields(Attributes<'t>),
    Convolution(ConvolutionDims),
    /// A name alone.
    Unit,
}

impl PartialEq for Attributes<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}

impl Clone for Attributes<'_> {
    fn clone(&self) -> Self {
        Attributes(self.0.clone())
    }
}

impl<'t> Attributes<'t> {
    pub(super) fn put(&mut self, name: &'t str, value: Attribute<'t>) -> Option<()> {
        if self.0.iter().any(|(known, _)| *known == name) {
            return None;
        }
        self.0.push((name, value));
        Some(())
    }

    pub(super) fn join(&mut self, other: Attributes<'t>) -> Option<()> {
        other.0.into_iter().try_for_each(|(name, value)| self.put(name, value))
    }

    pub(super) fn take(&mut self, name: &str) -> Option<Attribute<'t>> {
        let at = self.0.iter().position(|(known, _)| *known == name)?;
        Some(self.0.swap_remove(at).1)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn take_ints(&mut self, name: &str) -> Option<Vec<i64>> {
        match self.take(name)? {
            Attribute::Ints(values) => Some(values),
            Attribute::List(values) => values.into_iter().map(Attribute::int).collect(),
            _ => None,
        }
    }

    /// As [`Attributes::take_ints`], where those are not said, what they are then.
    pub(super) fn ints_or(&mut self, name: &str, default: impl FnOnce() -> Vec<i64>) -> Option<Vec<i64>> {
        if self.has(name) { self.take_ints(name) } else { Some(default()) }
    }

    pub(super) fn take_int(&mut self, name: &str) -> Option<i64> {
        self.take(name)?.int()
    }

    pub(super) fn take_word(&mut self, name: &str) -> Option<&'t str> {
        match self.take(name)? {
            Attribute::Word(word) => Some(word),
            _ => None,
        }
    }

    /// False if the attribute is absent.
    pub(super) fn take_bool(&mut self, name: &str) -> Option<bool> {
        match self.take(name) {
            None => Some(false),
            Some(Attribute::Bool(value)) => Some(value),
            Some(_) => None,
        }
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.0.iter().any(|(known, _)| *known == name)
    }
}

impl Attribute<'_> {
    pub(super) fn int(self) -> Option<i64> {
        match self {
            Attribute::Int(value) => Some(value),
            _ => None,
        }
    }
}

impl<'t> Cursor<'t> {
    /// `{name = value, …}` where it is there.
    pub(super) fn attributes(&mut self) -> Option<Attributes<'t>> {
        let mut attributes = Attributes::default();
        if self.peek() == b'{' {
            self.list("{", "}", |cursor| cursor.named(&mut attributes))?;
        }
        Some(attributes)
    }

    fn named(&mut self, attributes: &mut Attributes<'t>) -> Option<()> {
        let name = if self.peek() == b'"' { self.quoted()? } else { self.word()? };
        let value = if self.eat("=") { self.deeper(Cursor::attribute)? } else { Attribute::Unit };
        attributes.put(name, value)
    }

    fn attribute(&mut self) -> Option<Attribute<'t>> {
        match self.peek() {
            b'"' => self.quoted().map(Attribute::Text),
            b'@' => self.symbol().map(Attribute::Symbol),
            b'[' => {
                let item = |cursor: &mut Cursor<'t>| cursor.deeper(Cursor::attribute);
                self.list("[", "]", item).map(Attribute::List)
            }
            b'{' if self.is_symbolic => self.attributes().map(Attribute::Fields),
            b'#' => self.of_dialect(),
            b'-' | b'0'..=b'9' => self.typed_number(),
            _ => match self.word()? {
                "true" => Some(Attribute::Bool(true)),
                "false" => Some(Attribute::Bool(false)),
                "array" => self.int_array(),
                "dense" => self.dense().map(Attribute::Dense),
                _ => None,
            },
        }
    }

    /// `1`, `1 : i64` or `1.0e-5 : f32`.
    fn typed_number(&mut self) -> Option<Attribute<'t>> {
        let number = self.number()?;
        let dtype = if self.eat(":") { Some(self.word()?) } else { None };
        match dtype {
            None | Some("i64" | "i32") => number.parse().ok().map(Attribute::Int),
            Some("f32") => {
                let mut bytes = Vec::new();
                element(DType::F32, number, &mut bytes)?;
                Some(Attribute::Float(Literal::Array { shape: ArrayShape::new(DType::F32, []), bytes }))
            }
            Some(_) => None,
        }
    }

    /// `array<i64: 1, 2>`, after the word.
    fn int_array(&mut self) -> Option<Attribute<'t>> {
        self.expect("<")?;
        let is_flags = self.eat_word("i1");
        if !is_flags {
            self.expect_word("i64")?;
        }
        if self.eat(">") {
            return Some(Attribute::Ints(Vec::new()));
        }
        let item = |cursor: &mut Cursor<'t>| match is_flags {
            true => cursor.flag().map(i64::from),
            false => cursor.int(),
        };
        self.list(":", ">", item).filter(|values| !values.is_empty()).map(Attribute::Ints)
    }

    pub(super) fn flag(&mut self) -> Option<bool> {
        match self.word()? {
            "true" => Some(true),
            "false" => Some(false),
            _ => None,
        }
    }

    fn of_dialect(&mut self) -> Option<Attribute<'t>> {
        self.expect("#")?;
        match self.word()? {
            "stablehlo" => {
                self.expect("<")?;
                let _kind = self.word()?;
                let word = self.word()?;
                self.expect(">")?;
                Some(Attribute::Word(word))
            }
            "stablehlo.conv" => {
                self.expect("<")?;
                let dims = self.convolution_dims()?;
                self.expect(">")?;
                Some(Attribute::Convolution(dims))
            }
            "stablehlo.gather" | "stablehlo.scatter" | "stablehlo.dot" => {
                let mut fields = Attributes::default();
                self.list("<", ">", |cursor| {
                    let name = cursor.word()?;
                    cursor.expect("=")?;
                    let value = match cursor.peek() {
                        b'[' => Attribute::Ints(cursor.ints()?),
                        _ => Attribute::Int(cursor.int()?),
                    };
                    fields.put(name, value)
                })?;
                Some(Attribute::Fields(fields))
            }
            _ => None,
        }
    }

    /// `[b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f]`.
    pub(super) fn convolution_dims(&mut self) -> Option<ConvolutionDims> {
        let (input_batch, input_feature, input_spatial) = self.labels("b", "f")?;
        self.expect("x")?;
        let (kernel_input_feature, kernel_output_feature, kernel_spatial) = self.labels("i", "o")?;
        self.expect("->")?;
        let (output_batch, output_feature, output_spatial) = self.labels("b", "f")?;
        Some(ConvolutionDims {
            input_batch,
            input_feature,
            input_spatial,
            kernel_input_feature,
            kernel_output_feature,
            kernel_spatial,
            output_batch,
            output_feature,
            output_spatial,
        })
    }

    /// Where two letters and the spatial dimensions stand.
    fn labels(&mut self, first: &str, second: &str) -> Option<(i64, i64, Vec<i64>)> {
        let labels = self.list("[", "]", |cursor| match cursor.peek() {
            b'0'..=b'9' => cursor.int().map(Ok),
            _ => cursor.word().map(Err),
        })?;
        let at = |wanted| labels.iter().position(|label| *label == wanted).map(|at| at as i64);
        let spatial = (0..labels.len() as i64 - 2).map(|n| at(Ok(n))).collect::<Option<_>>()?;
        Some((at(Err(first))?, at(Err(second))?, spatial))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_read_and_taken() {
        let text = "{dimension_numbers = #stablehlo.gather<offset_dims = [1], index_vector_dim = 1>, is_stable = true, \
                    padding = dense<0> : tensor<2x2xi64>, sizes = array<i64: 1, 4>, flags = array<i1: true, false>, \
                    none = array<i64>, kind = [#stablehlo<precision HIGH>], dim = 1 : i64, \"a.b\" = \"c\", unit}";
        let mut found = Cursor::new(text).attributes().unwrap();
        let Some(Attribute::Fields(mut fields)) = found.take("dimension_numbers") else { panic!("{found:?}") };
        assert_eq!((fields.take_ints("offset_dims"), fields.take_int("index_vector_dim")), (Some(vec![1]), Some(1)));
        assert_eq!((found.take_bool("is_stable"), found.take_bool("missing")), (Some(true), Some(false)));
        assert_eq!((found.take_ints("sizes"), found.take_ints("flags")), (Some(vec![1, 4]), Some(vec![1, 0])));
        assert_eq!((found.take_ints("none"), found.take_int("dim")), (Some(vec![]), Some(1)));
        assert_eq!(found.take("kind"), Some(Attribute::List(vec![Attribute::Word("HIGH")])));
        assert_eq!((found.take("a.b"), found.take("unit")), (Some(Attribute::Text("c")), Some(Attribute::Unit)));
        assert!(!found.is_empty() && found.take("padding").is_some() && found.is_empty());
    }

    #[test]
    fn what_is_said_twice_or_not_known_is_nothing() {
        for text in
            ["{a = 1, a = 1}", "{a = #sdy.sharding<@m>}", "{a = {b = 1}}", "{a = 1 : f64}", "{a = array<i32: 1>}"]
        {
            assert!(Cursor::new(text).attributes().is_none(), "{text}");
        }
        assert!(Cursor::new(&format!("{{a = {}", "[".repeat(100_000))).attributes().is_none());
        assert!(Cursor::new("[b, 0, f]x[0, i, i]->[b, 0, f]").convolution_dims().is_none());
    }
}
