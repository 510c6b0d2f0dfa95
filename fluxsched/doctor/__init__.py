"""Checks of `fluxsched doctor`: what is installed, which homes work, and the directories of instances."""
