"""Arrays and numpy's own numbers, to the bit.

`scores.mean()` looks like a float and is a `numpy.float64`; a loader that returns a float changes
what `/ 0` does, three steps later. An array has a dtype, a byte order, an order in memory and a
flag that says whether it may be written to, and code relies on each of them:

    stored   view = frame[:, ::2]              loaded   view[0] = 1
                                                        ValueError: read-only (it lay on bytes)

So an array is stored as dtype, shape, memory order, writability and raw bytes. Arrays of objects
are refused: their bytes are addresses, and an address written to disk means nothing to the next
process. numpy is imported only to load something that was numpy when it was stored.

Left out: strides. A view with gaps comes back as an array without them, equal in every item. And
an array of C `longlong` comes back as `int64` where the platform has both for the same thing;
their dtypes compare equal.
"""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING, Any, Literal

from durable_kit.storage.codec_types import Kind, Refusal

if TYPE_CHECKING:
    import numpy as np

ARRAY, SCALAR = 40, 41


def numpy_kind(cls: type) -> Kind | None:
    """The `Kind` of numpy's array or of one of its scalar types, else None."""
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return None
    if cls is numpy.ndarray:
        return ARRAY_KIND
    if issubclass(cls, numpy.generic) and cls.__module__ == "numpy":
        return Kind(SCALAR, cls, list, _scalar_state, _scalar)
    return None


def _describe(dtype: np.dtype[Any]) -> Any:
    """A dtype as text, or as nested tuples when it has fields; only if that says all of it."""
    from numpy.lib.format import descr_to_dtype, dtype_to_descr

    if dtype.hasobject:
        raise Refusal(
            "an array of objects is an array of memory addresses",
            "Use .tolist(), or an array of numbers or fixed-width text.",
        )
    if dtype.char in "gG":
        raise Refusal(
            "the width of longdouble differs between platforms", "Use float64 or complex128."
        )
    description: Any = str(dtype.str) if dtype.names is None else dtype_to_descr(dtype)
    if dtype.metadata is not None or not _says_all(dtype, descr_to_dtype(description)):
        raise Refusal(
            f"dtype {dtype!r} says more than its description can keep",
            "Convert it with .astype() to a plain dtype.",
        )
    return description


def _says_all(dtype: np.dtype[Any], rebuilt: np.dtype[Any]) -> bool:
    return rebuilt == dtype and rebuilt.isalignedstruct == dtype.isalignedstruct


def _dtype(description: Any) -> np.dtype[Any]:
    from numpy.lib.format import descr_to_dtype

    dtype = descr_to_dtype(description)
    if dtype.hasobject:
        raise ValueError("an array of objects is never loaded from bytes")
    return dtype


def _array_state(value: np.ndarray[Any, Any]) -> list[Any]:
    description = _describe(value.dtype)
    flags = value.flags
    order: Literal["C", "F"] = "F" if flags.f_contiguous and not flags.c_contiguous else "C"
    if value.dtype.names is not None:
        value = _without_padding(value)
    raw = value.tobytes(order)
    return [description, list(value.shape), order, flags.writeable, raw]


def _without_padding(value: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """A copy whose bytes between the fields are zero, so that equal arrays have equal bytes."""
    import numpy

    clean = numpy.zeros(value.shape, value.dtype)
    for name in value.dtype.names or ():
        field = value[name]
        clean[name] = field if field.dtype.names is None else _without_padding(field)
    return clean


def _array(state: list[Any]) -> np.ndarray[Any, Any]:
    import numpy

    description, shape, order, writable, raw = state
    dtype = _dtype(description)
    if any(length < 0 for length in shape) or math.prod(shape) * dtype.itemsize != len(raw):
        raise ValueError("the shape of the array does not fit its bytes")
    if raw:
        array = numpy.frombuffer(raw, dtype).reshape(shape, order=order).copy("K")
    else:
        array = numpy.zeros(shape, dtype, order=order)
    array.flags.writeable = writable
    return array


def _scalar_state(value: np.generic) -> list[Any]:
    import numpy

    if isinstance(value, numpy.str_):
        return ["str_", "".join(value)]  # str() would stop at a trailing NUL
    if isinstance(value, numpy.bytes_):
        return ["bytes_", bytes(value)]
    description = _describe(value.dtype)
    if _dtype(description).type is not type(value):
        raise Refusal(
            f"numpy.{type(value).__name__} has no dtype of its own on every platform",
            "Convert it, for example with numpy.int64(value).",
        )
    if value.dtype.names is not None:
        return [description, _without_padding(numpy.asarray(value)).tobytes()]
    return [description, value.tobytes()]


def _scalar(state: list[Any]) -> Any:
    import numpy

    description, raw = state
    if description == "str_":
        return numpy.str_(raw)
    if description == "bytes_":
        return numpy.bytes_(raw)
    dtype = _dtype(description)
    if len(raw) != dtype.itemsize:
        raise ValueError("the bytes of a numpy scalar do not fit its dtype")
    return numpy.frombuffer(raw, dtype).copy()[0] if raw else numpy.zeros((), dtype)[()]


# For reading, without numpy: the class is only a name for an error.
ARRAY_KIND = Kind(ARRAY, type("ndarray", (), {"__module__": "numpy"}), list, _array_state, _array)
SCALAR_KIND = Kind(
    SCALAR, type("generic", (), {"__module__": "numpy"}), list, _scalar_state, _scalar
)
