"""What a user of PyTorch has: safetensors onto the GPU, and a pinned copy. Prints one JSON object.

    torch_load.py FOLDER cold|warm
"""

import glob
import json
import os
import statistics
import sys
import time

ROUNDS = 3
UNAVAILABLE = 3

try:
    import torch
    from safetensors.torch import load_file
except ImportError as error:
    print(error, file=sys.stderr)
    sys.exit(UNAVAILABLE)


def drop(path):
    """Puts a file's pages out of the page cache."""
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)


def load(files, cold):
    """Seconds to load every file onto the GPU, and the bytes of its tensors."""
    if cold:
        for path in files:
            drop(path)
    start = time.perf_counter()
    kept = [load_file(path, device="cuda:0") for path in files]
    torch.cuda.synchronize()
    seconds = time.perf_counter() - start
    return seconds, sum(tensor.nbytes for tensors in kept for tensor in tensors.values())


def pinned_copy(size):
    """Seconds to copy pinned memory onto the GPU."""
    source = torch.empty(size, dtype=torch.uint8, pin_memory=True)
    target = torch.empty(size, dtype=torch.uint8, device="cuda:0")
    seconds = []
    for _ in range(ROUNDS + 1):
        start = time.perf_counter()
        target.copy_(source, non_blocking=True)
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds[1:])


def main():
    files, cold = sorted(glob.glob(os.path.join(sys.argv[1], "*.safetensors"))), sys.argv[2] == "cold"
    if not torch.cuda.is_available():
        print("PyTorch sees no GPU", file=sys.stderr)
        sys.exit(UNAVAILABLE)
    torch.zeros(1, device="cuda:0")
    if not cold:
        load(files, False)
    runs = [load(files, cold) for _ in range(ROUNDS)]
    rates = [size / seconds / 1e9 for seconds, size in runs]
    size = 1 << 30
    found = {
        "torch": torch.__version__,
        "gb_per_s": statistics.median(rates),
        "rates": rates,
        "pinned_copy_gb_per_s": size / pinned_copy(size) / 1e9,
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
