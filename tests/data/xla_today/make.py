"""Makes the modules of this folder: HLO as XLA's printer and proto writer give it today.

    pip install jax==0.10.2 tensorflow-cpu==2.21.0
    TPU_LIBRARY_PATH=/path/of/libtpu.so python make.py OUT [jax] [tpu] [tf]

Each of `jax`, `tpu`, `tf` (all, without any) writes into OUT. Steps run in processes of their own, as XLA reads its flags
once. `README.md` says what each file is; a file over 50 KB is stored as `.gz` (mtime 0).
"""

import glob
import gzip
import os
import subprocess
import sys

LIMIT = 50_000
SCRIPT = sys.argv[0]
# A module names its sources: these are not paths of any machine.
SOURCE = "/src/model.py"
START = "import sys; del sys.argv[0]; exec(compile(open(sys.argv[0]).read(), '/src/make.py', 'exec'))"


def keep(out, name, data):
    data = data if isinstance(data, bytes) else data.encode()
    # TensorFlow's own files are in its modules; a path of as many letters leaves the lengths in a proto true.
    if "tensorflow" in sys.modules:
        path = os.path.dirname(os.path.dirname(sys.modules["tensorflow"].__file__)).encode()
        data = data.replace(path, b"/site-packages".ljust(len(path), b"/"))
    if len(data) > LIMIT:
        name, data = name + ".gz", gzip.compress(data, mtime=0)
    with open(os.path.join(out, name), "wb") as file:
        file.write(data)


MODEL = '''
import jax, jax.numpy as jnp
from jax import lax
from functools import partial

def layer(x, w):
    return jnp.tanh(x @ w)

def loss(params, x, y):
    for w in params:
        x = layer(x, w)
    z = x - lax.stop_gradient(x.max(axis=-1, keepdims=True))
    return -jnp.mean(jnp.sum((z - jnp.log(jnp.exp(z).sum(-1, keepdims=True))) * y, -1))

def step(params, x, y):
    value, grads = jax.value_and_grad(loss)(params, x, y)
    return [w - 0.1 * g for w, g in zip(params, grads)], value

def many(x, w, key, at):
    """One of many ops: what a printer has words for."""
    image = x.reshape(2, 8, 8, 4)
    conv = lax.conv_general_dilated(image, w, (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    pooled = lax.reduce_window(conv, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    order = jnp.argsort(pooled.reshape(2, -1), axis=-1)
    top, where = lax.top_k(pooled.reshape(2, -1), 3)
    noise = jax.random.normal(key, pooled.shape)
    table = jnp.take(x.reshape(-1), at) + x.reshape(-1).at[at].add(1.0)[:5]
    def body(i, c):
        return lax.cond(i % 2 == 0, lambda c: c + 1.0, lambda c: jnp.sin(c), c)
    looped = lax.fori_loop(0, 3, body, pooled + noise)
    carried, stacked = lax.scan(lambda c, v: (c * 0.5 + v, c), looped[0], looped)
    cast = conv.astype(jnp.bfloat16).astype(jnp.float32) + jnp.fft.rfft(conv, axis=1).real.sum()
    upper = jnp.linalg.cholesky(jnp.eye(4) + top[0, 0] * jnp.ones((4, 4)))
    solved = jax.scipy.linalg.solve_triangular(upper, jnp.ones((4, 2)), lower=True)
    return order, where, table, carried, stacked, cast, solved, jnp.exp2(solved) // 3, jnp.float8_e4m3fn(1.5) * 2
'''


def model():
    scope = {}
    exec(compile(MODEL, SOURCE, "exec"), scope)
    return scope


def shapes(*all_dims):
    import jax
    import jax.numpy as jnp
    return [jax.ShapeDtypeStruct(dims, jnp.float32) for dims in all_dims]


def step_arguments():
    return shapes((16, 32), (32, 8)), *shapes((8, 16), (8, 8))


def many_arguments():
    import jax
    import jax.numpy as jnp
    x, w = shapes((2, 256), (3, 3, 4, 8))
    return x, w, jax.ShapeDtypeStruct((2,), jnp.uint32), jax.ShapeDtypeStruct((5,), jnp.int32)


def both(out, name, lowered):
    """Text and proto, before and after optimization."""
    before = lowered.compiler_ir("hlo")
    keep(out, f"{name}.before.txt", before.as_hlo_text())
    keep(out, f"{name}.before.pb", before.as_serialized_hlo_module_proto())
    compiled = lowered.compile()
    keep(out, f"{name}.after.txt", compiled.as_text())
    module, = compiled.runtime_executable().hlo_modules()
    keep(out, f"{name}.after.pb", module.as_serialized_hlo_module_proto())


def sharded(scope, devices):
    import jax
    import numpy
    from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
    mesh = Mesh(numpy.array(devices).reshape(4, 2), ("batch", "model"))
    on = lambda *axes: NamedSharding(mesh, P(*axes))
    shardings = ([on(None, "model"), on("model", None)], on("batch", None), on("batch", None))
    return jax.jit(scope["step"], in_shardings=shardings, donate_argnums=0)


def step_jax(out):
    import jax
    scope = model()
    both(out, "jax_cpu_step", jax.jit(scope["step"], donate_argnums=0).lower(*step_arguments()))
    both(out, "jax_cpu_many", jax.jit(scope["many"]).lower(*many_arguments()))


def step_dump(out):
    import jax
    jax.jit(model()["step"]).lower(*step_arguments()).compile()
    take_dump(out, "jax_cpu_dump", "jit_step")


def take_dump(out, name, module):
    folder = os.environ["DUMP"]
    # TensorFlow compiles a function twice, under two names: all files are of the one with the shorter name.
    module = min(glob.glob(f"{folder}/*{module}*before_optimizations.txt"), key=len).split("/")[-1].split(".")[1]
    for stage in ("before_optimizations", "after_optimizations"):
        for path in glob.glob(f"{folder}/*.{module}.*{stage}.*"):
            end = "pb" if path.endswith(".pb") else "txt" if path.endswith(f"{stage}.txt") else None
            if end:
                with open(path, "rb") as file:
                    keep(out, f"{name}.{stage.split('_')[0]}.{end}", file.read())


def step_shardy(out):
    import jax
    both(out, "jax_cpu_sharded", sharded(model(), jax.devices()).lower(*step_arguments()))


def step_gspmd(out):
    import jax
    jax.config.update("jax_use_shardy_partitioner", False)
    both(out, "jax_cpu_gspmd", sharded(model(), jax.devices()).lower(*step_arguments()))


def step_tpu(out, version):
    import jax
    from jax.experimental import topologies
    topology = topologies.get_topology_desc(f"{version}:2x2", platform="tpu")
    scope = model()
    devices = topology.devices
    import numpy
    from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
    one = NamedSharding(Mesh(numpy.array(devices[:1]), ("x",)), P())
    alone = jax.jit(scope["step"], in_shardings=one, out_shardings=one, donate_argnums=0)
    both(out, f"jax_tpu_{version}_step", alone.lower(*step_arguments()))
    both(out, f"jax_tpu_{version}_sharded", sharded(scope, devices).lower(*step_arguments()))


def step_tf(out):
    import tensorflow as tf

    @tf.function(jit_compile=True)
    def step(w, v, x, y):
        with tf.GradientTape() as tape:
            tape.watch([w, v])
            z = tf.tanh(x @ w) @ v
            value = tf.reduce_mean(tf.nn.softmax_cross_entropy_with_logits(y, z))
        dw, dv = tape.gradient(value, [w, v])
        return w - 0.1 * dw, v - 0.1 * dv, value

    arguments = [tf.zeros(dims) for dims in ((16, 32), (32, 8), (8, 16), (8, 8))]
    of = step.experimental_get_compiler_ir(*arguments)
    keep(out, "tf_cpu_step.before.txt", of(stage="hlo"))
    keep(out, "tf_cpu_step.before.pb", of(stage="hlo_serialized"))
    keep(out, "tf_cpu_step.after.txt", of(stage="optimized_hlo"))
    keep(out, "tf_cpu_step.after.pb", of(stage="optimized_hlo_proto_serialized"))
    step(*arguments)
    take_dump(out, "tf_cpu_dump", "inference_step")


def run(out, step, *arguments, flags="", dump=False, **environment):
    import tempfile
    with tempfile.TemporaryDirectory() as folder:
        if dump:
            flags += f" --xla_dump_to={folder} --xla_dump_hlo_as_text --xla_dump_hlo_as_proto"
        environment = dict(os.environ, XLA_FLAGS=flags, TF_CPP_MIN_LOG_LEVEL="3", DUMP=folder, **environment)
        subprocess.run([sys.executable, "-c", START, SCRIPT, "--step", out, step, *arguments], env=environment, check=True)


def main():
    if sys.argv[1] == "--step":
        out, step, *arguments = sys.argv[2:]
        globals()[f"step_{step}"](out, *arguments)
        return
    out, *which = sys.argv[1:]
    os.makedirs(out, exist_ok=True)
    which = which or ["jax", "tpu", "tf"]
    if "jax" in which:
        eight = "--xla_force_host_platform_device_count=8"
        run(out, "jax", JAX_PLATFORMS="cpu")
        run(out, "dump", dump=True, JAX_PLATFORMS="cpu")
        run(out, "shardy", flags=eight, JAX_PLATFORMS="cpu")
        run(out, "gspmd", flags=eight, JAX_PLATFORMS="cpu")
    if "tpu" in which:
        described = dict(TPU_SKIP_MDS_QUERY="1", ALLOW_MULTIPLE_LIBTPU_LOAD="1", TPU_ACCELERATOR_TYPE="v2-8")
        described.update(TPU_WORKER_HOSTNAMES="localhost", TPU_STDERR_LOG_LEVEL="3", TPU_MIN_LOG_LEVEL="3")
        for version in ("v2", "v3"):
            run(out, "tpu", version, JAX_PLATFORMS="cpu", **described)
    if "tf" in which:
        run(out, "tf", dump=True)


main()
