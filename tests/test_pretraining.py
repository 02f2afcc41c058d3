"""Training without labels: what is hidden, what is learned, what is kept, and who may begin with it."""

import json

import numpy as np
import pytest
import torch

from conftest import blobs, run
from fedsense import join
from fedsense.cli import main
from fedsense.errors import UserError
from fedsense.methods import FedAli, FedAvg
from fedsense.models import Batch, Model, build_model
from fedsense.models.hart import SensorTokens
from fedsense.models.masked import MaskedAutoencoder
from fedsense.models.spec import ModelSpec
from fedsense.models.vit import ImageTokens
from fedsense.pretraining import pretrain

QUICK = {"epochs": 2, "batch": 16, "prototypes": 8, "lr": 1e-3}


def waves(clients=2, count=24, steps=48, seed=0):
    """Sines of random phase: what is hidden can be told from what is seen."""
    federation = blobs(clients=clients, train=count, shape=(6, steps), seed=seed)
    rng = np.random.default_rng(seed)

    def sines(split, samples):
        phase = torch.from_numpy(rng.uniform(0, 2 * np.pi, (len(samples), 6, 1)).astype(np.float32))
        return type(samples)(torch.sin(torch.arange(steps) / 5 + phase), samples.y)

    return federation.with_clients(client.change(sines) for client in federation)


def masked_hart(steps=48, masked=0.6):
    network = build_model("hart", (6, steps), 3, dropout=0.0).network
    return MaskedAutoencoder(network, (6, steps), masked)


def batch_of(x, noise=0):
    return Batch(x, torch.zeros(len(x), dtype=torch.int64), torch.ones(len(x)), torch.tensor(noise))


def test_pieces_are_what_tokens_are_made_of():
    """A token is a linear function of its piece: weights that pick one value show where it lies."""
    signal = torch.arange(2 * 6 * 48, dtype=torch.float32).view(2, 6, 48)
    pieces = SensorTokens.pieces(signal)
    assert pieces.shape == (2, 3, 96)
    assert torch.equal(pieces[1, 2].view(6, 16), signal[1, :, 32:])
    image = torch.randn(2, 3, 8, 8)
    tokens = ImageTokens(3, 4)
    made = tokens.pieces(image) @ tokens.patches.weight.flatten(1).T + tokens.patches.bias
    torch.testing.assert_close(made, tokens(image))


def test_what_is_hidden_is_not_seen():
    """Sixty per cent of eight tokens are five. Changing what was hidden changes nothing of what is said."""
    model = Model(masked_hart(steps=128))
    params = model.init(0)
    x = torch.randn(3, 6, 128)
    out = model(params, batch_of(x, noise=7))
    assert out.features.sum(1).tolist() == [5.0, 5.0, 5.0]
    hidden = out.features[:, None].repeat_interleave(16, 2).bool()  # [B, 1, T]
    other = torch.where(hidden, torch.randn_like(x), x)
    assert torch.equal(model(params, batch_of(other, noise=7)).logits, out.logits)
    seen = torch.where(hidden, x, torch.randn_like(x))
    assert not torch.allclose(model(params, batch_of(seen, noise=7)).logits, out.logits)
    assert not torch.equal(model(params, batch_of(x, noise=8)).features, out.features)


def test_loss_is_the_mean_squared_error_of_what_was_hidden():
    network = masked_hart()
    model = Model(network)
    x = torch.randn(4, 6, 48)
    batch = batch_of(x)
    out = model(model.init(0), batch)
    told, truth = out.logits.detach(), SensorTokens.pieces(x)
    errors = [((told[b, z] - truth[b, z]) ** 2).mean() for b in range(4) for z in range(3) if out.features[b, z]]
    torch.testing.assert_close(network.loss(out, batch).detach(), torch.stack(errors).mean())


def test_it_learns_and_prototypes_do_too():
    done = pretrain(waves(), epochs=12, batch=16, prototypes=8, lr=2e-3)
    assert done.history[-1].loss < 0.6 * done.history[0].loss
    assert all(way > 0 for epoch in done.history for way in epoch.moved)
    assert len(done.history[0].moved) == 6
    for layer in range(6):
        name = f"encoder.{layer}.align"
        assert torch.equal(done.params[f"{name}.local_prototypes"], done.params[f"{name}.global_prototypes"])
        assert done.params[f"{name}.aligned"].item() == 1.0


def test_labels_are_not_looked_at():
    federation = waves()
    turned = federation.with_clients(
        client.change(lambda split, s: type(s)(s.x, (s.y + 1) % 3)) for client in federation
    )
    ours, theirs = (pretrain(data, **QUICK).params for data in (federation, turned))
    assert all(torch.equal(t, theirs[name]) for name, t in ours.items())


def test_goes_on_to_the_bit(tmp_path):
    whole = pretrain(waves(), tmp_path / "whole.safetensors", **{**QUICK, "epochs": 3})
    pretrain(waves(), tmp_path / "part.safetensors", **{**QUICK, "epochs": 1})
    again = pretrain(waves(), tmp_path / "part.safetensors", resume=True, **{**QUICK, "epochs": 3})
    assert all(torch.equal(t, again.params[name]) for name, t in whole.params.items())
    assert [epoch.loss for epoch in again.history] == [epoch.loss for epoch in whole.history]


def test_a_file_is_not_written_over_nor_gone_on_with_otherwise(tmp_path):
    path = tmp_path / "p.safetensors"
    pretrain(waves(), path, **{**QUICK, "epochs": 1})
    with pytest.raises(UserError, match="exists; go on with it"):
        pretrain(waves(), path, **QUICK)
    with pytest.raises(UserError, match=r"lr was 0\.001 and is 0\.5"):
        pretrain(waves(), path, resume=True, **{**QUICK, "lr": 0.5})


def test_federations_begin_with_it(tmp_path):
    """Adapter and encoder come from the file, prototypes for who has a place for them; the head is everyone's own."""
    path = tmp_path / "p.safetensors"
    learned = pretrain(waves(), path, **QUICK).params
    begun = {}
    for method in (FedAvg(epochs=1), FedAli(epochs=1, prototypes=8)):
        spec = ModelSpec(("hart",), start=str(path))
        engine = run(method, waves(), tmp_path / method.name, model=spec, rounds=1)
        begun[method.name] = engine.site.client("c00").initial
        about = json.loads((tmp_path / method.name / "run.json").read_text())
        assert about["start"] == str(path)
        assert len(about["model"]["start"]) == 32
    for name, tensor in begun["fedavg"].items():
        assert name.startswith("head.") or torch.equal(tensor, learned[name]), name
    assert torch.equal(begun["fedali"]["encoder.0.align.local_prototypes"], learned["encoder.0.align.local_prototypes"])
    assert begun["fedali"]["encoder.0.align.aligned"].item() == 1.0


def test_another_file_of_the_same_name_is_another_run(tmp_path):
    path = tmp_path / "p.safetensors"
    pretrain(waves(), path, **{**QUICK, "epochs": 1})
    spec = ModelSpec(("hart",), start=str(path))
    run(FedAvg(epochs=1), waves(), tmp_path / "run", model=spec, rounds=1)
    pretrain(waves(), path, resume=True, **QUICK)
    with pytest.raises(UserError, match="'model'"):
        run(FedAvg(epochs=1), waves(), tmp_path / "run", model=spec, rounds=2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model": "coad-cnn"}, "only a transformer"),
        ({"model": "hurt"}, "no model 'hurt'; did you mean 'hart'"),
        ({"masked": 0.1}, "would leave 3 to see"),
        ({"masked": 1.5}, "masked is 1.5"),
        ({"epochs": 0}, "epochs is 0"),
        ({"lr": 0.0}, "lr is 0.0"),
        ({"epoch": 3}, "no option 'epoch'; did you mean 'epochs'"),
        ({"epochs": 1.5}, "'epochs' is 1.5"),
        ({"batch": True}, "'batch' must be a number"),
        ({"device": "cude"}, "device 'cude' cannot be used here; say auto, cpu or cuda"),
    ],
)
def test_mistakes_are_named(options, message):
    with pytest.raises(UserError, match=message):
        pretrain(blobs(shape=(6, 48)), **options)


def test_what_does_not_fit_is_refused(tmp_path):
    path = tmp_path / "p.safetensors"
    with pytest.raises(UserError, match=r"client 'c01' has \[6, 48\] and client 'c03' \[6, 64\]"):
        pretrain([waves(), blobs(shape=(6, 64))], path, **QUICK)
    pretrain(waves(), path, **{**QUICK, "epochs": 1})
    hart = ModelSpec(("hart",), start=str(path))
    with pytest.raises(UserError, match=r"has 'encoder.0.align.*of shape \[8, 192\], but hart has \[16, 192\]"):
        run(FedAli(prototypes=16), waves(), model=hart)
    with pytest.raises(UserError, match=r"'adapter.1.table' of shape \[3, 192\], but hart has \[4, 192\]"):
        run(FedAvg(), blobs(shape=(6, 64)), model=hart)
    with pytest.raises(UserError, match="cannot be read"):
        run(FedAvg(), waves(), model=ModelSpec(("hart",), start=str(tmp_path / "none")))
    with pytest.raises(UserError, match="is of hart, and cannot begin flic-mlp"):
        run(FedAvg(), waves(), model=ModelSpec(("flic-mlp",), start=str(path)))
    with pytest.raises(UserError, match="its recordings were others"):
        pretrain(waves(seed=1), path, resume=True, **QUICK)
    with pytest.raises(UserError, match="is a folder"):
        pretrain(waves(), tmp_path, **QUICK)
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be written"):
        pretrain(waves(), tmp_path / "file" / "p.safetensors", **QUICK)


def test_joining_needs_the_file_the_run_began_with(tmp_path):
    path = tmp_path / "p.safetensors"
    pretrain(waves(), path, **{**QUICK, "epochs": 1})
    folder = tmp_path / "run"
    run(FedAvg(epochs=1), waves(), folder, model=ModelSpec(("hart",), start=str(path)), rounds=1)
    assert join(folder, waves(seed=3)).points
    pretrain(waves(), path, resume=True, **QUICK)
    with pytest.raises(UserError, match="is not the file"):
        join(folder, waves(seed=3))


def test_what_is_seen_keeps_its_order_in_time():
    """Tokens that tell their place: the encoder meets them in ascending order."""
    network = masked_hart(steps=128)
    met = []
    network.encoder[0].register_forward_pre_hook(lambda layer, inputs: met.append(inputs[0][..., 0].detach()))
    network.adapter = torch.nn.Identity()
    network(torch.arange(8.0).view(1, 8, 1).expand(5, 8, 192))
    assert met[0].shape == (5, 3)
    assert (met[0].diff(dim=1) > 0).all()


def test_options_of_the_model():
    images = blobs(clients=1, train=8, shape=(3, 16, 16))
    params = pretrain(images, epochs=1, model="vit-tiny", model_options={"patch": 8}, prototypes=4).params
    assert params["adapter.1.patches.weight"].shape == (192, 3, 8, 8)
    with pytest.raises(UserError, match="vit-tiny has no option 'pach'"):
        pretrain(images, model="vit-tiny", model_options={"pach": 8})


def test_from_the_command_line(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    said = ["pretrain", "synthetic-imu", "--set", "clients=2", "--set", "samples=20", "--epochs", "1"]
    with pytest.raises(SystemExit) as ended:
        main([*said, "--prototypes", "4", "--out", "p.safetensors"])
    out, err = capsys.readouterr()
    assert ended.value.code in (0, None)
    assert "epoch 1/1, error" in err
    assert 'begin with it by [model] start = "p.safetensors"' in out
    assert (tmp_path / "p.safetensors").exists()
