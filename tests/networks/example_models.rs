//! The models of `examples/models` have as many parameters as their originals.

use bf16scope::document;
use bf16scope::graph::Graph;
use bf16scope::hlo::DType;
use bf16scope::models::Model;
use bf16scope::task::{Features, Mode};
use std::path::Path;

/// A file, the parameters that train, and the others, which are running statistics. Those of Keras' applications are what
/// `model.count_params()` and its trainable part say (TensorFlow 2.15.1: `ResNet50`, `EfficientNetB0`, which has 7 more for the
/// normalisation of its inputs, `MobileNetV2`, `MobileNetV3Large`, `MobileNetV3Small`, `DenseNet121`, `ConvNeXtTiny`, `InceptionV3`); MnasNet-A1's and BERT's are
/// those of their authors' code, GPT-2's and ViT's those of their published weights, TinyLlama's those of its, `dcgan.yaml`'s those of TensorFlow's
/// tutorial (a generator of 2,330,944 and a discriminator of 212,865); a U-Net's follow from
/// its paper with padding.
const MODELS: &[(&str, i64, i64)] = &[
    ("bert_pretraining.yaml", 110_117_180, 0),
    ("convnext_tiny.yaml", 28_589_128, 0),
    ("dcgan.yaml", 2_518_337, 25_472),
    ("dcgan_discriminator.yaml", 2_765_568, 1_792),
    ("dcgan_generator.yaml", 3_576_704, 1_920),
    ("densenet121.yaml", 7_978_856, 83_648),
    ("efficientnet.yaml", 5_288_548, 42_016),
    ("gpt2.yaml", 124_439_808, 0),
    ("inception_v3.yaml", 23_817_352, 34_432),
    ("llama.yaml", 1_100_048_384, 0),
    ("lstm_classifier.yaml", 2_760_212, 0),
    ("mnasnet_a1.yaml", 3_887_038, 33_488),
    ("mobilenet_v2.yaml", 3_504_872, 34_112),
    ("mobilenet_v3_large.yaml", 5_483_032, 24_400),
    ("mobilenet_v3_small.yaml", 2_542_856, 12_112),
    ("resnet50.yaml", 25_583_592, 53_120),
    ("siamese.yaml", 121_345, 0),
    ("unet.yaml", 31_031_745, 0),
    ("unet_3d.yaml", 19_071_329, 4_672),
    ("vit_b16.yaml", 86_567_656, 0),
    ("wavenet.yaml", 512_256, 0),
];

/// EfficientNets B1 to B7, with the parameters of their file: those that train, running statistics, and what Keras' applications
/// count, which is both and those 7.
const EFFICIENTNETS: &[(&str, i64, i64, i64)] = &[
    ("1.0 1.1 240", 7_794_184, 62_048, 7_856_239),
    ("1.1 1.2 260", 9_109_994, 67_568, 9_177_569),
    ("1.2 1.4 300", 12_233_232, 87_296, 12_320_535),
    ("1.4 1.8 380", 19_341_616, 125_200, 19_466_823),
    ("1.6 2.2 456", 30_389_784, 172_736, 30_562_527),
    ("1.8 2.6 528", 43_040_704, 224_432, 43_265_143),
    ("2.0 3.1 600", 66_347_960, 310_720, 66_658_687),
];

/// The trainable parameters, and the others.
fn count(file: &str, model: &str) -> (i64, i64) {
    let model: Model = document::from_str(file, model).unwrap_or_else(|error| panic!("{error}"));
    let task = model.task(0.0);
    let graph = Graph::training(file);
    let described = task.features();
    let features = Features::new(&graph, &described, 2, Mode::Train);
    task.call(&graph.scope(), &features, Mode::Train);
    let variables = graph.variables();
    let count = |trains: bool| -> i64 {
        // The states of random number generators are not parameters.
        let all = variables.iter().filter(|it| it.dtype != DType::U64 && it.trainable == trains);
        all.map(|variable| variable.dims.iter().product::<i64>()).sum()
    };
    (count(true), count(false))
}

#[test]
fn efficientnets_have_the_parameters_of_their_originals() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/models/efficientnet.yaml");
    let text = std::fs::read_to_string(path).unwrap();
    let (_, model) = text.split_once("model:\n").unwrap();
    for &(written, trained, others, of_keras) in EFFICIENTNETS {
        assert_eq!(trained + others + 7, of_keras, "{written}");
        let [width, depth, resolution] = written.split(' ').collect::<Vec<_>>()[..] else { panic!("{written}") };
        let model =
            model.replace("width: 1.0", &format!("width: {width}")).replace("depth: 1.0", &format!("depth: {depth}"));
        let model = model.replace("resolution: 224", &format!("resolution: {resolution}"));
        assert_eq!(count(written, &model), (trained, others), "{written}");
    }
}

#[test]
fn models_have_the_parameters_of_their_originals() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/models");
    let mut files: Vec<String> =
        std::fs::read_dir(&folder).unwrap().map(|file| file.unwrap().file_name().into_string().unwrap()).collect();
    files.sort();
    assert_eq!(files, MODELS.iter().map(|(file, _, _)| *file).collect::<Vec<_>>(), "each model has a row");
    for (file, trained, others) in MODELS {
        let text = std::fs::read_to_string(folder.join(file)).unwrap();
        // The model alone: the block under `model:`.
        let model = text.split_once("model:\n").unwrap().1;
        assert_eq!(count(file, model), (*trained, *others), "{file}");
    }
}
