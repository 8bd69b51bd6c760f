"""`import allformer` against `import torch`: fresh processes in turn, medians.

python benchmarks/import_time.py
"""

from __future__ import annotations

import statistics
import subprocess
import sys

TIMED = "import time; t = time.perf_counter(); import {}; print(time.perf_counter() - t)"


def main(repeats: int = 15) -> None:
    times: dict[str, list[float]] = {"torch": [], "allformer": []}
    for _ in range(repeats):
        for name, row in times.items():
            command = [sys.executable, "-c", TIMED.format(name)]
            row.append(float(subprocess.run(command, capture_output=True, check=True).stdout))
    median = {name: statistics.median(row) for name, row in times.items()}
    ratio = median["allformer"] / median["torch"]
    print(f"torch {median['torch']:.2f} s, allformer {median['allformer']:.2f} s: {ratio:.3f} ×")


if __name__ == "__main__":
    main()
