"""Training steps of TensorFlow 2: what they differentiate, and the step that `fit` makes of a compiled Keras model."""

import contextlib

from bf16scope._tensorflow_1 import TraceError


class Differentiated:
    """Records what tapes differentiate while functions are traced: a step may return another number, or a running mean of its loss."""

    def __init__(self):
        self.targets = []
        # Losses by the numbers that they become where a `LossScaleOptimizer` multiplies them, whose gradients it divides again.
        self.unscaled = {}

    @contextlib.contextmanager
    def watched(self, tf):
        """Watches tapes and loss scales."""
        convert = tf.autograph.experimental.do_not_convert
        scaling = tf.keras.mixed_precision.LossScaleOptimizer
        classes = [tf.GradientTape, *(one for one in (scaling, *scaling.__subclasses__()) if "get_scaled_loss" in vars(one))]
        names = ["gradient", *(["get_scaled_loss"] * (len(classes) - 1))]
        real = [vars(one)[name] for one, name in zip(classes, names)]

        def gradient(tape, target, *more, **options):
            self.targets += [one for one in tf.nest.flatten(target) if tf.is_tensor(one)]
            return real[0](tape, target, *more, **options)

        def scaled_by(scale):
            def get_scaled_loss(optimizer, loss):
                scaled = scale(optimizer, loss)
                if tf.is_tensor(scaled):
                    self.unscaled[id(scaled)] = scaled, loss
                return scaled

            return get_scaled_loss

        watching = [gradient, *(scaled_by(one) for one in real[1:])]
        for one, name, function in zip(classes, names, watching):
            setattr(one, name, convert(function))
        try:
            yield self
        finally:
            for one, name, function in zip(classes, names, real):
                setattr(one, name, function)

    def loss(self, graph):
        """The only tensor of a graph that is differentiated; None without one, or with several."""
        inside = {id(one): one for one in self.targets if getattr(one, "graph", None) is graph}
        if len(inside) != 1:
            return None
        (target,) = inside.values()
        _, loss = self.unscaled.get(id(target), (target, target))
        return loss


def behind(tensor):
    """The tensor that another one copies: the results of a function are copies of what it returns."""
    while tensor.op.type == "Identity":
        tensor = tensor.op.inputs[0]
    return tensor


def is_compiled(model):
    """Whether a Keras model has an optimizer, as `compile` gives it one."""
    return hasattr(model, "train_step") and getattr(model, "optimizer", None) is not None


def step_of(tf, model, features, labels):
    """The concrete function of a compiled model's training step, at these specs."""
    batch = next((spec.shape[0] for spec in tf.nest.flatten(labels) if spec.shape.rank), None)

    def with_batch(spec):
        dims = spec.shape.as_list()
        return tf.TensorSpec([batch, *dims[1:]] if dims and dims[0] is None else dims, spec.dtype, spec.name)

    step = tf.function(lambda features, labels: model.train_step((features, labels)))
    return step.get_concrete_function(tf.nest.map_structure(with_batch, features), labels)


def check_labels(model, name, labels):
    """Refuses labels where nothing takes them."""
    if hasattr(model, "get_concrete_function"):
        raise TraceError(f"--labels {labels[0]}: `{name}` is a tf.function; expected all its inputs as --features")
    if not is_compiled(model):
        raise TraceError(f"--labels {labels[0]}: the model `{name}` is not compiled, so it has no loss that takes labels\n"
                         "help: model.compile(optimizer, loss), or trace it without --labels, as it predicts")
