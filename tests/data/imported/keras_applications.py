"""A network of keras.applications with random weights, as Keras saves it, what it computes, and the same network as an experiment:
model.keras, arrays.npz and model.yaml for `bf16scope weights model.keras --model model.yaml --check arrays.npz`. By hand: the
networks are too large to keep.

tensorflow-cpu 2.21 with Keras 3, on a CPU: python keras_applications.py ResNet50 64
"""
import sys

import keras
import numpy as np

name, size = sys.argv[1], int(sys.argv[2])


def network():
    make = getattr(keras.applications, name)
    return make(weights=None, input_shape=(size, size, 3), classes=10, classifier_activation=None)


FUNCTIONS = {"relu": "relu", "relu6": "relu6", "silu": "silu", "swish": "silu", "linear": "linear"}


def flow(options):
    """Options as YAML in one line."""
    def text(value):
        return str(value).lower() if isinstance(value, bool) else str(value).replace("'", "")

    return "    - {" + ", ".join(f"{key}: {text(value)}" for key, value in options.items()) + "}"


def layers(model):
    """The layers as an experiment says them, by the names that Keras gave them."""
    instead = {}
    for layer in model.layers:
        kind, config = type(layer).__name__, layer.get_config()
        if kind == "InputLayer":
            instead[layer.name] = "image"
            continue
        tensors = layer.input if isinstance(layer.input, list) else [layer.input]
        read = [tensor._keras_history.operation.name for tensor in tensors]
        read = [instead.get(name, name) for name in read]
        if kind == "Dropout":
            instead[layer.name] = read[0]
            continue
        window = {key: list(config[key]) for key in ("strides", "kernel_size") if key in config}
        window |= {key: config[key] for key in ("padding", "use_bias") if key in config}
        if kind == "Conv2D":
            made = {"conv": config["filters"], **window}
        elif kind == "DepthwiseConv2D":
            made = {"depthwise_conv": window.pop("kernel_size"), **window}
        elif kind == "BatchNormalization":
            made = {"batch_norm": "", "epsilon": config["epsilon"], "momentum": config["momentum"]}
        elif kind in ("Activation", "ReLU"):
            of_relu = "relu6" if config.get("max_value") else "relu"
            made = {"activation": FUNCTIONS[config["activation"]] if kind == "Activation" else of_relu}
        elif kind == "ZeroPadding2D":
            made = {"zero_padding": [list(pair) for pair in config["padding"]]}
        elif kind in ("MaxPooling2D", "AveragePooling2D"):
            of = "max_pool" if kind == "MaxPooling2D" else "avg_pool"
            made = {of: list(config["pool_size"]), "strides": list(config["strides"]), "padding": config["padding"]}
        elif kind == "GlobalAveragePooling2D":
            made = {"global_avg_pool": ""}
            if config["keepdims"]:
                yield flow(made | {"name": f"{layer.name}_flat", "inputs": read[0]})
                made, read = {"reshape": list(layer.output.shape[1:])}, [f"{layer.name}_flat"]
        elif kind == "Flatten":
            made = {"flatten": ""}
        elif kind == "Reshape":
            made = {"reshape": list(layer.output.shape[1:])}
        elif kind == "Dense":
            made = {"dense": config["units"]}
        elif kind in ("Add", "Concatenate"):
            made = {"add" if kind == "Add" else "concat": read}
        else:
            raise SystemExit(f"{layer.name}: no layer for {kind}")
        if kind in ("Conv2D", "DepthwiseConv2D", "Dense") and config["activation"] != "linear":
            made["activation"] = FUNCTIONS[config["activation"]]
        made["name"] = layer.name
        if len(read) == 1:
            made["inputs"] = read[0]
        yield flow(made)


rng = np.random.default_rng(1)
model = network()
for variable in model.weights:
    noise = rng.normal(size=variable.shape)
    if variable.path.endswith(("gamma", "moving_variance")):
        variable.assign(1 + 0.1 * np.abs(noise))
    elif not variable.path.endswith("kernel"):
        variable.assign(0.1 * noise)
images = rng.normal(size=(4, size, size, 3)).astype(np.float32)
model.save("model.keras")
logits = model(images, training=False).numpy()
keras.config.set_dtype_policy("mixed_bfloat16")
low = network()
low.set_weights(model.get_weights())
bf16 = np.asarray(low(images, training=False), np.float32)
np.savez("arrays.npz", image=images, logits=logits, logits_bf16=bf16)
with open("model.yaml", "w") as file:
    print("model:\n  kind: layers\n  inputs:\n    image: {shape: [%d, %d, 3]}\n  layers:" % (size, size), file=file)
    print("\n".join(layers(model)), "\n  loss: sparse_softmax_cross_entropy", file=file)
