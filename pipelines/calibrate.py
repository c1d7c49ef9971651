"""Measure the cost of each step of a cycle on this device, and the error of that profile on held-out answers."""

from __future__ import annotations

from pathlib import Path

from drafterforge.config.commands import CalibrateConfig
from drafterforge.config.hints import target_flags
from drafterforge.evaluation.calibration import calibrate, require_cycles_to_calibrate
from drafterforge.evaluation.load_warning import warn_if_busy
from drafterforge.reporting.console import print_profile
from drafterforge.reporting.noise import LARGE_ERROR
from drafterforge.schedulers.latency import FILE, read_profile
from drafterforge.targets.load import load_target

Config = CalibrateConfig


def run(cfg: Config) -> Path:
    require_cycles_to_calibrate(cfg)
    warn_if_busy()
    target = load_target(cfg.target)
    path, is_new = calibrate(cfg, target)
    profile = read_profile(path)
    if is_new:
        print_profile(profile)
    error, typed = profile.errors.get("total", 0.0), f"drafter={cfg.drafter}{target_flags(cfg)}"
    if error > LARGE_ERROR:
        command = f"drafterforge calibrate {typed} overwrite=true"
        print(f"noisy: the profile is off by {error:.0%} on held-out answers; on a quiet machine, type: {command}")
    print(f"wrote {path / FILE}; next: drafterforge train-policy {typed}")
    return path
