"""Whole networks with random weights as TensorFlow 1 code, Hugging Face's transformers, Keras and PyTorch write them, what they
compute in f32 and in their own bf16, and the same network as an experiment: weights, arrays.npz and model.yaml for
`bf16scope weights WEIGHTS --model model.yaml --check arrays.npz`. By hand: most of the networks are too large to keep.

In an environment with tensorflow-cpu 2.21 and tf-keras: python whole.py tf1_resnet, bert_tensorflow, keras_attention
In one with torch and transformers: python whole.py bert, gpt2, llama, llama_small, vit, vit_small, resnet, torch_flatten, torch_encoder
"""
import copy
import os
import sys

import numpy as np

rng = np.random.default_rng(0)


def keep(experiment, **arrays):
    np.savez("arrays.npz", **arrays)
    with open("model.yaml", "w") as file:
        file.write(experiment.strip("\n") + "\n")


def keep_more(**arrays):
    with np.load("arrays.npz") as kept:
        np.savez("arrays.npz", **kept, **arrays)


def tf1_resnet():
    """ResNet-50 as TensorFlow's TPU models write it: `tf.layers`, which number names, under `bfloat16_scope`."""
    os.environ["TF_USE_LEGACY_KERAS"] = "1"
    import tensorflow as tf

    v1 = tf.compat.v1
    layers = v1.layers

    def convolution(x, filters, size, stride):
        if stride > 1:
            before = (size - 1) // 2
            x = tf.pad(x, [[0, 0], [before, size - 1 - before], [before, size - 1 - before], [0, 0]])
        return layers.conv2d(x, filters, size, stride, "SAME" if stride == 1 else "VALID", use_bias=False)

    def norm(x):
        return layers.batch_normalization(x, momentum=0.9, epsilon=1e-5, fused=True)

    def bottleneck(x, filters, stride, is_first):
        shortcut = norm(convolution(x, 4 * filters, 1, stride)) if is_first else x
        y = tf.nn.relu(norm(convolution(x, filters, 1, 1)))
        y = tf.nn.relu(norm(convolution(y, filters, 3, stride)))
        return tf.nn.relu(norm(convolution(y, 4 * filters, 1, 1)) + shortcut)

    def network(images):
        x = tf.nn.relu(norm(convolution(images, 64, 7, 2)))
        x = layers.max_pooling2d(x, 3, 2, "SAME")
        for stage, n in enumerate([3, 4, 6, 3]):
            for block in range(n):
                x = bottleneck(x, 64 << stage, 2 if stage and not block else 1, not block)
        return layers.dense(tf.reduce_mean(x, [1, 2]), 10)

    images = rng.normal(size=(4, 64, 64, 3)).astype(np.float32)

    def logits(low, values=None):
        with tf.Graph().as_default(), v1.Session() as session:
            if low:
                with v1.tpu.bfloat16_scope():
                    result = tf.cast(network(tf.cast(images, tf.bfloat16)), tf.float32)
            else:
                result = network(tf.constant(images))
            v1.train.get_or_create_global_step()
            session.run(v1.global_variables_initializer())
            for variable in v1.global_variables():
                name, shape = variable.op.name, variable.shape.as_list()
                if values is None and name.endswith(("gamma", "moving_variance")):
                    variable.load(1 + 0.1 * np.abs(rng.normal(size=shape)), session)
                elif values is None and name.endswith(("beta", "bias", "moving_mean")):
                    variable.load(0.1 * rng.normal(size=shape), session)
                elif values is not None:
                    variable.load(values[name], session)
            if values is None:
                v1.train.Saver().save(session, "./model.ckpt", write_meta_graph=False)
            return session.run(result), {it.op.name: session.run(it) for it in v1.global_variables()}

    f32, values = logits(False)
    keep(
        """
model: {kind: resnet, depth: 50, input: [64, 64, 3], n_classes: 10, padding: fixed}
""",
        images=images, logits=f32, logits_bf16=logits(True, values)[0],
    )


BERT = """
model:
  kind: layers
  inputs:
    words: {shape: [128], dtype: int32}
    segments: {shape: [128], dtype: int32}
  layers:
    - {embedding: 30522, output_dim: 768, inputs: words, name: word_embeddings}
    - {embedding: 2, output_dim: 768, inputs: segments, name: segment_embeddings}
    - {add: [word_embeddings, segment_embeddings]}
    - {position_embedding: 512}
    - {layer_norm: , epsilon: 1.0e-12, name: embeddings/norm}
    - {transformer_block: 12, intermediate_dim: 3072, activation: GELU, layer_norm_epsilon: 1.0e-12, repeats: 12, name: encoder}
    - {take: 0}
    - {dense: 768, activation: tanh, name: pooler}
    - {dense: 3, name: classes}
  loss: sparse_softmax_cross_entropy
"""


def words_and_segments():
    return rng.integers(0, 30522, (2, 128)).astype(np.int32), rng.integers(0, 2, (2, 128)).astype(np.int32)


def bert_tensorflow():
    """BERT of base size in TensorFlow 1 code, by the names of BERT's own checkpoints; GELU by tanh, as there."""
    import tensorflow as tf

    v1 = tf.compat.v1
    words, segments = words_and_segments()
    features, heads = 768, 12

    def get(name, shape, dtype):
        value = 0.02 * rng.normal(size=shape) + 0.1 * rng.normal() * (len(shape) == 1)
        if name == "gamma":
            value = 1 + value
        start = value.astype(np.float32)
        return v1.get_variable(name, shape, dtype, lambda _, dtype=None, **__: tf.cast(start, dtype))

    def dense(x, units, name):
        with v1.variable_scope(name):
            return tf.matmul(x, get("kernel", (x.shape[-1], units), x.dtype)) + get("bias", (units,), x.dtype)

    def norm(x):
        with v1.variable_scope("LayerNorm"):
            wide = tf.cast(x, tf.float32)
            mean, variance = tf.nn.moments(wide, -1, keepdims=True)
            beta, gamma = get("beta", (features,), tf.float32), get("gamma", (features,), tf.float32)
            return tf.cast(tf.nn.batch_normalization(wide, mean, variance, beta, gamma, 1e-12), x.dtype)

    def gelu(x):
        return 0.5 * x * (1 + tf.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x * x * x)))

    def layer(x):
        n, length = x.shape[:2]

        def split(name):
            parts = tf.reshape(dense(x, features, name), (n, length, heads, features // heads))
            return tf.transpose(parts, [0, 2, 1, 3])

        with v1.variable_scope("attention"):
            with v1.variable_scope("self"):
                scores = tf.matmul(split("query"), split("key"), transpose_b=True) / np.sqrt(features // heads)
                weights = tf.cast(tf.nn.softmax(tf.cast(scores, tf.float32)), x.dtype)
                mixed = tf.transpose(tf.matmul(weights, split("value")), [0, 2, 1, 3])
            with v1.variable_scope("output"):
                x = norm(x + dense(tf.reshape(mixed, (n, length, features)), features, "dense"))
        with v1.variable_scope("intermediate"):
            y = gelu(dense(x, 4 * features, "dense"))
        with v1.variable_scope("output"):
            return norm(x + dense(y, features, "dense"))

    def network(dtype):
        with v1.variable_scope("bert"):
            with v1.variable_scope("embeddings"):
                x = tf.gather(get("word_embeddings", (30522, features), dtype), words)
                x += tf.gather(get("token_type_embeddings", (2, features), dtype), segments)
                x = norm(x + get("position_embeddings", (512, features), dtype)[:128])
            with v1.variable_scope("encoder"):
                for number in range(12):
                    with v1.variable_scope(f"layer_{number}"):
                        x = layer(x)
            with v1.variable_scope("pooler"):
                x = tf.tanh(dense(x[:, 0], features, "dense"))
        output = get("output_weights", (3, features), dtype)
        return tf.cast(tf.matmul(x, output, transpose_b=True) + get("output_bias", (3,), dtype), tf.float32)

    with tf.Graph().as_default(), v1.Session() as session:
        result = network(tf.float32)
        session.run(v1.global_variables_initializer())
        v1.train.Saver().save(session, "./model.ckpt", write_meta_graph=False)
        f32 = session.run(result)
    with tf.Graph().as_default(), v1.Session() as session:
        with v1.tpu.bfloat16_scope():
            result = network(tf.bfloat16)
        v1.train.Saver().restore(session, "./model.ckpt")
        bf16 = session.run(result)
    keep(BERT.replace("GELU", "gelu_tanh"), words=words, segments=segments, logits=f32, logits_bf16=bf16)


def keras_attention():
    """Keras' own layers for attention, whose biases have the heads as an axis."""
    import keras

    def network():
        tokens = keras.Input((4,), dtype="int32", name="tokens")
        x = keras.layers.Embedding(20, 16, name="table")(tokens)
        for number in (1, 2):
            attention = keras.layers.MultiHeadAttention(4, 4, name=f"attention{number}")
            x = keras.layers.LayerNormalization(name=f"norm{number}")(x + attention(x, x))
        x = keras.layers.Dense(8, "relu", name="hidden")(keras.layers.Flatten()(x))
        return keras.Model(tokens, keras.layers.Dense(5, name="logits")(x))

    model = network()
    for variable in model.weights:
        variable.assign(variable + 0.1 * rng.normal(size=variable.shape))
    tokens = rng.integers(0, 20, (8, 4)).astype(np.int32)
    model.save("model.keras")
    model.save_weights("model.weights.h5")
    model.export("saved", verbose=False)
    f32 = model(tokens, training=False).numpy()
    keras.config.set_dtype_policy("mixed_bfloat16")
    low = network()
    low.set_weights(model.get_weights())
    keep(
        """
model:
  kind: layers
  inputs:
    tokens: {shape: [4], dtype: int32}
  layers:
    - {embedding: 20, output_dim: 16, name: table}
    - {attention: 4, name: attention1}
    - {add: [table, attention1]}
    - {layer_norm: , name: norm1}
    - {attention: 4, name: attention2}
    - {add: [norm1, attention2]}
    - {layer_norm: , name: norm2}
    - flatten
    - {dense: 8, activation: relu, name: hidden}
    - {dense: 5, name: logits}
  loss: sparse_softmax_cross_entropy
""",
        tokens=tokens, logits=f32, logits_bf16=np.asarray(low(tokens, training=False), np.float32),
    )


def of_torch(model, experiment, inputs, names, of=lambda result: result, dtype=None):
    """Keeps a module of PyTorch with weights that no two layers share, norms and biases too."""
    import torch

    with torch.no_grad():
        for parameter in model.parameters():
            parameter += (0.02 if parameter.dim() > 1 else 0.1) * torch.randn_like(parameter)
        for name, buffer in model.named_buffers():
            if name.endswith("running_mean"):
                buffer.copy_(0.1 * torch.randn_like(buffer))
            if name.endswith("running_var"):
                buffer.copy_(1 + 0.1 * torch.randn_like(buffer).abs())
        for parameter in model.parameters():
            # What a file of that dtype holds.
            parameter.copy_(parameter.to(dtype or parameter.dtype))
        model.eval()
        low = copy.deepcopy(model).to(torch.bfloat16)
        for name, buffer in model.named_buffers():
            # `from_pretrained(dtype=torch.bfloat16)` leaves the frequencies of rotations f32.
            if name.endswith("inv_freq"):
                low.get_buffer(name).data = buffer.clone()
        as_low = {name: it.to(torch.bfloat16) if it.is_floating_point() else it for name, it in inputs.items()}
        f32, bf16 = of(model(**inputs)).numpy(), of(low(**as_low)).float().numpy()
    # Images have channels first there.
    arrays = {ours: inputs[theirs].numpy() for ours, theirs in names.items()}
    arrays = {name: it.transpose(0, 2, 3, 1) if it.ndim == 4 else it.astype(np.int32) for name, it in arrays.items()}
    keep(experiment, logits=f32, logits_bf16=bf16, **arrays)


def bert():
    import torch
    from transformers import BertConfig, BertForSequenceClassification

    words, segments = map(torch.tensor, words_and_segments())
    model = BertForSequenceClassification(BertConfig(num_labels=3))
    inputs = {"input_ids": words.long(), "token_type_ids": segments.long()}
    names = {"words": "input_ids", "segments": "token_type_ids"}
    of_torch(model, BERT.replace("GELU", "gelu"), inputs, names, lambda result: result.logits)
    model.save_pretrained(".", max_shard_size="200MB")


def gpt2():
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config())
    inputs = {"input_ids": torch.tensor(rng.integers(0, 50257, (1, 64)))}
    of_torch(
        model,
        """
model:
  kind: layers
  inputs:
    tokens: {shape: [64], dtype: int32}
  layers:
    - {embedding: 50257, output_dim: 768, inputs: tokens, name: tokens_table}
    - {position_embedding: 1024}
    - {transformer_block: 12, intermediate_dim: 3072, activation: gelu_tanh, normalize_first: true, use_causal_mask: true, repeats: 12, name: decoder}
    - {layer_norm: , epsilon: 1.0e-5, name: norm}
    - {dense: 50257, use_bias: false, name: logits}
  loss: sparse_softmax_cross_entropy
""",
        inputs, {"tokens": "input_ids"}, lambda result: result.logits,
    )
    model.save_pretrained(".")


LLAMA = """
model:
  kind: layers
  inputs:
    tokens: {shape: [LENGTH], dtype: int32}
  layers:
    - {embedding: VOCABULARY, output_dim: FEATURES, inputs: tokens, name: tokens_table}
    - {llama_block: HEADS, num_key_value_heads: SHARED, intermediate_dim: HIDDEN, rope: ROPE, repeats: BLOCKS, name: decoder}
    - {rms_norm: , epsilon: 1.0e-5, name: norm}
    - {dense: VOCABULARY, use_bias: false, name: logits}
  loss: sparse_softmax_cross_entropy
"""


def of_llama(length, vocabulary, features, heads, shared, hidden, blocks, dtype, original):
    """Llama with grouped queries and Llama 3.1's scaling of rotations, and what it writes greedily."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    scaling = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": original}
    model = LlamaForCausalLM(LlamaConfig(
        vocab_size=vocabulary, hidden_size=features, intermediate_size=hidden, num_hidden_layers=blocks,
        num_attention_heads=heads, num_key_value_heads=shared, rms_norm_eps=1e-5, max_position_embeddings=8 * original,
        rope_parameters={"rope_type": "llama3", "rope_theta": 10000.0, **scaling}, initializer_range=0.1,
        bos_token_id=None, eos_token_id=None,
    ))
    rope = "{scaling: {" + ", ".join(f"{key}: {value}" for key, value in scaling.items()) + "}}"
    experiment = LLAMA
    for word, value in dict(
        LENGTH=length, VOCABULARY=vocabulary, FEATURES=features, HEADS=heads, SHARED=shared, HIDDEN=hidden, ROPE=rope,
        BLOCKS=blocks,
    ).items():
        experiment = experiment.replace(word, str(value))
    inputs = {"input_ids": torch.tensor(rng.integers(0, vocabulary, (2, length)))}
    of_torch(model, experiment, inputs, {"tokens": "input_ids"}, lambda result: result.logits, dtype)
    begun = inputs["input_ids"][:1, :5]
    text = model.generate(begun, do_sample=False, max_new_tokens=min(length - 5, 7), use_cache=False)
    model.to(dtype).save_pretrained(".")
    keep_more(greedy=text.numpy()[0].astype(np.int32))


def llama():
    import torch

    of_llama(128, 32000, 768, 12, 4, 2048, 4, torch.float32, 32)


def llama_small():
    """In bf16, as Llama is published."""
    import torch

    of_llama(12, 11, 8, 2, 1, 10, 2, torch.bfloat16, 8)


VIT = """
model:
  kind: layers
  inputs:
    image: {shape: [SIZE, SIZE, CHANNELS]}
  layers:
    - {conv: FEATURES, kernel_size: PATCH, strides: PATCH, name: patches}
    - {reshape: [-1, FEATURES]}
    - class_token
    - {position_embedding: POSITIONS}
    - {transformer_block: HEADS, intermediate_dim: HIDDEN, activation: gelu, normalize_first: true, layer_norm_epsilon: 1.0e-12, repeats: BLOCKS, name: encoder}
    - {layer_norm: , epsilon: 1.0e-12, name: norm}
    - {take: 0}
    - {dense: CLASSES, name: classes}
  loss: sparse_softmax_cross_entropy
"""


def of_vit(size, patch, channels, features, heads, hidden, blocks, classes, dtype):
    import torch
    from transformers import ViTConfig, ViTForImageClassification

    torch.manual_seed(0)
    model = ViTForImageClassification(ViTConfig(
        hidden_size=features, num_hidden_layers=blocks, num_attention_heads=heads, intermediate_size=hidden,
        image_size=size, patch_size=patch, num_channels=channels, num_labels=classes, initializer_range=0.1,
    ))
    experiment = VIT
    for word, value in dict(
        SIZE=size, PATCH=patch, CHANNELS=channels, FEATURES=features, POSITIONS=(size // patch) ** 2 + 1, HEADS=heads,
        HIDDEN=hidden, BLOCKS=blocks, CLASSES=classes,
    ).items():
        experiment = experiment.replace(word, str(value))
    inputs = {"pixel_values": torch.randn(4, channels, size, size)}
    of_torch(model, experiment, inputs, {"image": "pixel_values"}, lambda result: result.logits, dtype)
    model.to(dtype).save_pretrained(".")


def vit():
    import torch

    of_vit(224, 16, 3, 768, 12, 3072, 12, 10, torch.float32)


def vit_small():
    """In bf16, which is half as large."""
    import torch

    of_vit(4, 2, 3, 8, 2, 12, 2, 3, torch.bfloat16)


def resnet():
    """Hugging Face's ResNet-50, which pads by one on each side: layers of ours, each with the name that the zoo's has."""
    import torch
    from transformers import ResNetConfig, ResNetForImageClassification

    torch.manual_seed(0)
    lines = []

    def line(text, name, reads=None):
        lines.append(f"    - {{{text}, name: {name}" + (f", inputs: {reads}}}" if reads else "}"))
        return name

    def convolution(at, number, filters, size, stride, reads=None):
        if size > 1:
            reads = line(f"zero_padding: {size // 2}", f"{at}/pad{number}", reads)
        read = f"conv: {filters}, kernel_size: {size}, strides: {stride}, use_bias: false"
        line(read, f"{at}/{number if isinstance(number, str) else f'conv{number}'}", reads)
        return line("batch_norm: , epsilon: 1.0e-5", f"{at}/{number.replace('conv', 'bn') if isinstance(number, str) else f'bn{number}'}")

    convolution("stem", "conv", 64, 7, 2)
    line("activation: relu", "stem/relu")
    # What is padded is not below 0, so that zeros are as good as nothing.
    line("zero_padding: 1", "stem/pool_pad")
    before = line("max_pool: 3, strides: 2", "stem/pool")
    for stage, n in enumerate([3, 4, 6, 3], 1):
        filters = 128 << stage
        for block in range(1, n + 1):
            at, stride = f"stage{stage}/block{block}", 2 if stage > 1 and block == 1 else 1
            shortcut = convolution(at, "shortcut_conv", filters, 1, stride, before) if block == 1 else before
            convolution(at, 1, filters // 4, 1, 1, before)
            line("activation: relu", f"{at}/relu1")
            convolution(at, 2, filters // 4, 3, stride)
            line("activation: relu", f"{at}/relu2")
            y = convolution(at, 3, filters, 1, 1)
            lines.append(f"    - {{add: [{y}, {shortcut}], name: {at}/add}}")
            before = line("activation: relu", f"{at}/relu")
    head = ["    - global_avg_pool", "    - {dense: 10, name: logits}"]
    start = "model:\n  kind: layers\n  inputs:\n    image: {shape: [64, 64, 3]}\n  layers:\n"
    experiment = start + "\n".join(lines + head) + "\n  loss: sparse_softmax_cross_entropy\n"
    model = ResNetForImageClassification(ResNetConfig(num_labels=10))
    inputs = {"pixel_values": torch.randn(4, 3, 64, 64)}
    of_torch(model, experiment, inputs, {"image": "pixel_values"}, lambda result: result.logits)
    model.save_pretrained(".")


def torch_flatten():
    """Images flattened before a dense layer, channels first there."""
    import torch
    from torch import nn

    torch.manual_seed(0)

    class Network(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv1 = nn.Conv2d(3, 4, 3, padding=1)
            self.conv2 = nn.Conv2d(4, 6, 3, padding=1)
            self.hidden = nn.Linear(6 * 2 * 3, 8)
            self.logits = nn.Linear(8, 5)

        def forward(self, images):
            x = nn.functional.max_pool2d(torch.relu(self.conv1(images)), 2)
            x = nn.functional.max_pool2d(torch.relu(self.conv2(x)), 2)
            return self.logits(torch.relu(self.hidden(x.flatten(1))))

    model = Network()
    of_torch(
        model,
        """
model:
  kind: layers
  inputs:
    images: {shape: [8, 12, 3]}
  layers:
    - {conv: 4, kernel_size: 3, padding: same, activation: relu, name: conv1}
    - {max_pool: 2}
    - {conv: 6, kernel_size: 3, padding: same, activation: relu, name: conv2}
    - {max_pool: 2}
    - flatten
    - {dense: 8, activation: relu, name: hidden}
    - {dense: 5, name: logits}
  loss: sparse_softmax_cross_entropy
""",
        {"images": torch.randn(64, 3, 8, 12)}, {"images": "images"},
    )
    torch.save(model.state_dict(), "model.pt")


def torch_encoder():
    """Patches of images through PyTorch's own encoder, whose projections for attention are one array."""
    import torch
    from torch import nn

    torch.manual_seed(0)

    class Network(nn.Module):
        def __init__(self):
            super().__init__()
            self.patches = nn.Conv2d(3, 16, 4, stride=4)
            self.positions = nn.Parameter(torch.randn(1, 4, 16))
            layer = nn.TransformerEncoderLayer(16, 4, 24, 0.0, "gelu", batch_first=True, norm_first=True)
            self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
            self.norm = nn.LayerNorm(16)
            self.logits = nn.Linear(16, 5)

        def forward(self, images):
            x = self.patches(images).flatten(2).transpose(1, 2) + self.positions
            return self.logits(self.norm(self.encoder(x))[:, 0])

    model = Network()
    of_torch(
        model,
        """
model:
  kind: layers
  inputs:
    images: {shape: [8, 8, 3]}
  layers:
    - {conv: 16, kernel_size: 4, strides: 4, name: patches}
    - {reshape: [4, 16]}
    - {position_embedding: 4, name: positions}
    - {transformer_block: 4, intermediate_dim: 24, activation: gelu, normalize_first: true, repeats: 2, name: encoder}
    - {layer_norm: , epsilon: 1.0e-5, name: norm}
    - {take: 0}
    - {dense: 5, name: logits}
  loss: sparse_softmax_cross_entropy
""",
        {"images": torch.randn(8, 3, 8, 8)}, {"images": "images"},
    )
    torch.save(model.state_dict(), "model.pt")


globals()[sys.argv[1]]()
