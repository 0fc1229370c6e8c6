"""Tells PyInstaller what belongs to a program that decides in its process: nothing imports the WebAssembly."""

from pathlib import Path


def hooks() -> list[str]:
    """Returns the folders with hooks, for the entry point ``hook-dirs``."""
    return [str(Path(__file__).parent)]
