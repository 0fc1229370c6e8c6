"""What a decision costs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from .servers import Server

BENCH = Path(__file__).parents[1] / "bench.py"


@pytest.mark.rest
@pytest.mark.skipif(not BENCH.exists(), reason="not published with the tests")
def test_a_decision_costs_no_more_beside_a_call_by_hand_than_was_recorded(server: Server) -> None:
    words = [sys.executable, str(BENCH), f"redis://127.0.0.1:{server.port}", "--gate"]
    told = subprocess.run(words, capture_output=True, text=True)
    assert told.returncode == 0, told.stdout + told.stderr
