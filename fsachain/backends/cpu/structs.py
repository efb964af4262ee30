"""Named tuples of arrays that compiled code reads through one pointer.

numba passes each array of a named tuple as half a dozen arguments, so that of a kernel on sixty arrays most code, and most
of the time that it takes to compile, would go into handing them on. Here the addresses, shapes and scalars of a named tuple
stand in a block of 8-byte words, and a kernel gets the address of the block: see `pack`. Nothing writes to the block while a
kernel runs, which the compiler is told.
"""

from __future__ import annotations

import math
import operator
from ctypes import addressof, c_char
from functools import cache
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import from_dtype, types
from numba.core import cgutils
from numba.core.imputils import lower_constant
from numba.core.typing.arraydecl import GetItemBuffer, SetItemBuffer
from numba.core.typing.templates import AttributeTemplate, infer_global
from numba.extending import (
    NativeValue,
    infer_getattr,
    lower_builtin,
    lower_getattr_generic,
    models,
    register_model,
    unbox,
)

_WORD = ir.IntType(64)
_NO_BYTES = c_char * 0


def address_of(array: Any) -> int:
    """Where a contiguous array begins, asked in a fifth of the time that its `__array_interface__` takes."""
    try:
        return addressof(_NO_BYTES.from_buffer(array))
    except TypeError:  # it is read-only
        return int(array.__array_interface__["data"][0])


class FormType(types.Type):
    """numba's type of a `Form`; a value of it takes no room."""

    def __init__(self, kind: str, width: int) -> None:
        self.kind, self.width = kind, width
        super().__init__(name=f"Form({kind}, {width})")


class Form:
    """How many numbers are worked on side by side, and of which kind: see `numbers`. One object for each."""

    width: int
    kind: str
    is_wide: bool
    _numba_type_: FormType

    _known: ClassVar[dict[tuple[int, str], Form]] = {}

    def __new__(cls, width: int, kind: str = "plain") -> Form:
        self = cls._known.get((width, kind))
        if self is None:
            self = super().__new__(cls)
            self.width, self.kind, self.is_wide = width, kind, kind == "wide"
            self._numba_type_ = FormType(kind, width)
        return cls._known.setdefault((width, kind), self)

    def __repr__(self) -> str:
        return f"Form({self.width}, {self.kind!r})"


class StructType(types.Type):
    """A named tuple of class `instance_class` in memory; fields: (name, type, first word) of each."""

    def __init__(self, instance_class: type, fields: tuple[tuple[str, Any, int], ...]) -> None:
        self.instance_class, self.fields = instance_class, fields
        parts = ", ".join(f"{name}: {kind}" for name, kind, _ in fields)
        super().__init__(name=f"{instance_class.__name__}({parts})")

    def __getitem__(self, name: str) -> Any:
        """The type of a field."""
        return next(kind for field, kind, _ in self.fields if field == name)

    def first_word(self, name: str) -> int:
        """Where a field begins."""
        return next(word for field, _, word in self.fields if field == name)


class Packed:
    """A named tuple as an argument of kernels; it keeps the arrays alive."""

    __slots__ = ("_numba_type_", "address", "value", "words")

    def __init__(self, value: Any, numba_type: StructType, words: npt.NDArray[np.int64]) -> None:
        self.value, self._numba_type_, self.words = value, numba_type, words
        self.address = address_of(words)


def words_of(values: tuple[Any, ...]) -> list[int]:
    """The words of a named tuple of arrays and integers."""
    words: list[int] = []
    for value in values:
        if isinstance(value, np.ndarray):
            words += (address_of(value) if value.size else 0, *value.shape)
        else:
            words.append(value)
    return words


def pack(value: Any) -> Packed:
    """A named tuple of contiguous arrays, numbers, forms and other such tuples, packed or not, for compiled code."""
    words: list[int] = []
    numba_type = describe(value, words, [])
    return Packed(value, numba_type, np.array(words, np.int64))


class Room:
    """An array to be, in a block: see `memory.lay_out`; or rows of another one, `whole`, from `first` on."""

    __slots__ = ("dtype", "first", "shape", "whole")

    def __init__(self, dtype: npt.DTypeLike, *shape: int) -> None:
        self.dtype, self.shape, self.first = np.dtype(dtype), shape, 0
        self.whole: Room | None = None

    def __len__(self) -> int:
        return self.shape[0]

    def num_bytes(self, rows: int) -> int:
        """Of so many rows."""
        return rows * math.prod(self.shape[1:]) * self.dtype.itemsize

    def rows(self, first: int, last: int) -> Room:
        """Those of them that there are."""
        first, last = min(first, len(self)), min(last, len(self))
        part = Room(self.dtype, last - first, *self.shape[1:])
        part.whole, part.first = self, first
        return part


def describe(value: Any, words: list[int], rooms: list[tuple[int, Room]]) -> Any:
    """The numba type of a value, whose words are appended; each `Room` goes to `rooms` with the place of its address."""
    if isinstance(value, np.ndarray):
        words.append(address_of(value))
        words.extend(value.shape)
        return array_type(value.dtype, value.ndim)
    if type(value) is int:
        words.append(value)
        return types.int64
    if isinstance(value, Packed):
        words.extend(value.words.tolist())
        return value._numba_type_
    if isinstance(value, Form):
        return value._numba_type_
    if isinstance(value, Room):
        rooms.append((len(words), value))
        words.extend((0, *value.shape))
        return array_type(value.dtype, len(value.shape))
    if isinstance(value, tuple):
        fields, start = [], len(words)
        for name, part in zip(value._fields, value, strict=True):  # type: ignore[attr-defined]
            first = len(words) - start
            fields.append((name, describe(part, words, rooms), first))
        return struct_type(type(value), tuple(fields))
    if isinstance(value, float):
        words.append(int(np.float64(value).view(np.int64)))
        return types.float64
    words.append(int(value))
    return types.uint64 if isinstance(value, np.unsignedinteger) else types.int64


_structs: dict[Any, StructType] = {}


def struct_type(instance_class: type, fields: tuple[tuple[str, Any, int], ...]) -> StructType:
    """One object for each type, so that numba need not compare their names."""
    # By identity: types are kept for ever, and their own hashes are slow.
    key = instance_class, *[(id(kind), first) for _, kind, first in fields]
    found = _structs.get(key)
    if found is None:
        found = _structs[key] = StructType(instance_class, fields)
    return found


@cache
def array_type(dtype: np.dtype[Any], ndim: int) -> Any:
    """numba's type of a contiguous array."""
    return types.Array(from_dtype(dtype), ndim, "C")


# How compiled code sees these types.


@register_model(StructType)
class _StructModel(models.PrimitiveModel):
    def __init__(self, manager: Any, struct: StructType) -> None:
        super().__init__(manager, struct, _WORD.as_pointer())


register_model(FormType)(models.OpaqueModel)


@unbox(StructType)
def _unbox_struct(struct: StructType, packed: Any, c: Any) -> Any:
    address = c.pyapi.object_getattr_string(packed, "address")
    value = c.pyapi.number_as_ssize_t(address)
    c.pyapi.decref(address)
    return NativeValue(c.builder.inttoptr(value, _WORD.as_pointer()))


@unbox(FormType)
def _unbox_form(form: FormType, value: Any, c: Any) -> Any:
    return NativeValue(c.context.get_dummy_value())


@lower_constant(FormType)
def _constant_form(context: Any, builder: Any, form: FormType, value: Any) -> Any:
    return context.get_dummy_value()


def _is_entry(array: Any, index: Any) -> bool:
    indices = index if isinstance(index, types.BaseTuple) else (index,)
    return isinstance(array, types.Array) and all(isinstance(part, types.Integer) for part in indices)


# What numba says of entries of arrays, said first: it asks ten others before, a third of the time of typing calls.


@infer_global(operator.getitem)
class _ReadEntry(GetItemBuffer):
    metadata: ClassVar[dict[str, str]] = {"target": "cpu"}

    def generic(self, args: Any, kws: Any) -> Any:
        return super().generic(args, kws) if _is_entry(*args) else None


@infer_global(operator.setitem)
class _WriteEntry(SetItemBuffer):
    metadata: ClassVar[dict[str, str]] = {"target": "cpu"}

    def generic(self, args: Any, kws: Any) -> Any:
        return super().generic(args, kws) if _is_entry(*args[:2]) else None


@infer_getattr
class _StructAttribute(AttributeTemplate):
    key = StructType

    def generic_resolve(self, struct: StructType, name: str) -> Any:
        return struct[name]


@lower_getattr_generic(StructType)
def _read_field(context: Any, builder: Any, struct: StructType, pointer: Any, name: str) -> Any:
    kind, first = struct[name], struct.first_word(name)
    if isinstance(kind, FormType):
        return context.get_dummy_value()
    if isinstance(kind, StructType):
        return builder.gep(pointer, [ir.Constant(_WORD, first)])
    if not isinstance(kind, types.Array):
        return _load_word(builder, pointer, first, context.get_value_type(kind))
    itemsize = kind.dtype.bitwidth // 8
    data = _load_word(builder, pointer, first, context.get_value_type(kind.dtype).as_pointer())
    shape = [_load_word(builder, pointer, first + 1 + axis, _WORD) for axis in range(kind.ndim)]
    strides = [ir.Constant(_WORD, itemsize)]
    for length in shape[:0:-1]:
        strides.insert(0, builder.mul(length, strides[0]))
    count = ir.Constant(_WORD, 1)
    for length in shape:
        count = builder.mul(count, length, flags=["nsw"])
    fields = {
        "nitems": count,
        "itemsize": ir.Constant(_WORD, itemsize),
        "data": data,
        "shape": cgutils.pack_array(builder, shape),
        "strides": cgutils.pack_array(builder, strides),
    }
    array, model = ir.Constant(context.get_value_type(kind), None), context.data_model_manager[kind]
    for field, part in fields.items():
        array = builder.insert_value(array, part, model.get_field_position(field))
    return array


# Numba looks for an `__array__` of each array that is read, which none has, and then again in all of its registries.
lower_builtin("__array__", types.Array)(lambda context, builder, signature, arguments: arguments[0])


def _load_word(builder: Any, pointer: Any, index: int, kind: Any) -> Any:
    address = builder.gep(pointer, [ir.Constant(_WORD, index)])
    word = builder.load(builder.bitcast(address, kind.as_pointer()))
    word.set_metadata("invariant.load", builder.module.add_metadata([]))
    return word
