//! The command line, as clap reads it.

use clap::{Args, Parser, Subcommand};
use std::path::PathBuf;

/// Runs language models: chat, server, measurements.
#[derive(Debug, Parser)]
#[command(name = "nextsycl-llm", version = ns_registry::layout::version(), max_term_width = 110)]
#[command(after_help = "Engine options: --opt-NAME VALUE, --opt-NAME=VALUE or --opt-NAME (switched on); the command \
`engines` lists them.\n\nExit codes: 0 ok, 1 error, 2 bad usage, 3 the server is not running, 4 not found, \
5 refused because busy, 75 the device has no free memory for the model or is in use by another program.")]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Answers a prompt, or chats when there is none and stdin is a terminal
    Run(Run),
    /// Serves a model in the foreground
    Serve(Serve),
    /// Starts the server in the background
    Start(Serve),
    /// Stops the server; running requests are finished first
    Stop(Control),
    /// Shows the server, its devices and requests
    Status(Status),
    /// Lists requests, running ones first
    Ps(Ps),
    /// Lists the states of prompts that the running server keeps, or forgets them
    Cache(Cache),
    /// Shows the record of one request
    Inspect(Inspect),
    /// Shows the log of the server that was started in the background
    Logs(Logs),
    /// Sends one message to the running server
    Chat(Chat),
    /// Continues a text in this process, without the chat template
    Generate(Generate),
    /// Shows what a model file holds
    Info(ModelFile),
    /// Shows what a model would take of each device's memory
    Plan(Plan),
    /// Shows the tokens of a text
    Tokenize(Tokenize),
    /// Lists the engines and their options
    Engines,
    /// Lists the devices
    Devices(Devices),
    /// Runs a kernel on a device and checks its result
    Selftest(Selftest),
    /// Compares the forward pass with a reference dump
    Check(Check),
    /// Measures the running server, or with --offline a model in this process: tables of speeds, or passphrases in long prompts
    Bench(Bench),
    /// Writes the logits of a list of tokens
    Logits(Logits),
    /// Checks each weight type's kernels against the exact path
    Kernels(ModelOnDevice),
    /// Compares passes of several rows with one-token passes: the difference must be 0
    SpecCheck(SpecCheck),
    /// Compares conversations decoded together with each alone: the difference must be 0
    BatchCheck(BatchCheck),
}

/// Where to run.
#[derive(Debug, Args, Clone, Default)]
pub struct DeviceArgs {
    /// Device: gpu (all cards), gpu:N or cpu; a list spreads the model over them in that order (NS_DEVICE)
    #[arg(long, value_name = "DEVICE", value_delimiter = ',')]
    pub device: Vec<String>,
    /// Card number; repeat it or give a list for several, in that order; all: the strongest comes last (NS_GPUS)
    #[arg(long, value_name = "N", value_delimiter = ',', conflicts_with = "device")]
    pub gpu: Vec<String>,
}

/// How to open a model.
#[derive(Debug, Args, Clone, Default)]
pub struct OpenArgs {
    /// Where to run.
    #[command(flatten)]
    pub device: DeviceArgs,
    /// Without the model's draft block
    #[arg(long)]
    pub no_mtp: bool,
    /// Device memory for experts in GiB (what is free)
    #[arg(long, value_name = "G")]
    pub expert_gib: Option<f64>,
    /// Host memory for experts in GiB (what is free less a margin)
    #[arg(long, value_name = "G")]
    pub mirror_gib: Option<f64>,
}

/// How tokens are drawn.
#[derive(Debug, Args, Clone, Default)]
pub struct SampleArgs {
    /// Temperature; 0 takes the likeliest token
    #[arg(long, value_name = "T")]
    pub temp: Option<f32>,
    /// Keeps the likeliest tokens up to this probability
    #[arg(long, value_name = "P")]
    pub top_p: Option<f32>,
    /// Keeps so many of the likeliest tokens
    #[arg(long, value_name = "K")]
    pub top_k: Option<u32>,
    /// Drops tokens less likely than this share of the likeliest
    #[arg(long, value_name = "P")]
    pub min_p: Option<f32>,
    /// Divides the logits of the last tokens (1 = off)
    #[arg(long, value_name = "R")]
    pub repeat_penalty: Option<f32>,
    /// Seed of the draws; the same seed and prompt give the same text
    #[arg(long, value_name = "S")]
    pub seed: Option<u64>,
    /// Longest answer in tokens
    #[arg(long, visible_alias = "max-tokens", value_name = "N")]
    pub max: Option<usize>,
}

/// run
/// A number of tokens or passes: more than any context holds is a slip.
fn tokens(least: u64) -> clap::builder::RangedU64ValueParser<usize> {
    clap::builder::RangedU64ValueParser::new().range(least..=1 << 24)
}

#[derive(Debug, Args)]
pub struct Run {
    /// The prompt; several words are joined. Without one, stdin when it is no terminal
    pub prompt: Vec<String>,
    /// Model id or file (the bundled model)
    #[arg(long, value_name = "ID|FILE")]
    pub model: Option<String>,
    /// A system message
    #[arg(long, value_name = "TEXT")]
    pub system: Option<String>,
    /// Tokens of the conversation at most (8192, or what the model was trained for)
    #[arg(long, value_name = "N")]
    pub ctx: Option<usize>,
    /// How to open the model.
    #[command(flatten)]
    pub open: OpenArgs,
    /// How tokens are drawn.
    #[command(flatten)]
    pub sample: SampleArgs,
}

/// serve and start
#[derive(Debug, Args)]
pub struct Serve {
    /// Model id or file (the bundled model)
    #[arg(value_name = "ID|FILE")]
    pub model: Option<String>,
    /// Model id or file, in place of the first argument
    #[arg(long = "model", value_name = "PATH", conflicts_with = "model")]
    pub model_path: Option<String>,
    /// Address to listen on (NS_HOST, 127.0.0.1)
    #[arg(long)]
    pub host: Option<String>,
    /// Port to listen on (NS_PORT, 8085)
    #[arg(long)]
    pub port: Option<u16>,
    /// Tokens a session holds, or a list with one number a session (NS_CTX, 8192)
    #[arg(long, value_name = "N[,N...]")]
    pub ctx: Option<String>,
    /// Requests decoded together, 1 to 8 (NS_PARALLEL, 2)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=8))]
    pub parallel: Option<u64>,
    /// Name the server answers to (the model's id)
    #[arg(long, value_name = "ID")]
    pub name: Option<String>,
    /// Browser origins allowed besides loopback ones: a comma list, * for all (NS_CORS)
    #[arg(long, value_name = "ORIGINS")]
    pub cors: Option<String>,
    /// Answer length of requests that name none (to the context's end)
    #[arg(long, value_name = "N")]
    pub max_tokens: Option<usize>,
    /// Ended requests kept for ps and inspect (NS_KEEP_REQUESTS, 100)
    #[arg(long, value_name = "N")]
    pub keep_requests: Option<u64>,
    /// Host memory for states of prompts that were read, in MiB; 0: no prompt cache (NS_PROMPT_CACHE_MIB, 4096)
    #[arg(long, value_name = "N")]
    pub prompt_cache_mib: Option<u64>,
    /// Folder for states that memory does not hold, and after a stop (NS_CACHE_DIR, ~/.cache/nextsycl/prompts)
    #[arg(long, value_name = "DIR")]
    pub cache_dir: Option<PathBuf>,
    /// Most of that folder in GiB, 0 for none (NS_CACHE_DISK_GIB, 32)
    #[arg(long, value_name = "G")]
    pub cache_disk_gib: Option<f64>,
    /// Hours after which an unused state is removed from it (NS_CACHE_TTL_HOURS, 24)
    #[arg(long, value_name = "H")]
    pub cache_ttl_hours: Option<f64>,
    /// Ends the server after so many seconds without a request or an open answer; 0 never (NS_IDLE_EXIT, 0)
    #[arg(long, value_name = "SECONDS")]
    pub idle_exit: Option<u64>,
    /// Waits so long for a device that is not there yet; meanwhile /health says 503 (NS_WAIT_DEVICE, 0)
    #[arg(long, value_name = "SECONDS")]
    pub wait_device: Option<u64>,
    /// Where the server's socket is.
    #[command(flatten)]
    pub control: Control,
    /// How to open the model.
    #[command(flatten)]
    pub open: OpenArgs,
}

/// The server's socket.
#[derive(Debug, Args, Clone, Default)]
pub struct Control {
    /// Control socket ($XDG_RUNTIME_DIR/nextsycl/nextsycl.sock)
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
}

/// status
#[derive(Debug, Args)]
pub struct Status {
    /// Prints once and ends
    #[arg(long)]
    pub no_stream: bool,
    /// The server's socket.
    #[command(flatten)]
    pub control: Control,
}

/// ps
#[derive(Debug, Args)]
pub struct Ps {
    /// All requests that are kept, not only the last 10
    #[arg(short, long)]
    pub all: bool,
    /// The server's socket.
    #[command(flatten)]
    pub control: Control,
}

/// What `cache` does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum CacheAction {
    /// Lists what is kept
    Ls,
    /// Forgets it, in memory and on disk
    Clear,
}

/// cache
#[derive(Debug, Args)]
pub struct Cache {
    /// List what is kept (ls, the default), or forget it (clear)
    #[arg(value_enum, default_value = "ls", hide_default_value = true)]
    pub action: CacheAction,
    /// The server's socket.
    #[command(flatten)]
    pub control: Control,
}

/// inspect
#[derive(Debug, Args)]
pub struct Inspect {
    /// The request's number, as ps shows it
    pub id: String,
    /// The server's socket.
    #[command(flatten)]
    pub control: Control,
}

/// logs
#[derive(Debug, Args)]
pub struct Logs {
    /// Prints what there is and ends
    #[arg(long)]
    pub no_follow: bool,
    /// The server's socket.
    #[command(flatten)]
    pub control: Control,
}

/// chat
#[derive(Debug, Args)]
pub struct Chat {
    /// The message; several words are joined
    #[arg(required = true)]
    pub text: Vec<String>,
    /// Reasoning effort: low, high or max
    #[arg(long, value_name = "E")]
    pub effort: Option<String>,
    /// Longest answer in tokens
    #[arg(long, visible_alias = "max-tokens", value_name = "N")]
    pub max: Option<usize>,
    /// Temperature; 0 takes the likeliest token
    #[arg(long, value_name = "T")]
    pub temp: Option<f32>,
    /// The server's socket.
    #[command(flatten)]
    pub control: Control,
}

/// generate
#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("input").required(true).args(["prompt", "prompt_file", "ids"]))]
pub struct Generate {
    /// Model id or file
    #[arg(value_name = "ID|FILE")]
    pub model: String,
    /// The text to continue
    #[arg(long, value_name = "TEXT")]
    pub prompt: Option<String>,
    /// A file with the text to continue
    #[arg(long, value_name = "FILE")]
    pub prompt_file: Option<PathBuf>,
    /// A file with token ids to continue, or the ids: numbers apart by commas or white space
    #[arg(long, value_name = "FILE|IDS")]
    pub ids: Option<String>,
    /// The text is a user message, put through the model's chat template
    #[arg(long)]
    pub chat: bool,
    /// Reasoning effort of a chat message: low, high or max
    #[arg(long, value_name = "E", requires = "chat")]
    pub effort: Option<String>,
    /// Goes on after the model's end token
    #[arg(long)]
    pub ignore_eos: bool,
    /// Prints token ids instead of text
    #[arg(long)]
    pub print_ids: bool,
    /// Tokens of prompt and answer at most
    #[arg(long, value_name = "N")]
    pub ctx: Option<usize>,
    /// How to open the model.
    #[command(flatten)]
    pub open: OpenArgs,
    /// How tokens are drawn.
    #[command(flatten)]
    pub sample: SampleArgs,
}

/// A model file.
#[derive(Debug, Args)]
pub struct ModelFile {
    /// Model id or file
    #[arg(value_name = "ID|FILE")]
    pub model: String,
    /// One JSON object instead of lines
    #[arg(long)]
    pub json: bool,
}

/// plan
#[derive(Debug, Args)]
pub struct Plan {
    /// Model id or file (the bundled model)
    #[arg(value_name = "ID|FILE")]
    pub model: Option<String>,
    /// Tokens a session holds, or a list with one number a session (NS_CTX, 8192)
    #[arg(long, value_name = "N[,N...]")]
    pub ctx: Option<String>,
    /// Sessions open at once, 1 to 8 (NS_PARALLEL, 2)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=8))]
    pub parallel: Option<u64>,
    /// One JSON object instead of a table
    #[arg(long)]
    pub json: bool,
    /// How to open the model.
    #[command(flatten)]
    pub open: OpenArgs,
}

/// A model on a device.
#[derive(Debug, Args)]
pub struct ModelOnDevice {
    /// Model id or file
    #[arg(value_name = "ID|FILE")]
    pub model: String,
    /// How to open the model.
    #[command(flatten)]
    pub open: OpenArgs,
}

/// tokenize
#[derive(Debug, Args)]
pub struct Tokenize {
    /// Model id or file
    #[arg(value_name = "ID|FILE")]
    pub model: String,
    /// The text
    pub text: String,
    /// Shows each token's text too, one a line
    #[arg(long)]
    pub show: bool,
}

/// devices
#[derive(Debug, Args)]
pub struct Devices {
    /// Only the devices of a selector: gpu, gpu:N or cpu; exit code 4 when there is none
    #[arg(long, value_name = "DEVICE")]
    pub device: Option<String>,
    /// One JSON object instead of a table
    #[arg(long)]
    pub json: bool,
}

/// selftest
#[derive(Debug, Args)]
pub struct Selftest {
    /// Measures what the device can do at most: reading, copying, arithmetic
    #[arg(long)]
    pub ceilings: bool,
    /// Where to run.
    #[command(flatten)]
    pub device: DeviceArgs,
}

/// check
#[derive(Debug, Args)]
pub struct Check {
    /// Model id or file
    #[arg(value_name = "ID|FILE")]
    pub model: String,
    /// Folder with the reference dump: ids.txt and logits.f32, one row a token
    #[arg(value_name = "DUMP")]
    pub dump: PathBuf,
    /// How to open the model.
    #[command(flatten)]
    pub open: OpenArgs,
}

/// bench
#[derive(Debug, Args)]
pub struct Bench {
    /// Measures this model in this process, without a server
    #[arg(long, value_name = "ID|FILE")]
    pub offline: Option<String>,
    /// Offline, one size of random tokens: prompt tokens (512)
    #[arg(long, value_name = "N", requires = "offline", conflicts_with_all = ["sizes", "parallel", "needle", "out"])]
    pub prompt: Option<usize>,
    /// Tokens to write (256; 128 for one size of random tokens)
    #[arg(long, value_name = "N", value_parser = tokens(0))]
    pub new: Option<usize>,
    /// Offline, one size: times it is repeated (3); the median counts
    #[arg(long, value_name = "N", requires = "offline", conflicts_with_all = ["sizes", "parallel", "needle", "out"], value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub reps: Option<u64>,
    /// Offline, one size: one JSON object instead of a table
    #[arg(long, requires = "offline", conflicts_with_all = ["sizes", "parallel", "needle", "out"])]
    pub json: bool,
    /// Prompt sizes in tokens (20,2185,8000,40000; with --needle 32768,131072,250000)
    #[arg(long, value_name = "N,...", value_delimiter = ',')]
    pub sizes: Vec<usize>,
    /// Numbers of clients at once (1,2,4)
    #[arg(long, value_name = "N,...", value_delimiter = ',', conflicts_with = "needle")]
    pub parallel: Vec<usize>,
    /// Hides a passphrase in long prompts and asks for it
    #[arg(long)]
    pub needle: bool,
    /// Depths of the passphrase in percent (10,50,90)
    #[arg(long, value_name = "N,...", value_delimiter = ',', requires = "needle", value_parser = clap::value_parser!(u64).range(0..=100))]
    pub depths: Vec<u64>,
    /// Folder for a Markdown report: bench.md or needle.md
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// The server's socket.
    #[command(flatten)]
    pub control: Control,
    /// How to open the model of an offline run.
    #[command(flatten)]
    pub open: OpenArgs,
}

/// logits
#[derive(Debug, Args)]
pub struct Logits {
    /// Model id or file
    #[arg(value_name = "ID|FILE")]
    pub model: String,
    /// Token ids, apart by commas
    #[arg(long, value_name = "IDS", value_delimiter = ',', required = true)]
    pub ids: Vec<u32>,
    /// File for the logits: little-endian float32
    #[arg(long, value_name = "FILE")]
    pub out: PathBuf,
    /// Every row instead of the last one
    #[arg(long)]
    pub all: bool,
    /// How to open the model.
    #[command(flatten)]
    pub open: OpenArgs,
}

/// spec-check
#[derive(Debug, Args)]
pub struct SpecCheck {
    /// Model id or file
    #[arg(value_name = "ID|FILE")]
    pub model: String,
    /// The prompt
    #[arg(long, value_name = "TEXT", conflicts_with = "prompt_file")]
    pub prompt: Option<String>,
    /// A file with the prompt
    #[arg(long, value_name = "FILE")]
    pub prompt_file: Option<PathBuf>,
    /// Passes to check
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = tokens(1))]
    pub n: usize,
    /// Rows of a pass, or from a number to another: 2..5
    #[arg(long, value_name = "R", default_value = "4", value_parser = row_counts)]
    pub rows: RowCounts,
    /// Compares every named tensor of each layer and tells the first that differs
    #[arg(long)]
    pub layers: bool,
    /// Begins after so many tokens of context: the prompt, over and over
    #[arg(long, value_name = "N", value_parser = tokens(0))]
    pub at: Option<usize>,
    /// Shows this row of each pass alone
    #[arg(long, value_name = "K")]
    pub row: Option<usize>,
    /// How to open the model.
    #[command(flatten)]
    pub open: OpenArgs,
}

/// Numbers of rows to check one after the other.
#[derive(Debug, Clone)]
pub struct RowCounts(pub Vec<usize>);

fn row_counts(text: &str) -> Result<RowCounts, String> {
    let wrong = || "it takes a number from 2 to 8, or two of them: 2..5".to_owned();
    let number = |word: &str| word.parse().ok().filter(|n| (2..=8).contains(n)).ok_or_else(wrong);
    let (first, last) = match text.split_once("..") {
        Some((first, last)) => (number(first)?, number(last)?),
        None => (number(text)?, number(text)?),
    };
    if first > last { Err(wrong()) } else { Ok(RowCounts((first..=last).collect())) }
}

/// batch-check
#[derive(Debug, Args)]
pub struct BatchCheck {
    /// Model id or file
    #[arg(value_name = "ID|FILE")]
    pub model: String,
    /// The prompts, apart by |: two up to eight
    #[arg(long, value_name = "A|B", default_value = "The capital of France is|Once upon a time|1, 2, 3, 4,")]
    pub prompts: String,
    /// Steps to check
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = tokens(1))]
    pub n: usize,
    /// How to open the model.
    #[command(flatten)]
    pub open: OpenArgs,
}

/// Takes `--opt-NAME` flags out of the arguments, which clap cannot declare. `is_switch` tells options that take no
/// value, so that the word behind one stays an argument.
pub fn split_options(args: Vec<String>, is_switch: &dyn Fn(&str) -> bool) -> (Vec<String>, Vec<(String, String)>) {
    let (mut rest, mut options) = (Vec::new(), Vec::new());
    let mut args = args.into_iter().peekable();
    while let Some(arg) = args.next() {
        if arg == "--" {
            rest.push(arg);
            rest.extend(args);
            break;
        }
        let Some(name) = arg.strip_prefix("--opt-") else {
            rest.push(arg);
            continue;
        };
        let (name, value) = match name.split_once('=') {
            Some((name, value)) => (name.to_owned(), value.to_owned()),
            None => {
                let takes = |next: &String| !next.starts_with("--") && (!is_switch(name) || next == "0" || next == "1");
                (name.to_owned(), args.next_if(takes).unwrap_or_else(|| "1".to_owned()))
            }
        };
        options.push((name, value));
    }
    (rest, options)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_declarations_are_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn options_in_all_their_forms() {
        let words = |s: &str| s.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let split = |s| split_options(words(s), &|name| name == "fast");
        let (rest, options) = split("x run --opt-kv f16 --opt-a=b=c --opt-fast hello --opt-fast 0 --opt-z -- --opt-no");
        assert_eq!(rest, words("x run hello -- --opt-no"));
        let pairs = [("kv", "f16"), ("a", "b=c"), ("fast", "1"), ("fast", "0"), ("z", "1")];
        assert_eq!(options, pairs.map(|(k, v)| (k.to_owned(), v.to_owned())));
    }
}
