//! Named attacks on the inspection by a client: the classes of known weaknesses, and their neighbours.
//!
//! Refuses to hold anything generated: a line here was thought of by somebody.

/// A name and its script (see [`super::script`]).
pub type Named = (&'static str, &'static str);

/// What a ClientHello may look like to be taken by some server.
pub const HELLO: &[Named] = &[
    ("hello/version-0001", "flight hello:0001; stream"),
    ("hello/version-0200", "flight hello:0200; stream"),
    ("hello/version-0300", "flight hello:0300; stream"),
    ("hello/version-0304", "flight hello:0304; stream"),
    ("hello/version-03ff", "flight hello:03ff; stream"),
    ("hello/version-0401", "flight hello:0401; stream"),
    ("hello/version-0900", "flight hello:0900; stream"),
    ("hello/version-1000", "flight hello:1000; stream"),
    ("hello/version-1080", "flight hello:1080; stream"),
    ("hello/version-7f7f", "flight hello:7f7f; stream"),
    ("hello/version-fefd", "flight hello:fefd; stream"),
    ("hello/version-ffff", "flight hello:ffff; stream"),
    ("hello/empty-before", "flight empty:0301 hello:0301; stream"),
    ("hello/empty-before-0001", "flight empty:0001 hello:0301; stream"),
    ("hello/empty-before-0401", "flight empty:0401 hello:0301; stream"),
    ("hello/empty-before-0900", "flight empty:0900 hello:0301; stream"),
    ("hello/empty-before-1000", "flight empty:1000 hello:0301; stream"),
    ("hello/empty-before-ffff", "flight empty:ffff hello:0301; stream"),
    ("hello/empty-between-0900", "flight hello:0301[0..9] empty:0900 hello:0301[9..]; stream"),
    ("hello/second-part-0900", "flight hello:0301[0..9] hello:0900[9..]; stream"),
    ("hello/empty-31", "flight empty:0301*31 hello:0301; stream"),
    ("hello/empty-32", "flight empty:0301*32 hello:0301; stream"),
    ("hello/empty-33", "flight empty:0301*33 hello:0301; stream"),
    ("hello/empty-100", "flight empty:0301*100 hello:0301; stream"),
    ("hello/empty-1000", "flight empty:0301*1000 hello:0301; stream"),
    ("hello/empty-between-32", "flight hello:0301[0..1] empty:0301*32 hello:0301[1..]; stream"),
    ("hello/ccs-before", "flight ccs:0303 hello:0301; stream"),
    ("hello/ccs-before-0900", "flight ccs:0900 hello:0301; stream"),
    ("hello/empty-ccs-before", "flight eccs:0303 hello:0301; stream"),
    ("hello/empty-ccs-before-0301", "flight eccs:0301 hello:0301; stream"),
    ("hello/empty-ccs-10", "flight eccs:0303*10 hello:0301; stream"),
    ("hello/empty-ccs-between", "flight hello:0301[0..9] eccs:0303 hello:0301[9..]; stream"),
    ("hello/warning-before", "flight warn:0301 hello:0301; stream"),
    ("hello/warning-3", "flight warn:0303*3 hello:0301; stream"),
    ("hello/warning-between", "flight hello:0301[0..9] warn:0301 hello:0301[9..]; stream"),
    ("hello/empty-alert-before", "flight ealert:0301 hello:0301; stream"),
    ("hello/empty-data-before", "flight app:0303 hello:0301; stream"),
    ("hello/one-byte-first", "flight hello:0301[0..1] hello:0301[1..]; stream"),
    (
        "hello/five-records",
        "flight hello:0301[0..1] hello:0302[1..2] hello:0303[2..3] hello:0301[3..4] hello:0301[4..]; stream",
    ),
    ("hello/long-16400", "big 16200; flight hello:0301; stream"),
    ("hello/long-17085", "big 16800; flight hello:0301; stream"),
    ("hello/long-18000", "big 17900; flight hello:0301; stream"),
    ("hello/long-two-records", "big 30000; stream"),
    (
        "hello/long-six-records",
        "big 60000; flight hello:0301[0..16384] hello:0301[16384..32768] hello:0301[32768..49152] hello:0301[49152..]; stream",
    ),
    ("hello/zeros-before", "lead 0000000000; stream"),
    ("hello/crlf-before", "lead 0d0a; stream"),
    ("hello/http-then-hello", "stream connected; send PA seq=0 data=http lost; stream"),
    ("hello/junk-lost", "stream connected; send PA seq=0 data=fill*5 lost; stream"),
    ("hello/junk-bad-checksum", "stream connected; send PA seq=0 data=fill*5 badsum; stream"),
    ("hello/junk-one-byte-lost", "stream connected; send PA seq=0 data=fill*1 lost; stream"),
    (
        "hello/byte-by-byte",
        "stream connected; send PA seq=0 data=out[0..1]; send PA seq=1 data=out[1..2]; send PA seq=2 data=out[2..3]; send PA seq=3 data=out[3..4]; send PA seq=4 data=out[4..5]; pause 20; stream",
    ),
];

/// More than one SYN, or SYNs with data.
pub const OPENING: &[Named] = &[
    ("syn/earlier-100", "send S; wait synack; send S seq=-101 data=fill*100; pause 5; stream"),
    ("syn/earlier-100-at-once", "send S; send S seq=-101 data=fill*100; wait synack; stream"),
    ("syn/earlier-1", "send S; wait synack; send S seq=-2 data=fill*1; pause 5; stream"),
    ("syn/earlier-100-lost", "send S; wait synack; send S seq=-101 data=fill*100 lost; stream"),
    ("syn/earlier-100-badsum", "send S; wait synack; send S seq=-101 data=fill*100 badsum; stream"),
    ("syn/earlier-empty-lost", "send S; wait synack; send S seq=-101 lost; stream"),
    ("syn/earlier-first-lost", "send S seq=-101 data=fill*100 lost; send S; wait synack; stream"),
    (
        "syn/three",
        "send S; wait synack; send S seq=-101 data=fill*100 lost; send S seq=-601 data=fill*500 lost; stream",
    ),
    (
        "syn/three-and-first-again",
        "send S; wait synack; send S seq=-101 data=fill*100 lost; send S lost; stream",
    ),
    (
        "syn/late-earlier",
        "send S; wait synack; pause 1300; send S seq=-101 data=fill*100; pause 5; stream",
    ),
    (
        "syn/earlier-100-timer",
        "send S; wait synack; send S seq=-101 data=fill*100; pause 1300; stream",
    ),
    (
        "syn/earlier-100-timer-lost",
        "send S; wait synack; send S seq=-101 data=fill*100 lost; pause 1300; stream",
    ),
    (
        "syn/earlier-1-timer-lost",
        "send S; wait synack; send S seq=-2 data=fill*1 lost; pause 1300; stream",
    ),
    (
        "syn/earlier-empty-timer-lost",
        "send S; wait synack; send S seq=-101 lost; pause 1300; stream",
    ),
    ("syn/later-timer-lost", "send S; wait synack; send S seq=1000 lost; pause 1300; stream"),
    ("syn/other-timer-lost", "send S; wait synack; send S seq=100000000 lost; pause 1300; stream"),
    (
        "syn/three-at-once",
        "send S; send S seq=-101 data=fill*100 lost; send S seq=-601 data=fill*500 lost; wait synack; stream",
    ),
    (
        "syn/three-and-first-again-at-once",
        "send S; send S seq=-101 data=fill*100 lost; send S lost; wait synack; stream",
    ),
    ("syn/earlier-1-at-once-lost", "send S; send S seq=-2 data=fill*1 lost; wait synack; stream"),
    (
        "syn/earlier-100-at-once-lost",
        "send S; send S seq=-101 data=fill*100 lost; wait synack; stream",
    ),
    ("syn/later-at-once-lost", "send S; send S seq=1000 lost; wait synack; stream"),
    (
        "syn/hello-then-later-at-once",
        "send S data=out[0..500]; send S seq=250 lost; wait synack; stream",
    ),
    ("syn/decoy-then-later-at-once", "send S data=decoy; send S seq=55 lost; wait synack; stream"),
    ("syn/later-lost", "send S; wait synack; send S seq=1000 lost; stream"),
    ("syn/later-data-lost", "send S; wait synack; send S seq=1000 data=fill*100 lost; stream"),
    ("syn/other-lost", "send S; wait synack; send S seq=100000000 lost; stream"),
    ("syn/other-first-lost", "send S seq=100000000 lost; send S; wait synack; stream"),
    (
        "syn/other-between",
        "send S seq=100000000 lost; send S; send S seq=200000000 lost; wait synack; stream",
    ),
    ("syn/hello-then-later", "send S data=out[0..500]; wait synack; send S seq=250 lost; stream"),
    ("syn/hello-then-later-1", "send S data=out[0..500]; wait synack; send S seq=0 lost; stream"),
    ("syn/decoy-in-syn", "send S data=decoy; wait synack; stream"),
    ("syn/fill-in-syn", "send S data=fill*100; wait synack; stream"),
    ("syn/http-in-syn", "send S data=http; wait synack; stream"),
    ("syn/fast-open-cookie", "send S data=fill*100 opt=220c0102030405060708; wait synack; stream"),
    ("syn/fast-open-request", "send S data=fill*50 opt=2202; wait synack; stream"),
    ("syn/hello-in-syn", "send S data=out[0..1]; wait synack; stream"),
    ("syn/fin", "send SF; wait synack; stream"),
    ("syn/rst", "send SR; send S; wait synack; stream"),
    ("syn/urg", "send SU urg=5 data=fill*5; wait synack; stream"),
    ("syn/psh-ece-cwr", "send SPEC; wait synack; stream"),
    ("syn/reserved-bits", "send S reserved; wait synack; stream"),
    ("syn/same-again", "send S; wait synack; send S; pause 5; stream"),
    ("syn/after-ack", "stream connected; send S; pause 5; stream"),
    ("syn/after-ack-lost", "stream connected; send S seq=1000 lost; stream"),
    ("syn/after-ack-earlier-lost", "stream connected; send S seq=-101 data=fill*100 lost; stream"),
    (
        "syn/in-hello-lost",
        "stream connected; send PA seq=0 data=out[0..10]; wait ack; send S seq=100 lost; stream",
    ),
    (
        "syn/rst-then-same-port",
        "send S seq=5000000; wait synack; send R seq=5000001; pause 10; again; stream",
    ),
    (
        "syn/rst-lost-then-other",
        "send S seq=5000000 lost; send R seq=5000001 lost; send S; wait synack; stream",
    ),
    ("syn/ack-before-syn-ack", "send S; send A seq=0 ack=60000; wait synack; stream"),
    ("syn/ack-before-syn-ack-lost", "send S; send A seq=0 ack=60000 lost; wait synack; stream"),
    ("syn/fin-before-syn-ack-lost", "send S; send FA seq=0 ack=60000 lost; wait synack; stream"),
    ("syn/rst-before-syn-ack-lost", "send S; send RA seq=0 ack=60000 lost; wait synack; stream"),
    (
        "syn/data-before-syn-ack-lost",
        "send S; send PA seq=0 ack=60000 data=fill*20 lost; wait synack; stream",
    ),
    ("syn/hello-before-syn-ack", "send S; send PA seq=0 ack=60000 data=out; wait synack; stream"),
    ("syn/ack-before-syn-ack-near-lost", "send S; send A seq=0 ack=1 lost; wait synack; stream"),
    (
        "syn/data-no-ack-before-syn-ack-lost",
        "send S; send P seq=0 data=fill*20 lost; wait synack; stream",
    ),
    ("syn/window-0", "send S win=0; wait synack; stream"),
    (
        "syn/md5-option-lost",
        "send S; wait synack; send S seq=-101 opt=131200112233445566778899aabbccddeeff lost; stream",
    ),
];

/// Flags, numbers and roles that no client has.
pub const ROLES: &[Named] = &[
    ("role/syn-ack-first-lost", "send SA seq=-1 ack=5 lost; send S; wait synack; stream"),
    ("role/syn-ack-first", "send SA seq=-1 ack=5; pause 5; send S; wait synack; stream"),
    (
        "role/syn-ack-data-first",
        "send SA seq=-1 ack=5 data=fill*100 lost; send S; wait synack; stream",
    ),
    ("role/syn-ack-after-syn", "send S; send SA seq=-1 ack=5 lost; wait synack; stream"),
    (
        "role/syn-ack-after-syn-data",
        "send S; send SA seq=-1 ack=0 data=fill*100 lost; wait synack; stream",
    ),
    ("role/syn-ack-after-synack", "send S; wait synack; send SA seq=-1 ack=0 lost; stream"),
    ("role/syn-ack-after-ack", "stream connected; send SA seq=-1 ack=0 lost; stream"),
    ("role/syn-ack-other-after-ack", "stream connected; send SA seq=5000 ack=0 lost; stream"),
    ("role/ack-first", "send A seq=0 ack=0; pause 5; send S; wait synack; stream"),
    ("role/ack-first-lost", "send A seq=0 ack=0 lost; send S; wait synack; stream"),
    ("role/data-first-lost", "send PA seq=0 ack=0 data=fill*100 lost; send S; wait synack; stream"),
    ("role/decoy-first-lost", "send PA seq=0 ack=0 data=decoy lost; send S; wait synack; stream"),
    (
        "role/server-hello-first-lost",
        "send PA seq=0 ack=0 data=shello lost; send S; wait synack; stream",
    ),
    (
        "role/server-hello-and-open-lost",
        "send PA seq=0 ack=0 data=shello+open lost; send S; wait synack; stream",
    ),
    (
        "role/decoy-old-seq-lost",
        "send PA seq=-5000 ack=0 data=decoy lost; send S; wait synack; stream",
    ),
    ("role/fin-first-lost", "send FA seq=0 ack=0 lost; send S; wait synack; stream"),
    ("role/rst-first-lost", "send R seq=0 lost; send S; wait synack; stream"),
    ("role/null-first", "send - seq=0 data=fill*10 lost; send S; wait synack; stream"),
    ("role/peer-syn-ack-first", "send SA seq=0 ack=0 as=peer lost; send S; wait synack; stream"),
    ("role/peer-syn-first", "send S seq=0 as=peer lost; send S; wait synack; stream"),
    (
        "role/peer-data-first",
        "send PA seq=0 ack=0 data=fill*100 as=peer lost; send S; wait synack; stream",
    ),
    (
        "role/peer-decoy-first",
        "send PA seq=0 ack=0 data=decoy as=peer lost; send S; wait synack; stream",
    ),
    (
        "role/peer-syn-ack-after-syn",
        "send S; send SA seq=7 ack=0 as=peer lost; wait synack; stream",
    ),
    ("role/peer-rst-after-syn", "send S; send RA seq=0 ack=0 as=peer lost; wait synack; stream"),
    ("role/peer-syn-after-syn", "send S; send S seq=9 as=peer lost; wait synack; stream"),
    ("role/peer-data-connected", "stream connected; send PA data=shello+open as=peer lost; stream"),
    ("role/peer-fin-connected", "stream connected; send FA as=peer lost; stream"),
    ("role/peer-rst-connected", "stream connected; send RA as=peer lost; stream"),
    ("role/key-channel-source", "source 10.78.0.1:4433; stream"),
];

/// Connections that the middlebox is made to forget.
pub const FORGETTING: &[Named] = &[
    ("forget/rst-lost", "stream connected; send R lost; pause 10; stream"),
    (
        "forget/rst-lost-then-data",
        "stream connected; send R lost; pause 10; send PA seq=0 data=out[0..20]; pause 10; stream",
    ),
    ("forget/rst-ack-lost", "stream connected; send RA lost; pause 10; stream"),
    ("forget/rst-badsum", "stream connected; send R badsum; pause 10; stream"),
    ("forget/rst-off-by-one", "stream connected; send R seq=@+1; pause 10; stream"),
    ("forget/rst-in-window", "stream connected; send R seq=@+1000; pause 10; stream"),
    ("forget/rst-old", "stream connected; send R seq=@-10; pause 10; stream"),
    ("forget/fin-lost", "stream connected; send FA lost; pause 10; stream"),
    ("forget/fin-old", "stream connected; send FA seq=@-1000; pause 10; stream"),
    ("forget/fin-future", "stream connected; send FA seq=@+60000; pause 10; stream"),
    (
        "forget/junk-rst-syn-lost",
        "stream connected; send PA data=fill*5 lost; send R lost; send S seq=90000000 lost; pause 10; stream",
    ),
    (
        "forget/both-rst-lost",
        "stream connected; send R lost; send R as=peer lost; pause 10; stream",
    ),
    (
        "forget/both-fin-lost",
        "stream connected; send FA lost; send FA as=peer lost; send A seq=@+1 ack=@+1 lost; pause 10; stream",
    ),
    (
        "forget/rst-after-hello-lost",
        "stream connected; send PA seq=0 data=out; wait data; send R lost; pause 10; stream",
    ),
    (
        "forget/rst-then-decoy",
        "stream connected; send R lost; send PA seq=0 data=decoy lost; pause 10; stream",
    ),
    (
        "forget/rst-then-old-decoy",
        "stream connected; send R lost; send PA seq=-1000 data=decoy; pause 10; stream",
    ),
    (
        "forget/rst-then-syn-ack",
        "stream connected; send R lost; send SA seq=-1 ack=0 lost; pause 10; stream",
    ),
    (
        "forget/rst-then-syn-ack-data",
        "stream connected; send R lost; send SA seq=-1 ack=0 data=fill*10 lost; pause 10; stream",
    ),
];

/// What the generator found, made small.
pub const FOUND: &[Named] = &[
    ("found/1-67", "send S; pause 3; send FA seq=@ ack=@+60000 lost; stream"),
    (
        "found/2-633",
        "send S data=fill*100; send S seq=-501 ack=@+2; stream connected; send SA seq=-3 ack=-1001 lost; stream",
    ),
    ("found/3-93", "send S; wait synack; send S seq=@ lost; send SA seq=@-1073741824; stream"),
    ("found/3-196", "send S; wait synack; send A seq=@ ack=@+10 lost; stream"),
    ("found/3-389", "send S; send SA seq=-1 ack=0; wait synack; stream"),
    ("found/3-768", "send S; send S seq=@-1000; wait synack; send SAU seq=-501; stream"),
    ("found/3-776", "send S; send SA seq=-1 win=0; wait ack 50; stream"),
    ("found/3-919", "server; send SA; send S seq=-70001; stream"),
    ("found/3-935", "server; send SA; send S seq=-101; stream"),
    ("found/3-1175", "server; send SA; send FS seq=@-100; stream"),
    ("found/3-1242", "send S; send SA; pause 30; stream"),
    ("found/3-2255", "server; send SA; send FS seq=-3; stream"),
    ("found/3-6283", "send S; send SA seq=@-2 lost; wait synack; stream"),
    ("found/3-8382", "send S; wait synack; send S seq=999999; send SA seq=@-1073741824; stream"),
    ("found/1-459", "server; send SA; send SR seq=-1000001; stream"),
    (
        "found/busy-machine",
        "send S; send A seq=0 ack=0; send PA seq=0 ack=0 data=out; pause 30; stream",
    ),
];

/// Cases that take most of a minute.
pub const SLOW: &[Named] = &[
    (
        "slow/junk-rst-pause",
        "stream connected; send PA data=fill*5 lost; send R lost; pause 33000; stream",
    ),
    (
        "slow/http-rst-pause",
        "stream connected; send PA data=http lost; send R lost; pause 33000; stream",
    ),
    ("slow/rst-pause", "stream connected; send R lost; pause 33000; stream"),
    (
        "slow/fin-both-pause",
        "stream connected; send FA lost; send FA as=peer lost; pause 33000; stream",
    ),
    (
        "slow/rst-pause-syn-ack",
        "stream connected; send R lost; pause 33000; send SA seq=-1 ack=0 lost; stream",
    ),
    (
        "slow/rst-pause-old-decoy",
        "stream connected; send R lost; pause 33000; send PA seq=-500 data=decoy; stream",
    ),
    (
        "slow/rst-pause-peer-data",
        "stream connected; send R lost; pause 33000; send PA data=fill*5 as=peer lost; stream",
    ),
];

/// What others have published: `NAME: SCRIPT` in each line that is no comment.
pub const PUBLISHED: &str = include_str!("../../evade/strategies.txt");

/// All of ours but the slow ones.
pub const ALL: &[&[Named]] = &[HELLO, OPENING, ROLES, FORGETTING, SERVER, FOUND];

/// What a hostile server does to an honest client.
pub const SERVER: &[Named] = &[
    ("server/later-syn-ack", "server; wait syn; send SA; send SA seq=-501 lost; stream"),
    (
        "server/syn-with-hello-and-open",
        "server; wait syn; send SA; send S seq=-101 data=shello+open; pause 5; stream",
    ),
    (
        "server/syn-with-hello-and-open-lost",
        "server; wait syn; send SA; send S seq=-101 data=shello+open lost; pause 5; stream",
    ),
    (
        "server/syn-exact-hello-and-open",
        "server; wait syn; send SA; send S seq=-52 data=shello+open lost; pause 5; stream",
    ),
    (
        "server/syn-empty-1000-earlier",
        "server; wait syn; send SA; send S seq=-1001; pause 5; stream",
    ),
    (
        "server/syn-empty-1000-earlier-lost",
        "server; wait syn; send SA; send S seq=-1001 lost; pause 5; stream",
    ),
    ("server/syn-first-lost", "server; wait syn; send S seq=-1001 lost; send SA; stream"),
    (
        "server/syn-connected-lost",
        "server; wait syn; send SA; wait ack; send S seq=-1001 lost; stream",
    ),
    (
        "server/syn-data-connected-lost",
        "server; wait syn; send SA; wait ack; send S seq=-101 data=shello+open lost; stream",
    ),
    (
        "server/syn-ack-other-isn-lost",
        "server; wait syn; send SA seq=70000000 lost; send SA; stream",
    ),
    (
        "server/syn-ack-other-isn-after-lost",
        "server; wait syn; send SA; send SA seq=70000000 lost; stream",
    ),
    (
        "server/syn-ack-data-lost",
        "server; wait syn; send SA seq=-101 data=shello+open lost; send SA; stream",
    ),
    ("server/syn-ack-data", "server; wait syn; send SA data=shello+open; stream"),
    ("server/syn-ack-bad-ack", "server; wait syn; send SA ack=1000; pause 5; send SA; stream"),
    ("server/syn-ack-twice", "server; wait syn; send SA; send SA; stream"),
    (
        "server/data-first-lost",
        "server; wait syn; send PA seq=0 data=shello+open lost; send SA; stream",
    ),
    ("server/decoy-first-lost", "server; wait syn; send PA seq=0 data=decoy lost; send SA; stream"),
    (
        "server/decoy-connected-lost",
        "server; wait syn; send SA; wait ack; send PA seq=0 data=decoy lost; stream",
    ),
    (
        "server/old-decoy-connected",
        "server; wait syn; send SA; wait ack; send PA seq=-500 data=decoy; stream",
    ),
    ("server/simultaneous", "server; wait syn; send S; wait synack; stream"),
    (
        "server/simultaneous-hello-request",
        "server; lead 160303000400000000; wait syn; send S; wait synack; send PA seq=0 data=out; stream",
    ),
    (
        "server/simultaneous-hello-request-lost",
        "server; wait syn; send S; wait synack; send PA seq=0 data=hex:160303000400000000 lost; stream",
    ),
    (
        "server/simultaneous-empty-record",
        "server; lead 1603030000; wait syn; send S; wait synack; send PA seq=0 data=out; stream",
    ),
    (
        "server/simultaneous-empty-record-lost",
        "server; wait syn; send S; wait synack; send PA seq=0 data=hex:1603030000 lost; stream",
    ),
    (
        "server/simultaneous-junk",
        "server; wait syn; send S; wait synack; send PA seq=0 data=fill*5 lost; stream",
    ),
    (
        "server/simultaneous-junk-badsum",
        "server; wait syn; send S; wait synack; send PA seq=0 data=fill*5 badsum; stream",
    ),
    ("server/simultaneous-syn-data", "server; wait syn; send S data=fill*5; wait synack; stream"),
    ("server/simultaneous-lost", "server; wait syn; send S lost; send SA; stream"),
    (
        "server/simultaneous-lost-junk",
        "server; wait syn; send S lost; send PA seq=0 data=fill*5 lost; send SA; stream",
    ),
    ("server/simultaneous-then-syn-ack", "server; wait syn; send S; wait synack; send SA; stream"),
    ("server/split", "server; wait syn; send A seq=-1; send S; wait synack; send SA; stream"),
    ("server/split-5", "server; wait syn; send A seq=-1; send S; wait synack; stream"),
    ("server/syn-fin", "server; wait syn; send SF; wait synack; stream"),
    (
        "server/hello-request",
        "server; lead 160303000400000000; wait syn; send SA; wait ack; send PA seq=0 data=out; stream",
    ),
    (
        "server/empty-record",
        "server; lead 1603030000; wait syn; send SA; wait ack; send PA seq=0 data=out; stream",
    ),
    (
        "server/ccs-first",
        "server; lead 140303000101; wait syn; send SA; wait ack; send PA seq=0 data=out; stream",
    ),
    (
        "server/warning-first",
        "server; lead 15030300020164; wait syn; send SA; wait ack; send PA seq=0 data=out; stream",
    ),
    (
        "server/junk-first-lost",
        "server; wait syn; send SA; wait ack; send PA seq=0 data=fill*5 lost; stream",
    ),
    (
        "server/junk-first-badsum",
        "server; wait syn; send SA; wait ack; send PA seq=0 data=fill*5 badsum; stream",
    ),
    (
        "server/banner-lost",
        "server; wait syn; send SA; wait ack; send PA seq=0 data=hex:323230206f6b0d0a lost; stream",
    ),
    ("server/hello-version-0001", "server; flight hello:0001; stream"),
    ("server/hello-version-0900", "server; flight hello:0900; stream"),
    ("server/hello-version-ffff", "server; flight hello:ffff; stream"),
    (
        "server/hello-in-parts",
        "server; flight hello:0303[0..1] hello:0303[1..5] hello:0303[5..]; stream",
    ),
    ("server/empty-before-hello-32", "server; flight empty:0303*32 hello:0303; stream"),
    ("server/empty-ccs-before-hello", "server; flight eccs:0303 hello:0303; stream"),
    ("server/rst-lost", "server; wait syn; send SA; wait ack; send R lost; pause 10; stream"),
    ("server/fin-lost", "server; wait syn; send SA; wait ack; send FA lost; pause 10; stream"),
    ("server/rst-before-syn-ack-lost", "server; wait syn; send RA seq=-1 lost; send SA; stream"),
    (
        "server/rst-lost-junk-lost",
        "server; wait syn; send SA; wait ack; send PA data=fill*5 lost; send R lost; pause 10; stream",
    ),
    (
        "server/client-junk-lost",
        "server; wait syn; send SA; wait ack; send PA data=fill*5 as=peer lost; stream",
    ),
    ("server/client-rst-lost", "server; wait syn; send SA; wait ack; send R as=peer lost; stream"),
    (
        "server/client-syn-lost",
        "server; wait syn; send SA; wait ack; send S seq=-1000 as=peer lost; stream",
    ),
    (
        "server/hello-answered-in-bytes",
        "server; stream handshake; send PA data=shello+open lost; stream",
    ),
    (
        "server/after-handshake-open-lost",
        "server; stream handshake; send PA data=open lost; stream",
    ),
];

/// Forged in an honest client's name before it connects, and in the server's name.
pub const THIRD: &[Named] = &[
    ("third/data", "third; send PA seq=0 ack=0 data=fill*20"),
    ("third/data-lost", "third; send PA seq=0 ack=0 data=fill*20 lost"),
    ("third/hello", "third; send PA seq=0 ack=0 data=decoy"),
    ("third/hello-lost", "third; send PA seq=0 ack=0 data=decoy lost"),
    ("third/server-hello-lost", "third; send PA seq=0 ack=0 data=shello+open lost"),
    ("third/ack", "third; send A seq=0 ack=0"),
    ("third/syn", "third; send S"),
    ("third/syn-lost", "third; send S lost"),
    ("third/syn-data-lost", "third; send S data=fill*100 lost"),
    ("third/syn-hello-lost", "third; send S data=decoy lost"),
    ("third/syn-and-data-lost", "third; send S lost; send PA seq=0 ack=0 data=fill*20 lost"),
    ("third/syn-and-hello-lost", "third; send S lost; send PA seq=0 ack=0 data=decoy lost"),
    ("third/two-syns-lost", "third; send S lost; send S seq=5000000 lost"),
    ("third/syn-ack", "third; send SA"),
    ("third/syn-ack-lost", "third; send SA lost"),
    ("third/rst-lost", "third; send R lost"),
    ("third/fin-lost", "third; send FA seq=0 ack=0 lost"),
    ("third/null-lost", "third; send - lost"),
    ("third/in-servers-name-lost", "third; send SA seq=-1 ack=0 as=peer lost"),
    ("third/data-in-servers-name-lost", "third; send PA seq=0 ack=0 data=fill*20 as=peer lost"),
    (
        "third/many-data-lost",
        "third; send PA seq=0 ack=0 data=fill*20 lost; send PA seq=9000000 data=fill*20 lost; send PA seq=-9000000 data=fill*20 lost",
    ),
    ("third-server/data", "third; server; send PA seq=0 ack=0 data=fill*20"),
    ("third-server/data-lost", "third; server; send PA seq=0 ack=0 data=fill*20 lost"),
    ("third-server/hello-lost", "third; server; send PA seq=0 ack=0 data=decoy lost"),
    ("third-server/syn-ack-before-lost", "third; server; send SA ack=-1000 lost"),
    ("third-server/syn-before-lost", "third; server; send S lost"),
    ("third-server/rst-before-lost", "third; server; send R lost"),
    ("third-server/fin-before-lost", "third; server; send FA seq=0 ack=0 lost"),
    (
        "third-server/syn-ack-bad-ack-lost",
        "third; server; wait syn; send SA seq=70000 ack=5000 lost",
    ),
    ("third-server/syn-lost", "third; server; wait syn; send S seq=70000 lost"),
    (
        "third-server/data-after-syn-lost",
        "third; server; wait syn; send PA seq=0 data=fill*20 lost",
    ),
    ("third-server/rst-bad-ack-lost", "third; server; wait syn; send RA seq=0 ack=70000 lost"),
];

#[cfg(test)]
mod tests {
    use super::super::script::Case;
    use super::*;

    #[test]
    fn accepts_every_line() {
        for (name, script) in ALL.iter().copied().flatten().chain(SLOW).chain(THIRD) {
            let case = script.parse::<Case>();
            assert!(case.is_ok(), "{name}: {case:?}");
        }
    }

    #[test]
    fn accepts_every_published_line() {
        let lines = PUBLISHED.lines().filter(|it| !it.starts_with('#'));
        let all: Vec<_> = lines.map(|it| it.split_once(": ").unwrap()).collect();
        assert!(all.len() > 250);
        for (name, script) in all {
            let case = script.parse::<Case>();
            assert!(case.is_ok(), "{name}: {case:?}");
        }
    }
}
