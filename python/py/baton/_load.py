"""Tensors of files: .npy, .npz, .safetensors.

The file is mapped and not read: processes that load it share its pages in the kernel's cache. What
cannot be used where it lies (compressed, or not aligned to its elements) is copied into shared memory.
Hostile files: every number of a header is checked against the file's length before it is used.
"""

import ast
import io
import json
import math
import os
import re
import struct
import zipfile
from typing import IO, TYPE_CHECKING, Any

from baton._errors import InvalidArgument

if TYPE_CHECKING:
    from baton._native import Bundle, Session, Tensor

_MAGIC = b"\x93NUMPY"
_MOST_HEADER = 100 << 20  # of safetensors
_NPY = {"b1": "bool", "i": "int", "u": "uint", "f": "float", "c": "complex"}
_SAFETENSORS = {
    "BOOL": "bool", "U8": "uint8", "I8": "int8", "U16": "uint16", "I16": "int16", "U32": "uint32", "I32": "int32",
    "U64": "uint64", "I64": "int64", "F16": "float16", "BF16": "bfloat16", "F32": "float32", "F64": "float64",
    "C64": "complex64", "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "F8_E8M0": "float8_e8m0fnu",
    "F8_E4M3FNUZ": "float8_e4m3fnuz", "F8_E5M2FNUZ": "float8_e5m2fnuz",
}  # fmt: skip


def load(session: "Session", path: "str | os.PathLike[str]") -> "Tensor | Bundle":
    """The tensor of a .npy, the bundle of a .npz or .safetensors; by what the file begins with."""
    where = os.fspath(path)
    with open(where, "rb") as file:
        head = file.read(8)
    mapped = session.map_file(where)
    if head.startswith(_MAGIC):
        return _Source(session, mapped, where).npy()
    if head.startswith(b"PK"):
        return _npz(session, mapped, where)
    return _safetensors(session, mapped, where)


def _width(dtype: str) -> int:
    """Bytes of an element."""
    bits = re.search(r"\d+", dtype)
    return int(bits[0]) // 8 if bits else 1


class _Source:
    """Bytes of a file from a certain one on."""

    def __init__(self, session: "Session", mapped: "Tensor", path: str) -> None:
        self.session, self.mapped, self.path = session, mapped, path

    def bad(self, what: str) -> InvalidArgument:
        return InvalidArgument(f"{self.path}: {what} (give a .npy, .npz or .safetensors as their libraries write them)")

    def at(self, offset: int, dtype: str, shape: list[int], fortran: bool = False) -> "Tensor":
        """The tensor of some bytes: where they lie, else a copy."""
        width = _width(dtype)
        n = math.prod(shape) * width
        if min(shape, default=0) < 0 or not 0 <= offset <= offset + n <= self.mapped.nbytes:
            raise self.bad(f"a {dtype}{shape} at byte {offset} does not lie in its {self.mapped.nbytes} bytes")
        raw = self.mapped[offset : offset + n]
        if offset % width:
            raw = self.session.share(raw, copy=True).as_readonly()
        flat = raw.view(dtype)
        return flat.reshape(shape[::-1]).T if fortran else flat.reshape(shape)

    def npy(self) -> "Tensor":
        """The array of a .npy."""
        header, offset = _npy_header(self, io.BytesIO(memoryview(self.mapped[: 1 << 20])))
        return self.at(offset, *header)


def _npy_header(source: _Source, file: IO[bytes]) -> tuple[tuple[str, list[int], bool], int]:
    """What stands before the elements of a .npy, and how long that is."""
    head = file.read(12)
    if len(head) < 12 or not head.startswith(_MAGIC):
        raise source.bad("no .npy header")
    wide = head[6] >= 2
    n = struct.unpack("<I" if wide else "<H", head[8:12] if wide else head[8:10])[0]
    begin = 12 if wide else 10
    text = (head[begin:] + file.read(n - len(head) + begin)).decode("utf-8" if head[6] >= 3 else "latin-1")
    try:
        d = ast.literal_eval(text)
        descr, fortran, shape = d["descr"], bool(d["fortran_order"]), [int(n) for n in d["shape"]]
        order, kind = descr[0], descr[1:]
    except (ValueError, SyntaxError, TypeError, KeyError, IndexError, MemoryError, RecursionError):
        raise source.bad("a malformed .npy header") from None
    if order == ">" or not isinstance(descr, str):
        raise source.bad(f"elements of {descr!r} are not native numbers: convert the array first")
    name = _NPY.get(kind) or f"{_NPY.get(kind[:1], '')}{8 * int(kind[1:]) if kind[1:].isdigit() else ''}"
    if kind[:1] not in "biufc" or kind == "f16" or kind == "c32":
        raise source.bad(f"elements of {descr!r} are no numbers that tensors have")
    return (name, shape, fortran), begin + n


def _npz(session: "Session", mapped: "Tensor", path: str) -> "Bundle":
    source = _Source(session, mapped, path)
    tensors: dict[str, Any] = {}
    try:
        with zipfile.ZipFile(path) as archive:
            for entry in archive.infolist():
                name = entry.filename.removesuffix(".npy")
                with archive.open(entry) as file:
                    header, n = _npy_header(source, file)
                if entry.compress_type == zipfile.ZIP_STORED:
                    local = bytes(memoryview(mapped[entry.header_offset : entry.header_offset + 30]))
                    if len(local) < 30:
                        raise source.bad(f"entry {name} lies outside")
                    begin = entry.header_offset + 30 + sum(struct.unpack("<HH", local[26:30]))
                    tensors[name] = source.at(begin + n, *header)
                else:
                    raw = session.share(archive.read(entry)).as_readonly()
                    tensors[name] = _Source(session, raw, path).at(n, *header)
    except zipfile.BadZipFile as e:
        raise source.bad(str(e)) from None
    return session.bundle(tensors)


def _safetensors(session: "Session", mapped: "Tensor", path: str) -> "Bundle":
    source = _Source(session, mapped, path)
    head = bytes(memoryview(mapped[:8]))
    n = int.from_bytes(head, "little")
    if len(head) < 8 or n > _MOST_HEADER or n + 8 > mapped.nbytes:
        raise source.bad("neither .npy nor .npz nor .safetensors")
    tensors: dict[str, Any] = {}
    try:
        header = json.loads(bytes(memoryview(mapped[8 : 8 + n])))
        for name, t in header.items():
            if name == "__metadata__":
                continue
            begin, end = (int(at) for at in t["data_offsets"])
            tensors[name] = source.at(8 + n + begin, _SAFETENSORS[t["dtype"]], [int(d) for d in t["shape"]])
            if begin < 0 or tensors[name].nbytes != end - begin:
                raise source.bad(f"tensor {name} has other bytes than its shape")
    except (ValueError, TypeError, KeyError, AttributeError) as e:
        if isinstance(e, InvalidArgument):
            raise
        raise source.bad(f"a malformed header: {e!r}") from None
    return session.bundle(tensors)
