"""How each loader loads: a process that gets ready, waits for a line, loads, and says what it took.

    loaders.py NAME FOLDER [OPTION=VALUE]...

Ready means imported, and connected to the driver: neither is in the time. The time runs until every tensor is in memory
of its own; opening, parsing and allocating are in it. Each loader is a function that gets ready and returns the load.
"""

import contextlib
import ctypes
import glob
import json
import mmap
import os
import resource
import struct
import sys
import threading
import time

CHUNK = 4 << 20


def files_of(folder):
    """The files of a model, in order."""
    return sorted(glob.glob(os.path.join(folder, "*.safetensors")))


def safetensors(files):
    """The library of the format: maps the file, then every tensor is copied out of it."""
    from safetensors.torch import load_file

    return lambda: [{name: tensor.clone() for name, tensor in load_file(path).items()} for path in files]


def fastsafetensors(files, max_threads="16"):
    """fastsafetensors, by its own readers, since there is no GPU to read into."""
    from fastsafetensors import SafeTensorsFileLoader, SingleGroup
    from fastsafetensors.frameworks import get_framework_op

    # It imports torch at its first use, which would be in the time.
    get_framework_op("pytorch")

    def load():
        loader = SafeTensorsFileLoader(SingleGroup(), device="cpu", nogds=True, max_threads=int(max_threads))
        loader.add_filenames({0: files})
        buffers = loader.copy_files_to_device()
        return loader, buffers, {name: buffers.get_tensor(name) for name in loader.get_keys()}

    return load


def runai(files):
    """Run:ai Model Streamer, which hands tensors out as they arrive."""
    from runai_model_streamer import SafetensorsStreamer

    def load():
        with SafetensorsStreamer() as streamer:
            streamer.stream_files(files)
            return dict(streamer.get_tensors())

    return load


def kvikio(files):
    """kvikio into device memory: one allocation and one parallel read a file, as its own users do it."""
    import kvikio as library

    driver = Driver()

    def load():
        with contextlib.ExitStack() as stack:
            reads = []
            for path in files:
                memory = driver.allocate(os.path.getsize(path))
                file = stack.enter_context(library.CuFile(path))
                reads.append((path, header(path), memory, file.pread(memory)))
            for path, _, memory, future in reads:
                if future.get() != memory.size:
                    raise SystemExit(f"{path}: short read")
            return reads

    return load


class Driver:
    """The CUDA driver by ctypes: a simulated one has no CUDA runtime for cupy to stand on."""

    def __init__(self):
        self.library = ctypes.CDLL("libcuda.so.1")
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self.call("cuInit", 0)
        self.call("cuDeviceGet", ctypes.byref(device), 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.call("cuCtxSetCurrent", context)

    def call(self, name, *arguments):
        """A function of the driver; anything but success ends the program."""
        status = getattr(self.library, name)(*arguments)
        if status:
            raise SystemExit(f"{name}: {status}")

    def allocate(self, size):
        """Device memory, never freed: the process ends with its load."""
        address = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
        return DeviceMemory(address.value, size)


class DeviceMemory:
    """Device memory as other libraries understand it."""

    def __init__(self, address, size):
        self.size = size
        self.__cuda_array_interface__ = {
            "shape": (size,),
            "typestr": "|u1",
            "data": (address, False),
            "version": 3,
        }


def header(path):
    """The header of a safetensors file, parsed: what turns an address into tensors."""
    with open(path, "rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        return json.loads(file.read(length))


def raw_direct(files):
    """Four threads of plain O_DIRECT reads, 4 MiB each, into fresh huge pages: what direct reading costs at least."""
    return lambda: read_into([memory(os.path.getsize(path)) for path in files], files, 4, os.O_DIRECT)


def raw_cached(files):
    """Two threads of plain reads into fresh huge pages: what loading from the page cache costs at least."""
    return lambda: read_into([memory(os.path.getsize(path)) for path in files], files, 2, 0)


def touched(files):
    """The same into memory that was touched before: no loader lands in such memory, it is the memory's own limit."""
    targets = [memory(os.path.getsize(path)) for path in files]
    for target in targets:
        for offset in range(0, len(target), 4096):
            target[offset] = 1
    return lambda: read_into(targets, files, 2, 0)


def memory(size):
    """Fresh private memory in huge pages, with room for a direct read that is rounded up."""
    block = mmap.mmap(-1, (size + CHUNK - 1) // CHUNK * CHUNK, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    block.madvise(mmap.MADV_HUGEPAGE)
    return block


def read_into(targets, files, threads, flags):
    """Reads every file into its target, in chunks, by so many threads."""
    fds = [os.open(path, os.O_RDONLY | flags) for path in files]
    sizes = [os.path.getsize(path) for path in files]
    work = [(index, offset) for index, size in enumerate(sizes) for offset in range(0, size, CHUNK)]
    failures = []

    def run(first):
        for index, offset in work[first::threads]:
            want, done = min(CHUNK, sizes[index] - offset), 0
            with memoryview(targets[index]) as view:
                while done < want:
                    got = os.preadv(fds[index], [view[offset + done : offset + CHUNK]], offset + done)
                    if got == 0:
                        failures.append(f"{files[index]}: short read")
                        return
                    done += got

    workers = [threading.Thread(target=run, args=(first,)) for first in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    for fd in fds:
        os.close(fd)
    if failures:
        raise SystemExit(failures[0])
    return targets


LOADERS = {
    "safetensors": safetensors,
    "fastsafetensors": fastsafetensors,
    "runai": runai,
    "kvikio": kvikio,
    "raw-direct": raw_direct,
    "raw-cached": raw_cached,
    "touched": touched,
}


def cpu_seconds():
    """User and system seconds of this process so far."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def main():
    name, folder, *options = sys.argv[1:]
    load = LOADERS[name](files_of(folder), **dict(option.split("=", 1) for option in options))
    print("ready", flush=True)
    sys.stdin.readline()
    cpu, start = cpu_seconds(), time.perf_counter()
    kept = load()
    seconds, cpu = time.perf_counter() - start, cpu_seconds() - cpu
    print(json.dumps({"seconds": seconds, "cpu_s": cpu}), flush=True)
    # Nothing is freed in turn: that takes time that nobody measures.
    del kept
    os._exit(0)


if __name__ == "__main__":
    main()
