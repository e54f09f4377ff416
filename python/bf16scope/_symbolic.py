"""Lowering of functions with symbolic dimensions, as in `jax.export`: the narrow products are chosen for one size of each
dimension, and narrowed in the program for all sizes. The operations between them keep their dtypes.

The code uses MLIR's Python bindings, which it has from `_carried`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from bf16scope._carried import _all, _attributes, cast, func_dialect, hlo, ir

#: The size of each symbolic dimension for which products are chosen: a typical batch.
SIZE = 128
_PRODUCTS = ("stablehlo.dot_general", "stablehlo.convolution", "stablehlo.dynamic_conv")
_MARK = "bf16scope_product_"


class Symbolic:
    """Copies of the functions that a call of a program reaches, with numbered products."""

    def __init__(self, module, symbols, call):
        self.symbols, self.call = symbols, call
        names = _reached(call.attributes["callee"].value, symbols)
        fresh = {name: _free(f"bf16scope_{name}", symbols) for name in names}
        self.functions = []
        for name in names:
            copy = symbols[name].operation.clone(ip=ir.InsertionPoint(module.body))
            copy.attributes["sym_name"] = ir.StringAttr.get(fresh[name], module.context)
            copy.attributes["sym_visibility"] = ir.StringAttr.get("private", module.context)
            symbols.insert(copy.opview if hasattr(copy, "opview") else copy)
            self.functions.append(copy)
        for function in self.functions:
            for name, other in fresh.items():
                ir.SymbolTable.replace_all_symbol_uses(name, other, function)
        call.attributes["callee"] = ir.FlatSymbolRefAttr.get(fresh[names[0]], module.context)
        within = self._names_of_calls()
        products = [(name, it) for function, name in zip(self.functions, within) for it in _all(function) if it.name in _PRODUCTS]
        self.products = [_numbered(it, name, number) for number, (name, it) in enumerate(products)]

    def _names_of_calls(self) -> list[str]:
        """For each function the name of the only call that it runs in; empty without a name, or with several."""
        places = {it.attributes["sym_name"].value: number for number, it in enumerate(self.functions)}
        names: list[set[str]] = [{""}, *(set() for _ in self.functions[1:])]
        for number, function in enumerate(self.functions):
            around = "".join(names[number]) if len(names[number]) == 1 else ""
            for operation in _all(function):
                if operation.name == "func.call":
                    path = [it for it in (around, _name_of(operation)) if it]
                    names[places[operation.attributes["callee"].value]].add("/".join(path))
        return ["".join(it) if len(it) == 1 else "" for it in names]

    def sample(self, leading: list[int], shapes: list[tuple[int, ...]]) -> Any:
        """A module of these functions with sizes for all dimensions: `leading` are the call's first operands, which are numbers,
        `shapes` the shapes of its other operands. Shapes inside of it are not refined yet."""
        context = self.call.context
        module = ir.Module.create(loc=ir.Location.unknown(context))
        for function in self.functions:
            function.clone(ip=ir.InsertionPoint(module.body))
        types = [it.type for it in self.call.operands]
        with context, ir.Location.unknown(), ir.InsertionPoint(module.body):
            static = [ir.RankedTensorType.get(shape, ir.RankedTensorType(it).element_type) for shape, it in zip(shapes, types[len(leading) :])]
            main = func_dialect.FuncOp("main", (static, [it.type for it in self.call.results]), visibility="public")
            with ir.InsertionPoint(main.add_entry_block()):
                sizes = [_number(value, it) for value, it in zip(leading, types)]
                values = [cast(value, it) for value, it in zip(main.arguments, types[len(leading) :])]
                name = ir.FlatSymbolRefAttr(self.call.attributes["callee"]).value
                results = func_dialect.CallOp([it.type for it in self.call.results], ir.FlatSymbolRefAttr.get(name), [*sizes, *values])
                func_dialect.ReturnOp(list(results.results))
        return module

    def narrow(self, text: str, dtype: Callable[[], Any]) -> int:
        """Narrows the products that are narrow in the HLO text of the lowered sample; returns their number."""
        is_narrow = _narrow_products(text)
        chosen = [number for number in range(len(self.products)) if is_narrow.get(number)]
        for number in chosen:
            product = self.products[number]
            with product.context, product.location, ir.InsertionPoint(product):
                to = lambda value: ir.RankedTensorType.get(ir.RankedTensorType(value.type).shape, dtype())
                operands = [hlo.convert(to(it), it) if str(ir.RankedTensorType(it.type).element_type) == "f32" else it for it in product.operands]
                whole = ir.Operation.create(product.name, [product.results[0].type], operands, _attributes(product), loc=product.location)
            product.results[0].replace_all_uses_with(whole.results[0])
            product.erase()
        return len(chosen)


def _reached(name: str, symbols) -> list[str]:
    """The names of a function and of all functions that it calls, directly or not, each once."""
    names = [name]
    for it in names:
        for operation in _all(symbols[it].operation):
            if operation.name == "func.call":
                callee = operation.attributes["callee"].value
                names += [callee] if callee not in names else []
    return names


def _free(name: str, symbols) -> str:
    while name in symbols:
        name += "_"
    return name


def _name_of(operation) -> str:
    """An operation's name in JAX; empty if its location is only a position in a file."""
    name = re.match(r'loc\("((?:[^"\\]|\\.)*)"(?!:)', str(operation.location))
    return name[1].rstrip(":") if name else ""


def _numbered(product, around: str, number: int) -> Any:
    """The same product with its number in its name."""
    name = "/".join(it for it in (around, _name_of(product), f"{_MARK}{number}") if it)
    with product.context, ir.InsertionPoint(product):
        types, operands = [it.type for it in product.results], list(product.operands)
        new = ir.Operation.create(product.name, types, operands, _attributes(product), loc=ir.Location.name(name))
    product.results[0].replace_all_uses_with(new.results[0])
    product.erase()
    return new


def _number(value: int, kind) -> Any:
    element = ir.RankedTensorType(kind).element_type
    return hlo.constant(ir.DenseElementsAttr.get_splat(kind, ir.IntegerAttr.get(element, value)))


_DEFINED = re.compile(r"^\s*(?:ROOT )?%?(\S+) = (\w+)\[")
_PRODUCT = re.compile(rf" (?:dot|convolution)\(([^)]*)\).*{_MARK}(\d+)")


def _narrow_products(text: str) -> dict[int, bool]:
    """For each product in HLO text, by number, whether its operands are narrow in all places."""
    dtypes: dict[str, str] = {}
    by_number: dict[int, bool] = {}
    for line in text.splitlines():
        if defined := _DEFINED.match(line):
            dtypes[defined[1]] = defined[2]
        if product := _PRODUCT.search(line):
            names = [word.split()[-1].lstrip("%") for word in product[1].split(", ") if "%" in word or " " not in word]
            is_narrow = all(dtypes.get(name) in ("bf16", "f16") for name in names)
            by_number[int(product[2])] = by_number.get(int(product[2]), True) and is_narrow
    return by_number
