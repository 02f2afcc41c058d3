"""Personal models as files: what is loaded predicts what the engine predicts."""

import json

import numpy as np
import pytest
import torch

import fedsense
from conftest import plain_net
from fedsense.experiment import run_recipe
from fedsense.recipe import make_recipe
from fedsense.result import Result

DATA = {"name": "synthetic-imu", "clients": 2, "samples": 16, "window": 32, "seed": 0}
FEDALI = {"name": "fedali", "prototypes": 4}


def ran(folder, method, model, **tables):
    asked = make_recipe(
        {"rounds": 1, "data": DATA, "model": model, "training": {"epochs": 1}, "method": [method], **tables}
    )
    (result,) = run_recipe(asked, folder)
    return asked.federation(0), result


@pytest.mark.parametrize(
    ("method", "model"),
    [
        ("protohar", "sensor-cnn"),
        ("flic", "flic-mlp"),
        ("fedbn", {"name": "convnet4-tiny", "width": 8}),
        (FEDALI, "hart"),
        ("fedapa", {"name": ["convnet4-tiny", "convnet4-middle"], "width": 8}),
    ],
    ids=str,
)
def test_what_is_exported_predicts_the_same(method, model, here, tmp_path, monkeypatch):
    monkeypatch.setattr("fedsense.report.page.write", lambda *_: None)
    data = {**DATA, "window": 128} if model == "hart" else DATA
    federation, result = ran(tmp_path / "run", method, model, data=data)
    for client in federation:
        code, out, err = here("export", "run", "--client", client.id, "--out", "mine.safetensors")
        assert code == 0, err
        assert "load_personal" in out
        mine = fedsense.load_personal(tmp_path / "mine.safetensors")
        expected = Result.read(result.folder).personal_model(client.id)
        said = expected.probabilities(client.test.x)
        np.testing.assert_allclose(
            mine.probabilities(client.test.x), said, atol=1e-6
        )  # numbers of a file lie otherwise
        assert mine.predict(client.test.x) == expected.predict(client.test.x)
        with torch.no_grad():
            plain = mine.module()(client.test.x).logits.softmax(1).numpy()
        np.testing.assert_allclose(plain, said, atol=1e-5)


def test_what_cannot_be_exported_or_loaded_says_why(here, tmp_path, monkeypatch):
    monkeypatch.setattr("fedsense.report.page.write", lambda *_: None)
    federation, _ = ran(tmp_path / "run", "fedavg", "flic-mlp")
    assert "has several clients; valid names: p0000" in here("export", "run")[2]
    assert "no client 'nobody'" in here("export", "run", "--client", "nobody")[2]
    assert "holds no runs" in here("export", ".git")[2]
    code, out, _ = here("export", "run", "--client", federation.ids[0], "--json")
    assert code == 0
    about = json.loads(out)
    assert (about["model"], about["input_shape"]) == ("flic-mlp", [6, 32])
    (tmp_path / "text").write_text("something else")
    with pytest.raises(fedsense.UserError, match="is no safetensors file"):
        fedsense.load_personal(tmp_path / "text")
    with pytest.raises(fedsense.UserError, match="there is no file"):
        fedsense.load_personal(tmp_path / "nothing")
    own = fedsense.run(federation, model=plain_net, rounds=1, progress=False).personal_model(federation.ids[0])
    own.save(tmp_path / "own")
    with pytest.raises(fedsense.UserError, match="does not say how to load it"):
        fedsense.load_personal(tmp_path / "own")
