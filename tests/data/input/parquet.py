"""Writes Parquet files of the drawings in `shapes.tar`, and of numbers in every form that pyarrow writes.

python parquet.py FOLDER; reads `shapes.tar` beside itself. What the numbers are stands in tests/training/parquet.rs too.
"""

import base64
import json
import pathlib
import sys
import tarfile

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as pe

HERE = pathlib.Path(__file__).parent
FOLDER = pathlib.Path(sys.argv[1])
N = 40


def shapes():
    """As Hugging Face's `datasets` write images: a struct of bytes and path, and the features as JSON."""
    examples = {}
    with tarfile.open(HERE / "shapes.tar") as tar:
        for member in tar.getmembers():
            name, ending = member.name.rsplit(".", 1)
            examples.setdefault(name, {})[ending] = tar.extractfile(member).read()
    rows = []
    for idx, files in enumerate(examples.values()):
        ending = "jpg" if "jpg" in files else "png"
        said = json.loads(files["json"])
        rows.append(
            {
                "image": {"bytes": files[ending], "path": f"{idx}.{ending}"},
                "label": int(files["cls"]),
                "objects": {"bbox": [said["box"], said["box"]], "area": 1.5 * idx},
                "caption": f"drawing {idx}",
            }
        )
    schema = pa.schema(
        [
            ("image", pa.struct([("bytes", pa.binary()), ("path", pa.string())])),
            ("label", pa.int64()),
            ("objects", pa.struct([("bbox", pa.list_(pa.list_(pa.float32(), 4))), ("area", pa.float64())])),
            ("caption", pa.string()),
        ]
    )
    features = {
        "image": {"_type": "Image"},
        "label": {"names": ["disc", "box", "cross"], "_type": "ClassLabel"},
        "caption": {"dtype": "string", "_type": "Value"},
    }
    schema = schema.with_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    table = pa.Table.from_pylist(rows, schema)
    pq.write_table(table.slice(0, 6), FOLDER / "shapes-0.parquet", row_group_size=4, write_page_checksum=True)
    pq.write_table(table.slice(6), FOLDER / "shapes-1.parquet", row_group_size=4, write_page_checksum=True)


NUMBERS = pa.schema(
    [
        pa.field("id", pa.int32(), nullable=False),
        ("class", pa.int64()),
        ("small", pa.uint8()),
        ("great", pa.uint64()),
        ("flag", pa.bool_()),
        ("weight", pa.float64()),
        ("half", pa.float16()),
        ("tokens", pa.list_(pa.int64())),
        ("fixed", pa.list_(pa.float32(), 3)),
        ("grid", pa.list_(pa.list_(pa.uint8()))),
        ("text", pa.string()),
        ("raw", pa.binary(4)),
    ]
)


def number(idx):
    import numpy as np

    return {
        "id": idx,
        "class": idx % 3 - 1,
        "small": 255 - idx,
        "great": 2**62 + idx,
        "flag": idx % 2 == 1,
        "weight": idx / 8 - 2,
        "half": np.float16(idx / 4),
        "tokens": [idx * 10 + k for k in range(5)],
        "fixed": [idx + 0.5, -idx, 0.25],
        "grid": [[(idx + 3 * row + column) % 256 for column in range(3)] for row in range(2)],
        "text": f"row {idx} " + "x" * (idx % 4),
        "raw": bytes([idx, 1, 2, 3]),
    }


def numbers():
    table = pa.Table.from_pylist([number(idx) for idx in range(N)], NUMBERS)
    for codec in ["none", "snappy", "gzip", "zstd", "lz4", "brotli"]:
        pq.write_table(table, FOLDER / f"numbers-{codec}.parquet", compression=codec, row_group_size=25)
    delta = {
        "id": "DELTA_BINARY_PACKED",
        "class": "DELTA_BINARY_PACKED",
        "weight": "BYTE_STREAM_SPLIT",
        "tokens.list.element": "DELTA_BINARY_PACKED",
        "text": "DELTA_BYTE_ARRAY",
        "raw": "BYTE_STREAM_SPLIT",
        "fixed.list.element": "BYTE_STREAM_SPLIT",
    }
    # Pages of the second version, and the encodings that other writers choose; pages of ten values at most.
    options = dict(use_dictionary=False, data_page_version="2.0", data_page_size=1, write_batch_size=10)
    pq.write_table(table, FOLDER / "numbers-delta.parquet", compression="zstd", column_encoding=delta, **options)
    lengths = {"text": "DELTA_LENGTH_BYTE_ARRAY"}
    options = dict(options, data_page_version="1.0")
    pq.write_table(table, FOLDER / "numbers-pages.parquet", compression="gzip", column_encoding=lengths, **options)
    return table


def odd():
    """Eight rows, of which each but the first and the last has something odd."""
    rows = [number(idx) for idx in range(8)]
    rows[1]["class"] = None
    rows[2]["tokens"] = None
    rows[3]["tokens"] = [1, None, 3, 4, 5]
    rows[4]["grid"] = [[1, 2, 3], [4, 5]]
    rows[5]["great"] = 2**63
    rows[6]["weight"] = 1e300
    table = pa.Table.from_pylist(rows, NUMBERS)
    table = table.append_column("price", pa.array([idx for idx in range(8)]).cast(pa.decimal128(21, 2)))
    image = pa.array([{"bytes": None, "path": "a.jpg"}] * 8, pa.struct([("bytes", pa.binary()), ("path", pa.string())]))
    table = table.append_column("image", image)
    table = table.append_column("empty", pa.array([[]] * 8, pa.list_(pa.int32())))
    pq.write_table(table, FOLDER / "odd.parquet")


class Keys(pe.KmsClient):
    def __init__(self, _config):
        pe.KmsClient.__init__(self)

    def wrap_key(self, key, _name):
        return base64.b64encode(key)

    def unwrap_key(self, key, _name):
        return base64.b64decode(key)


def encrypted(table):
    factory = pe.CryptoFactory(lambda config: Keys(config))
    for name, is_plain in [("encrypted", False), ("encrypted-columns", True)]:
        config = pe.EncryptionConfiguration(footer_key="f", column_keys={"c": ["id"]}, plaintext_footer=is_plain)
        properties = factory.file_encryption_properties(pe.KmsConnectionConfig(), config)
        small = table.select(["id", "class"]).slice(0, 4)
        with pq.ParquetWriter(FOLDER / f"{name}.parquet", small.schema, encryption_properties=properties) as writer:
            writer.write_table(small)


shapes()
encrypted(numbers())
odd()
