//! The Rust files of a crate, and the modules that they declare and name, as `syn` reads them.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use syn::visit::{self, Visit};
use syn::{Attribute, Item, UseTree, Visibility};

/// The place of a module in its crate: `["pool", "store"]`; the root is empty.
pub(crate) type ModulePath = Vec<String>;

/// A module of a crate.
#[derive(Default)]
pub(crate) struct Module {
    /// Names that `use` brings in, with their paths as written. Children see private ones too.
    imports: BTreeMap<String, Vec<String>>,
    /// Paths that its code names, as written, without those that it only re-exports.
    named: Vec<Vec<String>>,
    /// Types that it declares.
    pub(crate) types: Vec<String>,
}

/// All modules of a crate, without those of its tests.
pub(crate) struct Modules(BTreeMap<ModulePath, Module>);

/// All files below `folder` with this extension, in a stable order. Build outputs and hidden
/// folders are left out.
pub(crate) fn files(folder: &Path, extension: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_path_buf()];
    while let Some(folder) = folders.pop() {
        let Ok(entries) = fs::read_dir(&folder) else { continue };
        for path in entries.flatten().map(|entry| entry.path()) {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if path.is_dir() && name != "target" && !name.starts_with('.') {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == extension) {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

/// The files that the `mod name;` lines of `file` declare. A file that does not parse, which the
/// compiler tells, declares none.
pub(crate) fn declared(file: &Path) -> Vec<PathBuf> {
    let items = parse(file);
    let modules = items.iter().filter_map(|item| match item {
        Item::Mod(module) if module.content.is_none() => Some(place_of(file, module)),
        _ => None,
    });
    modules.collect()
}

fn parse(file: &Path) -> Vec<Item> {
    let text = fs::read_to_string(file).unwrap_or_default();
    syn::parse_file(&text).map_or_else(|_| Vec::new(), |parsed| parsed.items)
}

/// The file of a module that `file` declares.
fn place_of(file: &Path, module: &syn::ItemMod) -> PathBuf {
    let folder = file.parent().unwrap_or(file);
    if let Some(path) = path_attribute(&module.attrs) {
        return folder.join(path);
    }
    let stem = file.file_stem().unwrap_or_default();
    let is_root = ["lib", "main", "mod"].iter().any(|root| stem == *root)
        || ["tests", "benches", "examples"].iter().any(|name| folder.ends_with(name));
    let folder = if is_root { folder.to_path_buf() } else { folder.join(stem) };
    let name = module.ident.to_string();
    let inside = folder.join(&name).join("mod.rs");
    if inside.is_file() { inside } else { folder.join(format!("{name}.rs")) }
}

fn path_attribute(attributes: &[Attribute]) -> Option<String> {
    let path = attributes.iter().find(|attribute| attribute.path().is_ident("path"))?;
    match &path.meta.require_name_value().ok()?.value {
        syn::Expr::Lit(syn::ExprLit { lit: syn::Lit::Str(text), .. }) => Some(text.value()),
        _ => None,
    }
}

/// Whether something is compiled for the tests of its crate only: `cfg(test)`, or `cfg(all(test, ..))`.
fn is_for_tests(attributes: &[Attribute]) -> bool {
    attributes.iter().filter(|attribute| attribute.path().is_ident("cfg")).any(|cfg| {
        let Ok(condition) = cfg.meta.require_list() else { return false };
        let text = condition.tokens.to_string();
        text == "test"
            || text.starts_with("all") && text.contains("test") && !text.contains("not (test")
    })
}

/// Whether something is compiled with the feature `check`, which tests alone use.
fn is_for_checks(attributes: &[Attribute]) -> bool {
    let cfgs = attributes.iter().filter(|attribute| attribute.path().is_ident("cfg"));
    cfgs.filter_map(|cfg| cfg.meta.require_list().ok())
        .any(|condition| condition.tokens.to_string().contains("feature = \"check\""))
}

impl Modules {
    /// The files that `file` declares as modules of its tests, or of checks for tests.
    pub(crate) fn declared_for_tests(file: &Path) -> Vec<PathBuf> {
        let items = parse(file);
        let modules = items.iter().filter_map(|item| match item {
            Item::Mod(module)
                if module.content.is_none()
                    && (is_for_tests(&module.attrs) || is_for_checks(&module.attrs)) =>
            {
                Some(place_of(file, module))
            }
            _ => None,
        });
        modules.collect()
    }

    /// Reads the crate whose root is `src/lib.rs` or `src/main.rs`.
    pub(crate) fn of(src: &Path) -> Self {
        let mut modules = Self(BTreeMap::new());
        if let Some(root) =
            ["lib.rs", "main.rs"].map(|name| src.join(name)).iter().find(|f| f.is_file())
        {
            modules.read(Vec::new(), root, &parse(root));
        }
        modules
    }

    fn read(&mut self, path: ModulePath, file: &Path, items: &[Item]) {
        let mut module = self.0.remove(&path).unwrap_or_default(); // another file for other flags
        for item in items {
            match item {
                Item::Mod(child) if is_for_tests(&child.attrs) => {}
                Item::Mod(child) => {
                    let path = [path.clone(), vec![child.ident.to_string()]].concat();
                    if let Some((_, items)) = &child.content {
                        self.read(path, file, items);
                    } else {
                        let file = place_of(file, child);
                        self.read(path, &file, &parse(&file));
                    }
                }
                other => module.add(other),
            }
        }
        self.0.insert(path, module);
    }

    /// The modules with their paths, the root first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&ModulePath, &Module)> {
        self.0.iter()
    }

    /// Other modules of the crate that the module at `path` names.
    pub(crate) fn used_by<'a>(
        &'a self,
        path: &'a ModulePath,
    ) -> impl Iterator<Item = ModulePath> + 'a {
        let named = self.0.get(path).into_iter().flat_map(|module| &module.named);
        named.filter_map(|named| self.resolve(path, named, 0)).filter(move |used| used != path)
    }

    /// The module in which an item lives that `from` names by `path`; `None` for one of another
    /// crate and for one that `from` has itself.
    fn resolve(&self, from: &ModulePath, path: &[String], depth: u32) -> Option<ModulePath> {
        const MAX_REEXPORTS: u32 = 8; // a cycle of re-exports does not compile
        let (first, mut rest) = path.split_first()?;
        let mut at = match first.as_str() {
            "crate" => Vec::new(),
            "self" => from.clone(),
            "super" => parent(from)?,
            name => self.child(from, name)?,
        };
        while let Some((name, further)) = rest.split_first() {
            if name == "super" {
                at = parent(&at)?;
            } else if let Some(child) = self.child(&at, name) {
                at = child;
            } else if let Some(import) = self.0.get(&at).and_then(|module| module.imports.get(name))
            {
                let whole = [import.as_slice(), further].concat();
                let is_near = depth < MAX_REEXPORTS;
                return is_near.then(|| self.resolve(&at, &whole, depth + 1)).flatten();
            } else {
                break;
            }
            rest = further;
        }
        Some(at)
    }

    fn child(&self, of: &ModulePath, name: &str) -> Option<ModulePath> {
        let path = [of.as_slice(), &[name.to_owned()]].concat();
        self.0.contains_key(&path).then_some(path)
    }
}

fn parent(of: &ModulePath) -> Option<ModulePath> {
    of.split_last().map(|(_, above)| above.to_vec())
}

impl Module {
    fn add(&mut self, item: &Item) {
        if let Item::Struct(syn::ItemStruct { ident, .. })
        | Item::Enum(syn::ItemEnum { ident, .. })
        | Item::Union(syn::ItemUnion { ident, .. })
        | Item::Trait(syn::ItemTrait { ident, .. }) = item
        {
            self.types.push(ident.to_string());
        }
        if let Item::Use(import) = item {
            let leaves = leaves(&import.tree);
            if matches!(import.vis, Visibility::Inherited) {
                self.named.extend(leaves.iter().map(|(_, path)| path.clone()));
            }
            self.imports.extend(leaves);
        } else {
            self.visit_item(item);
        }
    }
}

impl<'ast> Visit<'ast> for Module {
    fn visit_path(&mut self, path: &'ast syn::Path) {
        self.named.push(path.segments.iter().map(|segment| segment.ident.to_string()).collect());
        visit::visit_path(self, path);
    }

    fn visit_visibility(&mut self, _: &'ast Visibility) {} // `pub(in path)` uses nothing

    fn visit_item_use(&mut self, import: &'ast syn::ItemUse) {
        self.named.extend(leaves(&import.tree).into_iter().map(|(_, path)| path));
    }

    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        self.visit_path(&call.path);
        // The arguments are tokens of any grammar: paths are what `::` joins.
        let text = call.tokens.to_string().replace(" :: ", "::");
        let words = text.split(|c: char| !c.is_alphanumeric() && c != '_' && c != ':');
        let paths = words.filter(|word| word.contains("::"));
        self.named.extend(paths.map(|path| path.split("::").map(str::to_owned).collect()));
    }
}

/// The names that a tree of `use` brings in, with their whole paths.
fn leaves(tree: &UseTree) -> Vec<(String, Vec<String>)> {
    let below = |name: &syn::Ident, tree| {
        let behind = |(leaf, path): (String, Vec<String>)| {
            let path = if path == ["self"] { Vec::new() } else { path };
            let leaf = if leaf == "self" { name.to_string() } else { leaf };
            (leaf, [vec![name.to_string()], path].concat())
        };
        leaves(tree).into_iter().map(behind).collect()
    };
    match tree {
        UseTree::Path(path) => below(&path.ident, &path.tree),
        UseTree::Name(name) => vec![(name.ident.to_string(), vec![name.ident.to_string()])],
        UseTree::Rename(name) => vec![(name.rename.to_string(), vec![name.ident.to_string()])],
        UseTree::Glob(_) => vec![("*".to_owned(), Vec::new())],
        UseTree::Group(group) => group.items.iter().flat_map(leaves).collect(),
    }
}
