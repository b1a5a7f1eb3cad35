//! Ways to carry a forbidden file past rules in a form, as in [`super::evasion_tests`].

use super::evasion_tests::Expect::{Cause, Found, Open};
use super::evasion_tests::{CLIENT, GET, SERVER, check, check_requests, deflate, gzip, ok, zlib};
use crate::uninspected::Uninspected::UnknownCoding;

#[test]
fn forms() {
    let form = |kind: &str, body: &str| {
        let length = body.len();
        format!("POST / HTTP/1.1\r\nHost: h\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n\r\n{body}").into_bytes()
    };
    let part = |fields: &str, body: &str| format!("--xyz\r\n{fields}\r\n\r\n{body}\r\n--xyz--\r\n");
    let name = "Content-Disposition: form-data; name=\"a\"; filename=\"b\"";
    let field = "Content-Disposition: form-data; name=\"a\"";
    let multipart = "multipart/form-data; boundary=xyz";
    let file = part(name, "EVIL");
    check_requests(
        "flow:to_server; file.data; content:\"EVIL\"; startswith;",
        vec![
            ("plain", form(multipart, &file), Found),
            ("quoted", form("multipart/form-data; boundary=\"xyz\"", &file), Found),
            ("case", form("Multipart/Form-Data; BOUNDARY=xyz", &file), Found),
            ("no end", form(multipart, &file.replace("--xyz--\r\n", "")), Found),
            ("LF", form(multipart, &file.replace("\r\n", "\n")), Found),
            ("preamble", form(multipart, &format!("a preamble\r\n{file}")), Found),
            (
                "coded name",
                form(multipart, &part(&name.replace("filename=", "filename*=utf-8''"), "EVIL")),
                Found,
            ),
        ],
    );
    // Where forms lie, all of them is a file.
    check_requests(
        "flow:to_server; file.data; content:\"EVIL\";",
        vec![
            ("another boundary", form("multipart/form-data; boundary=abc", &file), Found),
            (
                "two boundaries",
                form("multipart/form-data; boundary=abc; boundary=xyz", &file),
                Found,
            ),
            (
                "two types",
                form(
                    "multipart/form-data; boundary=abc\r\nContent-Type: multipart/form-data; boundary=xyz",
                    &file,
                ),
                Found,
            ),
            (
                "coded boundary",
                form(
                    &format!("{multipart}; boundary*=utf-8''abc"),
                    &format!("{}{}", part(field, "x"), file.replace("xyz", "abc")),
                ),
                Found,
            ),
            (
                "coded boundary in a part",
                form(
                    &format!("{multipart}; boundary*=utf-8''abc"),
                    &part(field, &file.replace("xyz", "abc")),
                ),
                Found,
            ),
            (
                "boundary within another name",
                form(
                    "multipart/form-data; xboundary=abc; boundary=xyz",
                    &part(field, &file.replace("xyz", "abc")),
                ),
                Found,
            ),
            (
                "escape in a boundary",
                form(
                    "multipart/form-data; boundary=\"x\\yz\"",
                    &part(field, "inner").replace("xyz", "x\\yz").replace("inner", &file),
                ),
                Found,
            ),
            (
                "in front of all parts",
                form(multipart, &format!("EVIL\r\n{}", part(name, "x"))),
                Found,
            ),
            ("behind all parts", form(multipart, &format!("{}EVIL", part(name, "x"))), Found),
            ("no boundary", form("multipart/form-data", &file), Found),
            ("another type", form("text/plain", &file), Found),
            ("mixed", form("multipart/mixed; boundary=xyz", &file), Found),
            ("two names", form(multipart, &part(&format!("{name}; filename=c"), "EVIL")), Found),
            (
                "folded",
                form(multipart, &part(&name.replace("; filename", ";\r\n filename"), "EVIL")),
                Found,
            ),
            (
                "coded transfer",
                form(
                    multipart,
                    &part(&format!("{name}\r\nContent-Transfer-Encoding: base64"), "RVZJTA=="),
                ),
                Cause(UnknownCoding),
            ),
            (
                "coded transfer of a field",
                form(
                    multipart,
                    &part(
                        &format!("{field}\r\nContent-Transfer-Encoding: quoted-printable"),
                        "E=56IL",
                    ),
                ),
                Cause(UnknownCoding),
            ),
            (
                "coding of a transfer that is none",
                form(
                    multipart,
                    &part(&format!("{field}\r\nContent-Transfer-Encoding: 8bit"), "EVIL"),
                ),
                Open("a field of a form is no file"),
            ),
            (
                "form in a form",
                form(
                    multipart,
                    &part(
                        "Content-Disposition: form-data; name=\"a\"\r\nContent-Type: multipart/mixed; boundary=abc",
                        "--abc\r\nContent-Disposition: file; filename=\"b\"\r\n\r\nEVIL\r\n--abc--",
                    ),
                ),
                Found,
            ),
            (
                "type of files without a name",
                form(
                    multipart,
                    &part(
                        "Content-Disposition: form-data; name=\"a\"\r\nContent-Type: application/octet-stream",
                        "EVIL",
                    ),
                ),
                Found,
            ),
            (
                "field",
                form(multipart, &part("Content-Disposition: form-data; name=\"a\"", "EVIL")),
                Open("a field of a form is no file"),
            ),
        ],
    );
}

/// Servers that know no coding of requests read what was sent.
#[test]
fn coded_forms() {
    let form = |coding: &str, body: &[u8]| {
        let length = body.len();
        let head = format!(
            "POST / HTTP/1.1\r\nHost: h\r\nContent-Type: multipart/form-data; boundary=xyz\r\n\
             Content-Encoding: {coding}\r\nContent-Length: {length}\r\n\r\n"
        );
        [head.as_bytes(), body].concat()
    };
    let part = |name: &str| {
        // As long as it takes for an encoder not to store it.
        let content = ["EVIL", &"abcdefgh".repeat(50)].concat();
        format!("--xyz\r\nContent-Disposition: form-data; {name}\r\n\r\n{content}\r\n--xyz--\r\n")
            .into_bytes()
    };
    let (file, field) = (part("name=a; filename=b"), part("name=a"));
    let coded = [gzip(&field), deflate(&field)];
    assert!(coded.iter().all(|it| !it.windows(4).any(|it| it == b"EVIL")));
    check_requests(
        "flow:to_server; file.data; content:\"EVIL\"; startswith;",
        vec![
            ("none", form("none", &file), Found),
            ("identity twice", form("identity, identity", &file), Found),
            ("identity and nothing", form("identity,", &file), Found),
            ("unknown", form("x", &file), Found),
            ("gzip", form("gzip", &gzip(&file)), Found),
            ("gzip, not coded", form("gzip", &file), Found),
            ("zlib", form("deflate", &zlib(&file)), Found),
            ("raw deflate", form("deflate", &deflate(&file)), Found),
            ("behind a body that is over", form("br", &[b"\x06\r\n", &file[..]].concat()), Found),
        ],
    );
    let no_file = "a field of a form is no file";
    check_requests(
        "flow:to_server; file.data; content:\"EVIL\";",
        vec![
            ("none, a field", form("none", &field), Open(no_file)),
            ("raw deflate, a field", form("deflate", &deflate(&field)), Open(no_file)),
            ("gzip, a field", form("gzip", &gzip(&field)), Open(no_file)),
        ],
    );
}

/// What is to be said of a whole body can be said of one whose coding is none.
#[test]
fn bodies_of_which_something_is_missing() {
    let rows = |coding: &str, body: &[u8]| {
        let fields = format!("Content-Encoding: {coding}\r\nContent-Length: {}\r\n", body.len());
        vec![(CLIENT, GET.into()), (SERVER, ok(&fields, body))]
    };
    check(
        "flow:to_client; file.data; content:!\"good\"; content:\"EVIL\"; endswith;",
        vec![
            ("none", rows("none", b"an EVIL"), Found),
            ("identity", rows("identity, identity", b"an EVIL"), Found),
            ("gzip", rows("gzip", &gzip(b"an EVIL")), Found),
            ("good", rows("none", b"a good EVIL"), Open("it is there")),
            ("good gzip", rows("gzip", &gzip(b"a good EVIL")), Open("it is there")),
            ("more", rows("identity,", b"an EVIL deed"), Open("it is not at the end")),
        ],
    );
}
