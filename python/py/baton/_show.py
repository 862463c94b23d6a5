"""What Jupyter shows of a tensor: its facts, and a small picture of 2-D and image-shaped ones."""

import base64
import html as markup
import struct
import zlib
from typing import TYPE_CHECKING, Any

from baton._errors import Error

if TYPE_CHECKING:
    import numpy as np

    from baton._native import Tensor

_MOST = 128  # pixels of a side
_SHOWN = 192  # pixels of the longer side on the page


def html(x: "Tensor") -> str:
    """The HTML of a tensor."""
    text = f"<code>{markup.escape(repr(x))}</code>"
    try:
        pixels = _pixels(x)
    except (ImportError, TypeError, ValueError, Error):
        return text  # without NumPy, of a type that it has not, on a GPU, or released
    if pixels is None:
        return text
    h, w = pixels.shape[:2]
    scale = _SHOWN / max(h, w)
    png = base64.b64encode(_png(pixels)).decode()
    return (
        f'{text}<br><img src="data:image/png;base64,{png}" width="{max(1, round(w * scale))}" '
        f'height="{max(1, round(h * scale))}" style="image-rendering: pixelated" alt="{x.dtype}{list(x.shape)}">'
    )


def _pixels(x: "Tensor") -> "np.ndarray[Any, Any] | None":
    """At most 128 × 128 bytes (grey, or three of colour) of what has the shape of a picture."""
    import numpy as np

    a = x.numpy()
    if a.ndim == 3 and a.shape[0] in (1, 3) and a.shape[2] not in (1, 3):
        a = a.transpose(1, 2, 0)
    if a.ndim == 3 and a.shape[2] == 1:
        a = a[:, :, 0]
    if not (a.ndim == 2 or (a.ndim == 3 and a.shape[2] == 3)) or a.size == 0 or 1 in a.shape[:2]:
        return None
    a = a[:: -(-a.shape[0] // _MOST), :: -(-a.shape[1] // _MOST)]
    if a.dtype == np.uint8:
        return np.ascontiguousarray(a)
    b = (np.abs(a) if a.dtype.kind == "c" else a).astype("float64")
    b = 0.5 * np.nan_to_num(b, nan=0.0, posinf=0.0, neginf=0.0)  # so that no difference is too large
    low, high = float(b.min()), float(b.max())
    grey: np.ndarray[Any, Any] = ((b - low) * (255.0 / (high - low) if high > low else 0.0)).astype("uint8")
    return grey


def _png(pixels: "np.ndarray[Any, Any]") -> bytes:
    h, w = pixels.shape[:2]

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = b"".join(b"\0" + pixels[i].tobytes() for i in range(h))
    head = struct.pack(">IIBBBBB", w, h, 8, 2 if pixels.ndim == 3 else 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
