"""An .npz file whose headers claim what its arrays do not hold."""

from __future__ import annotations

import io
import zipfile

import numpy as np


def claiming(shape: tuple[int, ...], *names: str, descr: str = "<f8", body: int = 8) -> bytes:
    """The file: each array has a header with this shape, and zeros of the size `body`, compressed."""
    header, content = io.BytesIO(), io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": descr, "fortran_order": False, "shape": shape})
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in names:
            archive.writestr(f"{name}.npy", header.getvalue() + bytes(body))
    return content.getvalue()
