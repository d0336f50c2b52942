//! A report as one HTML page that works from disk: the data of its plots and tables.
//!
//! The page is a template with a script that draws the data (`page/page.html`, `page.css`,
//! `page.js`), and uPlot, a kept plotting library under the MIT licence (`page/uplot`), all inside
//! of one file. [`advice`], [`replays`] and [`timings`] make the sections.

pub mod advice;
pub mod replays;
pub mod timings;

use crate::input::BadInput;
use serde::Serialize;
use serde_json::{Value, json};
use std::fs;
use std::path::Path;

const TEMPLATE: &str = include_str!("page/page.html");
const STYLE: &str = include_str!("page/page.css");
const SCRIPT: &str = include_str!("page/page.js");
const PLOT_LIBRARY: &str = include_str!("page/uplot/uPlot.iife.min.js");
const PLOT_LIBRARY_CSS: &str = include_str!("page/uplot/uPlot.min.css");

/// A page.
#[derive(Clone, Debug, Default, Serialize)]
pub struct ReportPage {
    /// The heading.
    pub title: String,
    /// The command, as typed.
    pub command: String,
    /// When it ran.
    pub date: String,
    /// Processor, cores, memory.
    pub machine: String,
    /// Notes: parts that were left out, and faults of the measurement.
    pub notes: Vec<String>,
    /// Sections, in order.
    pub sections: Vec<Section>,
}

/// A part of a page under its own heading.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Section {
    /// The heading.
    pub title: String,
    /// A few sentences about it.
    pub text: String,
    /// Plots and tables.
    pub blocks: Vec<PageBlock>,
}

/// A plot or a table. Each has a title, and a caption that says how to read it.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum PageBlock {
    /// Lines over one axis.
    Lines {
        /// The title.
        title: String,
        /// How to read it.
        caption: String,
        /// The horizontal axis.
        x: Axis,
        /// The vertical axis.
        y: Axis,
        /// Where the values are on the horizontal axis.
        x_values: Vec<f64>,
        /// The lines.
        series: Vec<Series>,
        /// Whether a value holds until the next one.
        steps: bool,
        /// Whether the horizontal axis is logarithmic.
        log_x: bool,
        /// Whether the vertical axis is logarithmic.
        log_y: bool,
        /// The value at which the vertical axis ends, where a line goes on above it.
        cut: Option<f64>,
    },
    /// Horizontal bars with intervals.
    Bars {
        /// The title.
        title: String,
        /// How to read it.
        caption: String,
        /// The axis of the values.
        value: Axis,
        /// A value to compare with, drawn as a line.
        reference: Option<f64>,
        /// Whether the axis is logarithmic.
        log: bool,
        /// The bars.
        bars: Vec<Bar>,
    },
    /// Memory maps of several moments.
    Map {
        /// The title.
        title: String,
        /// How to read it.
        caption: String,
        /// The moments, in order.
        frames: Vec<Frame>,
    },
    /// A table.
    Table {
        /// The title.
        title: String,
        /// How to read it.
        caption: String,
        /// The columns.
        columns: Vec<Column>,
        /// The rows: numbers or text.
        rows: Vec<Vec<Value>>,
    },
}

/// An axis: its name, and the unit of its values (`bytes`, `ns`, `s`, `count`, `.1` to `.3` for a
/// number of decimals, or none).
#[derive(Clone, Debug, Default, Serialize)]
pub struct Axis {
    /// The name.
    pub label: String,
    /// The unit.
    pub unit: &'static str,
}

/// A line of a plot.
#[derive(Clone, Debug, Serialize)]
pub struct Series {
    /// The name.
    pub name: String,
    /// A value for each place on the horizontal axis, or none.
    pub values: Vec<Option<f64>>,
}

/// A bar of a plot.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Bar {
    /// The bars of one group stand together.
    pub group: String,
    /// The name.
    pub name: String,
    /// The value.
    pub value: f64,
    /// The lower end of its interval.
    pub low: Option<f64>,
    /// The upper end of its interval.
    pub high: Option<f64>,
    /// What stands behind the value, such as another figure.
    pub note: String,
    /// Whether it is drawn in grey: it is no contender, and the note says why.
    pub is_grey: bool,
}

/// A memory map at one moment.
#[derive(Clone, Debug, Serialize)]
pub struct Frame {
    /// The moment.
    pub label: String,
    /// The segments.
    pub segments: Vec<Segment>,
}

/// A segment of a memory map.
#[derive(Clone, Debug, Serialize)]
pub struct Segment {
    /// Its bytes.
    pub bytes: u64,
    /// Its ranges.
    pub ranges: Vec<Range>,
}

/// A range of a segment.
#[derive(Clone, Debug, Serialize)]
pub struct Range {
    /// Where it begins in the segment.
    pub at: u64,
    /// Its bytes.
    pub bytes: u64,
    /// `used`, `private`, `free`, `pending` or `hole`.
    pub state: &'static str,
    /// The stream that used it last, if there is one.
    pub stream: Option<u64>,
    /// The tag of its request; empty for none.
    pub tag: String,
}

/// A column of a table.
#[derive(Clone, Debug, Serialize)]
pub struct Column {
    /// The name.
    pub label: String,
    /// The unit, as for an [`Axis`].
    pub unit: &'static str,
    /// `left` for text, `right` for numbers.
    pub align: &'static str,
}

impl Axis {
    /// An axis.
    pub fn new(label: impl Into<String>, unit: &'static str) -> Self {
        Self { label: label.into(), unit }
    }
}

impl Column {
    /// A column of text.
    pub fn text(label: impl Into<String>) -> Self {
        Self { label: label.into(), unit: "", align: "left" }
    }

    /// A column of numbers.
    pub fn number(label: impl Into<String>, unit: &'static str) -> Self {
        Self { label: label.into(), unit, align: "right" }
    }
}

/// A number for a table, rounded to a number of decimal places.
fn rounded(value: f64, places: i32) -> Value {
    let factor = 10_f64.powi(places);
    json!((value * factor).round() / factor)
}

impl ReportPage {
    /// The page as HTML.
    #[must_use]
    pub fn html(&self) -> String {
        // Numbers and text: serde_json has nothing to refuse. `<` would end the script element.
        let data = serde_json::to_string(self).unwrap_or_default().replace('<', "\\u003c");
        let title = self.title.replace('&', "&amp;").replace('<', "&lt;");
        let parts = [
            ("{{TITLE}}", title.as_str()),
            ("{{PLOT_LIBRARY_CSS}}", PLOT_LIBRARY_CSS),
            ("{{STYLE}}", STYLE),
            ("{{PLOT_LIBRARY}}", PLOT_LIBRARY),
            ("{{SCRIPT}}", SCRIPT),
            ("{{DATA}}", &data),
        ];
        let mut html = String::new();
        let mut rest = TEMPLATE;
        // In the order of the template, so that a placeholder in the data stays as it is.
        while let Some((at, (name, text))) = parts
            .iter()
            .filter_map(|part| Some((rest.find(part.0)?, part)))
            .min_by_key(|(at, _)| *at)
        {
            html.push_str(&rest[..at]);
            html.push_str(text);
            rest = &rest[at + name.len()..];
        }
        html.push_str(rest);
        html
    }

    /// Writes the page to a file.
    ///
    /// # Errors
    ///
    /// The error of the file.
    pub fn write(&self, path: &Path) -> Result<(), BadInput> {
        fs::write(path, self.html()).map_err(|error| {
            BadInput::new(format!("{}: {error}", path.display()), "a file that can be written")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_cannot_end_its_script_nor_be_taken_for_a_placeholder() {
        let notes = vec!["</script><b>".into(), "{{SCRIPT}}".into()];
        let page = ReportPage { title: "a < b".into(), notes, ..ReportPage::default() };
        let html = page.html();
        assert!(html.contains("a &lt; b") && !html.contains("</script><b>"));
        assert_eq!(html.matches("{{SCRIPT}}").count(), 1, "the text of the note alone");
        assert!(!html.contains("{{DATA}}") && !html.contains("{{STYLE}}"));
        let start = html.find(r#"id="data""#).and_then(|at| html[at..].find('{').map(|to| at + to));
        let data = &html[start.unwrap()..];
        let data = &data[..data.find("</script>").unwrap()];
        let read: Value = serde_json::from_str(data.trim()).unwrap();
        assert_eq!(read["notes"][0], "</script><b>");
    }
}
