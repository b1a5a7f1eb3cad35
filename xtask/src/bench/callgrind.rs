//! Instructions, counted by callgrind: figures that a busy machine does not move. Only what runs inside of [`counted`]
//! counts, of this very program started with other arguments.
//!
//! valgrind shows a program one processor for each class of real ones (since Haswell: that one, without AVX-512), with its
//! caches, so that neither the C library nor the crypto library chooses by the machine. What valgrind takes from the
//! machine nevertheless (RDRAND), or may show in a later version, is hidden from them, and so is `rep movsb`, which would
//! count as an instruction for each byte.
//!
//! Refuses to go on without valgrind, and a count of nothing.

use std::hint::black_box;
use std::path::Path;
use std::process::Command;

use serde::Serialize;

use super::report::table;
use crate::results::{Axis, Figure};

/// Collection begins and ends with this function, which valgrind finds by its name.
#[inline(never)]
pub fn counted<T>(work: &mut dyn FnMut() -> T) -> T {
    // Not the last call: a jump into it would be another function.
    black_box(work())
}

const COUNTED: &str = "*callgrind::counted*";

/// Of the C library: copies in loops, as they are made everywhere for short ones.
const C_LIBRARY: &str = "glibc.cpu.hwcaps=-ERMS";

/// Of aws-lc's view of the processor, two words a time: RDRAND; AVX-512, SHA and ADX, and GFNI, VAES and VPCLMULQDQ.
const CRYPTO_LIBRARY: &str = "~0x4000000000000000:~0x00000700F02B0000";

/// Runs this program with other arguments; how many instructions were counted, and what it printed.
pub fn run(arguments: &[&str], profile: &Path) -> Result<(u64, String), String> {
    let me = std::env::current_exe().map_err(|error| format!("own path: {error}"))?;
    let mut command = Command::new("valgrind");
    // Nor does it depend on what the environment says, or how long it is: the stack begins behind it.
    command.env_clear().envs(std::env::var_os("PATH").map(|path| ("PATH", path)));
    command.env("GLIBC_TUNABLES", C_LIBRARY).env("OPENSSL_ia32cap", CRYPTO_LIBRARY);
    command.args(["--tool=callgrind", "--vgdb=no"]);
    command.arg(format!("--toggle-collect={COUNTED}"));
    command.arg(format!("--callgrind-out-file={}", profile.display()));
    command.arg(me).args(arguments);
    let output = command.output().map_err(|error| format!("valgrind: {error}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    let collected = said
        .lines()
        .find_map(|line| line.split_once("Collected :")?.1.trim().parse().ok())
        .filter(|&collected| output.status.success() && collected > 0)
        .ok_or_else(|| format!("valgrind: {}", said.trim()))?;
    Ok((collected, String::from_utf8_lossy(&output.stdout).into_owned()))
}

/// What was counted for part (a).
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

/// Counts every case of part (a); each pass begins its session, a dozen frames.
pub fn count() -> Result<Instructions, String> {
    let cases = [
        ("64 KB super-frames", Some("super")),
        ("1448 B segments", Some("segments")),
        ("raw opening, per record", None),
    ];
    let cases = cases
        .into_iter()
        .map(|(case, cut)| {
            let mut arguments = vec!["bench", "engine-pass", "--passes", "4"];
            arguments.extend(cut.iter().flat_map(|cut| ["--cut", cut]));
            let (instructions, printed) = run(&arguments, Path::new("/dev/null"))?;
            let mut numbers = printed.split_whitespace().filter_map(|word| word.parse().ok());
            let (frames, bytes): (u64, u64) =
                numbers.next().zip(numbers.next()).ok_or("the counted run printed nothing")?;
            let per_pass = instructions as f64 / 4.0;
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
