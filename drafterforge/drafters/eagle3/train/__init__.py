"""Distillation of EAGLE-3 drafters; imports lightning."""
