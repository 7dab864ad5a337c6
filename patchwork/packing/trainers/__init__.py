"""Packing in trainers: datasets, collators, and the guards of SFTTrainer, DPOTrainer and unsloth."""
