//! The testbed itself: real servers, real clients, and nothing left behind.

use std::path::Path;
use std::time::Duration;

use mmtls_testkit::{
    Capture, KeyType, Middle, Nginx, NginxOptions, NginxSplit, OpensslServer, Options, Proxy,
    ProxyKind, ProxyOptions, SplitOptions, Testbed, address, files, machine_cpu, require_program,
    require_testbed, skip_unless, sweep,
};

const LIMIT: Duration = Duration::from_secs(20);

fn fetch(bed: &Testbed, resolve: [String; 2], path: &str, more: &[&str]) -> Vec<u8> {
    let mut curl = bed.client.command("curl");
    curl.arg("--cacert").arg(&bed.pki().ca).args(resolve);
    curl.args(["-sS", "--fail", "--max-time", "15"]).args(more);
    curl.arg(format!("https://{}{path}", address::SERVER_NAME));
    let done = bed.run("curl", curl, LIMIT).unwrap();
    assert!(done.status.success(), "{}", done.stderr);
    done.stdout
}

#[test]
fn accepts_curl_over_both_address_families() {
    if !require_testbed() || !require_program("nginx") || !require_program("curl") {
        return;
    }
    let bed = Testbed::new(Middle::KernelBridge).unwrap();
    let server = Nginx::start(&bed, NginxOptions::default()).unwrap();
    files::pattern(&server.root().join("a.txt"), 300_000, 1).unwrap();
    let expected = files::pattern_bytes(300_000, 1);
    assert!(fetch(&bed, bed.resolve_args(), "/a.txt", &[]) == expected);
    if bed.has_ipv6() {
        assert!(fetch(&bed, bed.resolve_args_v6(), "/a.txt", &["--tls-max", "1.2"]) == expected);
    }
}

#[test]
fn accepts_chosen_suites_keys_and_http2() {
    if !require_testbed() || !require_program("nginx") || !require_program("h2load") {
        return;
    }
    let bed = Testbed::with_options(&Options {
        middle: Middle::KernelBridge,
        mtu: Some(1400),
        gso: false,
        rps: false,
        line: false,
    })
    .unwrap();
    let mut server = Nginx::start(
        &bed,
        NginxOptions {
            ciphersuites: "TLS_CHACHA20_POLY1305_SHA256".to_owned(),
            protocols: "TLSv1.3".to_owned(),
            key_type: KeyType::Rsa,
            http2: true,
            resumption: false,
            ..NginxOptions::default()
        },
    )
    .unwrap();
    files::pattern(&server.root().join("b.txt"), 10_000, 2).unwrap();
    let before = machine_cpu();
    let mut h2load = bed.client.command("h2load");
    // The kernel counts a process's time in ticks of 4 to 10 ms and may sample it: few requests can
    // end without one. These take nginx some hundred milliseconds.
    h2load.args(["-n", "20000", "-c", "4", "-m", "10"]);
    h2load.arg(format!("https://{}/b.txt", address::SERVER_V4));
    let text = bed.run("h2load", h2load, LIMIT).unwrap().text();
    assert!(text.contains("20000 succeeded, 0 failed"), "{text}");
    assert!(text.contains("TLS_CHACHA20_POLY1305_SHA256"), "{text}");
    assert!(text.contains("h2"), "{text}");
    let own = server.process.cpu_seconds();
    assert!(own > 0.0, "nginx's workers are counted");
    assert!(machine_cpu() - before >= 0.0);
    assert!(server.process.resident_bytes() > 1_000_000);
    server.process.stop();
    assert!(server.process.cpu_seconds() >= own);
}

#[test]
fn accepts_a_split_proxy() {
    if !require_testbed() || !require_program("nginx") || !require_program("curl") {
        return;
    }
    let bed = Testbed::new(Middle::Routed).unwrap();
    let server = Nginx::start(&bed, NginxOptions::default()).unwrap();
    let mut proxy = NginxSplit::start(&bed, SplitOptions::default()).unwrap();
    files::pattern(&server.root().join("c.txt"), 1_000_000, 3).unwrap();
    let expected = files::pattern_bytes(1_000_000, 3);
    assert!(fetch(&bed, bed.resolve_args(), "/c.txt", &[]) == expected);
    if bed.has_ipv6() {
        assert!(fetch(&bed, bed.resolve_args_v6(), "/c.txt", &[]) == expected);
    }
    let problems = proxy.process.stderr_text();
    assert!(proxy.process.is_running());
    assert_eq!(problems, "");
}

/// Each answers with what the server has, over TLS that is its own, in the version that was asked for.
#[test]
fn accepts_other_split_proxies() {
    if !require_testbed() || !require_program("nginx") || !require_program("curl") {
        return;
    }
    let expected = files::pattern_bytes(1_000_000, 3);
    for kind in [ProxyKind::Haproxy, ProxyKind::Squid, ProxyKind::Mitmproxy] {
        if let Some(missing) = kind.missing() {
            skip_unless("MMTLS_REQUIRE_PROXIES", &format!("{missing} is not installed"));
            continue;
        }
        for (version, ciphers, ciphersuites, suite) in [
            ("1.3", "", "TLS_AES_256_GCM_SHA384", "TLS_AES_256_GCM_SHA384"),
            ("1.2", "ECDHE-RSA-AES256-SHA384", "", "ECDHE-RSA-AES256-SHA384"),
        ] {
            let bed = Testbed::new(Middle::Routed).unwrap();
            let key_type = KeyType::Rsa;
            let server = Nginx::start(
                &bed,
                NginxOptions { key_type, ciphers: ciphers.to_owned(), ..NginxOptions::default() },
            )
            .unwrap();
            files::pattern(&server.root().join("c.txt"), 1_000_000, 3).unwrap();
            let (ciphers, ciphersuites) = (ciphers.to_owned(), ciphersuites.to_owned());
            let options = ProxyOptions { kind, ciphersuites, ciphers, version, key_type };
            let mut proxy = Proxy::start(&bed, &options).unwrap();
            let resolve = ["--resolve".to_owned(), format!("server.test:443:{}", kind.server())];
            let trust: &[&str] = if kind == ProxyKind::Squid { &["--insecure"] } else { &[] };
            let got = fetch(&bed, resolve, "/c.txt", trust);
            assert!(got == expected, "{kind:?} {version}: {}", proxy.process.stderr_text());
            let mut client = bed.client.command("openssl");
            let server = format!("{}:443", kind.server());
            client.args(["s_client", "-brief", "-connect", &server, "-servername", "server.test"]);
            client.stdin(std::process::Stdio::null());
            let told = bed.run("s_client", client, LIMIT).unwrap().stderr;
            assert!(told.contains(&format!("Ciphersuite: {suite}")), "{kind:?}: {told}");
            assert!(proxy.process.is_running());
        }
    }
}

#[test]
fn refuses_a_split_proxy_on_a_bridge() {
    if !require_testbed() {
        return;
    }
    let bed = Testbed::new(Middle::KernelBridge).unwrap();
    NginxSplit::start(&bed, SplitOptions::default()).unwrap_err();
}

#[test]
fn accepts_openssl_and_captures_it() {
    if !require_testbed() || !require_program("tcpdump") || !require_program("curl") {
        return;
    }
    let bed = Testbed::new(Middle::KernelBridge).unwrap();
    let server = OpensslServer::files(&bed, &["-tls1_3"]).unwrap();
    files::pattern(&server.root().join("d.txt"), 50_000, 4).unwrap();
    let path = bed.directory().join("left.pcap");
    let capture = Capture::start(&bed, &bed.middlebox, "left", &path, "tcp port 443").unwrap();
    let expected = files::pattern_bytes(50_000, 4);
    let got = fetch(&bed, bed.resolve_args(), "/d.txt", &["--http0.9"]);
    assert!(got == expected);
    if bed.has_ipv6() {
        fetch(&bed, bed.resolve_args_v6(), "/d.txt", &[]);
    }
    let size = std::fs::metadata(capture.stop().unwrap()).unwrap().len();
    assert!(size > 100_000, "{size}");
}

#[test]
fn accepts_keys_from_the_flow_address() {
    if !require_testbed() || !require_program("openssl") {
        return;
    }
    let bed = Testbed::new(Middle::Empty).unwrap();
    let mut families = vec![(address::KEYS_V4, address::CLIENT_V4)];
    if bed.has_ipv6() {
        families.push((address::KEYS_V6, address::CLIENT_V6));
    }
    let identity = &bed.pki().middlebox;
    let mut listener = bed.middlebox.command("openssl");
    listener.args(["s_server", "-accept", "4433", "-www", "-quiet"]);
    listener.arg("-cert").arg(&identity.certificate);
    listener.arg("-key").arg(&identity.key);
    let mut listener = bed.background("keys", listener).unwrap();
    listener.wait_for_listen(4433, LIMIT).unwrap();
    for (middlebox, client) in families {
        let mut curl = bed.client.command("curl");
        curl.arg("--cacert").arg(&bed.pki().ca);
        curl.args(["-sS", "--max-time", "10", "-o", "/dev/null", "-w", "%{local_ip}"]);
        let host =
            if middlebox.contains(':') { format!("[{middlebox}]") } else { middlebox.to_owned() };
        curl.arg(format!("https://{host}:4433/"));
        let done = bed.run("curl", curl, LIMIT).unwrap();
        assert!(done.status.success(), "{middlebox}: {}", done.stderr);
        assert_eq!(done.text(), client);
    }
}

#[test]
fn refuses_a_path_through_an_empty_middle() {
    if !require_testbed() || !require_program("openssl") || !require_program("curl") {
        return;
    }
    let bed = Testbed::new(Middle::Empty).unwrap();
    let _server = OpensslServer::status_page(&bed, &[]).unwrap();
    for resolve in [bed.resolve_args(), bed.resolve_args_v6()] {
        let mut curl = bed.client.command("curl");
        curl.args(resolve).args(["-ksS", "--connect-timeout", "1"]);
        curl.arg(format!("https://{}/", address::SERVER_NAME));
        let done = bed.run("curl", curl, LIMIT).unwrap();
        assert!(!done.status.success(), "{}", done.text());
    }
}

#[test]
fn refuses_to_leave_anything_behind() {
    if !require_testbed() {
        return;
    }
    let bed = Testbed::new(Middle::Empty).unwrap();
    let directory = bed.directory().to_path_buf();
    let namespaces = [&bed.client, &bed.middlebox, &bed.server].map(|one| one.path());
    // A process that ignores SIGTERM and has lost its parent, and one with a handle.
    let orphan = "trap '' TERM; (while :; do sleep 1; done) >/dev/null 2>&1 & echo $!";
    let shell = bed.server.shell(&format!("{orphan} >{}/pid", directory.display()));
    drop(shell);
    let mut sleep = bed.client.command("sleep");
    sleep.arg("60");
    let sleep = bed.background("sleep", sleep).unwrap();
    let orphan: u32 =
        std::fs::read_to_string(directory.join("pid")).unwrap().trim().parse().unwrap();
    assert!(bed.server.pids().contains(&orphan));
    // nsenter is still on its way in at first.
    let start = std::time::Instant::now();
    while !bed.client.pids().contains(&sleep.pid()) && start.elapsed() < LIMIT {
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(bed.client.pids().contains(&sleep.pid()));
    let pids = [orphan, sleep.pid()];
    drop(sleep);
    drop(bed);
    for pid in pids {
        let state = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        assert!(state.is_empty() || state.contains(") Z "), "{state}");
    }
    for path in namespaces.iter().map(AsRef::as_ref).chain([directory.as_path()]) {
        assert!(!Path::exists(path), "{}", path.display());
    }
}

#[test]
fn accepts_the_remains_of_a_crashed_run() {
    if !require_testbed() {
        return;
    }
    // Our own PID with another start time: a process that is gone.
    let name = format!("mmtls-bed-{}-1-0-crashed", std::process::id());
    let ip = |arguments: &[&str]| {
        let status = std::process::Command::new("ip").args(arguments).status().unwrap();
        assert!(status.success());
    };
    let path = Path::new("/run/netns").join(&name);
    let remains = std::env::temp_dir().join(&name);
    ip(&["netns", "add", &name]);
    std::fs::create_dir(&remains).unwrap();
    sweep();
    assert!(!path.exists());
    assert!(!remains.exists());
}
