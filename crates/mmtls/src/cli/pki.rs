//! `mmtls pki`: certificates for the key channel, from an authority of its own.
//!
//! Refuses to overwrite: where one of the files is there already, none is written, and where one cannot be written, none
//! is left.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use mmtls_agent::Pin;
use mmtls_middlebox::Error;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, KeyUsagePurpose, PublicKeyData,
};
use time::{Duration, OffsetDateTime};
use zeroize::Zeroizing;

/// Clocks of endpoints may be behind by so much.
const BACKDATED: Duration = Duration::hours(1);

/// How long certificates are valid, if nothing else is said.
const DAYS: u16 = 365;

#[derive(Args)]
pub struct PkiArgs {
    /// Directory for the files; it is made where there is none.
    directory: PathBuf,
    /// Name of the middlebox, or its address: what endpoints write before or instead of HOST in `--middlebox`.
    #[arg(long, value_name = "NAME")]
    middlebox: String,
    /// Also a certificate for an endpoint of this name, to be shown to the middlebox (repeatable).
    #[arg(long, value_name = "NAME")]
    client: Vec<String>,
    /// Also a certificate for a key server of this name or address, which it shows to endpoints and to the middlebox.
    #[arg(long, value_name = "NAME")]
    key_server: Option<String>,
    /// How long all of them are valid.
    #[arg(long, value_name = "N", default_value_t = DAYS, value_parser = clap::value_parser!(u16).range(1..))]
    days: u16,
}

/// A file that is to be written.
struct Output {
    path: PathBuf,
    mode: u32,
    text: Zeroizing<String>,
}

impl PkiArgs {
    /// For a middlebox alone.
    pub fn of_middlebox(directory: PathBuf, middlebox: String) -> Self {
        Self { directory, middlebox, client: Vec::new(), key_server: None, days: DAYS }
    }

    /// Does what was asked for.
    pub fn run(&self) -> Result<ExitCode, Error> {
        let pin = self.make()?;
        let said = self.say_how(pin, &mut io::stdout().lock());
        said.map_err(|error| Error::Usage(format!("standard output: {error}")))?;
        Ok(ExitCode::SUCCESS)
    }

    /// Makes the files; the middlebox's pin.
    pub fn make(&self) -> Result<Pin, Error> {
        let wrong = |what: &dyn std::fmt::Display| Error::Usage(format!("pki: {what}"));
        for (at, client) in self.client.iter().enumerate() {
            let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
            if client.is_empty() || client.starts_with('.') || !client.bytes().all(is_plain) {
                return Err(wrong(&format!(
                    "--client {client:?}: letters, digits, '-', '.' and '_' make a name"
                )));
            }
            if ["ca", "middlebox", "key-server"].contains(&&**client)
                || self.client[..at].contains(client)
            {
                return Err(wrong(&format!("--client {client}: this name is taken")));
            }
        }
        let names =
            [("middlebox", Some(&self.middlebox)), ("key-server", self.key_server.as_ref())];
        for (option, name) in names {
            if let Some(name) = name.filter(|name| !is_name(name)) {
                let what = "neither a host name nor an address";
                return Err(wrong(&format!("--{option} {name:?}: {what}")));
            }
        }
        let (outputs, pin) = self.outputs().map_err(|error| wrong(&error))?;
        fs::create_dir_all(&self.directory)
            .map_err(|error| wrong(&format!("{}: {error}", self.directory.display())))?;
        for Output { path, .. } in &outputs {
            if path.symlink_metadata().is_ok() {
                return Err(wrong(&format!(
                    "{} is there already; nothing was written",
                    path.display()
                )));
            }
        }
        for (at, output) in outputs.iter().enumerate() {
            if let Err(error) = output.write() {
                for Output { path, .. } in &outputs[..at] {
                    let _ = fs::remove_file(path);
                }
                return Err(wrong(&format!("{}: {error}; nothing is left", output.path.display())));
            }
        }
        Ok(pin)
    }

    /// The files, and the middlebox's pin.
    fn outputs(&self) -> Result<(Vec<Output>, Pin), rcgen::Error> {
        let mut params = self.params(&format!("mmTLS keys of {}", self.middlebox));
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let ca = CertifiedIssuer::self_signed(params, KeyPair::generate()?)?;
        let mut outputs = self.pair("ca", &ca.pem(), ca.key());
        let mut pin = Pin::of(&[]);
        let server = [ExtendedKeyUsagePurpose::ServerAuth];
        let client = [ExtendedKeyUsagePurpose::ClientAuth];
        let both = [&server[..], &client].concat();
        let clients = self.client.iter().map(|name| (name.as_str(), name, &client[..]));
        let key_server = self.key_server.iter().map(|name| ("key-server", name, &both[..]));
        let middlebox = [("middlebox", &self.middlebox, &server[..])];
        for (file, name, usages) in middlebox.into_iter().chain(key_server).chain(clients) {
            let mut params = self.params(name);
            params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
            params.use_authority_key_identifier_extension = true;
            if usages.contains(&ExtendedKeyUsagePurpose::ServerAuth) {
                let named = CertificateParams::new(vec![name.clone()])?;
                params.subject_alt_names = named.subject_alt_names;
            }
            params.extended_key_usages = usages.to_vec();
            let key = KeyPair::generate()?;
            if file == "middlebox" {
                pin = Pin::of(&key.subject_public_key_info());
            }
            let certificate = params.signed_by(&key, &ca)?;
            outputs.extend(self.pair(file, &certificate.pem(), &key));
        }
        Ok((outputs, pin))
    }

    fn params(&self, name: &str) -> CertificateParams {
        let mut params = CertificateParams::default();
        let now = OffsetDateTime::now_utc();
        params.not_before = now - BACKDATED;
        params.not_after = now + Duration::days(self.days.into());
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, name);
        params
    }

    fn pair(&self, name: &str, certificate: &str, key: &KeyPair) -> Vec<Output> {
        let output = |kind, mode, text: Zeroizing<String>| {
            let path = self.directory.join(format!("{name}.{kind}"));
            Output { path, mode, text }
        };
        vec![
            output("pem", 0o644, Zeroizing::new(certificate.to_owned())),
            output("key", 0o600, Zeroizing::new(key.serialize_pem())),
        ]
    }

    fn say_how(&self, pin: Pin, out: &mut impl Write) -> io::Result<()> {
        let file = |name: &str| self.directory.join(name);
        let shown = |path: &Path| path.display().to_string();
        writeln!(out, "# The middlebox, in its configuration:\n[keys]\nlisten = \"ADDRESS:PORT\"")?;
        writeln!(out, "certificate_file = {:?}", shown(&file("middlebox.pem")))?;
        writeln!(out, "key_file = {:?}", shown(&file("middlebox.key")))?;
        if !self.client.is_empty() || self.key_server.is_some() {
            writeln!(out, "client_ca_file = {:?}", shown(&file("ca.pem")))?;
        }
        if let Some(name) = &self.key_server {
            writeln!(out, "key_servers = [{name:?}]")?;
            let [pem, key, ca] = ["key-server.pem", "key-server.key", "ca.pem"].map(file);
            let [pem, key, ca] = [&pem, &key, &ca].map(|path| shown(path));
            writeln!(
                out,
                "# The key server:\n# mmtls key-server --listen ADDRESS:PORT --cert {pem} --key {key} --middlebox \
                 {}@HOST:PORT --ca {ca} --interface IF",
                self.middlebox
            )?;
        }
        let middlebox = match self.middlebox.parse::<IpAddr>() {
            Ok(IpAddr::V6(address)) => format!("[{address}]:PORT"),
            Ok(IpAddr::V4(address)) => format!("{address}:PORT"),
            Err(_) => format!("{}@HOST:PORT", self.middlebox),
        };
        let mut endpoint =
            format!("mmtls exec --middlebox {middlebox} --ca {}", shown(&file("ca.pem")));
        if let Some(client) = self.client.first() {
            let [pem, key] = ["pem", "key"].map(|kind| shown(&file(&format!("{client}.{kind}"))));
            endpoint += &format!(" --client-cert {pem} --client-key {key}");
        }
        writeln!(out, "# An endpoint:\n# {endpoint} PROGRAM …")?;
        writeln!(out, "# With --pin {pin} it shares with this key alone.")?;
        writeln!(
            out,
            "# Endpoints get {} alone. {} can certify more of them, with any tool for X.509: keep it away from both.",
            shown(&file("ca.pem")),
            shown(&file("ca.key"))
        )
    }
}

/// Whether it is an address, or a host name (RFC 1123, section 2.1).
pub(super) fn is_name(text: &str) -> bool {
    let is_label = |label: &str| {
        (1..=63).contains(&label.len())
            && !label.starts_with('-')
            && !label.ends_with('-')
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
    };
    let is_number = |label: &str| label.bytes().all(|byte| byte.is_ascii_digit());
    text.parse::<IpAddr>().is_ok()
        || text.len() <= 253
            && text.split('.').all(is_label)
            && !text.rsplit('.').next().is_some_and(is_number)
}

impl Output {
    fn write(&self) -> io::Result<()> {
        let mut options = OpenOptions::new();
        let mut file: File =
            options.write(true).create_new(true).mode(self.mode).open(&self.path)?;
        let written = file.write_all(self.text.as_bytes()).and_then(|()| file.sync_all());
        if written.is_err() {
            let _ = fs::remove_file(&self.path);
        }
        written
    }
}
