//! The thin path, end to end: a real curl, a real nginx, mmTLS between them.

use std::path::PathBuf;
use std::time::Duration;

use mmtls_testkit::{
    Middle, Mmtls, MmtlsOptions, Nginx, NginxOptions, Testbed, files, require_testbed,
};

fn binaries() -> PathBuf {
    PathBuf::from(env!("CARGO_BIN_EXE_mmtls")).parent().unwrap().to_owned()
}

#[test]
fn a_download_is_decrypted() {
    if !require_testbed() {
        return;
    }
    let bed = Testbed::new(Middle::Empty).unwrap();
    let nginx = Nginx::start(&bed, NginxOptions::default()).unwrap();
    files::pattern(&nginx.root().join("file"), 10_000_000, 1).unwrap();
    let mmtls = Mmtls::start(&bed, &MmtlsOptions::new(binaries())).unwrap();
    let mut curl = mmtls.sharing(&bed, false, &[], "curl");
    curl.arg("--cacert").arg(&bed.pki().ca).args(bed.resolve_args());
    curl.args(["-sS", "--http1.1", "https://server.test/file"]);
    let page = bed.run("curl", curl, Duration::from_secs(20)).unwrap();
    eprintln!("{} {}", page.stdout.len(), page.stderr);
    let report = mmtls.stop().unwrap();
    eprintln!("{:#?} {}", report.summary, report.stderr);
    for line in &report.eve {
        eprintln!("{line}");
    }
    assert!(page.stdout == std::fs::read(nginx.root().join("file")).unwrap());
    assert_eq!(report.count("decrypted"), 1);
    assert_eq!(report.events("http")[0]["http"]["url"], "/file");
}
