//! The only code that uses the crate `tokenizers`: feature `text`. Without the feature, [`Model::read`] is an error
//! that says so.

#[cfg(feature = "text")]
mod bounded;

#[cfg(feature = "text")]
pub(super) use with::Model;
#[cfg(not(feature = "text"))]
pub(super) use without::Model;

/// A tokenizer's output for a whole text: ids, and the segment of each.
pub(super) type Framed = (Vec<u32>, Vec<u32>);

#[cfg(feature = "text")]
mod with {
    use tokenizers::{ModelWrapper, PostProcessorWrapper, PreTokenizerWrapper, TokenizerImpl};

    use super::Framed;
    use super::bounded::{self, Decoders, Normalizers};
    use crate::guard::guarded;

    /// The crate's tokenizer, with bounds on the steps that make text longer.
    type Bounded = TokenizerImpl<ModelWrapper, Normalizers, PreTokenizerWrapper, PostProcessorWrapper, Decoders>;

    /// The tokenizer that a `tokenizer.json` describes.
    #[derive(Debug)]
    pub struct Model(Box<Bounded>);

    /// The result of a call into the crate: an error may be its own, a bound's, or a panic.
    fn asked<T>(ask: impl FnOnce() -> tokenizers::Result<T>) -> Result<T, String> {
        let answer = guarded(|| ask().map_err(|error| error.to_string()));
        match bounded::refused() {
            Some(refused) => Err(refused),
            None => answer.unwrap_or_else(|panicked| Err(panicked.to_string())),
        }
    }

    impl Model {
        pub fn read(json: &[u8]) -> Result<Model, String> {
            let model = asked(|| Bounded::from_bytes(json)).map_err(|error| format!("no tokenizer: {error}"))?;
            Ok(Model(Box::new(model)))
        }

        /// The largest id; `None` without ids.
        pub fn greatest(&self) -> Option<u32> {
            self.0.get_vocab(true).into_values().max()
        }

        pub fn id(&self, token: &str) -> Option<u32> {
            self.0.token_to_id(token)
        }

        /// Ids of tokens that do not stand for text, ascending.
        pub fn special_ids(&self) -> Vec<u32> {
            let tokens = self.0.get_added_tokens_decoder();
            let mut ids: Vec<u32> = tokens.iter().filter(|(_, token)| token.special).map(|(id, _)| *id).collect();
            ids.sort_unstable();
            ids
        }

        /// The ids of a text, without special tokens.
        pub fn ids(&self, text: &str) -> Result<Vec<u32>, String> {
            let encoding = asked(|| self.0.encode_fast(text, false))?;
            Ok(encoding.get_ids().to_vec())
        }

        /// The ids of one text, or a pair, with the special tokens that the tokenizer adds.
        pub fn framed(&self, text: &str, second: Option<&str>) -> Result<Framed, String> {
            let encoding = asked(|| match second {
                Some(second) => self.0.encode((text, second), true),
                None => self.0.encode(text, true),
            })?;
            Ok((encoding.get_ids().to_vec(), encoding.get_type_ids().to_vec()))
        }

        pub fn decode(&self, ids: &[u32]) -> String {
            asked(|| self.0.decode(ids, false)).unwrap_or_default()
        }
    }
}

#[cfg(not(feature = "text"))]
mod without {
    use super::Framed;

    /// Uninhabited: the feature `text` is off.
    #[derive(Debug)]
    pub enum Model {}

    impl Model {
        pub fn read(_: &[u8]) -> Result<Model, String> {
            Err("the feature `text` is off".to_string())
        }

        pub fn greatest(&self) -> Option<u32> {
            match *self {}
        }

        pub fn id(&self, _: &str) -> Option<u32> {
            match *self {}
        }

        pub fn special_ids(&self) -> Vec<u32> {
            match *self {}
        }

        pub fn ids(&self, _: &str) -> Result<Vec<u32>, String> {
            match *self {}
        }

        pub fn framed(&self, _: &str, _: Option<&str>) -> Result<Framed, String> {
            match *self {}
        }

        pub fn decode(&self, _: &[u32]) -> String {
            match *self {}
        }
    }
}
