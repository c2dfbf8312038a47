"""The page of a recording: numbers survive the packing, long episodes stay small, and text is text."""

import base64
import json
import re
import zlib

import numpy as np
import pytest

from hadamem.reports.inspect import EPSILONS, Curve, Recording, Trace, Triangle, build_page, pack, page, write_page

KINDS = {"i1": np.int8, "u1": np.uint8, "u2": np.uint16, "f4": np.float32}
PNG = base64.b64decode("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==")


def unpack(packed):
    data = zlib.decompress(base64.b64decode(packed["data"]))
    return np.frombuffer(data, KINDS[packed["packed"]]).reshape(packed["shape"])


def values_of(packed, shape):
    """What the page's script makes of a packed map."""
    q, scale = unpack(packed["data"]).astype(np.float64), unpack(packed["scale"]).astype(np.float64)
    return (packed["centre"] + q * np.abs(q) * scale[:, None]).reshape(shape)


def make_recording(T=5, side=4, **changes):
    rng = np.random.default_rng(0)
    traces = [
        Trace("M", "matrix", "state", "memory", rng.normal(size=(T, side, side)), (side, side), np.arange(side), np.arange(side)),
        Trace("C", "matrix", "factor", "calibration", 1 + 0.3 * np.tanh(rng.normal(size=(T, side, side))), (side, side), np.arange(side),
              np.arange(side), np.full((len(EPSILONS), T, 2), 0.25)),
        Trace("eta", "scalar", "gate", "gate", rng.uniform(size=T), ()),
        Trace("h", "vector", "read", "read", rng.normal(size=(T, side)), (side,), columns=np.arange(side)),
    ]
    lower = np.where(np.arange(T) > np.arange(T)[:, None], np.nan, 1.0)
    fields = {
        "facts": [("env", "Toy")], "title": "toy", "frames": [PNG], "frame_of_step": np.zeros(T, dtype=np.int64),
        "captions": [f"step {t}" for t in range(T)], "rewards": np.ones(T), "result": "end", "curves": [Curve("value", np.arange(T))],
        "probabilities": np.full((T, 2), 0.5), "action_names": ["left", "right"], "taken": np.zeros((T, 1), dtype=np.int64),
        "traces": traces, "triangles": [Triangle("Gradient reach", "norm", np.arange(T), np.arange(T), lower)],
    }
    return Recording(**{**fields, **changes})


@pytest.mark.parametrize(("values", "centre", "side"), [
    (np.random.default_rng(0).normal(size=(3, 40)), 0.0, "both"),
    (np.random.default_rng(0).uniform(size=(3, 40)), 0.0, "above"),
    (np.random.default_rng(0).uniform(size=(3, 40)), 1.0, "below"),
    (1 + 0.1 * np.random.default_rng(0).normal(size=(3, 40)), 1.0, "both"),
    (np.zeros((3, 40)), 0.0, "above"),
])
def test_maps_keep_their_numbers(values, centre, side):
    packed = pack.pack_map(values, centre)
    assert packed["side"] == side
    most = np.abs(values - centre).max(1, keepdims=True)
    found = values_of(packed, values.shape)
    assert (np.abs(found - values) <= most * 0.008 + 1e-12).all()


def test_four_orders_of_magnitude_survive():
    values = np.array([[1.0, 1e-1, 1e-2, 1e-3, 2e-4, -1e-3]])
    np.testing.assert_allclose(values_of(pack.pack_map(values), values.shape), values, rtol=0.4)


def test_scales_are_per_step():
    values = np.array([[1e-6, -1e-6], [1e6, -1e6]])
    packed = pack.pack_map(values)
    np.testing.assert_allclose(values_of(packed, values.shape), values, rtol=1e-5)
    np.testing.assert_allclose(unpack(packed["own"]), [1e-6, 1e6], rtol=1e-5)


def test_what_is_not_finite_is_drawn_as_the_largest():
    packed = pack.pack_map(np.array([[np.inf, -np.inf, np.nan, 1.0]]))
    found = values_of(packed, (1, 4))[0]
    assert found[0] > 9e36
    assert found[1] < -9e36
    assert (found[2], found[3]) == (0, 0)
    assert np.isfinite(unpack(pack.pack_floats([np.inf, 1.0]))).all()


def test_outliers_do_not_hide_the_rest():
    values = np.random.default_rng(0).normal(size=(10, 1000))
    values[:, 0] = 1e4
    packed = pack.pack_map(values)
    assert 2 < packed["whole"] < 4
    assert (unpack(packed["own"]) < 4).all()
    assert packed["most"] == 1e4


def data_of(html):
    text = re.search(r'<script id="data" type="application/json">(.*?)</script>', html, flags=re.DOTALL).group(1)
    return json.loads(text)


def test_the_page_needs_nothing_else():
    html = build_page(make_recording())
    assert not re.search(r'(src|href)="(?!data:)', html)
    assert "http" not in html.replace("http-equiv", "")
    data = data_of(html)
    assert data["steps"] == 5
    assert [trace["name"] for trace in data["traces"]] == ["M", "C", "eta", "h"]
    np.testing.assert_allclose(unpack(data["returns"]), [1, 2, 3, 4, 5])


def test_text_is_text():
    html = build_page(make_recording(title="<b>&", facts=[("env", "</script><script>alert(1)</script>")],
                                     captions=["</script><script>alert(2)</script>"] * 5))
    assert "<b>&" not in html
    assert "&lt;b&gt;&amp;" in html
    assert "alert(1)</script>" not in html
    assert "alert(2)</script>" not in html
    assert data_of(html)["captions"][0] == "</script><script>alert(2)</script>"


def test_long_episodes_stay_small_and_say_so(monkeypatch):
    monkeypatch.setattr(page, "MATRIX_BYTES", 4000)
    data, notes = page.describe(make_recording(T=90, side=6))
    assert data["traces"][0]["every"] == 2      # 90 steps x 2 matrices x 36 cells = 6,480 bytes
    assert unpack(data["traces"][0]["map"]["scale"]).shape == (45,)
    assert unpack(data["traces"][3]["map"]["scale"]).shape == (90,)
    assert any("every second step" in note for note in notes)


def test_a_thousand_steps_fit_into_15_megabytes():
    rng = np.random.default_rng(0)
    cells = np.arange(0, 128, 2)
    traces = [Trace(name, "matrix", role, "", rng.normal(size=(1000, 64, 64)).astype(np.float32), (128, 128), cells, cells)
              for name, role in (("M", "state"), ("C", "factor"), ("U", "update"))]
    traces += [Trace(name, "vector", "read", "", rng.normal(size=(1000, 128)), (128,), columns=np.arange(128)) for name in "hy"]
    frames = [rng.bytes(6000) for _ in range(1000)]
    html = build_page(make_recording(T=1000, traces=traces, frames=frames, frame_of_step=np.arange(1000)))
    assert len(html) < 15e6
    assert "Of 128 x 128 cells of M and C and U, 64 x 64 are drawn" in html
    assert "pictures of the env" in html


def test_no_state_is_said():
    html = build_page(make_recording(has_state=False, traces=[], triangles=[]))
    assert "This agent has no memory" in html
    assert 'id="cells"' not in html
    assert "This agent has no memory" not in build_page(make_recording())


def test_writing(tmp_path):
    path = write_page(make_recording(), tmp_path / "page.html")
    assert path.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    assert [p.name for p in tmp_path.iterdir()] == ["page.html"]
    with pytest.raises(FileNotFoundError):
        write_page(make_recording(), tmp_path / "nowhere" / "page.html")
