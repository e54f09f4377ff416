"""A function as HLO text: of this corpus and of the reports."""

import gzip


def text_of(lowered):
    """A module's HLO without its metadata, which no decision reads."""
    from jaxlib import _hlo

    options = _hlo.HloPrintOptions.short_parsable()
    options.print_metadata = False
    return lowered.compiler_ir("hlo").get_hlo_module().to_string(options)


def save(folder, name, f, arguments, donated=()):
    """Exports a function for a TPU."""
    import jax

    traced = jax.jit(f, donate_argnums=donated, keep_unused=True).trace(*arguments)
    text = text_of(traced.lower(lowering_platforms=("tpu",))).encode()
    path = folder / f"{name}.hlo.txt.gz"
    # The same bytes at every run: no time, no name.
    path.write_bytes(gzip.compress(text, 9, mtime=0))
    print(f"{name}: {len(text)} bytes, {path.stat().st_size} compressed", flush=True)
