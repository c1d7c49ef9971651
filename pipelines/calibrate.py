"""Measures what every step of a cycle costs on this device, and how well that predicts answers it has not seen."""

from __future__ import annotations

from pathlib import Path

from drafterforge.config.commands import CalibrateConfig
from drafterforge.config.hints import typed_target
from drafterforge.evaluation.calibration import calibrate, require_cycles_to_calibrate
from drafterforge.evaluation.load_warning import warn_if_busy
from drafterforge.reporting.console import print_profile
from drafterforge.reporting.noise import LARGE_ERROR
from drafterforge.schedulers.latency import FILE, read_profile
from drafterforge.targets.load import load_target

Config = CalibrateConfig


def run(cfg: Config) -> Path:
    """Measure, fit, compare with held-out answers, and write the profile."""
    require_cycles_to_calibrate(cfg)
    warn_if_busy()
    target = load_target(cfg.target)
    path, measured = calibrate(cfg, target)
    profile = read_profile(path)
    if measured:
        print_profile(profile)
    error, typed = profile.errors.get("total", 0.0), f"drafter={cfg.drafter}{typed_target(cfg)}"
    if error > LARGE_ERROR:
        again = f"drafterforge calibrate {typed} overwrite=true"
        print(f"noisy: the profile is off by {error:.0%} on answers it has not seen; on a quiet machine, type: {again}")
    print(f"wrote {path / FILE}; next: drafterforge train-policy {typed}")
    return path
