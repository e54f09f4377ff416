"""TensorFlow's side of `compare`: the same files by the same recipe through `tf.data`.

python tf.py FILES evaluation|training WORKERS SECONDS default|accurate
prints a line of JSON as `cargo bench --bench input` does. The recipe is that of `resnet_preprocessing.py`: the window is
decoded by the op that decodes and cuts in one (`decode_and_crop_jpeg`), resized by TensorFlow 1's bicubic kernel, flipped in
training, normalised, cast to bf16. `default` and `accurate` are the values of `dct_method`: ours is the accurate one, which
TensorFlow does not take unless it is asked.
"""

import json
import os
import resource
import sys
import time

os.environ |= {"TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": ""}
import tensorflow as tf

BATCH, SIZE, PADDING = 64, 224, 32
MEAN, STD = [123.675, 116.28, 103.53], [58.395, 57.12, 57.375]


def window(image, is_training):
    shape = tf.io.extract_jpeg_shape(image)
    height, width = shape[0], shape[1]
    side = tf.cast(SIZE / (SIZE + PADDING) * tf.cast(tf.minimum(height, width), tf.float32), tf.int32)
    centre = tf.stack([(height - side + 1) // 2, (width - side + 1) // 2, side, side])
    if not is_training:
        return centre
    begin, size, _ = tf.image.sample_distorted_bounding_box(
        shape, bounding_boxes=tf.constant([[[0.0, 0.0, 1.0, 1.0]]]), min_object_covered=0.1,
        aspect_ratio_range=(3 / 4, 4 / 3), area_range=(0.08, 1.0), max_attempts=10, use_image_if_no_bounding_boxes=True)
    drawn = tf.stack([begin[0], begin[1], size[0], size[1]])
    return tf.cond(tf.reduce_all(tf.equal(size, shape)), lambda: centre, lambda: drawn)


def example(record, is_training, dct):
    parsed = tf.io.parse_single_example(record, {
        "image/encoded": tf.io.FixedLenFeature([], tf.string),
        "image/class/label": tf.io.FixedLenFeature([], tf.int64),
    })
    data = parsed["image/encoded"]
    image = tf.io.decode_and_crop_jpeg(data, window(data, is_training), channels=3, dct_method=dct)
    [image] = tf.unstack(tf.raw_ops.ResizeBicubic(images=image[None], size=[SIZE, SIZE]), num=1)
    if is_training:
        image = tf.image.random_flip_left_right(image)
    image = tf.cast((image - tf.constant(MEAN)) / tf.constant(STD), tf.bfloat16)
    return tf.ensure_shape(image, [SIZE, SIZE, 3]), tf.cast(parsed["image/class/label"], tf.int32) - 1


def main():
    pattern, path, n_workers, secs, dct = sys.argv[1:]
    n_workers, is_training = int(n_workers), path == "training"
    dct = {"default": "", "accurate": "INTEGER_ACCURATE"}[dct]
    tf.config.threading.set_inter_op_parallelism_threads(n_workers)
    tf.config.threading.set_intra_op_parallelism_threads(1)
    files = tf.data.Dataset.list_files(pattern, shuffle=False)
    data = files.interleave(lambda file: tf.data.TFRecordDataset(file, buffer_size=8 << 20), cycle_length=4)
    data = data.repeat()
    if is_training:
        data = data.shuffle(128)
    data = data.map(lambda record: example(record, is_training, dct), num_parallel_calls=n_workers, deterministic=False)
    data = data.batch(BATCH, drop_remainder=True).prefetch(1)
    options = tf.data.Options()
    options.threading.private_threadpool_size, options.threading.max_intra_op_parallelism = n_workers, 1
    options.experimental_optimization.map_and_batch_fusion = True
    options.deterministic = False
    batches = iter(data.with_options(options))
    next(batches), next(batches)
    began, computed, n_images = time.perf_counter(), time.process_time(), 0
    while time.perf_counter() - began < float(secs):
        images, _ = next(batches)
        n_images += images.shape[0]
    clock, processor = time.perf_counter() - began, time.process_time() - computed
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"images": n_images, "clock": clock, "processor": processor, "peak_mib": round(peak, 1)}))


main()
