"""Writes the sample files of this folder. Needs numpy and ml_dtypes; last run
with numpy 2.4.6 and ml_dtypes 0.6.0. The files are kept: tests do not run this."""

import warnings

import ml_dtypes
import numpy as np
from numpy.lib import format as npy_format

NAMES = [
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32",
    "uint64", "float16", "float32", "float64", "complex64", "complex128",
]
for name in NAMES:
    np.save(f"accept-{name}.npy", np.arange(6).reshape(2, 3).astype(name))

f = np.arange(6, dtype="float32").reshape(2, 3)
np.save("accept-fortran.npy", np.asfortranarray(f))
np.save("accept-scalar.npy", np.float32(3))
np.save("accept-vector.npy", np.arange(5, dtype="int64"))
np.save("accept-empty.npy", np.zeros((0, 3), "float32"))
np.save("accept-dims.npy", np.zeros((1,) * 63 + (2,), "int8"))
# A header that fills a multiple of 64 bytes by itself: NumPy pads it once more.
np.save("accept-full-header.npy", np.zeros((1,) * 13 + (200,), "int8"))
for version in (1, 2, 3):
    with open(f"accept-version-{version}.npy", "wb") as out:
        npy_format.write_array(out, f, version=(version, 0))

REFUSED = {
    "big-endian": f.astype(">f4"),
    "objects": np.array([None, {}], dtype=object),
    "bfloat16": f.astype(ml_dtypes.bfloat16),
    "float8-e4m3": f.astype(ml_dtypes.float8_e4m3fn),
    "float8-e5m2": f.astype(ml_dtypes.float8_e5m2),
    "longdouble": f.astype("longdouble"),
    "text": np.array(["a", "bc"]),
    "bytes": np.array([b"a", b"bc"]),
    "datetime": np.array(["2020-01-01"], dtype="datetime64[ns]"),
    "structured": np.zeros(2, [("ä", "<f4"), ("b", "<i4", (2,))]),
}
for name, a in REFUSED.items():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        np.save(f"refuse-{name}.npy", a)
