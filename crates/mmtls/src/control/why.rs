//! Why a session is not decrypted, in one sentence for people.
//!
//! Refuses to guess: where nothing is known it says what is waited for.

use std::net::IpAddr;

use super::Keys;
use super::sessions::{Detail, TlsDetail};

/// What else has to be known.
pub(super) struct Reasons<'a> {
    /// The rule of `policies.bypass` that leaves the connection's server alone.
    pub(super) rule: Option<String>,
    pub(super) is_draining: bool,
    /// Its server name is one of `policies.exempt_names`.
    pub(super) is_exempt_name: bool,
    /// How long keys are waited for, in milliseconds: with an agent of the client, and without one.
    pub(super) stall_milliseconds: [u64; 2],
    /// Whether an agent at an address is connected.
    pub(super) has_agent: &'a dyn Fn(IpAddr) -> bool,
    /// Keys come from a key log.
    pub(super) has_key_log: bool,
}

/// The sentence.
pub(super) fn why(detail: &Detail, reasons: &Reasons<'_>) -> String {
    if let Some(reason) = detail.end_reason {
        return format!("It is over ({reason}).");
    }
    let name = detail.row.name.as_deref().unwrap_or_default();
    let Some(tls) = &detail.tls else {
        return without_tls(detail, reasons);
    };
    match detail.row.keys {
        Keys::Bypassed => "An operator lets it pass unread (session bypass).".to_owned(),
        Keys::Exempt if reasons.is_exempt_name => {
            format!("Its server name {name} is one of policies.exempt_names, so it passes unread.")
        }
        Keys::Exempt => "Its endpoint refuses to share its keys (null keys).".to_owned(),
        Keys::Unusable => unusable(detail, tls),
        Keys::Missing => {
            let most = reasons.stall_milliseconds;
            let has_agent = (reasons.has_agent)(tls.client_address);
            let waited = if has_agent || reasons.has_key_log { most[0] } else { most[1] };
            format!("No keys came within {waited} ms{}.", but_who(tls, reasons))
        }
        Keys::Waiting => waiting(detail, tls, reasons),
        Keys::Shared => shared(detail, tls),
        Keys::LeftAlone | Keys::MidStream | Keys::Undecided | Keys::None => {
            without_tls(detail, reasons)
        }
    }
}

fn without_tls(detail: &Detail, reasons: &Reasons<'_>) -> String {
    match (detail.row.keys, &reasons.rule) {
        (Keys::LeftAlone, Some(rule)) => format!("Its server is left alone by policies.bypass, {rule}."),
        (Keys::LeftAlone, None) if reasons.is_draining => {
            "It began while the run was being drained, and is left alone.".to_owned()
        }
        (Keys::LeftAlone, None) => "Its server is left alone.".to_owned(),
        (Keys::MidStream, _) => {
            "Its beginning was not seen (mid stream), and its endpoint has not sent keys that fit its \
             records."
                .to_owned()
        }
        (Keys::Undecided, _) => "No ClientHello has been seen yet.".to_owned(),
        _ => "It does not carry TLS, or its beginning was not seen.".to_owned(),
    }
}

fn unusable(detail: &Detail, tls: &TlsDetail) -> String {
    let last = tls.errors.last().copied().unwrap_or_default();
    let of = |text: &Option<String>| text.clone().unwrap_or_default();
    match last {
        "unsupported_cipher_suite" => {
            format!("Its cipher suite {} is not supported.", of(&detail.row.cipher_suite))
        }
        "unsupported_version" => {
            format!("Its version {} is not supported.", of(&detail.row.version))
        }
        "keys_do_not_fit" => "Keys came and open none of its records.".to_owned(),
        "no_private_tag" => {
            "It has no private tag, which policies.require_private_tag asks for.".to_owned()
        }
        "" => "It cannot be followed.".to_owned(),
        other => format!("It cannot be followed any more: {other}."),
    }
}

/// Who was expected to send keys.
fn but_who(tls: &TlsDetail, reasons: &Reasons<'_>) -> String {
    if let Some(refused) = &tls.keys_refused {
        let sender = refused.sender.map_or_else(String::new, |sender| format!(" from {sender}"));
        return format!("; keys{sender} were not taken: {}", refused.reason);
    }
    let has = [tls.client_address, tls.server_address].map(|end| (reasons.has_agent)(end));
    match has {
        _ if reasons.has_key_log => "; the key log has none".to_owned(),
        [false, false] => format!("; no agent of {} is connected", tls.client_address),
        _ => "; an agent is connected and has not sent them".to_owned(),
    }
}

fn waiting(detail: &Detail, tls: &TlsDetail, reasons: &Reasons<'_>) -> String {
    match detail.row.waits_milliseconds {
        Some(waited) => {
            format!("Records have waited for keys for {waited} ms{}.", but_who(tls, reasons))
        }
        None if detail.row.cipher_suite.is_none() => "Its handshake is under way.".to_owned(),
        None => format!(
            "No keys have come, and no record has needed them yet{}.",
            but_who(tls, reasons)
        ),
    }
}

fn shared(detail: &Detail, tls: &TlsDetail) -> String {
    let refused = tls.refused_direction.map_or_else(String::new, |direction| {
        format!("; its endpoint keeps {direction} private, which passes unread")
    });
    match (detail.row.waits_milliseconds, detail.row.decrypted) {
        (Some(waited), _) => {
            format!(
                "Some keys are there, and records have waited for others for {waited} ms{refused}."
            )
        }
        (None, true) => format!("It is decrypted{refused}."),
        (None, false) if tls.mid_stream => {
            format!(
                "Its beginning was not seen; keys are there, and no record has been found that they open{refused}."
            )
        }
        (None, false) => format!("Keys are there, and no record has come that they open{refused}."),
    }
}
