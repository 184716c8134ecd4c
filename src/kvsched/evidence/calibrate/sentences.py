"""What a calibration comes to, in words."""

from __future__ import annotations

from collections.abc import Sequence

from kvsched.evidence.calibrate.fitting import Fitted
from kvsched.evidence.calibrate.observed import Observed
from kvsched.evidence.calibrate.result import GOAL, Error, RunCalibration

MACHINE = ("cpu", "devices")
"""Parts of an environment that tell machines apart."""
DRIFT = 0.1
"""Change of a step's time between the two parts that a reader must know."""
MANY = 0.1
"""Share of steps left out above which a reader must know."""


def sentences(
    runs: Sequence[RunCalibration], fitted: Fitted, measured: Sequence[Observed]
) -> tuple[str, ...]:
    """Return what it comes to: whether the goal is met, then what a reader must know."""
    return (_goal(runs), *_cached(runs), *_mixed(measured), *_doubts(runs, fitted))


def _errors(run: RunCalibration) -> list[tuple[str, Error]]:
    found = (("TTFT", run.ttft), ("TPOT", run.tpot))
    return [(name, each) for name, each in found if each is not None]


def _goal(runs: Sequence[RunCalibration]) -> str:
    worst = max(
        ((abs(each.error_p50), name, run) for run in runs for name, each in _errors(run)),
        key=lambda found: found[0],
        default=None,
    )
    if worst is None:
        return "The goal cannot be judged: no request kept back has a latency."
    size, name, run = worst
    met = all(each.goal_met for each in runs)
    return (
        f"The goal of {GOAL:.0%} at p50 is {'met' if met else 'missed'}: the largest error of a "
        f"median is {size:.1%}, {name} of {run.name}."
        + ("" if met or size > GOAL else " But not all requests kept back have a prediction.")
    )


def _cached(runs: Sequence[RunCalibration]) -> list[str]:
    compared = sum(run.cached.compared for run in runs)
    different = sum(run.cached.different for run in runs)
    if not compared:
        return ["The engine does not say how many prompt tokens were cached."]
    if not different:
        return [f"Cached tokens are equal for all of {compared:,} requests."]
    found = [f"Cached tokens differ for {different:,} of {compared:,} requests."]
    for run in runs:
        if run.cached.beyond_chance:
            found.append(f"{run.name}: {run.cached.note}.")
    return found


def _mixed(runs: Sequence[Observed]) -> list[str]:
    """Return what is not the same for all runs, and should be: one step time is fitted to all."""
    found = []
    engines = dict.fromkeys(run.engine_name for run in runs if run.engine_name)
    if len(engines) > 1:
        found.append(
            f"The runs are of different engines or models ({'; '.join(engines)}), and one step "
            "time cannot be that of all: calibrate on each alone."
        )
    machines = {str([run.environment.get(part) for part in MACHINE]) for run in runs}
    if len(machines) > 1:
        found.append(
            "The runs were measured on different machines, and one step time cannot be that of "
            "all: calibrate on each alone."
        )
    return found


def _doubts(runs: Sequence[RunCalibration], fitted: Fitted) -> list[str]:
    found = []
    if fitted.fit.residuals.hardly_explains:
        found.append(
            "The fit hardly explains the measured steps: the run, its workload or the model of a "
            "step do not go together, and predictions from it are worth little."
        )
    for run in runs:
        if run.unpredicted:
            found.append(
                f"{run.name}: {run.unpredicted:,} of {run.judged_requests:,} requests kept back "
                "were served, and are too long for the settings that were simulated: those are "
                "not the engine's."
            )
        if run.most_together > run.engine["max_num_seqs"]:
            found.append(
                f"{run.name}: {run.most_together:,} requests got a token in one step, and "
                f"max_num_seqs is said to be {run.engine['max_num_seqs']:,}: it is not the "
                "engine's."
            )
        if run.drift is not None and abs(run.drift - 1) > DRIFT:
            found.append(
                f"{run.name}: steps of the part kept back took {abs(run.drift - 1):.0%} "
                f"{'longer' if run.drift > 1 else 'less'} than steps alike before: the engine or "
                "its machine changed meanwhile, and no fit can know that."
            )
        if run.steps_left_out > MANY * max(run.steps_seen, 1):
            found.append(
                f"{run.name}: {run.steps_left_out:,} of {run.steps_seen:,} steps are left out, "
                "because it is not certain what they computed."
            )
    most = max((run.engine["max_num_seqs"] for run in runs), default=0)
    seen = fitted.fit.fitted_from.most_sequences
    if len(runs) == 1 and runs[0].arrivals.endswith(" 1 at a time"):
        found.append(
            "One request at a time says nothing of what a second one in a step costs: fit with "
            f"runs at higher concurrency before predicting up to {most:,} at a time."
        )
    elif seen is not None:
        found.append(f"Steps of more than {seen:,} requests are extrapolated.")
    return found
