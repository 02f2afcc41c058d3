"""sp-sw-har: the published counts on the real recordings, the even clock, and mistakes."""

import numpy as np
import pytest

from conftest import real
from fedsense.data import find_dataset, load
from fedsense.data.sp_sw_har import even_clock
from fedsense.errors import UserError

HEADER = "x_acc,y_acc,z_acc,x_gyro,y_gyro,z_gyro,timestamp,label\n"


def test_published_counts():
    dataset = find_dataset("sp-sw-har")
    options = dataset.parse({"root": str(real("sp-sw-har.tar.xz"))})
    recordings = dataset.recordings(dataset.files(options), "test", options)
    assert len(recordings) == 446
    assert sum(len(r.signal) for r in recordings) == 521_766
    clients = {r.client: r.traits for r in recordings}
    assert len(clients) == 46
    assert clients["s11-watch"] == {"person": "s11", "device": "watch", "placement": "wrist"}
    counts = np.bincount(np.concatenate([r.labels for r in recordings]))
    assert counts.tolist() == [64_789, 55_068, 232_195, 105_389, 64_325]
    assert all(len(np.unique(np.diff(r.times).round(6))) == 1 for r in recordings)  # even: nothing is thrown away


def test_federation_of_real_recordings():
    federation = load("sp-sw-har", root=str(real("sp-sw-har.tar.xz")))
    assert len(federation) == 46
    for client in federation:
        assert client.train.x.shape[1:] == (6, 50)
        assert len(client.train.y.unique()) == 5


def test_clock_is_the_line_nearest_to_the_stamps():
    steady = np.arange(50) * 0.01 + 7
    late = steady.copy()
    late[20:24] = steady[23]  # four readings arrive together
    line = np.polynomial.Polynomial.fit(np.arange(50), late - late[0], 1)(np.arange(50))
    np.testing.assert_allclose(even_clock(late), line, atol=1e-9)
    assert np.abs(even_clock(late) - (steady - 7)).max() < 0.005
    broken = np.concatenate([steady, steady + 3])
    assert even_clock(broken) is broken  # readings may be lost in a pause: stamps as they are


def small(folder, rows):
    (folder / "DATA" / "s03").mkdir(parents=True)
    (folder / "DATA" / "s03" / "s03_02_sw.csv").write_text(HEADER + rows)
    return str(folder)


def test_axes_signs_and_labels(tmp_path):
    rows = "".join(f"1,-2,3,0.1,-0.2,0.3,{1657544418000 + 10 * i},TURNING\n" for i in range(300))
    federation = load("sp-sw-har", root=small(tmp_path, rows), normalise="none", overlap=0.0)
    client = federation["s03-watch"]
    np.testing.assert_allclose(client.train.x[0, :, 7], [1, -2, 3, 0.1, -0.2, 0.3], rtol=1e-6)
    assert set(client.train.y.tolist()) == {federation.task.classes.index("turning")}
    assert len(client.train) + len(client.val) + len(client.test) == 6


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("1,2,3,4,5,6,7,WALKING\n1,2,3,4,5,6,17,WALKIN\n",
         "s03_02_sw.csv: line 3, column 'label': 'WALKIN' is unknown; did you mean 'WALKING'?"),
        ("1,2,3,4,5,6,7,WALKING\n1,2,?,4,5,6,17,WALKING\n",
         "s03_02_sw.csv: line 3, column 3 ('z_acc'): '?' is no number"),
        ("1,2,3,4,5,6,7.5,WALKING\n",
         "s03_02_sw.csv: line 2, column 7 ('timestamp'): '7.5' is no whole number"),
    ],
)  # fmt: skip
def test_mistakes_are_named(tmp_path, rows, message):
    with pytest.raises(UserError) as error:
        load("sp-sw-har", root=small(tmp_path, rows))
    assert str(error.value).endswith(message)


def test_one_of_the_devices(tmp_path):
    rows = "".join(f"1,2,3,4,5,6,{10 * i},{'TURNING' if i < 200 else 'WALKING'}\n" for i in range(400))
    root = small(tmp_path, rows)
    (tmp_path / "DATA" / "s03" / "s03_02_sp.csv").write_text(HEADER + rows)
    assert load("sp-sw-har", root=root).ids == ["s03-phone", "s03-watch"]
    assert load("sp-sw-har", root=root, device="phone").ids == ["s03-phone"]
    assert load("sp-sw-har", root=root, device="watch").ids == ["s03-watch"]
    with pytest.raises(UserError, match="'device' is 'tablet'; expected 'phone', 'watch' or 'both'"):
        load("sp-sw-har", root=root, device="tablet")
