"""Who is measured: how each is started, with which settings, and how a run of it is read."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from dataclasses import dataclass, field

from loaders import files_of
from memory import settle

HERE = os.path.dirname(os.path.abspath(__file__))
LIMIT_S = 300


class Failed(Exception):
    """A run that gave no figures, and why."""


@dataclass(frozen=True)
class Setting:
    """What a loader can be told: environment variables, and options of loaders.py."""

    environment: dict = field(default_factory=dict)
    options: dict = field(default_factory=dict)

    def __str__(self):
        named = [f"{name}={value}" for name, value in (self.environment | self.options).items()]
        return " ".join(named) or "defaults"


def kvikio(threads, task_mib, direct):
    """kvikio reads by its own threads where there is no GPUDirect Storage; their number and their pieces matter."""
    return Setting(
        {
            "KVIKIO_COMPAT_MODE": "ON",
            "KVIKIO_NTHREADS": str(threads),
            "KVIKIO_TASK_SIZE": str(task_mib << 20),
            "KVIKIO_BOUNCE_BUFFER_SIZE": str(task_mib << 20),
            "KVIKIO_AUTO_DIRECT_IO_READ": "on" if direct else "off",
        }
    )


def runai(strategy):
    """Run:ai's streamer by one of its ways to read files."""
    return Setting({"RUNAI_STREAMER_FS_STRATEGY": strategy})


def fastsafetensors(direct, threads):
    """fastsafetensors with or without O_DIRECT."""
    return Setting({"FASTSAFETENSORS_ODIRECT": str(int(direct))}, {"max_threads": str(threads)})


# What is tried before the rounds, in which each is measured at its best. The first is what a user gets untold.
SETTINGS = {
    ("cold", "kvikio"): [kvikio(4, 4, True), kvikio(8, 4, True), kvikio(4, 16, True), kvikio(8, 4, False)],
    ("warm", "kvikio"): [kvikio(2, 4, False), kvikio(4, 4, False), kvikio(4, 16, False), kvikio(8, 1, False)],
    ("cold", "runai"): [Setting(), runai("io_uring_direct"), runai("libaio_direct")],
    ("warm", "runai"): [Setting(), runai("sync_buffered"), runai("io_uring_buffered")],
    ("cold", "fastsafetensors"): [Setting(), fastsafetensors(True, 4), fastsafetensors(False, 16)],
    ("warm", "fastsafetensors"): [Setting(), fastsafetensors(False, 16), fastsafetensors(False, 2)],
}

FIO_SHAPES = (("1M", 8), ("4M", 4), ("4M", 8))


@dataclass
class Bench:
    """What is measured, and with what."""

    folder: str
    gds: str
    # The environment of the simulated driver.
    simulator: dict

    def __post_init__(self):
        self.files = files_of(self.folder)
        self.bytes = sum(os.path.getsize(path) for path in self.files)

    def start(self, name, setting, count=1):
        """Starts so many runs of `name` at once, each ready as far as it can be, and on memory as good as any other's."""
        waits = not name.startswith("ours")
        if not waits:
            self.settle(count)
        children = [self.child(name, setting) for _ in range(count)]
        if waits:
            for child in children:
                child.wait_until_ready()
            self.settle(count)
        for child in children:
            child.go()
        return children

    def settle(self, count):
        """Memory for the tensors of so many, and for the page cache in which some read them first."""
        settle((count + 1) * self.bytes + (256 << 20))

    def child(self, name, setting):
        """A process for a run of `name`."""
        simulated = name in ("ours-sim", "kvikio")
        environment = os.environ | (self.on_simulator() if simulated else {}) | setting.environment
        if name.startswith("ours"):
            device = "cuda:0" if simulated else "cpu"
            command = [self.gds, "load", self.folder, "--device", device, "--json", "--progress", "never"]
            command += ["--backend", "direct"] if name == "ours-direct" else []
        else:
            options = [f"{key}={value}" for key, value in setting.options.items()]
            command = [sys.executable, os.path.join(HERE, "loaders.py"), name, self.folder, *options]
        return Child(command, environment)

    def on_simulator(self):
        """The simulated driver, with its device memory there before the load, as a GPU's is: the model and what is aligned."""
        return self.simulator | {"CUDA_SIM_RESIDENT": str(self.bytes + (256 << 20))}

    def run(self, name, setting):
        """One run of `name`: rate and cost, by the whole size of the files."""
        if name == "fio":
            return self.fio()
        (child,) = self.start(name, setting)
        return self.measured(child.finish())

    def measured(self, said):
        """What a process said, per byte."""
        size = self.bytes / 1e9
        return {
            "seconds": said["seconds"],
            "gb_per_s": size / said["seconds"],
            "cpu_s_per_gb": said["cpu_s"] / size,
            "disk_bytes": said["disk_bytes"],
        }

    def fio(self):
        """fio's best direct read of the files: the disk's limit, as far as fio finds it."""
        return max((self.fio_read(block, depth) for block, depth in FIO_SHAPES), key=lambda run: run["gb_per_s"])

    def fio_read(self, block, depth):
        """fio reading every file once, with so many reads in flight."""
        command = ["fio", "--name=read", "--readonly", f"--filename={':'.join(self.files)}", "--rw=read"]
        command += [f"--bs={block}", f"--iodepth={depth}", "--direct=1", "--ioengine=io_uring", "--output-format=json"]
        out = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)
        if out.returncode:
            raise Failed(last_line(out.stderr) or f"fio ended with {out.returncode}")
        job = json.loads(out.stdout[out.stdout.index("{") :])["jobs"][0]
        read = job["read"]
        seconds = read["io_bytes"] / read["bw_bytes"]
        cpu = (job["usr_cpu"] + job["sys_cpu"]) / 100 * seconds
        return self.measured({"seconds": seconds, "cpu_s": cpu, "disk_bytes": read["io_bytes"]})


class Child:
    """A process that loads once and prints an object with its seconds."""

    def __init__(self, command, environment):
        # A file: a pipe that nobody reads would stop the process.
        self.errors = tempfile.TemporaryFile("w+", errors="replace")
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors, text=True, env=environment
        )
        self.timer = threading.Timer(LIMIT_S, self.process.kill)
        self.timer.daemon = True
        self.timer.start()

    def wait_until_ready(self):
        """Returns once it only waits for the word; some libraries talk before."""
        for line in self.process.stdout:
            if line.strip() == "ready":
                return
        self.finish()

    def go(self):
        """Gives the word, once; a program that wants none does not mind."""
        with contextlib.suppress(BrokenPipeError, ValueError):
            self.process.stdin.write("\n")
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()

    def finish(self):
        """Waits for its end; what it said, with its CPU seconds and what it made the disk read."""
        text = self.process.stdout.read()
        self.process.stdout.close()
        self.go()
        _, status, usage = os.wait4(self.process.pid, 0)
        self.process.returncode = os.waitstatus_to_exitcode(status)
        self.timer.cancel()
        self.errors.seek(0)
        reason = last_line(self.errors.read())
        self.errors.close()
        if self.process.returncode:
            raise Failed(f"ended with {self.process.returncode}: {reason}")
        if "{" not in text:
            raise Failed(f"printed no figures: {last_line(text)}")
        said = json.loads(text[text.index("{") :])
        # Where a program does not say itself, the whole process counts, its start included.
        said.setdefault("cpu_s", usage.ru_utime + usage.ru_stime)
        return said | {"disk_bytes": usage.ru_inblock * 512}


def last_line(text):
    """The last line that says something."""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")


def missing(name, simulator):
    """Why `name` cannot be measured here at all; None where it can."""
    if name == "fio" and not shutil.which("fio"):
        return "fio is not installed"
    if name in ("ours-sim", "kvikio") and not simulator:
        return "no simulated driver was named"
    return None
