//! The model zoo: configurations (serde), functions that build them on a scope, and their [`Task`]s.
//!
//! Every `build` takes the input in the dtype that it computes in, and returns logits in that dtype; a task opens the
//! low-precision scope around it and casts logits to f32.
//!
//! To add a kind, write its configuration and task in a file beside this one, and a line in the table below.

mod classification;
pub mod cnn;
pub mod layers;
mod layout;
pub mod mlp;
pub mod resnet;
mod tokens;
pub mod transformer;
pub mod two_tower;
mod written;

pub use classification::{Classification, Classifier};
pub use layout::image_dims;
pub use tokens::Tokens;
pub use two_tower::TwoTower;

use crate::document::{Mark, Node, Origin, kind};
use crate::task::{Feature, Task};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize};
use std::sync::Arc;
use written::WrittenTask;

/// A row of the table: a configuration that makes a task. Every [`Classifier`] is one.
trait ModelKind: Clone + DeserializeOwned {
    /// The task, with label smoothing in `[0, 1)` in training. Its instructions carry the lines of `origin`.
    fn task(&self, label_smoothing: f64, origin: &Origin) -> Arc<dyn Task>;

    /// The place, in the node that it was read from, of the bound of a feature's numbers.
    fn place_of_range(&self, feature: &Feature, node: &Node) -> Option<Mark>;

    /// Whether label smoothing changes its loss.
    fn is_smoothed(&self) -> bool {
        true
    }

    /// The keys beside `kind`.
    fn keys() -> Vec<&'static str> {
        kind::keys_of::<Self>()
    }
}

macro_rules! models {
    ($($(#[$doc:meta])* $Kind:ident($Config:ty) = $name:literal;)*) => {
        /// A model of the zoo, as a YAML file describes it: `kind`, and the keys of that kind's configuration.
        ///
        /// ```
        /// use bf16scope_model::document;
        /// use bf16scope_model::models::Model;
        ///
        /// let model: Model = document::from_str("mlp.yaml", "kind: mlp\ninput: [64]\nn_classes: 10\n").unwrap();
        /// assert_eq!(model.task(0.0).name(), "mlp");
        /// ```
        #[derive(Clone, Debug, PartialEq, Serialize)]
        #[serde(tag = "kind")]
        #[expect(clippy::large_enum_variant, reason = "a file describes one model: nothing holds many")]
        pub enum Model {
            $($(#[$doc])* #[serde(rename = $name)] $Kind($Config),)*
        }

        impl Model {
            /// Its kind.
            pub fn kind(&self) -> &'static str {
                match self {
                    $(Model::$Kind(_) => $name,)*
                }
            }

            fn task_of(&self, label_smoothing: f64, origin: &Origin) -> Arc<dyn Task> {
                match self {
                    $(Model::$Kind(config) => config.task(label_smoothing, origin),)*
                }
            }

            fn range(&self, feature: &Feature, node: &Node) -> Option<Mark> {
                match self {
                    $(Model::$Kind(config) => config.place_of_range(feature, node),)*
                }
            }

            /// Whether label smoothing changes its loss.
            pub fn is_smoothed(&self) -> bool {
                match self {
                    $(Model::$Kind(config) => config.is_smoothed(),)*
                }
            }
        }

        /// The kinds of model that have this key.
        pub fn kinds_with_key(key: &str) -> Vec<&'static str> {
            let kinds = [$(($name, <$Config as ModelKind>::keys())),*];
            kinds.into_iter().filter(|(_, keys)| keys.contains(&key)).map(|(name, _)| name).collect()
        }

        impl<'de> Deserialize<'de> for Model {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Model, D::Error> {
                /// A [`Model`] as [`kind`] reads it.
                #[derive(Deserialize)]
                #[expect(clippy::large_enum_variant, reason = "as `Model`")]
                enum ByKind {
                    $(#[serde(rename = $name)] $Kind($Config),)*
                }
                Ok(match kind::read(deserializer)? {
                    $(ByKind::$Kind(config) => Model::$Kind(config),)*
                })
            }
        }
    };
}

models! {
    /// Dense layers.
    Mlp(mlp::Config) = "mlp";
    /// A small convolutional network.
    Cnn(cnn::Config) = "cnn";
    /// ResNet v1.5.
    Resnet(resnet::Config) = "resnet";
    /// A transformer encoder or decoder.
    Transformer(transformer::Config) = "transformer";
    /// A tower for images and one for words.
    TwoTower(two_tower::Config) = "two_tower";
    /// A network written layer by layer.
    Layers(layers::Network) = "layers";
}

impl Model {
    /// The task, with label smoothing in `[0, 1)` in training.
    pub fn task(&self, label_smoothing: f64) -> Arc<dyn Task> {
        self.task_of(label_smoothing, &Origin::default())
    }

    /// As [`Model::task`], for a model that was read from a file: its instructions carry the file's lines.
    pub fn task_written_at(&self, origin: Origin, label_smoothing: f64) -> Arc<dyn Task> {
        Arc::new(WrittenTask { task: self.task_of(label_smoothing, &origin), origin })
    }

    /// The place, in the value that the model was read from, of the bound of a feature's numbers.
    pub fn place_of_range(&self, feature: &Feature, origin: &Origin) -> Option<Mark> {
        self.range(feature, origin.node()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document;
    use expect_test::{Expect, expect};

    fn check(text: &str, expected: Expect) {
        expected.assert_eq(&document::from_str::<Model>("model.yaml", text).unwrap_err().to_string());
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
            "kind: two_tower\npictures: [32, 32, 3]\nwords:\n  kind: ids\n  length: 8\n  vocabulary: 99\n  features: 16\n\
             loss:\n  kind: matching\n  features: 24\n  temperature: 0.25\nfilters: [4, 8]\nkernel: 5\nunits: 48\n\
             dropout: 0.125\n",
        ] {
            let model: Model = document::from_str("model.yaml", text).unwrap();
            assert_eq!(serde_yaml::to_string(&model).unwrap().replace("\n- ", ", "), list_form(text), "{text}");
        }
    }

    /// serde_yaml writes lists over several lines; `text` has them in brackets.
    fn list_form(text: &str) -> String {
        text.replace(": [", ":, ").replace(']', "")
    }

    #[test]
    fn kind_is_known() {
        check(
            "kind: resnt\n",
            expect![[r#"
            model.yaml:1:7: unknown value `resnt`, expected one of mlp, cnn, resnet, transformer, two_tower, layers
              1 | kind: resnt
                |       ^^^^^
              help: did you mean `resnet`?"#]],
        );
        check(
            "depth: 51\nkind: resnet\n",
            expect![[r#"
            model.yaml:1:8: found integer `51`, expected one of 18, 34, 50, 101, 152
              1 | depth: 51
                |        ^^"#]],
        );
        check(
            "depth: 50\n",
            expect![[r#"
            model.yaml:1:1: missing key `kind`
              1 | depth: 50
                | ^^^^^
              help: add `kind: …` to the block that starts here"#]],
        );
        check(
            "hiden: [3]\ninput: [4]\nkind: mlp\nn_classes: 3\n",
            expect![[r#"
            model.yaml:1:1: unknown key `hiden`, expected one of input, n_classes, hidden, dropout
              1 | hiden: [3]
                | ^^^^^
              help: did you mean `hidden`?"#]],
        );
        check(
            "inputs: {x: [4]}\nlayers: [{dense: 0}]\nloss: mean_squared_error\nkind: layers\n",
            expect![[r#"
            model.yaml:2:18: found integer `0`, expected a whole number of at least 1
              2 | layers: [{dense: 0}]
                |                  ^"#]],
        );
        check(
            "mlp\n",
            expect![[r#"
            model.yaml:1:1: missing key `input`
              1 | mlp
                | ^^^
              help: add `input: …` to the block that starts here"#]],
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
                model.yaml:1:1: found a list, expected keys with `kind: …`, one of mlp, cnn, resnet, transformer, two_tower, layers
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
