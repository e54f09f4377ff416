"""A small network of images that Keras, TensorFlow 1 code or PyTorch trained for five steps: its weights with the optimizer's
state as that framework saves them, and the losses of twenty steps more, in f32 and in its mixed bf16.

Each step is on the same 16 images. In environments with tensorflow-cpu 2.21 and its Keras 3, and with torch 2.15, in the
folder `slots`: python ../make_slots.py keras; python ../make_slots.py tf1; python ../make_slots.py torch
"""
import sys

import numpy as np

N, CLASSES, BEFORE, AFTER = 16, 5, 5, 20
rng = np.random.default_rng(0)
IMAGES = rng.normal(size=(N, 8, 8, 3)).astype(np.float32)
LABELS = rng.integers(0, CLASSES, N).astype(np.int32)
KERNEL = (rng.normal(size=(3, 3, 3, 4)) / 3).astype(np.float32)
DENSE = rng.normal(size=(4, CLASSES)).astype(np.float32)


def keras_losses():
    import keras
    import tensorflow as tf

    def network(policy):
        keras.config.set_dtype_policy(policy)
        images = keras.Input((8, 8, 3), name="images")
        x = keras.layers.Conv2D(4, 3, padding="same", use_bias=False, name="conv")(images)
        x = keras.layers.BatchNormalization(name="bn", momentum=0.9)(x)
        x = keras.layers.GlobalAveragePooling2D()(keras.layers.ReLU()(x))
        return keras.Model(images, keras.layers.Dense(CLASSES, name="logits", dtype="float32")(x))

    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    optimizers = {
        "keras_sgd": lambda: keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True),
        "keras_adam": lambda: keras.optimizers.Adam(0.01),
        "keras_rmsprop": lambda: keras.optimizers.RMSprop(0.01, momentum=0.9, centered=True, epsilon=1e-3),
    }

    def steps(model, n):
        found = []
        for _ in range(n):
            # A number for each call, and not the mean of all calls so far.
            model.reset_metrics()
            found.append(float(model.train_on_batch(IMAGES, LABELS)))
        return found

    for name, optimizer in optimizers.items():
        model = network("float32")
        model.get_layer("conv").set_weights([KERNEL])
        model.get_layer("logits").set_weights([DENSE, np.zeros(CLASSES, np.float32)])
        model.compile(optimizer(), loss)
        steps(model, BEFORE)
        model.save(f"{name}.keras")
        if name == "keras_adam":
            tf.train.Checkpoint(model=model, optimizer=model.optimizer).write("keras_adam_objects")
        found = {}
        for key, policy in (("f32", "float32"), ("bf16", "mixed_bfloat16")):
            go_on = network(policy)
            go_on.compile(optimizer(), loss)
            go_on.load_weights(f"{name}.keras")
            go_on.optimizer.build(go_on.trainable_variables)
            for to, of in zip(go_on.optimizer.variables, model.optimizer.variables):
                to.assign(of)
            found[key] = steps(go_on, AFTER)
        yield name, found


def tf1_losses():
    import tensorflow as tf

    v1 = tf.compat.v1
    optimizers = {
        "tf1_momentum": lambda: v1.train.MomentumOptimizer(0.1, 0.9),
        "tf1_adam": lambda: v1.train.AdamOptimizer(0.01, epsilon=1e-3),
        "tf1_rmsprop": lambda: v1.train.RMSPropOptimizer(0.01, decay=0.9, momentum=0.9, epsilon=1e-3),
    }

    def losses(optimizer, low, restored, n, saved=None):
        """Of n steps after a checkpoint, or after the beginning; then saved."""
        with tf.Graph().as_default(), v1.Session() as session:
            def variable(name, value, trainable=True):
                return v1.get_variable(name, initializer=tf.constant(value), trainable=trainable)

            kernel = variable("conv2d/kernel", KERNEL)
            gamma, beta = [variable(f"batch_normalization/{name}", np.full(4, fill, np.float32))
                           for name, fill in (("gamma", 1.0), ("beta", 0.0))]
            moving = [variable(f"batch_normalization/moving_{name}", np.full(4, fill, np.float32), False)
                      for name, fill in (("mean", 0.0), ("variance", 1.0))]
            dense = variable("dense/kernel", DENSE)
            bias = variable("dense/bias", np.zeros(CLASSES, np.float32))
            kind = tf.bfloat16 if low else tf.float32
            x = tf.nn.conv2d(tf.cast(IMAGES, kind), tf.cast(kernel, kind), 1, "SAME")
            wide = tf.cast(x, tf.float32)
            mean, variance = tf.nn.moments(wide, [0, 1, 2])
            x = tf.cast(tf.nn.batch_normalization(wide, mean, variance, beta, gamma, 1e-3), kind)
            x = tf.reduce_mean(tf.nn.relu(x), [1, 2])
            logits = tf.cast(tf.matmul(x, tf.cast(dense, kind)) + tf.cast(bias, kind), tf.float32)
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=LABELS, logits=logits))
            step = v1.train.get_or_create_global_step()
            update = [optimizer().minimize(loss, global_step=step)]
            update += [v1.assign_sub(old, 0.1 * (old - new)) for old, new in zip(moving, (mean, variance))]
            averages = tf.train.ExponentialMovingAverage(0.9)
            with tf.control_dependencies(update):
                update = averages.apply(v1.trainable_variables())
            session.run(v1.global_variables_initializer())
            saver = v1.train.Saver()
            if restored:
                saver.restore(session, restored)
            found = []
            for _ in range(n):
                value, _ = session.run([loss, update])
                found.append(float(value))
            if saved:
                saver.save(session, saved, write_meta_graph=False, write_state=False)
            return found

    for name, optimizer in optimizers.items():
        losses(optimizer, False, None, BEFORE, f"./{name}")
        yield name, {key: losses(optimizer, low, f"./{name}", AFTER) for key, low in (("f32", False), ("bf16", True))}


def torch_losses():
    import copy

    import torch

    images, labels = torch.tensor(IMAGES).permute(0, 3, 1, 2), torch.tensor(LABELS).long()

    class Network(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = torch.nn.Conv2d(3, 4, 3, padding=1, bias=False)
            # Keras' 1e-3, so that one experiment is for all.
            self.bn = torch.nn.BatchNorm2d(4, eps=1e-3)
            self.logits = torch.nn.Linear(4, CLASSES)

        def forward(self, x):
            return self.logits(torch.relu(self.bn(self.conv(x))).mean((2, 3)))

    def steps(model, optimizer, n, low):
        found = []
        for _ in range(n):
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16, enabled=low):
                logits = model(images)
            loss = torch.nn.functional.cross_entropy(logits.float(), labels)
            loss.backward()
            optimizer.step()
            found.append(loss.item())
        return found

    optimizers = {
        "torch_adam": lambda parameters: torch.optim.Adam(parameters, 0.01, eps=1e-6),
        "torch_sgd": lambda parameters: torch.optim.SGD(parameters, 0.1, momentum=0.9, nesterov=True),
    }
    for name, optimizer in optimizers.items():
        model = Network()
        with torch.no_grad():
            model.conv.weight.copy_(torch.tensor(KERNEL).permute(3, 2, 0, 1))
            model.logits.weight.copy_(torch.tensor(DENSE).T)
            model.logits.bias.zero_()
        own = optimizer(model.parameters())
        steps(model, own, BEFORE, False)
        torch.save({"model": model.state_dict(), "optimizer": own.state_dict(), "epoch": 5}, f"{name}.pt")
        found = {}
        for key, low in (("f32", False), ("bf16", True)):
            go_on = copy.deepcopy(model)
            other = optimizer(go_on.parameters())
            other.load_state_dict(copy.deepcopy(own.state_dict()))
            found[key] = steps(go_on, other, AFTER, low)
        yield name, found


made = {"keras": keras_losses, "tf1": tf1_losses, "torch": torch_losses}[sys.argv[1]]
losses = {f"{name}_{key}": np.array(values, np.float64) for name, found in made() for key, values in found.items()}
np.savez_compressed(f"losses_{sys.argv[1]}.npz", **losses)
# And one more, which an experiment holds back for its test.
np.savez_compressed("examples.npz", images=np.concatenate([IMAGES, IMAGES[:1]]), labels=np.concatenate([LABELS, LABELS[:1]]))
for name, values in losses.items():
    print(name, values[[0, -1]])
