//! README.md and the pages in docs show the replies of a real server.
//!
//! A session is a sequence of lines in a code block, fenced or indented. Lines that begin with the
//! prompt `127.0.0.1:6379> ` are commands; the lines after each are its reply. A line `$ redis-cli ...`
//! before the first command sets its options. Text after two spaces and `# ` is a comment. The
//! sessions of a page run in order, each in its own redis-cli, on one server that starts empty.
//!
//! Replies are compared literally. Only times by the server's clock, in a command without AT, may differ from
//! the page, as long as both are within the window. The text after `(error) NOPERM`
//! differs from server to server.

use std::collections::{BTreeSet, HashMap};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use harness::{COMMANDS, Server, cli};
use redis_rl_core::limiter::Algorithm;
use redis_rl_core::request::{Arguments, Verb};

const PROMPT: &str = "127.0.0.1:6379> ";

/// How often to try a page, since a window may end during a session.
const ATTEMPTS: usize = 10;

struct Session {
    /// For redis-cli.
    options: Vec<String>,
    exchanges: Vec<Exchange>,
}

struct Exchange {
    line_number: usize,
    command: String,
    answer: Vec<String>,
}

#[test]
fn every_session_in_the_docs_shows_what_a_server_replies() {
    for path in pages() {
        let page = read(&path);
        assert_eq!(
            page.matches(PROMPT).count(),
            commands_in(&page),
            "{}: not in a code block",
            path.display()
        );
        if let Some(difference) = difference(&page) {
            panic!("{}, {difference}", path.display());
        }
    }
}

#[test]
fn a_page_that_shows_a_different_reply_is_detected() {
    let right = "\
        ```\n\
        127.0.0.1:6379> RL.FIXED k 5 1d\n\
        1) (integer) 0  # allowed\n2) (integer) 5\n3) (integer) 4\n4) (integer) -1\n5) (integer) 86400000\n\
        127.0.0.1:6379> RL.LOG l 5 10s AT 20000\n\
        1) (integer) 0\n2) (integer) 5\n3) (integer) 4\n4) (integer) -1\n5) (integer) 10000\n\
        127.0.0.1:6379> DEL k\n\
        (integer) 1\n\
        ```\n";
    assert_eq!(difference(right), None);
    for (shown, instead) in [
        ("1) (integer) 0", "1) (integer) 1"),
        ("3) (integer) 4", "3) (integer) 3"),
        ("-1", "1"),
        ("86400000", "86400001"),
        ("86400000", "0"),
        ("10000\n", "9999\n"),
        ("(integer) 1\n```", "```"),
        ("(integer) 1\n```", "(integer) 1\n(integer) 1\n```"),
        ("(integer) 1\n```", "(integer) 2\n```"),
    ] {
        let wrong = right.replacen(shown, instead, 1);
        assert!(first_difference(&sessions(&wrong)).is_some(), "{instead} instead of {shown}");
    }
}

#[test]
fn each_command_has_a_page_that_agrees_with_command_docs() {
    let server = Server::start();
    for name in COMMANDS.into_iter().chain(["RL.ALL", "RL.PEEK", "RL.INFO"]) {
        let name = name.to_ascii_lowercase();
        let page = read(&Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("docs/commands/{name}.md")));
        let docs: Vec<redis::Value> =
            redis::from_redis_value(server.value(&format!("COMMAND DOCS {name}"))).expect("an entry");
        let fields: HashMap<String, redis::Value> = redis::from_redis_value_ref(&docs[1]).expect("a map");
        for field in ["summary", "since", "complexity"] {
            let text: String = redis::from_redis_value_ref(&fields[field]).expect("text");
            assert!(page.contains(&text), "the page of {name} lacks its {field}: {text}");
        }
        let syntax = page.lines().find_map(|line| line.strip_prefix("    RL.")).expect("its syntax");
        let tokens = tokens(&fields["arguments"]);
        assert_eq!(tokens.is_empty(), name == "rl.info", "{name}: {tokens:?}");
        for token in tokens {
            assert!(syntax.contains(&token), "the page of {name} lacks {token}: {syntax}");
        }
    }
}

/// The words of options in the `arguments` of COMMAND DOCS.
fn tokens(arguments: &redis::Value) -> Vec<String> {
    let Some(items) = arguments.as_sequence() else { return Vec::new() };
    let named = |name: &str, value: &redis::Value| {
        redis::from_redis_value_ref(value).is_ok_and(|text: String| text == name)
    };
    let own = items.windows(2).filter(|pair| named("token", &pair[0]));
    let own = own.filter_map(|pair| redis::from_redis_value_ref(&pair[1]).ok());
    own.chain(items.iter().flat_map(tokens)).collect()
}

#[test]
fn each_field_of_info_is_explained() {
    let section = Server::start().text("INFO rl_stats");
    let page = read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/monitoring.md"));
    for name in section.lines().filter_map(|line| Some(line.split_once(':')?.0)) {
        assert!(page.contains(&format!("`{name}`")), "{name}");
    }
}

#[test]
fn each_promise_names_tests_that_exist() {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    let page = read(&tests.join("../docs/promises.md"));
    let names: Vec<_> = page.split('`').filter_map(|name| name.split_once("::")).collect();
    assert!(names.len() > 40, "{names:?}");
    for (file, test) in names {
        let file = if file.contains('/') { file.to_owned() } else { format!("server/{file}") };
        let path = tests.join(file).with_extension("rs");
        let source = read(&path);
        assert!(source.contains(&format!("fn {test}(")), "no test {test} in {path:?}");
    }
}

#[test]
fn each_note_of_the_promises_is_defined_and_used() {
    let page = read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/promises.md"));
    let (mut used, mut defined) = (BTreeSet::new(), BTreeSet::new());
    for note in page.split("[^").skip(1) {
        let (name, rest) = note.split_once(']').expect("an end of the name");
        if rest.starts_with(": `") { &mut defined } else { &mut used }.insert(name);
    }
    assert_eq!(used, defined);
}

#[test]
fn links_in_the_docs_point_to_files_and_headings() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let others = [
        "CHANGELOG.md",
        "CONTRIBUTING.md",
        "DESIGN.md",
        "SECURITY.md",
        "clients/README.md",
        "clients/porting.md",
    ];
    for path in pages().into_iter().chain(others.map(|page| root.join(page))) {
        let page = read(&path);
        let targets = page.split("](").skip(1).filter_map(|rest| rest.split(')').next());
        for target in targets.filter(|target| !target.contains("://")) {
            let (file, heading) = target.split_once('#').unwrap_or((target, ""));
            let file = if file.is_empty() { path.clone() } else { path.with_file_name(file) };
            assert!(file.exists(), "{} links to {target}", path.display());
            assert!(
                heading.is_empty() || anchors(&read(&file)).any(|anchor| anchor == heading),
                "{} links to {target}: no such heading",
                path.display()
            );
        }
    }
}

/// The anchors of the headings on a page.
fn anchors(page: &str) -> impl Iterator<Item = String> {
    let headings = page.lines().filter(|line| line.starts_with('#'));
    let headings = headings.filter_map(|line| line.trim_start_matches('#').strip_prefix(' '));
    headings.map(|heading| {
        let kept = heading.chars().filter(|c| c.is_alphanumeric() || [' ', '-', '_'].contains(c));
        kept.map(|c| if c == ' ' { '-' } else { c.to_ascii_lowercase() }).collect()
    })
}

#[test]
fn every_row_of_a_table_has_as_many_cells_as_its_head() {
    for path in pages() {
        let mut head = None;
        for (number, line) in read(&path).lines().enumerate() {
            let cells = line.starts_with('|').then(|| line.replace("\\|", "").matches('|').count());
            assert!(cells.is_none() || head.is_none() || cells == head, "{}:{}", path.display(), number + 1);
            head = cells;
        }
    }
}

#[test]
fn the_benchmark_figures_in_the_readme_match_the_benchmark_page() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let (page, readme) = (read(&root.join("docs/benchmarks.md")), read(&root.join("README.md")));
    let cells: BTreeSet<&str> = page.split('|').map(str::trim).collect();
    let section = readme.split("## What a call costs\n").nth(1).expect("that section").split("\n#").next();
    let words: Vec<&str> = section.unwrap_or_default().split_whitespace().collect();
    let is_version = |word: &str| word == "Redis";
    let figures = words.windows(2).filter(|pair| !is_version(pair[0])).map(|pair| pair[1]);
    let figures = figures.map(|word| word.trim_end_matches(['.', ',', ';', ':', ')']));
    let figures: Vec<&str> =
        figures.filter(|word| word.contains(['.', ',']) && word.starts_with(char::is_numeric)).collect();
    assert!(figures.len() > 4, "{figures:?}");
    for figure in figures {
        assert!(cells.contains(figure), "{figure} is not on the page");
    }
}

/// The README files of the project and of the examples, and everything in docs.
fn pages() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut pages =
        ["README.md", "examples/README.md", "examples/nginx/README.md"].map(|page| root.join(page)).to_vec();
    let mut folders = vec![root.join("docs")];
    while let Some(folder) = folders.pop() {
        for entry in folder.read_dir().expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "md") {
                pages.push(path);
            }
        }
    }
    pages
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).expect("a page")
}

fn commands_in(page: &str) -> usize {
    sessions(page).iter().map(|session| session.exchanges.len()).sum()
}

fn sessions(page: &str) -> Vec<Session> {
    let mut sessions: Vec<Session> = Vec::new();
    let (mut in_fence, mut in_session) = (false, false);
    for (line, line_number) in page.lines().zip(1..) {
        if line.starts_with("```") {
            (in_fence, in_session) = (!in_fence, false);
            continue;
        }
        let Some(code) = (if in_fence { Some(line) } else { line.strip_prefix("    ") }) else {
            in_session = false;
            continue;
        };
        let (options, command) = (code.strip_prefix("$ redis-cli"), code.strip_prefix(PROMPT));
        if options.is_some() || (command.is_some() && !in_session) {
            let options = options.unwrap_or_default().split_whitespace().map(str::to_owned).collect();
            sessions.push(Session { options, exchanges: Vec::new() });
            in_session = true;
        }
        let Some(session) = sessions.last_mut().filter(|_| in_session) else { continue };
        if let Some(command) = command {
            let command = without_label(command).to_owned();
            session.exchanges.push(Exchange { line_number, command, answer: Vec::new() });
        } else if let Some(exchange) = session.exchanges.last_mut() {
            exchange.answer.push(without_label(code).to_owned());
        }
    }
    sessions
}

/// A line of a session without its comment.
fn without_label(line: &str) -> &str {
    line.split_once("  # ").map_or(line, |(shown, _)| shown.trim_end())
}

/// The first difference between a page and what a server replies, if every attempt finds one.
fn difference(page: &str) -> Option<String> {
    let sessions = sessions(page);
    let attempts: Option<Vec<String>> = (0..ATTEMPTS).map(|_| first_difference(&sessions)).collect();
    attempts?.pop()
}

fn first_difference(sessions: &[Session]) -> Option<String> {
    let server = Server::start();
    sessions.iter().find_map(|session| compare(session, &run(session, &server)))
}

/// The output of redis-cli, as at a terminal, for the commands of a session.
fn run(session: &Session, server: &Server) -> Vec<String> {
    let mut cli = Command::new(cli())
        .args(["--no-raw", "-p", &server.port().to_string()])
        .args(&session.options)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("redis-cli, which comes with the server");
    let mut input = cli.stdin.take().expect("its input");
    for exchange in &session.exchanges {
        writeln!(input, "{}", exchange.command).expect("redis-cli reads");
    }
    drop(input);
    let output = cli.wait_with_output().expect("its output").stdout;
    String::from_utf8(output).expect("text").lines().map(str::to_owned).collect()
}

fn compare(session: &Session, answered: &[String]) -> Option<String> {
    let mut answered = answered.iter();
    for exchange in &session.exchanges {
        for (index, shown) in exchange.answer.iter().enumerate() {
            let answer = answered.next().map_or("nothing", String::as_str);
            if !exchange.is_answered(index, answer) {
                let Exchange { line_number, command, .. } = exchange;
                return Some(format!("line {line_number}: {command}\n  shows: {shown}\nanswers: {answer}"));
            }
        }
    }
    answered.next().map(|more| format!("a session answers more: {more}"))
}

impl Exchange {
    /// Whether `answer` equals this line of the page, or differs only in a time.
    fn is_answered(&self, index: usize, answer: &str) -> bool {
        let shown = self.answer[index].as_str();
        let both = |are: &dyn Fn(&str) -> bool| are(shown) && are(answer);
        if both(&|line| line.starts_with("(error) NOPERM ")) {
            return true;
        }
        let Some(longest_ms) = self.longest_ms(index) else { return shown == answer.trim_end() };
        before_integer(shown) == before_integer(answer)
            && (shown == answer
                || both(&|line| integer(line).is_some_and(|ms| (1..=longest_ms).contains(&ms))))
    }

    /// The longest possible time in this line, if it shows one by the server's clock.
    fn longest_ms(&self, index: usize) -> Option<u64> {
        let words: Vec<&str> = self.command.split_whitespace().collect();
        if words[0] == "RL.INFO" {
            // The time follows `reset_after_ms`, and `window_ms` of the same window is above it.
            let (above, line) = (&self.answer[..index], &self.answer[index]);
            let name = if line.contains("=>") { line } else { above.last()? };
            let window = above.iter().rposition(|line| line.contains("window_ms"))?;
            let window_ms = self.answer[window..].iter().find_map(|line| integer(line))?;
            return name.contains("reset_after_ms").then_some(2 * window_ms);
        }
        if !words[0].starts_with("RL.") || !["4) ", "5) "].contains(&self.answer[index].get(..3)?) {
            return None;
        }
        let request = Arguments::parse(&words[2..], Verb::Take(Algorithm::Log)).ok()?;
        let window_ms = request.quotas.iter().map(|quota| quota.window().get()).max()?;
        // Units of the previous window still count in this one.
        let windows = if matches!(words[0], "RL.SLIDING" | "RL.PEEK") { 2 } else { 1 };
        request.at.is_none().then_some(windows * window_ms)
    }
}

const INTEGER: &str = "(integer) ";

fn integer(line: &str) -> Option<u64> {
    line.split_once(INTEGER)?.1.parse().ok()
}

fn before_integer(line: &str) -> Option<&str> {
    Some(line.split_once(INTEGER)?.0)
}
