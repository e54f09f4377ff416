#!/usr/bin/env python3
"""Text to batches of token windows: bf16scope beside tf.data with Hugging Face's tokenizers, in processor time.

benches/input/text.py BINARY TEXT

BINARY is a build of bf16scope, TEXT a text file of some megabytes, such as examples/data/bible.txt; needs tensorflow-cpu and
tokenizers from pip. Two tokenizers of 8,000 tokens are trained on the text first: byte-level BPE, and WordPiece. Then both
sides read the same lines and make ids of them: once, with nothing cached, and (ours from its cache of ids, tf.data from ids
that it cached in memory) once more. tf.data gives all batches of 32 windows of 128 tokens; ours, `bf16scope data`, the ids on
disk, checked, from which windows are read, and 16 examples. What counts is processor time, for the clock
of a shared machine says little: of ours that of the whole process, of tf.data's that of the pass without imports.
"""
import os
import resource
import subprocess
import sys
import tempfile
import time

WINDOW, BATCH, REPEATS = 128, 32, 3
binary, path = sys.argv[1], os.path.abspath(sys.argv[2])
n_mb = os.path.getsize(path) / 1e6
folder = tempfile.mkdtemp()


def tokenizers_of(path):
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.train([path], trainers.BpeTrainer(vocab_size=8000, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    pieces = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    pieces.normalizer, pieces.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    pieces.train([path], trainers.WordPieceTrainer(vocab_size=8000, special_tokens=["[UNK]"], show_progress=False))
    for name, tokenizer in {"bpe": bpe, "word_piece": pieces}.items():
        tokenizer.save(f"{folder}/{name}.json")
    return ["bpe", "word_piece"]


def spent(who):
    usage = resource.getrusage(who)
    return usage.ru_utime + usage.ru_stime


def ours(name):
    """Processor seconds of the first pass, and of the second, which reads the ids from the cache."""
    experiment = f"{folder}/{name}.yaml"
    model = f"kind: transformer, vocabulary: 8192, length: {WINDOW}, layers: 1, features: 8, heads: 1, hidden: 8, causal: true"
    tokens = f"tokenizer: {name}.json, by: line, window: {WINDOW}"
    with open(experiment, "w") as file:
        file.write(f"model: {{{model}}}\ndata: {{text: {path}, tokens: {{{tokens}}}, n_test: 1}}\n")
    with tempfile.TemporaryDirectory() as cache:
        passes = []
        for _ in range(2):
            before = spent(resource.RUSAGE_CHILDREN)
            subprocess.run([binary, "data", experiment], check=True, env={**os.environ, "BF16SCOPE_CACHE": cache}, stdout=subprocess.DEVNULL)
            passes.append(spent(resource.RUSAGE_CHILDREN) - before)
    return passes


def theirs(name):
    """The same with tf.data: `encode_batch_fast` on batches of 1,000 lines, which is the fastest way."""
    import numpy as np
    import tensorflow as tf
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(f"{folder}/{name}.json")

    def encode(lines):
        encoded = tokenizer.encode_batch_fast([line.decode() for line in lines.numpy()], add_special_tokens=False)
        return np.concatenate([np.asarray(e.ids, np.int32) for e in encoded])

    lines = tf.data.TextLineDataset(path).batch(1000)
    ids = lines.map(lambda batch: tf.py_function(encode, [batch], tf.int32), num_parallel_calls=tf.data.AUTOTUNE)
    ids = ids.map(lambda x: tf.ensure_shape(x, [None])).cache()
    # Windows are cut within the ids of one call, whose last ids are dropped: passing on single ids would take longer than
    # tokenizing does.
    windows = ids.flat_map(lambda x: tf.data.Dataset.from_tensor_slices(
        tf.reshape(x[: tf.size(x) // (WINDOW + 1) * (WINDOW + 1)], [-1, WINDOW + 1])))
    batches = windows.map(lambda w: (w[:-1], w[1:])).batch(BATCH).prefetch(1)
    passes = []
    for _ in range(2):
        before = spent(resource.RUSAGE_SELF)
        n = sum(1 for _ in batches)
        passes.append(spent(resource.RUSAGE_SELF) - before)
    assert n > 0
    return passes


for name in tokenizers_of(path):
    measured = [ours(name) for _ in range(REPEATS)]
    other = [theirs(name) for _ in range(REPEATS)]
    for number, what in enumerate(["first pass", "second pass"]):
        best, their = (min(passes[number] for passes in all) for all in (measured, other))
        print(f"{name}, {what}: {1e3 * best / n_mb:.0f} ms a megabyte, tf.data {1e3 * their / n_mb:.0f}: {their / best:.2f} times", flush=True)
print(time.strftime("%Y-%m-%d"), f"{n_mb:.1f} MB", os.cpu_count(), "cores, load", os.getloadavg()[0])
