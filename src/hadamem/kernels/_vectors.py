"""Sixteen float32 numbers as one value in numba code, and access to memory by address. Used by `shm/act_cpu.py` alone.

Why vectors: in plain numba, LLVM's vectoriser decides which loops become vector instructions and which numbers stay in registers. Here
both are written down. LLVM splits the vectors to fit the machine's registers.

Why addresses: numba spends a microsecond on every tensor argument. A kernel with twenty tensors takes one array of addresses
(`x.data_ptr()`) instead. Nothing checks bounds: the caller must have checked the shapes, and must keep the tensors alive.

The functions are LLVM instructions added to numba by its public `numba.extending.intrinsic`.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba import extending, types
from numba.core import cgutils
from numba.extending import models, register_model

LANES = 16
_VECTOR = ir.VectorType(ir.FloatType(), LANES)
_BITS = ir.VectorType(ir.IntType(32), LANES)


class Vector(types.Type):
    """Sixteen float32 numbers."""

    def __init__(self) -> None:
        super().__init__(name="hadamem.Vector")


@register_model(Vector)
class _Model(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, _VECTOR)


vector = Vector()


def intrinsic(function: Any) -> Any:
    return extending.intrinsic(function)


def _pointer(builder: Any, address: Any, index: Any, kind: Any) -> Any:
    base = builder.inttoptr(address, ir.FloatType().as_pointer())
    return builder.bitcast(builder.gep(base, [index]), kind.as_pointer())


def _broadcast(builder: Any, number: Any) -> Any:
    one = builder.insert_element(ir.Constant(_VECTOR, ir.Undefined), number, ir.Constant(ir.IntType(32), 0))
    return builder.shuffle_vector(one, ir.Constant(_VECTOR, ir.Undefined), ir.Constant(_BITS, [0] * LANES))


def _call(builder: Any, name: str, args: tuple[Any, ...]) -> Any:
    function = cgutils.get_or_insert_function(builder.module, ir.FunctionType(_VECTOR, [_VECTOR] * len(args)), f"llvm.{name}.v{LANES}f32")
    return builder.call(function, args)


@intrinsic
def load(context, address, index):
    """The vector at float number `index` from the address; it need not be aligned."""
    def generate(context, builder, signature, args):
        return builder.load(_pointer(builder, args[0], args[1], _VECTOR), align=4)
    return vector(types.int64, types.int64), generate


@intrinsic
def store(context, address, index, x):
    def generate(context, builder, signature, args):
        builder.store(args[2], _pointer(builder, args[0], args[1], _VECTOR), align=4)
        return context.get_dummy_value()
    return types.void(types.int64, types.int64, vector), generate


@intrinsic
def get(context, address, index):
    """Float number `index` from the address."""
    def generate(context, builder, signature, args):
        return builder.load(_pointer(builder, args[0], args[1], ir.FloatType()), align=4)
    return types.float32(types.int64, types.int64), generate


@intrinsic
def put(context, address, index, number):
    def generate(context, builder, signature, args):
        builder.store(args[2], _pointer(builder, args[0], args[1], ir.FloatType()), align=4)
        return context.get_dummy_value()
    return types.void(types.int64, types.int64, types.float32), generate


@intrinsic
def get_int(context, address, index):
    """int64 number `index` from the address."""
    def generate(context, builder, signature, args):
        base = builder.inttoptr(args[0], ir.IntType(64).as_pointer())
        return builder.load(builder.gep(base, [args[1]]), align=8)
    return types.int64(types.int64, types.int64), generate


@intrinsic
def get_byte(context, address, index):
    """Byte number `index` from the address."""
    def generate(context, builder, signature, args):
        base = builder.inttoptr(args[0], ir.IntType(8).as_pointer())
        return builder.load(builder.gep(base, [args[1]]), align=1)
    return types.uint8(types.int64, types.int64), generate


@intrinsic
def count(context, address, index, step):
    """Add `step` to int64 number `index` from the address, as one act among all threads; the number before."""
    def generate(context, builder, signature, args):
        base = builder.inttoptr(args[0], ir.IntType(64).as_pointer())
        return builder.atomic_rmw("add", builder.gep(base, [args[1]]), args[2], "seq_cst")
    return types.int64(types.int64, types.int64, types.int64), generate


@intrinsic
def fill(context, number):
    """The number in every lane."""
    def generate(context, builder, signature, args):
        return _broadcast(builder, args[0])
    return vector(types.float32), generate


def _binary(operation: str) -> Any:
    @intrinsic
    def compute(context, a, b):
        def generate(context, builder, signature, args):
            return getattr(builder, operation)(*args)
        return vector(vector, vector), generate
    return compute


add, sub, mul, div = (_binary(operation) for operation in ("fadd", "fsub", "fmul", "fdiv"))


@intrinsic
def fma(context, a, b, c):
    """a b + c, rounded once where the machine can."""
    def generate(context, builder, signature, args):
        return _call(builder, "fmuladd", args)
    return vector(vector, vector, vector), generate


@intrinsic
def sqrt(context, x):
    def generate(context, builder, signature, args):
        return _call(builder, "sqrt", args)
    return vector(vector), generate


@intrinsic
def at_least(context, x, low):
    """max(x, low); nan where x is nan."""
    def generate(context, builder, signature, args):
        x, low = args
        return builder.select(builder.fcmp_ordered("<", x, low), low, x)
    return vector(vector, vector), generate


@intrinsic
def at_most(context, x, high):
    """min(x, high); nan where x is nan."""
    def generate(context, builder, signature, args):
        x, high = args
        return builder.select(builder.fcmp_ordered(">", x, high), high, x)
    return vector(vector, vector), generate


@intrinsic
def low_bits_as_power(context, x):
    """2^(n - 127), n being the lowest eight bits of x."""
    def generate(context, builder, signature, args):
        bits = builder.shl(builder.bitcast(args[0], _BITS), ir.Constant(_BITS, [23] * LANES))
        return builder.bitcast(bits, _VECTOR)
    return vector(vector), generate


@intrinsic
def total(context, x):
    """The sum of the lanes, halves first."""
    def generate(context, builder, signature, args):
        x, width = args[0], LANES
        while width > 1:
            width //= 2
            halves = [ir.Constant(ir.VectorType(ir.IntType(32), width), list(range(at, at + width))) for at in (0, width)]
            low, high = (builder.shuffle_vector(x, ir.Constant(x.type, ir.Undefined), half) for half in halves)
            x = builder.fadd(low, high)
        return builder.extract_element(x, ir.Constant(ir.IntType(32), 0))
    return types.float32(vector), generate
