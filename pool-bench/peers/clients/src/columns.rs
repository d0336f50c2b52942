//! Record batches of varying length from arrow's builders. The last four batches stay live.

use arrow::array::{ArrayRef, Float64Builder, Int64Builder, RecordBatch, StringBuilder};
use arrow::error::ArrowError;
use std::collections::VecDeque;
use std::sync::Arc;

const ALIVE: usize = 4;

/// Builds `batches` batches. Each starts with empty columns and grows them, as a reader does.
pub fn build(batches: usize) -> Result<(), ArrowError> {
    let mut alive: VecDeque<RecordBatch> = VecDeque::new();
    let mut random = 0x2545_F491_u32;
    for _ in 0..batches {
        random ^= random << 13;
        random ^= random >> 17;
        random ^= random << 5;
        let rows = 50_000 + random as usize % 250_000;
        let (mut ids, mut values) = (Int64Builder::new(), Float64Builder::new());
        let mut names = StringBuilder::new();
        for row in 0..rows {
            ids.append_value(row as i64);
            values.append_value(row as f64 * 0.5);
            names.append_value(&"a name of some letters"[..1 + row % 22]);
        }
        let columns: [(&str, ArrayRef); 3] = [
            ("id", Arc::new(ids.finish())),
            ("value", Arc::new(values.finish())),
            ("name", Arc::new(names.finish())),
        ];
        alive.push_back(RecordBatch::try_from_iter(columns)?);
        if alive.len() > ALIVE {
            alive.pop_front();
        }
    }
    Ok(())
}
