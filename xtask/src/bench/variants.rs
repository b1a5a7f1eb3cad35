//! What lanes measured as panels of a figure: the machine's time, the box's own, throughput.
//!
//! Refuses ratios of contenders: whoever reads the samples makes them.

use super::lanes::{BRIDGE_NAME, Variant};
use crate::results::{Axis, Figure, X};

/// Three panels; the first one is what counts on one machine.
pub fn figures(
    number: &str,
    what: &str,
    axis: &Axis,
    variants: &[Variant],
    x: impl Fn(&Variant) -> X,
) -> Vec<Figure> {
    let panel = |panel: &str, title: String, y| Figure::new(number, panel, &title, axis.clone(), y);
    let mut machine = panel(
        "machine",
        format!("{what}: processor time of the whole machine"),
        Axis::linear("busy time of all cores", "CPU-s/GB"),
    )
    .note("Client, middle and server share this machine: what one of them is spared is another's to use, so time counts, not throughput.");
    let mut middle = panel(
        "box",
        format!("{what}: processor time of the process in the middle"),
        Axis::linear("user and system time of the process", "CPU-s/GB"),
    );
    let mut throughput = panel(
        "throughput",
        format!("{what}: throughput of the shared machine"),
        Axis::linear("objects", "Gbit/s"),
    );
    for it in variants {
        machine.add(it.variant, x(it), &it.machine_cpu_s_per_gb.samples);
        throughput.add(it.variant, x(it), &it.gbit_per_s.samples);
        // It is no process; one that leaves everything to the kernel may well have taken no time.
        if it.variant != BRIDGE_NAME {
            middle.add(it.variant, x(it), &it.middle_cpu_s_per_gb.samples);
        }
    }
    vec![machine, middle, throughput]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::h2load::Http;
    use crate::bench::report::Samples;

    #[test]
    fn accepts_a_process_that_took_no_time() {
        let none = || Samples::new(vec![0.0; 3]);
        let of = |variant| Variant {
            variant,
            http: Http::One,
            object_bytes: 1024,
            gbit_per_s: none(),
            machine_cpu_s_per_gb: none(),
            processes_cpu_s_per_gb: none(),
            middle_cpu_s_per_gb: none(),
            transfers: Vec::new(),
        };
        let all = [of(BRIDGE_NAME), of("mmTLS")];
        let axis = Axis::log("object", "B");
        let panels = figures("10", "", &axis, &all, |it| it.object_bytes.into());
        let subjects = |at: usize| panels[at].series.iter().map(|it| it.subject.as_str());
        assert!(subjects(0).eq([BRIDGE_NAME, "mmTLS"]) && subjects(1).eq(["mmTLS"]));
    }
}
