"""Bundles: serialised and back, counted byte by byte."""

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from fedsense.bundle import flatten, from_bytes, part, payload, to_bytes

names = st.text(
    st.characters(codec="utf-8", exclude_characters="/", exclude_categories=["Cs", "Cc"]), min_size=1, max_size=8
)
tensors = st.tuples(
    st.lists(st.integers(0, 4), max_size=3),
    st.sampled_from([torch.float32, torch.float64, torch.int64, torch.uint8, torch.bool, torch.float16, torch.int32]),
).map(lambda spec: torch.ones(spec[0], dtype=spec[1]))
bundles = st.dictionaries(names, st.dictionaries(names, tensors, max_size=3), max_size=3)


@given(bundles)
@example({"header": {"0": torch.tensor(1.0)}})
def test_bytes_and_back_and_counted(bundle):
    data = to_bytes(bundle)
    back = from_bytes(data)
    assert flatten(back).keys() == flatten(bundle).keys()
    for name, tensor in flatten(bundle).items():
        assert torch.equal(flatten(back)[name], tensor)
        assert flatten(back)[name].dtype == tensor.dtype
    assert sum(payload(bundle).values()) == len(data)


def test_payload_of_a_group_is_its_tensors():
    """FedAPA's Table V counts 21 prototypes of width 256 as 21·256·4 bytes."""
    assert payload({"proto": {"mean": torch.zeros(21, 256)}})["proto"] == 21 * 256 * 4


def test_an_empty_bundle_costs_nothing():
    assert to_bytes({}) == b""
    assert payload({}) == {}
    assert from_bytes(b"") == {}


def test_an_empty_group_is_still_there():
    """FLIC-Class shares an encoder that has no parameters."""
    assert from_bytes(to_bytes({"encoder": {}})) == {"encoder": {}}
    assert payload({"encoder": {}})["encoder"] == 0


def test_tensors_that_share_memory_can_be_sent():
    t = torch.arange(4.0)
    back = from_bytes(to_bytes({"a": {"x": t, "y": t[1:3]}, "b": {"x": t}}))
    assert torch.equal(back["a"]["y"], torch.tensor([1.0, 2.0]))
    assert torch.equal(back["b"]["x"], t)


def test_strides_do_not_matter():
    t = torch.arange(6.0).reshape(2, 3).T
    assert torch.equal(from_bytes(to_bytes({"a": {"x": t}}))["a"]["x"], t)


def test_a_group_name_with_a_slash_is_refused():
    with pytest.raises(ValueError, match="group"):
        to_bytes({"a/b": {"x": torch.zeros(1)}})


def test_part_takes_whole_prefixes():
    params = {"encoder.0.weight": torch.zeros(1), "encoders.0": torch.ones(1), "head.bias": torch.ones(1)}
    assert list(part(params, "encoder")) == ["encoder.0.weight"]
    assert list(part(params, "encoder", "head")) == ["encoder.0.weight", "head.bias"]
