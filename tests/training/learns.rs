//! Networks of layers that learn real data in f32, bf16 and f16: an LSTM tells this project's documents by their words,
//! a U-Net finds drawings on noise, a small Llama learns documents byte by byte, a DCGAN draws digits.

#[cfg_attr(not(feature = "long-tests"), allow(dead_code))]
mod long {
    use crate::run;
    use bf16scope::data::npz::{self, Header, NpzWriter};
    use bf16scope::data::{Feature, Loader, Source};
    use bf16scope::experiment::Experiment;
    use bf16scope::graph::Precision;
    use bf16scope::hlo::DType;
    use bf16scope::pjrt::Setup;
    use bf16scope::train::{Event, Trainer};
    use bf16scope::tuning::Tuning;
    use std::path::Path;
    use tempfile::NamedTempFile;

    const LSTM: &str = "model:
  kind: layers
  inputs: {tokens: {shape: [24], dtype: int32}}
  layers:
    - {masking: , inputs: tokens, name: mask}
    - {embedding: 2000, output_dim: 32, inputs: tokens}
    - {dropout: 0.5, name: words}
    - {lstm: 32, bidirectional: true, inputs: [words, mask]}
    - {dropout: 0.5}
    - {dense: 4}
  loss: sparse_softmax_cross_entropy
  metrics: [accuracy]
data:
  csv: DATA
  columns: {tokens: {name: text, words: 2000}, labels: {name: document, categories: true}}
  n_test: 0.2
  shuffle: true
  stratify: true
train: {batch: 32, epochs: 3, optimizer: adam, learning_rate: 0.005}
";

    const UNET: &str = "model:
  kind: layers
  inputs: {pictures: [32, 32, 3]}
  labels: {mask: [32, 32, 1]}
  blocks:
    double:
      parameters: [n]
      layers:
        - {conv: $n, kernel_size: 3, padding: same, activation: relu}
        - {conv: $n, kernel_size: 3, padding: same, activation: relu}
    up:
      parameters: [n]
      inputs: [below, beside]
      layers:
        - {conv_transpose: $n, kernel_size: 2, strides: 2, inputs: below}
        - {concat: [beside, conv_transpose]}
        - {double: $n}
  layers:
    - {double: 8, name: d1}
    - max_pool
    - {double: 16, name: d2}
    - max_pool
    - {double: 32, name: bottom}
    - {up: 16, inputs: [bottom, d2], name: u2}
    - {up: 8, inputs: [u2, d1]}
    - {conv: 1, kernel_size: 1}
  loss: [{sigmoid_cross_entropy: , labels: mask}]
  metrics: [{iou: , labels: mask}]
data: {npz: DATA, scale: 0.00392, n_test: 391}
train: {batch: 32, epochs: 2, optimizer: adam, learning_rate: 0.005}
";

    const LLAMA: &str = "model:
  kind: layers
  inputs: {tokens: {shape: [48], dtype: int32, below: 256}}
  layers:
    - {embedding: 256, output_dim: 48, embeddings_initializer: {random_normal: 0.02}}
    - {llama_block: 4, intermediate_dim: 96, num_key_value_heads: 2, repeats: 2}
    - rms_norm
    - {dense: 256, use_bias: false}
  loss: sparse_softmax_cross_entropy
  metrics: [perplexity]
data:
  text: [ROOT/docs/GUIDE.md, ROOT/docs/EXPERIMENTS.md]
  tokens: {tokenizer: bytes, window: 48}
  n_test: 256
train: {batch: 32, epochs: 1, optimizer: adam, learning_rate: 0.003}
";

    /// Windows of 24 words of four documents, and the document of each, as CSV.
    fn windows() -> NamedTempFile {
        let mut rows = vec!["document,text".to_string()];
        let documents = ["docs/GUIDE.md", "docs/EXPERIMENTS.md", "docs/FORMATS.md", "CHANGELOG.md"];
        for path in documents {
            let text = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap();
            let words = text.split(|c: char| !c.is_ascii_alphabetic()).filter(|word| word.len() > 1);
            let words: Vec<String> = words.map(str::to_lowercase).collect();
            rows.extend(words.chunks_exact(24).take(600).map(|window| format!("{path},{}", window.join(" "))));
        }
        let file = tempfile::Builder::new().suffix(".csv").tempfile().unwrap();
        std::fs::write(file.path(), rows.join("\n") + "\n").unwrap();
        file
    }

    /// Drawings whose white is replaced by noise, and a mask of 1 where they are not white.
    fn drawings() -> NamedTempFile {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/data/clipart.npz");
        let mut drawings = npz::read_arrays(path, &[("pictures", "pictures")]).unwrap().array("pictures").unwrap();
        let mut mask = Vec::new();
        for (number, pixel) in drawings.bytes.as_chunks_mut::<3>().0.iter_mut().enumerate() {
            let is_drawn = pixel.iter().any(|&value| value < 255);
            if !is_drawn {
                *pixel = [0, 1, 2].map(|channel| noise(3 * number as u32 + channel));
            }
            mask.push(u8::from(is_drawn));
        }
        let file = tempfile::Builder::new().suffix(".npz").tempfile().unwrap();
        let mut npz = NpzWriter::create(file.path()).unwrap();
        npz.add("pictures", &Header::for_dtype(DType::U8, drawings.shape.dims), &drawings.bytes).unwrap();
        let dims = vec![mask.len() as i64 / (32 * 32), 32, 32, 1];
        npz.add("mask", &Header::for_dtype(DType::U8, dims), &mask).unwrap();
        npz.finish().unwrap();
        file
    }

    /// A byte that depends on every bit of `number`.
    fn noise(number: u32) -> u8 {
        let mut bits = number.wrapping_mul(0x9e37_79b1);
        bits = (bits ^ (bits >> 15)).wrapping_mul(0x85eb_ca77);
        ((bits ^ (bits >> 13)) >> 24) as u8
    }

    /// The last epoch's value of a metric on the test data.
    fn learnt(text: &str, metric: &str, precision: Precision, seed: u64) -> f64 {
        let file = tempfile::Builder::new().suffix(".yaml").tempfile().unwrap();
        std::fs::write(file.path(), text.replace("ROOT", env!("CARGO_MANIFEST_DIR"))).unwrap();
        let mut experiment = Experiment::read(file.path()).unwrap_or_else(|error| panic!("{error}"));
        experiment.train.seed = seed;
        let examples = experiment.read_data(file.path(), &Setup::from_env()).unwrap_or_else(|error| panic!("{error}"));
        let spec = experiment.spec(precision, &Tuning::none()).unwrap();
        let mut value = None;
        let trainer = Trainer::from_spec(spec).on(run::optimized_client()).epochs(u64::from(experiment.train.epochs));
        let trainer = trainer.on_event(|event| {
            if let Event::Epoch(report) = event {
                value = report.test_value(metric);
            }
        });
        let data = examples.data();
        trainer.fit(data.training, data.test).unwrap_or_else(|error| panic!("{error}"));
        let value = value.unwrap_or_else(|| panic!("no {metric}"));
        println!("{metric} {value:.4} in {precision}, seed {seed}");
        value
    }

    fn check(text: &str, metric: &str, has_learnt: impl Fn(f64) -> bool) {
        let mut precisions = vec![Precision::F32, Precision::Bf16];
        precisions.extend(run::has_f16().then_some(Precision::F16));
        for precision in precisions {
            for seed in 0..3 {
                let value = learnt(text, metric, precision, seed);
                assert!(has_learnt(value), "{metric} {value} in {precision}, seed {seed}");
            }
        }
    }

    /// All digits of a source and their classes.
    fn digits(source: &dyn Source) -> Vec<([f32; 64], i32)> {
        let features = [Feature::compute("images", [8, 8, 1]), Feature::exact("digit", DType::S32, [])];
        let loader = Loader::new(source, &features, DType::F32, 1, 0).unwrap();
        let example = |index| {
            let arrays = loader.example(index, None).unwrap();
            (arrays[0].to_vec::<f32>().unwrap().try_into().unwrap(), arrays[1].to_vec::<i32>().unwrap()[0])
        };
        (0..source.n_examples()).map(example).collect()
    }

    /// The mean squared distance of images to their nearest neighbour in `digits`; and the share of images whose
    /// neighbour has their class.
    fn nearest(pictures: &[([f32; 64], i32)], digits: &[([f32; 64], i32)]) -> (f32, f32) {
        let (mut sum, mut n_right) = (0.0, 0);
        for (picture, wanted) in pictures {
            let distance = |digit: &[f32; 64]| picture.iter().zip(digit).map(|(a, b)| (a - b).powi(2)).sum::<f32>();
            let all = digits.iter().map(|(digit, class)| (distance(digit), class));
            let (least, class) = all.min_by(|a, b| a.0.total_cmp(&b.0)).unwrap();
            sum += least;
            n_right += u32::from(class == wanted);
        }
        (sum / pictures.len() as f32, n_right as f32 / pictures.len() as f32)
    }

    /// The squared distance of images to the mean of their class.
    fn spread(pictures: &[([f32; 64], i32)]) -> f32 {
        let of_class = |class: i32| pictures.iter().filter(move |(_, of_picture)| *of_picture == class);
        let from_mean = |class: i32| -> f32 {
            let n = of_class(class).count() as f32;
            let mean: Vec<f32> = (0..64).map(|at| of_class(class).map(|(it, _)| it[at]).sum::<f32>() / n).collect();
            of_class(class).map(|(it, _)| it.iter().zip(&mean).map(|(a, b)| (a - b).powi(2)).sum::<f32>()).sum()
        };
        (0..10).map(from_mean).sum::<f32>() / pictures.len() as f32
    }

    /// Three values for generated digits: the distance to the nearest training digit; the share with the requested
    /// class; and the spread within a class.
    fn drawn(precision: Precision, seed: u64) -> (f32, f32, f32) {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/dcgan_digits.yaml");
        let mut experiment = Experiment::read(path).unwrap_or_else(|error| panic!("{error}"));
        experiment.train.seed = seed;
        let examples = experiment.read_data(path, &Setup::from_env()).unwrap_or_else(|error| panic!("{error}"));
        let spec = experiment.spec(precision, &Tuning::none()).unwrap();
        let trainer = Trainer::from_spec(spec).on(run::optimized_client()).epochs(u64::from(experiment.train.epochs));
        let data = examples.data();
        let trained = trainer.fit(data.training, data.test).unwrap_or_else(|error| panic!("{error}"));
        let pictures = trained.predict(data.test).unwrap().to_vec::<f32>("images").unwrap();
        let (written, others) = (digits(data.training), digits(data.test));
        let drawn: Vec<_> =
            pictures.as_chunks::<64>().0.iter().zip(&others).map(|(it, (_, digit))| (*it, *digit)).collect();
        let ((distance, right), (reference, _)) = (nearest(&drawn, &written), nearest(&others, &written));
        let (distance, spread) = (distance / reference, spread(&drawn) / spread(&others));
        println!("distance {distance:.3}, right {right:.3}, spread {spread:.3} in {precision}, seed {seed}");
        (distance, right, spread)
    }

    /// Noise is 9 times as far from digits as digits are from each other: 3 is the geometric mean. The mean of a class,
    /// drawn repeatedly, has no spread.
    #[cfg_attr(feature = "long-tests", test)]
    fn a_dcgan_draws_the_digits_that_it_is_asked_for() {
        let mut precisions = vec![Precision::F32, Precision::Bf16];
        precisions.extend(run::has_f16().then_some(Precision::F16));
        for precision in precisions {
            for seed in 0..3 {
                let (distance, right, spread) = drawn(precision, seed);
                let is_learnt = distance < 3.0 && right > 0.8 && spread > 0.25;
                assert!(is_learnt, "{distance}, {right} right, spread {spread} in {precision}, seed {seed}");
            }
        }
    }

    /// The largest of four classes has a third of the windows.
    #[cfg_attr(feature = "long-tests", test)]
    fn an_lstm_tells_documents_by_their_words() {
        let data = windows();
        check(&LSTM.replace("DATA", data.path().to_str().unwrap()), "accuracy", |accuracy| accuracy > 0.55);
    }

    /// Drawings take 41 % of the pixels, so marking all of them gives an intersection over union of 0.41.
    #[cfg_attr(feature = "long-tests", test)]
    fn a_u_net_finds_drawings_on_noise() {
        let data = drawings();
        check(&UNET.replace("DATA", data.path().to_str().unwrap()), "iou", |iou| iou > 0.65);
    }

    /// The bytes of the documents alone, without order, have a perplexity of 32.
    #[cfg_attr(feature = "long-tests", test)]
    fn a_small_llama_learns_text() {
        check(LLAMA, "perplexity", |perplexity| perplexity < 18.0);
    }
}
