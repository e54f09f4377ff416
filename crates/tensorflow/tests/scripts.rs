//! The script lint: findings with their lines, and no finding in clean scripts.

use bf16scope_tensorflow::read_script;
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};

/// The line and the text of each finding.
fn findings(text: &str) -> Vec<(u32, &'static str)> {
    read_script(text).findings.into_iter().map(|finding| (finding.line, finding.what)).collect()
}

const CLEAN: [&str; 9] = [
    // The loss is divided by the number of cores, whose gradients are summed.
    "loss = loss / tpu_function.get_tpu_context().number_of_shards / num_shards
opt = tf.tpu.CrossShardOptimizer(opt)
op = opt.apply_gradients(zip(tf.gradients(loss, v), v))
",
    // A TPUEstimator's model_fn as TensorFlow's own models write it.
    "import tensorflow as tf
def model_fn(features, labels, mode, params):
  with tf.contrib.tpu.bfloat16_scope():
    logits = build_network(features)
  logits = tf.cast(logits, tf.float32)
  loss = tf.losses.softmax_cross_entropy(one_hot, logits, label_smoothing=0.1)
  learning_rate = tf.train.exponential_decay(0.1, step, 100, 0.9)
  optimizer = tf.train.MomentumOptimizer(learning_rate=learning_rate, momentum=0.9)
  optimizer = tf.contrib.tpu.CrossShardOptimizer(optimizer)
  train_op = optimizer.minimize(loss, step)
  return tf.contrib.tpu.TPUEstimatorSpec(mode=mode, loss=loss, train_op=train_op)
def input_fn(params):
  return dataset.batch(params['batch_size'], drop_remainder=True)
",
    // Python 2, and a function `batch` that is not a data set's method.
    "print 'training', FLAGS.name\nx = tf.cast(x, tf.bfloat16)\nbatch(a, b)\n",
    // Keras with its mixed-precision policy.
    "tf.keras.mixed_precision.Policy('mixed_bfloat16')\nmodel.add(Dense(10, kernel_regularizer=l2(1e-4)))\nmodel.fit(x, y)\n",
    // A comment about the scope, and a string with code in it.
    "# the bfloat16_scope keeps variables in f32\ns = '''\nwith bfloat16_scope():\n  model.compile()\n'''\n",
    // Probabilities that the loss does not read.
    "probabilities = tf.nn.softmax(logits)\nloss = tf.losses.softmax_cross_entropy(labels, logits)\n",
    // f16 in a script that is not for a TPU.
    "policy = tf.keras.mixed_precision.Policy('mixed_float16')\nopt = LossScaleOptimizer(opt)\n",
    // An evaluation whose network opens the scope itself, and one with a scope of its own.
    "def build(x):
  with tf.tpu.bfloat16_scope():
    return network(x)
def model_fn(features, mode):
  if mode == tf.estimator.ModeKeys.EVAL:
    return build(features)
",
    "def model_fn(features, mode):
  if mode == tf.estimator.ModeKeys.TRAIN:
    with tf.tpu.bfloat16_scope():
      logits = network(features)
  else:
    with tf.tpu.bfloat16_scope():
      logits = network(features)
  return logits
",
];

#[test]
fn clean_scripts_raise_no_alarm() {
    for text in CLEAN {
        assert_eq!(findings(text), [], "{text}");
    }
}

#[test]
fn slips_are_found_at_their_line() {
    let estimator = "e = tf.estimator.tpu.TPUEstimator(model_fn)\n";
    for (text, line, what) in [
        (
            "with tpu.bfloat16_scope():\n  model.compile('sgd', loss='mse')\n",
            1,
            "bfloat16_scope around a Keras model's compile",
        ),
        (
            "x = 1\n#  with tf.contrib.tpu.bfloat16_scope():\nlogits = f(x)\n",
            2,
            "a bfloat16_scope that is commented out",
        ),
        ("def f(x):\n  tf.cast(x, tf.bfloat16)\n  return x\n", 2, "a cast whose result is not used"),
        ("tf.cast(x, dtype=tf.bfloat16)\n", 1, "a cast whose result is not used"),
        (
            "a = tf.assign(moving_mean,\n   tf.cast(mean, tf.bfloat16))\n",
            1,
            "moving statistics assigned through a cast to bf16",
        ),
        ("p = Policy('mixed_bfloat16')\n\nopt = LossScaleOptimizer(opt)\n", 3, "loss scaling with bfloat16"),
        ("s = TPUStrategy(r)\nset_policy('mixed_float16')\n", 2, "float16 on a TPU"),
        (
            &format!("{estimator}opt = tf.train.AdamOptimizer(1e-3)\n"),
            2,
            "an optimizer that is not wrapped in CrossShardOptimizer",
        ),
        (
            "opt = tf.tpu.CrossShardOptimizer(opt)\ng = tf.gradients(loss, v)\n\nop = opt.apply_gradients(zip(g, v))\n",
            4,
            "gradients are summed over cores, not averaged",
        ),
        (
            "rate = tf.train.cosine_decay(0.1, step, 100)\nopt = tf.train.AdamOptimizer(0.1)\n",
            1,
            "a learning rate that is computed and not used",
        ),
        (
            &format!("{estimator}d = d.repeat().batch(\n    params['batch_size'])\n"),
            2,
            "a batch without drop_remainder",
        ),
        (
            &format!("{estimator}d = d.batch(FLAGS.train_batch_size, drop_remainder=True)\n"),
            2,
            "the global batch in input_fn",
        ),
        (&format!("{estimator}labels = tf.cast(labels, tf.int64)\n"), 2, "labels cast to int64"),
        (
            "logits = tf.nn.softmax(x)\nloss = tf.losses.softmax_cross_entropy(labels, logits)\n",
            2,
            "probabilities given as logits",
        ),
        (
            "y = Dense(3, activation='softmax')(x)\nloss = CategoricalCrossentropy(from_logits=True)\n",
            2,
            "from_logits=True behind a softmax",
        ),
        (
            "w = tf.layers.dense(x, 3,\n  kernel_regularizer=tf.contrib.layers.l2_regularizer(1e-4))\nloss = f(w)\n",
            1,
            "a regulariser whose loss is never added",
        ),
        (
            "def model_fn(features, mode):
  if mode == tf.estimator.ModeKeys.TRAIN:
    with tf.tpu.bfloat16_scope():
      logits = network(features)
  elif mode == tf.estimator.ModeKeys.EVAL:
    logits = network(features)
  return logits
",
            6,
            "an evaluation outside of the bfloat16_scope",
        ),
        (
            "def model_fn(features, mode):
  if mode == 'train':
    features = tf.cast(features, tf.bfloat16)
  with tf.tpu.bfloat16_scope():
    return network(features)
",
            3,
            "inputs are cast for training alone",
        ),
        ("model, opt = amp.initialize(model, opt, opt_level='O2')\n", 1, "mixed precision of another framework"),
        ("os.environ['TF_ENABLE_AUTO_MIXED_PRECISION'] = '1'\n", 1, "mixed precision of another framework"),
    ] {
        assert_eq!(findings(text), [(line, what)], "{text}");
    }
}

/// Scripts in different styles, each below `=== title: clean` or `=== title: line what`.
#[test]
fn scripts_of_many_styles_are_read_as_they_are_meant() {
    let all = include_str!("data/scripts.txt");
    let (mut wrong, mut n) = (Vec::new(), [0, 0]);
    for part in all.split("=== ").skip(1) {
        let (head, text) = part.split_once('\n').expect("a title's line");
        let (title, expected) = head.rsplit_once(": ").expect("a title and what is expected");
        let text = if title.contains("windows") { text.replace('\n', "\r\n") } else { text.to_string() };
        let expected: Vec<(u32, String)> = match expected.split_once(' ') {
            Some((line, what)) => vec![(line.parse().expect("a line"), what.to_string())],
            None => Vec::new(),
        };
        n[usize::from(expected.is_empty())] += 1;
        let shown = read_script(&text).findings.into_iter().filter(|finding| finding.is_slip);
        let shown: Vec<(u32, String)> = shown.map(|finding| (finding.line, finding.what.to_string())).collect();
        if shown != expected {
            wrong.push(format!("{title}: {shown:?}, expected {expected:?}"));
        }
    }
    assert_eq!(wrong, [""; 0], "{}", wrong.join("\n"));
    assert_eq!(n, [75, 65]);
}

#[test]
fn imported_modules_are_listed() {
    let reading =
        read_script("import os\nimport resnet_model\nfrom official.utils import flags\nimport tensorflow as tf\n");
    assert_eq!(reading.not_followed, ["official", "resnet_model"]);
}

/// Keras' `Sequential` of literals, as a list and by `add`, and what is not followed.
#[test]
fn a_sequential_of_literals_becomes_layers() {
    let listed = read_script(
        "model = keras.Sequential([\n  keras.Input(shape=(28, 28, 1)),\n  layers.Conv2D(32, (3, 3), activation='relu'),\n  \
         layers.MaxPooling2D(),\n  layers.BatchNormalization(momentum=0.9, epsilon=1e-5),\n  layers.Flatten(),\n  \
         layers.Dense(10, use_bias=False),\n  layers.Activation('softmax'),\n])\n\
         model.compile('adam', loss='sparse_categorical_crossentropy')\n",
    )
    .sequential
    .unwrap();
    let expected = "model:
  kind: layers
  inputs:
    x: [28, 28, 1]
  layers:
    - {conv: 32, kernel_size: [3, 3], activation: relu}
    - {max_pool: 2}
    - {batch_norm: , momentum: 0.9, epsilon: 1e-5}
    - {flatten: }
    - {dense: 10, use_bias: false}
  loss: sparse_softmax_cross_entropy
  metrics: [accuracy]
train:
  batch: 32
";
    assert_eq!(listed.experiment.as_deref(), Some(expected), "{:?}", listed.not_followed);
    assert_eq!(listed.not_followed, [(10, "`compile` but for its loss".to_string())]);
    let added = "model = Sequential()\nmodel.add(Dense(4, input_dim=8))\nfor n in sizes:\n  model.add(Dense(n))\n\
                 model.add(Lambda(f))\nmodel.add(Dense(units))\nmodel.compile('sgd', 'mse')\n";
    let added = read_script(added).sequential.unwrap();
    assert_eq!(added.experiment, None);
    let left: Vec<(u32, &str)> = added.not_followed.iter().map(|(line, text)| (*line, text.as_str())).collect();
    let expected = [
        (4, "`add` in a branch or a loop, or of a layer before"),
        (5, "`Lambda`"),
        (6, "`units` of `Dense`, which is no literal"),
        (7, "`compile` but for its loss"),
    ];
    assert_eq!(left, expected);
}

/// A fault of a layer is one line, and so is a missing argument.
#[test]
fn a_fault_of_a_layer_is_listed_once() {
    const LOSS: (u32, &str) = (3, "`compile` but for its loss");
    let units = (2, "`units` of `Dense`, which is no literal");
    let without = (2, "`Dense` without `units`");
    for (layers, expected) in [
        ("Dense(n, input_dim=8)", vec![units, LOSS]),
        ("Dense(units=n, input_dim=8)", vec![units, LOSS]),
        ("Dense(input_dim=8)", vec![without, LOSS]),
        ("Dense(4, input_shape=(n,))", vec![(2, "`input_shape` of `Dense`"), LOSS]),
        ("Input(shape=(n,)), Dense(4)", vec![(2, "`Input` but for a shape of numbers"), LOSS]),
        ("Dense(4)", vec![LOSS, (2, "the shape of its input")]),
        ("Input(shape=(8,)), Dropout(rate), Dense(4)", vec![(2, "`rate` of `Dropout`, which is no literal"), LOSS]),
    ] {
        let script = format!("import keras\nmodel = Sequential([{layers}])\nmodel.compile('sgd', 'mse')\n");
        let model = read_script(&script).sequential.unwrap();
        let left: Vec<(u32, &str)> = model.not_followed.iter().map(|(line, text)| (*line, text.as_str())).collect();
        assert_eq!((model.experiment, left), (None, expected), "{layers}");
    }
}

#[test]
fn constructs_that_no_rule_reads_are_listed() {
    let reading =
        read_script("from layers import *\nmodel.eval()\nf = getattr(tf, name)\neval(text)\ng = getattr(f, 'g')\n");
    assert_eq!(reading.not_read, [("eval", vec![4]), ("getattr", vec![3, 5]), ("import *", vec![1])]);
}

/// MXNet's and Apex's `amp` have a function of the same name.
#[test]
fn amp_is_of_the_framework_that_is_imported() {
    for (import, framework) in [("from mxnet.contrib import amp", "MXNet: "), ("from apex import amp", "Apex: ")] {
        let reading =
            read_script(&format!("{import}\nwith amp.scale_loss(loss, trainer) as scaled:\n  scaled.backward()\n"));
        let mends: Vec<&str> = reading.findings.iter().map(|finding| finding.mend).collect();
        assert!(mends.len() == 1 && mends[0].starts_with(framework), "{import}: {mends:?}");
    }
}

/// Each form of mixed precision has its counterpart.
#[test]
fn mixed_precision_of_other_frameworks_has_its_form() {
    for (text, start) in [
        ("opt = tf.train.experimental.enable_mixed_precision_graph_rewrite(opt)\n", "TensorFlow AMP: "),
        ("tf.config.optimizer.set_experimental_options({'auto_mixed_precision': True})\n", "TensorFlow AMP: "),
        ("tf.keras.mixed_precision.experimental.set_policy('mixed_bfloat16')\n", "Keras: "),
        ("optimizer = FP16_Optimizer(optimizer, dynamic_loss_scale=True)\n", "Apex: "),
        ("from mxnet.contrib import amp\namp.init(target_dtype='bfloat16')\n", "MXNet: `bf16scope lower step.hlo.pb`"),
        ("from mxnet.contrib import amp\namp.init_trainer(trainer)\n", "MXNet: `train: {loss_scale: dynamic}` in f16"),
    ] {
        let mends: Vec<&str> = read_script(text).findings.iter().map(|finding| finding.mend).collect();
        assert!(mends.len() == 1 && mends[0].starts_with(start), "{text}: {mends:?}");
    }
}

/// The tracer's command line names a function or model that is there.
#[test]
fn what_to_trace_is_named() {
    for (text, entry) in [
        (
            "import tensorflow as tf\ndef resnet_model_fn(features, labels, mode, params):\n  pass\n",
            Some("resnet_model_fn"),
        ),
        ("model = keras.Sequential([])\n@tf.function\ndef step(x, y):\n  pass\n", Some("step")),
        ("def build(n=10):\n  return tf.keras.Model(x, y)\nmodel = build()\n", Some("build")),
        ("def build(n, size=3):\n  return tf.keras.Model(x, y)\nnet = tf.keras.Sequential()\n", Some("net")),
        ("import tensorflow as tf\nx = tf.constant(1)\n", None),
    ] {
        let reading = read_script(text);
        assert_eq!((reading.entry.as_deref(), reading.is_tensorflow), (entry, true), "{text}");
    }
    assert!(!read_script("import torch\nmodel = Net()\n").is_tensorflow);
}

/// Scripts with changed, inserted and removed characters are linted without a panic.
#[test]
fn mutated_scripts_are_read() {
    let mut rng = StdRng::seed_from_u64(56);
    let n = std::env::var("BF16SCOPE_TEST_MUTATIONS").ok().and_then(|n| n.parse().ok()).unwrap_or(500);
    let letters: Vec<char> = "()[]{}'\"#\\\n\t =:,.xé".chars().collect();
    for at in 0..n {
        let mut text: Vec<char> = CLEAN[at % CLEAN.len()].chars().collect();
        for _ in 0..rng.random_range(1..8) {
            let place = rng.random_range(0..text.len());
            match rng.random_range(0..4) {
                0 => text[place] = letters[rng.random_range(0..letters.len())],
                1 => text.insert(place, letters[rng.random_range(0..letters.len())]),
                2 => drop(text.remove(place)),
                _ => text.truncate(place.max(1)),
            }
            if text.is_empty() {
                text.push('x');
            }
        }
        read_script(&text.into_iter().collect::<String>());
    }
}
