"""EAGLE-3 drafters: model, checkpoint, drafting, LoRA experts."""
