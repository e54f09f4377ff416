"""An encoder-decoder of Keras: a decoder that starts from the encoder's last states (`return_state`), LSTM and GRU, one way and
both, masked, for tests/networks/recurrent.rs. TensorFlow 2.15.1 on a CPU, f32: `states.npz` beside this.
"""
import os
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import numpy as np
import tensorflow as tf

rng = np.random.default_rng(13)
B, T, D, U = 3, 5, 4, 6
MASK = np.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0], [1, 1, 0, 0, 0]], bool)
out = {"mask": MASK.astype("f4")}


def case(name, make, bidirectional):
    def layer(short, **options):
        inner = make(U, name=short, **options)
        return tf.keras.layers.Bidirectional(inner, name=short) if bidirectional else inner

    encoder, decoder = layer("encoder", return_state=True), layer("decoder", return_sequences=True)
    x, y = (rng.normal(size=(B, T, D)).astype("f4") for _ in range(2))
    xt, yt = tf.constant(x), tf.constant(y)

    def run():
        _, *states = encoder(xt, mask=tf.constant(MASK))
        return states, decoder(yt, initial_state=states)

    run()
    variables = encoder.trainable_weights + decoder.trainable_weights
    for variable in variables:
        variable.assign(rng.normal(size=variable.shape, scale=0.5).astype("f4"))
    with tf.GradientTape() as tape:
        tape.watch([xt, yt])
        states, result = run()
        cotangent = rng.normal(size=result.shape).astype("f4")
        loss = tf.reduce_sum(result * cotangent)
    gradients = tape.gradient(loss, [xt, yt] + variables)
    out.update({f"{name}/source": x, f"{name}/target": y, f"{name}/cotangent": cotangent, f"{name}/result": result.numpy()})
    out.update({f"{name}/state{number}": state.numpy() for number, state in enumerate(states)})
    out.update({f"{name}/gradient_{key}": g.numpy() for key, g in zip(("source", "target"), gradients)})
    for variable, gradient in zip(variables, gradients[2:]):
        parts = variable.name.split(":")[0].split("/")
        side = "forward/" if "forward" in variable.name else "backward/" if "backward" in variable.name else ""
        owner = "encoder" if any(variable is other for other in encoder.trainable_weights) else "decoder"
        out[f"{name}/{owner}/{side}{parts[-1]}"] = variable.numpy()
        out[f"{name}/gradient_{owner}/{side}{parts[-1]}"] = tf.convert_to_tensor(gradient).numpy()


for kind, make in (("lstm", tf.keras.layers.LSTM), ("gru", tf.keras.layers.GRU)):
    case(kind, make, False)
    case(f"{kind}_bidirectional", make, True)
np.savez_compressed("states.npz", **out)
print(sorted(name for name in out if "lstm" in name))
