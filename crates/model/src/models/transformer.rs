//! A transformer: an encoder like BERT's, or with a causal mask a decoder like GPT's.

use crate::document;
use crate::graph::{Init, Scope, Tensor};
use crate::nn::{
    Attention, AttentionRemat, Dense, Embedding, FeedForward, Gelu, LayerNorm, PositionEmbedding, attention, dropout,
    embedding, feed_forward, layer_norm, position_embedding, token_logits,
};
use bf16scope_passes::tuning::LayerRemat;
use serde::{Deserialize, Serialize};

/// Configuration of [`build`]. The default is BERT-base.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// The number of tokens. Default 30522.
    #[serde(deserialize_with = "document::positive")]
    pub vocabulary: i64,
    /// Positions in an example. Default 128.
    #[serde(deserialize_with = "document::positive")]
    pub length: i64,
    /// Rows of the table of positions. Default 512.
    #[serde(deserialize_with = "document::positive")]
    pub max_length: i64,
    /// Blocks of attention and a feed-forward network. Default 12.
    #[serde(deserialize_with = "layers")]
    pub layers: i64,
    /// Features of a position. Default 768.
    #[serde(deserialize_with = "document::positive")]
    pub features: i64,
    /// Attention heads. Default 12.
    #[serde(deserialize_with = "document::positive")]
    pub heads: i64,
    /// Units between the two layers of the feed-forward network. Default 3072.
    #[serde(deserialize_with = "document::positive")]
    pub hidden: i64,
    /// The position of layer norms. Default post.
    pub norm: Norm,
    /// Whether a position attends only to itself and those before it, which makes it a decoder. Default false.
    pub causal: bool,
    /// Dropout rate after the embeddings and before each addition to the residual stream. Default 0.
    #[serde(deserialize_with = "document::fraction")]
    pub dropout: f64,
}

/// The deepest published transformer has a thousand layers (Wang et al. 2022, DeepNet). Each becomes hundreds of
/// instructions, so a much larger number would fill memory before any other check.
const MAX_LAYERS: i64 = 1000;

fn layers<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<i64, D::Error> {
    document::positive_up_to(deserializer, MAX_LAYERS)
}

/// The rematerialisation of attention in layer `number`, counted from 1.
fn of_attention(remat: &LayerRemat, number: i64) -> AttentionRemat {
    let levels = [
        (remat.values, AttentionRemat::Values),
        (remat.attention, AttentionRemat::Mixed),
        (remat.weights, AttentionRemat::Weights),
    ];
    let level = levels.into_iter().find(|(layers, _)| layers.covers(number));
    level.map_or(AttentionRemat::Nothing, |(_, level)| level)
}

/// The position of layer norms.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Norm {
    /// After each addition, as in the first transformer and in BERT: `norm(x + f(x))`.
    Post,
    /// Before each branch, and once before the logits, as in GPT-2: `x + f(norm(x))`.
    Pre,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            vocabulary: 30522,
            length: 128,
            max_length: 512,
            layers: 12,
            features: 768,
            heads: 12,
            hidden: 3072,
            norm: Norm::Post,
            causal: false,
            dropout: 0.0,
        }
    }
}

/// Tokens `[batch, length]` (any integer dtype) → logits `[batch, length, vocabulary]`, in the dtype of the open
/// low-precision scope, else f32.
///
/// Rows of the input table and of the table of positions are added; then follow `layers` blocks of self-attention and a
/// feed-forward network (dense, gelu in its tanh form, dense), each added to its input; then a dense layer with its own
/// kernel. A layer norm has ε 1e-6 and statistics in f32.
///
/// # Source
/// Vaswani et al. 2017, Devlin et al. 2018, Radford et al. 2019. Not taken from BERT: segments, the layer norm of the
/// embeddings, and the dense layer before the logits.
pub fn build(s: &Scope, tokens: &Tensor, config: &Config) -> Tensor {
    s.within("transformer", |s| {
        let (initializer, tuning) = (Init::BERT_NORMAL, s.tuning());
        let Config { vocabulary, features, max_length, .. } = *config;
        let (input_dim, output_dim, embeddings_initializer) = (vocabulary, features, initializer);
        let table = Embedding { input_dim, output_dim, embeddings_initializer, ..Embedding::default() };
        let x = embedding(s, tokens, "tokens", &table);
        let x = position_embedding(s, &x, "positions", &PositionEmbedding { max_length, initializer });
        let mut x = dropout(s, &x, "dropout", config.dropout);
        for number in 1..=config.layers {
            x = s.within(&format!("layer{number}"), |s| {
                let x = residual_connection(s, &x, "attention", config, |s, x| {
                    let config = Attention {
                        num_heads: config.heads,
                        use_causal_mask: config.causal,
                        kernel_initializer: initializer,
                        remat: of_attention(&tuning.layer_remat, number),
                        ..Attention::default()
                    };
                    attention(s, x, x, "heads", &config)
                });
                residual_connection(s, &x, "feed_forward", config, |s, x| {
                    let hidden = config.hidden;
                    let remat_hidden = tuning.layer_remat.hidden.covers(number);
                    let config = FeedForward {
                        hidden,
                        units: features,
                        gelu: Gelu::Tanh,
                        kernel_initializer: initializer,
                        remat_hidden,
                    };
                    feed_forward(s, x, &config)
                })
            });
        }
        let x = match config.norm {
            Norm::Post => x,
            Norm::Pre => layer_norm(s, &x, "norm", &LayerNorm::FLAX),
        };
        projection(s, &x, "logits", vocabulary)
    })
}

/// `norm(x + branch(x))` or `x + branch(norm(x))`.
fn residual_connection(
    s: &Scope,
    x: &Tensor,
    name: &str,
    config: &Config,
    branch: impl Fn(&Scope, &Tensor) -> Tensor,
) -> Tensor {
    s.within(name, |s| {
        let norm = |x: &Tensor| layer_norm(s, x, "norm", &LayerNorm::FLAX);
        let branch = |x: &Tensor| dropout(s, &branch(s, x), "dropout", config.dropout);
        match config.norm {
            Norm::Post => norm(&(x + branch(x)).named("add")),
            Norm::Pre => (x + branch(&norm(x))).named("add"),
        }
    })
}

fn projection(s: &Scope, x: &Tensor, name: &str, units: i64) -> Tensor {
    token_logits(s, x, name, &Dense { units, kernel_initializer: Init::BERT_NORMAL, ..Dense::default() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::Graph;
    use bf16scope_hlo::DType;

    fn n_parameters(config: &Config) -> i64 {
        let g = Graph::training("transformer");
        let tokens = g.input("tokens", DType::S32, [2, config.length]);
        let logits = g.bf16_scope(|s| build(s, &tokens, config)).cast(DType::F32);
        let program = g.finish(&[("logits", &logits)]).unwrap();
        assert_eq!(logits.dims(), [2, config.length, config.vocabulary]);
        assert_eq!(program.warnings, [""; 0]);
        assert!(program.variables.iter().filter(|v| v.trainable).all(|variable| variable.dtype == DType::F32));
        let trainable = program.variables.iter().filter(|variable| variable.trainable);
        trainable.map(|variable| variable.dims.iter().product::<i64>()).sum()
    }

    /// By hand: the two tables, 12 blocks of 4 (768² + 768) + 768 · 3072 + 3072 + 3072 · 768 + 768 + 4 · 768, and the
    /// logits' 768 · 30522 + 30522. A pre-norm transformer has one norm more.
    #[test]
    fn parameters_are_as_many_as_by_hand() {
        let bert = 30522 * 768 + 512 * 768 + 12 * 7_087_872 + 768 * 30522 + 30522;
        assert_eq!(n_parameters(&Config::default()), bert);
        assert_eq!(n_parameters(&Config { norm: Norm::Pre, causal: true, ..Config::default() }), bert + 2 * 768);
    }

    #[test]
    fn what_does_not_fit_says_so() {
        let error = |config: &Config| {
            let g = Graph::new("transformer");
            let logits = build(&g.scope(), &g.input("tokens", DType::S32, [2, config.length]), config);
            g.finish(&[("logits", &logits)]).unwrap_err().0.error.message
        };
        let heads = Config { heads: 10, ..Config::default() };
        assert_eq!(error(&heads), "768 features do not divide into 10 heads");
        let long = Config { length: 1024, ..Config::default() };
        assert_eq!(error(&long), "x has 1024 positions, the table 512 rows");
    }
}
