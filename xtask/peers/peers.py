"""Times the loaders that a user would pick instead, beside ours, on the same files in one run.

Every contestant runs in a process of its own, round after round, in an order shuffled each round, so that the machine's
drift and what the one before left hit all alike. cold: the files' pages are dropped, and seen to be gone, before each run.
warm: all of them are in the page cache before. Ratios are taken within a round; the median and the quartiles of these say
more than a quotient of medians. Peers that have settings are tried with several before the rounds, and then run with
the best. The baselines read plainly into memory as fresh as any loader's.

`cargo xtask peers` installs the peers and starts this.
"""

import argparse
import json
import os
import platform
import random
import statistics
import sys

import contestants
import figures
import pages
from contestants import SETTINGS, Bench, Failed, Setting

PEERS = ["safetensors", "fastsafetensors", "runai"]
ON_CPU = {"cold": ["ours", *PEERS, "raw-direct", "fio"], "warm": ["ours", *PEERS, "raw-cached", "touched"]}
ON_SIM = {"cold": ["ours-sim", "kvikio", "fio"], "warm": ["ours-sim", "kvikio"]}
TOGETHER = ["ours", "ours-direct", "safetensors"]


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", help="a folder of .safetensors files of your own")
    parser.add_argument("--gds", required=True, help="the program to compare with")
    parser.add_argument("--simulator", metavar="FILE", help="NAME=VALUE lines that put a program on the simulated driver")
    parser.add_argument("--peers", help="only these, comma separated: " + ",".join([*PEERS, "kvikio"]))
    parser.add_argument("--missing", action="append", default=[], metavar="PEER=REASON", help="a peer that is not there")
    parser.add_argument("--modes", default="cold,warm")
    parser.add_argument("--device", default="cpu,sim", help="cpu, sim (the simulated GPU) or both")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--tries", type=int, default=2, help="runs of each setting of a peer before the rounds")
    parser.add_argument("--processes", type=int, default=0, metavar="N", help="N loaders at once of the same files")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parsed = parser.parse_args()
    unknown = set(parsed.modes.split(",")) - set(ON_CPU) | set(parsed.device.split(",")) - {"cpu", "sim"}
    if unknown or parsed.rounds < 1:
        parser.error(f"cannot measure {', '.join(sorted(unknown)) or 'no rounds'}")
    return parsed


def names_of(mode, devices, peers):
    """Who runs in a mode."""
    both = (ON_CPU[mode] if "cpu" in devices else []) + (ON_SIM[mode] if "sim" in devices else [])
    wanted = [name for name in both if peers is None or name in peers or name not in [*PEERS, "kvikio"]]
    return list(dict.fromkeys(wanted))


def ours_beside(name):
    """Which of ours a contestant is compared with: the one with the same destination."""
    return "ours-sim" if name in ("ours-sim", "kvikio") else "ours"


def say(text):
    """Progress, for whoever waits."""
    print(text, file=sys.stderr, flush=True)


class Measurement:
    """Runs in one mode; remembers why a contestant is out."""

    def __init__(self, bench, mode, reasons):
        self.bench, self.mode, self.reasons = bench, mode, reasons
        self.unproven = 0

    def run(self, name, setting):
        """A run on files that are cold or warm as they should be; None, with a reason kept, where there was none."""
        if not any(pages.prepare(self.bench.files, self.mode) for _ in range(2)):
            self.unproven += 1
            say(f"{name}: not counted, since the page cache would not become {self.mode}")
            return None
        try:
            return self.bench.run(name, setting)
        except Failed as failed:
            self.reasons[name] = str(failed)
            say(f"{name}: {failed}")
            return None

    def best_setting(self, name, tries):
        """The setting with the best single run of `tries`."""
        settings = SETTINGS.get((self.mode, name), [Setting()])
        if len(settings) == 1 or tries < 1:
            return settings[0]
        rates = {}
        for turn in range(tries):
            for index in random.Random(turn).sample(range(len(settings)), len(settings)):
                if measured := self.run(name, settings[index]):
                    rates[index] = max(rates.get(index, 0.0), measured["gb_per_s"])
        if rates:
            # A setting that this machine refuses is no reason against the others.
            self.reasons.pop(name, None)
        chosen = settings[max(rates, key=rates.get, default=0)]
        say(f"{self.mode}: {name} runs with {chosen}")
        return chosen

    def rounds(self, settings, count):
        """The rounds: a run of each, by name."""
        done = []
        for turn in range(count):
            row = {}
            for name in random.Random(turn).sample(sorted(settings), len(settings)):
                if name not in self.reasons and (measured := self.run(name, settings[name])):
                    row[name] = measured
            done.append(row)
            rates = ", ".join(f"{name} {run['gb_per_s']:.2f}" for name, run in row.items())
            say(f"{self.mode} {turn + 1}/{count}: {rates} GB/s")
        return done


def compare(bench, parsed, missing):
    """Everyone against each other, in every mode; the whole result."""
    result = {"machine": machine(bench), "modes": {}}
    by_mode = {}
    for mode in parsed.modes.split(","):
        names = names_of(mode, parsed.device.split(","), parsed.peers)
        reasons = {name: missing.get(name) or contestants.missing(name, bench.simulator) for name in names}
        reasons = {name: reason for name, reason in reasons.items() if reason}
        measurement = Measurement(bench, mode, reasons)
        settings = {name: measurement.best_setting(name, parsed.tries) for name in names if name not in reasons}
        by_mode[mode] = measurement.rounds(settings, parsed.rounds)
        result["modes"][mode] = {
            "figures": figures.rows(by_mode[mode], ours_beside),
            "settings": {name: str(setting) for name, setting in settings.items()},
            "not_run": measurement.reasons,
            "runs_not_counted": measurement.unproven,
            "rounds": by_mode[mode],
        }
    result["targets"] = figures.targets(by_mode, PEERS)
    return result


def together(bench, parsed, missing):
    """N processes at once of the same cold files: the slowest's time, and what all of them made the disk read."""
    done = {name: [] for name in TOGETHER if name not in missing}
    for turn in range(parsed.rounds):
        for name in random.Random(turn).sample(sorted(done), len(done)):
            pages.prepare(bench.files, "cold")
            processes = [bench.start(name, Setting()) for _ in range(parsed.processes)]
            for process in processes:
                process.go()
            said = [process.finish() for process in processes]
            seconds, disk = max(one["seconds"] for one in said), sum(one["disk_bytes"] for one in said)
            done[name].append({"seconds": seconds, "disk_bytes": disk})
            say(f"{turn + 1}/{parsed.rounds}: {name}: {seconds:.2f} s, {disk / bench.bytes:.2f} times the files read")
    return {"machine": machine(bench), "processes": parsed.processes, "together": done}


def machine(bench):
    """What it was measured on, and of which size."""
    return {
        "kernel": platform.release(),
        "cpus": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "python": platform.python_version(),
        "folder": bench.folder,
        "files": len(bench.files),
        "bytes": bench.bytes,
    }


def print_comparison(result):
    print(f"{result['machine']['bytes'] / 1e9:.2f} GB in {result['machine']['files']} files")
    for mode, measured in result["modes"].items():
        print()
        for line in figures.table(mode, measured["figures"], measured["not_run"]):
            print(line)
        for name, setting in measured["settings"].items():
            if setting != str(Setting()):
                print(f"{name} with {setting}")
        if measured["runs_not_counted"]:
            print(f"{measured['runs_not_counted']} runs not counted: the page cache was not {mode}")
    print()
    for line in figures.target_lines(result["targets"]):
        print(line)


def print_together(result):
    size = result["machine"]["bytes"]
    lines = [(f"{result['processes']} at once, cold", "slowest s", "min", "max", "files read")]
    for name, runs in result["together"].items():
        seconds = [run["seconds"] for run in runs]
        read = statistics.median(run["disk_bytes"] for run in runs) / size
        cells = (statistics.median(seconds), min(seconds), max(seconds))
        lines.append((name, *(figures.number(cell) for cell in cells), f"{read:.2f} times"))
    for line in figures.aligned(lines):
        print(line)


def main():
    parsed = arguments()
    if parsed.peers is not None:
        parsed.peers = [name for name in parsed.peers.split(",") if name]
    simulator = {}
    if parsed.simulator:
        with open(parsed.simulator, encoding="utf-8") as lines:
            simulator = dict(line.rstrip("\n").split("=", 1) for line in lines)
    bench = Bench(parsed.folder, parsed.gds, simulator)
    if not bench.files:
        raise SystemExit(f"{parsed.folder} holds no .safetensors file")
    missing = dict(entry.split("=", 1) for entry in parsed.missing)
    result = (together if parsed.processes else compare)(bench, parsed, missing)
    if parsed.json:
        print(json.dumps(result, indent=1))
    elif parsed.processes:
        print_together(result)
    else:
        print_comparison(result)


if __name__ == "__main__":
    main()
