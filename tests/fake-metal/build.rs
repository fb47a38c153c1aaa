//! Empty libraries under the names that objc2 links: the runtime is in this crate.

use std::path::PathBuf;

fn main() {
    let folder = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    for name in ["objc", "gnustep-base"] {
        std::fs::write(folder.join(format!("lib{name}.a")), "!<arch>\n").expect("OUT_DIR can be written");
    }
    println!("cargo:rustc-link-search=native={}", folder.display());
    println!("cargo:rerun-if-changed=build.rs");
}
