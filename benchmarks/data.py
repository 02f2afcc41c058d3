"""Loading real recordings, cold and warm, beside a plain pandas/numpy script that does the same.

    python benchmarks/data.py [--folder FOLDER] [--runs 3] [NAME ...]

Every measurement is a process of its own. Plain script and fedsense take turns in one run, so that a busy machine is
busy for both; what counts is the ratio. The plain script reads, cuts, splits and normalises as a researcher would write
it, without caches, checks or messages. "cold" has an empty cache; "warm" is the second load.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

ARCHIVES = {
    "hapt": "hapt.tar.xz",
    "wisdm2019": "wisdm2019-watch.tar.xz",
    "sp-sw-har": "sp-sw-har.tar.xz",
    "wical": "wical-counting.npz",
    "ssvep-exo": "ssvep-exo.tar.xz",
    "mnist": "mnist.tar",
    "usps": "usps.tar.xz",
    "cifar10": "cifar10-subset.tar.xz",
}
Part = tuple[np.ndarray, np.ndarray]


def members(path: Path) -> dict[str, bytes]:
    import tarfile

    with tarfile.open(path) as archive:
        return {m.name: archive.extractfile(m).read() for m in archive if m.isfile()}  # type: ignore[union-attr]


Windows = tuple[list[np.ndarray], list[int], list[int]]  # windows, labels, and the last time step of each


def cut(signal: np.ndarray, labels: np.ndarray, window: int, step: int) -> Windows:
    x, y, stops = [], [], []
    edges = np.concatenate([[0], np.flatnonzero(np.diff(labels)) + 1, [len(labels)]])
    for begin, end in itertools.pairwise(edges):
        if labels[begin] >= 0:
            for start in range(begin, end - window + 1, step):
                x.append(signal[start : start + window].T)
                y.append(int(labels[begin]))
                stops.append(start + window)
    return x, y, stops


def added(clients: dict[str, Windows], name: str, more: Windows) -> None:
    """Another recording of a client, a long time after the one before."""
    mine = clients.setdefault(name, ([], [], []))
    later = mine[2][-1] + 10_000 if mine[2] else 0
    mine[0].extend(more[0])
    mine[1].extend(more[1])
    mine[2].extend(stop + later for stop in more[2])


def finished(clients: dict[str, Windows], window: int) -> dict[str, list[Part]]:
    """Of every class the last 30 % to test, 10 % before to validate; nothing shared; scaled by what is trained on."""
    result = {}
    for name, (windows, labels, ends) in clients.items():
        x, y, stops = np.stack(windows).astype(np.float32), np.array(labels), np.array(ends)
        side = np.zeros(len(y), int)
        for label in np.unique(y):
            places = np.flatnonzero(y == label)
            test = len(places) - round(0.3 * len(places))
            val = test - round(0.1 * len(places))
            side[places[val:test]], side[places[test:]] = 1, 2
            for border in (val, test):
                if 0 < border < len(places):
                    before = places[:border]
                    side[before[stops[before] > stops[places[border]] - window]] = -1
        mean, deviation = x[side == 0].mean((0, 2), keepdims=True), x[side == 0].std((0, 2), keepdims=True) + 1e-6
        x = (x - mean) / deviation
        result[name] = [(x[side == number], y[side == number]) for number in range(3)]
    return result


def dealt(train: Part, test: Part, clients: int) -> list[list[Part]]:
    """A tenth of every class to validate; all dealt at random; bytes as shares of 255."""
    rng = np.random.default_rng(0)
    held = np.zeros(len(train[1]), bool)
    for label in np.unique(train[1]):
        places = rng.permutation(np.flatnonzero(train[1] == label))
        held[places[: len(places) // 10]] = True
    parts = []
    for x, y in ((train[0][~held], train[1][~held]), (train[0][held], train[1][held]), test):
        shares = np.array_split(rng.permutation(len(x)), clients)
        parts.append([(x[share].astype(np.float32) / 255, y[share]) for share in shares])
    return parts


def plain_hapt(path: Path) -> object:
    import io

    import pandas

    files = {name.rpartition("/")[2]: data for name, data in members(path).items()}
    segments = pandas.read_csv(io.BytesIO(files["labels.txt"]), sep=r"\s+", header=None).to_numpy()
    clients: dict[str, Windows] = {}
    for name in sorted(n for n in files if n.startswith("acc_exp")):
        pair = [
            pandas.read_csv(io.BytesIO(files[n]), sep=r"\s+", header=None).to_numpy(np.float32)
            for n in (name, name.replace("acc", "gyro"))
        ]
        signal = np.concatenate(pair, axis=1)
        experiment, user = name[len("acc_exp") : -len(".txt")].split("_user")
        labels = np.full(len(signal), -1)
        for number, _, activity, first, last in segments:
            if number == int(experiment):
                labels[first : last + 1] = activity - 1
        added(clients, user, cut(signal, labels, 128, 64))
    return finished(clients, 128)


def plain_wisdm2019(path: Path) -> object:
    import io

    import pandas

    clients = {}
    for name, data in members(path).items():
        if "_accel_" in name:
            table = pandas.read_csv(
                io.BytesIO(data.replace(b";", b"")), header=None, names=["user", "code", "x", "y", "z"]
            )
            labels = table["code"].map({c: i for i, c in enumerate("ABCDEFGHIJKLMOPQRS")}).to_numpy()
            clients[name] = cut(table[["x", "y", "z"]].to_numpy(np.float32), labels, 200, 100)
    return finished({name: client for name, client in clients.items() if client[0]}, 200)


def plain_sp_sw_har(path: Path) -> object:
    import io

    import pandas

    clients: dict[str, Windows] = {}
    numbers: dict[str, int] = {}
    for name, data in members(path).items():
        if name.endswith(("_sp.csv", "_sw.csv")):
            table = pandas.read_csv(io.BytesIO(data))
            labels = np.array([numbers.setdefault(label, len(numbers)) for label in table["label"]])
            base = name.rpartition("/")[2]
            added(clients, base[:4] + base[-6:-4], cut(table.iloc[:, :6].to_numpy(np.float32), labels, 50, 25))
    return finished(clients, 50)


def plain_wical(path: Path) -> object:
    with np.load(path) as archive:
        x, y, room, session = (archive[name] for name in ("X", "people", "room", "session"))
    clients = {}
    for number in np.unique(room):
        for day in np.unique(session):
            mine = (room == number) & (session == day)
            if mine.any():
                clients[f"{number}-{day}"] = (list(x[mine][:, None]), y[mine].tolist(), list(range(mine.sum())))
    return finished(clients, 2)  # neighbours share measurements


def plain_ssvep_exo(path: Path) -> object:
    import io

    import mne
    from pyriemann.estimation import Covariances
    from pyriemann.tangentspace import TangentSpace
    from scipy.signal import butter, sosfiltfilt

    files, subjects = members(path), {}
    for name in sorted(n for n in files if n.endswith("_raw.fif")):
        raw = mne.io.read_raw_fif(io.BytesIO(files[name]), preload=True, verbose="ERROR")
        with tempfile.NamedTemporaryFile(suffix="-eve.fif") as file:
            file.write(files[name.replace("_raw.fif", "-eve.fif")])
            file.flush()
            events = mne.read_events(file.name, verbose="ERROR")
        signal = raw.get_data() * 1e6
        bands = [(12.5, 13.5), (16.5, 17.5), (20.5, 21.5)]
        filtered = np.concatenate([sosfiltfilt(butter(4, b, "bandpass", fs=256, output="sos"), signal) for b in bands])
        trials = np.stack([filtered[:, e + 512 : e + 1280] for e in events[:, 0]])
        subjects.setdefault(name.split("/")[-2], []).append((Covariances("lwf").transform(trials), events[:, 2]))
    result = {}
    for name, sessions in subjects.items():
        train = np.concatenate([c for c, _ in sessions[:-1]])
        space = TangentSpace().fit(train)
        result[name] = (space.transform(train), space.transform(sessions[-1][0]))
    return result


def plain_mnist(path: Path) -> object:
    import gzip

    files = {name.rpartition("/")[2]: gzip.decompress(data) for name, data in members(path).items()}
    parts = []
    for part in ("train", "t10k"):
        x = np.frombuffer(files[f"{part}-images-idx3-ubyte.gz"], np.uint8, offset=16).reshape(-1, 1, 28, 28)
        parts.append((x, np.frombuffer(files[f"{part}-labels-idx1-ubyte.gz"], np.uint8, offset=8).astype(np.int64)))
    return dealt(*parts, 100)


def plain_usps(path: Path) -> object:
    import gzip
    import io

    import pandas

    parts = {}
    for name, data in members(path).items():
        table = pandas.read_csv(io.BytesIO(gzip.decompress(data)), sep=r"\s+", header=None).to_numpy(np.float32)
        parts[name] = 127.5 * (table[:, 1:257].reshape(-1, 1, 16, 16) + 1), table[:, 0].astype(np.int64)
    return dealt(*(parts[name] for name in sorted(parts, reverse=True)), 100)


def plain_cifar10(path: Path) -> object:
    parts = {}
    for name, data in members(path).items():
        if name.endswith("_batch.bin") or "data_batch" in name:
            rows = np.frombuffer(data, np.uint8).reshape(-1, 3073)
            parts[name] = rows[:, 1:].reshape(-1, 3, 32, 32), rows[:, 0].astype(np.int64)
    return dealt(*(parts[name] for name in sorted(parts)), 20)


PLAIN: dict[str, Callable[[Path], object]] = {
    "hapt": plain_hapt, "wisdm2019": plain_wisdm2019, "sp-sw-har": plain_sp_sw_har, "wical": plain_wical,
    "ssvep-exo": plain_ssvep_exo, "mnist": plain_mnist, "usps": plain_usps, "cifar10": plain_cifar10,
}  # fmt: skip


def once(how: str, name: str, path: str) -> None:
    """One measurement, in this process; imports do not count, for either."""
    if how == "plain":
        import pandas
        import scipy.signal

        if name == "ssvep-exo":
            import mne
            import pyriemann.estimation
            import pyriemann.tangentspace
        begin = time.perf_counter()
        PLAIN[name](Path(path))
    else:
        import pandas  # noqa: F401
        import scipy.signal  # noqa: F401

        from fedsense.data import find_dataset, load

        find_dataset(name).parse({})  # pydantic looks for plugins when it is first used
        if name == "ssvep-exo" and how == "cold":
            import mne  # noqa: F401
            import pyriemann.estimation
            import pyriemann.tangentspace  # noqa: F401
        begin = time.perf_counter()
        load(name, root=path, **({"sessions": "all"} if name == "ssvep-exo" else {}))
    print(time.perf_counter() - begin)


def measured(how: str, name: str, path: Path, cache: str) -> float:
    command = [sys.executable, __file__, "--once", how, name, "--folder", str(path)]
    environment = os.environ | {"FEDSENSE_CACHE": cache}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if result.returncode:
        sys.exit(result.stderr)
    return float(result.stdout.split()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = os.environ.get("FEDSENSE_TEST_DATA", str(Path(__file__).parents[2] / "shared" / "data"))
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(PLAIN)}")
    parser.add_argument("--folder", default=default, help="where the archives are")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--once", choices=("plain", "cold", "warm"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.once:
        once(given.once, given.names[0], given.folder)
        return
    print(f"{'dataset':<12}{'plain s':>9}{'cold s':>9}{'warm s':>9}{'cold/plain':>12}{'plain/warm':>12}")
    for name in given.names or PLAIN:
        path = Path(given.folder) / ARCHIVES[name]
        times: dict[str, list[float]] = {"plain": [], "cold": [], "warm": []}
        for _ in range(given.runs):
            with tempfile.TemporaryDirectory() as cache:
                for how, found in times.items():
                    found.append(measured(how, name, path, cache))
        plain, cold, warm = (statistics.median(found) for found in times.values())
        print(f"{name:<12}{plain:>9.2f}{cold:>9.2f}{warm:>9.4f}{cold / plain:>12.2f}{plain / warm:>12.0f}", flush=True)


if __name__ == "__main__":
    main()
