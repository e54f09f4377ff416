//! Models: a configuration (serde) and a function that builds it on a scope.
//!
//! Every `build` takes the input in whatever dtype it is to compute in, and gives logits in that dtype; where the
//! low-precision scope opens and where logits become f32 is up to the caller, who is most often [`forward`].

pub mod cnn;
pub mod kind;
mod layout;
pub mod mlp;
pub mod resnet;
pub mod transformer;
pub mod yaml;

pub use layout::image_dims;
pub use yaml::{ConfigError, ConfigProblem};

use crate::graph::{Graph, Precision, Scope, Tensor};
use crate::hlo::DType;
use crate::tuning::Softmax;
use serde::{Deserialize, Deserializer, Serialize};

/// A model of the zoo, as a YAML file describes it: `kind` first, then the keys of that kind's configuration.
///
/// ```
/// use bf16scope::models::{Model, yaml};
///
/// let model: Model = yaml::from_str("mlp.yaml", "kind: mlp\ninput: [64]\nn_classes: 10\n").unwrap();
/// assert_eq!(model.n_classes(), 10);
/// ```
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Model {
    /// Dense layers.
    Mlp(mlp::Config),
    /// A small convolutional network.
    Cnn(cnn::Config),
    /// ResNet v1.5.
    Resnet(resnet::Config),
    /// A transformer encoder or decoder.
    Transformer(transformer::Config),
}

impl Model {
    /// Its kind.
    pub fn kind(&self) -> &'static str {
        match self {
            Model::Mlp(_) => "mlp",
            Model::Cnn(_) => "cnn",
            Model::Resnet(_) => "resnet",
            Model::Transformer(_) => "transformer",
        }
    }

    /// What it reads.
    pub fn reads(&self) -> Reads {
        match self {
            Model::Mlp(_) | Model::Cnn(_) | Model::Resnet(_) => Reads::Images,
            Model::Transformer(_) => Reads::Tokens,
        }
    }

    /// Dims of one example: for images `[height, width, channels]`, for tokens `[length]`.
    pub fn input(&self) -> &[i64] {
        match self {
            Model::Mlp(config) => &config.input,
            Model::Cnn(config) => &config.input,
            Model::Resnet(config) => &config.input,
            Model::Transformer(config) => std::slice::from_ref(&config.length),
        }
    }

    /// Number of classes: of an image, or of the token at each position.
    pub fn n_classes(&self) -> i64 {
        match self {
            Model::Mlp(config) => config.n_classes,
            Model::Cnn(config) => config.n_classes,
            Model::Resnet(config) => config.n_classes,
            Model::Transformer(config) => config.vocabulary,
        }
    }

    /// Builds it: images `[batch, input…]` → logits `[batch, n_classes]` in the dtype of the images; tokens
    /// `[batch, length]` → logits `[batch, length, n_classes]` in the dtype of the scope.
    pub fn build(&self, s: &Scope, inputs: &Tensor) -> Tensor {
        match self {
            Model::Mlp(config) => mlp::build(s, inputs, config),
            Model::Cnn(config) => cnn::build(s, inputs, config),
            Model::Resnet(config) => resnet::v1(s, inputs, config),
            Model::Transformer(config) => transformer::build(s, inputs, config),
        }
    }
}

/// What a model reads, and so what its programs' input is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reads {
    /// Numbers, `images` in programs, cast on the host to the dtype the network computes in.
    Images,
    /// Indices of a vocabulary, `tokens` in programs, s32 in every precision.
    Tokens,
}

impl Reads {
    /// The name of the programs' input.
    pub fn name(self) -> &'static str {
        match self {
            Reads::Images => "images",
            Reads::Tokens => "tokens",
        }
    }

    /// The dtype of the programs' input.
    pub fn dtype(self, precision: Precision) -> DType {
        match self {
            Reads::Images => precision.compute(),
            Reads::Tokens => DType::S32,
        }
    }
}

/// The forward part of a program.
#[derive(Clone, Debug)]
pub struct Forward {
    /// What the input is.
    pub reads: Reads,
    /// The program's input: `images` `[batch, input…]`, already in the dtype the network computes in, or `tokens`
    /// `s32[batch, length]`.
    pub input: Tensor,
    /// What the network gave, in the dtype it computes in.
    pub network: Tensor,
    /// The same as f32: `[batch, n_classes]` or `[batch, length, n_classes]`.
    pub logits: Tensor,
    /// How the softmax of a loss over a vocabulary finds its sums.
    pub softmax: Softmax,
}

impl Forward {
    /// Dims of the labels: one for each row of logits.
    pub fn label_dims(&self) -> Vec<i64> {
        let dims = self.logits.dims();
        dims.split_last().map(|(_, leading)| leading.to_vec()).unwrap_or_default()
    }
}

/// The forward part of a program in `graph`: an input that the host has cast, the network in a low-precision scope, and
/// logits cast to f32 right after it.
///
/// ```
/// use bf16scope::graph::{Graph, Precision};
/// use bf16scope::hlo::DType;
/// use bf16scope::models::{Model, forward, mlp};
///
/// let model = Model::Mlp(mlp::Config::new([64], 10));
/// let g = Graph::new("mlp");
/// let forward = forward(&g, &model, Precision::Bf16, 32);
/// assert_eq!((forward.input.dtype(), forward.logits.dtype()), (DType::BF16, DType::F32));
/// ```
#[track_caller]
pub fn forward(graph: &Graph, model: &Model, precision: Precision, batch: i64) -> Forward {
    let dims: Vec<i64> = [batch].into_iter().chain(model.input().iter().copied()).collect();
    let input = graph.input(model.reads().name(), model.reads().dtype(precision), dims);
    let network = graph.low_precision_scope(precision, |s| model.build(s, &input));
    let logits = network.cast(DType::F32);
    Forward { reads: model.reads(), input, network, logits, softmax: graph.tuning().softmax }
}

impl<'de> Deserialize<'de> for Model {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Model, D::Error> {
        #[derive(Deserialize)]
        #[serde(rename_all = "lowercase")]
        enum Kind {
            Mlp(mlp::Config),
            Cnn(cnn::Config),
            Resnet(resnet::Config),
            Transformer(transformer::Config),
        }
        Ok(match kind::kind_first(deserializer)? {
            Kind::Mlp(config) => Model::Mlp(config),
            Kind::Cnn(config) => Model::Cnn(config),
            Kind::Resnet(config) => Model::Resnet(config),
            Kind::Transformer(config) => Model::Transformer(config),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::{Expect, expect};

    fn check(text: &str, expected: Expect) {
        expected.assert_eq(&yaml::from_str::<Model>("model.yaml", text).unwrap_err().to_string());
    }

    #[test]
    fn every_key_round_trips() {
        for text in [
            "kind: mlp\ninput: [8, 8, 1]\nn_classes: 10\nhidden: [64, 32]\ndropout: 0.25\n",
            "kind: cnn\ninput: [8, 8, 1]\nn_classes: 10\nfilters: [4]\nkernel: 5\nhidden: [64]\ndropout: 0.5\n",
            "kind: resnet\ninput: [32, 32, 3]\nn_classes: 10\ndepth: 18\nwidth: 16\npadding: fixed\nformat: nchw\n\
             zero_init_residual: false\nmomentum: 0.99\nepsilon: 0.001\n",
            "kind: transformer\nvocabulary: 99\nlength: 8\nmax_length: 16\nlayers: 3\nfeatures: 24\nheads: 3\n\
             hidden: 48\nnorm: pre\ncausal: true\ndropout: 0.125\n",
        ] {
            let model: Model = yaml::from_str("model.yaml", text).unwrap();
            assert_eq!(serde_yaml::to_string(&model).unwrap().replace("\n- ", ", "), list_form(text), "{text}");
        }
    }

    /// serde_yaml writes lists over several lines; `text` has them in brackets.
    fn list_form(text: &str) -> String {
        text.replace(": [", ":, ").replace(']', "")
    }

    #[test]
    fn kind_is_known_and_first() {
        check(
            "kind: resnt\n",
            expect![[r#"
            model.yaml:1:7: unknown value `resnt`, expected one of mlp, cnn, resnet, transformer
              1 | kind: resnt
                |       ^^^^^
              help: did you mean `resnet`?"#]],
        );
        check(
            "depth: 50\nkind: resnet\n",
            expect![[r#"
                model.yaml:1:1: found key `depth`, expected `kind: …` before it
                  1 | depth: 50
                    | ^^^^^"#]],
        );
        check(
            "{}\n",
            expect![[r#"
            model.yaml:1:1: missing key `kind`
              1 | {}
                | ^
              help: add `kind: …` to the block that starts here"#]],
        );
        check(
            "[resnet]\n",
            expect![[r#"
            model.yaml:1:1: found a list, expected a map that starts with `kind`
              1 | [resnet]
                | ^"#]],
        );
    }

    #[test]
    fn errors_inside_a_kind_point_at_their_line() {
        check(
            "kind: resnet\ndepth: 51\n",
            expect![[r#"
            model.yaml:2:8: found integer `51`, expected one of 18, 34, 50, 101, 152
              2 | depth: 51
                |        ^^"#]],
        );
        check(
            "kind: resnet\ninput: [224, 224]\n",
            expect![[r#"
                model.yaml:2:8: found 2 sizes, expected [height, width, channels]
                  2 | input: [224, 224]
                    |        ^"#]],
        );
        check(
            "kind: resnet\nformat: hwcn\n",
            expect![[r#"
            model.yaml:2:9: unknown value `hwcn`, expected one of nhwc, nchw
              2 | format: hwcn
                |         ^^^^
              help: did you mean `nhwc`?"#]],
        );
        check(
            "kind: cnn\ninput: [8, 8, 1]\nn_classes: 10\nfilter: [8]\n",
            expect![[r#"
            model.yaml:4:1: unknown key `filter`, expected one of input, n_classes, filters, kernel, hidden, dropout
              4 | filter: [8]
                | ^^^^^^
              help: did you mean `filters`?"#]],
        );
        check(
            "kind: mlp\ninput: [64]\n",
            expect![[r#"
            model.yaml:1:1: missing key `n_classes`
              1 | kind: mlp
                | ^^^^
              help: add `n_classes: …` to the block that starts here"#]],
        );
    }
}
