"""The values of environment variables."""

from __future__ import annotations

import pytest

from patchwork.packing.settings import hybrid_packing, raises_on_refusal, wrong_switches

SWITCHES = {"PATCHWORK_HYBRID_PACKING": (hybrid_packing, "1", "0"), "PATCHWORK_ON_REFUSAL": (raises_on_refusal, "raise", "pad")}


@pytest.mark.parametrize("name", list(SWITCHES))
def test_their_own_values_and_none(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    switch, on, off = SWITCHES[name]
    monkeypatch.delenv(name, raising=False)
    default = switch()
    monkeypatch.setenv(name, "")
    assert switch() == default
    for value, meant in ((on, True), (off, False)):
        monkeypatch.setenv(name, value)
        assert switch() is meant
    assert wrong_switches() == []


@pytest.mark.parametrize("value", ["false", "no", "off", "00", "yes"])
@pytest.mark.parametrize("name", list(SWITCHES))
def test_any_other_is_an_error(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=f"{name}='{value}': it is"):
        SWITCHES[name][0]()
    [said] = wrong_switches()
    assert name in said
