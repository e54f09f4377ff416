"""Writes the fixtures of tests/weights with the frameworks that own the formats.

usage: write.py FOLDER PART
PART is `tensorflow` (tensorflow-cpu 2.21, keras 3, h5py), `bf16` (h5py, ml_dtypes), `keras_bf16` (keras 3 over JAX) or `torch`
(torch 1.13 and newer). Beside each file lies what is in it:
FILE.json, {name: [dtype, dims, CRC-32C of the bytes in hexadecimal]}, where strings count each with its length before it.
"""

import json
import os
import struct
import sys

import numpy as np

TABLE = []
for byte in range(256):
    crc = byte
    for _ in range(8):
        crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    TABLE.append(crc)


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc = TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    return f"{crc ^ 0xFFFFFFFF:08x}"


def said(array):
    """[dtype, dims, crc] of a NumPy array, in our words."""
    if isinstance(array, tuple):
        name, dims, data = array
        return [name, list(dims), crc32c(data)]
    array = np.asarray(array)
    if array.dtype.kind in "OSU":
        texts = [text if isinstance(text, bytes) else str(text).encode() for text in array.reshape(-1).tolist()]
        data = b"".join(struct.pack("<Q", len(text)) + text for text in texts)
        return ["string", list(array.shape), crc32c(data)]
    name = array.dtype.name
    for theirs, ours in [("bfloat16", "bf16"), ("float8_e5m2", "f8e5m2"), ("float8_e4m3fn", "f8e4m3fn"), ("bool", "pred"),
                         ("complex", "c"), ("float", "f"), ("uint", "u"), ("int", "s")]:
        if name.startswith(theirs):
            name = ours + name[len(theirs):]
            break
    return [name, list(array.shape), crc32c(np.ascontiguousarray(array).tobytes())]


def expect(path, arrays):
    with open(path + ".json", "w") as file:
        json.dump({name: said(arrays[name]) for name in sorted(arrays)}, file, indent=0)
        file.write("\n")


def many_dtypes(rng):
    import ml_dtypes

    arrays = {
        "conv2d/kernel": rng.normal(size=(3, 3, 2, 4)).astype(np.float32),
        "conv2d/bias": np.array([1.5, -0.0, np.inf, 3e-41], np.float32),
        "batch_normalization/moving_mean": rng.normal(size=(4,)).astype(np.float64),
        "short/bf16": rng.normal(size=(5,)).astype(ml_dtypes.bfloat16),
        "short/f16": rng.normal(size=(5,)).astype(np.float16),
        "empty": np.zeros((0, 3), np.float32),
        "global_step": np.int64(12345),
        "flag": np.array([True, False, True]),
        "complex": (rng.normal(size=2) + 1j * rng.normal(size=2)).astype(np.complex64),
        "words": np.array([[b"", b"a"], [b"long " * 40, b"\x00\xff"]], dtype=object),
        "word": np.array(b"scalar", dtype=object),
    }
    for name in ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]:
        info = np.iinfo(name)
        arrays[f"integers/{name}"] = np.array([info.min, 0, 1, info.max], name)
    return arrays


def bundle_v1_names(folder, rng):
    """As a Saver of TensorFlow 1 writes: names, two shards, a partitioned variable and slots."""
    import tensorflow as tf

    tf1 = tf.compat.v1
    with tf.Graph().as_default(), tf1.Session() as session:
        arrays = many_dtypes(rng)
        variables = {}
        for name, value in arrays.items():
            variables[name] = tf1.get_variable(name, initializer=tf.constant(value), use_resource=False, trainable=False)
        table = rng.normal(size=(7, 3)).astype(np.float32)
        parts = tf1.get_variable("embedding/table", shape=(7, 3), use_resource=False,
                                 partitioner=tf1.fixed_size_partitioner(3))
        session.run(tf1.global_variables_initializer())
        for part, rows in zip(parts, [table[:3], table[3:5], table[5:]]):
            session.run(part.assign(rows))
        arrays["embedding/table"] = table
        whole = {name: variable for name, variable in variables.items()}
        whole["embedding/table"] = parts
        saver = tf1.train.Saver(whole)
        saver.save(session, os.path.join(folder, "names", "model.ckpt"), write_meta_graph=False)
    expect(os.path.join(folder, "names", "model.ckpt"), arrays)


def bundle_sharded(folder, rng):
    """Two data files, as a sharded Saver over two devices writes them."""
    import tensorflow as tf

    tf1 = tf.compat.v1
    config = tf1.ConfigProto(device_count={"CPU": 2})
    arrays = {"a": rng.normal(size=(2, 3)).astype(np.float32), "b": np.arange(5, dtype=np.int32)}
    with tf.Graph().as_default(), tf1.Session(config=config) as session:
        with tf.device("/cpu:0"):
            a = tf1.get_variable("a", initializer=arrays["a"])
        with tf.device("/cpu:1"):
            b = tf1.get_variable("b", initializer=arrays["b"])
        session.run(tf1.global_variables_initializer())
        saver = tf1.train.Saver({"a": a, "b": b}, sharded=True)
        saver.save(session, os.path.join(folder, "sharded", "model.ckpt"), write_meta_graph=False)
    expect(os.path.join(folder, "sharded", "model.ckpt"), arrays)


def bundle_v1_format(folder, rng):
    import tensorflow as tf

    tf1 = tf.compat.v1
    with tf.Graph().as_default(), tf1.Session() as session:
        x = tf1.get_variable("x", initializer=np.float32([1, 2]))
        session.run(tf1.global_variables_initializer())
        tf1.train.Saver({"x": x}, write_version=tf1.train.SaverDef.V1).save(
            session, os.path.join(folder, "v1", "model.v1"), write_meta_graph=False)


def keras_model():
    import keras

    keras.utils.set_random_seed(7)
    inputs = keras.Input((8, 8, 2))
    x = keras.layers.Conv2D(3, 3, name="stem")(inputs)
    x = keras.layers.BatchNormalization(name="norm")(x)
    x = keras.layers.Flatten()(x)
    model = keras.Model(inputs, keras.layers.Dense(2, name="head")(x))
    model.compile("adam", "mse")
    model.fit(np.ones((4, 8, 8, 2), np.float32), np.ones((4, 2), np.float32), verbose=0)
    return model


def object_graph(folder, rng):
    """As TensorFlow 2 writes: keys are paths of attributes, and a graph of objects says what they are called."""
    import tensorflow as tf

    class Layer(tf.Module):
        def __init__(self, name):
            super().__init__(name=name)
            self.kernel = tf.Variable(rng.normal(size=(2, 3)).astype(np.float32), name=f"{name}/kernel")
            self.bias = tf.Variable(np.float32([1, 2, 3]), name=f"{name}/bias")

    class Net(tf.Module):
        def __init__(self):
            super().__init__(name="net")
            self.layers = [Layer("first"), Layer("second")]

    net = Net()
    step = tf.Variable(3, dtype=tf.int64, name="step")
    checkpoint = tf.train.Checkpoint(net=net, step=step)
    path = os.path.join(folder, "objects", "ckpt")
    path = checkpoint.save(path)
    arrays = {"step": step.numpy(), "save_counter": np.int64(1)}
    for n, layer in enumerate(net.layers):
        arrays[f"net/layers/{n}/kernel"] = layer.kernel.numpy()
        arrays[f"net/layers/{n}/bias"] = layer.bias.numpy()
    expect(path, arrays)


def h5_arrays(path, keys=None):
    import h5py

    found = {}

    def visit(name, item):
        if isinstance(item, h5py.Dataset):
            found[name] = item[()]

    with h5py.File(path) as file:
        file.visititems(visit)
    return found


def keras_files(folder, rng):
    import keras

    os.makedirs(os.path.join(folder, "keras"), exist_ok=True)
    model = keras_model()
    h5 = os.path.join(folder, "keras", "model.weights.h5")
    model.save_weights(h5)
    arrays = h5_arrays(h5)
    expect(h5, arrays)
    whole = os.path.join(folder, "keras", "model.keras")
    model.save(whole)
    expect(whole, arrays)
    legacy = os.path.join(folder, "keras", "legacy.h5")
    model.save(legacy)
    expect(legacy, h5_arrays(legacy))
    model.export(os.path.join(folder, "saved"), verbose=False)


def hdf5_files(folder, rng):
    """What h5py writes beside Keras' choices: chunks, filters, both kinds of groups, both ends of numbers."""
    import h5py

    os.makedirs(os.path.join(folder, "hdf5"), exist_ok=True)
    for libver in ["earliest", "latest"]:
        path = os.path.join(folder, "hdf5", f"{libver}.h5")
        with h5py.File(path, "w", libver=libver) as file:
            file.create_dataset("whole", data=rng.normal(size=(3, 4)).astype(np.float32))
            file.create_dataset("chunked", data=np.arange(35, dtype=np.int32).reshape(5, 7), chunks=(2, 3))
            file.create_dataset("packed", data=np.arange(300, dtype=np.float64).reshape(20, 15), chunks=(8, 8),
                                compression="gzip", shuffle=True, fletcher32=True)
            file.create_dataset("big", data=np.arange(6, dtype=">f4"))
            file.create_dataset("half", data=np.arange(3, dtype=np.float16))
            file.create_dataset("scalar", data=np.int64(-5))
            file.create_dataset("empty", data=np.zeros((0, 2), np.float32))
            file.create_dataset("flags", data=np.array([True, False]))
            file.create_dataset("fixed", data=np.array([b"ab", b"c"]))
            group = file.create_group("many", track_order=True)
            for n in range(20):
                group.create_dataset(f"layer_{n}", data=np.float32([n]))
            plain = file.create_group("plain")
            for n in range(20):
                plain.create_dataset(f"layer_{n}", data=np.float32([n]))
        arrays = h5_arrays(path)
        arrays["big"] = arrays["big"].astype("<f4")
        expect(path, arrays)


def bf16_file(folder, rng):
    """What Keras writes of layers in bf16 (`H5Entry` of `saving_lib.py`): bytes that HDF5 does not interpret, and an attribute."""
    import h5py
    import ml_dtypes

    os.makedirs(os.path.join(folder, "hdf5"), exist_ok=True)
    path = os.path.join(folder, "hdf5", "bf16.h5")
    arrays = {f"layers/dense/vars/{n}": rng.normal(size=dims).astype(ml_dtypes.bfloat16) for n, dims in enumerate([(3, 4), (4,)])}
    with h5py.File(path, "w") as file:
        for name, array in arrays.items():
            file.create_dataset(name, data=array).attrs["dtype"] = "bfloat16"
        # As the whole `.h5` of older versions: no attribute.
        file.create_dataset("plain", data=arrays["layers/dense/vars/1"])
    expect(path, {**arrays, "plain": arrays["layers/dense/vars/1"]})


def keras_bf16_files(folder, rng):
    """A model whose variables are bf16, saved by Keras itself: `.weights.h5` and, as a whole, the legacy `.h5`."""
    import keras

    os.makedirs(os.path.join(folder, "keras"), exist_ok=True)
    keras.utils.set_random_seed(7)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(4, dtype="bfloat16", name="stem"),
                              keras.layers.Dense(2, dtype="bfloat16", name="head")])
    path = os.path.join(folder, "keras", "bf16.weights.h5")
    model.save_weights(path)
    arrays, whole = {}, {}
    for layer, group in zip(model.layers, ["dense", "dense_1"]):
        for n, variable in enumerate(layer.weights):
            array = keras.ops.convert_to_numpy(variable.value)
            arrays[f"layers/{group}/vars/{n}"] = array
            whole[f"model_weights/{layer.name}/{variable.path}"] = array
    expect(path, arrays)
    path = os.path.join(folder, "keras", "bf16_legacy.h5")
    model.save(path)
    expect(path, whole)


def torch_files(folder, rng):
    import torch

    os.makedirs(os.path.join(folder, "torch"), exist_ok=True)
    generator = torch.Generator().manual_seed(7)
    normal = lambda *dims: torch.randn(*dims, generator=generator)
    base = normal(4, 6)
    arrays = {
        "conv.weight": normal(2, 3, 1, 1),
        "linear.weight": normal(3, 2),
        "transposed": base.t(),
        "view": base[1:3, 2:4],
        "shared": base,
        "half": normal(3).half(),
        "bf16": normal(3).bfloat16(),
        "double": normal(2).double(),
        "step": torch.tensor(17),
        "mask": torch.tensor([True, False]),
        "empty": torch.zeros(0, 3),
        "bytes": torch.tensor([0, 255], dtype=torch.uint8),
        "small": torch.tensor([-128, 127], dtype=torch.int8),
        "complex": torch.tensor([1 + 2j]),
    }
    import collections

    state = collections.OrderedDict(arrays)
    state._metadata = collections.OrderedDict([("", {"version": 1})])
    state["parameter"] = torch.nn.Parameter(normal(2))
    path = os.path.join(folder, "torch", "state.pt")
    torch.save(state, path)

    def to_numpy(tensor):
        if tensor.dtype == torch.bfloat16:
            return "bf16", tensor.shape, tensor.detach().view(torch.int16).numpy().tobytes()
        return tensor.detach().numpy()

    expect(path, {name: to_numpy(tensor) for name, tensor in state.items()})
    nested = {"epoch": 3, "model": {"a": normal(2), "b": [normal(1), normal(2)]}, "lr": 0.5, "name": "net", "done": None}
    path = os.path.join(folder, "torch", "nested.bin")
    torch.save(nested, path)
    expect(path, {"model.a": nested["model"]["a"].numpy(), "model.b.0": nested["model"]["b"][0].numpy(),
                  "model.b.1": nested["model"]["b"][1].numpy()})
    torch.save({"a": normal(2)}, os.path.join(folder, "torch", "legacy.pt"), _use_new_zipfile_serialization=False)
    torch.save(torch.nn.Linear(2, 2), os.path.join(folder, "torch", "module.pt"))

    class Evil:
        def __reduce__(self):
            return os.system, ("touch /tmp/bf16scope-ran-a-pickle",)

    torch.save({"a": normal(2), "b": Evil()}, os.path.join(folder, "torch", "evil.pt"))


PARTS = {
    "tensorflow": [bundle_v1_names, bundle_sharded, bundle_v1_format, object_graph, keras_files, hdf5_files],
    "bf16": [bf16_file],
    "keras_bf16": [keras_bf16_files],
    "torch": [torch_files],
}

if __name__ == "__main__":
    target, part = sys.argv[1:]
    for write in PARTS[part]:
        write(target, np.random.default_rng(7))
