//! Datagrams from programs to the agent on their host.
//!
//! Claim: what decodes is encoded to the same bytes.

use mmtls_keyshare::agent::{Datagram, MAX_DATAGRAM_BYTES, SecretKind};
use mmtls_keyshare::keylog::Label;
use mmtls_keyshare::policy::ServerNames;

/// Input: one datagram.
pub fn agent_datagram(data: &[u8]) {
    let _ = Label::parse(data).and_then(SecretKind::from_label);
    match Datagram::decode(data) {
        Ok(datagram) => {
            if let Datagram::TrafficSecret(secret) = &datagram {
                // The name is the program's peer's choice; the agent looks it up in its list.
                let list = String::from_utf8_lossy(secret.secret);
                if let Ok(names) = ServerNames::parse(&list) {
                    let _ = names.matches(secret.server_name);
                }
            }
            let mut out = [0; MAX_DATAGRAM_BYTES];
            let len = datagram.encode(&mut out).expect("what was decoded can be encoded");
            assert_eq!(&out[..len], data, "one datagram has one encoding");
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}
