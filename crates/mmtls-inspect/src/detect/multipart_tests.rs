//! What bodies come to, however they are cut.

use proptest::prelude::*;

use super::multipart::{Multipart, Part};
use super::part_head::boundary_of;

/// The parts as text, neighbouring bytes joined.
fn run(boundary: &str, body: &[u8], most: usize) -> Vec<String> {
    let mut log: Vec<String> = Vec::new();
    let mut sink = |part: Part<'_>| {
        let text = |it: Option<&[u8]>| it.map_or("-".into(), |it| it.escape_ascii().to_string());
        match part {
            Part::Begin { name, filename, may_be_file, .. } => {
                // What has no name and is a file all the same.
                let mark = if may_be_file && filename.is_none() { "*" } else { "" };
                log.push(format!("{} {}{mark}", text(name), text(filename)));
                log.push(String::new());
            }
            Part::Data(bytes) => {
                assert!(!bytes.is_empty());
                let last = log.iter_mut().rev().find(|it| *it != "fault").unwrap();
                *last += &text(Some(bytes));
            }
            Part::End => log.push("end".into()),
            Part::Fault => log.push("fault".into()),
        }
    };
    let mut parts = Multipart::new(boundary.as_bytes());
    for piece in body.chunks(most) {
        parts.data(piece, &mut sink);
    }
    parts.end(&mut sink);
    parts.end(&mut sink);
    log
}

fn observe(body: &str) -> Vec<String> {
    let whole = run("b", body.as_bytes(), usize::MAX);
    for most in [1, 2, 3, 7] {
        assert_eq!(run("b", body.as_bytes(), most), whole, "pieces of {most}");
    }
    whole
}

const HEAD: &str = "--b\r\nContent-Disposition: form-data; name=\"n\"; filename=\"f\"\r\n\r\n";

#[test]
fn accepts_parts() {
    let body = format!(
        "\r\n--b \t\r\ncontent-disposition: form-data;name=n\r\nX: y\r\n\r\nvalue\r\n{HEAD}\r\n--a\r\n--\r\n\
         \r--c\n-\r\r\n\r\n{HEAD}\r\n--b--\r\n \t\n"
    );
    let data = "\\r\\n--a\\r\\n--\\r\\n\\r--c\\n-\\r\\r\\n";
    let expected = ["n -", "value", "end", "n f", data, "end", "n f", "", "end"];
    assert_eq!(observe(&body), expected);
    // The line end of an empty head is that of the delimiter too.
    assert_eq!(observe(&format!("{HEAD}--b--")), ["n f", "", "end"]);
    assert_eq!(observe(&format!("{HEAD}x\r\n--b--\r\n")), ["n f", "x", "end"]);
    assert_eq!(observe("--b--"), [""; 0]);
}

#[test]
fn refuses_what_servers_may_read_differently() {
    for (body, expected) in [
        // No delimiter, or not the last one.
        (String::new(), &["fault"][..]),
        ("x".into(), &["fault"]),
        (format!("{HEAD}x"), &["n f", "x", "fault", "end"]),
        (format!("{HEAD}x\r\n--b"), &["n f", "x\\r\\n--b", "fault", "end"]),
        (format!("{HEAD}x\r\n--b-"), &["n f", "x\\r\\n--b-", "fault", "end"]),
        (format!("{HEAD}x\r\n-"), &["n f", "x\\r\\n-", "fault", "end"]),
        (format!("{HEAD}x\r"), &["n f", "x\\r", "fault", "end"]),
        (format!("{HEAD}x\r\n--b\r\n"), &["n f", "x", "end", "fault", "- -", "", "end"]),
        ("--b\r\nX: y\r\n".into(), &["fault", "- -", "X: y\\r\\n", "end"]),
        // Line ends.
        (format!("{HEAD}x\n--b--"), &["n f", "x", "fault", "end"]),
        (format!("{HEAD}x\r\n--b\n\r\n\r\n--b--"), &["n f", "x", "fault", "end", "- -", "", "end"]),
        (
            "--b\r\nContent-Disposition: form-data\n\r\nx\r\n--b--".into(),
            &["fault", "- -", "x", "end"],
        ),
        (
            "--b\r\nContent-Disposition: form-data\r\n\nx\r\n--b--".into(),
            &["fault", "- -", "x", "end"],
        ),
        // What starts like a delimiter.
        (format!("{HEAD}x\r\n--bc\r\n--b--"), &["n f", "x\\r\\n--bc", "fault", "end"]),
        (format!("{HEAD}x\r\n--b c\r\n--b--"), &["n f", "x\\r\\n--b c", "fault", "end"]),
        (format!("{HEAD}x\r\n--b\rc\r\n--b--"), &["n f", "x\\r\\n--b\\rc", "fault", "end"]),
        (format!("{HEAD}x\r\n--b-c\r\n--b--"), &["n f", "x\\r\\n--b-c", "fault", "end"]),
        // In front of the first delimiter.
        (format!("x\r\n{HEAD}x\r\n--b--"), &["fault", "n f", "x", "end"]),
        (format!("-\r\n{HEAD}x\r\n--b--"), &["fault", "n f", "x", "end"]),
        (format!("\r\n \0\r\n{HEAD}x\r\n--b--"), &["fault", "n f", "x", "end"]),
        // Behind the last delimiter.
        (format!("{HEAD}x\r\n--b--\r\ny"), &["n f", "x", "end", "fault"]),
        (format!("{HEAD}x\r\n--b--\r\n\r\n-"), &["n f", "x", "end", "fault"]),
        (format!("{HEAD}x\r\n--b-- y"), &["n f", "x", "end", "fault"]),
        (format!("{HEAD}x\r\n--b--c\r\n"), &["n f", "x", "end", "fault"]),
        (format!("{HEAD}x\r\n--b--\r\n{HEAD}y\r\n--b--"), &["n f", "x", "end", "fault"]),
        // Heads.
        ("--b\r\n\r\nx\r\n--b--".into(), &["fault", "- -", "x", "end"]),
        (
            format!("--b\r\nX: y\r\n{HEAD}x\r\n--b--"),
            &["fault", "- -", "", "end", "n f", "x", "end"],
        ),
        ("--b\r\nX: y\r\n--b--\r\nz".into(), &["fault", "- -", "", "end"]),
    ] {
        let shown = observe(&body);
        // Where exactly the fault is said does not matter.
        let rest =
            |log: Vec<String>| log.into_iter().filter(|it| it != "fault").collect::<Vec<_>>();
        assert!(shown.contains(&"fault".into()), "{body:?}");
        assert_eq!(rest(shown), rest(expected.iter().map(|&it| it.into()).collect()), "{body:?}");
    }
}

#[test]
fn refuses_large_heads_and_paddings() {
    let long = "x".repeat(9000);
    let body = format!("--b\r\nX: {long}\r\n\r\ny\r\n--b--");
    assert_eq!(observe(&body), ["fault", "- -", &format!("X: {long}\\r\\n\\r\\ny"), "end"]);
    let lines = "X: y\r\n".repeat(3000);
    let body = format!("--b\r\n{lines}\r\n--b--");
    assert_eq!(observe(&body), ["fault", "- -", &lines.escape_default().to_string(), "end"]);
    let blanks = " ".repeat(9000);
    let body = format!("{HEAD}\r\n--b{blanks}\r\n--b--");
    assert_eq!(observe(&body), ["n f", &format!("\\r\\n--b{blanks}"), "fault", "end"]);
}

#[test]
fn accepts_names_of_parts() {
    for (head, expected, faulty) in [
        ("Content-Disposition: form-data; name=\"a b\"", "a b -", false),
        ("CONTENT-DISPOSITION:form-data;NAME=a;FileName=c.txt", "a c.txt", false),
        ("Content-Disposition: form-data; name=a; filename=\"\"", "a ", false),
        ("Content-Disposition: form-data;\r\n name=a;\r\n\tfilename=c", "a c", false),
        ("Content-Disposition: form-data; x=y; name=\"a;b=c\" ; filename=\"d\"", "a;b=c d", false),
        (
            r#"Content-Disposition: form-data; name="a\"b\\c"; filename="C:\x\y""#,
            r#"a\"b\\c C:\\x\\y"#,
            false,
        ),
        ("Content-Disposition: form-data; name=a;;", "a -", false),
        ("X-Y: z\r\nContent-Type: text/plain\r\nContent-Disposition: form-data", "- -", false),
        ("Content-Disposition: form-data\r\nContent-Transfer-Encoding: Binary", "- -", false),
        ("Content-Disposition: form-data\r\nContent-Transfer-Encoding: base64", "- -", true),
        (
            "Content-Disposition: form-data\r\nContent-Type: Multipart/mixed; boundary=x",
            "- -*",
            true,
        ),
        ("Content-Disposition: form-data; name=a; name=b", "a -", true),
        (
            "Content-Disposition: form-data; filename=a\r\nContent-Disposition: form-data; filename=b",
            "- a",
            true,
        ),
        ("Content-Disposition: form-data; filename=a; filename*=UTF-8''b", "- a", true),
        ("Content-Disposition: form-data; filename*=UTF-8''b", "- UTF-8\\'\\'b", true),
        ("Content-Disposition: form-data; filename=\"a", "- a", true),
        ("Content-Disposition: form-data; filename=\"a\"b", "- a", true),
        ("Content-Disposition: form-data; filename=a b", "- a b", true),
        ("Content-Disposition: form-data; filename", "- ", true),
        ("Content-Disposition: attachment; filename=a", "- a", true),
        ("Content-Disposition: form-data; name=a\r\nContent-Type: text/plain", "a -", false),
        (
            "Content-Disposition: form-data; name=a\r\ncontent-type:Text/Plain ; charset=x",
            "a -",
            false,
        ),
        (
            "Content-Type: application/octet-stream\r\nContent-Disposition: form-data; name=a",
            "a -*",
            false,
        ),
        ("Content-Disposition: form-data; name=a\r\nContent-Type: image/png", "a -*", false),
        ("Content-Disposition: form-data; name=a\r\nContent-Type:", "a -*", false),
        (
            "Content-Type: text/plain\r\nContent-Type: x/y\r\nContent-Disposition: form-data; name=a",
            "a -*",
            false,
        ),
        (
            "Content-Disposition: form-data; name=a\r\nContent-Type: multipart/mixed; boundary=c",
            "a -*",
            true,
        ),
        ("Content-Disposition : form-data; filename=a", "- a", true),
        ("Content-Disposition", "- -", true),
        ("X: y", "- -", true),
    ] {
        let shown = observe(&format!("--b\r\n{head}\r\n\r\nx\r\n--b--"));
        assert_eq!(shown.contains(&"fault".into()), faulty, "{head}");
        assert!(
            shown.ends_with(&[expected.into(), "x".into(), "end".into()]),
            "{shown:?} of {head}"
        );
    }
}

/// Whether the first part may be coded.
fn is_coded(body: &str) -> bool {
    let mut is_coded = None;
    Multipart::new(b"b").data(body.as_bytes(), &mut |part| {
        if let Part::Begin { may_be_coded, .. } = part {
            is_coded = is_coded.or(Some(may_be_coded));
        }
    });
    is_coded.unwrap_or_default()
}

#[test]
fn accepts_and_refuses_transfer_codings() {
    let named =
        |field: &str| is_coded(&format!("{}{field}\r\n\r\n", HEAD.trim_end_matches("\r\n\r\n")));
    for (field, expected) in [
        ("", false),
        ("\r\nContent-Transfer-Encoding: binary", false),
        ("\r\ncontent-transfer-encoding:8BIT ", false),
        ("\r\nContent-Transfer-Encoding: identity", false),
        ("\r\nContent-Transfer-Encoding:", false),
        ("\r\nContent-Encoding: base64", false),
        ("\r\nContent-Transfer-Encoding: base64", true),
        ("\r\nContent-Transfer-Encoding :\r\n Quoted-Printable", true),
        ("\r\nContent-Transfer-Encoding: 8bit\r\nContent-Transfer-Encoding: base64", true),
        ("\r\nContent-Transfer-Encoding: binary, base64", true),
        (&format!("\r\nX: {}", "x".repeat(8000)), false),
        // What is behind that is not read.
        (&format!("\r\nX: {}", "x".repeat(9000)), true),
    ] {
        assert_eq!(named(field), expected, "{field}");
    }
}

#[test]
fn accepts_boundaries() {
    let long = |len| format!("multipart/form-data; boundary={}", "x".repeat(len));
    for (text, expected) in [
        ("multipart/form-data; boundary=abc", Some("abc")),
        ("Multipart/Form-Data ; charset=utf-8;Boundary=\"a b,c\"", Some("a b,c")),
        ("multipart/form-data;boundary=----=_Part:/1;", Some("----=_Part:/1")),
        ("multipart/form-data; boundary=a; boundary=a", Some("a")),
        ("multipart/form-data; boundary=a; boundary=b", None),
        ("multipart/form-data; boundary=a, multipart/form-data; boundary=b", None),
        ("multipart/form-data; boundary=a b", None),
        ("multipart/form-data; boundary=\"a \"", None),
        ("multipart/form-data; boundary=\"a", None),
        ("multipart/form-data; boundary=\"a\"b", None),
        ("multipart/form-data; boundary=a\"b", None),
        ("multipart/form-data; boundary=\"\"", None),
        ("multipart/form-data; boundary=", None),
        ("multipart/form-data; boundary", None),
        ("multipart/form-data; boundary=\"a\x01\"", None),
        // What honest clients send.
        (
            "multipart/form-data; boundary=----WebKitFormBoundaryAbC1",
            Some("----WebKitFormBoundaryAbC1"),
        ),
        (
            "multipart/form-data; boundary=----geckoformboundary1f;charset=UTF-8",
            Some("----geckoformboundary1f"),
        ),
        ("multipart/form-data; boundary=\"a'()+_,-./:=?b\"", Some("a'()+_,-./:=?b")),
        // Another one for some servers.
        ("multipart/form-data; boundary=a; boundary*=utf-8''b", None),
        ("multipart/form-data; boundary*0=b; boundary=a", None),
        ("multipart/form-data; xBoundary=b; boundary=a", None),
        ("multipart/form-data; x=\"boundary=b\"; boundary=a", None),
        ("multipart/form-data; x=\"a\" boundary=b; boundary=a", None),
        ("multipart/form-data; Boundary=xboundary=b", None),
        ("multipart/form-data; boundary=\"a\\/b\"", None),
        ("multipart/form-data; boundary=\"a\\\"b\"", None),
        ("multipart/form-data; boundary=\"a\u{e9}\"", None),
        ("multipart/form-data; boundary= \"a\"", None),
        ("multipart/form-data; boundary =a", None),
        ("multipart/form-data; boundary=a ; x=y", None),
        ("multipart/form-data", None),
        ("multipart/mixed; boundary=a", None),
        ("text/plain; boundary=a", None),
        ("", None),
        (&long(199), long(199).split_once('=').map(|(_, it)| it)),
        (&long(200), None),
    ] {
        let expected = expected.map(|it| it.as_bytes().to_vec());
        assert_eq!(boundary_of(text.as_bytes()), expected, "{text}");
    }
}

fn piece() -> impl Strategy<Value = Vec<u8>> {
    const USUAL: &[&str] = &[
        "--b",
        "--b\r\n",
        "--b--",
        "\r\n",
        "\r\n--b\r\n",
        "\r\n--b",
        "\n",
        "\r",
        "-",
        " ",
        "x",
        "\r\n\r\n",
        "Content-Disposition: form-data; name=n",
        HEAD,
    ];
    prop_oneof![
        4 => proptest::sample::select(USUAL).prop_map(|text| text.as_bytes().to_vec()),
        1 => proptest::collection::vec(any::<u8>(), 0..9),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// However a body is cut, the parts are the same.
    #[test]
    fn accepts_any_cut(pieces in proptest::collection::vec(piece(), 0..20), most in 1usize..40) {
        let body = pieces.concat();
        prop_assert_eq!(run("b", &body, usize::MAX), run("b", &body, most));
    }

    /// Any bytes that hold no delimiter come back as they are.
    #[test]
    fn accepts_any_content(pieces in proptest::collection::vec(piece(), 0..20), most in 1usize..40) {
        let content = pieces.concat();
        let boundary = "not in the content";
        let head = HEAD.replace("--b", &format!("--{boundary}"));
        let body = [head.as_bytes(), &content, format!("\r\n--{boundary}--").as_bytes()].concat();
        let shown = content.escape_ascii().to_string();
        prop_assert_eq!(run(boundary, &body, most), ["n f", &shown, "end"]);
    }

    #[test]
    fn refuses_to_panic_on_fields(text in proptest::collection::vec(any::<u8>(), 0..60)) {
        boundary_of(&text);
        boundary_of(&[b"multipart/form-data;", &text[..]].concat());
        let body = [b"--b\r\nContent-Disposition:form-data;", &text[..], b"\r\n\r\n"].concat();
        run("b", &body, 5);
    }
}
