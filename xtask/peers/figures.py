"""What the measured runs say: medians, ratios of one round, spread, and the goals. Pure."""

import statistics


def summary(values):
    """Median, quartiles, extremes and their quotient; None for no values."""
    if not values:
        return None
    quartiles = statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else [values[0]] * 3
    return {
        "median": statistics.median(values),
        "q1": quartiles[0],
        "q3": quartiles[2],
        "min": min(values),
        "max": max(values),
        "max_over_min": max(values) / min(values) if min(values) > 0 else None,
        "runs": len(values),
    }


def values_of(rounds, name, field):
    """A field of every run of `name`."""
    return [row[name][field] for row in rounds if row.get(name, {}).get(field) is not None]


def ratios(rounds, one, other, field="gb_per_s"):
    """`one` over `other`, round by round, where both ran."""
    pairs = [(row[one][field], row[other][field]) for row in rounds if one in row and other in row]
    return [a / b for a, b in pairs if a is not None and b]


def rows(rounds, ours):
    """Every contestant's figures, the fastest first. `ours` says which of ours each is compared with."""
    names = dict.fromkeys(name for row in rounds for name in row)
    table = {
        name: {
            "gb_per_s": summary(values_of(rounds, name, "gb_per_s")),
            "cpu_s_per_gb": summary(values_of(rounds, name, "cpu_s_per_gb")),
            "ours_to_this": summary(ratios(rounds, ours(name), name)) if ours(name) != name else None,
        }
        for name in names
    }
    return dict(sorted(table.items(), key=lambda item: -item[1]["gb_per_s"]["median"]))


def best(rounds, names):
    """Whichever of `names` has the best median; None where none ran."""
    medians = {name: values_of(rounds, name, "gb_per_s") for name in names}
    medians = {name: statistics.median(values) for name, values in medians.items() if values}
    return max(medians, key=medians.get, default=None)


# What is to be reached: mode, what is compared, with what, by which field, at least (or, for a cost, at most) how much.
# "peer" stands for the peer with the best median.
GOALS = [
    ("cold", "ours", "raw-direct", "gb_per_s", 1.0),
    ("cold", "ours", "peer", "gb_per_s", 1.0),
    ("cold", "raw-direct", "fio", "gb_per_s", 0.8),
    ("cold", "ours", "raw-direct", "cpu_s_per_gb", 1.25),
    ("cold", "ours-sim", "fio", "gb_per_s", 0.95),
    ("cold", "ours-sim", "kvikio", "gb_per_s", 1.3),
    ("warm", "ours", "raw-cached", "gb_per_s", 1.0),
    ("warm", "ours", "peer", "gb_per_s", 1.5),
    ("warm", "ours-sim", "kvikio", "gb_per_s", 1.3),
]


def targets(rounds_by_mode, peers):
    """Each goal with the ratio that was measured; goals whose contestants did not run are left out."""
    found = []
    for mode, one, other, field, goal in GOALS:
        rounds = rounds_by_mode.get(mode, [])
        if other == "peer":
            other = best(rounds, peers)
        measured = summary(ratios(rounds, one, other, field)) if other else None
        if measured:
            cost = field == "cpu_s_per_gb"
            reached = measured["median"] <= goal if cost else measured["median"] >= goal
            found.append(
                {"mode": mode, "one": one, "other": other, "field": field, "goal": goal, "reached": reached}
                | {"ratio": measured}
            )
    return found


def number(value, digits=2):
    """A number for people, or a dash."""
    return "-" if value is None else f"{value:.{digits}f}"


def aligned(lines):
    """Lines of cells as text: the first column to the left, the others to the right."""
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    return [
        "  ".join(
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths))
        ).rstrip()
        for line in lines
    ]


def table(mode, figures, reasons):
    """The table of one mode for people, with a line for each contestant that did not run."""
    lines = [(mode, "GB/s", "min", "max", "max/min", "ours/this", "q1", "q3", "CPU s/GB")]
    for name, row in figures.items():
        rate, ratio, cpu = row["gb_per_s"], row["ours_to_this"] or {}, row["cpu_s_per_gb"] or {}
        lines.append(
            (name, number(rate["median"]), number(rate["min"]), number(rate["max"]), number(rate["max_over_min"]))
            + (number(ratio.get("median")), number(ratio.get("q1")), number(ratio.get("q3")))
            + (number(cpu.get("median"), 3),)
        )
    return aligned(lines) + [f"{name}: {reason}" for name, reason in reasons.items()]


def target_lines(found):
    """The goals for people."""
    if not found:
        return []
    lines = [("goal", "at", "median", "q1", "q3", "min", "max", "")]
    for goal in found:
        cost = goal["field"] == "cpu_s_per_gb"
        ratio = goal["ratio"]
        lines.append(
            (
                f"{goal['mode']}: {goal['one']} / {goal['other']}" + (", CPU" if cost else ""),
                f"{'<=' if cost else '>='} {goal['goal']}",
                *(number(ratio[key]) for key in ("median", "q1", "q3", "min", "max")),
                "reached" if goal["reached"] else "MISSED",
            )
        )
    return aligned(lines)
