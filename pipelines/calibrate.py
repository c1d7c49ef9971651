"""Measure the cost of each step of a cycle on this device, and the error of that profile on held-out answers."""

from __future__ import annotations

from pathlib import Path

from drafterforge.config.catalogue import group_choices, group_values
from drafterforge.config.commands import CalibrateConfig
from drafterforge.config.hints import settings_flags, shell_value, target_flags
from drafterforge.config.replay import GridConfig
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
        command = f"drafterforge calibrate {typed}{typed_flags(cfg)} overwrite=true"
        print(f"noisy: the profile is off by {error:.0%} on held-out answers; on a quiet machine, type: {command}")
    named = f" latency.path={shell_value(str(path))}" if cfg.name else ""
    print(f"{'wrote' if is_new else 'measured earlier:'} {path / FILE}; next: drafterforge train-policy {typed}{named}")
    return path


def typed_flags(cfg: Config) -> str:
    """What was typed besides drafter, target and runs_dir, each key after a space: it measures the same profile."""
    defaults, choice = Config(), cfg.grid.name if cfg.grid.name in group_choices("grid") else "calibration"
    flags = [
        f" {key}={shell_value(getattr(cfg, key))}"
        for key in ("name", "domains", "seed")
        if getattr(cfg, key) != getattr(defaults, key)
    ]
    flags += [f" grid={choice}"] if choice != defaults.grid.name else []
    flags.append(settings_flags("grid", cfg.grid, GridConfig(**group_values("grid", choice))))
    flags += [settings_flags(group, getattr(cfg, group), getattr(defaults, group)) for group in ("latency", "runtime")]
    return "".join(flags)
