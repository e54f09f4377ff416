"""Writes the drawings of `record.py` in other forms, by those who read them: see README.md.

python formats.py FOLDER    after record.py, whose files are read
"""

import hashlib
import json
import os
import sys

os.environ["TF_ENABLE_ONEDNN_OPTS"] = "0"
import tensorflow as tf
import webdataset as wds

FOLDER = sys.argv[1]


def path(name):
    return os.path.join(FOLDER, name)


def values(record):
    """What `record.py` put into a record: the image, its class and its box."""
    features = tf.train.Example.FromString(record).features.feature
    return (
        features["image/encoded"].bytes_list.value[0],
        features["image/class/label"].int64_list.value[0],
        list(features["image/object/bbox"].float_list.value),
    )


def main():
    shards = [path(f"shapes-{shard:05}-of-00003") for shard in range(3)]
    records = [record.numpy() for record in tf.data.TFRecordDataset(shards)]
    for name, compression in [("shapes.gz", "GZIP"), ("shapes.zlib", "ZLIB")]:
        with tf.io.TFRecordWriter(path(name), tf.io.TFRecordOptions(compression_type=compression)) as writer:
            for record in records:
                writer.write(record)

    first = [values(record) for record in records[:11]]
    kind = lambda image: "jpg" if image[:2] == b"\xff\xd8" else "png"
    for name in ["shapes.tar", "shapes.tar.gz"]:
        with wds.TarWriter(path(name), mtime=0, compress=name.endswith(".gz")) as writer:
            for idx, (image, label, box) in enumerate(first):
                # The last has a name that needs a header of its own.
                key = f"shapes/{idx:04}" if idx < 10 else "shapes/" + "long" * 40 + f"/{idx:04}"
                writer.write({"__key__": key, kind(image): image, "cls": label - 1, "json": {"box": box, "label": label}})

    for name in ["shapes.gz", "shapes.zlib", "shapes.tar", "shapes.tar.gz"]:
        data = open(path(name), "rb").read()
        print(hashlib.sha256(data).hexdigest(), name, len(data))


main()
