"""Programs of kinds that users of bf16 report as wrong, three of each kind: what a rounding there does is not what the same
rounding does elsewhere.

A program is a function of `s` and of its inputs. `s(x)` marks a value that its author would round to bf16 by hand: what
products read and give. `s.dot(x, y)` is a product all of whose ends are marked; one that is written `x @ y` is f32 by hand.
"""

import jax
import jax.numpy as jnp
import numpy as np

PROGRAMS = {}
LEAST = float(np.finfo(np.float32).min)


def program(*inputs):
    """Notes a function by its name, with its inputs."""

    def note(f):
        PROGRAMS[f.__name__] = (f, inputs)
        return f

    return note


def normal(seed, *dims, scale=1.0):
    """Normal numbers, in f32."""
    return (scale * np.random.default_rng(seed).normal(size=dims)).astype(np.float32)


def uniform(seed, low, high, *dims):
    """Numbers of an interval, in f32."""
    return np.random.default_rng(seed).uniform(low, high, size=dims).astype(np.float32)


def representable(x):
    """The same in numbers that bf16 has."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).view(np.float32)


def integers(seed, n, *dims):
    """Integers below `n`."""
    return np.random.default_rng(seed).integers(0, n, size=dims).astype(np.int32)


# A mask of the least finite number stays finite.

LENGTHS = np.array([[8], [3], [0], [5]])
TOKENS = (np.arange(8) < LENGTHS).astype(np.float32)


@program(normal(0, 16, 16, scale=0.25), normal(1, 4, 8, 16), TOKENS, normal(2, 8, 8))
def mask_of_t5(s, w, x, mask, positions):
    """A bias of positions, and (1 - mask) times the least number; one example is padding alone. The loss and its gradients."""

    def loss(w):
        scores = s(jnp.einsum("bqd,bkd->bqk", s(s.dot(x, w)), s(x)))
        p = jax.nn.softmax(scores + positions + (1.0 - mask)[:, None] * LEAST)
        return jnp.mean(s(jnp.einsum("bqk,bkd->bqd", s(p), s(x))) ** 2)

    return jax.value_and_grad(loss)(w)


@program(normal(3, 16, 16, scale=0.25), normal(4, 4, 8, 16), TOKENS)
def mask_by_where(s, w, x, mask):
    """The least number by `where`, of keys and of queries, so that whole rows are that number."""

    def loss(w):
        scores = s(jnp.einsum("bqd,bkd->bqk", s(s.dot(x, w)), s(x)))
        both = (mask[:, None] * mask[:, :, None]) > 0
        p = jax.nn.softmax(jnp.where(both, scores, LEAST))
        return jnp.mean(s(jnp.einsum("bqk,bkd->bqd", s(p), s(x))) ** 2)

    return jax.value_and_grad(loss)(w)


@program(normal(5, 16, 16, scale=0.25), normal(6, 4, 8, 16), ((1 - TOKENS) * LEAST).astype(np.float32))
def mask_in_a_training(s, w, x, bias):
    """The bias is an argument; three steps of gradient descent in a loop."""

    def loss(w):
        scores = s(jnp.einsum("bqd,bkd->bqk", s(s.dot(x, w)), s(x))) + bias[:, None]
        return jnp.mean(s(jnp.einsum("bqk,bkd->bqd", s(jax.nn.softmax(scores)), s(x))) ** 2)

    return (jax.lax.fori_loop(0, 3, lambda _, w: w - 0.5 * jax.grad(loss)(w), w),)


# An outer product of data is exact data.

INVERSE = (10000.0 ** (-np.arange(8) / 8)).astype(np.float32)


@program(normal(10, 32, 16), normal(11, 16, 16, scale=0.25), np.arange(4096, 4128).astype(np.float32))
def angles_by_tensordot(s, x, w, positions):
    """Rotary positions of queries."""
    angles = jnp.tensordot(positions, INVERSE, axes=0)
    queries = s.dot(x, w)
    a, b = queries[:, :8], queries[:, 8:]
    turned = jnp.concatenate([a * jnp.cos(angles) - b * jnp.sin(angles), a * jnp.sin(angles) + b * jnp.cos(angles)], -1)
    return (s(s(turned) @ s(turned).T),)


@program(uniform(12, 0, 1000, 32), normal(13, 16, 16, scale=0.25))
def angles_of_times(s, times, w):
    """The times of a diffusion model, by a product of a column and a row."""
    angles = times[:, None] @ INVERSE[None]
    return (s.dot(jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], -1), w),)


@program(normal(14, 16, 16, scale=0.25))
def angles_of_places(s, w):
    """Places of a grid times a fixed matrix of frequencies, as Fourier features have it."""
    places = jnp.stack(jnp.meshgrid(jnp.arange(64.0), jnp.arange(8.0)), -1).reshape(-1, 2)
    frequencies = jnp.stack([INVERSE, INVERSE[::-1]])
    angles = places @ frequencies
    return (s.dot(jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], -1), w),)


# A sine reads what f32 there is.


@program(normal(20, 64, 16), normal(21, 16, 8, scale=0.25))
def phase_of_a_cumsum(s, x, w):
    """The sine of a running sum of what a product predicts."""
    return (jnp.sin(jnp.cumsum(jax.nn.softplus(s.dot(x, w)), axis=0)),)


@program(normal(22, 64, 16), normal(23, 16, 1, scale=0.25))
def phase_of_harmonics(s, x, w):
    """A synthesizer: harmonics of a running sum of pitches."""
    pitch = jax.nn.sigmoid(s.dot(x, w))
    phase = jnp.cumsum(pitch, axis=0) * jnp.arange(1.0, 9.0)
    return (s.dot(jnp.sin(phase), normal(24, 8, 4)),)


@program(normal(25, 64, 16), normal(26, 16, 2, scale=0.25))
def phase_by_atan2(s, x, w):
    """A direction, of sums of steps, turned by a fixed number."""
    steps = jnp.cumsum(s.dot(x, w), axis=0)
    return (jnp.cos(8.0 * jnp.arctan2(steps[:, 0], steps[:, 1])),)


# Counts are exact.


@program(integers(30, 3, 4099))
def counts_of_a_histogram(s, labels):
    """Comparisons with bins, as a product with ones."""
    return ((labels[:, None] == jnp.arange(3)).astype(jnp.float32).T @ jnp.ones(4099),)


@program((np.random.default_rng(31).uniform(size=(3001, 4)) < 0.5).astype(np.float32))
def counts_of_pairs(s, seen):
    """How often two items are seen together."""
    return (seen.T @ seen,)


@program(integers(32, 5, 2053), integers(33, 5, 2053))
def counts_by_class(s, labels, guesses):
    """A confusion matrix, and the share of hits of each class."""
    one = lambda y: jax.nn.one_hot(y, 5)
    table = one(labels).T @ one(guesses)
    return table, jnp.diag(table) / jnp.sum(table, axis=1)


# Differences of products of near values.


def squared_distances(a, b):
    return jnp.sum(a * a, -1)[:, None] + jnp.sum(b * b, -1)[None] - 2.0 * a @ b.T


CENTER = normal(40, 1, 16, scale=2.0)


@program(CENTER + normal(41, 32, 16, scale=0.05), CENTER + normal(42, 8, 16, scale=0.05))
def distances_to_codes(s, x, codes):
    """Soft assignment to near codes; gradients of both."""
    loss = lambda x, codes: jnp.mean(jax.nn.logsumexp(-squared_distances(x, codes), axis=1))
    return jax.grad(loss, (0, 1))(x, codes)


@program(CENTER + normal(43, 24, 16, scale=0.1), CENTER + np.float32(0.2) + normal(44, 24, 16, scale=0.1))
def distances_of_mmd(s, x, y):
    """How far two sets are from each other by kernels, and its gradients."""
    kernel = lambda a, b: jnp.mean(jnp.exp(-squared_distances(a, b)))
    return jax.value_and_grad(lambda x, y: kernel(x, x) + kernel(y, y) - 2 * kernel(x, y), (0, 1))(x, y)


@program(0.2 * CENTER / np.linalg.norm(CENTER) + normal(45, 16, 16, scale=0.02))
def distances_in_a_ball(s, x):
    """Distances of Poincaré's ball, of pairs that are not the same, and their gradient."""

    def loss(x):
        room = 1.0 - jnp.sum(x * x, -1)
        ratio = 1.0 + 2.0 * jnp.maximum(squared_distances(x, x), 1e-7) / (room[:, None] * room[None])
        return jnp.sum(jnp.where(jnp.eye(16) > 0, 0.0, jnp.arccosh(jnp.maximum(ratio, 1.0 + 1e-6))))

    return jax.value_and_grad(loss)(x)


# Decompositions of matrices that products made.


@program(normal(50, 24, 8))
def decomposition_of_a_kernel(s, x):
    """Cholesky's of a kernel matrix."""
    return (jnp.linalg.cholesky(jnp.exp(-squared_distances(x, x) / 64) + 1e-3 * jnp.eye(24)),)


@program(normal(51, 64, 12) * np.geomspace(1, 0.02, 12).astype(np.float32), normal(52, 12))
def decomposition_of_a_covariance(s, x, y):
    """Solutions by Cholesky's of a covariance whose eigenvalues are far apart."""
    factor = jnp.linalg.cholesky(x.T @ x / 64 + 1e-4 * jnp.eye(12))
    half = jax.lax.linalg.triangular_solve(factor, y[:, None], left_side=True, lower=True)
    return (jax.lax.linalg.triangular_solve(factor, half, left_side=True, lower=True, transpose_a=True),)


@program(normal(53, 16, 8), normal(54, 8, 8))
def decomposition_into_qr(s, x, w):
    """The upper factor of a product that nothing else reads."""
    return (jnp.abs(jnp.linalg.qr(x @ w)[1]),)


# One running sum, whatever its spelling.


@program(normal(60, 128, 16), normal(61, 16, 8, scale=0.25))
def running_sum_by_a_tree(s, x, w):
    """Mamba's decays by `associative_scan`."""
    decay = jax.lax.associative_scan(jnp.add, -0.02 * jax.nn.softplus(s.dot(x, w)), axis=0)
    return (s.dot(jnp.exp(decay), normal(62, 8, 8)),)


@program(normal(63, 128, 16), normal(64, 16, 8, scale=0.25))
def running_sum_backwards(s, x, w):
    """The same from the end, and the gradient of its loss."""

    def loss(w):
        decay = jax.lax.associative_scan(jnp.add, -0.02 * jax.nn.softplus(s.dot(x, w)), axis=0, reverse=True)
        return jnp.mean(s.dot(jnp.exp(decay), normal(65, 8, 8)) ** 2)

    return jax.value_and_grad(loss)(w)


@program(normal(66, 128, 16), normal(67, 16, 8, scale=0.25))
def running_sum_by_a_loop(s, x, w):
    """The same as what a `scan` carries."""

    def add(total, step):
        total = total + step
        return total, total

    _, decay = jax.lax.scan(add, jnp.zeros(8), -0.02 * jax.nn.softplus(s.dot(x, w)))
    return (s.dot(jnp.exp(decay), normal(68, 8, 8)),)


# What a recurrence multiplies by again and again.


@program(normal(70, 128, 16), normal(71, 16, 8, scale=0.25), normal(72, 16, 8, scale=0.25))
def decays_of_rwkv(s, x, v, w):
    """A numerator and a denominator that decay alike, and the gradients of a loss."""

    def loss(v, w):
        decay = jnp.exp(-0.01 * jax.nn.softplus(s.dot(x, v)))
        values = s.dot(x, w)

        def go_on(state, now):
            decay, value = now
            top, bottom = state
            state = (decay * top + value, decay * bottom + 1.0)
            return state, state[0] / state[1]

        _, given = jax.lax.scan(go_on, (jnp.zeros(8), jnp.zeros(8)), (decay, values))
        return jnp.mean(s.dot(given, normal(73, 8, 8)) ** 2)

    return jax.value_and_grad(loss, (0, 1))(v, w)


@program(normal(74, 64, 16), normal(75, 16, 8, scale=0.25), normal(76, 16, 8, scale=0.25), normal(77, 16, 4, scale=0.25))
def decays_of_gated_attention(s, x, v, k, w):
    """A matrix as state, whose rows decay by gates near one."""
    gates = jax.nn.sigmoid(s.dot(x, v) + 6.0)
    keys, values = s.dot(x, k), s.dot(x, w)

    def go_on(state, now):
        gate, key, value = now
        state = gate[:, None] * state + key[:, None] * value[None]
        return state, jnp.sum(state, axis=0)

    return (jax.lax.scan(go_on, jnp.zeros((8, 4)), (gates, keys, values))[1],)


@program(normal(78, 128, 16), normal(79, 16, 8, scale=0.25), normal(80, 16, 8, scale=0.25))
def decays_of_min_gru(s, x, v, w):
    """A gated recurrence without products inside, by `associative_scan`."""
    forget = jax.nn.sigmoid(s.dot(x, v) + 5.0)
    given = (1.0 - forget) * s.dot(x, w)
    join = lambda l, r: (l[0] * r[0], r[0] * l[1] + r[1])
    states = jax.lax.associative_scan(join, (forget, given))[1]
    return (s.dot(states, normal(81, 8, 8)),)


# What is added to an exponent.


@program(normal(90, 32, 16), normal(91, 32, 16), np.float32([0.5, 8.0]))
def exponent_with_slopes(s, q, k, slopes):
    """ALiBi, of a text that is far from its end: distances begin at 400."""
    distance = jnp.abs(jnp.arange(32.0)[:, None] - jnp.arange(32.0)) + 400.0
    scores = s(q) @ s(k).T / 4.0
    p = jax.nn.softmax(scores[None] - slopes[:, None, None] * distance)
    return (s(s(p) @ s(k)),)


@program(normal(92, 32, 16), normal(93, 32, 16), uniform(94, 240, 260, 32, 32))
def exponent_with_a_bias(s, q, k, bias):
    """A bias of pairs that is large, and varies by little."""
    return (s(s(jax.nn.softmax(s(q) @ s(k).T / 4.0 + bias)) @ s(k)),)


@program(normal(95, 32, 16), normal(96, 16, 8), uniform(97, -120, -110, 8))
def exponent_with_priors(s, x, w, prior):
    """Logarithms of priors behind a product, normalised."""
    scores = s(x) @ s(w) + prior
    return (jnp.exp(scores - jax.nn.logsumexp(scores, axis=1, keepdims=True)),)


# Losses, counts and ids that are written as products.


@program(np.full(1003, 1 / 1003, np.float32), uniform(100, 2.30, 2.31, 1003))
def loss_by_weights(s, weights, losses):
    """A weighted mean."""
    return (jnp.dot(weights, losses),)


@program(normal(101, 64, 16), normal(102, 16), uniform(103, -1, 1, 64))
def loss_of_residuals(s, x, w, y):
    """Half of the sum of squares, by `vdot`, and its gradient."""

    def loss(w):
        r = s(s(x) @ s(w)) - y
        return 0.5 * jnp.vdot(r, r)

    return jax.value_and_grad(loss)(w)


@program(integers(104, 1000, 16))
def loss_of_ids(s, ids):
    """Numbers looked up by a product of one-hot rows and all numbers."""
    return ((jax.nn.one_hot(ids, 1000) @ jnp.arange(1000.0)).astype(jnp.int32),)


# An f32 sum that was asked for.


@program(representable(normal(110, 32, 16)), normal(111, 32, 16))
def asked_of_attention(s, q, v):
    """Scores of bf16 operands, in f32, before a softmax."""
    low = q.astype(jnp.bfloat16)
    scores = jnp.einsum("id,jd->ij", low, low, preferred_element_type=jnp.float32)
    return scores, s(s(jax.nn.softmax(scores)) @ s(v))


@program(representable(normal(112, 2, 16, 16, 8)), representable(normal(113, 3, 3, 8, 8, scale=0.2)))
def asked_of_a_convolution(s, x, kernel):
    """A convolution of bf16 that gives f32."""
    low = [y.astype(jnp.bfloat16) for y in (x, kernel)]
    dims = ("NHWC", "HWIO", "NHWC")
    return (
        jax.lax.conv_general_dilated(*low, (1, 1), "SAME", dimension_numbers=dims, preferred_element_type=jnp.float32),
    )


@program(representable(normal(114, 4, 16, 16)), representable(normal(115, 4, 16, 8)))
def asked_of_a_batch(s, x, y):
    """A batched product that is f32, and an exponential that reads it."""
    low = [z.astype(jnp.bfloat16) for z in (x, y)]
    given = jax.lax.dot_general(*low, (((2,), (1,)), ((0,), (0,))), preferred_element_type=jnp.float32)
    return (jnp.exp(given / 8.0),)


# What only ops in f32 read.


@program(normal(120, 16, 16), normal(121, 16, 32))
def only_f32_reads_a_spectrum(s, x, w):
    """The spectrum of a product's rows."""
    return (jnp.abs(jnp.fft.rfft(x @ w)),)


@program(normal(122, 16, 8))
def only_f32_reads_eigenvalues(s, x):
    """Eigenvalues of a product."""
    return (jnp.linalg.eigvalsh(x.T @ x / 16),)


@program(np.tril(normal(123, 8, 8, scale=0.1)) + 2 * np.eye(8, dtype=np.float32), normal(124, 8, 16), normal(125, 16, 8))
def only_f32_reads_a_right_side(s, l, x, w):
    """A triangular system whose right side is a product."""
    return (jax.lax.linalg.triangular_solve(l, x @ w, left_side=True, lower=True),)


# Large powers.


@program(normal(130, 32, 16), normal(131, 16, 16, scale=0.25), normal(132, 16, 8, scale=0.25))
def power_of_a_sigmoid(s, x, w, v):
    """How likely a gate stays open a thousand times."""
    y = jax.nn.sigmoid(s(s.dot(x, w) + 7.0)) ** 1000
    return (s.dot(y, v),)


@program(normal(133, 32, 16), normal(134, 16, 16, scale=0.25), normal(135, 16, 8, scale=0.25))
def power_of_interest(s, x, w, v):
    """A rate that is compounded daily over a year."""
    rate = 0.1 * jnp.tanh(s.dot(x, w))
    return (s.dot((1 + rate / 365) ** 365, v),)


@program(normal(136, 32, 16), normal(137, 16, 3, scale=0.25), normal(138, 32, 3))
def power_of_a_highlight(s, x, w, light):
    """Phong's highlights: the cosine of an angle, to the 64th power, and the gradient by the weights."""

    def shaded(w):
        normals = s.dot(x, w)
        normals = normals * jax.lax.rsqrt(jnp.sum(normals * normals, axis=1, keepdims=True) + 1e-6)
        toward = light / jnp.linalg.norm(light, axis=1, keepdims=True)
        cosine = jnp.maximum(jnp.sum(normals * toward, axis=1), 0.0)
        return jnp.mean(cosine**64)

    return (jax.grad(shaded)(w),)


# Gradients that ask by equality which operand it was.


@program(normal(140, 64, 16), normal(141, 16, 16, scale=0.25), normal(142, 16, 4, scale=0.25), normal(143, 64), integers(144, 4, 64))
def equal_to_a_clipped_ratio(s, x, w, v, advantage, action):
    """PPO's clipped objective, and its gradient by two layers."""

    def loss(w, v):
        chosen = lambda logits: jnp.take_along_axis(jax.nn.log_softmax(logits), action[:, None], 1)[:, 0]
        logits = s.dot(jnp.tanh(s.dot(x, w)), v)
        ratio = jnp.exp(chosen(logits) - jax.lax.stop_gradient(chosen(0.95 * logits)))
        return -jnp.mean(jnp.minimum(ratio * advantage, jnp.clip(ratio, 0.8, 1.2) * advantage))

    return jax.grad(loss, argnums=(0, 1))(w, v)


@program(normal(145, 64, 16), normal(146, 16, 32, scale=0.25), normal(147, 32, 8, scale=0.2))
def equal_to_a_slope(s, x, w, v):
    """A leaky ReLU that is written as a maximum, and the gradient by what is before it."""
    loss = lambda w: jnp.mean(s.dot(s(jnp.maximum(0.2 * (y := s.dot(x, w)), y)), v) ** 2)
    return (jax.grad(loss)(w),)


@program(normal(148, 64, 16), normal(149, 16, 32, scale=0.5), normal(150, 32, 8, scale=0.2))
def equal_to_a_hard_gate(s, x, w, v):
    """A hard swish, of a clipped sigmoid, and the gradient by what is before it."""
    loss = lambda w: jnp.mean(s.dot(s((y := s.dot(x, w)) * jnp.clip(y / 6 + 0.5, 0.0, 1.0)), v) ** 2)
    return (jax.grad(loss)(w),)
