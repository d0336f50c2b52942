//! `cargo xtask torch`: PyTorch's CUDA build on the double of libcuda, for machines without a GPU.
//!
//! PyTorch links NVIDIA's libraries. Stand-ins take their places: `cudart.c` for the runtime, the
//! double for the driver, `nvml.c` for its management, and stubs for the rest. Kernels do nothing;
//! memory, streams, events, copies and graphs are the double's.

use crate::bundle;
use crate::programs::Python;
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// The CUDA build of PyTorch, 540 MB, without NVIDIA's packages.
const TORCH: &str = "torch==2.15.0";
/// What PyTorch imports, and what runs the tests.
const PACKAGES: [&str; 9] = [
    "filelock==4.3.1",
    "fsspec==2026.9.0",
    "jinja2==3.1.6",
    "networkx==3.6.1",
    "numpy==2.4.6",
    "pytest==9.2.0",
    "setuptools==84.2.1",
    "sympy==1.14.0",
    "typing_extensions==4.16.0",
];
/// RMM's headers for C++, and those that they include.
const RMM: [&str; 5] = [
    "librmm-cu13==26.10.0",
    "nvidia-cuda-cccl==13.3.5.0.6",
    "nvidia-cuda-crt==13.5.37",
    "nvidia-cuda-runtime==13.5.37",
    "rapids-logger==0.3.0",
];
/// Where the tests find them.
const RMM_FOLDER: &str = "BUCKETPOOL_RMM";
/// A folder of wheels that are installed instead of those of the Python package index.
const WHEELS: &str = "BUCKETPOOL_TORCH_WHEELS";
/// The test programs, and the sources of stand-ins.
const PROGRAMS: &str = "pool-python/torch_double";

/// NVIDIA's libraries that PyTorch links, beside the driver and the runtime.
const LIBRARIES: [&str; 13] = [
    "libcublas.so.13",
    "libcublasLt.so.13",
    "libcudnn.so.9",
    "libcufft.so.12",
    "libcufile.so.0",
    "libcupti.so.13",
    "libcurand.so.10",
    "libcusolver.so.12",
    "libcusparse.so.12",
    "libcusparseLt.so.0",
    "libnccl.so.2",
    "libnvrtc.so.13",
    "libnvshmem_host.so.3",
];
/// How the names of their functions begin, and of those of the driver and the runtime.
const PREFIXES: [&str; 6] = ["cu", "__cuda", "nccl", "nvml", "nvrtc", "nvshmem"];

/// The head of the library of stubs. With `STUBS_OK` set, computations count as done.
const STUBS: &str = "\
/* Functions that PyTorch links and that the double has no stand-in for. */
#include <stdio.h>
#include <stdlib.h>
static long compute(const char *name) {
    if (getenv(\"STUBS_OK\")) return 0;
    fprintf(stderr, \"%s: a stub; STUBS_OK=1 lets it succeed\\n\", name);
    return 1;
}
static long refuse(const char *name) {
    fprintf(stderr, \"%s: not supported by the double of libcuda\\n\", name);
    return 801;
}
";

/// Runs the test programs, or those that are named.
pub(crate) fn run(root: &Path, names: &[String]) -> ExitCode {
    let programs = match selected(root, names) {
        Ok(programs) => programs,
        Err(why) => {
            eprintln!("error: {why}");
            return ExitCode::from(crate::BAD_INPUT);
        }
    };
    match prepare(root).and_then(|torch| torch.passed(root, &programs)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("error: torch: {why}");
            ExitCode::FAILURE
        }
    }
}

/// Returns the test programs of these names, or all for none.
fn selected(root: &Path, names: &[String]) -> Result<Vec<PathBuf>, String> {
    let short = |program: &PathBuf| {
        let name = name_of(program);
        name.strip_prefix("test_")?.strip_suffix(".py").map(str::to_owned)
    };
    let mut programs = in_folder(&root.join(PROGRAMS))?;
    programs.retain(|file| short(file).is_some());
    programs.sort();
    let known: Vec<String> = programs.iter().filter_map(short).collect();
    if let Some(other) = names.iter().find(|name| !known.contains(name)) {
        return Err(format!("`{other}` behind `torch`; expected one of: {}", known.join(", ")));
    }
    let is_named = |program: &PathBuf| short(program).is_some_and(|name| names.contains(&name));
    programs.retain(|program| names.is_empty() || is_named(program));
    Ok(programs)
}

/// PyTorch, and all that it is run with.
struct Torch {
    python: Python,
    /// The folder of the stand-ins.
    libraries: PathBuf,
    /// That of RMM's headers.
    rmm: PathBuf,
}

fn prepare(root: &Path) -> Result<Torch, String> {
    let target = root.join("target/torch");
    let python = Python::in_environment(&target.join("python"))?;
    install(&python, root)?;
    let double = library(root, &["build", "--package", "cuda-double"])?;
    python.install(root)?;
    let folder = text_of(python.command(
        &[
            "-c",
            "import importlib.util as u; print(*u.find_spec('torch').submodule_search_locations)",
        ],
        root,
    ))?;
    let libraries = target.join("lib");
    stand_ins(root, Path::new(folder.trim()), &double, &libraries)?;
    let rmm = target.join(RMM[0]); // of this version
    if !rmm.is_dir() {
        unpack(&python, &rmm)?;
    }
    Ok(Torch { python, libraries, rmm })
}

impl Torch {
    /// Runs each program in a process of its own, since an allocator is for a whole process.
    fn passed(&self, root: &Path, programs: &[PathBuf]) -> Result<(), String> {
        let mut failed = Vec::new();
        for program in programs {
            let mut pytest = self.python.command(&["-m", "pytest", "--quiet", "-s"], root);
            pytest.args(["-p", "no:cacheprovider"]).arg(program);
            pytest.env("LD_LIBRARY_PATH", &self.libraries).env("STUBS_OK", "1");
            pytest.env("PYTHONDONTWRITEBYTECODE", "1").env(RMM_FOLDER, &self.rmm);
            println!("== {}", name_of(program));
            let status = pytest.status().map_err(|error| format!("{pytest:?}: {error}"))?;
            if !status.success() {
                failed.push(name_of(program));
            }
        }
        match failed.is_empty() {
            true => Ok(()),
            false => Err(format!("{} of {PROGRAMS} failed", failed.join(", "))),
        }
    }
}

/// Installs PyTorch and the packages, unless they are there.
fn install(python: &Python, root: &Path) -> Result<(), String> {
    let check = "import sys, importlib.metadata as m\n\
                 for p in sys.argv[1:]: assert m.version(p.split('==')[0]) == p.split('==')[1], p";
    let wanted = [&[TORCH], PACKAGES.as_slice()].concat();
    let arguments = [&["-c", check], wanted.as_slice()].concat();
    if text_of(python.command(&arguments, root)).is_ok() {
        return Ok(());
    }
    println!("== installing {TORCH} (540 MB) and {} small packages", PACKAGES.len());
    // Without its dependencies, which are 3 GB of NVIDIA's libraries.
    fetch(python, &["--no-deps", TORCH])?;
    fetch(python, &PACKAGES)
}

/// Unpacks RMM's headers into a folder. They are in no environment: a runtime of CUDA is with them, in the place of
/// which the stand-in is loaded.
fn unpack(python: &Python, folder: &Path) -> Result<(), String> {
    println!("== unpacking RMM's headers");
    let new = folder.with_file_name("rmm.new");
    let _ = fs::remove_dir_all(&new);
    let to = new.to_string_lossy();
    fetch(python, &[["--no-deps", "--target", &to].as_slice(), &RMM].concat())?;
    fs::rename(&new, folder).map_err(|error| format!("{}: {error}", folder.display()))
}

/// Installs packages, from the folder of wheels if one is named.
fn fetch(python: &Python, what: &[&str]) -> Result<(), String> {
    let wheels = std::env::var(WHEELS).ok();
    let from = match &wheels {
        Some(folder) if !Path::new(folder).is_dir() => {
            return Err(format!("{WHEELS}={folder}: no such folder; expected one with wheels"));
        }
        Some(folder) => vec!["--no-index", "--find-links", folder],
        None => Vec::new(),
    };
    python.packages(&[from.as_slice(), what].concat())
}

/// Builds a package with one library, and returns its path.
fn library(root: &Path, build: &[&str]) -> Result<PathBuf, String> {
    let built = bundle::built(root, build).map_err(|error| error.to_string())?;
    let library = built.into_iter().find(|file| file.extension().is_some_and(|end| end == "so"));
    library.ok_or_else(|| format!("cargo {} built no library", build.join(" ")))
}

/// Fills a folder with the stand-ins that PyTorch loads.
fn stand_ins(root: &Path, torch: &Path, double: &Path, folder: &Path) -> Result<(), String> {
    let _ = fs::remove_dir_all(folder);
    fs::create_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let driver = folder.join("libcuda.so");
    fs::copy(double, &driver).map_err(|error| format!("{}: {error}", double.display()))?;
    let libraries: Vec<PathBuf> = in_folder(&torch.join("lib"))?;
    let libraries = libraries.into_iter().filter(|file| name_of(file).contains(".so"));
    let libraries: Vec<PathBuf> = libraries.collect();
    let mut missing = symbols(&libraries, "--undefined-only")?;
    missing.retain(|name| PREFIXES.iter().any(|prefix| name.starts_with(prefix)));
    let defined = symbols(&libraries, "--defined-only")?;
    let missing: BTreeSet<String> = missing.difference(&defined).cloned().collect();

    // What the double lacks of the driver is refused.
    let double = symbols(&[driver], "--defined-only")?;
    let mut calls: BTreeSet<String> =
        missing.iter().filter(|name| is_of_driver(name)).cloned().collect();
    calls.extend(required_of_driver(torch)?);
    calls.retain(|name| !double.contains(name) && !double.contains(&format!("{name}_v2")));
    let source = stubs(calls.iter().map(|name| (name.as_str(), "refuse")));
    let link = ["-Wl,--no-as-needed", "-l:libcuda.so"];
    compile(folder, "libcuda.so.1", &source, &link)?;

    let link = ["-Wl,--no-as-needed", "-l:libcuda.so.1", "-ldl", "-pthread"];
    for (file, name, link) in
        [("cudart.c", "libcudart.so.13", link.as_slice()), ("nvml.c", "libnvidia-ml.so.1", &[])]
    {
        let file = root.join(PROGRAMS).join(file);
        let source = fs::read_to_string(&file);
        let source = source.map_err(|error| format!("{}: {error}", file.display()))?;
        compile(folder, name, &source, link)?;
    }

    let runtime = symbols(&[folder.join("libcudart.so.13")], "--defined-only")?;
    let rest = missing.iter().filter(|name| !is_of_driver(name) && !runtime.contains(*name));
    let is_of_runtime = |name: &str| name.starts_with("cuda") || name.starts_with("__cuda");
    let kind = |name: &str| if is_of_runtime(name) { "refuse" } else { "compute" };
    let source = stubs(rest.map(|name| (name.as_str(), kind(name))));
    compile(folder, "libstubs.so", &source, &[])?;
    for name in LIBRARIES {
        let place = folder.join(name);
        fs::hard_link(folder.join("libstubs.so"), &place)
            .map_err(|error| format!("{}: {error}", place.display()))?;
    }
    Ok(())
}

/// Returns whether a function is one of the driver: those of the other libraries go on in lower case,
/// but for cuFile's.
fn is_of_driver(name: &str) -> bool {
    let rest = name.strip_prefix("cu").unwrap_or_default();
    rest.starts_with(|first: char| first.is_ascii_uppercase()) && !rest.starts_with("File")
}

/// Returns the functions of the driver that PyTorch looks up by name and does not do without.
fn required_of_driver(torch: &Path) -> Result<Vec<String>, String> {
    let header = torch.join("include/c10/cuda/driver_api.h");
    let text = fs::read_to_string(&header);
    let text = text.map_err(|error| format!("{}: {error}", header.display()))?;
    let lines = text.lines().skip_while(|line| !line.contains("LIBCUDA_DRIVER_API_REQUIRED(_)"));
    let lines = lines.skip(1).map_while(|line| line.trim().strip_prefix("_("));
    let names: Vec<String> =
        lines.filter_map(|line| line.split(',').next()).map(str::to_owned).collect();
    match names.is_empty() {
        true => Err(format!("{}: no function of the driver is required there", header.display())),
        false => Ok(names),
    }
}

/// Writes a function for each name, which does what its kind says.
fn stubs<'a>(functions: impl Iterator<Item = (&'a str, &'a str)>) -> String {
    functions.fold(STUBS.to_owned(), |mut source, (name, kind)| {
        let _ = writeln!(source, "long {name}(void) {{ return {kind}(\"{name}\"); }}");
        source
    })
}

/// Compiles a library from C into a folder. Its source stays beside it.
fn compile(folder: &Path, name: &str, source: &str, link: &[&str]) -> Result<(), String> {
    let file = folder.join(format!("{name}.c"));
    fs::write(&file, source).map_err(|error| format!("{}: {error}", file.display()))?;
    let mut compiler = Command::new("cc");
    compiler.args(["-std=gnu17", "-O1", "-Wall", "-Wno-unused-function", "-shared", "-fPIC"]);
    compiler.arg(format!("-Wl,-soname,{name}")).arg("-o").arg(folder.join(name)).arg(&file);
    // The stubs stand for functions that the compiler may know by other types.
    compiler.args(["-fno-builtin", "-L"]).arg(folder).args(link);
    text_of(compiler).map(|_| ())
}

/// Returns the names of dynamic symbols of libraries, without their versions.
fn symbols(libraries: &[PathBuf], which: &str) -> Result<BTreeSet<String>, String> {
    let mut nm = Command::new("nm");
    nm.args(["-D", which]).args(libraries);
    let text = text_of(nm)?;
    let names = text.lines().filter_map(|line| line.split_whitespace().last());
    Ok(names.filter_map(|name| name.split('@').next()).map(str::to_owned).collect())
}

/// Runs a command and returns what it prints, or the last line of why it failed.
fn text_of(mut command: Command) -> Result<String, String> {
    let name = command.get_program().display().to_string();
    let said = command.output().map_err(|error| format!("{name}: {error}"))?;
    if said.status.success() {
        return Ok(String::from_utf8_lossy(&said.stdout).into_owned());
    }
    let why = String::from_utf8_lossy(&said.stderr);
    Err(format!("{name}: {}: {}", said.status, why.trim().lines().last().unwrap_or_default()))
}

fn in_folder(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let entries = fs::read_dir(folder).and_then(|entries| {
        entries.map(|entry| entry.map(|entry| entry.path())).collect::<Result<Vec<_>, _>>()
    });
    let mut entries = entries.map_err(|error| format!("{}: {error}", folder.display()))?;
    entries.retain(|entry| entry.is_file());
    Ok(entries)
}

fn name_of(file: &Path) -> String {
    file.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_of_the_driver_are_told_from_those_of_libraries() {
        assert!(is_of_driver("cuMemAlloc_v2"));
        for other in ["cublasCreate_v2", "cudaMalloc", "cuFileRead", "ncclSend", "cudnnCreate"] {
            assert!(!is_of_driver(other), "{other}");
        }
    }

    #[test]
    fn a_stub_says_its_name() {
        let source = stubs([("cublasCreate_v2", "compute")].into_iter());
        let line = "long cublasCreate_v2(void) { return compute(\"cublasCreate_v2\"); }\n";
        assert!(source.ends_with(line), "{source}");
    }
}
