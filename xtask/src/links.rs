//! Links in documents that lead nowhere.

use crate::source;
use std::fs;
use std::path::Path;

/// Returns the links to files that do not exist.
pub(crate) fn check(root: &Path) -> Vec<String> {
    let mut faults = Vec::new();
    for file in source::files(root, "md") {
        let text = fs::read_to_string(&file).unwrap_or_default();
        let folder = file.parent().unwrap_or(root);
        let name = file.strip_prefix(root).unwrap_or(&file).display();
        for target in links(&text) {
            let path = target.split('#').next().unwrap_or_default();
            if !path.is_empty() && !folder.join(path).exists() {
                faults.push(format!("{name}: the link to `{target}` leads nowhere"));
            }
        }
    }
    faults
}

/// The targets of Markdown links that are not addresses on the web.
fn links(text: &str) -> Vec<String> {
    let mut in_code = false;
    let mut targets = Vec::new();
    for line in text.lines() {
        in_code ^= line.trim_start().starts_with("```");
        let ends = line.match_indices("](").filter(|_| !in_code);
        let found = ends.filter_map(|(at, _)| line[at + 2..].split(')').next());
        targets.extend(found.filter(|t| !t.contains("://")).map(str::to_owned));
    }
    targets
}

#[cfg(test)]
mod tests {
    use super::links;

    #[test]
    fn links_are_found_outside_code() {
        let text = "[a](b.md#c) and [d](https://e.f)\n```\n[x](y)\n```\n[g](h)";
        assert_eq!(links(text), ["b.md#c", "h"]);
    }
}
