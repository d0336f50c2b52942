"""``python -m bucketpool run``: Python and other programs with the library preloaded."""

import os
import subprocess
import sys

import pytest


def run(*arguments, settings="", code=0):
    environment = dict(os.environ, BUCKETPOOL_HOST=settings)
    command = [sys.executable, "-m", "bucketpool", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == code, done.stderr
    return done.stdout, done.stderr


def test_a_script_runs_with_the_library(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("import sys; print(sys.argv[1:], len(bytes(10 << 20)))\n")
    out, err = run("run", str(script), "a b", settings="stats")
    assert out == f"['a b'] {10 << 20}\n"
    assert err.startswith("bucketpool: ")
    assert " allocations, " in err


def test_options_of_python_and_other_programs_are_passed_on():
    assert run("run", "-c", "print(1)")[0] == "1\n"
    assert run("run", "-m", "this")[0].startswith("The Zen of Python")
    assert run("run", "--", "echo", "x")[0] == "x\n"
    assert run("run", "-c", "raise SystemExit(7)", code=7) == ("", "")


@pytest.mark.parametrize("arguments", [[], ["run"], ["walk", "x"]])
def test_without_a_program_it_prints_its_usage(arguments):
    out, err = run(*arguments, code=2)
    assert out == ""
    assert err.startswith("usage: python -m bucketpool run ")


def test_a_wrong_setting_is_one_line():
    out, err = run("run", "-c", "print(1)", settings="limit=lots", code=2)
    assert (out, err.count("\n")) == ("", 1)
    assert "`limit=lots`: expected a size of 4096 bytes or more" in err


def test_a_program_that_is_missing_is_one_line():
    assert run("run", "--", "no-such-program", code=2)[1] == (
        "bucketpool-run: there is no program no-such-program\n"
    )
