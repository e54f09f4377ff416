"""Steps of optimizers and learning rates by TensorFlow and optax, for tests/training/{optim,schedules}_tf.rs. See README.md.

usage: python record.py optimizers.npz schedules.npz
"""
import os
import sys

os.environ["TF_ENABLE_ONEDNN_OPTS"] = "0"
os.environ["CUDA_VISIBLE_DEVICES"] = ""
os.environ["JAX_PLATFORMS"] = "cpu"
import keras
import jax
import numpy as np
import optax
import tensorflow as tf

STEPS, RATE = 20, 0.0625
rng = np.random.default_rng(20261122)
SHAPES = {"kernel": (4, 3), "bias": (3,)}
start = {name: rng.normal(size=shape).astype(np.float32) for name, shape in SHAPES.items()}
gradients = {name: (rng.normal(size=(STEPS, *shape)) * 2.0).astype(np.float32) for name, shape in SHAPES.items()}
arrays = {f"start/{name}": start[name] for name in SHAPES} | {f"gradient/{name}": gradients[name] for name in SHAPES}


def record(case, step):
    """`step(number, gradients by name)` gives the variables after it."""
    after = [step(number, {name: gradients[name][number] for name in SHAPES}) for number in range(STEPS)]
    for name in SHAPES:
        arrays[f"{case}/{name}"] = np.stack([np.asarray(values[name], np.float32) for values in after])


def apply_by(case, apply, clip=lambda gradients: gradients):
    """`apply` takes pairs of a gradient and a variable, as the optimizers of tf.compat.v1 and of Keras do."""
    variables = {name: tf.Variable(value) for name, value in start.items()}

    def step(_, given):
        given = clip([tf.constant(given[name]) for name in SHAPES])
        apply([(gradient, variables[name]) for gradient, name in zip(given, SHAPES)])
        return {name: variable.numpy() for name, variable in variables.items()}

    record(case, step)


def by_optax(case, transformation):
    state, params = transformation.init(start), start

    def step(_, given):
        nonlocal state, params
        updates, state = transformation.update(given, state, params)
        params = optax.apply_updates(params, updates)
        return params

    record(case, step)


def by_formula(case, formula, *slots):
    """`formula(step, variable, gradient, slots, name)` gives the variable and its slots after it, in f32."""
    state = {name: (tf.constant(start[name]), [tf.fill(SHAPES[name], np.float32(slot)) for slot in slots])
             for name in SHAPES}

    def step(number, given):
        for name in SHAPES:
            state[name] = formula(number, state[name][0], tf.constant(given[name]), state[name][1], name)
        return {name: value.numpy() for name, (value, _) in state.items()}

    record(case, step)


v1 = tf.compat.v1.train
kernel_only = {"kernel": True, "bias": False}
apply_by("sgd", v1.GradientDescentOptimizer(RATE).apply_gradients)
apply_by("momentum", v1.MomentumOptimizer(RATE, 0.9).apply_gradients)
apply_by("nesterov", v1.MomentumOptimizer(RATE, 0.9, use_nesterov=True).apply_gradients)
by_optax("adam", optax.adam(RATE))
apply_by("rmsprop", v1.RMSPropOptimizer(RATE, 0.9, 0.9, 1e-3).apply_gradients)
apply_by("rmsprop_plain", v1.RMSPropOptimizer(RATE, 0.8, 0.0, 1e-3).apply_gradients)
apply_by("rmsprop_centered", v1.RMSPropOptimizer(RATE, 0.9, 0.9, 1e-3, centered=True).apply_gradients)
apply_by("adagrad", keras.optimizers.Adagrad(RATE).apply_gradients)
apply_by("adagrad_v1", v1.AdagradOptimizer(RATE, initial_accumulator_value=0.5).apply_gradients)
apply_by("adadelta", v1.AdadeltaOptimizer(RATE * 16, 0.95, 1e-6).apply_gradients)
apply_by("ftrl", v1.FtrlOptimizer(RATE).apply_gradients)
apply_by("ftrl_regularized", v1.FtrlOptimizer(
    RATE, learning_rate_power=-0.7, l1_regularization_strength=0.5, l2_regularization_strength=0.25,
    l2_shrinkage_regularization_strength=0.125, beta=0.5).apply_gradients)
by_optax("adamw", optax.adamw(RATE, weight_decay=0.125, mask=kernel_only))
by_optax("lamb", optax.chain(
    optax.scale_by_adam(0.9, 0.999, 1e-6), optax.add_decayed_weights(0.125), optax.scale_by_trust_ratio(),
    optax.scale_by_learning_rate(RATE)))
apply_by("lamb_plain", keras.optimizers.Lamb(RATE, epsilon=1e-6).apply_gradients)
by_optax("lars_plain", optax.lars(RATE * 16, trust_coefficient=0.125))

# Weight decay apart from the gradient, clipping.
by_optax("sgd_decoupled", optax.chain(
    optax.sgd(1.0), optax.scale(-1.0), optax.add_decayed_weights(0.125, kernel_only), optax.scale_by_learning_rate(RATE)))
apply_by("clip_global_norm", v1.GradientDescentOptimizer(RATE).apply_gradients, lambda g: tf.clip_by_global_norm(g, 4.0)[0])
apply_by("clip_norm", v1.GradientDescentOptimizer(RATE).apply_gradients, lambda g: [tf.clip_by_norm(x, 4.0) for x in g])
apply_by("clip_value", v1.GradientDescentOptimizer(RATE).apply_gradients,
         lambda g: [tf.clip_by_value(x, -1.5, 1.5) for x in g])


# What neither has: the Adam of BERT's optimization.py, and LARS as TensorFlow's TPU models have it (optax's takes the
# norm of the gradient with the decay).
def bert(_, w, g, slots, name):
    m, v = 0.9 * slots[0] + 0.1 * g, 0.999 * slots[1] + 0.001 * g * g
    update = m / (tf.sqrt(v) + 1e-6)
    if kernel_only[name]:
        update += 0.125 * w
    return w - RATE * update, [m, v]


def lars(_, w, g, slots, name):
    rate = tf.constant(RATE * 16)
    if kernel_only[name]:
        norms = tf.norm(w), tf.norm(g)
        rate *= 0.125 * norms[0] / (norms[1] + 0.0625 * norms[0])
        g += 0.0625 * w
    velocity = 0.9 * slots[0] + rate * g
    return w - velocity, [velocity]


by_formula("bert", bert, 0.0, 0.0)
by_formula("lars", lars, 0.0)

# The average of a variable that gradient descent moves, in place of the variable.
def averaged(case, counted):
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        count = tf.compat.v1.get_variable("count", initializer=0)
        variables = {name: tf.compat.v1.get_variable(name, initializer=value) for name, value in start.items()}
        given = {name: tf.compat.v1.placeholder(tf.float32, shape) for name, shape in SHAPES.items()}
        descend = v1.GradientDescentOptimizer(RATE).apply_gradients([(given[name], variables[name]) for name in SHAPES])
        average = tf.train.ExponentialMovingAverage(0.75, num_updates=count if counted else None)
        with tf.control_dependencies([descend]):
            both = average.apply(list(variables.values()))
        with tf.control_dependencies([both]):
            counted_up = count.assign_add(1)
        shadows = {name: average.average(variable) for name, variable in variables.items()}
        session.run(tf.compat.v1.global_variables_initializer())

        def step(_, gradients):
            session.run(counted_up, {given[name]: gradients[name] for name in SHAPES})
            return session.run(shadows)

        record(case, step)


averaged("average", False)
averaged("average_num_updates", True)
np.savez_compressed(sys.argv[1], **arrays)

# Learning rates at steps 0 to 999, in f32.
schedules = keras.optimizers.schedules
VALUE = 0.3
rates = {
    "exponential": schedules.ExponentialDecay(VALUE, 41, 0.96),
    "exponential_staircase": schedules.ExponentialDecay(VALUE, 41, 0.96, staircase=True),
    "cosine": schedules.CosineDecay(VALUE, 700),
    "cosine_alpha": schedules.CosineDecay(VALUE, 700, alpha=0.05),
    "cosine_warm_up": schedules.CosineDecay(0.0, 700, warmup_target=VALUE, warmup_steps=90),
    "cosine_warm_up_from": schedules.CosineDecay(0.1, 700, warmup_target=VALUE, warmup_steps=90),
    "polynomial": schedules.PolynomialDecay(VALUE, 700, 0.01, power=2.0),
    "polynomial_root": schedules.PolynomialDecay(VALUE, 700, 0.01, power=0.5),
    "linear": schedules.PolynomialDecay(VALUE, 700, 0.01, power=1.0),
    "piecewise": schedules.PiecewiseConstantDecay([100, 250, 251], [VALUE, 0.1, 0.05, 0.02]),
}
steps = [tf.constant(step) for step in range(1000)]
recorded = {name: np.array([np.float32(schedule(step)) for step in steps]) for name, schedule in rates.items()}


# As BERT and TensorFlow's TPU models warm up: the rate rises while the schedule is already counting.
def overlapped(schedule, warm_up):
    return lambda step: tf.where(step < warm_up, VALUE * tf.cast(step, tf.float32) / warm_up, schedule(step))


# As Keras' cosine warms up: the schedule begins after it.
def warmed_up(schedule, warm_up):
    return lambda step: tf.where(step < warm_up, VALUE * tf.cast(step, tf.float32) / warm_up, schedule(step - warm_up))


def inverse_sqrt(step):
    return VALUE * tf.math.rsqrt(tf.maximum(tf.cast(step, tf.float32) + 1.0, 90.0))


def inverse_sqrt_of_value(step):
    return VALUE * tf.math.sqrt(90.0) * tf.math.rsqrt(tf.maximum(tf.cast(step, tf.float32) + 1.0, 90.0))


# `learning_rate_schedule` of the TPU models' resnet_main.py, in steps.
def warm_up_step(step):
    rate = VALUE * tf.cast(step, tf.float32) / 90.0
    for start, multiplier in [(90, 1.0), (300, 0.1), (600, 0.01), (800, 0.001)]:
        rate = tf.where(step < start, rate, VALUE * multiplier)
    return rate


for name, rate in {
    "constant": lambda step: tf.constant(VALUE),
    "constant_warm_up": warmed_up(lambda step: tf.constant(VALUE), 90),
    "exponential_warm_up": warmed_up(rates["exponential"], 90),
    "polynomial_warm_up": warmed_up(rates["polynomial"], 90),
    "linear_warm_up": warmed_up(rates["linear"], 90),
    "piecewise_warm_up": warmed_up(rates["piecewise"], 90),
    "inverse_sqrt_warm_up": warmed_up(inverse_sqrt_of_value, 90),
    "cosine_overlapped": overlapped(rates["cosine"], 90),
    "polynomial_overlapped": overlapped(rates["polynomial"], 90),
    "inverse_sqrt_overlapped": overlapped(inverse_sqrt_of_value, 90),
    "warm_up_step": warm_up_step,
    "inverse_sqrt": inverse_sqrt,
    "linear_overlapped": overlapped(schedules.PolynomialDecay(VALUE, 700, 0.0, power=1.0), 90),
    "exponential_overlapped": overlapped(schedules.ExponentialDecay(VALUE, 41, 0.96, staircase=True), 90),
    "piecewise_overlapped": overlapped(rates["piecewise"], 90),
}.items():
    recorded[name] = np.array([np.float32(rate(step)) for step in steps])
np.savez_compressed(sys.argv[2], **recorded)
print("tensorflow", tf.__version__, "keras", keras.__version__, "jax", jax.__version__, "optax", optax.__version__,
      "numpy", np.__version__, len(arrays), len(recorded))
