//! What can be wrong with a folder itself: kinds of files, links, permissions.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::super::*;
use super::repository;

/// Names the folder to open in a process that has given up root's rights.
const UNREADABLE: &str = "LILY_TEST_UNREADABLE_FOLDER";

/// An empty folder that is removed with its content at the end of a test.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("lily-checkpoint-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    /// With links to the files of a fixture.
    fn with_links(name: &str) -> Self {
        let folder = Folder::new(name);
        for entry in fs::read_dir(fixture()).unwrap() {
            let path = entry.unwrap().path();
            symlink(&path, folder.0.join(path.file_name().unwrap())).unwrap();
        }
        folder
    }

    fn replace(&self, name: &str, make: impl FnOnce(&Path)) {
        let path = self.0.join(name);
        fs::remove_file(&path).unwrap();
        make(&path);
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn fixture() -> PathBuf {
    fs::canonicalize(repository().join("tests/fixtures/tiny-a")).unwrap()
}

fn message(path: &Path) -> String {
    match Checkpoint::open(path) {
        Ok(_) => panic!("{} was accepted", path.display()),
        Err(error) => error.to_string(),
    }
}

fn assert_says(path: &Path, fragments: &[&str]) {
    let message = message(path);
    for fragment in fragments {
        assert!(message.contains(fragment), "{message:?} does not say {fragment:?}");
    }
}

#[test]
fn links_to_files_elsewhere_are_followed() {
    Checkpoint::open(&Folder::with_links("links").0).unwrap();
}

#[test]
fn a_single_shard_needs_no_index() {
    let folder = Folder::with_links("single");
    fs::remove_file(folder.0.join(index::INDEX)).unwrap();
    Checkpoint::open(&folder.0).unwrap();
}

#[test]
fn a_path_that_leads_nowhere_or_to_a_file_is_refused() {
    let folder = Folder::new("nowhere");
    assert_says(&folder.0.join("absent"), &["absent", "cannot read"]);
    let file = folder.0.join("weights.safetensors");
    fs::write(&file, b"12345678").unwrap();
    assert_says(&file, &["weights.safetensors", "not a folder", "accepted: a folder"]);
    fs::write(&file, b"GGUF").unwrap();
    assert_says(&file, &["weights.safetensors", "GGUF", "accepted: a folder"]);
}

#[test]
fn an_empty_folder_is_refused() {
    let folder = Folder::new("empty");
    assert_says(&folder.0, &["config.json is missing", folder.0.to_str().unwrap(), "accepted: a folder"]);
    fs::write(folder.0.join("Qwen3.6-35B-A3B-Q4_K_M.GGUF"), b"GGUF").unwrap();
    assert_says(&folder.0, &["Qwen3.6-35B-A3B-Q4_K_M.GGUF is a GGUF file"]);
}

#[test]
fn folders_and_pipes_in_place_of_files_are_refused_without_waiting() {
    for name in ["config.json", "model.safetensors", "tokenizer.json", index::INDEX] {
        let folder = Folder::with_links("kinds");
        folder.replace(name, |path| fs::create_dir(path).unwrap());
        assert_says(&folder.0, &[name, "not a regular file"]);
        let folder = Folder::with_links("pipes");
        folder.replace(name, |path| assert!(Command::new("mkfifo").arg(path).status().unwrap().success()));
        assert_says(&folder.0, &[name, "not a regular file"]);
    }
}

#[test]
fn a_link_that_leads_nowhere_is_a_missing_file() {
    let folder = Folder::with_links("dangling");
    folder.replace("model.safetensors", |path| symlink("absent", path).unwrap());
    assert_says(&folder.0, &["model.safetensors is missing", "tensor `"]);
}

#[test]
fn a_file_without_read_permission_is_refused_by_name() {
    if let Some(folder) = std::env::var_os(UNREADABLE) {
        assert_says(Path::new(&folder), &["cannot read", "model.safetensors", "Permission denied"]);
        return;
    }
    let folder = Folder::with_links("permission");
    folder.replace("model.safetensors", |path| {
        fs::copy(fixture().join("model.safetensors"), path).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(0o000)).unwrap();
    });
    if fs::File::open(folder.0.join("model.safetensors")).is_err() {
        assert_says(&folder.0, &["cannot read", "model.safetensors", "Permission denied"]);
        return;
    }
    // Permissions do not bind root: look again from a process without root's rights. It gets copies of the program and
    // of the other files, since it may not be able to read the originals.
    for entry in fs::read_dir(fixture()).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        if name != "model.safetensors" {
            folder.replace(name, |copy| assert!(fs::copy(&path, copy).is_ok()));
            fs::set_permissions(folder.0.join(name), fs::Permissions::from_mode(0o644)).unwrap();
        }
    }
    let program = folder.0.join("program");
    fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    for path in [&program, &folder.0] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let test = "checkpoint::tests::folders::a_file_without_read_permission_is_refused_by_name";
    let output = Command::new(&program)
        .args(["--exact", test])
        .env(UNREADABLE, &folder.0)
        .current_dir("/")
        .gid(65534)
        .uid(65534)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "{text}{}", String::from_utf8_lossy(&output.stderr));
}
