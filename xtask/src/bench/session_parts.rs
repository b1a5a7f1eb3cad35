//! Of part (c): what of a new connection's cost is whose. The same replay through a monitor that has less to do: one that follows
//! none of the connections, so that no keys come either, and one that writes no logs.

use mmtls_testkit::{MmtlsOptions, Testbed};
use serde::Serialize;

use super::report::{Samples, table};
use super::sessions::{Load, replay};
use crate::results::{Axis, Figure};

/// A monitor with less to do.
#[derive(Clone, Copy, Debug, Serialize)]
enum Reduced {
    /// All servers are bypassed, in user space, and no keys come: what is left is each frame's way in and out.
    Unread,
    /// No logs.
    Unlogged,
}

impl Reduced {
    const ALL: [Self; 2] = [Self::Unread, Self::Unlogged];

    fn name(self) -> &'static str {
        match self {
            Self::Unread => "frames come and go, nothing is followed",
            Self::Unlogged => "no logs",
        }
    }

    fn options(self) -> Result<MmtlsOptions, String> {
        let all = MmtlsOptions::new(crate::binaries()?);
        Ok(match self {
            Self::Unlogged => MmtlsOptions { log: false, ..all },
            Self::Unread => {
                let config = "[policies]\nbypass = [\"10.77.0.0/16\"]\n[inline]\nkernel_forwarding = \"never\"\n";
                MmtlsOptions { config: Some(config.to_owned()), ..all }
            }
        })
    }
}

/// Microseconds of the process per connection, of each.
#[derive(Debug, Default, Serialize)]
pub struct SessionParts {
    us: [Vec<f64>; Reduced::ALL.len()],
}

impl SessionParts {
    /// One round of all.
    pub fn measure(&mut self, bed: &Testbed, cores: usize, load: Load) -> Result<(), String> {
        for (reduced, us) in Reduced::ALL.into_iter().zip(&mut self.us) {
            let followed = match reduced {
                Reduced::Unread => 0,
                Reduced::Unlogged => load.sessions,
            };
            let replay = replay(bed, cores, load, &reduced.options()?, followed)?;
            us.push(replay.us());
        }
        Ok(())
    }

    /// A panel of figure 11, with the samples of the whole monitor beside them.
    pub fn figure(&self, whole: &Samples) -> Figure {
        let mut figure = Figure::new(
            "11",
            "parts",
            "New connections: what the monitor takes where it has less to do",
            Axis::category("monitor"),
            Axis::linear("processor time per connection", "µs"),
        );
        for (reduced, us) in Reduced::ALL.into_iter().zip(&self.us) {
            figure.add("mmTLS", reduced.name().to_owned(), us);
        }
        figure.add("mmTLS", "everything".to_owned(), &whole.samples);
        figure
    }

    pub fn print(&self) {
        let rows: Vec<Vec<String>> = Reduced::ALL
            .into_iter()
            .zip(&self.us)
            .map(|(reduced, us)| {
                let us = Samples::new(us.clone());
                let range = format!("{:.1}–{:.1}", us.min, us.max);
                vec![reduced.name().to_owned(), format!("{:.1}", us.median), range]
            })
            .collect();
        table("(c) a monitor that has less to do", &["monitor", "µs/session", "range"], &rows);
    }
}
