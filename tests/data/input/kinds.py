"""Writes `kinds.npz`: images of kinds that real data sets have, and the pixels that TensorFlow makes of each.

python kinds.py FILE
"""

import io
import os
import sys

os.environ["TF_ENABLE_ONEDNN_OPTS"] = "0"
os.environ["CUDA_VISIBLE_DEVICES"] = ""
import numpy as np
import tensorflow as tf
from PIL import Image, ImageDraw

SIZE = (26, 19)  # width and height, no multiples of a block


def drawing():
    """Colours that change slowly, with edges: chroma that is upsampled shows."""
    y, x = np.mgrid[: SIZE[1], : SIZE[0]]
    pixels = np.stack([x * 9 % 256, y * 13 % 256, (x + y) * 5 % 256], axis=-1).astype(np.uint8)
    image = Image.fromarray(pixels)
    ImageDraw.Draw(image).ellipse([4, 3, 17, 14], fill=(220, 30, 60), outline=(0, 0, 255))
    return image


def encoded(image, kind, **options):
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def adobe(jpeg):
    """Where the Adobe marker (APP14) of a JPEG is."""
    at = jpeg.index(b"\xff\xee\x00\x0eAdobe")
    return at, at + 16


def main():
    image = drawing()
    cmyk = encoded(image.convert("CMYK"), "JPEG", quality=92)
    start, end = adobe(cmyk)
    # The last byte of the marker says what four components are: 0 is CMYK, 2 is YCCK. Bytes that were inks are then read as
    # light and colour.
    ycck = cmyk[: end - 1] + b"\x02" + cmyk[end:]
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by 90 degrees
    half = image.convert("L")
    half_clear = Image.merge("LA", [half, half.point(lambda value: 255 - value)])
    clear = image.copy()
    clear.putalpha(half)
    deep = Image.fromarray((np.asarray(half).astype(np.uint16) * 257 + 3).astype(np.uint16))
    palette = image.convert("P", palette=Image.Palette.ADAPTIVE, colors=37)
    kinds = {
        "jpeg_cmyk": cmyk,
        "jpeg_cmyk_without_adobe": cmyk[:start] + cmyk[end:],
        "jpeg_ycck": ycck,
        "jpeg_ycck_progressive": None,
        "jpeg_exif_turned": encoded(image, "JPEG", quality=90, exif=exif),
        "jpeg_rgb": encoded(image, "JPEG", quality=90, keep_rgb=True),
        "jpeg_grey": encoded(half, "JPEG", quality=80),
        "jpeg_grey_progressive": encoded(half, "JPEG", quality=80, progressive=True),
        "jpeg_420_restarts": encoded(image, "JPEG", quality=75, restart_marker_blocks=1),
        "jpeg_422_progressive": encoded(image, "JPEG", quality=60, subsampling="4:2:2", progressive=True),
        "png_grey": encoded(half, "PNG"),
        "png_grey_alpha": encoded(half_clear, "PNG"),
        "png_alpha": encoded(clear, "PNG"),
        "png_palette": encoded(palette, "PNG"),
        "png_palette_transparent": encoded(palette, "PNG", transparency=5),
        "png_colour_key": encoded(image, "PNG", transparency=(220, 30, 60)),
        "png_1_bit": encoded(image.convert("1"), "PNG"),
        "png_16_bit_grey": encoded(deep, "PNG"),
        "png_16_bit": tf.io.encode_png(np.asarray(image).astype(np.uint16) * 251 + 90).numpy(),
        "png_16_bit_alpha": tf.io.encode_png(np.asarray(clear).astype(np.uint16) * 251 + 90).numpy(),
    }
    progressive = encoded(image.convert("CMYK"), "JPEG", quality=92, progressive=True)
    _, end = adobe(progressive)
    kinds["jpeg_ycck_progressive"] = progressive[: end - 1] + b"\x02" + progressive[end:]
    arrays = {}
    for name, data in kinds.items():
        arrays[f"bytes/{name}"] = np.frombuffer(data, np.uint8)
        for channels in (1, 3):
            if channels == 1 and ("cmyk" in name or "ycck" in name):
                continue  # libjpeg makes no grey of four inks
            pixels = tf.io.decode_jpeg(data, channels=channels, dct_method="INTEGER_ACCURATE").numpy()
            arrays[f"pixels/{channels}/{name}"] = pixels
    np.savez_compressed(sys.argv[1], **arrays)
    print(len(kinds), "images", sum(len(data) for data in kinds.values()), "bytes")


main()
