"""Sums, worked out from their syntax tree: nothing is executed, and nothing grows without bound."""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable
from typing import TypeAlias

Number: TypeAlias = int | float

MAX_LENGTH = 200
MAX_BITS = 4096
_SPELLINGS = str.maketrans({"^": "**", "×": "*", "·": "*", "÷": "/", "−": "-"})


def _power(base: Number, exponent: Number) -> Number:
    if isinstance(base, int) and (base.bit_length() - 1) * abs(exponent) > MAX_BITS:
        raise ValueError("that is too large")
    result = base**exponent
    if isinstance(result, complex):
        raise ValueError("that is not a real number")  # noqa: TRY004 - the sum is wrong, not a type
    return result


_BINARY: dict[type[ast.operator], Callable[[Number, Number], Number]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: _power,
}
_UNARY: dict[type[ast.unaryop], Callable[[Number], Number]] = {
    ast.UAdd: operator.pos,
    ast.USub: operator.neg,
}


def calculate(expression: str) -> str:
    """The value of a sum; `ValueError` says in words why there is none."""
    if len(expression) > MAX_LENGTH:
        raise ValueError(f"that has more than {MAX_LENGTH} characters")
    try:
        tree = ast.parse(expression.strip().translate(_SPELLINGS), mode="eval")
        return _written(_value(tree.body))
    except (SyntaxError, RecursionError, MemoryError):
        raise ValueError("I cannot read that as a sum") from None
    except ZeroDivisionError:
        raise ValueError("nothing can be divided by zero") from None
    except OverflowError:
        raise ValueError("that is too large") from None


def _value(node: ast.expr) -> Number:
    match node:
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            return _bounded(number)
        case ast.UnaryOp(op=op, operand=operand) if type(op) in _UNARY:
            return _UNARY[type(op)](_value(operand))
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            return _bounded(_BINARY[type(op)](_value(left), _value(right)))
    raise ValueError("I can only add, subtract, multiply, divide and raise to a power")


def _bounded(number: Number) -> Number:
    if isinstance(number, int):
        too_large = number.bit_length() > MAX_BITS
    else:
        too_large = not math.isfinite(number)
    if too_large:
        raise ValueError("that is too large")
    return number


def _written(number: Number) -> str:
    return str(number) if isinstance(number, int) else f"{number:.12g}"
