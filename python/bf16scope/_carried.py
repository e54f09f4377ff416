"""Carries operations that bf16scope does not model through lowering: each is set aside while a StableHLO module is lowered, and
restored unchanged.

The code uses MLIR's Python bindings, which come with JAX. A Python object of an operation inside an erased one would be taken for
another operation, so operations are erased one by one, inner ones first.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from jax._src.lib.mlir import ir
from jax._src.lib.mlir.dialects import func as func_dialect
from jax._src.lib.mlir.dialects import hlo


def cast(value, to):
    return value if value.type == to else hlo.convert(to, value)


def unwrap(main, symbols) -> None:
    """Replaces a `main` that only calls another function by that function."""
    operations = list(main.entry_block.operations)
    if len(operations) != 2 or operations[0].operation.name != "func.call":
        return
    call, end = operations
    if list(call.operands) != list(main.entry_block.arguments) or list(end.operands) != list(call.results):
        return
    function = symbols[call.attributes["callee"].value]
    # One by one: see the module's docstring.
    for operation in (end, call):
        operation.operation.erase()
    main.operation.erase()
    symbols.set_symbol_name(function, "main")
    function.attributes["sym_visibility"] = ir.StringAttr.get("public")


#: The frontend attribute of a custom call that stands for a carried operation: the operation's number.
_PLACE = "bf16scope.operation"
#: The frontend attribute of a collective whose groups are set aside: their number.
_GROUPS = "bf16scope.groups"
_FRONTEND = "mhlo.frontend_attributes"
_CALL = "stablehlo.custom_call"
#: Dialects whose operations XLA converts to HLO.
_CONVERTED = ("stablehlo", "chlo", "mhlo", "func", "builtin")
#: Operations of these dialects that are carried nevertheless.
_CARRIED = ("stablehlo.composite", "chlo.ragged_dot")
#: An operation that only shards its operand, so that it may take the operand in another dtype.
_CONSTRAINT = "sdy.sharding_constraint"


@dataclass
class Carried:
    """Operations of a module that bf16scope does not model. Each is moved to a separate function, whose parameters are its
    operands; a custom call takes its place in the module."""

    module: Any
    root: Any
    operations: list[Any] = field(default_factory=list)
    #: Groups of collectives that are not lists of device numbers.
    groups: list[Any] = field(default_factory=list)

    def __post_init__(self):
        self.waiting = ir.Module.create(loc=ir.Location.unknown(self.root.context))
        symbols = ir.SymbolTable(self.module.operation)
        for function in self.module.body.operations:
            products, foreign, collectives = _sorted(function.operation, symbols)
            for product in products:
                _widen(product)
            for operation in foreign:
                self._take(operation, symbols)
            for operation in collectives:
                if not str(operation.attributes["replica_groups"]).startswith("dense"):
                    self._number(operation)

    def _take(self, operation, symbols) -> None:
        operands, types = list(operation.operands), _result_types(operation)
        target = "Sharding" if operation.name == _CONSTRAINT else f"bf16scope.{operation.name}"
        # JAX writes an empty list for its own calls.
        called = operation.attributes["called_computations"] if "called_computations" in operation.attributes else []
        if operation.name == _CALL and len(called) == 0:
            # bf16scope knows some call targets by name.
            target = operation.attributes["call_target_name"].value
        if not types:
            # HLO has no operation without a result.
            with self.root.context:
                types = [ir.RankedTensorType.get([], ir.IntegerType.get_signless(1))]
        effect = "has_side_effect" in operation.attributes and operation.attributes["has_side_effect"].value
        with self.root.context, ir.Location.unknown(), ir.InsertionPoint(operation):
            number = ir.StringAttr.get(str(len(self.operations)))
            attributes = {
                "call_target_name": ir.StringAttr.get(target),
                "has_side_effect": ir.BoolAttr.get(effect or _has_effects(operation)),
                "api_version": ir.IntegerAttr.get(ir.IntegerType.get_signless(32), 2),
                _FRONTEND: ir.DictAttr.get({_PLACE: number}),
            }
            place = ir.Operation.create(_CALL, results=types, operands=operands, attributes=attributes, loc=operation.location)
        for use in [use for result in operation.results for use in result.uses if str(result.type).startswith("tuple<")]:
            element = use.owner.operation
            element.results[0].replace_all_uses_with(place.results[element.attributes["index"].value])
            element.erase()
        for old, new in zip(operation.results, place.results):
            if not str(old.type).startswith("tuple<"):
                old.replace_all_uses_with(new)
        with self.root.context, ir.Location.unknown(), ir.InsertionPoint(self.waiting.body):
            function = func_dialect.FuncOp(f"f{len(self.operations)}", ([it.type for it in operands], []))
        block = function.add_entry_block()
        with self.root.context, ir.Location.unknown(), ir.InsertionPoint(block):
            end = func_dialect.ReturnOp([])
        operation.move_before(end.operation)
        for number, argument in enumerate(block.arguments):
            operation.operands[number] = argument
        self._bring(function, symbols)
        self.operations.append(operation)

    def _number(self, operation) -> None:
        """Replaces a collective's groups by mesh axes with groups of device numbers of the same size."""
        dims = lambda value: ir.RankedTensorType(value.type).shape
        sizes = [(a, b) for a, b in zip(dims(operation.operands[0]), dims(operation.results[0])) if a != b]
        size = max(sizes[0]) // min(sizes[0]) if sizes else 2
        if "split_count" in operation.attributes:
            size = operation.attributes["split_count"].value
        with self.root.context:
            number = ir.StringAttr.get(str(len(self.groups)))
            self.groups.append(operation.attributes["replica_groups"])
            text = f"dense<[{list(range(size))}]> : tensor<1x{size}xi64>"
            operation.attributes["replica_groups"] = ir.Attribute.parse(text)
            operation.attributes[_FRONTEND] = ir.DictAttr.get({_GROUPS: number})

    def _bring(self, function, symbols) -> None:
        """Copies the functions that an operation refers to into the program, under unused names."""
        for name in sorted(_symbols(function.operation)):
            if name not in symbols or name == "main":
                continue
            copy = symbols[name].operation.clone(ip=ir.InsertionPoint(self.root.module.body))
            fresh = f"bf16scope_{name}"
            while fresh in self.root.symbol_table:
                fresh += "_"
            copy.attributes["sym_name"] = ir.StringAttr.get(fresh, self.root.context)
            copy.attributes["sym_visibility"] = ir.StringAttr.get("private", self.root.context)
            self.root.symbol_table.insert(copy.opview if hasattr(copy, "opview") else copy)
            ir.SymbolTable.replace_all_symbol_uses(name, fresh, function.operation)
            self._bring(copy.opview, symbols)

    def restore(self, module) -> None:
        """Puts each carried operation back in the place of its custom call."""
        if self.groups:
            for operation in [it for function in module.body.operations for it in _named(function.operation, *_IN_GROUPS)]:
                if number := _frontend(operation, _GROUPS):
                    operation.attributes["replica_groups"] = self.groups[int(number)]
                    del operation.attributes[_FRONTEND]
        if not self.operations:
            return
        for function in module.body.operations:
            for place in [it for it in _named(function.operation, _CALL) if _frontend(it, _PLACE)]:
                operation = self.operations[int(_frontend(place, _PLACE))]
                operands, types = list(place.operands), [result.type for result in place.results]
                at, wanted = ir.InsertionPoint(place), _result_types(operation)
                if [it.type for it in operands] == [it.type for it in operation.operands] and wanted in (types, []):
                    new = operation.clone(ip=at)
                    for number, value in enumerate(operands):
                        new.operands[number] = value
                else:
                    with at:
                        new = ir.Operation.create(
                            operation.name, types, operands, _attributes(operation), loc=operation.location
                        )
                results = list(new.results)
                if results and str(results[0].type).startswith("tuple<"):
                    with at, operation.location:
                        results = [hlo.get_tuple_element(results[0], number) for number in range(len(wanted))]
                for old, result in zip(place.results, results):
                    old.replace_all_uses_with(result)
                place.erase()


def _result_types(operation) -> list[Any]:
    """The types of an operation's results; for a single tuple the types of its elements."""
    types = [result.type for result in operation.results]
    if len(types) == 1 and str(types[0]).startswith("tuple<"):
        whole = ir.TupleType(types[0])
        return [whole.get_type(number) for number in range(whole.num_types)]
    return types


def _attributes(operation) -> dict[str, Any]:
    # Iteration yields names in newer versions.
    names = [it if isinstance(it, str) else it.name for it in operation.attributes]
    return {name: operation.attributes[name] for name in names}


def _walk(operation):
    for region in operation.regions:
        for block in region.blocks:
            for inner in block.operations:
                yield inner.operation


#: Operations that may have a narrower result than their operands, which HLO does not express.
_PRODUCTS = ("stablehlo.dot_general", "stablehlo.convolution")


def _widen(product) -> None:
    """Replaces a product with a narrower result by a product as wide as its operands and a conversion."""
    element = lambda value: ir.RankedTensorType(value.type).element_type
    result, wide = product.results[0], element(product.operands[0])
    width = {"f64": 8, "f32": 4, "bf16": 2, "f16": 2}
    if width.get(str(element(result)), 9) >= width.get(str(wide), 0):
        return
    with ir.InsertionPoint(product), product.location:
        types = [ir.RankedTensorType.get(ir.RankedTensorType(result.type).shape, wide)]
        whole = ir.Operation.create(product.name, types, list(product.operands), _attributes(product))
        narrow = hlo.convert(result.type, whole.results[0])
    result.replace_all_uses_with(narrow)
    product.erase()


def widen_products(module) -> None:
    """Widens the narrow operands of dots with an f32 result, which changes no value: a product of two narrow floats is exact in
    f32. XLA's CPU backend does the same, but it decides before layout assignment which dots a library computes, and for some
    layouts the library then has no kernel: "Unsupported element type for DotThunk::Execute"."""
    for function in module.body.operations:
        for product in _named(function.operation, "stablehlo.dot_general"):
            wide = ir.RankedTensorType(product.results[0].type).element_type
            with ir.InsertionPoint(product), product.location:
                for side in (0, 1):
                    value = product.operands[side]
                    product.operands[side] = cast(value, ir.RankedTensorType.get(ir.RankedTensorType(value.type).shape, wide))


def _all(operation) -> list[Any]:
    """All operations nested in an operation."""
    operations = []

    def visit(inner):
        operations.append(inner)
        return ir.WalkResult.ADVANCE

    operation.walk(visit, ir.WalkOrder.PRE_ORDER)
    return operations[1:]


def _named(operation, *names: str) -> list[Any]:
    """All operations with these names nested in an operation."""
    operations = []

    def visit(inner):
        if inner.name in names:
            operations.append(inner)
        return ir.WalkResult.ADVANCE

    operation.walk(visit, ir.WalkOrder.PRE_ORDER)
    return operations


def _sorted(operation, symbols) -> tuple[list[Any], list[Any], list[Any]]:
    """Operations nested in an operation, in one pass: products, operations that bf16scope does not model, and collectives with
    groups. Operations nested in one that is not modelled stay inside of it."""
    products, foreign, collectives = [], [], []
    go_on, skip = ir.WalkResult.ADVANCE, ir.WalkResult.SKIP

    def visit(inner):
        name = inner.name
        is_plain = _is_plain.get(name)
        if is_plain is None:
            is_plain = _is_plain[name] = _plain(name)
        if is_plain:
            return go_on
        if name in _PRODUCTS:
            products.append(inner)
            return go_on
        if name == _CALL:
            is_carried = not inner.attributes["call_target_name"].value.startswith(("mhlo.", "stablehlo."))
        elif name == "func.call":
            is_carried = inner.attributes["callee"].value not in symbols
        elif name in _IN_GROUPS:
            is_carried = False
        else:
            is_carried = True
        if is_carried:
            foreign.append(inner)
            return skip
        if "replica_groups" in inner.attributes:
            collectives.append(inner)
        return go_on

    operation.walk(visit, ir.WalkOrder.PRE_ORDER)
    return products, foreign, collectives


#: Collectives with groups of devices.
_IN_GROUPS = tuple(
    f"stablehlo.{it}" for it in ("all_gather", "all_reduce", "all_to_all", "collective_broadcast", "reduce_scatter")
)

#: A cache of `_plain` by name.
_is_plain: dict[str, bool] = {}


def _plain(name: str) -> bool:
    """Whether every operation of this name is modelled and needs no treatment."""
    is_asked = name in (*_PRODUCTS, *_IN_GROUPS, _CALL, "func.call")
    return not is_asked and name.split(".")[0] in _CONVERTED and name not in _CARRIED


def _frontend(operation, name: str) -> str:
    """The value of an operation's frontend attribute; empty if it has no such attribute."""
    if _FRONTEND not in operation.attributes:
        return ""
    all_of_them = ir.DictAttr(operation.attributes[_FRONTEND])
    return all_of_them[name].value if name in all_of_them else ""


_SYMBOL = re.compile(r'@([\w.$-]+|"(?:[^"\\]|\\.)*")')


def _symbols(operation) -> set[str]:
    """Names of functions that an operation, or one nested in it, refers to."""
    names = set()
    for inner in _walk(operation):
        for attribute in _attributes(inner).values():
            names |= {name.strip('"') for name in _SYMBOL.findall(str(attribute))}
        names |= _symbols(inner)
    return names


def _has_effects(operation) -> bool:
    """Whether an operation nested in it has side effects."""
    return any(
        ("has_side_effect" in inner.attributes and inner.attributes["has_side_effect"].value) or _has_effects(inner)
        for inner in _walk(operation)
    )
