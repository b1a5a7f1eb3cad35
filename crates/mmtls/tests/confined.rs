//! A monitor in its sandbox, on whatever processor: its traffic, its memory. What a thread of it can be made to call is asked
//! in `sandbox.rs`.
//!
//! Refuses to leave that out without a word where calls cannot be made for threads.

use mmtls_testkit::{Mmtls, MmtlsOptions, skip_unless};

use crate::common::{Family, Stage, can_run, options, url};

pub fn ends_well(stage: &Stage, mmtls: Mmtls) {
    let mut curl = stage.sharing_curl(&mmtls, Family::V4, &[]);
    curl.arg(url("small"));
    assert_eq!(stage.run("curl", curl).text(), "small", "traffic goes on");
    let report = mmtls.stop().unwrap();
    assert!(report.success, "{}", report.stderr);
    assert_eq!(report.count("decrypted"), 1);
}

/// A field of `/proc/PID/status`.
pub fn status(mmtls: &Mmtls, field: &str) -> String {
    let text = std::fs::read_to_string(format!("/proc/{}/status", mmtls.process.pid())).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(field)).unwrap();
    line.trim_start_matches(':').trim().to_owned()
}

pub fn prepared() -> Option<Stage> {
    if !can_run(&["nginx", "curl"]) {
        return None;
    }
    let stage = Stage::new();
    stage.serve("small", b"small");
    Some(stage)
}

pub fn with_sandbox(text: &str) -> MmtlsOptions {
    MmtlsOptions {
        config: Some(format!("[sandbox]\n{text}\n")),
        arguments: ["--metrics", "127.0.0.1:9600", "--web", "127.0.0.1:9700"]
            .map(str::to_owned)
            .to_vec(),
        ..options()
    }
}

#[test]
fn keeps_memory_out_of_swap_where_that_is_wanted() {
    let Some(stage) = prepared() else { return };
    let mmtls = match Mmtls::start(&stage.bed, &with_sandbox("lock_memory = true")) {
        Ok(mmtls) => mmtls,
        Err(error) if error.to_string().contains("LimitMEMLOCK") => {
            let reason = format!("memory cannot be locked here: {error}");
            skip_unless("MMTLS_REQUIRE_LOCKED_MEMORY", &reason);
            return;
        }
        Err(error) => panic!("{error}"),
    };
    let kibibytes = |field| -> u64 {
        let text = status(&mmtls, field);
        text.trim_end_matches(" kB").parse().unwrap()
    };
    assert!(kibibytes("VmLck") > 1024);
    ends_well(&stage, mmtls);
}

/// In the place of those that are left out.
#[cfg(not(target_arch = "x86_64"))]
#[test]
fn refuses_calls_that_are_made_for_its_threads() {
    let why = "calls are made for threads on x86-64 only: what they are refused is not tested";
    skip_unless("MMTLS_REQUIRE_INJECTION", why);
}
