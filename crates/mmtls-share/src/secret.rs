//! Secrets that a program gives one by one. Refuses what cannot be a secret of TLS 1.2 or 1.3, and those of exempt sessions.

use std::ffi::{CStr, c_int};
use std::slice;

use libc::sockaddr;
use mmtls_keyshare::Flow;
use mmtls_keyshare::agent::{Datagram, Exempt, MAX_SECRET_BYTES, Role, SecretKind, TrafficSecret};
use mmtls_keyshare::message::Random;
use mmtls_sender::agent::Delivery;
use mmtls_sender::host::socket_address;

use crate::error::{
    MMTLS_SHARE_ERR_AGENT, MMTLS_SHARE_ERR_ARGUMENT, MMTLS_SHARE_ERR_SECRET, MMTLS_SHARE_EXEMPT,
};
use crate::handles::Share;
use crate::types::{MMTLS_SHARE_CLIENT, MMTLS_SHARE_SERVER, Secret};

const TLS_1_2: u16 = 0x0303;
const TLS_1_3: u16 = 0x0304;
/// The master secret of TLS 1.2 (RFC 5246, section 8.1).
const MASTER_SECRET_BYTES: usize = 48;
/// Longest server name that a datagram holds.
const MAX_NAME_BYTES: usize = 255;

/// Shares a secret.
///
/// # Safety
/// The pointers in it are NULL or point to what the header says.
pub(crate) unsafe fn give(share: &Share, secret: &Secret) -> Result<c_int, c_int> {
    let kind = u8::try_from(secret.kind).ok().and_then(SecretKind::from_number);
    let kind = kind.ok_or(MMTLS_SHARE_ERR_ARGUMENT)?;
    let role = match secret.role {
        MMTLS_SHARE_CLIENT => Role::Client,
        MMTLS_SHARE_SERVER => Role::Server,
        _ => return Err(MMTLS_SHARE_ERR_ARGUMENT),
    };
    let is_master = kind == SecretKind::Tls12Master;
    if secret.version != if is_master { TLS_1_2 } else { TLS_1_3 } || secret.secret.is_null() {
        return Err(MMTLS_SHARE_ERR_ARGUMENT);
    }
    let length = secret.secret_len;
    if !(1..=MAX_SECRET_BYTES).contains(&length) || (is_master && length != MASTER_SECRET_BYTES) {
        return Err(MMTLS_SHARE_ERR_SECRET);
    }
    let server_name = if secret.server_name.is_null() {
        &[]
    } else {
        // SAFETY: not NULL; the caller passes a C string.
        unsafe { CStr::from_ptr(secret.server_name) }.to_bytes()
    };
    if server_name.len() > MAX_NAME_BYTES {
        return Err(MMTLS_SHARE_ERR_ARGUMENT);
    }
    // SAFETY: the caller's promise.
    let flow = unsafe { flow(secret.client, secret.server) }?;
    if share.settings.rules.exempt.matches(server_name) {
        return match kind {
            // Once is enough: middleboxes count how often they are told.
            SecretKind::ClientEarly | SecretKind::ClientTraffic0 | SecretKind::Tls12Master => {
                exempt(share, &secret.client_random, flow)
            }
            _ => Ok(MMTLS_SHARE_EXEMPT),
        };
    }
    let datagram = Datagram::TrafficSecret(TrafficSecret {
        kind,
        role,
        client_random: &secret.client_random,
        server_random: &secret.server_random,
        version: secret.version,
        cipher_suite: secret.cipher_suite,
        // SAFETY: not NULL, and the caller says that it has so many bytes.
        secret: unsafe { slice::from_raw_parts(secret.secret, length) },
        server_name,
        flow,
    });
    code_of(share.sender.send(&share.settings.agent, &datagram))
}

/// Tells the agent that a session is exempt.
pub(crate) fn exempt(
    share: &Share,
    client_random: &Random,
    flow: Option<Flow>,
) -> Result<c_int, c_int> {
    let datagram = Datagram::Exempt(Exempt { client_random, flow });
    code_of(share.sender.send(&share.settings.agent, &datagram)).map(|_| MMTLS_SHARE_EXEMPT)
}

/// Both ends or none.
///
/// # Safety
/// Each is NULL or points to the socket address that belongs to its family.
pub(crate) unsafe fn flow(
    client: *const sockaddr,
    server: *const sockaddr,
) -> Result<Option<Flow>, c_int> {
    if client.is_null() && server.is_null() {
        return Ok(None);
    }
    if client.is_null() || server.is_null() {
        return Err(MMTLS_SHARE_ERR_ARGUMENT);
    }
    // SAFETY: not NULL; the caller's promise.
    let client = unsafe { socket_address(client) }.ok_or(MMTLS_SHARE_ERR_ARGUMENT)?;
    // SAFETY: as above.
    let server = unsafe { socket_address(server) }.ok_or(MMTLS_SHARE_ERR_ARGUMENT)?;
    Flow::new(client, server).map(Some).ok_or(MMTLS_SHARE_ERR_ARGUMENT)
}

/// What the program is told of a delivery.
pub(crate) fn code_of(delivery: Delivery) -> Result<c_int, c_int> {
    match delivery {
        Delivery::Sent => Ok(0),
        Delivery::Waits | Delivery::Lost => Err(MMTLS_SHARE_ERR_AGENT),
        Delivery::TooLong => Err(MMTLS_SHARE_ERR_ARGUMENT),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::*;

    #[test]
    fn accepts_the_numbers_of_the_header() {
        for (number, kind) in [
            (MMTLS_SHARE_CLIENT_EARLY, SecretKind::ClientEarly),
            (MMTLS_SHARE_CLIENT_HANDSHAKE, SecretKind::ClientHandshake),
            (MMTLS_SHARE_SERVER_HANDSHAKE, SecretKind::ServerHandshake),
            (MMTLS_SHARE_CLIENT_TRAFFIC, SecretKind::ClientTraffic0),
            (MMTLS_SHARE_SERVER_TRAFFIC, SecretKind::ServerTraffic0),
            (MMTLS_SHARE_CLIENT_NEXT, SecretKind::ClientTrafficN),
            (MMTLS_SHARE_SERVER_NEXT, SecretKind::ServerTrafficN),
            (MMTLS_SHARE_TLS12_MASTER, SecretKind::Tls12Master),
        ] {
            assert_eq!(SecretKind::from_number(number as u8), Some(kind));
        }
        assert_eq!((SecretKind::from_number(0), SecretKind::from_number(9)), (None, None));
    }
}
