"""The page cache: how much of a file is in it, and how to make files cold or warm."""

import ctypes
import os

LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.mmap.restype = ctypes.c_void_p
LIBC.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
LIBC.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
LIBC.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]
PROT_READ, MAP_SHARED = 1, 1
MAP_FAILED = ctypes.c_void_p(-1).value

PAGE = os.sysconf("SC_PAGE_SIZE")
READ_SIZE = 8 << 20


def resident(path):
    """The share of a file's pages in the page cache, 0.0 to 1.0.

    By mincore, which says "all" of a file that one may neither own nor write: such files are never proven cold.
    """
    size = os.path.getsize(path)
    if size == 0:
        return 1.0
    pages = ctypes.create_string_buffer((size + PAGE - 1) // PAGE)
    fd = os.open(path, os.O_RDONLY)
    address = LIBC.mmap(None, size, PROT_READ, MAP_SHARED, fd, 0)
    os.close(fd)
    if address == MAP_FAILED:
        raise OSError(ctypes.get_errno(), "mmap", path)
    failed = LIBC.mincore(address, size, pages)
    LIBC.munmap(address, size)
    if failed:
        raise OSError(ctypes.get_errno(), "mincore", path)
    return sum(page & 1 for page in pages.raw) / len(pages)


def drop(path):
    """Puts a file's pages out of the page cache, those that are still to be written included."""
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)


def fill(path):
    """Brings all of a file into the page cache."""
    with open(path, "rb", buffering=0) as file:
        while file.read(READ_SIZE):
            pass


def prepare(files, mode):
    """Makes the files cold or warm, and returns whether they are."""
    if mode == "cold":
        for path in files:
            drop(path)
        return all(resident(path) <= 0.01 for path in files)
    for path in files:
        if resident(path) < 1.0:
            fill(path)
    return all(resident(path) >= 0.99 for path in files)
