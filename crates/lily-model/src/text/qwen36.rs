//! The tokenizer of Qwen3.6, kept compressed for synthetic checkpoints and tests.

/// tokenizer.json, 20 MB as published, as xz.
static TOKENIZER: &[u8] = include_bytes!("../../../../assets/qwen36/tokenizer.json.xz");

/// The contents of Qwen3.6's tokenizer.json, byte-identical to the published file. Programs that never call this do
/// not carry it.
///
/// # Errors
/// None in practice: the compressed file is part of the build.
pub fn qwen36_tokenizer_json() -> std::io::Result<Vec<u8>> {
    let mut json = Vec::with_capacity(20 << 20);
    lzma_rs::xz_decompress(&mut &*TOKENIZER, &mut json).map_err(|e| std::io::Error::other(format!("{e:?}")))?;
    Ok(json)
}
