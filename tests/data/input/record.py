"""Draws small images, writes them as TFRecords, and records what TensorFlow makes of them: see README.md.

python record.py FOLDER
"""

import hashlib
import io
import os
import sys

os.environ["TF_ENABLE_ONEDNN_OPTS"] = "0"
import numpy as np
import tensorflow as tf
from PIL import Image

FOLDER = sys.argv[1]
CLASSES = 3
SIZE, PADDING = 16, 8
MEAN, STD = np.float32([123.675, 116.28, 103.53]), np.float32([58.395, 57.12, 57.375])
DRAWS = 10_000


def drawing(rng, height, width, kind):
    """Colours that change slowly, with a shape of the class on them."""
    y, x = np.mgrid[0:height, 0:width]
    base = np.stack([np.sin(x / rng.uniform(5, 20) + phase) + np.cos(y / rng.uniform(5, 20)) for phase in range(3)], -1)
    image = 128 + 50 * base
    cy, cx, r = height * rng.uniform(0.4, 0.6), width * rng.uniform(0.4, 0.6), min(height, width) * 0.3
    inside = [
        (y - cy) ** 2 + (x - cx) ** 2 < r * r,
        (abs(y - cy) < r) & (abs(x - cx) < r),
        (abs(y - cy) < r / 3) | (abs(x - cx) < r / 3),
    ][kind]
    image[inside] = rng.uniform(0, 255, 3)
    return np.clip(image + rng.normal(0, 4, image.shape), 0, 255).astype(np.uint8)


def with_pillow(image, mode, **options):
    out = io.BytesIO()
    picture = Image.fromarray(image).convert(mode) if mode != "RGBA" else Image.fromarray(
        np.concatenate([image, image[..., :1]], -1), "RGBA")
    picture.save(out, **options)
    return out.getvalue()


def encoded(image, idx):
    """JPEG and PNG of every kind that real sets have."""
    jpeg = dict(format="JPEG")
    kinds = [
        lambda: tf.io.encode_jpeg(image, quality=95, chroma_downsampling=True).numpy(),
        lambda: tf.io.encode_jpeg(image, quality=75, chroma_downsampling=False).numpy(),
        lambda: with_pillow(image, "RGB", quality=85, subsampling=1, **jpeg),
        lambda: with_pillow(image, "RGB", quality=80, subsampling=2, progressive=True, **jpeg),
        lambda: with_pillow(image, "L", quality=90, **jpeg),
        lambda: with_pillow(image, "CMYK", quality=90, **jpeg),
        lambda: tf.io.encode_png(image[:24, :24]).numpy(),
        lambda: with_pillow(image[:24, :24], "P", format="PNG"),
        lambda: with_pillow(image[:24, :24], "RGBA", format="PNG"),
        lambda: with_pillow(image[:24, :24], "L", format="PNG"),
        lambda: tf.io.encode_png(image[:16, :16].astype(np.uint16) * 257).numpy(),
    ]
    return kinds[idx % len(kinds)]()


def decode(data):
    """To RGB; `decode_image` has no `dct_method`, and `decode_jpeg` takes PNG too."""
    return tf.io.decode_jpeg(data, channels=3, dct_method="INTEGER_ACCURATE").numpy()


def evaluation(pixels):
    """The centre, resized and normalised: the evaluation path of ResNet's recipe, from decoded pixels."""
    height, width = pixels.shape[:2]
    side = tf.cast((SIZE / (SIZE + PADDING)) * tf.cast(tf.minimum(height, width), tf.float32), tf.int32).numpy()
    y, x = ((height - side) + 1) // 2, ((width - side) + 1) // 2
    window = tf.convert_to_tensor(pixels[None, y:y + side, x:x + side])
    image = tf.raw_ops.ResizeBicubic(images=window, size=[SIZE, SIZE], align_corners=False, half_pixel_centers=False)[0]
    return ((image - MEAN) / STD).numpy()


def draws(height, width):
    """Begin and size of TensorFlow's random windows: [y, x, height, width]."""
    out = np.zeros((DRAWS, 4), np.int32)
    for idx in range(DRAWS):
        begin, size, _ = tf.image.stateless_sample_distorted_bounding_box(
            [height, width, 3], bounding_boxes=tf.constant([[[0.0, 0.0, 1.0, 1.0]]]), seed=[idx, 7],
            min_object_covered=0.1, aspect_ratio_range=(3 / 4, 4 / 3), area_range=(0.08, 1.0), max_attempts=10,
            use_image_if_no_bounding_boxes=True)
        out[idx] = [*begin.numpy()[:2], *size.numpy()[:2]]
    return out


def histograms(windows, height, width):
    """Counts of what a window is, in equal bins: rows, columns, and places among those that its size leaves."""
    y, x, h, w = windows.T.astype(np.float64)
    whole = (h == height) & (w == width)
    part = ~whole
    bins = lambda values, least, greatest: np.histogram(values[part], 24, (least, greatest))[0]
    place = lambda at, size, limit: np.where(size < limit, (at + 0.5) / np.maximum(limit - size, 1), 0.5)
    return np.stack([
        bins(h * w / (height * width), 0.0, 1.0 + 1e-9),
        bins(w / h, 0.7, 1.4),
        bins(h / height, 0.0, 1.0 + 1e-9),
        bins(place(y, h, height), 0.0, 1.0 + 1e-9),
        bins(place(x, w, width), 0.0, 1.0 + 1e-9),
        np.r_[whole.sum(), part.sum(), np.zeros(22)],
    ]).astype(np.int32)


def main():
    rng = np.random.default_rng(17)
    sizes = [(48, 60), (61, 37), (40, 40), (33, 50)]
    n_examples, n_shards = 33, 3
    arrays, records, pixels = {}, [], []
    fast_rgb = []
    for shard in range(n_shards):
        path = os.path.join(FOLDER, f"shapes-{shard:05}-of-{n_shards:05}")
        with tf.io.TFRecordWriter(path) as writer:
            for idx in range(shard * n_examples // n_shards, (shard + 1) * n_examples // n_shards):
                kind = idx % CLASSES
                image = encoded(drawing(rng, *sizes[idx % len(sizes)], kind), idx)
                feature = {
                    "image/encoded": tf.train.Feature(bytes_list=tf.train.BytesList(value=[image])),
                    "image/class/label": tf.train.Feature(int64_list=tf.train.Int64List(value=[kind + 1])),
                    "image/object/bbox": tf.train.Feature(float_list=tf.train.FloatList(value=[0.1, 0.2, 0.5, idx / 64])),
                    "thumbnail": tf.train.Feature(bytes_list=tf.train.BytesList(value=[bytes(range(idx, idx + 4))])),
                }
                record = tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString()
                writer.write(record)
                records.append(np.frombuffer(hashlib.sha256(record).digest(), np.uint8))
                decoded = decode(image)
                pixels.append(np.frombuffer(hashlib.sha256(decoded.tobytes()).digest(), np.uint8))
                arrays[f"evaluation/{idx}"] = evaluation(decoded)
                fast = tf.io.decode_jpeg(image, channels=3).numpy().astype(int)
                fast_rgb.append(np.abs(fast - decoded.astype(int)).ravel())
                if idx == 0:
                    small = decoded[:20, :24]
                    arrays["pixels"] = small
                    for name, op in [("bicubic", tf.raw_ops.ResizeBicubic), ("bilinear", tf.raw_ops.ResizeBilinear)]:
                        for half in [False, True]:
                            for size in [(7, 9), (20, 24), (31, 50)]:
                                resized = op(images=small[None], size=size, align_corners=False, half_pixel_centers=half)
                                arrays[f"{name}/{int(half)}/{size[0]}x{size[1]}"] = resized[0].numpy()
    arrays["records"], arrays["decoded"] = np.stack(records), np.stack(pixels)
    for height, width in [(375, 500), (31, 48)]:
        arrays[f"crops/{height}x{width}"] = histograms(draws(height, width), height, width)
    np.savez_compressed(os.path.join(FOLDER, "expected.npz"), **arrays)
    fast_rgb = np.concatenate(fast_rgb)
    print(f"TensorFlow's default dct_method against INTEGER_ACCURATE: greatest difference {fast_rgb.max()}, "
          f"{100 * (fast_rgb > 0).mean():.2f} % differ, {100 * (fast_rgb > 1).mean():.3f} % by more than 1")
    for name in sorted(os.listdir(FOLDER)):
        if name.startswith("shapes") or name.endswith(".npz"):
            path = os.path.join(FOLDER, name)
            print(hashlib.sha256(open(path, "rb").read()).hexdigest(), name, os.path.getsize(path))


main()
