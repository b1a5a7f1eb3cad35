//! Rules, and what of a stream or a body is at hand when they are asked.

use super::rule_tests::{CLIENT, GET, Run, SERVER, found, http};
use crate::event::Side;

/// A stream has no end to wait for: what must not be there is asked of what has come.
#[test]
fn accepts_streams_without_what_must_not_be_there() {
    let rules = "alert tcp any any -> any any (content:\"evil\"; content:!\"good\"; sid:1;)\n\
        alert tcp-stream any any -> any any (content:\"evil\"; content:!\"good\"; sid:2;)\n\
        alert tcp any any -> any any (flow:only_stream; content:\"evil\"; pcre:!\"/go+d/\"; sid:3;)\n\
        alert tcp-stream any any -> any any (content:\"evil\"; pcre:\"/\\bevil\\b/\"; sid:4;)\n\
        alert tcp-stream any any -> any any (content:\"evil\"; endswith; sid:5;)\n\
        alert tcp-stream any any -> any any (content:\"evil\"; isdataat:!3,relative; sid:6;)\n";
    let found = |parts: &[&[u8]]| {
        let mut run = Run::new(rules);
        let parts: Vec<(Side, &[u8])> = parts.iter().map(|part| (CLIENT, *part)).collect();
        run.connection(&parts, usize::MAX);
        run.found
    };
    let far = [&[b'.'; 100_000][..], b" "].concat();
    assert_eq!(found(&[b"so ev", b"il, "]), [1, 2, 3, 4, 6]);
    assert_eq!(found(&[b"so ev", b"il"]), [1, 2, 3, 4, 5, 6]);
    assert_eq!(found(&[b"good, ", b"so ev", b"ilxxxx"]), [0; 0]);
    assert_eq!(found(&[b"good", &far, b"so ev", b"il, xx"]), [1, 2, 3, 4]);
}

#[test]
fn accepts_what_the_stream_of_a_request_must_not_have() {
    let rules = http(&["http.uri; content:\"evil\"; pkt_data; content:!\"Referer|3a|\";"]);
    let with = b"GET /evil HTTP/1.1\r\nReferer: x\r\n\r\n";
    assert_eq!(found(&rules, &[(CLIENT, b"GET /ev"), (CLIENT, b"il HTTP/1.1\r\n\r\n")]), [1]);
    assert_eq!(found(&rules, &[(CLIENT, with)]), [0; 0]);
}

/// Bytes in front of what rules look for must not keep them from it.
#[test]
fn accepts_what_needs_a_whole_body_behind_many_bytes() {
    let rules = http(&[
        "file.data; content:\"EVIL\"; content:!\"good\";",
        "file.data; url_decode; content:\"<script\";",
        "file.data; content:\"EVIL\"; pcre:\"/\\bEVIL\\b/\";",
        "file.data; to_lowercase; content:\"evil %3c\";",
        "file.data; content:\"EVIL\"; content:!\"script\";",
    ]);
    for before in [0, 65_000, 70_000, 200_000] {
        let body = [&vec![b'.'; before][..], b" EVIL %3cscript ", &[b'.'; 40_000]].concat();
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
        let response = [head.as_bytes(), &body].concat();
        let mut run = Run::new(&rules);
        for chunk in [usize::MAX, 1000] {
            run.connection(&[(CLIENT, GET), (SERVER, &response)], chunk);
            run.found.sort_unstable();
            assert_eq!(core::mem::take(&mut run.found), [1, 2, 3, 4], "{before} {chunk}");
        }
        assert_eq!(run.over_cap, 0);
    }
}

/// A rule that waits costs what comes, not all that is at hand, each time.
#[test]
fn accepts_rules_that_wait_on_a_long_connection() {
    let rules: String = (0..10)
        .map(|nth| {
            format!("alert tcp any any -> any any (content:\"User-Agent|3a 20|\"; fast_pattern; content:\"tool{nth}\"; sid:{};)\n", nth + 1)
        })
        .collect();
    let request = format!("GET /{} HTTP/1.1\r\nUser-Agent: x\r\n\r\n", "a".repeat(460));
    let mut run = Run::new(&rules);
    let mut parts = vec![(CLIENT, request.as_bytes()); 400];
    // Cut in two, as is the one of the last rule.
    parts.extend([(CLIENT, &b"to"[..]), (CLIENT, b"ol3"), (CLIENT, b"tool9")]);
    run.connection(&parts, usize::MAX);
    assert_eq!((run.found, run.over_cap), (vec![4, 10], 0));
}

#[test]
fn accepts_what_comes_behind_what_has_come() {
    let rules = "alert tcp-stream any any -> any any (content:\"User=\"; content:\"root\"; within:4; sid:1;)\n\
        alert tcp any any -> any any (content:\"User=\"; pcre:\"/^ro+t/R\"; sid:2;)\n\
        alert tcp-stream any any -> any any (content:\"User=\"; content:!\"root\"; within:4; sid:3;)\n";
    let mut run = Run::new(rules);
    run.connection(&[(CLIENT, b"User="), (CLIENT, b"root")], usize::MAX);
    // As Suricata, of a stream it takes what has not come for what is not there.
    assert_eq!(core::mem::take(&mut run.found), [3, 1, 2]);
}

/// What is forbidden within so many bytes is asked once these are at hand, or once none follow.
#[test]
fn accepts_bounds_at_the_end_of_what_is_at_hand() {
    let rules = http(&[
        "file.data; content:\"User=\"; content:!\"root\"; within:4;",
        "file.data; content:\"User=\"; pcre:!\"/^ro{2}t/R\";",
        "file.data; content:\"User=\"; content:!\"here\"; depth:65535;",
    ]);
    let found_of = |before: usize, behind: &[u8]| {
        let body = [&vec![b'.'; before][..], b"User=", behind].concat();
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
        let mut run = Run::new(&rules);
        // Pieces that end where the window does.
        let parts = [(CLIENT, GET), (SERVER, head.as_bytes()), (SERVER, &body[..])];
        run.connection(&parts, 1 << 14);
        run.found.sort_unstable();
        run.found
    };
    let far = [b'.'; 70_000];
    // Of the third, the start is no longer at hand in the last case.
    for (before, third) in [(100, &[3][..]), (65_531, &[3]), (98_299, &[])] {
        assert_eq!(found_of(before, &[b"root", &far[..]].concat()), third, "{before}");
        let all = [&[1, 2], third].concat();
        assert_eq!(found_of(before, &[b"user", &far[..]].concat()), all, "{before}");
        assert_eq!(found_of(before, b"us"), all, "{before}");
    }
    let rules = http(&[
        "http.method; content:\"POST\"; pkt_data; isdataat:300;",
        "http.method; content:\"POST\"; pkt_data; content:!\"token=\"; depth:300;",
    ]);
    let head = "POST / HTTP/1.1\r\nContent-Length: 400\r\n\r\n";
    assert_eq!(found(&rules, &[(CLIENT, head.as_bytes()), (CLIENT, &[b'.'; 400])]), [1, 2]);
}

#[test]
fn accepts_the_end_of_a_long_file_in_a_form() {
    let file = [&[b'.'; 100_000][..], b"evil"].concat();
    let start = b"--xyz\r\nContent-Disposition: form-data; name=a; filename=b\r\n\r\n";
    let body = [&start[..], &file, b"\r\n--xyz--\r\n"].concat();
    let head = format!(
        "POST / HTTP/1.1\r\nContent-Type: multipart/form-data; boundary=xyz\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    let rules = http(&["file.data; content:\"evil\"; endswith;"]);
    let mut run = Run::new(&rules);
    run.connection(&[(CLIENT, &[head.as_bytes(), &body].concat())], 16 << 10);
    assert_eq!(run.found, [1]);
}

/// What must not be at the start was at the start, also where that is no longer at hand.
#[test]
fn refuses_to_forget_what_was_at_the_start() {
    let bodies = http(&[
        "file.data; content:!\"MZ\"; depth:2; content:\"evil\";",
        "file.data; pcre:!\"/^MZ/\"; content:\"evil\";",
        "file.data; content:\"evil\"; endswith;",
        "file.data; content:\"evil\"; isdataat:!1,relative;",
        "file.data; content:\"evil\"; bsize:<100000;",
    ]);
    let body = [b"MZ", &[b'.'; 98_298][..], b"evil", &[b'.'; 100_000]].concat();
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
    let response = [head.as_bytes(), &body].concat();
    let found_of = |chunk| {
        let mut run = Run::new(&bodies);
        run.connection(&[(CLIENT, GET), (SERVER, &response)], chunk);
        run.found
    };
    assert_eq!((found_of(usize::MAX), found_of(1000)), (vec![], vec![]));
    let stream = "alert tcp-stream any any -> any any (content:!\"SSH-\"; depth:4; content:\"evil\"; sid:1;)\n";
    let long = [b"SSH-", &[b'.'; 100_000][..], b"evil"].concat();
    assert_eq!(found(stream, &[(CLIENT, &long)]), [0; 0]);
    // A request with the field, and a long body.
    let fields = http(&["http.uri; content:\"/upload\"; pkt_data; content:!\"Referer|3a|\";"]);
    let head = "POST /upload HTTP/1.1\r\nReferer: x\r\nContent-Length: 100000\r\n\r\n";
    let request = [head.as_bytes(), &[b'.'; 100_000]].concat();
    let mut run = Run::new(&fields);
    // As large as a record may be.
    run.connection(&[(CLIENT, &request)], 16 << 10);
    // Trailers ask rules once more.
    let head = "POST /upload HTTP/1.1\r\nReferer: x\r\nTransfer-Encoding: chunked\r\n\r\n186a0\r\n";
    let end = b"\r\n0\r\nX-More: 1\r\n\r\n";
    let request = [head.as_bytes(), &[b'.'; 100_000], end].concat();
    run.connection(&[(CLIENT, &request)], 16 << 10);
    assert_eq!(run.found, [0; 0]);
}
