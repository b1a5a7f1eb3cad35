//! What targets and hosts come to.

use proptest::prelude::*;

use super::uri::{host_of_authority, host_of_field, normalise};

#[test]
fn accepts_targets_however_they_are_written() {
    let targets: &[(&[u8], &[u8])] = &[
        (b"/", b"/"),
        (b"/a/b.php?x=1&y=2", b"/a/b.php?x=1&y=2"),
        (b"/A%41%7e", b"/AA~"),
        // Once, not twice.
        (b"/%2541", b"/%41"),
        (b"/?%2541=%2541", b"/?%41=%41"),
        (b"/%252e%252e/", b"/%2e%2e/"),
        // What cannot be decoded.
        (b"/%", b"/%"),
        (b"/%4", b"/%4"),
        (b"/%g1%4g%%41", b"/%g1%4g%A"),
        (b"/?%&%4&%zz", b"/?%&%4&%zz"),
        (b"/%00a", b"/\0a"),
        (b"/?%00a", b"/?\0a"),
        // Only the path is Unicode, and the fragment.
        (b"/%u0041%U0042", b"/AB"),
        (b"/%u2215%uff0e%u1234", b"/.?"),
        (b"/%u004", b"/%u004"),
        (b"/%u00g1", b"/%u00g1"),
        (b"/%u", b"/%u"),
        (b"/?%u0041", b"/?%u0041"),
        (b"/#%u0041%41+", b"/#AA+"),
        (b"/#%uff21", b"/#A"),
        // Plus is plus.
        (b"/a+b?c+d", b"/a+b?c+d"),
        (b"/%2b?%2b", b"/+?+"),
        // Slashes.
        (b"/a//b///c", b"/a/b/c"),
        (b"/a\\b\\\\c", b"/a/b/c"),
        (b"/a%2fb%5cc%2F%2f", b"/a/b/c/"),
        (b"/?a//b\\c", b"/?a//b\\c"),
        (b"//host/a", b"/host/a"),
        // Dot segments.
        (b"/a/./b", b"/a/b"),
        (b"/a/../b", b"/b"),
        (b"/a/b/../../c", b"/c"),
        (b"/../../etc/passwd", b"/etc/passwd"),
        (b"/a/%2e%2e/b", b"/b"),
        (b"/a/%2e%2e%2fb", b"/b"),
        (b"/a/..\\b", b"/b"),
        (b"/a/.", b"/a"),
        (b"/a/..", b""),
        (b"/.", b""),
        (b"/a/.../b", b"/a/.../b"),
        (b"/a/..b/.c", b"/a/..b/.c"),
        (b"/?a/../b", b"/?a/../b"),
        (b"/.well-known/x", b"/.well-known/x"),
        // UTF-8, overlong or not.
        (b"/%c3%a9", b"/\xe9"),
        (b"/%c0%ae%c0%ae/%c0%afetc", b"//etc"),
        (b"/a/%c0%ae%c0%ae/b", b"/b"),
        (b"/a%e0%80%afb", b"/a/b"),
        (b"/a%f0%80%80%afb", b"/a/b"),
        (b"/%ef%bc%a1", b"/A"),
        (b"/%e1%88%b4", b"/?"),
        (b"/%f0%9f%98%80", b"/?"),
        (b"/%ff%feA", b"/??A"),
        (b"/%c3A", b"/?A"),
        (b"/%c3", b"/"),
        (b"/%e2%88", b"/"),
        (b"/%ed%a0%80A", b"/???A"),
        (b"/%f4%90A", b"/??A"),
        (b"/?%c3%a9", b"/?\xc3\xa9"),
        // Forms of targets.
        (b"http://h", b""),
        (b"http://h?q", b"?q"),
        (b"http://h/%41?%41", b"/A?A"),
        (b"http:///a", b"/a"),
        (b"http:/a", b"/a"),
        (b"x?y:z", b"z"),
        (b"a/../b", b"/b"),
        (b"./a", b"a"),
        (b"../a", b"a"),
        (b"..", b""),
        (b".", b""),
        (b"*", b"*"),
        (b"/?", b"/?"),
        (b"/#", b"/#"),
        (b"/a#b?c", b"/a#b?c"),
        (b"/a?b#c?d#e", b"/a?b#c?d#e"),
        (b"", b""),
    ];
    for &(target, expected) in targets {
        let shown = normalise(b"GET", target).uri;
        let text = |bytes: &[u8]| bytes.escape_ascii().to_string();
        assert_eq!(text(&shown), text(expected), "{}", target.escape_ascii());
    }
}

#[test]
fn accepts_hosts_of_targets() {
    for (method, target, expected) in [
        ("GET", "/", None),
        ("GET", "http://a.b/", Some("a.b")),
        ("GET", "HTTP://A.B:80", Some("a.b")),
        ("GET", "http://u:p@a.b..:80/", Some("a.b")),
        ("GET", "http://%41.b/", Some("a.b")),
        ("GET", "http://[::A]:80/", Some("[::a]")),
        ("GET", "http://[::A", Some("[::a")),
        ("GET", "http://:80/", Some("")),
        ("GET", "http://@?", Some("")),
        ("GET", "http://?", Some("")),
        ("GET", "http:///", None),
        ("GET", "http://", None),
        ("CONNECT", "A.b.:443", Some("a.b")),
        ("CONNECT", "a.b", Some("a.b")),
        ("CONNECT", "[::1]:443", Some("[::1]")),
        ("CONNECT", "[::1", None),
        ("CONNECT", "", None),
    ] {
        let host = normalise(method.as_bytes(), target.as_bytes()).host;
        assert_eq!(host, expected.map(|host| host.as_bytes().to_vec()), "{method} {target}");
    }
}

#[test]
fn accepts_hosts_of_fields() {
    for (value, field, authority) in [
        ("", None, ""),
        ("A.b", Some("a.b"), "a.b"),
        ("A.b.", Some("a.b."), "a.b."),
        ("A.b:80", Some("a.b"), "a.b"),
        ("A.b \t:x", Some("a.b"), "a.b \t"),
        (" a ", Some("a"), " a "),
        ("u:p@A:80", Some("u"), "a"),
        ("[::A]:80", Some("[::a]"), "["),
        ("[::A", None, "["),
        (":", Some(""), ""),
        ("@", Some("@"), ""),
    ] {
        let field = field.map(|host| host.as_bytes().to_vec());
        assert_eq!(host_of_field(value.as_bytes()), field, "{value}");
        assert_eq!(host_of_authority(value.as_bytes()), authority.as_bytes(), "{value}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    /// What is normalised is never longer, and stays as it is where it is plain.
    #[test]
    fn accepts_any_target(target in proptest::collection::vec(byte(), 0..60)) {
        let once = normalise(b"GET", &target);
        prop_assert!(once.uri.len() <= target.len());
        prop_assert!(once.host.is_none_or(|host| host.len() < target.len()));
        normalise(b"CONNECT", &target);
        host_of_field(&target);
        host_of_authority(&target);
    }
}

/// Bytes that targets are made of, and others.
fn byte() -> impl Strategy<Value = u8> {
    let usual = proptest::sample::select(&b"%u0cfeE2./\\:@?#[] aA"[..]);
    prop_oneof![4 => usual, 1 => any::<u8>()]
}
