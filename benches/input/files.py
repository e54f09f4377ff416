"""TFRecord files of JPEGs such as ImageNet's: 500 × 375 pixels, about 100 KB each; the same bytes every time.

What is photographed has a spectrum that falls with the frequency, and edges; so do these pictures. Four of five have their
colours at half the resolution (4:2:0), as cameras write them, one of five at the whole one.
"""

import io
import os
import sys

import numpy as np

HEIGHT, WIDTH = 375, 500


def picture(rng):
    """Noise with an amplitude that falls as 1 / f and strongly correlated channels, and some shapes with sharp edges."""
    fy, fx = np.fft.fftfreq(HEIGHT)[:, None], np.fft.rfftfreq(WIDTH)[None]
    falling = 1 / np.maximum(np.hypot(fy, fx), 1 / WIDTH)

    def noise():
        spectrum = falling * np.exp(2j * np.pi * rng.random(falling.shape))
        field = np.fft.irfft2(spectrum, s=(HEIGHT, WIDTH))
        return field / field.std()

    common = noise()
    image = np.stack([128 + 45 * common + 14 * noise() for _ in range(3)], -1)
    y, x = np.mgrid[:HEIGHT, :WIDTH]
    for _ in range(12):
        cy, cx, r = rng.uniform(0, HEIGHT), rng.uniform(0, WIDTH), rng.uniform(10, 90)
        image[(y - cy) ** 2 + (x - cx) ** 2 < r * r] += rng.uniform(-50, 50, 3)
    return np.clip(image + rng.normal(0, 3, image.shape), 0, 255).astype(np.uint8)


def make(folder, n_images, n_files=4):
    import tensorflow as tf
    from PIL import Image

    rng, sizes = np.random.default_rng(17), []
    for number in range(n_files):
        path = os.path.join(folder, f"train-{number:05}-of-{n_files:05}")
        with tf.io.TFRecordWriter(path) as writer:
            for idx in range(number * n_images // n_files, (number + 1) * n_images // n_files):
                out = io.BytesIO()
                Image.fromarray(picture(rng)).save(out, "JPEG", quality=90, subsampling=0 if idx % 5 == 4 else 2)
                sizes.append(out.tell())
                feature = {
                    "image/encoded": tf.train.Feature(bytes_list=tf.train.BytesList(value=[out.getvalue()])),
                    "image/class/label": tf.train.Feature(int64_list=tf.train.Int64List(value=[1 + idx % 1000])),
                }
                writer.write(tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString())
    print(f"{n_images} images, {np.mean(sizes) / 1000:.0f} KB each", file=sys.stderr)
