//! Named attacks by what a server's kernel answers: SYN cookies, several answers, small windows, fragments
//! that die on the way one by one, and servers that open the connection.
//!
//! Refuses to hold anything generated, as [`super::cases`] does.

use super::cases::Named;

/// The server's kernel keeps no state: whatever acknowledgment fits a cookie opens the connection.
pub const COOKIES: &[Named] = &[
    ("cookies/plain", "cookies; stream"),
    ("cookies/beside-1", "cookies; send S; wait synack; skip -1; stream"),
    ("cookies/beside-1-exact-lost", "cookies; send S; wait synack; send A lost; skip -1; stream"),
    (
        "cookies/beside-1-empty-first",
        "cookies; send S; wait synack; skip -1; send A; pause 5; stream",
    ),
    (
        "cookies/beside-1-exact-hello-lost",
        "cookies; send S; wait synack; send PA data=out[0..20] lost; skip -1; send PA seq=0 data=out; stream",
    ),
    ("cookies/beside+1", "cookies; send S; wait synack; skip 1; stream"),
    ("cookies/beside+1-exact-lost", "cookies; send S; wait synack; send A lost; skip 1; stream"),
    (
        "cookies/beside+1-empty-first",
        "cookies; send S; wait synack; skip 1; send A; pause 5; stream",
    ),
    (
        "cookies/beside+1-exact-hello-lost",
        "cookies; send S; wait synack; send PA data=out[0..20] lost; skip 1; send PA seq=0 data=out; stream",
    ),
    ("cookies/beside+2", "cookies; send S; wait synack; skip 2; stream"),
    ("cookies/beside+2-exact-lost", "cookies; send S; wait synack; send A lost; skip 2; stream"),
    (
        "cookies/beside+2-empty-first",
        "cookies; send S; wait synack; skip 2; send A; pause 5; stream",
    ),
    (
        "cookies/beside+2-exact-hello-lost",
        "cookies; send S; wait synack; send PA data=out[0..20] lost; skip 2; send PA seq=0 data=out; stream",
    ),
    ("cookies/beside+3", "cookies; send S; wait synack; skip 3; stream"),
    ("cookies/beside+3-exact-lost", "cookies; send S; wait synack; send A lost; skip 3; stream"),
    (
        "cookies/beside+3-empty-first",
        "cookies; send S; wait synack; skip 3; send A; pause 5; stream",
    ),
    (
        "cookies/beside+3-exact-hello-lost",
        "cookies; send S; wait synack; send PA data=out[0..20] lost; skip 3; send PA seq=0 data=out; stream",
    ),
    ("cookies/both+1+1", "cookies; send S; wait synack; skip 1 1; stream"),
    ("cookies/both+1+1-exact-lost", "cookies; send S; wait synack; send A lost; skip 1 1; stream"),
    ("cookies/both+2+1", "cookies; send S; wait synack; skip 2 1; stream"),
    ("cookies/both+2+1-exact-lost", "cookies; send S; wait synack; send A lost; skip 2 1; stream"),
    ("cookies/both+100+100", "cookies; send S; wait synack; skip 100 100; stream"),
    (
        "cookies/both+100+100-exact-lost",
        "cookies; send S; wait synack; send A lost; skip 100 100; stream",
    ),
    ("cookies/both+102+100", "cookies; send S; wait synack; skip 102 100; stream"),
    (
        "cookies/both+102+100-exact-lost",
        "cookies; send S; wait synack; send A lost; skip 102 100; stream",
    ),
    ("cookies/both+5000+5000", "cookies; send S; wait synack; skip 5000 5000; stream"),
    (
        "cookies/both+5000+5000-exact-lost",
        "cookies; send S; wait synack; send A lost; skip 5000 5000; stream",
    ),
    ("cookies/both-100-100", "cookies; send S; wait synack; skip -100 -100; stream"),
    (
        "cookies/both-100-100-exact-lost",
        "cookies; send S; wait synack; send A lost; skip -100 -100; stream",
    ),
    ("cookies/both+1000000+1000000", "cookies; send S; wait synack; skip 1000000 1000000; stream"),
    (
        "cookies/both+1000000+1000000-exact-lost",
        "cookies; send S; wait synack; send A lost; skip 1000000 1000000; stream",
    ),
    (
        "cookies/two-other-lost",
        "cookies; send S; wait synack; send S seq=4999999; pause 20; choose 1; send A lost; choose 0; stream",
    ),
    (
        "cookies/two-first-lost",
        "cookies; send S; wait synack; send S seq=4999999; pause 20; choose 0; send A lost; choose 1; stream",
    ),
    (
        "cookies/two-first-then-other",
        "cookies; send S; wait synack; send S seq=4999999; pause 20; choose 0; send A; pause 5; choose 1; stream",
    ),
    (
        "cookies/two-other-then-first",
        "cookies; send S; wait synack; send S seq=4999999; pause 20; choose 1; send A; pause 5; choose 0; stream",
    ),
    (
        "cookies/two-other-junk-lost",
        "cookies; send S; wait synack; send S seq=4999999; pause 20; choose 1; send A lost; send PA data=fill*5 lost; choose 0; stream",
    ),
    (
        "cookies/two-first-junk-lost",
        "cookies; send S; wait synack; send S seq=4999999; pause 20; choose 0; send A lost; send PA data=fill*5 lost; choose 1; stream",
    ),
    (
        "cookies/two-other-decoy-lost",
        "cookies; send S; wait synack; send S seq=4999999; pause 20; choose 1; send PA data=decoy lost; choose 0; stream",
    ),
    (
        "cookies/two-close",
        "cookies; send S; wait synack; send S seq=99; pause 20; choose 1; send A lost; choose 0; stream",
    ),
    (
        "cookies/two-close-first-lost",
        "cookies; send S; wait synack; send S seq=99; pause 20; choose 0; send A lost; choose 1; stream",
    ),
    (
        "cookies/two-at-once",
        "cookies; send S; send S seq=999; wait synack; pause 20; choose 1; send A lost; choose 0; stream",
    ),
    (
        "cookies/two-at-once-first-lost",
        "cookies; send S; send S seq=999; wait synack; pause 20; choose 0; send A lost; choose 1; stream",
    ),
    (
        "cookies/two-same-again",
        "cookies; send S; wait synack; pause 3; send S; pause 20; choose 0; send A lost; choose 1; stream",
    ),
    (
        "cookies/two-same-first",
        "cookies; send S; wait synack; pause 3; send S; pause 20; choose 1; send A lost; choose 0; stream",
    ),
    ("cookies/rst-lost", "cookies; send S; wait synack; send R lost; pause 5; stream"),
    ("cookies/rst-between", "cookies; send S; wait synack; send R seq=0; pause 5; stream"),
    ("cookies/no-answer-again", "cookies; send S; wait synack; again; stream"),
    ("cookies/hello-first", "cookies; send S; wait synack; send PA seq=0 data=out; stream"),
    (
        "cookies/junk-ahead-lost",
        "cookies; send S; wait synack; send PA seq=0 data=fill*20 lost; stream",
    ),
    // Another connection where the first one has been acknowledged, with its numbers.
    (
        "cookies/reopened-by-third-segment",
        "cookies; front long_dialog; stream dialog; send PA data=tls; wait data; send FA; wait end; send A seq=@+1; pause 50; reopen; stream",
    ),
    (
        "cookies/reopened-by-empty-third-segment",
        "cookies; front long_dialog; stream dialog; send PA data=tls; wait data; send FA; wait end; send A seq=@+1; pause 50; reopen; send A seq=0; pause 20; stream",
    ),
    (
        "cookies/reopened-by-syn",
        "cookies; front long_dialog; stream dialog; send PA data=tls; wait data; send FA; wait end; send A seq=@+1; pause 50; reopen; send S; pause 50; stream",
    ),
    (
        "cookies/reopened-further-on",
        "cookies; front long_dialog; stream dialog; send PA data=tls; wait data; send FA; wait end; send A seq=@+1; pause 50; reopen; skip 900 900; stream",
    ),
    (
        "cookies/reopened-without-tls-before",
        "cookies; front long_dialog; stream dialog; send FA; wait end; send A seq=@+1; pause 50; reopen; stream",
    ),
];

/// The TLS server opens the TCP connection, as that of active FTP does; the attacker is either end.
pub const ACTIVE: &[Named] = &[
    ("active/plain", "active; stream"),
    ("active/version-0900", "active; flight hello:0900; stream"),
    ("active/version-0001", "active; flight hello:0001; stream"),
    ("active/empty-32", "active; flight empty:0301*32 hello:0301; stream"),
    ("active/empty-ccs", "active; flight eccs:0303 hello:0301; stream"),
    ("active/warning", "active; flight warn:0301 hello:0301; stream"),
    ("active/two-records", "active; flight hello:0301[0..9] hello:0301[9..]; stream"),
    ("active/simultaneous", "active; wait syn; send S; wait synack; stream"),
    (
        "active/simultaneous-junk-lost",
        "active; wait syn; send S; wait synack; send PA seq=0 data=fill*5 lost; stream",
    ),
    (
        "active/junk-lost",
        "active; wait syn; send SA; wait ack; send PA seq=0 data=fill*5 lost; stream",
    ),
    (
        "active/junk-badsum",
        "active; wait syn; send SA; wait ack; send PA seq=0 data=fill*5 badsum; stream",
    ),
    (
        "active/hello-request-lost",
        "active; wait syn; send SA; wait ack; send PA seq=0 data=hex:160303000400000000 lost; stream",
    ),
    (
        "active/decoy-lost",
        "active; wait syn; send SA; wait ack; send PA seq=0 data=decoy lost; stream",
    ),
    (
        "active/answer-lost",
        "active; wait syn; send SA; wait ack; send PA data=shello+open as=peer lost; stream",
    ),
    (
        "active/answer-before-lost",
        "active; wait syn; send PA seq=0 data=shello+open lost; send SA; stream",
    ),
    (
        "active/out-of-order",
        "active; wait syn; send SA; wait ack; send PA seq=20 data=out[20..]; pause 5; send PA seq=0 data=out[0..20]; stream",
    ),
    (
        "active/bytes",
        "active; wait syn; send SA; wait ack; send PA seq=0 data=out[0..1]; pause 3; send PA seq=1 data=out[1..3]; pause 3; send PA seq=3 data=out[3..5]; pause 3; stream",
    ),
    ("active/two-answers-lost", "active; wait syn; send SA seq=70000000 lost; send SA; stream"),
    (
        "active/two-answers-later-lost",
        "active; wait syn; send SA; send SA seq=70000000 lost; stream",
    ),
    ("active/answer-with-data", "active; wait syn; send SA data=out[0..100]; stream"),
    ("active/syn-later-lost", "active; wait syn; send SA; wait ack; send S seq=-1001 lost; stream"),
    ("active/rst-lost", "active; wait syn; send SA; wait ack; send R lost; pause 10; stream"),
    ("active/fin-lost", "active; wait syn; send SA; wait ack; send FA lost; pause 10; stream"),
    ("active/window-200", "active; window 200; stream"),
    ("active/split", "active; wait syn; send A seq=-1; send S; wait synack; send SA; stream"),
    ("active-server/plain", "server; active; stream"),
    (
        "active-server/syn-earlier-lost",
        "server; active; send S; wait synack; send S seq=-101 data=fill*100 lost; stream",
    ),
    (
        "active-server/syn-later-lost",
        "server; active; send S; send S seq=70000000 lost; wait synack; stream",
    ),
    (
        "active-server/junk-lost",
        "server; active; send S; wait synack; send PA seq=0 data=fill*5 lost; stream",
    ),
    (
        "active-server/junk-badsum",
        "server; active; send S; wait synack; send PA seq=0 data=fill*5 badsum; stream",
    ),
    (
        "active-server/decoy-lost",
        "server; active; send S; wait synack; send PA seq=0 data=decoy lost; stream",
    ),
    (
        "active-server/hello-request-lost",
        "server; active; send S; wait synack; send PA seq=0 data=hex:160303000400000000 lost; stream",
    ),
    ("active-server/hello-request", "server; active; lead 160303000400000000; stream"),
    ("active-server/empty-record", "server; active; lead 1603030000; stream"),
    (
        "active-server/answer-lost",
        "server; active; send S; wait synack; send A; send PA seq=0 data=shello+open lost; stream",
    ),
    ("active-server/open-lost", "server; active; stream handshake; send PA data=open lost; stream"),
    ("active-server/rst-lost", "server; active; stream connected; send R lost; pause 10; stream"),
    (
        "active-server/rst-before-lost",
        "server; active; send S; send R seq=0 lost; wait synack; stream",
    ),
    ("active-server/empty-32", "server; active; flight empty:0303*32 hello:0303; stream"),
    ("active-server/version-0900", "server; active; flight hello:0900; stream"),
    (
        "active-server/client-junk-lost",
        "server; active; send S; wait synack; send A; send PA data=fill*5 as=peer lost; stream",
    ),
];

/// Answers that arrive in small pieces, and fragments of which each may be lost.
pub const PIECES: &[Named] = &[
    ("answer/window-200", "window 200; stream"),
    (
        "answer/three-bytes",
        "stream connected; send PA seq=0 data=out win=3; wait data 900; send A win=3; wait data 900; stream",
    ),
    (
        "answer/five-bytes",
        "stream connected; send PA seq=0 data=out win=5; wait data 900; send A win=5; wait data 900; stream",
    ),
    ("answer/window-600", "window 600; stream"),
    (
        "answer/five-bytes-version-0900",
        "flight hello:0900; stream connected; send PA seq=0 data=out win=5; wait data 900; send A win=5; wait data 900; stream",
    ),
    (
        "answer/interrupted",
        "window 100; stream connected; send PA seq=0 data=out win=100; wait data; send A win=0; pause 20; stream",
    ),
    (
        "answer/window-shut",
        "stream connected; send PA seq=0 data=out win=5; wait data; send A win=0; pause 20; send A win=7; pause 20; stream",
    ),
    ("answer/acknowledged-late", "stream connected; send PA seq=0 data=out; pause 300; stream"),
    (
        "fragments/two",
        "stream connected; send PA seq=0 data=out[0..4]+swap[4..204] frags lose2; send PA seq=0 data=fill*4+out[4..204] frags lose1; pause 5; stream",
    ),
    (
        "fragments/two-later-first",
        "stream connected; send PA seq=0 data=fill*4+out[4..204] frags lose1; send PA seq=0 data=out[0..4]+swap[4..204] frags lose2; pause 5; stream",
    ),
    (
        "fragments/two-http",
        "stream connected; send PA seq=0 data=http frags lose1; send PA seq=0 data=out[0..4]+swap[4..204] frags lose2; send PA seq=0 data=fill*4+out[4..204] frags lose1; pause 5; stream",
    ),
    (
        "fragments/first-lost",
        "stream connected; send PA seq=0 data=out[0..204] frags lose1; pause 5; stream",
    ),
    (
        "fragments/second-lost",
        "stream connected; send PA seq=0 data=out[0..204] frags lose2; pause 5; stream",
    ),
    (
        "fragments/two-after-hello",
        "stream connected; send PA seq=0 data=out[0..100]; wait ack; send PA seq=100 data=out[100..104]+swap[104..204] frags lose2; send PA seq=100 data=fill*4+out[104..204] frags lose1; pause 5; stream",
    ),
    (
        "fragments/late",
        "stream connected; send PA seq=0 data=out[0..4]+swap[4..204] frags lose2; pause 2000; send PA seq=0 data=fill*4+out[4..204] frags lose1; pause 5; stream",
    ),
];

/// Those that take most of a minute.
pub const SLOW: &[Named] = &[(
    "slow/fragments-25-s",
    "stream connected; send PA seq=0 data=out[0..4]+swap[4..204] frags lose2; pause 25000; send PA seq=0 data=fill*4+out[4..204] frags lose1; pause 5; stream",
)];

#[cfg(test)]
mod tests {
    use super::super::script::Case;
    use super::*;

    #[test]
    fn accepts_every_line() {
        for (name, script) in [COOKIES, ACTIVE, PIECES, SLOW].into_iter().flatten() {
            let case = script.parse::<Case>();
            assert!(case.is_ok(), "{name}: {case:?}");
        }
    }
}
