"""All uses of JAX beyond its documented interface, except for the rules of one primitive (`_linear`) and MLIR's Python bindings
(`_carried`, and through it `_symbolic`). `_jax_internals_jaxprs` has those that need no name of JAX's own modules.

A lowered function is a `jax.jit` whose name carries a mark, so JAX itself differentiates, maps, rematerialises, shards and
exports it, as any function under `jax.jit`. When XLA's program is made, a marked call becomes a separate module, is lowered by
bf16scope, and is merged back as a function. Operations that bf16scope does not model are set aside in the meantime (`Carried`), and
restored unchanged.

The tests ran with the versions in `TRIED`; others work as long as the names that are imported here exist.
"""

from __future__ import annotations

import functools
import logging
import os
import re
import sys
import threading
import time
import weakref
import zlib
from dataclasses import dataclass
from types import FrameType
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr

from bf16scope import _losses, _native, _places, _scale
from bf16scope._errors import Error
from bf16scope._jax_internals_jaxprs import FULL_PRECISION, check_platform, equations, goes_on_by_floats, is_manual, is_of_an_axis
from bf16scope._jax_internals_jaxprs import is_variable, named, struct_of, varying
# Importers of this module ask for these.
from bf16scope._jax_internals_jaxprs import PLATFORMS, donated_by_jit, donates, has_effects, is_of_each_device, is_shared
from bf16scope._jax_internals_jaxprs import has_compiler_options, statics_of_jit, type_of, vary_alike, without_compiler_options
from bf16scope._module import Module, Report
from bf16scope._words import visible

#: The oldest and the newest version of JAX that the tests ran with.
TRIED = ("0.4.36", "0.12.0.1")

try:
    from jax._src import core, pjit
    from jax._src.interpreters import ad, batching, mlir, partial_eval
    from jax._src.lib import xla_client
    from jax._src.lib.mlir import ir
    from jax._src.lib.mlir.dialects import func as func_dialect
    from jax.extend.core import jaxpr_as_fun

    from bf16scope._carried import Carried, cast, widen_products, unwrap
    from bf16scope._symbolic import SIZE, Symbolic

    _jit_p = getattr(pjit, "jit_p", None) or pjit.pjit_p
    _jit_lowering = pjit._pjit_lowering
    _jit_partial_eval = partial_eval.partial_eval_jaxpr_custom_rules[_jit_p]
    _jit_split = partial_eval.custom_partial_eval_rules[_jit_p]
    _merge = mlir.merge_mlir_modules
    _hoisted = partial_eval.convert_constvars_jaxpr
    _hlo_of = xla_client._xla.mlir.mlir_module_to_xla_computation
    register_lowering = mlir.register_lowering
    _variable = core.gensym()
except (ImportError, AttributeError, KeyError) as error:
    raise ImportError(
        f"bf16scope.jax does not know jax {jax.__version__}: {error}; it was tried with {TRIED[0]} to {TRIED[1]}"
    ) from error

try:
    from jax._src.shard_map import _shard_map_lowering, shard_map_p
except (ImportError, AttributeError):
    from jax.experimental.shard_map import _shard_map_lowering, shard_map_p

# Source lines in JAX's messages are the user's, not this package's.
try:
    from jax._src.source_info_util import register_exclusion

    register_exclusion(os.path.dirname(__file__))
except (ImportError, AttributeError):
    pass

log = logging.getLogger("bf16scope")
if os.environ.get("BF16SCOPE_LOG"):
    log.addHandler(logging.StreamHandler())
    log.setLevel(logging.INFO)


@dataclass(frozen=True)
class Options:
    """The options that a function is lowered with."""

    policy: str
    #: `bfloat16` or `float16`.
    dtype: str
    keep: tuple[str, ...]


# Marks: the name of a jitted function encodes its options. Every transformation of JAX preserves the name.

#: Options by the hash in a mark, which is the same in every process.
_options: dict[str, Options] = {}
_MARK = re.compile(r"\.bf16_([0-9a-f]{8})")


def _marked(name: str, options: Options) -> str:
    key = f"{zlib.crc32(repr(options).encode()):08x}"
    _options[key] = options
    return f"{name}.bf16_{key}"


def _options_in(name: str) -> Options | None:
    mark = _MARK.search(name)
    return _options.get(mark[1]) if mark else None


def trace(fun, options: Options, args) -> tuple[ClosedJaxpr, list[Any]]:
    """Traces a function of flat arguments as one marked call: a jaxpr without constants, and the values that it closes over,
    which are its first arguments."""

    @functools.wraps(fun, updated=())
    def call(*args):
        return fun(*args)

    call.__name__ = _marked(getattr(fun, "__name__", "function"), options)
    # With `disable_jit` JAX would compute operation by operation, and there would be no jaxpr.
    with jax.disable_jit(False):
        closed = jax.make_jaxpr(jax.jit(call))(*args)
    return ClosedJaxpr(_hoisted(closed.jaxpr), ()), list(closed.consts)


def call(jaxpr: ClosedJaxpr, *args) -> list[Any]:
    """The results of a traced function."""
    if any(isinstance(arg, jax.core.Tracer) for arg in args):
        return jax.core.eval_jaxpr(jaxpr.jaxpr, (), *args)
    # Compiled even under `jax.disable_jit`, since there is no other form to run. JAX's own search for the operation that made a NaN
    # would run this again, so it is off.
    with jax.disable_jit(False), jax.debug_nans(False):
        results = _compiled(jaxpr)(*args)
    if jax.config.jax_debug_nans and any(_has_nan(it) for it in results):
        with jax.disable_jit():
            inside(jaxpr, *args)  # JAX names the operation
        raise FloatingPointError(
            f"invalid value (nan) in {_user_function(jaxpr) or 'a lowered function'}, which gives none in f32: "
            "`bf16scope.jax.audit` of it says where"
        )
    return results


@functools.lru_cache(maxsize=256)
def _compiled(jaxpr: ClosedJaxpr):
    return jax.jit(functools.partial(jax.core.eval_jaxpr, jaxpr.jaxpr, ()))


def _has_nan(array) -> bool:
    return jax.dtypes.issubdtype(array.dtype, jax.numpy.inexact) and bool(jax.numpy.isnan(array).any())


def _marked_call(jaxpr: ClosedJaxpr):
    """The equation of a traced function that is the marked call; None if the function was trivial."""
    calls = (it for it in jaxpr.jaxpr.eqns if it.primitive is _jit_p and _options_in(it.params["name"]))
    return next(calls, None)


def _user_function(jaxpr: ClosedJaxpr) -> str | None:
    equation = _marked_call(jaxpr)
    return _function_of(equation.params["jaxpr"]) if equation else None


def inside(jaxpr: ClosedJaxpr, *args) -> list[Any]:
    """As `call`, but with the marked call replaced by its operations."""
    values = dict(zip(jaxpr.jaxpr.invars, args, strict=True))
    read = lambda atom: values[atom] if is_variable(atom) else atom.val
    for equation in jaxpr.jaxpr.eqns:
        inputs, params = [read(atom) for atom in equation.invars], equation.params
        if equation.primitive is _jit_p and _options_in(params["name"]):
            results = jax.core.eval_jaxpr(params["jaxpr"].jaxpr, params["jaxpr"].consts, *inputs)
        else:
            results = equation.primitive.bind(*inputs, **params)
            results = results if equation.primitive.multiple_results else [results]
        values.update(zip(equation.outvars, results, strict=True))
    return [read(atom) for atom in jaxpr.jaxpr.outvars]


def is_tracing() -> bool:
    """Whether JAX is tracing or transforming a function here."""
    return not core.trace_state_clean()


def is_given_copies(function: str) -> bool:
    """Whether JAX traces the innermost running function of this name into a program: its dicts and lists are then JAX's copies."""
    frame: FrameType | None = sys._getframe()
    while frame and frame.f_code.co_name != function:
        frame = frame.f_back
    caller = frame and frame.f_back
    # equinox hands its functions to JAX.
    is_jax = caller is not None and caller.f_globals.get("__name__", "").split(".")[0] in ("jax", "equinox")
    return is_jax and isinstance(core.trace_ctx.trace, partial_eval.DynamicJaxprTrace)


def unread_results(jaxpr: ClosedJaxpr, n: int) -> set[int]:
    """The numbers of computed results after the first n from which neither these nor effects are computed."""
    equation = _marked_call(jaxpr)
    if equation is None:
        return set()
    within = equation.params["jaxpr"].jaxpr
    by_outvar = dict(zip(equation.outvars, within.outvars))
    results = [by_outvar.get(atom) if is_variable(atom) else None for atom in jaxpr.jaxpr.outvars]
    read = {var for var in results[:n] if var is not None and is_variable(var)}
    computed: set[Any] = set()
    for it in reversed(within.eqns):
        computed.update(it.outvars)
        if it.effects or not read.isdisjoint(it.outvars):
            read.update(filter(is_variable, it.invars))
    is_unread = lambda var: var is not None and is_variable(var) and var in computed and var not in read
    return {number for number, var in enumerate(results) if number >= n and is_unread(var)}


def sources(jaxpr: ClosedJaxpr) -> list[int | None]:
    """For each result the number of the argument that it equals, if any."""
    numbers = {var: number for number, var in enumerate(jaxpr.jaxpr.invars)}
    if equation := _marked_call(jaxpr):
        within = equation.params["jaxpr"].jaxpr
        places = dict(zip(within.invars, equation.invars))
        for var, outvar in zip(equation.outvars, within.outvars):
            atom = places.get(outvar) if is_variable(outvar) else None
            if atom is not None and is_variable(atom) and atom in numbers:
                numbers[var] = numbers[atom]
    return [numbers.get(atom) if is_variable(atom) else None for atom in jaxpr.jaxpr.outvars]


def without_constants(jaxpr: ClosedJaxpr) -> ClosedJaxpr:
    """The same function with its constants as the first arguments."""
    return ClosedJaxpr(_hoisted(jaxpr.jaxpr), ())


def name_of(jaxpr: ClosedJaxpr) -> str | None:
    """The name of a traced function; None if it was trivial."""
    equation = _marked_call(jaxpr)
    return _MARK.sub("", equation.params["name"]) if equation else None


def named_as(jaxpr: ClosedJaxpr):
    """A decorator that gives a function the name of a traced one."""
    return named(name_of(jaxpr))


#: Tracers of values that are differentiated.
_DIFFERENTIATED = tuple(getattr(ad, name) for name in ("JVPTracer", "LinearizeTracer") if hasattr(ad, name))


def is_differentiated(value) -> bool:
    """Whether a surrounding transformation differentiates, maps or splits a value, rather than only tracing it to a program."""
    return isinstance(value, jax.core.Tracer) and not isinstance(value, partial_eval.DynamicJaxprTracer)


def differentiated(arrays) -> tuple[int, ...]:
    """The numbers of the floats that the program being traced differentiates once, here. It is empty if no program is being traced
    or another transformation is active, since JAX caches that transformation of a traced function across calls. It is also empty
    if values vary along an axis of a `shard_map`."""
    trace = core.trace_ctx.trace
    numbers = []
    for number, it in enumerate(arrays):
        if not isinstance(it, jax.core.Tracer):
            continue
        if varying(it.aval):
            return ()
        if isinstance(it, partial_eval.DynamicJaxprTracer):
            continue
        if not isinstance(it, _DIFFERENTIATED) or it._trace is not trace or not isinstance(it.primal, partial_eval.DynamicJaxprTracer):
            return ()
        if type(it.tangent) is ad.Zero:
            continue
        if not jax.dtypes.issubdtype(it.aval.dtype, jax.numpy.floating):
            return ()
        numbers.append(number)
    return tuple(numbers)


# Programs: lowering of marked calls.


@dataclass
class _Region:
    """A module that is being built, and is lowered when it is complete."""

    module: Any
    #: The program that lowered functions are merged into.
    root: Any
    options: Options
    #: The axis context: that of the whole program, or of a `shard_map`.
    axes: Any


class _Local(threading.local):
    def __init__(self):
        self.regions: list[_Region] = []
        #: Collects lowered modules and their reports, if it is a list.
        self.sink: list[tuple[Module, Report]] | None = None


_local = _Local()


def _emit(context, *args, **params):
    """The lowering rule of `jax.jit`: ours for a marked call, else JAX's."""
    options, within = _options_in(params["name"]), context.module_context
    if options is None:
        return _jit_lowering(context, *args, **params)
    around = next((it for it in _local.regions if it.module is within.module), None)
    if around and (around.options, around.axes) == (options, within.axis_context):
        return _jit_lowering(context, *args, **params)
    if any("platform_index" not in name for name in within.shape_poly_state.dim_vars):
        return _emit_symbolic(context, options, *args, **params)
    # An export for several platforms has a branch for each.
    platforms = context.platforms or within.platforms
    if hasattr(jax.interpreters.pxla, "xla_pmap_p") and any(
        it.primitive.name == "xla_pmap" for it in equations(params["jaxpr"].jaxpr)
    ):
        raise Error(
            "a lowered function has a `jax.pmap`, which is a program of replicas in this version of JAX",
            "use `jax.shard_map` instead of `jax.pmap`",
        )
    rules = {platform: functools.partial(_emit_for, platform, options, around) for platform in platforms}
    if len(rules) == 1:
        return rules[platforms[0]](context, *args, **params)
    context = context.replace(avals_out=list(context.avals_out))
    return mlir.lower_per_platform(context, "bf16scope", rules, None, params["jaxpr"].effects, *args, **params)


def _emit_for(platform: str, options: Options, around: _Region | None, context, *args, **params):
    within = context.module_context
    check_platform(platform, options.dtype)
    root = around.root if around else within
    tokens = [context.tokens_in.get(effect) for effect in context.tokens_in.effects()]
    values = [*tokens, *_flat(args)]
    key = (_emit, platform, params["name"], params["jaxpr"], tuple(str(value.type) for value in values), str(within.axis_context))
    if key not in root.cached_primitive_lowerings:
        function = _function(context, root, options, platform, [value.type for value in values], params)
        root.cached_primitive_lowerings[key] = function
    name, types, wanted = root.cached_primitive_lowerings[key]
    # A policy may make parameters and results narrow; they are cast, so that the function keeps its dtypes.
    inputs = [cast(value, to) for value, to in zip(values, types.inputs, strict=True)]
    call = func_dialect.CallOp(types.results, ir.FlatSymbolRefAttr.get(name), inputs)
    results = [cast(result, to) for result, to in zip(call.results, wanted, strict=True)]
    if tokens:
        context.set_tokens_out(context.tokens_in.update_tokens(mlir.TokenSet(dict(zip(context.tokens_in.effects(), results)))))
    return results[len(tokens) :]


def _emit_symbolic(context, options: Options, *args, **params):
    """JAX's rule, with those products narrow that are narrow for a sample size of each symbolic dimension."""
    within = context.module_context
    # Older versions cannot refine a program with uncalled functions, such as the originals of the narrowed copies.
    is_old = jax.__version_info__ < (0, 5)
    if is_old or context.tokens_in.effects():
        reason = f"which are lowered with jax 0.5 or later, and not with {jax.__version__}" if is_old else "and ordered effects: there is no rule for both"
        raise Error(
            f"a lowered function has symbolic dims, {reason}",
            "lower the function with the sizes that it runs with",
        )
    _local.regions.append(_Region(within.module, within, options, within.axis_context))
    try:
        results = _jit_lowering(context, *args, **params)
    finally:
        _local.regions.pop()
    owners = {it.owner.name: it.owner for it in _flat(results)}
    call = owners.get("func.call")
    if call is None:
        return results
    for platform in context.platforms or within.platforms:
        check_platform(platform, options.dtype)
    symbolic = Symbolic(within.module, within.symbol_table, getattr(call, "operation", call))
    names = within.shape_poly_state.dim_vars
    sizes = {name: SIZE for name in names}
    size_of = lambda dim: dim if isinstance(dim, int) else int(dim._evaluate(sizes))
    shapes = [tuple(map(size_of, aval.shape)) for aval in context.avals_in]
    sample = symbolic.sample([0 if "platform_index" in name else SIZE for name in names], shapes)
    try:
        sample = mlir.refine_polymorphic_shapes(sample)
    except Exception as error:
        raise Error(
            f"a lowered function has symbolic dims, and JAX has no program of it where each is {SIZE}: {error}",
            "lower the function with the sizes that it runs with",
        ) from error
    scratch = _Scratch(ir.Module.create(loc=ir.Location.unknown(within.context)))
    began = time.perf_counter()
    Carried(sample, scratch)
    low, report = _lowered(_converted(sample), options, params, began)
    if _local.sink is not None:
        _local.sink.append((low, report))
    narrow = ir.BF16Type if options.dtype == "bfloat16" else ir.F16Type
    symbolic.narrow(low.text(), narrow.get)
    return results


class _Scratch:
    """A program that carried functions are copied to, and that is discarded."""

    def __init__(self, module):
        self.module, self.context, self.symbol_table = module, module.context, ir.SymbolTable(module.operation)


def _flat(values) -> list[Any]:
    """Values of a program as a flat list; some versions of JAX have several values for one array."""
    return [it for value in values for it in (value if isinstance(value, (list, tuple)) else (value,))]


#: Lowered forms of jaxprs without carried operations, so that each is lowered once for all programs that contain it.
_texts: weakref.WeakKeyDictionary[Any, dict] = weakref.WeakKeyDictionary()


def _function(context, root, options: Options, platform: str, types: list[Any], params) -> tuple[str, Any, list[Any]]:
    """A lowered function in the program: its name, its type, and the original types of its results."""
    closed = params["jaxpr"]
    by_kind = _texts.setdefault(closed.jaxpr, {})
    kind = (options, platform, tuple(map(str, types)), str(context.module_context.axis_context))
    carried = None
    if kind not in by_kind or closed.consts:
        began = time.perf_counter()
        module, wanted = _module(context, root, options, platform, types, params)
        carried = Carried(module, root)
        is_whole = not carried.operations and not carried.groups
        program = is_whole and _read(module) or _converted(module)
        low, report = _lowered(program, options, params, began)
        entry = low, report, low.stablehlo(), [str(it) for it in wanted]
        if is_whole:
            by_kind[kind] = entry
    else:
        entry = by_kind[kind]
    low, report, text, wanted = entry
    if _local.sink is not None:
        _local.sink.append((low, report))
    lowered = ir.Module.parse(text, context=root.context)
    if carried:
        carried.restore(lowered)
    if platform == "cpu":
        widen_products(lowered)
    function = ir.SymbolTable(lowered.operation)["main"].type
    name = _merge(root.module, f"bf16scope_{low.name}", lowered, dst_symtab=root.symbol_table)
    return name, function, [ir.Type.parse(it, root.context) for it in wanted]


def _module(context, root, options: Options, platform: str, types: list[Any], params) -> tuple[Any, list[Any]]:
    """A module whose function `main` is the called function, and the types of its results."""
    within = context.module_context
    module = ir.Module.create(loc=ir.Location.unknown(root.context))
    name = _MARK.sub("", params["name"])
    module.operation.attributes["sym_name"] = ir.StringAttr.get(re.sub(r"\W", "_", name), root.context)
    with ir.InsertionPoint(module.body), ir.Location.unknown(root.context):
        main = func_dialect.FuncOp("main", (types, []))
    block = main.add_entry_block()
    # JAX's caches refer to functions of the surrounding program, so they start empty.
    caches = {name: {} for name in ("cached_primitive_lowerings", "lowering_cache") if hasattr(within, name)}
    inner = within.replace(
        platforms=(platform,),
        shape_poly_state=mlir.ShapePolyLoweringState((), (platform,)),
        module=module, ip=ir.InsertionPoint(module.body), symbol_table=ir.SymbolTable(module.operation), **caches
    )
    effects = list(context.tokens_in.effects())
    tokens = mlir.TokenSet(dict(zip(effects, block.arguments)))
    _local.regions.append(_Region(module, root, options, within.axis_context))
    try:
        with ir.InsertionPoint(block):
            call_context = context.replace(module_context=inner, tokens_in=tokens, platforms=None, dim_var_values=())
            results = _flat(_jit_lowering(call_context, *list(block.arguments)[len(effects) :], **params))
            if effects:
                results = [*(call_context.tokens_out.get(effect) for effect in effects), *results]
            func_dialect.ReturnOp(results)
    finally:
        _local.regions.pop()
    wanted = [result.type for result in results]
    main.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get(types, wanted))
    with root.context, ir.Location.unknown():
        unwrap(main, inner.symbol_table)
    return module, wanted


@dataclass(frozen=True)
class _InHlo:
    """A program in HLO, with its source, which can be searched for a word in operations or their names."""

    module: Module
    source: str | bytes

    def holds(self, word: str) -> bool:
        return (word if isinstance(self.source, str) else word.encode()) in self.source


#: Elements of the largest constants that are printed as text.
_MOST_ELEMENTS = 1 << 12


def _read(module) -> _InHlo | None:
    """Reads a module from its text, in a third of the time of XLA's converter; None if some of it is not supported."""
    text = module.operation.get_asm(enable_debug_info=True, large_elements_limit=_MOST_ELEMENTS)
    native = _native.Module.from_stablehlo(text)
    return native and _InHlo(Module(native), text)


def _converted(module) -> _InHlo:
    """Reads a module with XLA's converter."""
    program = _hlo_of(mlir.module_to_bytecode(module), use_tuple_args=False).as_serialized_hlo_module_proto()
    return _InHlo(Module.read(program), program)


def _lowered(program: _InHlo, options: Options, params, began: float) -> tuple[Module, Report]:
    """The module lowered, and the report."""
    converted, module = time.perf_counter(), program.module
    keep = [*options.keep, *([f"*/{FULL_PRECISION}/*"] if program.holds(FULL_PRECISION) else [])]
    low, report = module.lower(options.policy, options.dtype, keep, losses=_losses.numbers(params["jaxpr"].jaxpr))
    name = _function_of(params["jaxpr"]) or module.name
    seconds = converted - began, time.perf_counter() - converted
    log.info("%s: JAX made a module of %d instructions in %.3f s; lowered in %.3f s, %r", name, module.n_instructions, *seconds, report)
    # A program that checks whether gradients are finite scales its loss.
    is_scaled = program.holds("is_finite") or program.holds("is-finite") or _scale.n_scaled > 0
    notes = [note for note in report.notes if not (is_scaled and note.startswith(("f16 ends at", "this program differentiates")))]
    # Most programs have no loop, and need no walk through their equations.
    if report.n_lowered and program.holds("while") and goes_on_by_floats(params["jaxpr"].jaxpr):
        notes.append(
            "a `while_loop` with products goes on by a comparison of floats: rounded to a narrow dtype they may never come as near as "
            "it asks, so bound its steps, or leave the loop in f32 (`with bf16scope.jax.full_precision():`)"
        )
    # A function that is only inspected is lowered again before it runs, perhaps with a scaled loss by then.
    for note in notes if _local.sink is None else ():
        _places.warn(visible(f"{name}: {note.replace(f' in {module.name}', '')}"))
    return low, report


def _function_of(jaxpr: ClosedJaxpr) -> str | None:
    """The user's function and its source position, as in JAX's messages."""
    place = getattr(getattr(jaxpr.jaxpr, "debug_info", None), "func_src_info", None)
    if not place:
        return None
    place = _MARK.sub("", place)
    return "the gradient of a lowered function" if os.path.dirname(__file__) in place else place


def _emit_shard_map(context, *args, jaxpr, **params):
    """JAX's rule, with the computation of each device lowered separately; the `shard_map` itself is carried."""
    if any(it.module is context.module_context.module for it in _local.regions):
        options = next(it.options for it in _local.regions if it.module is context.module_context.module)
        jaxpr = _as_one_call(jaxpr, options)
    return _shard_map_lowering(context, *args, jaxpr=jaxpr, **params)


def _as_one_call(jaxpr, options: Options):
    """A jaxpr with a single equation, which is a marked call of the whole jaxpr."""
    template = jax.make_jaxpr(jax.jit(lambda x: x + 1))(1.0).eqns[0].params
    counts = {"in": len(jaxpr.invars), "out": len(jaxpr.outvars), "donated": len(jaxpr.invars)}
    params = {
        name: value * counts[name.split("_")[0]] if isinstance(value, tuple) and name.split("_")[0] in counts else value
        for name, value in template.items()
    }
    params |= {"jaxpr": ClosedJaxpr(jaxpr, ()), "name": _marked("shard_map", options)}
    outvars = [_variable(var.aval) for var in jaxpr.outvars]
    equation = core.new_jaxpr_eqn(list(jaxpr.invars), outvars, _jit_p, params, jaxpr.effects)
    return jaxpr.replace(eqns=[equation], outvars=outvars)


def _partial_eval(saveable, unknown, instantiated, equation):
    """JAX's rule for the residuals that `jax.checkpoint` saves by its policy. Residuals that are narrow in a marked call are saved
    narrow."""
    known, staged, *others, variables = _jit_partial_eval(saveable, unknown, instantiated, equation)
    options = _options_in(equation.params["name"])
    if options is None or known is None or staged is None:
        return known, staged, *others, variables
    residuals = [var for var in known.outvars if var in staged.invars and var not in equation.outvars and var.aval.dtype == "float32"]
    if not residuals:
        return known, staged, *others, variables
    alone = jax.make_jaxpr(functools.partial(_jit_p.bind, **known.params))(*(struct_of(atom.aval) for atom in known.invars))
    is_narrow = dict(zip(known.outvars, narrow_results(alone, options), strict=True))
    low = jax.numpy.dtype(options.dtype)
    names = {var: _variable(var.aval.update(dtype=low)) for var in residuals if is_narrow.get(var)}
    if not names:
        return known, staged, *others, variables
    rounded = lambda values, vars, dtype: [it.astype(dtype) if var in names else it for it, var in zip(values, vars, strict=True)]
    first = lambda *args: rounded(jaxpr_as_fun(known.params["jaxpr"])(*args), known.outvars, low)
    second = lambda *args: jaxpr_as_fun(staged.params["jaxpr"])(*rounded(args, staged.invars, "float32"))
    renamed = lambda vars: [names.get(var, var) for var in vars]
    with_jaxpr = lambda it, fun, vars: it.params | {"jaxpr": jax.make_jaxpr(fun)(*(struct_of(var.aval) for var in vars))}
    known_params = with_jaxpr(known, first, known.invars)
    known = known.replace(outvars=renamed(known.outvars), params=known_params)
    staged = staged.replace(invars=renamed(staged.invars), params=with_jaxpr(staged, second, renamed(staged.invars)))
    return known, staged, *others, renamed(variables)


def _split(trace, *tracers, **params):
    """JAX's rule for a call with some known arguments. JAX would trace the call again even if all arguments are known."""
    if _options_in(params["name"]) and all(it.pval.is_known() for it in tracers):
        return _jit_p.bind(*(it.pval.get_known() for it in tracers), **params)
    return _jit_split(trace, *tracers, **params)


partial_eval.partial_eval_jaxpr_custom_rules[_jit_p] = _partial_eval
partial_eval.custom_partial_eval_rules[_jit_p] = _split
register_lowering(_jit_p, _emit)
register_lowering(shard_map_p, _emit_shard_map)


def narrow_results(jaxpr: ClosedJaxpr, options: Options) -> list[bool]:
    """For each result of a traced function, whether it could be narrow when the function is lowered."""
    equation = _marked_call(jaxpr)
    if equation is None or is_of_an_axis(jaxpr) or is_manual(jaxpr):
        return [False] * len(jaxpr.out_avals)
    before, _local.sink = _local.sink, []
    try:
        avals = [struct_of(aval) for aval in jaxpr.in_avals]
        jax.jit(functools.partial(jax.core.eval_jaxpr, jaxpr.jaxpr, ()), keep_unused=True).trace(*avals).lower(lowering_platforms=(jax.default_backend(),))
        # The last module is the outermost one.
        low, _ = _local.sink[-1]
    finally:
        _local.sink = before
    could_be = dict(zip(equation.outvars, low._native.narrow_results(), strict=True))
    return [is_variable(atom) and could_be.get(atom, False) for atom in jaxpr.jaxpr.outvars]


def lowered_parts(fun, args: tuple, kwargs: dict, platforms: tuple[str, ...] | None = None) -> list[tuple[Module, Report]]:
    """The modules that are lowered for a program of a function, with their reports, inner ones first. `platforms` are those of
    the program; default the one on which JAX runs."""
    parts: list[tuple[Module, Report]] = []
    before, _local.sink = _local.sink, parts
    try:
        jax.jit(fun, keep_unused=True).trace(*args, **kwargs).lower(lowering_platforms=platforms)
    finally:
        _local.sink = before
    return parts


def holds_shard_map(fun, args: tuple, kwargs: dict) -> bool:
    """Whether a function has a `shard_map`."""
    return any(it.primitive is shard_map_p for it in equations(jax.make_jaxpr(fun)(*args, **kwargs).jaxpr))

