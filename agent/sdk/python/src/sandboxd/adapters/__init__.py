"""Sandboxes for evaluation harnesses. Each module needs its harness installed, and no other."""
