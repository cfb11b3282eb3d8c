"""Screenshots as pictures of the documentation: 192 colours, no wider than ``MOST_WIDE``.

THEMIS_SHOTS=shots pytest tests/web && python tests/web/photographs.py shots docs/img users fairness
make picture    # of one file: python tests/web/photographs.py SHOT.png TARGET.png
"""

from __future__ import annotations

import struct
import sys
import zlib
from pathlib import Path

import matplotlib.image
import numpy as np
from numpy.typing import NDArray

COLOURS, MOST_WIDE = 192, 1600
Pixels = NDArray[np.uint8]


def indexed(pixels: Pixels) -> tuple[Pixels, Pixels]:
    """([H, W] numbers, [C, 3] colours): the most frequent colours, each pixel by the nearest of them."""
    flat = pixels.reshape(-1, 3)
    coarse, inverse, count = np.unique(flat & 0xF8, axis=0, return_inverse=True, return_counts=True)
    chosen = np.argsort(-count, kind="stable")[:COLOURS]
    sums = np.stack([np.bincount(inverse.ravel(), weights=flat[:, k]) for k in range(3)], axis=1)
    palette = np.round(sums[chosen] / count[chosen, None]).astype(np.uint8)
    distance = ((coarse[:, None, :].astype(int) + 4 - palette[None].astype(int)) ** 2).sum(axis=2)
    nearest = distance.argmin(axis=1).astype(np.uint8)
    return nearest[inverse.ravel()].reshape(pixels.shape[:2]), palette


def png(numbers: Pixels, palette: Pixels) -> bytes:
    """A PNG of indexed colours."""
    height, width = numbers.shape
    rows = np.concatenate([np.zeros((height, 1), dtype=np.uint8), numbers], axis=1).tobytes()
    parts = (
        (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)),
        (b"PLTE", palette.tobytes()),
        (b"IDAT", zlib.compress(rows, 9)),
        (b"IEND", b""),
    )
    chunks = [
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in parts
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def reduce(shot: Path, target: Path) -> None:
    """Write a screenshot with fewer colours."""
    read = matplotlib.image.imread(shot)[..., :3]
    target.write_bytes(png(*indexed(np.round(read * 255).astype(np.uint8))))


def main(shots: Path, folder: Path, names: list[str]) -> None:
    """Write ``console-NAME.png`` of each page, from its light screenshot at 1,600 px."""
    for name in names:
        reduce(shots / f"console-{name}-{MOST_WIDE}-light.png", folder / f"console-{name}.png")


if __name__ == "__main__":
    if len(sys.argv) == 3:
        reduce(Path(sys.argv[1]), Path(sys.argv[2]))
    else:
        main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
