"""Training steps of kinds that `benches/tpu/networks.py` has not, small enough to run on a CPU: what users of JAX write
since 2024. Each is a function of a dtype that gives the step and the shapes of its arguments; in f32 it is what is lowered,
in bf16 the form that its author writes by hand: f32 parameters, norms and losses, the rest in bf16.
"""

import os
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

#: Others than these, for compilers: make.py --sizes.
SIZES = os.environ.get("BF16SCOPE_STEP_SIZES", "128,4,2,32,16,256")
WIDTH, HEADS, LAYERS, TIME, BATCH, WORDS = map(int, SIZES.split(","))


def f32s(*dims):
    """The shape of an f32 array."""
    return jax.ShapeDtypeStruct(dims, jnp.float32)


def ids(*dims):
    """The shape of integers."""
    return jax.ShapeDtypeStruct(dims, jnp.int32)


def norm(x, scale):
    """A root-mean-square norm, in f32."""
    wide = x.astype(jnp.float32)
    return (wide * jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + 1e-6) * scale).astype(x.dtype)


def matmul(x, w):
    """By f32 weights, which are read in the dtype of `x`."""
    return x @ w.astype(x.dtype)


def attention(x, layer, n_heads=HEADS):
    """Causal attention."""
    queries, keys, values = jnp.split(matmul(x, layer["qkv"]), 3, axis=-1)
    split = lambda y: y.reshape(*y.shape[:-1], n_heads, -1)
    scores = jnp.einsum("bqhd,bkhd->bhqk", split(queries), split(keys)).astype(jnp.float32) / queries.shape[-1] ** 0.5
    mask = jnp.tril(jnp.ones((x.shape[1],) * 2, bool))
    weights = jax.nn.softmax(jnp.where(mask, scores, -1e9)).astype(x.dtype)
    return matmul(jnp.einsum("bhqk,bkhd->bqhd", weights, split(values)).reshape(x.shape), layer["out"])


def block(x, layer, n_heads=HEADS, bend=jax.nn.gelu):
    """A layer of a transformer."""
    x = x + attention(norm(x, layer["norm1"]), layer, n_heads)
    return x + matmul(bend(matmul(norm(x, layer["norm2"]), layer["wide"])), layer["narrow"])


def a_layer(width=WIDTH):
    """The shapes of a layer's parameters."""
    return {
        "qkv": f32s(width, 3 * width),
        "out": f32s(width, width),
        "wide": f32s(width, 4 * width),
        "narrow": f32s(4 * width, width),
        "norm1": f32s(width),
        "norm2": f32s(width),
    }


def a_decoder(layers):
    """The shapes of a decoder's parameters around these layers."""
    return {"embed": f32s(WORDS, WIDTH), "layers": layers, "norm": f32s(WIDTH), "head": f32s(WIDTH, WORDS)}


def cross_entropy(logits, labels):
    """Mean over all labels, in f32."""
    return optax.softmax_cross_entropy_with_integer_labels(logits.astype(jnp.float32), labels).mean()


def decoder_loss(dtype, through, params, tokens, labels):
    """The loss of a decoder whose layers are gone through by `through`."""
    x = through(params["embed"].astype(dtype)[tokens], params["layers"])
    return cross_entropy(matmul(norm(x, params["norm"]), params["head"]), labels)


def trained(loss, params, *batch, optimizer=optax.adamw(1e-3)):
    """A step by an optimizer, and the shapes of what it takes."""

    def step(params, moments, *batch):
        value, gradients = jax.value_and_grad(loss)(params, *batch)
        updates, moments = optimizer.update(gradients, moments, params)
        return optax.apply_updates(params, updates), moments, value

    return step, (params, jax.eval_shape(optimizer.init, params), *batch)


def one_after_another(x, layers):
    """Each layer in a line of its own."""
    for layer in layers:
        x = block(x, layer)
    return x


def split_over(mesh, spec_of, tree):
    """Shapes with the sharding that `spec_of` says for the dims of each."""
    place = lambda leaf: jax.ShapeDtypeStruct(
        leaf.shape, leaf.dtype, sharding=NamedSharding(mesh, spec_of(leaf.shape))
    )
    return jax.tree.map(place, tree)


def fsdp(dtype):
    """Parameters, their moments and the batch split over eight cores; activations by `with_sharding_constraint`."""
    mesh = Mesh(jax.devices()[:8], ("data",))
    hold = lambda x: jax.lax.with_sharding_constraint(x, NamedSharding(mesh, P("data")))

    def through(x, layers):
        x = hold(x)
        for layer in layers:
            x = hold(block(x, layer))
        return x

    step, arguments = trained(
        partial(decoder_loss, dtype, through),
        a_decoder([a_layer() for _ in range(LAYERS)]),
        ids(BATCH, TIME),
        ids(BATCH, TIME),
    )
    rows = lambda dims: P("data") if dims and dims[0] % 8 == 0 else P()
    return step, split_over(mesh, rows, arguments)


def tensor_parallel(dtype):
    """Heads and hidden features split over four cores of a model axis, the batch over two."""
    mesh = Mesh(np.array(jax.devices()[:8]).reshape(2, 4), ("data", "model"))
    hold = lambda x: jax.lax.with_sharding_constraint(x, NamedSharding(mesh, P("data")))
    through = lambda x, layers: one_after_another(hold(x), layers)
    params = a_decoder([a_layer() for _ in range(LAYERS)])
    step, arguments = trained(
        partial(decoder_loss, dtype, through), params, ids(BATCH, TIME), ids(BATCH, TIME), optimizer=optax.sgd(1e-2)
    )
    columns = [(WIDTH, 3 * WIDTH), (WIDTH, 4 * WIDTH), (WIDTH, WORDS)]
    rows = [(4 * WIDTH, WIDTH), (WIDTH, WIDTH)]
    spec = lambda dims: P(None, "model") if dims in columns else P("model") if dims in rows else P()
    params, moments, *batch = arguments
    batch = split_over(mesh, lambda dims: P("data"), batch)
    return step, (*split_over(mesh, spec, (params, moments)), *batch)



def by_shard_map(dtype):
    """Data parallel by hand: each core's gradients are summed by `psum` within `shard_map`."""
    mesh = Mesh(jax.devices()[:8], ("data",))
    loss = partial(decoder_loss, dtype, one_after_another)

    def local(params, tokens, labels):
        value, gradients = jax.value_and_grad(loss)(params, tokens, labels)
        mean = lambda x: jax.lax.pmean(x, "data")
        return jax.tree.map(lambda w, g: w - 1e-2 * mean(g), params, gradients), mean(value)

    step = jax.shard_map(
        local, mesh=mesh, in_specs=(P(), P("data"), P("data")), out_specs=(P(), P()), check_vma=False
    )
    params = a_decoder([a_layer() for _ in range(LAYERS)])
    params = split_over(mesh, lambda dims: P(), params)
    batch = split_over(mesh, lambda dims: P("data"), (ids(BATCH, TIME), ids(BATCH, TIME)))
    return step, (params, *batch)


def scan_remat(dtype):
    """Layers as one `scan`, each computed again in the backward pass."""

    def through(x, layers):
        body = jax.checkpoint(lambda x, layer: (block(x, layer), None))
        return jax.lax.scan(body, x, layers)[0]

    stacked = jax.tree.map(lambda leaf: f32s(4, *leaf.shape), a_layer())
    return trained(partial(decoder_loss, dtype, through), a_decoder(stacked), ids(BATCH, TIME), ids(BATCH, TIME))


def muon(dtype):
    """Gradients of matrices orthogonalised by five steps of Newton and Schulz, whose products are the dtype's."""

    def orthogonal(g):
        x = (g / (jnp.linalg.norm(g) + 1e-7)).astype(dtype)
        is_tall = x.shape[0] > x.shape[1]
        x = x.T if is_tall else x
        for _ in range(5):
            square = x @ x.T
            x = 3.4445 * x + (-4.775 * square + 2.0315 * square @ square) @ x
        return (x.T if is_tall else x).astype(jnp.float32)

    loss = partial(decoder_loss, dtype, one_after_another)

    def step(params, moments, tokens, labels):
        value, gradients = jax.value_and_grad(loss)(params, tokens, labels)
        moments = jax.tree.map(lambda m, g: 0.95 * m + g, moments, gradients)
        update = lambda w, m: w - 2e-2 * (orthogonal(m) if w.ndim == 2 else m)
        return jax.tree.map(update, params, moments), moments, value

    params = a_decoder([a_layer() for _ in range(LAYERS)])
    return step, (params, params, ids(BATCH, TIME), ids(BATCH, TIME))


def mamba2(dtype):
    """State-space duality in chunks: decays as differences of running sums, products within and between chunks."""
    state, chunk, inner = 16, 8, WIDTH

    def ssd(x, decay, keys, queries):
        """x [b, t, h, p], decay [b, t, h] in f32 (logarithms), keys and queries [b, t, n]."""
        b, t, h, p = x.shape
        parts = lambda y: y.reshape(b, t // chunk, chunk, *y.shape[2:])
        x, decay, keys, queries = map(parts, (x, decay, keys, queries))
        sums = jnp.cumsum(decay, axis=2)
        distance = sums[:, :, :, None] - sums[:, :, None]
        mask = jnp.tril(jnp.ones((chunk, chunk), bool))[..., None]
        within = jnp.exp(jnp.where(mask, distance, -jnp.inf)).astype(x.dtype)
        given = jnp.einsum("bcin,bcjn,bcijh,bcjhp->bcihp", queries, keys, within, x)
        until_end = jnp.exp(sums[:, :, -1:] - sums).astype(x.dtype)
        states = jnp.einsum("bcjn,bcjh,bcjhp->bchpn", keys, until_end, x)

        def go_on(carried, now):
            new, decay = now
            return carried * decay[..., None, None] + new, carried

        over = lambda y: jnp.moveaxis(y, 1, 0)
        start = jnp.zeros((b, h, p, state), jnp.float32)
        of_chunk = jnp.exp(sums[:, :, -1])
        _, before = jax.lax.scan(go_on, start, (over(states).astype(jnp.float32), over(of_chunk)))
        before = jnp.moveaxis(before, 0, 1).astype(x.dtype)
        carried = jnp.einsum("bcin,bcih,bchpn->bcihp", queries, jnp.exp(sums).astype(x.dtype), before)
        return (given + carried).reshape(b, t, h, p)

    def layer_of(x, layer):
        y = norm(x, layer["norm"])
        mixed, gate, keys, queries, step = jnp.split(
            matmul(y, layer["in"]), [inner, 2 * inner, 2 * inner + state, 2 * inner + 2 * state], axis=-1
        )
        # A causal depthwise convolution by shifts.
        shifted = [jnp.pad(mixed, ((0, 0), (n, 0), (0, 0)))[:, : mixed.shape[1]] for n in range(4)]
        mixed = jax.nn.silu(sum(s * layer["conv"][n].astype(dtype) for n, s in enumerate(shifted)))
        step = jax.nn.softplus(step.astype(jnp.float32) + layer["bias"])
        x_heads = mixed.reshape(*mixed.shape[:2], HEADS, -1) * step[..., None].astype(dtype)
        decay = -jnp.exp(layer["rate"]) * step
        y = ssd(x_heads, decay, keys, queries).reshape(mixed.shape)
        return x + matmul(norm(y * jax.nn.silu(gate), layer["norm2"]), layer["out"])

    def through(x, layers):
        for layer in layers:
            x = layer_of(x, layer)
        return x

    layer = {
        "norm": f32s(WIDTH),
        "in": f32s(WIDTH, 2 * inner + 2 * state + HEADS),
        "conv": f32s(4, inner),
        "bias": f32s(HEADS),
        "rate": f32s(HEADS),
        "norm2": f32s(inner),
        "out": f32s(inner, WIDTH),
    }
    params = a_decoder([layer for _ in range(LAYERS)])
    return trained(partial(decoder_loss, dtype, through), params, ids(BATCH, TIME), ids(BATCH, TIME))


def accumulation(dtype):
    """Gradients of four micro-batches, summed in f32 by a `scan`, and one update."""
    loss = partial(decoder_loss, dtype, one_after_another)
    optimizer = optax.adamw(1e-3)

    def step(params, moments, tokens, labels):
        def add(sums, batch):
            value, gradients = jax.value_and_grad(loss)(params, *batch)
            return jax.tree.map(jnp.add, sums, (value, gradients)), None

        zeros = jax.tree.map(jnp.zeros_like, (jnp.float32(0), params))
        (value, gradients), _ = jax.lax.scan(add, zeros, (tokens, labels))
        gradients = jax.tree.map(lambda g: g / tokens.shape[0], gradients)
        updates, moments = optimizer.update(gradients, moments, params)
        return optax.apply_updates(params, updates), moments, value / tokens.shape[0]

    params = a_decoder([a_layer() for _ in range(LAYERS)])
    batch = ids(4, BATCH // 4, TIME)
    return step, (params, jax.eval_shape(optimizer.init, params), batch, batch)


def remat(dtype):
    """Layers with exact GELUs in a line of their own, each computed again in the backward pass."""

    def through(x, layers):
        exact = partial(jax.nn.gelu, approximate=False)
        for layer in layers:
            x = jax.checkpoint(lambda x, layer: block(x, layer, bend=exact))(x, layer)
        return x

    params = a_decoder([a_layer() for _ in range(LAYERS)])
    return trained(partial(decoder_loss, dtype, through), params, ids(BATCH, TIME), ids(BATCH, TIME))


def factors(dtype):
    """A factorization machine beside dense layers, whose table has rows of 16 numbers."""
    n_fields, width = 8, 16

    def loss(params, categories, clicks):
        rows = params["table"].astype(dtype)[categories]
        total = rows.sum(axis=1)
        pairs = 0.5 * jnp.sum((total * total - (rows * rows).sum(axis=1)).astype(jnp.float32), axis=-1)
        x = rows.reshape(rows.shape[0], -1)
        for w, b in params["dense"]:
            x = jax.nn.relu(matmul(x, w) + b.astype(dtype))
        logits = pairs + matmul(x, params["out"])[:, 0].astype(jnp.float32)
        return optax.sigmoid_binary_cross_entropy(logits, clicks).mean()

    params = {
        "table": f32s(8192, width),
        "dense": [(f32s(n_fields * width, 256), f32s(256)), (f32s(256, 256), f32s(256))],
        "out": f32s(256, 1),
    }
    return trained(loss, params, ids(512, n_fields), f32s(512), optimizer=optax.adagrad(1e-2))


STEPS = {
    "fsdp": fsdp,
    "tensor_parallel": tensor_parallel,
    "shard_map": by_shard_map,
    "scan_remat": scan_remat,
    "muon": muon,
    "mamba2": mamba2,
    "accumulation": accumulation,
    "remat": remat,
    "factors": factors,
}
