"""``python -m bucketpool run script.py``: runs Python with ``libbucketpool.so`` as its malloc."""

import os
import sys
from pathlib import Path

USAGE = """\
usage: python -m bucketpool run [OPTION..] SCRIPT [ARGUMENT..]
       python -m bucketpool run -m MODULE [ARGUMENT..]
       python -m bucketpool run -- PROGRAM [ARGUMENT..]

Runs Python with the same options (or another program) with bucketpool's malloc.
BUCKETPOOL_HOST has its settings, words separated by commas: stats, limit=512M,
thread=SIZE, decay=MILLISECONDS, trace=FILE, silent, background=off, huge, unmap,
off, on.
"""


def main(arguments: list[str]) -> int:
    if arguments in (["-h"], ["--help"]):
        print(USAGE, end="")
        return 0
    if len(arguments) < 2 or arguments[0] != "run":
        print(USAGE, end="", file=sys.stderr)
        return 2
    program = arguments[2:] if arguments[1] == "--" else [sys.executable, *arguments[1:]]
    script = Path(__file__).parent / "bucketpool-run"
    if not script.is_file():
        print(f"bucketpool: there is no {script}; install the package again", file=sys.stderr)
        return 2
    sys.stdout.flush()
    # The script checks what it runs, and says why it cannot.
    os.execv("/bin/sh", ["/bin/sh", str(script), *program])


sys.exit(main(sys.argv[1:]))
