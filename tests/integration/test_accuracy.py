#!/usr/bin/python3
"""dcp-tiny's answers are right, and the same in every layout.

tools/accuracy over the first 20 rows of tests/data/eval, through real daemons.
DCPD_TEST_LONG=1: every row, every task, every layout and format.
"""
import os
import subprocess
import sys

SRC = os.path.dirname(os.path.dirname(os.path.dirname(
    os.path.abspath(__file__))))
LONG = os.environ.get("DCPD_TEST_LONG", "") not in ("", "0")

sys.exit(subprocess.run(
    [sys.executable, os.path.join(SRC, "tools", "accuracy"), "--verbose",
     *([] if LONG else ["--check"])]).returncode)
