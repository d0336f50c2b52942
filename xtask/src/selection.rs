//! The options that `ci` and `programs` have: how much is run, and what of it.

/// The parts of a task to run.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Selection {
    /// More than there is time for each day.
    pub(crate) deep: bool,
    /// What `cargo xtask test` does not run.
    pub(crate) rest: bool,
    /// Only what has this in its name.
    only: Option<String>,
}

impl Selection {
    /// Reads the words behind a task, or says which is wrong and what is expected.
    pub(crate) fn read(task: &str, words: &[String]) -> Result<Self, String> {
        let (mut selection, mut words) = (Self::default(), words.iter());
        while let Some(word) = words.next() {
            match word.as_str() {
                "--deep" => selection.deep = true,
                "--rest" if task == "ci" => selection.rest = true,
                "--only" => {
                    let name = words.next().ok_or("`--only` alone; expected --only NAME")?;
                    selection.only = Some(name.clone());
                }
                other => {
                    let rest = if task == "ci" { " or --rest" } else { "" };
                    return Err(format!(
                        "`{other}` behind `{task}`; expected --deep, --only NAME{rest}"
                    ));
                }
            }
        }
        Ok(selection)
    }

    /// Whether something of this name is to run.
    pub(crate) fn holds(&self, name: &str) -> bool {
        self.only.as_ref().is_none_or(|only| name.contains(only.as_str()))
    }

    /// Says that nothing is to run, and what could: `what` are the names of these.
    pub(crate) fn none_of<'a>(&self, what: &str, names: impl Iterator<Item = &'a str>) -> String {
        let only = self.only.as_deref().unwrap_or_default();
        let names: Vec<&str> = names.collect();
        format!("no {what} has `{only}` in its name; expected one of: {}", names.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str) -> Result<Selection, String> {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        Selection::read("ci", &words)
    }

    #[test]
    fn options_are_read_in_any_order() {
        assert_eq!(read(""), Ok(Selection::default()));
        assert!(read("").unwrap().holds("lint"));
        let both = read("--only doc --deep").unwrap();
        assert_eq!(Ok(&both), read("--deep --only doc").as_ref());
        assert!(both.deep && both.holds("doc tests") && !both.holds("lint"));
    }

    #[test]
    fn the_wrong_word_is_named() {
        assert!(read("--deep now").unwrap_err().starts_with("`now` behind `ci`; expected "));
        assert_eq!(read("--only").unwrap_err(), "`--only` alone; expected --only NAME");
        let names = ["lint", "test"].into_iter();
        assert_eq!(
            read("--only x").unwrap().none_of("step", names),
            "no step has `x` in its name; expected one of: lint, test"
        );
    }
}
