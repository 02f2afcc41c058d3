"""CSI counting: streams the test makes up, in every form they may have."""

import zipfile

import numpy as np
import pytest
from scipy.io import savemat
from test_mnist import gathered

from fedsense.data import load
from fedsense.errors import UserError
from fedsense.models import build_model
from fedsense.work import stream


def amplitudes(packets, subcarriers=6, start=0):
    """Packet t, subcarrier s is 100 t + s."""
    return (100.0 * (start + np.arange(packets)[:, None]) + np.arange(subcarriers)).astype(np.float32)


def write(root, **changes):
    streams = {
        "living-room/00-empty.npy": amplitudes(45),
        "living-room/03-people-take1.npy": amplitudes(30),
        "living-room/03-people-take2.npy": amplitudes(25, start=1000),
        "office/12_a.npy": amplitudes(50),
    } | changes
    for name, values in streams.items():
        path = root / name
        path.parent.mkdir(exist_ok=True)
        np.save(path, values)
    return root


def test_one_client_an_environment_cut_into_windows(tmp_path):
    living, office = gathered("csi-counting", write(tmp_path), window=10)
    assert (living.id, office.id) == ("living-room", "office")
    assert living.x.shape == (4 + 3 + 2, 1, 10, 6)
    assert living.y.tolist() == [0] * 4 + [3] * 5
    assert office.y.tolist() == [12] * 5
    np.testing.assert_array_equal(living.x[5, 0], amplitudes(30)[10:20])
    np.testing.assert_array_equal(living.x[8, 0], amplitudes(25, start=1000)[10:20])
    assert living.origin[[3, 4, 8]].tolist() == [[0, 30, 40], [1, 0, 10], [2, 10, 20]]
    assert living.traits == {"environment": "living-room", "subcarriers": 6}


def test_overlap(tmp_path):
    living, _ = gathered("csi-counting", write(tmp_path), window=10, overlap=0.5)
    assert living.origin[:3].tolist() == [[0, 0, 10], [0, 5, 15], [0, 10, 20]]


def test_federation_counts_and_tests_the_last(tmp_path):
    federation = load("csi-counting", root=str(write(tmp_path)), window=5, normalise="none")
    assert federation.task.kind == "counting"
    assert federation.task.counts == tuple(range(21))
    office = federation["office"]
    assert [len(office.split(name)) for name in ("train", "val", "test")] == [7, 1, 2]
    assert office.test.origin[:, 1].tolist() == [40, 45]
    scaled = load("csi-counting", root=str(tmp_path), window=5)["office"].train.x
    assert abs(float(scaled.mean())) < 1e-4
    assert float(scaled.std(correction=0)) == pytest.approx(1, abs=1e-4)


def channel(used, packets=20, seed=0, level=1000):
    """80 MHz of 802.11ac, 256 subcarriers: noise where it is used, arbitrary peaks where it is not."""
    rng = stream(seed, "channel")
    values = 1 + rng.random((packets, 256))
    values[:, ~used] = level * rng.random((packets, int((~used).sum())))
    return values


def test_242_of_256_subcarriers_stay(tmp_path):
    number = np.arange(-128, 128)
    used = (np.abs(number) >= 2) & (np.abs(number) <= 122)
    assert used.sum() == 242
    values = channel(used)
    (tmp_path / "hall").mkdir()
    np.save(tmp_path / "hall" / "1.npy", values)
    (client,) = gathered("csi-counting", tmp_path, window=20)
    np.testing.assert_array_equal(client.x[0, 0], values[:, used].astype(np.float32))
    np.save(tmp_path / "hall" / "1.npy", np.fft.ifftshift(values, axes=1))
    dataset_order = gathered("csi-counting", tmp_path / "hall" / "..", window=20, order="fft")
    np.testing.assert_array_equal(dataset_order[0].x, client.x)


@pytest.mark.parametrize("level", [1000, 1e-3])
def test_the_wrong_order_of_subcarriers_is_told(tmp_path, level):
    number = np.arange(-128, 128)
    values = channel((np.abs(number) >= 2) & (np.abs(number) <= 122), level=level)
    (tmp_path / "hall").mkdir()
    np.save(tmp_path / "hall" / "1.npy", np.fft.ifftshift(values, axes=1))
    with pytest.raises(UserError, match=r'1.npy: the subcarriers that carry nothing .* say order = "fft"$'):
        gathered("csi-counting", tmp_path, window=20)
    np.save(tmp_path / "hall" / "1.npy", values)
    with pytest.raises(UserError, match=r'say order = "centred"$'):
        gathered("csi-counting", tmp_path, window=20, order="fft")
    assert gathered("csi-counting", tmp_path, window=20, order="fft", null="none")[0].x.shape[-1] == 256


@pytest.mark.parametrize(("width", "stay"), [(64, 56), (128, 114), (256, 242), (100, 100)])
def test_how_many_stay(tmp_path, width, stay):
    (tmp_path / "hall").mkdir()
    np.save(tmp_path / "hall" / "1.npy", amplitudes(20, width))
    (client,) = gathered("csi-counting", tmp_path, window=10)
    assert client.x.shape == (2, 1, 10, stay)


def test_subcarriers_that_never_change_go_and_others_can_be_named(tmp_path):
    values = amplitudes(20)
    values[:, 2] = 7.0
    other = amplitudes(20)
    other[:, [2, 4]] = 7.0  # 4 changes in the other room, so it stays
    root = write(tmp_path, **{"office/12_a.npy": values})
    living, office = gathered("csi-counting", root, window=10)
    assert (living.x.shape[3], office.x.shape[3]) == (6, 6)  # the living room's changes
    for name in ("00-empty", "03-people-take1", "03-people-take2"):
        np.save(tmp_path / "living-room" / f"{name}.npy", other)
    by_hand, none = {"null": [0, 5]}, {"null": "none"}
    found = [gathered("csi-counting", tmp_path / "office" / "..", window=10, **own)[1].x for own in ({}, by_hand, none)]
    assert [x.shape[3] for x in found] == [5, 4, 6]
    np.testing.assert_array_equal(found[0][0, 0], values[:10][:, [0, 1, 3, 4, 5]])
    np.testing.assert_array_equal(found[1][0, 0], values[:10, 1:5])


def test_every_form_is_the_same(tmp_path):
    plain = amplitudes(30) + 1
    for name in ("a", "b", "c", "d", "e"):
        (tmp_path / name).mkdir()
    turned = plain * np.exp(1j * stream(0, "phase").uniform(0, 6, plain.shape))
    np.save(tmp_path / "a" / "2.npy", turned)
    np.savez(tmp_path / "b" / "2.npz", csi=plain, rate=np.array([200.0]))
    savemat(tmp_path / "c" / "2.mat", {"csi": turned, "note": "office"})
    savemat(tmp_path / "d" / "2.mat", {"H": plain})
    np.savetxt(tmp_path / "e" / "2.csv", plain, delimiter=",")
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as box:
        for path in sorted(tmp_path.glob("?/2.*")):
            box.write(path, f"recordings/{path.parent.name}/{path.name}")
    clients = gathered("csi-counting", tmp_path / "all.zip", window=10)
    assert [client.id for client in clients] == ["a", "b", "c", "d", "e"]
    for client in clients:
        assert client.y.tolist() == [2, 2, 2]
        np.testing.assert_allclose(client.x.reshape(30, 6), plain, rtol=1e-5)


def test_convnet4_takes_it(tmp_path):
    client = load("csi-counting", root=str(write(tmp_path)), window=10).clients[0]
    for size in ("tiny", "middle", "large"):
        model = build_model(f"convnet4-{size}", client.input_shape, 21)
        assert model.network(client.train.x[:2]).logits.shape == (2, 21)


def test_more_people(tmp_path):
    root = write(tmp_path, **{"office/30.npy": amplitudes(50)})
    with pytest.raises(
        UserError, match=r"office/30.npy: counts 30 people, and people = 20; say people = 30, or name it"
    ):
        load("csi-counting", root=str(root), window=10)
    assert len(load("csi-counting", root=str(root), window=10, people=30).task.classes) == 31


EXPECTED = "expected numbers [packets, subcarriers]; save one antenna pair a file"
NAN = amplitudes(20)
NAN[3, 4] = np.nan


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (np.zeros(5), f"holds float64 of shape [5], {EXPECTED}"),
        (NAN, "packet 3, subcarrier 4 is not finite; leave such packets out"),
        (np.array([["a"]]), f"holds <U1 of shape [1, 1], {EXPECTED}"),
        (np.array([[{}]]), "holds Python objects, which are not trusted; save plain arrays of numbers"),
    ],
)  # fmt: skip
def test_mistakes_are_named(tmp_path, values, message):
    with pytest.raises(UserError) as error:
        load("csi-counting", root=str(write(tmp_path, **{"office/12_b.npy": values})), window=10)
    assert str(error.value) == f"{tmp_path}/office/12_b.npy: {message}"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("1.npy", b"hello", "is no .npy file; save it with numpy.save"),
        ("1.npy", b"\x93NUMPY\x01\x00", "is damaged or cut short; get it again"),
        ("1.npz", b"PK", "is no whole .npz file (numpy.savez writes them); get it again"),
        ("1.csv", b"1,2\n3,x\n", "line 2, column 2 ('1'): 'x' is no number"),
    ],
)
def test_damage_is_named(tmp_path, name, content, message):
    path = tmp_path / "office" / name
    path.parent.mkdir()
    path.write_bytes(content)
    with pytest.raises(UserError) as error:
        load("csi-counting", root=str(tmp_path), window=10)
    assert str(error.value) == f"{path}: {message}"


def test_damaged_matlab_file(tmp_path):
    (tmp_path / "office").mkdir()
    (tmp_path / "office" / "1.mat").write_bytes(b"MATLAB 5.0 MAT-file" + b" " * 100)
    with pytest.raises(UserError, match=r"office/1.mat is no MATLAB file, or damaged or cut short; get it again"):
        load("csi-counting", root=str(tmp_path), window=10)
    savemat(tmp_path / "office" / "1.mat", {"a": amplitudes(20), "b": amplitudes(20)})
    with pytest.raises(UserError, match=r"office/1.mat: holds a, b; call the measurements 'csi'"):
        load("csi-counting", root=str(tmp_path), window=10)


def test_wrong_options(tmp_path):
    root = str(write(tmp_path, **{"office/12_b.npy": amplitudes(20, 5)}))
    with pytest.raises(UserError, match=r"office/12_b.npy: has 5 subcarriers, and 12_a.npy 6"):
        load("csi-counting", root=root, window=10)
    (tmp_path / "office" / "12_b.npy").unlink()
    for options, message in (
        ({"null": [6]}, "null names subcarrier 6, and there are 0 to 5"),
        ({"null": "all"}, 'null = \'all\'; give "auto", "none" or a list of subcarriers'),
        ({"null": [0, 1, 2, 3, 4, 5]}, "is left; give null another value"),
        ({"window": 0}, "window = 0 and overlap = 0; give 1 packet or more"),
        ({"window": 1000}, "gives no sample to train on with these options"),
    ):
        with pytest.raises(UserError, match=message):
            load("csi-counting", root=root, **{"window": 10, **options})
