"""Memory for the next process: what it gets is to have been in use just now.

A virtual machine gives memory that has been free for some seconds back to its host (free page reporting), and taking it again
costs ten times what first touches cost otherwise. Whoever started at the wrong moment would pay for that.
"""

import mmap

PAGE = 4096


def available():
    """Bytes that could be taken without harm to others."""
    with open("/proc/meminfo", encoding="ascii") as lines:
        kib = next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))
    return kib << 10


def settle(size):
    """Takes so much memory, touches all of it and gives it back; less where that is more than half of what there is."""
    size = min(size, available() // 2) // PAGE * PAGE
    with mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as block:
        block.madvise(mmap.MADV_HUGEPAGE)
        for offset in range(0, size, PAGE):
            block[offset] = 1
