//! Networks of layers that learn real data in f32, bf16 and f16: an LSTM classifies digits row by row, a U-Net denoises
//! digits, a small Llama learns this project's documents byte by byte, a DCGAN draws digits.

#[cfg_attr(not(feature = "long-tests"), allow(dead_code))]
mod long {
    use crate::run;
    use bf16scope::data::{Feature, Loader, Source};
    use bf16scope::experiment::Experiment;
    use bf16scope::graph::Precision;
    use bf16scope::hlo::DType;
    use bf16scope::pjrt::Setup;
    use bf16scope::train::{Event, Trainer};
    use bf16scope::tuning::Tuning;

    const LSTM: &str = "model:
  kind: layers
  inputs: {images: [8, 8, 1]}
  layers: [{reshape: [8, 8]}, {lstm: 32, bidirectional: true}, {dense: 10}]
  loss: sparse_softmax_cross_entropy
  metrics: [accuracy]
data: {csv: ROOT/examples/data/digits.csv.gz, scale: 0.0625, n_test: 360}
train: {batch: 32, epochs: 6, optimizer: adam, learning_rate: 0.005}
";

    const UNET: &str = "model:
  kind: layers
  inputs: {images: [8, 8, 1]}
  blocks:
    double:
      parameters: [n]
      layers:
        - {conv: $n, kernel_size: 3, padding: same, activation: relu}
        - {conv: $n, kernel_size: 3, padding: same, activation: relu}
  layers:
    - {gaussian_noise: 0.3}
    - {double: 8, name: beside}
    - max_pool
    - {double: 16}
    - {conv_transpose: 8, kernel_size: 2, strides: 2, name: up}
    - {concat: [beside, up]}
    - {double: 8}
    - {conv: 1, kernel_size: 1, name: mask}
    - {global_avg_pool: , inputs: beside}
    - {dense: 10, name: digit}
  outputs: {mask: mask, digit: digit}
  loss:
    - {sigmoid_cross_entropy: , output: mask, labels: images}
    - {sparse_softmax_cross_entropy: , output: digit, weight: 0.1}
  metrics: [{iou: , output: mask, labels: images}]
data: {csv: ROOT/examples/data/digits.csv.gz, scale: 0.0625, n_test: 360}
train: {batch: 32, epochs: 4, optimizer: adam, learning_rate: 0.003}
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

    /// Ten digits: chance is 0.1, and a line through the means of rows is right for about a half.
    #[cfg_attr(feature = "long-tests", test)]
    fn an_lstm_learns_digits_row_by_row() {
        check(LSTM, "accuracy", |accuracy| accuracy > 0.7);
    }

    /// 29 % of the pixels are above a half, so marking all of them gives an intersection over union of 0.29.
    #[cfg_attr(feature = "long-tests", test)]
    fn a_u_net_sees_digits_through_noise() {
        check(UNET, "iou", |iou| iou > 0.75);
    }

    /// The bytes of the documents alone, without order, have a perplexity of 32.
    #[cfg_attr(feature = "long-tests", test)]
    fn a_small_llama_learns_text() {
        check(LLAMA, "perplexity", |perplexity| perplexity < 18.0);
    }
}
