"""Run folders written by hand: records without training."""

import json

from fedsense.work import stream


def about(method, seed, clients, rounds, classes=("walk", "sit")):
    return {
        "method": method,
        "seed": seed,
        "settings": {"rounds": rounds},
        "model": {"names": ["coad-cnn"]},
        "federation": "made-up",
        "synthetic": True,
        "task": {"classes": list(classes)},
        "clients": {name: {"train": 40, "val": 0, "test": 20} for name in clients},
    }


def scores(rounds_and_values, metrics=("accuracy",), views=("personal",)):
    """One line an evaluated round: client → value, the same in every view and metric."""
    return [
        {
            "round": number,
            "scores": {view: {"val": {}, "test": dict.fromkeys(metrics, values)} for view in views},
        }
        for number, values in rounds_and_values
    ]


def ledger(clients, rounds):
    entry = {"down": {"model": 1000, "header": 10}, "up": {"model": 1000}, "seconds": 0.5, "peak_memory_bytes": 10**8}
    return [{"round": r, "clients": dict.fromkeys(clients, entry)} for r in range(1, rounds + 1)]


def write(folder, facts, **files):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "run.json").write_text(json.dumps(facts))
    for name, lines in files.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def large(folder, clients=200, rounds=300, methods=("fedapa",)):
    """Scores that rise, with noise; who learns from whom in the last rounds."""
    names = [f"person-{i:03}-watch" for i in range(clients)]
    for number, method in enumerate(methods):
        values = stream("large", method).normal(0, 0.05, (rounds, clients))
        lines = [
            (
                r + 1,
                {
                    c: round(0.5 + 0.1 * number + 0.3 * r / rounds + float(v), 6)
                    for c, v in zip(names, row, strict=True)
                },
            )
            for r, row in enumerate(values)
        ]
        seen = []
        if method == "fedapa":
            weights = {a: {names[(i + k) % clients]: 0.05 for k in range(20)} for i, a in enumerate(names)}
            seen = [{"round": rounds, "collaboration": {str(c): weights for c in range(10)}}]
        history = scores(lines, ("accuracy", "macro-f1"), ("personal", "generalisation", "global"))
        facts = about(method, 0, names, rounds, [f"activity {c}" for c in range(10)])
        write(folder / f"{method}-seed0", facts, scores=history, ledger=ledger(names, rounds), observations=seen)
    return folder
