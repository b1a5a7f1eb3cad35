//! The decrypted mirror, read by tshark: what it puts together is what the endpoints have sent, byte by byte, and it finds
//! nothing to complain of.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::cli::{Place, fails, mmtls};
use crate::common::{
    Family, Stage, assert_all_decrypted, can_run, options, patient, sessions, stat, tshark, url,
};
use mmtls_testkit::wire::frames;
use mmtls_testkit::{
    Capture, Mmtls, MmtlsOptions, MmtlsReport, NginxOptions, files, require_program,
};

/// The user agent of requests, so that they are known.
const AGENT: &str = "mirrored";

/// What tshark has of a conversation: who it is between, and what each side sent.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Followed {
    server: String,
    sent: [Vec<u8>; 2],
}

/// tshark, which looks at checksums only where it is told to.
fn checked(file: &Path, arguments: &[&str]) -> String {
    let checksums = ["-o", "tcp.check_checksum:TRUE", "-o", "ip.check_checksum:TRUE"];
    tshark(file, &[&checksums, arguments].concat())
}

/// Frames that a filter of tshark's finds.
fn found(file: &Path, filter: &str) -> String {
    checked(file, &["-Y", filter])
}

/// Nothing stands out, and nothing is taken for TLS.
#[track_caller]
fn assert_clean(file: &Path) {
    for filter in [
        "tcp.analysis.flags",
        "_ws.malformed",
        "tcp.checksum.status == \"Bad\" || ip.checksum.status == \"Bad\"",
        "tls || dtls",
        // Warnings and errors; that a connection was reset is one, and so are the synthetic captures' link addresses.
        "_ws.expert.severity >= 6291456 && tcp.flags.reset == 0 && eth.src.ig == 0",
    ] {
        assert_eq!(found(file, filter), "", "{filter}");
    }
}

/// The TCP conversations of a file as tshark puts them together.
fn followed(file: &Path) -> Vec<Followed> {
    let count = checked(file, &["-T", "fields", "-e", "tcp.stream"]);
    let count =
        count.lines().filter_map(|it| it.parse::<usize>().ok()).max().map_or(0, |it| it + 1);
    let asked: Vec<String> = (0..count).map(|it| format!("follow,tcp,raw,{it}")).collect();
    let mut arguments = vec!["-q"];
    arguments.extend(asked.iter().flat_map(|it| ["-z", it]));
    let text = checked(file, &arguments);
    // It tells of them in any order.
    let mut all = BTreeMap::new();
    let mut number = None;
    let mut conversation = None;
    for line in text.lines() {
        if line.starts_with("Follow: ") {
            conversation = Some(Followed { server: String::new(), sent: [Vec::new(), Vec::new()] });
        } else if let Some(stream) = line.strip_prefix("Filter: tcp.stream eq ") {
            number = stream.parse::<usize>().ok();
        } else if let Some(server) = line.strip_prefix("Node 1: ")
            && let Some(it) = &mut conversation
        {
            server.clone_into(&mut it.server);
        } else if line.starts_with("====") {
            all.extend(number.zip(conversation.take()));
        } else if let Some(it) = &mut conversation {
            let (side, digits) = match line.strip_prefix('\t') {
                Some(digits) => (1, digits),
                None => (0, line),
            };
            it.sent[side].extend(base16ct::mixed::decode_vec(digits).unwrap_or_default());
        }
    }
    assert_eq!(all.len(), count);
    all.into_values().collect()
}

fn request(name: &str) -> Vec<u8> {
    format!(
        "GET /{name} HTTP/1.1\r\nHost: server.test\r\nUser-Agent: {AGENT}\r\nAccept: */*\r\n\r\n"
    )
    .into_bytes()
}

fn mirror_file(stage: &Stage) -> PathBuf {
    stage.bed.directory().join("mirror.pcapng")
}

/// `patient`, and the mirror's file.
fn mirrored(stage: &Stage, more: &str) -> MmtlsOptions {
    let options = patient();
    let config = format!("{}{more}", options.config.unwrap_or_default());
    let file = mirror_file(stage).into_os_string().into_string().unwrap();
    let arguments = vec!["-w".to_owned(), file];
    MmtlsOptions { config: Some(config), arguments, ..options }
}

/// Fetches these, one after another on a connection; what curl received, heads included.
fn fetch(stage: &Stage, mmtls: &Mmtls, family: Family, label: &str, names: &[&str]) -> Vec<u8> {
    let mut curl = stage.sharing_curl(mmtls, family, &[]);
    curl.args(["-i", "-A", AGENT]).args(names.iter().map(|name| url(name)));
    let done = stage.run(label, curl);
    assert!(done.status.success(), "{label}: {}", done.stderr);
    done.stdout
}

#[track_caller]
fn assert_mirrored(report: &MmtlsReport, sessions: u64, bytes: u64) {
    assert_eq!(stat(report, "monitor", "mirror_sessions"), sessions, "{:#?}", report.summary);
    assert_eq!(stat(report, "monitor", "mirror_bytes"), bytes, "{:#?}", report.summary);
    for name in ["mirror_sessions_cut", "mirror_gaps", "mirror_bytes_lost"] {
        assert_eq!(stat(report, "monitor", name), 0, "{name}: {:#?}", report.summary);
    }
}

/// Many sizes, both address families, several requests on a connection, uploads, at a time, with two workers.
#[test]
fn accepts_a_mixed_load_byte_by_byte() {
    if !can_run(&["nginx", "curl", "tshark"]) {
        return;
    }
    let upload = "location /upload { client_max_body_size 9m; return 200 done; }";
    let stage = Stage::with(NginxOptions { extra: upload.to_owned(), ..NginxOptions::default() });
    let sizes = [0usize, 1, 1459, 1460, 1461, 16384, 100_000, 2_000_000];
    let names: Vec<String> = sizes.iter().map(|size| format!("of-{size}")).collect();
    for (name, size) in names.iter().zip(sizes) {
        stage.serve(name, &files::pattern_bytes(size, size as u64));
    }
    let body = files::pattern_bytes(300_000, 9);
    let body_file = stage.bed.directory().join("body");
    std::fs::write(&body_file, &body).unwrap();
    let mmtls = stage.mmtls(&mirrored(&stage, "[workers]\ncount = 2\n"));

    let mut expected = Vec::new();
    for family in Family::all(&stage.bed) {
        let server = format!("{}:80", family.server());
        let (stage, mmtls, names, body_file) = (&stage, &mmtls, &names, &body_file);
        let conversations = std::thread::scope(|scope| {
            let mut jobs = Vec::new();
            for client in 0..6 {
                jobs.push(scope.spawn(move || {
                    let mine: Vec<&str> =
                        names.iter().skip(client % 3).map(String::as_str).collect();
                    let label = format!("curl-{family:?}-{client}");
                    let received = fetch(stage, mmtls, family, &label, &mine);
                    [mine.iter().flat_map(|name| request(name)).collect(), received]
                }));
            }
            jobs.push(scope.spawn(move || {
                let mut curl = stage.sharing_curl(mmtls, family, &[]);
                curl.args(["-i", "-A", AGENT, "-H", "Expect:", "-H", "Content-Type: x/y"]);
                curl.arg("--data-binary").arg(format!("@{}", body_file.display()));
                curl.arg(url("upload"));
                let done = stage.run(&format!("upload-{family:?}"), curl);
                assert!(done.status.success(), "{}", done.stderr);
                let head = format!(
                    "POST /upload HTTP/1.1\r\nHost: server.test\r\nUser-Agent: {AGENT}\r\nAccept: */*\r\n\
                     Content-Type: x/y\r\nContent-Length: {}\r\n\r\n",
                    std::fs::metadata(body_file).unwrap().len()
                );
                [[head.as_bytes(), &std::fs::read(body_file).unwrap()].concat(), done.stdout]
            }));
            jobs.into_iter().map(|job| job.join().unwrap()).collect::<Vec<_>>()
        });
        expected.extend(
            conversations.into_iter().map(|sent| Followed { server: server.clone(), sent }),
        );
    }
    let report = mmtls.stop().unwrap();
    assert_all_decrypted(&report, expected.len() as u64);
    let bytes: usize = expected.iter().flat_map(|it| &it.sent).map(Vec::len).sum();
    assert_mirrored(&report, expected.len() as u64, bytes as u64);

    let file = mirror_file(&stage);
    assert_eq!(crate::cli::mode(&file), 0o600);
    assert_clean(&file);
    let mut found = followed(&file);
    for wanted in &expected {
        let at = found.iter().position(|it| it == wanted);
        let sizes = |it: &Followed| (it.server.clone(), [it.sent[0].len(), it.sent[1].len()]);
        let at = at.unwrap_or_else(|| {
            let there: Vec<_> = found.iter().map(sizes).collect();
            panic!("{:?} is not among {there:?}", sizes(wanted))
        });
        found.remove(at);
    }
    assert_eq!(found, []);
    // What it is taken for without being told.
    let requests = tshark(&file, &["-Y", "http.request", "-T", "fields", "-e", "http.request.uri"]);
    assert_eq!(requests.lines().count(), stat(&report, "monitor", "http_requests") as usize);
}

/// HTTP/2 stays HTTP/2, and is recognised by what a client says first.
#[test]
fn accepts_http2() {
    if !can_run(&["nginx", "curl", "tshark"]) {
        return;
    }
    let stage = Stage::with(NginxOptions { http2: true, ..NginxOptions::default() });
    let names = ["one", "two", "three"];
    for (name, size) in names.iter().zip([10usize, 20_000, 300_000]) {
        stage.serve(name, &files::pattern_bytes(size, size as u64));
    }
    let options = MmtlsOptions { streams: true, ..mirrored(&stage, "") };
    let mmtls = stage.mmtls(&options);
    let mut curl = stage.sharing_curl(&mmtls, Family::V4, &[]);
    curl.args(["--http2", "-Z"]).args(names.map(url));
    for _ in names {
        curl.args(["-o", "/dev/null"]);
    }
    let done = stage.run("curl", curl);
    assert!(done.status.success(), "{}", done.stderr);
    let streams = mmtls.directory().join("streams");
    let report = mmtls.stop().unwrap();
    assert_all_decrypted(&report, 1);
    let file = mirror_file(&stage);
    assert_clean(&file);
    let side = |name: &str| {
        let random = sessions(&report)[0]["client_random"].as_str().unwrap();
        std::fs::read(streams.join(format!("{random}.{name}"))).unwrap()
    };
    let found = followed(&file);
    assert!(found.len() == 1 && found[0].sent == [side("client"), side("server")]);
    let paths =
        tshark(&file, &["-Y", "http2.headers.path", "-T", "fields", "-e", "http2.headers.path"]);
    let mut paths: Vec<&str> = paths.split([',', '\n']).filter(|it| !it.is_empty()).collect();
    paths.sort_unstable();
    assert_eq!(paths, ["/one", "/three", "/two"]);
    let statuses = ["-Y", "http2.headers.status", "-T", "fields", "-e", "http2.headers.status"];
    let statuses = tshark(&file, &statuses);
    assert_eq!(statuses.split([',', '\n']).filter(|it| *it == "200").count(), 3, "{statuses}");
}

/// A session that one end resets, and one that the monitor does: the mirror has what was decrypted, and a RST behind it.
#[test]
fn accepts_sessions_that_are_reset() {
    if !can_run(&["nginx", "curl", "tshark"]) {
        return;
    }
    let stage = Stage::new();
    let mut large = files::pattern_bytes(20_000_000, 5);
    stage.serve("large", &large);
    large.truncate(500_000);
    large.extend_from_slice(b"forbidden-fruit");
    stage.serve("forbidden", &large);
    let patterns = stage.bed.directory().join("patterns");
    std::fs::write(&patterns, "forbidden-fruit\n").unwrap();
    let patterns = Some((patterns, "reset".to_owned()));
    let mmtls = stage.mmtls(&MmtlsOptions { patterns, ..mirrored(&stage, "") });
    let mut received = Vec::new();
    for (name, more) in [("large", &["--limit-rate", "1M", "-m", "1"][..]), ("forbidden", &[])] {
        let mut curl = stage.sharing_curl(&mmtls, Family::V4, &[]);
        curl.args(["-i", "-A", AGENT, &url(name)]).args(more);
        let done = stage.run(name, curl);
        assert!(!done.status.success(), "{name}");
        received.push(done.stdout);
    }
    let report = mmtls.stop().unwrap();
    let file = mirror_file(&stage);
    assert_clean(&file);
    let found = followed(&file);
    assert_eq!(found.len(), 2);
    for ((name, received), conversation) in ["large", "forbidden"].iter().zip(received).zip(found) {
        assert_eq!(conversation.sent[0], request(name));
        // curl counts what it has read, and the monitor what it has seen.
        assert!(conversation.sent[1].starts_with(&received), "{name}");
        assert!(received.len() > 100_000 || *name == "forbidden", "{name}: {}", received.len());
    }
    let resets =
        tshark(&file, &["-Y", "tcp.flags.reset == 1", "-T", "fields", "-e", "frame.comment"]);
    assert_eq!(resets, "reset_by_client\nreset_by_application\n");
    assert_eq!(stat(&report, "monitor", "mirror_gaps"), 0);
    assert_eq!(stat(&report, "monitor", "mirror_sessions_cut"), 0);
}

/// What leaves by the interface is what the file has, frame by frame.
#[test]
fn accepts_an_interface() {
    if !can_run(&["nginx", "curl", "tshark", "tcpdump"]) {
        return;
    }
    let stage = Stage::new();
    stage.serve("file", &files::pattern_bytes(3_000_000, 2));
    let place = &stage.bed.middlebox;
    place
        .ip("link add mirror0 type veth peer name tap0\nlink set tap0 up\nlink set mirror0 up\n")
        .unwrap();
    let config = "[mirror]\ninterface = \"mirror0\"\n[workers]\ncount = 2\n";
    let mmtls = stage.mmtls(&mirrored(&stage, config));
    let heard = stage.bed.directory().join("heard.pcap");
    let capture = Capture::start(&stage.bed, place, "tap0", &heard, "tcp").unwrap();
    for family in Family::all(&stage.bed) {
        fetch(&stage, &mmtls, family, "curl", &["file", "file"]);
    }
    let report = mmtls.stop().unwrap();
    let heard = capture.stop().unwrap();
    let file = mirror_file(&stage);
    for file in [&file, &heard] {
        assert_clean(file);
    }
    let bytes = |file: &Path| frames(file).into_iter().map(|it| it.bytes).collect::<Vec<_>>();
    let (written, heard) = (bytes(&file), bytes(&heard));
    assert!(written.len() > 4000 && written == heard, "{} and {}", written.len(), heard.len());
    // The endpoints' own link addresses.
    let address = |place, name: &str| {
        let text = crate::common::shell(place, &format!("ip -o link show {name}"));
        let text = text.split("link/ether ").nth(1).unwrap()[..17].replace(':', "");
        base16ct::lower::decode_vec(text).unwrap()
    };
    let [client, server] = [&stage.bed.client, &stage.bed.server].map(|it| address(it, "eth0"));
    assert_eq!(written[0][..12], [server, client].concat());
    let count = Family::all(&stage.bed).len() as u64;
    assert_eq!(stat(&report, "monitor", "mirror_sessions"), count);
    // Nothing of it has come in again.
    assert_all_decrypted(&report, count);
    assert_eq!(report.count("flows seen"), count, "{:#?}", report.summary);
}

/// What happens to the mirror's interface is nobody else's trouble, and over when it is up again.
#[test]
fn accepts_an_interface_that_goes_down() {
    if !can_run(&["nginx", "curl"]) {
        return;
    }
    let stage = Stage::new();
    stage.serve("file", &files::pattern_bytes(100_000, 2));
    let place = &stage.bed.middlebox;
    place.ip("link add mirror0 type veth peer name tap0\nlink set tap0 up\n").unwrap();
    place.ip("link set mirror0 up\n").unwrap();
    let arguments = vec!["--mirror".to_owned(), "mirror0".to_owned()];
    let mmtls = stage.mmtls(&MmtlsOptions { arguments, ..patient() });
    for state in ["up", "down", "up"] {
        place.ip(&format!("link set mirror0 {state}\n")).unwrap();
        fetch(&stage, &mmtls, Family::V4, "curl", &["file"]);
    }
    let report = mmtls.stop().unwrap();
    assert!(!report.success);
    let told = report.stderr.matches("sending to the mirror's interface mirror0: mirror0 is down");
    assert_eq!(told.count(), 1, "{}", report.stderr);
    assert_eq!(stat(&report, "monitor", "mirror_sessions"), 3);
    assert_eq!(stat(&report, "monitor", "mirror_sessions_cut"), 1);
    assert_eq!(report.count("decrypted"), 3);
}

/// Of a capture the same, and not over the capture.
#[test]
fn accepts_captures_and_refuses_to_replace_one_that_it_reads() {
    if !require_program("tshark") {
        return;
    }
    let place = Place::new("mirror");
    let capture = place.path("capture.pcapng");
    let download = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/download.pcapng");
    std::fs::copy(download, &capture).unwrap();
    let read = |file: &Path| {
        let mut command = mmtls(&["read", "-r"]);
        command.arg(&capture).arg("--streams").arg(place.path("streams")).arg("-w").arg(file);
        command
    };
    fails(read(&capture), &["capture.pcapng is a capture that is read"]);
    fails(read(&place.path("none/m")), &["mirror file", "none/m: No such file"]);
    assert_eq!(std::fs::read(&capture).unwrap(), std::fs::read(download).unwrap());
    let file = place.path("m.pcapng");
    // What an earlier run has written is replaced.
    for _ in 0..2 {
        let output = read(&file).output().unwrap();
        assert!(output.status.success(), "{output:?}");
    }
    assert_clean(&file);
    let [conversation] = &followed(&file)[..] else { panic!("one conversation") };
    let mut streams: Vec<_> =
        std::fs::read_dir(place.path("streams")).unwrap().map(|it| it.unwrap().path()).collect();
    streams.sort();
    for (side, name) in [(0, "client"), (1, "server")] {
        let path = streams.iter().find(|it| it.extension().is_some_and(|it| it == name)).unwrap();
        assert!(conversation.sent[side] == std::fs::read(path).unwrap(), "{name}");
    }
    assert!(!place.path("m.pcapng.1").exists());
}

/// One mirror of all captures, wherever they come from, and never in the place of one of them.
#[test]
fn accepts_several_captures_and_standard_input() {
    if !require_program("tshark") {
        return;
    }
    let place = Place::new("mirror-several");
    let download = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/download.pcapng");
    let copy = place.path("copy.pcapng");
    std::fs::copy(download, &copy).unwrap();
    let file = place.path("m.pcapng");
    let read = |captures: &[&str], input: &Path, file: &Path| {
        let mut command = mmtls(&[&["read"], captures].concat());
        command.arg("-w").arg(file).stdin(File::open(input).unwrap());
        command
    };
    let name = copy.to_str().unwrap();
    let words = ["copy.pcapng is a capture that is read"];
    fails(read(&[download, name], Path::new(download), &copy), &words);
    fails(read(&[download, "-"], &copy, &copy), &words);
    assert_eq!(std::fs::read(&copy).unwrap(), std::fs::read(download).unwrap());

    let output = read(&[name, "-"], Path::new(download), &file).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let mirrored = std::fs::read(&file).unwrap();
    let conversations = followed(&file);
    let [first, second] = &conversations[..] else { panic!("{} of two", conversations.len()) };
    assert!(!first.sent[1].is_empty() && first.sent == second.sent);

    // Who reads the records has enough: the mirror is there all the same, and it is told that records are missing.
    let copies = vec![download; 200];
    let mut command = read(&[&["-l", "-"], &copies[..]].concat(), &copy, &file);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("roken pipe"), "{said}");
    assert!(said.contains("TLS sessions: 200\n"), "{said}");
    assert!(std::fs::metadata(&file).unwrap().len() > 90 * mirrored.len() as u64);
}

/// The traffic itself is no place for its mirror.
#[test]
fn refuses_interfaces_that_carry_the_traffic() {
    if !can_run(&["nginx"]) {
        return;
    }
    let stage = Stage::new();
    for (name, words) in
        [("left", "is left, which carries the traffic"), ("none", "no interface \"none\"")]
    {
        let arguments = vec!["--mirror".to_owned(), name.to_owned()];
        let error =
            Mmtls::start(&stage.bed, &MmtlsOptions { arguments, ..options() }).err().unwrap();
        assert!(error.to_string().contains(words), "{error}");
    }
}

/// A reader that takes nothing: the traffic goes on, what does not fit into the queue is cut off, and what was written is clean.
#[test]
fn accepts_outputs_that_hang() {
    if !can_run(&["nginx", "curl", "tshark", "mkfifo"]) {
        return;
    }
    let stage = Stage::new();
    let content = files::pattern_bytes(4_000_000, 3);
    stage.serve("file", &content);
    let fifo = mirror_file(&stage);
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    // Both ends: nobody waits for anybody.
    let mut reader = OpenOptions::new().read(true).write(true).open(&fifo).unwrap();
    let config = "[mirror]\nmax_buffered_bytes = 400000\n";
    let mmtls = stage.mmtls(&mirrored(&stage, config));
    for number in 0..4 {
        let received = fetch(&stage, &mmtls, Family::V4, &format!("curl{number}"), &["file"]);
        assert!(received.ends_with(&content));
    }
    // Now it is read after all; the end of it is known by the last one that closes.
    let copy = stage.bed.directory().join("copy.pcapng");
    let (copied, done) = (copy.clone(), Arc::new(AtomicBool::new(false)));
    let ended = Arc::clone(&done);
    let reads = std::thread::spawn(move || {
        rustix::io::ioctl_fionbio(&reader, true).unwrap();
        let mut bytes = Vec::new();
        loop {
            let is_last = ended.load(Ordering::Relaxed);
            match reader.read_to_end(&mut bytes) {
                Err(error) if error.kind() == ErrorKind::WouldBlock && !is_last => {
                    std::thread::sleep(Duration::from_millis(1));
                }
                _ => break,
            }
        }
        std::fs::write(copied, bytes).unwrap();
    });
    let report = mmtls.stop().unwrap();
    done.store(true, Ordering::Relaxed);
    reads.join().unwrap();
    assert!(
        !report.success && report.stderr.contains("sessions are cut in the mirror"),
        "{}",
        report.stderr
    );
    let cut = stat(&report, "monitor", "mirror_sessions_cut");
    let (mirrored, lost) =
        (stat(&report, "monitor", "mirror_bytes"), stat(&report, "monitor", "mirror_bytes_lost"));
    assert_eq!(cut, 4);
    assert!(mirrored > 200_000 && lost > 10_000_000, "{mirrored} and {lost}");
    assert_eq!(mirrored + lost, report.count("plaintext bytes"));
    assert_clean(&copy);
    let found = followed(&copy);
    assert!(!found.is_empty());
    let mut there = 0;
    for conversation in found {
        let head = conversation.sent[1].windows(4).position(|it| it == b"\r\n\r\n");
        // It may have been cut before the server said anything.
        let body = head.map_or(&[][..], |head| &conversation.sent[1][head + 4..]);
        assert!(content.starts_with(body));
        there += conversation.sent.iter().map(|it| it.len() as u64).sum::<u64>();
    }
    assert_eq!(there, mirrored);
    let resets =
        tshark(&copy, &["-Y", "tcp.flags.reset == 1", "-T", "fields", "-e", "frame.comment"]);
    assert!(resets.lines().all(|it| it == "the mirror does not keep up"), "{resets}");
}

/// A full disk is told of once, and hurts nobody.
#[test]
fn accepts_a_full_disk() {
    if !can_run(&["nginx", "curl"]) {
        return;
    }
    let stage = Stage::new();
    stage.serve("file", &files::pattern_bytes(1_000_000, 3));
    let arguments = vec!["-w".to_owned(), "/dev/full".to_owned()];
    let mmtls = stage.mmtls(&MmtlsOptions { arguments, ..patient() });
    for number in 0..5 {
        fetch(&stage, &mmtls, Family::V4, &format!("curl{number}"), &["file"]);
    }
    let report = mmtls.stop().unwrap();
    assert!(!report.success);
    assert_eq!(
        report.stderr.matches("writing the mirror's file /dev/full: No space left").count(),
        1,
        "{}",
        report.stderr
    );
    assert_eq!(stat(&report, "monitor", "mirror_sessions_cut"), 5);
    assert_eq!(report.count("decrypted"), 5);
    assert!(stat(&report, "monitor", "mirror_bytes_lost") > 5_000_000);
}
