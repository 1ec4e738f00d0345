//! Runs language models: chat, server, measurements.

mod answer;
mod failure;
mod out;
mod serve;
mod text;

/// The version, handed in by the build.
pub const VERSION: &str = match option_env!("NS_VERSION") {
    Some(version) => version,
    None => "dev",
};

fn main() {}
