"""What has to be set before JAX is imported by any file."""

import os

FLAGS = ["--xla_force_host_platform_device_count=8"]
# Most of the time is XLA compiling: it leaves out LLVM's optimizations, as in `cargo test` (docs/TESTING.md).
if "BF16SCOPE_TEST_OPTIMIZED" not in os.environ:
    FLAGS.append("--xla_backend_optimization_level=0")
os.environ.setdefault("XLA_FLAGS", " ".join(FLAGS))
