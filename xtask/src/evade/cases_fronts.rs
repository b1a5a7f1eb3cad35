//! Named attacks behind proxies and protocols with a dialog before TLS, and on a port that is nobody's.
//!
//! Refuses to write out what is the same behind every front: each of [`TRICKS`] is tried behind each.

use super::cases::{self, Named};
use super::front;

/// Begins where the client's TLS does; `front NAME` comes in front.
pub const TRICKS: &[Named] = &[
    ("plain", "stream"),
    ("eager", "eager; stream"),
    ("version-0001", "flight hello:0001; stream"),
    ("version-0900", "flight hello:0900; stream"),
    ("empty-32", "flight empty:0301*32 hello:0301; stream"),
    ("empty-ccs", "flight eccs:0303 hello:0301; stream"),
    ("ccs", "flight ccs:0303 hello:0301; stream"),
    ("warning", "flight warn:0301 hello:0301; stream"),
    ("two-records", "flight hello:0301[0..9] hello:0301[9..]; stream"),
    ("one-byte-first", "flight hello:0301[0..1] hello:0301[1..]; stream"),
    ("long", "big 16800; flight hello:0301; stream"),
    (
        "out-of-order",
        "stream dialog; send PA seq=tls+20 data=tls[20..]; pause 5; send PA seq=tls data=tls[0..20]; stream",
    ),
    (
        "out-of-order-twice",
        "stream dialog; send PA seq=tls+20 data=tls[20..]; send PA seq=tls+20 data=tls[20..]; send PA seq=tls+3 data=tls[3..20]; pause 5; send PA seq=tls data=tls[0..3]; stream",
    ),
    (
        "version-0900-out-of-order",
        "flight hello:0900[0..40] hello:0900[40..]; stream dialog; send PA seq=tls+20 data=tls[20..]; pause 5; send PA seq=tls data=tls[0..20]; stream",
    ),
    (
        "bytes",
        "stream dialog; send PA seq=tls data=tls[0..1]; pause 3; send PA seq=tls+1 data=tls[1..2]; pause 3; send PA seq=tls+2 data=tls[2..3]; pause 3; send PA seq=tls+3 data=tls[3..5]; pause 3; stream",
    ),
    (
        "eager-ahead",
        "eager; send S; wait synack; send A; send PA seq=tls data=tls; pause 10; stream",
    ),
    ("junk-lost", "stream dialog; send PA seq=tls data=fill*20 lost; stream"),
    ("decoy-lost", "stream dialog; send PA seq=tls data=decoy lost; stream"),
    ("urgent", "stream dialog; send PAU seq=tls data=fill*1 urg=1; skip 0 1; stream"),
    ("rst-lost", "stream dialog; send R lost; pause 10; stream"),
    ("syn-lost", "stream dialog; send S seq=90000000 lost; pause 10; stream"),
    ("answer-lost", "stream dialog; send PA data=shello+open as=peer lost; stream"),
    // What stands where the ClientHello will, and reaches nobody; and an answer that comes in pieces.
    (
        "veiled",
        "eager; stream dialog; send PA seq=tls data=veil lost; pause 30; send PA seq=tls data=tls win=5; wait data 900; send A win=5; wait data 900; send A win=7; wait data 900; stream",
    ),
    (
        "veiled-by-one-byte",
        "eager; stream dialog; send PA seq=tls data=veil[0..1] lost; pause 30; send PA seq=tls data=tls win=5; wait data 900; send A win=5; wait data 900; send A win=7; wait data 900; stream",
    ),
    (
        "veiled-without-ack",
        "eager; stream dialog; send P seq=tls data=veil; pause 30; send PA seq=tls data=tls win=5; wait data 900; send A win=5; wait data 900; send A win=7; wait data 900; stream",
    ),
    (
        "veiled-far-behind",
        "eager; stream dialog; send PA seq=tls data=fill*1400 lost times=800; pause 30; send PA seq=tls data=tls win=5; wait data 900; send A win=5; wait data 900; send A win=7; wait data 900; stream",
    ),
    (
        "urgent-eager",
        "eager; stream dialog; send PAU seq=tls data=tls win=5; wait data 900; send A win=5; wait data 900; send A win=7; wait data 900; stream",
    ),
    ("window-200", "window 200; stream dialog; stream"),
    (
        "answer-in-pieces",
        "stream dialog; send PA seq=tls data=tls win=5; wait data 900; send A win=5; wait data 900; send A win=7; wait data 900; stream",
    ),
    (
        "answer-in-pieces-out-of-order",
        "stream dialog; send PA seq=tls+20 data=tls[20..] win=5; pause 5; send PA seq=tls data=tls[0..20] win=5; wait data 900; send A win=5; wait data 900; send A win=7; wait data 900; stream",
    ),
    (
        "answer-interrupted-lost",
        "stream dialog; send PA seq=tls data=tls win=3; wait data 900; send PA data=hex:14 win=3 lost; wait data 900; stream",
    ),
    (
        "fragments",
        "stream dialog; send PA seq=tls data=tls[0..4]+swap[4..204] frags lose2; send PA seq=tls data=fill*4+tls[4..204] frags lose1; pause 5; stream",
    ),
    (
        "fragments-later-first",
        "stream dialog; send PA seq=tls data=fill*4+tls[4..204] frags lose1; send PA seq=tls data=tls[0..4]+swap[4..204] frags lose2; pause 5; stream",
    ),
];

/// Every trick behind every front, and the attacks on openings and hellos where no port says TLS.
pub fn all() -> Vec<(String, String)> {
    let mut all = vec![];
    for front in front::all() {
        for (name, script) in TRICKS {
            let name = format!("front/{}/{name}", front.name);
            all.push((name, format!("front {}; {script}", front.name)));
        }
    }
    let known = [cases::HELLO, cases::OPENING, cases::ROLES, cases::FORGETTING];
    for (name, script) in known.into_iter().flatten() {
        if !script.starts_with("source") {
            all.push((format!("bare/{name}"), format!("front bare; {script}")));
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::super::script::Case;
    use super::*;

    #[test]
    fn accepts_every_line() {
        for (name, script) in all() {
            let case = script.parse::<Case>();
            assert!(case.is_ok(), "{name}: {case:?}");
        }
    }
}
