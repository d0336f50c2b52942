//! `cargo xtask size`: how much code the core is, its largest type, and how many functions and files
//! a reader opens on the way of a hit, a slow free and a refusal.
//!
//! Lines of code are those without tests, checks for tests, comments and blank lines. What came out of the core counts
//! beside it, so that a move to another crate does not look like less code. `--root FOLDER` counts
//! another checkout, such as one of an earlier commit.

use crate::source::{self, Modules};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::rc::Rc;
use syn::visit::{self, Visit};

/// Parts that came out of the core, each with the places where it is or was.
const PARTS: [(&str, &[&str]); 4] = [
    ("simulator and suites", &["pool-sim/src", "pool-core/src/sim", "pool-core/src/conformance"]),
    (
        "configuration",
        &[
            "pool-config/src",
            "pool-core/src/preset",
            "pool-core/src/spec",
            "pool-core/src/config",
            "pool-core/src/erased",
        ],
    ),
    ("arrays", &["pool-array/src", "pool-core/src/array"]),
    (
        "observers, ring",
        &[
            "pool-trace/src/breakdown",
            "pool-trace/src/leaks",
            "pool-trace/src/ring",
            "pool-trace/src/rmm_log",
            "pool-core/src/observe/breakdown",
            "pool-core/src/observe/leaks",
            "pool-core/src/observe/rmm_log",
            "pool-core/src/ring",
        ],
    ),
];

/// Types that are listed.
const TYPES: usize = 6;
/// The ways of a request, one function a line.
const WAYS: &str = "xtask/ways.txt";

/// Prints the table.
pub(crate) fn run(root: &Path, further: &[String]) -> ExitCode {
    let at = match further {
        [] => root.to_path_buf(),
        [flag, folder] if flag == "--root" && Path::new(folder).join("pool-core/src").is_dir() => {
            PathBuf::from(folder)
        }
        other => {
            eprintln!(
                "error: `{}` behind `size`; expected nothing, or --root FOLDER with a checkout",
                other.join(" ")
            );
            return ExitCode::from(crate::BAD_INPUT);
        }
    };
    println!("{}", table(&at, root));
    ExitCode::SUCCESS
}

fn table(at: &Path, root: &Path) -> String {
    let is_of = |file: &Path, places: &[&str]| {
        places.iter().any(|place| {
            let place = at.join(place);
            file.starts_with(&place) || file == place.with_extension("rs")
        })
    };
    let mut lines = Vec::new();
    let core = code_files(&at.join("pool-core/src"));
    let came_out = |file: &PathBuf| PARTS.iter().any(|(_, places)| is_of(file, places));
    let own: Vec<PathBuf> = core.iter().filter(|file| !came_out(file)).cloned().collect();
    let mut sum = lines_of(&own);
    lines.push("lines of code, without tests, comments and blank lines".to_owned());
    lines.push(format!("  {:<24} {:>6}   {} files", "pool-core", sum, own.len()));
    for (room, count) in rooms(&at.join("pool-core/src"), &own) {
        lines.push(format!("    {room:<22} {count:>6}"));
    }
    for (name, places) in PARTS {
        let all = ["pool-core/src", "pool-sim/src", "pool-config/src", "pool-array/src"];
        let all =
            all.into_iter().chain(["pool-trace/src"]).flat_map(|src| code_files(&at.join(src)));
        let files: Vec<PathBuf> = all.filter(|file| is_of(file, places)).collect();
        let count = lines_of(&files);
        sum += count;
        lines.push(format!("  {name:<24} {count:>6}   {} files", files.len()));
    }
    lines.push(format!("  {:<24} {sum:>6}", "together"));
    let longest = own.iter().max_by_key(|file| lines_in(file)).map(|file| {
        let name = file.strip_prefix(at).unwrap_or(file).display().to_string();
        format!("longest file: {name}, {} lines of code", lines_in(file))
    });
    lines.extend(longest);
    let longest = own.iter().filter_map(|file| longest_function(&source_of(file))).max();
    lines.extend(longest.map(|(count, name)| format!("longest function: {name}, {count} lines")));
    lines.push("largest types".to_owned());
    lines.extend(largest_types(&own));
    lines.push("the way of".to_owned());
    let functions = Functions::of(&own);
    let text = fs::read_to_string(root.join(WAYS)).unwrap_or_default();
    for Way { name, steps } in ways(&text).0 {
        let files: BTreeSet<&PathBuf> = steps.iter().filter_map(|f| functions.file(f)).collect();
        let found = steps.iter().filter(|step| functions.file(step).is_some()).count();
        let all =
            if found == steps.len() { String::new() } else { " (some have other names)".into() };
        lines.push(format!("  {name:<24} {found:>6} functions in {} files{all}", files.len()));
    }
    lines.join("\n")
}

/// The Rust files below a folder, without those of tests and models.
fn code_files(src: &Path) -> Vec<PathBuf> {
    let tests: BTreeSet<PathBuf> = source::files(src, "rs")
        .iter()
        .flat_map(|file| Modules::declared_for_tests(file))
        .collect();
    let is_test = |file: &PathBuf| {
        tests.iter().any(|test| file == test || file.starts_with(test.with_extension("")))
    };
    source::files(src, "rs").into_iter().filter(|file| !is_test(file)).collect()
}

fn lines_of(files: &[PathBuf]) -> usize {
    files.iter().map(|file| lines_in(file)).sum()
}

/// The lines of code of a file.
fn lines_in(file: &Path) -> usize {
    count(&source_of(file))
}

fn source_of(file: &Path) -> String {
    fs::read_to_string(file).unwrap_or_default()
}

/// The function with the most lines of code in a formatted source, and how many.
fn longest_function(text: &str) -> Option<(usize, String)> {
    let lines: Vec<&str> = text.lines().collect();
    let named = lines.iter().enumerate().filter_map(|(at, line)| {
        let (before, behind) = line.split_once("fn ")?;
        let is_start = before
            .split_whitespace()
            .all(|word| word.starts_with("pub") || ["const", "unsafe", "async"].contains(&word));
        let name = behind.split(['(', '<']).next().filter(|_| is_start)?;
        Some((at, name, line.len() - line.trim_start().len()))
    });
    let length = |(at, name, indent): (usize, &str, usize)| {
        let body = &lines[at..];
        let opens = body.iter().position(|line| line.ends_with(['{', ';', '}']))?;
        let ends = |line: &&str| line.len() == indent + 1 && line.ends_with('}');
        let end = opens + body[opens..].iter().position(ends)?;
        body[opens].ends_with('{').then(|| (count(&body[..=end].join("\n")), name.to_owned()))
    };
    named.filter_map(length).max()
}

/// Counts lines that are neither blank nor comments, nor in a module of tests at the end of a file.
fn count(text: &str) -> usize {
    let mut lines = text.lines().map(str::trim_end).peekable();
    let mut code = 0;
    while let Some(line) = lines.next() {
        let is_for_tests = line.starts_with("#[cfg(") && line.contains("test");
        if is_for_tests && lines.peek().is_some_and(|next| next.starts_with("mod ")) {
            if lines.next().is_some_and(|module| module.ends_with('{')) {
                lines.by_ref().take_while(|line| *line != "}").for_each(drop);
            }
            continue;
        }
        let line = line.trim_start();
        code += usize::from(!line.is_empty() && !line.starts_with("//"));
    }
    code
}

/// Lines by the first folder or file below `src`.
fn rooms(src: &Path, files: &[PathBuf]) -> BTreeMap<String, usize> {
    let mut rooms: BTreeMap<String, usize> = BTreeMap::new();
    for file in files {
        let inside = file.strip_prefix(src).unwrap_or(file);
        let room = inside.iter().next().unwrap_or_default().to_string_lossy();
        let room = room.trim_end_matches(".rs").to_owned();
        *rooms.entry(room).or_default() += lines_in(file);
    }
    rooms
}

/// The types with the most methods, the largest first.
fn largest_types(files: &[PathBuf]) -> Vec<String> {
    let mut types: BTreeMap<String, (usize, BTreeSet<&PathBuf>)> = BTreeMap::new();
    for file in files {
        for function in functions_in(file) {
            if let Some(owner) = function.owner {
                let entry = types.entry(owner).or_default();
                entry.0 += 1;
                entry.1.insert(file);
            }
        }
    }
    let mut types: Vec<_> = types.into_iter().collect();
    types.sort_by_key(|(_, (methods, _))| Reverse(*methods));
    let line = |(name, (methods, files)): (String, (usize, BTreeSet<&PathBuf>))| {
        format!("  {name:<24} {methods:>6} methods in {} files", files.len())
    };
    types.into_iter().take(TYPES).map(line).collect()
}

/// A function: the type that has it, if one does, its name, and its body.
struct Function {
    owner: Option<String>,
    name: String,
    body: syn::Block,
}

/// The functions of a file outside of its tests: methods of types, and free ones.
fn functions_in(file: &Path) -> Vec<Function> {
    let text = fs::read_to_string(file).unwrap_or_default();
    let Ok(parsed) = syn::parse_file(&text) else { return Vec::new() };
    let mut found = Vec::new();
    for item in parsed.items {
        match item {
            syn::Item::Fn(function) => {
                let (name, body) = (function.sig.ident.to_string(), *function.block);
                found.push(Function { owner: None, name, body });
            }
            syn::Item::Impl(block) => {
                // A method of a trait is known by its own name.
                let owner = owner(&block.self_ty).filter(|_| block.trait_.is_none());
                for item in block.items {
                    if let syn::ImplItem::Fn(method) = item {
                        let (owner, name) = (owner.clone(), method.sig.ident.to_string());
                        found.push(Function { owner, name, body: method.block });
                    }
                }
            }
            _ => {}
        }
    }
    found
}

fn owner(of: &syn::Type) -> Option<String> {
    let syn::Type::Path(path) = of else { return None };
    path.path.segments.last().map(|segment| segment.ident.to_string())
}

/// The functions of the core by name: `Type::method`, or the name of a free function or of a method
/// of a trait, which has a second name with its module (`trim::trim`).
struct Functions(BTreeMap<String, Vec<(PathBuf, Rc<syn::Block>)>>);

impl Functions {
    fn of(files: &[PathBuf]) -> Self {
        let mut all: BTreeMap<String, Vec<(PathBuf, Rc<syn::Block>)>> = BTreeMap::new();
        for file in files {
            let module = file.file_stem().unwrap_or_default().to_string_lossy();
            for Function { owner, name, body } in functions_in(file) {
                let body = Rc::new(body);
                if owner.is_none() {
                    let with_module = all.entry(format!("{module}::{name}")).or_default();
                    with_module.push((file.clone(), body.clone()));
                }
                let name = owner.map_or(name.clone(), |owner| format!("{owner}::{name}"));
                all.entry(name).or_default().push((file.clone(), body));
            }
        }
        Self(all)
    }

    fn file(&self, name: &str) -> Option<&PathBuf> {
        Some(&self.0.get(name)?.first()?.0)
    }

    /// The names of all functions without their types.
    fn short_names(&self) -> BTreeSet<&str> {
        self.0.keys().map(|name| short(name)).collect()
    }
}

fn short(name: &str) -> &str {
    name.rsplit("::").next().unwrap_or(name)
}

/// A way: its name, and its functions in their order.
struct Way {
    name: String,
    steps: Vec<String>,
}

/// Reads the list: `[name]` begins a way, and below `[aside]` are names of functions that ways call
/// and that a reader need not follow.
fn ways(text: &str) -> (Vec<Way>, BTreeSet<String>) {
    let (mut ways, mut aside, mut is_aside) = (Vec::<Way>::new(), BTreeSet::new(), false);
    for line in text.lines().map(|line| line.split('#').next().unwrap_or_default().trim()) {
        if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            is_aside = name == "aside";
            if !is_aside {
                ways.push(Way { name: name.to_owned(), steps: Vec::new() });
            }
        } else if is_aside {
            aside.extend(line.split_whitespace().map(str::to_owned));
        } else if let Some(way) = ways.last_mut().filter(|_| !line.is_empty()) {
            way.steps.push(line.to_owned());
        }
    }
    (ways, aside)
}

/// The names that a body has: of what it calls, and of all paths and methods.
#[derive(Default)]
struct Names {
    called: BTreeSet<String>,
    named: BTreeSet<String>,
}

impl<'ast> Visit<'ast> for Names {
    fn visit_expr_method_call(&mut self, call: &'ast syn::ExprMethodCall) {
        self.called.insert(call.method.to_string());
        visit::visit_expr_method_call(self, call);
    }

    fn visit_expr_call(&mut self, call: &'ast syn::ExprCall) {
        if let syn::Expr::Path(path) = &*call.func {
            self.called.extend(path.path.segments.last().map(|last| last.ident.to_string()));
        }
        visit::visit_expr_call(self, call);
    }

    fn visit_expr_path(&mut self, path: &'ast syn::ExprPath) {
        self.named.extend(path.path.segments.last().map(|last| last.ident.to_string()));
        visit::visit_expr_path(self, path);
    }
}

/// What is not true in the list of ways any more.
pub(crate) fn check(root: &Path) -> Vec<String> {
    let src = root.join("pool-core/src");
    let functions = Functions::of(&code_files(&src));
    let (ways, aside) = ways(&fs::read_to_string(root.join(WAYS)).unwrap_or_default());
    let known = functions.short_names();
    let mut faults = Vec::new();
    if ways.len() < 3 {
        faults.push(format!("{WAYS}: expected the ways of a hit, a slow free and a refusal"));
    }
    for Way { name, steps } in &ways {
        let on_way: BTreeSet<&str> = steps.iter().map(|step| short(step)).collect();
        let mut reached: BTreeSet<String> = BTreeSet::new();
        for (at, step) in steps.iter().enumerate() {
            let Some(bodies) = functions.0.get(step) else {
                faults.push(format!("{WAYS}: the way of {name}: there is no `{step}`"));
                continue;
            };
            if at > 0 && !reached.contains(short(step)) {
                faults.push(format!("{WAYS}: the way of {name}: nothing before calls `{step}`"));
            }
            let mut names = Names::default();
            for (_, body) in bodies {
                names.visit_block(body);
            }
            // The others branch too often for a list of all that they call.
            let is_new = |call: &&String| {
                name == "hit"
                    && known.contains(call.as_str())
                    && !on_way.contains(call.as_str())
                    && !aside.contains(*call)
            };
            faults.extend(names.called.iter().filter(is_new).map(|call| {
                format!(
                    "{WAYS}: `{step}` calls `{call}`; add it to the way of {name}, or to [aside]"
                )
            }));
            reached.extend(names.called);
            reached.extend(names.named);
        }
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_code_is_counted() {
        let text = "//! Docs.\n\nuse a::b; // why\n\n/// Doc.\nfn f() {\n    // no\n    g();\n}\n\n\
                    #[cfg(test)]\nmod tests {\n    fn t() {}\n}\n";
        assert_eq!(count(text), 4);
    }

    #[test]
    fn a_function_is_as_long_as_its_code() {
        let text = "impl A {\n    fn a() {\n        // no\n        b();\n    }\n}\n\n\
                    fn c(\n    d: u8,\n) -> u8 {\n    if d > 0 {\n        d\n    }\n}\n";
        assert_eq!(longest_function(text), Some((7, "c".to_owned())));
    }

    #[test]
    fn a_list_has_ways_and_names_beside_them() {
        let (ways, aside) = ways("# why\n[hit]\nA::f # first\ng\n[aside]\nmap ok\nnew\n");
        assert_eq!((ways[0].name.as_str(), ways[0].steps.join(" ").as_str()), ("hit", "A::f g"));
        assert_eq!(aside.into_iter().collect::<Vec<_>>(), ["map", "new", "ok"]);
    }

    #[test]
    fn the_ways_are_those_of_the_source() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        assert_eq!(check(root), Vec::<String>::new());
    }
}
