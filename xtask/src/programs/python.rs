//! CPython's own tests and NumPy's, in an environment that is made for them.

use super::outcomes::{self, Outcomes};
use super::{Malloc, Program};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::rc::Rc;

/// The packages from the Python package index.
const PACKAGES: [&str; 5] =
    ["numpy==2.4.6", "pytest==9.2.0", "hypothesis==6.170.15", "meson==1.12.1", "ninja==1.13.2"];
/// Modules of CPython's `test` package for each run of CI.
const MODULES: [&str; 5] = ["test_json", "test_re", "test_pickle", "test_mmap", "test_threading"];
/// Further modules with `--deep`.
const DEEP_MODULES: [&str; 34] = [
    "test_array",
    "test_asyncio",
    "test_bytes",
    "test_bz2",
    "test_collections",
    "test_csv",
    "test_ctypes",
    "test_decimal",
    "test_dict",
    "test_fork1",
    "test_gc",
    "test_email",
    "test_hashlib",
    "test_itertools",
    "test_io",
    "test_list",
    "test_long",
    "test_lzma",
    "test_memoryview",
    "test_os",
    "test_queue",
    "test_set",
    "test_signal",
    "test_sqlite3",
    "test_ssl",
    "test_struct",
    "test_shutil",
    "test_subprocess",
    "test_tempfile",
    "test_thread",
    "test_unicode",
    "test_weakref",
    "test_xml_etree",
    "test_zlib",
];
/// A module of ours over CPython's tests.
const MULTIPROCESSING: &str = "test_processes";
/// NumPy's tests for each run of CI.
const NUMPY: [&str; 3] = [
    "numpy._core.tests.test_indexing",
    "numpy._core.tests.test_mem_policy",
    "numpy.lib.tests.test_stride_tricks",
];
/// NumPy's tests with `--deep`.
const DEEP_NUMPY: [&str; 2] = ["numpy._core", "numpy.lib"];

/// An interpreter with the packages.
pub(crate) struct Python(PathBuf);

impl Python {
    /// Makes the environment, unless it is there. Says why that failed.
    pub(crate) fn prepare(root: &Path) -> Result<Self, String> {
        let python = Self::in_environment(&root.join("target/programs/python"))?;
        python.packages(&PACKAGES)?;
        Ok(python)
    }

    /// Makes an environment without packages, unless it is there.
    pub(crate) fn in_environment(environment: &Path) -> Result<Self, String> {
        let python = Self(environment.join("bin/python"));
        if !python.0.is_file() {
            run(Command::new("python3").args(["-m", "venv"]).arg(environment))?;
        }
        Ok(python)
    }

    /// Installs packages from the Python package index.
    pub(crate) fn packages(&self, packages: &[&str]) -> Result<(), String> {
        run(Command::new(&self.0).args(["-m", "pip", "install", "--quiet"]).args(packages))
    }

    /// Builds the package of this repository and installs it.
    pub(crate) fn install(&self, root: &Path) -> Result<(), String> {
        run(Command::new(&self.0).args(["-m", "pip", "install", "--quiet", "."]).current_dir(root))
    }

    /// Creates a command that runs the interpreter in a folder.
    pub(crate) fn command(&self, arguments: &[&str], folder: &Path) -> Command {
        let mut command = Command::new(&self.0);
        command.args(arguments).current_dir(folder);
        command.env_remove("BUCKETPOOL_HOST").env_remove("LD_PRELOAD");
        command
    }

    /// Returns the path of the interpreter.
    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// Returns the suites; with `deep`, many more. Tests of CPython are left out if it came without
    /// them.
    pub(super) fn programs(self, root: &Path, deep: bool) -> Vec<Program> {
        let python = Rc::new(self);
        let plugins = root.join("pool-python/tests");
        let further = DEEP_MODULES.into_iter().chain([MULTIPROCESSING]).filter(|_| deep);
        let modules = MODULES.into_iter().chain(further);
        let has_tests = run(Command::new(&python.0).args(["-c", "import test.libregrtest"]));
        if let Err(why) = &has_tests {
            println!("not run: CPython's tests, since {why}");
        }
        let modules = modules.filter(|_| has_tests.is_ok());
        let suites = if deep { DEEP_NUMPY.as_slice() } else { &NUMPY };
        let cpython = modules.map(|module| {
            let python = Rc::clone(&python);
            let run = move |malloc: &Malloc<'_>| python.cpython(module, malloc);
            Program { name: format!("CPython, {module}"), run: Box::new(run) }
        });
        let preloaded = suites.iter().map(|suite| {
            let python = Rc::clone(&python);
            let run = move |malloc: &Malloc<'_>| {
                let mut tests = malloc.command(&python.0);
                tests.args(["-m", "pytest"]);
                numpy(tests, suite, &malloc.folder)
            };
            Program { name: format!("NumPy, {suite}"), run: Box::new(run) }
        });
        let handler = suites.iter().map(|suite| {
            let (python, plugins) = (Rc::clone(&python), plugins.clone());
            let run = move |malloc: &Malloc<'_>| {
                let mut tests = python.command(&[], &malloc.folder);
                tests.args(["-m", "pytest"]);
                if malloc.library.is_some() {
                    tests.args(["-p", "bucketpool_handler"]).env("PYTHONPATH", &plugins);
                }
                let outcomes = numpy(tests, suite, &malloc.folder)?;
                match malloc.library {
                    Some(_) => is_ours(&malloc.folder).map(|()| outcomes),
                    None => Ok(outcomes),
                }
            };
            Program { name: format!("NumPy, {suite}, the handler"), run: Box::new(run) }
        });
        cpython.chain(preloaded).chain(handler).collect()
    }

    /// Runs a module of CPython's tests, with `malloc` for objects too.
    fn cpython(&self, module: &str, malloc: &Malloc<'_>) -> Result<Outcomes, String> {
        let report = malloc.folder.join("report.xml");
        let mut python = malloc.command(&self.0);
        python.args(["-m", "test", "--timeout", "900", "--junit-xml"]).arg(&report);
        if module == MULTIPROCESSING {
            let text = include_str!("test_processes.py");
            let file = malloc.folder.join(format!("{module}.py"));
            fs::write(&file, text).map_err(|error| format!("{}: {error}", file.display()))?;
            python.arg("--testdir").arg(&malloc.folder);
        }
        python.arg(module).env("PYTHONMALLOC", "malloc");
        reported(python, &report)
    }
}

/// Runs a command of preparation.
fn run(command: &mut Command) -> Result<(), String> {
    match command.output() {
        Ok(said) if said.status.success() => Ok(()),
        Ok(said) => {
            let why = String::from_utf8_lossy(&said.stderr);
            Err(format!("{command:?}: {}", why.trim().lines().last().unwrap_or_default()))
        }
        Err(error) => Err(format!("{command:?}: {error}")),
    }
}

/// Checks that arrays had our handler to the end: the plugin writes its name.
fn is_ours(folder: &Path) -> Result<(), String> {
    let name = fs::read_to_string(folder.join("handler")).unwrap_or_default();
    match name.as_str() {
        "bucketpool" => Ok(()),
        _ => Err(format!("arrays had the handler `{name}`; expected `bucketpool`")),
    }
}

/// Runs tests that NumPy brings along, by a command of pytest.
fn numpy(mut pytest: Command, suite: &str, folder: &Path) -> Result<Outcomes, String> {
    let report = folder.join("report.xml");
    // Some tests build an extension, with the tools that lie beside the interpreter.
    let tools = Path::new(pytest.get_program()).parent().unwrap_or(Path::new("")).to_owned();
    let path = std::env::var_os("PATH").unwrap_or_default();
    let all = std::iter::once(tools).chain(std::env::split_paths(&path));
    pytest.env("PATH", std::env::join_paths(all).unwrap_or(path.clone()));
    pytest.args(["--quiet", "-p", "no:cacheprovider", "--pyargs", suite]);
    // Or pytest looks for settings above the folder, and names its tests after the place of these.
    pytest.args(["-c", "/dev/null", "--rootdir"]).arg(folder);
    pytest.arg(format!("--junit-xml={}", report.display()));
    reported(pytest, &report)
}

/// Runs a suite and reads its report. The exit status is not asked: a test may fail with both
/// mallocs.
fn reported(mut suite: Command, report: &Path) -> Result<Outcomes, String> {
    let said = suite.output().map_err(|error| error.to_string())?;
    outcomes::read(report).map_err(|why| {
        let output = [said.stdout, said.stderr].concat();
        let output = String::from_utf8_lossy(&output);
        let last = output.trim().lines().last().unwrap_or_default().to_owned();
        format!("{}, {why}: {last}", said.status)
    })
}
