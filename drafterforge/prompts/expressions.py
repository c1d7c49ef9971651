"""Expressions after `=` in grammar files: arithmetic, comparisons, `a if b else c`, calls of the listed functions.

A small interpreter evaluates them node by node; Python's `eval` is never used.
"""

from __future__ import annotations

import ast
import operator
import random
from collections.abc import Callable, Mapping
from typing import Any

from drafterforge.errors import ConfigError
from drafterforge.prompts.functions import PURE, RANDOM
from drafterforge.prompts.templates import fill

Expression = Callable[[Mapping[str, Any], random.Random | None], Any]

_MAX_POWER = 10**15  # larger powers are refused
_BINARY = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: lambda base, exponent: _power(base, exponent),
}
_COMPARE = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda item, items: item in items,
    ast.NotIn: lambda item, items: item not in items,
}
_UNARY = {ast.Not: operator.not_, ast.USub: operator.neg}


def compile_expression(source: str, lists: Mapping[str, Any]) -> Expression:
    """Compile an expression to a function of slots and random numbers.  lists: word lists, by name."""
    try:
        return _build(ast.parse(source.strip(), mode="eval").body, lists)
    except (SyntaxError, ConfigError) as error:
        raise ConfigError(f"cannot read the expression {source!r}: {error}") from error


def _build(node: ast.AST, lists: Mapping[str, Any]) -> Expression:
    match node:
        case ast.Constant(value=value):
            return lambda values, rng: value
        case ast.Name(id=name):
            return _name(name, lists)
        case ast.Attribute(value=inner, attr=name):
            owner = _build(inner, lists)
            return lambda values, rng: _field(owner(values, rng), name)
        case ast.Subscript(value=inner, slice=ast.Slice(lower=low, upper=high, step=None)):
            items = _build(inner, lists)
            start, stop = (_build(end or ast.Constant(None), lists) for end in (low, high))
            return lambda values, rng: items(values, rng)[start(values, rng) : stop(values, rng)]
        case ast.Subscript(value=inner, slice=index):
            items, key = _build(inner, lists), _build(index, lists)
            return lambda values, rng: items(values, rng)[key(values, rng)]
        case ast.List(elts=parts) | ast.Tuple(elts=parts):
            built = [_build(part, lists) for part in parts]
            return lambda values, rng: [part(values, rng) for part in built]
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            return _binary(_BINARY[type(op)], _build(left, lists), _build(right, lists))
        case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _COMPARE:
            return _binary(_COMPARE[type(op)], _build(left, lists), _build(right, lists))
        case ast.UnaryOp(op=op, operand=inner) if type(op) in _UNARY:
            apply, value = _UNARY[type(op)], _build(inner, lists)
            return lambda values, rng: apply(value(values, rng))
        case ast.BoolOp(op=op, values=parts):
            built = [_build(part, lists) for part in parts]
            combine = all if isinstance(op, ast.And) else any
            return lambda values, rng: combine(part(values, rng) for part in built)
        case ast.IfExp(test=test, body=body, orelse=orelse):
            condition, if_true, if_false = (_build(part, lists) for part in (test, body, orelse))
            return lambda values, rng: (if_true if condition(values, rng) else if_false)(values, rng)
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]):
            return _call(name, [_build(argument, lists) for argument in arguments])
    raise ConfigError(f"{ast.unparse(node)!r} is not supported")


def _binary(apply: Callable[[Any, Any], Any], left: Expression, right: Expression) -> Expression:
    return lambda values, rng: apply(left(values, rng), right(values, rng))


def _name(name: str, lists: Mapping[str, Any]) -> Expression:
    def look_up(values: Mapping[str, Any], rng: random.Random | None) -> Any:
        if name in values:
            return values[name]
        if name in lists:
            return lists[name]
        raise ConfigError(f"no slot and no list is called {name!r}; there are {', '.join(sorted({*values, *lists}))}")

    return look_up


def _call(name: str, arguments: list[Expression]) -> Expression:
    if name == "fill":
        return lambda values, rng: fill(arguments[0](values, rng), values)
    if name == "filled":
        return lambda values, rng: [fill(template, values) for template in arguments[0](values, rng)]
    if name in PURE:
        pure = PURE[name]
        return lambda values, rng: pure(*[argument(values, rng) for argument in arguments])
    if name in RANDOM:
        drawn = RANDOM[name]
        return lambda values, rng: drawn(rng, *[argument(values, rng) for argument in arguments])
    raise ConfigError(f"no function is called {name!r}; there are fill, filled, {', '.join(sorted({*PURE, *RANDOM}))}")


def _field(owner: Any, name: str) -> Any:
    """A field of a record or an entry of a mapping; Python attributes are out of reach."""
    entries = owner if isinstance(owner, dict) else getattr(owner, "fields", {})
    if name not in entries:
        raise ConfigError(f"{owner!r:.40} has no {name!r}; it has {', '.join(entries) or 'no fields'}")
    return entries[name]


def _power(base: float, exponent: float) -> float:
    if (abs(base) > 1 and abs(exponent) > 60) or abs(base) ** exponent > _MAX_POWER:
        raise ConfigError(f"{base} ** {exponent} is too large")
    return base**exponent
