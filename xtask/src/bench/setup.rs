//! One middle between a client and a server with processes of their own, for the parts whose client is not h2load: nothing
//! is placed on processors, the scheduler does that.
//!
//! Refuses a run at whose end a session that was used had not been decrypted.

use std::ffi::OsStr;
use std::process::Command;
use std::time::Duration;

use mmtls_testkit::{
    Background, Middle, Mmtls, MmtlsOptions, MmtlsReport, Nginx, NginxOptions, NginxSplit,
    SplitOptions, Testbed, TestbedError,
};

use super::contenders;
use super::forwarder;
use crate::results::Contender;

/// What stands between client and server.
pub enum Kind {
    Bridge,
    /// A program that only forwards.
    Forward,
    Mmtls,
    Split(SplitOptions),
}

/// What runs in the namespaces ends before they do.
pub struct Setup {
    pub name: &'static str,
    mmtls: Option<Mmtls>,
    split: Option<NginxSplit>,
    forward: Option<Background>,
    server: Nginx,
    pub bed: Testbed,
}

impl Setup {
    /// Starts the server, and what stands in the middle.
    pub fn start(kind: Kind, server: NginxOptions) -> Result<Self, String> {
        let (name, middle) = match kind {
            Kind::Bridge => ("kernel bridge", Middle::KernelBridge),
            Kind::Forward => ("forwarding alone", Middle::Empty),
            Kind::Mmtls => ("mmTLS", Middle::Empty),
            Kind::Split(_) => ("nginx split TLS", Middle::Routed),
        };
        let bed = Testbed::new(middle).map_err(text)?;
        let server = Nginx::start(&bed, server).map_err(text)?;
        let (mut mmtls, mut split, mut forward) = (None, None, None);
        match kind {
            Kind::Bridge => {}
            Kind::Forward => forward = Some(forwarder::start(&bed)?),
            Kind::Mmtls => {
                let config = Some(PATIENT.to_owned());
                let options = MmtlsOptions { config, ..MmtlsOptions::new(crate::binaries()?) };
                mmtls = Some(Mmtls::start(&bed, &options).map_err(text)?);
            }
            Kind::Split(options) => split = Some(NginxSplit::start(&bed, options).map_err(text)?),
        }
        Ok(Self { name, mmtls, split, forward, server, bed })
    }

    /// The monitor, if it is that.
    pub fn mmtls(&self) -> Option<&Mmtls> {
        self.mmtls.as_ref()
    }

    /// A client, which shares its keys where there is somebody to share them with.
    pub fn client(&self, program: impl AsRef<OsStr>) -> Command {
        match &self.mmtls {
            Some(mmtls) => mmtls.sharing(&self.bed, false, &[], program),
            None => self.bed.client.command(program),
        }
    }

    /// What stands in the middle, if that is a process.
    pub fn process(&mut self) -> Option<&mut Background> {
        let mmtls = self.mmtls.as_mut().map(|it| &mut it.process);
        mmtls.or(self.split.as_mut().map(|it| &mut it.process)).or(self.forward.as_mut())
    }

    /// Its settings, under this name.
    pub fn contender(&self, name: &str) -> Contender {
        let mmtls = self.mmtls.as_ref().map(|it| &it.process);
        let split = self.split.as_ref().map(|it| &it.process);
        match mmtls.or(split).or(self.forward.as_ref()) {
            Some(process) => contenders::of_process(name, process),
            None => contenders::of_bridge(name),
        }
    }

    /// The settings of the server.
    pub fn server(&self) -> Contender {
        contenders::of_process("server", &self.server.process)
    }

    /// Ends it, and returns what a monitor says. At least so many sessions must have been decrypted, and of the others there must
    /// have been nothing to open: programs open connections that they do not use.
    pub fn finish(mut self, at_least: u64) -> Result<Option<MmtlsReport>, String> {
        let Some(mmtls) = self.mmtls.take() else { return Ok(None) };
        // Sessions end when the last FINs are acknowledged, and logs follow.
        std::thread::sleep(Duration::from_millis(300));
        let report = mmtls.stop().map_err(text)?;
        let decrypted = report.count("decrypted");
        let judged = decrypted + report.count("nothing to open");
        let wrong = ["missing key", "failed", "records failed", "resets"];
        let wrong: u64 = wrong.iter().map(|name| report.count(name)).sum();
        if !report.success
            || decrypted < at_least
            || judged != report.count("TLS sessions")
            || wrong > 0
        {
            let (summary, said) = (&report.summary, &report.stderr);
            return Err(format!(
                "mmtls was to decrypt {at_least} sessions; it says: {summary:#?}{said}"
            ));
        }
        Ok(Some(report))
    }
}

/// Keys do come: a machine that stops for a second must not make a reset of a session that waits for them.
pub const PATIENT: &str = "[limits]\nstall_timeout_milliseconds = 10000\n\
                       unshared_stall_timeout_milliseconds = 10000\n";

fn text(error: TestbedError) -> String {
    error.to_string()
}
