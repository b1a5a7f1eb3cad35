//! Instructions per packet of the engine, counted by callgrind: figures that a busy machine does
//! not move. The difference of two runs of different length leaves out everything but the passes
//! (each still begins its session: a dozen frames).
//!
//! Refuses to go on without valgrind. It hides AVX-512 from the crypto library.

use std::process::Command;

use serde::Serialize;

use super::report::table;
use crate::results::{Axis, Figure};

/// What was counted.
#[derive(Debug, Serialize)]
pub struct Instructions {
    cases: Vec<Counted>,
}

#[derive(Debug, Serialize)]
struct Counted {
    case: &'static str,
    frames: u64,
    instructions_per_frame: f64,
    instructions_per_byte: f64,
}

/// Runs every case under callgrind.
pub fn count() -> Result<Instructions, String> {
    let cases = [
        ("64 KB super-frames", Some("super")),
        ("1448 B segments", Some("segments")),
        ("raw opening, per record", None),
    ];
    let cases = cases
        .into_iter()
        .map(|(case, cut)| {
            let (few, _) = collect(cut, 2)?;
            let (many, (frames, bytes)) = collect(cut, 6)?;
            let per_pass = many.saturating_sub(few) as f64 / 4.0;
            Ok(Counted {
                case,
                frames,
                instructions_per_frame: per_pass / frames as f64,
                instructions_per_byte: per_pass / bytes as f64,
            })
        })
        .collect::<Result<_, String>>()?;
    Ok(Instructions { cases })
}

/// Instructions of one run, and the frames and payload bytes of a pass.
fn collect(cut: Option<&str>, passes: u32) -> Result<(u64, (u64, u64)), String> {
    let me = std::env::current_exe().map_err(|error| format!("own path: {error}"))?;
    let mut command = Command::new("valgrind");
    command.args(["--tool=callgrind", "--callgrind-out-file=/dev/null"]).arg(me);
    command.args(["bench", "engine-pass", "--passes", &passes.to_string()]);
    if let Some(cut) = cut {
        command.args(["--cut", cut]);
    }
    let output = command.output().map_err(|error| format!("valgrind: {error}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    let collected = said
        .lines()
        .find_map(|line| line.split_once("Collected :")?.1.trim().parse().ok())
        .filter(|_| output.status.success())
        .ok_or_else(|| format!("valgrind: {}", said.trim()))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let mut numbers = text.split_whitespace().filter_map(|word| word.parse().ok());
    let pair = numbers.next().zip(numbers.next()).ok_or("the counted run printed nothing")?;
    Ok((collected, pair))
}

impl Instructions {
    /// Ours.
    pub fn figure(&self) -> Figure {
        let mut figure = Figure::new(
            "M1",
            "instructions",
            "The engine in memory: instructions",
            Axis::category("frames"),
            Axis::linear("instructions per frame", ""),
        )
        .note("Counted by callgrind, which hides AVX-512.");
        for case in &self.cases {
            figure.add("mmTLS engine", case.case, &[case.instructions_per_frame]);
        }
        figure
    }

    /// Prints the table.
    pub fn print(&self) {
        let rows: Vec<Vec<String>> = self
            .cases
            .iter()
            .map(|it| {
                vec![
                    it.case.to_owned(),
                    format!("{:.0}", it.instructions_per_frame),
                    format!("{:.3}", it.instructions_per_byte),
                ]
            })
            .collect();
        let title = "(a) instructions, counted by callgrind (no AVX-512 there)";
        table(title, &["frames", "per frame", "per byte"], &rows);
    }
}
