//! Whether endpoints will take the key channel's certificate: its time, its names, its purpose.
//!
//! Refuses to judge what it cannot read, which reading it for TLS has told, and signatures, which only endpoints can check.

use std::net::IpAddr;
use std::path::Path;
use std::time::{Duration, SystemTime};

use mmtls_keyshare::server::certificates;
use x509_cert::certificate::{CertificateInner, Raw};
use x509_cert::der::Decode;
use x509_cert::der::oid::db::rfc5280::ID_KP_SERVER_AUTH;
use x509_cert::ext::pkix::name::GeneralName;
use x509_cert::ext::pkix::{BasicConstraints, ExtendedKeyUsage, SubjectAltName};

use super::problem::Severity;

/// The end is told so long ahead, or a tenth of the whole life: some are made for a week.
const SOON: Duration = Duration::from_secs(14 * 86_400);

/// What certificates in a file are for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Usage {
    /// The first one is what endpoints verify.
    Middlebox,
    /// They certify endpoints.
    Authority,
}

/// What is wrong with the certificates in a PEM file, of which the first is the middlebox's own, where keys are taken at an
/// address.
pub(super) fn check(
    path: &Path,
    usage: Usage,
    listen: IpAddr,
    now: SystemTime,
) -> Vec<(Severity, String)> {
    let mut found = Vec::new();
    let name = path.display();
    for (number, der) in certificates(path).unwrap_or_default().iter().enumerate() {
        let Ok(certificate) = CertificateInner::<Raw>::from_der(der) else {
            continue;
        };
        let which =
            if number == 0 { String::new() } else { format!(" (certificate {})", number + 1) };
        let mut told = |(severity, what): (Severity, String)| {
            found.push((severity, format!("{name}{which}: {what}")));
        };
        validity(&certificate, now).map(&mut told);
        if number == 0 && usage == Usage::Middlebox {
            purpose(&certificate).map(&mut told);
            names(&certificate, listen).map(&mut told);
        }
    }
    found
}

/// When the first of the certificates in a PEM file ends.
pub(super) fn end(path: &Path) -> Option<SystemTime> {
    let ends = certificates(path).ok()?.into_iter().filter_map(|der| {
        let certificate = CertificateInner::<Raw>::from_der(&der).ok()?;
        let until = certificate.tbs_certificate().validity().not_after.to_unix_duration();
        SystemTime::UNIX_EPOCH.checked_add(until)
    });
    ends.min()
}

/// Its time.
fn validity(certificate: &CertificateInner<Raw>, now: SystemTime) -> Option<(Severity, String)> {
    let validity = certificate.tbs_certificate().validity();
    let [from, until] = [validity.not_before, validity.not_after].map(|it| it.to_date_time());
    let since = from.unix_duration();
    let now = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let left = until.unix_duration().saturating_sub(now);
    if now < since {
        let text = format!("not valid before {from}: is this machine's clock right?");
        Some((Severity::Fault, text))
    } else if left.is_zero() {
        let text = format!("expired at {until}: endpoints refuse it (`mmtls pki` makes new ones)");
        Some((Severity::Fault, text))
    } else if left < SOON.min(until.unix_duration().saturating_sub(since) / 10) {
        let text = format!("expires at {until}, in {} days", left.as_secs() / 86_400);
        Some((Severity::Warning, text))
    } else {
        None
    }
}

/// What it may be used for.
fn purpose(certificate: &CertificateInner<Raw>) -> Option<(Severity, String)> {
    let tbs = certificate.tbs_certificate();
    if let Ok(Some((_, BasicConstraints { ca: true, .. }))) = tbs.get_extension() {
        let text = "an authority's certificate: endpoints refuse it as the middlebox's own (basicConstraints \
                    CA:FALSE is needed)";
        return Some((Severity::Fault, text.to_owned()));
    }
    let Ok(Some((_, ExtendedKeyUsage(usages)))) = tbs.get_extension() else {
        return None;
    };
    // Verifiers of the key channel do not take anyExtendedKeyUsage for it.
    let serves = |it: &_| *it == ID_KP_SERVER_AUTH;
    let text = "not for servers: endpoints refuse it (extendedKeyUsage serverAuth is needed)";
    (!usages.iter().any(serves)).then(|| (Severity::Fault, text.to_owned()))
}

/// Names that endpoints could verify.
fn names(certificate: &CertificateInner<Raw>, listen: IpAddr) -> Option<(Severity, String)> {
    let names = certificate.tbs_certificate().get_extension();
    let names = names.ok().flatten().map(|(_, SubjectAltName(names))| names).unwrap_or_default();
    let is_name = |it: &GeneralName| matches!(it, GeneralName::DnsName(_));
    let octets = match listen {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    };
    let is_address = |it: &GeneralName| matches!(it, GeneralName::IpAddress(bytes) if listen.is_unspecified() || bytes.as_bytes() == octets);
    if names.iter().any(|it| is_name(it) || is_address(it)) {
        return None;
    }
    let what = match names.is_empty() {
        true => "no subjectAltName".to_owned(),
        false => format!("neither a host name nor {listen} in subjectAltName"),
    };
    let text = format!("{what}: endpoints verify that name or address, and will refuse it");
    Some((Severity::Warning, text))
}

#[cfg(test)]
mod tests {
    use rcgen::{
        BasicConstraints as Constraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    };
    use time::{Duration as Days, OffsetDateTime};

    use super::*;

    /// What is said of a certificate for these names, after some changes.
    fn said(
        names: &[&str],
        change: impl FnOnce(&mut CertificateParams),
    ) -> Vec<(Severity, String)> {
        let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
        let mut params = CertificateParams::new(names).unwrap();
        (params.not_before, params.not_after) = lasting(-1, 100);
        change(&mut params);
        let certificate = params.self_signed(&KeyPair::generate().unwrap()).unwrap();
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), certificate.pem()).unwrap();
        let listen = "192.0.2.1".parse().unwrap();
        check(file.path(), Usage::Middlebox, listen, SystemTime::now())
    }

    fn lasting(from: i64, until: i64) -> (OffsetDateTime, OffsetDateTime) {
        let now = OffsetDateTime::now_utc();
        (now + Days::days(from), now + Days::days(until))
    }

    #[test]
    fn accepts_what_endpoints_take() {
        for names in [&["middlebox.test"][..], &["192.0.2.1"], &["192.0.2.2", "a.test"]] {
            assert_eq!(said(names, |_| ()), [], "{names:?}");
        }
        let usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        assert_eq!(said(&["a"], |it| it.extended_key_usages = usages), []);
        let none = check(
            Path::new("/nonexistent"),
            Usage::Authority,
            [0, 0, 0, 0].into(),
            SystemTime::now(),
        );
        assert_eq!(none, [], "told by who reads it for TLS");
    }

    #[test]
    fn accepts_the_first_end_in_a_file() {
        let lasts = |days| {
            let mut params = CertificateParams::new(vec!["a".to_owned()]).unwrap();
            (params.not_before, params.not_after) = lasting(-1, days);
            params.self_signed(&KeyPair::generate().unwrap()).unwrap().pem()
        };
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), lasts(100) + &lasts(50)).unwrap();
        let left = end(file.path()).unwrap().duration_since(SystemTime::now()).unwrap();
        assert_eq!(left.as_secs() / 86_400, 49);
        assert_eq!(end(Path::new("/nonexistent")), None);
    }

    #[test]
    fn refuses_what_endpoints_do() {
        let one = |severity, words: &str, found: Vec<(Severity, String)>| {
            let [(how, text)] = &found[..] else { panic!("{words}: {found:?}") };
            assert!(*how == severity && text.contains(words), "{words}: {found:?}");
        };
        let (fault, warning) = (Severity::Fault, Severity::Warning);
        let time =
            |from, until| said(&["a"], |it| (it.not_before, it.not_after) = lasting(from, until));
        one(fault, "expired at 20", time(-10, -1));
        one(fault, "not valid before 20", time(1, 10));
        one(warning, "in 4 days", time(-60, 5));
        assert_eq!(time(-1, 5), [], "it is made for a week");
        let ca = IsCa::Ca(Constraints::Unconstrained);
        one(fault, "basicConstraints CA:FALSE", said(&["a"], |it| it.is_ca = ca));
        let client = vec![ExtendedKeyUsagePurpose::ClientAuth];
        one(fault, "serverAuth", said(&["a"], |it| it.extended_key_usages = client));
        one(warning, "no subjectAltName", said(&[], |_| ()));
        one(warning, "neither a host name nor 192.0.2.1", said(&["192.0.2.2"], |_| ()));
    }
}
