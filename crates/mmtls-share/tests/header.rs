//! `include/mmtls_share.h` is what cbindgen makes of the sources. `MMTLS_UPDATE_HEADER=1` writes it.

use std::path::Path;

#[test]
fn accepts_the_header_that_the_sources_give() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = cbindgen::Config::from_file(root.join("cbindgen.toml")).unwrap();
    let mut builder = cbindgen::Builder::new().with_config(config);
    for source in ["types.rs", "error.rs", "lib.rs"] {
        builder = builder.with_src(root.join("src").join(source));
    }
    let mut generated = Vec::new();
    builder.generate().unwrap().write(&mut generated);
    let generated = String::from_utf8(generated).unwrap();
    let path = root.join("include/mmtls_share.h");
    if std::env::var_os("MMTLS_UPDATE_HEADER").is_some() {
        std::fs::write(&path, &generated).unwrap();
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    for (number, (new, old)) in generated.lines().zip(committed.lines()).enumerate() {
        assert_eq!(new, old, "line {}: run this with MMTLS_UPDATE_HEADER=1", number + 1);
    }
    assert!(generated == committed, "not the same length: run this with MMTLS_UPDATE_HEADER=1");
}
