//! `tune` of an experiment: the user's part of the tuning, which does not depend on the target.

use super::{Layers, NormGradient, Remat, Softmax, Stem, Tuning};
use serde::de::{self, Deserializer, MapAccess, Visitor, value::MapAccessDeserializer};
use serde::{Deserialize, Serialize};
use std::fmt;

/// `auto`, `none`, or some keys.
///
/// ```
/// use bf16scope_passes::tuning::{Layers, Tune, Tuning};
///
/// let tune: Tune = serde_yaml::from_str("layer_remat: {weights: 0}").unwrap();
/// let on_a_tpu = tune.tuning(&Tuning::tpu());
/// assert_eq!(on_a_tpu.layer_remat.weights, Layers::First(0));
/// assert_eq!(on_a_tpu.softmax, Tuning::tpu().softmax);
/// assert_eq!(Tune::Auto.tuning(&Tuning::none()), Tuning::none());
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Tune {
    /// The tuning that pays off on the target.
    #[default]
    Auto,
    /// No tuning, on any target.
    None,
    /// The base, with these changes.
    Keys(Box<Keys>),
}

/// The keys of `tune`: those of a [`Tuning`], and the base for absent ones.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Keys {
    /// The values of absent keys. Default `auto`.
    pub base: Base,
    /// [`Tuning::stem`].
    pub stem: Option<Stem>,
    /// [`Tuning::pair_columns`].
    pub pair_columns: Option<bool>,
    /// [`Tuning::norm_gradient`].
    pub norm_gradient: Option<NormGradient>,
    /// [`Tuning::softmax`].
    pub softmax: Option<Softmax>,
    /// [`Tuning::layer_remat`].
    pub layer_remat: LayerRematKeys,
    /// [`Tuning::remat`].
    pub remat: Option<Remat>,
    /// [`Tuning::cotangent_remat`].
    pub cotangent_remat: Option<bool>,
    /// [`Tuning::pace`].
    pub pace: Option<bool>,
    /// [`Tuning::transpose_input`].
    pub transpose_input: Option<bool>,
}

/// The keys of `layer_remat`: those of a [`LayerRemat`](super::LayerRemat).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LayerRematKeys {
    /// [`LayerRemat::weights`](super::LayerRemat::weights).
    pub weights: Option<Layers>,
    /// [`LayerRemat::attention`](super::LayerRemat::attention).
    pub attention: Option<Layers>,
    /// [`LayerRemat::values`](super::LayerRemat::values).
    pub values: Option<Layers>,
    /// [`LayerRemat::hidden`](super::LayerRemat::hidden).
    pub hidden: Option<Layers>,
}

/// The values of absent keys of a [`Tuning`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Base {
    /// The tuning that pays off on the target.
    #[default]
    Auto,
    /// [`Tuning::none`].
    None,
}

impl Tune {
    /// The tuning for a target whose `auto` is this one.
    pub fn tuning(&self, auto: &Tuning) -> Tuning {
        match self {
            Tune::Auto => auto.clone(),
            Tune::None => Tuning::none(),
            Tune::Keys(keys) => keys.tuning(auto),
        }
    }

    /// The keys to change; `auto` and `none` have only a base.
    pub fn keys(&self) -> Keys {
        match self {
            Tune::Auto => Keys::default(),
            Tune::None => Keys { base: Base::None, ..Keys::default() },
            Tune::Keys(keys) => (**keys).clone(),
        }
    }
}

impl From<Keys> for Tune {
    fn from(keys: Keys) -> Tune {
        Tune::Keys(Box::new(keys))
    }
}

impl Keys {
    fn tuning(&self, auto: &Tuning) -> Tuning {
        fn set<T: Clone>(value: &mut T, key: &Option<T>) {
            if let Some(key) = key {
                *value = key.clone();
            }
        }
        let Keys { base, stem, pair_columns, norm_gradient, softmax, layer_remat, remat, .. } = self;
        let Keys { cotangent_remat, pace, transpose_input, .. } = self;
        let mut tuning = match base {
            Base::Auto => auto.clone(),
            Base::None => Tuning::none(),
        };
        set(&mut tuning.stem, stem);
        set(&mut tuning.pair_columns, pair_columns);
        set(&mut tuning.norm_gradient, norm_gradient);
        set(&mut tuning.softmax, softmax);
        set(&mut tuning.layer_remat.weights, &layer_remat.weights);
        set(&mut tuning.layer_remat.attention, &layer_remat.attention);
        set(&mut tuning.layer_remat.values, &layer_remat.values);
        set(&mut tuning.layer_remat.hidden, &layer_remat.hidden);
        set(&mut tuning.remat, remat);
        set(&mut tuning.cotangent_remat, cotangent_remat);
        set(&mut tuning.pace, pace);
        set(&mut tuning.transpose_input, transpose_input);
        tuning
    }
}

impl<'de> Deserialize<'de> for Tune {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Tune, D::Error> {
        struct Value;
        impl<'de> Visitor<'de> for Value {
            type Value = Tune;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("auto, none, or keys such as {remat: elementwise}")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Tune, E> {
                match text {
                    "auto" => Ok(Tune::Auto),
                    "none" => Ok(Tune::None),
                    _ => Err(E::unknown_variant(text, &["auto", "none"])),
                }
            }
            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Tune, A::Error> {
                Keys::deserialize(MapAccessDeserializer::new(map)).map(Tune::from)
            }
        }
        deserializer.deserialize_any(Value)
    }
}
