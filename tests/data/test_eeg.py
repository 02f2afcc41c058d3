"""EEG: covariances, tangent vectors fitted on training trials only, electrodes that differ, MOABB."""

import os
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.linalg import logm, sqrtm

from conftest import real
from fedsense.data import find_dataset, load
from fedsense.data.eeg import as_vectors, band_passed, covariances
from fedsense.errors import UserError
from fedsense.federation import SPLITS, ClientData, Federation, Samples, Task
from fedsense.work import stream


def matrices(count, width, *key):
    factors = stream(*key).normal(0, 1, (count, width, 3 * width))
    return torch.from_numpy(factors @ factors.swapaxes(1, 2) / (3 * width)).float()


def client_of(train, test):
    def samples(x):
        return Samples(x, torch.zeros(len(x), dtype=torch.int64))

    return ClientData("s1", samples(train), samples(train[:0]), samples(test), {"channels": ["a", "b", "c"]})


def test_tangent_vectors_against_scipy():
    """For one training matrix the mean is that matrix C; the vector of S is the upper triangle of log(C^-½ S C^-½).

    Off the diagonal it is multiplied by √2, so that its length is the distance.
    """
    train, test = matrices(1, 3, "train"), matrices(2, 3, "test")
    vectors = as_vectors(client_of(train, test), "tangent")
    half = np.linalg.inv(sqrtm(train[0].double().numpy()).real)
    logarithm = logm(half @ test[0].double().numpy() @ half).real
    rows, columns = np.triu_indices(3)
    expected = logarithm[rows, columns] * np.where(rows == columns, 1, np.sqrt(2))
    assert np.allclose(vectors.test.x[0].numpy(), expected, atol=1e-4)
    assert np.allclose(vectors.train.x.numpy(), 0, atol=1e-4)


def test_the_reference_comes_from_training_trials_only():
    train = matrices(20, 3, "train")
    first = as_vectors(client_of(train, matrices(5, 3, "one")), "tangent")
    second = as_vectors(client_of(train, 100 * matrices(5, 3, "two")), "tangent")
    assert torch.equal(first.train.x, second.train.x)
    assert first.val.x.shape == (0, 6)


def test_covariance_vectors_are_the_upper_triangle():
    train = matrices(2, 3, "train")
    vectors = as_vectors(client_of(train, train), "covariance")
    assert torch.equal(vectors.train.x[1], train[1][[0, 0, 0, 1, 1, 2], [0, 1, 2, 1, 2, 2]])


def test_band_pass():
    times = np.arange(2560) / 256
    inside, outside = np.sin(2 * np.pi * 15 * times), np.sin(2 * np.pi * 60 * times)
    filtered = band_passed(np.stack([inside + outside]), 256.0, 8.0, 30.0)[0, 256:-256]
    assert np.abs(filtered - inside[256:-256]).max() < 0.02
    with pytest.raises(UserError, match=r"band \[8, 200\] Hz: give 0 < low < high < 128, half the rate"):
        band_passed(np.zeros((1, 512)), 256.0, 8.0, 200.0)


def test_covariances_shrink_towards_a_ball():
    trials = stream("trials").normal(0, 1, (4, 3, 500)) * np.array([1.0, 2.0, 3.0])[:, None]
    found = covariances(trials)
    assert found.shape == (4, 3, 3)
    assert np.allclose(np.diagonal(found.mean(0)), [1, 4, 9], rtol=0.15)


def test_ssvep_published_counts_and_rates():
    """1,024 trials of 12 subjects; looking at a lamp that flickers at a rate raises the power at that rate."""
    dataset = find_dataset("ssvep-exo")
    options = dataset.parse({"root": str(real("ssvep-exo.tar.xz")), "sessions": "all"})
    files = dataset.files(options)
    clients = dataset.gather(files, dataset.content(files), options)
    assert len(clients) == 12
    assert sum(len(client.y) for client in clients) == 1024
    assert sum(len(np.unique(client.session)) for client in clients) == 32
    assert {tuple(np.bincount(client.y) / len(client.y)) for client in clients} == {(0.25,) * 4}
    power = np.concatenate([np.diagonal(c.x, axis1=1, axis2=2) / np.trace(c.x.mean(0)) for c in clients])
    bands = power.reshape(-1, 3, 8).sum(2)
    labels = np.concatenate([client.y for client in clients])
    above_rest = np.stack([bands[labels == k].mean(0) for k in (1, 2, 3)]) / bands[labels == 0].mean(0)
    assert above_rest.argmax(1).tolist() == [0, 1, 2]
    assert np.diagonal(above_rest).min() > 1.5


def test_ssvep_federation_with_different_electrodes():
    root = str(real("ssvep-exo.tar.xz"))
    whole = load("ssvep-exo", root=root)
    # without five sessions in which something failed, as in the authors' papers
    assert sum(len(client.split(name)) for client in whole for name in SPLITS) == 27 * 32
    assert [len(whole[name].train) + len(whole[name].val) for name in ("s08", "s10", "s11")] == [32, 96, 32]
    assert [len(client.test) for client in whole] == [32] * 12  # the last session
    assert {client.input_shape for client in whole} == {(300,)}  # 3 bands of 8 electrodes: 24 · 25 / 2
    some = load("ssvep-exo", root=root, electrodes=[3, 6], seed=1)
    widths = {len(client.traits["channels"]) for client in some}
    assert widths <= {3, 4, 5, 6}
    assert len(widths) > 1
    for client in some:
        electrodes = 3 * len(client.traits["channels"])
        assert client.input_shape == (electrodes * (electrodes + 1) // 2,)
    again = load("ssvep-exo", root=root, electrodes=[3, 6], seed=1)
    assert all(torch.equal(a.train.x, b.train.x) for a, b in zip(some, again, strict=True))


def test_only_the_electrodes_that_every_cap_has():
    """Of caps (Fz C3 Cz), (cz C3) and (C3 O1 Cz), C3 and Cz are left, of two bands each, in the order of the first."""
    caps = {"a": ["Fz", "C3", "Cz"], "b": ["cz", "C3"], "c": ["C3", "O1", "Cz"]}
    clients = []
    for name, channels in caps.items():
        x, y = matrices(6, 2 * len(channels), name), torch.arange(6) % 2
        clients.append(ClientData(name, Samples(x, y), Samples(x[:0], y[:0]), Samples(x, y), {"channels": channels}))
    dataset = find_dataset("ssvep-exo")
    whole = Federation("caps", Task(("one", "other")), tuple(clients))
    options = dataset.parse({"electrodes": "common", "features": "covariance"})
    some = dataset.finished(whole, options)
    assert [client.traits["channels"] for client in some] == [["C3", "Cz"], ["C3", "cz"], ["C3", "Cz"]]
    rows, columns = np.triu_indices(4)
    for client, places in zip(some, ([1, 2, 4, 5], [1, 0, 3, 2], [0, 2, 3, 5]), strict=True):
        kept = np.array(places)
        full = whole[client.id].train.x
        assert torch.equal(client.train.x, full[:, kept[rows], kept[columns]])
    strange = replace(clients[0], id="d", traits={"channels": ["Oz", "O2", "O3"]})
    with pytest.raises(UserError, match=r"no electrode is in every cap: Fz, C3, Cz; Oz, O2, O3"):
        dataset.finished(replace(whole, clients=(clients[0], strange)), options)


def test_mistakes_in_eeg_options_and_files(tmp_path):
    with pytest.raises(UserError, match=r"electrodes = \[4\]; give the fewest and the most"):
        find_dataset("ssvep-exo").parse({"electrodes": [4]})
    folder = tmp_path / "subject01"
    folder.mkdir()
    (folder / "record-[1]_raw.fif").write_bytes(b"not a fif file at all" * 10)
    (folder / "record-[1]-eve.fif").write_bytes(b"")
    with pytest.raises(UserError, match=r"subject01/record-\[1\]_raw.fif: not a whole MNE file"):
        load("ssvep-exo", root=str(tmp_path))


@pytest.mark.filterwarnings("ignore:This filename")  # MNE has its own taste in names
def test_ssvep_as_moabb_downloads_it(tmp_path):
    """Runs with a channel of triggers: EEG of noise with a beat at the rate of each trial's lamp."""
    mne = pytest.importorskip("mne")
    rate, order = 256, [1, 2, 3, 4] * 2  # rest, 13, 21, 17 Hz
    times = np.arange(9 * rate) / rate
    for run in (1, 2):
        rng = stream("run", run)
        trials = [rng.normal(0, 1e-6, (8, len(times))) + 3e-6 * np.sin(2 * np.pi * hertz * times)
                  for hertz in (0, 13, 21, 17) * 2]  # fmt: skip
        signal = np.concatenate(trials, axis=1)
        triggers = np.zeros((1, signal.shape[1]))
        triggers[0, rate :: len(times)] = order
        info = mne.create_info(
            ["Oz", "O1", "O2", "POz", "PO3", "PO4", "PO7", "PO8", "stim"], rate, ["eeg"] * 8 + ["stim"]
        )
        raw = mne.io.RawArray(np.concatenate([signal, triggers]), info, verbose="ERROR")
        raw.save(tmp_path / f"subject03_run{run}_raw.fif", verbose="ERROR")
    dataset = find_dataset("ssvep-exo")
    options = dataset.parse({"root": str(tmp_path)})
    files = dataset.files(options)
    (client,) = dataset.gather(files, dataset.content(files), options)
    assert client.id == "s03"
    assert client.traits["channels"] == ["Oz", "O1", "O2", "POz", "PO3", "PO4", "PO7", "PO8"]
    assert [dataset.classes[label] for label in client.y[:4]] == ["rest", "13", "21", "17"]
    assert client.session.tolist() == [0] * 8 + [1] * 8
    power = np.diagonal(client.x, axis1=1, axis2=2).reshape(-1, 3, 8).sum(2)  # at 13, 17, 21 Hz
    assert power[client.y > 0].argmax(1).tolist() == (client.y[client.y > 0] - 1).tolist()


def test_moabb_serves_fake_subjects():
    federation = load("moabb", datasets=["FakeDataset"], subjects=2)
    assert federation.ids == ["FakeDataset-01", "FakeDataset-02"]
    assert federation.task.classes == ("fake1", "fake2", "fake3")
    for client in federation:
        assert client.input_shape == (6,)  # 3 electrodes: 3 · 4 / 2
        assert len(client.test) == len(client.train) + len(client.val)  # two sessions of the same length


def test_moabb_looks_in_root_for_a_while(tmp_path, monkeypatch):
    monkeypatch.setenv("MNE_DATA", "elsewhere")
    monkeypatch.setenv("HOME", str(tmp_path))
    load("moabb", datasets=["FakeDataset"], subjects=1, root="~")
    assert os.environ["MNE_DATA"] == "elsewhere"
    with pytest.raises(UserError, match="there is no folder or file"):
        load("moabb", datasets=["FakeDataset"], root=str(tmp_path / "nowhere"))


def test_moabb_mistakes():
    with pytest.raises(UserError, match="MOABB has no dataset 'BNCI2014001'; did you mean 'BNCI2014_001'"):
        load("moabb", datasets=["BNCI2014001"])
    with pytest.raises(UserError, match="none of the datasets has an event 'fake9'; did you mean 'fake"):
        load("moabb", datasets=["FakeDataset"], events=["fake9"])
