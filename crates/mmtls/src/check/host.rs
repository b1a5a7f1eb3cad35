//! Whether a machine suits a monitor: its kernel, processors, limits, rights and clock.
//!
//! Refuses to change anything. What a kernel does not tell is not told.

use std::fs;
use std::path::Path;

use mmtls_middlebox::harden;
use mmtls_packet_io::guard;

/// Numbers of capabilities (`linux/capability.h`).
const CAP_NET_ADMIN: u32 = 12;
const CAP_NET_RAW: u32 = 13;
const CAP_BPF: u32 = 39;

/// How something is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Verdict {
    /// As it should be.
    Ok,
    /// It works, and could do better or break later.
    Warn,
    /// It does not work.
    Fail,
}

impl Verdict {
    /// As it is shown.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warn => "warn",
            Self::Fail => "fail",
        }
    }
}

/// A line about the machine.
pub type Line = (Verdict, String);

/// Largest socket buffer that an unprivileged process may ask for.
const RMEM_MAX: &str = "/proc/sys/net/core/rmem_max";

/// What there is to say, whichever interfaces are used; a socket's buffer is to have so many bytes.
#[must_use]
pub fn host(socket_buffer_bytes: usize) -> Vec<Line> {
    let read = |path: &str| fs::read_to_string(path).ok().map(|text| text.trim().to_owned());
    let mut lines = Vec::new();
    lines.extend(read("/proc/sys/kernel/osrelease").map(|release| kernel(&release)));
    let status = read("/proc/self/status").unwrap_or_default();
    lines.extend(capabilities(&status, read(RMEM_MAX).as_deref(), socket_buffer_bytes));
    lines.push(match guard::is_possible() {
        Ok(()) => (Verdict::Ok, "a guard can be installed: inline.when_down = \"open\"".to_owned()),
        Err(error) => (Verdict::Warn, format!("{error}: a monitor can only fail closed")),
    });
    lines.extend(harden::allowed_cpus().ok().map(|cpus| processors(cpus.len())));
    let governor = read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor");
    lines.extend(governor.map(|governor| frequency(&governor)));
    let isolated = read("/sys/devices/system/cpu/isolated").filter(|list| !list.is_empty());
    lines.extend(isolated.map(|list| {
        (Verdict::Ok, format!("processors {list} are isolated: workers.cpus can name them"))
    }));
    lines.extend(open_files(&read("/proc/self/limits").unwrap_or_default()));
    lines.push(clock(Path::new("/run/systemd/timesync/synchronized").exists()));
    lines
}

fn kernel(release: &str) -> Line {
    let mut numbers = release.split(['.', '-']).map_while(|part| part.parse::<u32>().ok());
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    let (verdict, what) = if version < (4, 20) {
        (Verdict::Fail, "too old: Linux 4.20 is needed")
    } else if version < (5, 1) {
        (Verdict::Warn, "one worker only: several need Linux 5.1")
    } else if version < (6, 6) {
        (Verdict::Warn, "what nobody reads is not left to the kernel: that needs Linux 6.6")
    } else {
        (Verdict::Ok, "several workers, and forwarding of what nobody reads")
    };
    (verdict, format!("Linux {release}: {what}"))
}

/// Rights of this process, and what is granted without them.
fn capabilities(status: &str, rmem_max: Option<&str>, wanted: usize) -> Vec<Line> {
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let Some(set) = effective.and_then(|set| u64::from_str_radix(set.trim(), 16).ok()) else {
        return Vec::new();
    };
    let has = |capability: u32| set >> capability & 1 == 1;
    let mut lines = vec![match has(CAP_NET_RAW) {
        true => (Verdict::Ok, "CAP_NET_RAW: packet sockets can be opened".to_owned()),
        false => {
            let text =
                "CAP_NET_RAW is missing: run as root, or with AmbientCapabilities=CAP_NET_RAW";
            (Verdict::Fail, text.to_owned())
        }
    }];
    let granted = rmem_max.and_then(|text| text.parse().ok()).unwrap_or(usize::MAX);
    lines.push(match has(CAP_NET_ADMIN) || granted >= wanted {
        true => (Verdict::Ok, format!("socket buffers of {wanted} bytes are granted")),
        false => {
            let text = format!(
                "socket buffers get {granted} of {wanted} bytes: sysctl -w net.core.rmem_max={wanted}, or CAP_NET_ADMIN"
            );
            (Verdict::Warn, text)
        }
    });
    if !(has(CAP_NET_ADMIN) && has(CAP_BPF)) {
        let text =
            "what nobody reads is not left to the kernel: that needs CAP_BPF and CAP_NET_ADMIN";
        lines.push((Verdict::Warn, text.to_owned()));
    }
    lines
}

fn processors(count: usize) -> Line {
    match count {
        1 => (Verdict::Warn, "one processor: it is shared with everything else here".to_owned()),
        count => (Verdict::Ok, format!("{count} processors: about one worker for each")),
    }
}

fn frequency(governor: &str) -> Line {
    match governor {
        "performance" => (Verdict::Ok, "processors keep their frequency (performance)".to_owned()),
        other => {
            let text = format!(
                "processors change their frequency ({other}), which delays packets: cpupower frequency-set -g performance"
            );
            (Verdict::Warn, text)
        }
    }
}

/// The limit of open files, of the table in `/proc/self/limits`.
fn open_files(limits: &str) -> Option<Line> {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    let hard = line.split_whitespace().nth(1)?;
    let enough = hard == "unlimited" || hard.parse::<u64>().ok()? >= NEEDED_FILES;
    Some(match enough {
        true => (Verdict::Ok, format!("{hard} open files are allowed")),
        false => {
            let text = format!(
                "{hard} open files are allowed, and 4096 endpoints need {NEEDED_FILES}: LimitNOFILE=65536, or a smaller \
                 keys.max_connections"
            );
            (Verdict::Warn, text)
        }
    })
}

/// For the default of `keys.max_connections` and one worker.
const NEEDED_FILES: u64 = 4096 + harden::SPARE_DESCRIPTORS + 192;

fn clock(synchronised: bool) -> Line {
    match synchronised {
        true => (Verdict::Ok, "the clock is synchronised".to_owned()),
        false => {
            let text = "nothing says that the clock is synchronised (systemd-timesyncd would): certificates and the times \
                        in eve.json depend on it";
            (Verdict::Warn, text.to_owned())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_and_refuses_kernels_by_what_they_have() {
        for (release, verdict) in [
            ("4.19.0-27-amd64", Verdict::Fail),
            ("4.20.1", Verdict::Warn),
            ("5.1.0-rc1", Verdict::Warn),
            ("6.1.0-37-amd64", Verdict::Warn),
            ("6.6.0", Verdict::Ok),
            ("7.0-rc1", Verdict::Ok),
        ] {
            let (got, text) = kernel(release);
            assert!(got == verdict && text.contains(release), "{got:?} {text}");
        }
    }

    #[test]
    fn says_what_rights_and_limits_are_missing() {
        let verdicts = |set: &str, rmem: &str| {
            let lines = capabilities(&format!("Name:\tx\nCapEff:\t{set}\n"), Some(rmem), 1 << 20);
            lines.into_iter().map(|(verdict, _)| verdict).collect::<Vec<_>>()
        };
        let (ok, warn, fail) = (Verdict::Ok, Verdict::Warn, Verdict::Fail);
        assert_eq!(verdicts("000001ffffffffff", "212992"), [ok, ok]);
        assert_eq!(verdicts("0000000000002000", "212992"), [ok, warn, warn]);
        assert_eq!(verdicts("0000000000002000", "1048576"), [ok, ok, warn]);
        assert_eq!(verdicts("0000000000000000", "212992"), [fail, warn, warn]);
        let limits = |hard: &str| {
            open_files(&format!("Max open files   1024   {hard}   files\n")).unwrap().0
        };
        assert_eq!([limits("1024"), limits("unlimited"), limits("524288")], [warn, ok, ok]);
        assert_eq!(frequency("powersave").0, warn);
        assert!(host(1 << 20).len() >= 5);
    }
}
