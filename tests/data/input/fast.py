"""Writes `fast.npz`: what TensorFlow makes of the images of `shapes-*` and `kinds.npz` by its default `dct_method`.

python fast.py FOLDER
"""

import glob
import hashlib
import os
import sys

os.environ["TF_ENABLE_ONEDNN_OPTS"] = "0"
os.environ["CUDA_VISIBLE_DEVICES"] = ""
import numpy as np
import tensorflow as tf

FOLDER = sys.argv[1]


def decode(data, channels):
    """The default is INTEGER_FAST: both are asked."""
    pixels = tf.io.decode_jpeg(data, channels=channels).numpy()
    assert (pixels == tf.io.decode_jpeg(data, channels=channels, dct_method="INTEGER_FAST").numpy()).all()
    return pixels


def main():
    arrays, hashes, differ = {}, [], []
    for record in tf.data.TFRecordDataset(sorted(glob.glob(os.path.join(FOLDER, "shapes-*")))):
        example = tf.train.Example.FromString(record.numpy())
        data = example.features.feature["image/encoded"].bytes_list.value[0]
        pixels = decode(data, 3)
        accurate = tf.io.decode_jpeg(data, channels=3, dct_method="INTEGER_ACCURATE").numpy()
        differ.append(np.abs(pixels.astype(int) - accurate).ravel())
        hashes.append(np.frombuffer(hashlib.sha256(pixels.tobytes()).digest(), np.uint8))
    arrays["decoded"] = np.stack(hashes)
    kinds = np.load(os.path.join(FOLDER, "kinds.npz"))
    for name in kinds.files:
        part, *rest = name.split("/")
        if part == "pixels" and rest[1].startswith("jpeg"):
            arrays[name] = decode(kinds[f"bytes/{rest[1]}"].tobytes(), int(rest[0]))
    np.savez_compressed(os.path.join(FOLDER, "fast.npz"), **arrays)
    differ = np.concatenate(differ)
    print(len(hashes), "images and", len(arrays) - 1, "of kinds;", differ.max(), (differ > 0).mean())


main()
