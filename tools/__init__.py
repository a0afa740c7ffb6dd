"""What writes the generated files. It ships in no image and in no wheel."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
