//! Prints the token ids of texts: `tokenize MODEL.gguf [--special]`, one line a text. Texts come from
//! standard input, each as a little-endian u32 length and its bytes.

use std::io::{Read, Write};

use ns_tokenizer::Tokenizer;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let path = args.next().ok_or("usage: tokenize MODEL.gguf [--special] < TEXTS")?;
    let special = args.any(|arg| arg == "--special");
    let tokenizer = Tokenizer::from_metadata(&ns_weights::ModelFile::open(path)?)?;
    let mut input = Vec::new();
    std::io::stdin().read_to_end(&mut input)?;
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    let mut rest = input.as_slice();
    let begun = std::time::Instant::now();
    let mut bytes = 0;
    while let Some((length, after)) = rest.split_first_chunk::<4>() {
        let length = u32::from_le_bytes(*length) as usize;
        let text = after.get(..length).ok_or("the last text is cut off")?;
        let ids = tokenizer.encode(std::str::from_utf8(text)?, special);
        let ids: Vec<String> = ids.iter().map(u32::to_string).collect();
        writeln!(out, "{}", ids.join(" "))?;
        bytes += length;
        rest = &after[length..];
    }
    out.flush()?;
    writeln!(std::io::stderr(), "{bytes} bytes in {:.1} ms", begun.elapsed().as_secs_f64() * 1e3)?;
    Ok(())
}
